#include "model_util.h"

enum { VOCAB = 50, DRAWS = 40000 };

static int32_t draw(struct kd_sampling s, const float *logits, int64_t position)
{
    int32_t id;
    must(kd_sample(&s, logits, VOCAB, position, &id, &err));
    return id;
}

static void make(float logits[VOCAB])
{
    for (int i = 0; i < VOCAB; i++)
        logits[i] = (float)((i * 37) % VOCAB) * 0.1f; /* all different, largest 4.9 at i = 27 */
}

static void greedy_ties(void **state)
{
    const struct kd_sampling s = {.temperature = 0};
    float l[VOCAB] = {0};
    (void)state;
    l[7] = l[31] = 2.0f;
    l[3] = NAN;
    assert_int_equal(draw(s, l, 0), 7);
    for (int i = 0; i < VOCAB; i++)
        l[i] = NAN;
    int32_t id;
    assert_int_equal(kd_sample(&s, l, VOCAB, 0, &id, &err), -1);
    l[9] = -INFINITY;
    assert_int_equal(draw(s, l, 0), 9);
    l[12] = INFINITY;
    const struct kd_sampling warm = {.temperature = 1, .top_p = 1};
    assert_int_equal(draw(warm, l, 0), 12);
}

/* Frequencies of 40,000 draws against softmax, for two temperatures. */
static void frequencies(void **state)
{
    float l[VOCAB];
    (void)state;
    make(l);
    for (double temperature = 0.5; temperature < 1.5; temperature += 0.5) {
        struct kd_sampling s = {.temperature = temperature, .top_p = 1, .seed = 5};
        int count[VOCAB] = {0};
        double sum = 0;
        for (int i = 0; i < VOCAB; i++)
            sum += exp((double)l[i] / temperature);
        for (int64_t p = 0; p < DRAWS; p++)
            count[draw(s, l, p)]++;
        for (int i = 0; i < VOCAB; i++) {
            double want = exp((double)l[i] / temperature) / sum * DRAWS;
            assert_true(fabs(count[i] - want) <= 5 * sqrt(want) + 3);
        }
    }
}

static void same_again(void **state)
{
    float l[VOCAB];
    int differ = 0;
    (void)state;
    make(l);
    struct kd_sampling a = {.temperature = 1, .top_p = 0.95, .seed = 1}, b = a, c = a;
    b.seed = 2;
    c.choice = 1;
    for (int64_t p = 0; p < 200; p++) {
        int32_t id = draw(a, l, p);
        assert_int_equal(id, draw(a, l, p));
        differ += id != draw(b, l, p);
        differ += id != draw(c, l, p);
    }
    assert_true(differ > 200);
}

/* Many tokens, most of them with a twin: the likeliest stay, of equals those with the lower id. */
static void many(void **state)
{
    enum { MANY = 3000, KEPT = 501, TIMES = KD_TEST_SLOW ? 4000 : 20000 };
    static float l[MANY];
    int seen[2] = {0};
    (void)state;
    for (int i = 0; i < MANY; i++)
        l[i] = (float)(i * 7 % (MANY / 2)) * 1e-3f; /* each value twice, MANY / 2 ids apart */
    struct kd_sampling s = {.temperature = 1, .top_p = 1, .top_k = KEPT};
    for (int64_t p = 0; p < TIMES; p++) {
        int32_t id;
        assert_int_equal(kd_sample(&s, l, MANY, p, &id, &err), 0);
        int rank = MANY / 2 - 1 - id * 7 % (MANY / 2); /* of its value */
        assert_true(rank < KEPT / 2 || (rank == KEPT / 2 && id < MANY / 2));
        seen[0] += rank == KEPT / 2;
        seen[1] += rank < KEPT / 2 && id >= MANY / 2;
    }
    assert_true(seen[0] > TIMES / 4000 && seen[1] > TIMES / 4);
}

/* Which tokens can come at all. */
static void limits(void **state)
{
    float l[VOCAB];
    double p[VOCAB], sum = 0;
    (void)state;
    make(l);
    for (int i = 0; i < VOCAB; i++)
        sum += exp((double)l[i]);
    for (int i = 0; i < VOCAB; i++)
        p[i] = exp((double)l[i]) / sum;
    struct kd_sampling top_k = {.temperature = 1, .top_p = 1, .top_k = 5};
    struct kd_sampling min_p = {.temperature = 1, .top_p = 1, .min_p = 0.5};
    struct kd_sampling top_p = {.temperature = 1, .top_p = 0.5};
    struct kd_sampling both = {.temperature = 1, .top_p = 0.3, .top_k = 5};
    bool seen[4][VOCAB] = {{0}};
    for (int64_t i = 0; i < 20000; i++) {
        seen[0][draw(top_k, l, i)] = true;
        seen[1][draw(min_p, l, i)] = true;
        seen[2][draw(top_p, l, i)] = true;
        seen[3][draw(both, l, i)] = true;
    }
    for (int i = 0; i < VOCAB; i++) {
        double above = 0, five = 0;
        int rank = 0;
        for (int k = 0; k < VOCAB; k++) {
            if (p[k] > p[i]) {
                above += p[k];
                rank++;
            }
            five += l[k] > 4.45f ? p[k] : 0;
        }
        assert_int_equal(seen[0][i], rank < 5);
        assert_int_equal(seen[1][i], p[i] >= 0.5 * p[27]);
        assert_int_equal(seen[2][i], above < 0.5);
        assert_int_equal(seen[3][i], rank < 5 && above < 0.3 * five);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(greedy_ties), cmocka_unit_test(frequencies),
                                       cmocka_unit_test(same_again), cmocka_unit_test(many),
                                       cmocka_unit_test(limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
