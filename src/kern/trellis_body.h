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
 * Costs. Three forms, by the unit of cost u = 2^(grid - shift/2), all equal to
 * cost + round(D^2 / 2^shift), stopped at KD_SEARCH_CAP by saturating addition:
 *   FORM_TRUNC  u = 8, 16   cost * 2^f + 2^(f-1) plus a truncated product with f more bits. Only the
 *               minimum needs its surplus bits cleaned: a candidate is a minimum iff it is at most
 *               the minimum with those bits set.
 *   FORM_ROUND  u = 32, 64  a rounding product of D * 2^n with D * 2^(n+1), both saturated; at
 *               (-32768)^2 it wraps to 32768, which an unsigned sum takes as over the limit
 *   FORM_EXACT  u >= 128    cost * 64 + 32 plus min(|D|, 255)^2; the low six bits then take the
 *               branch. (255^2 is over the limit, so cutting |D| there changes nothing.)
 *
 * Primitives: LANES, TILES, STEP_TRACE, TRUNC_BITS, vi, vi_load, vi_store, vi_set1, vi_sub, vi_sub_sat, vi_and, vi_or,
 * vi_add_sat, vi_min (signed), vi_addu_sat, vi_minu, vi_less_u (select), vi_trunc, vi_round, vi_square,
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
    TRUNC_BASE = 32767 - (KD_SEARCH_CAP * TRUNC_ONE + TRUNC_ONE - 1),
    TRUNC_HALF = TRUNC_ONE / 2,
    ROUND_BASE = 65535 - KD_SEARCH_CAP,
    EXACT_BASE = 65535 - (KD_SEARCH_CAP * 64 + 63)
};
_Static_assert(TRUNC_BASE % TRUNC_ONE == 0 && EXACT_BASE % 64 == 0, "the base must not touch surplus bits");
_Static_assert(255 * 255 + EXACT_BASE + 32 >= 65535, "a cut difference must reach the limit");

