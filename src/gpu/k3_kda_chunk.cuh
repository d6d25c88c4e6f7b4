/* KDA over whole chunks of 64 tokens at absolute multiples of 64 (k3-model 4.2), for prompts:
 * within a chunk tokens meet pair by pair, between chunks the state goes on. Three kernels: what
 * does not need the state, all chunks side by side; the walk of 32 columns of a state through its
 * chunks; the norms of the outputs. Tokens before and after whole chunks take the recurrence.
 *
 * Decays between two tokens are the exponential of a sum that starts at the later one, so no
 * exponent is positive and each sum is small where the decay is not. */
#ifndef KD_GPU_K3_KDA_CHUNK_CUH
#define KD_GPU_K3_KDA_CHUNK_CUH

#include "gpu/k3_ops.cuh"

namespace kd_k3
{

enum {
    CHUNK_THREADS = 256,
    CHUNK_WARPS = CHUNK_THREADS / 32,
    CHUNK_LANE = KD_GPU_K3_DIM / 32, /* channels of a lane: lane, lane + 32, ... */
    WALK_COLUMNS = 32,
    WALK_SLICES = KD_GPU_K3_DIM / WALK_COLUMNS,
    WALK_THREADS = 128,
    WALK_TILES = WALK_COLUMNS / 8,
    HALF = CHUNK / 2,
    BLOCK = 16,
    NEAR = 8 /* tokens that meet pair by pair */
};

/* What a head's chunk needs, in floats from its start. */
enum {
    WORK_K = 0,                            /* [64][128] beta k e^(decay from the chunk's start) */
    WORK_Q = CHUNK * KD_GPU_K3_DIM,        /* [64][128] q, likewise */
    WORK_LEFT = 2 * CHUNK * KD_GPU_K3_DIM, /* [64][128] k e^(decay to the chunk's end) */
    WORK_V = 3 * CHUNK * KD_GPU_K3_DIM,    /* [64][128] beta v */
    WORK_T = 4 * CHUNK * KD_GPU_K3_DIM,    /* [64][64] (I + L)^-1, where L has, for j < i,
                                              beta_i k_i k_j e^(decay between) */
    WORK_QK = WORK_T + CHUNK * CHUNK,      /* [64][64] q_i k_j, likewise; what lies right of the
                                              diagonal's blocks of 16 is not there */
    WORK_DECAY = WORK_QK + CHUNK * CHUNK,  /* [128] of the whole chunk */
    WORK_FLOATS = WORK_DECAY + KD_GPU_K3_DIM
};

/* The batch's chunk `number`: its first row, and its segment; -1 when there are fewer. */
KD_DEV int64_t chunk_row(const kd_gpu_k3_batch &b, int64_t number, kd_gpu_k3_seg *seg)
{
    for (int64_t s = 0; s < b.segs; s++) {
        int64_t lead;
        *seg = b.seg[s];
        const int64_t n = chunks_of(*seg, &lead);
        if (number < n)
            return seg->first + lead + number * CHUNK;
        number -= n;
    }
    return -1;
}

KD_DEV float *chunk_work(const kd_gpu_k3_kda &a, int64_t number, int64_t h)
{
    return a.work + (number * a.heads + h) * WORK_FLOATS;
}

/* x times its sigmoid, and a log decay of base two; both near. */
KD_DEV float sigmoid_near(float x)
{
    const float e = kd_exp_near(-fabsf(x));
    return kd_div_near(x < 0 ? e : 1.0f, 1.0f + e);
}
KD_DEV float chunk_log(const kd_gpu_k3_kda &a, float z, float dt, float ea)
{
    const float log2e = 1.4426950408889634f;
    return a.bounded ? sigmoid_near((z + dt) * ea) * (a.lower_bound * log2e)
                     : kda_log(a, z, dt, ea) * log2e;
}

/* A value as two of tf32: what their products leave out of one of fp32 is 2^-21 of it. */
struct tf32_pair {
    uint32_t high, low;
};
KD_DEV tf32_pair tf32_pair_of(float x)
{
    const uint32_t high = (kd_f32_bits(x) + 0x1000u) & 0xffffe000u;
    return {high, kd_f32_bits(x - kd_bits_f32(high))};
}

/* A fragment of a factor's rows, and one of the other's columns. */
struct tf32_rows {
    uint32_t high[4], low[4];

