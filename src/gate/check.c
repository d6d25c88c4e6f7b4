#include "gate/check.h"

#include "base/mem.h"
#include "base/progress.h"
#include "gate/pass.h"
#include "gate/ref.h"
#include "gate/rows.h"
#include "gate/side.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LOGIT_BYTES = 32 << 20 };

/* What is at hand during a run. */
struct work {
    const struct kd_check_plan *plan;
    const struct kd_run *run;
    struct kd_check *c;
    struct kd_side src, dst;
    bool has_src;
    struct kd_ref ref;     /* with plan->ref_in */
    struct kd_ref_out out; /* with plan->ref_out */
    struct kd_ref_head head;
    struct kd_corpus text;
    const int32_t *ids, *doc;
    uint8_t *special;
    float *sample, *made_sample; /* [samples][hidden] of the source's stream, of the model's */
    struct kd_pos *pos;
};

void kd_check_name(char *out, size_t size, const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    size_t from = n;
    while (from > 0 && path[from - 1] != '/')
        from--;
    snprintf(out, size, "%.*s", (int)(n - from), path + from);
}

int kd_check_sizes_of(struct kd_check *c, const char *src, const char *dst, struct kd_err *err)
{
    struct kd_ckpt *a = NULL, *b = NULL;
    kd_check_name(c->src_name, sizeof c->src_name, src);
    kd_check_name(c->dst_name, sizeof c->dst_name, dst);
    int rc = kd_ckpt_open(&a, src, false, err) || kd_ckpt_open(&b, dst, false, err) ||
             kd_check_sizes(c, a, b, err);
    if (a)
        kd_ckpt_close(a);
    if (b)
        kd_ckpt_close(b);
    return rc ? -1 : 0;
}

static int same_shape(const struct kd_k3_cfg *a, const struct kd_k3_cfg *b, struct kd_err *err)
{
    if (a->hidden == b->hidden && a->layers == b->layers && a->dense_layers == b->dense_layers &&
        a->vocab == b->vocab && a->experts == b->experts && a->topk == b->topk)
        return 0;
    return kd_fail(err, KD_EINVAL,
                   "the two models differ in shape (hidden %lld and %lld, layers %lld and %lld, "
                   "vocabulary %lld and %lld, experts %lld and %lld)",
                   (long long)a->hidden, (long long)b->hidden, (long long)a->layers,
                   (long long)b->layers, (long long)a->vocab, (long long)b->vocab,
                   (long long)a->experts, (long long)b->experts);
}

static int load_text(struct work *w, const char *dir, int64_t rows, int64_t cols,
                     struct kd_err *err)
{
    return kd_check_rows(&w->text, &w->special, w->plan->text, dir, rows, cols, w->dst.cfg.vocab,
                         err);
}

static int refuse_other_text(const struct work *w, struct kd_err *err)
{
    const struct kd_ref_head *h = w->ref.head;
    if (w->text.rows != h->rows || w->text.cols != h->cols ||
        strcmp(w->text.sha256, h->text_sha256) != 0 ||
        memcmp(w->text.ids, w->ref.ids, (size_t)(h->rows * h->cols) * 4) != 0)
        return kd_fail(err, KD_EINVAL, "%s: the reference is of other text than %s",
                       w->plan->ref_in, w->plan->text);
    return 0;
}

/* A source given beside the reference, and the source that the receipt of dst names, must be the
 * reference's own. */
static int refuse_other_source(const struct work *w, struct kd_err *err)
{
    char id[65];
    const char *want = w->ref.head->source_id;
    if (w->has_src && kd_source_id(w->src.ck, id, err))
        return -1;
    if (w->has_src && strcmp(id, want) != 0)
        return kd_fail(err, KD_EINVAL, "%s: the reference is of another source than %s",
                       w->plan->ref_in, w->plan->src);
    if (kd_source_id_receipt(w->plan->dst, id, err))
        return -1;
    if (id[0] && strcmp(id, want) != 0)
        return kd_fail(err, KD_EINVAL, "%s: the reference is of another source than %s was made of",
                       w->plan->ref_in, w->plan->dst);
    return 0;
}

