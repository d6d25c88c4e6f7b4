#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "cmd/cmd.h"
#include "convert/rebuild.h"
#include "farm/home.h"
#include "farm/tally.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct {
    const char *url, *listen, *names, *ledger, *share, *html, *worker;
    int64_t tokens, more, from_layer;
    double watch;
    bool json;
} o = {.listen = "0.0.0.0", .names = "", .ledger = "", .share = "", .tokens = 16, .from_layer = -1};

static const struct kd_opt opts[] = {
    {"farm", 'f', KD_OPT_STR, &o.url, "URL", "init: the https address that workers will call"},
    {"listen", 0, KD_OPT_STR, &o.listen, "HOST", "init: the address to bind (0.0.0.0)"},
    {"names", 0, KD_OPT_STR, &o.names, "LIST",
     "init: more host names and addresses of this machine, for its certificate"},
    {"ledger", 0, KD_OPT_STR, &o.ledger, "CONNINFO",
     "init: a PostgreSQL server for the ledger, as libpq takes it (SQLite beside the conversion)"},
    {"share", 0, KD_OPT_STR, &o.share, "DIR",
     "init: a folder that this machine and the workers see (NFS): inputs and results go through it "
     "(all by HTTPS)"},
    {"tokens", 0, KD_OPT_INT, &o.tokens, "N", "init: join tokens, one a worker (16)", .min = 1,
     .max = KD_HOME_TOKENS_MAX},
    {"more", 0, KD_OPT_INT, &o.more, "N", "init: N new tokens for a farm that is there", .min = 1,
     .max = KD_HOME_TOKENS_MAX},
    {"watch", 'w', KD_OPT_NUM, &o.watch, "S", "status: again every S seconds", .num_min = 0.1,
     .num_max = 3600},
    {"json", 'j', KD_OPT_FLAG, &o.json, NULL, "status: print JSON"},
    {"html", 0, KD_OPT_STR, &o.html, "FILE", "report: where it goes (farm.html)"},
    {"worker", 0, KD_OPT_STR, &o.worker, "ID", "drain: this worker alone (all)"},
    {"from-layer", 0, KD_OPT_INT, &o.from_layer, "N",
     "rebuild: go back, so that layer N and all after it are made again", .min = 0, .max = 65535},
    {0}};

/* The conversion's ledger, and how many layers its model has. */
static int open_ledger(struct kd_ledger *l, const char *dst, int64_t *layers, struct kd_err *err)
{
    char path[4096];
    struct kd_json *root;
    const char *ledger, *run;
    if (kd_path_join(path, sizeof path, dst, ".work/farm.json", err))
        return -1;
    if (!kd_file_exists(path))
        return kd_fail(err, KD_EUSAGE, "'%s' holds no unfinished conversion", dst);
    if (kd_json_load(&root, path, 1 << 20, err))
        return -1;
    int rc = kd_json_str(root, "ledger", &ledger, err) || kd_json_str(root, "run", &run, err) ||
             kd_json_int(root, "layers", 1, 65535, layers, err) ||
             kd_ledger_open(l, ledger, run, NULL, err);
    kd_json_free(root);
    return rc ? -1 : 0;
}

static int print(struct kd_buf *b, struct kd_err *err)
{
    int rc = kd_buf_ok(b, "report", err) ||
             fwrite(b->data ? b->data : "", 1, b->size_bytes, stdout) != b->size_bytes;
    kd_buf_release(b);
    return rc ? -1 : 0;
}

static int show_once(struct kd_ledger *l, int64_t layers, bool again, struct kd_err *err)
{
    struct kd_farm_status s;
    struct kd_buf b;
    if (kd_ledger_status(l, o.json ? 1000 : 0, &s, err))
        return -1;
    kd_buf_init(&b, 64 << 20);
    if (again)
        kd_buf_str(&b, isatty(STDOUT_FILENO) ? "\033[H\033[J" : "\n");
    if (o.json) {
        struct kd_jw w = {.out = &b};
        kd_farm_json(&w, &s, layers);
        kd_buf_char(&b, '\n');
    } else {
        kd_farm_text(&b, &s, layers);
    }
    kd_farm_status_release(&s);
    int rc = print(&b, err);
    fflush(stdout);
    return rc;
}

