/* MLA's attention on tensor cores, for decoding (k3_mla.cuh: for checks). The cache holds fp16, so
 * a position is read as half the bytes; absorbed queries and weights are fp16, sums fp32. kv_b is
 * bf16 and meets activations as pairs of bf16, 16 bits of them.
 *
 * As there, a context is cut into parts by its own length alone and parts are merged in ascending
 * order; within a part 32 positions at a time share a maximum. Heads are rows of a matrix product,
 * whose bits do not depend on the other rows: how many heads a block has changes none. */
#ifndef KD_GPU_K3_MLA_FAST_CUH
#define KD_GPU_K3_MLA_FAST_CUH

#include "gpu/k3_mla.cuh"
#include "gpu/mma_lanes.cuh"

namespace kd_k3
{

enum {
    FAST_PART = 2 * KD_GPU_K3_PAGE, /* positions of a part, at least */
    FAST_STAGE = 32,                /* positions in shared memory at a time, twice */
    FAST_SCORES = 4 * FAST_STAGE + 4,
    ABSORB_WARPS = 4, /* at most; each has 64 latent columns */
    VALUE_WARPS = 8   /* each has 16 value rows */
};

/* A pair of bf16 whose sum has 16 bits of x. */
struct bf16_pair {
    uint16_t high, low;
};
KD_DEV bf16_pair bf16_pair_of(float x)
{
    const uint16_t high = kd_f32_bf16(x);
    return {high, kd_f32_bf16(x - kd_bf16_f32(high))};
}

/* Word i. */
KD_DEV uint32_t word_of(const uint4 &u, int i)
{
    return i == 0 ? u.x : i == 1 ? u.y : i == 2 ? u.z : u.w;
}

/* Where a warp's lanes point for kd_load_matrices: matrices 0 and 1 below each other, then 2 and 3;
 * or 0 and 1 side by side, then 2 and 3 below them. */
struct corner {
    int row, chunk; /* chunk: of 8 values */
};
KD_DEV corner down_first(int lane)
{
    return {lane % 16, lane / 16};
}
KD_DEV corner across_first(int lane)
{
    return {lane % 8 + lane / 16 * 8, lane / 8 % 2};
}

/* Latent queries, scaled, as fp16: block (head, piece of the columns, TILES * 8 rows). */
template <int LORA, int TILES>
KD_KERNEL void KD_BOUNDS(32 * ABSORB_WARPS, 2) absorb_fast(const mla_args a)
{
    constexpr int D = KD_GPU_K3_DIM, ROWS = 8 * TILES, LD = D + 8, WIDTH = LORA + KD_GPU_K3_ROPE,
                  WARPS = LORA / 64 < ABSORB_WARPS ? LORA / 64 : ABSORB_WARPS,
                  PIECES = LORA / 64 / WARPS, STEPS = D / 16;
    KD_SHARED(memory);
    uint16_t *q = (uint16_t *)memory; /* [2][ROWS][LD] */
    const int t = kd_thread(), lane = t % 32, g = lane / 4, k = lane % 4,
              piece = kd_block() % PIECES;
    const int64_t h = kd_block() / PIECES % a.heads, row0 = kd_block() / PIECES / a.heads * ROWS;
    const int rows = a.b.rows - row0 < ROWS ? (int)(a.b.rows - row0) : ROWS;
    const int column = 64 * (WARPS * piece + t / 32) + 8 * g;
    const uint16_t *w = (const uint16_t *)a.kv_b + h * 2 * D * LORA + column;
    uint16_t *latent = (uint16_t *)a.latent;
    const float scale = 1.0f / sqrtf((float)MLA_QUERY);
    uint4 next[4], now[4];
    float sum[4][TILES][4] = {};

    /* Weights are there before the queries are. */
    auto fetch = [&](int s) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            next[i] = kd_load_const(
                (const uint4 *)(w + (16 * s + 2 * k + i % 2 + i / 2 * 8) * (int64_t)LORA));
    };
    fetch(0);
    kd_launch_wait();
    kd_launch_next();
    for (int i = t; i < ROWS * D; i += 32 * WARPS) {
        const int r = i / D, d = i % D;
        const float x = r < rows ? a.q[((row0 + r) * a.heads + h) * MLA_QUERY + d] : 0.0f;
        const bf16_pair p = bf16_pair_of(x);
        q[r * LD + d] = p.high;
        q[(ROWS + r) * LD + d] = p.low;
    }
    for (int i = t; piece == 0 && i < rows * KD_GPU_K3_ROPE; i += 32 * WARPS) {
        const int64_t at = (row0 + i / KD_GPU_K3_ROPE) * a.heads + h, d = i % KD_GPU_K3_ROPE;
        latent[at * WIDTH + LORA + d] =
            kd_float_half(half_range(a.q[at * MLA_QUERY + D + d] * scale));
    }
    kd_sync_block();
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            now[i] = next[i];
        if (s + 1 < STEPS)
            fetch(s + 1);
        uint32_t b[TILES][4]; /* high parts, then low ones: k 0 .. 7, 8 .. 15 */
#pragma unroll
        for (int n = 0; n < TILES; n++)
            kd_load_matrices(b[n], q + (lane / 16 * ROWS + 8 * n + lane % 8) * LD + 16 * s +
                                       lane / 8 % 2 * 8);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t row[4] = {word_of(now[0], i), word_of(now[1], i), word_of(now[2], i),
                                     word_of(now[3], i)};
            const uint32_t m[4] = {
                kd_bytes(row[0], row[1], 0x5410), kd_bytes(row[0], row[1], 0x7632),
                kd_bytes(row[2], row[3], 0x5410), kd_bytes(row[2], row[3], 0x7632)};
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                kd_mma_bf16(sum[i][n], m, b[n][2], b[n][3]);
                kd_mma_bf16(sum[i][n], m, b[n][0], b[n][1]);
            }
        }
    }
    /* Tile i has columns 2 i and 2 i + 1 of the lane's eight. */
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int r = 8 * n + 2 * k + j;
            uint32_t out[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                out[i] = halves_of(sum[i][n][j] * scale, sum[i][n][2 + j] * scale);
            if (r < rows)
                *(uint4 *)(latent + ((row0 + r) * a.heads + h) * WIDTH + column) =
                    make_uint4(out[0], out[1], out[2], out[3]);
        }
}

