/* MLA's attention for prompts, class fast: segments of more than PROMPT_ROWS rows. Each position's
 * key and value of each head are made from its latent (kv_b times it, fp16), then every head is
 * plain causal attention of 192-wide keys and 128-wide values: 640 operations a pair of tokens and
 * head where the absorbed form (k3_mla_fast.cuh) has 2,176.
 *
 * A block has 128 rows of one segment and one head; 64 positions at absolute multiples of 64 share
 * a maximum (128 on Hopper). A masked position contributes exactly 0, a stage without a new maximum
 * multiplies by exactly 1: a row's bits depend neither on the rows beside it nor on the cut of its
 * sequence. What does not fit the work space is taken in spans of positions, one after the other;
 * sums go on from the values they had. */
#ifndef KD_GPU_K3_MLA_PROMPT_CUH
#define KD_GPU_K3_MLA_PROMPT_CUH

#include "gpu/k3_mla_fast.cuh"
#include "gpu/wgmma_lanes.cuh"

namespace kd_k3
{

enum {
    PROMPT_ROWS = 64,    /* of a segment that is not one, at most */
    PROMPT_SPANS = 16,   /* of a launch, at most */
    PROMPT_LEAST = 2048, /* positions in the work space, or as many as there are */
    PROMPT_TILE = 128,   /* rows of a block; positions of a piece of the work space */
    PROMPT_STAGE = KD_GPU_K3_PAGE,
    PROMPT_THREADS = 2 * PROMPT_TILE,
    PROMPT_STATE = 17 * 4 * PROMPT_THREADS, /* floats of a block's sums */
    PROMPT_PAIR = 2 * KD_GPU_K3_DIM,        /* rows of kv_b of a head */
    EXPAND_DEEP = 64,                       /* latents of a stage */
    EXPAND_STAGES = 3
};

/* Keys and values lie in pieces as they do in shared memory: boxes of 64 columns, 128 bytes a row,
 * whose chunk c of eight values is at c ^ row % 8. A piece of 128 positions and a head: keys
 * [2][128][64] (their columns 64 i ..), then values [2][128][64] (turned: a row for each column of
 * theirs, positions 64 i ..). What all heads share of the keys: [128][64]. */
enum {
    PROMPT_BOX = PROMPT_TILE * 64, /* values */
    PROMPT_PIECE = 4 * PROMPT_BOX
};
KD_DEV int prompt_chunk(int row, int chunk)
{
    return row * 64 + (chunk ^ row % 8) * 8;
}

/* Positions from .. end - 1 of a segment, from a multiple of 128; from piece `place` on. */
struct prompt_span {
    kd_gpu_k3_seg seg;
    int64_t from, end, place;
};

struct prompt_args {
    int64_t heads, page, width; /* width: of a cache row */
    const float *q, *gate;
    const uint16_t *kv_b;
    uint16_t *weights;    /* kv_b as fp16 */
    float *scale;         /* [heads * 256] what its rows are to be multiplied by */
    float *state;         /* [tiles][heads][PROMPT_STATE], of spans that are not whole */
    uint16_t *pieces;     /* [heads][room][PROMPT_PIECE] */
    uint16_t *shared;     /* [room][PROMPT_BOX] */
    int64_t room, places; /* pieces, those in use */
    float *y;
    int spans;
    prompt_span span[PROMPT_SPANS];
};

KD_HD static inline int64_t prompt_tiles(const kd_gpu_k3_seg &s)
{
    return (s.count + PROMPT_TILE - 1) / PROMPT_TILE;
}

/* kv_b in fp16: each row times a power of two of its own, so that nothing is lost that its largest
 * value does not drown. A warp a row. */
template <int LORA>
KD_KERNEL void KD_BOUNDS(PROMPT_THREADS, 2) prompt_weights(KD_ARGS prompt_args a)
{
    constexpr int EACH = LORA / 64;
    const int lane = kd_thread() % 32;
    const int64_t row = (int64_t)kd_block() * (PROMPT_THREADS / 32) + kd_thread() / 32;
    const uint32_t *from = (const uint32_t *)(a.kv_b + row * LORA);
    uint32_t *to = (uint32_t *)(a.weights + row * LORA), word[EACH], most = 0;

#pragma unroll
    for (int i = 0; i < EACH; i++) {
        word[i] = kd_load_const(from + 32 * i + lane);
        const uint32_t low = word[i] & 0x7fffu, high = word[i] >> 16 & 0x7fffu;
        most = low > most ? low : most;
        most = high > most ? high : most;
    }
    most = kd_warp_max(most) >> 7;
    most = most < 15u ? 15u : most;
    const float up = kd_bits_f32((268u - most) << 23);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        word[i] = kd_h2_bits(
            kd_h2_of(kd_bits_f32(word[i] << 16) * up, kd_bits_f32(word[i] & 0xffff0000u) * up));
    kd_launch_wait();
    kd_launch_next();
#pragma unroll
    for (int i = 0; i < EACH; i++)
        to[32 * i + lane] = word[i];
    if (lane == 0)
        a.scale[row] = kd_bits_f32((most - 14u) << 23);
}

struct alignas(16) expand_shared {
    uint16_t first[EXPAND_STAGES][PROMPT_TILE][EXPAND_DEEP];
    uint16_t second[EXPAND_STAGES][PROMPT_TILE][EXPAND_DEEP];
};

/* Where a row of eight chunks has one: so that eight rows one after the other, and the eight that
 * are the second factor's columns of a tile, lie in other banks. */
KD_DEV int first_chunk(int row, int chunk)
{
    return (chunk ^ row % 8) * 8;
}
KD_DEV int second_chunk(int row, int chunk)
{
    return (chunk ^ (row % 2 + row / 8 % 4 * 2)) * 8;
}

/* The cache row of a row of a piece; NULL: there is none. */
KD_DEV const uint16_t *prompt_latent(const prompt_args &a, int64_t place, int row)
{
    for (int i = 0; i < a.spans; i++) {
        const prompt_span &s = a.span[i];
        const int64_t pos = s.from + (place - s.place) * PROMPT_TILE + row;
        if (place >= s.place && pos < s.end)
            return (const uint16_t *)s.seg.page[pos / KD_GPU_K3_PAGE] + a.page +
                   pos % KD_GPU_K3_PAGE * a.width;
    }
    return nullptr;
}

/* Keys (even blocks) or values of a head for a piece: of keys, rows are positions and columns the
 * key's; of values the other way. Warp 4 i + j: rows 64 i .., columns 32 j ..; a lane has eight
 * adjacent columns, 8 t .. 8 t + 7: its two of each of four tiles. */
template <int LORA> KD_KERNEL void KD_BOUNDS(PROMPT_THREADS, 2) expand_pairs(KD_ARGS prompt_args a)
{
    constexpr int STAGES = LORA / EXPAND_DEEP;
    KD_SHARED(memory);
    expand_shared *s = (expand_shared *)memory;
    const int t = kd_thread(), lane = t % 32, i0 = t / 128 * 64, j0 = t / 32 % 4 * 32;
    const int64_t columns = 2 * a.heads, n = kd_block() % columns, place = kd_block() / columns;
    const bool values = n % 2;
    const uint16_t *const weight = a.weights + (n * PROMPT_TILE + t / 8) * LORA + t % 8 * 8;
    const uint16_t *latent[4];
    float sum[4][4][4] = {};

    kd_launch_wait();
    kd_launch_next();
#pragma unroll
    for (int i = 0; i < 4; i++)
        latent[i] = prompt_latent(a, place, t / 8 + 32 * i);
    auto fetch = [&](int k) {
        const int stage = k % EXPAND_STAGES, at = k * EXPAND_DEEP;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = t / 8 + 32 * i;
            uint16_t *first = s->first[stage][row] + first_chunk(row, t % 8),
                     *second = s->second[stage][row] + second_chunk(row, t % 8);
            kd_copy16_if(latent[i] != nullptr, values ? second : first,
                         latent[i] ? latent[i] + at + t % 8 * 8 : weight);
            kd_copy16(values ? first : second, weight + (int64_t)32 * i * LORA + at);
        }
    };
    fetch(0);
    kd_copy_group();
    fetch(1);
    kd_copy_group();
#pragma unroll 1
    for (int k = 0; k < STAGES; k++) {
        const int stage = k % EXPAND_STAGES;
        kd_copy_wait<1>();
        kd_sync_block();
        if (k + 2 < STAGES)
            fetch(k + 2);
        kd_copy_group();
#pragma unroll
        for (int c = 0; c < EXPAND_DEEP / 8; c += 2) {
            uint32_t x[4][4], w[2][4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = i0 + 16 * i + lane % 16;
                kd_load_matrices(x[i], s->first[stage][row] + first_chunk(row, c + lane / 16));
            }
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int row = j0 + lane % 8 / 2 * 8 + 4 * j + lane / 16 * 2 + lane % 2;
                kd_load_matrices(w[j], s->second[stage][row] + second_chunk(row, c + lane / 8 % 2));
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const kd_h2 l[4] = {kd_bits_h2(x[i][0]), kd_bits_h2(x[i][1]), kd_bits_h2(x[i][2]),
                                    kd_bits_h2(x[i][3])};
#pragma unroll
                for (int j = 0; j < 4; j++)
                    kd_mma_halves(sum[i][j], l, kd_bits_h2(w[j / 2][j % 2 * 2]),
                                  kd_bits_h2(w[j / 2][j % 2 * 2 + 1]));
            }
        }
    }
    const int column = j0 + lane % 4 * 8;
    const float *scale = a.scale + n * PROMPT_TILE;
    uint16_t *to = a.pieces + (n / 2 * a.room + place) * PROMPT_PIECE +
                   (2 * values + column / 64) * PROMPT_BOX;
    float by[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        by[i] = scale[column + i];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float(*x)[4] = sum[i / 2];
        const int r = i % 2 * 2, row = i0 + lane / 4 + 8 * i;
        const float all = scale[row];
        uint32_t out[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            out[j] = halves_of(x[j][r] * (values ? all : by[2 * j]),
                               x[j][r + 1] * (values ? all : by[2 * j + 1]));
        *(uint4 *)(to + prompt_chunk(row, column % 64 / 8)) =
            make_uint4(out[0], out[1], out[2], out[3]);
    }
    /* What all heads share. */
#pragma unroll
    for (int i = 0; i < 4 && n == 0; i++)
        *(uint4 *)(a.shared + place * PROMPT_BOX + prompt_chunk(t / 8 + 32 * i, t % 8)) =
            latent[i] ? *(const uint4 *)(latent[i] + LORA + t % 8 * 8) : make_uint4(0, 0, 0, 0);
}

