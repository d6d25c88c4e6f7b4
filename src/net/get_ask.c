#include "net/get_int.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/show.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static struct kd_get_file *file_of(const struct kd_get_slot *s)
{
    return &s->g->files[s->span->file];
}

int kd_ask_allowed(const struct kd_get *g, const char *url, struct kd_err *err)
{
    struct kd_origin o;
    char shown[256];
    if (kd_url_origin(&o, url, err))
        return -1;
    if (!strcmp(o.scheme, "http") && !kd_host_loopback(o.host) && !g->o.allow_http)
        return kd_fail(err, KD_EINVAL,
                       "'%s' is plain http, which anybody between can read and change: use https "
                       "or add --allow-http",
                       kd_url_show(shown, sizeof shown, url));
    return 0;
}

int kd_ask_hop(const struct kd_get *g, const struct kd_answer *a, char **url, bool *elsewhere,
               struct kd_err *err)
{
    struct kd_origin from, to;
    char *next;
    if (kd_mem_new(&next, KD_URL_MAX, 1, "address", err))
        return -1;
    int rc = *a->location ? kd_url_join(next, KD_URL_MAX, *url, a->location, err)
                          : kd_fail(err, KD_EREMOTE, "the server redirects to nowhere");
    if (!rc)
        rc = kd_url_origin(&from, *url, err) || kd_url_origin(&to, next, err) ||
                     kd_ask_allowed(g, next, err)
                 ? -1
                 : 0;
    if (!rc && !strcmp(from.scheme, "https") && strcmp(to.scheme, "https"))
        rc = kd_fail(err, KD_EREMOTE, "the server redirects from https to plain http");
    if (!rc && kd_ip_private(to.host) && !g->o.allow_private && !kd_host_loopback(from.host) &&
        !kd_ip_private(from.host))
        rc = kd_fail(err, KD_EREMOTE,
                     "the server redirects into a private network (%s); --allow-private follows",
                     to.host);
    if (rc) {
        kd_mem_free(next);
        return -1;
    }
    *elsewhere = !kd_origin_same(&from, &to);
    kd_mem_free(*url);
    *url = next;
    return 0;
}

bool kd_ask_broken(CURLcode code)
{
    static const CURLcode may_heal[] = {CURLE_COULDNT_RESOLVE_HOST, CURLE_COULDNT_RESOLVE_PROXY,
                                        CURLE_COULDNT_CONNECT,      CURLE_OPERATION_TIMEDOUT,
                                        CURLE_RECV_ERROR,           CURLE_SEND_ERROR,
                                        CURLE_GOT_NOTHING,          CURLE_PARTIAL_FILE,
                                        CURLE_SSL_CONNECT_ERROR,    CURLE_WEIRD_SERVER_REPLY};
    for (size_t i = 0; i < sizeof may_heal / sizeof *may_heal; i++)
        if (code == may_heal[i])
            return true;
    return false;
}

int kd_ask_refused(const struct kd_answer *a, const char *url, const char *excerpt, bool token,
                   struct kd_err *err)
{
    static const struct {
        const char *code, *meaning;
    } hub[] = {{"RepoNotFound", "no such repository, or it is private: check the name, or set "
                                "HF_TOKEN"},
               {"RevisionNotFound", "no such branch, tag or commit"},
               {"EntryNotFound", "no such file at this revision"},
               {"GatedRepo", "accept the model's terms on its page first, then set HF_TOKEN"},
               {"DisabledRepo", "the repository was disabled"}};
    char place[160], said[200];
    kd_url_show(place, sizeof place, url);
    kd_show_text(said, sizeof said, excerpt);
    kd_log(KD_LOG_WARN, "get", "status=%d url=%s code=%s", a->status, place, a->code);
    for (size_t i = 0; i < sizeof hub / sizeof *hub; i++)
        if (!strcmp(a->code, hub[i].code))
            return kd_fail(err, KD_EREMOTE, "%s: %s (%s)", place, hub[i].meaning, a->code);
    if (a->status == 401 && !token)
        return kd_fail(err, KD_EREMOTE,
                       "%s: not there, or not without a token: check the name, or set HF_TOKEN "
                       "(status 401)",
                       place);
    return kd_fail(err, KD_EREMOTE, "%s: status %d%s%s", place, a->status, *said ? ": " : "", said);
}

