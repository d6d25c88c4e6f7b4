/* Kernels of gpu/k3_ops.h outside of attention over the cache (k3_mla.cuh): the residual stream,
 * KDA, the router. Each function is what one thread of a block does; k3_ops.cu launches them, and
 * tests/gpu/emulated_k3.cpp runs them on the CPU. */
#ifndef KD_GPU_K3_OPS_CUH
#define KD_GPU_K3_OPS_CUH

extern "C" {
#include "gpu/k3_ops.h"
}
#include "gpu/norm_row.cuh"
#include "num/elem_math.h"

namespace kd_k3
{

enum {
    MIX_TEAM = 8, /* blocks that share a row */
    MIX_THREADS = KD_GPU_K3_WIDTH / 4 / MIX_TEAM,
    MIX_CANDIDATES = KD_GPU_K3_BANKS + 1,
    KDA_THREADS = KD_GPU_K3_DIM
};

KD_DEV float product_sum(float4 v, float4 u, float sum)
{
    sum = fmaf(v.x, u.x, sum);
    sum = fmaf(v.y, u.y, sum);
    sum = fmaf(v.z, u.z, sum);
    return fmaf(v.w, u.w, sum);
}

KD_DEV void add_scaled(float4 *to, float a, float4 v)
{
    to->x = fmaf(a, v.x, to->x);
    to->y = fmaf(a, v.y, to->y);
    to->z = fmaf(a, v.z, to->z);
    to->w = fmaf(a, v.w, to->w);
}

/* The nearest fp16 that is finite, or NaN. */
KD_DEV float half_range(float x)
{
    return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x;
}
KD_DEV uint32_t halves_of(float low, float high)
{
    return kd_h2_bits(kd_h2_of(half_range(low), half_range(high)));
}

/* Halves of the lanes take halves of the values. */
template <int HALF, int COUNT> KD_DEV void halve(float (&v)[COUNT], int lane)
{
    const bool high = (lane & HALF) != 0;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        const float give = high ? v[i] : v[i + HALF], keep = high ? v[i + HALF] : v[i];
        v[i] = keep + kd_shuffle_xor(give, HALF);
    }
}

/* Sums of COUNT values (8, 16 or 32) over the lanes; lane l gets number l % COUNT. */
template <int COUNT> KD_DEV float lane_sums(float (&v)[COUNT], int lane)
{
    if (COUNT >= 32)
        halve<COUNT >= 32 ? 16 : 1>(v, lane);
    if (COUNT >= 16)
        halve<COUNT >= 16 ? 8 : 1>(v, lane);
    halve<4>(v, lane);
    halve<2>(v, lane);
    halve<1>(v, lane);
#pragma unroll
    for (int m = 16; m >= COUNT; m >>= 1)
        v[0] += kd_shuffle_xor(v[0], m);
    return v[0];
}

/* Fours of a slice; warps of a block, whose threads have one each. */
KD_HD static inline int mix_each(int64_t hidden)
{
    return (int)((hidden / 4 + MIX_TEAM - 1) / MIX_TEAM);
}
KD_HD static inline int mix_warps(int64_t hidden)
{
    return (mix_each(hidden) + 31) / 32;
}

/* A row is cut into MIX_TEAM slices. Each has sums of its own, which are then added in order; a
 * team of blocks exchanges them, or one block goes through all slices (TEAM 1). */
struct mix_shared {
    float part[MIX_THREADS / 32][2 * MIX_CANDIDATES]; /* of a slice's warps */
    float score[MIX_TEAM][2 * MIX_CANDIDATES];        /* squares, products, of each slice */
    float square[MIX_TEAM];                           /* of the mix */
    float weight[MIX_CANDIDATES];
};

