/* Back through a pass of the trellis search (gpu/trellis_search.cuh), from the costs that were
 * kept: segment by segment from the end, looking again at the few states that lead to the known
 * end. */
#ifndef KD_GPU_TRELLIS_WALK_CUH
#define KD_GPU_TRELLIS_WALK_CUH

#include "gpu/trellis_steps.cuh"

/* Halves of device memory a block keeps for one pass of one tile, and for both groups. A pair's
 * costs are kept as they lie in shared memory. */
KD_HD static inline int64_t kd_gpu_search_kept_edges(struct kd_rate r)
{
    return (65536 >> r.base) / 4096 * (int64_t)kd_trellis::BLOCK > (65536 >> r.base)
               ? (65536 >> r.base) / 4096 * (int64_t)kd_trellis::BLOCK
               : 65536 >> r.base;
}
KD_HD static inline int64_t kd_gpu_search_pass(struct kd_rate r, int segment)
{
    return (int64_t)((255 + segment) / segment) * kd_gpu_search_kept_edges(r);
}
KD_HD static inline int64_t kd_gpu_search_kept(struct kd_rate r, int segment)
{
    return 2 * kd_gpu_search_pass(r, segment);
}

namespace kd_trellis
{

/* The costs of one tile are kept in such an order that those a walk reads at a time, which have
 * their last bits in common, lie side by side; those of a pair as they lie in shared memory. */
enum { KEPT_ROWS = 16 };
template <int EDGES, bool RAW> struct kept_costs {
    static constexpr int halves = EDGES; /* of all tiles there are */
    static KD_DEV int place(int edge)
    {
        return edge % KEPT_ROWS * (EDGES / KEPT_ROWS) + edge / KEPT_ROWS;
    }
};
template <int EDGES> struct kept_costs<EDGES, true> {
    static constexpr int halves = EDGES / 4096 * BLOCK * 2;
    static KD_DEV int place(int edge)
    {
        return 2 * edge_costs<EDGES, true>::place(edge);
    }
};

/* The pass a tile is in: which of the two groups, its first position; which of its positions the
 * workers run (from first_run, before stop); and whether it is the second. The walk goes back
 * through the ring's positions begin to end, in segments counted from the end.
 *
 * A second pass starts at one edge, so that few states are possible in its first segment: the costs
 * after it come from the walkers (walk_open). It ends at the same edge, so that few matter in its
 * last segment: there the walk is enough. */
struct pass {
    int which, first, first_run, stop, begin, end;
    bool second;
};

/* Number, from the end, of the segment that position p begins; whether it begins one. */
KD_DEV int segment_at(const kd_gpu_search_args &a, pass q, int p)
{
    return (q.end - p + a.segment - 1) / a.segment - 1;
}
KD_DEV bool is_kept(const kd_gpu_search_args &a, pass q, int p)
{
    return p == q.begin || (p > q.begin && p < q.end && (q.end - p) % a.segment == 0);
}

/* The walk: what one position of a segment needs. */
struct walk_step {
    /* For the first position: costs at the segment's beginning, from which `before` is still to be
     * subtracted; without: 0 at edge `start` alone. */
    const uint16_t *kept;
    unsigned kept_shift, kept_low, start;
    int before;
    unsigned edges, free, known; /* states have `free` bits above and the bits `known` below */
    int w, low;                  /* target; what was subtracted after the position */
    float grid;
};

/* Cost before state y, and with it. */
template <bool FIRST, class KEPT>
KD_DEV unsigned walk_before(const tile_shared *s, const walk_step &q, unsigned y)
{
    if (!FIRST)
        return s->walk[y];
    const unsigned edge = y << q.kept_shift | q.kept_low;
    unsigned cost = edge == q.start ? 0x6400u : CAP;
    if (q.kept)
        cost = kd_load_once(q.kept + KEPT::place((int)edge));
    return cost;
}
template <bool FIRST, kd_codebook CB>
KD_DEV int walk_sum(const walk_step &q, unsigned cost, unsigned y)
{
    if (FIRST)
        cost = cost < CAP ? cost - 0x6400u - (unsigned)q.before : (unsigned)KD_SEARCH_CAP;
    return kd_search_add((int)cost, (int)value_in<CB>(q.grid, y << (16 - q.free) | q.known) - q.w);
}
KD_DEV void walk_end(tile_shared *s, const walk_step &q, unsigned x, int cost, unsigned at,
                     uint8_t *branch)
{
    branch[x] = (uint8_t)at;
    s->walk[x] = (uint16_t)(cost < KD_SEARCH_CAP ? cost - q.low : (int)KD_SEARCH_CAP);
}

/* Up to 3 bits: a thread has all branches of an edge, of several where it can. */
template <int C, bool FIRST, kd_codebook CB, class KEPT, int WALKERS>
KD_DEV void walk_alone(tile_shared *s, const walk_step &q, int lane, uint8_t *branch)
{
    constexpr unsigned BRANCHES = 1u << C;
    constexpr unsigned MANY = !FIRST ? 1 : C == 1 ? 4 : C == 2 ? 2 : 1;
#pragma unroll 1
    for (unsigned x0 = (unsigned)lane; x0 < q.edges; x0 += MANY * WALKERS) {
        unsigned cost[MANY][BRANCHES];
#pragma unroll
        for (unsigned m = 0; m < MANY; m++)
#pragma unroll
            for (unsigned b = 0; b < BRANCHES; b++)
                if (x0 + m * WALKERS < q.edges)
                    cost[m][b] = walk_before<FIRST, KEPT>(s, q, b * q.edges + x0 + m * WALKERS);
#pragma unroll
        for (unsigned m = 0; m < MANY; m++) {
            const unsigned x = x0 + m * WALKERS;
            int best = KD_SEARCH_CAP + 1;
            unsigned at = BRANCHES - 1;
            if (x >= q.edges)
                continue;
#pragma unroll
            for (unsigned b = 0; b < BRANCHES; b++) {
                const int sum = walk_sum<FIRST, CB>(q, cost[m][b], b * q.edges + x);
                at = sum < best ? b : at;
                best = sum < best ? sum : best;
            }
            walk_end(s, q, x, best, at, branch);
        }
    }
}

/* From 4 bits on, where there are fewer edges than lanes: a group of lanes shares an edge's
 * branches. */
template <int C, bool FIRST, kd_codebook CB, class KEPT, int WALKERS>
KD_DEV void walk_shared(tile_shared *s, const walk_step &q, int lane, uint8_t *branch)
{
    constexpr unsigned BRANCHES = 1u << C, GROUP = C == 4 ? 16 : 32, EACH = BRANCHES / GROUP,
                       SLOTS = WALKERS / GROUP,
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
                    cost[m][e] = walk_before<FIRST, KEPT>(s, q, (b0 + e * GROUP) * q.edges + x);
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
template <int C, bool FIRST, kd_codebook CB, class KEPT, int WALKERS>
KD_DEV void walk_position(tile_shared *s, const walk_step &q, int lane, uint8_t *branch)
{
    if constexpr (C <= 3)
        walk_alone<C, FIRST, CB, KEPT, WALKERS>(s, q, lane, branch);
    else
        walk_shared<C, FIRST, CB, KEPT, WALKERS>(s, q, lane, branch);
}

/* One segment, positions first..last, back from the out-edge of `last`; the in-edge of `first`. A
 * state of position p that leads to `edge` has the bits of edge below and `free` bits above, which
 * number it. */
template <class STEPS, int BASE, bool MASKED, int WALKERS, kd_codebook CB>
KD_DEV unsigned walk_segment(const kd_gpu_search_args &a, float grid, tile_shared *s,
                             const uint16_t *kept, pass q, int buffer, int first, int last,
                             int number, unsigned edge, int team, int lane, uint16_t *states)
{
    const unsigned end = kd_rate_bits_at(a.rate, (unsigned)last + 1),
                   begin = kd_rate_bits_at(a.rate, (unsigned)first);
    using KEPT = kept_costs<(65536 >> BASE), STEPS::raw>;
    uint8_t *branch = s->branch[number % 2];
    unsigned free = 0, base = 0;

    for (int p = first; p <= last; p++)
        free += kd_rate_bits_at(a.rate, (unsigned)p + 1);
    const unsigned all = free;
    for (int p = first; p <= last; p++) {
        const unsigned c = kd_rate_bits_at(a.rate, (unsigned)p + 1);
        /* The last position of a second pass is walked only: what would be subtracted after it
         * does not matter. */
        const int i = (p - q.first) & 255;
        const bool lowered = i % KD_SEARCH_LOWER == KD_SEARCH_LOWER - 1 && i < 255;
        const bool raw = STEPS::raw && i % KD_SEARCH_LOWER == 0 && i > 0;
        const walk_step k = {kept,
                             16 - all - begin,
                             edge >> (all - end + begin),
                             (unsigned)s->end[q.which],
                             raw ? s->low[buffer][i / KD_SEARCH_LOWER - 1] : 0,
                             1u << (free - c),
                             free,
                             edge >> (free - end),
                             STEPS::target_back(s->target[q.which][p]),
                             lowered ? s->low[buffer][i / KD_SEARCH_LOWER] : 0,
                             grid};
        if (p == first && (!MASKED || c == BASE))
            walk_position<BASE, true, CB, KEPT, WALKERS>(s, k, lane, branch + base);
        else if (p == first)
            walk_position<BASE + MASKED, true, CB, KEPT, WALKERS>(s, k, lane, branch + base);
        else if (!MASKED || c == BASE)
            walk_position<BASE, false, CB, KEPT, WALKERS>(s, k, lane, branch + base);
        else
            walk_position<BASE + MASKED, false, CB, KEPT, WALKERS>(s, k, lane, branch + base);
        kd_sync_team<WALKERS>(team);
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

/* Costs after the first segment of a second pass, which starts at `edge`: s->open, by the edges'
 * last bits. */
template <class STEPS, int WALKERS, kd_codebook CB>
KD_DEV void walk_open(const kd_gpu_search_args &a, float grid, tile_shared *s, pass q,
                      unsigned edge, int team, int lane)
{
    unsigned bits = 0;

    for (int p = 0; p < a.segment; p++) {
        const unsigned c = kd_rate_bits_at(a.rate, (unsigned)p);
        const bool other = (a.segment - 1 - p) % 2; /* never all 2^FREE_BITS edges */
        const uint16_t *from = other ? s->open[q.which] : s->walk;
        uint16_t *to = other ? s->walk : s->open[q.which];
        const int w = STEPS::target_back(s->target[q.which][p]);
        bits += c;
        for (unsigned x = (unsigned)lane; x < 1u << bits; x += WALKERS) {
            const unsigned state = (edge << bits | x) & 0xffffu;
            const int sum = kd_search_add(p ? from[x >> c] : 0, (int)value_in<CB>(grid, state) - w);
            to[x] = (uint16_t)(sum < KD_SEARCH_CAP ? sum : (int)KD_SEARCH_CAP);
        }
        kd_sync_team<WALKERS>(team);
    }
}

/* Back through a pass of one tile; the in-edge of position 0. */
template <class STEPS, int BASE, bool MASKED, int WALKERS, kd_codebook CB>
KD_DEV unsigned walk_in(const kd_gpu_search_args &a, float grid, tile_shared *s,
                        const uint16_t *kept, pass q, int buffer, int team, int lane,
                        uint16_t *states)
{
    constexpr int64_t HALVES = kept_costs<(65536 >> BASE), STEPS::raw>::halves;
    unsigned edge = (unsigned)s->from[buffer];

    for (int end = q.end, number = 0; end > 0; number++) {
        const bool open = end == q.begin;
        const int first = open ? 0 : end - a.segment > q.begin ? end - a.segment : q.begin;
        edge = walk_segment<STEPS, BASE, MASKED, WALKERS, CB>(
            a, grid, s, open ? nullptr : kept + number * HALVES, q, buffer, first, end - 1, number,
            edge, team, lane, states);
        if (q.second && number == 0 && lane == 0) /* who wrote it */
            s->good[q.which] = s->good[q.which] && s->walk[0] < KD_SEARCH_CAP;
        end = first;
    }
    if (!q.second)
        walk_open<STEPS, WALKERS, CB>(a, grid, s, q, edge, team, lane);
    return edge;
}

template <class STEPS, int BASE, bool MASKED, int WALKERS>
KD_DEV unsigned walk(const kd_gpu_search_args &a, float grid, tile_shared *s, const uint16_t *kept,
                     pass q, int buffer, int team, int lane, uint16_t *states)
{
    if (a.codebook == KD_CB_MUL1)
        return walk_in<STEPS, BASE, MASKED, WALKERS, KD_CB_MUL1>(a, grid, s, kept, q, buffer, team,
                                                                 lane, states);
    if (a.codebook == KD_CB_MCG)
        return walk_in<STEPS, BASE, MASKED, WALKERS, KD_CB_MCG>(a, grid, s, kept, q, buffer, team,
                                                                lane, states);
    return walk_in<STEPS, BASE, MASKED, WALKERS, KD_CB_3INST>(a, grid, s, kept, q, buffer, team,
                                                              lane, states);
}

} // namespace kd_trellis
#endif