    /* Rows g and g + 8 at a lane's first input, then at its second. */
    KD_DEV tf32_rows(float a, float b, float c, float d)
    {
        const float x[4] = {a, b, c, d};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const tf32_pair p = tf32_pair_of(x[i]);
            high[i] = p.high;
            low[i] = p.low;
        }
    }
};
struct alignas(16) tf32_columns {
    uint32_t high[2], low[2];
};
KD_DEV tf32_columns tf32_columns_of(float a, float b)
{
    const tf32_pair p = tf32_pair_of(a), q = tf32_pair_of(b);
    return {{p.high, q.high}, {p.low, q.low}};
}
KD_DEV void add_product(float (&sum)[4], const tf32_rows &a, const tf32_columns &b)
{
    kd_mma_tf32(sum, a.low, b.high[0], b.high[1]);
    kd_mma_tf32(sum, a.high, b.low[0], b.low[1]);
    kd_mma_tf32(sum, a.high, b.high[0], b.high[1]);
}

struct alignas(16) chunk_shared {
    /* Queries, keys; logs of decays, then factors of pairs. */
    float q[CHUNK * KD_GPU_K3_DIM], k[CHUNK * KD_GPU_K3_DIM], f[CHUNK * KD_GPU_K3_DIM];
    float beta[CHUNK], decay[2][KD_GPU_K3_DIM]; /* decay: of the halves */
};
/* Of a row's channel: eight rows in a row lie in other banks for a product. */
KD_DEV int chunk_at(int row, int c)
{
    return row * KD_GPU_K3_DIM + (c ^ (row % 2 * 16));
}

/* A channel's last tokens before row t. */
KD_DEV conv_channel conv_before(const float *x, const float *taps, const float *state,
                                int64_t channels, int64_t at, int64_t first, int64_t t)
{
    conv_channel c;

#pragma unroll
    for (int i = 0; i < KD_GPU_K3_TAPS; i++)
        c.w[i] = taps[i];
#pragma unroll
    for (int i = 0; i < KD_GPU_K3_TAPS - 1; i++) {
        const int64_t row = t - (KD_GPU_K3_TAPS - 1) + i;
        c.x[i + 1] = row >= first ? x[row * channels + at]
                                  : state[(row - first + KD_GPU_K3_TAPS - 1) * channels];
    }
    return c;
}

/* A thread's channel of half a chunk: convolutions, logs of decays; values to the work space. */
KD_DEV void chunk_tokens(const kd_gpu_k3_kda &a, const kd_gpu_k3_seg &seg, int64_t h, int64_t row,
                         float *w, chunk_shared *s)
{
    constexpr int D = KD_GPU_K3_DIM, AHEAD = 4;
    const int c = kd_thread() % D, half = kd_thread() / D;
    const int64_t channels = a.heads * D, stream = (KD_GPU_K3_TAPS - 1) * channels, at = h * D + c,
                  t0 = row + half * HALF;
    const float *conv = seg.kda + a.state + a.heads * D * D + at;
    const float ea = a.decay[h], dt = a.dt_bias[at];
    const int64_t tap = at * KD_GPU_K3_TAPS;
    conv_channel q = conv_before(a.q, a.q_conv + tap, conv, channels, at, seg.first, t0),
                 k = conv_before(a.k, a.k_conv + tap, conv + stream, channels, at, seg.first, t0),
                 v = conv_before(a.v, a.v_conv + tap, conv + 2 * stream, channels, at, seg.first,
                                 t0);

#pragma unroll 1
    for (int i = 0; i < HALF; i += AHEAD) {
        float in[AHEAD][4];
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            const int64_t from = (t0 + i + n) * channels + at;
            in[n][0] = a.q[from];
            in[n][1] = a.k[from];
            in[n][2] = a.v[from];
            in[n][3] = a.z[from];
        }
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            const int r = half * HALF + i + n, to = chunk_at(r, c);
            const float qs = q.sum(in[n][0]), ks = k.sum(in[n][1]), vs = v.sum(in[n][2]);
            s->q[to] = qs * sigmoid_near(qs);
            s->k[to] = ks * sigmoid_near(ks);
            w[WORK_V + r * D + c] = s->beta[r] * vs * sigmoid_near(vs);
            s->f[to] = chunk_log(a, in[n][3], dt, ea);
        }
    }
}

