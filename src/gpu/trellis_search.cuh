/* The trellis search on a device: the states of kern/ref/trellis_ref.c, bit for bit.
 *
 * Up to 4 bits a position, costs are half floats 1024 + cost, differences half floats of D / 8, so
 * that one fused multiply-add gives the integer 1024 + cost + round(D^2 / 64) exactly
 * (num/trellis_step.h); above, differences are integers, costs are stored alike. Over
 * the cap the numbers grow on, inexact and at last infinite, until the next position at which the
 * least cost is subtracted; there they become infinite, which they stay.
 *
 * Threads. Up to 4 bits, all 65,536 values stay in the registers of 256 threads: state n * 4096 + 8
 * * l + q is q-th of row n of lane l, whatever the rate, since a rate only says which rows compete;
 * thread t has lanes t and t + 256. A position's costs lie in shared memory by edge, two buffers,
 * one barrier a position. Where they fit, two tiles are searched as a pair, a register having a
 * cost of each: their values are the same, and what a position costs beside its arithmetic is paid
 * once.
 *
 * No branches are recorded. Every `segment` positions the costs are kept in device memory (a pair's
 * by the copy engine, where there is one), and four more warps, one for each scheduler, walk back
 * through a finished pass while the eight run the next one: within a segment they evaluate the few
 * states that lead to the known end, a state a lane. A second pass starts and ends at one known
 * edge, so that its first segment and its last are theirs alone. Two groups of tiles take turns, so
 * that the walk is hidden; the tiles of a group share each barrier.
 *
 * Where memory is slow one tile is searched at a time and only cheap states' costs are kept, which
 * four more warps write (gpu/trellis_kept.cuh).
 *
 * A block that has searched its tiles searches those whose costs passed the cap again on coarser
 * grids, as the CPU does. */
#ifndef KD_GPU_TRELLIS_SEARCH_CUH
#define KD_GPU_TRELLIS_SEARCH_CUH

#include "gpu/trellis_kept.cuh"

KD_HD static constexpr int kd_gpu_search_threads(bool cheap)
{
    return KD_GPU_WORKERS + KD_GPU_WALKERS + (cheap ? KD_GPU_WRITERS : 0);
}

