/* The trellis search on a device: the states of kern/ref/trellis_ref.c, bit for bit.
 *
 * Up to 4 bits a position, costs are half floats 1024 + cost, differences half floats of D / 8, so
 * that one fused multiply-add gives the integer 1024 + cost + round(D^2 / 64) exactly
 * (num/trellis_step.h); above, differences are integers, costs are stored alike. Over
 * the cap the numbers grow on, inexact and at last infinite, until the next position at which the
 * least cost is subtracted; there they become infinite, which they stay.
 *
 * Threads. Up to 4 bits, all 65,536 values stay in the registers of 512 threads: state n * 4096 + 8
 * * t + q is q-th of row n of thread t, whatever the rate, since a rate only says which rows
 * compete. A position's costs lie in shared memory by edge, two buffers, one barrier a position.
 *
 * No branches are recorded. Every `segment` positions the costs are kept in device memory, and four
 * more warps, one for each scheduler, walk back through a finished pass while the sixteen run the
 * next one: within a segment they evaluate the few states that lead to the known end. Two groups of
 * tiles take turns, so that the walk is hidden; the tiles of a group share each barrier.
 *
 * A block that has searched its tiles searches those whose costs passed the cap again on coarser
 * grids, as the CPU does. */
#ifndef KD_GPU_TRELLIS_SEARCH_CUH
#define KD_GPU_TRELLIS_SEARCH_CUH

#include "gpu/lanes.cuh"
#include "num/exl3_ring.h"

enum {
    KD_GPU_WORKERS = 512, /* threads that hold the table */
    KD_GPU_WALKERS = 128,
    KD_GPU_ROWS = 16,     /* of the table, 8 states a thread each */
    KD_GPU_FREE_BITS = 10 /* a segment's states that lead to one end: at most 2^10 */
};

struct kd_gpu_search_args {
    const float *target; /* [tiles][256] in ring order */
    uint16_t *states;    /* [tiles][256] */
    uint8_t *good;       /* [tiles]; 0: the costs passed their cap even on the coarsest grid */
    uint16_t *kept;      /* kd_gpu_search_kept() halves for each block and tile */
    uint32_t *again;     /* [tiles], tiles to be searched again */
    int64_t tiles;       /* less than 2^32 */
    struct kd_rate rate;
    const int16_t *value; /* [KD_SEARCH_LEVELS][65536] on the grids; rates over 4 bits only */
    enum kd_codebook codebook;
    int seam;    /* positions on either side of the seam in the first pass, a multiple of 8 */
    int segment; /* positions */
};

/* Most positions of a segment, so that FREE_BITS suffice wherever it lies. */
static inline int kd_gpu_search_segment(struct kd_rate r)
{
    for (int n = 10; n > 1; n--) {
        int most = 0;
        for (int first = 0; first < 256; first += n) {
            int bits = 0;
            for (int p = first; p < first + n; p++)
                bits += (int)kd_rate_bits_at(r, (unsigned)p + 1);
            most = bits > most ? bits : most;
        }
        if (most <= KD_GPU_FREE_BITS)
            return n;
    }
    return 1;
}

/* Halves of device memory a block keeps for one pass of one tile. */
KD_HD static inline int64_t kd_gpu_search_pass(struct kd_rate r, int segment)
{
    return (int64_t)((255 + segment) / segment) * (65536 >> r.base);
}
KD_HD static inline int64_t kd_gpu_search_kept(struct kd_rate r, int segment)
{
    return 2 * kd_gpu_search_pass(r, segment);
}

