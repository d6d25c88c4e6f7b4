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
    int32_t token[PAIRS];                /* of a place */
    int32_t order[PAIRS], choice[PAIRS]; /* [token][top] places by ascending expert, their pairs */
    int32_t used[PAIRS];                 /* [token] of those */
};

/* One of the two halves: w1 and w3 with SiTU, or w2. */
struct half_args {
    const entry *table;
    const plan *p;
    const int32_t *ids; /* EXL3, one token: its `top` ids are the groups and places; or NULL */
    const float *x;     /* by token, or by place */
    float *y;           /* by place */
    int64_t ldx, ldy;
    float *sums;      /* EXL3: [places][matrices][chunks][outs * 128] */
    int32_t *counter; /* EXL3: [places][outs] */
    int32_t down, ins, outs;
    kd_exl3::cut cut; /* EXL3: of ins */
    int32_t room;     /* EXL3: units of one row that a task has sums for */
    int32_t top, experts;
    float beta, linear;
};

KD_DEV int half_matrices(const half_args &a)
{
    return a.down ? 1 : 2;
}
KD_DEV int half_groups(const half_args &a)
{
    return a.ids ? a.top : a.p->groups;
}
/* No rows: no expert. */
KD_DEV group half_group(const half_args &a, int at)
{
    if (!a.ids)
        return a.p->of[at];
    const int id = a.ids[at];
    return {id, at, id >= 0 && id < a.experts};
}

/* What is left to a block, [at, end). */
struct share {
    int32_t at, end;
};

/* EXL3: units of all *cells* (group, matrix, chunk of inputs), one cell after the other. */
KD_DEV share half_share(const half_args &a)
{
    enum { TASK = 5 }; /* units that are multiplied while a task begins and ends */
    const int units = a.outs * kd_codes::UNITS, blocks = kd_blocks(), b = kd_block(),
              cells = half_groups(a) * half_matrices(a) * a.cut.chunks;
    const int ranges = cells ? blocks / cells : 0;
    const int64_t all = (int64_t)cells * units;

    /* Equal parts of each cell, a block's share is one, unless even shares, which begin and end
     * anywhere and so may be of two tasks, are that much smaller. */
    if (ranges && (units + ranges - 1) / ranges <= all / blocks + TASK) {
        const int cell = b / ranges, range = b - cell * ranges;
        const int at = cell * units;
        return cell < cells ? share{at + units * range / ranges, at + units * (range + 1) / ranges}
                            : share{0, 0};
    }
    return {(int32_t)(all * b / blocks), (int32_t)(all * (b + 1) / blocks)};
}

/* An EXL3 task, the first of a share: units of one cell whose sums there is room for. It has no
 * rows if there is no expert. */
KD_DEV void half_pick(const half_args &a, const share &s, kd_exl3::shared_head *to)
{
    using namespace kd_exl3;
    const int units = a.outs * UNITS, chunks = a.cut.chunks, cell = s.at / units,
              which = cell / chunks, m = a.down ? 0 : which % 2, at = a.down ? which : which / 2,
              first = s.at - cell * units;
    const group g = half_group(a, at);
    const int most = g.rows ? a.room / g.rows : units,
              left = units - first < s.end - s.at ? units - first : s.end - s.at,
              parts = (left + most - 1) / most;
    float *sums = a.sums + (int64_t)g.first * half_matrices(a) * chunks * a.outs * SIDE;

    to->group = at;
    to->k = {g.rows ? a.table[g.expert].exl3[a.down ? 2 : m] : matrix{},
             a.down ? a.x + g.first * a.ldx : a.x,
             a.ldx,
             a.down || a.ids ? nullptr : a.p->token + g.first,
             g.rows,
             cell - which * chunks,
             first,
             first + (left + parts - 1) / parts,
             sums + (int64_t)m * chunks * g.rows * a.outs * SIDE,
             a.counter + g.first * a.outs};
}

/* A warp's items that are whole. */
KD_DEV void half_finish(const half_args &a, const kd_exl3::shared_head *head, uint32_t wholes)
{
    using namespace kd_exl3;
    const int chunks = a.cut.chunks, lane = kd_thread() % 32;
    const group g = half_group(a, head->group);
    const int64_t row = (int64_t)a.outs * SIDE, matrix = chunks * g.rows * row;
    const float *sums = a.sums + (int64_t)g.first * half_matrices(a) * chunks * row;
    const entry *e = a.table + g.expert;

    while (wholes) {
        const struct item i = next_item(head->k, &wholes);
        const int col = SIDE * i.n + 4 * lane;
        const float *from = sums + i.t * row + SIDE * i.n;
        const uint2 svh = output_scales(e->exl3[a.down ? 2 : 0].svh + SIDE * i.n, lane),
                    other = output_scales(e->exl3[a.down ? 2 : 1].svh + SIDE * i.n, lane);
        float v[2][4], *y = a.y + (g.first + i.t) * a.ldy + col;

        if (a.down) {
            finish<1>(from, g.rows * row, 0, chunks, lane, v);
            scale_outputs(svh, v[0]);
        } else {
            finish<2>(from, g.rows * row, matrix, chunks, lane, v);
            scale_outputs(svh, v[0]);
            scale_outputs(other, v[1]);
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (col + j < head->k.w.rows)
                y[j] = a.down ? v[0][j] : kd_situ1(v[0][j], v[1][j], a.beta, a.linear);
    }
}

/* Either matrices side by side or one half of some experts: one kernel, as it holds code for every
 * rate. */
struct tasks_args {
    int32_t experts;
    kd_exl3::dense_args dense;
    half_args half;
};

template <class MODE> KD_KERNEL void KD_BOUNDS(256, 2) multiply_tasks(KD_ARGS tasks_args a)
{
    using namespace kd_exl3;
    KD_SHARED(memory);
    shared_head *head = (shared_head *)memory;
    share s = {kd_block(), a.dense.tasks};

    /* The plan is what the launch before w1's and w3's writes; no later one may begin, and read it,
     * until it is there. */
    if (a.experts && !a.half.down)
        kd_launch_wait();
    kd_launch_next();
    if (a.experts)
        s = half_share(a.half);
#pragma unroll 1
    while (s.at < s.end) {
        if (kd_thread() == 0) {
            if (a.experts)
                half_pick(a.half, s, head);
            else
                dense_pick(a.dense, s.at, head);
        }
        kd_sync_block();
        s.at += a.experts ? head->k.last - head->k.first : kd_blocks();
        if (head->k.rows) {
            multiply<MODE>(memory);
            const uint32_t wholes = deliver<MODE>(
                memory, head->k.w.cut.chunks * (a.experts ? half_matrices(a.half) : 1));
            if (a.experts)
                half_finish(a.half, head, wholes);
            else
                dense_finish(head, wholes);
        }
        kd_sync_block();
    }
    kd_launch_wait();
}

} // namespace kd_experts
#endif
