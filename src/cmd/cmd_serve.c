#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/show.h"
#include "cmd/cmd.h"
#include "cmd/device.h"
#include "cmd/model_device.h"
#include "serve/api.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEYS_BYTES_MAX = 64 << 10, RECEIPT_BYTES_MAX = 64 << 20 };

static struct {
    const char *host, *key, *key_file, *cache_dir, *trace, *log, *name, *allow_host, *allow_origin;
    const char *effort, *device;
    int64_t port, ctx, parallel, memory, cache, disk, queue, threads, experts, connections, body;
    int64_t store, draft, max_tokens, chunk, queue_key;
    double timeout, drain, mass, latent_eps, request, stall;
    bool any_model, shared, usage_last, no_idle, exact;
} o = {.host = "127.0.0.1",
       .port = 8000,
       .parallel = 16,
       .queue = 64,
       .cache = -1,
       .drain = 30,
       .log = "text",
       .effort = "max",
       .max_tokens = 131072,
       .connections = 256,
       .body = 64 << 20,
       .store = 64 << 20,
       .request = 10,
       .stall = 60};

static const struct kd_opt opts[] = {
    {"host", 0, KD_OPT_STR, &o.host, "ADDRESS", "address to listen on (127.0.0.1)"},
    {"port", 'p', KD_OPT_INT, &o.port, "N", "port to listen on; 0 takes any free one (8000)",
     .min = 0, .max = 65535},
    {"name", 0, KD_OPT_STR, &o.name, "NAME", "the model's name for clients (its folder's name)"},
    {"any-model", 0, KD_OPT_FLAG, &o.any_model, NULL, "take any model name in requests"},
    {"api-key", 0, KD_OPT_STR, &o.key, "KEY",
     "key that clients must send (better in KONDENSE_API_KEY than on the command line)"},
    {"api-key-file", 0, KD_OPT_STR, &o.key_file, "FILE",
     "keys, one a line, in a file that only its owner can read; SIGHUP reads it again"},
    {"allow-host", 0, KD_OPT_STR, &o.allow_host, "NAMES",
     "more names the server is called by, comma separated (loopback and --host)"},
    {"allow-origin", 0, KD_OPT_STR, &o.allow_origin, "ORIGINS",
     "web pages that may call the server, comma separated (none but its own)"},
    {"ctx", 'c', KD_OPT_INT, &o.ctx, "N", "tokens of a conversation (as the model says)", .min = 64,
     .max = 1 << 24},
    {"parallel", 0, KD_OPT_INT, &o.parallel, "N", "sequences that run at once (16)", .min = 1,
     .max = 1024},
    {"queue", 0, KD_OPT_INT, &o.queue, "N", "requests that may wait; more get 429 (64)", .min = 1,
     .max = 100000},
    {"queue-key", 0, KD_OPT_INT, &o.queue_key, "N", "of them, for one API key (--queue)", .min = 1,
     .max = 100000},
    {"memory", 'm', KD_OPT_SIZE, &o.memory, "SIZE",
     "memory of running sequences (a quarter of the machine's; four fifths of what a device has "
     "left)"},
    KD_OPT_ROW_MODEL_DEVICE(&o.device),
    KD_OPT_ROW_EXACT(&o.exact),
    {"prefix-cache", 0, KD_OPT_SIZE, &o.cache, "SIZE",
     "memory that keeps the state of prompts; 0 switches it off (a quarter of --memory)"},
    {"cache-dir", 0, KD_OPT_STR, &o.cache_dir, "DIR", "keep states of prompts on disk too"},
    {"cache-disk", 0, KD_OPT_SIZE, &o.disk, "SIZE", "most bytes in --cache-dir (16G)"},
    {"shared-cache", 0, KD_OPT_FLAG, &o.shared, NULL,
     "one cache for all API keys; timing then tells one what others asked"},
    {"timeout", 0, KD_OPT_NUM, &o.timeout, "SECONDS",
     "most time for a request, waiting included; 0 is none (0)", .num_min = 0, .num_max = 1e7},
    {"drain", 0, KD_OPT_NUM, &o.drain, "SECONDS",
     "on SIGTERM, time that running answers get to end (30)", .num_min = 0, .num_max = 1e6},
    {"max-tokens", 'n', KD_OPT_INT, &o.max_tokens, "N",
     "tokens of an answer where the request does not say (131072)", .min = 1, .max = 1 << 24},
    {"effort", 'e', KD_OPT_STR, &o.effort, "LEVEL",
     "thinking effort where the request does not say: low, medium (which is high, as in a "
     "request), high or max (max)",
     .choices = "low|medium|high|max"},
    {"experts-used", 0, KD_OPT_INT, &o.experts, "N",
     "experts a token goes through (as the model says)", .min = 1, .max = 1024},
    {"expert-mass", 0, KD_OPT_NUM, &o.mass, "P",
     "for each token the fewest experts that hold this share of the router's weight (all)",
     .num_min = 0, .num_max = 1},
    KD_OPT_ROW_THREADS(&o.threads),
    {"latent-eps", 0, KD_OPT_NUM, &o.latent_eps, "E", "epsilon of the two latent norms (1e-6)",
     .num_min = 0, .num_max = 1},
    {"draft", 0, KD_OPT_INT, &o.draft, "N",
     "tokens guessed ahead from the text so far; -1 switches it off (as the engine likes)",
     .min = -1, .max = 64},
    {"chunk", 0, KD_OPT_INT, &o.chunk, "N", "prompt tokens in one step, a multiple of 64 (512)",
     .min = 64, .max = 1 << 16},
    {"no-idle-prefill", 0, KD_OPT_FLAG, &o.no_idle, NULL,
     "do not read answers again while idle (their state is then not cached)"},
    {"trace", 0, KD_OPT_STR, &o.trace, "FILE", "write which experts each token went through"},
    {"log", 0, KD_OPT_STR, &o.log, "FORM", "text or json: one line a request (text)",
     .choices = "text|json"},
    {"connections", 0, KD_OPT_INT, &o.connections, "N", "connections at once (256)", .min = 8,
     .max = 10000},
    {"body", 0, KD_OPT_SIZE, &o.body, "SIZE", "largest request (64M)"},
    {"request-time", 0, KD_OPT_NUM, &o.request, "SECONDS",
     "time for a client to send its request (10)", .num_min = 0.1, .num_max = 3600},
    {"stall-time", 0, KD_OPT_NUM, &o.stall, "SECONDS",
     "time a client may leave its answer unread (60)", .num_min = 0.1, .num_max = 3600},
    {"store", 0, KD_OPT_SIZE, &o.store, "SIZE", "memory of stored responses (64M)"},
    {"moonshot-usage", 0, KD_OPT_FLAG, &o.usage_last, NULL,
     "streams carry their usage in the last choice too"},
    {0}};