/* A warp's token: queries and keys of length 1. */
KD_DEV void chunk_norm(chunk_shared *s, int r)
{
    const int lane = kd_thread() % 32;
    float q[CHUNK_LANE], k[CHUNK_LANE], qq = 0, kk = 0;

#pragma unroll
    for (int m = 0; m < CHUNK_LANE; m++) {
        q[m] = s->q[chunk_at(r, lane + 32 * m)];
        k[m] = s->k[chunk_at(r, lane + 32 * m)];
        qq = fmaf(q[m], q[m], qq);
        kk = fmaf(k[m], k[m], kk);
    }
    const float uq = 1.0f / sqrtf(warp_sum(qq) + 1e-6f) * (1.0f / sqrtf((float)KD_GPU_K3_DIM));
    const float uk = 1.0f / sqrtf(warp_sum(kk) + 1e-6f);
#pragma unroll
    for (int m = 0; m < CHUNK_LANE; m++) {
        s->q[chunk_at(r, lane + 32 * m)] = q[m] * uq;
        s->k[chunk_at(r, lane + 32 * m)] = k[m] * uk;
    }
}

/* A warp's token and those before it in its eight, one by one. What lies right of it in its block
 * of 16 is nothing. */
KD_DEV void chunk_near(const chunk_shared *s, int i, float *w)
{
    const int lane = kd_thread() % 32, before = i % NEAR, right = BLOCK - 1 - i % BLOCK;
    float q[CHUNK_LANE], k[CHUNK_LANE], sum[CHUNK_LANE] = {}, v[2 * NEAR] = {};

#pragma unroll
    for (int m = 0; m < CHUNK_LANE; m++) {
        const int at = chunk_at(i, lane + 32 * m);
        q[m] = s->q[at];
        k[m] = s->k[at];
        v[2 * NEAR - 1] = fmaf(q[m], k[m], v[2 * NEAR - 1]);
    }
#pragma unroll
    for (int n = 0; n < NEAR - 1; n++) {
        if (n >= before)
            continue;
#pragma unroll
        for (int m = 0; m < CHUNK_LANE; m++) {
            const int c = lane + 32 * m;
            sum[m] += s->f[chunk_at(i - n, c)];
            const float e = s->k[chunk_at(i - n - 1, c)] * kd_exp2_near(sum[m]);
            v[2 * n] = fmaf(k[m], e, v[2 * n]);
            v[2 * n + 1] = fmaf(q[m], e, v[2 * n + 1]);
        }
    }
    const float x = lane_sums(v, lane);
    const int j = lane == 2 * NEAR - 1 ? i : i - 1 - lane / 2;
    if (lane / 2 < before && lane % 2 == 0)
        w[WORK_T + i * CHUNK + j] = s->beta[i] * x;
    if (lane == 2 * NEAR - 1 || (lane / 2 < before && lane % 2))
        w[WORK_QK + i * CHUNK + j] = x;
    if (lane < right)
        w[WORK_QK + i * CHUNK + i + 1 + lane] = 0.0f;
}

/* Logs of decays of a thread's channel in half a chunk. */
struct chunk_logs {
    float g[HALF];
    int c, half;

    KD_DEV void load(const chunk_shared *s)
    {
        c = kd_thread() % KD_GPU_K3_DIM;
        half = kd_thread() / KD_GPU_K3_DIM;
#pragma unroll
        for (int r = 0; r < HALF; r++)
            g[r] = s->f[chunk_at(half * HALF + r, c)];
    }
    KD_DEV float all() const
    {
        float sum = 0;
#pragma unroll
        for (int r = 0; r < HALF; r++)
            sum += g[r];
        return kd_exp2_near(sum);
    }
    /* What decays from the chunk's start and to its end; factors of the pairs of both halves. */
    KD_DEV void far(chunk_shared *s, float *w) const
    {
        constexpr int D = KD_GPU_K3_DIM;
        const float other = s->decay[half ^ 1][c];
        float sum = 0;
#pragma unroll
        for (int r = 0; r < HALF; r++) {
            const int row = half * HALF + r, at = chunk_at(row, c);
            sum += g[r];
            const float e = kd_exp2_near(sum), from = half ? e * other : e;
            w[WORK_K + row * D + c] = s->beta[row] * s->k[at] * from;
            w[WORK_Q + row * D + c] = s->q[at] * from;
            if (half)
                s->f[at] = e;
        }
        sum = 0;
#pragma unroll
        for (int r = HALF - 1; r >= 0; r--) {
            const int row = half * HALF + r, at = chunk_at(row, c);
            const float x = s->k[at] * kd_exp2_near(sum);
            sum += g[r];
            w[WORK_LEFT + row * D + c] = half ? x : x * other;
            if (!half)
                s->f[at] = x;
        }
        if (half)
            w[WORK_DECAY + c] = s->decay[0][c] * s->decay[1][c];
    }
    /* Factors of the pairs of N tokens and the N before them. */
    template <int N> KD_DEV void factors(chunk_shared *s) const
    {
#pragma unroll
        for (int from = 0; from < HALF; from += 2 * N) {
            float sum = 0;
#pragma unroll
            for (int r = from + N - 1; r >= from; r--) {
                const int at = chunk_at(half * HALF + r, c);
                s->f[at] = s->k[at] * kd_exp2_near(sum);
                sum += g[r];
            }
            sum = 0;
#pragma unroll
            for (int r = from + N; r < from + 2 * N; r++) {
                sum += g[r];
                s->f[chunk_at(half * HALF + r, c)] = kd_exp2_near(sum);
            }
        }
    }
};

