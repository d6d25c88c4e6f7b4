/* Tensor parallelism over threads: k3-mini's logits with one and two ranks, and cuts that do not
 * fit. */
#include "model_kat.h"

#include <pthread.h>

struct rank {
    const char *dir;
    struct kd_k3_open open;
    const int32_t *ids;
    int64_t count;
    float *logits; /* [count][vocab] */
    int failed;
    struct kd_err err;
};

static int rank_work(struct rank *r)
{
    struct kd_kern kern;
    struct kd_run run = {.kern = &kern};
    struct kd_k3_model *m = NULL;
    struct kd_k3_seq *s = NULL;
    int64_t half = r->count / 2 + 1;
    int rc = kd_kern_pick(&kern, &r->err) || kd_k3_open(&m, r->dir, &run, &r->open, &r->err) ||
             kd_k3_seq_open(&s, m, &r->err);
    if (!rc) {
        int64_t vocab = kd_k3_config(m)->vocab;
        struct kd_k3_feed feed = {s, r->ids, half, 2};
        rc = kd_k3_forward(m, &feed, 1, NULL, r->logits, &r->err);
        for (int64_t t = half; !rc && t < r->count; t++) {
            feed = (struct kd_k3_feed){s, r->ids + t, 1, 2};
            rc = kd_k3_forward(m, &feed, 1, NULL, r->logits + t * vocab, &r->err);
        }
    }
    kd_k3_seq_close(s);
    kd_k3_close(m);
    return rc;
}

static void *rank_thread(void *arg)
{
    struct rank *r = arg;
    r->failed = rank_work(r);
    return NULL;
}

static void run_ranks(const char *dir, int ranks, const int32_t *ids, int64_t count, int64_t vocab,
                      struct rank *r)
{
    struct kd_comm comms[4];
    pthread_t t[4];
    must(kd_comm_local_open(comms, ranks, &err));
    for (int i = 0; i < ranks; i++) {
        r[i] = (struct rank){.dir = dir,
                             .ids = ids,
                             .count = count,
                             .open = {.comm = &comms[i], .part = {i, ranks}}};
        r[i].logits = new_floats(count * vocab);
        assert_int_equal(pthread_create(&t[i], NULL, rank_thread, &r[i]), 0);
    }
    for (int i = 0; i < ranks; i++)
        pthread_join(t[i], NULL);
    kd_comm_local_close(comms);
}

static void mini_two_ranks(void **state)
{
    enum { COUNT = 80, VOCAB = 4096 };
    char dir[512], path[600];
    struct kd_ckpt *ck;
    struct rank one[4], two[4];
    (void)state;
    if (!shared_model(dir, "k3-mini"))
        skip();
    snprintf(path, sizeof path, "%s/golden.safetensors", dir);
    must(kd_ckpt_open(&ck, path, false, &err));
    const struct kd_tensor *t = kd_ckpt_find(ck, "2.ids");
    assert_true(t && t->shape[0] >= COUNT);
    const int32_t *ids = (const int32_t *)(const void *)t->data;
    run_ranks(dir, 1, ids, COUNT, VOCAB, one);
    run_ranks(dir, 2, ids, COUNT, VOCAB, two);
    for (int i = 0; i < 2; i++)
        if (two[i].failed || one[0].failed)
            fail_msg("%s %s", one[0].err.msg, two[i].err.msg);
    assert_memory_equal(two[0].logits, two[1].logits, COUNT * VOCAB * sizeof(float));
    double rel =
        apart(one[0].logits, two[0].logits, COUNT * VOCAB) / greatest(one[0].logits, COUNT * VOCAB);
    printf("1 and 2 ranks: %.2e of the largest apart\n", rel);
    assert_true(rel <= 1e-5);
    assert_true(rel > 0); /* sums in another order: equal bits would mean nothing was cut */
    free(one[0].logits);
    free(two[0].logits);
    free(two[1].logits);
    kd_ckpt_close(ck);
}

/* Three heads of sixteen do not divide at 128. */
static void refused(void **state)
{
    const struct kat plain = {0};
    char dir[512];
    struct fixture f = {.run = {.kern = &f.kern}};
    struct kd_comm comms[2];
    struct kd_k3_open o = {.part = {0, 2}};
    (void)state;
    must(kd_kern_pick(&f.kern, &err));
    kat_write(&plain, dir);
    assert_int_equal(kd_k3_open(&f.m, dir, &f.run, &o, &err), -1); /* a part without its group */
    must(kd_comm_local_open(comms, 2, &err));
    o.comm = &comms[0];
    assert_int_equal(kd_k3_open(&f.m, dir, &f.run, &o, &err), -1);
    assert_int_equal(err.code, KD_ENOTSUP);
    assert_non_null(strstr(err.msg, "3 x 16 channels cannot be cut among 2 ranks"));
    kd_comm_local_close(comms);
    kat_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(mini_two_ranks), cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