/* The prefix after what is added to it, its old value in a bank where one is pushed. */
KD_DEV float4 mix_prefix(const kd_gpu_k3_mix &m, int64_t row, int64_t i)
{
    const int64_t at = row * m.hidden + 4 * i;
    float4 *p = (float4 *)(m.p + at), old, a;

    if (!m.add)
        return *p;
    a = *(const float4 *)(m.add + at);
    if (m.more) {
        float4 b = *(const float4 *)(m.more + at);
        a = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
    }
    old = *p;
    if (m.push)
        *(float4 *)(m.bank + (m.banks * m.bank_rows + row) * m.hidden + 4 * i) = old;
    if (!m.replace)
        a = make_float4(old.x + a.x, old.y + a.y, old.z + a.z, old.w + a.w);
    *p = a;
    return a;
}

/* Four columns of one slice: the candidates there, and what comes of them. */
template <int CANDIDATES, int TEAM> struct mix_slice {
    float4 c[CANDIDATES], mix, query, norm;
    int64_t i; /* counted in fours */
    bool in;

    /* Columns of slice n, and their weights. */
    KD_DEV void place(const kd_gpu_k3_mix &m, int n)
    {
        i = n * mix_each(m.hidden) + kd_thread();
        in = kd_thread() < mix_each(m.hidden) && i < m.hidden / 4;
        query = norm = make_float4(0, 0, 0, 0);
        if (in && m.query)
            query = kd_load_const((const float4 *)m.query + i);
        if (in)
            norm = kd_load_const((const float4 *)m.norm + i);
    }

    /* Their candidates, the prefix last. */
    KD_DEV void load(const kd_gpu_k3_mix &m, int64_t row, int banks, bool first)
    {
        const float4 *bank = (const float4 *)(m.bank + row * m.hidden);

#pragma unroll
        for (int k = 0; k < CANDIDATES; k++)
            c[k] = make_float4(0, 0, 0, 0);
        if (!in)
            return;
        const int old = banks - (first && m.push ? 1 : 0);
        float4 pushed = make_float4(0, 0, 0, 0);
        if (first && m.push)
            pushed = *(const float4 *)(m.p + row * m.hidden + 4 * i);
#pragma unroll
        for (int k = 0; k < CANDIDATES; k++)
            if (k < old)
                c[k] = bank[k * m.bank_rows * (m.hidden / 4) + i];
        const float4 p =
            first ? mix_prefix(m, row, i) : *(const float4 *)(m.p + row * m.hidden + 4 * i);
#pragma unroll
        for (int k = 0; k < CANDIDATES; k++)
            if (k >= old && k <= banks)
                c[k] = k < banks ? pushed : p;
    }

    /* Sums of this slice's squares and products to the whole team. */
    KD_DEV void sums(const kd_gpu_k3_mix &m, int n, mix_shared *s) const
    {
        constexpr int COUNT = CANDIDATES <= 4 ? 8 : CANDIDATES <= 8 ? 16 : 32;
        const int lane = kd_thread() % 32, warp = kd_thread() / 32;
#pragma unroll
        for (int from = 0; from < CANDIDATES; from += COUNT / 2) {
            float v[COUNT] = {};
#pragma unroll
            for (int k = 0; k < COUNT / 2; k++)
                if (from + k < CANDIDATES && in) {
                    v[2 * k] = square_sum(c[from + k < CANDIDATES ? from + k : 0], 0);
                    v[2 * k + 1] = product_sum(c[from + k < CANDIDATES ? from + k : 0], query, 0);
                }
            const float sum = lane_sums(v, lane);
            if (lane < COUNT && 2 * from + lane < 2 * CANDIDATES)
                s->part[warp][2 * from + lane] = sum;
        }
        kd_sync_block();
        for (int k = kd_thread(); k < 2 * CANDIDATES; k += 32 * mix_warps(m.hidden)) {
            float sum = 0;
            for (int w = 0; w < mix_warps(m.hidden); w++)
                sum += s->part[w][k];
            for (int rank = 0; rank < TEAM; rank++)
                kd_cluster_store(&s->score[n][k], rank, sum);
        }
    }

    KD_DEV void add(const mix_shared *s, int count)
    {
        mix = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int k = 0; k < CANDIDATES; k++)
            if (k < count)
                add_scaled(&mix, s->weight[k], c[k]);
    }

    /* The sum of the mix's squares to the whole team. */
    KD_DEV void square(const kd_gpu_k3_mix &m, int n, mix_shared *s) const
    {
        const float sum = warp_sum(in ? square_sum(mix, 0) : 0.0f);
        if (kd_thread() % 32 == 0)
            s->part[kd_thread() / 32][0] = sum;
        kd_sync_block();
        if (kd_thread() < TEAM) {
            float all = 0;
            for (int w = 0; w < mix_warps(m.hidden); w++)
                all += s->part[w][0];
            kd_cluster_store(&s->square[n], kd_thread(), all);
        }
    }
};

