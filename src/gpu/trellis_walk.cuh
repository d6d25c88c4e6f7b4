/* Back through a pass of the trellis search (gpu/trellis_search.cuh), from the costs that were
 * kept: segment by segment from the end, looking again at the few states that lead to the known
 * end. A thread follows a state or a few through all positions of a segment, with the branches so
 * far below its cost in one word, of which shuffles find the least. */
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
    return p == q.begin || (p > q.begin && p < q.end &&
                            (p > 0 ? (q.end - p) % a.segment == 0 : p % a.segment == 0));
}

/* The free bits of a segment's states: those that lead to one edge after it have its bits below and
 * are numbered by the bits above, the branch of the first position on top. COUNT: positions of a
 * whole segment where every position has as many bits, else 0.
 *
 * From its lowest bit on, a number says: the branch of the last position, if a thread has to look
 * at all of them one after the other (`looped` bits); the warp; the lane; and, part of the first
 * branch, what a thread sees to itself. So each warp finds the best by shuffles, but for the
 * lowest `meeting` bits; these are left to one meeting of all of a tile's warps. */
template <int BASE, bool MASKED, bool RAW, int COUNT, int WALKERS> struct segment_bits {
    static constexpr int MOST = COUNT ? COUNT : KD_GPU_SEGMENTS[RAW][BASE][MASKED];
    static constexpr unsigned LANE_BITS =
        (unsigned)kd_gpu_search_lane_bits(KD_GPU_WALKERS / WALKERS);
    /* Of a whole segment: bits that a thread sees to itself, and how many of their states at a
     * time. */
    static constexpr int OWN = COUNT * BASE - (int)LANE_BITS -
                               ((COUNT - 1) * BASE > (int)LANE_BITS ? BASE : 0),
                         GROUP = COUNT == 0 || OWN < 0 ? 1 : 1 << (OWN < 3 ? OWN : 3);
    unsigned out[MOST], free[MOST]; /* of each position: of its branch; of its state */
    unsigned all, looped, meeting, begin, end;

    KD_DEV segment_bits(const kd_gpu_search_args &a, int first, int count)
    {
        all = 0;
#pragma unroll
        for (int p = 0; p < MOST; p++) {
            out[p] = p >= count ? 0
                     : MASKED   ? (unsigned)kd_rate_bits_at(a.rate, (unsigned)(first + p) + 1)
                                : BASE;
            all += out[p];
            end = p < count ? out[p] : end;
        }
        unsigned left = all;
#pragma unroll
        for (int p = 0; p < MOST; p++) {
            free[p] = left;
            left -= out[p];
        }
        begin = MASKED ? (unsigned)kd_rate_bits_at(a.rate, (unsigned)first) : BASE;
        looped = all - out[0] > LANE_BITS ? end : 0;
        meeting = looped + LANE_BITS - 5;
    }
    /* Bits that a thread sees to itself. */
    KD_DEV unsigned own(void) const
    {
        return all - looped > LANE_BITS ? all - looped - LANE_BITS : 0;
    }
    KD_DEV unsigned state(int p, unsigned y, unsigned edge) const
    {
        return (y & ((1u << free[p]) - 1)) << (16 - free[p]) | edge >> (free[p] - end);
    }
};

/* A sum as a key whose least is the best branch, the lowest among equals, which are `bits` bits;
 * over the cap the last one. path: the branches so far, the latest on top. */
KD_DEV unsigned walk_key(int sum, unsigned branch, unsigned bits, unsigned path)
{
    const int over = KD_SEARCH_CAP + 1 + (branch + 1 != 1u << bits);
    return (unsigned)(sum > KD_SEARCH_CAP ? over : sum) << 16 | path;
}

/* What is subtracted from the costs after position p. The last position of a second pass is walked
 * only: there it does not matter. */
