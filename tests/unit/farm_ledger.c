/* The ledger's state machine, every test on SQLite and on a private PostgreSQL server (where its
 * programs are installed).
 *
 * timeout: 120 */
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "farm/ledger.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64], pg_where[256];
static char where[400];
static double clock_now = 1000;
static int serial;

static double fake(void)
{
    return clock_now;
}

static void must(int rc, const struct kd_err *err)
{
    if (rc)
        fail_msg("%s", err->msg);
}

/* A fresh run with a layer of n jobs, cost by number. */
static void begin(struct kd_ledger *l, int64_t n)
{
    struct kd_err err = {0};
    struct kd_job_plan plan[64];
    char run[65];
    snprintf(run, sizeof run, "run%d-%s", serial++, where[0] == 's' ? "lite" : "pg");
    must(kd_ledger_open(l, where, run, NULL, &err), &err);
    l->now = fake;
    must(kd_ledger_take(l, "test", &err), &err);
    for (int64_t i = 0; i < n; i++)
        plan[i] = (struct kd_job_plan){.cost = (double)i, .bytes = 100};
    must(kd_ledger_settle(l, 1, 0, plan, n, &err), &err);
}

static const struct kd_stage experts = {1, 0, 1024};

static void join(struct kd_ledger *l, const char *id, const char *host, const char *incarnation)
{
    struct kd_err err = {0};
    struct kd_worker_card w = {.arch = "x86_64", .device = "cpu", .version = "0"};
    snprintf(w.id, sizeof w.id, "%s", id);
    snprintf(w.host, sizeof w.host, "%s", host);
    snprintf(w.incarnation, sizeof w.incarnation, "%s", incarnation);
    must(kd_ledger_join(l, &w, &err), &err);
}

static int64_t take(struct kd_ledger *l, const char *id, const char *incarnation, const char *token,
                    int64_t most, struct kd_grant *g)
{
    struct kd_err err = {0};
    int64_t n;
    struct kd_claim c = {id, incarnation, token, most, experts};
    must(kd_ledger_claim(l, &c, g, &n, &err), &err);
    return n;
}

static enum kd_done finish(struct kd_ledger *l, const struct kd_grant *g, const char *id,
                           const char *sha, double seconds)
{
    struct kd_err err = {0};
    enum kd_done what;
    struct kd_result r = {.layer = g->layer,
                          .expert = g->expert,
                          .attempt = g->attempt,
                          .worker = id,
                          .sha256 = sha,
                          .seconds = seconds};
    must(kd_ledger_done(l, &r, &what, NULL, &err), &err);
    return what;
}

static struct kd_layer_count count(struct kd_ledger *l)
{
    struct kd_err err = {0};
    struct kd_layer_count c;
    must(kd_ledger_count(l, 1, &c, &err), &err);
    return c;
}

static void dearest_first_each_once(void **state)
{
    (void)state;
    struct kd_ledger l;
    struct kd_grant g[16];
    begin(&l, 5);
    join(&l, "a", "h1", "i");
    for (int64_t want = 4; want >= 0; want--) {
        char token[16];
        snprintf(token, sizeof token, "t%d", (int)want);
        assert_int_equal(take(&l, "a", "i", token, 1, g), 1);
        assert_int_equal(g[0].expert, want);
        assert_int_equal(g[0].attempt, 1);
        assert_int_equal(finish(&l, g, "a", "x", 0.5), KD_DONE_FIRST);
    }
    assert_int_equal(take(&l, "a", "i", "t", 1, g), 0);
    assert_int_equal(count(&l).done, 5);
    kd_ledger_close(&l);
}

static void a_lost_reply_is_found_again(void **state)
{
    (void)state;
    struct kd_ledger l;
    struct kd_grant g[16], again[16];
    begin(&l, 8);
    join(&l, "a", "h1", "i");
    assert_int_equal(take(&l, "a", "i", "same", 1, g), 1);
    assert_int_equal(take(&l, "a", "i", "same", 1, again), 1);
    assert_int_equal(again[0].expert, g[0].expert);
    assert_int_equal(again[0].attempt, g[0].attempt);
    assert_int_equal(count(&l).leased, 1);
    kd_ledger_close(&l);
}