/* Weights of the candidates: softmax of their scores, each from its two sums. The first warp. */
KD_DEV void mix_weights(const kd_gpu_k3_mix &m, int count, mix_shared *s)
{
    float score = -INFINITY, best, e;
    const int t = kd_thread();

    if (t >= 32)
        return;
    if (t < count) {
        float vv = 0, vq = 0;
#pragma unroll
        for (int i = 0; i < MIX_TEAM; i++) {
            vv += s->score[i][2 * t];
            vq += s->score[i][2 * t + 1];
        }
        score = vq * (1.0f / sqrtf(vv / (float)m.hidden + m.eps));
    }
    best = score;
#pragma unroll
    for (int x = 16; x; x >>= 1) {
        float other = kd_shuffle_xor(best, x);
        best = other > best ? other : best;
    }
    e = t < count ? kd_exp1(score - best) : 0.0f;
    const float sum = warp_sum(e);
    if (t < count)
        s->weight[t] = e / sum;
}

/* Block b: of row b / TEAM of out, all slices or number b % TEAM. CANDIDATES: at least banks (one
 * more where one is pushed) + 1. */
template <int CANDIDATES, int TEAM>
KD_KERNEL void KD_BOUNDS(MIX_THREADS, 1) mix_rows(const kd_gpu_k3_mix m)
{
    KD_SHARED(memory);
    mix_shared *s = (mix_shared *)memory;
    const int banks = m.banks + (m.push ? 1 : 0), rank = kd_cluster_rank();
    const bool mixes = m.query && banks;
    mix_slice<CANDIDATES, TEAM> x;
    float sum = 0;

    kd_cluster_arrive();
    x.place(m, rank);
    kd_launch_wait();
    kd_launch_next();
    const int64_t to = kd_block() / TEAM, row = m.pick ? m.pick[to] : to;
    float4 *out = (float4 *)(m.out + to * m.hidden);
    for (int n = rank; n < MIX_TEAM; n += TEAM) {
        if (n != rank)
            x.place(m, n);
        x.load(m, row, mixes ? banks : 0, true);
        if (n == rank)
            kd_cluster_wait(); /* all have started */
        if (mixes)
            x.sums(m, n, s);
        if (TEAM == 1)
            kd_sync_block();
    }
    if (mixes) {
        kd_cluster_arrive();
        kd_cluster_wait();
        mix_weights(m, banks + 1, s);
        kd_sync_block();
    } else if (kd_thread() == 0) {
        s->weight[0] = 1;
    }
    if (!mixes)
        kd_sync_block();
    for (int n = rank; n < MIX_TEAM; n += TEAM) {
        if (TEAM == 1) {
            x.place(m, n);
            x.load(m, row, mixes ? banks : 0, false);
        }
        x.add(s, mixes ? banks + 1 : 1);
        if (TEAM == 1 && x.in)
            out[x.i] = x.mix;
        x.square(m, n, s);
        if (TEAM == 1)
            kd_sync_block();
    }
    kd_cluster_arrive();
    kd_cluster_wait();
#pragma unroll
    for (int i = 0; i < MIX_TEAM; i++)
        sum += s->square[i];
    const float scale = 1.0f / sqrtf(sum / (float)m.hidden + m.eps);
    for (int n = rank; n < MIX_TEAM; n += TEAM) {
        if (TEAM == 1)
            x.place(m, n);
        if (x.in)
            out[x.i] = scaled(TEAM == 1 ? out[x.i] : x.mix, scale, x.norm);
    }
}