double kd_ask_backoff(struct kd_get *g, int tries, double asked)
{
    double wait = g->o.backoff_s;
    for (int i = 1; i < tries && wait < 30; i++)
        wait *= 2;
    if (wait > 30)
        wait = 30;
    wait *= 0.5 + 0.5 * kd_rand_unit((uint64_t)(uintptr_t)g, g->draws++);
    return wait > asked ? wait : asked;
}

/* Looks at the address that a connection really goes to: a name may lead where its owner likes. */
// curl says the types: NOLINTNEXTLINE(readability-non-const-parameter)
static int on_connect(void *ctx, char *ip, char *local, int port, int local_port)
{
    struct kd_get_slot *s = ctx;
    struct kd_get_file *f = file_of(s);
    (void)local;
    (void)port;
    (void)local_port;
    if (s->g->o.proxied || s->g->o.allow_private)
        return CURL_PREREQFUNC_OK;
    if (!s->redirected) {
        f->private_ok = kd_ip_private(ip);
        return CURL_PREREQFUNC_OK;
    }
    if (f->private_ok || !kd_ip_private(ip))
        return CURL_PREREQFUNC_OK;
    s->fatal = true;
    kd_fail(&s->err, KD_EREMOTE,
            "the server redirects into a private network (%s); --allow-private follows", ip);
    return CURL_PREREQFUNC_ABORT;
}

static size_t on_head(char *line, size_t size, size_t n, void *ctx)
{
    struct kd_get_slot *s = ctx;
    struct kd_get_file *f = file_of(s);
    if (!kd_answer_line(&s->answer, line, size * n))
        return size * n;
    int status = s->answer.status;
    if (status != 200 && status != 206)
        return size * n;
    /* Judged before a body byte comes: the body of an ignored range may be 50 GB. */
    if (kd_answer_check(&s->answer, s->span->begin + s->at + s->got, s->bytes - s->got, f->bytes,
                        f->etag, &s->err)) {
        s->fatal = true;
        return 0;
    }
    s->taken = true;
    f->known = true;
    f->denied = 0;
    if (f->bytes < 0)
        f->bytes = s->answer.range_total;
    if (!*f->etag)
        memcpy(f->etag, s->answer.etag, sizeof f->etag);
    return size * n;
}

static int put_file(int fd, const char *data, int64_t bytes, int64_t at, struct kd_err *err)
{
    while (bytes) {
        ssize_t n = pwrite(fd, data, (size_t)bytes, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return kd_fail_sys(err, "cannot write what was received");
        data += n;
        at += n;
        bytes -= n;
    }
    return 0;
}

static size_t on_body(char *data, size_t size, size_t n, void *ctx)
{
    struct kd_get_slot *s = ctx;
    const struct kd_get_span *span = s->span;
    int64_t bytes = (int64_t)(size * n), at = s->at + s->got;
    if (!s->taken) {
        int room = KD_GET_EXCERPT - s->excerpt_bytes;
        int take = bytes < room ? (int)bytes : room;
        memcpy(s->excerpt + s->excerpt_bytes, data, (size_t)take);
        s->excerpt_bytes += take;
        return room > 0 ? size * n : 0;
    }
    if (bytes > s->bytes - s->got) {
        s->fatal = true;
        kd_fail(&s->err, KD_EREMOTE, "the server sends more bytes than were asked for");
        return 0;
    }
    int rc = 0;
    if (span->buf)
        memcpy((char *)span->buf + at, data, (size_t)bytes);
    else if (span->sink)
        rc = span->sink(span->ctx, at, data, bytes, &s->err);
    else
        rc = put_file(span->fd, data, bytes, span->fd_at + at, &s->err);
    if (rc) {
        s->fatal = true;
        return 0;
    }
    s->got += bytes;
    s->g->stats.bytes += bytes;
    double now = kd_clock_s();
    s->g->last_byte_s = now;
    if (s->g->o.rate) /* the next piece waits until these bytes are paid for */
        s->g->pace_s =
            (s->g->pace_s > now ? s->g->pace_s : now) + (double)bytes / (double)s->g->o.rate;
    return size * n;
}

int kd_ask_setup(struct kd_get *g, CURL **easy, struct kd_err *err)
{
    CURL *c = curl_easy_init();
    if (!c)
        return kd_fail(err, KD_ENOMEM, "cannot make a connection");
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    /* One connection a request: streams of one HTTP/2 connection share one window. */
    curl_easy_setopt(c, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "kondense/" KD_VERSION);
    curl_easy_setopt(c, CURLOPT_BUFFERSIZE, g->o.rate ? 16L << 10 : 256L << 10);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, (long)(g->o.connect_s * 1000));
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)(g->o.stall_s < 1 ? 1 : g->o.stall_s));
    if (g->o.rate)
        curl_easy_setopt(c, CURLOPT_MAX_RECV_SPEED_LARGE,
                         (curl_off_t)(g->o.rate / g->o.jobs + (g->o.rate < g->o.jobs)));
    *easy = c;
    return 0;
}

