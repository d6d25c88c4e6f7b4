/* Costs of one tile kept where memory is slow: of the cheap states alone, and how a walk does with
 * them.
 *
 * A path that is best in the end was cheap on its way: of 16,384 states those within `range` of the
 * least, one in twelve, hold the path's state 19 times of 20. They lie together, since four states
 * that follow the same four (a group) share their costs but for one position. So the workers leave
 * costs in shared memory as bytes, cut at the limit, and the walkers, who have time, write the
 * groups with a state under it to device memory, with a bit for each.
 *
 * A walk back knows what its end costs: the end of a pass by itself, each edge before it from the
 * one after. So it need not find the least of what leads there, but the first state, in the order
 * of branches that decides between equals, whose cost and way add up. A state that was kept is
 * right if they do. Of one that was not, its cost would be the difference, and may be if that is
 * not under the limit: whether it is, the same question answers for the segment before. Branches of
 * such questions are rare and end soon; a tile with too many is searched again with all its costs
 * kept. */
#ifndef KD_GPU_TRELLIS_KEPT_CUH
#define KD_GPU_TRELLIS_KEPT_CUH

#include "gpu/trellis_walk.cuh"

enum {
    KD_GPU_KEPT_MOVED = 8 /* counts of a block: sectors of 32 bytes written by each warp, read;
                             segments walked; tiles to be searched again; none */
};
/* So far over the least, at most 255: what keeps a tile's traffic under 400 KB at 2 bits; where a
 * mask adds some, [1], fewer questions are worth more. */
constexpr int KD_GPU_KEPT_RANGE[2] = {122, 160};