KD_KERNEL void KD_BOUNDS(NORM_THREADS, 1)
    norm_rows(const float *x, const float *w, float eps, int64_t n, float *out)
{
    KD_SHARED(memory);
    norm_row r;

    kd_launch_wait();
    kd_launch_next();
    r.load(x + kd_block() * n, n);
    r.scale(w, eps, n, (float *)memory);
    r.store(out + kd_block() * n, n);
}

KD_KERNEL void KD_BOUNDS(NORM_THREADS, 1)
    embed_rows(const int32_t *ids, const void *table, bool bf16, int64_t n, float *p)
{
    kd_launch_wait();
    kd_launch_next();
    const int64_t from = ids[kd_block()] * n, to = kd_block() * n;

    for (int64_t i = kd_thread(); i < n; i += NORM_THREADS)
        p[to + i] = bf16 ? kd_bf16_f32(((const uint16_t *)table)[from + i])
                         : ((const float *)table)[from + i];
}

KD_KERNEL void KD_BOUNDS(NORM_THREADS, 1)
    situ_all(const float *a, const float *b, float beta, float linear, int64_t count, float *out)
{
    const int64_t i = (int64_t)kd_block() * NORM_THREADS + kd_thread();

    kd_launch_wait();
    kd_launch_next();
    if (i < count)
        out[i] = kd_situ1(a[i], b[i], beta, linear);
}

KD_KERNEL void KD_BOUNDS(NORM_THREADS, 1) round_all(float *x, int64_t count, uint16_t *out)
{
    const int64_t i = (int64_t)kd_block() * NORM_THREADS + kd_thread();

    kd_launch_wait();
    kd_launch_next();
    if (i < count) {
        out[i] = kd_f32_bf16(x[i]);
        x[i] = kd_bf16_f32(out[i]);
    }
}

KD_KERNEL void KD_BOUNDS(NORM_THREADS, 1) find_bad(const float *x, int64_t count, int32_t *bad)
{
    const int64_t i = (int64_t)kd_block() * NORM_THREADS + kd_thread();

    kd_launch_wait();
    kd_launch_next();
    if (i < count && !(fabsf(x[i]) <= 3.402823466e38f))
        *bad = 1;
}

/* DOT16 of 128 values with themselves, a vector for each half of the warp (docs/numerics.md). */
KD_DEV float half_dot16(const float *x)
{
    const int lane = kd_thread() % 16;
    float sum = 0;

#pragma unroll
    for (int i = 0; i < KD_GPU_K3_DIM / 16; i++)
        sum = fmaf(x[16 * i + lane], x[16 * i + lane], sum);
#pragma unroll
    for (int m = 8; m; m >>= 1)
        sum += kd_shuffle_xor(sum, m);
    return sum;
}

/* The last tokens of one channel of a short convolution, and its taps. */
struct conv_channel {
    float w[KD_GPU_K3_TAPS], x[KD_GPU_K3_TAPS];

    KD_DEV void load(const float *taps, const float *state, int64_t channels)
    {
#pragma unroll
        for (int i = 0; i < KD_GPU_K3_TAPS; i++)
            w[i] = taps[i];
#pragma unroll
        for (int i = 0; i < KD_GPU_K3_TAPS - 1; i++)
            x[i + 1] = state[i * channels];
    }
    KD_DEV float sum(float in)
    {
        float all;
#pragma unroll
        for (int i = 0; i < KD_GPU_K3_TAPS - 1; i++)
            x[i] = x[i + 1];
        x[KD_GPU_K3_TAPS - 1] = in;
        all = w[0] * x[0];
#pragma unroll
        for (int i = 1; i < KD_GPU_K3_TAPS; i++)
            all += w[i] * x[i];
        return all;
    }
    KD_DEV float next(float in)
    {
        return kd_silu1(sum(in));
    }
    KD_DEV void store(float *state, int64_t channels) const
    {
#pragma unroll
        for (int i = 0; i < KD_GPU_K3_TAPS - 1; i++)
            state[i * channels] = x[i + 1];
    }
};