static void batches_follow_the_rate(void **state)
{
    (void)state;
    struct kd_ledger l;
    struct kd_grant g[64];
    begin(&l, 40);
    join(&l, "fast", "h1", "i");
    join(&l, "slow", "h2", "i");
    assert_int_equal(take(&l, "fast", "i", "1", 16, g), 1); /* not measured yet */
    finish(&l, g, "fast", "x", 0.5);
    assert_int_equal(take(&l, "slow", "i", "1", 16, g), 1);
    finish(&l, g, "slow", "x", 8);
    assert_int_equal(take(&l, "fast", "i", "2", 16, g), 8);
    assert_int_equal(take(&l, "slow", "i", "2", 16, g), 1);
    assert_int_equal(take(&l, "slow", "i", "3", 16, g), 1); /* one waits beside the one that runs */
    assert_int_equal(take(&l, "slow", "i", "4", 16, g), 0);
    assert_int_equal(take(&l, "fast", "i", "3", 3, g), 3); /* its own limit */
    assert_int_equal(take(&l, "fast", "i", "4", 16, g), 6);
    assert_int_equal(take(&l, "fast", "i", "5", 16, g), 0); /* enough waits there */
    for (int64_t e = 5; e < 40; e++) {
        struct kd_grant done = {.layer = 1, .expert = e, .attempt = 1};
        finish(&l, &done, "fast", "x", 0.5);
    }
    assert_int_equal(take(&l, "fast", "i", "last", 16, g), 1);
    kd_ledger_close(&l);
}

static void lanes_hold_a_job_each(void **state)
{
    (void)state;
    struct kd_err err = {0};
    struct kd_ledger l;
    struct kd_grant g[64];
    struct kd_farm_status s;
    struct kd_worker_card w = {
        .id = "a", .host = "h", .incarnation = "i", .arch = "x", .device = "cuda:0", .lanes = 3};
    begin(&l, 40);
    must(kd_ledger_join(&l, &w, &err), &err);
    /* Before its speed is known: one for each lane, none to wait. */
    for (int i = 0; i < 4; i++) {
        char token[8];
        snprintf(token, sizeof token, "%d", i);
        assert_int_equal(take(&l, "a", "i", token, 16, g), i < 3);
    }
    must(kd_ledger_status(&l, 0, &s, &err), &err);
    assert_int_equal(s.workers[0].card.lanes, 3);
    assert_int_equal(s.workers[0].held, 3);
    kd_farm_status_release(&s);
    kd_ledger_close(&l);
}

static void leases_run_out_and_beats_keep_them(void **state)
{
    (void)state;
    struct kd_err err = {0};
    struct kd_ledger l;
    struct kd_grant a[16], b[16], c[16];
    struct kd_beat beat;
    int64_t reaped;
    begin(&l, 3);
    join(&l, "a", "h1", "i");
    join(&l, "b", "h2", "i");
    assert_int_equal(take(&l, "a", "i", "1", 1, a), 1);
    assert_int_equal(take(&l, "b", "i", "1", 1, b), 1);
    clock_now += 20;
    struct kd_held held = {b->layer, b->expert, b->attempt, false};
    must(kd_ledger_beat(&l, "b", "i", &held, 1, &beat, &err), &err);
    assert_true(beat.known && !beat.drain && !held.lost);
    clock_now += 15;
    must(kd_ledger_reap(&l, &reaped, &err), &err);
    assert_int_equal(reaped, 1);
    assert_int_equal(count(&l).ready, 2);
    /* The first one's beat says what it lost; somebody else has the job; its late result counts. */
    struct kd_held mine = {a->layer, a->expert, a->attempt, false};
    must(kd_ledger_beat(&l, "a", "i", &mine, 1, &beat, &err), &err);
    assert_true(mine.lost);
    finish(&l, b, "b", "x", 1);
    assert_int_equal(take(&l, "b", "i", "2", 1, c), 1);
    assert_int_equal(c->expert, a->expert);
    assert_int_equal(c->attempt, 2);
    assert_int_equal(finish(&l, a, "a", "x", 1), KD_DONE_FIRST);
    held = (struct kd_held){c->layer, c->expert, c->attempt, false};
    must(kd_ledger_beat(&l, "b", "i", &held, 1, &beat, &err), &err);
    assert_true(held.lost); /* the loser is told */
    assert_int_equal(finish(&l, c, "b", "x", 1), KD_DONE_AGAIN);
    assert_int_equal(finish(&l, c, "b", "y", 1), KD_DONE_DIFFERS);
    kd_ledger_close(&l);
}

