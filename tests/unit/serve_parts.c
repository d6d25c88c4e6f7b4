/* The engine's small parts: stop strings, drafts, one token's choice. */
#include "base/rand.h"
#include "num/logsum.h"
#include "serve/engine_int.h"
#include "serve/ngram.h"
#include "serve/pick.h"
#include "serve/stops.h"
#include "unit/serve_util.h"

#include <math.h>

/* Every cut of random texts over two letters finds the same string at the same place, and never
 * calls a byte certain that a match then takes. */
static void stops_and_cuts(void **state)
{
    char a[] = "aab", b[] = "baba", c[] = "abaab";
    char *const text[] = {a, b, c};
    const size_t bytes[] = {3, 4, 5};
    const struct kd_stops stops = {3, text, bytes};
    (void)state;
    for (uint64_t n = 0; n < 2000; n++) {
        char s[24];
        int64_t where = -1, which = -1;
        for (uint64_t i = 0; i < sizeof s; i++)
            s[i] = kd_rand_u64(n, i) & 1 ? 'a' : 'b';
        for (int64_t end = 1; end <= (int64_t)sizeof s && which < 0; end++)
            for (int i = 2; i >= 0 && which < 0; i--) /* the longest first */
                if ((int64_t)bytes[i] <= end && !memcmp(s + end - bytes[i], text[i], bytes[i])) {
                    which = i;
                    where = end - (int64_t)bytes[i];
                }
        struct kd_stop_scan scan;
        kd_stop_scan_init(&scan);
        int64_t sure = 0;
        for (size_t at = 0, k; at < sizeof s && scan.match < 0; at += k) {
            k = 1 + kd_rand_u64(n + 77777, at) % 5;
            k = k < sizeof s - at ? k : sizeof s - at;
            must(kd_stop_scan_add(&scan, &stops, s + at, k, &err));
            assert_true(scan.certain >= sure);
            sure = scan.certain;
            assert_true(which < 0 || sure <= where);
        }
        assert_int_equal(scan.match, which);
        if (which >= 0)
            assert_int_equal(scan.certain, where);
        kd_stop_scan_release(&scan);
    }
}

static void drafts(void **state)
{
    struct kd_ngram g = {0};
    int32_t ids[5000], out[8];
    int64_t agree;
    (void)state;
    for (int32_t i = 0; i < 5000; i++)
        ids[i] = i % 700;
    assert_int_equal(kd_ngram_draft(&g, ids, 3, 8, out, &agree), 0);
    assert_int_equal(kd_ngram_draft(&g, ids, 700, 8, out, &agree), 0); /* nothing stood before */
    for (int64_t n = 703; n < 5000; n += 97) {
        assert_int_equal(kd_ngram_draft(&g, ids, n, 8, out, &agree), 8);
        assert_true(agree >= 3);
        for (int i = 0; i < 8; i++)
            assert_int_equal(out[i], (n + i) % 700);
    }
    kd_ngram_release(&g);
    for (int i = 0; i < 10; i++)
        ids[i] = i < 4 ? i : 9; /* a run goes on as a run */
    assert_int_equal(kd_ngram_draft(&g, ids, 10, 5, out, &agree), 5);
    for (int i = 0; i < 5; i++)
        assert_int_equal(out[i], 9);
    assert_int_equal(kd_ngram_draft(&g, ids, 10, 0, out, &agree), 0);
    kd_ngram_release(&g);
}

enum { V = 70 };

static int32_t pick(const struct kd_pick *p, const int32_t *counts, const uint64_t *mask,
                    const float *x, struct kd_picked *out)
{
    float scratch[V];
    must(kd_pick_token(p, counts, mask, x, V, 5, scratch, out, &err));
    return out->id;
}

static void one_token(void **state)
{
    struct kd_pick p = {.sampling = {.top_p = 1}, .repetition = 1};
    struct kd_picked out;
    float x[V], scratch[V];
    int32_t counts[V] = {0};
    uint64_t mask[2] = {~(uint64_t)0, ~(uint64_t)0};
    (void)state;
    for (int i = 0; i < V; i++)
        x[i] = (float)(i % 10);
    assert_int_equal(pick(&p, NULL, NULL, x, &out), 9); /* the lowest of equals */
    assert_false(kd_pick_counts(&p));
    p.repetition = 2;
    p.presence = 1;
    p.frequency = 0.5;
    assert_true(kd_pick_counts(&p));
    counts[9] = 3;               /* 9/2 - 1 - 1.5 = 2 */
    counts[19] = KD_PICK_PROMPT; /* 9/2 */
    assert_int_equal(pick(&p, counts, NULL, x, &out), 29);
    for (int i = 0; i < V; i++)
        x[i] -= i == 9 || i == 19 ? 0 : 20;
    assert_int_equal(pick(&p, counts, NULL, x, &out), 19);
    p.presence = p.frequency = 0;
    counts[19] = 0;
    x[19] = 4.4f; /* 9: 4.5 */
    assert_int_equal(pick(&p, counts, NULL, x, &out), 9);
    x[9] = -2; /* a negative logit gets lower: -4 */
    x[19] = -3;
    assert_int_equal(pick(&p, counts, NULL, x, &out), 19);
    const struct kd_bias b = {3, 50};
    p.bias = &b;
    p.bias_count = 1;
    assert_int_equal(pick(&p, NULL, NULL, x, &out), 3);
    mask[0] &= ~((uint64_t)1 << 3);
    assert_int_equal(pick(&p, NULL, mask, x, &out), 9);
    mask[0] = 0;
    mask[1] = 1 << 5;
    assert_int_equal(pick(&p, NULL, mask, x, &out), 69);
    mask[1] = 0;
    assert_int_equal(kd_pick_token(&p, NULL, mask, x, V, 5, scratch, &out, &err), -1);
    x[40] = NAN;
    assert_int_equal(kd_pick_token(&p, NULL, NULL, x, V, 5, scratch, &out, &err), -1);
    assert_int_equal(err.code, KD_ECORRUPT);
}