struct alignas(16) kda_shared {
    float raw[2][KD_GPU_K3_DIM]; /* q and k after the convolution */
    float q[KD_GPU_K3_DIM], k[KD_GPU_K3_DIM], alpha[KD_GPU_K3_DIM], o[KD_GPU_K3_DIM];
};

/* One token: thread c has column c of the state. The chains are those of kern.h's kda_step. */
KD_DEV float kda_token(float (&S)[KD_GPU_K3_DIM], const kda_shared *s, float v, float beta)
{
    float r = 0, o = 0;

#pragma unroll
    for (int i = 0; i < KD_GPU_K3_DIM; i += 4) {
        const float4 a = *(const float4 *)(s->alpha + i), k = *(const float4 *)(s->k + i);
        S[i] *= a.x;
        S[i + 1] *= a.y;
        S[i + 2] *= a.z;
        S[i + 3] *= a.w;
        r = fmaf(k.x, S[i], r);
        r = fmaf(k.y, S[i + 1], r);
        r = fmaf(k.z, S[i + 2], r);
        r = fmaf(k.w, S[i + 3], r);
    }
    const float d = beta * (v - r);
    kd_sync_warp(); /* so that k is read again: registers have no room for it */
#pragma unroll
    for (int i = 0; i < KD_GPU_K3_DIM; i += 4) {
        const float4 q = *(const float4 *)(s->q + i), k = *(const float4 *)(s->k + i);
        S[i] = fmaf(k.x, d, S[i]);
        S[i + 1] = fmaf(k.y, d, S[i + 1]);
        S[i + 2] = fmaf(k.z, d, S[i + 2]);
        S[i + 3] = fmaf(k.w, d, S[i + 3]);
        o = fmaf(q.x, S[i], o);
        o = fmaf(q.y, S[i + 1], o);
        o = fmaf(q.z, S[i + 2], o);
        o = fmaf(q.w, S[i + 3], o);
    }
    return o;
}

/* The log decay of one channel. */
KD_DEV float kda_log(const kd_gpu_k3_kda &a, float z, float dt, float ea)
{
    const float x = z + dt;
    return a.bounded ? kd_sigmoid1(x * ea) * a.lower_bound
                     : kd_softplus1(x, kd_exp1(x < 0.0f ? x : -x)) * -ea;
}

KD_DEV float kda_alpha(const kd_gpu_k3_kda &a, float z, float dt, float ea)
{
    return kd_exp1(kda_log(a, z, dt, ea));
}

/* Which tokens of a segment a launch takes: all, or those before its whole chunks or after them. */
enum kda_part { KDA_ALL, KDA_LEAD, KDA_TAIL };
enum { CHUNK = 64 };

/* Whole chunks of a segment, and the tokens before the first. */
KD_DEV int64_t chunks_of(const kd_gpu_k3_seg &seg, int64_t *lead)
{
    const int64_t before = (CHUNK - seg.pos % CHUNK) % CHUNK;
    const int64_t n = seg.count > before ? (seg.count - before) / CHUNK : 0;

    *lead = n ? before : seg.count;
    return n;
}

