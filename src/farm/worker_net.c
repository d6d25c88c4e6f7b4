#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "farm/share.h"
#include "farm/worker_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ANSWER_MAX = 4 << 20 };

int kd_worker_client(struct kd_worker *w, struct kd_client **c, double total_s, struct kd_err *err)
{
    struct kd_client_opts o = {.key = w->key[0] ? w->key : NULL,
                               .ca_pem = w->join.ca.data,
                               .connect_s = 5,
                               .total_s = total_s,
                               .reply_bytes_max = KD_WIRE_PART + 4096,
                               .tries = 1};
    return kd_client_open(c, &o, err);
}

/* An answer is a sign of life whatever it says. */
int kd_worker_post(struct kd_worker *w, struct kd_client *c, const char *what,
                   const struct kd_buf *body, struct kd_reply *r, struct kd_err *err)
{
    char url[640];
    if (kd_buf_ok(body, what, err))
        return -1;
    snprintf(url, sizeof url, "%s" KD_WIRE_ROOT "%s", w->url, what);
    if (kd_client_send(c, url, body->data, body->size_bytes, r, err))
        return -1;
    w->heard = kd_clock_s();
    return 0;
}

static int state_path(const struct kd_worker *w, const char *name, char *out, struct kd_err *err)
{
    return kd_path_join(out, 4096, w->o.dir, name, err);
}

static int save_key(const struct kd_worker *w, struct kd_err *err)
{
    char path[4096];
    if (state_path(w, "key", path, err))
        return -1;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    size_t n = strlen(w->key);
    int rc = fd >= 0 && write(fd, w->key, n) == (ssize_t)n && !fsync(fd)
                 ? 0
                 : kd_fail_sys(err, "cannot write '%s'", path);
    if (fd >= 0)
        close(fd);
    return rc;
}

/* The key of an earlier life, or "". */
static void load_key(struct kd_worker *w)
{
    char path[4096];
    struct kd_buf b;
    struct kd_err err;
    kd_buf_init(&b, KD_KEY_MAX - 1);
    if (!state_path(w, "key", path, &err) && kd_file_exists(path) &&
        !kd_file_read(&b, path, KD_KEY_MAX - 1, &err) && b.data)
        snprintf(w->key, sizeof w->key, "%s", b.data);
    kd_buf_release(&b);
}

/* One try. *final: this answer will not change by asking again. */
static int try_join(struct kd_worker *w, struct kd_client *c, const char *token, bool *final,
                    struct kd_err *err)
{
    struct kd_wire_join j = {.protocol = KD_WIRE_PROTOCOL, .klass = KD_WIRE_CLASS};
    struct kd_buf body;
    struct kd_reply r;
    struct kd_json *o = NULL;
    const char *id, *key;
    snprintf(j.card.version, sizeof j.card.version, "%s", KD_VERSION);
    snprintf(j.card.host, sizeof j.card.host, "%s", w->host);
    snprintf(j.card.incarnation, sizeof j.card.incarnation, "%s", w->incarnation);
    snprintf(j.card.arch, sizeof j.card.arch, "%s", w->o.run->kern->name);
    snprintf(j.card.device, sizeof j.card.device, "%s", w->o.device);
    j.card.lanes = w->o.lanes;
    memcpy(j.canary, w->canary, sizeof j.canary);
    if (token)
        snprintf(j.token, sizeof j.token, "%s", token);
    else
        snprintf(j.key, sizeof j.key, "%s", w->key);
    kd_buf_init(&body, ANSWER_MAX);
    kd_reply_init(&r);
    struct kd_jw jw = {.out = &body};
    kd_wire_join_write(&jw, &j);
    *final = false;
    int rc = kd_worker_post(w, c, "join", &body, &r, err);
    if (!rc && r.status != 200) {
        *final = r.status == 403 || r.status == 400;
        rc = kd_reply_fail(&r, w->url, err);
    }
    if (!rc)
        rc = kd_json_parse(&o, r.body.data, r.body.size_bytes, "join", err) ||
             kd_json_str(o, "id", &id, err) || kd_json_str(o, "key", &key, err) ||
             kd_json_num(o, "beat_s", 0.05, 3600, &w->beat_s, err);
    if (!rc) {
        snprintf(w->id, sizeof w->id, "%s", id);
        snprintf(w->key, sizeof w->key, "%s", key);
    }
    kd_json_free(o);
    kd_buf_release(&body);
    kd_reply_release(&r);
    return rc ? -1 : 0;
}