/* A warp's sixteen rows and KEYS * 8 positions at a time; a lane has parts of rows lane / 4 and
 * lane / 4 + 8. */
template <int KEYS> struct prompt_sums {
    static constexpr int COLS = KD_GPU_K3_DIM / 8;
    float sums[COLS][4], all[2]; /* all: a lane's sums of weights */
    float max[2];
    int64_t last[2]; /* the last positions that the rows see */
    int lane;

    KD_DEV void place(const kd_gpu_k3_seg &seg, int64_t row0)
    {
        lane = kd_thread() % 32;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int64_t row = row0 + lane / 4 + 8 * i;
            last[i] = seg.pos + (row < seg.count ? row : seg.count - 1);
        }
    }
    KD_DEV void clear()
    {
        max[0] = max[1] = -INFINITY;
        all[0] = all[1] = 0;
#pragma unroll
        for (int n = 0; n < COLS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[n][i] = 0;
    }
    KD_DEV void save(float *state, int thread) const
    {
        float4 *to = (float4 *)state + thread;
#pragma unroll
        for (int n = 0; n < COLS; n++)
            to[n * PROMPT_THREADS] = make_float4(sums[n][0], sums[n][1], sums[n][2], sums[n][3]);
        to[COLS * PROMPT_THREADS] = make_float4(max[0], max[1], all[0], all[1]);
    }
    KD_DEV void restore(const float *state, int thread)
    {
        const float4 *from = (const float4 *)state + thread;
#pragma unroll
        for (int n = 0; n < COLS; n++) {
            const float4 x = from[n * PROMPT_THREADS];
            sums[n][0] = x.x;
            sums[n][1] = x.y;
            sums[n][2] = x.z;
            sums[n][3] = x.w;
        }
        const float4 x = from[COLS * PROMPT_THREADS];
        max[0] = x.x;
        max[1] = x.y;
        all[0] = x.z;
        all[1] = x.w;
    }

    /* What the rows do not see of the positions from pos on becomes minus infinity. */
    KD_DEV void mask(float (&x)[KEYS][4], int64_t pos) const
    {
        const int ends[2] = {(int)(last[0] - pos) - lane % 4 * 2,
                             (int)(last[1] - pos) - lane % 4 * 2};
#pragma unroll
        for (int n = 0; n < KEYS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (8 * n + i % 2 > ends[i / 2])
                    x[n][i] = -INFINITY;
    }

    /* Scores become weights, as fp16; older sums shrink. */
    KD_DEV void weigh(float (&x)[KEYS][4], kd_h2 (&w)[KEYS][2])
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float most = max[r], sum[2] = {};
#pragma unroll
            for (int n = 0; n < KEYS; n++) {
                most = fmaxf(most, x[n][2 * r]);
                most = fmaxf(most, x[n][2 * r + 1]);
            }
            most = fmaxf(most, kd_shuffle_xor(most, 1));
            most = fmaxf(most, kd_shuffle_xor(most, 2));
            const float fix = kd_exp2_near(max[r] - most);
            max[r] = most;
#pragma unroll
            for (int n = 0; n < KEYS; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    x[n][2 * r + i] = kd_exp2_near(x[n][2 * r + i] - most);
                    sum[i] += x[n][2 * r + i];
                }
            all[r] = fmaf(all[r], fix, sum[0] + sum[1]);
#pragma unroll
            for (int n = 0; n < KEYS; n++)
                w[n][r] = kd_h2_of(x[n][2 * r], x[n][2 * r + 1]);
#pragma unroll
            for (int n = 0; n < COLS; n++) {
                sums[n][2 * r] *= fix;
                sums[n][2 * r + 1] *= fix;
            }
        }
    }

    KD_DEV void store(const prompt_args &a, const kd_gpu_k3_seg &seg, int64_t row0, int64_t h)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int64_t row = row0 + lane / 4 + 8 * i,
                          at = ((seg.first + row) * a.heads + h) * KD_GPU_K3_DIM + lane % 4 * 2;
            all[i] += kd_shuffle_xor(all[i], 1);
            all[i] += kd_shuffle_xor(all[i], 2);
