/* Sequences: the states of all layers, copied, taken back, counted, written and read. */
#include "base/hash.h"
#include "base/mem.h"
#include "model/k3_device.h"

#include <stdio.h>
#include <string.h>

int kd_k3_seq_open(struct kd_k3_seq **out, const struct kd_k3_model *m, struct kd_err *err)
{
    struct kd_k3_seq *s;
    *out = NULL;
    if (kd_mem_zero(&s, (int64_t)sizeof *s + m->cfg.layers * (int64_t)sizeof s->state[0], 1,
                    "sequence", err))
        return -1;
    s->m = m;
    kd_k3_enter(m);
    int rc = m->dev ? kd_k3_device_seq_open(&s->dev, m->dev, err) : 0;
    kd_k3_leave(m);
    if (rc) {
        kd_k3_seq_close(s);
        return -1;
    }
    for (int64_t l = 0; !m->dev && l < m->cfg.layers; l++)
        if (kd_k3_state_init(&s->state[l], &m->cfg, &m->layers[l], err)) {
            kd_k3_seq_close(s);
            return -1;
        }
    *out = s;
    return 0;
}

void kd_k3_seq_close(struct kd_k3_seq *s)
{
    if (!s)
        return;
    kd_k3_enter(s->m);
    if (s->m->dev)
        kd_k3_device_seq_close(s->dev, s->m->dev);
    kd_k3_leave(s->m);
    for (int64_t l = 0; l < s->m->cfg.layers; l++)
        kd_k3_state_release(&s->state[l]);
    kd_mem_free(s);
}

int64_t kd_k3_seq_pos(const struct kd_k3_seq *s)
{
    return s->pos;
}

static int64_t row_width(const struct kd_k3_cfg *c)
{
    return c->kv_lora + c->rope;
}

int kd_k3_seq_copy(struct kd_k3_seq **out, const struct kd_k3_seq *from, struct kd_err *err)
{
    const struct kd_k3_model *m = from->m;
    struct kd_k3_seq *s;
    if (kd_k3_seq_open(&s, m, err)) {
        *out = NULL;
        return -1;
    }
    kd_k3_enter(m);
    int rc = m->dev ? kd_k3_device_seq_copy(s->dev, from->dev, from->pos, m->dev, err) : 0;
    kd_k3_leave(m);
    s->pos = from->pos;
    for (int64_t l = 0; l < m->cfg.layers && !rc && !m->dev; l++) {
        struct kd_k3_state *to = &s->state[l];
        if (m->layers[l].mla) {
            rc = kd_k3_state_copy(to, &from->state[l], row_width(&m->cfg), err);
            continue;
        }
        to->pos = from->pos;
        memcpy(to->S, from->state[l].S,
               (size_t)kd_k3_kda_floats(&m->cfg, m->layers[l].heads) * sizeof(float));
    }
    if (rc) {
        kd_k3_seq_close(s);
        s = NULL;
    }
    *out = s;
    return rc;
}

struct keep_job {
    struct kd_k3_seq *s;
    int64_t heads; /* of a whole layer: layers of a part have fewer */
    int64_t kept;
};

static void keep_item(void *ctx, int64_t i, int worker)
{
    const struct keep_job *j = ctx;
    const struct kd_k3_model *m = j->s->m;
    int64_t l = i / j->heads, h = i % j->heads;
    (void)worker;
    if (!m->layers[l].mla && h < m->layers[l].heads)
        kd_k3_kda_replay(m->run.kern, &m->cfg, m->layers[l].heads, &j->s->state[l], h, j->kept);
}

int kd_k3_seq_keep(struct kd_k3_seq *s, int64_t kept, struct kd_err *err)
{
    const struct kd_k3_model *m = s->m;
    if (!s->drafted || kept < 1 || kept > s->drafted)
        return kd_fail(err, KD_EINVAL, "%lld tokens kept of a draft of %lld", (long long)kept,
                       (long long)s->drafted);
    if (kept < s->drafted) {
        struct keep_job j = {s, m->cfg.kda_heads, kept};
        kd_pool_run(m->run.pool, m->cfg.layers * j.heads, keep_item, &j);
        s->pos -= s->drafted - kept;
        for (int64_t l = 0; l < m->cfg.layers; l++)
            s->state[l].pos = s->pos;
    }
    s->drafted = 0;
    return 0;
}

int64_t kd_k3_seq_charge(struct kd_k3_seq *s, int by)
{
    const struct kd_k3_model *m = s->m;
    int64_t floats = 0, page = KD_K3_PAGE * row_width(&m->cfg);
    if (m->dev)
        return kd_k3_device_seq_charge(s->dev, m->dev, by);
    for (int64_t l = 0; l < m->cfg.layers; l++) {
        struct kd_k3_state *st = &s->state[l];
        if (!m->layers[l].mla)
            floats += kd_k3_kda_floats(&m->cfg, m->layers[l].heads);
        for (int64_t i = 0; i < st->pages; i++) {
            int before = st->page[i]->charged;
            st->page[i]->charged += by;
            floats += (by > 0 ? before : before + by) == 0 ? page : 0;
        }
    }
    return floats * (int64_t)sizeof(float);
}