namespace kd_trellis
{

constexpr uint32_t ZERO = 0x64006400u;            /* two costs of 0 */
constexpr uint32_t CAP = 0x6400u + KD_SEARCH_CAP; /* bits of a cost at the cap */
constexpr uint32_t CAPS = CAP * 0x10001u, NONE = 0x7c007c00u;

template <int EDGES> struct alignas(16) tile_shared {
    uint16_t cost[2][EDGES];                    /* bits, by edge */
    uint16_t walk[1 << (KD_GPU_FREE_BITS - 1)]; /* costs of the states looked at again */
    uint8_t branch[2][1 << KD_GPU_FREE_BITS]; /* their branches, of a segment and the one before */
    uint32_t target[2][256];                  /* of both tiles, as STEPS has them */
    uint32_t least[KD_GPU_WORKERS / 32];      /* of each warp */
    int16_t low[2][16];                       /* subtracted, of this pass and the one before */
    int end[2], from[2]; /* of both tiles: the ring's edge; where a walk starts */
    int64_t again;
    bool good[2];
};

/* A state's value on the grid: kd_search_value(grid, kd_codebook_f16(codebook, state)), by the
 * device's own conversions. */
template <kd_codebook CB> KD_DEV float value_in(float grid, uint32_t state)
{
    uint32_t x = state;
    float f;

    if (CB == KD_CB_MUL1) {
        x = kd_byte_sum(x * 0x83DCD12Du, 1024);
        f = kd_half_float(kd_float_half(fmaf((float)x, 887.0f / 131072.0f, -1329.0f / 128.0f)));
    } else {
        x = CB == KD_CB_MCG ? x * 0xCBAC1FEDu : x * 89226354u + 64248484u;
        x = (x & 0x8FFF8FFFu) ^ 0x3B603B60u;
        f = kd_half_float(
            kd_float_half(kd_add(kd_half_float((uint16_t)x), kd_half_float((uint16_t)(x >> 16)))));
    }
    return floorf(kd_add(kd_mul(f, grid), 0.5f));
}

KD_DEV float value_of(kd_codebook cb, float grid, uint32_t state)
{
    return cb == KD_CB_MUL1  ? value_in<KD_CB_MUL1>(grid, state)
           : cb == KD_CB_MCG ? value_in<KD_CB_MCG>(grid, state)
                             : value_in<KD_CB_3INST>(grid, state);
}

KD_DEV uint32_t lowered(uint32_t c, kd_h2 low)
{
    uint32_t in = kd_h2_less(kd_bits_h2(c), kd_bits_h2(CAPS));
    return (kd_h2_bits(kd_h2_sub(kd_bits_h2(c), low)) & in) | (NONE & ~in);
}

/* The least of a warp's threads, for least_of. */
template <int EDGES> KD_DEV void leave_least(tile_shared<EDGES> *s, int t, uint32_t least)
{
    least = kd_warp_min(least);
    if (t % 32 == 0)
        s->least[t / 32] = least;
}

/* From 64 times a sum and a half to the bits of a cost. */
KD_DEV uint32_t cost_of(int sum)
{
    sum >>= KD_SEARCH_SHIFT;
    return 0x6400u + (uint32_t)(sum < KD_SEARCH_CAP ? sum : (int)KD_SEARCH_CAP);
}

/* Costs of the in-edges of row n, for a thread's eight states. */
template <int IN> struct in_costs {
    uint32_t word[IN == 1 ? 2 : 1];

    KD_DEV void load(const uint16_t *cost, int n, int t)
    {
        if (IN == 1) {
            uint2 u = *(const uint2 *)(cost + 4 * t + (n << 11));
            word[0] = u.x;
            word[IN == 1] = u.y;
        } else if (IN == 2) {
            word[0] = *(const uint32_t *)(cost + 2 * t + (n << 10));
        } else {
            word[0] = cost[IN == 3 ? t + (n << 9) : (t >> 1) + (n << 8)];
        }
    }
    KD_DEV void lower(kd_h2 low)
    {
        word[0] = lowered(word[0], low);
        if (IN == 1)
            word[IN == 1] = lowered(word[IN == 1], low);
    }
    /* Of states 2p and 2p + 1, which share their in-edge. */
    KD_DEV kd_h2 of(int p) const
    {
        int edge = (2 * p) >> IN;
        kd_h2 w = kd_bits_h2(word[IN == 1 ? edge >> 1 : 0]);
        return edge & 1 ? kd_h2_highs(w) : kd_h2_lows(w);
    }
};

/* As a tree, for its short chains; where the device has a minimum of three the compiler takes it.
 */
template <int N> KD_DEV kd_h2 least_among(const kd_h2 *x)
{
    if constexpr (N == 1)
        return x[0];
    else
        return kd_h2_min(least_among<N / 2>(x), least_among<N / 2>(x + N / 2));
}

/* One position of one tile. low: subtracted from the costs before it, where FIX. */
template <int IN, int OUT, bool FIX, int EDGES>
KD_DEV void step(const kd_h2 (&table)[KD_GPU_ROWS][4], tile_shared<EDGES> *s, int from, kd_h2 w,
                 int t, kd_h2 low, bool track)
{
    constexpr int GROUPS = KD_GPU_ROWS >> OUT, BRANCHES = 1 << OUT;
    kd_h2 least = kd_bits_h2(NONE);

#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        in_costs<IN> in[BRANCHES];
        uint4 out;
        uint32_t *o = &out.x;
#pragma unroll
        for (int b = 0; b < BRANCHES; b++) {
            in[b].load(s->cost[from], b * GROUPS + j, t);
            if (FIX)
                in[b].lower(low);
        }
#pragma unroll
        for (int p = 0; p < 4; p++) {
            kd_h2 x[BRANCHES];
#pragma unroll
            for (int b = 0; b < BRANCHES; b++) {
                kd_h2 d = kd_h2_sub(table[b * GROUPS + j][p], w);
                x[b] = kd_h2_fma(d, d, in[b].of(p));
            }
            o[p] = kd_h2_bits(least_among<BRANCHES>(x));
        }
        if (track)
            least = kd_h2_min(kd_h2_min(least, kd_h2_min(kd_bits_h2(out.x), kd_bits_h2(out.y))),
                              kd_h2_min(kd_bits_h2(out.z), kd_bits_h2(out.w)));
        *(uint4 *)(s->cost[from ^ 1] + 8 * (j * KD_GPU_WORKERS + t)) = out;
    }
    if (track) {
        const uint32_t m = kd_h2_bits(least), a = m & 0xffffu, b = m >> 16;
        leave_least(s, t, a < b ? a : b);
    }
}

