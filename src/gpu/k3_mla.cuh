/* MLA's attention over the latent cache, absorbed (k3-model 3.5), in fp32: one token of one
 * sequence at a time, so that a token's bits do not depend on the tokens fed with it. For checks;
 * decoding's is k3_mla_fast.cuh.
 *
 * A context of n positions is cut into parts of mla_part(n) positions; a block takes HEADS heads
 * through one part (or through all of them in turn, when there are rows enough) and leaves for
 * each head the sum of weights times latents, the largest score and the sum of weights. Parts are
 * merged in ascending order, either way with the same operations. */
#ifndef KD_GPU_K3_MLA_CUH
#define KD_GPU_K3_MLA_CUH

#include "gpu/k3_ops.cuh"

namespace kd_k3
{

enum {
    MLA_HEADS = 16, /* of a block */
    MLA_STAGE = 16, /* positions in shared memory at a time, twice */
    MLA_THREADS = 128,
    MLA_PARTS = 64, /* of a context, at most */
    MLA_ROWS = 64,  /* from so many on a row's parts are taken in turn */
    MLA_SLOT = 4,   /* floats of a part beside its sums: largest score, sum of weights */
    MLA_QUERY = KD_GPU_K3_DIM + KD_GPU_K3_ROPE,
    VALUE_THREADS = 512
};

/* Positions of a part of a context of n. */
KD_HD static inline int64_t mla_part(int64_t n, int64_t least)
{
    int64_t part = least;

    while (part * MLA_PARTS < n)
        part *= 2;
    return part;
}

struct mla_args {
    kd_gpu_k3_batch b;
    int64_t heads, page;
    int64_t least; /* positions of a part, at least */
    const float *q, *gate;
    const void *kv_b;
    void *latent;  /* [rows][heads][kv_lora + rope]: absorbed queries, fp32 or fp16 */
    float *slot;   /* [rows][parts][heads][kv_lora + MLA_SLOT] */
    int64_t parts; /* slots of a row: 1, or as many as the longest context has parts */
    float *y;
    int64_t row0; /* of the batch: the first row here */
};

KD_DEV int64_t row_positions(const kd_gpu_k3_batch &b, int64_t row)
{
    const kd_gpu_k3_seg *s = b.seg + b.row_seg[row];
    return s->pos + row - s->first + 1;
}

KD_DEV int64_t row_positions(const mla_args &a, int64_t row)
{
    return row_positions(a.b, a.row0 + row);
}

/* The norms of a row and its place in the cache: block 2 row + 0: cq, + 1: kv. */
KD_KERNEL void KD_BOUNDS(NORM_THREADS, 1)
    latent_rows(const kd_gpu_k3_batch b, const kd_gpu_k3_latents a)
{
    KD_SHARED(memory);
    kd_launch_wait();
    kd_launch_next();
    float *const part = (float *)memory;
    const int t = kd_thread();
    const int64_t row = kd_block() / 2, pos = row_positions(b, row) - 1;
    const int64_t width = a.kv_lora + KD_GPU_K3_ROPE;
    const float *kv = a.kv + row * width;
    const int64_t at = a.page + pos % KD_GPU_K3_PAGE * width;
    void *const page = b.seg[b.row_seg[row]].page[pos / KD_GPU_K3_PAGE];
    norm_row n;

    if (kd_block() % 2 == 0) {
        float *cq = a.cq + row * a.q_lora;
        n.load(cq, a.q_lora);
        n.scale(a.q_norm, a.eps, a.q_lora, part);
        n.store(cq, a.q_lora);
        return;
    }
    n.load(kv, a.kv_lora);
    n.scale(a.kv_norm, a.eps, a.kv_lora, part);
    if (!a.fast) {
        float *to = (float *)page + at;
        n.store(to, a.kv_lora);
        if (t < KD_GPU_K3_ROPE)
            to[a.kv_lora + t] = kv[a.kv_lora + t];
        return;
    }
    uint16_t *to = (uint16_t *)page + at;
    for (int i = t; 4 * i < a.kv_lora; i += NORM_THREADS)
        ((uint2 *)to)[i] = make_uint2(halves_of(n.v[0].x, n.v[0].y), halves_of(n.v[0].z, n.v[0].w));
    if (t < KD_GPU_K3_ROPE)
        to[a.kv_lora + t] = kd_float_half(half_range(kv[a.kv_lora + t]));
}

/* Slots that a row's context is merged from. */
KD_DEV int mla_slots(const mla_args &a, int64_t row)
{
    const int64_t n = row_positions(a, row), part = mla_part(n, a.least);
    return a.parts > 1 ? (int)((n + part - 1) / part) : 1;
}

/* Eight adjacent values of a row of kv_b. */
template <bool BF16> KD_DEV void load8(const void *w, int64_t at, float (&out)[8])
{
    if (BF16) {
        const uint4 u = *(const uint4 *)((const uint16_t *)w + at);
        const uint32_t word[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            out[2 * i] = kd_bits_f32(word[i] << 16);
            out[2 * i + 1] = kd_bits_f32(word[i] & 0xffff0000u);
        }
    } else {
        const float4 a = *(const float4 *)((const float *)w + at),
                     b = *(const float4 *)((const float *)w + at + 4);
        const float all[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 8; i++)
            out[i] = all[i];
    }
}

/* Latent queries: block (row tile, head); a thread has eight columns and every GROUPS-th key row,
 * whose sums are then added over the groups in order. */
template <int LORA, bool BF16, int ROWS>
KD_KERNEL void KD_BOUNDS(VALUE_THREADS, 1) absorb_heads(const mla_args a)
{
    constexpr int LANES = LORA / 8, GROUPS = VALUE_THREADS / LANES, D = KD_GPU_K3_DIM,
                  STEPS = D / GROUPS;
    KD_SHARED(memory);
    float *q = (float *)memory; /* [ROWS][D] */
    float *sums = q + ROWS * D; /* [GROUPS][LORA] */
    const int t = kd_thread(), lane = t % LANES, group = t / LANES;
    const int64_t h = kd_block() % a.heads, row0 = kd_block() / a.heads * ROWS;
    const int rows = a.b.rows - row0 < ROWS ? (int)(a.b.rows - row0) : ROWS;
    const int64_t at = h * 2 * D * LORA + 8 * lane, ld = a.heads * MLA_QUERY;
    float sum[ROWS][8] = {};

    for (int i = t; i < ROWS * D; i += VALUE_THREADS)
        q[i] = i / D < rows ? a.q[(row0 + i / D) * ld + h * MLA_QUERY + i % D] : 0.0f;
    kd_sync_block();
#pragma unroll 8
    for (int s = 0; s < STEPS; s++) {
        const int d = group * STEPS + s;
        float w[8];
        load8<BF16>(a.kv_b, at + (int64_t)d * LORA, w);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                sum[r][i] = fmaf(q[r * D + d], w[i], sum[r][i]);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (r >= rows)
            break;
        float *out = (float *)a.latent + ((row0 + r) * a.heads + h) * (LORA + KD_GPU_K3_ROPE);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sums[group * LORA + 8 * lane + i] = sum[r][i];
        kd_sync_block();
        if (t < LORA) {
            float x = 0;
#pragma unroll
            for (int g = 0; g < GROUPS; g++)
                x += sums[g * LORA + t];
            out[t] = x;
        }
        if (t < KD_GPU_K3_ROPE)
            out[LORA + t] = a.q[(row0 + r) * ld + h * MLA_QUERY + D + t];
        kd_sync_block();
    }
}

/* Shared memory of a block of attention. */
template <int LORA> struct alignas(16) mla_shared {
    float latent[2][MLA_STAGE][LORA + KD_GPU_K3_ROPE];
    float weight[MLA_STAGE][MLA_HEADS];
    float fix[MLA_HEADS], more[MLA_HEADS]; /* what old and new sums are multiplied by */
};

/* Four heads of a warp: lane l has, of head l / 8, positions l % 8 and 8 + l % 8 of a stage. */
template <int LORA> struct mla_heads {
    static constexpr int WIDTH = LORA + KD_GPU_K3_ROPE, STEPS = WIDTH / 64;
    float2 q[4][STEPS]; /* elements 64 s + 2 lane */
    float max, sum;     /* of the part so far */

    KD_DEV void load(const float *latent, int heads, int warp, int lane)
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int s = 0; s < STEPS; s++)
                q[i][s] =
                    4 * warp + i < heads
                        ? *(const float2 *)(latent + (4 * warp + i) * WIDTH + 64 * s + 2 * lane)
                        : make_float2(0, 0);
    }

    /* Scores of eight positions. */
    KD_DEV float scores(const float (*row)[WIDTH], int lane) const
    {
        float v[32];
#pragma unroll
        for (int p = 0; p < 8; p++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[8 * i + p] = 0;
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                const float2 c = *(const float2 *)(row[p] + 64 * s + 2 * lane);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    v[8 * i + p] = fmaf(c.x, q[i][s].x, v[8 * i + p]);
                    v[8 * i + p] = fmaf(c.y, q[i][s].y, v[8 * i + p]);
                }
            }
        }
        return lane_sums(v, lane);
    }

    /* Weights of a stage's positions, `count` of them real; what older sums are multiplied by. */
    KD_DEV float weigh(mla_shared<LORA> *s, int buffer, int count, int warp, int lane)
    {
        const float scale = 1.0f / sqrtf((float)MLA_QUERY);
        const int head = 4 * warp + lane / 8, p = lane % 8;
        const bool in[2] = {p < count, 8 + p < count};
        float x[2], most = -INFINITY, fix, w[2], all;

        x[0] = scores(&s->latent[buffer][0], lane) * scale;
        x[1] = scores(&s->latent[buffer][8], lane) * scale;
#pragma unroll
        for (int i = 0; i < 2; i++)
            most = in[i] && x[i] > most ? x[i] : most;
#pragma unroll
        for (int m = 4; m; m >>= 1) {
            const float other = kd_shuffle_xor(most, m);
            most = other > most ? other : most;
        }
        most = most > max ? most : max;
        fix = max == -INFINITY ? 1.0f : kd_exp1(max - most);
        max = most;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            w[i] = in[i] ? kd_exp1(x[i] - most) : 0.0f;
            s->weight[8 * i + p][head] = w[i];
        }
        all = w[0] + w[1];
