/* Around the products of routed experts for many tokens: the order of pairs, their activations, the
 * sum over a token's experts. */
#ifndef KD_GPU_PRODUCT_MANY_PLAN_CUH
#define KD_GPU_PRODUCT_MANY_PLAN_CUH

#include "gpu/product_many.cuh"
#include "gpu/product_prepare.cuh"

namespace kd_gemm
{

KD_DEV int32_t pair_id(const many_args &a, int i)
{
    return a.ids[i] >= 0 && a.ids[i] < a.experts ? a.ids[i] : -1;
}

/* How many each expert has, groups and slabs; one block. */
struct count_shared {
    int32_t count[EXPERTS], places[EXPERTS], groups[EXPERTS];
};
KD_KERNEL void KD_BOUNDS(EXPERTS, 1) count_pairs(KD_ARGS many_args a)
{
    KD_SHARED(memory);
    count_shared *s = (count_shared *)memory;
    const int i = kd_thread(), pairs = a.tokens * a.top;

    kd_launch_next();
    kd_launch_wait();
    s->count[i] = 0;
    kd_sync_block();
#pragma unroll 8
    for (int j = i; j < pairs; j += EXPERTS) {
        const int32_t id = pair_id(a, j);
        if (id >= 0)
            kd_shared_add(s->count + id, 1);
    }
    kd_sync_block();
    const int count = s->count[i], groups = (count + GROUP_ROWS - 1) / GROUP_ROWS;
    s->places[i] = count;
    s->groups[i] = groups;
    kd_sync_block();
    for (int step = 1; step < EXPERTS; step *= 2) {
        const int p = i >= step ? s->places[i - step] : 0, g = i >= step ? s->groups[i - step] : 0;
        kd_sync_block();
        s->places[i] += p;
        s->groups[i] += g;
        kd_sync_block();
    }
    const int first = s->places[i] - count, at = s->groups[i] - groups;
    const int all = s->groups[EXPERTS - 1];
    for (int j = 0; j < groups; j++) {
        const int left = count - j * GROUP_ROWS;
        a.l.of[at + j] = {i, first + j * GROUP_ROWS, left < GROUP_ROWS ? left : (int)GROUP_ROWS};
    }
    a.l.p->next[i] = first;
    if (i == 0) {
        a.l.p->groups = all;
        a.l.p->places = s->places[EXPERTS - 1];
    }
    kd_sync_block();
    for (int j = i; j <= all; j += EXPERTS) {
        const int before = j > 0 ? a.l.of[j - 1].first / a.slab : -1;
        const int mine = j < all ? a.l.of[j].first / a.slab : (int)SLABS;
        for (int k = before + 1; k <= mine; k++)
            a.l.p->slab[k] = j;
    }
}

/* Where two pairs of one expert are is chance; no bits depend on it. */
KD_KERNEL void KD_BOUNDS(COLUMNS, 4) place_pairs(KD_ARGS many_args a)
{
    const int i = kd_block() * COLUMNS + kd_thread(), token = i / a.top;

    kd_launch_next();
    kd_launch_wait();
    if (i >= a.tokens * a.top)
        return;
    const int32_t id = pair_id(a, i);
    int before = 0, used = 0;
    for (int j = token * a.top; j < (token + 1) * a.top; j++) {
        const int32_t other = pair_id(a, j);
        before += other >= 0 && (other < id || (other == id && j < i));
        used += other >= 0;
    }
    if (i % a.top == 0)
        a.l.used[token] = used;
    if (id < 0)
        return;
    const int place = kd_device_add(a.l.p->next + id, 1);
    a.l.pair[place] = i;
    a.l.token[place] = token;
    a.l.order[token * a.top + before] = place;
}

/* The items of a slab and half, which a block each puts in order; where two of one rate are is
 * chance. */
struct order_args {
    const entry *table;
    many_lists l;
    int32_t coded, rows; /* up to so many are for narrow blocks */
};
enum { RATES = 129, KEYS = 512 };
KD_DEV int item_key(const order_args &a, int first, int item, int down)
{
    const group g = a.l.of[first + (down ? item : item / 2)];
    const int rate16 = a.coded ? a.table[g.expert].exl3[down ? 2 : item % 2].rate16 : 0;

    return g.rows <= a.rows && rate16 <= NARROW_RATE ? rate16 : RATES + rate16;
}
KD_KERNEL void KD_BOUNDS(KEYS, 1) order_items(KD_ARGS order_args a)
{
    KD_SHARED(memory);
    int32_t *next = (int32_t *)memory, *count = next + KEYS;
    const int slab = kd_block() / 2, down = kd_block() % 2, i = kd_thread();

    kd_launch_next();
    kd_launch_wait();
    const int first = a.l.p->slab[slab], matrices = down ? 1 : 2,
              items = (a.l.p->slab[slab + 1] - first) * matrices;
    count[i] = 0;
    kd_sync_block();
#pragma unroll 4
    for (int j = i; j < items; j += KEYS)
        kd_shared_add(count + item_key(a, first, j, down), 1);
    kd_sync_block();
    const int mine = count[i];
    for (int step = 1; step < KEYS; step *= 2) {
        const int before = i >= step ? count[i - step] : 0;
        kd_sync_block();
        count[i] += before;
        kd_sync_block();
    }
    next[i] = count[i] - mine;
    if (i == 0)
        a.l.p->narrow[down][slab] = count[RATES - 1];
    kd_sync_block();
#pragma unroll 4
    for (int j = i; j < items; j += KEYS)
        a.l.item[down][first * matrices + kd_shared_add(next + item_key(a, first, j, down), 1)] = j;
}

KD_KERNEL void KD_BOUNDS(THREADS, 4) prepare_experts(KD_ARGS half_args a)
{
    KD_SHARED(memory);

    kd_launch_next();
    kd_launch_wait();
    const int first = a.l.p->slab[a.slab], last = a.l.p->slab[a.slab + 1];
#pragma unroll 1
    for (int i = kd_block(); i < (last - first) * GROUP_ROWS; i += kd_blocks()) {
        const group g = a.l.of[first + i / GROUP_ROWS];
        const int row = i % GROUP_ROWS, place = g.first - a.l.of[first].first + row;
        if (row >= g.rows)
            continue;
        const float *x =
            a.from + (a.down ? (int64_t)place : (int64_t)a.l.token[g.first + row]) * a.ldx;
#pragma unroll 1
        for (int m = 0; m < half_inputs(a); m++) {
            const row_in r = {x,
                              a.coded ? a.table[g.expert].exl3[a.down ? 2 : m].suh : nullptr,
                              a.cols,
                              (a.cols + SIDE - 1) / SIDE,
                              a.planes,
                              a.x + m * a.planes * half_plane(a) + (int64_t)place * 128,
                              half_step(a),
                              half_plane(a),
                              row % 8,
                              a.scale + m * a.rows + place,
                              a.down ? (float *)x + a.cols : nullptr,
                              a.beta,
                              a.linear};
            prepare_row(r, (uint32_t *)memory);
        }
    }
}

/* y[t][c] goes on with the slab's experts: a chain of fma, ascending. */
struct many_sum_args {
    many_lists l;
    const float *x, *weight; /* by place of the slab; [tokens][top] */
    float *y;
    int64_t ldx, ldy;
    int32_t top, cols, slab;
};
KD_KERNEL void KD_BOUNDS(COLUMNS, 4) sum_slab(KD_ARGS many_sum_args a)
{
    const int parts = (a.cols + COLUMNS - 1) / COLUMNS, t = kd_block() / parts,
              c = kd_block() % parts * COLUMNS + kd_thread();
    KD_SHARED(memory);
    float *weight = (float *)memory;
    int32_t *place = (int32_t *)memory + 32;

    kd_launch_next();
    kd_launch_wait();
    const int groups = a.l.p->groups, first = a.l.p->slab[a.slab], last = a.l.p->slab[a.slab + 1];
    const int from = first < groups ? a.l.of[first].first : a.l.p->places,
              to = last < groups ? a.l.of[last].first : a.l.p->places;
    const int used = a.l.used[t];
    if (kd_thread() < used) {
        const int at = a.l.order[t * a.top + kd_thread()];
        place[kd_thread()] = at;
        weight[kd_thread()] = a.weight[a.l.pair[at]];
    }
    kd_sync_block();
    if (c >= a.cols)
        return;
    float sum = a.slab ? a.y[t * a.ldy + c] : 0.0f;
#pragma unroll 8
    for (int j = 0; j < used; j++)
        if (place[j] >= from && place[j] < to)
            sum = fmaf(weight[j], a.x[(place[j] - from) * a.ldx + c], sum);
    a.y[t * a.ldy + c] = sum;
}

} // namespace kd_gemm
#endif
