#include "net/call.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/show.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { KEY_BYTES_MAX = 4096, KEY_FILE_BYTES_MAX = 1 << 16, WHY_BYTES_MAX = 1 << 20 };

struct kd_client {
    CURL *curl;
    struct curl_slist *get, *post, *put; /* headers of each */
    struct kd_client_opts o;
    bool answered, too_large;
    struct kd_reply *reply; /* while a try runs */
    char text[CURL_ERROR_SIZE];
};

void kd_reply_init(struct kd_reply *r)
{
    memset(r, 0, sizeof *r);
}

void kd_reply_release(struct kd_reply *r)
{
    kd_buf_release(&r->body);
}

int kd_key_read(char *out, size_t size, const char *path, struct kd_err *err)
{
    struct stat st;
    struct kd_buf b;
    *out = 0;
    if (stat(path, &st))
        return kd_fail_sys(err, "%s", path);
    if (st.st_mode & 077)
        return kd_fail(err, KD_EINVAL, "%s: others can read this key (chmod 600 it)", path);
    kd_buf_init(&b, KEY_FILE_BYTES_MAX);
    int rc = kd_file_read(&b, path, KEY_FILE_BYTES_MAX, err);
    for (const char *p = b.data; !rc && p && *p && !*out;) {
        size_t n = strcspn(p, "\r\n");
        bool plain = n > 0;
        for (size_t i = 0; i < n; i++)
            plain = plain && p[i] > ' ' && p[i] < 127;
        if (n && *p != '#' && (!plain || n >= size))
            rc = kd_fail(err, KD_EINVAL, "%s: the key is not one word of printable ASCII", path);
        else if (n && *p != '#')
            snprintf(out, size, "%.*s", (int)n, p);
        p += n + strspn(p + n, "\r\n");
    }
    if (!rc && !*out)
        rc = kd_fail(err, KD_EINVAL, "%s: no key in it", path);
    if (b.data)
        explicit_bzero(b.data, b.size_bytes);
    kd_buf_release(&b);
    return rc;
}

static bool is_loopback(const char *host)
{
    struct in_addr four;
    char name[64];
    size_t n = strlen(host);
    if (n >= 2 && host[0] == '[' && host[n - 1] == ']') {
        struct in6_addr six;
        snprintf(name, sizeof name, "%.*s", (int)(n - 2), host + 1);
        return inet_pton(AF_INET6, name, &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
    }
    if (inet_pton(AF_INET, host, &four) == 1)
        return ntohl(four.s_addr) >> 24 == 127;
    return !strcmp(host, "localhost");
}

int kd_url_check(const char *url, bool allow_http, bool *loopback, struct kd_err *err)
{
    char *scheme = NULL, *host = NULL, *user = NULL, *password = NULL, shown[200];
    CURLU *u = curl_url();
    if (!u)
        return kd_fail(err, KD_ENOMEM, "no memory for a URL");
    kd_show_text(shown, sizeof shown, url);
    int rc = 0;
    if (curl_url_set(u, CURLUPART_URL, url, 0) || curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) ||
        curl_url_get(u, CURLUPART_HOST, &host, 0))
        rc = kd_fail(err, KD_EUSAGE, "'%s' is not a URL such as https://host/v1", shown);
    else if (strcmp(scheme, "https") != 0 && strcmp(scheme, "http") != 0)
        rc = kd_fail(err, KD_EUSAGE, "'%s' is neither https nor http", shown);
    else if (!curl_url_get(u, CURLUPART_USER, &user, 0) ||
             !curl_url_get(u, CURLUPART_PASSWORD, &password, 0))
        rc = kd_fail(err, KD_EUSAGE, "a key belongs into a file (--key-file), not into the URL");
    bool local = !rc && is_loopback(host);
    if (!rc && !strcmp(scheme, "http") && !local && !allow_http)
        rc = kd_fail(err, KD_EUSAGE,
                     "'%s' is plain http to another machine; --allow-http allows it", shown);
    if (loopback)
        *loopback = local;
    curl_free(scheme);
    curl_free(host);
    curl_free(user);
    curl_free(password);
    curl_url_cleanup(u);
    return rc;
}