/* Pairs of eight tokens from j on and two times eight of their own: of x's rows from i on, y's from
 * l on. */
KD_DEV void chunk_product(float (&sum)[4], const chunk_shared *s, const float *x, int i,
                          const float *y, int l, int j)
{
    const int lane = kd_thread() % 32, g = lane / 4, t = lane % 4 * 4;

#pragma unroll 2
    for (int c = 0; c < KD_GPU_K3_DIM; c += 16) {
        const int at[2] = {chunk_at(i + g, c + t), chunk_at(l + g, c + t)};
        float4 u[2];
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const float4 a = *(const float4 *)((n ? y : x) + at[n]),
                         b = *(const float4 *)(s->f + at[n]);
            u[n] = make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
        }
        const float4 z = *(const float4 *)(s->f + chunk_at(j + g, c + t));
        add_product(sum, tf32_rows(u[0].x, u[1].x, u[0].y, u[1].y), tf32_columns_of(z.x, z.y));
        add_product(sum, tf32_rows(u[0].z, u[1].z, u[0].w, u[1].w), tf32_columns_of(z.z, z.w));
    }
}
/* Keys' or queries' pairs with tokens before, two of a lane. */
KD_DEV void chunk_put(const chunk_shared *s, bool keys, int row, int column, float a, float b,
                      float *w)
{
    const float by = keys ? s->beta[row] : 1.0f;
    *(float2 *)(w + (keys ? WORK_T : WORK_QK) + row * CHUNK + column) = make_float2(by * a, by * b);
}
/* Sixteen tokens from i on, eight from j on. */
KD_DEV void chunk_pairs(const chunk_shared *s, int i, int j, bool keys, float *w)
{
    const int lane = kd_thread() % 32, row = i + lane / 4, column = j + lane % 4 * 2;
    const float *x = keys ? s->k : s->q;
    float sum[4] = {};

    chunk_product(sum, s, x, i, x, i + 8, j);
    chunk_put(s, keys, row, column, sum[0], sum[1], w);
    chunk_put(s, keys, row + 8, column, sum[2], sum[3], w);
}
/* Eight tokens from i on, queries and keys, and the eight before them. */
KD_DEV void chunk_eights(const chunk_shared *s, int i, float *w)
{
    const int lane = kd_thread() % 32, row = i + lane / 4, column = i - NEAR + lane % 4 * 2;
    float sum[4] = {};

    chunk_product(sum, s, s->q, i, s->k, i, i - NEAR);
    chunk_put(s, false, row, column, sum[0], sum[1], w);
    chunk_put(s, true, row, column, sum[2], sum[3], w);
}

/* (I + L)^-1 in place of L: blocks of 16 column by column, then -T L T' of what lies below two of
 * them that are done, twice. */
enum { INVERSE_LD = CHUNK + 4 };
struct chunk_inverse {
    float L[CHUNK][INVERSE_LD], T[CHUNK][INVERSE_LD], x[HALF][INVERSE_LD];
};
static_assert(sizeof(chunk_inverse) <= 3 * CHUNK * KD_GPU_K3_DIM * sizeof(float), "in its place");

