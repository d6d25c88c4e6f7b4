/* The trellis search for vectors of LANES 16-bit integers, written once: each instruction set
 * defines the primitives below and includes this file, which defines search_tiles(). The definition
 * it must equal is src/kern/ref/trellis_ref.c.
 *
 * Edges. A step takes in-edges of 16 - a bits to out-edges of 16 - c bits. With e = i * 2^a + l,
 * the candidates of out-edge e come from in-edges b * 2^(16-a-c) + i: so LANES successive i are one
 * vector, costs load as they lie, the table of values is put in the order [i / LANES][l][b][lane],
 * and the 2^a results are interleaved on their way out. From a = 5 on, all lanes of successive e
 * share their in-edges, which are broadcast; the table is then [e / LANES][b][lane].
 *
 * Costs. Four forms, by the range of targets, all equal to cost + round(D^2 / 64), of which all
 * that is over KD_SEARCH_CAP is alike: FORM_HALF  1024 + cost as a half-precision number, whose fma
 * with D / 8 is rounded to the nearest integer below 2048; what comes to 2048 or more, infinity
 * included, is over the limit and stays there, so that costs are never cut. Only where HALF is 1,
 * and then in place of the next two. FORM_TRUNC  cost * 2^f + 2^(f-1) plus a truncated product
 * with f more bits; the minimum is cleaned of its surplus bits, candidates need not be. Costs are
 * cut to the limit every TRUNC_FREE positions only, before they can leave 16 bits: what is over the
 * limit has no other effect than that it is. FORM_ROUND  a rounding product of D * 2^n with D *
 * 2^(n+1), both saturated; at (-32768)^2 it gives 32768, which as an unsigned number is over the
 * limit FORM_EXACT  cost * 64 + 32 plus min(|D|, 255)^2, saturated; (255^2 is over the limit, so
 * cutting |D| there changes nothing)
 *
 * Branches are not recorded. The costs before every few positions (a segment) are kept instead, and
 * the way back evaluates again the few states of a segment that lead to its known end.
 *
 * Primitives: LANES, TILES, ABREAST (tiles that share loaded values), TRUNC_BITS, TRUNC_FREE, vi,
 * vi_load, vi_store, vi_set1, vi_add, vi_sub, vi_sub_sat, vi_addu_sat, vi_minu, vi_less_u (select),
 * vi_trunc, vi_trunc_clean, vi_round, vi_square, vi_exact_clean, vi_zip_lo, vi_zip_hi,
 * vi_store_row, natural_values; HALF, and where it is 1 vi_half, vi_half_sum, vi_half_min. */
#include "base/assert.h"
#include "kern/trellis_scratch.h"
#include "num/exl3_ring.h"

#include <stdbool.h>
#include <string.h>

#define FLAT static inline __attribute__((always_inline))

enum form { FORM_HALF, FORM_TRUNC, FORM_ROUND, FORM_EXACT };

enum {
    TRUNC_ONE = 1 << TRUNC_BITS,
    TRUNC_SHIFT = 5 + TRUNC_BITS / 2, /* from the grid to the table's scale */
    ROUND_SHIFT = 4,
    AHEAD = 512, /* costs */
    /* Largest limits of targets, which must fit 16 bits once shifted. */
    TRUNC_LIMIT = 511,
    ROUND_LIMIT = 2047,
    HALF_LIMIT = 2047,  /* the last integer of 11 bits */
    HALF_ZERO = 0x6400, /* 1024 */
    /* Up to here a difference that wraps is still over the cap, so that no saturation is needed. */
    WRAP_LIMIT = 430
};
_Static_assert(KD_SEARCH_SHIFT == 6 && 255 * 255 / 64 > KD_SEARCH_CAP, "FORM_EXACT relies on it");

struct search {
    struct kd_rate rate;
    struct kd_search_grid grid;
    enum form form;
    bool wrap;
    bool narrow;      /* no position of more than four bits: step_groups_any has no more */
    int shift;        /* from the grid to the table's scale */
    unsigned segment; /* positions */
    struct kd_trellis_scratch *m;
    const uint16_t *in[TILES]; /* costs before the position at hand, and after */
    uint16_t *out[TILES];
    int16_t target[256][TILES]; /* as integers */
    int16_t sought[256][TILES]; /* as the form's steps take them */
    int low[256][TILES];        /* what was subtracted after a position */
};