/* With the key of before, else with the first token that still works. */
static int join_once(struct kd_worker *w, struct kd_client *c, bool *final, struct kd_err *err)
{
    load_key(w);
    if (w->key[0]) {
        if (!try_join(w, c, NULL, final, err))
            return 0;
        if (!*final || !strstr(err->msg, "no such key"))
            return -1;
    }
    kd_fail(err, KD_EUSAGE, "the join file holds no token");
    *final = true;
    for (int i = 0; i < w->join.tokens; i++) {
        if (!try_join(w, c, w->join.token[i], final, err))
            return save_key(w, err);
        if (!*final || !strstr(err->msg, "token"))
            return -1;
    }
    return -1;
}

int kd_worker_join(struct kd_worker *w, struct kd_err *err)
{
    struct kd_client *c;
    double since = kd_clock_s(), limit = w->o.away_s > 0 ? w->o.away_s : 1800;
    bool final = false, said = false;
    if (kd_worker_client(w, &c, 15, err))
        return -1;
    int rc;
    while ((rc = join_once(w, c, &final, err)) && !final && !kd_worker_stopping(w) &&
           kd_clock_s() - since < limit) {
        if (!said)
            kd_log(KD_LOG_WARN, "worker", "msg=\"cannot join yet\" why=\"%s\"", err->msg);
        said = true;
        kd_worker_wait(w, 500);
    }
    kd_client_close(c);
    return rc;
}

int kd_worker_report(struct kd_worker *w, struct kd_client *c, int64_t layer,
                     const struct kd_wire_job *j, enum kd_fail_class why, const char *detail,
                     struct kd_err *err)
{
    struct kd_buf b;
    struct kd_reply r;
    kd_buf_init(&b, ANSWER_MAX);
    kd_reply_init(&r);
    struct kd_jw jw = {.out = &b};
    kd_jw_open(&jw, NULL, '{');
    kd_jw_int(&jw, "layer", layer);
    kd_jw_int(&jw, "expert", j->expert);
    kd_jw_int(&jw, "attempt", j->attempt);
    kd_jw_str(&jw, "class", kd_fail_name(why));
    kd_jw_str(&jw, "detail", detail);
    kd_jw_close(&jw, '}');
    int rc = kd_worker_post(w, c, "fail", &b, &r, err);
    kd_buf_release(&b);
    kd_reply_release(&r);
    return rc;
}

/* Part n of a blob, appended to r->body's place. */
static int get_part(struct kd_worker *w, struct kd_client *c, const struct kd_blob_ref *b,
                    int64_t part, struct kd_reply *r, struct kd_err *err)
{
    char url[800];
    snprintf(url, sizeof url, "%s" KD_WIRE_ROOT "b/%s.%lld", w->url, b->sha256, (long long)part);
    if (kd_client_send(c, url, NULL, 0, r, err))
        return -1;
    w->heard = kd_clock_s();
    int64_t at = part * KD_WIRE_PART,
            want = b->bytes - at < KD_WIRE_PART ? b->bytes - at : KD_WIRE_PART;
    if (r->status != 200)
        return kd_reply_fail(r, url, err);
    if ((int64_t)r->body.size_bytes != want)
        return kd_fail(err, KD_ECORRUPT, "part %lld of a blob has %zu bytes", (long long)part,
                       r->body.size_bytes);
    return 0;
}

/* Where the parts of a blob go: memory or a file. */
static int each_part(struct kd_worker *w, struct kd_client *c, const struct kd_blob_ref *b,
                     struct kd_buf *out, struct kd_outfile *file, struct kd_err *err)
{
    struct kd_sha256 sha;
    struct kd_reply r;
    char hex[65];
    int64_t parts = (b->bytes + KD_WIRE_PART - 1) / KD_WIRE_PART;
    if (kd_sha256_init(&sha, err))
        return -1;
    kd_reply_init(&r);
    int rc = 0;
    for (int64_t p = 0; !rc && p < parts; p++) {
        rc = get_part(w, c, b, p, &r, err);
        if (rc)
            break;
        kd_sha256_add(&sha, r.body.data, r.body.size_bytes);
        if (file)
            rc = kd_out_write(file, r.body.data, (int64_t)r.body.size_bytes, err);
        else
            kd_buf_add(out, r.body.data, r.body.size_bytes);
    }
    kd_reply_release(&r);
    kd_sha256_hex(&sha, hex);
    if (!rc && strcmp(hex, b->sha256) != 0)
        rc = kd_fail(err, KD_ECORRUPT, "a blob arrived damaged");
    if (!rc && out)
        rc = kd_buf_ok(out, "blob", err);
    return rc;
}

static void shared_or_not(struct kd_worker *w, struct kd_share_luck *l, bool found)
{
    l->missed = found ? 0 : l->missed + 1;
    if (l->missed < 3)
        return;
    l->missed = 0;
    l->again = kd_clock_s() + 60;
    kd_log(KD_LOG_WARN, "worker",
           "share=\"%s\" msg=\"the shared folder shows nothing here: a minute of HTTPS\"",
           w->share);
}