KD_DEV void inverse_block(chunk_inverse *m)
{
    const int b = kd_thread() / BLOCK * BLOCK, c = kd_thread() % BLOCK;
    float x[BLOCK];

#pragma unroll
    for (int i = 0; i < BLOCK; i++) {
        x[i] = i == c ? 1.0f : 0.0f;
#pragma unroll
        for (int j = 0; j < i; j++)
            x[i] = fmaf(-m->L[b + i][b + j], x[j], x[i]);
        m->T[b + i][b + c] = x[i];
    }
}
/* Four columns of one row of sign a[N][N] b[N][N]. */
template <int N>
KD_DEV float4 inverse_times(const float *a, const float (*b)[INVERSE_LD], int column, float sign)
{
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < N; i++)
        add_scaled(&sum, sign * a[i], *(const float4 *)(b[i] + column));
    return sum;
}
/* The block of N below and left of the two of them from row r on. */
template <int N> KD_DEV void inverse_join(chunk_inverse *m, int thread, int r)
{
    const int row = thread / (N / 4), c = thread % (N / 4) * 4;
    const bool mine = thread < N * N / 4;

    if (mine)
        *(float4 *)(m->x[r / 2 % HALF + row] + c) =
            inverse_times<N>(m->L[r + N + row] + r, m->T + r, r + c, 1.0f);
    kd_sync_block();
    if (mine)
        *(float4 *)(m->T[r + N + row] + r + c) =
            inverse_times<N>(m->T[r + N + row] + r + N, m->x + r / 2 % HALF, c, -1.0f);
    kd_sync_block();
}
KD_DEV void chunk_invert(float *w, chunk_shared *s)
{
    chunk_inverse *m = (chunk_inverse *)s;
    const int t = kd_thread();

    for (int i = t; i < CHUNK * CHUNK / 4; i += CHUNK_THREADS) {
        const int r = i / (CHUNK / 4), c = i % (CHUNK / 4) * 4;
        *(float4 *)(m->L[r] + c) = *(const float4 *)(w + WORK_T + 4 * i);
        *(float4 *)(m->T[r] + c) = make_float4(0, 0, 0, 0);
    }
    kd_sync_block();
    if (t < CHUNK)
        inverse_block(m);
    kd_sync_block();
    inverse_join<BLOCK>(m, t % (CHUNK_THREADS / 2), t / (CHUNK_THREADS / 2) * HALF);
    inverse_join<HALF>(m, t, 0);
    for (int i = t; i < CHUNK * CHUNK / 4; i += CHUNK_THREADS)
        *(float4 *)(w + WORK_T + 4 * i) =
            *(const float4 *)(m->T[i / (CHUNK / 4)] + i % (CHUNK / 4) * 4);
}

/* Block: chunk kd_block() / heads, head kd_block() % heads. */
KD_KERNEL void KD_BOUNDS(CHUNK_THREADS, 2)
    kda_chunk_inputs(const kd_gpu_k3_batch b, const kd_gpu_k3_kda a)
{
    KD_SHARED(memory);
    chunk_shared *s = (chunk_shared *)memory;
    const int warp = kd_thread() / 32;
    const int64_t h = kd_block() % a.heads, number = kd_block() / a.heads;
    kd_gpu_k3_seg seg;

    kd_launch_wait();
    kd_launch_next();
    const int64_t row = chunk_row(b, number, &seg);
    if (row < 0)
        return;
    float *w = chunk_work(a, number, h);
    chunk_logs logs;
    if (kd_thread() < CHUNK)
        s->beta[kd_thread()] = kd_sigmoid1(a.beta[(row + kd_thread()) * a.heads + h]);
    kd_sync_block();
    chunk_tokens(a, seg, h, row, w, s);
    kd_sync_block();
    for (int i = warp; i < CHUNK; i += CHUNK_WARPS)
        chunk_norm(s, i);
    kd_sync_block();
    /* Long rows and short ones to each warp. */
    for (int i = 0; i < CHUNK; i += CHUNK_WARPS)
        chunk_near(s, i + (i % BLOCK ? CHUNK_WARPS - 1 - warp : warp), w);
    logs.load(s);
    s->decay[logs.half][logs.c] = logs.all();
    kd_sync_block();
    logs.far(s, w);
    kd_sync_block();
    for (int keys = 0; keys < 2; keys++)
        chunk_pairs(s, HALF + warp % 2 * BLOCK, warp / 2 * 8, keys, w);
    kd_sync_block();
    logs.factors<BLOCK>(s);
    kd_sync_block();
    chunk_pairs(s, warp % 2 * HALF + BLOCK, warp % 2 * HALF + warp / 2 % 2 * 8, warp / 4, w);
    kd_sync_block();
    logs.factors<NEAR>(s);
    kd_sync_block();
    if (warp < CHUNK / BLOCK)
        chunk_eights(s, warp * BLOCK + NEAR, w);
    kd_sync_block();
    chunk_invert(w, s);
}

