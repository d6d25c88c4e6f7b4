#include "farm/home.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/opt.h"
#include "net/tls.h"
#include "net/url.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TOKEN_BYTES = 16, FILE_MAX = 1 << 20 };

int kd_home_random(char *out, int n, struct kd_err *err)
{
    unsigned char b[64];
    if (n > (int)sizeof b || getrandom(b, (size_t)n, 0) != n)
        return kd_fail_sys(err, "no random numbers");
    for (int i = 0; i < n; i++)
        snprintf(out + 2 * i, 3, "%02x", b[i]);
    return 0;
}

/* A file that others can never read. */
static int write_private(const char *path, const char *text, size_t n, int flags,
                         struct kd_err *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);
    if (fd < 0)
        return kd_fail_sys(err, "cannot write '%s'", path);
    int rc = write(fd, text, n) == (ssize_t)n && !fsync(fd)
                 ? 0
                 : kd_fail_sys(err, "cannot write '%s'", path);
    if (close(fd) && !rc)
        rc = kd_fail_sys(err, "cannot write '%s'", path);
    return rc;
}

static int in(const char *dir, const char *name, char *out, struct kd_err *err)
{
    return kd_path_join(out, 4096, dir, name, err);
}

/* Makes tokens: their digests join h's, and their text becomes worker.join. */
static int make_tokens(struct kd_home *h, int count, struct kd_err *err)
{
    char path[4096], token[2 * TOKEN_BYTES + 1];
    struct kd_buf out, ca;
    char(*all)[65] = NULL;
    kd_buf_init(&out, FILE_MAX);
    kd_buf_init(&ca, FILE_MAX);
    if (count < 1 || h->tokens + count > KD_HOME_TOKENS_MAX)
        return kd_fail(err, KD_EUSAGE, "a farm takes at most %d tokens", KD_HOME_TOKENS_MAX);
    int rc = kd_mem_zero(&all, h->tokens + count, sizeof *all, "tokens", err);
    if (!rc && h->tokens)
        memcpy(all, h->token_sha, (size_t)h->tokens * sizeof *all);
    kd_buf_printf(&out,
                  "# What a worker needs to join this farm; keep it private. Each token works "
                  "once.\nurl %s\n",
                  h->url);
    if (h->share[0])
        kd_buf_printf(&out, "share %s\n", h->share);
    for (int i = 0; !rc && i < count; i++) {
        rc = kd_home_random(token, TOKEN_BYTES, err) ||
             kd_sha256_of(token, strlen(token), all[h->tokens + i], err);
        kd_buf_printf(&out, "token %s\n", token);
    }
    if (!rc)
        rc = in(h->dir, "ca.pem", path, err) || kd_file_read(&ca, path, FILE_MAX, err);
    if (!rc) {
        kd_buf_add(&out, ca.data, ca.size_bytes);
        rc = kd_buf_ok(&out, "worker.join", err) || in(h->dir, "worker.join", path, err) ||
             write_private(path, out.data, out.size_bytes, O_TRUNC, err);
    }
    kd_buf_release(&ca);
    kd_buf_release(&out);
    if (rc) {
        kd_mem_free(all);
        return -1;
    }
    kd_mem_free(h->token_sha);
    h->token_sha = all;
    h->tokens += count;
    return 0;
}

static int write_json(const struct kd_home *h, struct kd_err *err)
{
    struct kd_buf out;
    char path[4096];
    kd_buf_init(&out, FILE_MAX);
    struct kd_jw w = {.out = &out};
    kd_jw_open(&w, NULL, '{');
    kd_jw_int(&w, "format", 1);
    kd_jw_str(&w, "url", h->url);
    kd_jw_str(&w, "listen", h->listen);
    kd_jw_str(&w, "ledger", h->ledger);
    kd_jw_str(&w, "share", h->share);
    kd_jw_open(&w, "names", '[');
    for (int i = 0; i < h->name_count; i++)
        kd_jw_str(&w, NULL, h->names[i]);
    kd_jw_close(&w, ']');
    kd_jw_open(&w, "tokens", '[');
    for (int i = 0; i < h->tokens; i++)
        kd_jw_str(&w, NULL, h->token_sha[i]);
    kd_jw_close(&w, ']');
    kd_jw_close(&w, '}');
    kd_buf_char(&out, '\n');
    int rc = kd_buf_ok(&out, "farm.json", err) || in(h->dir, "farm.json", path, err) ||
             kd_file_write(path, out.data, out.size_bytes, err);
    kd_buf_release(&out);
    return rc ? -1 : 0;
}