FLAT unsigned bits_in(const struct search *s, unsigned p)
{
    return kd_rate_bits_at(s->rate, p);
}

FLAT unsigned bits_out(const struct search *s, unsigned p)
{
    return kd_rate_bits_at(s->rate, p + 1);
}

FLAT int16_t *table_of(const struct search *s, unsigned in, unsigned out)
{
    return s->m->value[2 * (in - s->rate.base) + (out - s->rate.base)];
}

/* The costs kept before a segment's first position. */
FLAT uint16_t *kept(const struct search *s, int tile, unsigned p)
{
    size_t edges = 65536u >> s->rate.base;
    return (uint16_t *)(void *)s->m->kept[tile] + p / s->segment * edges;
}

/* A cost as it is stored. */
FLAT int stored(enum form f, int cost)
{
    return f == FORM_HALF    ? HALF_ZERO + cost
           : f == FORM_TRUNC ? cost * TRUNC_ONE + TRUNC_ONE / 2
           : f == FORM_ROUND ? cost
                             : cost * 64 + 32;
}

FLAT int unstored(enum form f, int cost)
{
    return f == FORM_HALF    ? cost - HALF_ZERO
           : f == FORM_TRUNC ? cost >> TRUNC_BITS
           : f == FORM_ROUND ? cost
                             : cost >> 6;
}

/* Interleaves v[0..count-1] element by element into LANES * count values. */
FLAT void interleave(vi *v, const unsigned count, uint16_t *to)
{
    vi x[16];

    for (unsigned n = 1; n < count; n *= 2) {
        for (unsigned j = 0; j < count / 2; j++) {
            x[2 * j] = vi_zip_lo(v[j], v[j + count / 2]);
            x[2 * j + 1] = vi_zip_hi(v[j], v[j + count / 2]);
        }
        for (unsigned j = 0; j < count; j++)
            v[j] = x[j];
    }
    vi_store_row(v, count, to);
}

#if !HALF /* of a form that is never chosen */
FLAT vi vi_half_sum(vi w, vi value, vi cost)
{
    return vi_add(cost, vi_sub(w, value));
}
FLAT vi vi_half_min(vi a, vi b)
{
    return vi_minu(a, b);
}
#endif

/* How a step's candidates are made: FORM_HALF, or FORM_TRUNC with differences that may wrap or are
 * saturated, and sums that are cut to the limit or not yet. */
enum way { WAY_HALF = 0, WAY_TRUNC = 1, WAY_WRAP = 2, WAY_LIMIT = 4 };

FLAT vi candidate(const unsigned way, vi w, vi value, vi cost)
{
    if (way == WAY_HALF)
        return vi_half_sum(w, value, cost);
    return vi_add(cost, vi_trunc(way & WAY_WRAP ? vi_sub(w, value) : vi_sub_sat(w, value)));
}

