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
    SOLVE = 16 /* rows that are solved one by one */
};

/* What a head's chunk needs, in floats from its start. k and v are times beta; pairs too, negative.
 */
enum {
    WORK_K = 0,                            /* [64][128] beta k e^(decay from the chunk's start) */
    WORK_Q = CHUNK * KD_GPU_K3_DIM,        /* [64][128] q, likewise */
    WORK_LEFT = 2 * CHUNK * KD_GPU_K3_DIM, /* [64][128] k e^(decay to the chunk's end) */
    WORK_V = 3 * CHUNK * KD_GPU_K3_DIM,    /* [64][128] */
    WORK_KK = 4 * CHUNK * KD_GPU_K3_DIM,   /* [64][64] k_i k_j e^(decay between), 0 from j = i on */
    WORK_QK = WORK_KK + CHUNK * CHUNK,     /* [64][64] q_i k_j, 0 after j = i */
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

/* The convolution of one channel at row t. */
KD_DEV float conv_at(const float *x, const float *taps, const float *state, int64_t channels,
                     int64_t at, int64_t first, int64_t t)
{
    float sum = 0;

#pragma unroll
    for (int i = 0; i < KD_GPU_K3_TAPS; i++) {
        const int64_t row = t - (KD_GPU_K3_TAPS - 1) + i;
        const float in = row >= first ? x[row * channels + at]
                                      : state[(row - first + KD_GPU_K3_TAPS - 1) * channels];
        const float part = taps[i] * in;
        sum = i ? sum + part : part;
    }
    return kd_silu1(sum);
}

struct alignas(16) chunk_shared {
    float k[CHUNK][KD_GPU_K3_DIM], g[CHUNK][KD_GPU_K3_DIM], beta[CHUNK];
};

/* A warp's token of the chunk: q to the work space, k, log decays and beta to shared memory. */
KD_DEV void chunk_token(const kd_gpu_k3_batch &b, const kd_gpu_k3_kda &a, const kd_gpu_k3_seg &seg,
                        int64_t h, int64_t t, int i, float *w, chunk_shared *s)
{
    constexpr int D = KD_GPU_K3_DIM;
    const int lane = kd_thread() % 32;
    const int64_t channels = a.heads * D, stream = (KD_GPU_K3_TAPS - 1) * channels;
    const float *conv = seg.kda + a.state + a.heads * D * D;
    const float beta = kd_sigmoid1(a.beta[t * a.heads + h]), ea = a.decay[h];
    float q[CHUNK_LANE], k[CHUNK_LANE], qq = 0, kk = 0;

    (void)b;
#pragma unroll
    for (int m = 0; m < CHUNK_LANE; m++) {
        const int c = lane + 32 * m;
        const int64_t at = h * D + c;
        const float v = conv_at(a.v, a.v_conv + at * KD_GPU_K3_TAPS, conv + 2 * stream + at,
                                channels, at, seg.first, t);
        q[m] = conv_at(a.q, a.q_conv + at * KD_GPU_K3_TAPS, conv + at, channels, at, seg.first, t);
        k[m] = conv_at(a.k, a.k_conv + at * KD_GPU_K3_TAPS, conv + stream + at, channels, at,
                       seg.first, t);
        qq = fmaf(q[m], q[m], qq);
        kk = fmaf(k[m], k[m], kk);
        w[WORK_V + i * D + c] = beta * v;
        s->g[i][c] = kda_log(a, a.z[t * channels + at], a.dt_bias[at], ea);
    }
    const float uq = 1.0f / sqrtf(warp_sum(qq) + 1e-6f) * (1.0f / sqrtf((float)D));
    const float uk = 1.0f / sqrtf(warp_sum(kk) + 1e-6f);
#pragma unroll
    for (int m = 0; m < CHUNK_LANE; m++) {
        w[WORK_Q + i * D + lane + 32 * m] = q[m] * uq;
        s->k[i][lane + 32 * m] = k[m] * uk;
    }
    if (!lane)
        s->beta[i] = beta;
}

/* A warp's row of pairs, and what decays over the chunk's start or, in its last row, its end. */
KD_DEV void chunk_pairs(const chunk_shared *s, int i, float *w)
{
    constexpr int D = KD_GPU_K3_DIM;
    const int lane = kd_thread() % 32;
    const bool low = lane < 16, last = i == CHUNK - 1;
    const float beta = s->beta[i];
    float q[CHUNK_LANE], k[CHUNK_LANE], sum[CHUNK_LANE] = {}, qk = 0;

#pragma unroll
    for (int m = 0; m < CHUNK_LANE; m++) {
        q[m] = w[WORK_Q + i * D + lane + 32 * m];
        k[m] = s->k[i][lane + 32 * m];
        qk = fmaf(q[m], k[m], qk);
        if (last)
            w[WORK_LEFT + i * D + lane + 32 * m] = k[m];
    }
    qk = warp_sum(qk);
    for (int j = lane; j < CHUNK; j += 32) {
        if (j >= i)
            w[WORK_KK + i * CHUNK + j] = 0.0f;
        if (j >= i)
            w[WORK_QK + i * CHUNK + j] = j == i ? qk : 0.0f;
    }
    for (int j = i - 1; j >= 0; j--) {
        float kk = 0;
        qk = 0;
#pragma unroll
        for (int m = 0; m < CHUNK_LANE; m++) {
            const int c = lane + 32 * m;
            sum[m] += s->g[j + 1][c];
            const float e = s->k[j][c] * kd_exp_near(sum[m]);
            kk = fmaf(k[m], e, kk);
            qk = fmaf(q[m], e, qk);
            if (last)
                w[WORK_LEFT + j * D + c] = e;
        }
        /* Both sums at once: half of the lanes have the one, half the other. */
        float x = (low ? kk : qk) + kd_shuffle_xor(low ? qk : kk, 16);
#pragma unroll
        for (int m = 8; m; m >>= 1)
            x += kd_shuffle_xor(x, m);
        if (lane == 0)
            w[WORK_KK + i * CHUNK + j] = -beta * x;
        if (lane == 16)
            w[WORK_QK + i * CHUNK + j] = x;
    }
#pragma unroll
    for (int m = 0; m < CHUNK_LANE; m++) {
        const int c = lane + 32 * m;
        const float e = kd_exp_near(sum[m] + s->g[0][c]);
        w[WORK_K + i * D + c] = beta * k[m] * e;
        w[WORK_Q + i * D + c] = q[m] * e;
        if (last)
            w[WORK_DECAY + c] = e;
    }
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
    for (int i = warp; i < CHUNK; i += CHUNK_WARPS)
        chunk_token(b, a, seg, h, row + i, i, w, s);
    kd_sync_block();
    /* Long rows and short ones to each warp. */
    for (int m = 0; m < CHUNK / CHUNK_WARPS; m++)
        chunk_pairs(s, m * CHUNK_WARPS + (m % 2 ? CHUNK_WARPS - 1 - warp : warp), w);
}

struct alignas(16) walk_shared {
    float S[KD_GPU_K3_DIM][WALK_COLUMNS], v[CHUNK][WALK_COLUMNS];
};

KD_DEV void add_times(float4 &sum, float x, const float4 &v)
{
    sum.x = fmaf(x, v.x, sum.x);
    sum.y = fmaf(x, v.y, sum.y);
    sum.z = fmaf(x, v.z, sum.z);
    sum.w = fmaf(x, v.w, sum.w);
}

/* sum[r] += rows r of x ([.][ld]) times y ([count][32]) at this thread's four columns. */
template <int ROWS>
KD_DEV void add_rows(float4 sum[ROWS], const float *x, int64_t ld, const float *y, int count)
{
#pragma unroll 2
    for (int i = 0; i < count; i += 4) {
        float4 v[4];
#pragma unroll
        for (int n = 0; n < 4; n++)
            v[n] = *(const float4 *)(y + (i + n) * WALK_COLUMNS);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float4 u = *(const float4 *)(x + r * ld + i);
            add_times(sum[r], u.x, v[0]);
            add_times(sum[r], u.y, v[1]);
            add_times(sum[r], u.z, v[2]);
            add_times(sum[r], u.w, v[3]);
        }
    }
}

