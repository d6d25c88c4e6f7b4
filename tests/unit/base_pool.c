/* base/pool: each item once, workers never shared, runs inside runs, many runs, bounds. */
#include "base/pool.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { ITEMS = 5000, WORKERS = 7 };

struct job {
    struct kd_pool *pool;
    atomic_int seen[ITEMS];
    atomic_int busy[WORKERS];
    atomic_int clashes, inner;
    int workers;
};

static void item(void *ctx, int64_t i, int worker)
{
    struct job *j = ctx;
    if (worker < 0 || worker >= j->workers || atomic_fetch_add(&j->busy[worker], 1))
        atomic_fetch_add(&j->clashes, 1);
    atomic_fetch_add(&j->seen[i], 1);
    atomic_fetch_sub(&j->busy[worker], 1);
}

static void each_once(void **state)
{
    (void)state;
    static struct job j;
    static const int threads[] = {1, 2, WORKERS};
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        struct kd_err err;
        memset(&j, 0, sizeof j);
        j.workers = threads[t];
        assert_int_equal(kd_pool_open(&j.pool, threads[t], &err), 0);
        assert_int_equal(kd_pool_threads(j.pool), threads[t]);
        kd_pool_run(j.pool, ITEMS, item, &j);
        for (int round = 0; round < 200; round++)
            kd_pool_run(j.pool, round % 5, item, &j);
        kd_pool_close(j.pool);
        for (int i = 0; i < ITEMS; i++)
            assert_int_equal(j.seen[i], 1 + (i < 4 ? (4 - i) * 40 : 0));
        assert_int_equal(j.clashes, 0);
    }
}

/* Between runs helpers fall asleep, or are about to. */
static void naps(void **state)
{
    enum { RUNS = 60 };
    (void)state;
    static struct job j;
    struct kd_err err;
    memset(&j, 0, sizeof j);
    j.workers = 2;
    assert_int_equal(kd_pool_open(&j.pool, 2, &err), 0);
    for (int run = 0; run < RUNS; run++) {
        struct timespec t = {.tv_nsec = run % 3 * 50000};
        nanosleep(&t, NULL);
        kd_pool_run(j.pool, 1 + run % 4, item, &j);
    }
    kd_pool_close(j.pool);
    for (int i = 0; i < 5; i++)
        assert_int_equal(j.seen[i], i < 4 ? RUNS * (4 - i) / 4 : 0);
    assert_int_equal(j.clashes, 0);
}

static void inner(void *ctx, int64_t i, int worker)
{
    struct job *j = ctx;
    (void)i;
    if (worker)
        atomic_fetch_add(&j->clashes, 1);
    atomic_fetch_add(&j->inner, 1);
}

static void outer(void *ctx, int64_t i, int worker)
{
    struct job *j = ctx;
    (void)i;
    (void)worker;
    kd_pool_run(j->pool, 10, inner, j);
}

/* A run from inside a run is done by that thread alone, as worker 0 of its own loop. */
static void nested(void **state)
{
    (void)state;
    static struct job j;
    struct kd_err err;
    memset(&j, 0, sizeof j);
    assert_int_equal(kd_pool_open(&j.pool, 3, &err), 0);
    kd_pool_run(j.pool, 50, outer, &j);
    assert_int_equal(j.inner, 500);
    assert_int_equal(j.clashes, 0);
    kd_pool_run(j.pool, 1, outer, &j);
    assert_int_equal(j.inner, 510);
    kd_pool_close(j.pool);
}

static void without_a_pool(void **state)
{
    (void)state;
    static struct job j;
    memset(&j, 0, sizeof j);
    j.workers = 1;
    kd_pool_run(NULL, 100, item, &j);
    for (int i = 0; i < 100; i++)
        assert_int_equal(j.seen[i], 1);
    assert_int_equal(kd_pool_threads(NULL), 1);
    kd_pool_close(NULL);
}

static void bounds(void **state)
{
    (void)state;
    struct kd_pool *p;
    struct kd_err err;
    assert_int_equal(kd_pool_open(&p, -1, &err), -1);
    assert_int_equal(kd_pool_open(&p, 1 << 20, &err), -1);
    assert_null(p);
    assert_int_equal(kd_pool_open(&p, 0, &err), 0);
    assert_true(kd_pool_threads(p) >= 1);
    kd_pool_close(p);
}

static void burn(void *ctx, int64_t i, int worker)
{
    double until = kd_clock_cpu_s() + 0.002;
    (void)i;
    while (kd_clock_cpu_s() < until)
        ;
    atomic_fetch_add((atomic_int *)ctx + worker, 1);
}

/* Helpers' time: some once they have worked, and no more than the process took. */
static void cpu_time(void **state)
{
    (void)state;
    struct kd_pool *p;
    struct kd_err err;
    atomic_int did[2] = {0};
    double before = kd_clock_cpu_s();
    assert_int_equal(kd_pool_open(&p, 2, &err), 0);
    for (int i = 0; i < 200 && !did[1]; i++)
        kd_pool_run(p, 10, burn, did);
    assert_true(did[1] > 0);
    double helpers = kd_pool_cpu_s(p), all = kd_clock_cpu_s() - before;
    assert_true(helpers > 0.0005 && helpers <= all);
    kd_pool_close(p);
    assert_true(kd_pool_cpu_s(NULL) == 0);
}

/* Every byte, also those of an odd end; with threads as without. */
static void reads_all(void **state)
{
    (void)state;
    enum { BYTES = (3 << 20) + 45 };
    static uint8_t data[BYTES + 8];
    struct kd_pool *pool;
    struct kd_err err;
    uint64_t want = 0, v;
    for (int i = 0; i < BYTES; i++)
        data[i] = (uint8_t)((uint32_t)i * 2654435761u >> 24);
    for (int i = 0; i < BYTES; i += 8) { /* what follows the end is zero */
        memcpy(&v, data + i, 8);
        want ^= v;
    }
    assert_int_equal(kd_pool_open(&pool, 3, &err), 0);
    assert_true(kd_pool_read(NULL, data, BYTES) == want);
    assert_true(kd_pool_read(pool, data, BYTES) == want);
    data[BYTES - 1] ^= 1;
    assert_true(kd_pool_read(pool, data, BYTES) != want);
    assert_true(kd_pool_read(pool, NULL, 0) == 0);
    kd_pool_close(pool);
}

/* Every thread has one lane; lanes of one thread need no pool. */
static void split(void **state)
{
    struct kd_pool *pool, *lane[4];
    struct kd_err err;
    (void)state;
    assert_int_equal(kd_pool_open(&pool, 5, &err), 0);
    assert_int_equal(kd_pool_split(pool, 3, lane, &err), 0);
    assert_int_equal(kd_pool_threads(lane[0]), 2);
    assert_int_equal(kd_pool_threads(lane[1]), 2);
    assert_null(lane[2]);
    for (int i = 0; i < 3; i++)
        kd_pool_close(lane[i]);
    assert_int_equal(kd_pool_split(pool, 1, lane, &err), 0);
    assert_null(lane[0]);
    kd_pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_once),      cmocka_unit_test(nested), cmocka_unit_test(reads_all),
        cmocka_unit_test(without_a_pool), cmocka_unit_test(bounds), cmocka_unit_test(cpu_time),
        cmocka_unit_test(split),          cmocka_unit_test(naps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
