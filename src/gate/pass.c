#include "gate/pass.h"

#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "gate/check.h"
#include "gate/ref.h"
#include "gate/rows.h"

#include <stdio.h>
#include <string.h>

/* Before the stream of a saved pass. The hash covers what follows it. */
struct saved {
    char magic[8]; /* "KDPASS01" */
    int64_t layer; /* the next one */
    int64_t banks, started, bytes;
    uint64_t hash;
};
static const char magic[8] = "KDPASS01";

struct kd_pass {
    const struct kd_run *run;
    struct kd_pass_plan plan; /* work and name: the copies below */
    char work[4096], name[128];
    struct kd_side side;
    struct kd_corpus own;         /* of the source's half */
    const struct kd_corpus *text; /* own, or the source's */
    uint8_t *special;
    float *sample; /* [samples][hidden] */
    int64_t samples, tokens, next;
};

static int path_of(const struct kd_pass *p, char *out, size_t size, const char *name, int64_t no,
                   struct kd_err *err)
{
    char file[64];
    if (no < 0)
        snprintf(file, sizeof file, "%s", name);
    else
        snprintf(file, sizeof file, "%s.%03lld", name, (long long)no);
    return kd_path_join(out, size, p->plan.work, file, err);
}

/* Head and data as one file, whole or not at all. */
static int save(const struct kd_pass *p, const char *name, int64_t no, const struct saved *head,
                const void *data, struct kd_err *err)
{
    char path[4096];
    struct kd_outfile f;
    if (path_of(p, path, sizeof path, name, no, err) || kd_out_open(&f, path, err))
        return -1;
    if (kd_out_write(&f, head, sizeof *head, err) || kd_out_write(&f, data, head->bytes, err)) {
        kd_out_abort(&f);
        return -1;
    }
    return kd_out_commit(&f, err);
}

/* Maps a saved file and checks it; bytes -1: any size. */
static int load(const struct kd_pass *p, const char *name, int64_t no, int64_t bytes,
                struct kd_map *m, struct saved *head, struct kd_err *err)
{
    char path[4096];
    if (path_of(p, path, sizeof path, name, no, err) || kd_file_map(m, path, err))
        return -1;
    bool sound = m->size_bytes >= (int64_t)sizeof *head;
    if (sound) {
        memcpy(head, m->data, sizeof *head);
        sound = !memcmp(head->magic, magic, sizeof magic) && head->bytes >= 0 &&
                head->bytes == m->size_bytes - (int64_t)sizeof *head &&
                (bytes < 0 || head->bytes == bytes) &&
                head->hash == kd_xxh64(m->data + sizeof *head, (size_t)head->bytes, 1);
    }
    if (sound)
        return 0;
    kd_map_release(m);
    return kd_fail(err, KD_ECORRUPT, "'%s' is damaged; remove '%s' and check afterwards instead",
                   path, p->plan.work);
}

static struct saved head_of(const struct kd_pass *p, const void *data, int64_t bytes)
{
    struct saved h = {.layer = p->next,
                      .banks = p->side.banks,
                      .started = p->side.started,
                      .bytes = bytes,
                      .hash = kd_xxh64(data, (size_t)bytes, 1)};
    memcpy(h.magic, magic, sizeof magic);
    return h;
}

static int64_t plane_bytes(const struct kd_pass *p)
{
    return p->tokens * p->side.cfg.hidden * (int64_t)sizeof(float);
}

/* What the saved pass is of: other text or rows make another pass. */
static int settings(const struct kd_pass *p, struct kd_err *err)
{
    char path[4096];
    struct kd_buf now, old;
    kd_buf_init(&now, 4096);
    kd_buf_init(&old, 4096);
    struct kd_jw w = {.out = &now};
    kd_jw_open(&w, NULL, '{');
    kd_jw_str(&w, "text_sha256", p->text->sha256);
    kd_jw_int(&w, "rows", p->text->rows);
    kd_jw_int(&w, "cols", p->text->cols);
    kd_jw_int(&w, "layers", p->side.cfg.layers);
    kd_jw_int(&w, "hidden", p->side.cfg.hidden);
    kd_jw_close(&w, '}');
    kd_buf_char(&now, '\n');
    int rc = kd_buf_ok(&now, "settings", err) || kd_dir_make(p->plan.work, err) ||
             path_of(p, path, sizeof path, "pass.json", -1, err);
    if (!rc && kd_file_exists(path)) {
        rc = kd_file_read(&old, path, 4096, err);
        if (!rc &&
            (old.size_bytes != now.size_bytes || memcmp(old.data, now.data, now.size_bytes) != 0))
            rc = kd_fail(err, KD_EUSAGE,
                         "the check was begun with other text or rows (compare %s): give the same, "
                         "or convert without it and check afterwards",
                         path);
    } else if (!rc) {
        rc = kd_file_write(path, now.data, now.size_bytes, err);
    }
    kd_buf_release(&now);
    kd_buf_release(&old);
    return rc ? -1 : 0;
}