/* Up to 4 bits a position: the values in registers, half floats. */
template <int BASE, bool MASKED> struct half_steps {
    static constexpr int MORE = BASE + MASKED;
    kd_h2 table[KD_GPU_ROWS][4];

    KD_DEV void begin(const kd_gpu_search_args &a, float grid, unsigned level, int t)
    {
        (void)level;
#pragma unroll
        for (int n = 0; n < KD_GPU_ROWS; n++)
#pragma unroll
            for (int p = 0; p < 4; p++) {
                uint32_t state = (uint32_t)(n * 4096 + 8 * t + 2 * p);
                table[n][p] = kd_h2_of(value_of(a.codebook, grid, state) * 0.125f,
                                       value_of(a.codebook, grid, state + 1) * 0.125f);
            }
    }
    /* A target as eighths, in both halves, and back. */
    static KD_DEV uint32_t target_of(int w)
    {
        return kd_h2_bits(kd_h2_of((float)w * 0.125f, (float)w * 0.125f));
    }
    static KD_DEV int target_back(uint32_t bits)
    {
        return (int)(8.0f * kd_h2_low(kd_bits_h2(bits)));
    }
    template <bool FIX, int EDGES>
    KD_DEV void run(tile_shared<EDGES> *s, int from, uint32_t target, int t, kd_h2 low, bool track,
                    int in, int out) const
    {
        const kd_h2 w = kd_bits_h2(target);

        if (!MASKED || (in == BASE && out == BASE))
            step<BASE, BASE, FIX>(table, s, from, w, t, low, track);
        else if (in == BASE)
            step<BASE, MORE, FIX>(table, s, from, w, t, low, track);
        else if (out == BASE)
            step<MORE, BASE, FIX>(table, s, from, w, t, low, track);
        else
            step<MORE, MORE, FIX>(table, s, from, w, t, low, track);
    }
};

/* Over 4 bits: integers, the values in memory; a thread's edges have all their branches. */
struct fine_steps {
    const int16_t *value;

    KD_DEV void begin(const kd_gpu_search_args &a, float grid, unsigned level, int t)
    {
        (void)grid;
        (void)t;
        value = a.value + 65536 * level;
    }
    static KD_DEV uint32_t target_of(int w)
    {
        return (uint32_t)w;
    }
    static KD_DEV int target_back(uint32_t bits)
    {
        return (int)bits;
    }
    template <bool FIX, int EDGES>
    KD_DEV void run(tile_shared<EDGES> *s, int from, uint32_t target, int t, kd_h2 low, bool track,
                    int in, int out) const
    {
        const int edges = 65536 >> out, w = (int)target;
        uint32_t least = NONE & 0xffffu;

        for (int e = t; e < edges; e += KD_GPU_WORKERS) {
            int best = (KD_SEARCH_CAP << KD_SEARCH_SHIFT) + (1 << KD_SEARCH_SHIFT);
#pragma unroll 8
            for (int b = 0; b < 1 << out; b++) {
                const int state = b << (16 - out) | e;
                uint32_t c = s->cost[from][state >> in];
                if (FIX)
                    c = lowered(c, low) & 0xffffu;
                const int d = value[state] - w;
                const int sum =
                    d * d + ((int)(c - 0x6400u) << KD_SEARCH_SHIFT) + (1 << (KD_SEARCH_SHIFT - 1));
                best = sum < best ? sum : best;
            }
            const uint32_t c = cost_of(best);
            s->cost[from ^ 1][e] = (uint16_t)c;
            least = c < least ? c : least;
        }
        if (track)
            leave_least(s, t, least);
    }
};

/* 5 to 7 bits throughout: integers too, the values in registers, two in each. A thread has all
 * branches of its adjacent edges, which share their in-edges. */
