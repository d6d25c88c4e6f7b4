/* EXL3 tiles in plain C: decoding and the trellis search that defines the bytes of every
 * conversion. Other instruction sets and devices must equal this file bit for bit. */
#include "kern/exl3_sets.h"
#include "kern/trellis_scratch.h"
#include "num/exl3_ring.h"

void kd_trellis_decode_ref(const uint8_t *tile, struct kd_rate rate, enum kd_codebook cb,
                           float out[256])
{
    uint16_t states[256];

    kd_ring_states(tile, rate, states);
    for (unsigned p = 0; p < 256; p++)
        out[16 * kd_tile_row(p) + kd_tile_col(p)] = kd_f16_f32(kd_codebook_f16(cb, states[p]));
}

struct search {
    struct kd_rate rate;
    int16_t *value;    /* 65536 codebook values on the grid */
    uint16_t *cost[2]; /* cost of each edge */
    uint8_t *branch;   /* [position][32768] */
    int target[256];
};

/* Position p: every out-edge takes the cheapest of the states that end in it, the lowest branch
 * among equals; without one under the limit it gets the limit and the last branch. cost[0] holds
 * the costs of the in-edges before, of the out-edges after. */
static void search_step(struct search *s, unsigned p)
{
    unsigned in = kd_rate_bits_at(s->rate, p), out = kd_rate_bits_at(s->rate, p + 1);
    unsigned edges = 65536u >> out, branches = 1u << out;
    const uint16_t *from = s->cost[0];
    uint16_t *to = s->cost[1];
    uint8_t *branch = s->branch + (size_t)p * 32768;

    for (unsigned e = 0; e < edges; e++) {
        int best = KD_SEARCH_CAP + 1;
        unsigned at = branches - 1;
        for (unsigned b = 0; b < branches; b++) {
            unsigned state = b << (16 - out) | e;
            int c = kd_search_add(from[state >> in], s->value[state] - s->target[p]);
            if (c < best) {
                best = c;
                at = b;
            }
        }
        to[e] = (uint16_t)(best < KD_SEARCH_CAP ? best : KD_SEARCH_CAP);
        branch[e] = (uint8_t)at;
    }
    s->cost[1] = s->cost[0];
    s->cost[0] = to;
}

static unsigned cheapest(const uint16_t *cost, unsigned edges)
{
    unsigned at = 0;

    for (unsigned e = 1; e < edges; e++)
        if (cost[e] < cost[at])
            at = e;
    return at;
}

/* Costs at the limit stay there: what has left the range never comes back as a path. */
static void search_lower(uint16_t *cost, unsigned edges)
{
    unsigned low = cost[cheapest(cost, edges)];

    for (unsigned e = 0; e < edges; e++)
        if (cost[e] < KD_SEARCH_CAP)
            cost[e] = (uint16_t)(cost[e] - low);
}

/* Runs `count` positions from `first` round the ring. */
static void search_pass(struct search *s, unsigned first, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        unsigned p = (first + i) & 255u;
        search_step(s, p);
        if (i % KD_SEARCH_LOWER == KD_SEARCH_LOWER - 1)
            search_lower(s->cost[0], 65536u >> kd_rate_bits_at(s->rate, p + 1));
    }
}

/* Follows the branches from `edge` after position `last` down to position 0; returns the in-edge
 * of position 0. states may be NULL. */
static unsigned search_trace(const struct search *s, unsigned last, unsigned edge, uint16_t *states)
{
    for (unsigned p = last + 1; p-- > 0;) {
        unsigned in = kd_rate_bits_at(s->rate, p), out = kd_rate_bits_at(s->rate, p + 1);
        unsigned state = (unsigned)s->branch[(size_t)p * 32768 + edge] << (16 - out) | edge;
        if (states)
            states[p] = (uint16_t)state;
        edge = state >> in;
    }
    return edge;
}

static void fill(uint16_t *cost, unsigned edges, unsigned value)
{
    for (unsigned e = 0; e < edges; e++)
        cost[e] = (uint16_t)value;
}

/* False when the costs passed the limit, so that the states are no good path. */
static bool search_tile(struct search *s, unsigned seam, uint16_t *states)
{
    unsigned end;

    fill(s->cost[0], 65536u >> kd_rate_bits_at(s->rate, 256 - seam), 0);
    search_pass(s, 256 - seam, 2 * seam);
    end = cheapest(s->cost[0], 65536u >> kd_rate_bits_at(s->rate, seam));
    bool good = s->cost[0][end] < KD_SEARCH_CAP;
    end = search_trace(s, seam - 1, end, NULL);

    fill(s->cost[0], 65536u >> kd_rate_bits_at(s->rate, 0), KD_SEARCH_CAP);
    s->cost[0][end] = 0;
    search_pass(s, 0, 256);
    good = good && s->cost[0][end] < KD_SEARCH_CAP;
    search_trace(s, 255, end, states);
    kd_ring_close(s->rate, states);
    return good;
}

static void trellis_search_ref(const float *target, int64_t tiles, struct kd_rate rate,
                               enum kd_codebook cb, int seam, uint16_t *states, void *scratch)
{
    struct kd_trellis_scratch *m = scratch;
    struct search s = {.rate = rate, .value = m->natural, .branch = m->kept[0]};
    unsigned made = KD_SEARCH_LEVELS;

    s.cost[0] = m->cost[0][0];
    s.cost[1] = m->cost[0][1];
    for (int64_t t = 0; t < tiles; t++) {
        bool good = false;
        for (unsigned level = 0; level < KD_SEARCH_LEVELS && !good; level++) {
            struct kd_search_grid g = kd_search_grid_of(rate, cb, level);
            if (made != level)
                for (unsigned i = 0; i < 65536; i++)
                    s.value[i] = (int16_t)kd_search_value(g, kd_codebook_table(cb)[i]);
            made = level;
            for (unsigned p = 0; p < 256; p++)
                s.target[p] = kd_search_target(g, target[256 * t + p]);
            good = search_tile(&s, (unsigned)seam, states + 256 * t);
        }
    }
}

size_t kd_trellis_scratch_bytes(void)
{
    return sizeof(struct kd_trellis_scratch);
}

void kd_kern_set_exl3_ref(struct kd_kern *k)
{
    k->trellis_decode = kd_trellis_decode_ref;
    k->trellis_search = trellis_search_ref;
    k->mm_exl3 = kd_mm_exl3_ref;
    k->mv_exl3_int8 = kd_mv_exl3_int8_ref;
}