/* Whether the shared folder is asked now. One that is not mounted costs no waiting. */
static bool may_share(struct kd_worker *w, struct kd_share_luck *l)
{
    if (!w->share[0] || kd_clock_s() < l->again)
        return false;
    if (kd_share_seen(w->share))
        return true;
    l->missed = 3;
    shared_or_not(w, l, false);
    return false;
}

/* A blob out of the shared folder, into out or as the file `path`; waits for one that shows late.
 * False: HTTPS has it. */
static bool from_share(struct kd_worker *w, const struct kd_blob_ref *b, struct kd_buf *out,
                       const char *path)
{
    char from[4096];
    struct kd_outfile f;
    struct kd_err err;
    double until = kd_clock_s() + KD_SHARE_WAIT_MS / 1000.0;
    if (!b->shared || !may_share(w, &w->fetching) || kd_share_blob(w->share, b->sha256, from, &err))
        return false;
    for (;;) {
        int rc;
        if (!path) {
            rc = kd_share_read(from, b->sha256, b->bytes, out, NULL, &err);
        } else if (!(rc = kd_out_open(&f, path, &err))) {
            rc = kd_share_read(from, b->sha256, b->bytes, NULL, &f, &err);
            if (!rc)
                rc = kd_out_commit(&f, &err);
            else
                kd_out_abort(&f);
        }
        bool late = rc && err.code == KD_ECORRUPT;
        if (!late || kd_clock_s() > until || kd_worker_stopping(w)) {
            if (!rc || late)
                shared_or_not(w, &w->fetching, !rc);
            return !rc;
        }
        kd_worker_wait(w, KD_SHARE_TRY_MS);
    }
}

int kd_worker_fetch(struct kd_worker *w, struct kd_client *c, const struct kd_blob_ref *b,
                    struct kd_buf *out, struct kd_err *err)
{
    kd_buf_init(out, (size_t)b->bytes);
    if (from_share(w, b, out, NULL))
        return 0;
    kd_buf_release(out);
    for (int i = 0; i < 3; i++) {
        kd_buf_init(out, (size_t)b->bytes);
        if (!each_part(w, c, b, out, NULL, err))
            return 0;
        kd_buf_release(out);
        if (err->code != KD_ECORRUPT)
            return -1;
    }
    return -1;
}

/* A blob as a file of the worker's folder. A file with this name is the blob: it was verified when
 * it got its name, and is again when another process made it. */
static int fetch_file(struct kd_worker *w, struct kd_client *c, const struct kd_blob_ref *b,
                      char *path, struct kd_err *err)
{
    char name[80], sha[65];
    snprintf(name, sizeof name, "inputs/%s", b->sha256);
    if (state_path(w, name, path, err))
        return -1;
    if (kd_file_exists(path) && kd_file_size(path, err) == b->bytes &&
        !kd_sha256_file(path, sha, err) && !strcmp(sha, b->sha256))
        return 0;
    if (from_share(w, b, NULL, path))
        return 0;
    for (int i = 0; i < 3; i++) {
        struct kd_outfile f;
        if (kd_out_open(&f, path, err))
            return -1;
        if (!each_part(w, c, b, NULL, &f, err))
            return kd_out_commit(&f, err);
        kd_out_abort(&f);
        if (err->code != KD_ECORRUPT)
            return -1;
    }
    return -1;
}

/* Inputs of other layers go. */
static void sweep_inputs(struct kd_worker *w, const struct kd_wire_layer *l)
{
    char path[4096];
    struct kd_err err;
    struct dirent *e;
    if (state_path(w, "inputs", path, &err))
        return;
    DIR *dir = opendir(path);
    while (dir && (e = readdir(dir))) {
        char file[4096];
        if (e->d_name[0] == '.' || !strcmp(e->d_name, l->z.sha256) ||
            !strcmp(e->d_name, l->hess.sha256) || !strcmp(e->d_name, l->routing.sha256) ||
            kd_path_join(file, sizeof file, path, e->d_name, &err))
            continue;
        unlink(file);
    }
    if (dir)
        closedir(dir);
}

static void inputs_free(struct kd_inputs *in)
{
    kd_map_release(&in->z);
    kd_hess_release(&in->hess);
    kd_mem_free(in->ids);
    kd_mem_free(in->w);
    kd_mem_free(in);
}

void kd_inputs_drop(struct kd_worker *w, struct kd_inputs *in)
{
    if (!in || --in->refs)
        return;
    if (w->inputs == in)
        w->inputs = NULL;
    inputs_free(in);
}