template <int BASE> struct wide_steps {
    static constexpr int OWN = (65536 >> BASE) / KD_GPU_WORKERS, BRANCHES = 1 << BASE;
    uint32_t table[64]; /* of branch b: edges in pairs; one edge: branches in pairs */

    static KD_DEV uint32_t state_of(int b, int edge)
    {
        return (uint32_t)(b << (16 - BASE) | edge);
    }
    KD_DEV void begin(const kd_gpu_search_args &a, float grid, unsigned level, int t)
    {
        (void)level;
#pragma unroll
        for (int i = 0; i < 64; i++) {
            const uint32_t low = OWN == 1 ? state_of(2 * i, t)
                                          : state_of(2 * i / OWN, OWN * t + 2 * i % OWN),
                           high = OWN == 1 ? state_of(2 * i + 1, t) : low + 1;
            table[i] = ((uint32_t)(int)value_of(a.codebook, grid, low) & 0xffffu) |
                       (uint32_t)(int)value_of(a.codebook, grid, high) << 16;
        }
    }
    static KD_DEV uint32_t target_of(int w)
    {
        return (uint32_t)w;
    }
    static KD_DEV int target_back(uint32_t bits)
    {
        return (int)bits;
    }
    /* 64 times the cost of branch b's in-edge, and a half. */
    template <bool FIX, int EDGES>
    static KD_DEV int before(const tile_shared<EDGES> *s, int from, kd_h2 low, int b, int t)
    {
        uint32_t c = s->cost[from][(b << (16 - 2 * BASE)) + (OWN * t >> BASE)];
        if (FIX)
            c = lowered(c, low) & 0xffffu;
        return ((int)(c - 0x6400u) << KD_SEARCH_SHIFT) + (1 << (KD_SEARCH_SHIFT - 1));
    }
    template <bool FIX, int EDGES>
    KD_DEV void run(tile_shared<EDGES> *s, int from, uint32_t target, int t, kd_h2 low, bool track,
                    int in, int out) const
    {
        const int w = -(int)target;
        int best[OWN];
        uint32_t least = NONE & 0xffffu;

        (void)in;
        (void)out;
#pragma unroll
        for (int q = 0; q < OWN; q++)
            best[q] = (KD_SEARCH_CAP << KD_SEARCH_SHIFT) + (1 << KD_SEARCH_SHIFT);
#pragma unroll
        for (int i = 0; i < 64; i++) {
            const int d0 = kd_low_plus(table[i], w), d1 = kd_high_plus(table[i], w);
            const int b = OWN == 1 ? 2 * i : 2 * i / OWN, q = OWN == 1 ? 0 : 2 * i % OWN;
            const int c0 = before<FIX>(s, from, low, b, t),
                      c1 = OWN == 1 ? before<FIX>(s, from, low, b + 1, t) : c0;
            int sum = d0 * d0 + c0;
            best[q] = sum < best[q] ? sum : best[q];
            sum = d1 * d1 + c1;
            best[OWN == 1 ? 0 : q + 1] =
                sum < best[OWN == 1 ? 0 : q + 1] ? sum : best[OWN == 1 ? 0 : q + 1];
        }
#pragma unroll
        for (int q = 0; q < OWN; q++) {
            const uint32_t c = cost_of(best[q]);
            s->cost[from ^ 1][OWN * t + q] = (uint16_t)c;
            least = c < least ? c : least;
        }
        if (track)
            leave_least(s, t, least);
    }
};

/* Least of all warps, as bits. */
template <int EDGES> KD_DEV uint32_t least_of(const tile_shared<EDGES> *s)
{
    uint32_t m = s->least[0];
#pragma unroll
    for (int i = 1; i < KD_GPU_WORKERS / 32; i++)
        m = s->least[i] < m ? s->least[i] : m;
    return m;
}

template <int EDGES>
KD_DEV void keep(const tile_shared<EDGES> *s, int from, int edges, int t, bool fix, kd_h2 low,
                 uint16_t *to)
{
#pragma unroll 4
    for (int i = t; i < edges / 8; i += KD_GPU_WORKERS) {
        uint4 v = *(const uint4 *)(s->cost[from] + 8 * i);
        if (fix) {
            v.x = lowered(v.x, low);
            v.y = lowered(v.y, low);
            v.z = lowered(v.z, low);
            v.w = lowered(v.w, low);
        }
        kd_store_once((uint4 *)to + i, v);
    }
}

/* The pass a tile is in: which of the two, its first position, how many, and whether it is the
 * second. */
struct pass {
    int which, first, count;
    bool second;
};

/* The lowest edge among the cheapest, whose cost is m. */
template <int EDGES>
KD_DEV int cheapest(tile_shared<EDGES> *s, int from, int edges, uint32_t m, int t)
{
    uint32_t at = 0xffffu;

    for (int e = t; e < edges; e += KD_GPU_WORKERS)
        if ((s->cost[from][e] == m || m >= CAP) && at == 0xffffu) /* all at the cap: edge 0 */
            at = (uint32_t)e;
    at = kd_warp_min(at);
    kd_sync_first<KD_GPU_WORKERS>(); /* all have read least[] */
    if (t % 32 == 0)
        s->least[t / 32] = at;
    kd_sync_first<KD_GPU_WORKERS>();
    return (int)least_of(s);
}

