/* The product of class `fast` on Hopper: a block stays on its multiprocessor and takes
 * one item of the product after the other, a tile of its sums over some inputs. A thread has boxes
 * of both factors brought while two warpgroups multiply those that are there, each half of the
 * tile's rows; what a warpgroup does with its sums goes beside the other one's products. */
#ifndef KD_GPU_CALIB_WIDE_CUH
#define KD_GPU_CALIB_WIDE_CUH

#include "gpu/calib_out.cuh"
#include "gpu/wgmma_lanes.cuh"

namespace kd_fast
{

enum {
    WIDE_THREADS = 384, /* the first four warps bring */
    WIDE_TEAM = 128,
    WIDE_M = 128, /* rows of a, of b, and inputs, of a stage */
    WIDE_N = 256,
    WIDE_DEEP = KD_BOX_COLS,
    WIDE_STAGES = 4,
    WIDE_A_BYTES = WIDE_M * WIDE_DEEP * 2,
    WIDE_STAGE = WIDE_A_BYTES + WIDE_N * WIDE_DEEP * 2,
    WIDE_GATES = 256, /* bytes, after the stages */
    WIDE_SHARED = KD_BOX_ALIGN + WIDE_STAGES * WIDE_STAGE + WIDE_GATES,
    WIDE_BAND = 16, /* tiles of a that take turns with one tile of b */
    WIDE_FEW = 40,  /* registers of who brings, of who multiplies */
    WIDE_MANY = 232
};

struct wide_job {
    kd_box_map a[3], b[3]; /* of the planes: WIDE_M and WIDE_N rows a box */
    multiply_job j;
    int64_t items;
    /* What is zero at first: items that are taken; then, SUMS of more than one segment, how many
     * segments each half of a tile has. NULL: items go round by block, and there is one segment. */
    int32_t *count;
};

/* An item: the sums of a tile over steps of WIDE_DEEP inputs, `steps` of each plane. */
struct wide_item {
    int32_t m0, n0, step, steps;
    int32_t tile, segment;
};

KD_HD static inline int32_t wide_down(const multiply_job &j)
{
    return (int32_t)((j.m + WIDE_M - 1) / WIDE_M);
}
KD_HD static inline int32_t wide_across(const multiply_job &j)
{
    return (int32_t)((j.n + WIDE_N - 1) / WIDE_N);
}
KD_HD static inline int32_t wide_segments(const multiply_job &j)
{
    return (int32_t)((j.k + SEGMENT - 1) / SEGMENT);
}
/* Tiles of a in column c of those on and above the diagonal. */
KD_HD static inline int32_t wide_high(int32_t c, int32_t down)
{
    const int32_t high = (c + 1) * (WIDE_N / WIDE_M);
    return high < down ? high : down;
}
template <enum kind KIND> KD_HD static inline int32_t wide_tiles(const multiply_job &j)
{
    const int32_t down = wide_down(j), across = wide_across(j);
    int32_t tiles = 0;

    for (int32_t c = 0; KIND == SUMS && c < across; c++)
        tiles += wide_high(c, down);
    return KIND == SUMS ? tiles : down * across;
}

#ifdef KD_WGMMA

template <enum kind KIND> KD_DEV wide_item wide_find(const multiply_job &j, int32_t item)
{
    const int32_t down = wide_down(j), across = wide_across(j), deep = WIDE_DEEP;
    const int32_t all = (int32_t)((j.k + deep - 1) / deep);
    wide_item w = {0, 0, 0, all, item, 0};

    if (KIND == SUMS) {
        const int32_t tiles = wide_tiles<SUMS>(j), most = SEGMENT / deep;
        int32_t c = 0;
        w.segment = item / tiles;
        w.tile = item % tiles;
        w.step = w.segment * most;
        w.steps = all - w.step < most ? all - w.step : most;
        int32_t r = w.tile;
        for (; r >= wide_high(c, down); c++)
            r -= wide_high(c, down);
        w.m0 = r * WIDE_M;
        w.n0 = c * WIDE_N;
        return w;
    }
    const int32_t band = item / (WIDE_BAND * across), at = item % (WIDE_BAND * across);
    const int32_t left = down - band * WIDE_BAND, high = left < WIDE_BAND ? left : WIDE_BAND;
    w.m0 = (band * WIDE_BAND + at % high) * WIDE_M;
    w.n0 = at / high * WIDE_N;
    return w;
}

/* What the warps of a block share. */
struct wide_shared {
    unsigned char *stage;     /* [WIDE_STAGES][WIDE_STAGE]: a, then b */
    uint64_t *full, *empty;   /* of each stage */
    volatile int32_t *item;   /* of each stage: whose first it is, or -1: there is no more */
    int32_t at = 0, turn = 0; /* this thread's stage; which use of it, modulo 2 */