/* Takes up the saved stream and banks, where there are any. */
static int take_up(struct kd_pass *p, struct kd_err *err)
{
    char path[4096];
    struct kd_map m;
    struct saved h;
    int64_t plane = plane_bytes(p);
    if (path_of(p, path, sizeof path, "stream", -1, err))
        return -1;
    if (!kd_file_exists(path))
        return 0;
    if (load(p, "stream", -1, plane, &m, &h, err))
        return -1;
    memcpy(p->side.p, m.data + sizeof h, (size_t)plane);
    kd_map_release(&m);
    if (h.layer < 1 || h.layer > p->side.cfg.layers || h.banks < 0 ||
        h.banks > kd_k3_banks(&p->side.cfg))
        return kd_fail(err, KD_ECORRUPT, "'%s' is damaged", path);
    p->next = h.layer;
    p->side.banks = h.banks;
    p->side.started = h.started != 0;
    for (int64_t b = 0; b < h.banks; b++) {
        struct saved bank;
        if (load(p, "bank", b, plane, &m, &bank, err))
            return -1;
        memcpy(p->side.bank + b * p->tokens * p->side.cfg.hidden, m.data + sizeof bank,
               (size_t)plane);
        kd_map_release(&m);
    }
    return 0;
}

static int begin(struct kd_pass *p, struct kd_ckpt *ck, struct kd_err *err)
{
    const struct kd_pass_plan *plan = &p->plan;
    if (kd_side_take(&p->side, ck, err))
        return -1;
    p->side.quiet = true;
    p->text = plan->of ? plan->of->text : &p->own;
    if ((!plan->of && kd_check_rows(&p->own, &p->special, plan->text, kd_ckpt_dir(ck), plan->rows,
                                    plan->cols ? plan->cols : 512, p->side.cfg.vocab, err)) ||
        settings(p, err))
        return -1;
    p->tokens = p->text->rows * p->text->cols;
    p->samples = kd_check_samples(p->tokens);
    if (kd_mem_new(&p->sample, p->samples * p->side.cfg.hidden, sizeof *p->sample, "stream samples",
                   err) ||
        kd_side_begin(&p->side, p->run, p->text->ids, p->text->rows, p->text->cols, !plan->of,
                      plan->work, "src", err))
        return -1;
    return take_up(p, err);
}

int kd_pass_open(struct kd_pass **out, const struct kd_run *run, struct kd_ckpt *ck,
                 const struct kd_pass_plan *plan, struct kd_err *err)
{
    struct kd_pass *p;
    *out = NULL;
    if (kd_mem_zero(&p, 1, sizeof *p, "check", err))
        return -1;
    p->run = run;
    p->plan = *plan;
    p->plan.work = p->work;
    p->plan.name = p->name;
    snprintf(p->name, sizeof p->name, "%s", plan->name);
    if (snprintf(p->work, sizeof p->work, "%s", plan->work) >= (int)sizeof p->work) {
        kd_mem_free(p);
        return kd_fail(err, KD_EINVAL, "path '%.60s...' is too long", plan->work);
    }
    if (begin(p, ck, err)) {
        kd_pass_close(p);
        return kd_wrap(err, "check");
    }
    *out = p;
    return 0;
}

int64_t kd_pass_next(const struct kd_pass *p)
{
    return p->next;
}

/* Routing [T][topk] of MoE layers, margins [T] of those of the source, samples [samples][hidden].
 */
static int64_t layer_bytes(const struct kd_pass *p, int64_t layer)
{
    const struct kd_k3_cfg *c = &p->side.cfg;
    int64_t routed = kd_k3_is_moe(c, layer) ? p->tokens * (c->topk + !p->plan.of) * 4 : 0;
    return routed + p->samples * c->hidden * 4;
}

static int save_layer(struct kd_pass *p, int64_t layer, struct kd_err *err)
{
    const struct kd_k3_cfg *c = &p->side.cfg;
    int64_t bytes = layer_bytes(p, layer), ids = p->tokens * c->topk * 4, margin = p->tokens * 4;
    uint8_t *all, *at;
    if (kd_mem_new(&all, bytes, 1, "routing", err))
        return -1;
    at = all;
    if (kd_k3_is_moe(c, layer)) {
        memcpy(at, p->side.ids, (size_t)ids);
        at += ids;
    }
    if (kd_k3_is_moe(c, layer) && !p->plan.of) {
        memcpy(at, p->side.margin, (size_t)margin);
        at += margin;
    }
    memcpy(at, p->sample, (size_t)(p->samples * c->hidden * 4));
    struct saved h = head_of(p, all, bytes);
    int rc = save(p, "layer", layer, &h, all, err);
    kd_mem_free(all);
    return rc;
}

