/* The coordinator's side of the wire. Handlers run on the server's threads; a layer stays open
 * while one of them reads it. */
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "farm/farm_int.h"
#include "farm/share.h"
#include "net/srv.h"
#include "net/tls.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { CONNECTIONS = 128, CHECK_ROWS = 64, REPLY_MAX = 1 << 20 };

static void refuse(struct kd_req *r, int status, const char *code, const char *message)
{
    kd_req_fail(r, &(struct kd_fault){.status = status, .code = code, .message = message});
}

/* What a failed call means for a worker: to wait (503, 507), or that it was wrong (4xx). */
static void refuse_err(struct kd_req *r, const struct kd_err *err)
{
    int status = err->code == KD_ENET || err->code == KD_ETIMEOUT || err->code == KD_ECANCEL ? 503
                 : err->code == KD_EIO                                                       ? 507
                 : err->code == KD_ENOMEM                                                    ? 503
                 : err->code == KD_EUSAGE                                                    ? 403
                                                                                             : 400;
    refuse(r, status, kd_code_name(err->code), err->msg);
}

static void fault_body(void *ctx, const char *path, const struct kd_fault *f, const char *id,
                       struct kd_buf *out)
{
    struct kd_jw w = {.out = out};
    (void)ctx;
    (void)path;
    (void)id;
    kd_jw_open(&w, NULL, '{');
    kd_jw_str(&w, "error", f->message ? f->message : "");
    kd_jw_str(&w, "code", f->code ? f->code : "");
    kd_jw_close(&w, '}');
}

static void reply(struct kd_req *r, struct kd_buf *b)
{
    struct kd_err err;
    if (kd_buf_ok(b, "reply", &err))
        refuse_err(r, &err);
    else
        kd_req_reply(r, 200, "application/json", b->data, b->size_bytes);
    kd_buf_release(b);
}

/* The worker whose key the request carries; refuses it otherwise. */
static bool known(struct kd_farm *f, struct kd_req *r, char id[64])
{
    const char *a = kd_req_header(r, "Authorization");
    struct kd_err err;
    if (a && !strncasecmp(a, "Bearer ", 7) && !kd_home_check(f->o.home, a + 7, id, &err))
        return true;
    refuse(r, 401, "no_key", "the worker's key is missing or wrong");
    return false;
}

static struct kd_json *parse(struct kd_req *r)
{
    struct kd_json *o;
    struct kd_err err;
    size_t n;
    const char *text = kd_req_body(r, &n);
    if (!kd_json_parse(&o, text, n, "request", &err))
        return o;
    refuse_err(r, &err);
    return NULL;
}

/* The body of a request by a worker that has joined; NULL: it is answered already. */
static struct kd_json *asked(struct kd_farm *f, struct kd_req *r, char id[64])
{
    return known(f, r, id) ? parse(r) : NULL;
}

static void about(void *ctx, struct kd_req *r)
{
    struct kd_farm *f = ctx;
    struct kd_buf b;
    kd_buf_init(&b, REPLY_MAX);
    struct kd_jw w = {.out = &b};
    kd_jw_open(&w, NULL, '{');
    kd_jw_str(&w, "farm", "kondense");
    kd_jw_int(&w, "protocol", KD_WIRE_PROTOCOL);
    kd_jw_str(&w, "version", KD_VERSION);
    kd_jw_str(&w, "class", KD_WIRE_CLASS);
    kd_jw_str(&w, "ledger", f->o.home->url);
    kd_jw_str(&w, "blobs", f->o.home->url);
    kd_jw_close(&w, '}');
    reply(r, &b);
}

