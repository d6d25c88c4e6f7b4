#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/pieces.h"
#include "base/progress.h"
#include "base/show.h"
#include "cmd/cmd.h"
#include "cmd/remote.h"
#include "net/fetch.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

static struct {
    const char *include, *exclude, *parts, *layers, *json;
    int64_t retry_s, stall_s, piece;
    bool dry, quiet;
} o = {.retry_s = 600, .stall_s = 30, .piece = KD_GET_PIECE_BYTES};

// clang-format off
static const struct kd_opt opts[] = {
    {"include", 0, KD_OPT_STR, &o.include, "PATTERNS", "only these, as '*.json,*-00001-of-*' (all)"},
    {"exclude", 0, KD_OPT_STR, &o.exclude, "PATTERNS", "not these, as '*.md,images/*'"},
    {"parts", 0, KD_OPT_STR, &o.parts, "A-B", "of numbered shards only these, as 1-5 (all)"},
    {"layers", 0, KD_OPT_STR, &o.layers, "A-B", "of numbered shards only those of these layers; shard l+1 holds layer l"},
    KD_REMOTE_OPTS,
    {"piece", 0, KD_OPT_SIZE, &o.piece, "BYTES", "of one request, and of one line of the journal (32M)", .min = 65536, .max = 1 << 30},
    {"stall", 0, KD_OPT_INT, &o.stall_s, "SECONDS", "a connection without a byte for so long is dropped (30)", .min = 1, .max = 3600},
    {"patience", 0, KD_OPT_INT, &o.retry_s, "SECONDS", "give up when nothing came for so long (600)", .min = 1, .max = 86400},
    {"dry-run", 'n', KD_OPT_FLAG, &o.dry, NULL, "print what would be fetched, fetch nothing"},
    {"json", 0, KD_OPT_STR, &o.json, "FILE", "write the result as JSON, '-' for standard output"},
    {"quiet", 'q', KD_OPT_FLAG, &o.quiet, NULL, "no progress line"},
    {0}};
// clang-format on

struct range {
    int64_t first, last; /* first 0: none given */
};

static bool stopped(void)
{
    return kd_cmd_stop;
}

static int parse_range(const char *name, const char *text, int64_t min, struct range *r,
                       struct kd_err *err)
{
    char first[32];
    size_t n = strcspn(text, "-");
    if (n >= sizeof first)
        return kd_fail(err, KD_EUSAGE, "--%s: '%s' is not A-B", name, text);
    memcpy(first, text, n);
    first[n] = 0;
    if (kd_parse_int(first, min, KD_PIECES_MAX, &r->first, err) ||
        kd_parse_int(text[n] ? text + n + 1 : first, min, KD_PIECES_MAX, &r->last, err) ||
        r->last < r->first)
        return kd_fail(err, KD_EUSAGE, "--%s: '%s' is not A-B with A <= B", name, text);
    return 0;
}

/* One of a list of patterns fits the name, or its last component. */
static bool fits(const char *list, const char *name)
{
    char one[256];
    const char *slash = strrchr(name, '/');
    for (const char *at = list; *at;) {
        size_t n = strcspn(at, ",");
        if (n < sizeof one) {
            memcpy(one, at, n);
            one[n] = 0;
            if (!fnmatch(one, name, 0) || (slash && !fnmatch(one, slash + 1, 0)))
                return true;
        }
        at += n + (at[n] == ',');
    }
    return false;
}

static bool wanted(const char *name, const struct range *parts)
{
    struct kd_piece p;
    if (o.include && !fits(o.include, name))
        return false;
    if (o.exclude && fits(o.exclude, name))
        return false;
    if (parts->first && kd_piece_parse(&p, name) && !p.chopped)
        return p.no >= parts->first && p.no <= parts->last;
    return true;
}