KD_DEV int walk_low(const tile_shared *s, pass q, int buffer, int p)
{
    const int i = (p - q.first) & 255;
    return i % KD_SEARCH_LOWER == KD_SEARCH_LOWER - 1 && i < 255
               ? s->low[buffer][i / KD_SEARCH_LOWER]
               : 0;
}
KD_DEV unsigned walk_cost(unsigned key, int low)
{
    const unsigned cost = key >> 16;
    return cost < KD_SEARCH_CAP ? cost - (unsigned)low : (unsigned)KD_SEARCH_CAP;
}
template <class STEPS, kd_codebook CB>
KD_DEV int walk_term(float grid, const tile_shared *s, pass q, int p, unsigned state)
{
    return kd_search_add(0, (int)value_in<CB>(grid, state) -
                                STEPS::target_back(s->target[q.which][p]));
}

/* Costs before a segment, from which `before` is still to be subtracted, or 0 at edge `start`
 * alone. */
template <class KEPT> KD_DEV unsigned walk_load(const uint16_t *kept, unsigned edge, unsigned start)
{
    return kept ? kd_load_once(kept + KEPT::place((int)edge)) : edge == start ? 0x6400u : CAP;
}
KD_DEV int walk_before(unsigned cost, int before)
{
    return cost < CAP ? (int)(cost - 0x6400u) - before : (int)KD_SEARCH_CAP;
}

/* Least of the lanes that differ in bits from..to - 1 of a number whose bit 0 is the lane's bit 0
 * `below` bits up. */
KD_DEV unsigned walk_least(unsigned key, unsigned from, unsigned to, unsigned below)
{
#pragma unroll
    for (unsigned j = 0; j < 5; j++)
        if (j + below >= from && j + below < to) {
            const unsigned other = kd_shuffle_xor(key, 1 << j);
            key = other < key ? other : key;
        }
    return key;
}

/* What the walk of one segment has: of a tile, from position `first` on, back from `edge`. */
struct walk_of {
    const tile_shared *s;
    const uint16_t *kept;
    pass q;
    int buffer, first;
    unsigned edge;
    float grid;
};

/* The costs before position p > 0 and its branches: of state y, whose cost is in `key`. */
template <class STEPS, class BITS>
KD_DEV unsigned walk_next(const walk_of &w, const BITS &b, int p, unsigned y, unsigned key,
                          int term)
{
    const unsigned branch = (y & ((1u << b.free[p]) - 1)) >> (b.free[p] - b.out[p]);
    const int cost = (int)walk_cost(key, walk_low(w.s, w.q, w.buffer, w.first + p - 1));
    return walk_key(cost + term, branch, b.out[p], (key & 0xffffu) | branch << (b.all - b.free[p]));
}

/* The best of a warp's states with `o` below, up to the meeting. All loads come first: the costs
 * that were kept are far away, values are made on the way. */
template <class STEPS, kd_codebook CB, class KEPT, class BITS>
KD_DEV unsigned walk_lanes(const walk_of &w, const BITS &b, unsigned o, int lane)
{
    constexpr int MOST = BITS::MOST, GROUP = BITS::GROUP;
    const unsigned y0 =
        ((unsigned)lane % 32 << (BITS::LANE_BITS - 5) | (unsigned)lane / 32) << b.looped | o;
    const unsigned start = (unsigned)w.s->end[w.q.which];
    const int i = (w.first - w.q.first) & 255;
    const int before = STEPS::raw && i % KD_SEARCH_LOWER == 0 && i > 0
                           ? w.s->low[w.buffer][i / KD_SEARCH_LOWER - 1]
                           : 0;
    unsigned key = ~0u;
    int term[MOST];

#pragma unroll 1
    for (unsigned m0 = 0; m0 < 1u << b.own(); m0 += GROUP) {
        unsigned cost[GROUP], y[GROUP];
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            y[g] = (y0 | (m0 + (unsigned)g) << (BITS::LANE_BITS + b.looped)) & ((1u << b.all) - 1);
            cost[g] = walk_load<KEPT>(w.kept, b.state(0, y[g], w.edge) >> b.begin, start);
        }
        if (m0 == 0)
#pragma unroll
            for (int p = 1; p < MOST; p++)
                if (b.free[p] > b.meeting)
                    term[p] =
                        walk_term<STEPS, CB>(w.grid, w.s, w.q, w.first + p, b.state(p, y0, w.edge));
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            const unsigned branch = y[g] >> (b.all - b.out[0]);
            const int sum =
                walk_before(cost[g], before) +
                walk_term<STEPS, CB>(w.grid, w.s, w.q, w.first, b.state(0, y[g], w.edge));
            const unsigned k = walk_key(sum, branch, b.out[0], branch);
            key = k < key ? k : key;
        }
    }
    key = walk_least(key, b.all - b.out[0], b.all, b.meeting);