/* Whether a worker may take part: the same wire, the same program, the same arithmetic. */
static bool fits(struct kd_farm *f, struct kd_req *r, const struct kd_wire_join *j)
{
    char why[200];
    *why = 0;
    if (j->protocol != KD_WIRE_PROTOCOL || strcmp(j->card.version, KD_VERSION) != 0)
        snprintf(why, sizeof why,
                 "this worker is version %s (wire %lld), the coordinator %s (wire %d): install the "
                 "same",
                 j->card.version, (long long)j->protocol, KD_VERSION, KD_WIRE_PROTOCOL);
    else if (strcmp(j->klass, KD_WIRE_CLASS) != 0)
        snprintf(why, sizeof why, "this worker computes in class %s, the run is in class %s",
                 j->klass, KD_WIRE_CLASS);
    else if (strcmp(j->canary, f->canary) != 0)
        snprintf(why, sizeof why,
                 "this worker encodes the canary to %.12s where %.12s is right: its arithmetic "
                 "differs",
                 j->canary, f->canary);
    if (*why) {
        kd_log(KD_LOG_WARN, "farm", "host=%s msg=\"refused\" why=\"%s\"", j->card.host, why);
        refuse(r, 403, "refused", why);
    }
    return !*why;
}

static void join(void *ctx, struct kd_req *r)
{
    struct kd_farm *f = ctx;
    struct kd_wire_join j;
    struct kd_err err;
    size_t n;
    const char *text = kd_req_body(r, &n);
    char id[64];
    int rc;
    if (kd_wire_join_read(&j, text, n, &err)) {
        refuse_err(r, &err);
        return;
    }
    if (!fits(f, r, &j))
        return;
    rc = j.key[0] ? kd_home_check(f->o.home, j.key, id, &err)
                  : kd_home_enter(f->o.home, j.token, id, j.key, &err);
    if (!rc) {
        snprintf(j.card.id, sizeof j.card.id, "%s", id);
        KD_WITH_LEDGER(f, rc, kd_ledger_join(&f->ledger, &j.card, &err));
    }
    if (rc) {
        kd_log(KD_LOG_WARN, "farm", "host=%s msg=\"refused\" why=\"%s\"", j.card.host, err.msg);
        refuse_err(r, &err);
        return;
    }
    kd_log(KD_LOG_INFO, "farm", "worker=%s host=%s arch=%s msg=\"joined\"", id, j.card.host,
           j.card.arch);
    struct kd_buf b;
    kd_buf_init(&b, REPLY_MAX);
    struct kd_jw w = {.out = &b};
    kd_jw_open(&w, NULL, '{');
    kd_jw_str(&w, "id", id);
    kd_jw_str(&w, "key", j.key);
    kd_jw_num(&w, "beat_s", f->ledger.rules.lease_s / 6);
    kd_jw_close(&w, '}');
    reply(r, &b);
}

/* The bytes of a job's weights, in b where they are not the source's own. */
static int weights_of(const struct kd_farm_task *t, struct kd_buf *b, const void **data,
                      int64_t *bytes, struct kd_err *err)
{
    kd_buf_init(b, 0);
    *data = kd_wire_weights_flat(t, bytes);
    if (*data)
        return 0;
    if (kd_wire_weights_put(b, t, err)) {
        kd_buf_release(b);
        return -1;
    }
    *data = b->data;
    *bytes = (int64_t)b->size_bytes;
    return 0;
}

/* A blob into the shared folder. One that cannot be written goes by HTTPS. */
static void share(struct kd_farm *f, struct kd_blob_ref *ref, const void *data)
{
    char path[4096];
    struct kd_err err;
    ref->shared = false;
    if (!f->share)
        return;
    ref->shared = !kd_share_blob(f->share, ref->sha256, path, &err) &&
                  !kd_file_write(path, data, (size_t)ref->bytes, &err);
    if (!ref->shared)
        kd_log(KD_LOG_WARN, "farm", "msg=\"not in the shared folder\" why=\"%s\"", err.msg);
}

void kd_coord_forget(struct kd_farm *f, int64_t e)
{
    char path[4096], sha[65] = "";
    struct kd_err err;
    struct kd_slot *s = &f->slot[e];
    pthread_mutex_lock(&f->lock);
    if (s->weights.shared && !s->gone)
        memcpy(sha, s->weights.sha256, sizeof sha);
    s->gone = s->weights.shared;
    pthread_mutex_unlock(&f->lock);
    if (sha[0] && !kd_share_blob(f->share, sha, path, &err))
        unlink(path);
}

