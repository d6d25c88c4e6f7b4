#include "net/get_int.h"

#include "base/clock.h"
#include "base/mem.h"

#include <string.h>

/* One page on its way. */
struct ask {
    struct kd_get *g;
    struct kd_answer answer;
    struct kd_buf *out;
    size_t max;
    bool large, redirected, private_ok, into_private;
};

static size_t on_head(char *line, size_t size, size_t n, void *ctx)
{
    struct ask *a = ctx;
    kd_answer_line(&a->answer, line, size * n);
    return size * n;
}

static size_t on_body(char *data, size_t size, size_t n, void *ctx)
{
    struct ask *a = ctx;
    a->large = a->out->size_bytes + size * n > a->max;
    if (a->large)
        return 0;
    kd_buf_add(a->out, data, size * n);
    a->g->stats.bytes += (int64_t)(size * n);
    return size * n;
}

static int on_progress(void *ctx, curl_off_t total, curl_off_t now, curl_off_t up_total,
                       curl_off_t up)
{
    const struct ask *a = ctx;
    (void)total;
    (void)now;
    (void)up_total;
    (void)up;
    return a->g->o.stopped && a->g->o.stopped();
}

// curl says the types: NOLINTNEXTLINE(readability-non-const-parameter)
static int on_connect(void *ctx, char *ip, char *local, int port, int local_port)
{
    struct ask *a = ctx;
    (void)local;
    (void)port;
    (void)local_port;
    if (!a->redirected)
        a->private_ok = a->g->o.proxied || a->g->o.allow_private || kd_ip_private(ip);
    a->into_private = !a->private_ok && kd_ip_private(ip);
    return a->into_private ? CURL_PREREQFUNC_ABORT : CURL_PREREQFUNC_OK;
}

static int once(struct ask *a, CURL *c, const char *url, const char *token, CURLcode *code,
                struct kd_err *err)
{
    struct curl_slist *head;
    struct kd_origin o;
    if (kd_ask_allowed(a->g, url, err) || kd_url_origin(&o, url, err) ||
        kd_ask_head(&head, token, err))
        return -1;
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_PROXY, kd_host_loopback(o.host) ? "" : NULL);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, head);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_head);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, a);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, a);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, a);
    curl_easy_setopt(c, CURLOPT_PREREQFUNCTION, on_connect);
    curl_easy_setopt(c, CURLOPT_PREREQDATA, a);
    kd_answer_init(&a->answer);
    kd_buf_clear(a->out);
    a->large = a->into_private = false;
    a->g->stats.requests++;
    *code = curl_easy_perform(c);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, NULL);
    curl_slist_free_all(head);
    return 0;
}

/* Waits and returns 0, or -1 when stopped. */
static int wait_s(const struct kd_get *g, double seconds, struct kd_err *err)
{
    for (double end = kd_clock_s() + seconds; kd_clock_s() < end;) {
        if (g->o.stopped && g->o.stopped())
            return kd_fail(err, KD_ECANCEL, "stopped");
        curl_multi_poll(g->multi, NULL, 0, 100, NULL);
    }
    return 0;
}

/* 0: answered; 1: ask again (*url and *token as they are now); -1 with err. */
static int judge(struct ask *a, CURL *c, CURLcode code, char **url, const char **token, int *tries,
                 int *hops, struct kd_err *err)
{
    char shown[200];
    bool elsewhere;
    int status = a->answer.status;
    kd_url_show(shown, sizeof shown, *url);
    if (code == CURLE_ABORTED_BY_CALLBACK && a->into_private)
        return kd_fail(err, KD_EREMOTE, "%s: redirects into a private network", shown);
    if (code == CURLE_ABORTED_BY_CALLBACK)
        return kd_fail(err, KD_ECANCEL, "stopped");
    if (a->large)
        return kd_fail(err, KD_EREMOTE, "%s: larger than the limit of %zu bytes", shown, a->max);
    if (!code && status >= 300 && status < 400) {
        if (++*hops > KD_GET_HOPS_MAX)
            return kd_fail(err, KD_EREMOTE, "%s: redirects more than %d times", shown,
                           KD_GET_HOPS_MAX);
        if (kd_ask_hop(a->g, &a->answer, url, &elsewhere, err))
            return kd_wrap(err, "%s", shown);
        if (elsewhere) {
            *token = NULL;
            a->redirected = true;
        }
        return 1;
    }
    if (!code && (status == 200 || status == 404))
        return 0;
    if (kd_ask_broken(code) || (!code && kd_answer_again(status))) {
        curl_off_t asked = 0;
        curl_easy_getinfo(c, CURLINFO_RETRY_AFTER, &asked);
        if (++*tries >= a->g->o.tries || (double)asked > a->g->o.budget_s)
            return code ? kd_fail(err, KD_ENET, "%s: %s; gave up after %d tries", shown,
                                  curl_easy_strerror(code), *tries)
                        : kd_fail(err, KD_ENET, "%s: status %d; gave up after %d tries", shown,
                                  status, *tries);
        a->g->stats.retries++;
        return wait_s(a->g, kd_ask_backoff(a->g, *tries, (double)asked), err) ? -1 : 1;
    }
    if (code)
        return kd_fail(err, KD_ENET, "%s: %s", shown, curl_easy_strerror(code));
    return kd_ask_refused(&a->answer, *url, a->out->data ? a->out->data : "", *token != NULL, err);
}

int kd_get_page(struct kd_get *g, const char *url, const char *token, size_t max_bytes,
                struct kd_buf *out, struct kd_get_page *page, struct kd_err *err)
{
    struct ask a = {.g = g, .out = out, .max = max_bytes};
    int tries = 0, hops = 0, rc = 1;
    char *at = NULL;
    CURL *c = NULL;
    if (kd_ask_copy(&at, url, err))
        return -1;
    if (kd_ask_setup(g, &c, err))
        rc = -1;
    while (rc == 1) {
        CURLcode code;
        rc = once(&a, c, at, token, &code, err);
        if (!rc)
            rc = judge(&a, c, code, &at, &token, &tries, &hops, err);
    }
    if (c)
        curl_easy_cleanup(c);
    kd_mem_free(at);
    if (rc)
        return -1;
    page->status = a.answer.status;
    memcpy(page->type, a.answer.type, sizeof page->type);
    memcpy(page->commit, a.answer.commit, sizeof page->commit);
    memcpy(page->code, a.answer.code, sizeof page->code);
    memcpy(page->next, a.answer.next, sizeof page->next);
    return kd_buf_ok(out, "the answer", err);
}