static int begin_ref(struct work *w, struct kd_err *err)
{
    const struct kd_check_plan *p = w->plan;
    if (kd_ref_open(&w->ref, p->ref_in, err))
        return -1;
    const struct kd_ref_head *h = w->ref.head;
    if (kd_ref_fits(&w->ref, &w->dst.cfg, err) || refuse_other_source(w, err))
        return -1;
    if ((p->rows && p->rows != h->rows) || (p->cols && p->cols != h->cols))
        return kd_fail(err, KD_EINVAL, "%s: the reference has %lld rows of %lld tokens", p->ref_in,
                       (long long)h->rows, (long long)h->cols);
    if (p->text && (load_text(w, p->dst, h->rows, h->cols, err) || refuse_other_text(w, err)))
        return -1;
    struct kd_check *c = w->c;
    c->rows = h->rows;
    c->cols = h->cols;
    c->docs = h->docs;
    c->src_weights = h->weights;
    c->src_file_bytes = h->file_bytes;
    w->ids = w->ref.ids;
    w->doc = w->ref.doc;
    snprintf(c->src_name, sizeof c->src_name, "%s", h->name);
    snprintf(c->text_sha256, sizeof c->text_sha256, "%.64s", h->text_sha256);
    return 0;
}

static int begin_text(struct work *w, struct kd_err *err)
{
    const struct kd_check_plan *p = w->plan;
    struct kd_check *c = w->c;
    if (!w->has_src)
        return kd_fail(err, KD_EUSAGE, "a source model or a reference (--ref) is needed");
    if (!p->text)
        return kd_fail(err, KD_EUSAGE, "the text to check on is needed (--text)");
    if (load_text(w, p->src, p->rows, p->cols ? p->cols : 512, err))
        return -1;
    c->rows = w->text.rows;
    c->cols = w->text.cols;
    c->docs = w->text.doc_count;
    w->ids = w->text.ids;
    w->doc = w->text.doc;
    snprintf(c->text_sha256, sizeof c->text_sha256, "%s", w->text.sha256);
    return 0;
}

static int begin_out(struct work *w, struct kd_err *err)
{
    const struct kd_check *c = w->c;
    const struct kd_k3_cfg *g = &w->src.cfg;
    w->head = (struct kd_ref_head){.rows = c->rows,
                                   .cols = c->cols,
                                   .docs = c->docs,
                                   .hidden = g->hidden,
                                   .layers = g->layers,
                                   .dense_layers = g->dense_layers,
                                   .vocab = g->vocab,
                                   .experts = g->experts,
                                   .topk = g->topk,
                                   .samples = c->stream_samples,
                                   .head_type = w->src.ends.head.type,
                                   .weights = c->src_weights,
                                   .file_bytes = c->src_file_bytes};
    snprintf(w->head.text_sha256, sizeof w->head.text_sha256, "%s", c->text_sha256);
    snprintf(w->head.name, sizeof w->head.name, "%s", c->src_name);
    if (kd_source_id(w->src.ck, w->head.source_id, err))
        return -1;
    return kd_ref_create(&w->out, w->plan->ref_out, &w->head, &w->text, w->special,
                         &w->src.ends.head, err);
}

