/* What integer costs cost: the error of the search against one with fp32 costs on the same Gaussian
 * tiles. With KONDENSE_FULL_QUALITY set: 1,024 tiles and the bar of 0.15 % (minutes on many cores;
 * give a rate in sixteenths of a bit in KONDENSE_QUALITY_RATE to run one). Otherwise a few tiles,
 * on which luck alone makes half a percent.
 *
 * labels: figures */
#include "base/mem.h"
#include "base/pool.h"
#include "kern/trellis_scratch.h"
#include "num/exl3_ring.h"
#include "unit/kern_util.h"

#include <math.h>

static double gauss(uint64_t seed, uint64_t i)
{
    double u = kd_rand_unit(seed, 2 * i) + 1e-17, v = kd_rand_unit(seed, 2 * i + 1);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* Scales of section 5.2 of the specification for mul1; between whole rates linear. */
static double best_scale(unsigned sixteenths)
{
    static const double at[9] = {0, 1.12, 1.00, 0.96, 0.92, 0.88, 0.88, 0.84, 0.80};
    unsigned k = sixteenths / 16, m = sixteenths % 16;
    return m ? at[k] + (at[k + 1] - at[k]) * m / 16 : at[k];
}

struct plain {
    float value[65536], cost[2][65536], in[65536];
    uint8_t branch[256][65536];
};

enum { BLOCK = 256 };

static void plain_step(struct plain *s, struct kd_rate rate, unsigned p, float w, int now)
{
    unsigned a = kd_rate_bits_at(rate, p), c = kd_rate_bits_at(rate, p + 1), edges = 65536u >> c;

    for (unsigned i = 0; i < 65536; i++)
        s->in[i] = s->cost[now][i >> a];
    for (unsigned e0 = 0; e0 < edges; e0 += BLOCK) {
        float best[BLOCK];
        uint32_t at[BLOCK];
        for (unsigned e = 0; e < BLOCK; e++) {
            best[e] = INFINITY;
            at[e] = 0;
        }
        for (unsigned b = 0; b < 1u << c; b++) {
            const float *v = s->value + b * edges + e0, *in = s->in + b * edges + e0;
            for (unsigned e = 0; e < BLOCK; e++) {
                float d = v[e] - w, sum = d * d + in[e];
                at[e] = sum < best[e] ? b : at[e];
                best[e] = sum < best[e] ? sum : best[e];
            }
        }
        for (unsigned e = 0; e < BLOCK; e++) {
            s->cost[now ^ 1][e0 + e] = best[e];
            s->branch[p][e0 + e] = (uint8_t)at[e];
        }
    }
}

static unsigned plain_trace(const struct plain *s, struct kd_rate rate, unsigned last,
                            unsigned edge, uint16_t *states)
{
    for (unsigned p = last + 1; p-- > 0;) {
        unsigned state = (unsigned)s->branch[p][edge] << (16 - kd_rate_bits_at(rate, p + 1)) | edge;
        if (states)
            states[p] = (uint16_t)state;
        edge = state >> kd_rate_bits_at(rate, p);
    }
    return edge;
}

static void plain_search(struct plain *s, struct kd_rate rate, const float *w, uint16_t *states)
{
    unsigned edges = 65536u >> kd_rate_bits_at(rate, 128), end = 0;

    memset(s->cost, 0, sizeof s->cost);
    for (unsigned i = 0; i < 256; i++)
        plain_step(s, rate, (i + 128) % 256, w[(i + 128) % 256], i & 1);
    for (unsigned e = 0; e < edges; e++)
        end = s->cost[0][e] < s->cost[0][end] ? e : end;
    end = plain_trace(s, rate, 127, end, NULL);
    for (unsigned e = 0; e < 65536; e++)
        s->cost[0][e] = INFINITY;
    s->cost[0][end] = 0;
    for (unsigned p = 0; p < 256; p++)
        plain_step(s, rate, p, w[p], p & 1);
    plain_trace(s, rate, 255, end, states);
}

static double error_of(const float *w, const uint16_t *states, enum kd_codebook cb)
{
    double sum = 0;
    for (unsigned p = 0; p < 256; p++) {
        double d = (double)kd_f16_f32(kd_codebook_f16(cb, states[p])) - (double)w[p];
        sum += d * d;
    }
    return sum;
}

struct job {
    struct kd_rate rate;
    enum kd_codebook cb;
    double scale;
    double (*sums)[2]; /* each tile: integer search, plain search */
};

static void quality_tile(void *ctx, int64_t tile, int worker)
{
    const struct job *j = ctx;
    struct plain *plain = malloc(sizeof *plain);
    void *scratch;
    float w[256];
    uint16_t states[256];
    (void)worker;

    assert_non_null(plain);
    assert_int_equal(kd_mem_new(&scratch, (int64_t)kd_trellis_scratch_bytes(), 1, "scratch", NULL),
                     0);
    for (unsigned i = 0; i < 65536; i++)
        plain->value[i] = kd_f16_f32(kd_codebook_f16(j->cb, i));
    for (unsigned p = 0; p < 256; p++)
        w[p] = (float)(gauss(1, 256 * (uint64_t)tile + p) * j->scale);
    isa.trellis_search(w, 1, j->rate, j->cb, 128, states, scratch);
    j->sums[tile][0] = error_of(w, states, j->cb);
    plain_search(plain, j->rate, w, states);
    j->sums[tile][1] = error_of(w, states, j->cb);
    kd_mem_free(scratch);
    free(plain);
}

static void quality(unsigned sixteenths, enum kd_codebook cb, int tiles, double bar)
{
    struct job j = {.rate = kd_rate_from16(sixteenths), .cb = cb, .scale = best_scale(sixteenths)};
    struct kd_pool *pool;
    double found = 0, plain = 0;
    struct kd_err err;

    j.scale *= cb == KD_CB_MUL1 ? 1 : 1.24371088;
    j.sums = calloc((size_t)tiles, sizeof *j.sums);
    assert_non_null(j.sums);
    assert_int_equal(kd_pool_open(&pool, 0, &err), 0);
    kd_pool_run(pool, tiles, quality_tile, &j);
    kd_pool_close(pool);
    for (int t = 0; t < tiles; t++) {
        found += j.sums[t][0];
        plain += j.sums[t][1];
    }
    free(j.sums);
    double n = 256.0 * tiles * j.scale * j.scale, over = 100 * (found / plain - 1);
    printf("%.4f bits, codebook %d, %d tiles: MSE %.7f, fp32 costs %.7f, %+.3f %%\n",
           sixteenths / 16.0, (int)cb, tiles, found / n, plain / n, over);
    if (over > bar)
        fail_msg("over the bar of %.2f %%", bar);
}

static void bar(void **unused)
{
    static const unsigned rates[] = {16, 32, 48, 64, 80, 96, 112, 128, 33, 37, 38, 40, 24, 56};
    const char *one = getenv("KONDENSE_QUALITY_RATE");
    bool full = getenv("KONDENSE_FULL_QUALITY") != NULL;
    (void)unused;

    if (one) {
        quality((unsigned)strtoul(one, NULL, 10), KD_CB_MUL1, full ? 1024 : 4, full ? 0.15 : 2.0);
        return;
    }
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        quality(rates[i], KD_CB_MUL1, full ? 1024 : 4, full ? 0.15 : 2.0);
    for (int cb = 0; cb < 2 && full; cb++)
        for (size_t i = 0; i < 8; i++)
            quality(rates[i], (enum kd_codebook)cb, 1024, 0.15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bar)};
    int rc = kern_open();
    if (rc || isa.isa == KD_ISA_REF || isa.isa == KD_ISA_AVX2) /* equal bytes; once is enough */
        return rc ? rc : 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