static void a_new_incarnation_holds_nothing(void **state)
{
    (void)state;
    struct kd_err err = {0};
    struct kd_ledger l;
    struct kd_grant g[16];
    struct kd_beat beat;
    int64_t reaped;
    begin(&l, 2);
    join(&l, "a", "h1", "first");
    assert_int_equal(take(&l, "a", "first", "1", 1, g), 1);
    join(&l, "a", "h1", "second");
    must(kd_ledger_reap(&l, &reaped, &err), &err);
    assert_int_equal(reaped, 1);
    assert_int_equal(take(&l, "a", "first", "2", 1, g), 0);
    struct kd_held held = {g->layer, g->expert, g->attempt, false};
    must(kd_ledger_beat(&l, "a", "first", &held, 1, &beat, &err), &err);
    assert_true(!beat.known && held.lost);
    assert_int_equal(take(&l, "a", "second", "3", 1, g), 1);
    kd_ledger_close(&l);
}

static void bad_arithmetic_on_two_hosts_is_poison(void **state)
{
    (void)state;
    struct kd_err err = {0};
    struct kd_ledger l;
    struct kd_grant g[16];
    int64_t expert, tries;
    begin(&l, 1);
    join(&l, "a", "h1", "i");
    join(&l, "b", "h2", "i");
    assert_int_equal(take(&l, "a", "i", "1", 1, g), 1);
    must(kd_ledger_fail(&l, 1, 0, g->attempt, "a", KD_FAIL_MATH, "NaN", &err), &err);
    assert_int_equal(take(&l, "b", "i", "1", 1, g), 0); /* backs off */
    clock_now += 3;
    assert_int_equal(take(&l, "b", "i", "2", 1, g), 1);
    must(kd_ledger_fail(&l, 1, 0, g->attempt, "b", KD_FAIL_MATH, "NaN", &err), &err);
    assert_int_equal(count(&l).poison, 1);
    must(kd_ledger_poisoned(&l, 1, &expert, &tries, &err), &err);
    assert_int_equal(expert, 0);
    assert_int_equal(tries, 1);
    must(kd_ledger_poisoned(&l, 1, &expert, &tries, &err), &err);
    assert_int_equal(tries, 2);
    finish(&l, g, "local", "x", 1); /* encoded by the coordinator */
    assert_int_equal(count(&l).done, 1);
    kd_ledger_close(&l);
}

static void crashes_make_a_job_run_alone_then_poison(void **state)
{
    (void)state;
    struct kd_err err = {0};
    struct kd_ledger l;
    struct kd_grant g[16];
    int64_t reaped;
    begin(&l, 1);
    const char *hosts[] = {"h1", "h2", "h3"};
    for (int i = 0; i < 3; i++) {
        join(&l, hosts[i], hosts[i], "i");
        assert_int_equal(take(&l, hosts[i], "i", "1", 1, g), 1);
        clock_now += 100;
        must(kd_ledger_reap(&l, &reaped, &err), &err);
        assert_int_equal(reaped, 1);
        assert_int_equal(count(&l).poison, i == 2);
    }
    kd_ledger_close(&l);
}