/* `tiles` tiles, position by position: one barrier for all of them. */
template <class STEPS, int BASE, bool MASKED>
KD_DEV void run_positions(const kd_gpu_search_args &a, const STEPS &steps,
                          tile_shared<(65536 >> BASE)> *s, int tiles, pass q, int buffer, int t,
                          uint16_t *kept, int64_t room)
{
    constexpr int EDGES = 65536 >> BASE;
    int from = 0, left = 0; /* positions to the next that is kept */

#pragma unroll 1
    for (int i = 0; i < q.count; i++) {
        const int p = (q.first + i) & 255;
        const bool fix = i % KD_SEARCH_LOWER == 0 && i > 0,
                   track = i % KD_SEARCH_LOWER == KD_SEARCH_LOWER - 1;
        const int in = MASKED ? (int)kd_rate_bits_at(a.rate, (unsigned)p) : BASE,
                  out = MASKED ? (int)kd_rate_bits_at(a.rate, (unsigned)p + 1) : BASE;
        left = p == 0 ? 0 : left;
        const bool kept_here = left == 0 && (q.second || i >= a.seam);
#pragma unroll 1
        for (int k = 0; k < tiles; k++) {
            kd_h2 low = kd_bits_h2(0);
            if (fix) {
                uint32_t m = least_of(s + k);
                low = kd_bits_h2(kd_h2_bits(kd_h2_sub(kd_bits_h2(m * 0x10001u), kd_bits_h2(ZERO))));
                if (t == 0)
                    s[k].low[buffer][i / KD_SEARCH_LOWER - 1] = (int16_t)(m - 0x6400u);
            }
            if (kept_here)
                keep(s + k, from, 65536 >> in, t, fix, low, kept + k * room);
            const uint32_t w = s[k].target[q.which][p];
            if (fix)
                steps.template run<true>(s + k, from, w, t, low, track, in, out);
            else
                steps.template run<false>(s + k, from, w, t, low, track, in, out);
        }
        if (kept_here) {
            kept += EDGES;
            left = a.segment;
        }
        left--;
        from ^= 1;
        kd_sync_first<KD_GPU_WORKERS>();
    }
}

/* A pass of the workers. count is a multiple of KD_SEARCH_LOWER, so the costs end in cost[0]. */
template <class STEPS, int BASE, bool MASKED>
KD_DEV void run_pass(const kd_gpu_search_args &a, const STEPS &steps,
                     tile_shared<(65536 >> BASE)> *s, int tiles, pass q, int buffer, int t,
                     uint16_t *kept, int64_t room)
{
    constexpr int EDGES = 65536 >> BASE;
    const uint32_t v = q.second ? CAPS : ZERO;

    for (int k = 0; k < tiles; k++)
        for (int e = t; e < EDGES / 8; e += KD_GPU_WORKERS)
            *((uint4 *)s[k].cost[0] + e) = make_uint4(v, v, v, v);
    kd_sync_first<KD_GPU_WORKERS>();
    if (q.second) {
        if (t < tiles)
            s[t].cost[0][s[t].end[q.which]] = 0x6400;
        kd_sync_first<KD_GPU_WORKERS>();
    }
    run_positions<STEPS, BASE, MASKED>(a, steps, s, tiles, q, buffer, t, kept, room);
    for (int k = 0; k < tiles; k++, s++) {
        const uint32_t m = least_of(s);
        if (t == 0)
            s->low[buffer][q.count / KD_SEARCH_LOWER - 1] = (int16_t)(m - 0x6400u);
        if (q.second) {
            if (t == 0) {
                s->good[q.which] = s->good[q.which] && s->cost[0][s->end[q.which]] < CAP;
                s->from[buffer] = s->end[q.which];
            }
            continue;
        }
        const int edge = cheapest(
            s, 0, 65536 >> (MASKED ? (int)kd_rate_bits_at(a.rate, (unsigned)a.seam) : BASE), m, t);
        if (t == 0) {
            s->from[buffer] = edge;
            s->good[q.which] = m < CAP;
        }
    }
}

/* The walk: what one position of a segment needs. */
struct walk_step {
    const uint16_t *kept; /* costs at the segment's beginning, for its first position */
    unsigned kept_shift, kept_low;
    unsigned edges, free, known; /* states have `free` bits above and the bits `known` below */
    int w, low;                  /* target; what was subtracted after the position */
    float grid;
};

/* Cost before state y, and with it. */
template <bool FIRST, int EDGES>
KD_DEV unsigned walk_before(const tile_shared<EDGES> *s, const walk_step &q, unsigned y)
{
    return FIRST ? kd_load_once(q.kept + (y << q.kept_shift | q.kept_low)) : s->walk[y];
}
template <bool FIRST, kd_codebook CB>
KD_DEV int walk_sum(const walk_step &q, unsigned cost, unsigned y)
{
    if (FIRST)
        cost = cost < CAP ? cost - 0x6400u : (unsigned)KD_SEARCH_CAP;
    return kd_search_add((int)cost, (int)value_in<CB>(q.grid, y << (16 - q.free) | q.known) - q.w);
}
template <int EDGES>
KD_DEV void walk_end(tile_shared<EDGES> *s, const walk_step &q, unsigned x, int cost, unsigned at,
                     uint8_t *branch)
{
    branch[x] = (uint8_t)at;
    s->walk[x] = (uint16_t)(cost < KD_SEARCH_CAP ? cost - q.low : (int)KD_SEARCH_CAP);
}