/* Everything a running server has, for its callbacks. */
struct server {
    struct kd_api api;
    struct kd_srv *srv;
    int device; /* 0: the CPU, else 1 + its number */
    struct kd_engine *engine;
    FILE *trace;
    pthread_mutex_t lock; /* of the terminal and the trace */
    bool terminal, status;
    char hash[KD_SRV_KEYS_MAX][65];
    const char *key[KD_SRV_KEYS_MAX];
    int keys;
    char names[2][4096];
    const char *host[KD_SRV_NAMES_MAX], *origin[KD_SRV_NAMES_MAX];
    int hosts, origins;
    char id[256];
};

/* Keys. */

static volatile sig_atomic_t read_again; /* SIGHUP: the file of keys */

static void on_hangup(int sig)
{
    (void)sig;
    read_again = 1;
}

static int add_key(struct server *s, const char *key, size_t bytes, struct kd_err *err)
{
    if (s->keys == KD_SRV_KEYS_MAX)
        return kd_fail(err, KD_EUSAGE, "more than %d API keys", KD_SRV_KEYS_MAX);
    if (kd_sha256_of(key, bytes, s->hash[s->keys], err))
        return -1;
    s->key[s->keys] = s->hash[s->keys];
    s->keys++;
    return 0;
}

static int read_keys(struct server *s, struct kd_err *err)
{
    struct kd_buf b;
    struct stat st;
    s->keys = 0;
    if (o.key && *o.key && add_key(s, o.key, strlen(o.key), err))
        return -1;
    if (!o.key_file)
        return 0;
    if (stat(o.key_file, &st))
        return kd_fail_sys(err, "%s", o.key_file);
    if (st.st_mode & 077)
        return kd_fail(err, KD_EINVAL, "%s: others can read this file of keys (chmod 600 it)",
                       o.key_file);
    kd_buf_init(&b, KEYS_BYTES_MAX);
    int rc = kd_file_read(&b, o.key_file, KEYS_BYTES_MAX, err), before = s->keys;
    for (const char *p = b.data; !rc && p && *p;) {
        size_t n = strcspn(p, "\r\n");
        if (n && *p != '#')
            rc = add_key(s, p, n, err);
        p += n + strspn(p + n, "\r\n");
    }
    kd_buf_release(&b);
    if (!rc && s->keys == before)
        rc = kd_fail(err, KD_EINVAL, "%s: no key in it", o.key_file);
    return rc;
}