/* Shared memory of a block of attention, TILES * 16 heads. */
template <int LORA, int TILES> struct alignas(16) fast_shared {
    uint16_t latent[2][FAST_STAGE][LORA + KD_GPU_K3_ROPE + 8]; /* eight more: other banks */
    /* Of a head: scores of a stage from each quarter of the columns; then its weights as fp16. */
    float score[16 * TILES][FAST_SCORES];
    float fix[16 * TILES], more[16 * TILES]; /* what old and new sums are multiplied by */
};

/* One part of a context for a block's heads. Warp 4 i + n: heads 16 i .. 16 i + 15; of the latent
 * columns, in scores and in sums, quarter n. */
template <int LORA, int TILES> struct fast_heads {
    static constexpr int WIDTH = LORA + KD_GPU_K3_ROPE, STEPS = WIDTH / 64, COLS = LORA / 32,
                         THREADS = 128 * TILES;
    kd_h2 q[STEPS][4];
    float sums[COLS][4];
    float max, sum; /* of head 4 warp + lane / 8 */
    int lane, tile, quarter;

    KD_DEV void load(const uint16_t *latent, int heads)
    {
        lane = kd_thread() % 32;
        tile = kd_thread() / 128;
        quarter = kd_thread() / 32 % 4;
        const int g = 16 * tile + lane / 4;
        const uint16_t *at = latent + g * WIDTH + 16 * STEPS * quarter + lane % 4 * 2;
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                q[s][i] = kd_bits_h2(
                    g + i % 2 * 8 < heads
                        ? *(const uint32_t *)(at + i % 2 * 8 * WIDTH + 16 * s + i / 2 * 8)
                        : 0u);
    }
    KD_DEV void clear()
    {
        max = -INFINITY;
        sum = 0;
#pragma unroll
        for (int n = 0; n < COLS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[n][i] = 0;
    }

    /* This quarter's share of a stage's scores. */
    KD_DEV void scores(fast_shared<LORA, TILES> *s, int buffer) const
    {
        const corner c = across_first(lane);
        float x[FAST_STAGE / 8][4] = {};
#pragma unroll
        for (int k = 0; k < STEPS; k++)
#pragma unroll
            for (int n = 0; n < FAST_STAGE / 16; n++) {
                const int row = 16 * n + c.row, chunk = 2 * (STEPS * quarter + k) + c.chunk;
                uint32_t b[4];
                kd_load_matrices(b, s->latent[buffer][row] + 8 * chunk);
                kd_mma_halves(x[2 * n], q[k], kd_bits_h2(b[0]), kd_bits_h2(b[1]));
                kd_mma_halves(x[2 * n + 1], q[k], kd_bits_h2(b[2]), kd_bits_h2(b[3]));
            }
#pragma unroll
        for (int n = 0; n < FAST_STAGE / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                *(float2 *)(s->score[16 * tile + lane / 4 + 8 * i] + FAST_STAGE * quarter + 8 * n +
                            lane % 4 * 2) = make_float2(x[n][2 * i], x[n][2 * i + 1]);
    }

    /* Weights of a stage's positions, `count` of them real: lane l has four of head 4 warp + l / 8.
     * They take the place of the scores once the head's eight lanes have read those. */
    KD_DEV void weigh(fast_shared<LORA, TILES> *s, int count)
    {
        const int head = kd_thread() / 8, p = lane % 8 * 4;
        float x[4], most = -INFINITY, fix, w[4], all;
        float4 part[4];

#pragma unroll
        for (int i = 0; i < 4; i++)
            part[i] = *(const float4 *)(s->score[head] + FAST_STAGE * i + p);
        x[0] = part[0].x + part[1].x + (part[2].x + part[3].x);
        x[1] = part[0].y + part[1].y + (part[2].y + part[3].y);
        x[2] = part[0].z + part[1].z + (part[2].z + part[3].z);
        x[3] = part[0].w + part[1].w + (part[2].w + part[3].w);
#pragma unroll
        for (int i = 0; i < 4; i++)
            most = p + i < count && x[i] > most ? x[i] : most;
#pragma unroll
        for (int m = 4; m; m >>= 1) {
            const float other = kd_shuffle_xor(most, m);
            most = other > most ? other : most;
        }
        most = most > max ? most : max;
        fix = max == -INFINITY ? 1.0f : kd_exp1(max - most);
        max = most;
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] = p + i < count ? kd_exp1(x[i] - most) : 0.0f;
        const kd_h2 low = kd_h2_of(w[0], w[1]), high = kd_h2_of(w[2], w[3]);
        /* Of the weights as they are used. */
        all = kd_h2_low(low) + kd_h2_low(kd_h2_highs(low)) +
              (kd_h2_low(high) + kd_h2_low(kd_h2_highs(high)));
#pragma unroll
        for (int m = 4; m; m >>= 1)
            all += kd_shuffle_xor(all, m);
        sum = fmaf(sum, fix, all);
        ((uint2 *)s->score[head])[lane % 8] = make_uint2(kd_h2_bits(low), kd_h2_bits(high));
        if (p == 0)
            s->fix[head] = fix;
    }

    KD_DEV void add(const fast_shared<LORA, TILES> *s, int buffer)
    {
        const corner c = down_first(lane);
        const int g = 16 * tile + lane / 4;
        const float fix[2] = {s->fix[g], s->fix[g + 8]};
#pragma unroll
        for (int n = 0; n < COLS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[n][i] *= fix[i / 2];
#pragma unroll
        for (int k = 0; k < FAST_STAGE / 16; k++) {
            uint32_t a[4], b[4];
            kd_load_matrices(a,
                             (const uint16_t *)s->score[16 * tile + c.row] + 16 * k + 8 * c.chunk);
            const kd_h2 w[4] = {kd_bits_h2(a[0]), kd_bits_h2(a[1]), kd_bits_h2(a[2]),
                                kd_bits_h2(a[3])};
#pragma unroll
            for (int n = 0; n < COLS / 2; n++) {
                const int row = 16 * k + c.row, chunk = COLS * quarter + 2 * n + c.chunk;
                kd_load_matrices_turned(b, s->latent[buffer][row] + 8 * chunk);
                kd_mma_halves(sums[2 * n], w, kd_bits_h2(b[0]), kd_bits_h2(b[1]));
                kd_mma_halves(sums[2 * n + 1], w, kd_bits_h2(b[2]), kd_bits_h2(b[3]));
            }
        }
    }

    /* The part into a slot, or merged with what is there. */
    KD_DEV void put(fast_shared<LORA, TILES> *s, float *slot, int heads, bool first) const
    {
        const int head = kd_thread() / 8, g = 16 * tile + lane / 4;
        if (lane % 8 == 0) {
            float *end = slot + head * (LORA + MLA_SLOT) + LORA;
            merge_end(end, first, head < heads, max, sum, &s->fix[head], &s->more[head]);
        }
        kd_sync_block();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = g + 8 * i;
            float *to = slot + row * (LORA + MLA_SLOT) + LORA / 4 * quarter + lane % 4 * 2;
            const float old = s->fix[row], more = s->more[row];
            if (row >= heads)
                break;
#pragma unroll
            for (int n = 0; n < COLS; n++) {
                float2 *x = (float2 *)(to + 8 * n), was = first ? make_float2(0, 0) : *x;
                *x = make_float2(fmaf(sums[n][2 * i], more, was.x * old),
                                 fmaf(sums[n][2 * i + 1], more, was.y * old));
            }
        }
    }
};

/* A stage's positions on their way to shared memory, zeros where there are none. */
template <int LORA, int TILES>
KD_DEV void fast_fetch(void *const *pages, int64_t page, int pos, int end,
                       fast_shared<LORA, TILES> *s, int buffer)
{
    constexpr int WIDTH = LORA + KD_GPU_K3_ROPE, GROUPS = WIDTH / 64;
    const int slot = kd_thread() / 8, row0 = slot % 16, group0 = slot / 16,
              at = 64 * group0 + 8 * (kd_thread() % 8);
    const uint16_t *from = (const uint16_t *)pages[pos / KD_GPU_K3_PAGE] + page +
                           (pos % KD_GPU_K3_PAGE + row0) * WIDTH + at;
    uint16_t *to = s->latent[buffer][row0] + at;

    /* Eight threads for 64 values of a position. */
#pragma unroll
    for (int i = 0; i < (GROUPS + TILES - 1) / TILES; i++)
#pragma unroll
        for (int half = 0; half < FAST_STAGE; half += 16)
            if (TILES * (i + 1) <= GROUPS || group0 + TILES * i < GROUPS)
                kd_copy16_if(pos + row0 + half < end, to + half * (WIDTH + 8) + 64 * TILES * i,
                             from + half * WIDTH + 64 * TILES * i);
}

/* Block (row, part, group of TILES * 16 heads); with one slot a row, all parts in turn. */
template <int LORA, int TILES>
KD_KERNEL void KD_BOUNDS(128 * TILES, 1) attend_fast(const mla_args a)
{
    KD_SHARED(memory);
    fast_shared<LORA, TILES> *s = (fast_shared<LORA, TILES> *)memory;
    const int64_t groups = (a.heads + 16 * TILES - 1) / (16 * TILES), group = kd_block() % groups,
                  slot = kd_block() / groups % a.parts, row = kd_block() / groups / a.parts;
    kd_launch_wait();
    kd_launch_next();
    const int n = (int)row_positions(a, row), part = (int)mla_part(n, a.least),
              h0 = (int)group * 16 * TILES, from = a.parts > 1 ? (int)slot * part : 0,
              end = a.parts > 1 && from + part < n ? from + part : n;
    const int heads = (int)a.heads - h0;
    void *const *const pages = a.b.seg[a.b.row_seg[a.row0 + row]].page;
    float *to = a.slot + ((row * a.parts + slot) * a.heads + h0) * (LORA + MLA_SLOT);
    fast_heads<LORA, TILES> h;
    int buffer = 0;

    if (from >= n)
        return;
    fast_fetch<LORA, TILES>(pages, a.page, from, end, s, 0);
    kd_copy_group();
    h.load((const uint16_t *)a.latent + (row * a.heads + h0) * (LORA + KD_GPU_K3_ROPE), heads);
    h.clear();
    for (int pos = from; pos < end; pos += FAST_STAGE, buffer ^= 1) {
        const int next = pos + FAST_STAGE;
        kd_copy_wait<0>();
        kd_sync_block();
        if (next < end)
            fast_fetch<LORA, TILES>(pages, a.page, next, end, s, buffer ^ 1);
        kd_copy_group();
        h.scores(s, buffer);
        kd_sync_block();
        h.weigh(s, end - pos);
        kd_sync_block();
        h.add(s, buffer);
        if (next >= end || next % part == 0) {
            kd_sync_block();
            h.put(s, to, heads, a.parts > 1 || next <= part);
            h.clear();
        }
    }
}

/* Shared memory of a block that goes back from the latent space, TILES * 8 rows. */
template <int LORA, int TILES> struct alignas(16) value_shared {
    uint16_t context[2][8 * TILES][LORA + 32]; /* high and low parts */
    /* Of a row's parts: sums of weights; what a merge multiplies older and its sums by (at first:
     * the largest score). */
    float all[8 * TILES][MLA_PARTS], old[8 * TILES][MLA_PARTS], more[8 * TILES][MLA_PARTS];
};

/* The factors of the merges of all rows' parts: as merge_factors one after the other gives them. */
template <int LORA, int TILES>
KD_DEV void value_factors(const mla_args &a, int64_t row0, int rows, int64_t h,
                          value_shared<LORA, TILES> *s)
{
    constexpr int EACH = 8 * TILES * MLA_PARTS / (32 * VALUE_WARPS),
                  STEP = 32 * VALUE_WARPS / MLA_PARTS;
    const int r0 = kd_thread() / MLA_PARTS, p = kd_thread() % MLA_PARTS;
    float old[EACH], more[EACH], max;

    for (int r = r0; r < rows; r += STEP) {
        const float *end = a.slot + (((row0 + r) * a.parts + p) * a.heads + h) * (LORA + MLA_SLOT);
        if (p < mla_slots(a, row0 + r)) {
            s->old[r][p] = end[LORA];
            s->all[r][p] = end[LORA + 1];
        }
    }
    kd_sync_block();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int r = r0 + i * STEP;
        if (r >= rows || p >= mla_slots(a, row0 + r))
            continue;
        float before = s->old[r][0];
        for (int j = 1; j < p; j++)
            before = s->old[r][j] > before ? s->old[r][j] : before;
        merge_factors(before, s->old[r][p], &old[i], &more[i], &max);
    }
    kd_sync_block();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int r = r0 + i * STEP;
        if (r >= rows || p >= mla_slots(a, row0 + r))
            continue;
        s->old[r][p] = old[i];
        s->more[r][p] = more[i];
    }
    kd_sync_block();
}