#pragma unroll
            for (int n = 0; n < COLS; n++) {
                if (row >= seg.count)
                    continue;
                const float2 g = *(const float2 *)(a.gate + at + 8 * n);
                *(float2 *)(a.y + at + 8 * n) =
                    make_float2(sums[n][2 * i] / all[i] * kd_sigmoid1(g.x),
                                sums[n][2 * i + 1] / all[i] * kd_sigmoid1(g.y));
            }
        }
    }
};

/* Two queries times log2(e) / sqrt(192): scores are exponents of two. row: of the segment. */
KD_DEV uint32_t prompt_query(const prompt_args &a, const kd_gpu_k3_seg &seg, int64_t row, int64_t h,
                             int column)
{
    const float scale = 1.4426950408889634f / sqrtf((float)MLA_QUERY);
    const int64_t r = row < seg.count ? row : seg.count - 1;
    const float2 x = *(const float2 *)(a.q + ((seg.first + r) * a.heads + h) * MLA_QUERY + column);
    return halves_of(x.x * scale, x.y * scale);
}

/* A block's share: its span's number, rows from row0 on, head h, positions up to `end`; `seen`: by
 * any of the rows. */
struct prompt_share {
    int64_t tile, h, row0, seen, end;
    int span;

    /* The longest first; tiles: of all spans. */
    KD_DEV prompt_share(const prompt_args &a, int64_t tiles)
    {
        span = 0;
        tile = tiles - 1 - kd_block() % tiles;
        h = kd_block() / tiles;
        for (; tile >= prompt_tiles(a.span[span].seg); span++)
            tile -= prompt_tiles(a.span[span].seg);
        const kd_gpu_k3_seg &seg = a.span[span].seg;
        row0 = tile * PROMPT_TILE;
        const int64_t left = seg.count - row0;
        seen = seg.pos + row0 + (left < PROMPT_TILE ? left : PROMPT_TILE);
        end = seen < a.span[span].end ? seen : a.span[span].end;
    }
    KD_DEV float *state(const prompt_args &a) const
    {
        return a.state + (tile * a.heads + h) * PROMPT_STATE;
    }
};