static void a_solo_job_shares_no_worker(void **state)
{
    (void)state;
    struct kd_err err = {0};
    struct kd_ledger l;
    struct kd_grant g[16];
    int64_t reaped;
    begin(&l, 2);
    const char *hosts[] = {"h1", "h2"};
    for (int i = 0; i < 2; i++) {
        join(&l, hosts[i], hosts[i], "i");
        assert_int_equal(take(&l, hosts[i], "i", "1", 1, g), 1);
        assert_int_equal(g->expert, 1);
        clock_now += 100;
        must(kd_ledger_reap(&l, &reaped, &err), &err);
    }
    join(&l, "h3", "h3", "i");
    assert_int_equal(take(&l, "h3", "i", "1", 5, g), 1);
    assert_int_equal(g->expert, 0); /* the sound one first */
    assert_int_equal(take(&l, "h3", "i", "2", 5, g), 0);
    finish(&l, g, "h3", "x", 1);
    assert_int_equal(take(&l, "h3", "i", "3", 5, g), 1);
    assert_int_equal(g->expert, 1);
    kd_ledger_close(&l);
}

static void three_strikes(void **state)
{
    (void)state;
    struct kd_err err = {0};
    struct kd_ledger l;
    struct kd_grant g[16];
    begin(&l, 5);
    join(&l, "a", "h1", "i");
    for (int i = 0; i < 3; i++) {
        char token[8];
        snprintf(token, sizeof token, "%d", i);
        assert_int_equal(take(&l, "a", "i", token, 1, g), 1);
        must(kd_ledger_fail(&l, 1, g->expert, g->attempt, "a", KD_FAIL_DEVICE, "ECC", &err), &err);
    }
    assert_int_equal(take(&l, "a", "i", "x", 1, g), 0);
    assert_int_equal(count(&l).ready, 5); /* the jobs are not to blame */
    struct kd_worker_card w = {.id = "a", .host = "h1", .incarnation = "j"};
    assert_int_equal(kd_ledger_join(&l, &w, &err), -1);
    assert_non_null(strstr(err.msg, "quarantined"));
    kd_ledger_close(&l);
}

static void stragglers_get_one_second_worker(void **state)
{
    (void)state;
    struct kd_ledger l;
    struct kd_grant g[16], s[16];
    begin(&l, 1);
    join(&l, "a", "h1", "i");
    join(&l, "a2", "h1", "i");
    join(&l, "b", "h2", "i");
    join(&l, "c", "h3", "i");
    assert_int_equal(take(&l, "a", "i", "1", 1, g), 1);
    assert_int_equal(take(&l, "b", "i", "1", 1, s), 0); /* too early */
    clock_now += 16;
    assert_int_equal(take(&l, "a2", "i", "1", 1, s), 0); /* the same host */
    assert_int_equal(take(&l, "b", "i", "2", 1, s), 1);
    assert_true(s->speculative && s->attempt == 2);
    assert_int_equal(take(&l, "c", "i", "1", 1, g), 0); /* one extra is enough */
    assert_int_equal(finish(&l, s, "b", "x", 1), KD_DONE_FIRST);
    assert_int_equal(finish(&l, g, "a", "x", 1), KD_DONE_AGAIN);
    kd_ledger_close(&l);
}

static void disk_wins(void **state)
{
    (void)state;
    struct kd_err err = {0};
    struct kd_ledger l;
    struct kd_grant g[16];
    begin(&l, 4);
    join(&l, "a", "h1", "i");
    assert_int_equal(take(&l, "a", "i", "1", 1, g), 1); /* job 3, stays leased */
    struct kd_grant done = {.layer = 1, .expert = 2, .attempt = 1};
    finish(&l, &done, "a", "x", 1);
    struct kd_job_plan plan[4] = {{0, 9, true}, {1, 9, false}, {2, 9, false}, {3, 9, false}};
    must(kd_ledger_settle(&l, 1, 0, plan, 4, &err), &err);
    struct kd_layer_count c = count(&l);
    assert_int_equal(c.done, 1);
    assert_int_equal(c.ready, 2);
    assert_int_equal(c.leased, 1);
    kd_ledger_close(&l);
}