static int add_name(struct kd_home *h, const char *name, size_t n, struct kd_err *err)
{
    if (!n || n >= sizeof h->names[0] || h->name_count == KD_HOME_NAMES_MAX)
        return kd_fail(err, KD_EUSAGE, "--names: '%.*s' does not fit", (int)n, name);
    for (int i = 0; i < h->name_count; i++)
        if (strlen(h->names[i]) == n && !memcmp(h->names[i], name, n))
            return 0;
    snprintf(h->names[h->name_count++], sizeof h->names[0], "%.*s", (int)n, name);
    return 0;
}

/* The URL's host is the first name; "127.0.0.1" and "localhost" are always there. */
static int take_names(struct kd_home *h, const char *names, struct kd_err *err)
{
    struct kd_origin o;
    if (kd_url_origin(&o, h->url, err))
        return -1;
    if (strcmp(o.scheme, "https") != 0)
        return kd_fail(err, KD_EUSAGE, "a farm's address begins with https://");
    h->port = o.port;
    if (add_name(h, o.host, strlen(o.host), err))
        return -1;
    for (const char *p = names; *p;) {
        size_t n = strcspn(p, ",");
        if (add_name(h, p, n, err))
            return -1;
        p += n + (p[n] == ',');
    }
    return add_name(h, "127.0.0.1", 9, err) || add_name(h, "localhost", 9, err) ? -1 : 0;
}

int kd_home_init(const char *dir, const struct kd_home_wish *o, struct kd_err *err)
{
    struct kd_home h = {0};
    const char *list[KD_HOME_NAMES_MAX];
    char path[4096], ca[4096], ca_key[4096], cert[4096], key[4096];
    snprintf(h.dir, sizeof h.dir, "%s", dir);
    snprintf(h.url, sizeof h.url, "%s", o->url);
    snprintf(h.listen, sizeof h.listen, "%s", o->listen);
    snprintf(h.ledger, sizeof h.ledger, "%s", o->ledger);
    snprintf(h.share, sizeof h.share, "%s", o->share);
    size_t n = strlen(h.url);
    while (n && h.url[n - 1] == '/')
        h.url[--n] = 0;
    if (strlen(dir) >= sizeof h.dir || strlen(o->url) >= sizeof h.url ||
        strlen(o->ledger) >= sizeof h.ledger || strlen(o->listen) >= sizeof h.listen ||
        strlen(o->share) >= sizeof h.share || strchr(o->share, '\n'))
        return kd_fail(err, KD_EUSAGE, "a path or address is too long");
    if (h.share[0] && h.share[0] != '/')
        return kd_fail(err, KD_EUSAGE, "--share '%s': the whole path, as workers see it", h.share);
    if (take_names(&h, o->names, err) || in(dir, "farm.json", path, err))
        return -1;
    if (kd_file_exists(path))
        return kd_fail(err, KD_EUSAGE, "'%s' is a farm already; --more N makes tokens", dir);
    for (int i = 0; i < h.name_count; i++)
        list[i] = h.names[i];
    int rc = in(dir, "taken", path, err) || kd_dir_make(path, err);
    if (!rc && (chmod(dir, 0700) || chmod(path, 0700)))
        rc = kd_fail_sys(err, "cannot make '%s' private", dir);
    if (!rc)
        rc = in(dir, "ca.pem", ca, err) || in(dir, "ca.key", ca_key, err) ||
             in(dir, "server.pem", cert, err) || in(dir, "server.key", key, err) ||
             kd_cert_authority(ca, ca_key, "Kondense farm", err) ||
             kd_cert_server(cert, key, ca, ca_key, list, h.name_count, err) ||
             make_tokens(&h, o->tokens, err) || write_json(&h, err);
    kd_home_release(&h);
    return rc ? -1 : 0;
}