struct alignas(16) prompt_shared {
    uint16_t key[2][3][PROMPT_STAGE * 64], value[2][PROMPT_BOX];
};

/* The same for devices that multiply a warp at a time, queries in registers. */
struct prompt_rows : prompt_sums<PROMPT_STAGE / 8> {
    static constexpr int STEPS = MLA_QUERY / 16, KEYS = PROMPT_STAGE / 8;
    kd_h2 q[STEPS][4];

    KD_DEV void load(const prompt_args &a, const kd_gpu_k3_seg &seg, int64_t row0, int64_t h)
    {
        place(seg, row0);
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                q[s][i] = kd_bits_h2(prompt_query(a, seg, row0 + lane / 4 + i % 2 * 8, h,
                                                  16 * s + i / 2 * 8 + lane % 4 * 2));
    }
    KD_DEV void scores(const prompt_shared *s, int buffer, float (&x)[KEYS][4]) const
    {
        const corner c = across_first(lane);
#pragma unroll
        for (int n = 0; n < KEYS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[n][i] = 0;
#pragma unroll
        for (int k = 0; k < STEPS; k++)
#pragma unroll
            for (int n = 0; n < KEYS / 2; n++) {
                uint32_t b[4];
                kd_load_matrices(b, s->key[buffer][k / 4] +
                                        prompt_chunk(16 * n + c.row, k % 4 * 2 + c.chunk));
                kd_mma_halves(x[2 * n], q[k], kd_bits_h2(b[0]), kd_bits_h2(b[1]));
                kd_mma_halves(x[2 * n + 1], q[k], kd_bits_h2(b[2]), kd_bits_h2(b[3]));
            }
    }
    KD_DEV void add(const prompt_shared *s, int buffer, const kd_h2 (&w)[KEYS][2])
    {
        const corner c = across_first(lane);
#pragma unroll
        for (int k = 0; k < KEYS / 2; k++) {
            const kd_h2 a[4] = {w[2 * k][0], w[2 * k][1], w[2 * k + 1][0], w[2 * k + 1][1]};
#pragma unroll
            for (int n = 0; n < COLS / 2; n++) {
                uint32_t b[4];
                kd_load_matrices(b,
                                 s->value[buffer] + prompt_chunk(16 * n + c.row, 2 * k + c.chunk));
                kd_mma_halves(sums[2 * n], a, kd_bits_h2(b[0]), kd_bits_h2(b[1]));
                kd_mma_halves(sums[2 * n + 1], a, kd_bits_h2(b[2]), kd_bits_h2(b[3]));
            }
        }
    }
};

/* 64 positions on their way to shared memory: keys with what of them is shared, values. */
KD_DEV void prompt_fetch(const prompt_args &a, const prompt_span &span, int64_t h, int64_t pos,
                         prompt_shared *s, int buffer)
{
    constexpr int BOX = PROMPT_STAGE * 64; /* rows of a key's box */
    const int at = 8 * kd_thread(), half = (int)((pos - span.from) / PROMPT_STAGE % 2);
    const int64_t place = span.place + (pos - span.from) / PROMPT_TILE;
    const uint16_t *piece = a.pieces + (h * a.room + place) * PROMPT_PIECE,
                   *shared = a.shared + place * PROMPT_BOX + half * BOX;

#pragma unroll
    for (int i = 0; i < BOX; i += 8 * PROMPT_THREADS) {
        kd_copy16(s->key[buffer][0] + i + at, piece + half * BOX + i + at);
        kd_copy16(s->key[buffer][1] + i + at, piece + PROMPT_BOX + half * BOX + i + at);
        kd_copy16(s->key[buffer][2] + i + at, shared + i + at);
    }
#pragma unroll
    for (int i = 0; i < PROMPT_BOX; i += 8 * PROMPT_THREADS)
        kd_copy16(s->value[buffer] + i + at, piece + (2 + half) * PROMPT_BOX + i + at);
}

/* Block: head, tile. */
KD_KERNEL void KD_BOUNDS(PROMPT_THREADS, 1) attend_prompt(KD_ARGS prompt_args a, int64_t tiles)
{
    KD_SHARED(memory);
    prompt_shared *s = (prompt_shared *)memory;
    const prompt_share b(a, tiles);
    const prompt_span &span = a.span[b.span];
    const kd_gpu_k3_seg seg = span.seg;
    const int64_t mine = b.row0 + kd_thread() / 32 * 16;
    prompt_rows r;
    int buffer = 0;

    kd_launch_wait();
    kd_launch_next();
    if (span.from >= b.end)
        return;
    prompt_fetch(a, span, b.h, span.from, s, 0);
    kd_copy_group();
    r.load(a, seg, mine, b.h);
    if (span.from)
        r.restore(b.state(a), kd_thread());
    else
        r.clear();
#pragma unroll 1
    for (int64_t pos = span.from; pos < b.end; pos += PROMPT_STAGE, buffer ^= 1) {
        kd_copy_wait<0>();
        kd_sync_block();
        if (pos + PROMPT_STAGE < b.end)
            prompt_fetch(a, span, b.h, pos + PROMPT_STAGE, s, buffer ^ 1);
        kd_copy_group();
        if (pos > seg.pos + mine + 15)
            continue; /* none of the warp's rows sees this */
        float x[prompt_rows::KEYS][4];
        kd_h2 w[prompt_rows::KEYS][2];
        r.scores(s, buffer, x);
        if (pos + PROMPT_STAGE > seg.pos + mine)
            r.mask(x, pos);
        r.weigh(x, w);
        r.add(s, buffer, w);
    }
    if (b.end < b.seen)
        r.save(b.state(a), kd_thread());
    else
        r.store(a, seg, mine, b.h);
}

/* For Hopper: two warpgroups with 64 rows each and 128 positions at a time; a thread of a third one
 * has keys and values brought. */
enum {
    WIDE_STAGES = 2,
    WIDE_PROMPT_THREADS = 128 + PROMPT_THREADS,
    WIDE_BOX_BYTES = 2 * PROMPT_BOX,
    WIDE_KEY_BYTES = 3 * WIDE_BOX_BYTES,
    WIDE_VALUE_BYTES = 2 * WIDE_BOX_BYTES,
    WIDE_STAGE_BYTES = WIDE_KEY_BYTES + WIDE_VALUE_BYTES,
    WIDE_PROMPT_SHARED = KD_BOX_ALIGN + WIDE_KEY_BYTES + WIDE_STAGES * WIDE_STAGE_BYTES + 256,
    WIDE_PROMPT_FEW = 24,
    WIDE_PROMPT_MANY = 240
};

#ifdef KD_WGMMA
struct wide_prompt {
    unsigned char *query, *stage; /* [3 boxes] of 128 rows; [WIDE_STAGES] */
    uint64_t *gate;               /* of each stage: keys there, free, values there, free */
    int at = 0;
    uint32_t turn = 0;