/* Fills a job of the reply; the digest of a job's weights is made when first asked for. */
static int describe(struct kd_farm *f, const struct kd_grant *g, int64_t e, struct kd_wire_job *j,
                    struct kd_err *err)
{
    struct kd_farm_task t;
    struct kd_buf b;
    const void *data;
    bool wanted;
    if (kd_farm_plan(f, e, &t, &wanted, err))
        return -1;
    struct kd_slot *s = &f->slot[e];
    pthread_mutex_lock(&f->lock);
    struct kd_blob_ref ref = s->weights;
    pthread_mutex_unlock(&f->lock);
    if (!ref.bytes) {
        if (weights_of(&t, &b, &data, &ref.bytes, err))
            return -1;
        int rc = kd_sha256_of(data, (size_t)ref.bytes, ref.sha256, err);
        if (!rc)
            share(f, &ref, data);
        kd_buf_release(&b);
        if (rc)
            return -1;
        pthread_mutex_lock(&f->lock);
        s->weights = ref;
        pthread_mutex_unlock(&f->lock);
    }
    *j = (struct kd_wire_job){.expert = g->expert,
                              .attempt = g->attempt,
                              .lease_s = g->lease_s,
                              .rows = t.w1.rows,
                              .plain_won = t.plain_won,
                              .type = {t.w1.type, t.w3.type, t.w2.type},
                              .weights = ref,
                              .unit_bytes = kd_farm_unit_bytes(&t)};
    memcpy(j->spec, t.spec, sizeof j->spec);
    return 0;
}

static int claim_jobs(struct kd_farm *f, const char *id, const struct kd_json *o,
                      struct kd_wire_claim *c, struct kd_err *err)
{
    struct kd_grant g[KD_WIRE_JOBS_MAX];
    const char *token, *incarnation;
    int64_t most, n = 0;
    bool trunk;
    int rc;
    if (kd_json_str(o, "token", &token, err) || kd_json_str(o, "incarnation", &incarnation, err) ||
        kd_json_int(o, "most", 1, KD_WIRE_JOBS_MAX, &most, err) ||
        kd_json_bool_or(o, "trunk", true, &trunk, err))
        return -1;
    if (strlen(token) > 64 || strlen(incarnation) > 64)
        return kd_fail(err, KD_EINVAL, "a token that is too long");
    c->drain = f->finished;
    if (!f->layer || !f->served || (f->layer->trunk && !trunk))
        return 0;
    c->wait_for_disk = !kd_farm_disk_ok(f);
    if (c->wait_for_disk)
        return 0;
    struct kd_claim q = {id, incarnation, token, most, kd_farm_stage(f)};
    KD_WITH_LEDGER(f, rc, kd_ledger_claim(&f->ledger, &q, g, &n, err));
    c->layer = f->wire;
    for (int64_t i = 0; !rc && i < n; i++) {
        int64_t e = kd_farm_place(f, g[i].layer, g[i].expert);
        if (e >= 0 && f->slot[e].state != KD_SLOT_NONE)
            rc = describe(f, &g[i], e, &c->job[c->count++], err);
        /* else asked for again, of a stage that has ended: its lease runs out */
    }
    return rc;
}

static void claim(void *ctx, struct kd_req *r)
{
    struct kd_farm *f = ctx;
    struct kd_wire_claim *c;
    struct kd_err err = {0};
    char id[64];
    struct kd_json *o = asked(f, r, id);
    if (!o)
        return;
    int rc = kd_mem_zero(&c, 1, sizeof *c, "claim", &err);
    if (!rc) {
        pthread_rwlock_rdlock(&f->layer_lock);
        rc = claim_jobs(f, id, o, c, &err);
        pthread_rwlock_unlock(&f->layer_lock);
    }
    kd_json_free(o);
    if (rc) {
        refuse_err(r, &err);
    } else {
        struct kd_buf b;
        kd_buf_init(&b, REPLY_MAX);
        struct kd_jw w = {.out = &b, .compact = true};
        kd_wire_claim_write(&w, c);
        reply(r, &b);
    }
    kd_mem_free(c);
}