int kd_ask_head(struct curl_slist **head, const char *token, struct kd_err *err)
{
    struct curl_slist *h = curl_slist_append(NULL, "Accept-Encoding: identity"), *more = h;
    if (h && token) {
        char line[1100];
        snprintf(line, sizeof line, "Authorization: Bearer %s", token);
        more = curl_slist_append(h, line);
        explicit_bzero(line, sizeof line);
    }
    if (!more) {
        curl_slist_free_all(h);
        return kd_fail(err, KD_ENOMEM, "out of memory for a request");
    }
    *head = more;
    return 0;
}

int kd_ask_copy(char **out, const char *url, struct kd_err *err)
{
    size_t n = strlen(url) + 1;
    kd_mem_free(*out);
    *out = NULL;
    if (kd_mem_new(out, (int64_t)n, 1, "address", err))
        return -1;
    memcpy(*out, url, n);
    return 0;
}

int kd_slot_start(struct kd_get_slot *s, struct kd_err *err)
{
    struct kd_get *g = s->g;
    struct kd_get_file *f = file_of(s);
    char range[64];
    if (!s->easy && kd_ask_setup(g, &s->easy, err))
        return -1;
    if (!s->hops) {
        s->redirected = f->real != NULL;
        s->with_token = !f->real && f->token;
        s->generation = f->generation;
        if (kd_ask_copy(&s->url, f->real ? f->real : f->url, err))
            return -1;
        g->stats.resolves += !f->real && !f->known;
    }
    int64_t from = s->span->begin + s->at + s->got;
    snprintf(range, sizeof range, "%lld-%lld", (long long)from,
             (long long)(from + s->bytes - s->got - 1));
    curl_slist_free_all(s->head);
    s->head = NULL;
    if (kd_ask_allowed(g, s->url, err) ||
        kd_ask_head(&s->head, s->with_token ? f->token : NULL, err))
        return -1;
    struct kd_origin o;
    if (kd_url_origin(&o, s->url, err))
        return -1;
    CURL *c = s->easy;
    curl_easy_setopt(c, CURLOPT_URL, s->url);
    curl_easy_setopt(c, CURLOPT_PROXY, kd_host_loopback(o.host) ? "" : NULL);
    curl_easy_setopt(c, CURLOPT_RANGE, range);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, s->head);
    curl_easy_setopt(c, CURLOPT_PRIVATE, s);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_head);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, s);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, s);
    curl_easy_setopt(c, CURLOPT_PREREQFUNCTION, on_connect);
    curl_easy_setopt(c, CURLOPT_PREREQDATA, s);
    kd_answer_init(&s->answer);
    s->taken = s->fatal = false;
    s->excerpt_bytes = 0;
    s->got_before = s->got;
    g->stats.requests++;
    if (curl_multi_add_handle(g->multi, c))
        return kd_fail(err, KD_ENET, "cannot start a request");
    s->state = KD_SLOT_RUNS;
    return 0;
}