namespace kd_trellis
{

/* Four words of four columns of kept_place, from row `row` on, column m ^ turn as m-th. */
template <class COSTS>
KD_DEV void read_columns(const COSTS &c, int from, int column, int turn, int row, bool fix,
                         kd_h2 low, uint32_t v[4][4])
{
#pragma unroll
    for (int m = 0; m < 4; m++) {
        const uint4 u =
            *(const uint4 *)(c.of[from] + c.place((column + (m ^ turn)) * KEPT_ROWS + row));
        v[m][0] = u.x;
        v[m][1] = u.y;
        v[m][2] = u.z;
        v[m][3] = u.w;
    }
    if (fix)
#pragma unroll
        for (int m = 0; m < 16; m++)
            v[m / 4][m % 4] = lowered(v[m / 4][m % 4], low);
}

/* A position's costs to where they are kept, four columns of four rows of kept_place at a time. The
 * order in which a thread reads the columns keeps it off the banks of others; `order` puts them
 * right. Of a pair; room: from the first one's to the second one's. */
template <int EDGES>
KD_DEV void keep(const edge_costs<EDGES, true, false> *c, int from, int edges, int t, bool fix,
                 kd_h2 low, uint16_t *to, int64_t room)
{
    constexpr int ROW = EDGES / KEPT_ROWS;

#pragma unroll 2
    for (int i = t; i < edges / 16; i += KD_GPU_WORKERS) {
        const int four = i % 4, column = i / 4, turn = column % 2;
        const uint32_t first = turn ? 0x1054u : 0x5410u;
        uint32_t v[4][4];
        read_columns(*c, from, 4 * column, turn, 4 * four, fix, low, v);
#pragma unroll
        for (int r = 0; r < 4; r++) {
            uint16_t *at = to + (4 * four + r) * ROW + 4 * column;
            kd_store_once((uint2 *)at, make_uint2(kd_bytes(v[0][r], v[1][r], first),
                                                  kd_bytes(v[2][r], v[3][r], first)));
            kd_store_once((uint2 *)(at + room),
                          make_uint2(kd_bytes(v[0][r], v[1][r], first ^ 0x2222u),
                                     kd_bytes(v[2][r], v[3][r], first ^ 0x2222u)));
        }
    }
}
/* Of one tile; eight rows. */
template <int EDGES>
KD_DEV void keep(const edge_costs<EDGES, false, false> *c, int from, int edges, int t, bool fix,
                 kd_h2 low, uint16_t *to, int64_t)
{
    constexpr int ROW = EDGES / KEPT_ROWS;

#pragma unroll 1
    for (int i = t; i < edges / 32; i += KD_GPU_WORKERS) {
        const int eight = i % 2, column = i / 2, turn = column % 4;
        const uint32_t first = turn % 2 ? 0x1054u : 0x5410u;
        uint32_t v[4][4];
        read_columns(*c, from, 4 * column, turn, 8 * eight, fix, low, v);
#pragma unroll
        for (int r = 0; r < 8; r++) {
            /* Of the low or the high edge of a word. */
            const uint32_t pick = r % 2 ? first ^ 0x2222u : first;
            const uint32_t a = kd_bytes(v[0][r / 2], v[1][r / 2], pick),
                           b = kd_bytes(v[2][r / 2], v[3][r / 2], pick);
            kd_store_once((uint2 *)(to + (8 * eight + r) * ROW + 4 * column),
                          turn / 2 ? make_uint2(b, a) : make_uint2(a, b));
        }
    }
}

/* Of one tile over 4 bits; four columns of a row. */
template <int EDGES>
KD_DEV void keep(const edge_costs<EDGES, false, true> *c, int from, int edges, int t, bool fix,
                 kd_h2 low, uint16_t *to, int64_t)
{
    constexpr int ROW = EDGES / KEPT_ROWS;

#pragma unroll 1
    for (int i = t; i < edges / 4; i += KD_GPU_WORKERS) {
        const int row = i % KEPT_ROWS, column = i / KEPT_ROWS * 4;
        uint32_t v[4];
#pragma unroll
        for (int m = 0; m < 4; m++) {
            v[m] = c->get(from, 0, (column + m) * KEPT_ROWS + row);
            v[m] = fix ? lowered(v[m], low) & 0xffffu : v[m];
        }
        kd_store_once((uint2 *)(to + row * ROW + column),
                      make_uint2(v[0] | v[1] << 16, v[2] | v[3] << 16));
    }
}

/* What a block has of the tiles of a pass. */
template <int EDGES, bool PAIR> struct team {
    edge_costs<EDGES, PAIR> *cost; /* of each tile, or of the pair */
    tile_shared *tile;
    position_plan *plan;
    int tiles, buffer; /* tiles that are there; which of the two groups */
    uint16_t *kept;    /* of the first tile, */
    int64_t room;      /* so many for each */
    kept_shared *near; /* where only cheap states' costs are kept */

    KD_DEV uint32_t get(int from, int k, int edge) const
    {
        return cost[PAIR ? 0 : k].get(from, PAIR ? k : 0, edge);
    }
    KD_DEV void set(int from, int k, int edge, uint32_t bits) const
    {
        cost[PAIR ? 0 : k].set(from, PAIR ? k : 0, edge, bits);
    }
};

/* Bits of what is least after a position: of the tile, twice, or of both tiles. */
template <bool PAIR> KD_DEV uint32_t least_bits(const tile_shared *s, int from)
{
    const uint32_t m = least_of(s, from);
    return m | (PAIR ? least_of(s + 1, from) : m) << 16;
}
template <bool PAIR> KD_DEV void note(int16_t *of_first, int16_t *of_second, uint32_t bits)
{
    *of_first = (int16_t)((bits & 0xffffu) - 0x6400u);
    if (PAIR)
        *of_second = (int16_t)((bits >> 16) - 0x6400u);
}

/* Before a pass: what is to be done at each of its positions. */
template <bool PAIR, class TEAM>
KD_DEV void make_plan(const kd_gpu_search_args &a, const TEAM &m, pass q, bool cheap, int t)
{
    for (int i = q.first_run + t; i <= q.stop; i += KD_GPU_WORKERS) {
        const int p = i - (q.second ? 0 : a.seam); /* from the ring's first position on */
        const unsigned at = (unsigned)(q.first + i);
        const tile_shared *s = m.tile;
        uint32_t w = s->target[q.which][at & 255u];
        if (PAIR)
            w = (w & 0xffffu) | (s[PAIR].target[q.which][at & 255u] & 0xffff0000u);
        const uint32_t flags =
            (is_kept(a, q, p) ? PLAN_KEEP : 0) | (is_kept(a, q, p + 1) ? PLAN_NEXT : 0) |
            (i % KD_SEARCH_LOWER == 0 && i > 0 ? PLAN_FIX : 0) |
            (i % KD_SEARCH_LOWER == KD_SEARCH_LOWER - 1 || (cheap && is_kept(a, q, p + 1))
                 ? PLAN_TRACK
                 : 0) |
            (kd_rate_bits_at(a.rate, at) > a.rate.base ? PLAN_IN : 0) |
            (kd_rate_bits_at(a.rate, at + 1) > a.rate.base ? PLAN_OUT : 0);
        m.plan[i - q.first_run] = {w, flags};
    }
}

/* Of a pair, as they lie: warps 0 to 3 have a part each sent. */
template <int EDGES>
KD_DEV void keep_raw(const edge_costs<EDGES, true> *c, int from, int edges, int t, uint16_t *to)
{
    if (t % 32 == 0 && t / 32 < edges / 4096)
        kd_copy_out((uint32_t *)to + t / 32 * BLOCK, c->of[from] + t / 32 * BLOCK, BLOCK * 4);
}

/* One position: of tile k, or of a pair. slot: where costs are kept. */
template <class STEPS, int BASE, bool MASKED, class TEAM>
KD_DEV void run_position(const kd_gpu_search_args &a, const STEPS &steps, const TEAM &m, int k,
                         position_plan now, int i, int slot, int from, int t)
{
    constexpr bool PAIR = STEPS::pair;
    constexpr int EDGES = 65536 >> BASE;
    const int in = BASE + (MASKED && (now.flags & PLAN_IN)),
              out = BASE + (MASKED && (now.flags & PLAN_OUT));
    tile_shared *s = m.tile + k;

    if (now.flags & (PLAN_KEEP | PLAN_FIX | PLAN_TRACK)) {
        const bool fix = now.flags & PLAN_FIX;
        kd_h2 low = kd_bits_h2(0);
        if constexpr (STEPS::raw) {
            if (now.flags & PLAN_KEEP)
                keep_raw(m.cost, from, 65536 >> in, t,
                         m.kept + (int64_t)slot * kept_costs<EDGES, true>::halves);
        }
        if (fix) {
            const uint32_t least = least_bits<PAIR>(s, from);
            low = kd_h2_sub(kd_bits_h2(least), kd_bits_h2(ZERO));
            if (t == 0)
                note<PAIR>(&s->low[m.buffer][i / KD_SEARCH_LOWER - 1],
                           &s[PAIR].low[m.buffer][i / KD_SEARCH_LOWER - 1], least);
        }
        if constexpr (STEPS::cheap) {
            if (now.flags & PLAN_KEEP)
                keep_cheap(a, m.cost, s, m.near, from, 65536 >> in, t, fix, m.buffer, slot);
        } else if (!STEPS::raw && now.flags & PLAN_KEEP)
            keep(m.cost + k, from, 65536 >> in, t, fix, low,
                 m.kept + m.room * k + (int64_t)slot * EDGES, m.room);
        if (fix) {
            steps.template run<true, STEPS::cheap>(m.cost + k, s, from, now.target, t, low, in,
                                                   out);
            return;
        }
        if (now.flags & PLAN_TRACK) {
            steps.template run<false, true>(m.cost + k, s, from, now.target, t, low, in, out);
            return;
        }
    }
    steps.template run<false, false>(m.cost + k, s, from, now.target, t, kd_bits_h2(0), in, out);
}

/* The positions that the workers run: one barrier for all tiles. */
template <class STEPS, int BASE, bool MASKED, class TEAM>
KD_DEV void run_positions(const kd_gpu_search_args &a, const STEPS &steps, const TEAM &m, pass q,
                          int t)
{
    constexpr int EDGES = 65536 >> BASE;
    const position_plan *plan = m.plan;
    position_plan now = *plan;
    int from = 0, slot = segment_at(a, q, q.begin);

#pragma unroll 1
    for (int i = q.first_run; i < q.stop; i++) {
        const position_plan later = *++plan; /* well before it is needed */
        if constexpr (STEPS::pair) {
            run_position<STEPS, BASE, MASKED>(a, steps, m, 0, now, i, slot, from, t);
        } else {
#pragma unroll 1
            for (int k = 0; k < m.tiles; k++)
                run_position<STEPS, BASE, MASKED>(
                    a, steps, m, k, {m.tile[k].target[q.which][(q.first + i) & 255], now.flags}, i,
                    slot, from, t);
        }
        if (now.flags & PLAN_KEEP) {
            slot--;
            if (STEPS::raw)
                kd_copy_out_read();
        }
        if (STEPS::raw && now.flags & PLAN_NEXT)
            kd_copy_out_ready();
        from ^= 1;
        now = later;
        kd_sync_first<KD_GPU_WORKERS>();
    }
    if constexpr (STEPS::raw) {
        if (q.second)
            keep_raw(m.cost, from, EDGES >> (MASKED && (now.flags & PLAN_IN)), t, m.kept);
        kd_copy_out_done();
    } else if constexpr (STEPS::cheap) {
        if (q.second)
            keep_cheap(a, m.cost, m.tile, m.near, from, EDGES >> (MASKED && (now.flags & PLAN_IN)),
                       t, false, m.buffer, 0);
    } else {
        for (int k = 0; q.second && k < (STEPS::pair ? 1 : m.tiles); k++)
            keep(m.cost + k, from, EDGES >> (MASKED && (now.flags & PLAN_IN)), t, false,
                 kd_bits_h2(0), m.kept + m.room * k, m.room);
    }
}

/* The lowest edge among the cheapest in buffer 0 of tile k, whose cost is `least`. */
template <class TEAM> KD_DEV int cheapest(const TEAM &m, int k, int edges, uint32_t least, int t)
{
    tile_shared *s = m.tile + k;
    uint32_t at = 0xffffu;

    for (int e = t; e < edges; e += KD_GPU_WORKERS)
        if (at == 0xffffu && (least >= CAP || m.get(0, k, e) == least)) /* all at the cap: edge 0 */
            at = (uint32_t)e;
    leave_least(s, 1, t, at);
    kd_sync_first<KD_GPU_WORKERS>();
    return (int)least_of(s, 1);
}

/* A pass of the workers. The first has a multiple of KD_SEARCH_LOWER positions, so its costs end in
 * buffer 0. */
template <class STEPS, int BASE, bool MASKED, class TEAM>
KD_DEV void run_pass(const kd_gpu_search_args &a, const STEPS &steps, const TEAM &m, pass q, int t)
{
    const uint32_t v = q.second ? CAPS : ZERO;
    for (int k = 0; k < (STEPS::pair ? 1 : m.tiles); k++)
        m.cost[k].fill(t, v);
    kd_sync_first<KD_GPU_WORKERS>();
    make_plan<STEPS::pair>(a, m, q, STEPS::cheap, t);
    if (q.second) {
        unsigned bits = 0;
        for (int p = 0; p < a.segment; p++)
            bits += kd_rate_bits_at(a.rate, (unsigned)p);
        const unsigned edges =
            65536u >> (MASKED ? kd_rate_bits_at(a.rate, (unsigned)a.segment) : BASE);
        for (int k = 0; k < m.tiles; k++) {
            uint32_t least = CAP;
            for (unsigned x = (unsigned)t; x < 1u << bits; x += KD_GPU_WORKERS) {
                const uint32_t cost = 0x6400u + m.tile[k].open[q.which][x];
                m.set(0, k, (int)(((unsigned)m.tile[k].end[q.which] << bits | x) & (edges - 1)),
                      cost);
                least = cost < least ? cost : least;
            }
            if (STEPS::cheap)
                leave_least(m.tile + k, 0, t, least);
        }
        if (STEPS::raw)
            kd_copy_out_ready();
    }
    kd_sync_first<KD_GPU_WORKERS>();
    run_positions<STEPS, BASE, MASKED>(a, steps, m, q, t);
    for (int k = 0; k < m.tiles; k++) {
        tile_shared *s = m.tile + k;
        if (q.second) {
            if (t == 0)
                s->from[m.buffer] = s->end[q.which];
            continue;
        }
        const uint32_t least = least_of(s, 0);
        if (t == 0)
            s->low[m.buffer][2 * a.seam / KD_SEARCH_LOWER - 1] = (int16_t)(least - 0x6400u);
        const int edge = cheapest(
            m, k, 65536 >> (MASKED ? (int)kd_rate_bits_at(a.rate, (unsigned)a.seam) : BASE), least,
            t);
        if (t == 0) {
            s->from[m.buffer] = edge;
            s->good[q.which] = least < CAP;
        }
    }
}

/* A block's tiles on one grid: number i of `mine` is list[i * blocks], or tile block + i * blocks.
 */
KD_DEV int64_t tile_at(const uint32_t *list, int64_t i)
{
    return list ? list[i * kd_blocks()] : kd_block() + i * kd_blocks();
}

/* Pass number n: pair of groups n / 4, group n % 2 of it, the second pass when n & 2. Walkers are
 * one pass behind. All of this is the same for a whole warp, so the two have loops of their own. */
KD_DEV pass pass_at(const kd_gpu_search_args &a, int64_t n, bool cheap)
{
    const bool second = (n & 2) != 0;
    const int most = (a.seam - 1) / a.segment, before = most < KEPT_BEFORE ? most : KEPT_BEFORE;
    return {(int)(n & 1),
            second ? 0 : 256 - a.seam,
            second ? a.segment : 0,
            second ? 256 - a.segment : 2 * a.seam,
            second  ? a.segment
            : cheap ? -before * a.segment
                    : 0,
            second ? 256 : a.seam,
            second};
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

/* Whether a second pass is for nothing: the costs of all its tiles passed the cap in the first, and
 * there is a coarser grid. */
KD_DEV bool is_vain(const tile_shared *s, int tiles, pass q, bool last)
{
    bool good = last || !q.second;

    for (int k = 0; k < tiles; k++)
        good |= s[k].good[q.which];
    return !good;
}

template <class STEPS, int BASE, bool MASKED, int TILES>
KD_DEV void run_workers(const kd_gpu_search_args &a, const STEPS &steps,
                        block_shared<(65536 >> BASE), TILES, STEPS::pair> *b, kept_shared *near,
                        const kd_search_grid &grid, const uint32_t *list, int64_t mine, bool last,
                        int t)
{
    const int64_t room = kd_gpu_search_pass(a.rate, a.segment);
    uint16_t *kept = a.kept + kd_block() * TILES * kd_gpu_search_kept(a.rate, a.segment);
    tile_shared *s = b->tile;

#pragma unroll 1
    for (int64_t n = 0; n < passes_of<TILES>(mine); n++) {
        const int tiles = tiles_of<TILES>(mine, n), buffer = (int)(n & 1);
        const pass q = pass_at(a, n, STEPS::cheap);
        for (int k = 0; !q.second && t < 256 && k < tiles; k++)
            s[k].target[q.which][t] = STEPS::target_of(
                kd_search_target(grid, a.target[256 * tile_at(list, first_of<TILES>(n) + k) + t]));
        if (!is_vain(s, tiles, q, last) && tiles)
            run_pass<STEPS, BASE, MASKED>(
                a, steps,
                team<(65536 >> BASE), STEPS::pair>{b->cost, s, b->plan, tiles, buffer,
                                                   kept + buffer * TILES * room, room, near},
                q, t);
        kd_sync_block();
    }
    if (STEPS::cheap)
        kd_meet<KD_GPU_WORKERS + KD_GPU_WRITERS>(FREE);
    kd_sync_block();
}

template <class STEPS, int BASE, bool MASKED, int TILES>
KD_DEV void run_walkers(const kd_gpu_search_args &a,
                        block_shared<(65536 >> BASE), TILES, STEPS::pair> *b, float grid,
                        const uint32_t *list, int64_t mine, bool last, int t)
{
    constexpr int WALKERS = KD_GPU_WALKERS / TILES; /* of a tile */
    const int64_t room = kd_gpu_search_pass(a.rate, a.segment);
    const uint16_t *kept = a.kept + kd_block() * TILES * kd_gpu_search_kept(a.rate, a.segment);
    const int k = t / WALKERS, lane = t % WALKERS;
    tile_shared *s = b->tile + k;

    kd_sync_block();
#pragma unroll 1
    for (int64_t n = 0; n < passes_of<TILES>(mine); n++) {
        const int tiles = tiles_of<TILES>(mine, n), buffer = (int)(n & 1);
        const pass q = pass_at(a, n, false);
        if (k < tiles) {
            const int64_t tile = tile_at(list, first_of<TILES>(n) + k);
            if (q.second && !last && !s->good[q.which]) {
                if (lane == 0)
                    a.good[tile] = 0;
                kd_sync_block();
                continue;
            }
            const unsigned edge = walk<STEPS, BASE, MASKED, WALKERS>(
                a, grid, s,
                STEPS::raw ? kept + buffer * TILES * room + k : kept + (buffer * TILES + k) * room,
                q, buffer, k, lane, q.second ? a.states + 256 * tile : nullptr);
            if (lane == 0 && !q.second)
                s->end[q.which] = (int)edge;
            if (lane == 0 && q.second)
                a.good[tile] = s->good[q.which];
        }
        kd_sync_block();
    }
}

/* From one keep to the next, in bytes. */
template <int BASE> KD_DEV int64_t kept_step(void)
{
    return (int64_t)(65536 >> BASE) * 2;
}

/* Where the walk of pass q of a tile begins. */
KD_DEV kept_place place_of(const tile_shared *s, pass q, int buffer)
{
    const int at = ((q.end - 1 - q.first) & 255) / KD_SEARCH_LOWER;
    return {
        q.end, q.second ? 0 : s->low[buffer][at], 0, (unsigned)s->from[buffer], s->good[q.which],
        false};
}

/* After the walk of pass q of a tile. */
template <class STEPS>
KD_DEV void leave_place(const kept_walk *w, const kept_place &at, tile_shared *s, int64_t tile)
{
    const int which = w->q.which;

    if (!w->q.second && at.good && !at.undecided) {
        if (w->a->codebook == KD_CB_MUL1)
            walk_open<STEPS, KD_GPU_WALKERS, KD_CB_MUL1>(*w->a, w->grid, s, w->q, at.edge, 0,
                                                         w->lane);
        else if (w->a->codebook == KD_CB_MCG)
            walk_open<STEPS, KD_GPU_WALKERS, KD_CB_MCG>(*w->a, w->grid, s, w->q, at.edge, 0,
                                                        w->lane);
        else
            walk_open<STEPS, KD_GPU_WALKERS, KD_CB_3INST>(*w->a, w->grid, s, w->q, at.edge, 0,
                                                          w->lane);
    }
    if (w->lane)
        return;
    if (w->q.second) {
        w->a->good[tile] = w->x->undecided[which] || at.undecided ? KEPT_UNDECIDED : at.good;
        return;
    }
    s->end[which] = (int)at.edge;
    w->x->undecided[which] = at.undecided;
    s->good[which] = at.good && !at.undecided;
}

/* The walkers where only cheap states' costs are kept. */
template <class STEPS, int BASE, bool MASKED>
KD_DEV void run_cheap_walkers(const kd_gpu_search_args &a, tile_shared *s, kept_shared *x,
                              float grid, int64_t mine, int lane)
{
    const uint8_t *kept =
        (const uint8_t *)(a.kept + kd_block() * kd_gpu_search_kept(a.rate, a.segment));
    const int64_t room = kd_gpu_search_pass(a.rate, a.segment) * 2;
    unsigned read = 0, walked = 0;

    kd_sync_block();
#pragma unroll 1
    for (int64_t n = 0; n < passes_of<1>(mine); n++) {
        const int buffer = (int)(n & 1);
        const pass q = pass_at(a, n, true);
        if (tiles_of<1>(mine, n)) {
            const int64_t tile = tile_at(nullptr, first_of<1>(n));
            uint16_t *states = q.second ? a.states + 256 * tile : nullptr;
            kept_walk w = {
                &a, s,    x,     kept + buffer * room, kept_step<BASE>(), q, grid, buffer, lane,
                0,  read, walked};
            kept_place at = place_of(s, q, buffer);
#pragma unroll 1
            while (at.end > 0 && at.good)
                walk_cheap_in<STEPS, BASE, MASKED>(&w, &at, states);
            leave_place<STEPS>(&w, at, s, tile);
            read = w.read;
            walked = w.walked;
        }
        kd_sync_block();
    }
    if (lane == 31) {
        a.moved[kd_block() * KD_GPU_KEPT_MOVED + 4] = read;
        a.moved[kd_block() * KD_GPU_KEPT_MOVED + 5] = walked;
    }
}

/* The writers of such a round. */
template <int BASE, bool MASKED>
KD_DEV void run_writers(const kd_gpu_search_args &a, const tile_shared *s, kept_shared *x,
                        int64_t mine, int lane)
{
    uint8_t *kept = (uint8_t *)(a.kept + kd_block() * kd_gpu_search_kept(a.rate, a.segment));
    const int64_t room = kd_gpu_search_pass(a.rate, a.segment) * 2;
    unsigned written = 0;

    kd_arrive<KD_GPU_WORKERS + KD_GPU_WRITERS>(FREE);
#pragma unroll 1
    for (int64_t n = 0; n < passes_of<1>(mine); n++) {
        const int buffer = (int)(n & 1);
        const pass q = pass_at(a, n, true);
        int slot =
            tiles_of<1>(mine, n) && !is_vain(s, 1, q, false) ? segment_at(a, q, q.begin) : -1;
#pragma unroll 1
        for (; slot >= 0; slot--) {
            const int bits =
                MASKED ? (int)kd_rate_bits_at(a.rate, (unsigned)kept_position(a, q, slot)) : BASE;
            written += write_groups(x, kept + buffer * room + kept_step<BASE>() * slot, buffer,
                                    slot, (65536 >> bits) / KEPT_ROWS, lane);
        }
        kd_sync_block();
    }
    kd_sync_block();
    if (lane % 32 == 0)
        a.moved[kd_block() * KD_GPU_KEPT_MOVED + lane / 32] = written;
}
/* Of a round where all costs are kept: they wait with the others. */
template <int TILES> KD_DEV void idle_writers(int64_t mine)
{
    for (int64_t n = 0; n <= passes_of<TILES>(mine); n++)
        kd_sync_block();
}

/* A round of a block: where only cheap states' costs are kept one with that, and one with all costs
 * of the tiles that it left undecided; then, or at once, one on each coarser grid. list: of
 * `again`. */
struct search_round {
    unsigned level;
    bool cheap, list;
    int64_t mine;
};
/* All threads of a block; there is none once the level is KD_SEARCH_LEVELS. */
template <bool CHEAP> KD_DEV search_round round_after(const search_round &r, const tile_shared *s)
{
    const int64_t mine = s->again;

    kd_sync_block(); /* shared memory is used anew */
    return {mine || r.cheap ? r.level + !r.cheap : (unsigned)KD_SEARCH_LEVELS, false, true, mine};
}

/* One thread, after a round: which of a block's tiles are to be searched again; how many. After the
 * one for undecided tiles these are all that have passed their caps so far. */
template <bool CHEAP>
KD_DEV int64_t gather_again(const kd_gpu_search_args &a, const search_round &r, uint32_t *again,
                            int64_t all)
{
    const bool anew = CHEAP && r.list && r.level == 0;
    const uint32_t *list = r.list && !anew ? again : nullptr;
    int64_t bad = 0;

    for (int64_t i = 0; i < (anew ? all : r.mine); i++) {
        const int64_t tile = tile_at(list, i);
        if (a.good[tile] != (r.cheap ? KEPT_UNDECIDED : 0))
            continue;
        again[bad++ * kd_blocks()] = (uint32_t)tile;
        if (r.level + 1 == KD_SEARCH_LEVELS) /* no path: the ring is not closed by itself */
            kd_ring_close(a.rate, a.states + 256 * tile);
    }
    if (r.cheap)
        a.moved[kd_block() * KD_GPU_KEPT_MOVED + 6] = (uint64_t)bad;
    return bad;
}

} // namespace kd_trellis

/* Blocks of kd_gpu_search_threads() threads and of kd_gpu_search_shared() bytes. A block has tiles
 * block, block + blocks, ..., and searches TILES of them side by side. */
template <class STEPS, int BASE, bool MASKED, int TILES>
KD_KERNEL void KD_BOUNDS(kd_gpu_search_threads(STEPS::cheap), 1)
    kd_gpu_search_tiles(kd_gpu_search_args a)
{
    using namespace kd_trellis;
    KD_SHARED(memory);
    block_shared<(65536 >> BASE), TILES, STEPS::pair> *s =
        (block_shared<(65536 >> BASE), TILES, STEPS::pair> *)memory;
    kept_shared *near = (kept_shared *)(s + 1);
    const int t = kd_thread();
    uint32_t *again = a.again + kd_block();
    const int64_t all = (a.tiles - kd_block() + kd_blocks() - 1) / kd_blocks();
    search_round r = {0, STEPS::cheap, false, all};

    /* 384 threads begin with 168 registers each, 512 with 128; what the others give away keeps the
     * workers' inner loop free of copies. Where the walk binds it keeps more. */
    constexpr bool LONG_WALK = BASE == 2 || BASE == 3;
    if (t < KD_GPU_WORKERS) {
        kd_more_registers<STEPS::cheap ? 192 : LONG_WALK ? 208 : 216>();
        STEPS steps;
        for (; r.level < KD_SEARCH_LEVELS; r = round_after<STEPS::cheap>(r, s->tile)) {
            const kd_search_grid grid = kd_search_grid_of(a.rate, a.codebook, r.level);
            const uint32_t *list = r.list ? again : nullptr;
            steps.begin(a, grid.grid, t);
            if (r.cheap)
                run_workers<STEPS, BASE, MASKED, TILES>(a, steps, s, near, grid, list, r.mine,
                                                        false, t);
            else
                run_workers<typename STEPS::dense, BASE, MASKED, TILES>(
                    a, steps, s, near, grid, list, r.mine, r.level + 1 == KD_SEARCH_LEVELS, t);
            if (t == 0)
                s->tile->again = gather_again<STEPS::cheap>(a, r, again, all);
            kd_sync_block();
        }
    } else if (t < KD_GPU_WORKERS + KD_GPU_WALKERS) {
        kd_fewer_registers<LONG_WALK ? 88 : 72>();
        for (; r.level < KD_SEARCH_LEVELS; r = round_after<STEPS::cheap>(r, s->tile)) {
            const kd_search_grid grid = kd_search_grid_of(a.rate, a.codebook, r.level);
            if constexpr (STEPS::cheap) {
                if (r.cheap)
                    run_cheap_walkers<STEPS, BASE, MASKED>(a, s->tile, near, grid.grid, r.mine,
                                                           t - KD_GPU_WORKERS);
            }
            if (!r.cheap)
                run_walkers<typename STEPS::dense, BASE, MASKED, TILES>(
                    a, s, grid.grid, r.list ? again : nullptr, r.mine,
                    r.level + 1 == KD_SEARCH_LEVELS, t - KD_GPU_WORKERS);
            kd_sync_block();
        }
    } else if constexpr (STEPS::cheap) {
        kd_fewer_registers<40>();
        for (; r.level < KD_SEARCH_LEVELS; r = round_after<true>(r, s->tile)) {
            if (r.cheap)
                run_writers<BASE, MASKED>(a, s->tile, near, r.mine,
                                          t - KD_GPU_WORKERS - KD_GPU_WALKERS);
            else
                idle_writers<TILES>(r.mine);
            kd_sync_block();
        }
    }
}

/* Bytes of shared memory a block of so many tiles, as a pair or each by itself. */
static inline int64_t kd_gpu_search_shared(struct kd_rate r, int tiles, bool pair, bool cheap)
{
    using namespace kd_trellis;
    const int64_t edges = 65536 >> r.base;
    return (pair ? edges / 4096 * BLOCK * 8 : edges * (edges <= 4096 ? 8 : 4) * tiles) +
           tiles * (int64_t)sizeof(tile_shared) + 258 * (int64_t)sizeof(position_plan) +
           (cheap ? (int64_t)sizeof(kept_shared) : 0);
}

#endif