static int load_inputs(struct kd_worker *w, struct kd_client *c, struct kd_inputs *in,
                       struct kd_err *err)
{
    char path[4096];
    struct kd_map m = {0};
    int rc = 0;
    if (in->wire.hess.bytes) {
        if (fetch_file(w, c, &in->wire.hess, path, err) || kd_file_map(&m, path, err))
            return -1;
        rc = kd_wire_hess_get(&in->hess, &in->wire, m.data, err) ||
             kd_hess_share(w->o.run, &in->hess, err);
        kd_map_release(&m);
    }
    if (rc || in->wire.trunk)
        return rc;
    if (fetch_file(w, c, &in->wire.z, path, err) || kd_file_map(&in->z, path, err) ||
        fetch_file(w, c, &in->wire.routing, path, err) || kd_file_map(&m, path, err))
        return -1;
    rc = kd_wire_routing_get(&in->ids, &in->w, &in->wire, m.data, err);
    kd_map_release(&m);
    in->in = in->wire.in;
    in->in.z = (const uint16_t *)(const void *)in->z.data;
    in->in.h_in = &in->hess;
    in->in.ids = in->ids;
    in->in.w = in->w;
    return rc;
}

int kd_worker_inputs(struct kd_worker *w, struct kd_client *c, const struct kd_wire_layer *l,
                     struct kd_inputs **out, struct kd_err *err)
{
    struct kd_inputs *in;
    if (w->inputs && w->inputs->wire.layer == l->layer && w->inputs->wire.trunk == l->trunk &&
        w->inputs->wire.digest == l->digest && w->inputs->wire.in.latent == l->in.latent &&
        !strcmp(w->inputs->wire.z.sha256, l->z.sha256) &&
        !strcmp(w->inputs->wire.hess.sha256, l->hess.sha256)) {
        *out = w->inputs;
        return 0;
    }
    sweep_inputs(w, l);
    if (kd_mem_zero(&in, 1, sizeof *in, "inputs", err))
        return -1;
    in->wire = *l;
    in->refs = 1; /* the worker's own */
    if (load_inputs(w, c, in, err)) {
        inputs_free(in);
        return -1;
    }
    kd_log(KD_LOG_INFO, "worker", "layer=%lld trunk=%d tokens=%lld msg=\"inputs are here\"",
           (long long)l->layer, l->trunk, (long long)l->in.T);
    pthread_mutex_lock(&w->lock);
    struct kd_inputs *old = w->inputs;
    w->inputs = in;
    if (old && !--old->refs)
        inputs_free(old);
    pthread_mutex_unlock(&w->lock);
    *out = in;
    return 0;
}

static int send_unit(struct kd_worker *w, struct kd_client *c, const struct kd_wire_put *p,
                     const char *where, const void *data, size_t bytes, int *status,
                     struct kd_err *err)
{
    struct kd_reply r;
    char url[800];
    snprintf(url, sizeof url, "%s" KD_WIRE_ROOT "%s/%lld.%lld.%lld.%s.%lld", w->url, where,
             (long long)p->layer, (long long)p->expert, (long long)p->attempt, p->sha256,
             (long long)p->ms);
    kd_reply_init(&r);
    *status = 0;
    int rc = kd_client_put(c, url, data, bytes, &r, err);
    if (!rc) {
        w->heard = kd_clock_s();
        *status = r.status;
        if (r.status != 200)
            rc = kd_reply_fail(&r, w->url, err);
    }
    kd_reply_release(&r);
    return rc;
}

/* The bytes into the shared folder, their name by HTTPS. False: they go by HTTPS too. */
static bool by_share(struct kd_worker *w, struct kd_client *c, const struct kd_wire_put *p,
                     const void *data, size_t bytes, int *status, int *rc, struct kd_err *err)
{
    char path[4096];
    struct kd_err why;
    if (!may_share(w, &w->putting) || kd_share_unit(w->share, p->sha256, w->id, path, &why))
        return false;
    if (kd_file_write(path, data, bytes, &why)) {
        kd_log(KD_LOG_WARN, "worker", "msg=\"cannot write to the shared folder\" why=\"%s\"",
               why.msg);
        shared_or_not(w, &w->putting, false);
        return false;
    }
    *rc = send_unit(w, c, p, "at", "", 0, status, err);
    bool unseen = *status == KD_WIRE_UNSEEN;
    if (*status)
        shared_or_not(w, &w->putting, !unseen);
    unlink(path);
    return !unseen;
}

int kd_worker_put(struct kd_worker *w, struct kd_client *c, const struct kd_wire_put *p,
                  const void *data, size_t bytes, int *status, struct kd_err *err)
{
    int rc = 0;
    if (by_share(w, c, p, data, bytes, status, &rc, err))
        return rc;
    return send_unit(w, c, p, "in", data, bytes, status, err);
}