static bool stopped(const struct kd_client *c)
{
    return c->o.stop && *c->o.stop;
}

static size_t take(char *data, size_t size, size_t count, void *ctx)
{
    struct kd_client *c = ctx;
    kd_buf_add(&c->reply->body, data, size * count);
    c->too_large = c->reply->body.failed;
    return c->too_large ? 0 : size * count;
}

static int watch(void *ctx, curl_off_t down_total, curl_off_t down, curl_off_t up_total,
                 curl_off_t up)
{
    (void)down_total;
    (void)down;
    (void)up_total;
    (void)up;
    return stopped(ctx);
}

static int add_header(struct curl_slist **list, const char *line, struct kd_err *err)
{
    struct curl_slist *more = curl_slist_append(*list, line);
    if (!more)
        return kd_fail(err, KD_ENOMEM, "no memory for a header");
    *list = more;
    return 0;
}

/* Expect is left out: it costs a second with servers that do not know it. */
static int make_headers(struct kd_client *c, struct kd_err *err)
{
    char key[KEY_BYTES_MAX], line[KEY_BYTES_MAX + 32];
    int rc = add_header(&c->get, "Accept: application/json", err) ||
             add_header(&c->post, "Accept: application/json", err) ||
             add_header(&c->post, "Content-Type: application/json", err) ||
             add_header(&c->post, "Expect:", err) ||
             add_header(&c->put, "Content-Type: application/octet-stream", err) ||
             add_header(&c->put, "Expect:", err);
    if (rc || (!c->o.key_file && !c->o.key))
        return rc ? -1 : 0;
    if (!c->o.key)
        rc = kd_key_read(key, sizeof key, c->o.key_file, err);
    else if (snprintf(key, sizeof key, "%s", c->o.key) >= (int)sizeof key)
        rc = kd_fail(err, KD_EINVAL, "the key is too long");
    if (!rc) {
        snprintf(line, sizeof line, "Authorization: Bearer %s", key);
        rc = add_header(&c->get, line, err) || add_header(&c->post, line, err) ||
                     add_header(&c->put, line, err)
                 ? -1
                 : 0;
    }
    explicit_bzero(key, sizeof key);
    explicit_bzero(line, sizeof line);
    return rc;
}