#pragma unroll
    for (int p = 1; p < MOST; p++)
        if (b.free[p] > b.meeting) {
            key = walk_next<STEPS>(w, b, p, y0, key, term[p]);
            key = walk_least(key, b.free[p] - b.out[p], b.free[p], b.meeting);
        }
    return key;
}

/* One segment of `count` positions, back from the out-edge of the last; the in-edge of the first.
 * number: of the segment, from the end. */
template <class STEPS, kd_codebook CB, class KEPT, class BITS, int WALKERS>
KD_DEV unsigned walk_segment(const walk_of &w, const BITS &b, tile_shared *s, int number, int team,
                             int lane, uint16_t *states)
{
    const unsigned o = (unsigned)lane & ((1u << b.meeting) - 1);
    uint32_t *meet = s->meet[number % 2];

#pragma unroll 1
    for (unsigned k = 0; k < 1u << b.looped; k++) {
        const unsigned key = walk_lanes<STEPS, CB, KEPT, BITS>(w, b, k, lane);
        if (lane % 32 == 0)
            meet[(unsigned)lane / 32 << b.looped | k] = key;
    }
    int term[BITS::MOST];
#pragma unroll
    for (int p = 1; p < BITS::MOST; p++)
        if (b.free[p] && b.free[p] <= b.meeting)
            term[p] = walk_term<STEPS, CB>(w.grid, s, w.q, w.first + p, b.state(p, o, w.edge));
    kd_sync_team<WALKERS>(team);
    unsigned key = meet[o];
#pragma unroll
    for (int p = 0; p < BITS::MOST; p++) {
        if (p > 0 && b.free[p] && b.free[p] <= b.meeting)
            key = walk_next<STEPS>(w, b, p, o, key, term[p]);
        if (b.free[p] - b.out[p] < b.meeting)
            key = walk_least(key, b.free[p] - b.out[p],
                             b.free[p] < b.meeting ? b.free[p] : b.meeting, 0);
    }
    if (w.q.second && number == 0 && lane == 0)
        s->good[w.q.which] = s->good[w.q.which] && key >> 16 < KD_SEARCH_CAP;
    unsigned y = 0;
#pragma unroll
    for (int p = 0; p < BITS::MOST; p++) {
        y = y << b.out[p] | (key & ((1u << b.out[p]) - 1));
        key >>= b.out[p];
    }
#pragma unroll
    for (int p = 0; p < BITS::MOST; p++)
        if (states && lane == 0 && b.free[p])
            states[w.first + p] = (uint16_t)b.state(p, y, w.edge);
    return b.state(0, y, w.edge) >> b.begin;
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
    using KEPT = kept_costs<(65536 >> BASE), STEPS::raw>;
    constexpr int COUNT = MASKED ? 0 : KD_GPU_SEGMENTS[STEPS::raw][BASE][0];
    using WHOLE = segment_bits<BASE, MASKED, STEPS::raw, COUNT, WALKERS>;
    using REST = segment_bits<BASE, MASKED, STEPS::raw, 0, WALKERS>;
    unsigned edge = (unsigned)s->from[buffer];

    for (int end = q.end, number = 0; end > 0; number++) {
        const bool open = end == q.begin;
        const int first = open ? 0 : end - a.segment > q.begin ? end - a.segment : q.begin;
        const walk_of w = {
            s,   open ? nullptr : kept + (int64_t)number * KEPT::halves, q, buffer, first, edge,
            grid};
        edge = COUNT && end - first == COUNT
                   ? walk_segment<STEPS, CB, KEPT, WHOLE, WALKERS>(w, WHOLE(a, first, COUNT), s,
                                                                   number, team, lane, states)
                   : walk_segment<STEPS, CB, KEPT, REST, WALKERS>(w, REST(a, first, end - first), s,
                                                                  number, team, lane, states);
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