static void beat(void *ctx, struct kd_req *r)
{
    struct kd_farm *f = ctx;
    struct kd_wire_beat held;
    struct kd_beat out;
    struct kd_err err;
    const char *incarnation;
    char id[64];
    struct kd_json *o = asked(f, r, id);
    if (!o)
        return;
    int rc = kd_json_str(o, "incarnation", &incarnation, &err) ||
             kd_wire_beat_read(&held, o, "held", &err);
    if (!rc)
        KD_WITH_LEDGER(
            f, rc, kd_ledger_beat(&f->ledger, id, incarnation, held.held, held.count, &out, &err));
    kd_json_free(o);
    if (rc) {
        refuse_err(r, &err);
        return;
    }
    struct kd_buf b;
    kd_buf_init(&b, REPLY_MAX);
    struct kd_jw w = {.out = &b};
    kd_jw_open(&w, NULL, '{');
    kd_jw_bool(&w, "known", out.known);
    kd_jw_bool(&w, "drain", out.drain);
    kd_wire_beat_write(&w, "lost", &held, true);
    kd_jw_close(&w, '}');
    reply(r, &b);
}

/* The end of a request that is told no more than that it was done. */
static void settle(struct kd_req *r, int rc, const struct kd_err *err)
{
    if (rc)
        refuse_err(r, err);
    else
        kd_req_reply(r, 200, "application/json", "{}\n", 3);
}

static void fail(void *ctx, struct kd_req *r)
{
    struct kd_farm *f = ctx;
    struct kd_err err;
    const char *name, *detail;
    char id[64], shown[160];
    int64_t layer, expert, attempt;
    struct kd_json *o = asked(f, r, id);
    if (!o)
        return;
    int rc = kd_json_int(o, "layer", 0, 65535, &layer, &err) ||
             kd_json_int(o, "expert", 0, 65535, &expert, &err) ||
             kd_json_int(o, "attempt", 1, INT32_MAX, &attempt, &err) ||
             kd_json_str(o, "class", &name, &err) || kd_json_str(o, "detail", &detail, &err);
    enum kd_fail_class why = rc ? KD_FAIL_COUNT : kd_fail_of(name);
    if (!rc && why == KD_FAIL_COUNT)
        rc = kd_fail(&err, KD_EINVAL, "no such class of failure");
    if (!rc) {
        size_t n = 0;
        for (; detail[n] && n + 1 < sizeof shown; n++)
            shown[n] = (char)(detail[n] < 32 || detail[n] > 126 ? '?' : detail[n]);
        shown[n] = 0;
        KD_WITH_LEDGER(f, rc,
                       kd_ledger_fail(&f->ledger, layer, expert, attempt, id, why, shown, &err));
        kd_log(why == KD_FAIL_RETURN ? KD_LOG_INFO : KD_LOG_WARN, "farm",
               "worker=%s layer=%lld expert=%lld class=%s why=\"%s\"", id, (long long)layer,
               (long long)expert, kd_fail_name(why), shown);
    }
    kd_json_free(o);
    settle(r, rc, &err);
}

static void leave(void *ctx, struct kd_req *r)
{
    struct kd_farm *f = ctx;
    struct kd_err err;
    const char *incarnation;
    char id[64];
    struct kd_json *o = asked(f, r, id);
    if (!o)
        return;
    int rc = kd_json_str(o, "incarnation", &incarnation, &err);
    if (!rc)
        KD_WITH_LEDGER(f, rc, kd_ledger_leave(&f->ledger, id, incarnation, &err));
    kd_json_free(o);
    settle(r, rc, &err);
}

