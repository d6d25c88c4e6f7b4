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
 * A block that has searched its tiles searches those whose costs passed the cap again on coarser
 * grids, as the CPU does. */
#ifndef KD_GPU_TRELLIS_SEARCH_CUH
#define KD_GPU_TRELLIS_SEARCH_CUH

#include "gpu/trellis_walk.cuh"

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
KD_DEV void make_plan(const kd_gpu_search_args &a, const TEAM &m, pass q, int t)
{
    for (int i = q.first_run + t; i <= q.stop; i += KD_GPU_WORKERS) {
        const int p = i - (q.second ? 0 : a.seam); /* from the ring's first position on */
        const unsigned at = (unsigned)(q.first + i);
        const tile_shared *s = m.tile;
        uint32_t w = s->target[q.which][at & 255u];
        if (PAIR)
            w = (w & 0xffffu) | (s[PAIR].target[q.which][at & 255u] & 0xffff0000u);
        const uint32_t flags = (is_kept(a, q, p) ? PLAN_KEEP : 0) |
                               (is_kept(a, q, p + 1) ? PLAN_NEXT : 0) |
                               (i % KD_SEARCH_LOWER == 0 && i > 0 ? PLAN_FIX : 0) |
                               (i % KD_SEARCH_LOWER == KD_SEARCH_LOWER - 1 ? PLAN_TRACK : 0) |
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
KD_DEV void run_position(const STEPS &steps, const TEAM &m, int k, position_plan now, int i,
                         int slot, int from, int t)
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
        if (!STEPS::raw && now.flags & PLAN_KEEP)
            keep(m.cost + k, from, 65536 >> in, t, fix, low,
                 m.kept + m.room * k + (int64_t)slot * EDGES, m.room);
        if (fix) {
            steps.template run<true, false>(m.cost + k, s, from, now.target, t, low, in, out);
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
            run_position<STEPS, BASE, MASKED>(steps, m, 0, now, i, slot, from, t);
        } else {
#pragma unroll 1
            for (int k = 0; k < m.tiles; k++)
                run_position<STEPS, BASE, MASKED>(
                    steps, m, k, {m.tile[k].target[q.which][(q.first + i) & 255], now.flags}, i,
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
    make_plan<STEPS::pair>(a, m, q, t);
    if (q.second) {
        unsigned bits = 0;
        for (int p = 0; p < a.segment; p++)
            bits += kd_rate_bits_at(a.rate, (unsigned)p);
        const unsigned edges =
            65536u >> (MASKED ? kd_rate_bits_at(a.rate, (unsigned)a.segment) : BASE);
        for (int k = 0; k < m.tiles; k++)
            for (unsigned x = (unsigned)t; x < 1u << bits; x += KD_GPU_WORKERS)
                m.set(0, k, (int)(((unsigned)m.tile[k].end[q.which] << bits | x) & (edges - 1)),
                      0x6400u + m.tile[k].open[q.which][x]);
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
KD_DEV pass pass_at(const kd_gpu_search_args &a, int64_t n)
{
    const bool second = (n & 2) != 0;
    return {(int)(n & 1),
            second ? 0 : 256 - a.seam,
            second ? a.segment : 0,
            second ? 256 - a.segment : 2 * a.seam,
            second ? a.segment : 0,
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
                        block_shared<(65536 >> BASE), TILES, STEPS::pair> *b,
                        const kd_search_grid &grid, const uint32_t *list, int64_t mine, bool last,
                        int t)
{
    const int64_t room = kd_gpu_search_pass(a.rate, a.segment);
    uint16_t *kept = a.kept + kd_block() * TILES * kd_gpu_search_kept(a.rate, a.segment);
    tile_shared *s = b->tile;

#pragma unroll 1
    for (int64_t n = 0; n < passes_of<TILES>(mine); n++) {
        const int tiles = tiles_of<TILES>(mine, n), buffer = (int)(n & 1);
        const pass q = pass_at(a, n);
        for (int k = 0; !q.second && t < 256 && k < tiles; k++)
            s[k].target[q.which][t] = STEPS::target_of(
                kd_search_target(grid, a.target[256 * tile_at(list, first_of<TILES>(n) + k) + t]));
        if (!is_vain(s, tiles, q, last) && tiles)
            run_pass<STEPS, BASE, MASKED>(
                a, steps,
                team<(65536 >> BASE), STEPS::pair>{b->cost, s, b->plan, tiles, buffer,
                                                   kept + buffer * TILES * room, room},
                q, t);
        kd_sync_block();
    }
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
        const pass q = pass_at(a, n);
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

/* Blocks of KD_GPU_WORKERS + KD_GPU_WALKERS threads and of kd_gpu_search_shared() bytes. A block
 * has tiles block, block + blocks, ..., and searches TILES of them side by side. */
template <class STEPS, int BASE, bool MASKED, int TILES>
KD_KERNEL void KD_BOUNDS(KD_GPU_WORKERS + KD_GPU_WALKERS, 1)
    kd_gpu_search_tiles(kd_gpu_search_args a)
{
    using namespace kd_trellis;
    KD_SHARED(memory);
    block_shared<(65536 >> BASE), TILES, STEPS::pair> *s =
        (block_shared<(65536 >> BASE), TILES, STEPS::pair> *)memory;
    const int t = kd_thread();
    uint32_t *again = a.again + kd_block();
    int64_t mine = (a.tiles - kd_block() + kd_blocks() - 1) / kd_blocks();

    /* 384 threads begin with 168 registers each; what the walkers give away keeps the workers'
     * inner loop free of copies. Where the walk binds it keeps more. */
    constexpr bool LONG_WALK = BASE == 2 || BASE == 3;
    if (t < KD_GPU_WORKERS) {
        kd_more_registers<LONG_WALK ? 208 : 216>();
        STEPS steps;
        for (unsigned level = 0; mine > 0 && level < KD_SEARCH_LEVELS; level++) {
            const kd_search_grid grid = kd_search_grid_of(a.rate, a.codebook, level);
            steps.begin(a, grid.grid, t);
            run_workers<STEPS, BASE, MASKED, TILES>(a, steps, s, grid, level ? again : nullptr,
                                                    mine, level + 1 == KD_SEARCH_LEVELS, t);
            if (t == 0)
                s->tile->again = gather_again(a, again, level, mine);
            kd_sync_block();
            mine = s->tile->again;
            kd_sync_block(); /* shared memory is used anew */
        }
    } else {
        kd_fewer_registers<LONG_WALK ? 88 : 72>();
        for (unsigned level = 0; mine > 0 && level < KD_SEARCH_LEVELS; level++) {
            const kd_search_grid grid = kd_search_grid_of(a.rate, a.codebook, level);
            run_walkers<STEPS, BASE, MASKED, TILES>(a, s, grid.grid, level ? again : nullptr, mine,
                                                    level + 1 == KD_SEARCH_LEVELS,
                                                    t - KD_GPU_WORKERS);
            kd_sync_block();
            mine = s->tile->again;
            kd_sync_block();
        }
    }
}

/* Bytes of shared memory a block of so many tiles, as a pair or each by itself. */
static inline int64_t kd_gpu_search_shared(struct kd_rate r, int tiles, bool pair)
{
    using namespace kd_trellis;
    const int64_t edges = 65536 >> r.base;
    return (pair ? edges / 4096 * BLOCK * 8 : edges * (edges <= 4096 ? 8 : 4) * tiles) +
           tiles * (int64_t)sizeof(tile_shared) + 258 * (int64_t)sizeof(position_plan);
}

#endif