FLAT void step_groups(const struct search *s, unsigned p, const unsigned a, const unsigned c,
                      const unsigned way)
{
    const unsigned spread = 65536u >> (a + c), branches = 1u << c, group = 1u << a;
    const int16_t *v = table_of(s, a, c);
    const vi cap = vi_set1(stored(FORM_TRUNC, KD_SEARCH_CAP));
    const uint16_t *in[TILES];
    uint16_t *to[TILES];
    vi w[TILES];

    /* What the stores below could change, as far as a compiler knows. */
    for (int t = 0; t < TILES; t++) {
        in[t] = s->in[t];
        to[t] = s->out[t];
        w[t] = vi_set1(s->sought[p][t]);
    }
    for (unsigned i = 0; i < spread; i += LANES, v += (branches << a) * LANES)
        for (int t0 = 0; t0 < TILES; t0 += ABREAST) {
            vi cost[ABREAST][16], out[ABREAST][16];

            /* Costs that are kept leave the caches before they are wanted again: their lines are
             * asked for ahead. At higher rates there are too few to matter. */
            for (int t = 0; a + c <= 5 && t < ABREAST; t++)
                for (unsigned l = 0; l < group; l++)
                    __builtin_prefetch(to[t0 + t] + ((size_t)i << a) + AHEAD + l * LANES, 1);

            for (int t = 0; t < ABREAST; t++)
                for (unsigned b = 0; b < branches; b++)
                    cost[t][b] = vi_load(in[t0 + t] + i + b * spread);
#pragma GCC unroll 16
            for (unsigned l = 0; l < group; l++) {
                vi value[16];
#pragma GCC unroll 16
                for (unsigned b = 0; b < branches; b++)
                    value[b] = vi_load(v + (l * branches + b) * LANES);
#pragma GCC unroll 2
                for (int t = 0; t < ABREAST; t++) {
                    vi m[16];
#pragma GCC unroll 16
                    for (unsigned b = 0; b < branches; b++)
                        m[b] = candidate(way, w[t0 + t], value[b], cost[t][b]);
#pragma GCC unroll 4
                    for (unsigned n = branches / 2; n; n /= 2)
#pragma GCC unroll 8
                        for (unsigned b = 0; b < n; b++)
                            m[b] = way == WAY_HALF ? vi_half_min(m[2 * b], m[2 * b + 1])
                                                   : vi_minu(m[2 * b], m[2 * b + 1]);
                    out[t][l] = way == WAY_HALF ? m[0] : vi_trunc_clean(m[0]);
                    if (way & WAY_LIMIT)
                        out[t][l] = vi_minu(out[t][l], cap);
                }
            }
            for (int t = 0; t < ABREAST; t++)
                interleave(out[t], group, to[t0 + t] + ((size_t)i << a));
        }
}

/* One vector of out-edges; `wide` costs are single values. */
FLAT vi vector_run(const enum form f, const int16_t *v, const uint16_t *from, unsigned spread,
                   unsigned branches, vi w, const bool wide)
{
    vi m[2] = {vi_set1(-1), vi_set1(-1)};

    for (unsigned b = 0; b < branches; b += 2)
#pragma GCC unroll 2
        for (unsigned k = 0; k < 2; k++) {
            vi cost =
                wide ? vi_set1((int16_t)from[(b + k) * spread]) : vi_load(from + (b + k) * spread);
            vi value = vi_load(v + (b + k) * LANES);
            vi x = f == FORM_HALF    ? vi_half_sum(w, value, cost)
                   : f == FORM_ROUND ? vi_add(cost, vi_round(vi_sub_sat(value, w)))
                                     : vi_addu_sat(cost, vi_square(value, w));
            m[k] = vi_minu(m[k], x);
        }
    m[0] = vi_minu(m[0], m[1]);
    if (f == FORM_HALF)
        return m[0];
    return vi_minu(f == FORM_ROUND ? m[0] : vi_exact_clean(m[0]),
                   vi_set1(stored(f, KD_SEARCH_CAP)));
}

FLAT void step_run(const struct search *s, unsigned p, const enum form f)
{
    unsigned a = bits_in(s, p), c = bits_out(s, p), spread = 65536u >> (a + c), branches = 1u << c;
    const int16_t *v = table_of(s, a, c);

    if (a >= 5) {
        for (unsigned e = 0; e < 65536u >> c; e += LANES, v += branches * LANES)
            for (int t = 0; t < TILES; t++)
                vi_store(s->out[t] + e, vector_run(f, v, s->in[t] + (e >> a), spread, branches,
                                                   vi_set1(s->sought[p][t]), true));
        return;
    }
    for (unsigned i = 0; i < spread; i += LANES, v += (branches << a) * LANES)
        for (int t = 0; t < TILES; t++) {
            vi w = vi_set1(s->sought[p][t]), out[16];
            for (unsigned l = 0; l < 1u << a; l++)
                out[l] = vector_run(f, v + l * branches * LANES, s->in[t] + i, spread, branches, w,
                                    false);
            uint16_t *to = s->out[t] + ((size_t)i << a);
            if (a == 2)
                interleave(out, 4, to);
            else if (a == 3)
                interleave(out, 8, to);
            else
                interleave(out, 16, to);
        }
}