static void fixed_options(struct kd_client *c)
{
    CURL *h = c->curl;
    curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(h, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(h, CURLOPT_USERAGENT, "kondense/" KD_VERSION);
    curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT_MS, (long)(c->o.connect_s * 1000));
    curl_easy_setopt(h, CURLOPT_TIMEOUT_MS, (long)(c->o.total_s * 1000));
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(h, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(h, CURLOPT_XFERINFOFUNCTION, watch);
    curl_easy_setopt(h, CURLOPT_XFERINFODATA, c);
    curl_easy_setopt(h, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(h, CURLOPT_ERRORBUFFER, c->text);
    if (c->o.ca_pem) {
        union {
            const char *in;
            void *out;
        } pem = {.in = c->o.ca_pem}; /* copied by curl */
        struct curl_blob ca = {
            .data = pem.out, .len = strlen(c->o.ca_pem), .flags = CURL_BLOB_COPY};
        curl_easy_setopt(h, CURLOPT_CAINFO_BLOB, &ca);
        curl_easy_setopt(h, CURLOPT_CAPATH, NULL);
    }
}

int kd_client_open(struct kd_client **call, const struct kd_client_opts *o, struct kd_err *err)
{
    struct kd_client *c;
    *call = NULL;
    if (kd_mem_zero(&c, 1, sizeof *c, "client", err))
        return -1;
    c->o = *o;
    c->o.connect_s = o->connect_s > 0 ? o->connect_s : 10;
    c->o.total_s = o->total_s > 0 ? o->total_s : 600;
    c->o.wait_s = o->wait_s > 0 ? o->wait_s : 60;
    c->o.reply_bytes_max = o->reply_bytes_max ? o->reply_bytes_max : 16 << 20;
    c->o.tries = o->tries > 0 ? o->tries : 6;
    if (curl_global_init(CURL_GLOBAL_DEFAULT)) {
        kd_mem_free(c);
        return kd_fail(err, KD_ENET, "libcurl cannot be set up");
    }
    c->curl = curl_easy_init();
    if (!c->curl || make_headers(c, err)) {
        bool no_curl = !c->curl;
        kd_client_close(c);
        return no_curl ? kd_fail(err, KD_ENOMEM, "no memory for a client") : -1;
    }
    fixed_options(c);
    *call = c;
    return 0;
}

void kd_client_close(struct kd_client *c)
{
    if (!c)
        return;
    if (c->curl)
        curl_easy_cleanup(c->curl);
    curl_slist_free_all(c->get);
    curl_slist_free_all(c->post);
    curl_slist_free_all(c->put);
    curl_global_cleanup();
    kd_mem_free(c);
}

static int wait_for(const struct kd_client *c, double seconds, struct kd_err *err)
{
    double until = kd_clock_s() + seconds;
    for (double left; (left = until - kd_clock_s()) > 0;) {
        if (stopped(c))
            return kd_fail(err, KD_ECANCEL, "stopped while waiting for the server");
        double part = left < 0.05 ? left : 0.05;
        struct timespec t = {.tv_nsec = (long)(part * 1e9)};
        nanosleep(&t, NULL);
    }
    return 0;
}

/* Why a try brought no answer; url is harmless text. */
static int explain(const struct kd_client *c, CURLcode rc, const char *url, struct kd_err *err)
{
    curl_off_t connected = 0;
    if (rc == CURLE_ABORTED_BY_CALLBACK)
        return kd_fail(err, KD_ECANCEL, "stopped while calling %s", url);
    if (rc == CURLE_OPERATION_TIMEDOUT) {
        curl_easy_getinfo(c->curl, CURLINFO_PRETRANSFER_TIME_T, &connected);
        return kd_fail(err, KD_ETIMEOUT, "%s: no %s within %g s", url,
                       connected ? "whole answer" : "connection",
                       connected ? c->o.total_s : c->o.connect_s);
    }
    if (rc == CURLE_WRITE_ERROR && c->too_large)
        return kd_fail(err, KD_EREMOTE, "%s: the answer is larger than %lld bytes", url,
                       (long long)c->o.reply_bytes_max);
    if (rc == CURLE_UNSUPPORTED_PROTOCOL || rc == CURLE_WEIRD_SERVER_REPLY)
        return kd_fail(err, KD_EREMOTE, "%s: what answers there does not speak HTTP", url);
    if (rc == CURLE_OUT_OF_MEMORY)
        return kd_fail(err, KD_ENOMEM, "no memory to call %s", url);
    return kd_fail(err, KD_ENET, "%s: %s", url, c->text[0] ? c->text : curl_easy_strerror(rc));
}

static CURLcode try_once(struct kd_client *c, struct kd_reply *r)
{
    long status = 0;
    kd_buf_release(&r->body);
    kd_buf_init(&r->body, c->o.reply_bytes_max);
    c->reply = r;
    c->too_large = false;
    c->text[0] = 0;
    CURLcode rc = curl_easy_perform(c->curl);
    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &status);
    r->status = (int)status;
    c->reply = NULL;
    return rc;
}

static int send_it(struct kd_client *c, const char *url, const char *method, const void *body,
                   size_t bytes, struct kd_reply *r, struct kd_err *err)
{
    char shown[200];
    bool loopback;
    if (kd_url_check(url, c->o.allow_http, &loopback, err))
        return -1;
    kd_show_text(shown, sizeof shown, url);
    curl_easy_setopt(c->curl, CURLOPT_URL, url);
    curl_easy_setopt(c->curl, CURLOPT_PROXY, loopback ? "" : NULL);
    curl_easy_setopt(c->curl, CURLOPT_HTTPHEADER,
                     !body                    ? c->get
                     : !strcmp(method, "PUT") ? c->put
                                              : c->post);
    if (body) {
        curl_easy_setopt(c->curl, CURLOPT_POST, 1L);
        curl_easy_setopt(c->curl, CURLOPT_POSTFIELDS, body);
        curl_easy_setopt(c->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)bytes);
        curl_easy_setopt(c->curl, CURLOPT_CUSTOMREQUEST, method);
    } else {
        curl_easy_setopt(c->curl, CURLOPT_HTTPGET, 1L);
        curl_easy_setopt(c->curl, CURLOPT_CUSTOMREQUEST, NULL);
    }
    for (int attempt = 1;; attempt++) {
        double pause = 1 << (attempt < 10 ? attempt - 1 : 9);
        CURLcode rc = try_once(c, r);
        bool busy = !rc && (r->status == 429 || r->status == 503);
        bool broke =
            rc && c->answered &&
            (rc == CURLE_COULDNT_CONNECT || rc == CURLE_RECV_ERROR || rc == CURLE_SEND_ERROR ||
             rc == CURLE_GOT_NOTHING || rc == CURLE_PARTIAL_FILE);
        c->answered = c->answered || !rc;
        if ((!busy && !broke) || attempt >= c->o.tries)
            return rc ? explain(c, rc, shown, err) : 0;
        curl_off_t after = 0;
        curl_easy_getinfo(c->curl, CURLINFO_RETRY_AFTER, &after);
        pause = busy && after > 0 ? (double)after : pause;
        pause = pause > c->o.wait_s ? c->o.wait_s : pause;
        kd_log(KD_LOG_INFO, "net", "url=\"%s\" status=%d try=%d wait_s=%.0f", shown,
               rc ? 0 : r->status, attempt, pause);
        if (wait_for(c, pause, err))
            return -1;
    }
}