int kd_home_more(const char *dir, int tokens, struct kd_err *err)
{
    struct kd_home h;
    if (kd_home_open(&h, dir, err))
        return -1;
    int rc = make_tokens(&h, tokens, err) || write_json(&h, err);
    kd_home_release(&h);
    return rc ? -1 : 0;
}

static int read_json(struct kd_home *h, const struct kd_json *o, struct kd_err *err)
{
    const char *url, *listen, *ledger, *share = "";
    if (kd_json_get(o, "share") && kd_json_str(o, "share", &share, err))
        return -1;
    snprintf(h->share, sizeof h->share, "%s", share);
    if (kd_json_str(o, "url", &url, err) || kd_json_str(o, "listen", &listen, err) ||
        kd_json_str(o, "ledger", &ledger, err))
        return -1;
    snprintf(h->url, sizeof h->url, "%s", url);
    snprintf(h->listen, sizeof h->listen, "%s", listen);
    snprintf(h->ledger, sizeof h->ledger, "%s", ledger);
    if (take_names(h, "", err))
        return -1;
    const struct kd_json *names = kd_json_get(o, "names"), *tokens = kd_json_get(o, "tokens");
    for (size_t i = 0; i < kd_json_count(names); i++) {
        const char *s = kd_json_text(kd_json_at(names, i), NULL);
        if (!s || add_name(h, s, strlen(s), err))
            return kd_fail(err, KD_ECORRUPT, "a name that is no text");
    }
    size_t n = kd_json_count(tokens);
    if (n > KD_HOME_TOKENS_MAX ||
        kd_mem_zero(&h->token_sha, n ? (int64_t)n : 1, sizeof *h->token_sha, "tokens", err))
        return kd_fail(err, KD_ECORRUPT, "too many tokens");
    for (size_t i = 0; i < n; i++) {
        const char *s = kd_json_text(kd_json_at(tokens, i), NULL);
        if (!s || strlen(s) != 64)
            return kd_fail(err, KD_ECORRUPT, "a token that is no digest");
        memcpy(h->token_sha[h->tokens++], s, 65);
    }
    return 0;
}

int kd_home_open(struct kd_home *h, const char *dir, struct kd_err *err)
{
    char path[4096];
    struct kd_json *o;
    memset(h, 0, sizeof *h);
    if (strlen(dir) >= sizeof h->dir)
        return kd_fail(err, KD_EUSAGE, "the farm's folder has too long a path");
    snprintf(h->dir, sizeof h->dir, "%s", dir);
    if (in(dir, "farm.json", path, err))
        return -1;
    if (!kd_file_exists(path))
        return kd_fail(err, KD_EUSAGE, "'%s' is no farm: make one with kondense farm init %s", dir,
                       dir);
    if (kd_json_load(&o, path, FILE_MAX, err))
        return -1;
    int rc = read_json(h, o, err);
    kd_json_free(o);
    if (!rc)
        return 0;
    kd_home_release(h);
    return kd_wrap(err, "%s", path);
}

void kd_home_release(struct kd_home *h)
{
    kd_mem_free(h->token_sha);
    h->token_sha = NULL;
    h->tokens = 0;
}

static bool same(const char *a, const char *b)
{
    unsigned diff = 0;
    for (int i = 0; i < 64; i++)
        diff |= (unsigned)(a[i] ^ b[i]);
    return !diff;
}

int kd_home_enter(const struct kd_home *h, const char *token, char id[64], char key[KD_KEY_MAX],
                  struct kd_err *err)
{
    char sha[65], name[96], path[4096], secret[2 * TOKEN_BYTES + 1], key_sha[65];
    bool known = false;
    if (kd_sha256_of(token, strlen(token), sha, err))
        return -1;
    for (int i = 0; i < h->tokens; i++)
        known |= same(sha, h->token_sha[i]);
    if (!known)
        return kd_fail(err, KD_EUSAGE, "no such join token");
    snprintf(id, 64, "w%.8s", sha);
    snprintf(name, sizeof name, "taken/%s", id);
    if (kd_home_random(secret, TOKEN_BYTES, err) || in(h->dir, name, path, err))
        return -1;
    snprintf(key, KD_KEY_MAX, "%s.%s", id, secret);
    if (kd_sha256_of(key, strlen(key), key_sha, err))
        return -1;
    int rc = write_private(path, key_sha, 64, O_EXCL, err);
    return rc && err && err->sys == EEXIST
               ? kd_fail(err, KD_EUSAGE, "this join token has been used")
               : rc;
}

