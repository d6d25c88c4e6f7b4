/* Back through a pass of the trellis search (gpu/trellis_search.cuh), from the costs that were
 * kept: segment by segment from the end, looking again at the few states that lead to the known
 * end. */
#ifndef KD_GPU_TRELLIS_WALK_CUH
#define KD_GPU_TRELLIS_WALK_CUH

#include "gpu/trellis_steps.cuh"

/* Halves of device memory a block keeps for one pass of one tile, and for both groups. */
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

/* Costs are kept in this order, so that those a walk reads at a time lie side by side: they have
 * their last bits in common. */
enum { KEPT_ROWS = 16 };
template <int EDGES> KD_DEV int kept_place(int edge)
{
    return edge % KEPT_ROWS * (EDGES / KEPT_ROWS) + edge / KEPT_ROWS;
}

/* The pass a tile is in: which of the two groups, its first position, how many, and whether it is
 * the second. */
struct pass {
    int which, first, count;
    bool second;
};

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
KD_DEV unsigned walk_before(const tile_shared *s, const walk_step &q, unsigned y)
{
    return FIRST ? kd_load_once(q.kept + kept_place<EDGES>((int)(y << q.kept_shift | q.kept_low)))
                 : s->walk[y];
}
template <bool FIRST, kd_codebook CB>
KD_DEV int walk_sum(const walk_step &q, unsigned cost, unsigned y)
{
    if (FIRST)
        cost = cost < CAP ? cost - 0x6400u : (unsigned)KD_SEARCH_CAP;
    return kd_search_add((int)cost, (int)value_in<CB>(q.grid, y << (16 - q.free) | q.known) - q.w);
}
KD_DEV void walk_end(tile_shared *s, const walk_step &q, unsigned x, int cost, unsigned at,
                     uint8_t *branch)
{
    branch[x] = (uint8_t)at;
    s->walk[x] = (uint16_t)(cost < KD_SEARCH_CAP ? cost - q.low : (int)KD_SEARCH_CAP);
}

/* Up to 3 bits: a thread has all branches of an edge, of several where it can. */
template <int C, bool FIRST, kd_codebook CB, int EDGES, int WALKERS>
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
                    cost[m][b] = walk_before<FIRST, EDGES>(s, q, b * q.edges + x0 + m * WALKERS);
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
template <int C, bool FIRST, kd_codebook CB, int EDGES, int WALKERS>
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
                    cost[m][e] = walk_before<FIRST, EDGES>(s, q, (b0 + e * GROUP) * q.edges + x);
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
template <int C, bool FIRST, kd_codebook CB, int EDGES, int WALKERS>
KD_DEV void walk_position(tile_shared *s, const walk_step &q, int lane, uint8_t *branch)
{
    if constexpr (C <= 3)
        walk_alone<C, FIRST, CB, EDGES, WALKERS>(s, q, lane, branch);
    else
        walk_shared<C, FIRST, CB, EDGES, WALKERS>(s, q, lane, branch);
}

/* One segment, positions first..last, back from the out-edge of `last`; the in-edge of `first`. A
 * state of position p that leads to `edge` has the bits of edge below and `free` bits above, which
 * number it. */
template <class STEPS, int BASE, bool MASKED, int WALKERS, kd_codebook CB>
KD_DEV unsigned walk_segment(const kd_gpu_search_args &a, float grid, tile_shared *s,
                             const uint16_t *kept, pass q, int buffer, int first, int last,
                             unsigned edge, int team, int lane, uint16_t *states)
{
    const unsigned end = kd_rate_bits_at(a.rate, (unsigned)last + 1),
                   begin = kd_rate_bits_at(a.rate, (unsigned)first);
    constexpr int EDGES = 65536 >> BASE;
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
            walk_position<BASE, true, CB, EDGES, WALKERS>(s, k, lane, branch + base);
        else if (p == first)
            walk_position<BASE + MASKED, true, CB, EDGES, WALKERS>(s, k, lane, branch + base);
        else if (!MASKED || c == BASE)
            walk_position<BASE, false, CB, EDGES, WALKERS>(s, k, lane, branch + base);
        else
            walk_position<BASE + MASKED, false, CB, EDGES, WALKERS>(s, k, lane, branch + base);
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

/* Back through a pass of one tile; the in-edge of position 0. */
template <class STEPS, int BASE, bool MASKED, int WALKERS, kd_codebook CB>
KD_DEV unsigned walk_in(const kd_gpu_search_args &a, float grid, tile_shared *s,
                        const uint16_t *kept, pass q, int buffer, int team, int lane,
                        uint16_t *states)
{
    constexpr int EDGES = 65536 >> BASE;
    unsigned edge = (unsigned)s->from[buffer];

    for (int end = q.second ? 256 : a.seam; end > 0;) {
        const int first = (end - 1) / a.segment * a.segment;
        edge = walk_segment<STEPS, BASE, MASKED, WALKERS, CB>(
            a, grid, s, kept + (int64_t)(first / a.segment) * EDGES, q, buffer, first, end - 1,
            edge, team, lane, states);
        end = first;
    }
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