#if HALF
#define GROUPS_CASE(a, c)                                                                          \
    case 16 * (a) + (c):                                                                           \
        step_groups(s, p, a, c, WAY_HALF);                                                         \
        break
#define GROUPS_CASE_FAST GROUPS_CASE
#else
#define GROUPS_CASE(a, c)                                                                          \
    case 16 * (a) + (c):                                                                           \
        step_groups(s, p, a, c, WAY_TRUNC | WAY_LIMIT);                                            \
        break
/* The rates of experts, 2 and a little more, leave the limit out where they may. */
#define GROUPS_CASE_FAST(a, c)                                                                     \
    case 16 * (a) + (c):                                                                           \
        if (limit)                                                                                 \
            step_groups(s, p, a, c, WAY_TRUNC | WAY_LIMIT);                                        \
        else                                                                                       \
            step_groups(s, p, a, c, WAY_TRUNC);                                                    \
        break
#endif

static void step_groups_any(const struct search *s, unsigned p, bool limit)
{
    (void)limit;
#if !HALF
    if (s->wrap && s->rate.mask == 0 && s->rate.base == 2) {
        if (limit)
            step_groups(s, p, 2, 2, WAY_TRUNC | WAY_WRAP | WAY_LIMIT);
        else
            step_groups(s, p, 2, 2, WAY_TRUNC | WAY_WRAP);
        return;
    }
#endif
    switch (16 * bits_in(s, p) + bits_out(s, p)) {
        GROUPS_CASE(1, 1);
        GROUPS_CASE(1, 2);
        GROUPS_CASE(2, 1);
        GROUPS_CASE_FAST(2, 2);
        GROUPS_CASE_FAST(2, 3);
        GROUPS_CASE_FAST(3, 2);
        GROUPS_CASE(3, 3);
        GROUPS_CASE(3, 4);
        GROUPS_CASE(4, 3);
        GROUPS_CASE(4, 4);
    default:
        KD_ASSERT(false);
    }
}
#undef GROUPS_CASE_FAST
#undef GROUPS_CASE

static void step(const struct search *s, unsigned p, bool limit)
{
    if (s->form == FORM_TRUNC || (s->form == FORM_HALF && s->narrow))
        step_groups_any(s, p, limit);
    else if (s->form == FORM_HALF)
        step_run(s, p, FORM_HALF);
    else if (s->form == FORM_ROUND)
        step_run(s, p, FORM_ROUND);
    else
        step_run(s, p, FORM_EXACT);
}

/* Least stored cost of `edges` edges. */
static int least(const uint16_t *cost, unsigned edges)
{
    vi m = vi_load(cost);
    uint16_t lane[LANES];
    int low = 65535;

    for (unsigned e = LANES; e < edges; e += LANES)
        m = vi_minu(m, vi_load(cost + e));
    vi_store(lane, m);
    for (unsigned i = 0; i < LANES; i++)
        low = lane[i] < low ? lane[i] : low;
    return low;
}

static void fill(uint16_t *cost, unsigned edges, int value)
{
    for (unsigned e = 0; e < edges; e += LANES)
        vi_store(cost + e, vi_set1(value));
}

/* Costs at the limit stay there. */
static void lower(struct search *s, unsigned p)
{
    unsigned edges = 65536u >> bits_out(s, p);
    vi cap = vi_set1(stored(s->form, KD_SEARCH_CAP));

    for (int t = 0; t < TILES; t++) {
        uint16_t *cost = s->out[t];
        int low = unstored(s->form, least(cost, edges));
        vi d = vi_set1(stored(s->form, low) - stored(s->form, 0));
        s->low[p][t] = low;
        for (unsigned e = 0; e < edges; e += LANES) {
            vi c = vi_load(cost + e);
            vi_store(cost + e, vi_less_u(c, cap, vi_sub(c, d), c));
        }
    }
}

