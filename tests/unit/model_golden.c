/* The goldens beside k3-nano, and k3-mini's where it is: the residual stream after every layer,
 * routing, logits and greedy continuations, on the reference kernels and on the best ones. */
#include "model_util.h"

struct golden {
    struct kd_ckpt *ck;
    int64_t prompt;
    struct fixture *f;
    double worst_stream, worst_logits;
    int64_t routed, continued;
};

static const struct kd_tensor *tensor(const struct golden *g, const char *what, int64_t layer)
{
    char name[64];
    if (layer < 0)
        snprintf(name, sizeof name, "%lld.%s", (long long)g->prompt, what);
    else
        snprintf(name, sizeof name, "%lld.%s.%lld", (long long)g->prompt, what, (long long)layer);
    return kd_ckpt_find(g->ck, name);
}

static const float *floats_of(const struct kd_tensor *t)
{
    return (const float *)(const void *)t->data;
}

static void after_layer(void *ctx, int64_t layer, const struct kd_k3_stream *s)
{
    struct golden *g = ctx;
    const struct kd_tensor *t = tensor(g, "stream", layer + 1);
    assert_non_null(t);
    assert_int_equal(t->shape[0], s->T);
    double rel =
        apart(floats_of(t), s->p, s->T * s->hidden) / greatest(floats_of(t), s->T * s->hidden);
    g->worst_stream = rel > g->worst_stream || rel != rel ? rel : g->worst_stream;
}

static int by_id(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static void routed(void *ctx, int64_t layer, int64_t seq, int64_t pos, const int32_t *ids,
                   const float *w)
{
    struct golden *g = ctx;
    int64_t k = kd_k3_config(g->f->m)->topk;
    const struct kd_tensor *t = tensor(g, "topk", layer);
    int32_t mine[64];
    (void)seq;
    (void)w;
    assert_non_null(t);
    memcpy(mine, ids, (size_t)k * sizeof *mine);
    qsort(mine, (size_t)k, sizeof *mine, by_id);
    assert_memory_equal(mine, t->data + pos * k * 4, (size_t)k * 4);
    g->routed += k;
}

static void check_prompt(struct golden *g, const struct kd_json *entry)
{
    const struct kd_k3_cfg *c = kd_k3_config(g->f->m);
    const struct kd_tensor *ids = tensor(g, "ids", -1), *want = tensor(g, "logits", -1);
    int64_t T = ids->shape[0];
    float *logits = new_floats(T * c->vocab);
    struct kd_k3_seq *s;
    struct kd_k3_options o = {
        .trace = routed, .trace_ctx = g, .after_layer = after_layer, .after_ctx = g};
    must(kd_k3_seq_open(&s, g->f->m, &err));
    struct kd_k3_feed feed = {s, (const int32_t *)(const void *)ids->data, T, 2};
    must(kd_k3_forward(g->f->m, &feed, 1, &o, logits, &err));
    assert_int_equal(kd_k3_seq_pos(s), T);
    kd_k3_seq_close(s);
    double rel =
        apart(floats_of(want), logits, T * c->vocab) / greatest(floats_of(want), T * c->vocab);
    g->worst_logits = rel > g->worst_logits || rel != rel ? rel : g->worst_logits;

    const struct kd_json *more = kd_json_get(entry, "greedy_ids");
    int64_t n = (int64_t)kd_json_count(more);
    int32_t out[256];
    assert_true(n <= 256);
    g->continued += n;
    if (n)
        greedy(g->f, (const int32_t *)(const void *)ids->data, T, T, out, n, logits);
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(out[i], kd_json_int_value(kd_json_at(more, (size_t)i)));
    free(logits);
}

static void check_model(const char *dir, enum kd_isa isa, double bound)
{
    char path[600];
    struct fixture f;
    struct golden g = {.f = &f};
    struct kd_json *list;
    fixture_open(&f, dir, isa, 0, NULL);
    snprintf(path, sizeof path, "%s/golden.safetensors", dir);
    must(kd_ckpt_open(&g.ck, path, false, &err));
    snprintf(path, sizeof path, "%s/golden.json", dir);
    must(kd_json_load(&list, path, 1 << 24, &err));
    assert_true(kd_json_count(list) >= 4);
    for (size_t i = 0; i < kd_json_count(list); i++) {
        g.prompt = (int64_t)i;
        check_prompt(&g, kd_json_at(list, i));
    }
    printf("%s %s: stream %.2e, logits %.2e of the largest; %lld expert ids, %lld greedy ids\n",
           dir, f.kern.name, g.worst_stream, g.worst_logits, (long long)g.routed,
           (long long)g.continued);
    assert_true(g.routed > 0 && g.continued >= 72);
    assert_true(g.worst_stream <= bound);
    assert_true(g.worst_logits <= bound);
    kd_json_free(list);
    kd_ckpt_close(g.ck);
    fixture_close(&f);
}

static void nano_reference(void **state)
{
    char dir[512];
    (void)state;
    if (KD_TEST_SLOW) /* model_cut holds the reference to the others there */
        skip();
    check_model(data_path(dir, "k3-nano"), KD_ISA_REF, 5e-6);
}

static void nano_fast(void **state)
{
    char dir[512];
    (void)state;
    check_model(data_path(dir, "k3-nano"), KD_ISA_COUNT, 1e-5);
}

static void mini_fast(void **state)
{
    char dir[512];
    (void)state;
    if (!shared_model(dir, "k3-mini"))
        skip();
    check_model(dir, KD_ISA_COUNT, 1e-5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nano_reference),
        cmocka_unit_test(nano_fast),
        cmocka_unit_test(mini_fast),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