/* v = (I + L)^-1 v in place, 16 rows at a time: what the rows before them add, then one by one. */
KD_DEV void walk_solve(const float *kk, walk_shared *s)
{
    const int me = kd_thread(), row = me / 8, c = me % 8 * 4;

    for (int r0 = 0; r0 < CHUNK; r0 += SOLVE) {
        if (r0) {
            float4 *mine = (float4 *)&s->v[r0 + row][c], sum[1] = {*mine};
            add_rows<1>(sum, kk + (r0 + row) * CHUNK, CHUNK, &s->v[0][c], r0);
            *mine = sum[0];
        }
        kd_sync_block();
        if (me < WALK_COLUMNS) {
            float x[SOLVE];
#pragma unroll
            for (int i = 0; i < SOLVE; i++) {
                x[i] = s->v[r0 + i][me];
#pragma unroll
                for (int j = 0; j < i; j++)
                    x[i] = fmaf(kk[(r0 + i) * CHUNK + r0 + j], x[j], x[i]);
                s->v[r0 + i][me] = x[i];
            }
        }
        kd_sync_block();
    }
}

/* One chunk: outputs to y (before their norm), S to the chunk's end. */
KD_DEV void walk_chunk(const float *w, float *y, int64_t ldy, int slice, walk_shared *s)
{
    constexpr int D = KD_GPU_K3_DIM;
    const int row = kd_thread() / 8 * 4, c = kd_thread() % 8 * 4;
    const float4 zero = make_float4(0, 0, 0, 0);
    float4 p[4] = {zero, zero, zero, zero}, o[4] = {zero, zero, zero, zero};

    add_rows<4>(p, w + WORK_K + row * D, D, &s->S[0][c], D);
    add_rows<4>(o, w + WORK_Q + row * D, D, &s->S[0][c], D);
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const float4 v = *(const float4 *)(w + WORK_V + (row + r) * D + slice * WALK_COLUMNS + c);
        *(float4 *)&s->v[row + r][c] =
            make_float4(v.x - p[r].x, v.y - p[r].y, v.z - p[r].z, v.w - p[r].w);
    }
    kd_sync_block();
    walk_solve(w + WORK_KK, s);
    add_rows<4>(o, w + WORK_QK + row * CHUNK, CHUNK, &s->v[0][c], row + 4);