int kd_client_send(struct kd_client *c, const char *url, const char *body, size_t bytes,
                   struct kd_reply *r, struct kd_err *err)
{
    return send_it(c, url, "POST", body, bytes, r, err);
}

int kd_client_put(struct kd_client *c, const char *url, const void *body, size_t bytes,
                  struct kd_reply *r, struct kd_err *err)
{
    return send_it(c, url, "PUT", body, bytes, r, err);
}

void kd_reply_why(char *out, size_t size, const char *body, size_t bytes)
{
    static const char *const keys[] = {"error", "message", "detail"};
    struct kd_json *root;
    struct kd_buf plain;
    *out = 0;
    if (!body || !bytes)
        return;
    if (!kd_json_parse(&root, body, bytes, "error", NULL)) {
        const char *text = kd_json_text(root, NULL);
        for (size_t i = 0; i < sizeof keys / sizeof *keys && !text; i++) {
            const struct kd_json *v = kd_json_get(root, keys[i]);
            text = kd_json_text(v, NULL);
            text = text ? text : kd_json_text(kd_json_get(v, "message"), NULL);
        }
        if (text)
            kd_show_text(out, size, text);
        kd_json_free(root);
        if (text)
            return;
    }
    kd_buf_init(&plain, WHY_BYTES_MAX);
    kd_buf_add(&plain, body, bytes < size ? bytes : size);
    if (!plain.failed)
        kd_show_text(out, size, plain.data);
    kd_buf_release(&plain);
}

int kd_reply_fail(const struct kd_reply *r, const char *url, struct kd_err *err)
{
    char why[240], shown[200];
    kd_show_text(shown, sizeof shown, url);
    kd_reply_why(why, sizeof why, r->body.data, r->body.size_bytes);
    return kd_fail(err, KD_EREMOTE, "%s answered %d%s%s", shown, r->status, *why ? ": " : "", why);
}