static void wrong_bytes_go_with_all_their_worker_made(void **state)
{
    (void)state;
    struct kd_err err = {0};
    struct kd_ledger l;
    struct kd_grant g[16];
    int64_t list[8], n, closed, first;
    begin(&l, 4);
    join(&l, "bad", "h1", "i");
    join(&l, "good", "h2", "i");
    for (int i = 0; i < 4; i++) {
        const char *id = i % 2 ? "bad" : "good";
        char token[8];
        snprintf(token, sizeof token, "%d", i);
        assert_int_equal(take(&l, id, "i", token, 1, g), 1);
        finish(&l, g, id, "x", 1);
    }
    must(kd_ledger_discard(&l, "bad", &experts, "differs", list, 8, &n, &closed, &first, &err),
         &err);
    assert_int_equal(n, 2);
    assert_int_equal(closed, 0);
    assert_int_equal(count(&l).ready, 2);
    assert_int_equal(take(&l, "bad", "i", "x", 1, g), 0);
    assert_int_equal(take(&l, "good", "i", "x", 1, g), 1);
    /* Until a job is done again, what lies under its name is to be removed. */
    must(kd_ledger_discarded(&l, &experts, list, 8, &n, &err), &err);
    assert_true(n == 2 && list[0] == 0 && list[1] == 2 && g->expert == 2);
    finish(&l, g, "good", "y", 1);
    must(kd_ledger_discarded(&l, &experts, list, 8, &n, &err), &err);
    assert_true(n == 1 && list[0] == 0);
    must(kd_ledger_redo(&l, 1, 3, "why", &err), &err);
    must(kd_ledger_discarded(&l, &experts, list, 8, &n, &err), &err);
    assert_true(n == 2 && list[0] == 0 && list[1] == 3);
    kd_ledger_close(&l);
}

static int syncs;

/* SQLite finds this one before the C library's, whose header has a reserved name for fd. */
// NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name)
__attribute__((visibility("default"))) int fdatasync(int fd)
{
    syncs++;
    return fsync(fd);
}

/* What nothing else tells again is on the disk at once: whose a result is, and which are wrong. */
static void results_survive_a_power_cut(void **state)
{
    (void)state;
    struct kd_err err = {0};
    struct kd_ledger l;
    struct kd_grant g[16];
    struct kd_beat beat;
    int64_t list[8], n, closed, first;
    if (where[0] != 's')
        skip();
    begin(&l, 4);
    join(&l, "a", "h1", "i");
    syncs = 0;
    assert_int_equal(take(&l, "a", "i", "1", 1, g), 1);
    must(kd_ledger_beat(&l, "a", "i", NULL, 0, &beat, &err), &err);
    assert_int_equal(syncs, 0);
    finish(&l, g, "a", "x", 1);
    assert_int_equal(syncs, 1);
    must(kd_ledger_discard(&l, "a", &experts, "differs", list, 8, &n, &closed, &first, &err), &err);
    assert_int_equal(syncs, 2);
    must(kd_ledger_beat(&l, "a", "i", NULL, 0, &beat, &err), &err);
    assert_int_equal(syncs, 2);
    kd_ledger_close(&l);
}

/* Tensors of the trunk: handed out in their stage alone, no measure of a worker's rate, and closed
 * once the stage is. */
static void a_stage_of_the_trunk(void **state)
{
    (void)state;
    struct kd_err err = {0};
    struct kd_ledger l;
    struct kd_grant g[16];
    struct kd_farm_status s;
    int64_t list[8], n, closed, since;
    struct kd_job_plan two[2] = {{.cost = 9, .bytes = 1}, {.cost = 8, .bytes = 1}};
    struct kd_stage trunk = {1, KD_JOB_TRUNK + 4, 2};
    begin(&l, 2);
    join(&l, "a", "h1", "i");
    must(kd_ledger_settle(&l, 1, trunk.first, two, 2, &err), &err);
    assert_int_equal(count(&l).ready, 4);
    for (int i = 0; i < 3; i++) {
        char token[8];
        snprintf(token, sizeof token, "t%d", i);
        struct kd_claim c = {"a", "i", token, 8, trunk};
        must(kd_ledger_claim(&l, &c, g, &n, &err), &err);
        assert_int_equal(n, i < 2);
        if (n) {
            assert_int_equal(g[0].expert, trunk.first + i);
            finish(&l, g, "a", "x", 100);
        }
    }
    assert_int_equal(take(&l, "a", "i", "e", 8, g), 1);
    assert_int_equal(g[0].expert, 1);
    finish(&l, g, "a", "x", 2);
    must(kd_ledger_status(&l, 0, &s, &err), &err);
    assert_true(s.workers[0].rate_s > 1.99 && s.workers[0].rate_s < 2.01);
    assert_int_equal(s.layers[0].done, 1);
    assert_int_equal(s.trunk_done, 2);
    assert_int_equal(s.trunk_open, 0);
    kd_farm_status_release(&s);
    /* Its experts go back; what it made of the trunk has served already. */
    must(kd_ledger_discard(&l, "a", &experts, "differs", list, 8, &n, &closed, &since, &err), &err);
    assert_true(n == 1 && list[0] == 1 && closed == 2 && since == 1);
    kd_ledger_close(&l);
}