static void send_part(struct kd_req *r, const uint8_t *data, int64_t bytes, int64_t part)
{
    int64_t at = part * KD_WIRE_PART;
    if (at >= bytes) {
        refuse(r, 404, "no_part", "the blob has no such part");
        return;
    }
    int64_t n = bytes - at < KD_WIRE_PART ? bytes - at : KD_WIRE_PART;
    kd_req_reply(r, 200, "application/octet-stream", data + at, (size_t)n);
}

static int64_t send_blob(struct kd_farm *f, struct kd_req *r, const char *sha, int64_t part)
{
    const struct kd_blob *three[] = {&f->z, &f->hess, &f->routing};
    struct kd_farm_task t;
    struct kd_buf b;
    struct kd_err err;
    const void *data;
    int64_t n = 0;
    bool wanted;
    for (int i = 0; i < 3; i++)
        if (three[i]->data && !strcmp(three[i]->ref.sha256, sha)) {
            send_part(r, three[i]->data, three[i]->ref.bytes, part);
            return three[i]->ref.bytes - part * KD_WIRE_PART;
        }
    int64_t e = 0, experts = f->layer ? f->layer->experts : 0;
    pthread_mutex_lock(&f->lock);
    while (e < experts && strcmp(f->slot[e].weights.sha256, sha) != 0)
        e++;
    pthread_mutex_unlock(&f->lock);
    if (e == experts) {
        refuse(r, 404, "no_blob", "no blob of the open stage has this digest");
        return 0;
    }
    if (kd_farm_plan(f, e, &t, &wanted, &err) || weights_of(&t, &b, &data, &n, &err)) {
        refuse_err(r, &err);
        return 0;
    }
    send_part(r, data, n, part);
    kd_buf_release(&b);
    return n - part * KD_WIRE_PART;
}

static void blob(void *ctx, struct kd_req *r)
{
    struct kd_farm *f = ctx;
    struct kd_err err;
    char id[64], sha[65];
    int64_t part;
    int rc;
    if (!known(f, r, id))
        return;
    if (kd_wire_blob_read(sha, &part, kd_req_rest(r), &err)) {
        refuse_err(r, &err);
        return;
    }
    pthread_rwlock_rdlock(&f->layer_lock);
    int64_t n = send_blob(f, r, sha, part);
    pthread_rwlock_unlock(&f->layer_lock);
    if (n > KD_WIRE_PART)
        n = KD_WIRE_PART;
    if (n > 0) {
        KD_WITH_LEDGER(f, rc, kd_ledger_traffic(&f->ledger, id, n, 0, &err));
        if (rc)
            kd_log(KD_LOG_DEBUG, "farm", "msg=\"traffic not noted\" why=\"%s\"", err.msg);
    }
}

/* A unit that was refused stays for whoever wants to know why. */
static void keep_bad(struct kd_farm *f, const char *id, const struct kd_wire_put *p,
                     const void *data, size_t bytes)
{
    char path[4096];
    struct kd_err err;
    if (!f->bad_dir[0] || kd_dir_make(f->bad_dir, &err))
        return;
    int n = snprintf(path, sizeof path, "%s/%lld.%lld.%lld.%s.unit", f->bad_dir,
                     (long long)p->layer, (long long)p->expert, (long long)p->attempt, id);
    if (n < (int)sizeof path && kd_file_write(path, data, bytes, &err))
        kd_log(KD_LOG_WARN, "farm", "msg=\"cannot keep a refused unit\" why=\"%s\"", err.msg);
}