/* `count` positions from `first`; costs are kept while `keep` or fewer are left. Leaves the last
 * costs in s->in. */
static void pass(struct search *s, unsigned first, unsigned count, unsigned keep)
{
    for (unsigned i = 0; i < count; i++) {
        unsigned p = (first + i) & 255u, next = (p + 1) & 255u;
        bool lowers = i % KD_SEARCH_LOWER == KD_SEARCH_LOWER - 1;
        bool hold = i + 1 + keep >= count && next % s->segment == 0 && i + 1 < count;
        for (int t = 0; t < TILES; t++)
            s->out[t] = hold ? kept(s, t, next) : s->m->cost[t][i & 1];
        memset(s->low[p], 0, sizeof s->low[p]);
        step(s, p, next % TRUNC_FREE == 0 || lowers || i + 1 == count);
        if (lowers)
            lower(s, p);
        for (int t = 0; t < TILES; t++)
            s->in[t] = s->out[t];
    }
}

/* The states of one position that are looked at again. */
struct again {
    uint16_t cost[KD_TRELLIS_AGAIN]; /* of the in-edge of each, then of the out-edges */
    int16_t value[KD_TRELLIS_AGAIN];
    int best[KD_TRELLIS_AGAIN / 2], at[KD_TRELLIS_AGAIN / 2];
};

/* Out-edge x takes the best of states b * edges + x; the loops over x are what compilers vectorize.
 */
static void look_again(struct again *g, unsigned branches, unsigned edges, int w, int shift,
                       int low, uint8_t *branch)
{
    for (unsigned x = 0; x < edges; x++) {
        g->best[x] = KD_SEARCH_CAP + 1;
        g->at[x] = (int)branches - 1;
    }
    for (unsigned b = 0; b < branches; b++) {
        const uint16_t *cost = g->cost + b * edges;
        const int16_t *value = g->value + b * edges;
        for (unsigned x = 0; x < edges; x++) {
            int sum = kd_search_add(cost[x], (value[x] - w) >> shift);
            g->at[x] = sum < g->best[x] ? (int)b : g->at[x];
            g->best[x] = sum < g->best[x] ? sum : g->best[x];
        }
    }
    for (unsigned x = 0; x < edges; x++) {
        branch[x] = (uint8_t)g->at[x];
        g->cost[x] = (uint16_t)(g->best[x] < KD_SEARCH_CAP ? g->best[x] - low : KD_SEARCH_CAP);
    }
}

/* One segment, positions first..last, back from the out-edge of `last`: the in-edge of `first`. A
 * state of position p that leads to `edge` has the bits of edge below and `free` bits above, which
 * number it. */
static unsigned trace_segment(const struct search *s, int tile, unsigned first, unsigned last,
                              unsigned edge, uint16_t *states)
{
    const uint16_t *in = kept(s, tile, first);
    unsigned end = bits_out(s, last), free = 0, a = bits_in(s, first), known;
    struct again g;

    for (unsigned p = first; p <= last; p++)
        free += bits_out(s, p);
    known = edge >> (free - end + a);
    for (unsigned y = 0; y < 1u << free; y++) {
        int c = unstored(s->form, in[y << (16 - free - a) | known]);
        g.cost[y] = (uint16_t)(c < KD_SEARCH_CAP ? c : KD_SEARCH_CAP);
    }
    for (unsigned p = first; p <= last; p++) {
        unsigned c = bits_out(s, p);
        known = edge >> (free - end);
        for (unsigned y = 0; y < 1u << free; y++) {
            unsigned state = y << (16 - free) | known;
            g.value[y] = s->m->swapped[state >> 8 | (state & 255u) << 8];
        }
        free -= c;
        look_again(&g, 1u << c, 1u << free, s->target[p][tile], s->shift, s->low[p][tile],
                   s->m->branch[p - first]);
    }
    unsigned x = 0;
    for (unsigned p = last + 1; p-- > first;) {
        x |= (unsigned)s->m->branch[p - first][x] << free;
        free += bits_out(s, p);
        if (states)
            states[p] = (uint16_t)(x << (16 - free) | edge >> (free - end));
    }
    return (x << (16 - free) | edge >> (free - end)) >> a;
}