static int64_t unexplained(struct kd_ledger *l, int64_t attempts)
{
    struct kd_err err = {0};
    struct kd_audit a;
    must(kd_ledger_audit(l, &a, &err), &err);
    assert_int_equal(a.attempts, attempts);
    return a.unexplained;
}

static void every_attempt_has_an_end(void **state)
{
    (void)state;
    struct kd_err err = {0};
    struct kd_ledger l;
    struct kd_grant g[16], s[16];
    struct kd_audit a;
    int64_t n;
    begin(&l, 6);
    join(&l, "a", "h1", "i");
    join(&l, "b", "h2", "i");
    /* Done; failed; given back with its worker; run out; found on disk; overtaken by a second. */
    assert_int_equal(take(&l, "a", "i", "1", 1, g), 1);
    assert_int_equal(unexplained(&l, 1), 1);
    finish(&l, g, "a", "x", 0.1);
    assert_int_equal(take(&l, "a", "i", "2", 1, g), 1);
    must(kd_ledger_fail(&l, 1, g->expert, g->attempt, "a", KD_FAIL_INPUT, "why", &err), &err);
    assert_int_equal(take(&l, "a", "i", "3", 1, g), 1);
    assert_int_equal(unexplained(&l, 3), 1);
    must(kd_ledger_leave(&l, "a", "i", &err), &err);
    assert_int_equal(unexplained(&l, 3), 0);
    join(&l, "a", "h1", "j");
    assert_int_equal(take(&l, "a", "j", "4", 1, g), 1);
    clock_now += 1000;
    must(kd_ledger_reap(&l, &n, &err), &err);
    assert_int_equal(n, 1);
    assert_int_equal(unexplained(&l, 4), 0);
    assert_int_equal(take(&l, "b", "i", "5", 1, g), 1);
    struct kd_job_plan plan[6] = {0};
    for (int i = 0; i < 6; i++)
        plan[i] = (struct kd_job_plan){.cost = i, .bytes = 100, .on_disk = i > 0};
    must(kd_ledger_settle(&l, 1, 0, plan, 6, &err), &err);
    assert_int_equal(unexplained(&l, 5), 0);
    assert_int_equal(take(&l, "b", "i", "6", 1, g), 1);
    assert_int_equal(g->expert, 0);
    clock_now += 100;
    assert_int_equal(take(&l, "a", "j", "7", 1, s), 1);
    assert_true(s->speculative);
    finish(&l, s, "a", "x", 1);
    assert_int_equal(unexplained(&l, 7), 0);
    must(kd_ledger_audit(&l, &a, &err), &err);
    assert_true(a.jobs == 6 && a.done == 6);
    kd_ledger_close(&l);
}

static void a_second_coordinator_fences_the_first(void **state)
{
    (void)state;
    struct kd_err err = {0};
    struct kd_ledger l, m;
    struct kd_grant g[16];
    int64_t n;
    begin(&l, 2);
    join(&l, "a", "h1", "i");
    must(kd_ledger_open(&m, where, l.run, NULL, &err), &err);
    m.now = fake;
    must(kd_ledger_take(&m, "test", &err), &err);
    struct kd_claim late = {"a", "i", "1", 1, experts};
    assert_int_equal(kd_ledger_claim(&l, &late, g, &n, &err), -1);
    assert_int_equal(err.code, KD_ECANCEL);
    assert_int_equal(take(&m, "a", "i", "1", 1, g), 1);
    kd_ledger_close(&m);
    kd_ledger_close(&l);
}