/* The unit as it came: whole, of the size declared, framed, and near the source. */
static int examine(struct kd_farm *f, const struct kd_wire_put *p, const struct kd_farm_task *t,
                   const void *data, size_t bytes, double *proxy, struct kd_err *err)
{
    struct kd_run alone = {.kern = f->o.run->kern}; /* the pool is the loop's */
    struct kd_unit u;
    char sha[65];
    if ((int64_t)bytes != kd_farm_unit_bytes(t))
        return kd_fail(err, KD_EINVAL, "a unit of %zu bytes where %lld were declared", bytes,
                       (long long)kd_farm_unit_bytes(t));
    if (kd_sha256_of(data, bytes, sha, err))
        return -1;
    if (strcmp(sha, p->sha256) != 0)
        return kd_fail(err, KD_EINVAL, "the unit's bytes are not those of its digest");
    if (kd_unit_view(&u, data, (int64_t)bytes, "unit", f->o.digest, err) ||
        kd_farm_check(&alone, f->layer->in, t, &u, CHECK_ROWS, err))
        return -1;
    *proxy = u.figures[u.count - 1].proxy;
    return 0;
}

static int take_unit(struct kd_farm *f, const char *id, const struct kd_wire_put *p, int64_t e,
                     const void *data, size_t bytes, enum kd_store *what, struct kd_err *err)
{
    struct kd_farm_task t;
    bool wanted;
    double proxy = 0;
    int rc;
    if (kd_farm_plan(f, e, &t, &wanted, err))
        return -1;
    if (examine(f, p, &t, data, bytes, &proxy, err)) {
        struct kd_err more;
        bool wrong = err->code == KD_ECORRUPT;
        keep_bad(f, id, p, data, bytes);
        KD_WITH_LEDGER(f, rc,
                       kd_ledger_fail(&f->ledger, p->layer, p->expert, p->attempt, id,
                                      wrong ? KD_FAIL_DEVICE : KD_FAIL_INPUT, err->msg, &more));
        kd_log(KD_LOG_WARN, "farm",
               "worker=%s layer=%lld expert=%lld msg=\"unit refused\" why=\"%s\"", id,
               (long long)p->layer, (long long)p->expert, err->msg);
        return rc ? *err = more, -1 : -1;
    }
    struct kd_result res = {.layer = p->layer,
                            .expert = p->expert,
                            .attempt = p->attempt,
                            .worker = id,
                            .sha256 = p->sha256,
                            .seconds = (double)p->ms / 1000,
                            .proxy = proxy,
                            .bytes = (int64_t)bytes};
    rc = kd_farm_store(f, e, &t, data, (int64_t)bytes, &res, what, err);
    if (!rc) {
        struct kd_err more;
        KD_WITH_LEDGER(f, rc, kd_ledger_traffic(&f->ledger, id, 0, (int64_t)bytes, &more));
        rc = 0; /* a figure of the report only */
    }
    return rc;
}

/* A unit from this worker: taken if its stage is open. Its bytes, or NULL: in the shared folder. */
static int take(struct kd_farm *f, const char *id, const struct kd_wire_put *p, const void *data,
                size_t bytes, bool *late, enum kd_store *what, struct kd_err *err)
{
    struct kd_farm_task t;
    struct kd_buf b;
    char path[4096];
    bool wanted;
    pthread_rwlock_rdlock(&f->layer_lock);
    int64_t e = kd_farm_place(f, p->layer, p->expert);
    *late = e < 0 || f->slot[e].state == KD_SLOT_NONE;
    int rc = 0;
    kd_buf_init(&b, KD_WIRE_UNIT_MAX);
    if (!*late && !data) {
        rc = kd_farm_plan(f, e, &t, &wanted, err) ||
             kd_share_unit(f->share, p->sha256, id, path, err);
        /* Not there yet is no fault of the unit's. */
        if (!rc && kd_share_read(path, p->sha256, kd_farm_unit_bytes(&t), &b, NULL, err))
            rc = kd_fail(err, KD_ENOTSUP, "the unit does not show in the shared folder");
        data = b.data;
        bytes = b.size_bytes;
    }
    if (!rc && !*late)
        rc = take_unit(f, id, p, e, data, bytes, what, err);
    pthread_rwlock_unlock(&f->layer_lock);
    kd_buf_release(&b);
    return rc;
}