    KD_DEV wide_shared(unsigned char *shared)
    {
        stage = shared + (KD_BOX_ALIGN - (uintptr_t)shared % KD_BOX_ALIGN) % KD_BOX_ALIGN;
        full = (uint64_t *)(stage + WIDE_STAGES * WIDE_STAGE);
        empty = full + WIDE_STAGES;
        item = (int32_t *)(empty + WIDE_STAGES);
    }
    KD_DEV unsigned char *here() const
    {
        return stage + at * WIDE_STAGE;
    }
    KD_DEV void next()
    {
        if (++at == WIDE_STAGES) {
            at = 0;
            turn ^= 1;
        }
    }
};

/* One thread: the stages of all items that this block takes. */
template <enum kind KIND> KD_DEV void wide_bring(const wide_job &w, wide_shared s)
{
    const int32_t items = (int32_t)w.items;
    int32_t item = w.count ? kd_device_add(w.count, 1) : kd_block();

    while (item < items) {
        const int32_t next = w.count ? kd_device_add(w.count, 1) : item + kd_blocks();
        const wide_item i = wide_find<KIND>(w.j, item);
        for (int32_t plane = 0; plane < w.j.planes; plane++)
            for (int32_t step = 0; step < i.steps; step++, s.next()) {
                const int32_t col = (i.step + step) * WIDE_DEEP;
                kd_gate_wait(&s.empty[s.at], (uint32_t)s.turn ^ 1u);
                s.item[s.at] = item;
                kd_gate_expect(&s.full[s.at], WIDE_STAGE);
                kd_load_box(s.here(), &w.a[plane], col, i.m0, &s.full[s.at]);
                kd_load_box(s.here() + WIDE_A_BYTES, &w.b[plane], col, i.n0, &s.full[s.at]);
            }
        item = next;
    }
    kd_gate_wait(&s.empty[s.at], (uint32_t)s.turn ^ 1u);
    s.item[s.at] = -1;
    kd_gate_arrive(&s.full[s.at]);
}

/* One of the two warpgroups; d: its 64 rows of a tile. */
template <enum kind KIND> struct wide_team {
    float d[WIDE_N / 8][4];
    int32_t team, thread;

    KD_DEV void step(const unsigned char *stage, bool first)
    {
        const uint64_t a = kd_factor(stage + team * (WIDE_A_BYTES / 2));
        const uint64_t b = kd_factor(stage + WIDE_A_BYTES);

        kd_product_begin();
#pragma unroll
        for (int k = 0; k < WIDE_DEEP / 16; k++)
            kd_product_bf16(d, kd_factor_at(a, 16 * k), kd_factor_at(b, 16 * k), k || !first);
        kd_product_group();
    }
    /* A stage is free when the products after those with it have begun. */
    KD_DEV void multiply(wide_shared *s, int32_t steps)
    {
        int32_t before = 0;

#pragma unroll 1
        for (int32_t i = 0; i < steps; i++) {
            kd_gate_wait(&s->full[s->at], (uint32_t)s->turn);
            step(s->here(), !i);
            if (i) {
                kd_product_wait<1>();
                leave(s, before);
            }
            before = s->at;
            s->next();
        }
        kd_product_wait<0>();
        kd_product_done(d);
        leave(s, before);
    }
    KD_DEV void leave(const wide_shared *s, int32_t stage)
    {
        if (thread % 32 == 0)
            kd_gate_arrive(&s->empty[stage]);
    }
    KD_DEV void store(const wide_job &w, const wide_item &i)
    {
        const int lane = thread % 32;
        const int64_t r = i.m0 + team * (WIDE_M / 2) + thread / 32 * 16 + lane / 4;
        bool bad = false;

#pragma unroll
        for (int q = 0; q < WIDE_N / 8; q += RUN)
            out<KIND>::run(w.j, r, i.n0 + 8 * q + 2 * (lane % 4), &d[q], &bad);
        if (bad)
            *w.j.bad = 1;
    }
    /* A tile's segments are added in their order. */
    KD_DEV void store_in_turn(const wide_job &w, const wide_item &i)
    {
        int32_t *turn = w.count + 1 + 2 * i.tile + team;

        if (thread == 0)
            kd_turn_wait(turn, i.segment);
        kd_sync_team<WIDE_TEAM>(team);
        store(w, i);
        kd_sync_team<WIDE_TEAM>(team);
        if (thread == 0)
            kd_turn_end(turn, i.segment + 1);
    }
    KD_DEV void run(const wide_job &w, wide_shared s)
    {
        const bool turns = KIND == SUMS && wide_segments(w.j) > 1;

        for (;;) {
            kd_gate_wait(&s.full[s.at], (uint32_t)s.turn);
            const int32_t item = s.item[s.at];
            if (item < 0)
                return;
            const wide_item i = wide_find<KIND>(w.j, item);
            multiply(&s, i.steps * w.j.planes);
            if (turns)
                store_in_turn(w, i);
            else
                store(w, i);
        }
    }
};

template <enum kind KIND> KD_DEV void wide_run(const wide_job &w, unsigned char *shared)
{
    const int warp = kd_thread() / 32, group = warp / 4;
    const wide_shared s(shared);

    if (kd_thread() == 0) {
        for (int i = 0; i < WIDE_STAGES; i++) {
            kd_gate_init(&s.full[i], 1);
            kd_gate_init(&s.empty[i], 2 * WIDE_TEAM / 32);
        }
        kd_gates_ready();
    }
    kd_sync_block();
    if (group == 0) {
        kd_fewer_registers<WIDE_FEW>();
        if (kd_thread() == 0)
            wide_bring<KIND>(w, s);
    } else {
        wide_team<KIND> t;
        kd_more_registers<WIDE_MANY>();
        t.team = group - 1;
        t.thread = kd_thread() % WIDE_TEAM;
        t.run(w, s);
    }
}

#endif

template <enum kind KIND>
KD_KERNEL void KD_BOUNDS(WIDE_THREADS, 1) multiply_wide(KD_ARGS wide_job w)
{
#ifdef KD_WGMMA
    KD_SHARED(shared);
    wide_run<KIND>(w, shared);
#endif
}

} // namespace kd_fast
#endif
