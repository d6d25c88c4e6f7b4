/* The routed experts of a layer: pairs of token and expert in the experts' order, and products of
 * EXL3 matrices by groups of pairs that have one expert. */
#ifndef KD_GPU_PRODUCT_EXPERTS_CUH
#define KD_GPU_PRODUCT_EXPERTS_CUH

#include "gpu/product_exl3.cuh"
#include "gpu/product_plain.cuh"
#include "num/elem_math.h"

namespace kd_experts
{

enum {
    PAIRS = 1024,  /* of a launch: a thread of the planning block for each */
    EXPERTS = 1024 /* and for each expert */
};

struct entry { /* w1, w3, w2 */
    kd_exl3::matrix exl3[3];
    kd_plain::matrix plain[3];
};

struct group {
    int32_t expert, first, rows; /* places of the order below */
};

/* Made on the device for each launch. Pairs in ascending expert id are *places*; pair i is choice
 * i % top of token i / top. */
struct plan {
    int32_t groups, places;
    group of[PAIRS];
    int32_t pair[PAIRS], token[PAIRS]; /* of a place */
    int32_t order[PAIRS];              /* [token][top] places by ascending expert */
    int32_t used[PAIRS];               /* [token] of those */
};

/* One of the two halves: w1 and w3 with SiTU, or w2. */
struct half_args {
    const entry *table;
    const plan *p;
    const float *x; /* by token, or by place */
    float *y;       /* by place */
    int64_t ldx, ldy;
    float *sums;      /* EXL3: [places][matrices][chunks][outs * 128] */
    int32_t *counter; /* EXL3: [groups][outs] */
    int32_t down, ins, outs, ranges;
    float beta, linear;
};

KD_DEV int half_matrices(const half_args &a)
{
    return a.down ? 1 : 2;
}

/* The group of an EXL3 task, and what of it the task is. */
KD_DEV group half_pick(const half_args &a, int index, kd_exl3::task *k, int *at)
{
    using namespace kd_exl3;
    const struct cut c = cut_of(a.ins);
    const int range = index / c.chunks % a.ranges, which = index / c.chunks / a.ranges,
              m = which % half_matrices(a), units = a.outs * UNITS;

    *at = which / half_matrices(a);
    const group g = a.p->of[*at];
    float *sums = a.sums + (int64_t)g.first * half_matrices(a) * c.chunks * a.outs * SIDE;
    *k = {a.table[g.expert].exl3[a.down ? 2 : m],
          a.down ? a.x + g.first * a.ldx : a.x,
          a.ldx,
          a.down ? nullptr : a.p->token + g.first,
          g.rows,
          index % c.chunks,
          (int)((int64_t)range * units / a.ranges),
          (int)((int64_t)(range + 1) * units / a.ranges),
          sums + (int64_t)m * c.chunks * g.rows * a.outs * SIDE,
          a.counter + *at * a.outs};
    return g;
}

template <class MODE> KD_DEV void half_task(const half_args &a, int index, unsigned char *memory)
{
    using namespace kd_exl3;
    shared_head *head = (shared_head *)memory;
    const struct cut c = cut_of(a.ins);
    const int lane = kd_thread() % 32;
    task k;
    int at;

    if (kd_thread() == 0)
        half_pick(a, index, &head->k, &at);
    kd_sync_block();
    multiply<MODE>(memory);
    deliver<MODE>(memory, c.chunks * half_matrices(a));
    const group g = half_pick(a, index, &k, &at);
    const int64_t row = (int64_t)a.outs * SIDE, matrix = c.chunks * g.rows * row;
    const float *sums = a.sums + (int64_t)g.first * half_matrices(a) * c.chunks * row;
    const entry *e = a.table + g.expert;
    for (int i = kd_thread() / 32; i < head->wholes * g.rows; i += WARPS) {
        const int n = head->whole[i / g.rows], t = i % g.rows, col = SIDE * n + 4 * lane;
        float v[4], w[4], *y = a.y + (g.first + t) * a.ldy + col;

        finish(sums + t * row + SIDE * n, g.rows * row, c.chunks,
               e->exl3[a.down ? 2 : 0].svh + SIDE * n, lane, v);
        if (!a.down)
            finish(sums + matrix + t * row + SIDE * n, g.rows * row, c.chunks,
                   e->exl3[1].svh + SIDE * n, lane, w);
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (col + j < e->exl3[a.down ? 2 : 0].rows)
                y[j] = a.down ? v[j] : kd_situ1(v[j], w[j], a.beta, a.linear);
    }
}

template <class MODE> KD_KERNEL void KD_BOUNDS(256, 2) multiply_experts(KD_ARGS half_args a)
{
    KD_SHARED(memory);

    kd_launch_next();
    kd_launch_wait();
    const int tasks = a.p->groups * half_matrices(a) * kd_exl3::cut_of(a.ins).chunks * a.ranges;
    for (int i = kd_block(); i < tasks; i += kd_blocks()) {
        half_task<MODE>(a, i, memory);
        kd_sync_block();
    }
}

} // namespace kd_experts
#endif
