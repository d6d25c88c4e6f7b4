/* The ledger at K3's true counts, beside pgbench with the same three transactions on the same
 * server. How long a farm would take is bench_farm_sim.c. */
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/opt.h"
#include "base/progress.h"
#include "cmd/bench.h"
#include "farm/ledger.h"

#include <fcntl.h>
#include <glob.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LAYERS = 93, EXPERTS = 896, WORKERS = 9, SPREAD = 10, PGBENCH_LAYERS = 5, STAGES_MAX = 7 };

/* Bars of --require: of pgbench's rate at least, memory's growth at most (per cent). */
static const struct {
    const char *key;
    bool most;
} bars[] = {{"pgbench", false}, {"memory", true}};

struct rate {
    double claims, beats, dones; /* seconds in each */
    int64_t count;
    int64_t early_bytes, late_bytes; /* anonymous memory after layer SPREAD and after the last */
    double pgbench;                  /* transactions a second; <= 0: not measured */
    double pgbench_after;            /* in the second of its two runs */
};

/* A stage of K3: its experts, or tensors of its trunk that share an input. */
struct stage {
    int64_t first, jobs;
};
static int stages_of(int64_t layer, struct stage out[STAGES_MAX])
{
    bool mla = layer % 4 == 3 || layer == LAYERS - 1;
    int n = 0;
    int64_t at = KD_JOB_TRUNK;
    const int counts[] = {mla ? 2 : 4, mla, 1, layer ? 3 : 2, 1};
    for (int i = 0; i < 5; i++)
        if (counts[i]) {
            out[n++] = (struct stage){at, counts[i]};
            at += counts[i];
        }
    if (layer) {
        out[n++] = (struct stage){0, EXPERTS};
        out[n++] = (struct stage){at, 1};
    }
    return n;
}

static void worker_name(char *out, size_t size, int i)
{
    snprintf(out, size, "w%d", i);
}

static int one_job(struct kd_ledger *l, const struct kd_stage *open, int64_t n, struct rate *r,
                   struct kd_err *err)
{
    struct kd_grant g;
    struct kd_beat beat;
    char id[16], token[32];
    int64_t count;
    enum kd_done what;
    worker_name(id, sizeof id, (int)(n % WORKERS));
    snprintf(token, sizeof token, "t%lld", (long long)n);
    struct kd_claim c = {id, "i", token, 1, *open};
    double at = kd_clock_s();
    if (kd_ledger_claim(l, &c, &g, &count, err))
        return -1;
    r->claims += kd_clock_s() - at;
    if (count != 1)
        return kd_fail(err, KD_EINVAL, "the ledger gave no job where some are left");
    struct kd_held held = {g.layer, g.expert, g.attempt, false};
    at = kd_clock_s();
    if (kd_ledger_beat(l, id, "i", &held, 1, &beat, err))
        return -1;
    r->beats += kd_clock_s() - at;
    struct kd_result res = {.layer = g.layer,
                            .expert = g.expert,
                            .attempt = g.attempt,
                            .worker = id,
                            .sha256 =
                                "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
                            .seconds = 30};
    at = kd_clock_s();
    if (kd_ledger_done(l, &res, &what, NULL, err))
        return -1;
    r->dones += kd_clock_s() - at;
    r->count++;
    return 0;
}

static int one_stage(struct kd_ledger *l, int64_t layer, const struct stage *s, struct rate *r,
                     struct kd_err *err)
{
    struct kd_stage open = {layer, s->first, s->jobs};
    struct kd_job_plan *plan;
    if (kd_mem_zero(&plan, s->jobs, sizeof *plan, "jobs", err))
        return -1;
    for (int64_t e = 0; e < s->jobs; e++)
        plan[e] = (struct kd_job_plan){.cost = 33030144, .bytes = 9500000};
    int rc = kd_ledger_settle(l, layer, s->first, plan, s->jobs, err);
    kd_mem_free(plan);
    for (int64_t e = 0; !rc && e < s->jobs; e++)
        rc = one_job(l, &open, r->count, r, err);
    kd_progress_add(s->jobs, NULL);
    return rc ? -1 : 0;
}