static void answer(struct kd_req *r, int rc, bool late, enum kd_store what,
                   const struct kd_err *err)
{
    static const char *const words[] = {"first", "again", "differs"};
    char text[64];
    if (rc && (err->code == KD_ECORRUPT || err->code == KD_EINVAL)) {
        refuse(r, 422, err->code == KD_ECORRUPT ? "wrong" : "damaged", err->msg);
    } else if (rc) {
        refuse_err(r, err);
    } else {
        int n = snprintf(text, sizeof text, "{\"result\":\"%s\"}\n", late ? "late" : words[what]);
        kd_req_reply(r, 200, "application/json", text, (size_t)n);
    }
}

static void put(void *ctx, struct kd_req *r)
{
    struct kd_farm *f = ctx;
    struct kd_wire_put p;
    struct kd_err err = {0};
    char id[64];
    enum kd_store what = KD_STORE_SAME;
    bool late;
    size_t bytes;
    if (!known(f, r, id))
        return;
    if (kd_wire_put_read(&p, kd_req_rest(r), &err)) {
        refuse_err(r, &err);
        return;
    }
    const char *data = kd_req_body(r, &bytes);
    int rc = take(f, id, &p, data, bytes, &late, &what, &err);
    answer(r, rc, late, what, &err);
}

/* The same for a unit in the shared folder, which may show late. */
static void put_at(void *ctx, struct kd_req *r)
{
    struct kd_farm *f = ctx;
    struct kd_wire_put p;
    struct kd_err err = {0};
    char id[64];
    enum kd_store what = KD_STORE_SAME;
    bool late = false;
    int rc = -1;
    if (!known(f, r, id))
        return;
    if (kd_wire_put_read(&p, kd_req_rest(r), &err)) {
        refuse_err(r, &err);
        return;
    }
    err.code = KD_ENOTSUP;
    for (int waited = 0; f->share && waited < KD_SHARE_WAIT_MS && !f->over;
         waited += KD_SHARE_TRY_MS) {
        rc = take(f, id, &p, NULL, 0, &late, &what, &err);
        if (!rc || err.code != KD_ENOTSUP)
            break;
        usleep(KD_SHARE_TRY_MS * 1000);
    }
    if (rc && err.code == KD_ENOTSUP)
        refuse(r, KD_WIRE_UNSEEN, "unseen", "the unit does not show in the shared folder");
    else
        answer(r, rc, late, what, &err);
}

static const struct kd_route routes[] = {
    {"GET", KD_WIRE_ROOT "about", about, .open = true},
    {"POST", KD_WIRE_ROOT "join", join, .open = true},
    {"POST", KD_WIRE_ROOT "claim", claim, .open = true},
    {"POST", KD_WIRE_ROOT "beat", beat, .open = true},
    {"POST", KD_WIRE_ROOT "fail", fail, .open = true},
    {"POST", KD_WIRE_ROOT "leave", leave, .open = true},
    {"GET", KD_WIRE_ROOT "b/*", blob, .open = true},
    {"PUT", KD_WIRE_ROOT "in/*", put, .open = true},
    {"PUT", KD_WIRE_ROOT "at/*", put_at, .open = true},
    {0},
};

int kd_coord_open(struct kd_farm *f, struct kd_err *err)
{
    const struct kd_home *h = f->o.home;
    char cert[4096], key[4096];
    f->share = h->share[0] ? h->share : NULL;
    for (int i = 0; i < h->name_count; i++)
        f->hosts[i] = h->names[i];
    struct kd_srv_options o = {.connections = CONNECTIONS,
                               .request_s = 600,
                               .routes = routes,
                               .ctx = f,
                               .fail = fault_body,
                               .hosts = f->hosts,
                               .host_count = h->name_count};
    if (kd_path_join(cert, sizeof cert, h->dir, "server.pem", err) ||
        kd_path_join(key, sizeof key, h->dir, "server.key", err) || kd_srv_open(&f->srv, &o, err))
        return -1;
    struct kd_tls_options t = {.host = h->listen,
                               .port = h->port,
                               .cert_file = cert,
                               .key_file = key,
                               .to_port = kd_srv_port(f->srv),
                               .connections = CONNECTIONS};
    if (kd_tls_open(&f->tls, &t, err))
        return -1;
    /* Emptied by the one that has the address, not by a second that will not get it. */
    return f->share && kd_share_open(f->share, err) ? kd_wrap(err, "shared folder") : 0;
}