namespace kd_trellis
{

enum {
    KEPT_CLASSES = 4,                          /* group e / 4 of edge e: class e / 4 % 4 */
    KEPT_COLUMNS = 1024,                       /* of a class, at most */
    KEPT_RUN = 16,                             /* of them that a lane of a writer looks at */
    KEPT_BITS = KEPT_COLUMNS / 8,              /* bytes of a class: a bit a group, */
    KEPT_CLASS = KEPT_BITS + 4 * KEPT_COLUMNS, /* then the groups, first bytes first */
    KEPT_MOST = 88,       /* in a pass, whose segments have three positions and more */
    KEPT_BEFORE = 6,      /* segments before the ring's first position whose costs are kept too */
    KEPT_LEVELS = 16,     /* segments that a question may lead back */
    KEPT_ANSWERS = 4,     /* that are looked for at a time */
    KEPT_QUESTIONS = 128, /* of one segment */
    KEPT_UNDECIDED = 2    /* in kd_gpu_search_args.good */
};
enum { READY = 0, FREE = 1 }; /* barriers of `near`: its bytes are there; they have been read */
constexpr unsigned NO_WAY = ~0u, GIVE_UP = ~0u - 1;

struct alignas(16) kept_shared {
    /* four costs a word, the lower eight bits; a gap after each run */
    uint32_t near[KEPT_CLASSES][KEPT_COLUMNS + KEPT_COLUMNS / KEPT_RUN + 8];
    uint8_t row[2][KEPT_COLUMNS];                   /* what a walk needs: of two classes at most */
    int16_t limit[2][KEPT_MOST], low[2][KEPT_MOST]; /* of each group of tiles and keep: what costs
                                         were cut at, before `low` was subtracted */
    bool undecided[2];
};

/* The workers' part: the costs before a position, cut at `limit`, as bytes. */
template <int EDGES>
KD_DEV void keep_near(const edge_costs<EDGES, false> *c, int from, int edges, int t, uint32_t limit,
                      kept_shared *x)
{
    const kd_h2 most = kd_bits_h2(limit * 0x10001u);
    const uint4 *in = (const uint4 *)c->of[from];

#pragma unroll 4
    for (int i = t; i < edges / 8; i += KD_GPU_WORKERS) {
        const uint4 u = in[i];
        const uint32_t a = kd_h2_bits(kd_h2_min(kd_bits_h2(u.x), most)),
                       b = kd_h2_bits(kd_h2_min(kd_bits_h2(u.y), most)),
                       d = kd_h2_bits(kd_h2_min(kd_bits_h2(u.z), most)),
                       e = kd_h2_bits(kd_h2_min(kd_bits_h2(u.w), most));
        const int at = i / 2 + i / 2 / KEPT_RUN;
        x->near[i % 2 * 2][at] = kd_bytes(a, b, 0x6420u);
        x->near[i % 2 * 2 + 1][at] = kd_bytes(d, e, 0x6420u);
    }
}

/* What costs are cut at where the least has these bits, as bits; nothing over the cap. */
KD_DEV uint32_t kept_limit(const kd_gpu_search_args &a, uint32_t least)
{
    const uint32_t limit = (least < CAP ? least : CAP) + (uint32_t)a.range;
    return limit < CAP ? limit : CAP;
}

/* The keep number `slot`, in the order of segments from the end, of one group of tiles. */
template <int EDGES>
KD_DEV void keep_cheap(const kd_gpu_search_args &a, const edge_costs<EDGES, false> *c,
                       const tile_shared *s, kept_shared *x, int from, int edges, int t, bool fix,
                       int buffer, int slot)
{
    const uint32_t least = least_of(s, from), limit = kept_limit(a, least);

    kd_meet<KD_GPU_WORKERS + KD_GPU_WRITERS>(FREE);
    keep_near(c, from, edges, t, limit, x);
    if (t == 0) {
        x->limit[buffer][slot] = (int16_t)(limit - 0x6400u);
        x->low[buffer][slot] = fix ? (int16_t)(least - 0x6400u) : 0;
    }
    kd_arrive<KD_GPU_WORKERS + KD_GPU_WRITERS>(READY);
}

/* Sectors of a class's bits, of `planes` of its groups' four bytes. */
KD_DEV unsigned kept_sectors(unsigned planes, unsigned groups)
{
    return KEPT_BITS / 32 + planes * ((groups + 31) / 32);
}

/* Of half a class, a run a lane: groups with a state under the limit to `list` from `count` on, in
 * order, and their bits. Lists lie where the costs were, up to these at most. */
KD_DEV unsigned gather_groups(const uint32_t *from, uint32_t none, uint32_t *list, unsigned count,
                              uint16_t *bits)
{
    uint32_t word[KEPT_RUN], mask = 0;

#pragma unroll
    for (int k = 0; k < KEPT_RUN; k++)
        word[k] = from[k];
#pragma unroll
    for (int k = 0; k < KEPT_RUN; k++)
        mask |= word[k] != none ? 1u << k : 0;
    const unsigned mine = kd_bits_set(mask);
    unsigned upto = mine;
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        const unsigned other = kd_shuffle_up(upto, by);
        upto += kd_thread() % 32 >= by ? other : 0;
    }
    uint32_t *at = list + count + upto - mine;
    kd_sync_warp(); /* all have read */
#pragma unroll
    for (int k = 0; k < KEPT_RUN; k++)
        if (word[k] != none)
            *at++ = word[k];
    kd_store_once(bits, mask);
    return count + kd_shuffle(upto, 31);
}

/* The writers' part, a class a warp: groups with a state under the limit to device memory, in
 * order. Sectors that this wrote. */
KD_DEV unsigned write_groups(kept_shared *x, uint8_t *to, int buffer, int slot, int columns,
                             int lane)
{
    static_assert(KD_GPU_WRITERS / 32 == KEPT_CLASSES, "a warp a class");
    constexpr int HALF = 32 * KEPT_RUN;
    const int l = lane % 32;
    uint32_t *near = x->near[lane / 32];
    uint16_t *bits = (uint16_t *)(to + lane / 32 * KEPT_CLASS) + l;
    uint8_t *planes = to + lane / 32 * KEPT_CLASS + KEPT_BITS;
    unsigned count = 0;

    kd_meet<KD_GPU_WORKERS + KD_GPU_WRITERS>(READY);
    const uint32_t none = ((uint32_t)x->limit[buffer][slot] & 0xffu) * 0x01010101u;
#pragma unroll 1
    for (int first = 0; first < columns; first += HALF)
        count = gather_groups(near + (first / KEPT_RUN + l) * (KEPT_RUN + 1), none, near, count,
                              bits + first / KEPT_RUN);
    if (columns < 2 * HALF)
        kd_store_once(bits + 32, 0u);
    kd_sync_warp();
#pragma unroll 1
    for (unsigned i = 4 * (unsigned)l; i < count;
         i += 128) { /* bytes after the last are nobody's */
        const uint4 v = *(const uint4 *)(near + i);
        const uint32_t a = kd_bytes(v.x, v.y, 0x5140u), b = kd_bytes(v.x, v.y, 0x7362u),
                       c = kd_bytes(v.z, v.w, 0x5140u), d = kd_bytes(v.z, v.w, 0x7362u);
        kd_store_once((uint32_t *)(planes + i), kd_bytes(a, c, 0x5410u));
        kd_store_once((uint32_t *)(planes + KEPT_COLUMNS + i), kd_bytes(a, c, 0x7632u));
        kd_store_once((uint32_t *)(planes + 2 * KEPT_COLUMNS + i), kd_bytes(b, d, 0x5410u));
        kd_store_once((uint32_t *)(planes + 3 * KEPT_COLUMNS + i), kd_bytes(b, d, 0x7632u));
    }
    kd_arrive<KD_GPU_WORKERS + KD_GPU_WRITERS>(FREE);
    return kept_sectors(4, count);
}