static int begin(struct work *w, struct kd_err *err)
{
    const struct kd_check_plan *p = w->plan;
    struct kd_check *c = w->c;
    kd_check_name(c->dst_name, sizeof c->dst_name, p->dst);
    if (kd_side_open(&w->dst, p->dst, err))
        return -1;
    if (p->src) {
        kd_check_name(c->src_name, sizeof c->src_name, p->src);
        if (kd_side_open(&w->src, p->src, err) || same_shape(&w->src.cfg, &w->dst.cfg, err))
            return -1;
        w->has_src = true;
    }
    if (p->ref_in ? begin_ref(w, err) : begin_text(w, err))
        return -1;
    if (kd_check_sizes(c, p->ref_in ? NULL : w->src.ck, w->dst.ck, err))
        return -1;
    c->has_text = true;
    c->tokens = c->rows * c->cols;
    c->stream_samples = p->ref_in ? w->ref.head->samples : kd_check_samples(c->tokens);
    c->layer_count = w->dst.cfg.layers;
    if (kd_mem_zero(&c->layer, c->layer_count, sizeof *c->layer, "layers", err) ||
        kd_mem_new(&w->pos, c->tokens, sizeof *w->pos, "positions", err) ||
        kd_mem_new(&w->sample, c->stream_samples * w->dst.cfg.hidden, 4, "stream samples", err) ||
        kd_mem_new(&w->made_sample, c->stream_samples * w->dst.cfg.hidden, 4, "stream samples",
                   err))
        return -1;
    if (!p->ref_in &&
        kd_side_begin(&w->src, w->run, w->ids, c->rows, c->cols, true, p->work, "src", err))
        return -1;
    if (p->made)
        kd_side_go_on(&w->dst, kd_pass_side(p->made));
    else if (kd_side_begin(&w->dst, w->run, w->ids, c->rows, c->cols, false, p->work, "dst", err))
        return -1;
    return p->ref_out ? begin_out(w, err) : 0;
}

/* The sampled rows of a stream. */
static void sample(const struct work *w, const float *stream, float *out)
{
    int64_t hidden = w->dst.cfg.hidden, n = w->c->stream_samples;
    for (int64_t i = 0; i < n; i++)
        memcpy(out + i * hidden, stream + kd_check_sample(w->c->tokens, n, i) * hidden,
               (size_t)hidden * 4);
}

/* |p_dst - p_src| / |p_src| over samples. */
static double stream_error(const struct work *w, const float *src, const float *dst)
{
    double diff = 0, base = 0;
    int64_t n = w->c->stream_samples * w->dst.cfg.hidden;
    for (int64_t i = 0; i < n; i++) {
        double x = (double)src[i], d = (double)dst[i] - x;
        diff += d * d;
        base += x * x;
    }
    return base > 0 ? sqrt(diff / base) : 0;
}

/* The model's side of a layer against the source's: computed now, or while it was made. */
static int hold_against(struct work *w, int64_t l, const struct kd_pass_kept *src,
                        struct kd_err *err)
{
    const struct kd_check_plan *p = w->plan;
    struct kd_check_layer *L = &w->c->layer[l];
    struct kd_pass_kept dst = {.ids = w->dst.ids, .stream = w->made_sample};
    if (p->made ? kd_pass_load(p->made, l, &dst, err)
                : kd_side_layer(&w->dst, w->run, l, p->stop, err))
        return kd_wrap(err, "%s", w->c->dst_name);
    if (!p->made)
        sample(w, w->dst.p, w->made_sample);
    if (L->moe)
        kd_router_add(&L->agree, src->ids, dst.ids, src->margin, w->c->tokens, w->dst.cfg.topk);
    L->stream = stream_error(w, src->stream, dst.stream);
    kd_map_release(&dst.map);
    return 0;
}

static int run_layer(struct work *w, int64_t l, struct kd_err *err)
{
    const struct kd_check_plan *p = w->plan;
    struct kd_check_layer *L = &w->c->layer[l];
    struct kd_pass_kept src = {.ids = w->src.ids, .margin = w->src.margin, .stream = w->sample};
    L->moe = kd_k3_is_moe(&w->dst.cfg, l);
    if (p->ref_in) {
        kd_ref_layer(&w->ref, l, &src.ids, &src.margin, &src.stream);
    } else {
        if (kd_side_layer(&w->src, w->run, l, p->stop, err))
            return kd_wrap(err, "source");
        sample(w, w->src.p, w->sample);
    }
    if (p->ref_out && kd_ref_put_layer(&w->out, &w->head, L->moe ? src.ids : NULL,
                                       L->moe ? src.margin : NULL, src.stream, err))
        return -1;
    return hold_against(w, l, &src, err);
}