/* Up to 3 bits: a thread has all branches of an edge, of several where it can. */
template <int C, bool FIRST, kd_codebook CB, int EDGES>
KD_DEV void walk_alone(tile_shared<EDGES> *s, const walk_step &q, int lane, uint8_t *branch)
{
    constexpr unsigned BRANCHES = 1u << C;
    constexpr unsigned MANY = !FIRST ? 1 : C == 1 ? 4 : C == 2 ? 2 : 1;
#pragma unroll 1
    for (unsigned x0 = (unsigned)lane; x0 < q.edges; x0 += MANY * KD_GPU_WALKERS) {
        unsigned cost[MANY][BRANCHES];
#pragma unroll
        for (unsigned m = 0; m < MANY; m++)
#pragma unroll
            for (unsigned b = 0; b < BRANCHES; b++)
                if (x0 + m * KD_GPU_WALKERS < q.edges)
                    cost[m][b] = walk_before<FIRST>(s, q, b * q.edges + x0 + m * KD_GPU_WALKERS);
#pragma unroll
        for (unsigned m = 0; m < MANY; m++) {
            const unsigned x = x0 + m * KD_GPU_WALKERS;
            int best = KD_SEARCH_CAP + 1;
            unsigned at = BRANCHES - 1;
            if (x >= q.edges)
                continue;
#pragma unroll
            for (unsigned b = 0; b < BRANCHES; b++) {
                int sum = walk_sum<FIRST, CB>(q, cost[m][b], b * q.edges + x);
                at = sum < best ? b : at;
                best = sum < best ? sum : best;
            }
            walk_end(s, q, x, best, at, branch);
        }
    }
}

/* From 4 bits on, where there are fewer edges than lanes: a group of lanes shares an edge's
 * branches. */
template <int C, bool FIRST, kd_codebook CB, int EDGES>
KD_DEV void walk_shared(tile_shared<EDGES> *s, const walk_step &q, int lane, uint8_t *branch)
{
    constexpr unsigned BRANCHES = 1u << C, GROUP = C == 4 ? 16 : 32, EACH = BRANCHES / GROUP,
                       SLOTS = KD_GPU_WALKERS / GROUP,
                       MANY = !FIRST   ? 1
                              : C == 5 ? 8
                              : C == 4 ? 2
                                       : 1,
                       NONE_LEFT = (unsigned)(KD_SEARCH_CAP + 1) << 8 | (BRANCHES - 1);
    const unsigned b0 = (unsigned)lane % GROUP, slot = (unsigned)lane / GROUP;

#pragma unroll 1
    for (unsigned first = 0; first < q.edges; first += MANY * SLOTS) {
        unsigned cost[MANY][EACH];
#pragma unroll
        for (unsigned m = 0; m < MANY; m++)
#pragma unroll
            for (unsigned e = 0; e < EACH; e++) {
                const unsigned x = first + m * SLOTS + slot;
                if (x < q.edges)
                    cost[m][e] = walk_before<FIRST>(s, q, (b0 + e * GROUP) * q.edges + x);
            }
#pragma unroll
        for (unsigned m = 0; m < MANY; m++) {
            const unsigned x = first + m * SLOTS + slot;
            if (first + m * SLOTS >= q.edges) /* the same for all lanes */
                break;
            unsigned best = NONE_LEFT;
#pragma unroll
            for (unsigned e = 0; e < EACH; e++) {
                const unsigned b = b0 + e * GROUP;
                if (x < q.edges) {
                    const int sum = walk_sum<FIRST, CB>(q, cost[m][e], b * q.edges + x);
                    const unsigned both = (unsigned)sum << 8 | b;
                    best = sum <= KD_SEARCH_CAP && both < best ? both : best;
                }
            }
#pragma unroll
            for (unsigned d = GROUP / 2; d; d /= 2) {
                unsigned other = kd_shuffle_xor(best, (int)d);
                best = other < best ? other : best;
            }
            if (b0 == 0 && x < q.edges)
                walk_end(s, q, x, (int)(best >> 8), best & 255u, branch);
        }
    }
}

/* The best of the 2^C branches into each of the out-edges, the lowest among equals. All loads come
 * first, since the costs that were kept are far away. */
template <int C, bool FIRST, kd_codebook CB, int EDGES>
KD_DEV void walk_position(tile_shared<EDGES> *s, const walk_step &q, int lane, uint8_t *branch)
{
    if constexpr (C <= 3)
        walk_alone<C, FIRST, CB>(s, q, lane, branch);
    else
        walk_shared<C, FIRST, CB>(s, q, lane, branch);
}

/* One segment, positions first..last, back from the out-edge of `last`; the in-edge of `first`. A
 * state of position p that leads to `edge` has the bits of edge below and `free` bits above, which
 * number it. */
