/* The routed experts of a layer for many tokens: pairs of token and expert in the experts' order
 * (*places*), groups of up to 128 places that have one expert, and slabs of groups, one after the
 * other, so that work space does not grow with the tokens. */
#ifndef KD_GPU_PRODUCT_MANY_CUH
#define KD_GPU_PRODUCT_MANY_CUH

#include "gpu/product_experts.cuh"
#include "gpu/product_gemm.cuh"

namespace kd_gemm
{

using kd_experts::entry;
using kd_experts::EXPERTS;
using kd_experts::group;

enum {
    GROUP_ROWS = 128, /* of a group, at most */
    SLABS = 64,
    COLUMNS = 256 /* of a block that sums */
};

/* Made on the device for each call. */
struct many_plan {
    int32_t groups, places;
    int32_t slab[SLABS + 1];  /* its first group; a group is in the slab of its first place */
    int32_t next[EXPERTS];    /* places that are still free */
    int32_t narrow[2][SLABS]; /* items for blocks of NARROW_ROWS, of each half */
};
struct many_lists {
    many_plan *p;
    group *of;             /* [EXPERTS + pairs / GROUP_ROWS] */
    int32_t *pair, *token; /* of a place; pair i is choice i % top of token i / top */
    int32_t *order, *used; /* [tokens][top] places by ascending expert; of a token, how many */
    /* Of each half: [groups][matrices] items, a slab's from its first group on, numbered from
     * there. Those for narrow blocks lie in front, then matrices of one rate side by side: code
     * that a multiprocessor has not run lately takes as long to fetch as a task takes to run. */
    int32_t *item[2];
};
struct many_args {
    many_lists l;
    const int32_t *ids;                 /* [tokens][top] */
    int32_t tokens, top, experts, slab; /* places of a slab */
};

/* One slab of one of the two halves: w1 and w3, whose outputs lie side by side in y, or w2, whose
 * inputs are SiTU of those. */
struct half_args {
    const entry *table;
    many_lists l;
    const float *from; /* [tokens][ldx], or by place of the slab */
    float *y;          /* by place of the slab */
    int64_t ldx, ldy;
    unsigned char *x; /* prepared: [matrices][planes][inputs / 64][rows] */
    float *scale;     /* [matrices][rows] */
    int32_t rows, planes, down, coded, slab, narrow, cols,
        columns; /* inputs; outputs of a matrix */
    float beta, linear;
};

/* EXL3: w1 and w3 rotate their inputs each in its own way. */
KD_DEV int half_inputs(const half_args &a)
{
    return a.coded && !a.down ? 2 : 1;
}
KD_DEV int64_t half_step(const half_args &a)
{
    return (int64_t)a.rows * 128;
}
KD_DEV int64_t half_plane(const half_args &a)
{
    return half_step(a) * 2 * ((a.cols + SIDE - 1) / SIDE);
}

KD_DEV void half_pick(const half_args &a, int index, task *k)
{
    const int outs = (a.columns + SIDE - 1) / SIDE, matrices = a.down ? 1 : 2;
    const int at = a.l.p->slab[a.slab], before = a.narrow ? 0 : a.l.p->narrow[a.down][a.slab];
    const int item = a.l.item[a.down][at * matrices + before + index / outs];
    const int m = item % matrices, of = a.down ? 2 : m;
    const group *first = a.l.of + at, *g = first + item / matrices;
    const int place = g->first - first->first, in = m % half_inputs(a);

    if (a.coded)
        k->w = a.table[g->expert].exl3[of];
    else
        k->plain = a.table[g->expert].plain[of];
    k->x_step = half_step(a);
    k->x_plane = half_plane(a);
    k->x = a.x + in * a.planes * half_plane(a) + (int64_t)place * 128;
    k->scale = a.scale + in * a.rows + place;
    k->svh = a.coded ? k->w.svh : nullptr;
    k->y = a.y + place * a.ldy + m * a.columns;
    k->ldy = a.ldy;
    k->columns = a.columns;
    k->rows = g->rows;
    k->out = index % outs;
    k->first = 0;
    k->last = (a.cols + SIDE - 1) / SIDE;
}

KD_DEV int half_tasks(const half_args &a)
{
    const int narrow = a.l.p->narrow[a.down][a.slab],
              all = (a.l.p->slab[a.slab + 1] - a.l.p->slab[a.slab]) * (a.down ? 1 : 2);

    return (a.narrow ? narrow : all - narrow) * ((a.columns + SIDE - 1) / SIDE);
}

/* A block's tasks: first, first + step, ... Some blocks beside each other share a part of all, so
 * that they meet few rates and what they read at a time is little. */
struct portion {
    int32_t first, last, step;
};
KD_DEV struct portion portion_of(int tasks, int parts)
{
    const int blocks = kd_blocks(), part = kd_block() * parts / blocks;
    const int low = (part * blocks + parts - 1) / parts,
              high = ((part + 1) * blocks + parts - 1) / parts;

    return {(int32_t)((int64_t)tasks * low / blocks) + kd_block() - low,
            (int32_t)((int64_t)tasks * high / blocks), high - low};
}

/* Either matrices side by side or one half of some experts: one kernel, as it holds code for every
 * rate. */
struct tasks_args {
    dense_args dense;
    half_args half;
    int32_t experts;
};
template <class KIND>
KD_KERNEL void KD_BOUNDS(THREADS, KIND::blocks) multiply_tasks(KD_ARGS tasks_args a)
{
    KD_SHARED(memory);

    kd_launch_next();
    kd_launch_wait();
    const struct portion p = a.experts ? portion_of(half_tasks(a.half), (kd_blocks() + 11) / 12)
                                       : portion_of(a.dense.tasks, 1);
#pragma unroll 1
    for (int i = p.first; i < p.last; i += p.step) {
        if (kd_thread() == 0) {
            if (a.experts)
                half_pick(a.half, i, &((head *)memory)->k);
            else
                dense_pick<KIND>(a.dense, i, &((head *)memory)->k);
        }
        kd_sync_block();
        run_task<KIND>(memory);
    }
}

} // namespace kd_gemm
#endif