    KD_DEV wide_prompt(unsigned char *shared)
    {
        query = shared + (KD_BOX_ALIGN - (uintptr_t)shared % KD_BOX_ALIGN) % KD_BOX_ALIGN;
        stage = query + WIDE_KEY_BYTES;
        gate = (uint64_t *)(stage + WIDE_STAGES * WIDE_STAGE_BYTES);
    }
    KD_DEV unsigned char *here() const
    {
        return stage + at * WIDE_STAGE_BYTES;
    }
    KD_DEV uint64_t *of(int which) const
    {
        return gate + 4 * at + which;
    }
    KD_DEV void next()
    {
        if (++at == WIDE_STAGES) {
            at = 0;
            turn ^= 1;
        }
    }
};

KD_DEV void wide_prompt_bring(const prompt_args &a, const prompt_share &b, wide_prompt s)
{
    const prompt_span &span = a.span[b.span];
    int64_t place = span.place;

    for (int64_t pos = span.from; pos < b.end; pos += PROMPT_TILE, place++, s.next()) {
        const uint16_t *piece = a.pieces + (b.h * a.room + place) * PROMPT_PIECE;
        kd_gate_wait(s.of(1), s.turn ^ 1u);
        kd_gate_expect(s.of(0), WIDE_KEY_BYTES);
        kd_load_bytes(s.here(), piece, 2 * WIDE_BOX_BYTES, s.of(0));
        kd_load_bytes(s.here() + 2 * WIDE_BOX_BYTES, a.shared + place * PROMPT_BOX, WIDE_BOX_BYTES,
                      s.of(0));
        kd_gate_wait(s.of(3), s.turn ^ 1u);
        kd_gate_expect(s.of(2), WIDE_VALUE_BYTES);
        kd_load_bytes(s.here() + WIDE_KEY_BYTES, piece + 2 * PROMPT_BOX, WIDE_VALUE_BYTES, s.of(2));
    }
}

struct wide_prompt_rows : prompt_sums<PROMPT_TILE / 8> {
    static constexpr int KEYS = PROMPT_TILE / 8;
    float x[KEYS][4];