template <class STEPS, int BASE, bool MASKED, kd_codebook CB, int EDGES>
KD_DEV unsigned walk_segment(const kd_gpu_search_args &a, float grid, tile_shared<EDGES> *s,
                             const uint16_t *kept, pass q, int buffer, int first, int last,
                             unsigned edge, int lane, uint16_t *states)
{
    const unsigned end = kd_rate_bits_at(a.rate, (unsigned)last + 1),
                   begin = kd_rate_bits_at(a.rate, (unsigned)first);
    uint8_t *branch = s->branch[first / a.segment % 2];
    unsigned free = 0, base = 0;

    for (int p = first; p <= last; p++)
        free += kd_rate_bits_at(a.rate, (unsigned)p + 1);
    const unsigned all = free;
    for (int p = first; p <= last; p++) {
        const unsigned c = kd_rate_bits_at(a.rate, (unsigned)p + 1);
        const int i = (p - q.first) & 255;
        const bool lowered = i % KD_SEARCH_LOWER == KD_SEARCH_LOWER - 1;
        const walk_step k = {kept,
                             16 - all - begin,
                             edge >> (all - end + begin),
                             1u << (free - c),
                             free,
                             edge >> (free - end),
                             STEPS::target_back(s->target[q.which][p]),
                             lowered ? s->low[buffer][i / KD_SEARCH_LOWER] : 0,
                             grid};
        if (p == first && (!MASKED || c == BASE))
            walk_position<BASE, true, CB>(s, k, lane, branch + base);
        else if (p == first)
            walk_position<BASE + MASKED, true, CB>(s, k, lane, branch + base);
        else if (!MASKED || c == BASE)
            walk_position<BASE, false, CB>(s, k, lane, branch + base);
        else
            walk_position<BASE + MASKED, false, CB>(s, k, lane, branch + base);
        kd_sync_last<KD_GPU_WALKERS>();
        base += k.edges;
        free -= c;
    }
    unsigned x = 0;
    for (int p = last; p >= first; p--) {
        const unsigned c = kd_rate_bits_at(a.rate, (unsigned)p + 1);
        base -= 1u << free;
        x |= (unsigned)branch[base + x] << free;
        free += c;
        if (states && lane == 0)
            states[p] = (uint16_t)(x << (16 - free) | edge >> (free - end));
    }
    return (x << (16 - all) | edge >> (all - end)) >> begin;
}

/* Back through a pass of one tile; the in-edge of position 0. */
template <class STEPS, int BASE, bool MASKED, kd_codebook CB, int EDGES>
KD_DEV unsigned walk_in(const kd_gpu_search_args &a, float grid, tile_shared<EDGES> *s,
                        const uint16_t *kept, pass q, int buffer, int lane, uint16_t *states)
{
    unsigned edge = (unsigned)s->from[buffer];

    for (int end = q.second ? 256 : a.seam; end > 0;) {
        int first = (end - 1) / a.segment * a.segment;
        edge = walk_segment<STEPS, BASE, MASKED, CB>(a, grid, s,
                                                     kept + (int64_t)(first / a.segment) * EDGES, q,
                                                     buffer, first, end - 1, edge, lane, states);
        end = first;
    }
    return edge;
}

template <class STEPS, int BASE, bool MASKED, int EDGES>
KD_DEV unsigned walk(const kd_gpu_search_args &a, float grid, tile_shared<EDGES> *s,
                     const uint16_t *kept, pass q, int buffer, int lane, uint16_t *states)
{
    if (a.codebook == KD_CB_MUL1)
        return walk_in<STEPS, BASE, MASKED, KD_CB_MUL1>(a, grid, s, kept, q, buffer, lane, states);
    if (a.codebook == KD_CB_MCG)
        return walk_in<STEPS, BASE, MASKED, KD_CB_MCG>(a, grid, s, kept, q, buffer, lane, states);
    return walk_in<STEPS, BASE, MASKED, KD_CB_3INST>(a, grid, s, kept, q, buffer, lane, states);
}

/* A block's tiles on one grid: number i of `mine` is list[i * blocks], or tile block + i * blocks.
 */
KD_DEV int64_t tile_at(const uint32_t *list, int64_t i)
{
    return list ? list[i * kd_blocks()] : kd_block() + i * kd_blocks();
}

/* Pass number n: pair of groups n / 4, group n % 2 of it, the second pass when n & 2. Walkers are
 * one pass behind. All of this is the same for a whole warp, so the two have loops of their own. */
KD_DEV pass pass_at(const kd_gpu_search_args &a, int64_t n)
{
    const bool second = (n & 2) != 0;
    return {(int)(n & 1), second ? 0 : 256 - a.seam, second ? 256 : 2 * a.seam, second};
}
template <int TILES> KD_DEV int64_t passes_of(int64_t mine)
{
    return (mine + 2 * TILES - 1) / (2 * TILES) * 4;
}
/* Number in its block's list of the first tile of pass n, and how many there are. */
template <int TILES> KD_DEV int64_t first_of(int64_t n)
{
    return (n / 4 * 2 + (n & 1)) * TILES;
}
template <int TILES> KD_DEV int tiles_of(int64_t mine, int64_t n)
{
    const int64_t left = mine - first_of<TILES>(n);
    return left < TILES ? (left > 0 ? (int)left : 0) : TILES;
}