static int status(const char *dst, struct kd_err *err)
{
    struct kd_ledger l;
    int64_t layers;
    if (open_ledger(&l, dst, &layers, err))
        return -1;
    int rc = show_once(&l, layers, false, err);
    while (!rc && o.watch > 0 && !kd_cmd_stop) {
        usleep((useconds_t)(o.watch * 1e6));
        rc = show_once(&l, layers, true, err);
    }
    kd_ledger_close(&l);
    return rc;
}

static int report(const char *dst, struct kd_err *err)
{
    struct kd_ledger l;
    struct kd_farm_status s;
    struct kd_buf b;
    int64_t layers;
    const char *to = o.html ? o.html : "farm.html";
    if (open_ledger(&l, dst, &layers, err))
        return -1;
    int rc = kd_ledger_status(&l, 2000, &s, err);
    kd_ledger_close(&l);
    if (rc)
        return -1;
    kd_buf_init(&b, 64 << 20);
    kd_farm_html(&b, &s, layers);
    kd_farm_status_release(&s);
    rc = kd_buf_ok(&b, "report", err) || kd_file_write(to, b.data, b.size_bytes, err);
    kd_buf_release(&b);
    if (!rc)
        printf("%s\n", to);
    return rc ? -1 : 0;
}

static int drain(const char *dst, struct kd_err *err)
{
    struct kd_ledger l;
    int64_t layers;
    if (open_ledger(&l, dst, &layers, err))
        return -1;
    int rc = kd_ledger_worker_state(&l, o.worker, "DRAINING", "by hand", err);
    kd_ledger_close(&l);
    if (!rc)
        printf("%s: takes no more work, and leaves when what it holds is done\n",
               o.worker ? o.worker : "every worker");
    return rc;
}

static int rebuild(const char *dst, struct kd_err *err)
{
    struct kd_rebuild r;
    if (kd_convert_rebuild(dst, o.from_layer, &r, err))
        return -1;
    printf("%lld sealed shards, %lld whole units, %lld damaged ones removed\n", (long long)r.shards,
           (long long)r.units, (long long)r.damaged);
    if (o.from_layer >= 0)
        printf("goes on from layer %lld (the newest stream there is); %lld sealed shards dropped\n",
               (long long)r.from_layer, (long long)r.dropped);
    printf("the ledger is made anew by the next start: convert ... --resume\n");
    return 0;
}

static int init(const char *dir, struct kd_err *err)
{
    if (o.more) {
        if (kd_home_more(dir, (int)o.more, err))
            return -1;
        printf("%s/worker.join: %lld new tokens\n", dir, (long long)o.more);
        return 0;
    }
    if (!o.url)
        return kd_fail(err, KD_EUSAGE,
                       "--farm URL is needed: the address of this machine that workers will call, "
                       "such as https://gb300:7420");
    struct kd_home_wish w = {o.url, o.listen, o.names, o.ledger, o.share, (int)o.tokens};
    if (kd_home_init(dir, &w, err))
        return -1;
    printf("%s: a farm at %s, ledger in %s\n"
           "give %s/worker.join to the workers:  kondense worker --join worker.join\n"
           "and here:  kondense convert SRC DST --calib FILE --farm %s --farm-dir %s\n",
           dir, o.url, *o.ledger ? "PostgreSQL" : "SQLite beside the conversion", dir, o.url, dir);
    return 0;
}

static int run(int argc, const char **argv, struct kd_err *err)
{
    static const struct {
        const char *name;
        int (*run)(const char *path, struct kd_err *err);
    } what[] = {{"init", init},
                {"status", status},
                {"report", report},
                {"drain", drain},
                {"rebuild", rebuild}};
    (void)argc;
    for (size_t i = 0; i < sizeof what / sizeof *what; i++)
        if (!strcmp(what[i].name, argv[0]))
            return what[i].run(argv[1], err);
    return kd_fail(err, KD_EUSAGE, "'%s' is none of init, status, report, drain, rebuild", argv[0]);
}

const struct kd_cmd kd_cmd_farm = {
    .name = "farm",
    .summary = "a farm's keys, its state, and its way back",
    .args = "init|status|report|drain|rebuild PATH",
    .example = "kondense farm init farm --farm https://gb300:7420 --tokens 8\n"
               "kondense farm status k3-2.3 --watch 2",
    .opts = opts,
    .args_min = 2,
    .args_max = 2,
    .run = run,
    .details =
        "PATH is the farm's folder for init, and the conversion's DST for the others. status and "
        "report read the ledger of a conversion under way, with or without workers. rebuild checks "
        "every unit of an unfinished conversion, removes damaged ones and a ledger in a file; with "
        "--from-layer it drops sealed layers too.",
};