/* Factors of products: the state, of two key channels each; of two tokens each, what their values
 * lack, then what they add. */
struct walk_shared {
    tf32_columns S[KD_GPU_K3_DIM / 2][WALK_COLUMNS], x[CHUNK / 2][WALK_COLUMNS];
};
/* Of eight columns, two rows and four rows after them lie in other banks. */
KD_DEV int walk_at(int pair, int column)
{
    return column ^ (pair & 6);
}
/* A lane's two columns of two adjacent rows. */
KD_DEV void walk_put(tf32_columns (*to)[WALK_COLUMNS], int pair, int column, const float (&x)[4])
{
#pragma unroll
    for (int i = 0; i < 2; i++)
        to[pair][walk_at(pair, column + i)] = tf32_columns_of(x[i], x[2 + i]);
}

/* Sixteen inputs of a product at a time: lane 4 g + t has 4 t .. 4 t + 3, of which step s takes
 * 2 s and 2 s + 1. The tile's rows g and g + 8 are 2 g and 2 g + 1. */
struct walk_rows {
    float4 r[2];

    KD_DEV void load(const float *x, int64_t ld, int lane)
    {
        const float *at = x + lane / 4 * 2 * ld + lane % 4 * 4;
        r[0] = *(const float4 *)at;
        r[1] = *(const float4 *)(at + ld);
    }
    KD_DEV tf32_rows step(int s) const
    {
        return s ? tf32_rows(r[0].z, r[1].z, r[0].w, r[1].w)
                 : tf32_rows(r[0].x, r[1].x, r[0].y, r[1].y);
    }
};
KD_DEV tf32_columns walk_columns(const tf32_columns (*y)[WALK_COLUMNS], int i, int s, int n,
                                 int lane)
{
    const int pair = lane % 4 * 2 + s;
    return y[8 * i + pair][8 * n + walk_at(pair, lane / 4)];
}

/* sum += 16 rows of x times y, `steps` times 16 inputs; next: the first of them. */
KD_DEV void walk_add(float (&sum)[WALK_TILES][4], walk_rows next, const float *x, int64_t ld,
                     const tf32_columns (*y)[WALK_COLUMNS], int steps, int lane)
{
#pragma unroll 1
    for (int i = 0; i < steps; i++) {
        const walk_rows now = next;
        if (i + 1 < steps)
            next.load(x + 16 * (i + 1), ld, lane);
#pragma unroll
        for (int s = 0; s < 2; s++) {
            const tf32_rows a = now.step(s);
#pragma unroll
            for (int n = 0; n < WALK_TILES; n++)
                add_product(sum[n], a, walk_columns(y, i, s, n, lane));
        }
    }
}

/* A warp's 16 keys and queries of a chunk, 16 channels of them. */
struct walk_tokens {
    walk_rows k, q;

    KD_DEV void load(const float *w, int row, int i, int lane)
    {
        constexpr int D = KD_GPU_K3_DIM;
        k.load(w + WORK_K + row * D + 16 * i, D, lane);
        q.load(w + WORK_Q + row * D + 16 * i, D, lane);
    }
};

/* What a warp begins a chunk with: its first channels; values, negated. */
struct walk_first {
    walk_tokens tokens;
    float lack[WALK_TILES][4];

    KD_DEV void load(const float *w, int row, int slice, int lane)
    {
        const float *v =
            w + WORK_V + (row + lane / 4 * 2) * KD_GPU_K3_DIM + slice * WALK_COLUMNS + lane % 4 * 2;
        tokens.load(w, row, 0, lane);
#pragma unroll
        for (int n = 0; n < WALK_TILES; n++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float2 x = *(const float2 *)(v + h * KD_GPU_K3_DIM + 8 * n);
                lack[n][2 * h] = -x.x;
                lack[n][2 * h + 1] = -x.y;
            }
    }
};

/* p += K S, o += Q S of the warp's 16 tokens; next: the first of them. */
KD_DEV void walk_meet(float (&p)[WALK_TILES][4], float (&o)[WALK_TILES][4], walk_tokens next,
                      const float *w, int row, const walk_shared *s, int lane)
{
    constexpr int STEPS = KD_GPU_K3_DIM / 16;

#pragma unroll 1
    for (int i = 0; i < STEPS; i++) {
        const walk_tokens now = next;
        if (i + 1 < STEPS)
            next.load(w, row, i + 1, lane);
#pragma unroll
        for (int step = 0; step < 2; step++) {
            const tf32_rows k = now.k.step(step), q = now.q.step(step);
#pragma unroll
            for (int n = 0; n < WALK_TILES; n++) {
                const tf32_columns c = walk_columns(s->S, i, step, n, lane);
                add_product(p[n], k, c);
                add_product(o[n], q, c);
            }
        }
    }
}

