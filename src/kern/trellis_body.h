/* The trellis search for vectors of LANES 16-bit integers, written once: each instruction set defines
 * the primitives below and includes this file, which defines search_tiles(). The definition it must
 * equal is src/kern/ref/trellis_ref.c.
 *
 * Edges. A step takes in-edges of 16 - a bits to out-edges of 16 - c bits. With e = i * 2^a + l, the
 * candidates of out-edge e come from in-edges b * 2^(16-a-c) + i: so LANES successive i are one
 * vector, costs load as they lie, the table of values is put in the order [i / LANES][l][b][lane],
 * and the 2^a results are interleaved on their way out. From a = 5 on, all lanes of successive e
 * share their in-edges, which are broadcast; the table is then [e / LANES][b][lane].
 *
 * Costs. Three forms, by the unit of cost u = grid / 2^(shift/2), all equal to
 * cost + round(D^2 / 2^shift), of which all that is over KD_SEARCH_CAP is alike:
 *   FORM_TRUNC  u < 12  cost * 2^f + 2^(f-1) plus a truncated product with f more bits. Only the
 *               minimum needs its surplus bits cleaned: a candidate is a minimum iff it is at most
 *               the minimum with those bits set. Differences over 6.6 / 2^shift may wrap: what they
 *               wrap to is still over the limit.
 *   FORM_ROUND  u <= 64  a rounding product of D * 2^n with D * 2^(n+1), both saturated; at
 *               (-32768)^2 it gives 32768, which as an unsigned number is over the limit
 *   FORM_EXACT  else    cost * 64 plus 32 plus min(|D|, 255)^2, saturated; the low six bits then take
 *               the branch. (255^2 is over the limit, so cutting |D| there changes nothing.)
 *
 * Primitives: LANES, TILES, STEP_TRACE, TRUNC_BITS, vi, vi_load, vi_store, vi_set1, vi_add, vi_sub,
 * vi_sub_sat, vi_and, vi_or, vi_min (signed), vi_addu_sat, vi_minu, vi_less_u (select), vi_trunc,
 * vi_trunc_full, vi_trunc_clean, vi_round, vi_square, vi_label,
 * vi_zip_lo, vi_zip_hi, vi_store_row, store_bytes, natural_values, trunc_trace_bytes, trunc_record,
 * trunc_branch, round_trace_bytes, struct round_trace, round_begin, round_note, round_end,
 * round_branch. */
#include "kern/exl3_ring.h"
#include "kern/trellis_scratch.h"

#include <stdbool.h>

#define FLAT static inline __attribute__((always_inline))

enum form { FORM_TRUNC, FORM_ROUND, FORM_EXACT };

enum {
    TRUNC_ONE = 1 << TRUNC_BITS,
    TRUNC_CAP = KD_SEARCH_CAP * TRUNC_ONE + TRUNC_ONE - 1, /* the limit with its surplus bits set */
    TRUNC_SHIFT = 5 + TRUNC_BITS / 2, /* from the grid to the table's scale */
    ROUND_SHIFT = 4,
    /* Largest grids: targets must fit 16 bits once shifted. */
    TRUNC_GRID = 120,
    ROUND_GRID = 560,
    /* Up to here a wrapped difference is over the limit, so that no saturation is needed. */
    WRAP_GRID = 92
};
_Static_assert(KD_SEARCH_SHIFT == 6 && 255 * 255 / 64 > KD_SEARCH_CAP, "FORM_EXACT relies on it");

