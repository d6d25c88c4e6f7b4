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
 * No branches are recorded. Every `segment` positions the costs are kept in device memory, and a
 * seventeenth warp walks back through a finished pass while the sixteen run the next one: within a
 * segment it evaluates the few states that lead to the known end. Two groups of tiles take turns,
 * so that the walk is hidden.
 *
 * A tile whose costs passed the cap gets good[tile] = 0 and is the caller's to search again on
 * coarser grids (a CPU does it: it happens to broken weights only). */
#ifndef KD_GPU_TRELLIS_SEARCH_CUH
#define KD_GPU_TRELLIS_SEARCH_CUH

#include "gpu/lanes.cuh"
#include "num/trellis_step.h"

enum {
    KD_GPU_WORKERS = 512, /* threads that hold the table */
    KD_GPU_ROWS = 16,     /* of the table, 8 states a thread each */
    KD_GPU_FREE_BITS = 12 /* a segment's states that lead to one end: at most 2^12 */
};

struct kd_gpu_search_args {
    const float *target; /* [tiles][256] in ring order */
    uint16_t *states;    /* [tiles][256] */
    uint8_t *good;       /* [tiles] */
    uint16_t *kept;      /* kd_gpu_search_kept() halves for each block */
    int64_t tiles;
    struct kd_rate rate;
    const int16_t *value; /* [65536] on the grid; rates over 4 bits only */
    enum kd_codebook codebook;
    int seam;    /* positions on either side of the seam in the first pass, a multiple of 8 */
    int segment; /* positions */
};

/* Most positions of a segment, so that FREE_BITS suffice. */
KD_HD static inline int kd_gpu_search_segment(struct kd_rate r)
{
    int bits = r.base + (r.mask ? 1 : 0);
    return bits == 1 ? 10 : bits == 2 ? 5 : bits <= 4 ? 3 : 1;
}

/* Halves of device memory a block keeps for one pass of one tile. */
KD_HD static inline int64_t kd_gpu_search_pass(struct kd_rate r, int segment)
{
    return (int64_t)((255 + segment) / segment) * (65536 >> r.base);
}
KD_HD static inline int64_t kd_gpu_search_kept(struct kd_rate r, int segment, int tiles)
{
    return 2 * tiles * kd_gpu_search_pass(r, segment);
}

/* Bytes of shared memory. */
KD_HD static inline int64_t kd_gpu_search_shared(struct kd_rate r, int tiles)
{
    int64_t costs = 2 * (65536 >> r.base) * 2, walk = (2 << KD_GPU_FREE_BITS) + 1408;
    int64_t targets = 2 * 256 * 4, small = 512;
    return tiles * (costs + walk + targets + small);
}