#pragma unroll
        for (int m = 4; m; m >>= 1)
            all += kd_shuffle_xor(all, m);
        sum = sum * fix + all;
        if (p == 0)
            s->fix[head] = fix;
        return fix;
    }
};

/* Sums of weights times latents: thread t has heads 8 (t / 64) .. + 7 and LORA / 64 columns. */
template <int LORA> struct mla_sums {
    static constexpr int COLS = LORA / 64, WIDE = COLS < 4 ? COLS : 4;
    float at[8][COLS];

    static KD_DEV int column(int t, int i)
    {
        return t % 64 * WIDE + i / WIDE * 64 * WIDE + i % WIDE;
    }
    KD_DEV void clear()
    {
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int j = 0; j < COLS; j++)
                at[i][j] = 0;
    }
    KD_DEV void fix(const mla_shared<LORA> *s, int t)
    {
        bool same = true;
#pragma unroll
        for (int i = 0; i < 8; i++)
            same = same && s->fix[t / 64 * 8 + i] == 1.0f;
        if (same)
            return;
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int j = 0; j < COLS; j++)
                at[i][j] *= s->fix[t / 64 * 8 + i];
    }
    KD_DEV void add(const mla_shared<LORA> *s, int buffer, int count, int t)
    {
        for (int p = 0; p < count; p++) {
            const float4 *w = (const float4 *)(s->weight[p] + t / 64 * 8);
            const float4 w0 = w[0], w1 = w[1];
            const float weight[8] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
            float c[COLS];
#pragma unroll
            for (int j = 0; j < COLS; j++)
                c[j] = s->latent[buffer][p][column(t, j)];
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int j = 0; j < COLS; j++)
                    at[i][j] = fmaf(weight[i], c[j], at[i][j]);
        }
    }
};