    /* The warpgroup's queries into shared memory. */
    KD_DEV void load(const prompt_args &a, const prompt_share &b, int team, wide_prompt &s)
    {
        const kd_gpu_k3_seg &seg = a.span[b.span].seg;
        for (int i = kd_thread() % 128; i < 64 * MLA_QUERY / 8; i += 128) {
            const int row = 64 * team + i / (MLA_QUERY / 8), chunk = i % (MLA_QUERY / 8);
            uint32_t v[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                v[k] = prompt_query(a, seg, b.row0 + row, b.h, 8 * chunk + 2 * k);
            *(uint4 *)((uint16_t *)s.query + chunk / 8 * PROMPT_BOX +
                       prompt_chunk(row, chunk % 8)) = make_uint4(v[0], v[1], v[2], v[3]);
        }
        kd_shared_written();
        kd_sync_team<128>(team);
    }
    KD_DEV void leave(uint64_t *gate) const
    {
        if (lane == 0)
            kd_gate_arrive(gate);
    }
    /* The scores of a stage, once it is there. */
    KD_DEV void scores(const wide_prompt &s, int team)
    {
        kd_gate_wait(s.of(0), s.turn);
        kd_product_begin();
#pragma unroll
        for (int k = 0; k < MLA_QUERY / 16; k++) {
            const uint64_t q = kd_factor(s.query + k / 4 * WIDE_BOX_BYTES + team * 8192),
                           y = kd_factor(s.here() + k / 4 * WIDE_BOX_BYTES);
            kd_product_halves(x, kd_factor_at(q, k % 4 * 16), kd_factor_at(y, k % 4 * 16), k);
        }
        kd_product_group();
        kd_product_wait<0>();
        kd_product_done_of(x);
        leave(s.of(1));
    }
    KD_DEV void add(const wide_prompt &s, const kd_h2 (&w)[KEYS][2])
    {
        kd_gate_wait(s.of(2), s.turn);
        kd_product_begin();
#pragma unroll
        for (int k = 0; k < KEYS / 2; k++) {
            const kd_h2 a[4] = {w[2 * k][0], w[2 * k][1], w[2 * k + 1][0], w[2 * k + 1][1]};
            const uint64_t y = kd_factor(s.here() + WIDE_KEY_BYTES + k / 4 * WIDE_BOX_BYTES);
            kd_product_halves_rows(sums, a, kd_factor_at(y, k % 4 * 16));
        }
        kd_product_group();
        kd_product_wait<0>();
        kd_product_done_of(sums);
        leave(s.of(3));
    }
    template <bool MASK> KD_DEV void step(int64_t pos, int team, wide_prompt &s)
    {
        kd_h2 w[KEYS][2];

        scores(s, team);
        if (MASK)
            mask(x, pos);
        weigh(x, w);
        add(s, w);
        s.next();
    }
    KD_DEV void run(const prompt_args &a, const prompt_share &b, int team, wide_prompt s)
    {
        const prompt_span &span = a.span[b.span];
        const int64_t rows = b.row0 + 64 * team, mine = rows + kd_thread() % 128 / 32 * 16,
                      first = span.seg.pos + rows, most = first + 64,
                      end = b.end < most ? b.end : most;
        const int thread = kd_thread() - 128;

        place(span.seg, mine);
        load(a, b, team, s);
        if (span.from)
            restore(b.state(a), thread);
        else
            clear();
        /* All rows see the stages before `plain`. */
        const int64_t whole = (first + 1) / PROMPT_TILE * PROMPT_TILE,
                      plain = whole < end ? whole : end;
        int64_t pos = span.from;
#pragma unroll 1
        for (; pos < plain; pos += PROMPT_TILE)
            step<false>(pos, team, s);
#pragma unroll 1
        for (; pos < end; pos += PROMPT_TILE)
            step<true>(pos, team, s);
        /* What none of the rows sees. */
        for (; pos < b.end; pos += PROMPT_TILE) {
            kd_gate_wait(s.of(0), s.turn);
            leave(s.of(1));
            kd_gate_wait(s.of(2), s.turn);
            leave(s.of(3));
            s.next();
        }
        if (b.end < b.seen)
            save(b.state(a), thread);
        else
            store(a, span.seg, mine, b.h);
    }
};

KD_DEV void wide_prompt_run(const prompt_args &a, int64_t tiles, unsigned char *shared)
{
    const int group = kd_thread() / 128;
    const wide_prompt s(shared);
    const prompt_share b(a, tiles);

    if (kd_thread() == 0) {
        for (int i = 0; i < 4 * WIDE_STAGES; i++)
            kd_gate_init(s.gate + i, i % 2 ? PROMPT_THREADS / 32 : 1);
        kd_gates_ready();
    }
    kd_sync_block();
    kd_launch_wait();
    kd_launch_next();
    if (a.span[b.span].from >= b.end)
        return;
    if (group == 0) {
        kd_fewer_registers<WIDE_PROMPT_FEW>();
        if (kd_thread() == 0)
            wide_prompt_bring(a, b, s);
    } else {
        wide_prompt_rows r;
        kd_more_registers<WIDE_PROMPT_MANY>();
        r.run(a, b, group - 1, s);
    }
}
#endif

KD_KERNEL void KD_BOUNDS(WIDE_PROMPT_THREADS, 1)
    attend_prompt_wide(KD_ARGS prompt_args a, int64_t tiles)
{
#ifdef KD_WGMMA
    KD_SHARED(memory);
    wide_prompt_run(a, tiles, memory);
#endif
}

} // namespace kd_k3

#endif