int64_t kd_k3_seq_bytes(const struct kd_k3_seq *s)
{
    const struct kd_k3_model *m = s->m;
    int64_t floats = 0;
    for (int64_t l = 0; l < m->cfg.layers; l++)
        floats += m->layers[l].mla ? s->pos * row_width(&m->cfg)
                                   : kd_k3_kda_floats(&m->cfg, m->layers[l].heads);
    return floats * (int64_t)sizeof(float);
}

/* Calls io over every run of bytes of a layer's state at `pos`. */
static int layer_io(const struct kd_k3_model *m, int64_t l, struct kd_k3_state *st, int64_t pos,
                    int (*io)(void *ctx, void *data, int64_t bytes, struct kd_err *err), void *ctx,
                    struct kd_err *err)
{
    int64_t w = row_width(&m->cfg);
    if (!m->layers[l].mla)
        return io(ctx, st->S,
                  kd_k3_kda_floats(&m->cfg, m->layers[l].heads) * (int64_t)sizeof(float), err);
    for (int64_t at = 0; at < pos; at += KD_K3_PAGE) {
        int64_t n = pos - at < KD_K3_PAGE ? pos - at : KD_K3_PAGE;
        if (io(ctx, kd_k3_row(st, at, w), n * w * (int64_t)sizeof(float), err))
            return -1;
    }
    return 0;
}

struct writer {
    int (*io)(void *ctx, const void *data, int64_t bytes, struct kd_err *err);
    void *ctx;
};

static int write_run(void *ctx, void *data, int64_t bytes, struct kd_err *err)
{
    const struct writer *w = ctx;
    return w->io(w->ctx, data, bytes, err);
}

int kd_k3_seq_write(const struct kd_k3_seq *s,
                    int (*io)(void *ctx, const void *data, int64_t bytes, struct kd_err *err),
                    void *ctx, struct kd_err *err)
{
    struct writer w = {io, ctx};
    if (s->m->dev)
        return kd_k3_device_seq_io(s->dev, s->m->dev, s->pos, true, write_run, &w, err);
    for (int64_t l = 0; l < s->m->cfg.layers; l++) {
        struct kd_k3_state st = s->state[l];
        if (layer_io(s->m, l, &st, s->pos, write_run, &w, err))
            return -1;
    }
    return 0;
}

int kd_k3_seq_read(struct kd_k3_seq **out, const struct kd_k3_model *m, int64_t pos,
                   int (*io)(void *ctx, void *data, int64_t bytes, struct kd_err *err), void *ctx,
                   struct kd_err *err)
{
    struct kd_k3_seq *s;
    *out = NULL;
    if (pos < 0 || pos > m->cfg.context)
        return kd_fail(err, KD_ECORRUPT, "a sequence of %lld tokens", (long long)pos);
    if (kd_k3_seq_open(&s, m, err))
        return -1;
    kd_k3_enter(m);
    int rc = m->dev ? kd_k3_device_seq_reserve(s->dev, m->dev, pos, err) : 0;
    kd_k3_leave(m);
    if (!rc && m->dev)
        rc = kd_k3_device_seq_io(s->dev, m->dev, pos, false, io, ctx, err);
    for (int64_t l = 0; l < m->cfg.layers && !rc && !m->dev; l++) {
        struct kd_k3_state *st = &s->state[l];
        rc = (m->layers[l].mla ? kd_k3_state_reserve(st, pos, row_width(&m->cfg), err) : 0) ||
                     layer_io(m, l, st, pos, io, ctx, err)
                 ? -1
                 : 0;
        st->pos = pos;
    }
    s->pos = pos;
    if (rc) {
        kd_k3_seq_close(s);
        s = NULL;
    }
    *out = s;
    return rc;
}

enum { FINGERPRINT_TENSORS = 4096, FINGERPRINT_BYTES = 256 };

static void sample_tensor(struct kd_sha256 *h, const struct kd_tensor *t)
{
    int64_t n = t->bytes < FINGERPRINT_BYTES ? t->bytes : FINGERPRINT_BYTES;
    if (!t->data || !n)
        return;
    kd_sha256_add(h, t->data, (size_t)n);
    kd_sha256_add(h, t->data + (t->bytes - n) / 2, (size_t)n);
}

int kd_k3_ckpt_fingerprint(const struct kd_ckpt *ck, const struct kd_k3_cfg *cfg, char out[65],
                           struct kd_err *err)
{
    struct kd_sha256 h;
    if (kd_sha256_init(&h, err))
        return -1;
    /* The struct is zeroed before it is parsed, so its padding is the same for equal configs. */
    kd_sha256_add(&h, cfg, sizeof *cfg);
    int64_t n = kd_ckpt_count(ck), step = n / FINGERPRINT_TENSORS + 1;
    for (int64_t i = 0; i < n; i++) {
        const struct kd_tensor *t = kd_ckpt_at(ck, i);
        char line[256];
        int len = snprintf(line, sizeof line, "%d %d %lld %lld", (int)t->dtype, t->rank,
                           (long long)t->bytes, (long long)(t->rank > 0 ? t->shape[0] : 0));
        kd_sha256_add(&h, t->name, strlen(t->name) + 1);
        kd_sha256_add(&h, line, (size_t)len + 1);
        if (i % step == 0)
            sample_tensor(&h, t);
    }
    kd_sha256_hex(&h, out);
    return 0;
}

int kd_k3_fingerprint(const struct kd_k3_model *m, char out[65], struct kd_err *err)
{
    return kd_k3_ckpt_fingerprint(m->ck, &m->cfg, out, err);
}