#pragma unroll
    for (int r = 0; r < 4; r++)
        *(float4 *)(y + (row + r) * ldy + c) = o[r];
    /* Eight rows of S, four columns. */
    float4 S[8];
#pragma unroll
    for (int r = 0; r < 8; r++) {
        const float decay = w[WORK_DECAY + 2 * row + r];
        S[r] = *(const float4 *)&s->S[2 * row + r][c];
        S[r] = make_float4(S[r].x * decay, S[r].y * decay, S[r].z * decay, S[r].w * decay);
    }
#pragma unroll 2
    for (int j = 0; j < CHUNK; j++) {
        const float *left = w + WORK_LEFT + j * D + 2 * row;
        const float4 a = *(const float4 *)left, b = *(const float4 *)(left + 4);
        const float4 v = *(const float4 *)&s->v[j][c];
        add_times(S[0], a.x, v);
        add_times(S[1], a.y, v);
        add_times(S[2], a.z, v);
        add_times(S[3], a.w, v);
        add_times(S[4], b.x, v);
        add_times(S[5], b.y, v);
        add_times(S[6], b.z, v);
        add_times(S[7], b.w, v);
    }
#pragma unroll
    for (int r = 0; r < 8; r++)
        *(float4 *)&s->S[2 * row + r][c] = S[r];
    kd_sync_block();
}

/* Block: 32 columns of the state of a head of a segment. */
KD_KERNEL void KD_BOUNDS(WALK_THREADS, 4)
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
    for (int i = me; i < D * WALK_COLUMNS; i += WALK_THREADS)
        s->S[i / WALK_COLUMNS][i % WALK_COLUMNS] = S[i / WALK_COLUMNS * D + i % WALK_COLUMNS];
    kd_sync_block();
    for (int64_t i = 0; i < n; i++)
        walk_chunk(chunk_work(a, number + i, h),
                   a.y + (first + i * CHUNK) * channels + h * D + slice * WALK_COLUMNS, channels,
                   slice, s);
    for (int i = me; i < D * WALK_COLUMNS; i += WALK_THREADS)
        S[i / WALK_COLUMNS * D + i % WALK_COLUMNS] = s->S[i / WALK_COLUMNS][i % WALK_COLUMNS];
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
