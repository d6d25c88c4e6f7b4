/* Which kernels a call of gpu/k3_ops.h starts, in which grids. STREAM: the device's, or anything
 * where kernels run on the CPU. */
#ifndef KD_GPU_K3_LAUNCH_CUH
#define KD_GPU_K3_LAUNCH_CUH

#include "gpu/k3_kda_chunk.cuh"
#include "gpu/k3_mla_prompt.cuh"

namespace kd_k3
{

enum {
    FAST_BLOCKS = 264 /* so many of attention with 16 heads each run at once on a big device */
};

template <int CANDIDATES, class STREAM>
void launch_mix_team(const kd_gpu_k3_mix &m, bool teams, [[maybe_unused]] STREAM stream)
{
    const int threads = 32 * mix_warps(m.hidden);

    if (teams)
        KD_LAUNCH_EARLY((mix_rows<CANDIDATES, MIX_TEAM>), MIX_TEAM, m.rows * MIX_TEAM, threads,
                        sizeof(mix_shared), stream, m);
    else
        KD_LAUNCH_EARLY((mix_rows<CANDIDATES, 1>), 1, m.rows, threads, sizeof(mix_shared), stream,
                        m);
}

/* teams: the device has clusters. */
template <class STREAM> void launch_mix(const kd_gpu_k3_mix &m, bool teams, STREAM stream)
{
    const int banks = m.query ? m.banks + (m.push ? 1 : 0) : 0;

    if (banks < 4)
        launch_mix_team<4>(m, teams, stream);
    else if (banks < 9)
        launch_mix_team<9>(m, teams, stream);
    else
        launch_mix_team<MIX_CANDIDATES>(m, teams, stream);
}

template <class STREAM>
void launch_norm(const float *x, const float *w, float eps, int64_t rows, int64_t n, float *out,
                 [[maybe_unused]] STREAM stream)
{
    KD_LAUNCH_EARLY(norm_rows, 1, rows, NORM_THREADS, NORM_THREADS / 32 * sizeof(float), stream, x,
                    w, eps, n, out);
}

template <class STREAM>
void launch_embed(const kd_gpu_k3_batch &b, const void *table, bool bf16, int64_t hidden, float *p,
                  [[maybe_unused]] STREAM stream)
{
    KD_LAUNCH_EARLY(embed_rows, 1, b.rows, NORM_THREADS, 0, stream, b.ids, table, bf16, hidden, p);
}

static inline int64_t blocks_of_all(int64_t count)
{
    return (count + NORM_THREADS - 1) / NORM_THREADS;
}

template <class STREAM>
void launch_situ(const float *a, const float *b, float beta, float linear, int64_t count,
                 float *out, [[maybe_unused]] STREAM stream)
{
    KD_LAUNCH_EARLY(situ_all, 1, blocks_of_all(count), NORM_THREADS, 0, stream, a, b, beta, linear,
                    count, out);
}

template <class STREAM>
void launch_round(float *x, int64_t count, uint16_t *out, [[maybe_unused]] STREAM stream)
{
    KD_LAUNCH_EARLY(round_all, 1, blocks_of_all(count), NORM_THREADS, 0, stream, x, count, out);
}

template <class STREAM>
void launch_finite(const float *x, int64_t count, int32_t *bad, [[maybe_unused]] STREAM stream)
{
    KD_LAUNCH_EARLY(find_bad, 1, blocks_of_all(count), NORM_THREADS, 0, stream, x, count, bad);
}

template <enum kda_part PART, class STREAM>
void launch_kda_heads(const kd_gpu_k3_batch &b, const kd_gpu_k3_kda &a,
                      [[maybe_unused]] STREAM stream)
{
    KD_LAUNCH_EARLY(kda_heads<PART>, 1, b.segs * a.heads, KDA_THREADS, sizeof(kda_shared), stream,
                    b, a);
}

template <class STREAM>
void launch_kda(const kd_gpu_k3_batch &b, const kd_gpu_k3_kda &a, [[maybe_unused]] STREAM stream)
{
    const int64_t blocks = b.rows / CHUNK * a.heads; /* at least as many as there are chunks */

    if (!a.work || !blocks || b.rows == b.segs) {
        launch_kda_heads<KDA_ALL>(b, a, stream);
        return;
    }
    launch_kda_heads<KDA_LEAD>(b, a, stream);
    KD_LAUNCH_EARLY(kda_chunk_inputs, 1, blocks, CHUNK_THREADS, sizeof(chunk_shared), stream, b, a);
    KD_LAUNCH_EARLY(kda_chunk_walk, 1, b.segs * a.heads * WALK_SLICES, WALK_THREADS,
                    sizeof(walk_shared), stream, b, a);
    KD_LAUNCH_EARLY(kda_chunk_outputs, 1, blocks, CHUNK_THREADS, 0, stream, b, a);
    launch_kda_heads<KDA_TAIL>(b, a, stream);
}

static inline int64_t kda_floats(int64_t heads, int64_t rows)
{
    return rows / CHUNK * heads * WORK_FLOATS;
}

template <class STREAM>
void launch_latents(const kd_gpu_k3_batch &b, const kd_gpu_k3_latents &a,
                    [[maybe_unused]] STREAM stream)
{
    KD_LAUNCH_EARLY(latent_rows, 1, 2 * b.rows, NORM_THREADS, NORM_THREADS / 32 * sizeof(float),
                    stream, b, a);
}

template <class STREAM> void launch_route(const kd_gpu_k3_route &r, [[maybe_unused]] STREAM stream)
{
    const int warps = (int)((r.experts + 31) / 32);

    KD_LAUNCH_EARLY(route_rows, 1, r.rows, 32 * warps, sizeof(route_shared), stream, r, warps);
}

template <int LORA, bool BF16, int ROWS, class STREAM>
void launch_mla_rows(const mla_args &a, [[maybe_unused]] STREAM stream)
{
    constexpr int GROUPS = VALUE_THREADS / (LORA / 8);
    const int64_t tiles = (a.b.rows + ROWS - 1) / ROWS * a.heads;
    const int64_t groups = (a.heads + MLA_HEADS - 1) / MLA_HEADS;

    KD_LAUNCH((absorb_heads<LORA, BF16, ROWS>), tiles, VALUE_THREADS,
              (ROWS * KD_GPU_K3_DIM + GROUPS * LORA) * sizeof(float), stream, a);
    KD_LAUNCH(attend_rows<LORA>, a.b.rows * a.parts * groups, MLA_THREADS, sizeof(mla_shared<LORA>),
              stream, a);
    KD_LAUNCH((value_heads<LORA, BF16, ROWS>), tiles, VALUE_THREADS, ROWS * LORA * sizeof(float),
              stream, a);
}

/* For checks. Several rows share what is read of kv_b once there are blocks enough. */
template <int LORA, class STREAM>
void launch_mla(const mla_args &a, bool bf16, [[maybe_unused]] STREAM stream)
{
    const bool many = a.b.rows > 4;

    if (bf16 && many)
        launch_mla_rows<LORA, true, 8>(a, stream);
    else if (bf16)
        launch_mla_rows<LORA, true, 1>(a, stream);
    else if (many)
        launch_mla_rows<LORA, false, 8>(a, stream);
    else
        launch_mla_rows<LORA, false, 1>(a, stream);
}

/* A kernel of the fast class: what it needs of shared memory, and how it starts. */
template <int LORA, int TILES, class STREAM>
void launch_absorb_fast(const mla_args &a, [[maybe_unused]] STREAM stream)
{
    constexpr int WARPS = LORA / 64 < ABSORB_WARPS ? LORA / 64 : (int)ABSORB_WARPS;
    const int64_t tiles = (a.b.rows + 8 * TILES - 1) / (8 * TILES);

    KD_LAUNCH_EARLY((absorb_fast<LORA, TILES>), 1, tiles * a.heads * (LORA / 64 / WARPS),
                    32 * WARPS, 2 * 8 * TILES * (KD_GPU_K3_DIM + 8) * sizeof(uint16_t), stream, a);
}

template <int LORA, int TILES, class STREAM>
void launch_attend_fast(const mla_args &a, [[maybe_unused]] STREAM stream)
{
    const int64_t groups = (a.heads + 16 * TILES - 1) / (16 * TILES);

    KD_LAUNCH_EARLY((attend_fast<LORA, TILES>), 1, a.b.rows * a.parts * groups, 128 * TILES,
                    sizeof(fast_shared<LORA, TILES>), stream, a);
}

template <int LORA, int TILES, class STREAM>
void launch_value_fast(const mla_args &a, [[maybe_unused]] STREAM stream)
{
    const int64_t tiles = (a.b.rows + 8 * TILES - 1) / (8 * TILES);

    KD_LAUNCH_EARLY((value_fast<LORA, TILES>), 1, tiles * a.heads, 32 * VALUE_WARPS,
                    sizeof(value_shared<LORA, TILES>), stream, a);
}

/* Many heads in a block share what is read of the cache; few let more blocks run. */
template <int LORA, class STREAM> void launch_mla_fast(const mla_args &a, STREAM stream)
{
    const bool many = a.b.rows > 8;
    const int64_t parts = a.parts > 1 ? (a.b.longest - 1) / mla_part(a.b.longest, a.least) + 1 : 1;

    many ? launch_absorb_fast<LORA, 4>(a, stream) : launch_absorb_fast<LORA, 1>(a, stream);
    if (a.heads <= 16 || a.b.rows * parts * ((a.heads + 15) / 16) <= FAST_BLOCKS)
        launch_attend_fast<LORA, 1>(a, stream);
    else
        launch_attend_fast<LORA, 3>(a, stream);
    many ? launch_value_fast<LORA, 4>(a, stream) : launch_value_fast<LORA, 1>(a, stream);
}

static inline int64_t mla_least(bool fast)
{
    return fast ? (int64_t)FAST_PART : (int64_t)KD_GPU_K3_PAGE;
}

/* Floats of the absorbed queries. */
static inline int64_t mla_latent(bool fast, int64_t heads, int64_t kv_lora, int64_t rows)
{
    const int64_t values = rows * heads * (kv_lora + KD_GPU_K3_ROPE);

    return fast ? values / 2 : values;
}

/* The kernels' arguments and the parts of the work space. */
static inline mla_args mla_args_of(const kd_gpu_k3_batch &b, const kd_gpu_k3_mla &m)
{
    float *const slot = m.work + mla_latent(m.fast, m.heads, m.kv_lora, b.rows);

    return {b,      m.heads, m.page, mla_least(m.fast), m.q, m.gate,
            m.kv_b, m.work,  slot,   m.parts,           m.y, 0};
}

/* What prompts need of the work space: floats beside keys and values, and of a piece of those. */
static inline int64_t prompt_fixed(int64_t heads, int64_t kv_lora, int64_t rows)
{
    return heads * PROMPT_PAIR * (kv_lora / 2 + 1) +
           (rows / PROMPT_TILE + 1) * heads * PROMPT_STATE;
}
static inline int64_t prompt_piece(int64_t heads)
{
    return (heads * PROMPT_PIECE + PROMPT_BOX) / 2;
}
static inline int64_t prompt_pieces(int64_t positions)
{
    return (positions + PROMPT_TILE - 1) / PROMPT_TILE;
}
static inline int64_t prompt_floats(int64_t heads, int64_t kv_lora, int64_t rows, int64_t longest)
{
    const int64_t least = longest < PROMPT_LEAST ? longest : (int64_t)PROMPT_LEAST;

    return prompt_fixed(heads, kv_lora, rows) + prompt_pieces(least) * prompt_piece(heads);
}

static inline int64_t mla_floats(bool fast, int64_t heads, int64_t kv_lora, int64_t rows,
                                 int64_t longest, int64_t most, int64_t *parts)
{
    const int64_t least = mla_least(fast), part = mla_part(longest, least);
    const int64_t latent = mla_latent(fast, heads, kv_lora, rows),
                  slot = rows * heads * (kv_lora + MLA_SLOT);
    const int64_t prompt =
        fast && rows > PROMPT_ROWS ? prompt_floats(heads, kv_lora, rows, longest) : 0;

    /* A power of two, so that few grids serve all contexts; a shorter one may have more parts than
     * the longest, never more than MLA_PARTS. Rows enough fill a device without. */
    *parts = 1;
    while (rows < MLA_ROWS && *parts < MLA_PARTS &&
           *parts * part < (part > least ? 2 : 1) * longest)
        *parts *= 2;
    if (latent + *parts * slot > most)
        *parts = 1;
    return latent + *parts * slot > prompt ? latent + *parts * slot : prompt;
}

/* The work space of prompts. */
static inline prompt_args prompt_args_of(const kd_gpu_k3_batch &b, const kd_gpu_k3_mla &m)
{
    prompt_args a = {};
    float *at = m.work;
    int64_t parts, floats = m.floats;

    if (!floats)
        floats = mla_floats(true, m.heads, m.kv_lora, b.rows, b.longest, 0, &parts);
    a.heads = m.heads;
    a.page = m.page;
    a.width = m.kv_lora + KD_GPU_K3_ROPE;
    a.q = m.q;
    a.gate = m.gate;
    a.kv_b = (const uint16_t *)m.kv_b;
    a.weights = (uint16_t *)at;
    at += m.heads * PROMPT_PAIR * m.kv_lora / 2;
    a.scale = at;
    at += m.heads * PROMPT_PAIR;
    a.state = at;
    a.pieces = (uint16_t *)(m.work + prompt_fixed(m.heads, m.kv_lora, b.rows));
    a.room = (floats - prompt_fixed(m.heads, m.kv_lora, b.rows)) / prompt_piece(m.heads);
    a.shared = a.pieces + a.room * m.heads * PROMPT_PIECE;
    a.y = m.y;
    return a;
}

/* wide: the device is one that attend_prompt_wide is for. */
template <int LORA, class STREAM>
void launch_spans(prompt_args &a, bool wide, [[maybe_unused]] STREAM stream)
{
    int64_t tiles = 0;

    for (int i = 0; i < a.spans; i++)
        tiles += prompt_tiles(a.span[i].seg);
    if (!tiles)
        return;
    KD_LAUNCH_EARLY(expand_pairs<LORA>, 1, a.places * 2 * a.heads, PROMPT_THREADS,
                    sizeof(expand_shared), stream, a);
    if (wide)
        KD_LAUNCH_EARLY(attend_prompt_wide, 1, tiles * a.heads, WIDE_PROMPT_THREADS,
                        WIDE_PROMPT_SHARED, stream, a, tiles);
    else
        KD_LAUNCH_EARLY(attend_prompt, 1, tiles * a.heads, PROMPT_THREADS, sizeof(prompt_shared),
                        stream, a, tiles);
    a.spans = 0;
    a.places = 0;
}

/* Segments of more than PROMPT_ROWS rows: as many as there is room for at a time; one that is
 * longer, span by span. */
template <int LORA, class STREAM>
void launch_prompts(const kd_gpu_k3_batch &b, const kd_gpu_k3_mla &m, bool wide, STREAM stream)
{
    prompt_args a = prompt_args_of(b, m);

    KD_LAUNCH_EARLY(prompt_weights<LORA>, 1, a.heads * PROMPT_PAIR / (PROMPT_THREADS / 32),
                    PROMPT_THREADS, 0, stream, a);
    for (int64_t i = 0; i < b.segs; i++) {
        const kd_gpu_k3_seg &seg = b.host[i];
        const int64_t end = seg.pos + seg.count;
        if (seg.count <= PROMPT_ROWS)
            continue;
        if (a.spans == PROMPT_SPANS || a.places + prompt_pieces(end) > a.room)
            launch_spans<LORA>(a, wide, stream);
        for (int64_t from = 0, to; from < end; from = to) {
            to = end - from > a.room * PROMPT_TILE ? from + a.room * PROMPT_TILE : end;
            a.span[a.spans++] = {seg, from, to, a.places};
            a.places += prompt_pieces(to - from);
            if (to < end || from)
                launch_spans<LORA>(a, wide, stream);
        }
    }
    launch_spans<LORA>(a, wide, stream);
}

/* Class fast. Prompts have a form of their own; the rows between them keep theirs. */
template <int LORA, class STREAM>
void launch_mla_batch(const kd_gpu_k3_batch &b, const kd_gpu_k3_mla &m, bool wide, STREAM stream)
{
    int64_t rows = 0, room, parts;
    bool prompts = false;

    if (!b.host || b.rows <= PROMPT_ROWS || b.rows == b.segs) {
        launch_mla_fast<LORA>(mla_args_of(b, m), stream);
        return;
    }
    room = mla_latent(true, m.heads, m.kv_lora, b.rows) +
           m.parts * b.rows * m.heads * (m.kv_lora + MLA_SLOT);
    for (int64_t i = 0; i <= b.segs; i++) {
        if (i < b.segs && b.host[i].count <= PROMPT_ROWS) {
            rows += b.host[i].count;
            continue;
        }
        const int64_t end = i < b.segs ? b.host[i].first : b.rows;
        prompts = prompts || i < b.segs;
        if (rows) {
            kd_gpu_k3_batch some = b;
            kd_gpu_k3_mla part = m;
            some.rows = rows;
            mla_floats(true, m.heads, m.kv_lora, rows, b.longest, room, &parts);
            part.parts = parts;
            mla_args a = mla_args_of(some, part);
            a.row0 = end - rows;
            a.q += a.row0 * m.heads * MLA_QUERY;
            a.gate += a.row0 * m.heads * KD_GPU_K3_DIM;
            a.y += a.row0 * m.heads * KD_GPU_K3_DIM;
            launch_mla_fast<LORA>(a, stream);
            rows = 0;
        }
    }
    if (prompts)
        launch_prompts<LORA>(b, m, wide, stream);
}

} // namespace kd_k3

#endif