struct search {
    struct kd_rate rate;
    struct kd_search_grid grid;
    enum form form;
    bool wrap;
    int shift; /* from the grid to the table's scale */
    struct kd_trellis_scratch *m;
    int now; /* which cost array holds the costs */
    int16_t target[256][TILES];
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

FLAT uint8_t *trace_of(const struct search *s, int tile, unsigned p)
{
    return s->m->trace + (int64_t)(tile * 256 + (int)p) * STEP_TRACE;
}

/* A cost as it is stored. */
FLAT int stored(enum form f, int cost)
{
    return f == FORM_TRUNC ? cost * TRUNC_ONE + TRUNC_ONE / 2 : f == FORM_ROUND ? cost : cost * 64 + 32;
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

FLAT void step_trunc(struct search *s, unsigned p, const unsigned a, const unsigned c, const bool wrap,
                     const bool record)
{
    const unsigned spread = 65536u >> (a + c), branches = 1u << c, group = 1u << a;
    const int16_t *table = table_of(s, a, c);
    const vi cap = vi_set1(TRUNC_CAP);

    for (unsigned i = 0; i < spread; i += LANES) {
        for (int t = 0; t < TILES; t++) {
            const uint16_t *from = s->m->cost[t][s->now] + i;
            const int16_t *v = table + ((size_t)i << (a + c));
            uint8_t *trace = trace_of(s, t, p) + (i / LANES << a) * trunc_trace_bytes(c);
            const vi w = vi_set1(s->target[p][t]);
            vi cost[16], out[16];

            for (unsigned b = 0; b < branches; b++)
                cost[b] = vi_load(from + b * spread);
#pragma GCC unroll 16
            for (unsigned l = 0; l < group; l++) {
                vi x[16], m[16];
#pragma GCC unroll 16
                for (unsigned b = 0; b < branches; b++) {
                    vi value = vi_load(v + (l * branches + b) * LANES);
                    vi d = wrap ? vi_sub(value, w) : vi_sub_sat(value, w);
                    m[b] = x[b] = vi_add(cost[b], vi_trunc(d));
                }
#pragma GCC unroll 4
                for (unsigned n = branches / 2; n; n /= 2)
#pragma GCC unroll 8
                    for (unsigned b = 0; b < n; b++)
                        m[b] = vi_min(m[2 * b], m[2 * b + 1]);
                m[0] = vi_min(m[0], cap);
                if (record)
                    trunc_record(trace + l * trunc_trace_bytes(c), x, branches, vi_trunc_full(m[0]));
                out[l] = vi_trunc_clean(m[0]);
            }
            interleave(out, group, s->m->cost[t][s->now ^ 1] + ((size_t)i << a));
        }
    }
}

/* One vector of out-edges by FORM_ROUND; `wide` costs are single values. */
FLAT vi vector_round(const int16_t *v, const uint16_t *from, unsigned spread, unsigned branches, vi w,
                     const bool wide, const bool record, uint8_t *trace)
{
    vi m = vi_set1(KD_SEARCH_CAP + 1);
    struct round_trace r = round_begin(branches);

    for (unsigned b = 0; b < branches; b++) {
        vi cost = wide ? vi_set1((int16_t)from[b * spread]) : vi_load(from + b * spread);
        vi x = vi_add(cost, vi_round(vi_sub_sat(vi_load(v + b * LANES), w)));
        if (record)
            round_note(&r, trace, b, x, m);
        m = vi_minu(m, x);
    }
    if (record)
        round_end(&r, trace);
    return vi_minu(m, vi_set1(KD_SEARCH_CAP));
}

/* The same by FORM_EXACT. Branches over 64 go in groups, whose number is kept apart. */
FLAT vi vector_exact(const int16_t *v, const uint16_t *from, unsigned spread, unsigned branches, vi w,
                     const bool wide, const bool record, uint8_t *trace)
{
    const vi label = vi_set1(63), clean = vi_set1(~63);
    /* One over the limit, with the last branch. */
    vi best = vi_set1((KD_SEARCH_CAP + 1) * 64 + (int)((branches - 1) % 64));
    vi top = vi_set1((int)((branches - 1) / 64 * 64));

    for (unsigned g = 0; g < branches; g += 64) {
        unsigned count = branches - g < 64 ? branches - g : 64;
        vi m = vi_set1(-1);
        for (unsigned k = 0; k < count; k++) {
            unsigned b = g + k;
            vi cost = wide ? vi_set1((int16_t)from[b * spread]) : vi_load(from + b * spread);
            vi x = vi_addu_sat(cost, vi_square(vi_load(v + b * LANES), w));
            m = vi_minu(m, vi_label(x, label, vi_set1((int16_t)k)));
        }
        vi known = vi_and(best, clean);
        top = vi_less_u(m, known, vi_set1((int16_t)g), top);
        best = vi_less_u(m, known, m, best);
    }
    if (record)
        store_bytes(trace, vi_or(vi_and(best, label), top));
    return vi_or(vi_minu(vi_and(best, clean), vi_set1(KD_SEARCH_CAP * 64)), vi_set1(32));
}

FLAT void step_run(struct search *s, unsigned p, const enum form f, const bool record)
{
    unsigned a = bits_in(s, p), c = bits_out(s, p), spread = 65536u >> (a + c), branches = 1u << c;
    unsigned bytes = f == FORM_ROUND ? round_trace_bytes(c) : LANES;
    const int16_t *v = table_of(s, a, c);

    if (a >= 5) {
        for (unsigned e = 0; e < 65536u >> c; e += LANES, v += branches * LANES)
            for (int t = 0; t < TILES; t++) {
                const uint16_t *from = s->m->cost[t][s->now] + (e >> a);
                uint8_t *trace = trace_of(s, t, p) + e / LANES * bytes;
                vi w = vi_set1(s->target[p][t]);
                vi m = f == FORM_ROUND ? vector_round(v, from, spread, branches, w, true, record, trace)
                                       : vector_exact(v, from, spread, branches, w, true, record, trace);
                vi_store(s->m->cost[t][s->now ^ 1] + e, m);
            }
        return;
    }
    for (unsigned i = 0; i < spread; i += LANES, v += (branches << a) * LANES)
        for (int t = 0; t < TILES; t++) {
            const uint16_t *from = s->m->cost[t][s->now] + i;
            uint8_t *trace = trace_of(s, t, p) + (i / LANES << a) * bytes;
            uint16_t *to = s->m->cost[t][s->now ^ 1] + ((size_t)i << a);
            vi w = vi_set1(s->target[p][t]), out[16];
            for (unsigned l = 0; l < 1u << a; l++) {
                const int16_t *vl = v + l * branches * LANES;
                uint8_t *tl = trace + l * bytes;
                out[l] = f == FORM_ROUND ? vector_round(vl, from, spread, branches, w, false, record, tl)
                                         : vector_exact(vl, from, spread, branches, w, false, record, tl);
            }
            if (a == 3)
                interleave(out, 8, to);
            else
                interleave(out, 16, to);
        }
}

#define TRUNC_CASE(a, c)                                                                           \
    case 16 * (a) + (c):                                                                           \
        step_trunc(s, p, a, c, false, record);                                                     \
        break

FLAT void step_trunc_any(struct search *s, unsigned p, const bool record)
{
    if (s->wrap && s->rate.mask == 0 && s->rate.base == 2) {
        step_trunc(s, p, 2, 2, true, record);
        return;
    }
    switch (16 * bits_in(s, p) + bits_out(s, p)) {
        TRUNC_CASE(1, 1);
        TRUNC_CASE(1, 2);
        TRUNC_CASE(2, 1);
        TRUNC_CASE(2, 2);
        TRUNC_CASE(2, 3);
        TRUNC_CASE(3, 2);
        TRUNC_CASE(3, 3);
        TRUNC_CASE(3, 4);
        TRUNC_CASE(4, 3);
        TRUNC_CASE(4, 4);
    default:
        break;
    }
}
#undef TRUNC_CASE

static void step_quiet(struct search *s, unsigned p)
{
    if (s->form == FORM_TRUNC)
        step_trunc_any(s, p, false);
    else if (s->form == FORM_ROUND)
        step_run(s, p, FORM_ROUND, false);
    else
        step_run(s, p, FORM_EXACT, false);
}

static void step_record(struct search *s, unsigned p)
{
    if (s->form == FORM_TRUNC)
        step_trunc_any(s, p, true);
    else if (s->form == FORM_ROUND)
        step_run(s, p, FORM_ROUND, true);
    else
        step_run(s, p, FORM_EXACT, true);
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
        vi_store(cost + e, vi_set1((int16_t)value));
}

/* Costs at the limit stay there. */
static void lower(struct search *s, unsigned edges)
{
    vi cap = vi_set1((int16_t)stored(s->form, KD_SEARCH_CAP));

    for (int t = 0; t < TILES; t++) {
        uint16_t *cost = s->m->cost[t][s->now];
        vi d = vi_set1((int16_t)(least(cost, edges) - stored(s->form, 0)));
        for (unsigned e = 0; e < edges; e += LANES) {
            vi c = vi_load(cost + e);
            vi_store(cost + e, vi_less_u(c, cap, vi_sub(c, d), c));
        }
    }
}

/* `count` positions from `first`, the last `kept` of them with their branches recorded. */
static void pass(struct search *s, unsigned first, unsigned count, unsigned kept)
{
    for (unsigned i = 0; i < count; i++) {
        unsigned p = (first + i) & 255u;
        if (i + kept >= count)
            step_record(s, p);
        else
            step_quiet(s, p);
        s->now ^= 1;
        if (i % KD_SEARCH_LOWER == KD_SEARCH_LOWER - 1)
            lower(s, 65536u >> bits_out(s, p));
    }
}

static unsigned branch_at(const struct search *s, int tile, unsigned p, unsigned edge)
{
    unsigned a = bits_in(s, p), c = bits_out(s, p);
    const uint8_t *trace = trace_of(s, tile, p);
    unsigned at = edge / LANES, lane = edge % LANES;

    if (a < 5) {
        unsigned i = edge >> a;
        at = i / LANES << a | (edge & ((1u << a) - 1u));
        lane = i % LANES;
    }
    if (s->form == FORM_TRUNC)
        return trunc_branch(trace + at * trunc_trace_bytes(c), lane, c);
    if (s->form == FORM_ROUND)
        return round_branch(trace + at * round_trace_bytes(c), lane, c);
    return trace[at * LANES + lane];
}

static unsigned follow(const struct search *s, int tile, unsigned last, unsigned edge, uint16_t *states)
{
    for (unsigned p = last + 1; p-- > 0;) {
        unsigned state = branch_at(s, tile, p, edge) << (16 - bits_out(s, p)) | edge;
        if (states)
            states[p] = (uint16_t)state;
        edge = state >> bits_in(s, p);
    }
    return edge;
}

/* TILES tiles at once; target and states give each tile's place. good[t] is false when the costs of a
 * tile passed the limit. */
static void search_group(struct search *s, const float *const target[TILES], unsigned seam,
                         uint16_t *const states[TILES], bool good[TILES])
{
    unsigned edges = 65536u >> bits_in(s, seam), end[TILES];
    int cap = stored(s->form, KD_SEARCH_CAP);

    for (unsigned p = 0; p < 256; p++)
        for (int t = 0; t < TILES; t++)
            s->target[p][t] = (int16_t)(kd_search_target(s->grid, target[t][p]) * (1 << s->shift));
    for (int t = 0; t < TILES; t++)
        fill(s->m->cost[t][s->now], 65536u >> bits_in(s, 256 - seam), stored(s->form, 0));
    pass(s, 256 - seam, 2 * seam, seam);
    for (int t = 0; t < TILES; t++) {
        uint16_t *cost = s->m->cost[t][s->now];
        int low = least(cost, edges);
        good[t] = low < cap;
        end[t] = 0;
        while (cost[end[t]] != low)
            end[t]++;
        end[t] = follow(s, t, seam - 1, end[t], NULL);
        fill(cost, 65536u >> bits_in(s, 0), cap);
        cost[end[t]] = (uint16_t)stored(s->form, 0);
    }
    pass(s, 0, 256, 256);
    for (int t = 0; t < TILES; t++) {
        good[t] = good[t] && s->m->cost[t][s->now][end[t]] < cap;
        follow(s, t, 255, end[t], states[t]);
        kd_ring_close(s->rate, states[t]);
    }
}

/* The values of one pair of bit counts in the order of the loops above. */
static void build_table(const int16_t *natural, int16_t *table, unsigned a, unsigned c)
{
    unsigned branches = 1u << c, edges = 65536u >> c, stride = a < 5 ? 1u << a : 1;

    for (unsigned e0 = 0; e0 < edges; e0 += stride * LANES)
        for (unsigned l = 0; l < stride; l++)
            for (unsigned b = 0; b < branches; b++) {
                const int16_t *from = natural + b * edges + e0 + l;
                for (unsigned i = 0; i < LANES; i++)
                    *table++ = from[i * stride];
            }
}

static void prepare(struct search *s, enum kd_codebook cb, unsigned level)
{
    bool made[KD_TRELLIS_TABLES] = {false};

    s->grid = kd_search_grid_of(s->rate, cb, level);
    s->form = s->grid.grid <= TRUNC_GRID ? FORM_TRUNC : s->grid.grid <= ROUND_GRID ? FORM_ROUND : FORM_EXACT;
    s->wrap = s->grid.grid <= WRAP_GRID;
    s->shift = s->form == FORM_TRUNC ? TRUNC_SHIFT : s->form == FORM_ROUND ? ROUND_SHIFT : 0;
    natural_values(kd_codebook_table(cb), s->grid.grid, s->shift, s->m->natural);
    for (unsigned p = 0; p < 16; p++) {
        unsigned a = bits_in(s, p), c = bits_out(s, p), at = 2 * (a - s->rate.base) + c - s->rate.base;
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

static void search_tiles(const float *target, int64_t tiles, struct kd_rate rate, enum kd_codebook cb,
                         int seam, uint16_t *states, void *scratch)
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