struct search {
    struct kd_rate rate;
    struct kd_search_grid grid;
    enum form form;
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

/* Stored cost 0 and the limit, as 16-bit patterns. */
static int cost_zero(enum form f)
{
    return f == FORM_TRUNC ? TRUNC_BASE + TRUNC_HALF : f == FORM_ROUND ? ROUND_BASE : EXACT_BASE + 32;
}

static int cost_cap(enum form f)
{
    return cost_zero(f) + KD_SEARCH_CAP * (f == FORM_TRUNC ? TRUNC_ONE : f == FORM_ROUND ? 1 : 64);
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

FLAT void step_trunc(struct search *s, unsigned p, const unsigned a, const unsigned c, const bool record)
{
    const unsigned spread = 65536u >> (a + c), branches = 1u << c, group = 1u << a;
    const int16_t *table = table_of(s, a, c);
    const vi surplus = vi_set1(TRUNC_ONE - 1);

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
                for (unsigned b = 0; b < branches; b++)
                    m[b] = x[b] = vi_add_sat(
                        cost[b], vi_trunc(vi_sub_sat(vi_load(v + (l * branches + b) * LANES), w)));
#pragma GCC unroll 4
                for (unsigned n = branches / 2; n; n /= 2)
#pragma GCC unroll 8
                    for (unsigned b = 0; b < n; b++)
                        m[b] = vi_min(m[2 * b], m[2 * b + 1]);
                if (record)
                    trunc_record(trace + l * trunc_trace_bytes(c), x, branches, vi_or(m[0], surplus));
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
    vi m = vi_set1(-1);
    struct round_trace r = round_begin();

    for (unsigned b = 0; b < branches; b++) {
        vi cost = wide ? vi_set1((int16_t)from[b * spread]) : vi_load(from + b * spread);
        vi x = vi_addu_sat(cost, vi_round(vi_sub_sat(vi_load(v + b * LANES), w)));
        if (record)
            round_note(&r, trace, b, x, m);
        m = vi_minu(m, x);
    }
    if (record)
        round_end(&r, trace);
    return m;
}

/* The same by FORM_EXACT. Branches over 64 go in groups, whose number is kept apart. */
FLAT vi vector_exact(const int16_t *v, const uint16_t *from, unsigned spread, unsigned branches, vi w,
                     const bool wide, const bool record, uint8_t *trace)
{
    const vi label = vi_set1(63), clean = vi_set1(~63);
    vi best = clean, top = vi_set1(0);

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
    return vi_or(vi_and(best, clean), vi_set1(32));
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
        step_trunc(s, p, a, c, record);                                                            \
        break

FLAT void step_trunc_any(struct search *s, unsigned p, const bool record)
{
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
static int least(const struct search *s, const uint16_t *cost, unsigned edges)
{
    vi m = vi_load(cost);
    uint16_t lane[LANES];
    int low = 65535;

    for (unsigned e = LANES; e < edges; e += LANES)
        m = s->form == FORM_TRUNC ? vi_min(m, vi_load(cost + e)) : vi_minu(m, vi_load(cost + e));
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

static void lower(struct search *s, unsigned edges)
{
    for (int t = 0; t < TILES; t++) {
        uint16_t *cost = s->m->cost[t][s->now];
        vi d = vi_set1((int16_t)(least(s, cost, edges) - cost_zero(s->form)));
        for (unsigned e = 0; e < edges; e += LANES)
            vi_store(cost + e, vi_sub(vi_load(cost + e), d));
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

/* TILES tiles at once; target and states give each tile's place. */
static void search_group(struct search *s, const float *const target[TILES], unsigned seam,
                         uint16_t *const states[TILES])
{
    unsigned edges = 65536u >> bits_in(s, seam), end[TILES];

    for (unsigned p = 0; p < 256; p++)
        for (int t = 0; t < TILES; t++)
            s->target[p][t] = (int16_t)(kd_search_target(s->grid, target[t][p]) * (1 << s->shift));
    for (int t = 0; t < TILES; t++)
        fill(s->m->cost[t][s->now], 65536u >> bits_in(s, 256 - seam), cost_zero(s->form));
    pass(s, 256 - seam, 2 * seam, seam);
    for (int t = 0; t < TILES; t++) {
        uint16_t *cost = s->m->cost[t][s->now];
        int low = least(s, cost, edges);
        end[t] = 0;
        while (cost[end[t]] != low)
            end[t]++;
        end[t] = follow(s, t, seam - 1, end[t], NULL);
        fill(cost, 65536u >> bits_in(s, 0), cost_cap(s->form));
        cost[end[t]] = (uint16_t)cost_zero(s->form);
    }
    pass(s, 0, 256, 256);
    for (int t = 0; t < TILES; t++) {
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

static void prepare(struct search *s, enum kd_codebook cb)
{
    int unit = s->grid.grid - s->grid.shift / 2;
    bool made[KD_TRELLIS_TABLES] = {false};

    s->form = unit <= 4 ? FORM_TRUNC : unit <= 6 ? FORM_ROUND : FORM_EXACT;
    s->shift = s->form == FORM_TRUNC   ? 8 + TRUNC_BITS / 2 + unit - s->grid.grid
               : s->form == FORM_ROUND ? 7 + unit - s->grid.grid
                                       : 0;
    natural_values(kd_codebook_table(cb), s->grid, s->shift, s->m->natural);
    for (unsigned p = 0; p < 16; p++) {
        unsigned a = bits_in(s, p), c = bits_out(s, p), at = 2 * (a - s->rate.base) + c - s->rate.base;
        if (!made[at])
            build_table(s->m->natural, s->m->value[at], a, c);
        made[at] = true;
    }
}

static void search_tiles(const float *target, int64_t tiles, struct kd_rate rate, enum kd_codebook cb,
                         int seam, uint16_t *states, void *scratch)
{
    struct search s = {.rate = rate, .grid = kd_search_grid_of(rate, cb), .m = scratch};
    uint16_t spare[256]; /* states of a tile that only fills a group */

    prepare(&s, cb);
    for (int64_t t = 0; t < tiles; t += TILES) {
        const float *from[TILES];
        uint16_t *to[TILES];
        for (int i = 0; i < TILES; i++) {
            from[i] = target + 256 * (t + i < tiles ? t + i : t);
            to[i] = t + i < tiles ? states + 256 * (t + i) : spare;
        }
        search_group(&s, from, (unsigned)seam, to);
    }
}