/* "a,b" into list; the text is copied into store. */
static int split(const char *text, char *store, size_t size, const char **list, int *count,
                 struct kd_err *err)
{
    if (!text)
        return 0;
    if (strlen(text) >= size)
        return kd_fail(err, KD_EUSAGE, "the list of names is too long");
    memcpy(store, text, strlen(text) + 1);
    for (char *p = store; *p;) {
        size_t n = strcspn(p, ",");
        bool more = p[n] == ',';
        p[n] = 0;
        if (n && *count == KD_SRV_NAMES_MAX)
            return kd_fail(err, KD_EUSAGE, "more than %d names", KD_SRV_NAMES_MAX);
        if (n)
            list[(*count)++] = p;
        p += n + more;
    }
    return 0;
}

/* What a person sees: one line a request above a status line. */

static void wipe(struct server *s)
{
    if (s->status)
        fputs("\r\033[K", stderr);
    s->status = false;
}

/* One line of any kind. */
static void put_line(struct server *s, const struct kd_buf *b)
{
    size_t n = b->size_bytes;
    while (n && b->data[n - 1] == '\n')
        n--;
    pthread_mutex_lock(&s->lock);
    wipe(s);
    fprintf(stderr, "%.*s\n", (int)n, b->data ? b->data : "");
    fflush(stderr);
    pthread_mutex_unlock(&s->lock);
}

static bool log_is_json(void)
{
    return !strcmp(o.log, "json");
}