/* A stage's positions on their way to shared memory. */
template <int LORA>
KD_DEV void mla_fetch(const kd_gpu_k3_seg &seg, int64_t page, int64_t pos, int64_t end,
                      mla_shared<LORA> *s, int buffer)
{
    constexpr int WIDTH = LORA + KD_GPU_K3_ROPE;
    const float *from =
        (const float *)seg.page[pos / KD_GPU_K3_PAGE] + page + pos % KD_GPU_K3_PAGE * WIDTH;
    const int64_t count = end - pos < MLA_STAGE ? end - pos : MLA_STAGE;

    for (int i = kd_thread(); i < MLA_STAGE * WIDTH / 4; i += MLA_THREADS)
        if (i / (WIDTH / 4) < count)
            kd_copy16(&s->latent[buffer][0][4 * i], from + 4 * i);
}

/* What the merge of one more part multiplies old and new sums by; a and b: largest scores. */
KD_DEV void merge_factors(float a, float b, float *old, float *more, float *max)
{
    *max = b > a ? b : a;
    *old = kd_exp1(a - *max);
    *more = kd_exp1(b - *max);
}

/* A head's largest score and its sum of exponentials into its slot's end, or merged with what is
 * there; what the sums there and the new ones are multiplied by. real: the slot has this head. */