/* The contexts of a tile of rows into shared memory. */
template <int LORA, int TILES>
KD_DEV void value_contexts(const mla_args &a, int64_t row0, int rows, int64_t h,
                           value_shared<LORA, TILES> *s)
{
    const int64_t step = a.heads * (LORA + MLA_SLOT);
    for (int i = kd_thread(); i < 8 * TILES * LORA / 2; i += 32 * VALUE_WARPS) {
        const int r = i / (LORA / 2), c = i % (LORA / 2) * 2;
        float2 x = make_float2(0, 0);
        if (r < rows) {
            const float *slot =
                a.slot + ((row0 + r) * a.parts * a.heads + h) * (LORA + MLA_SLOT) + c;
            const int parts = mla_slots(a, row0 + r);
            float all = s->all[r][0];
            x = *(const float2 *)slot;
#pragma unroll 8
            for (int p = 1; p < parts; p++) {
                const float2 y = *(const float2 *)(slot + p * step);
                const float old = s->old[r][p], more = s->more[r][p];
                x.x = fmaf(y.x, more, x.x * old);
                x.y = fmaf(y.y, more, x.y * old);
                all = fmaf(s->all[r][p], more, all * old);
            }
            x = make_float2(x.x / all, x.y / all);
        }
        const bf16_pair p = bf16_pair_of(x.x), q = bf16_pair_of(x.y);
        *(uint32_t *)(s->context[0][r] + c) = p.high | (uint32_t)q.high << 16;
        *(uint32_t *)(s->context[1][r] + c) = p.low | (uint32_t)q.low << 16;
    }
    kd_sync_block();
}