/* A warp's 32 rows of the state: tile i's rows g and g + 8 are 4 g + 2 i and 4 g + 2 i + 1. */
struct walk_state {
    float S[2][WALK_TILES][4];
    int row, column;

    KD_DEV void load(const float *from, int warp, int lane)
    {
        row = 32 * warp + lane / 4 * 4;
        column = lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int n = 0; n < WALK_TILES; n++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const float2 x = *(const float2 *)(from + (row + 2 * i + h) * KD_GPU_K3_DIM +
                                                       8 * n + column);
                    S[i][n][2 * h] = x.x;
                    S[i][n][2 * h + 1] = x.y;
                }
    }
    KD_DEV void put(walk_shared *s) const
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int n = 0; n < WALK_TILES; n++)
                walk_put(s->S, row / 2 + i, 8 * n + column, S[i][n]);
    }
    KD_DEV void store(float *to) const
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int n = 0; n < WALK_TILES; n++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    *(float2 *)(to + (row + 2 * i + h) * KD_GPU_K3_DIM + 8 * n + column) =
                        make_float2(S[i][n][2 * h], S[i][n][2 * h + 1]);
    }
    /* To the chunk's end: it decays, its tokens are added. */
    KD_DEV void step(const float *w, const walk_shared *s, int lane)
    {
        const float4 decay = *(const float4 *)(w + WORK_DECAY + row);
        const float d[4] = {decay.x, decay.y, decay.z, decay.w};
        float4 next[4];
        auto load = [&](int i) {
#pragma unroll
            for (int k = 0; k < 4; k++)
                next[k] = *(const float4 *)(w + WORK_LEFT +
                                            (16 * i + lane % 4 * 4 + k) * KD_GPU_K3_DIM + row);
        };

        load(0);
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int n = 0; n < WALK_TILES; n++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    S[i][n][k] *= d[2 * i + k / 2];
#pragma unroll 1
        for (int i = 0; i < CHUNK / 16; i++) {
            float4 now[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                now[k] = next[k];
            if (i + 1 < CHUNK / 16)
                load(i + 1);
#pragma unroll
            for (int k = 0; k < 4; k += 2) {
                const tf32_rows a(now[k].x, now[k].y, now[k + 1].x, now[k + 1].y),
                    b(now[k].z, now[k].w, now[k + 1].z, now[k + 1].w);
#pragma unroll
                for (int n = 0; n < WALK_TILES; n++) {
                    const tf32_columns c = walk_columns(s->x, i, k / 2, n, lane);
                    add_product(S[0][n], a, c);
                    add_product(S[1][n], b, c);
                }
            }
        }
    }
};

/* One chunk: outputs to y (before their norm), S to the chunk's end. b: what it begins with, then
 * that of the chunk `after`, where there is one. What a product begins with is on its way before
 * the barrier in front of it. */