/* A wait, unless the piece had its tries. `why` is the sentence for giving up. */
static enum kd_get_next later(struct kd_get_slot *s, const char *why, struct kd_err *err)
{
    struct kd_get *g = s->g;
    curl_off_t asked = 0;
    char place[200];
    kd_url_show(place, sizeof place, s->url);
    curl_easy_getinfo(s->easy, CURLINFO_RETRY_AFTER, &asked);
    s->hops = 0;
    s->tries = s->got > s->got_before ? 1 : s->tries + 1;
    g->stats.retries++;
    if (s->tries >= g->o.tries) {
        kd_fail(err, KD_ENET, "%s: %s; gave up after %d tries", place, why, s->tries);
        return KD_NEXT_FAIL;
    }
    if ((double)asked > g->o.budget_s) {
        kd_fail(err, KD_ENET, "%s: %s, and asks to wait %lld s; come back then and resume", place,
                why, (long long)asked);
        return KD_NEXT_FAIL;
    }
    s->not_before = kd_clock_s() + kd_ask_backoff(g, s->tries, (double)asked);
    if (asked > 0 && !kd_url_origin(&g->pause_origin, s->url, NULL))
        g->pause_until_s = kd_clock_s() + (double)asked;
    kd_log(KD_LOG_INFO, "get", "url=%s try=%d wait_s=%.1f msg=\"%s\"", place, s->tries,
           s->not_before - kd_clock_s(), why);
    return KD_NEXT_LATER;
}

static enum kd_get_next hop(struct kd_get_slot *s, struct kd_err *err)
{
    struct kd_get_file *f = file_of(s);
    bool elsewhere;
    if (++s->hops > KD_GET_HOPS_MAX) {
        kd_fail(err, KD_EREMOTE, "the server redirects more than %d times", KD_GET_HOPS_MAX);
        return KD_NEXT_FAIL;
    }
    if (kd_ask_hop(s->g, &s->answer, &s->url, &elsewhere, err))
        return KD_NEXT_FAIL;
    if (elsewhere) {
        s->with_token = false; /* for good: no later hop gets it back */
        s->redirected = true;
    }
    if (s->redirected ? kd_ask_copy(&f->real, s->url, err) : kd_ask_copy(&f->url, s->url, err))
        return KD_NEXT_FAIL;
    f->generation++;
    s->generation = f->generation;
    return KD_NEXT_AGAIN;
}

/* 403 from the address that a redirect led to: it has expired, and the file's server is asked once
 * more. */
static bool expired(struct kd_get_slot *s)
{
    struct kd_get_file *f = file_of(s);
    if (!s->redirected || s->answer.status != 403)
        return false;
    s->hops = 0;
    if (s->generation != f->generation) /* another request saw it before */
        return true;
    if (++f->denied > 1)
        return false;
    kd_mem_free(f->real);
    f->real = NULL;
    f->known = false;
    f->generation++;
    return true;
}

enum kd_get_next kd_slot_finish(struct kd_get_slot *s, CURLcode code, struct kd_err *err)
{
    struct kd_get_file *f = file_of(s);
    char place[200], why[160];
    int status = s->answer.status;
    kd_url_show(place, sizeof place, s->url);
    s->excerpt[s->excerpt_bytes] = 0;
    if (s->fatal) {
        *err = s->err;
        kd_wrap(err, "%s", place);
        return KD_NEXT_FAIL;
    }
    if (s->taken && s->got == s->bytes)
        return KD_NEXT_DONE;
    if (s->taken) {
        snprintf(why, sizeof why, "the connection ended %lld bytes early",
                 (long long)(s->bytes - s->got));
        return later(s, code ? curl_easy_strerror(code) : why, err);
    }
    if (kd_ask_broken(code) && !status)
        return later(s, curl_easy_strerror(code), err);
    if (!status) {
        kd_fail(err, KD_ENET, "%s: %s", place, curl_easy_strerror(code));
        return KD_NEXT_FAIL;
    }
    if (status >= 300 && status < 400 && status != 304) {
        enum kd_get_next n = hop(s, err);
        if (n == KD_NEXT_FAIL)
            kd_wrap(err, "%s", place);
        return n;
    }
    if (s->g->probe && (status == 404 || (status == 416 && s->answer.range_total == 0))) {
        f->bytes = status == 416 ? 0 : -1;
        return KD_NEXT_ABSENT;
    }
    if (expired(s))
        return KD_NEXT_AGAIN;
    if (kd_answer_again(status)) {
        snprintf(why, sizeof why, "status %d", status);
        return later(s, why, err);
    }
    if (status == 416) {
        kd_fail(err, KD_EREMOTE, "%s: the file is shorter than was said (status 416)", place);
        return KD_NEXT_FAIL;
    }
    kd_ask_refused(&s->answer, s->url, s->excerpt, f->token != NULL, err);
    return KD_NEXT_FAIL;
}
