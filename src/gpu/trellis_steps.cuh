/* The steps of the trellis search (gpu/trellis_search.cuh): what a block keeps of its tiles in
 * shared memory, and one position of them, for every kind of rate. */
#ifndef KD_GPU_TRELLIS_STEPS_CUH
#define KD_GPU_TRELLIS_STEPS_CUH

#include "gpu/mma_lanes.cuh"
#include "num/exl3_ring.h"

enum {
    KD_GPU_WORKERS = 256, /* threads that hold the table */
    KD_GPU_LANES = 512,   /* of the table: a thread has EACH of them, WORKERS apart */
    KD_GPU_EACH = KD_GPU_LANES / KD_GPU_WORKERS,
    KD_GPU_WALKERS = 128,
    KD_GPU_WRITERS = 128,   /* where only cheap states' costs are kept */
    KD_GPU_TABLE_ROWS = 16, /* of the table, 8 states a thread each */
    KD_GPU_FREE_BITS = 10   /* a segment's states that lead to one end: at most 2^10 */
};

struct kd_gpu_search_args {
    const float *target; /* [tiles][256] in ring order */
    uint16_t *states;    /* [tiles][256] */
    uint8_t *good;       /* [tiles]; 0: the costs passed their cap even on the coarsest grid */
    uint16_t *kept;      /* kd_gpu_search_kept() halves for each block and tile */
    uint32_t *again;     /* [tiles], tiles to be searched again */
    int64_t tiles;       /* less than 2^32 */
    struct kd_rate rate;
    enum kd_codebook codebook;
    int seam;        /* positions on either side of the seam in the first pass, a multiple of 8 */
    int segment;     /* positions */
    int range;       /* where only cheap states' costs are kept: those so far over the least */
    uint64_t *moved; /* there: [blocks][KD_GPU_KEPT_MOVED] */
};

/* Positions of a segment at a rate of so many bits, and, at most, where a mask adds bits. A longer
 * one keeps costs at fewer positions, which is less traffic; a shorter one leaves the walk fewer
 * states a position. [1]: a pair's costs that the copy engine keeps, which takes the workers
 * nothing: there the walk is what binds. */
constexpr int KD_GPU_SEGMENTS[2][9][2] = {
    {{}, {8, 8}, {5, 4}, {3, 2}, {2, 2}, {2, 1}, {1, 1}, {1, 1}, {1, 1}},
    {{}, {8, 8}, {4, 3}, {3, 2}, {2, 2}, {2, 1}, {1, 1}, {1, 1}, {1, 1}},
};

/* The walking threads are shared out to the tiles of a group: so many bits number a tile's. */
KD_HD static constexpr int kd_gpu_search_lane_bits(int tiles)
{
    return tiles == 1 ? 7 : 6;
}

/* Positions of a segment: with a mask as many as the walk can take wherever they lie. */
static inline int kd_gpu_search_segment(struct kd_rate r, bool raw, int tiles)
{
    for (int n = KD_GPU_SEGMENTS[raw][r.base][r.mask != 0]; n > 1; n--) {
        bool fits = true;
        for (unsigned first = 0; first < 16; first++) {
            int rest = 0; /* bits after the first position's */
            for (unsigned p = first + 1; p < first + (unsigned)n; p++)
                rest += (int)kd_rate_bits_at(r, p + 1);
            const int one = (int)kd_rate_bits_at(r, first + 1),
                      last = (int)kd_rate_bits_at(r, first + (unsigned)n);
            fits &= one + rest <= KD_GPU_FREE_BITS && rest - last <= kd_gpu_search_lane_bits(tiles);
        }
        if (fits)
            return n;
    }
    return 1;
}

