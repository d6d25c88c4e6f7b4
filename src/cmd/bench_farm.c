/* The ledger at K3's true counts, beside pgbench with the same three transactions on the same
 * server; and how long a farm would take. */
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/opt.h"
#include "cmd/bench.h"
#include "farm/ledger.h"
#include "farm/sim.h"

#include <fcntl.h>
#include <glob.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LAYERS = 92, EXPERTS = 896, WORKERS = 9, SPREAD = 10, PGBENCH_JOBS = 4000 };

struct rate {
    double claims, beats, dones; /* seconds in each */
    int64_t count;
    int64_t early_bytes, late_bytes; /* anonymous memory after layer SPREAD and after the last */
};

static void worker_name(char *out, size_t size, int i)
{
    snprintf(out, size, "w%d", i);
}

static int one_job(struct kd_ledger *l, int64_t n, struct rate *r, struct kd_err *err)
{
    struct kd_grant g;
    struct kd_beat beat;
    char id[16], token[32];
    int64_t count;
    enum kd_done what;
    worker_name(id, sizeof id, (int)(n % WORKERS));
    snprintf(token, sizeof token, "t%lld", (long long)n);
    double at = kd_clock_s();
    if (kd_ledger_claim(l, id, "i", token, 1, &g, &count, err))
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

static int one_layer(struct kd_ledger *l, int64_t layer, struct rate *r, struct kd_err *err)
{
    struct kd_job_plan *plan;
    struct kd_layer_count c;
    if (kd_mem_zero(&plan, EXPERTS, sizeof *plan, "jobs", err))
        return -1;
    for (int64_t e = 0; e < EXPERTS; e++)
        plan[e] = (struct kd_job_plan){.cost = 33030144, .bytes = 9500000};
    int rc = kd_ledger_settle(l, layer, plan, EXPERTS, err);
    for (int64_t e = 0; !rc && e < EXPERTS; e++)
        rc = one_job(l, layer * EXPERTS + e, r, err);
    if (!rc)
        rc = kd_ledger_count(l, layer, &c, err);
    if (!rc && (c.done != EXPERTS || c.ready || c.leased || c.poison))
        rc = kd_fail(err, KD_EINVAL, "layer %lld: %lld of %d done", (long long)layer,
                     (long long)c.done, EXPERTS);
    if (!rc)
        rc = kd_ledger_close_layer(l, layer, err);
    kd_mem_free(plan);
    return rc;
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
    memset(r, 0, sizeof *r);
    if (kd_ledger_take(l, KD_VERSION, err) || join_all(l, err))
        return -1;
    for (int64_t i = 1; i <= layers; i++) {
        if (one_layer(l, i, r, err))
            return -1;
        if (i == SPREAD)
            r->early_bytes = kd_mem_anon_bytes();
    }
    r->late_bytes = kd_mem_anon_bytes();
    return 0;
}

/* The same statements as pgbench takes them, on a run of their own. */
static const char pgbench_script[] =
    "\\set w random(0, 8)\n"
    "\\set t random(1, 1000000000)\n"
    "BEGIN;\nSELECT epoch FROM run WHERE id='pgbench';\n"
    "SELECT job, attempt, expires, speculative FROM lease WHERE run='pgbench' AND worker='w'||:w "
    "AND "
    "token='t'||:t ORDER BY job;\n"
    "SELECT host, rate, state, incarnation, (SELECT count(*) FROM lease WHERE "
    "lease.run=worker.run AND lease.worker=worker.id) FROM worker WHERE run='pgbench' AND "
    "id='w'||:w;\n"
    "SELECT (SELECT count(*) FROM job WHERE run='pgbench' AND state='READY'), (SELECT count(*) "
    "FROM "
    "worker WHERE run='pgbench' AND state IN ('ACTIVE','DEGRADED'));\n"
    "SELECT id AS j FROM job WHERE run='pgbench' AND state='READY' AND not_before<=1 AND solo=0 "
    "ORDER BY layer, (CASE WHEN blamed LIKE '%,h,%' THEN 1 ELSE 0 END), cost DESC, id LIMIT 1 FOR "
    "UPDATE SKIP LOCKED\n\\gset\n"
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
    "DELETE FROM lease WHERE run='pgbench' AND job=:j;\n"
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
    for (int64_t layer = 1; !rc && layer <= PGBENCH_JOBS / EXPERTS + 1; layer++)
        rc = kd_ledger_settle(&l, layer, plan, EXPERTS, err);
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

static void put_rate(const struct kd_bench *b, const char *engine, int64_t layers,
                     const struct rate *r, double pgbench)
{
    double seconds = r->claims + r->beats + r->dones, tps = 3 * (double)r->count / seconds;
    kd_jw_open(b->w, NULL, '{');
    kd_jw_str(b->w, "name", "ledger");
    kd_jw_str(b->w, "engine", engine);
    kd_jw_int(b->w, "layers", layers);
    kd_jw_int(b->w, "jobs", r->count);
    kd_jw_num(b->w, "transactions_per_s", tps);
    kd_jw_num(b->w, "claim_ms", 1000 * r->claims / (double)r->count);
    kd_jw_num(b->w, "beat_ms", 1000 * r->beats / (double)r->count);
    kd_jw_num(b->w, "done_ms", 1000 * r->dones / (double)r->count);
    if (r->early_bytes) {
        kd_jw_int(b->w, "memory_layer_10", r->early_bytes);
        kd_jw_int(b->w, "memory_last_layer", r->late_bytes);
    }
    if (pgbench > 0) {
        kd_jw_num(b->w, "pgbench_per_s", pgbench);
        kd_jw_num(b->w, "of_pgbench", tps / pgbench);
    }
    kd_jw_close(b->w, '}');
    if (!b->screen)
        return;
    printf("ledger on %s, %lld layers of %d experts: %.0f transactions/s (claim %.2f ms, beat %.2f "
           "ms, done %.2f ms)\n",
           engine, (long long)layers, EXPERTS, tps, 1000 * r->claims / (double)r->count,
           1000 * r->beats / (double)r->count, 1000 * r->dones / (double)r->count);
    if (r->early_bytes)
        printf("  memory %.2f MB after layer %d, %.2f MB after the last\n",
               (double)r->early_bytes / 1e6, SPREAD, (double)r->late_bytes / 1e6);
    if (pgbench > 0)
        printf("  pgbench, one client, the same statements: %.0f/s; ours is %.2f of it\n", pgbench,
               tps / pgbench);
}

static void simulate(const struct kd_bench *b, const char *name, const struct kd_sim *s,
                     enum kd_sim_mode mode)
{
    static const char *const modes[] = {"serial", "streamed", "expert"};
    struct kd_sim_out o;
    kd_farm_sim(s, mode, &o);
    kd_jw_open(b->w, NULL, '{');
    kd_jw_str(b->w, "name", "simulation");
    kd_jw_str(b->w, "machines", name);
    kd_jw_str(b->w, "mode", modes[mode]);
    kd_jw_num(b->w, "hours", o.hours);
    kd_jw_num(b->w, "calibration_h", o.calib_h);
    kd_jw_num(b->w, "encoding_h", o.encode_h);
    kd_jw_num(b->w, "shipping_h", o.ship_h);
    kd_jw_num(b->w, "trunk_h", o.trunk_h);
    kd_jw_num(b->w, "forward_h", o.forward_h);
    kd_jw_num(b->w, "checkpoint_h", o.checkpoint_h);
    kd_jw_num(b->w, "idle_share", o.idle_share);
    kd_jw_close(b->w, '}');
    if (b->screen)
        printf("%-34s %-8s %6.1f h: calibration %.1f, encoding %.1f, shipping %.1f, trunk %.1f, "
               "forward %.1f, checkpoints %.1f; workers idle %2.0f %%\n",
               name, modes[mode], o.hours, o.calib_h, o.encode_h, o.ship_h, o.trunk_h, o.forward_h,
               o.checkpoint_h, 100 * o.idle_share);
}

/* The plan's own rates (farm specification, section 3): a GB300 of `big` Sparks and 8 Sparks. */
static struct kd_sim plan(double big, double together_s, double calib_s)
{
    struct kd_sim s = {.layers = LAYERS, .jobs = EXPERTS, .units = 9, .calib_s = calib_s};
    s.speed[0] = big;
    for (int i = 1; i < 9; i++)
        s.speed[i] = 1;
    s.encode_s = together_s * (big + 8);
    return s;
}

static void simulate_plan(const struct kd_bench *b)
{
    for (int high = 0; high < 2; high++) {
        struct kd_sim s = high ? plan(2.5, 447, 626) : plan(3, 317, 205);
        const char *name = high ? "GB300 + 8 Sparks, plan's high" : "GB300 + 8 Sparks, plan's low";
        struct kd_sim t = s;
        t.ship_s = 12;
        t.checkpoint_s = high ? 3 : 2;
        simulate(b, name, &t, KD_SIM_SERIAL);
        simulate(b, name, &s, KD_SIM_STREAMED);
        simulate(b, name, &s, KD_SIM_EXPERT);
        /* Decision 9's terms: inputs to 8 workers on 10 GbE, the trunk on the coordinator, the
         * quantized forward (0.54 PFLOP a layer at 60 TFLOP/s). */
        s.ship_s = 27;
        s.trunk_s = high ? 51 : 27;
        s.forward_s = 9;
        s.checkpoint_s = high ? 3 : 2;
        simulate(b, "  with all terms", &s, KD_SIM_EXPERT);
    }
}

/* Machines of measured speed: tiles a second of the coordinator's GPU or CPU, and of each worker.
 * None without --units. */
static int read_units(struct kd_sim *s, const char *list, struct kd_err *err)
{
    char part[32];
    double all = 0;
    *s = (struct kd_sim){.layers = LAYERS, .jobs = EXPERTS};
    for (const char *at = list; at && *at;) {
        size_t n = strcspn(at, ",");
        double tiles;
        if (n >= sizeof part || s->units == KD_SIM_UNITS_MAX)
            return kd_fail(err, KD_EUSAGE, "--units: at most %d numbers", KD_SIM_UNITS_MAX);
        snprintf(part, sizeof part, "%.*s", (int)n, at);
        if (kd_parse_num(part, &tiles, err) || !(tiles >= 0) || tiles > 1e12)
            return kd_fail(err, KD_EUSAGE, "--units: '%s' is no rate in tiles/s", part);
        s->speed[s->units++] = tiles;
        all += tiles;
        at += n + (at[n] == ',');
    }
    return !list || all > 0 ? 0 : kd_fail(err, KD_EUSAGE, "--units: nobody would encode");
}

static void simulate_measured(const struct kd_bench *b, struct kd_sim *s)
{
    char name[128];
    /* An expert has 3 x 3584 x 3072 weights in tiles of 256. */
    s->encode_s = EXPERTS * 3.0 * 3584 * 3072 / 256;
    s->ship_s = 3.67e9 * (s->units - 1) / 1.1e9;
    s->trunk_s = s->speed[0] > 0 ? 0.02 * s->encode_s / s->speed[0] : 0;
    s->checkpoint_s = 3;
    snprintf(name, sizeof name, "%d machine%s of %.60s tiles/s", s->units, s->units > 1 ? "s" : "",
             b->units);
    simulate(b, name, s, KD_SIM_EXPERT);
}

int kd_bench_farm(const struct kd_bench *b, struct kd_err *err)
{
    char dir[] = "/tmp/kondense-bench-XXXXXX", where[128];
    struct kd_ledger l;
    struct rate r;
    double pgbench = -1;
    struct kd_sim measured;
    int64_t layers = b->layers > 0 ? b->layers : LAYERS;
    if (read_units(&measured, b->units, err))
        return -1;
    if (!mkdtemp(dir))
        return kd_fail_sys(err, "no temporary folder");
    snprintf(where, sizeof where, "sqlite:%s/ledger.db", dir);
    const char *at = b->ledger ? b->ledger : where;
    char run[64], stamp[32];
    kd_clock_stamp(stamp, sizeof stamp);
    snprintf(run, sizeof run, "bench %s", stamp);
    int rc = b->ledger ? run_pgbench(at, &pgbench, err) : 0;
    if (!rc && !(rc = kd_ledger_open(&l, at, run, NULL, err))) {
        rc = whole_run(&l, layers, &r, err);
        kd_ledger_close(&l);
    }
    if (!rc)
        put_rate(b, b->ledger ? "PostgreSQL" : "SQLite", layers, &r, pgbench);
    struct kd_err ignored;
    if (kd_dir_remove(dir, &ignored) && !rc)
        rc = -1;
    if (rc)
        return -1;
    simulate_plan(b);
    if (measured.units)
        simulate_measured(b, &measured);
    return 0;
}
