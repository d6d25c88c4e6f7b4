#include "comm/comm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

enum { RANKS = 4, COUNT = 1003, ROUNDS = 50 };

struct rank {
    struct kd_comm *comm;
    float buf[COUNT];
    int64_t count;
    int failed;
    struct kd_err err;
};

static float part(int rank, int round, int64_t i)
{
    return (float)((i * 2654435761u + (int64_t)rank * 40503 + round * 97) % 100003) * 0.001f -
           40.0f;
}

static void *sum_rounds(void *arg)
{
    struct rank *r = arg;
    for (int round = 0; round < ROUNDS && !r->failed; round++) {
        for (int64_t i = 0; i < COUNT; i++)
            r->buf[i] = part(r->comm->rank, round, i);
        r->failed = r->comm->all_reduce(r->comm, r->buf, COUNT, &r->err) ||
                    r->comm->barrier(r->comm, &r->err);
        for (int64_t i = 0; i < COUNT && !r->failed; i++) {
            float want = part(0, round, i);
            for (int k = 1; k < r->comm->ranks; k++)
                want += part(k, round, i);
            r->failed = !(want == r->buf[i]);
        }
    }
    return NULL;
}

static void *sum_once(void *arg)
{
    struct rank *r = arg;
    r->failed = r->comm->all_reduce(r->comm, r->buf, r->count, &r->err);
    return NULL;
}

static void all(struct rank *ranks, int n, void *(*fn)(void *))
{
    pthread_t t[RANKS];
    for (int i = 0; i < n; i++)
        assert_int_equal(pthread_create(&t[i], NULL, fn, &ranks[i]), 0);
    for (int i = 0; i < n; i++)
        pthread_join(t[i], NULL);
}

static void ascending_sums(void **state)
{
    (void)state;
    for (int n = 1; n <= RANKS; n++) {
        struct kd_comm comms[RANKS];
        struct kd_err err;
        struct rank *ranks = calloc(RANKS, sizeof *ranks);
        assert_int_equal(kd_comm_local_open(comms, n, &err), 0);
        for (int i = 0; i < n; i++)
            ranks[i].comm = &comms[i];
        all(ranks, n, sum_rounds);
        for (int i = 0; i < n; i++)
            assert_int_equal(ranks[i].failed, 0);
        kd_comm_local_close(comms);
        free(ranks);
    }
}

static void unlike_counts(void **state)
{
    struct kd_comm comms[2];
    struct kd_err err;
    struct rank *ranks = calloc(2, sizeof *ranks);
    (void)state;
    assert_int_equal(kd_comm_local_open(comms, 2, &err), 0);
    for (int i = 0; i < 2; i++) {
        ranks[i].comm = &comms[i];
        ranks[i].count = 10 + i;
    }
    all(ranks, 2, sum_once);
    assert_int_equal(ranks[0].failed, -1);
    assert_int_equal(ranks[1].failed, -1);
    assert_non_null(strstr(ranks[0].err.msg, "11"));
    kd_comm_local_close(comms);
    free(ranks);
    assert_int_equal(kd_comm_local_open(comms, 0, &err), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ascending_sums),
                                       cmocka_unit_test(unlike_counts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