/* Merging, back from the latent space, and the gate: block (head, TILES * 8 rows). Products take
 * inputs 8 k .. 8 k + 7 of 32 where the instruction counts 2 k, 2 k + 1, 2 k + 8, 2 k + 9 of two
 * sixteens: only that both factors agree matters. */
template <int LORA, int TILES>
KD_KERNEL void KD_BOUNDS(32 * VALUE_WARPS, 1) value_fast(const mla_args a)
{
    constexpr int D = KD_GPU_K3_DIM, ROWS = 8 * TILES, STEPS = LORA / 32, AHEAD = STEPS / 2;
    KD_SHARED(memory);
    value_shared<LORA, TILES> *s = (value_shared<LORA, TILES> *)memory;
    const int t = kd_thread(), lane = t % 32, g = lane / 4, k = lane % 4, d = t / 32 * 16 + g;
    const int64_t h = kd_block() % a.heads, row0 = kd_block() / a.heads * ROWS;
    const int rows = a.b.rows - row0 < ROWS ? (int)(a.b.rows - row0) : ROWS;
    const uint16_t *w = (const uint16_t *)a.kv_b + (h * 2 * D + D + d) * LORA + 8 * k;
    uint4 ahead[AHEAD][2];
    float sum[TILES][4] = {};

    /* Weights are there before the sums are. */
    auto fetch = [&](int i, int from) {
        ahead[i][0] = kd_load_const((const uint4 *)(w + 32 * (from + i)));
        ahead[i][1] = kd_load_const((const uint4 *)(w + 8 * LORA + 32 * (from + i)));
    };
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        fetch(i, 0);
    kd_launch_wait();
    kd_launch_next();
    value_factors<LORA, TILES>(a, row0, rows, h, s);
    value_contexts<LORA, TILES>(a, row0, rows, h, s);
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const uint4 u = ahead[i % AHEAD][0], v = ahead[i % AHEAD][1];
        const uint32_t m[2][4] = {{u.x, v.x, u.y, v.y}, {u.z, v.z, u.w, v.w}};
        if (i < AHEAD)
            fetch(i, AHEAD);
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int part = 1; part >= 0; part--) {
                const uint4 b = *(const uint4 *)(s->context[part][8 * n + g] + 32 * i + 8 * k);
                kd_mma_bf16(sum[n], m[0], b.x, b.y);
                kd_mma_bf16(sum[n], m[1], b.z, b.w);
            }
    }
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = 8 * n + 2 * k + i % 2;
            const int64_t to = ((row0 + r) * a.heads + h) * D + d + i / 2 * 8;
            if (r < rows)
                a.y[to] = sum[n][i] * kd_sigmoid1(a.gate[to]);
        }
}

} // namespace kd_k3

#endif
