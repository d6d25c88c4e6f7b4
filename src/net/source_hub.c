#include "net/source_int.h"

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/show.h"

#include <string.h>

enum { API_MAX = 64 << 20, PAGES_MAX = 1000 };
static const char home[] = "https://huggingface.co";

/* hf:owner/name[@rev][/path] */
struct repo {
    char id[200], rev[200], under[512];
};

static bool word(const char *text, size_t n)
{
    static const char may[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.";
    if (!n || n > 96 || *text == '.' || *text == '-')
        return false;
    return strspn(text, may) >= n;
}

static int parse(struct repo *r, const char *where, struct kd_err *err)
{
    char shown[200];
    const char *owner = where + 3;
    size_t a = strcspn(owner, "/");
    const char *name = owner + a + (owner[a] == '/');
    size_t b = strcspn(name, "@/");
    const char *rest = name + b, *rev = "main";
    size_t c = 4;
    memset(r, 0, sizeof *r);
    if (*rest == '@') {
        rev = rest + 1;
        c = strcspn(rev, "/");
        rest = rev + c;
    }
    if (*rest == '/')
        rest++;
    if (!word(owner, a) || !word(name, b) || !word(rev, c) || strlen(rest) >= sizeof r->under - 1)
        return kd_fail(err, KD_EINVAL, "'%s' is not hf:owner/name, hf:owner/name@revision",
                       kd_show_text(shown, sizeof shown, where));
    snprintf(r->id, sizeof r->id, "%.*s/%.*s", (int)a, owner, (int)b, name);
    snprintf(r->rev, sizeof r->rev, "%.*s", (int)c, rev);
    snprintf(r->under, sizeof r->under, "%s", rest);
    size_t n = strlen(r->under);
    if (n && r->under[n - 1] == '/')
        r->under[n - 1] = 0;
    return *r->under ? kd_path_check(r->under, err) : 0;
}

static bool is_commit(const char *text)
{
    return strlen(text) == 40 && strspn(text, "0123456789abcdef") == 40;
}

/* The name a repository's file has here: without the folder that was asked for; NULL when it lies
 * elsewhere. */
static const char *inside(const char *path, const char *under)
{
    size_t n = strlen(under);
    if (!n)
        return path;
    if (strncmp(path, under, n))
        return NULL;
    if (path[n] == '/')
        return path + n + 1;
    if (path[n])
        return NULL;
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* A complete file of the cache: snapshots/COMMIT/PATH, if it has the right size. */
static bool cached(const struct kd_source *s, const char *path, int64_t bytes, char *out,
                   size_t size)
{
    if (!s->dir || snprintf(out, size, "%s/%s", s->dir, path) >= (int)size || !kd_file_exists(out))
        return false;
    return kd_file_size(out, NULL) == bytes;
}

static int put(struct kd_source *s, const struct kd_json *e, const char *under, const char *url,
               const char *token, struct kd_err *err)
{
    const char *path, *sha = NULL;
    int64_t bytes;
    char local[4096];
    struct kd_buf at;
    if (kd_json_str(e, "path", &path, err) || kd_json_int(e, "size", 0, INT64_MAX / 4, &bytes, err))
        return -1;
    const char *name = inside(path, under);
    if (!name || *path == '.')
        return 0;
    if (kd_path_check(path, err))
        return -1;
    const struct kd_json *lfs = kd_json_get(e, "lfs");
    if (kd_json_kind(lfs) == KD_JSON_OBJECT &&
        (kd_json_str(lfs, "oid", &sha, err) ||
         kd_json_int(lfs, "size", 0, INT64_MAX / 4, &bytes, err)))
        return kd_wrap(err, "'%s'", name);
    if (cached(s, path, bytes, local, sizeof local))
        return kd_source_put(s, name, local, NULL, NULL, bytes, sha, err);
    kd_buf_init(&at, KD_URL_MAX);
    kd_buf_str(&at, url);
    kd_url_escape(&at, path);
    int rc = kd_buf_ok(&at, name, err);
    if (!rc)
        rc = kd_source_put(s, name, NULL, at.data, token, bytes, sha, err);
    kd_buf_release(&at);
    return rc;
}

int kd_source_tree(struct kd_source *s, const char *text, size_t bytes, const char *under,
                   const char *url, const char *token, struct kd_err *err)
{
    struct kd_json *root;
    if (kd_json_parse(&root, text, bytes, "the hub's list of files", err))
        return -1;
    int rc = kd_json_kind(root) == KD_JSON_ARRAY
                 ? 0
                 : kd_fail(err, KD_EREMOTE, "the hub's list of files is none");
    for (size_t i = 0; i < kd_json_count(root) && !rc; i++) {
        const struct kd_json *e = kd_json_at(root, i);
        const char *type = kd_json_text(kd_json_get(e, "type"), NULL);
        if (type && !strcmp(type, "file"))
            rc = put(s, e, under, url, token, err);
    }
    kd_json_free(root);
    return rc;
}

/* Page after page of the tree. */
static int list(struct kd_source *s, const struct repo *r, const char *end, const char *token,
                struct kd_err *err)
{
    char at[2048], url[1024];
    struct kd_get_page page;
    struct kd_buf text;
    int rc = 0;
    snprintf(at, sizeof at, "%s/api/models/%s/tree/%s?recursive=true", end, r->id, s->commit);
    snprintf(url, sizeof url, "%s/%s/resolve/%s/", end, r->id, s->commit);
    kd_buf_init(&text, API_MAX);
    for (int n = 0; *at && !rc; n++) {
        if (n == PAGES_MAX)
            rc = kd_fail(err, KD_EREMOTE, "the hub's list of files has no end");
        if (!rc)
            rc = kd_get_page(s->get, at, token, API_MAX, &text, &page, err);
        if (!rc && page.status != 200)
            rc = kd_fail(err, KD_EREMOTE, "the hub has no list of files of '%s'", s->where);
        if (!rc)
            rc = kd_source_tree(s, text.data ? text.data : "", text.size_bytes, r->under, url,
                                token, err);
        if (!rc && *page.next) {
            char next[2048];
            struct kd_origin a, b;
            rc = kd_url_join(next, sizeof next, at, page.next, err) || kd_url_origin(&a, at, err) ||
                         kd_url_origin(&b, next, err)
                     ? -1
                     : 0;
            if (!rc && !kd_origin_same(&a, &b)) /* it would get the token */
                rc = kd_fail(err, KD_EREMOTE, "the hub's list goes on at another server");
            memcpy(at, next, sizeof at);
        } else {
            *at = 0;
        }
    }
    kd_buf_release(&text);
    return rc;
}

/* The commit behind the revision. */
static int resolve(struct kd_source *s, const struct repo *r, const char *end, const char *token,
                   struct kd_err *err)
{
    char at[1024];
    struct kd_get_page page;
    struct kd_buf text;
    struct kd_json *root = NULL;
    const char *sha;
    snprintf(at, sizeof at, "%s/api/models/%s/revision/%s", end, r->id, r->rev);
    kd_buf_init(&text, API_MAX);
    int rc = kd_get_page(s->get, at, token, API_MAX, &text, &page, err);
    if (!rc && page.status == 404)
        rc = kd_fail(err, KD_EREMOTE, "'%s': %s", s->where,
                     !strcmp(page.code, "RevisionNotFound")
                         ? "no such branch, tag or commit (RevisionNotFound)"
                         : "no such repository, or it is private and needs HF_TOKEN");
    if (!rc)
        rc = kd_json_parse(&root, text.data ? text.data : "", text.size_bytes, "the hub's answer",
                           err);
    if (!rc)
        rc = kd_json_str(root, "sha", &sha, err);
    if (!rc && !is_commit(sha))
        rc = kd_fail(err, KD_EREMOTE, "'%s': the hub names no commit", s->where);
    if (!rc)
        snprintf(s->commit, sizeof s->commit, "%s", sha);
    kd_json_free(root);
    kd_buf_release(&text);
    return rc;
}

/* The folder of this repository in the cache, in out; false when there is no cache. */
static bool cache_dir(const struct kd_source *s, const struct repo *r, char *out, size_t size)
{
    const char *slash = strchr(r->id, '/');
    return s->o.hub_cache && snprintf(out, size, "%s/models--%.*s--%s", s->o.hub_cache,
                                      (int)(slash - r->id), r->id, slash + 1) < (int)size;
}

/* s->dir is where the commit's snapshot would lie. */
static int snapshot(struct kd_source *s, const struct repo *r, struct kd_err *err)
{
    char dir[2048], path[2200];
    if (!cache_dir(s, r, dir, sizeof dir))
        return 0;
    snprintf(path, sizeof path, "%s/snapshots/%s", dir, s->commit);
    if (!kd_dir_exists(path))
        return 0;
    size_t n = strlen(path) + 1;
    if (kd_mem_new(&s->dir, (int64_t)n, 1, "path", err))
        return -1;
    memcpy(s->dir, path, n);
    return 0;
}

static int offline(struct kd_source *s, const struct repo *r, struct kd_err *err)
{
    char dir[2048], path[4096];
    struct kd_buf text;
    if (!cache_dir(s, r, dir, sizeof dir))
        return kd_fail(err, KD_EINVAL, "'%s': offline, and there is no cache", s->where);
    kd_buf_init(&text, 4096);
    int rc = 0;
    if (is_commit(r->rev)) {
        snprintf(s->commit, sizeof s->commit, "%s", r->rev);
    } else if (snprintf(path, sizeof path, "%s/refs/%s", dir, r->rev) < (int)sizeof path &&
               !kd_file_read(&text, path, 4096, err)) {
        snprintf(s->commit, sizeof s->commit, "%.40s", text.data ? text.data : "");
    }
    kd_buf_release(&text);
    if (!is_commit(s->commit))
        rc = kd_fail(err, KD_EINVAL, "'%s': offline, and the cache has no such revision", s->where);
    if (!rc)
        rc = snapshot(s, r, err);
    if (!rc && !s->dir)
        rc = kd_fail(err, KD_EINVAL, "'%s': offline, and the cache does not hold it", s->where);
    if (rc || snprintf(path, sizeof path, "%s%s%s", s->dir, *r->under ? "/" : "", r->under) >=
                  (int)sizeof path)
        return -1;
    return kd_file_exists(path) ? kd_source_put(s, inside(r->under, r->under), path, NULL, NULL,
                                                kd_file_size(path, err), NULL, err)
                                : kd_source_walk(s, path, err);
}

int kd_source_list_hub(struct kd_source *s, const char *where, struct kd_err *err)
{
    struct repo r;
    char end[512];
    if (parse(&r, where, err))
        return -1;
    if (s->o.offline)
        return offline(s, &r, err);
    snprintf(end, sizeof end, "%s", s->o.endpoint && *s->o.endpoint ? s->o.endpoint : home);
    size_t n = strlen(end);
    while (n && end[n - 1] == '/')
        end[--n] = 0;
    /* A mirror that is given a token has it: only with the user's word. */
    bool own = !strcmp(end, home);
    const char *token = own || s->o.token_to_endpoint ? s->o.token : NULL;
    if (s->o.token && !token)
        kd_log(KD_LOG_WARN, "get",
               "msg=\"the token is not sent to %s; --token-to-endpoint sends it\"", end);
    if (resolve(s, &r, end, token, err) || snapshot(s, &r, err))
        return -1;
    int rc = list(s, &r, end, token, err);
    if (!rc && !s->part_count)
        rc = kd_fail(err, KD_EINVAL, "'%s': no such file or folder at this revision", s->where);
    kd_mem_free(s->dir); /* what is local of a hub's source is known file by file */
    s->dir = NULL;
    return rc;
}
