#include "farm/wire.h"

#include "base/opt.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM_MAX = 1 << 20, TOKENS_MAX = 1 << 30, TOPK_MAX = 256 };

bool kd_wire_is_digest(const char *text)
{
    return strspn(text, "0123456789abcdef") == 64 && !text[64];
}

static void put_hex(struct kd_jw *w, const char *key, uint64_t v)
{
    char text[17];
    snprintf(text, sizeof text, "%016" PRIx64, v);
    kd_jw_str(w, key, text);
}

static int get_hex(const struct kd_json *o, const char *key, uint64_t *v, struct kd_err *err)
{
    const char *text;
    if (kd_json_str(o, key, &text, err))
        return -1;
    if (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return kd_fail(err, KD_ECORRUPT, "%s is not 16 hex digits", key);
    *v = strtoull(text, NULL, 16);
    return 0;
}

static int get_text(const struct kd_json *o, const char *key, char *out, size_t size,
                    struct kd_err *err)
{
    const char *text;
    if (kd_json_str(o, key, &text, err))
        return -1;
    if (strlen(text) >= size)
        return kd_fail(err, KD_ECORRUPT, "%s is too long", key);
    /* Printable ASCII: it goes into logs, reports and terminals. */
    for (const char *p = text; *p; p++)
        if ((unsigned char)*p < 32 || (unsigned char)*p > 126)
            return kd_fail(err, KD_ECORRUPT, "%s has a character that is not plain text", key);
    snprintf(out, size, "%s", text);
    return 0;
}

static void put_blob(struct kd_jw *w, const char *key, const struct kd_blob_ref *b)
{
    kd_jw_open(w, key, '{');
    kd_jw_str(w, "sha256", b->sha256);
    kd_jw_int(w, "bytes", b->bytes);
    if (b->shared)
        kd_jw_bool(w, "shared", true);
    kd_jw_close(w, '}');
}

static int get_blob(const struct kd_json *o, const char *key, int64_t bytes, struct kd_blob_ref *b,
                    struct kd_err *err)
{
    const struct kd_json *v = kd_json_get(o, key);
    if (!v)
        return kd_fail(err, KD_ECORRUPT, "no %s", key);
    if (get_text(v, "sha256", b->sha256, sizeof b->sha256, err) ||
        kd_json_int(v, "bytes", 1, INT64_MAX, &b->bytes, err) ||
        kd_json_bool_or(v, "shared", false, &b->shared, err))
        return kd_wrap(err, "%s", key);
    if (!kd_wire_is_digest(b->sha256))
        return kd_fail(err, KD_ECORRUPT, "%s: not a SHA-256", key);
    if (b->bytes != bytes)
        return kd_fail(err, KD_ECORRUPT, "%s has %lld bytes where %lld are meant", key,
                       (long long)b->bytes, (long long)bytes);
    return 0;
}

/* One that the other side holds in memory. */
static int get_big(const struct kd_json *o, const char *key, int64_t bytes, struct kd_blob_ref *b,
                   struct kd_err *err)
{
    if (bytes > KD_WIRE_BLOB_MAX)
        return kd_fail(err, KD_ECORRUPT, "%s would have %lld bytes", key, (long long)bytes);
    return get_blob(o, key, bytes, b, err);
}

static int get_float(const struct kd_json *o, const char *key, float *out, struct kd_err *err)
{
    double v;
    if (kd_json_num(o, key, -1e30, 1e30, &v, err))
        return -1;
    *out = (float)v;
    return 0;
}

static void put_layer(struct kd_jw *w, const struct kd_wire_layer *l)
{
    const struct kd_layer_inputs *in = &l->in;
    kd_jw_open(w, "layer", '{');
    kd_jw_int(w, "index", l->layer);
    kd_jw_bool(w, "trunk", l->trunk);
    put_hex(w, "digest", l->digest);
    kd_jw_int(w, "hess_rows", l->hess_rows);
    kd_jw_int(w, "hess_bad_rows", l->hess_bad_rows);
    kd_jw_int(w, "latent", in->latent);
    if (l->hess.bytes)
        put_blob(w, "hess", &l->hess);
    if (l->trunk) {
        kd_jw_close(w, '}');
        return;
    }
    kd_jw_int(w, "experts", l->experts);
    kd_jw_int(w, "tokens", in->T);
    kd_jw_int(w, "inter", l->inter);
    kd_jw_int(w, "topk", in->topk);
    kd_jw_num(w, "situ_beta", (double)in->situ_beta);
    kd_jw_num(w, "situ_linear", (double)in->situ_linear);
    kd_jw_bool(w, "weight_routed", in->weight_routed);
    kd_jw_int(w, "blend_rows", in->blend_rows);
    kd_jw_int(w, "fallback_rows", in->fallback_rows);
    kd_jw_int(w, "block_rows", in->block_rows);
    put_blob(w, "z", &l->z);
    put_blob(w, "routing", &l->routing);
    kd_jw_close(w, '}');
}

static int get_layer(struct kd_wire_layer *l, const struct kd_json *o, struct kd_err *err)
{
    struct kd_layer_inputs *in = &l->in;
    if (!o)
        return kd_fail(err, KD_ECORRUPT, "jobs without their layer");
    if (kd_json_int(o, "index", 0, 65535, &l->layer, err) ||
        kd_json_bool_or(o, "trunk", false, &l->trunk, err) ||
        get_hex(o, "digest", &l->digest, err) ||
        kd_json_int(o, "latent", 1, DIM_MAX, &in->latent, err) ||
        kd_json_int(o, "hess_rows", 0, TOKENS_MAX, &l->hess_rows, err) ||
        kd_json_int(o, "hess_bad_rows", 0, TOKENS_MAX, &l->hess_bad_rows, err))
        return -1;
    if (kd_json_get(o, "hess") || !l->trunk)
        if (get_big(o, "hess", in->latent * (in->latent + 1) * 2, &l->hess, err))
            return -1;
    if (l->trunk)
        return 0;
    if (kd_json_int(o, "experts", 1, KD_JOB_TRUNK, &l->experts, err) ||
        kd_json_int(o, "tokens", 1, TOKENS_MAX, &in->T, err) ||
        kd_json_int(o, "inter", 1, DIM_MAX, &l->inter, err) ||
        kd_json_int(o, "topk", 1, TOPK_MAX, &in->topk, err) ||
        get_float(o, "situ_beta", &in->situ_beta, err) ||
        get_float(o, "situ_linear", &in->situ_linear, err) ||
        kd_json_bool_or(o, "weight_routed", false, &in->weight_routed, err) ||
        kd_json_int(o, "blend_rows", 0, TOKENS_MAX, &in->blend_rows, err) ||
        kd_json_int(o, "fallback_rows", 0, TOKENS_MAX, &in->fallback_rows, err) ||
        kd_json_int(o, "block_rows", 1, 1 << 16, &in->block_rows, err))
        return -1;
    return get_blob(o, "z", in->T * in->latent * 2, &l->z, err) ||
                   get_blob(o, "routing", in->T * in->topk * 6, &l->routing, err)
               ? -1
               : 0;
}

static const char *const type_names[] = {"", "f32", "bf16", "mxfp4"};

static void put_spec(struct kd_jw *w, const struct kd_quant_spec *s, enum kd_mat_type type)
{
    const struct kd_recipe *r = &s->recipe;
    kd_jw_open(w, NULL, '{');
    kd_jw_str(w, "stored", type_names[type]);
    kd_jw_int(w, "rate16", kd_rate_to16(s->rate));
    kd_jw_int(w, "codebook", (int64_t)s->cb);
    put_hex(w, "seed", s->seed);
    put_hex(w, "input_seed", s->input_seed);
    kd_jw_num(w, "scale_hint", (double)s->scale_hint);
    kd_jw_bool(w, "feedback", r->feedback);
    kd_jw_bool(w, "matched", r->matched);
    kd_jw_num(w, "row_power", (double)r->row_power);
    kd_jw_bool(w, "refit", r->refit);
    kd_jw_num(w, "damping", (double)r->damping);
    kd_jw_bool(w, "full_scale_search", r->full_scale_search);
    kd_jw_int(w, "seam", r->seam);
    kd_jw_close(w, '}');
}

static int get_spec(struct kd_quant_spec *s, enum kd_mat_type *type, const struct kd_json *o,
                    struct kd_err *err)
{
    struct kd_recipe *r = &s->recipe;
    int64_t rate, cb, seam;
    char stored[16];
    if (!o)
        return kd_fail(err, KD_ECORRUPT, "a job without its matrices");
    if (get_text(o, "stored", stored, sizeof stored, err) ||
        kd_json_int(o, "rate16", 16, 128, &rate, err) ||
        kd_json_int(o, "codebook", 0, KD_CB_MUL1, &cb, err) || get_hex(o, "seed", &s->seed, err) ||
        get_hex(o, "input_seed", &s->input_seed, err) ||
        get_float(o, "scale_hint", &s->scale_hint, err) ||
        kd_json_bool_or(o, "feedback", false, &r->feedback, err) ||
        kd_json_bool_or(o, "matched", false, &r->matched, err) ||
        get_float(o, "row_power", &r->row_power, err) ||
        kd_json_bool_or(o, "refit", false, &r->refit, err) ||
        get_float(o, "damping", &r->damping, err) ||
        kd_json_bool_or(o, "full_scale_search", false, &r->full_scale_search, err) ||
        kd_json_int(o, "seam", 0, 1 << 20, &seam, err))
        return -1;
    s->rate = kd_rate_from16((unsigned)rate);
    s->cb = (enum kd_codebook)cb;
    r->seam = (int)seam;
    *type = KD_MAT_NONE;
    for (int i = 1; i <= KD_MAT_MXFP4; i++)
        if (!strcmp(stored, type_names[i]))
            *type = (enum kd_mat_type)i;
    if (*type == KD_MAT_NONE)
        return kd_fail(err, KD_ECORRUPT, "weights stored as '%s'", stored);
    return 0;
}

static int64_t weights_bytes(const struct kd_wire_layer *l, const struct kd_wire_job *j)
{
    if (l->trunk)
        return kd_wire_weights_bytes(j->type[0], j->rows, l->in.latent);
    return kd_wire_weights_bytes(j->type[0], l->inter, l->in.latent) +
           kd_wire_weights_bytes(j->type[1], l->inter, l->in.latent) +
           kd_wire_weights_bytes(j->type[2], l->in.latent, l->inter);
}

static int get_job(struct kd_wire_job *j, const struct kd_wire_layer *l, const struct kd_json *o,
                   struct kd_err *err)
{
    int64_t won;
    const struct kd_json *specs = kd_json_get(o, "matrices");
    int64_t first = l->trunk ? KD_JOB_TRUNK : 0, last = l->trunk ? 65535 : l->experts - 1;
    if (kd_json_int(o, "expert", first, last, &j->expert, err) ||
        (l->trunk && kd_json_int(o, "rows", 1, DIM_MAX, &j->rows, err)) ||
        kd_json_int(o, "attempt", 1, INT32_MAX, &j->attempt, err) ||
        kd_json_num(o, "lease_s", -1e6, 1e6, &j->lease_s, err) ||
        kd_json_int(o, "plain_won", 0, 1, &won, err) ||
        kd_json_int(o, "unit_bytes", 1, KD_WIRE_UNIT_MAX, &j->unit_bytes, err))
        return -1;
    j->plain_won = (uint32_t)won;
    for (size_t i = 0; i < (l->trunk ? 1 : 3); i++)
        if (get_spec(&j->spec[i], &j->type[i], kd_json_at(specs, i), err))
            return -1;
    return get_big(o, "weights", weights_bytes(l, j), &j->weights, err);
}

void kd_wire_claim_write(struct kd_jw *w, const struct kd_wire_claim *c)
{
    kd_jw_open(w, NULL, '{');
    kd_jw_bool(w, "drain", c->drain);
    kd_jw_bool(w, "wait_for_disk", c->wait_for_disk);
    if (c->count)
        put_layer(w, &c->layer);
    kd_jw_open(w, "jobs", '[');
    for (int64_t i = 0; i < c->count; i++) {
        const struct kd_wire_job *j = &c->job[i];
        kd_jw_open(w, NULL, '{');
        kd_jw_int(w, "expert", j->expert);
        kd_jw_int(w, "attempt", j->attempt);
        if (c->layer.trunk)
            kd_jw_int(w, "rows", j->rows);
        kd_jw_num(w, "lease_s", j->lease_s);
        kd_jw_int(w, "plain_won", j->plain_won);
        kd_jw_int(w, "unit_bytes", j->unit_bytes);
        put_blob(w, "weights", &j->weights);
        kd_jw_open(w, "matrices", '[');
        for (int k = 0; k < (c->layer.trunk ? 1 : 3); k++)
            put_spec(w, &j->spec[k], j->type[k]);
        kd_jw_close(w, ']');
        kd_jw_close(w, '}');
    }
    kd_jw_close(w, ']');
    kd_jw_close(w, '}');
}

int kd_wire_claim_read(struct kd_wire_claim *c, const char *text, size_t bytes, struct kd_err *err)
{
    struct kd_json *root;
    memset(c, 0, sizeof *c);
    if (kd_json_parse(&root, text, bytes, "claim", err))
        return -1;
    const struct kd_json *jobs = kd_json_get(root, "jobs");
    size_t n = kd_json_count(jobs);
    int rc = kd_json_bool_or(root, "drain", false, &c->drain, err) ||
             kd_json_bool_or(root, "wait_for_disk", false, &c->wait_for_disk, err);
    if (!rc && (kd_json_kind(jobs) != KD_JSON_ARRAY || n > KD_WIRE_JOBS_MAX))
        rc = kd_fail(err, KD_ECORRUPT, "no list of at most %d jobs", KD_WIRE_JOBS_MAX);
    if (!rc && n)
        rc = get_layer(&c->layer, kd_json_get(root, "layer"), err);
    for (size_t i = 0; !rc && i < n; i++, c->count++)
        rc = get_job(&c->job[i], &c->layer, kd_json_at(jobs, i), err);
    kd_json_free(root);
    return rc ? -1 : 0;
}

void kd_wire_join_write(struct kd_jw *w, const struct kd_wire_join *j)
{
    kd_jw_open(w, NULL, '{');
    kd_jw_int(w, "protocol", j->protocol);
    kd_jw_str(w, "version", j->card.version);
    kd_jw_str(w, "class", j->klass);
    kd_jw_str(w, "canary", j->canary);
    kd_jw_str(w, "host", j->card.host);
    kd_jw_str(w, "incarnation", j->card.incarnation);
    kd_jw_str(w, "arch", j->card.arch);
    kd_jw_str(w, "device", j->card.device);
    kd_jw_int(w, "lanes", j->card.lanes);
    if (j->token[0])
        kd_jw_str(w, "token", j->token);
    kd_jw_str(w, "id", j->id);
    kd_jw_str(w, "key", j->key);
    kd_jw_close(w, '}');
}

int kd_wire_join_read(struct kd_wire_join *j, const char *text, size_t bytes, struct kd_err *err)
{
    struct kd_json *o;
    memset(j, 0, sizeof *j);
    if (kd_json_parse(&o, text, bytes, "join", err))
        return -1;
    int rc = kd_json_int(o, "protocol", 0, 1 << 20, &j->protocol, err) ||
             get_text(o, "version", j->card.version, sizeof j->card.version, err) ||
             get_text(o, "class", j->klass, sizeof j->klass, err) ||
             get_text(o, "canary", j->canary, sizeof j->canary, err) ||
             get_text(o, "host", j->card.host, sizeof j->card.host, err) ||
             get_text(o, "incarnation", j->card.incarnation, sizeof j->card.incarnation, err) ||
             get_text(o, "arch", j->card.arch, sizeof j->card.arch, err) ||
             get_text(o, "device", j->card.device, sizeof j->card.device, err) ||
             (kd_json_get(o, "lanes") &&
              kd_json_int(o, "lanes", 0, KD_LEDGER_HELD_MAX, &j->card.lanes, err)) ||
             get_text(o, "id", j->id, sizeof j->id, err) ||
             get_text(o, "key", j->key, sizeof j->key, err) ||
             (kd_json_get(o, "token") && get_text(o, "token", j->token, sizeof j->token, err));
    /* A list of hosts separated by commas is kept; a host may not be two. */
    if (!rc && (strchr(j->card.host, ',') || !j->card.host[0]))
        rc = kd_fail(err, KD_ECORRUPT, "host is not a plain name");
    kd_json_free(o);
    return rc ? -1 : 0;
}

void kd_wire_beat_write(struct kd_jw *w, const char *key, const struct kd_wire_beat *b, bool lost)
{
    kd_jw_open(w, key, '[');
    for (int64_t i = 0; i < b->count; i++) {
        const struct kd_held *h = &b->held[i];
        if (lost && !h->lost)
            continue;
        kd_jw_open(w, NULL, '[');
        kd_jw_int(w, NULL, h->layer);
        kd_jw_int(w, NULL, h->expert);
        kd_jw_int(w, NULL, h->attempt);
        kd_jw_close(w, ']');
    }
    kd_jw_close(w, ']');
}

int kd_wire_beat_read(struct kd_wire_beat *b, const struct kd_json *root, const char *key,
                      struct kd_err *err)
{
    const struct kd_json *list = kd_json_get(root, key);
    size_t n = kd_json_count(list);
    memset(b, 0, sizeof *b);
    if (kd_json_kind(list) != KD_JSON_ARRAY || n > KD_LEDGER_HELD_MAX)
        return kd_fail(err, KD_ECORRUPT, "no list '%s' of at most %d", key, KD_LEDGER_HELD_MAX);
    for (size_t i = 0; i < n; i++) {
        const struct kd_json *t = kd_json_at(list, i);
        int64_t v[3];
        if (kd_json_kind(t) != KD_JSON_ARRAY || kd_json_count(t) != 3)
            return kd_fail(err, KD_ECORRUPT, "%s: not a list of layer, expert, attempt", key);
        for (size_t k = 0; k < 3; k++) {
            const struct kd_json *x = kd_json_at(t, k);
            v[k] = kd_json_int_value(x);
            if (kd_json_kind(x) != KD_JSON_INT || v[k] < 0 || v[k] > (k < 2 ? 65535 : INT32_MAX))
                return kd_fail(err, KD_ECORRUPT, "%s: a number out of range", key);
        }
        b->held[b->count++] = (struct kd_held){v[0], v[1], v[2], false};
    }
    return 0;
}

/* The number before the next dot; moves on behind it. */
static int next_number(const char **at, int64_t most, int64_t *out, struct kd_err *err)
{
    char text[24];
    size_t n = strcspn(*at, ".");
    if (!n || n >= sizeof text)
        return kd_fail(err, KD_EINVAL, "a malformed address");
    memcpy(text, *at, n);
    text[n] = 0;
    *at += n + ((*at)[n] == '.');
    return kd_parse_int(text, 0, most, out, err);
}

int kd_wire_put_read(struct kd_wire_put *p, const char *text, struct kd_err *err)
{
    memset(p, 0, sizeof *p);
    if (next_number(&text, 65535, &p->layer, err) || next_number(&text, 65535, &p->expert, err) ||
        next_number(&text, INT32_MAX, &p->attempt, err))
        return -1;
    if (strlen(text) < 66 || text[64] != '.')
        return kd_fail(err, KD_EINVAL, "a malformed address");
    memcpy(p->sha256, text, 64);
    text += 65;
    if (!kd_wire_is_digest(p->sha256))
        return kd_fail(err, KD_EINVAL, "a malformed digest");
    return next_number(&text, INT64_MAX / 2, &p->ms, err) || *text
               ? kd_fail(err, KD_EINVAL, "a malformed address")
               : 0;
}

int kd_wire_blob_read(char sha256[65], int64_t *part, const char *text, struct kd_err *err)
{
    if (strlen(text) < 66 || text[64] != '.')
        return kd_fail(err, KD_EINVAL, "a malformed address");
    memcpy(sha256, text, 64);
    sha256[64] = 0;
    text += 65;
    if (!kd_wire_is_digest(sha256))
        return kd_fail(err, KD_EINVAL, "a malformed digest");
    return next_number(&text, INT32_MAX, part, err);
}