/* What a walk of one tile has: all of a pass. */
struct kept_walk {
    const kd_gpu_search_args *a;
    const tile_shared *s;
    kept_shared *x;
    const uint8_t *kept; /* of number 0 */
    int64_t step;        /* to the next one */
    pass q;
    float grid;
    int buffer, lane, meeting;
    unsigned read, walked; /* sectors (lane 31's); segments */
};

/* The costs of one class before a segment, a byte a column, to x->row: those that are `byte` of
 * their groups. again: they have just been read. */
KD_DEV void read_class(kept_walk *w, const uint8_t *kept, unsigned which, unsigned byte,
                       uint32_t none, bool again)
{
    const uint8_t *of = kept + which * KEPT_CLASS, *list = of + KEPT_BITS + byte * KEPT_COLUMNS;
    const int lane = w->lane, l = lane % 32;
    const uint32_t word = kd_load_once((const uint32_t *)of + l);
    const uint32_t set = kd_bits_set(word);
    uint32_t upto = set, v[8];

#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        const uint32_t other = kd_shuffle_up(upto, by);
        upto += l >= by ? other : 0;
    }
    w->read += again ? 0 : kept_sectors(1, upto);
    const uint32_t near = kd_shuffle(word, lane / 4), down = (uint32_t)lane % 4 * 8;
    const uint32_t there = near >> down;
    uint32_t at = kd_shuffle(upto - set, lane / 4) + kd_bits_set(near & ((1u << down) - 1));
#pragma unroll
    for (int k = 0; k < 8; k++) {
        v[k] = none;
        if (there >> k & 1)
            v[k] = kd_load_once(list + at);
        at += there >> k & 1;
    }
#pragma unroll
    for (int k = 0; k < 8; k += 2)
        v[k] = kd_bytes(v[k], v[k + 1], 0x0040u);
    *(uint2 *)(w->x->row[which / 2] + 8 * lane) =
        make_uint2(kd_bytes(v[0], v[2], 0x5410u), kd_bytes(v[4], v[6], 0x5410u));
}

/* Where costs are kept with this number. */
KD_DEV int kept_position(const kd_gpu_search_args &a, pass q, int number)
{
    const int least = q.second ? q.begin : 0, first = segment_at(a, q, least);

    return number < first    ? q.end - a.segment * (number + 1)
           : number == first ? least
                             : -a.segment * (number - first);
}

/* Where the costs before those before position p were kept, p being such a place; 0 is where a
 * second pass begins. Under the pass's first: nowhere. */
KD_DEV int kept_before(const kd_gpu_search_args &a, pass q, int p)
{
    if (p <= 0)
        return p - a.segment;
    if (p == q.begin)
        return 0;
    const int least = q.second ? q.begin : 0;
    return p - a.segment > least ? p - a.segment : least;
}

/* Subtracted in a segment but for what is subtracted after its last position. */
KD_DEV int kept_lows(const kept_walk *w, int first, int count)
{
    const int i = (first - w->q.first) & 255, at = i | (KD_SEARCH_LOWER - 1);
    return at < i + count - 1 ? w->s->low[w->buffer][at / KD_SEARCH_LOWER] : 0;
}

