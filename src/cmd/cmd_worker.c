#include "base/progress.h"
#include "cmd/cmd.h"
#include "cmd/device.h"
#include "farm/worker.h"
#include "model/k3.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    const char *url, *join, *dir, *name, *source, *share, *device;
    int64_t threads, memory, lanes;
    double away;
    bool stay, quiet;
} o = {.join = "worker.join", .device = "cpu", .memory = 512 << 20, .away = 1800};

static const struct kd_opt opts[] = {
    {"farm", 'f', KD_OPT_STR, &o.url, "URL", "the coordinator's address (the join file's)"},
    {"join", 'j', KD_OPT_STR, &o.join, "FILE",
     "the join file that kondense farm init made (worker.join)"},
    {"dir", 'd', KD_OPT_STR, &o.dir, "DIR",
     "for the key, a layer's inputs and undelivered results ($TMPDIR/kondense-worker)"},
    {"name", 0, KD_OPT_STR, &o.name, "NAME", "of this host in reports (its host name)"},
    KD_OPT_ROW_DEVICE(&o.device),
    {"lanes", 0, KD_OPT_INT, &o.lanes, "N",
     "experts side by side, each takes memory (one for 16 threads; with --device cuda as many as "
     "there is room for, up to 48)",
     .min = 1, .max = KD_WORKER_LANES},
    {"source", 0, KD_OPT_STR, &o.source, "SRC",
     "own copy of the checkpoint: weights are read there when their digest is right"},
    {"share", 0, KD_OPT_STR, &o.share, "DIR",
     "the farm's shared folder, where it has another path here; none: all by HTTPS (the join "
     "file's)"},
    {"memory", 0, KD_OPT_SIZE, &o.memory, "BYTES", "for weights that wait their turn (512M)"},
    {"stay", 0, KD_OPT_FLAG, &o.stay, NULL, "after a conversion's end wait for the next one"},
    {"away", 0, KD_OPT_NUM, &o.away, "S",
     "give up after so many seconds without a coordinator (1800)", .num_min = 1, .num_max = 1e7},
    KD_OPT_ROW_THREADS(&o.threads),
    {"quiet", 'q', KD_OPT_FLAG, &o.quiet, NULL, "no progress"},
    {0}};

/* The own copy; several threads may ask. */
struct copy {
    struct kd_ckpt *ck;
    struct kd_k3_cfg cfg;
    struct kd_store *store;
    pthread_mutex_t lock;
};

static int from_copy(void *ctx, int64_t layer, int64_t expert, struct kd_farm_task *t,
                     struct kd_err *err)
{
    struct copy *c = ctx;
    struct kd_expert e;
    pthread_mutex_lock(&c->lock);
    int rc = c->store->get(c->store, layer, expert, &e, err);
    pthread_mutex_unlock(&c->lock);
    if (rc)
        return -1;
    *t = (struct kd_farm_task){.expert = expert, .w1 = e.w1, .w3 = e.w3, .w2 = e.w2};
    return 0;
}

static int open_copy(struct copy *c, const char *src, struct kd_err *err)
{
    if (kd_ckpt_open(&c->ck, src, true, err))
        return -1;
    if (kd_k3_cfg_parse(&c->cfg, kd_ckpt_config(c->ck), NULL, err))
        return kd_wrap(err, "%s/config.json", src);
    return kd_k3_store_open(&c->store, &c->cfg, c->ck, NULL, err);
}

static void close_copy(struct copy *c)
{
    if (c->store)
        kd_k3_store_close(c->store);
    if (c->ck)
        kd_ckpt_close(c->ck);
    pthread_mutex_destroy(&c->lock);
}

/* Experts side by side: a device is faster the more of them there are (how many it has room for is
 * known when a layer is), and an expert of K3 keeps 16 threads busy (kd_job_lanes has the rule for
 * any width, which is not known here yet). */
static int lanes_of(const struct kd_run *run)
{
    enum { LANE_THREADS = 16 };
    int threads = kd_pool_threads(run->pool), n = (int)o.lanes;
    if (!n)
        n = run->encoder ? KD_WORKER_LANES : (threads + LANE_THREADS - 1) / LANE_THREADS;
    return n > KD_WORKER_LANES ? KD_WORKER_LANES : n;
}

static void end_now(void)
{
    _Exit(KD_EXIT_STOPPED);
}

static int run(int argc, const char **argv, struct kd_err *err)
{
    struct copy copy = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct kd_kern kern;
    struct kd_run with;
    char dir[4096];
    const char *tmp = getenv("TMPDIR");
    (void)argc;
    (void)argv;
    snprintf(dir, sizeof dir, "%s/kondense-worker", tmp && *tmp ? tmp : "/tmp");
    if (kd_cmd_run_open(&with, &kern, o.threads, err))
        return -1;
    if (kd_cmd_encoder_open(&with, o.device, err)) {
        kd_cmd_run_close(&with);
        return -1;
    }
    struct kd_worker_opts w = {.url = o.url,
                               .join_file = o.join,
                               .dir = o.dir ? o.dir : dir,
                               .name = o.name,
                               .share = o.share,
                               .device = o.device,
                               .run = &with,
                               .lanes = lanes_of(&with),
                               .fit = with.encoder && !o.lanes,
                               .stop = &kd_cmd_stop,
                               .memory_bytes = o.memory,
                               .stay = o.stay,
                               .end_now = end_now,
                               .away_s = o.away,
                               .own = o.source ? from_copy : NULL,
                               .ctx = &copy};
    kd_progress_quiet(o.quiet);
    int rc = o.source ? open_copy(&copy, o.source, err) : 0;
    if (!rc)
        rc = kd_worker_run(&w, err);
    close_copy(&copy);
    kd_cmd_encoder_close(&with);
    kd_cmd_run_close(&with);
    return rc ? -1 : 0;
}

const struct kd_cmd kd_cmd_worker = {
    .name = "worker",
    .summary = "encode experts for a conversion that another machine coordinates",
    .args = "",
    .example = "kondense worker --join worker.join --dir /var/lib/kondense",
    .opts = opts,
    .run = run,
    .details =
        "Joins the farm named in the join file with one of its tokens, or with the key that it was "
        "given before, encodes experts until the conversion ends, and leaves. SIGTERM: a running "
        "expert is finished or handed back within half a minute. While the coordinator is away, "
        "results wait; undelivered ones are kept in DIR/spool and sent by the next start. Two "
        "workers on one machine need two folders.",
};