static void drained_and_degraded(void **state)
{
    (void)state;
    struct kd_err err = {0};
    struct kd_ledger l;
    struct kd_grant g[16];
    struct kd_beat beat;
    begin(&l, 60);
    const char *ids[] = {"a", "b", "c", "slow"};
    for (int i = 0; i < 4; i++) {
        join(&l, ids[i], ids[i], "i");
        for (int k = 0; k < 3; k++) {
            char token[8];
            snprintf(token, sizeof token, "%d", k);
            assert_true(take(&l, ids[i], "i", token, 1, g) == 1);
            finish(&l, g, ids[i], "x", i == 3 ? 5 : 1);
        }
    }
    for (int i = 0; i < 3; i++)
        must(kd_ledger_compare_rates(&l, &err), &err);
    struct kd_farm_status s;
    must(kd_ledger_status(&l, 5, &s, &err), &err);
    assert_int_equal(s.worker_count, 4);
    assert_int_equal(s.event_count, 5);
    for (int64_t i = 0; i < 4; i++)
        assert_string_equal(s.workers[i].state,
                            !strcmp(s.workers[i].card.id, "slow") ? "DEGRADED" : "ACTIVE");
    kd_farm_status_release(&s);
    must(kd_ledger_worker_state(&l, NULL, "DRAINING", "test", &err), &err);
    must(kd_ledger_beat(&l, "a", "i", NULL, 0, &beat, &err), &err);
    assert_true(beat.drain);
    assert_int_equal(take(&l, "a", "i", "x", 1, g), 0);
    kd_ledger_close(&l);
}

/* Many threads, each with a connection of its own: every job done once. */
struct racer {
    char run[65];
    int number;
    const struct kd_ledger *with;
    int64_t done;
};

static void *race(void *arg)
{
    struct racer *r = arg;
    struct kd_err err = {0};
    struct kd_ledger l;
    char id[16], token[32];
    struct kd_grant g[4];
    int64_t n = 1;
    enum kd_done what;
    snprintf(id, sizeof id, "w%d", r->number);
    if (kd_ledger_open(&l, where, r->run, NULL, &err))
        return NULL;
    kd_ledger_share(&l, r->with);
    for (int i = 0; n > 0; i++) {
        snprintf(token, sizeof token, "%d", i);
        struct kd_claim c = {id, "i", token, 1, experts};
        if (kd_ledger_claim(&l, &c, g, &n, &err))
            break;
        struct kd_result res = {.layer = 1,
                                .expert = g->expert,
                                .attempt = g->attempt,
                                .worker = id,
                                .sha256 = "x",
                                .seconds = 1};
        if (n && !kd_ledger_done(&l, &res, &what, NULL, &err))
            r->done += what == KD_DONE_FIRST;
    }
    kd_ledger_close(&l);
    return NULL;
}

static void a_race_gives_each_job_once(void **state)
{
    (void)state;
    struct kd_ledger l;
    struct racer r[4];
    pthread_t t[4];
    int64_t sum = 0;
    begin(&l, 64);
    for (int i = 0; i < 4; i++) {
        r[i] = (struct racer){.number = i, .with = &l};
        memcpy(r[i].run, l.run, sizeof l.run);
        char id[16];
        snprintf(id, sizeof id, "w%d", i);
        join(&l, id, id, "i");
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, race, &r[i]), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
        sum += r[i].done;
    }
    assert_int_equal(sum, 64);
    assert_int_equal(count(&l).done, 64);
    kd_ledger_close(&l);
}

static void names_go_both_ways(void **state)
{
    (void)state;
    for (int i = 0; i < KD_FAIL_COUNT; i++)
        assert_int_equal(kd_fail_of(kd_fail_name((enum kd_fail_class)i)), i);
    assert_int_equal(kd_fail_of("nonsense"), KD_FAIL_COUNT);
}