static int one_layer(struct kd_ledger *l, int64_t layer, struct rate *r, struct kd_err *err)
{
    struct stage s[STAGES_MAX];
    struct kd_layer_count c;
    int64_t jobs = 0;
    int n = stages_of(layer, s), rc = 0;
    for (int i = 0; !rc && i < n; i++) {
        rc = one_stage(l, layer, &s[i], r, err);
        jobs += s[i].jobs;
    }
    if (!rc && layer)
        rc = kd_ledger_close_layer(l, layer, err);
    if (!rc)
        rc = kd_ledger_count(l, layer, &c, err);
    if (!rc && (c.done != jobs || c.ready || c.leased || c.poison))
        rc = kd_fail(err, KD_EINVAL, "layer %lld: %lld of %lld done", (long long)layer,
                     (long long)c.done, (long long)jobs);
    return rc ? -1 : 0;
}

static int join_all(struct kd_ledger *l, struct kd_err *err)
{
    for (int i = 0; i < WORKERS; i++) {
        struct kd_worker_card w = {.host = "h", .incarnation = "i", .arch = "a", .device = "d"};
        worker_name(w.id, sizeof w.id, i);
        if (kd_ledger_join(l, &w, err))
            return -1;
    }
    return 0;
}

static int whole_run(struct kd_ledger *l, int64_t layers, struct rate *r, struct kd_err *err)
{
    struct stage st[STAGES_MAX];
    struct kd_audit a;
    int64_t jobs = 0;
    if (kd_ledger_take(l, KD_VERSION, err) || join_all(l, err))
        return -1;
    for (int64_t i = 0; i < layers; i++)
        for (int n = stages_of(i, st); n--;)
            jobs += st[n].jobs;
    kd_progress_begin("ledger", "jobs", jobs, 0);
    int rc = 0;
    for (int64_t i = 0; !rc && i < layers; i++) {
        rc = one_layer(l, i, r, err);
        if (i == SPREAD)
            r->early_bytes = kd_mem_anon_bytes();
    }
    kd_progress_end();
    r->late_bytes = kd_mem_anon_bytes();
    if (!rc)
        rc = kd_ledger_audit(l, &a, err);
    if (!rc && (a.done != jobs || a.jobs != jobs || a.attempts != jobs || a.unexplained))
        rc = kd_fail(err, KD_EINVAL, "the ledger does not add up: %lld jobs, %lld done, %lld open",
                     (long long)a.jobs, (long long)a.done, (long long)a.unexplained);
    return rc ? -1 : 0;
}