/* The numbers of the files that are asked for. */
static int choose(struct kd_source *s, int **files, int *count, struct kd_err *err)
{
    struct range parts = {.first = 0};
    if (o.parts && o.layers)
        return kd_fail(err, KD_EUSAGE, "--parts and --layers say the same: give one");
    if (o.parts && parse_range("parts", o.parts, 1, &parts, err))
        return -1;
    if (o.layers) {
        if (parse_range("layers", o.layers, 0, &parts, err))
            return -1;
        parts.first++;
        parts.last++;
    }
    *count = 0;
    if (kd_mem_new(files, kd_source_count(s), sizeof **files, "files", err))
        return -1;
    for (int i = 0; i < kd_source_count(s); i++)
        if (wanted(kd_source_at(s, i)->name, &parts))
            (*files)[(*count)++] = i;
    if (!*count)
        return kd_fail(err, KD_EUSAGE, "no file of '%s' fits the patterns", kd_source_where(s));
    return 0;
}

static int dry_run(struct kd_source *s, const int *files, int count, const char *dst,
                   struct kd_err *err)
{
    int64_t total = 0, requests = 0, left = 0;
    char text[32], shown[256];
    printf("%s\n", kd_source_where(s));
    if (*kd_source_commit(s))
        printf("  commit %s\n", kd_source_commit(s));
    for (int i = 0; i < count; i++) {
        if (kd_source_stat(s, files[i], err))
            return -1;
        const struct kd_source_file *f = kd_source_at(s, files[i]);
        char path[4096];
        bool there = !kd_path_join(path, sizeof path, dst, f->name, NULL) && kd_file_exists(path) &&
                     kd_file_size(path, NULL) == f->bytes;
        kd_show_bytes(text, sizeof text, f->bytes);
        printf("  %10s  %s%s%s\n", text, kd_show_text(shown, sizeof shown, f->name),
               f->sha256 ? "" : "  (no SHA-256 known)", there ? "  (there)" : "");
        total += f->bytes;
        left += there ? 0 : f->bytes;
        requests += there ? 0 : (f->bytes + o.piece - 1) / o.piece;
    }
    kd_show_bytes(text, sizeof text, total);
    printf("files     %d of %d, %s (%lld bytes)\n", count, kd_source_count(s), text,
           (long long)total);
    kd_show_bytes(text, sizeof text, left);
    printf("to come   %s in %lld requests\n", text, (long long)requests);
    kd_show_bytes(text, sizeof text, kd_disk_free_bytes(dst));
    printf("disk      %s free at '%s'\n", text, dst);
    if (kd_remote.rate) {
        kd_clock_human(text, sizeof text, (double)left / (double)kd_remote.rate);
        printf("time      at least %s at the rate given\n", text);
    }
    return 0;
}

static int write_json(struct kd_source *s, const struct kd_fetch *f, double seconds,
                      struct kd_err *err)
{
    struct kd_buf b;
    kd_buf_init(&b, 256 << 20);
    struct kd_jw j = {.out = &b};
    const struct kd_source_stats *st = kd_source_stats(s);
    kd_jw_open(&j, NULL, '{');
    kd_jw_str(&j, "source", kd_source_where(s));
    kd_jw_str(&j, "commit", kd_source_commit(s));
    kd_jw_num(&j, "seconds", seconds);
    kd_jw_int(&j, "requests", st->requests);
    kd_jw_int(&j, "retries", st->retries);
    kd_jw_int(&j, "resolves", st->resolves);
    kd_jw_int(&j, "fetched_bytes", st->fetched_bytes);
    kd_jw_open(&j, "files", '[');
    for (int i = 0; i < kd_fetch_count(f); i++) {
        const struct kd_fetch_file *t = kd_fetch_at(f, i);
        kd_jw_open(&j, NULL, '{');
        kd_jw_str(&j, "name", t->name);
        kd_jw_int(&j, "bytes", t->bytes);
        kd_jw_int(&j, "had_bytes", t->had_bytes);
        kd_jw_bool(&j, "fetched", t->state == KD_FETCH_FETCHED);
        kd_jw_bool(&j, "sha256_verified", t->verified);
        kd_jw_close(&j, '}');
    }
    kd_jw_close(&j, ']');
    kd_jw_close(&j, '}');
    kd_buf_char(&b, '\n');
    int rc = kd_cmd_put(&b, o.json, err);
    kd_buf_release(&b);
    return rc;
}