/* Runs tests/farm/pg.sh; its exit code. Standard output goes to `to`, or nowhere. */
static int pg_sh(const char *what, const char *to)
{
    char script[300], folder[100], verb[16];
    const char *src = getenv("KONDENSE_TEST_ROOT");
    posix_spawn_file_actions_t io;
    pid_t pid;
    int status = -1;
    snprintf(script, sizeof script, "%s/tests/farm/pg.sh", src ? src : ".");
    snprintf(folder, sizeof folder, "%s/pg", dir);
    snprintf(verb, sizeof verb, "%s", what);
    char *args[] = {(char[]){"sh"}, script, verb, folder, NULL};
    posix_spawn_file_actions_init(&io);
    posix_spawn_file_actions_addopen(&io, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&io, STDOUT_FILENO, to ? to : "/dev/null",
                                     O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (posix_spawnp(&pid, "sh", &io, NULL, args, environ) || waitpid(pid, &status, 0) != pid)
        return -1;
    posix_spawn_file_actions_destroy(&io);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* "host=..." of a private server, or "" where none can be had. */
static void start_pg(void)
{
    char path[100];
    struct kd_err err;
    struct kd_buf b;
    snprintf(path, sizeof path, "%s/where", dir);
    int rc = pg_sh("start", path);
    pg_where[0] = 0;
    kd_buf_init(&b, sizeof pg_where - 1);
    if (!rc && !kd_file_read(&b, path, sizeof pg_where - 1, &err) && b.data)
        snprintf(pg_where, sizeof pg_where, "%.*s", (int)strcspn(b.data, "\n"), b.data);
    kd_buf_release(&b);
    if (rc && rc != 77)
        fprintf(stderr, "the private PostgreSQL server did not start\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dearest_first_each_once),
        cmocka_unit_test(a_lost_reply_is_found_again),
        cmocka_unit_test(batches_follow_the_rate),
        cmocka_unit_test(lanes_hold_a_job_each),
        cmocka_unit_test(leases_run_out_and_beats_keep_them),
        cmocka_unit_test(a_new_incarnation_holds_nothing),
        cmocka_unit_test(bad_arithmetic_on_two_hosts_is_poison),
        cmocka_unit_test(crashes_make_a_job_run_alone_then_poison),
        cmocka_unit_test(a_solo_job_shares_no_worker),
        cmocka_unit_test(three_strikes),
        cmocka_unit_test(stragglers_get_one_second_worker),
        cmocka_unit_test(disk_wins),
        cmocka_unit_test(wrong_bytes_go_with_all_their_worker_made),
        cmocka_unit_test(results_survive_a_power_cut),
        cmocka_unit_test(a_stage_of_the_trunk),
        cmocka_unit_test(every_attempt_has_an_end),
        cmocka_unit_test(a_second_coordinator_fences_the_first),
        cmocka_unit_test(drained_and_degraded),
        cmocka_unit_test(a_race_gives_each_job_once),
        cmocka_unit_test(names_go_both_ways),
    };
    struct kd_err err;
    snprintf(dir, sizeof dir, "/tmp/kondense-ledger-XXXXXX");
    if (!mkdtemp(dir))
        return 1;
    if (chmod(dir, 0755))
        return 1;
    snprintf(where, sizeof where, "sqlite:%s/ledger.db", dir);
    int rc = cmocka_run_group_tests_name("sqlite", tests, NULL, NULL);
    /* Under emulation the server's programs are here, a library for them is not. */
    if (dlopen("libpq.so.5", RTLD_NOW | RTLD_LOCAL))
        start_pg();
    if (pg_where[0]) {
        snprintf(where, sizeof where, "%s", pg_where);
        rc += cmocka_run_group_tests_name("postgresql", tests, NULL, NULL);
        if (pg_sh("crash", NULL))
            rc++;
    } else {
        printf("no PostgreSQL server programs or no libpq here: SQLite only\n");
    }
    if (kd_dir_remove(dir, &err))
        return 1;
    return rc;
}