/* What is no request, for a person or as JSON. */
static void say(struct server *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(struct server *s, const char *fmt, ...)
{
    struct kd_buf b;
    char text[1024], stamp[32];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    kd_buf_init(&b, 64 << 10);
    if (log_is_json()) {
        struct kd_jw w = {.out = &b, .compact = true};
        bool warning = !strncmp(text, "warning: ", 9);
        kd_clock_stamp(stamp, sizeof stamp);
        kd_jw_open(&w, NULL, '{');
        kd_jw_str(&w, "time", stamp);
        kd_jw_str(&w, "level", warning ? "warning" : "info");
        kd_jw_str(&w, "message", text + (warning ? 9 : 0));
        kd_jw_close(&w, '}');
    } else {
        kd_buf_str(&b, text);
    }
    put_line(s, &b);
    kd_buf_release(&b);
}

/* The file of keys has changed: what is in it counts from now on, unless it is not good. */
static void reload_keys(struct server *s)
{
    struct kd_err err;
    read_again = 0;
    if (read_keys(s, &err)) {
        say(s, "warning: the keys stay as they were: %s", err.msg);
        return;
    }
    kd_srv_set_keys(s->srv, s->key, s->keys);
    say(s, "%d keys read again", s->keys);
}

static void log_json(struct kd_buf *b, const char *stamp, const struct kd_access *a)
{
    struct kd_jw w = {.out = b, .compact = true};
    kd_jw_open(&w, NULL, '{');
    kd_jw_str(&w, "time", stamp);
    kd_jw_str(&w, "id", a->id);
    kd_jw_str(&w, "peer", a->peer);
    kd_jw_str(&w, "method", a->method);
    kd_jw_str(&w, "path", a->path);
    kd_jw_int(&w, "status", a->status);
    kd_jw_bool(&w, "whole", a->whole);
    kd_jw_num(&w, "seconds", a->seconds);
    kd_jw_int(&w, "in_bytes", a->in_bytes);
    kd_jw_int(&w, "out_bytes", a->out_bytes);
    if (*a->owner) {
        char key[13];
        snprintf(key, sizeof key, "%.12s", a->owner);
        kd_jw_str(&w, "key", key);
    }
    kd_jw_str(&w, "note", a->note);
    kd_jw_close(&w, '}');
}

static void on_access(void *ctx, const struct kd_access *a)
{
    struct kd_api *api = ctx;
    struct server *s = (struct server *)(void *)((char *)api - offsetof(struct server, api));
    struct kd_buf b;
    char stamp[32], path[256], note[640];
    kd_api_count(api, a);
    if (a->quiet && a->status < 400)
        return;
    kd_clock_stamp(stamp, sizeof stamp);
    kd_buf_init(&b, 64 << 10);
    if (log_is_json()) {
        log_json(&b, stamp, a);
    } else {
        kd_buf_printf(&b, "%s %s %s %s", stamp, a->peer, a->method,
                      kd_show_text(path, sizeof path, a->path));
        if (a->status && a->whole)
            kd_buf_printf(&b, " %d", a->status);
        else
            kd_buf_str(&b, a->status ? " cut" : " gone");
        kd_buf_printf(&b, " %.3f s %" PRId64 " B", a->seconds, a->out_bytes);
        if (*a->note)
            kd_buf_printf(&b, " %s", kd_show_text(note, sizeof note, a->note));
        kd_buf_printf(&b, " %s", a->id);
    }
    put_line(s, &b);
    kd_buf_release(&b);
}

static void show_status(struct server *s)
{
    struct kd_engine_metrics m;
    kd_engine_metrics(s->engine, &m);
    pthread_mutex_lock(&s->lock);
    wipe(s);
    fprintf(stderr,
            "running %" PRId64 "  waiting %" PRId64 "  prefill %.0f tok/s  decode %.1f tok/s  "
            "cache %.0f%%  %" PRId64 " connections",
            m.running, m.queued, m.prefill_rate, m.decode_rate,
            m.prompt_tokens ? 100.0 * (double)m.cached_tokens / (double)m.prompt_tokens : 0.0,
            kd_srv_connections(s->srv));
    fflush(stderr);
    s->status = true;
    pthread_mutex_unlock(&s->lock);
}

/* The verdict of `kondense check` that the conversion's receipt holds. */
static void tell_verdict(struct server *s, const char *dir)
{
    char path[4096];
    struct kd_json *root = NULL;
    struct kd_err err;
    if (kd_path_join(path, sizeof path, dir, "kondense.json", &err))
        return;
    int rc = kd_file_exists(path) ? kd_json_load(&root, path, RECEIPT_BYTES_MAX, &err) : -1;
    const struct kd_json *v = rc ? NULL : kd_json_get(root, "verdict"),
                         *list = v ? kd_json_get(v, "requirements") : NULL;
    if (!v) {
        say(s, "warning: no quality verdict is stored with this model (kondense check --require "
               "writes one)");
        kd_json_free(root);
        return;
    }
    struct kd_buf text;
    kd_buf_init(&text, 64 << 10);
    kd_buf_str(&text, kd_json_true(kd_json_get(v, "pass")) ? "verdict: passed" : "verdict: FAILED");
    for (size_t i = 0; list && i < kd_json_count(list); i++) {
        const struct kd_json *r = kd_json_at(list, i);
        const char *name = kd_json_text(kd_json_get(r, "figure"), NULL);
        kd_buf_printf(&text, "%s %s %.4g", i ? "," : "", name ? name : "?",
                      kd_json_num_value(kd_json_get(r, "value")));
    }
    say(s, "%s", text.failed ? "verdict: unreadable" : text.data);
    kd_buf_release(&text);
    kd_json_free(root);
}

/* u32 pairs: the layer, counted from 1, and an expert; a token's experts of a layer follow one
 * another. */
static void on_trace(void *ctx, int64_t layer, int64_t seq, int64_t pos, const int32_t *ids,
                     const float *w)
{
    struct server *s = ctx;
    int64_t used = kd_engine_config(s->engine)->topk;
    (void)seq;
    (void)pos;
    (void)w;
    if (o.experts && o.experts < used)
        used = o.experts;
    for (int64_t i = 0; i < used; i++) {
        uint32_t pair[2] = {(uint32_t)layer, (uint32_t)ids[i]};
        if (ids[i] >= 0)
            fwrite(pair, sizeof pair, 1, s->trace);
    }
}

static int open_trace(struct server *s, struct kd_err *err)
{
    if (!o.trace)
        return 0;
    s->trace = fopen(o.trace, "wbe");
    if (!s->trace)
        return kd_fail_sys(err, "%s", o.trace);
    kd_engine_trace(s->engine, on_trace, s);
    return 0;
}

/* Opening. */

static void name_model(struct server *s, const char *dir)
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    size_t from = n;
    while (from && dir[from - 1] != '/')
        from--;
    snprintf(s->id, sizeof s->id, "%.*s", (int)(n - from), dir + from);
    if (!s->id[0] || !strcmp(s->id, ".") || !strcmp(s->id, ".."))
        snprintf(s->id, sizeof s->id, "kimi-k3");
}