static void summary(struct kd_source *s, const struct kd_fetch *f, double seconds)
{
    int fetched = 0, verified = 0, count = kd_fetch_count(f);
    int64_t bytes = 0, came = 0;
    char size[32], took[32], rate[32], before[32];
    for (int i = 0; i < count; i++) {
        const struct kd_fetch_file *t = kd_fetch_at(f, i);
        fetched += t->state == KD_FETCH_FETCHED;
        verified += t->verified;
        bytes += t->bytes;
        came += t->bytes - t->had_bytes;
    }
    if (!fetched) {
        printf("%d files, nothing to do\n", count);
        return;
    }
    kd_show_bytes(size, sizeof size, came);
    kd_show_bytes(before, sizeof before, bytes - came);
    kd_show_bytes(rate, sizeof rate, seconds > 0 ? (int64_t)((double)came / seconds) : 0);
    kd_clock_human(took, sizeof took, seconds);
    printf("%d of %d files, %s in %s (%s/s)", fetched, count, size, took, rate);
    if (bytes > came)
        printf(", %s were there", before);
    printf("\nsha256 verified: %d of %d", verified, count);
    if (verified < count)
        printf(" (the source says none for the others; their sizes are right)");
    printf("\n");
    if (*kd_source_commit(s))
        printf("commit: %s\n", kd_source_commit(s));
}

static int fetch(struct kd_source *s, const char *dst, struct kd_err *err)
{
    struct kd_fetch_opts fo = {.stopped = stopped, .piece_bytes = o.piece};
    struct kd_fetch *f = NULL;
    int *files = NULL, count;
    double began = kd_clock_s();
    int rc = choose(s, &files, &count, err);
    if (!rc && o.dry) {
        rc = dry_run(s, files, count, dst, err);
    } else if (!rc) {
        rc = kd_fetch_open(&f, s, files, count, dst, &fo, err);
        if (!rc)
            rc = kd_fetch_run(f, err);
        if (!rc && kd_cmd_screen(o.json, NULL))
            summary(s, f, kd_clock_s() - began);
        if (!rc && o.json)
            rc = write_json(s, f, kd_clock_s() - began, err);
        kd_fetch_close(f);
    }
    kd_mem_free(files);
    return rc;
}

static int run(int argc, const char **argv, struct kd_err *err)
{
    struct kd_source_opts so;
    struct kd_source *s;
    (void)argc;
    kd_progress_quiet(o.quiet);
    if (kd_path_same(argv[0], argv[1]))
        return kd_fail(err, KD_EUSAGE, "'%s' is the source; choose another folder", argv[1]);
    if (kd_dir_could(argv[1], err) || kd_cmd_put_could(o.json, argv[1], err) ||
        kd_cmd_source_opts(&so, err))
        return -1;
    so.get.budget_s = (double)o.retry_s;
    so.get.stall_s = (double)o.stall_s;
    so.get.piece_bytes = o.piece;
    so.gap_bytes = -1; /* what lies between wanted pieces is here already */
    if (kd_source_open(&s, argv[0], &so, err))
        return -1;
    int rc = fetch(s, argv[1], err);
    kd_source_close(s);
    return rc;
}

static const char details[] =
    "SRC is hf:owner/name[@revision][/path] (a repository of the hub; the revision is resolved to "
    "a "
    "commit once), an https address of a folder or a file, or a local path. Whole files come under "
    "their names in DST; until then they are NAME.part. DST/.fetch is the journal: the same "
    "command "
    "goes on where an earlier one ended, in whatever way, and does nothing when all is there.\n\n"
    "Of each file the size is checked, and the SHA-256 where the source says one; another one is "
    "an "
    "error, and what came is dropped.\n\n"
    "Environment: HF_TOKEN, else the file HF_TOKEN_PATH, else $HF_HOME/token: sent to the hub "
    "alone, "
    "to another HF_ENDPOINT only with --token-to-endpoint. Complete files in the hub's cache "
    "(HF_HUB_CACHE, else $HF_HOME/hub) are copied from there; HF_HUB_OFFLINE=1 uses nothing else. "
    "https_proxy and no_proxy as usual.";

const struct kd_cmd kd_cmd_fetch = {
    "fetch",   "fetch a checkpoint, whole or in parts, resumable and verified",
    "SRC DST", "kondense fetch hf:moonshotai/Kimi-K3 k3 --layers 0-3 --rate 100M",
    opts,      2,
    2,         run,
    details};
