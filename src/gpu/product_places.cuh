/* Around the products of routed experts: the order of pairs, the products of MXFP4 and blocks, the
 * sum over a token's experts. */
#ifndef KD_GPU_PRODUCT_PLACES_CUH
#define KD_GPU_PRODUCT_PLACES_CUH

#include "gpu/norm_row.cuh"
#include "gpu/product_experts.cuh"

namespace kd_experts
{

enum { COLUMNS = 256 }; /* of a block */

struct plan_args {
    const int32_t *ids; /* [tokens][top] */
    plan *to;
    int32_t tokens, top, experts, rows; /* of a group, at most */
};
struct plan_shared {
    int32_t count[EXPERTS], sum[EXPERTS];
};

/* Where two pairs of one expert are is chance; no bits depend on it. */
KD_KERNEL void KD_BOUNDS(PAIRS, 1) plan_pairs(KD_ARGS plan_args a)
{
    KD_SHARED(memory);
    plan_shared *s = (plan_shared *)memory;
    const int i = kd_thread(), pairs = a.tokens * a.top, token = i / a.top;

    kd_launch_next();
    kd_launch_wait();
    const int id = i < pairs && a.ids[i] < a.experts ? a.ids[i] : -1;
    s->count[i] = 0;
    kd_sync_block();
    const int rank = id >= 0 ? kd_shared_add(s->count + id, 1) : 0;
    kd_sync_block();
    /* Pairs and groups of the experts before, both in one sum. */
    const int count = s->count[i], groups = (count + a.rows - 1) / a.rows;
    s->sum[i] = count | groups << 16;
    kd_sync_block();
    for (int step = 1; step < EXPERTS; step *= 2) {
        const int more = i >= step ? s->sum[i - step] : 0;
        kd_sync_block();
        s->sum[i] += more;
        kd_sync_block();
    }
    const int first = (s->sum[i] & 0xffff) - count, at = (s->sum[i] >> 16) - groups;
    for (int j = 0; j < groups; j++)
        a.to->of[at + j] = {i, first + j * a.rows,
                            count - j * a.rows < a.rows ? count - j * a.rows : a.rows};
    if (i == EXPERTS - 1) {
        a.to->groups = at + groups;
        a.to->places = first + count;
    }
    s->count[i] = first;
    kd_sync_block();
    if (i >= pairs)
        return;
    int before = 0, used = 0;
    for (int j = token * a.top; j < (token + 1) * a.top; j++) {
        const int other = a.ids[j] < a.experts ? a.ids[j] : -1;
        before += other >= 0 && (other < id || (other == id && j < i));
        used += other >= 0;
    }
    if (i % a.top == 0)
        a.to->used[token] = used;
    if (id >= 0) {
        const int place = s->count[id] + rank;
        a.to->token[place] = token;
        a.to->order[token * a.top + before] = place;
        a.to->choice[token * a.top + before] = i;
    }
}

/* The same by one warp, for as many pairs as it has lanes: a token's experts, mostly. */
KD_KERNEL void KD_BOUNDS(32, 1) plan_few(KD_ARGS plan_args a)
{
    const int i = kd_thread(), pairs = a.tokens * a.top, token = i / a.top;
    int place = 0, rank = 0, count = 0, before = 0, used = 0, places = 0, at = 0, groups = 0;

    kd_launch_next();
    kd_launch_wait();
    const int id = i < pairs && a.ids[i] < a.experts ? a.ids[i] : -1;
#pragma unroll
    for (int j = 0; j < 32; j++) {
        const int other = kd_shuffle_int(id, j);
        const bool there = other >= 0, first = other < id || (other == id && j < i),
                   mine = there && j >= token * a.top && j < (token + 1) * a.top;
        places += there;
        place += there && first;
        count += other == id;
        rank += other == id && first;
        used += mine;
        before += mine && first;
    }
    const bool leads = id >= 0 && rank % a.rows == 0;
#pragma unroll
    for (int j = 0; j < 32; j++) {
        const int other = kd_shuffle_int(leads ? place : 32, j);
        groups += other < 32;
        at += other < place;
    }
    if (leads)
        a.to->of[at] = {id, place, count - rank < a.rows ? count - rank : a.rows};
    if (i == 0) {
        a.to->groups = groups;
        a.to->places = places;
    }
    if (i < pairs && i % a.top == 0)
        a.to->used[token] = used;
    if (id >= 0) {
        a.to->token[place] = token;
        a.to->order[token * a.top + before] = place;
        a.to->choice[token * a.top + before] = i;
    }
}

/* MXFP4 and blocks: w1's and w3's products side by side in y, SiTU comes after; or w2's. ins and
 * outs are inputs and outputs here. */
template <kd_plain::type TYPE, int TOKENS>
KD_KERNEL void KD_BOUNDS((kd_plain::shape<TYPE, TOKENS, kd_plain::expert_rows<TYPE>>::threads), 1)
    multiply_experts_plain(KD_ARGS half_args a)
{
    using namespace kd_plain;
    constexpr int each = expert_rows<TYPE>, rows = shape<TYPE, TOKENS, each>::rows;
    KD_SHARED(memory);

    kd_launch_next();
    kd_launch_wait();
    const int parts = (a.outs + rows - 1) / rows, tasks = a.p->groups * half_matrices(a) * parts;
    for (int i = kd_block(); i < tasks; i += kd_blocks()) {
        const int m = i / parts % half_matrices(a);
        const group g = a.p->of[i / parts / half_matrices(a)];
        const kd_plain::task k = {a.table[g.expert].plain[a.down ? 2 : m],
                                  a.down ? a.x + g.first * a.ldx : a.x,
                                  a.y + g.first * a.ldy + m * a.outs,
                                  a.ldx,
                                  a.ldy,
                                  a.down ? nullptr : a.p->token + g.first,
                                  nullptr,
                                  g.rows,
                                  i % parts * rows};
        kd_plain::multiply<TYPE, TOKENS, each>(k, memory);
    }
}

/* y[place][c] = SiTU of x[place][c] and x[place][inner + c]. */
KD_KERNEL void KD_BOUNDS(COLUMNS, 1)
    situ_places(const plan *p, const float *x, int64_t ldx, float *y, int64_t ldy, int32_t inner,
                float beta, float linear)
{
    const int parts = (inner + COLUMNS - 1) / COLUMNS;

    kd_launch_next();
    kd_launch_wait();
    for (int i = kd_block(); i < p->places * parts; i += kd_blocks()) {
        const int c = i % parts * COLUMNS + kd_thread();
        const float *from = x + i / parts * ldx + c;
        if (c < inner)
            y[i / parts * ldy + c] = kd_situ1(from[0], from[inner], beta, linear);
    }
}

/* y[t][c] = fma chain over the token's experts, ascending, of weight and x[place][c]. */
struct sum_args {
    const plan *p;
    const int32_t *ids; /* as half_args has it */
    const float *x, *weight;
    float *y;
    int64_t ldx, ldy;
    int32_t top, experts, cols;
    const float *norm; /* sum_norm */
    float eps;
};
struct sum_shared {
    float weight[32];
    int32_t place[32], used;
    float part[kd_k3::NORM_THREADS / 32];
};
/* A token's places in order, with their weights. Ends with a barrier. */
KD_DEV void sum_places(const sum_args &a, int t, sum_shared *s)
{
    const int j = kd_thread();

    if (!a.ids && j == 0)
        s->used = a.p->used[t];
    if (!a.ids && j < 32 && j < a.p->used[t]) {
        s->place[j] = a.p->order[t * a.top + j];
        s->weight[j] = a.weight[a.p->choice[t * a.top + j]];
    }
    if (a.ids && j < 32) {
        const int id = j < a.top && a.ids[j] < a.experts ? a.ids[j] : -1;
        int before = 0, used = 0;
#pragma unroll
        for (int i = 0; i < 32; i++) {
            const int other = kd_shuffle_int(id, i);
            used += other >= 0;
            before += other >= 0 && (other < id || (other == id && i < j));
        }
        if (j == 0)
            s->used = used;
        if (id >= 0) {
            s->place[before] = j;
            s->weight[before] = a.weight[j];
        }
    }
    kd_sync_block();
}

KD_KERNEL void KD_BOUNDS(COLUMNS, 1) sum_experts(KD_ARGS sum_args a)
{
    const int parts = (a.cols + COLUMNS - 1) / COLUMNS, t = kd_block() / parts,
              c = kd_block() % parts * COLUMNS + kd_thread();
    KD_SHARED(memory);
    sum_shared *s = (sum_shared *)memory;
    float sum = 0.0f;

    kd_launch_next();
    kd_launch_wait();
    sum_places(a, t, s);
    if (c >= a.cols)
        return;
#pragma unroll 8
    for (int j = 0; j < s->used; j++)
        sum = fmaf(s->weight[j], a.x[s->place[j] * a.ldx + c], sum);
    a.y[t * a.ldy + c] = sum;
}

/* Block t: that row, and RMSNorm of it; cols: a multiple of 4. */
KD_KERNEL void KD_BOUNDS(kd_k3::NORM_THREADS, 1) sum_norm(KD_ARGS sum_args a)
{
    using namespace kd_k3;
    KD_SHARED(memory);
    sum_shared *s = (sum_shared *)memory;
    norm_row r;

    kd_launch_next();
    kd_launch_wait();
    sum_places(a, kd_block(), s);
#pragma unroll
    for (int i = 0; i < NORM_EACH; i++) {
        const int at = 4 * (kd_thread() + i * NORM_THREADS);
        float4 sum = make_float4(0, 0, 0, 0);
        if (at < a.cols)
#pragma unroll 16
            for (int j = 0; j < s->used; j++) {
                const float4 x = *(const float4 *)(a.x + s->place[j] * a.ldx + at);
                sum.x = fmaf(s->weight[j], x.x, sum.x);
                sum.y = fmaf(s->weight[j], x.y, sum.y);
                sum.z = fmaf(s->weight[j], x.z, sum.z);
                sum.w = fmaf(s->weight[j], x.w, sum.w);
            }
        r.v[i] = sum;
    }
    r.scale(a.norm, a.eps, a.cols, s->part);
    r.store(a.y + kd_block() * a.ldy, a.cols);
}

} // namespace kd_experts
#endif