/* Block b: head b % heads of segment b / heads, thread c its channel c. */
template <enum kda_part PART>
KD_KERNEL void KD_BOUNDS(KDA_THREADS, 3) kda_heads(const kd_gpu_k3_batch b, const kd_gpu_k3_kda a)
{
    constexpr int D = KD_GPU_K3_DIM;
    KD_SHARED(memory);
    kda_shared *s = (kda_shared *)memory;
    const int c = kd_thread(), half = c % 32 / 16;
    const int64_t heads = a.heads, h = kd_block() % heads, channels = heads * D, at = h * D + c;
    kd_gpu_k3_seg seg = b.seg[kd_block() / heads];
    float *const state = seg.kda + a.state, *const S = state + h * D * D + c,
                 *const conv = state + heads * D * D + at;
    const int64_t stream = (KD_GPU_K3_TAPS - 1) * channels;
    float column[D];
    conv_channel q, k, v;

    for (int i = c; i < D * D / 32; i += KDA_THREADS)
        kd_prefetch(state + h * D * D + 32 * i);
    kd_launch_wait();
    kd_launch_next();
    if (PART != KDA_ALL) {
        int64_t lead;
        const int64_t chunked = chunks_of(seg, &lead) * CHUNK;
        seg.first += PART == KDA_TAIL ? lead + chunked : 0;
        seg.count = PART == KDA_TAIL ? seg.count - lead - chunked : lead;
        if (seg.count <= 0)
            return;
    }
#pragma unroll
    for (int i = 0; i < D; i++)
        column[i] = S[i * D];
    q.load(a.q_conv + at * KD_GPU_K3_TAPS, conv, channels);
    k.load(a.k_conv + at * KD_GPU_K3_TAPS, conv + stream, channels);
    v.load(a.v_conv + at * KD_GPU_K3_TAPS, conv + 2 * stream, channels);
    const float ea = a.decay[h], dt = a.dt_bias[at], norm = a.o_norm[c],
                times = 1.0f / sqrtf((float)D);
    for (int64_t t = seg.first; t < seg.first + seg.count; t++) {
        const int64_t i = t * channels + at;
        const float gate = kd_sigmoid1(a.gate[i]), beta = kd_sigmoid1(a.beta[t * heads + h]);
        const float qc = q.next(a.q[i]), kc = k.next(a.k[i]), vc = v.next(a.v[i]);
        s->raw[0][c] = qc;
        s->raw[1][c] = kc;
        s->alpha[c] = kda_alpha(a, a.z[i], dt, ea);
        kd_sync_block();
        const float unit = 1.0f / sqrtf(half_dot16(s->raw[half]) + 1e-6f);
        s->q[c] = qc * kd_shuffle(unit, 0) * times;
        s->k[c] = kc * kd_shuffle(unit, 16);
        kd_sync_block();
        const float o = kda_token(column, s, vc, beta);
        s->o[c] = o;
        kd_sync_block();
        const float scale = 1.0f / sqrtf(half_dot16(s->o) / (float)D + a.eps);
        a.y[i] = o * scale * norm * gate;
    }
#pragma unroll
    for (int i = 0; i < D; i++)
        S[i * D] = column[i];
    q.store(conv, channels);
    k.store(conv + stream, channels);
    v.store(conv + 2 * stream, channels);
}

/* Floats in an order of unsigned integers, the largest first; NaN counts as the smallest. */
KD_DEV uint32_t descending(float x)
{
    const uint32_t u = x == x ? kd_f32_bits(x + 0.0f) : 0xff800000u;
    return u & 0x80000000u ? u : ~u & 0x7fffffffu;
}

struct route_shared {
    float score[KD_GPU_K3_EXPERTS];
    uint32_t key[16][32]; /* lists on their way from one warp to another */
    int32_t at[16][32];
    int32_t id[KD_GPU_K3_TOPK];
};
static_assert(KD_GPU_K3_TOPK <= 32 && KD_GPU_K3_EXPERTS <= 1024, "lists and warps of the router");

/* Thread 0: the fewest experts that have `mass` of the weights (kd_k3_route_mass). */
KD_DEV void route_mass(const kd_gpu_k3_route &a, int32_t *ids, float *w)
{
    float all = 0, kept = 0;
    int64_t used = 0;

    for (int64_t i = 0; i < a.used; i++)
        all += w[i];
    for (int64_t i = 1; i < a.used; i++)
        for (int64_t j = i; j > 0 && w[j] > w[j - 1]; j--) {
            const float x = w[j];
            const int32_t id = ids[j];
            w[j] = w[j - 1];
            ids[j] = ids[j - 1];
            w[j - 1] = x;
            ids[j - 1] = id;
        }
    while (used < a.used && (used == 0 || (double)kept < a.mass * (double)all))
        kept += w[used++];
    for (int64_t i = 0; i < a.used; i++) {
        ids[i] = i < used ? ids[i] : -1;
        w[i] = i < used ? w[i] * (all / kept) : 0.0f;
    }
}