static int compare(struct work *w, struct kd_err *err)
{
    const struct kd_check *c = w->c;
    int64_t hidden = w->dst.cfg.hidden, vocab = w->dst.cfg.vocab, n = LOGIT_BYTES / 4 / vocab;
    n = n < 1 ? 1 : n > 256 ? 256 : n;
    const float *h = w->plan->ref_in ? w->ref.hidden : w->src.p;
    const struct kd_mat *head = w->plan->ref_in ? &w->ref.lm_head : &w->src.ends.head;
    float *a, *b;
    int32_t next[256];
    if (kd_mem_new(&a, 2 * n * vocab, sizeof *a, "logits", err))
        return -1;
    b = a + n * vocab;
    int rc = 0;
    for (int64_t t = 0; t < c->tokens && !rc; t += n) {
        int64_t count = c->tokens - t < n ? c->tokens - t : n;
        for (int64_t i = 0; i < count; i++)
            next[i] = (t + i + 1) % c->cols ? w->ids[t + i + 1] : -1;
        if (w->plan->stop && *w->plan->stop)
            rc = kd_fail(err, KD_ECANCEL, "stopped at the logits");
        else if (kd_mat_mul(w->run, head, h + t * hidden, hidden, count, a, vocab, err) ||
                 kd_mat_mul(w->run, &w->dst.ends.head, w->dst.p + t * hidden, hidden, count, b,
                            vocab, err))
            rc = -1;
        else
            kd_kld_block(w->run, a, b, vocab, next, count, w->pos + t);
        kd_progress_add(count, "logits");
    }
    kd_mem_free(a);
    return rc;
}

static int measure(struct work *w, struct kd_err *err)
{
    struct kd_check *c = w->c;
    int64_t sides = !w->plan->ref_in + !w->plan->made;
    int64_t passes = sides * c->layer_count + 1;
    kd_progress_begin("check", "tokens", passes * c->tokens, 0);
    for (int64_t l = 0; l < c->layer_count; l++) {
        char note[64];
        snprintf(note, sizeof note, "layer %lld of %lld", (long long)l + 1,
                 (long long)c->layer_count);
        kd_progress_add(0, note);
        if (run_layer(w, l, err))
            return -1;
    }
    if (!w->plan->ref_in && kd_side_final(&w->src, w->run, err))
        return -1;
    if (kd_side_final(&w->dst, w->run, err))
        return -1;
    if (w->plan->ref_out &&
        (kd_ref_put(&w->out, w->src.p, c->tokens * w->src.cfg.hidden * 4, err) ||
         kd_ref_commit(&w->out, err)))
        return -1;
    return compare(w, err);
}

/* A position is a control position when its own token or the next one of its row is special. */
static int figures(struct work *w, struct kd_err *err)
{
    const struct kd_check *c = w->c;
    const uint8_t *special = w->plan->ref_in ? w->ref.special : w->special;
    uint8_t *control;
    if (kd_mem_new(&control, c->tokens, 1, "control positions", err))
        return -1;
    for (int64_t i = 0; i < c->tokens; i++)
        control[i] = special[i] || ((i + 1) % c->cols && special[i + 1]);
    int rc = kd_check_figures(w->c, w->pos, w->doc, control, err);
    kd_mem_free(control);
    return rc;
}

int kd_check_run(struct kd_check *c, const struct kd_run *run, const struct kd_check_plan *plan,
                 struct kd_err *err)
{
    struct work w = {.plan = plan, .run = run, .c = c};
    memset(c, 0, sizeof *c);
    if (plan->ref_in && plan->ref_out)
        return kd_fail(err, KD_EUSAGE, "--ref and --save-ref do not go together");
    int rc = begin(&w, err) || measure(&w, err) || figures(&w, err) ? -1 : 0;
    kd_progress_end();
    kd_ref_abort(&w.out);
    kd_ref_close(&w.ref);
    kd_side_close(&w.src);
    kd_side_close(&w.dst);
    kd_corpus_release(&w.text);
    kd_mem_free(w.special);
    kd_mem_free(w.sample);
    kd_mem_free(w.made_sample);
    kd_mem_free(w.pos);
    return rc;
}