KD_DEV void merge_end(float *end, bool first, bool real, float max, float sum, float *old,
                      float *more)
{
    float of_old = 0, of_more = 1, top = max;

    if (!first && real) {
        merge_factors(end[0], max, &of_old, &of_more, &top);
        sum = fmaf(sum, of_more, end[1] * of_old);
    }
    *old = of_old;
    *more = of_more;
    if (real) {
        end[0] = top;
        end[1] = sum;
    }
}

/* Positions from..end-1 of one row for this block's heads, into its slot or added to it. */
template <int LORA>
KD_DEV void mla_span(const kd_gpu_k3_seg &seg, const mla_args &a, int64_t from, int64_t end,
                     int heads, float *slot, bool first, mla_heads<LORA> &h, mla_shared<LORA> *s)
{
    const int t = kd_thread(), warp = t / 32, lane = t % 32, head = 4 * warp + lane / 8;
    mla_sums<LORA> sums;
    int buffer = 0;

    h.max = -INFINITY;
    h.sum = 0;
    sums.clear();
    mla_fetch<LORA>(seg, a.page, from, end, s, 0);
    kd_copy_group();
    for (int64_t pos = from; pos < end; pos += MLA_STAGE, buffer ^= 1) {
        const int count = end - pos < MLA_STAGE ? (int)(end - pos) : MLA_STAGE;
        if (pos + MLA_STAGE < end)
            mla_fetch<LORA>(seg, a.page, pos + MLA_STAGE, end, s, buffer ^ 1);
        kd_copy_group();
        kd_copy_wait<1>();
        kd_sync_block();
        h.weigh(s, buffer, count, warp, lane);
        kd_sync_block();
        sums.fix(s, t);
        sums.add(s, buffer, count, t);
        kd_sync_block();
    }
    if (lane % 8 == 0) {
        float *end_of = slot + head * (LORA + MLA_SLOT) + LORA;
        merge_end(end_of, first, head < heads, h.max, h.sum, &s->fix[head], &s->more[head]);
    }
    kd_sync_block();
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int n = t / 64 * 8 + i;
        float *to = slot + n * (LORA + MLA_SLOT);
        if (n >= heads)
            break;
#pragma unroll
        for (int j = 0; j < mla_sums<LORA>::COLS; j++) {
            float *x = to + mla_sums<LORA>::column(t, j);
            *x = first ? sums.at[i][j] : fmaf(sums.at[i][j], s->more[n], *x * s->fix[n]);
        }
    }
    kd_sync_block();
}