int kd_pass_load(const struct kd_pass *p, int64_t layer, struct kd_pass_kept *k, struct kd_err *err)
{
    const struct kd_k3_cfg *c = &p->side.cfg;
    struct saved h;
    memset(k, 0, sizeof *k);
    if (load(p, "layer", layer, layer_bytes(p, layer), &k->map, &h, err))
        return -1;
    const uint8_t *at = k->map.data + sizeof h;
    if (kd_k3_is_moe(c, layer)) {
        k->ids = (const void *)at;
        at += p->tokens * c->topk * 4;
    }
    if (k->ids && !p->plan.of) {
        k->margin = (const void *)at;
        at += p->tokens * 4;
    }
    k->stream = (const void *)at;
    return 0;
}

const struct kd_side *kd_pass_side(const struct kd_pass *p)
{
    return &p->side;
}

int kd_pass_layer(struct kd_pass *p, struct kd_ckpt *ck, struct kd_err *err)
{
    struct kd_side *s = &p->side;
    int64_t layer = p->next, banks = s->banks, hidden = s->cfg.hidden;
    if (layer >= s->cfg.layers)
        return 0;
    if (ck ? kd_side_layer_of(s, p->run, ck, layer, p->plan.stop, err)
           : kd_side_layer(s, p->run, layer, p->plan.stop, err))
        return kd_wrap(err, p->plan.of ? "check of the model" : "check of the source");
    for (int64_t i = 0; i < p->samples; i++)
        memcpy(p->sample + i * hidden, s->p + kd_check_sample(p->tokens, p->samples, i) * hidden,
               (size_t)hidden * 4);
    p->next++;
    for (int64_t b = banks; b < s->banks; b++) {
        const float *bank = s->bank + b * p->tokens * hidden;
        struct saved h = head_of(p, bank, plane_bytes(p));
        if (save(p, "bank", b, &h, bank, err))
            return -1;
    }
    struct saved h = head_of(p, s->p, plane_bytes(p));
    /* The stream comes last: it says that the layer is done. */
    return save_layer(p, layer, err) || save(p, "stream", -1, &h, s->p, err) ? -1 : 0;
}

static int write_ref(struct kd_pass *p, struct kd_ref_out *out, const char *ref,
                     const struct kd_ref_head *head, struct kd_err *err)
{
    const struct kd_k3_cfg *c = &p->side.cfg;
    if (kd_ref_create(out, ref, head, p->text, p->special, &p->side.ends.head, err))
        return -1;
    for (int64_t l = 0; l < c->layers; l++) {
        struct kd_pass_kept k;
        if (kd_pass_load(p, l, &k, err))
            return -1;
        int rc = kd_ref_put_layer(out, head, k.ids, k.margin, k.stream, err);
        kd_map_release(&k.map);
        if (rc)
            return -1;
    }
    if (kd_side_final(&p->side, p->run, err) || kd_ref_put(out, p->side.p, plane_bytes(p), err))
        return -1;
    return kd_ref_commit(out, err);
}

int kd_pass_finish(struct kd_pass *p, const char *ref, const char *source_id, struct kd_err *err)
{
    const struct kd_k3_cfg *c = &p->side.cfg;
    struct kd_sizes sizes;
    struct kd_ref_out out = {.open = false};
    if (kd_sizes_of(p->side.ck, &sizes, err))
        return -1;
    struct kd_ref_head head = {.rows = p->text->rows,
                               .cols = p->text->cols,
                               .docs = p->text->doc_count,
                               .hidden = c->hidden,
                               .layers = c->layers,
                               .dense_layers = c->dense_layers,
                               .vocab = c->vocab,
                               .experts = c->experts,
                               .topk = c->topk,
                               .samples = p->samples,
                               .head_type = p->side.ends.head.type,
                               .weights = kd_sizes_weights(&sizes),
                               .file_bytes = sizes.file_bytes};
    snprintf(head.text_sha256, sizeof head.text_sha256, "%s", p->text->sha256);
    snprintf(head.source_id, sizeof head.source_id, "%s", source_id);
    snprintf(head.name, sizeof head.name, "%s", p->plan.name);
    int rc = write_ref(p, &out, ref, &head, err);
    kd_ref_abort(&out);
    return rc ? kd_wrap(err, "check of the source") : 0;
}

void kd_pass_close(struct kd_pass *p)
{
    if (!p)
        return;
    kd_side_close(&p->side);
    kd_corpus_release(&p->own);
    kd_mem_free(p->special);
    kd_mem_free(p->sample);
    kd_mem_free(p);
}