KD_DEV void walk_chunk(const float *w, const float *after, float *y, int64_t ldy, int slice,
                       walk_first &b, walk_state &S, walk_shared *s)
{
    const int lane = kd_thread() % 32, warp = kd_thread() / 32, row = 16 * warp,
              mine = row + lane / 4 * 2, column = lane % 4 * 2;
    float o[WALK_TILES][4] = {};
    walk_rows ahead;

    walk_meet(b.lack, o, b.tokens, w, row, s, lane);
    ahead.load(w + WORK_T + row * CHUNK, CHUNK, lane);
#pragma unroll
    for (int n = 0; n < WALK_TILES; n++) {
        const float lack[4] = {-b.lack[n][0], -b.lack[n][1], -b.lack[n][2], -b.lack[n][3]};
        walk_put(s->x, mine / 2, 8 * n + column, lack);
    }
    kd_sync_block();
    float add[WALK_TILES][4] = {};
    walk_add(add, ahead, w + WORK_T + row * CHUNK, CHUNK, s->x, warp + 1, lane);
    ahead.load(w + WORK_QK + row * CHUNK, CHUNK, lane);
    kd_sync_block();
#pragma unroll
    for (int n = 0; n < WALK_TILES; n++)
        walk_put(s->x, mine / 2, 8 * n + column, add[n]);
    kd_sync_block();
    walk_add(o, ahead, w + WORK_QK + row * CHUNK, CHUNK, s->x, warp + 1, lane);
#pragma unroll
    for (int n = 0; n < WALK_TILES; n++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(float2 *)(y + (mine + h) * ldy + 8 * n + column) =
                make_float2(o[n][2 * h], o[n][2 * h + 1]);
    S.step(w, s, lane);
    S.put(s);
    if (after)
        b.load(after, row, slice, lane);
    kd_sync_block();
}

/* Block: 32 columns of the state of a head of a segment. */
KD_KERNEL void KD_BOUNDS(WALK_THREADS, 3)
    kda_chunk_walk(const kd_gpu_k3_batch b, const kd_gpu_k3_kda a)
{
    constexpr int D = KD_GPU_K3_DIM;
    KD_SHARED(memory);
    walk_shared *s = (walk_shared *)memory;
    const int me = kd_thread(), slice = kd_block() % WALK_SLICES;
    const int64_t h = kd_block() / WALK_SLICES % a.heads, mine = kd_block() / WALK_SLICES / a.heads;
    const int64_t channels = a.heads * D, stream = (KD_GPU_K3_TAPS - 1) * channels;
    int64_t number = 0, lead = 0;

    kd_launch_wait();
    kd_launch_next();
    for (int64_t i = 0; i < mine; i++)
        number += chunks_of(b.seg[i], &lead);
    const kd_gpu_k3_seg seg = b.seg[mine];
    const int64_t n = chunks_of(seg, &lead), first = seg.first + lead;
    if (!n)
        return;
    float *S = seg.kda + a.state + h * D * D + slice * WALK_COLUMNS;
    walk_state state;
    walk_first begin;
    state.load(S, me / 32, me % 32);
    state.put(s);
    begin.load(chunk_work(a, number, h), me / 32 * 16, slice, me % 32);
    kd_sync_block();
    for (int64_t i = 0; i < n; i++) {
        const float *w = chunk_work(a, number + i, h);
        walk_chunk(w, i + 1 < n ? w + a.heads * WORK_FLOATS : nullptr,
                   a.y + (first + i * CHUNK) * channels + h * D + slice * WALK_COLUMNS, channels,
                   slice, begin, state, s);
    }
    state.store(S);
    if (slice)
        return;
    /* The last raw rows, oldest first; a thread a channel. */
    float *conv = seg.kda + a.state + a.heads * D * D + h * D + me;
    const int64_t from = (first + n * CHUNK - (KD_GPU_K3_TAPS - 1)) * channels + h * D + me;
    for (int i = 0; i < KD_GPU_K3_TAPS - 1; i++) {
        conv[i * channels] = a.q[from + i * channels];
        conv[stream + i * channels] = a.k[from + i * channels];
        conv[2 * stream + i * channels] = a.v[from + i * channels];
    }
}

/* Block: as kda_chunk_inputs; a warp a token. */
KD_KERNEL void KD_BOUNDS(CHUNK_THREADS, 4)
    kda_chunk_outputs(const kd_gpu_k3_batch b, const kd_gpu_k3_kda a)
{
    constexpr int D = KD_GPU_K3_DIM;
    const int warp = kd_thread() / 32, lane = kd_thread() % 32;
    const int64_t h = kd_block() % a.heads, channels = a.heads * D;
    kd_gpu_k3_seg seg;

    kd_launch_wait();
    kd_launch_next();
    const int64_t row = chunk_row(b, kd_block() / a.heads, &seg);
    if (row < 0)
        return;
    for (int i = warp; i < CHUNK; i += CHUNK_WARPS) {
        const int64_t at = (row + i) * channels + h * D + lane;
        float o[CHUNK_LANE], sum = 0;
#pragma unroll
        for (int m = 0; m < CHUNK_LANE; m++) {
            o[m] = a.y[at + 32 * m];
            sum = fmaf(o[m], o[m], sum);
        }
        const float scale = 1.0f / sqrtf(warp_sum(sum) / (float)D + a.eps);
#pragma unroll
        for (int m = 0; m < CHUNK_LANE; m++)
            a.y[at + 32 * m] =
                o[m] * scale * a.o_norm[lane + 32 * m] * kd_sigmoid1(a.gate[at + 32 * m]);
    }
}

} // namespace kd_k3
#endif