static int listen_on(struct server *s, struct kd_err *err)
{
    struct kd_api_options a = {.model_id = o.name ? o.name : s->id,
                               .any_model = o.any_model,
                               .max_tokens = o.max_tokens,
                               .timeout_s = o.timeout,
                               .effort = strcmp(o.effort, "medium") ? o.effort : "high",
                               .experts_used = o.experts,
                               .expert_mass = o.mass < 1 ? o.mass : 0,
                               .shared_cache = o.shared,
                               .tell_usage_last = o.usage_last,
                               .store_bytes = o.store,
                               .cache_dir = o.cache_dir};
    if (kd_api_init(&s->api, &a, err))
        return -1;
    s->api.context = o.ctx;
    struct kd_srv_options so = {.host = o.host,
                                .port = (int)o.port,
                                .connections = o.connections > o.queue + o.parallel + 16
                                                   ? o.connections
                                                   : o.queue + o.parallel + 16,
                                .body_bytes = o.body,
                                .request_s = o.request,
                                .stall_s = o.stall,
                                .key_sha256 = s->key,
                                .keys = s->keys,
                                .hosts = s->host,
                                .host_count = s->hosts,
                                .origins = s->origin,
                                .origin_count = s->origins,
                                .routes = kd_api_routes,
                                .ctx = &s->api,
                                .fail = kd_api_fail,
                                .log = on_access};
    if (kd_srv_open(&s->srv, &so, err))
        return -1;
    s->api.srv = s->srv;
    bool loopback =
        !strncmp(o.host, "127.", 4) || !strcmp(o.host, "::1") || !strcmp(o.host, "localhost");
    if (!loopback && !s->keys)
        say(s,
            "warning: listening on %s without an API key: everybody who reaches this machine can "
            "use it",
            o.host);
    return 0;
}

/* Ready is who has made a token. */
static int prove(struct server *s, struct kd_err *err)
{
    struct kd_ids ids = {0};
    struct kd_request *r;
    struct kd_refused refused;
    struct kd_event ev;
    int64_t n, made = 0;
    if (kd_tok_encode(kd_engine_tok(s->engine), "Hi", 2, &ids, err))
        return -1;
    struct kd_request_spec spec = {.prompt = ids.id,
                                   .prompt_count = ids.count,
                                   .max_tokens = 1,
                                   .experts_used = o.experts,
                                   .expert_mass = o.mass < 1 ? o.mass : 0,
                                   .ignore_eos = true};
    int rc = kd_engine_submit(s->engine, &spec, &r, &refused, err);
    kd_ids_release(&ids);
    if (rc)
        return kd_wrap(err, "the first token");
    while (!rc && (n = kd_request_wait(r, &ev, 1, 0.1)) >= 0) {
        made += n && ev.id >= 0;
        if (kd_cmd_stop)
            rc = kd_fail(err, KD_ECANCEL, "stopped");
    }
    if (!rc && !made) {
        *err = *kd_request_error(r);
        rc = err->code ? kd_wrap(err, "the first token")
                       : kd_fail(err, KD_ECORRUPT, "the model makes no token");
    }
    kd_request_release(r);
    return rc;
}

static int open_engine(struct server *s, const char *dir, struct kd_err *err)
{
    struct kd_k3_open model = {
        .eps_latent = (float)o.latent_eps, .device = s->device, .fast = !o.exact};
    struct kd_engine_options e = {.threads = (int)o.threads,
                                  .max_running = o.parallel,
                                  .max_queued = o.queue,
                                  .max_queued_owner = o.queue_key,
                                  .memory_bytes = o.memory > 0 ? o.memory : 0,
                                  .context = o.ctx,
                                  .chunk = o.chunk,
                                  .cache_bytes = o.cache == 0  ? -1
                                                 : o.cache > 0 ? o.cache
                                                               : 0,
                                  .disk_dir = o.cache_dir,
                                  .disk_bytes = o.disk,
                                  .draft_max = o.draft,
                                  .no_idle_prefill = o.no_idle,
                                  .model = &model};
    double t0 = kd_clock_s();
    if (kd_engine_open(&s->engine, dir, &e, err)) {
        if (model.device)
            kd_cmd_offer_cpu(err, "use --device cpu");
        return -1;
    }
    double opened = kd_clock_s() - t0;
    if (prove(s, err) || open_trace(s, err) || kd_api_attach(&s->api, s->engine, err))
        return -1;
    say(s, "model %s open in %.1f s, first token %.1f s later, context %" PRId64 " tokens",
        s->api.o.model_id, opened, kd_clock_s() - t0 - opened, s->api.context);
    return 0;
}