template <class STEPS, int BASE, bool MASKED, int TILES>
KD_DEV void run_workers(const kd_gpu_search_args &a, const STEPS &steps,
                        tile_shared<(65536 >> BASE)> *s, const kd_search_grid &grid,
                        const uint32_t *list, int64_t mine, int t)
{
    const int64_t room = kd_gpu_search_pass(a.rate, a.segment);
    uint16_t *kept = a.kept + kd_block() * TILES * kd_gpu_search_kept(a.rate, a.segment);

#pragma unroll 1
    for (int64_t n = 0; n < passes_of<TILES>(mine); n++) {
        const int tiles = tiles_of<TILES>(mine, n);
        const pass q = pass_at(a, n);
        for (int k = 0; !q.second && t < 256 && k < tiles; k++)
            s[k].target[q.which][t] = STEPS::target_of(
                kd_search_target(grid, a.target[256 * tile_at(list, first_of<TILES>(n) + k) + t]));
        if (tiles)
            run_pass<STEPS, BASE, MASKED>(a, steps, s, tiles, q, (int)(n & 1), t,
                                          kept + (n & 1) * TILES * room, room);
        kd_sync_block();
    }
    kd_sync_block();
}

template <class STEPS, int BASE, bool MASKED, int TILES>
KD_DEV void run_walkers(const kd_gpu_search_args &a, tile_shared<(65536 >> BASE)> *s, float grid,
                        const uint32_t *list, int64_t mine, int lane)
{
    const int64_t room = kd_gpu_search_pass(a.rate, a.segment);
    const uint16_t *kept = a.kept + kd_block() * TILES * kd_gpu_search_kept(a.rate, a.segment);

    kd_sync_block();
#pragma unroll 1
    for (int64_t n = 0; n < passes_of<TILES>(mine); n++) {
        const int tiles = tiles_of<TILES>(mine, n);
        const pass q = pass_at(a, n);
#pragma unroll 1
        for (int k = 0; k < tiles; k++) {
            const int64_t tile = tile_at(list, first_of<TILES>(n) + k);
            unsigned edge = walk<STEPS, BASE, MASKED>(
                a, grid, s + k, kept + ((n & 1) * TILES + k) * room, q, (int)(n & 1), lane,
                q.second ? a.states + 256 * tile : nullptr);
            if (lane == 0 && !q.second)
                s[k].end[q.which] = (int)edge;
            if (lane == 0 && q.second)
                a.good[tile] = s[k].good[q.which];
        }
        kd_sync_block();
    }
}

/* One thread: which of a block's tiles are to be searched on a coarser grid; how many. */
KD_DEV int64_t gather_again(const kd_gpu_search_args &a, uint32_t *again, unsigned level,
                            int64_t mine)
{
    int64_t bad = 0;

    for (int64_t i = 0; i < mine; i++) {
        const int64_t tile = tile_at(level ? again : nullptr, i);
        if (a.good[tile])
            continue;
        again[bad++ * kd_blocks()] = (uint32_t)tile;
        if (level + 1 == KD_SEARCH_LEVELS) /* no path: the ring is not closed by itself */
            kd_ring_close(a.rate, a.states + 256 * tile);
    }
    return bad;
}

} // namespace kd_trellis

/* Blocks of KD_GPU_WORKERS + KD_GPU_WALKERS threads, TILES * kd_gpu_search_shared() bytes. A block
 * has tiles block, block + blocks, ..., and searches TILES of them side by side. */
template <class STEPS, int BASE, bool MASKED, int TILES>
KD_KERNEL void KD_BOUNDS(KD_GPU_WORKERS + KD_GPU_WALKERS, 1)
    kd_gpu_search_tiles(kd_gpu_search_args a)
{
    using namespace kd_trellis;
    KD_SHARED(memory);
    tile_shared<(65536 >> BASE)> *s = (tile_shared<(65536 >> BASE)> *)memory;
    const int t = kd_thread();
    uint32_t *again = a.again + kd_block();
    int64_t mine = (a.tiles - kd_block() + kd_blocks() - 1) / kd_blocks();

    /* 640 threads begin with 96 registers each; what the walkers give away keeps the workers' inner
     * loop free of copies. */
    if (t < KD_GPU_WORKERS) {
        kd_more_registers<104>();
        STEPS steps;
        for (unsigned level = 0; mine > 0 && level < KD_SEARCH_LEVELS; level++) {
            const kd_search_grid grid = kd_search_grid_of(a.rate, a.codebook, level);
            steps.begin(a, grid.grid, level, t);
            run_workers<STEPS, BASE, MASKED, TILES>(a, steps, s, grid, level ? again : nullptr,
                                                    mine, t);
            if (t == 0)
                s->again = gather_again(a, again, level, mine);
            kd_sync_block();
            mine = s->again;
            kd_sync_block(); /* shared memory is used anew */
        }
    } else {
        kd_fewer_registers<64>();
        for (unsigned level = 0; mine > 0 && level < KD_SEARCH_LEVELS; level++) {
            const kd_search_grid grid = kd_search_grid_of(a.rate, a.codebook, level);
            run_walkers<STEPS, BASE, MASKED, TILES>(a, s, grid.grid, level ? again : nullptr, mine,
                                                    t - KD_GPU_WORKERS);
            kd_sync_block();
            mine = s->again;
            kd_sync_block();
        }
    }
}

/* Bytes of shared memory a tile. */
static inline int64_t kd_gpu_search_shared(struct kd_rate r)
{
    using namespace kd_trellis;
    return (int64_t)sizeof(tile_shared<8>) + 4 * (int64_t)((65536 >> r.base) - 8);
}

#endif