/* The same statements as pgbench takes them, on a run of their own. */
static const char pgbench_script[] =
    "\\set w random(0, 8)\n"
    "\\set t random(1, 1000000000)\n"
    "\\set l random(1, 5)\n"
    "BEGIN;\nSELECT epoch FROM run WHERE id='pgbench';\n"
    "SELECT job, attempt, expires, speculative FROM lease WHERE run='pgbench' AND worker='w'||:w "
    "AND "
    "token='t'||:t ORDER BY job;\n"
    "SELECT host, rate, state, incarnation, (SELECT count(*) FROM lease WHERE "
    "lease.run=worker.run AND lease.worker=worker.id) FROM worker WHERE run='pgbench' AND "
    "id='w'||:w;\n"
    "SELECT (SELECT count(*) FROM job WHERE run='pgbench' AND state='READY' AND layer=:l), "
    "(SELECT count(*) FROM "
    "worker WHERE run='pgbench' AND state IN ('ACTIVE','DEGRADED'));\n"
    "SELECT id AS j FROM job WHERE run='pgbench' AND state='READY' AND layer=:l AND expert>=0 AND "
    "expert<896 AND not_before<=1 AND solo=0 ORDER BY (CASE WHEN blamed LIKE '%,h,%' THEN 1 ELSE 0 "
    "END), cost DESC, id LIMIT 1 FOR UPDATE SKIP LOCKED\n\\gset\n"
    "UPDATE job SET state='LEASED', next_attempt=next_attempt+1, speculated=CASE WHEN CAST(0 AS "
    "BIGINT)=1 THEN 1 ELSE speculated END WHERE run='pgbench' AND id=:j RETURNING next_attempt, "
    "layer, expert;\n"
    "INSERT INTO lease VALUES('pgbench',:j,1,'w'||:w,'i','t'||:t,1,2,0);\n"
    "INSERT INTO event VALUES('pgbench',1,1,1,1,'w'||:w,'claim','');\nCOMMIT;\n"
    "BEGIN;\nSELECT epoch FROM run WHERE id='pgbench';\n"
    "UPDATE worker SET last_seen=2 WHERE run='pgbench' AND id='w'||:w AND incarnation='i' "
    "RETURNING "
    "state, rate;\n"
    "UPDATE lease SET expires=3 WHERE run='pgbench' AND job=:j AND attempt=1 AND worker='w'||:w "
    "AND "
    "incarnation='i';\nCOMMIT;\n"
    "BEGIN;\nSELECT epoch FROM run WHERE id='pgbench';\n"
    "SELECT state, sha, done_by, blamed, failures, crashes, solo FROM job WHERE run='pgbench' AND "
    "id=:j FOR UPDATE;\n"
    "UPDATE job SET state='DONE', sha='x', done_by='w', done_attempt=1, proxy=0, seconds=30, "
    "done_at=2 WHERE run='pgbench' AND id=:j;\n"
    "DELETE FROM lease WHERE run='pgbench' AND job=:j RETURNING attempt, worker;\n"
    "UPDATE worker SET done=done+1, busy=busy+30, rate=30, last_seen=2 WHERE run='pgbench' AND "
    "id='w'||:w;\n"
    "INSERT INTO event VALUES('pgbench',1,1,1,1,'w'||:w,'done','x');\nCOMMIT;\n";

static int fill_pgbench(const char *where, struct kd_err *err)
{
    struct kd_ledger l;
    struct kd_job_plan *plan = NULL;
    if (kd_ledger_open(&l, where, "pgbench", NULL, err))
        return -1;
    int rc = kd_db_script(&l.db,
                          "DELETE FROM job WHERE run='pgbench'; DELETE FROM lease WHERE "
                          "run='pgbench'; DELETE FROM event WHERE run='pgbench'",
                          err) ||
             kd_ledger_take(&l, KD_VERSION, err) || join_all(&l, err) ||
             kd_mem_zero(&plan, EXPERTS, sizeof *plan, "jobs", err);
    for (int64_t layer = 1; !rc && layer <= PGBENCH_LAYERS; layer++)
        rc = kd_ledger_settle(&l, layer, 0, plan, EXPERTS, err);
    kd_mem_free(plan);
    kd_ledger_close(&l);
    return rc ? -1 : 0;
}