static void log_probabilities(void **state)
{
    struct kd_pick p = {.sampling = {.top_p = 1}, .repetition = 1, .logprobs = 1 + 5};
    struct kd_picked out;
    float x[V];
    double sum = 0;
    (void)state;
    for (int i = 0; i < V; i++) {
        x[i] = (float)(kd_rand_unit(3, (uint64_t)i) * 8 - 4);
        sum += exp((double)x[i]);
    }
    x[50] = x[7] = 4.5f;
    sum = 0;
    for (int i = 0; i < V; i++)
        sum += exp((double)x[i]);
    pick(&p, NULL, NULL, x, &out);
    assert_int_equal(out.top_count, 5);
    assert_int_equal(out.top[0].id, 7);
    assert_int_equal(out.top[1].id, 50);
    assert_true(fabs((double)out.logprob - (4.5 - log(sum))) < 1e-5);
    for (int i = 0; i < 5; i++) {
        assert_true(fabs((double)out.top[i].logprob - ((double)x[out.top[i].id] - log(sum))) <
                    1e-5);
        for (int j = 0; j < V; j++) {
            bool among = false;
            for (int k = 0; k < 5; k++)
                among = among || out.top[k].id == j;
            assert_true(among || x[j] <= x[out.top[i].id]);
        }
    }
    p.logprobs = 1;
    pick(&p, NULL, NULL, x, &out);
    assert_int_equal(out.top_count, 0);
    assert_true(out.logprob < 0);
}

/* One sequence whose past always has something to say: how often and how deep it drafts. */
static void depth_adapts(void **state)
{
    struct kd_engine *e;
    struct kd_request *r;
    struct kd_choice *c;
    int64_t drafts = 0;
    (void)state;
    assert_int_equal(kd_mem_zero(&e, 1, sizeof *e, "engine", NULL), 0);
    assert_int_equal(kd_mem_zero(&r, 1, sizeof *r, "request", NULL), 0);
    assert_int_equal(kd_mem_zero(&c, 1, sizeof *c, "choice", NULL), 0);
    e->o.draft_max = 4;
    r->e = e;
    r->spec.max_tokens = 1000000;
    *c = (struct kd_choice){.r = r, .accept = 0.5, .planned = 1000000, .draftable = true};
    for (int32_t i = 0; i < 100; i++)
        assert_int_equal(kd_ids_add(&c->lane.ids, i % 10, NULL), 0);
    for (int i = 0; i < 40; i++) { /* a row more costs a tenth of a step */
        kd_cost_add(&e->cost, 1, 1.0);
        kd_cost_add(&e->cost, 3, 1.2);
    }
    for (int i = 0; i < 8000; i++) { /* never right: ever more rarely tried */
        kd_draft_plan(e, c, 1);
        drafts += c->draft_count > 0;
        if (c->draft_count)
            kd_draft_result(c, 0);
        else
            c->since_draft++;
        c->draft_count = 0;
    }
    assert_in_range(drafts, 10, 60);
    for (int i = 0; i < 2000; i++) { /* always right: soon as deep as may be */
        kd_draft_plan(e, c, 1);
        if (c->draft_count)
            kd_draft_result(c, c->draft_count);
        else
            c->since_draft++;
    }
    assert_int_equal(c->draft_count, 4);
    for (int i = 0; i < 40; i++) { /* where a row costs most of a step, even that does not pay */
        kd_cost_add(&e->cost, 1, 1.0);
        kd_cost_add(&e->cost, 3, 3.0);
    }
    c->accept = 0.3;
    c->since_draft = 0;
    kd_draft_plan(e, c, 1);
    assert_int_equal(c->draft_count, 0);
    kd_ngram_release(&c->ngram);
    kd_ids_release(&c->lane.ids);
    kd_mem_free(c);
    kd_mem_free(r);
    kd_mem_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(stops_and_cuts), cmocka_unit_test(drafts),
                                       cmocka_unit_test(depth_adapts), cmocka_unit_test(one_token),
                                       cmocka_unit_test(log_probabilities)};
    return cmocka_run_group_tests(tests, NULL, nothing_left);
}