/* The chosen ids and their weights; score: of all experts, id: the chosen, in order. */
KD_DEV void route_weights(const kd_gpu_k3_route &a, const route_shared *s, int32_t *ids, float *w)
{
    const int lane = kd_thread();
    float sum = 0;

    for (int64_t i = 0; i < a.used; i++)
        sum += s->score[s->id[i]];
    if (lane < a.topk) {
        const bool there = lane < a.used;
        const float x = there ? s->score[s->id[lane]] : 0.0f;
        ids[lane] = there ? s->id[lane] : -1;
        w[lane] = there ? (a.renormalize ? x / (sum + 1e-20f) : x) * a.scale : 0.0f;
    }
    kd_sync_warp();
    if (a.mass > 0 && lane == 0)
        route_mass(a, ids, w);
}

/* A list of 32 experts in a warp, the best in lane 0: by key, then by id. */
struct route_list {
    uint32_t key;
    int32_t id;

    KD_DEV bool behind(uint32_t other_key, int32_t other_id) const
    {
        return key > other_key || (key == other_key && id > other_id);
    }
    /* The better (or the worse) of this lane's and lane ^ m's. */
    KD_DEV void exchange(int lane, int m, bool better)
    {
        const uint32_t k = (uint32_t)kd_shuffle_int((int32_t)key, lane ^ m);
        const int32_t i = kd_shuffle_int(id, lane ^ m);
        if (behind(k, i) == better) {
            key = k;
            id = i;
        }
    }
    KD_DEV void sort(int lane)
    {
#pragma unroll
        for (int width = 2; width <= 32; width *= 2)
#pragma unroll
            for (int m = width / 2; m; m /= 2)
                exchange(lane, m, ((lane & m) == 0) == ((lane & width) == 0));
    }
    /* The best 32 of this list and of one in shared memory. */
    KD_DEV void merge(const uint32_t *keys, const int32_t *ids, int lane)
    {
        if (behind(keys[31 - lane], ids[31 - lane])) {
            key = keys[31 - lane];
            id = ids[31 - lane];
        }
#pragma unroll
        for (int m = 16; m; m /= 2)
            exchange(lane, m, (lane & m) == 0);
    }
};

/* Block b, a thread for each expert: row b. */
KD_KERNEL void KD_BOUNDS(KD_GPU_K3_EXPERTS, 1) route_rows(const kd_gpu_k3_route a, int warps)
{
    KD_SHARED(memory);
    route_shared *s = (route_shared *)memory;
    const int e = kd_thread(), lane = e % 32, warp = e / 32;
    const int64_t row = kd_block();
    const float bias = e < a.experts ? a.bias[e] : 0.0f;
    route_list list = {0xffffffffu, e}; /* no expert */

    kd_launch_wait();
    kd_launch_next();
    if (e < a.experts) {
        const float x = kd_sigmoid1(a.logits[row * a.experts + e]);
        s->score[e] = x;
        list.key = descending(x + bias);
    }
    list.sort(lane);
    for (int step = 1; step < warps; step *= 2) {
        if (warp % (2 * step) == step) {
            s->key[warp / 2][lane] = list.key;
            s->at[warp / 2][lane] = list.id;
        }
        kd_sync_block();
        if (warp % (2 * step) == 0 && warp + step < warps)
            list.merge(s->key[(warp + step) / 2], s->at[(warp + step) / 2], lane);
    }
    if (warp)
        return;
    s->id[lane] = list.id;
    kd_sync_warp();
    route_weights(a, s, a.ids + row * a.topk, a.w + row * a.topk);
}

} // namespace kd_k3

#endif
