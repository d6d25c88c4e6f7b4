/* A search with half-precision costs, written from the format's description alone: it must
 * reproduce the released encoder's states, once with that encoder's look at the costs of the
 * position before the last, once with the last. It ties this project's codebooks, edges and seam to
 * the released ones.
 *
 * labels: figures */
#include "kern/trellis_scratch.h"
#include "num/exl3_ring.h"
#include "unit/exl3_vectors.h"
#include "unit/kern_util.h"

#include <math.h>

static float table[65536];
static uint16_t cost[3][16384]; /* before, after, and one position earlier still */
static uint8_t branch[256][16384];

/* To fp16, to nearest: first to float by rounding to odd, which keeps the second rounding right. */
static uint16_t to_f16(double x)
{
    float f = (float)x;
    uint32_t u = kd_f32_bits(f);

    if ((double)f != x) {
        if (fabs((double)f) > fabs(x))
            u--;
        u |= 1;
    }
    return kd_f32_f16(kd_bits_f32(u));
}

/* Costs are positive halves, so their bits compare as they do. */
static void step(unsigned K, unsigned p, float w, bool fresh)
{
    unsigned edges = 65536u >> K;

    memcpy(cost[2], cost[0], sizeof cost[2]);
    for (unsigned e = 0; e < edges; e++) {
        uint16_t best = 0xffff;
        for (unsigned b = 0; b < 1u << K; b++) {
            unsigned state = b << (16 - K) | e;
            double d = (double)kd_f16_f32(kd_f32_f16(table[state] - w));
            uint16_t c = to_f16(d * d + (fresh ? 0.0 : (double)kd_f16_f32(cost[2][state >> K])));
            if (c < best) {
                best = c;
                branch[p][e] = (uint8_t)b;
            }
        }
        cost[0][e] = best;
    }
}

static unsigned reverse5(unsigned v)
{
    unsigned r = 0;
    for (unsigned i = 0; i < 5; i++)
        r |= (v >> i & 1u) << (4 - i);
    return r;
}

static unsigned cheapest(const uint16_t *c, unsigned edges)
{
    unsigned best = 0;
    uint64_t least = UINT64_MAX;

    for (unsigned e = 0; e < edges; e++) {
        unsigned v = e & 1023u;
        uint64_t key =
            (uint64_t)c[e] << 32 | (reverse5(v >> 5) * 1024 + reverse5(v & 31u) * 32 + (e >> 10));
        if (key < least) {
            least = key;
            best = e;
        }
    }
    return best;
}

static unsigned trace(unsigned K, unsigned last, unsigned edge, uint16_t *states)
{
    for (unsigned p = last + 1; p-- > 0;) {
        unsigned state = (unsigned)branch[p][edge] << (16 - K) | edge;
        if (states)
            states[p] = (uint16_t)state;
        edge = state >> K;
    }
    return edge;
}

static void check(const struct kd_json *want, unsigned K, const float *w, unsigned end,
                  const char *what)
{
    uint16_t states[256], found[256], words[128], wanted_words[128];
    uint8_t bytes[256];
    unsigned edges = 65536u >> K;

    for (unsigned e = 0; e < edges; e++)
        cost[0][e] = 0x7c00;
    cost[0][end] = 0;
    for (unsigned p = 0; p < 256; p++)
        step(K, p, w[p], false);
    assert_int_equal(trace(K, 255, end, found), end);
    hex_words(kd_json_get(want, "states"), states, 256);
    for (unsigned p = 0; p < 256; p++)
        if (found[p] != states[p])
            fail_msg("K=%u, %s: position %u is %04x, not %04x", K, what, p, found[p], states[p]);
    double final = kd_json_num_value(kd_json_get(want, "final_fp16_cost"));
    assert_true((double)kd_f16_f32(cost[0][end]) == final);
    kd_ring_pack((struct kd_rate){.base = (uint8_t)K}, found, bytes);
    for (unsigned i = 0; i < 16 * K; i++)
        words[i] = (uint16_t)(bytes[2 * i] | bytes[2 * i + 1] << 8);
    hex_words(kd_json_get(want, "file_words"), wanted_words, 16 * K);
    assert_memory_equal(words, wanted_words, 32 * K);
}

static void encoder_vectors(void **unused)
{
    struct kd_json *root = vectors_open();
    const struct kd_json *cases = kd_json_get(kd_json_get(root, "tile_encode"), "cases");
    (void)unused;

    assert_int_equal(kd_json_count(cases), 9);
    for (size_t i = 0; i < 9; i++) {
        const struct kd_json *v = kd_json_at(cases, i);
        unsigned K = (unsigned)vectors_int(v, "K"), cb = 0;
        const char *name = kd_json_text(kd_json_get(v, "codebook"), NULL);
        uint16_t half[256];
        float w[256];
        while (strcmp(name, codebook_names[cb]))
            cb++;
        hex_words(kd_json_get(v, "input_fp16_in_position_order"), half, 256);
        for (unsigned p = 0; p < 256; p++)
            w[p] = kd_f16_f32(half[p]);
        for (unsigned s = 0; s < 65536; s++)
            table[s] = kd_f16_f32(kd_codebook_table((enum kd_codebook)cb)[s]);
        for (unsigned n = 0; n < 256; n++)
            step(K, (n + 128) % 256, w[(n + 128) % 256], n == 0);
        unsigned edges = 65536u >> K;
        unsigned fixed = trace(K, 127, cheapest(cost[0], edges), NULL);
        unsigned upstream = trace(K, 127, cheapest(cost[2], edges), NULL);
        check(kd_json_get(v, "upstream_argmin"), K, w, upstream, "costs one position early");
        check(kd_json_get(v, "fixed_argmin"), K, w, fixed, "costs of the last position");
    }
    kd_json_free(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(encoder_vectors)};
    int rc = kern_open();
    if (rc || isa.isa != KD_ISA_REF) /* once is enough */
        return rc ? rc : 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