/* Least of what the threads of a walk have. */
KD_DEV unsigned least_of_walk(kept_walk *w, unsigned key)
{
    uint32_t *meet = const_cast<tile_shared *>(w->s)->meet[w->meeting ^= 1];

    key = kd_warp_min(key);
    if (w->lane % 32 == 0)
        meet[w->lane / 32] = key;
    kd_sync_team<KD_GPU_WALKERS>(0);
    unsigned least = meet[0];
#pragma unroll
    for (int i = 1; i < KD_GPU_WALKERS / 32; i++)
        least = meet[i] < least ? meet[i] : least;
    return least;
}

/* A segment with its end: the out-edge of its last position, which costs `value` before anything is
 * subtracted after it. number: of the costs before it. */
struct kept_segment {
    int first, count, number;
    unsigned edge;
    int value;
};

/* The branches of number y, the latest on top, and back. */
template <class BITS> KD_DEV unsigned path_of(const BITS &b, unsigned y)
{
    unsigned path = 0;

#pragma unroll
    for (int p = 0; p < BITS::MOST; p++)
        if (b.free[p])
            path |= (y & ((1u << b.free[p]) - 1)) >> (b.free[p] - b.out[p]) << (b.all - b.free[p]);
    return path;
}
template <class BITS> KD_DEV unsigned number_of(const BITS &b, unsigned path)
{
    unsigned y = 0;

#pragma unroll
    for (int p = 0; p < BITS::MOST; p++) {
        y = y << b.out[p] | (path & ((1u << b.out[p]) - 1));
        path >>= b.out[p];
    }
    return y;
}

/* A way as one word: its branches, whether the state that it comes from was not kept, the cost of
 * that. */
KD_DEV unsigned way_key(unsigned path, bool unknown, int cost)
{
    return path << 17 | (unsigned)unknown << 16 | ((unsigned)cost & 0xffffu);
}

KD_DEV bool is_unknown(unsigned key)
{
    return key < GIVE_UP && (key >> 16 & 1);
}

/* Costs of the positions after the first, of the thread's states: with a 0 and a 1 above its bits.
 */
template <class STEPS, kd_codebook CB, class BITS>
KD_DEV void terms_after(const kept_walk *w, const BITS &b, const kept_segment &g, int after[2])
{
    constexpr unsigned BITS_EACH = 7;

    after[0] = after[1] = 0;
#pragma unroll
    for (int p = 1; p < BITS::MOST; p++)
        if (b.free[p]) {
            const int at = (g.first + p) & 255;
            const unsigned y = (unsigned)w->lane;
            const int term = walk_term<STEPS, CB>(w->grid, w->s, w->q, at, b.state(p, y, g.edge));
            after[0] += term;
            after[1] += b.free[p] <= BITS_EACH
                            ? term
                            : walk_term<STEPS, CB>(w->grid, w->s, w->q, at,
                                                   b.state(p, 1u << BITS_EACH | y, g.edge));
        }
}

/* States before a segment that may lead to its end, as way_key, in order, up to one that was kept:
 * NO_WAY if there are no more. */
struct kept_ways {
    unsigned key[KEPT_ANSWERS];
};