namespace kd_trellis
{

constexpr uint32_t ZERO = 0x64006400u;            /* two costs of 0 */
constexpr uint32_t CAP = 0x6400u + KD_SEARCH_CAP; /* bits of a cost at the cap */
constexpr uint32_t CAPS = CAP * 0x10001u, NONE = 0x7c007c00u;

/* Shared memory of one tile of a group. */
template <int EDGES> struct alignas(16) tile_shared {
    uint16_t cost[2][EDGES];              /* bits, by edge */
    uint16_t walk[1 << KD_GPU_FREE_BITS]; /* costs of the states looked at again */
    uint8_t branch[1408];                 /* their branches */
    uint32_t target[2][256];              /* of both groups, as STEPS has them */
    uint32_t least[KD_GPU_WORKERS / 32];  /* of each warp */
    int16_t low[2][16];                   /* subtracted, of this pass and the one before */
    int end[2], from[2];                  /* of both groups: the ring's edge; where a walk starts */
    bool good[2];
};

/* A state's value on the grid: kd_search_value(grid, kd_codebook_f16(codebook, state)), by the
 * device's own conversions. */
KD_DEV float value_of(kd_codebook cb, float grid, uint32_t state)
{
    uint32_t x = state;
    float f;

    if (cb == KD_CB_MUL1) {
        x = kd_byte_sum(x * 0x83DCD12Du, 1024);
        f = kd_half_float(kd_float_half(fmaf((float)x, 887.0f / 131072.0f, -1329.0f / 128.0f)));
    } else {
        x = cb == KD_CB_MCG ? x * 0xCBAC1FEDu : x * 89226354u + 64248484u;
        x = (x & 0x8FFF8FFFu) ^ 0x3B603B60u;
        f = kd_half_float(
            kd_float_half(kd_add(kd_half_float((uint16_t)x), kd_half_float((uint16_t)(x >> 16)))));
    }
    return floorf(kd_add(kd_mul(f, grid), 0.5f));
}

KD_DEV uint32_t lowered(uint32_t c, kd_h2 low)
{
    uint32_t in = kd_h2_less(kd_bits_h2(c), kd_bits_h2(CAPS));
    return (kd_h2_bits(kd_h2_sub(kd_bits_h2(c), low)) & in) | (NONE & ~in);
}

/* Costs of the in-edges of row n, for a thread's eight states. */
template <int IN> struct in_costs {
    uint32_t word[IN == 1 ? 2 : 1];

    KD_DEV void load(const uint16_t *cost, int n, int t)
    {
        if (IN == 1) {
            uint2 u = *(const uint2 *)(cost + (n << 11 | 4 * t));
            word[0] = u.x;
            word[IN == 1] = u.y;
        } else if (IN == 2) {
            word[0] = *(const uint32_t *)(cost + (n << 10 | 2 * t));
        } else {
            word[0] = cost[IN == 3 ? n << 9 | t : n << 8 | t >> 1];
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
#pragma unroll
            for (int n = BRANCHES / 2; n; n /= 2)
#pragma unroll
                for (int b = 0; b < n; b++)
                    x[b] = kd_h2_min(x[2 * b], x[2 * b + 1]);
            o[p] = kd_h2_bits(x[0]);
        }
        if (track)
            least = kd_h2_min(kd_h2_min(least, kd_h2_min(kd_bits_h2(out.x), kd_bits_h2(out.y))),
                              kd_h2_min(kd_bits_h2(out.z), kd_bits_h2(out.w)));
        *(uint4 *)(s->cost[from ^ 1] + 8 * (j * KD_GPU_WORKERS + t)) = out;
    }
    if (track) {
        uint32_t m = kd_h2_bits(least), a = m & 0xffffu, b = m >> 16;
        m = kd_warp_min(a < b ? a : b);
        if (t % 32 == 0)
            s->least[t / 32] = m;
    }
}

/* Up to 4 bits a position: the values in registers, half floats. */
template <int BASE, bool MASKED> struct half_steps {
    static constexpr int MORE = BASE + MASKED;
    kd_h2 table[KD_GPU_ROWS][4];

    KD_DEV void begin(const kd_gpu_search_args &a, float grid, int t)
    {
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

    KD_DEV void begin(const kd_gpu_search_args &a, float grid, int t)
    {
        (void)grid;
        (void)t;
        value = a.value;
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
            best >>= KD_SEARCH_SHIFT;
            const uint32_t c =
                0x6400u + (uint32_t)(best < KD_SEARCH_CAP ? best : (int)KD_SEARCH_CAP);
            s->cost[from ^ 1][e] = (uint16_t)c;
            least = c < least ? c : least;
        }
        if (track) {
            least = kd_warp_min(least);
            if (t % 32 == 0)
                s->least[t / 32] = least;
        }
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

/* The pass a group is in: `first` position, how many, and whether it is the second. */
struct pass {
    int group, first, count;
    bool second;
};

template <class STEPS, int BASE, bool MASKED, int TILES>
KD_DEV void run_pass(const kd_gpu_search_args &a, const STEPS &steps,
                     tile_shared<(65536 >> BASE)> *s, pass q, int buffer, int t, uint16_t *kept)
{
    constexpr int EDGES = 65536 >> BASE;
    const int64_t room = kd_gpu_search_pass(a.rate, a.segment);
    int from = 0;

#pragma unroll
    for (int i = 0; i < TILES; i++) {
        uint32_t v = q.second ? CAPS : ZERO;
        for (int e = t; e < EDGES / 8; e += KD_GPU_WORKERS)
            *((uint4 *)s[i].cost[0] + e) = make_uint4(v, v, v, v);
    }
    kd_sync_first<KD_GPU_WORKERS>();
    if (q.second) {
        if (t < TILES)
            s[t].cost[0][s[t].end[q.group]] = 0x6400;
        kd_sync_first<KD_GPU_WORKERS>();
    }
#pragma unroll 1
    for (int i = 0; i < q.count; i++) {
        const int p = (q.first + i) & 255;
        const bool fix = i % KD_SEARCH_LOWER == 0 && i > 0,
                   track = i % KD_SEARCH_LOWER == KD_SEARCH_LOWER - 1;
        const int in = MASKED ? (int)kd_rate_bits_at(a.rate, (unsigned)p) : BASE,
                  out = MASKED ? (int)kd_rate_bits_at(a.rate, (unsigned)p + 1) : BASE;
#pragma unroll
        for (int k = 0; k < TILES; k++) {
            kd_h2 low = kd_bits_h2(0);
            if (fix) {
                uint32_t m = least_of(s + k);
                low = kd_bits_h2(kd_h2_bits(kd_h2_sub(kd_bits_h2(m * 0x10001u), kd_bits_h2(ZERO))));
                if (t == 0)
                    s[k].low[buffer][i / KD_SEARCH_LOWER - 1] = (int16_t)(m - 0x6400u);
            }
            if (p % a.segment == 0 && (q.second || i >= a.seam))
                keep(s + k, from, 65536 >> in, t, fix, low,
                     kept + (2 * k + buffer) * room + (int64_t)(p / a.segment) * EDGES);
            const uint32_t w = s[k].target[q.group][p];
            if (fix)
                steps.template run<true>(s + k, from, w, t, low, track, in, out);
            else
                steps.template run<false>(s + k, from, w, t, low, track, in, out);
        }
        from ^= 1;
        kd_sync_first<KD_GPU_WORKERS>();
    }
#pragma unroll
    for (int k = 0; k < TILES; k++) {
        const uint32_t m = least_of(s + k);
        if (t == 0)
            s[k].low[buffer][q.count / KD_SEARCH_LOWER - 1] = (int16_t)(m - 0x6400u);
        if (q.second) {
            if (t == 0) {
                s[k].good[q.group] = s[k].good[q.group] && s[k].cost[from][s[k].end[q.group]] < CAP;
                s[k].from[buffer] = s[k].end[q.group];
            }
            continue;
        }
        /* The lowest edge among the cheapest. */
        const int edges = 65536 >> (MASKED ? (int)kd_rate_bits_at(a.rate, (unsigned)a.seam) : BASE);
        uint32_t at = 0xffffu;
        for (int e = t; e < edges; e += KD_GPU_WORKERS)
            if (s[k].cost[from][e] == m && at == 0xffffu)
                at = (uint32_t)e;
        at = kd_warp_min(at);
        kd_sync_first<KD_GPU_WORKERS>(); /* all have read least[] */
        if (t % 32 == 0)
            s[k].least[t / 32] = at;
        kd_sync_first<KD_GPU_WORKERS>();
        if (t == 0) {
            s[k].from[buffer] = (int)least_of(s + k);
            s[k].good[q.group] = m < CAP;
        }
    }
}

/* One warp: one segment, positions first..last, back from the out-edge of `last`; the in-edge of
 * `first`. A state of position p that leads to `edge` has the bits of edge below and `free` bits
 * above, which number it. */
template <class STEPS, int EDGES>
KD_DEV unsigned walk_segment(const kd_gpu_search_args &a, const kd_search_grid &grid,
                             tile_shared<EDGES> *s, const uint16_t *kept, int group, int buffer,
                             int pass_first, int first, int last, unsigned edge, int lane,
                             uint16_t *states)
{
    const unsigned end = kd_rate_bits_at(a.rate, (unsigned)last + 1),
                   begin = kd_rate_bits_at(a.rate, (unsigned)first);
    unsigned free = 0, base = 0;

    for (int p = first; p <= last; p++)
        free += kd_rate_bits_at(a.rate, (unsigned)p + 1);
    const unsigned all = free, in_low = edge >> (free - end + begin);
    for (unsigned y = (unsigned)lane; y < 1u << free; y += 32) {
        unsigned c = kd_load_once(kept + (y << (16 - free - begin) | in_low));
        s->walk[y] = (uint16_t)(c < CAP ? c - 0x6400u : (unsigned)KD_SEARCH_CAP);
    }
    for (int p = first; p <= last; p++) {
        const unsigned c = kd_rate_bits_at(a.rate, (unsigned)p + 1), edges = 1u << (free - c),
                       known = edge >> (free - end);
        const int w = STEPS::target_back(s->target[group][p]), i = (p - pass_first) & 255;
        const int low =
            i % KD_SEARCH_LOWER == KD_SEARCH_LOWER - 1 ? s->low[buffer][i / KD_SEARCH_LOWER] : 0;
        kd_sync_warp();
        for (unsigned x = (unsigned)lane; x < edges; x += 32) {
            int best = KD_SEARCH_CAP + 1;
            unsigned at = (1u << c) - 1;
            for (unsigned b = 0; b < 1u << c; b++) {
                unsigned y = b * edges + x, state = y << (16 - free) | known;
                int sum =
                    kd_search_add(s->walk[y], (int)value_of(a.codebook, grid.grid, state) - w);
                at = sum < best ? b : at;
                best = sum < best ? sum : best;
            }
            s->branch[base + x] = (uint8_t)at;
            s->walk[x] = (uint16_t)(best < KD_SEARCH_CAP ? best - low : (int)KD_SEARCH_CAP);
        }
        base += edges;
        free -= c;
    }
    kd_sync_warp();
    unsigned x = 0;
    for (int p = last; p >= first; p--) {
        const unsigned c = kd_rate_bits_at(a.rate, (unsigned)p + 1);
        base -= 1u << free;
        x |= (unsigned)s->branch[base + x] << free;
        free += c;
        if (states && lane == 0)
            states[p] = (uint16_t)(x << (16 - free) | edge >> (free - end));
    }
    return (x << (16 - all) | edge >> (all - end)) >> begin;
}

/* One warp walks back through a pass of one tile; the in-edge of position 0. */
template <class STEPS, int EDGES>
KD_DEV unsigned walk(const kd_gpu_search_args &a, const kd_search_grid &grid, tile_shared<EDGES> *s,
                     const uint16_t *kept, pass q, int buffer, int lane, uint16_t *states)
{
    unsigned edge = (unsigned)s->from[buffer];

    for (int end = q.second ? 256 : a.seam; end > 0;) {
        int first = (end - 1) / a.segment * a.segment;
        edge = walk_segment<STEPS>(a, grid, s, kept + (int64_t)(first / a.segment) * EDGES, q.group,
                                   buffer, q.first, first, end - 1, edge, lane, states);
        kd_sync_warp();
        end = first;
    }
    return edge;
}

} // namespace kd_trellis

/* Blocks of KD_GPU_WORKERS + 32 * TILES threads, kd_gpu_search_shared() bytes. Tile i of a launch
 * belongs to group i / TILES, group g to block g % blocks. */
template <class STEPS, int BASE, bool MASKED, int TILES>
KD_KERNEL void KD_BOUNDS(KD_GPU_WORKERS + 32 * TILES, 1) kd_gpu_search_tiles(kd_gpu_search_args a)
{
    using namespace kd_trellis;
    constexpr int EDGES = 65536 >> BASE;
    KD_SHARED(memory);
    tile_shared<EDGES> *s = (tile_shared<EDGES> *)memory;
    const int t = kd_thread();
    const bool worker = t < KD_GPU_WORKERS;
    const kd_search_grid grid = kd_search_grid_of(a.rate, a.codebook, 0);
    STEPS steps;
    uint16_t *kept = a.kept + kd_block() * kd_gpu_search_kept(a.rate, a.segment, TILES);
    const int64_t room = kd_gpu_search_pass(a.rate, a.segment);
    const int64_t groups = (a.tiles + TILES - 1) / TILES,
                  mine = (groups - kd_block() + kd_blocks() - 1) / kd_blocks();
    const int64_t passes = (mine + 1) / 2 * 4;

    if (worker)
        steps.begin(a, grid.grid, t);
    /* Pass number n: pair of groups n / 4, group n % 2 of it, second pass when n & 2. */
    for (int64_t n = 0; n <= passes; n++) {
        const int64_t at = worker ? n : n - 1, local = at / 4 * 2 + (at & 1);
        const int64_t tile0 = (kd_block() + local * kd_blocks()) * TILES;
        const bool second = (at & 2) != 0;
        const pass q = {(int)(at & 1), second ? 0 : 256 - a.seam, second ? 256 : 2 * a.seam,
                        second};

        if (at >= 0 && at < passes && local < mine) {
            if (worker) {
                if (!second) {
                    for (int i = t; i < 256 * TILES; i += KD_GPU_WORKERS) {
                        int64_t tile = tile0 + i / 256 < a.tiles ? tile0 + i / 256 : tile0;
                        int w = kd_search_target(grid, a.target[256 * tile + i % 256]);
                        s[i / 256].target[q.group][i % 256] = STEPS::target_of(w);
                    }
                }
                run_pass<STEPS, BASE, MASKED, TILES>(a, steps, s, q, (int)(at & 1), t, kept);
            } else {
                const int k = (t - KD_GPU_WORKERS) / 32, lane = t % 32;
                const int64_t tile = tile0 + k;
                const bool real = tile < a.tiles;
                uint16_t *states = second && real ? a.states + 256 * tile : nullptr;
                unsigned edge = walk<STEPS>(a, grid, s + k, kept + (2 * k + (at & 1)) * room, q,
                                            (int)(at & 1), lane, states);
                if (lane == 0 && !second)
                    s[k].end[q.group] = (int)edge;
                if (lane == 0 && second && real)
                    a.good[tile] = s[k].good[q.group];
            }
        }
        kd_sync_block();
    }
}

#endif