/* Block (row, part, group of heads). */
template <int LORA> KD_KERNEL void KD_BOUNDS(MLA_THREADS, 2) attend_rows(const mla_args a)
{
    KD_SHARED(memory);
    mla_shared<LORA> *s = (mla_shared<LORA> *)memory;
    const int64_t groups = (a.heads + MLA_HEADS - 1) / MLA_HEADS, g = kd_block() % groups,
                  slot = kd_block() / groups % a.parts, row = kd_block() / groups / a.parts;
    const int64_t n = row_positions(a, row), part = mla_part(n, a.least), h0 = g * MLA_HEADS;
    const int heads = a.heads - h0 < MLA_HEADS ? (int)(a.heads - h0) : MLA_HEADS;
    const kd_gpu_k3_seg seg = a.b.seg[a.b.row_seg[a.row0 + row]];
    float *to = a.slot + ((row * a.parts + slot) * a.heads + h0) * (LORA + MLA_SLOT);
    mla_heads<LORA> h;

    if (slot * part >= n)
        return;
    h.load((const float *)a.latent + (row * a.heads + h0) * (LORA + KD_GPU_K3_ROPE), heads,
           kd_thread() / 32, kd_thread() % 32);
    if (a.parts > 1) {
        const int64_t end = (slot + 1) * part;
        mla_span<LORA>(seg, a, slot * part, end < n ? end : n, heads, to, true, h, s);
        return;
    }
    for (int64_t from = 0; from < n; from += part)
        mla_span<LORA>(seg, a, from, from + part < n ? from + part : n, heads, to, from == 0, h, s);
}

/* The context of one row and head, from its parts, column t. */
template <int LORA> KD_DEV float merged(const mla_args &a, int64_t row, int64_t h, int t)
{
    const int64_t step = a.heads * (LORA + MLA_SLOT), parts = mla_slots(a, row);
    const float *slot = a.slot + (row * a.parts * a.heads + h) * (LORA + MLA_SLOT);
    float x = slot[t], max = slot[LORA], sum = slot[LORA + 1];

#pragma unroll 4
    for (int64_t p = 1; p < parts; p++) {
        const float *at = slot + p * step;
        float old, more;
        merge_factors(max, at[LORA], &old, &more, &max);
        sum = fmaf(at[LORA + 1], more, sum * old);
        x = fmaf(at[t], more, x * old);
    }
    return x / sum;
}

/* Back from the latent space, and the gate: block (row tile, head), a warp for a value row. */
template <int LORA, bool BF16, int ROWS>
KD_KERNEL void KD_BOUNDS(VALUE_THREADS, 1) value_heads(const mla_args a)
{
    constexpr int D = KD_GPU_K3_DIM, WARPS = VALUE_THREADS / 32, EACH = LORA / 32,
                  WIDE = EACH < 8 ? EACH : 8;
    KD_SHARED(memory);
    float *context = (float *)memory; /* [ROWS][LORA] */
    const int t = kd_thread(), warp = t / 32, lane = t % 32;
    const int64_t h = kd_block() % a.heads, row0 = kd_block() / a.heads * ROWS;
    const int rows = a.b.rows - row0 < ROWS ? (int)(a.b.rows - row0) : ROWS;

    for (int r = 0; r < rows; r++)
        if (t < LORA)
            context[r * LORA + t] = merged<LORA>(a, row0 + r, h, t);
    kd_sync_block();
    /* A lane's columns: EACH of them, WIDE adjacent, steps of 32 WIDE. */
#pragma unroll 4
    for (int d = warp; d < D; d += WARPS) {
        const int64_t at = (h * 2 * D + D + d) * LORA;
        float sum[ROWS] = {};
#pragma unroll
        for (int s = 0; s < EACH / WIDE; s++) {
            const int c = 32 * WIDE * s + WIDE * lane;
            float w[8];
            if (WIDE == 8)
                load8<BF16>(a.kv_b, at + c, w);
            else
#pragma unroll
                for (int i = 0; i < WIDE; i++)
                    w[i] = BF16 ? kd_bf16_f32(((const uint16_t *)a.kv_b)[at + c + i])
                                : ((const float *)a.kv_b)[at + c + i];
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int i = 0; i < WIDE; i++)
                    sum[r] = fmaf(w[i], r < rows ? context[r * LORA + c + i] : 0.0f, sum[r]);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float x = warp_sum(sum[r]);
            const int64_t to = (row0 + r) * a.heads * D + h * D + d;
            if (lane == 0 && r < rows)
                a.y[to] = x * kd_sigmoid1(a.gate[to]);
        }
    }
}

} // namespace kd_k3

#endif