/* Those from key `from` on. LEAST: key 0 is the least that the end can cost, whatever its value. */
template <class STEPS, kd_codebook CB, bool LEAST, class BITS>
KD_DEV void find_ways(kept_walk *w, const BITS &b, const kept_segment &g, unsigned from,
                      kept_ways *ways)
{
    constexpr unsigned BITS_EACH = 7, EACH = 1u << (KD_GPU_FREE_BITS - BITS_EACH);
    static_assert(1 << BITS_EACH == KD_GPU_WALKERS, "a state a thread, or a few");
    const unsigned lane = (unsigned)w->lane, low = 16 - b.all - b.begin;
    const int lows = w->x->low[w->buffer][g.number],
              limit = w->x->limit[w->buffer][g.number] - lows,
              whole = kept_lows(w, g.first, g.count) + (LEAST ? 0 : g.value);
    const uint8_t *kept = w->kept + w->step * g.number;
    const uint32_t none = (uint32_t)(limit + lows) & 0xffu;
    const unsigned state = b.state(0, lane, g.edge), edge = state >> b.begin;
    const uint8_t *row = w->x->row[edge >> 3 & 1] + (edge >> 4);
    int after[2], cost[EACH];

    ways->key[0] = GIVE_UP;
    if (!LEAST && whole >= KD_SEARCH_CAP) /* sums are not exact any more */
        return;
    w->walked++;
    const unsigned in = b.state(0, 0, g.edge) >> b.begin;
    read_class(w, kept, in / 4 % 4, in % 4, none, from != 0);
    if (low < 4)
        read_class(w, kept, in / 4 % 4 ^ 2, in % 4, none, from != 0);
    terms_after<STEPS, CB>(w, b, g, after);
    const int target = STEPS::target_back(w->s->target[w->q.which][g.first & 255]);
#pragma unroll
    for (unsigned j = 0; j < EACH; j++) {
        const unsigned x = (state + (j << (BITS_EACH + 16 - b.all))) & 0xffffu;
        cost[j] = whole - after[j % 2] - kd_search_add(0, (int)value_in<CB>(w->grid, x) - target);
    }
    kd_sync_team<KD_GPU_WALKERS>(0);
    unsigned hits = 0, key = ~0u;
#pragma unroll
    for (unsigned j = 0; j < EACH; j++) {
        const bool there = (j << BITS_EACH | lane) < 1u << b.all;
        const int byte = there ? row[j << (3 + low)] : 0;
        if (LEAST) {
            const unsigned sum = (unsigned)(limit - ((limit + lows - byte) & 0xff) - cost[j]);
            key = there && sum < key ? sum : key;
        } else {
            const int cut = cost[j] < limit ? cost[j] : limit;
            hits |= (unsigned)(there && cut >= limit - w->a->range && ((cut + lows) & 0xff) == byte)
                    << j;
        }
    }
    if constexpr (LEAST) {
        ways->key[0] = least_of_walk(w, key);
    } else {
#pragma unroll 1
        for (int n = 0; n < KEPT_ANSWERS; n++) {
            key = ~0u;
            if (hits)
#pragma unroll
                for (unsigned j = 0; j < EACH; j++) {
                    const unsigned k =
                        way_key(path_of(b, j << BITS_EACH | lane), cost[j] >= limit, cost[j]);
                    key = (hits >> j & 1) && k >= from && k < key ? k : key;
                }
            key = least_of_walk(w, key);
            ways->key[n] = key;
            if (!is_unknown(key))
                break;
            from = key + 1;
        }
    }
}

/* The same for a second pass's first segment, which begins at one edge. */
template <class STEPS, kd_codebook CB, class BITS>
KD_DEV unsigned find_start(kept_walk *w, const BITS &b, const kept_segment &g, unsigned from)
{
    const unsigned start = (unsigned)w->s->end[w->q.which], low = 16 - b.all - b.begin,
                   y = start >> low;
    int cost = g.value + kept_lows(w, g.first, g.count);

    if (cost >= KD_SEARCH_CAP)
        return GIVE_UP;
#pragma unroll
    for (int p = 0; p < BITS::MOST; p++)
        if (b.free[p])
            cost -= walk_term<STEPS, CB>(w->grid, w->s, w->q, g.first + p, b.state(p, y, g.edge));
    const unsigned key = way_key(path_of(b, y), false, 0);
    return b.state(0, y, g.edge) >> b.begin == start && cost == 0 && key >= from ? key : NO_WAY;
}

/* Of a segment of any length. */
template <class STEPS, int BASE, bool MASKED, kd_codebook CB>
KD_DEV void find_ways_of(kept_walk *w, const kept_segment &g, unsigned from, kept_ways *ways)
{
    constexpr int COUNT = MASKED ? 0 : KD_GPU_SEGMENTS[0][BASE][0];
    using WHOLE = segment_bits<BASE, MASKED, false, COUNT, KD_GPU_WALKERS>;
    using REST = segment_bits<BASE, MASKED, false, 0, KD_GPU_WALKERS>;
    const REST b(*w->a, g.first, g.count);

    if (w->q.second && g.first == 0)
        ways->key[0] = find_start<STEPS, CB>(w, b, g, from);
    else if (COUNT && g.count == COUNT)
        find_ways<STEPS, CB, false>(w, WHOLE(*w->a, g.first, COUNT), g, from, ways);
    else
        find_ways<STEPS, CB, false>(w, b, g, from, ways);
}