/* What pgbench says of the script, or -1. Debian keeps it beside the server's programs. */
static double spawn_pgbench(const char *script, const char *where)
{
    char program[4096] = "pgbench";
    glob_t g;
    if (!glob("/usr/lib/postgresql/*/bin/pgbench", 0, NULL, &g)) {
        snprintf(program, sizeof program, "%s", g.gl_pathv[g.gl_pathc - 1]);
        globfree(&g);
    }
    char no_vacuum[] = "-n", mode[] = "-M", prepared[] = "prepared", clients[] = "-c", one[] = "1",
         times[] = "-t", many[] = "1000", file[] = "-f";
    char from[64], to[1100], line[256];
    int fd[2], status;
    pid_t pid;
    double tps = -1;
    posix_spawn_file_actions_t io;
    snprintf(from, sizeof from, "%s", script);
    snprintf(to, sizeof to, "%s", where);
    char *args[] = {program, no_vacuum, mode, prepared, clients, one,
                    times,   many,      file, from,     to,      NULL};
    if (pipe2(fd, O_CLOEXEC))
        return -1;
    posix_spawn_file_actions_init(&io);
    posix_spawn_file_actions_adddup2(&io, fd[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&io, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    int rc = posix_spawnp(&pid, program, &io, NULL, args, environ);
    posix_spawn_file_actions_destroy(&io);
    close(fd[1]);
    FILE *f = fdopen(fd[0], "r");
    while (!rc && f && fgets(line, sizeof line, f))
        if (!strncmp(line, "tps = ", 6))
            tps = strtod(line + 6, NULL);
    if (f)
        fclose(f);
    if (!rc)
        waitpid(pid, &status, 0);
    return tps;
}

/* Transactions a second by pgbench with one client, as we have one connection. -1: not here. */
static int run_pgbench(const char *where, double *tps, struct kd_err *err)
{
    char path[] = "/tmp/kondense-pgbench-XXXXXX";
    *tps = -1;
    if (fill_pgbench(where, err))
        return -1;
    int fd = mkstemp(path);
    if (fd < 0 ||
        write(fd, pgbench_script, sizeof pgbench_script - 1) != sizeof pgbench_script - 1) {
        if (fd >= 0)
            close(fd);
        return kd_fail_sys(err, "cannot write '%s'", path);
    }
    close(fd);
    *tps = 3 * spawn_pgbench(path, where);
    unlink(path);
    return 0;
}

static double tps_of(const struct rate *r)
{
    return 3 * (double)r->count / (r->claims + r->beats + r->dones);
}

/* A bar's figure, or -1 where this run has none. */
static double figure(const struct rate *r, int bar)
{
    if (bar == 0)
        return r->pgbench > 0 ? tps_of(r) / r->pgbench : -1;
    return r->early_bytes > 0
               ? 100 * (double)(r->late_bytes - r->early_bytes) / (double)r->early_bytes
               : -1;
}

static void put_rate(const struct kd_bench *b, const char *engine, int64_t layers,
                     const struct rate *r)
{
    double tps = tps_of(r), n = (double)r->count;
    kd_jw_open(b->w, NULL, '{');
    kd_jw_str(b->w, "name", "ledger");
    kd_jw_str(b->w, "engine", engine);
    kd_jw_int(b->w, "layers", layers);
    kd_jw_int(b->w, "jobs", r->count);
    kd_jw_num(b->w, "transactions_per_s", tps);
    kd_jw_num(b->w, "claim_ms", 1000 * r->claims / n);
    kd_jw_num(b->w, "beat_ms", 1000 * r->beats / n);
    kd_jw_num(b->w, "done_ms", 1000 * r->dones / n);
    if (r->early_bytes) {
        kd_jw_int(b->w, "memory_layer_10", r->early_bytes);
        kd_jw_int(b->w, "memory_last_layer", r->late_bytes);
    }
    if (r->pgbench > 0) {
        kd_jw_num(b->w, "pgbench_per_s", r->pgbench);
        kd_jw_num(b->w, "of_pgbench", figure(r, 0));
    }
    kd_jw_close(b->w, '}');
    if (!b->screen)
        return;
    printf("ledger on %s, %lld layers, %lld jobs: %.0f transactions/s (claim %.2f ms, beat %.2f "
           "ms, done %.2f ms)\n",
           engine, (long long)layers, (long long)r->count, tps, 1000 * r->claims / n,
           1000 * r->beats / n, 1000 * r->dones / n);
    if (r->early_bytes)
        printf("  memory %.2f MB after layer %d, %.2f MB after the last (%+.1f %%)\n",
               (double)r->early_bytes / 1e6, SPREAD, (double)r->late_bytes / 1e6, figure(r, 1));
    if (r->pgbench > 0)
        printf(
            "  pgbench, one client, the same statements: %.0f/s (before %.0f, after %.0f); ours is "
            "%.2f of it\n",
            r->pgbench, 2 * r->pgbench - r->pgbench_after, r->pgbench_after, figure(r, 0));
}

/* --require "pgbench=0.5,memory=5". Before anything runs, r is NULL: only the list is looked at. */
static int require(const struct kd_bench *b, int64_t layers, const struct rate *r,
                   struct kd_err *err)
{
    for (const char *at = b->require; at && *at;) {
        size_t n = strcspn(at, ","), key = strcspn(at, "=");
        char number[32];
        double want;
        int i = 0;
        while (i < 2 && (strlen(bars[i].key) != key || strncmp(bars[i].key, at, key) != 0))
            i++;
        if (key >= n || i == 2)
            return kd_fail(err, KD_EUSAGE,
                           "--require: '%.*s' is not pgbench or memory, '=' and a number", (int)n,
                           at);
        snprintf(number, sizeof number, "%.*s", (int)(n - key - 1), at + key + 1);
        if (kd_parse_num(number, &want, err))
            return kd_wrap(err, "--require");
        if (i == 0 && (!b->ledger || (r && !(r->pgbench > 0))))
            return kd_fail(err, KD_EUSAGE,
                           "--require pgbench: needs --ledger and the program pgbench");
        if (i == 1 && layers <= SPREAD)
            return kd_fail(err, KD_EUSAGE, "--require memory: needs more than %d layers", SPREAD);
        double v = r ? figure(r, i) : want;
        if (bars[i].most ? v > want : v < want)
            return kd_fail(err, KD_EGATE, "%s is %.4g, not at %s %g", bars[i].key, v,
                           bars[i].most ? "most" : "least", want);
        at += n + (at[n] == ',');
    }
    return 0;
}

static int ledger(const struct kd_bench *b, int64_t layers, struct rate *r, struct kd_err *err)
{
    char dir[1024], where[1100], run[64], stamp[32];
    const char *tmp = getenv("TMPDIR");
    struct kd_ledger l;
    struct kd_err ignored;
    double before = -1, after = -1;
    int n = snprintf(dir, sizeof dir, "%s/kondense-bench-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (n >= (int)sizeof dir)
        return kd_fail(err, KD_EUSAGE, "TMPDIR is too long");
    if (!mkdtemp(dir))
        return kd_fail_sys(err, "no temporary folder");
    snprintf(where, sizeof where, "sqlite:%s/ledger.db", dir);
    const char *at = b->ledger ? b->ledger : where;
    kd_clock_stamp(stamp, sizeof stamp);
    snprintf(run, sizeof run, "bench %s", stamp);
    /* Before and after, as the disk's other users come and go. */
    int rc = b->ledger ? run_pgbench(at, &before, err) : 0;
    memset(r, 0, sizeof *r);
    if (!rc && !(rc = kd_ledger_open(&l, at, run, NULL, err))) {
        rc = whole_run(&l, layers, r, err);
        kd_ledger_close(&l);
    }
    if (!rc && before > 0)
        rc = run_pgbench(at, &after, err);
    r->pgbench = after > 0 ? (before + after) / 2 : -1;
    r->pgbench_after = after;
    if (kd_dir_remove(dir, &ignored) && !rc) {
        *err = ignored;
        rc = -1;
    }
    return rc ? -1 : 0;
}

int kd_bench_farm(const struct kd_bench *b, struct kd_err *err)
{
    struct rate r;
    int64_t layers = b->layers > 0 ? b->layers : LAYERS;
    if (require(b, layers, NULL, err) || kd_bench_farm_units(b, err) || ledger(b, layers, &r, err))
        return -1;
    put_rate(b, b->ledger ? "PostgreSQL" : "SQLite", layers, &r);
    return kd_bench_farm_sim(b, err) || require(b, layers, &r, err) ? -1 : 0;
}