namespace kd_trellis
{

constexpr uint32_t ZERO = 0x64006400u;            /* two costs of 0 */
constexpr uint32_t CAP = 0x6400u + KD_SEARCH_CAP; /* bits of a cost at the cap */
constexpr uint32_t CAPS = CAP * 0x10001u, NONE = 0x7c007c00u;

/* Costs of a position's edges and of the next one's, as half floats 1024 + cost: of one tile, or of
 * a PAIR of tiles, the first one's in the low half of a word. A pair's words lie so that neither a
 * thread's loads nor its stores meet a bank twice. FINE, over 4 bits: 64 times the cost and a half,
 * an integer. */
template <int EDGES, bool PAIR, bool FINE = !PAIR && EDGES <= 4096> struct alignas(16) edge_costs {
    uint16_t of[2][EDGES];

    static KD_DEV int place(int edge)
    {
        return edge;
    }
    KD_DEV uint32_t get(int from, int, int edge) const
    {
        return of[from][edge];
    }
    KD_DEV void set(int from, int, int edge, uint32_t bits)
    {
        of[from][edge] = (uint16_t)bits;
    }
    KD_DEV void fill(int t, uint32_t twice)
    {
        for (int e = t; e < (int)sizeof of[0] / 16; e += KD_GPU_WORKERS)
            *((uint4 *)of[0] + e) = make_uint4(twice, twice, twice, twice);
    }
};
enum { QUARTER = 1024 + 8, BLOCK = 4 * QUARTER }; /* words of a pair's 1,024 and 4,096 edges */
template <int EDGES> struct alignas(16) edge_costs<EDGES, true, false> {
    uint32_t of[2][EDGES / 4096 * BLOCK];

    KD_HD static int place(int edge)
    {
        return (edge >> 12) * BLOCK + (edge >> 3 & 1) * 2 * QUARTER + (edge >> 2 & 1) * QUARTER +
               (edge >> 4 & 255) * 4 + (edge & 3);
    }
    KD_DEV uint32_t get(int from, int tile, int edge) const
    {
        return of[from][place(edge)] >> 16 * tile & 0xffffu;
    }
    KD_DEV void set(int from, int tile, int edge, uint32_t bits)
    {
        ((uint16_t *)&of[from][place(edge)])[tile] = (uint16_t)bits;
    }
    KD_DEV void fill(int t, uint32_t twice)
    {
        for (int e = t; e < (int)sizeof of[0] / 16; e += KD_GPU_WORKERS)
            *((uint4 *)of[0] + e) = make_uint4(twice, twice, twice, twice);
    }
};

template <int EDGES> struct alignas(16) edge_costs<EDGES, false, true> {
    int32_t of[2][EDGES];

    static KD_DEV int32_t sum_of(uint32_t bits)
    {
        return ((int32_t)(bits - 0x6400u) << KD_SEARCH_SHIFT) + (1 << (KD_SEARCH_SHIFT - 1));
    }
    KD_DEV uint32_t get(int from, int, int edge) const
    {
        return 0x6400u + (uint32_t)(of[from][edge] >> KD_SEARCH_SHIFT);
    }
    KD_DEV void set(int from, int, int edge, uint32_t bits)
    {
        of[from][edge] = sum_of(bits);
    }
    KD_DEV void fill(int t, uint32_t bits)
    {
        for (int e = t; e < EDGES; e += KD_GPU_WORKERS)
            set(0, 0, e, bits & 0xffffu);
    }
};

/* The rest of what a block has of a tile. [2]: of both groups in turns, or of a pass and the one
 * before. */
struct alignas(16) tile_shared {
    uint16_t walk[1 << (KD_GPU_FREE_BITS - 1)]; /* walk_open's costs after every other position */
    uint32_t meet[2][32]; /* where the warps of a walk meet, in a segment and the one before */
    uint16_t open[2][1 << KD_GPU_FREE_BITS]; /* costs after a second pass's first segment */
    uint32_t target[2][256];                 /* as STEPS has them */
    uint32_t least[2][KD_GPU_WORKERS / 32];  /* of each warp, by the buffer of its costs */
    int16_t low[2][16];                      /* subtracted */
    int32_t end[2], from[2];                 /* the ring's edge; where a walk starts */
    int64_t again;
    bool good[2];
};

/* What the workers do at a position, made before the pass: the little that happens between two
 * barriers besides arithmetic is paid at every one of them. */
enum {
    PLAN_KEEP = 1,  /* the costs before it are kept */
    PLAN_FIX = 2,   /* what is least is subtracted from them */
    PLAN_TRACK = 4, /* what is least after it is looked for */
    PLAN_NEXT = 8,  /* the costs after it are kept */
    PLAN_IN = 16,   /* one bit more than the rate's base comes in; goes out */
    PLAN_OUT = 32
};
struct position_plan {
    uint32_t target, flags; /* target: of a pair */
};

template <int EDGES, int TILES, bool PAIR> struct alignas(16) block_shared {
    edge_costs<EDGES, PAIR> cost[PAIR ? 1 : TILES];
    tile_shared tile[TILES];
    position_plan plan[256 + 2];
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
KD_DEV void leave_least(tile_shared *s, int to, int t, uint32_t least)
{
    least = kd_warp_min(least);
    if (t % 32 == 0)
        s->least[to][t / 32] = least;
}

/* Least of all warps, as bits. */
KD_DEV uint32_t least_of(const tile_shared *s, int from)
{
    uint32_t m = 0xffffffffu;

#pragma unroll
    for (int i = 0; i < KD_GPU_WORKERS / 32; i += 4) {
        const uint4 v = *(const uint4 *)(s->least[from] + i);
        const uint32_t a = v.x < v.y ? v.x : v.y, b = v.z < v.w ? v.z : v.w, c = a < b ? a : b;
        m = c < m ? c : m;
    }
    return m;
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

/* One after the other: where the device has a minimum of three, the compiler takes it for two. */
template <int N> KD_DEV kd_h2 least_among(const kd_h2 *x)
{
    kd_h2 least = x[0];

#pragma unroll
    for (int i = 1; i < N; i++)
        least = kd_h2_min(least, x[i]);
    return least;
}

/* One position of one tile, in a register two adjacent states. low: subtracted from the costs
 * before it, where FIX; TRACK: the least of all comes back. */
template <int IN, int OUT, bool FIX, bool TRACK, int EDGES>
KD_DEV kd_h2 step_lane(const kd_h2 (&table)[KD_GPU_TABLE_ROWS][4], edge_costs<EDGES, false> *c,
                       int from, kd_h2 w, int lane, kd_h2 low, kd_h2 least)
{
    constexpr int GROUPS = KD_GPU_TABLE_ROWS >> OUT, BRANCHES = 1 << OUT;

#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        in_costs<IN> in[BRANCHES];
        uint4 out;
        uint32_t *o = &out.x;
#pragma unroll
        for (int b = 0; b < BRANCHES; b++) {
            in[b].load(c->of[from], b * GROUPS + j, lane);
            if (FIX)
                in[b].lower(low);
        }
#pragma unroll
        for (int p = 0; p < 4; p++) {
            kd_h2 x[BRANCHES];
#pragma unroll
            for (int b = 0; b < BRANCHES; b++) {
                const kd_h2 d = kd_h2_sub(table[b * GROUPS + j][p], w);
                x[b] = kd_h2_fma(d, d, in[b].of(p));
            }
            o[p] = kd_h2_bits(least_among<BRANCHES>(x));
        }
        if (TRACK)
            least = kd_h2_min(kd_h2_min(least, kd_h2_min(kd_bits_h2(out.x), kd_bits_h2(out.y))),
                              kd_h2_min(kd_bits_h2(out.z), kd_bits_h2(out.w)));
        *(uint4 *)(c->of[from ^ 1] + 8 * (j * KD_GPU_LANES + lane)) = out;
    }
    return least;
}

template <int IN, int OUT, bool FIX, bool TRACK, int EDGES>
KD_DEV kd_h2 step(const kd_h2 (&table)[KD_GPU_EACH][KD_GPU_TABLE_ROWS][4],
                  edge_costs<EDGES, false> *c, int from, kd_h2 w, int t, kd_h2 low, kd_h2 least)
{
#pragma unroll
    for (int i = 0; i < KD_GPU_EACH; i++)
        least = step_lane<IN, OUT, FIX, TRACK>(table[i], c, from, w, t + i * KD_GPU_WORKERS, low,
                                               least);
    return least;
}

/* Where a thread's in-edges of row 0 lie in a pair's costs, how far on row n's; how many they are.
 */
template <int IN> struct pair_in {
    static constexpr int words = IN == 2 ? 2 : 1;

    static KD_DEV int first(int t)
    {
        const int e = IN == 2 ? 2 * t : IN == 3 ? t : t >> 1;
        return (e >> 3 & 1) * 2 * QUARTER + (e >> 2 & 1) * QUARTER + (e >> 4) * 4 + (e & 3);
    }
    static KD_DEV constexpr int row(int n)
    {
        return IN == 2   ? (n >> 2) * BLOCK + (n & 3) * 256
               : IN == 3 ? (n >> 3) * BLOCK + (n & 7) * 128
                         : n * 64;
    }
};

/* In-edges of group g of a position's states, as words of both tiles. */
template <int IN, int OUT> struct pair_group {
    static constexpr int GROUPS = KD_GPU_TABLE_ROWS >> OUT, BRANCHES = 1 << OUT;
    uint32_t word[BRANCHES][2];

    KD_DEV void load(const uint32_t *in, int g)
    {
        in += g / GROUPS * (2 * KD_GPU_WORKERS >> IN);
#pragma unroll
        for (int b = 0; b < BRANCHES; b++) {
            const uint32_t *row = in + pair_in<IN>::row(b * GROUPS + g % GROUPS);
            if (pair_in<IN>::words == 2) {
                const uint2 u = *(const uint2 *)row;
                word[b][0] = u.x;
                word[b][1] = u.y;
            } else {
                word[b][0] = word[b][1] = *row;
            }
        }
    }
    KD_DEV void lower(kd_h2 low)
    {
#pragma unroll
        for (int b = 0; b < BRANCHES; b++) {
            word[b][0] = lowered(word[b][0], low);
            word[b][1] = pair_in<IN>::words == 2 ? lowered(word[b][1], low) : word[b][0];
        }
    }
};

/* One position of a pair of tiles, in a register a state of both. A group's costs are loaded before
 * the one in front is stored, which the compiler would not do. */
template <int IN, int OUT, bool FIX, bool TRACK, int EDGES>
KD_DEV kd_h2 step(const kd_h2 (&table)[KD_GPU_EACH][KD_GPU_TABLE_ROWS][4],
                  edge_costs<EDGES, true> *costs, int from, kd_h2 w, int t, kd_h2 low, kd_h2 least)
{
    constexpr int GROUPS = KD_GPU_TABLE_ROWS >> OUT, BRANCHES = 1 << OUT;
    const uint32_t *in = costs->of[from] + pair_in<IN>::first(t);
    uint32_t *to = costs->of[from ^ 1] + (t & 1) * 2 * QUARTER + (t >> 1) * 4;
    pair_group<IN, OUT> later;

    later.load(in, 0);
#pragma unroll
    for (int g = 0; g < KD_GPU_EACH * GROUPS; g++) {
        const int j = g % GROUPS, each = g / GROUPS;
        pair_group<IN, OUT> before = later;
        if (g + 1 < KD_GPU_EACH * GROUPS)
            later.load(in, g + 1);
        if (FIX)
            before.lower(low);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint4 out;
            uint32_t *o = &out.x;
#pragma unroll
            for (int q = 0; q < 4; q++) {
                kd_h2 x[BRANCHES];
#pragma unroll
                for (int b = 0; b < BRANCHES; b++) {
                    const kd_h2 v = table[each][b * GROUPS + j][2 * half + q / 2];
                    const kd_h2 d = q % 2 ? kd_h2_high_sub(v, w) : kd_h2_low_sub(v, w);
                    x[b] = kd_h2_fma(d, d, kd_bits_h2(before.word[b][IN == 2 ? half : 0]));
                }
                o[q] = kd_h2_bits(least_among<BRANCHES>(x));
            }
            if (TRACK)
                least = kd_h2_min(kd_h2_min(least, kd_h2_min(kd_bits_h2(out.x), kd_bits_h2(out.y))),
                                  kd_h2_min(kd_bits_h2(out.z), kd_bits_h2(out.w)));
            *(uint4 *)(to + j * BLOCK + half * QUARTER + each * 2 * KD_GPU_WORKERS) = out;
        }
    }
    return least;
}

/* Up to 4 bits a position: the values in registers, half floats. */
template <int BASE, bool MASKED, bool PAIR> struct half_steps {
    static constexpr bool pair = PAIR, raw = PAIR && KD_COPY_OUT, cheap = false;
    typedef half_steps dense;
    static constexpr int MORE = BASE + MASKED;
    kd_h2 table[KD_GPU_EACH][KD_GPU_TABLE_ROWS][4];

    KD_DEV void begin(const kd_gpu_search_args &a, float grid, int t)
    {
#pragma unroll
        for (int i = 0; i < KD_GPU_EACH * KD_GPU_TABLE_ROWS * 4; i++) {
            const int row = i / 4 % KD_GPU_TABLE_ROWS,
                      lane = t + i / 4 / KD_GPU_TABLE_ROWS * KD_GPU_WORKERS;
            const uint32_t state = (uint32_t)(row * 4096 + 8 * lane + i % 4 * 2);
            const kd_h2 v = kd_h2_of(value_of(a.codebook, grid, state) * 0.125f,
                                     value_of(a.codebook, grid, state + 1) * 0.125f);
            /* By a way on which the compiler loses sight of its halves, which it would keep in
             * registers of their own. */
            table[i / 4 / KD_GPU_TABLE_ROWS][row][i % 4] =
                PAIR ? kd_bits_h2(kd_shuffle_xor(kd_h2_bits(v), 0)) : v;
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
    template <int IN, int OUT, bool FIX, bool TRACK, int EDGES>
    KD_DEV void position(edge_costs<EDGES, PAIR> *c, tile_shared *s, int from, kd_h2 w, int t,
                         kd_h2 low) const
    {
        const kd_h2 least = step<IN, OUT, FIX, TRACK>(table, c, from, w, t, low, kd_bits_h2(NONE));
        if (!TRACK)
            return;
        const uint32_t a = kd_h2_bits(least) & 0xffffu, b = kd_h2_bits(least) >> 16;
        leave_least(s, from ^ 1, t, PAIR ? a : a < b ? a : b);
        if (PAIR)
            leave_least(s + 1, from ^ 1, t, b);
    }
    template <bool FIX, bool TRACK, int EDGES>
    KD_DEV void run(edge_costs<EDGES, PAIR> *c, tile_shared *s, int from, uint32_t target, int t,
                    kd_h2 low, int in, int out) const
    {
        const kd_h2 w = kd_bits_h2(target);

        if (!MASKED || (in == BASE && out == BASE))
            position<BASE, BASE, FIX, TRACK>(c, s, from, w, t, low);
        else if (in == BASE)
            position<BASE, MORE, FIX, TRACK>(c, s, from, w, t, low);
        else if (out == BASE)
            position<MORE, BASE, FIX, TRACK>(c, s, from, w, t, low);
        else
            position<MORE, MORE, FIX, TRACK>(c, s, from, w, t, low);
    }
};

/* One tile, of which only cheap states' costs are kept (gpu/trellis_kept.cuh). */
template <int BASE, bool MASKED> struct cheap_steps : half_steps<BASE, MASKED, false> {
    static constexpr bool cheap = true;
    typedef half_steps<BASE, MASKED, false> dense;
};

/* Over 4 bits: integers, the values in registers, two in each. A thread has all branches of its
 * edges, which are adjacent; of a rate between two bits in two places, half the edges apart, which
 * are the same edges where one bit more goes out. */
template <int BASE, bool MASKED> struct fine_steps {
    static constexpr bool pair = false, raw = false, cheap = false;
    typedef fine_steps dense;
    static constexpr int OWN = (65536 >> BASE) / KD_GPU_WORKERS, PLACES = MASKED ? 2 : 1,
                         EACH = OWN / PLACES, WORDS = 32768 / KD_GPU_WORKERS;
    static_assert(EACH >= 1, "an edge in each place");
    uint32_t table[WORDS]; /* value n: edge n % EACH of place n / EACH % PLACES, branch n / OWN */

    static KD_DEV uint32_t state_of(int n, int t)
    {
        return (uint32_t)(n / OWN << (16 - BASE) | n / EACH % PLACES << (15 - BASE) |
                          (EACH * t + n % EACH));
    }
    KD_DEV void begin(const kd_gpu_search_args &a, float grid, int t)
    {
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            table[i] = ((uint32_t)(int)value_of(a.codebook, grid, state_of(2 * i, t)) & 0xffffu) |
                       (uint32_t)(int)value_of(a.codebook, grid, state_of(2 * i + 1, t)) << 16;
    }
    static KD_DEV uint32_t target_of(int w)
    {
        return (uint32_t)w;
    }
    static KD_DEV int target_back(uint32_t bits)
    {
        return (int)bits;
    }
    template <int IN, int OUT, bool TRACK, int EDGES>
    KD_DEV void position(edge_costs<EDGES, false> *c, tile_shared *s, int from, int w, int t) const
    {
        constexpr int SUMS = OUT == BASE ? OWN : EACH;
        const int32_t *in = c->of[from] + (EACH * KD_GPU_WORKERS <= 1 << IN ? 0 : EACH * t >> IN);
        int best[SUMS], before = 0;
        uint32_t least = NONE & 0xffffu;

#pragma unroll
        for (int q = 0; q < SUMS; q++)
            best[q] = (KD_SEARCH_CAP + 1) << KD_SEARCH_SHIFT;
#pragma unroll
        for (int n = 0; n < 2 * WORDS; n++) {
            if (n % EACH == 0)
                before = in[(n / OWN << (16 - BASE - IN)) +
                            (MASKED ? n / EACH % PLACES << (MASKED ? 15 - BASE - IN : 0) : 0)];
            const int d = n % 2 ? kd_high_plus(table[n / 2], w) : kd_low_plus(table[n / 2], w);
            const int sum = d * d + before;
            best[n % SUMS] = sum < best[n % SUMS] ? sum : best[n % SUMS];
        }
#pragma unroll
        for (int q = 0; q < SUMS; q++) {
            const uint32_t cost = cost_of(best[q]);
            c->of[from ^ 1][(q / EACH << (15 - BASE)) + EACH * t + q % EACH] = c->sum_of(cost);
            least = cost < least ? cost : least;
        }
        if (TRACK)
            leave_least(s, from ^ 1, t, least);
    }
    template <bool FIX, bool TRACK, int EDGES>
    KD_DEV void run(edge_costs<EDGES, false> *c, tile_shared *s, int from, uint32_t target, int t,
                    kd_h2 low, int in, int out) const
    {
        const int w = -(int)target;

        if (FIX) {
            kd_sync_first<KD_GPU_WORKERS>(); /* they may be on their way to where they are kept */
            for (int e = t; e < 65536 >> in; e += KD_GPU_WORKERS)
                c->set(from, 0, e, lowered(c->get(from, 0, e), low) & 0xffffu);
            kd_sync_first<KD_GPU_WORKERS>();
        }
        if (!MASKED || (in == BASE && out == BASE))
            position<BASE, BASE, TRACK>(c, s, from, w, t);
        else if (in == BASE)
            position<BASE, BASE + MASKED, TRACK>(c, s, from, w, t);
        else if (out == BASE)
            position<BASE + MASKED, BASE, TRACK>(c, s, from, w, t);
        else
            position<BASE + MASKED, BASE + MASKED, TRACK>(c, s, from, w, t);
    }
};

} // namespace kd_trellis
#endif