/* From `edge` after position `last` back to the in-edge of position 0. */
static unsigned trace(const struct search *s, int tile, unsigned last, unsigned edge,
                      uint16_t *states)
{
    for (unsigned end = last + 1; end > 0;) {
        unsigned first = (end - 1) / s->segment * s->segment;
        edge = trace_segment(s, tile, first, end - 1, edge, states);
        end = first;
    }
    return edge;
}

static void sought_targets(struct search *s)
{
#if HALF
    const int16_t *from = s->target[0];
    int16_t *to = s->sought[0];

    if (s->form == FORM_HALF) {
        for (unsigned i = 0; i < 256u * TILES; i += LANES)
            vi_store(to + i, vi_half(vi_load(from + i)));
        return;
    }
#endif
    memcpy(s->sought, s->target, sizeof s->target);
}

/* TILES tiles at once; target and states give each tile's place. good[t] is false when the costs of
 * a tile passed the limit. */
static void search_group(struct search *s, const float *const target[TILES], unsigned seam,
                         uint16_t *const states[TILES], bool good[TILES])
{
    unsigned end[TILES];
    int cap = stored(s->form, KD_SEARCH_CAP);

    for (unsigned p = 0; p < 256; p++)
        for (int t = 0; t < TILES; t++)
            s->target[p][t] = (int16_t)(kd_search_target(s->grid, target[t][p]) * (1 << s->shift));
    sought_targets(s);
    for (int t = 0; t < TILES; t++) {
        fill(s->m->cost[t][1], 65536u >> bits_in(s, 256 - seam), stored(s->form, 0));
        s->in[t] = s->m->cost[t][1];
    }
    pass(s, 256 - seam, 2 * seam, seam);
    for (int t = 0; t < TILES; t++) {
        int low = least(s->in[t], 65536u >> bits_in(s, seam));
        good[t] = low < cap;
        end[t] = 0;
        while (s->in[t][end[t]] != low)
            end[t]++;
        end[t] = trace(s, t, seam - 1, end[t], NULL);
        uint16_t *start = kept(s, t, 0);
        fill(start, 65536u >> bits_in(s, 0), cap);
        start[end[t]] = (uint16_t)stored(s->form, 0);
        s->in[t] = start;
    }
    pass(s, 0, 256, 256);
    for (int t = 0; t < TILES; t++) {
        good[t] = good[t] && s->in[t][end[t]] < cap;
        trace(s, t, 255, end[t], states[t]);
        kd_ring_close(s->rate, states[t]);
    }
}

/* The values of one pair of bit counts in the order of the loops above. */
FLAT void build_strided(const int16_t *natural, int16_t *table, unsigned c, const unsigned stride)
{
    unsigned branches = 1u << c, edges = 65536u >> c;

    for (unsigned e0 = 0; e0 < edges; e0 += stride * LANES)
        for (unsigned l = 0; l < stride; l++)
            for (unsigned b = 0; b < branches; b++) {
                const int16_t *from = natural + b * edges + e0 + l;
                for (unsigned i = 0; i < LANES; i++)
                    table[i] = from[i * stride];
                table += LANES;
            }
}

static void build_table(const int16_t *natural, int16_t *table, unsigned a, unsigned c)
{
    if (a == 1)
        build_strided(natural, table, c, 2);
    else if (a == 2)
        build_strided(natural, table, c, 4);
    else if (a == 3)
        build_strided(natural, table, c, 8);
    else if (a == 4)
        build_strided(natural, table, c, 16);
    else
        build_strided(natural, table, c, 1);
}

/* As many positions as have `most` free bits at most, wherever they start: more would be fewer
 * costs kept, but the way back touches as many cache lines of them as it has states. Between 1 and
 * 2 bits it takes four positions for the costs to fit their room. */