int kd_home_check(const struct kd_home *h, const char *key, char id[64], struct kd_err *err)
{
    char name[96], path[4096], sha[65];
    struct kd_buf b;
    size_t n = strcspn(key, ".");
    if (n != 9 || key[0] != 'w' || strspn(key + 1, "0123456789abcdef") != 8)
        return kd_fail(err, KD_EUSAGE, "no such key");
    snprintf(id, 64, "%.9s", key);
    snprintf(name, sizeof name, "taken/%s", id);
    kd_buf_init(&b, 128);
    int rc = in(h->dir, name, path, err) || kd_sha256_of(key, strlen(key), sha, err) ||
             kd_file_read(&b, path, 128, err);
    if (rc || b.size_bytes != 64 || !same(sha, b.data))
        rc = kd_fail(err, KD_EUSAGE, "no such key");
    kd_buf_release(&b);
    return rc;
}

int kd_join_parse(struct kd_join_file *j, const char *text, size_t bytes, struct kd_err *err)
{
    memset(j, 0, sizeof *j);
    kd_buf_init(&j->ca, FILE_MAX);
    int rc = kd_mem_zero(&j->token, KD_HOME_TOKENS_MAX, sizeof *j->token, "tokens", err);
    bool pem = false;
    for (size_t at = 0; !rc && at < bytes;) {
        const char *line = text + at, *end = memchr(line, '\n', bytes - at);
        size_t n = end ? (size_t)(end - line) : bytes - at;
        at += n + 1;
        if (n && line[n - 1] == '\r')
            n--;
        if (n > 5 && !memcmp(line, "-----", 5))
            pem = true;
        if (pem) {
            kd_buf_add(&j->ca, line, n);
            kd_buf_char(&j->ca, '\n');
        } else if (n > 4 && !memcmp(line, "url ", 4) && n - 4 < sizeof j->url) {
            snprintf(j->url, sizeof j->url, "%.*s", (int)(n - 4), line + 4);
        } else if (n > 6 && !memcmp(line, "share ", 6) && n - 6 < sizeof j->share) {
            snprintf(j->share, sizeof j->share, "%.*s", (int)(n - 6), line + 6);
        } else if (n > 6 && !memcmp(line, "token ", 6) && n - 6 < KD_KEY_MAX &&
                   j->tokens < KD_HOME_TOKENS_MAX) {
            snprintf(j->token[j->tokens++], KD_KEY_MAX, "%.*s", (int)(n - 6), line + 6);
        } else if (n && *line != '#') {
            rc = kd_fail(err, KD_ECORRUPT, "not the join file of a farm");
        }
    }
    if (!rc && (!pem || !j->url[0]))
        rc =
            kd_fail(err, KD_ECORRUPT, "not the join file of a farm (kondense farm init makes one)");
    if (!rc)
        rc = kd_buf_ok(&j->ca, "join file", err);
    if (rc)
        kd_join_release(j);
    return rc;
}

int kd_join_read(struct kd_join_file *j, const char *path, struct kd_err *err)
{
    struct kd_buf b;
    kd_buf_init(&b, FILE_MAX);
    int rc = kd_file_read(&b, path, FILE_MAX, err);
    if (!rc)
        rc = kd_join_parse(j, b.data ? b.data : "", b.size_bytes, err);
    if (b.data)
        explicit_bzero(b.data, b.size_bytes);
    kd_buf_release(&b);
    return rc ? kd_wrap(err, "%s", path) : 0;
}

void kd_join_release(struct kd_join_file *j)
{
    if (j->token)
        explicit_bzero(j->token, KD_HOME_TOKENS_MAX * sizeof *j->token);
    kd_mem_free(j->token);
    kd_buf_release(&j->ca);
    memset(j, 0, sizeof *j);
}