/* The segment before one, whose end is where way `key` of that comes from. */
template <int BASE, bool MASKED>
KD_DEV kept_segment segment_before(const kept_walk *w, const kept_segment &g, unsigned key)
{
    using REST = segment_bits<BASE, MASKED, false, 0, KD_GPU_WALKERS>;
    const REST b(*w->a, g.first, g.count);
    const int first = kept_before(*w->a, w->q, g.first);

    return {first, g.first - first, g.number + 1,
            b.state(0, number_of(b, key >> 17), g.edge) >> b.begin,
            (int)(key & 0xffffu) + walk_low(w->s, w->q, w->buffer, g.first - 1)};
}

/* The way that the search takes through a segment; NO_WAY: its end does not cost that. GIVE_UP: too
 * many questions. */
template <class STEPS, int BASE, bool MASKED, kd_codebook CB>
KD_DEV unsigned settle(kept_walk *w, const kept_segment &g)
{
    kept_segment level[KEPT_LEVELS];
    kept_ways ways[KEPT_LEVELS];
    int next[KEPT_LEVELS], depth = 0;
    unsigned from = 0;

    level[0] = g;
#pragma unroll 1
    for (int n = 0; n < KEPT_QUESTIONS; n++) {
        find_ways_of<STEPS, BASE, MASKED, CB>(w, level[depth], from, &ways[depth]);
        unsigned key = ways[depth].key[next[depth] = 0];
        while (key == NO_WAY) { /* back to the question before, with the next answer */
            if (depth-- == 0)
                return NO_WAY;
            if (++next[depth] == KEPT_ANSWERS)
                break;
            key = ways[depth].key[next[depth]];
        }
        if (next[depth] == KEPT_ANSWERS) { /* there may be more of them */
            from = ways[depth].key[KEPT_ANSWERS - 1] + 1;
            continue;
        }
        if (key == GIVE_UP)
            return GIVE_UP;
        if (!is_unknown(key))
            return ways[0].key[next[0]];
        const kept_segment before = segment_before<BASE, MASKED>(w, level[depth], key);
        if (++depth == KEPT_LEVELS || before.first < (w->q.second ? 0 : w->q.begin))
            return GIVE_UP;
        level[depth] = before;
        from = 0;
    }
    return GIVE_UP;
}

/* Where a walk is: value as a segment's. */
struct kept_place {
    int end, value, number;
    unsigned edge;
    bool good, undecided;
};

/* One segment back. The end of a second pass costs what is least. */
template <class STEPS, int BASE, bool MASKED, kd_codebook CB>
KD_DEV void walk_cheap(kept_walk *w, kept_place *at, uint16_t *states)
{
    using REST = segment_bits<BASE, MASKED, false, 0, KD_GPU_WALKERS>;
    const int first = kept_before(*w->a, w->q, at->end);
    const REST b(*w->a, first, at->end - first);
    kept_segment g = {first, at->end - first, at->number, at->edge, at->value};
    const bool last = w->q.second && at->end == w->q.end;
    unsigned key = NO_WAY;

    if (last) {
        kept_ways least;
        find_ways<STEPS, CB, true>(w, b, g, 0, &least);
        g.value = (int)least.key[0];
    }
    do
        key = settle<STEPS, BASE, MASKED, CB>(w, g);
    while (last && key == NO_WAY && ++g.value < KD_SEARCH_CAP);
    if (key >= GIVE_UP) {
        at->good = !(last && g.value >= KD_SEARCH_CAP); /* over the cap, or nobody knows */
        at->undecided = at->good;
        at->end = 0;
        return;
    }
    const unsigned y = number_of(b, key >> 17);
#pragma unroll
    for (int p = 0; p < REST::MOST; p++)
        if (states && w->lane == 0 && b.free[p])
            states[first + p] = (uint16_t)b.state(p, y, at->edge);
    const kept_segment before = segment_before<BASE, MASKED>(w, g, key);
    *at = {first, before.value, before.number, before.edge, true, false};
}

template <class STEPS, int BASE, bool MASKED>
KD_DEV void walk_cheap_in(kept_walk *w, kept_place *at, uint16_t *states)
{
    if (w->a->codebook == KD_CB_MUL1)
        walk_cheap<STEPS, BASE, MASKED, KD_CB_MUL1>(w, at, states);
    else if (w->a->codebook == KD_CB_MCG)
        walk_cheap<STEPS, BASE, MASKED, KD_CB_MCG>(w, at, states);
    else
        walk_cheap<STEPS, BASE, MASKED, KD_CB_3INST>(w, at, states);
}

} // namespace kd_trellis
#endif