static unsigned segment_of(struct kd_rate rate)
{
    const unsigned most = rate.base == 1 ? 8 : 7;

    for (unsigned n = 1;; n++)
        for (unsigned p = 0; p < 16; p++) {
            unsigned free = 0;
            for (unsigned i = 0; i <= n; i++)
                free += kd_rate_bits_at(rate, p + i);
            if (free > most)
                return n;
        }
}

/* In squares, whose lines stay in the cache. */
static void swap_bytes(const int16_t *natural, int16_t *swapped)
{
    for (unsigned hi = 0; hi < 256; hi += 16)
        for (unsigned lo = 0; lo < 256; lo += 16)
            for (unsigned h = hi; h < hi + 16; h++)
                for (unsigned l = lo; l < lo + 16; l++)
                    swapped[h << 8 | l] = natural[l << 8 | h];
}

static void prepare(struct search *s, enum kd_codebook cb, unsigned level)
{
    bool made[KD_TRELLIS_TABLES] = {false};

    s->grid = kd_search_grid_of(s->rate, cb, level);
    int limit = -s->grid.low > s->grid.high ? -s->grid.low : s->grid.high;
    s->narrow = s->rate.base + (s->rate.mask != 0) <= 4;
    s->form = HALF && limit <= HALF_LIMIT         ? FORM_HALF
              : limit <= TRUNC_LIMIT && s->narrow ? FORM_TRUNC
              : limit <= ROUND_LIMIT              ? FORM_ROUND
                                                  : FORM_EXACT;
    s->wrap = limit <= WRAP_LIMIT;
    s->shift = s->form == FORM_TRUNC ? TRUNC_SHIFT : s->form == FORM_ROUND ? ROUND_SHIFT : 0;
    s->segment = segment_of(s->rate);
    natural_values(kd_codebook_table(cb), s->grid.grid, s->shift, s->m->natural);
    swap_bytes(s->m->natural, s->m->swapped);
#if HALF
    if (s->form == FORM_HALF)
        for (unsigned i = 0; i < 65536; i += LANES)
            vi_store(s->m->natural + i, vi_half(vi_load(s->m->natural + i)));
#endif
    for (unsigned p = 0; p < 16; p++) {
        unsigned a = bits_in(s, p), c = bits_out(s, p),
                 at = 2 * (a - s->rate.base) + c - s->rate.base;
        if (!made[at])
            build_table(s->m->natural, s->m->value[at], a, c);
        made[at] = true;
    }
}

/* The tiles of a group whose costs passed the limit, on coarser and coarser grids. */
static void search_again(struct search *s, enum kd_codebook cb, const float *const target[TILES],
                         unsigned seam, uint16_t *const states[TILES], const bool good[TILES])
{
    for (int t = 0; t < TILES; t++) {
        const float *from[TILES];
        uint16_t *to[TILES];
        bool done[TILES] = {good[t]};
        for (int i = 0; i < TILES; i++) {
            from[i] = target[t];
            to[i] = states[t];
        }
        for (unsigned level = 1; level < KD_SEARCH_LEVELS && !done[0]; level++) {
            prepare(s, cb, level);
            search_group(s, from, seam, to, done);
        }
    }
    prepare(s, cb, 0);
}

static void search_tiles(const float *target, int64_t tiles, struct kd_rate rate,
                         enum kd_codebook cb, int seam, uint16_t *states, void *scratch)
{
    struct search s = {.rate = rate, .m = scratch};
    uint16_t spare[256]; /* states of a tile that only fills a group */

    prepare(&s, cb, 0);
    for (int64_t t = 0; t < tiles; t += TILES) {
        const float *from[TILES];
        uint16_t *to[TILES];
        bool good[TILES], all = true;
        for (int i = 0; i < TILES; i++) {
            from[i] = target + 256 * (t + i < tiles ? t + i : t);
            to[i] = t + i < tiles ? states + 256 * (t + i) : spare;
        }
        search_group(&s, from, (unsigned)seam, to, good);
        for (int i = 0; i < TILES; i++)
            all = all && good[i];
        if (!all)
            search_again(&s, cb, from, (unsigned)seam, to, good);
    }
}