static void run_until_stopped(struct server *s)
{
    double shown = 0;
    while (!kd_cmd_stop) {
        poll(NULL, 0, 100);
        if (read_again)
            reload_keys(s);
        if (s->terminal && kd_clock_s() - shown > 0.5) {
            show_status(s);
            shown = kd_clock_s();
        }
    }
}

static int serve(struct server *s, const char *dir, struct kd_err *err)
{
    name_model(s, dir);
    /* What is wrong with the command is said before the port is open. */
    if (o.chunk % 64)
        return kd_fail(err, KD_EUSAGE, "--chunk is not a multiple of 64");
    if (kd_cmd_model_device(o.device, &s->device, err))
        return -1;
    if (o.cache_dir && kd_dir_make(o.cache_dir, err))
        return -1;
    if (read_keys(s, err) ||
        split(o.allow_host, s->names[0], sizeof s->names[0], s->host, &s->hosts, err) ||
        split(o.allow_origin, s->names[1], sizeof s->names[1], s->origin, &s->origins, err) ||
        listen_on(s, err))
        return -1;
    bool v6 = strchr(o.host, ':') != NULL;
    say(s, "listening on http://%s%s%s:%d, opening the model", v6 ? "[" : "", o.host, v6 ? "]" : "",
        kd_srv_port(s->srv));
    tell_verdict(s, dir);
    if (o.experts || (o.mass > 0 && o.mass < 1))
        say(s, "warning: fewer experts than the model's own: the verdict does not speak for this");
    if (open_engine(s, dir, err))
        return -1;
    run_until_stopped(s);
    s->api.draining = true;
    say(s, "stopping: %.0f s for what runs", o.drain);
    kd_srv_stop(s->srv);
    if (kd_engine_drain(s->engine, o.drain))
        say(s, "stopped with answers unfinished");
    return 0;
}

static int run(int argc, const char **argv, struct kd_err *err)
{
    static struct server s;
    (void)argc;
    pthread_mutex_init(&s.lock, NULL);
    s.terminal = isatty(STDERR_FILENO);
    if (o.key_file)
        sigaction(SIGHUP, &(struct sigaction){.sa_handler = on_hangup}, NULL);
    int rc = serve(&s, argv[0], err);
    kd_srv_close(s.srv, rc ? 0 : 2);
    if (s.engine)
        kd_engine_close(s.engine);
    kd_api_release(&s.api);
    if (s.trace && fclose(s.trace) && !rc)
        rc = kd_fail_sys(err, "%s", o.trace);
    wipe(&s);
    pthread_mutex_destroy(&s.lock);
    return rc;
}

const struct kd_cmd kd_cmd_serve = {
    .name = "serve",
    .summary = "answer requests over HTTP: OpenAI's and Anthropic's API, a chat page",
    .args = "MODEL",
    .example =
        "kondense serve k3-nano\n"
        "kondense serve model --port 8080 --parallel 32 --memory 40G --cache-dir /var/cache/k3\n"
        "KONDENSE_API_KEY=secret kondense serve model --host 0.0.0.0 --allow-host box.lan",
    .opts = opts,
    .args_min = 1,
    .args_max = 1,
    .run = run,
    .details =
        "Endpoints: POST /v1/chat/completions, /v1/completions, /v1/responses (GET and DELETE "
        "/v1/responses/ID), /v1/messages, /v1/messages/count_tokens, /tokenize, /detokenize; GET "
        "/v1/models, /v1/models/ID, /health, /readyz, /metrics, and a chat page at /. docs/api.md "
        "has "
        "their fields and errors.\n\n"
        "The same request with the same seed gets the same answer, alone or in a crowd, with the "
        "prefix cache warm or cold. One line a request goes to standard error. SIGTERM and SIGINT "
        "stop taking requests, wait for those that run, and end; a second one ends at once."};