void kd_coord_close(struct kd_farm *f)
{
    kd_tls_close(f->tls);
    kd_srv_close(f->srv, 1);
    f->tls = NULL;
    f->srv = NULL;
}

int kd_farm_port(const struct kd_farm *f)
{
    return f->tls ? kd_tls_port(f->tls) : 0;
}

static int blob_of(struct kd_blob *b, const void *data, int64_t bytes, struct kd_err *err)
{
    b->data = data;
    b->ref.bytes = bytes;
    return kd_sha256_of(data, (size_t)bytes, b->ref.sha256, err);
}

/* A stage of the trunk: its Hessian is all that its jobs share. */
static int serve_trunk(struct kd_farm *f, struct kd_err *err)
{
    const struct kd_hess *h = f->layer->hess;
    struct kd_farm_task t;
    bool wanted = false;
    for (int64_t e = 0; e < f->layer->experts && !wanted; e++)
        if (kd_farm_plan(f, e, &t, &wanted, err))
            return -1;
    f->wire = (struct kd_wire_layer){
        .layer = f->layer->layer, .trunk = true, .in.latent = t.w1.cols, .digest = f->o.digest};
    if (!h)
        return 0;
    if (kd_wire_hess_put(&f->hess.own, h, err) ||
        blob_of(&f->hess, f->hess.own.data, (int64_t)f->hess.own.size_bytes, err))
        return -1;
    share(f, &f->hess.ref, f->hess.data);
    f->wire.hess = f->hess.ref;
    f->wire.hess_rows = h->rows;
    f->wire.hess_bad_rows = h->bad_rows;
    return 0;
}

static int serve_experts(struct kd_farm *f, struct kd_err *err)
{
    const struct kd_layer_inputs *in = f->layer->in;
    struct kd_farm_task t;
    bool wanted = false;
    if (kd_wire_hess_put(&f->hess.own, in->h_in, err) ||
        kd_wire_routing_put(&f->routing.own, in, err) ||
        blob_of(&f->hess, f->hess.own.data, (int64_t)f->hess.own.size_bytes, err) ||
        blob_of(&f->routing, f->routing.own.data, (int64_t)f->routing.own.size_bytes, err) ||
        blob_of(&f->z, in->z, in->T * in->latent * 2, err))
        return -1;
    share(f, &f->z.ref, f->z.data);
    share(f, &f->hess.ref, f->hess.data);
    share(f, &f->routing.ref, f->routing.data);
    for (int64_t e = 0; e < f->layer->experts && !wanted; e++)
        if (kd_farm_plan(f, e, &t, &wanted, err))
            return -1;
    f->wire = (struct kd_wire_layer){.layer = f->layer->layer,
                                     .experts = f->layer->experts,
                                     .inter = t.w1.rows,
                                     .in = *in,
                                     .hess_rows = in->h_in->rows,
                                     .hess_bad_rows = in->h_in->bad_rows,
                                     .z = f->z.ref,
                                     .hess = f->hess.ref,
                                     .routing = f->routing.ref,
                                     .digest = f->o.digest};
    return 0;
}

int kd_coord_layer(struct kd_farm *f, struct kd_err *err)
{
    if (f->layer->trunk ? serve_trunk(f, err) : serve_experts(f, err))
        return -1;
    f->served = true;
    return 0;
}

void kd_coord_layer_end(struct kd_farm *f)
{
    f->served = false;
    if (f->share)
        kd_share_sweep(f->share);
    kd_buf_release(&f->hess.own);
    kd_buf_release(&f->routing.own);
    f->z = f->hess = f->routing = (struct kd_blob){0};
}
