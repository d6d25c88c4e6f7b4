#include "gate/report.h"

#include <math.h>
#include <stdio.h>

static void interval(struct kd_jw *w, const char *key, struct kd_interval i)
{
    kd_jw_open(w, key, '[');
    kd_jw_num(w, NULL, i.lo);
    kd_jw_num(w, NULL, i.hi);
    kd_jw_close(w, ']');
}

/* null where nothing was measured. */
static void num_or_null(struct kd_jw *w, const char *key, bool there, double value)
{
    if (there)
        kd_jw_num(w, key, value);
    else
        kd_jw_null(w, key);
}

static void kld(struct kd_jw *w, const struct kd_check *c)
{
    kd_jw_open(w, "kld", '{');
    kd_jw_num(w, "mean", c->kld_mean);
    interval(w, "interval", c->kld_range);
    kd_jw_num(w, "median", c->kld_median);
    kd_jw_num(w, "p95", c->kld_p95);
    kd_jw_num(w, "p99", c->kld_p99);
    kd_jw_num(w, "max", c->kld_max);
    kd_jw_open(w, "histogram", '[');
    for (int b = 0; b < KD_KLD_BINS; b++) {
        kd_jw_open(w, NULL, '{');
        kd_jw_num(w, "from", kd_kld_bin_floor(b));
        kd_jw_int(w, "tokens", c->kld_bin[b]);
        kd_jw_close(w, '}');
    }
    kd_jw_close(w, ']');
    kd_jw_close(w, '}');
    kd_jw_num(w, "top1", c->top1);
    interval(w, "top1_interval", c->top1_range);
    kd_jw_open(w, "bootstrap", '{');
    kd_jw_str(w, "over", c->by_documents ? "documents" : "rows");
    kd_jw_int(w, "clusters", c->clusters);
    kd_jw_close(w, '}');
    kd_jw_open(w, "ppl", '{');
    kd_jw_num(w, "src", c->ppl_src);
    kd_jw_num(w, "dst", c->ppl_dst);
    kd_jw_close(w, '}');
}

static void margins(struct kd_jw *w, const struct kd_check *c)
{
    kd_jw_open(w, "margins", '[');
    for (int b = 0; b < KD_MARGIN_BINS; b++) {
        int64_t kept = 0, lost = 0;
        for (int64_t l = 0; l < c->layer_count; l++) {
            kept += c->layer[l].agree.bin_kept[b];
            lost += c->layer[l].agree.bin_lost[b];
        }
        kd_jw_open(w, NULL, '{');
        kd_jw_num(w, "from", kd_router_bin_floor(b));
        kd_jw_int(w, "kept", kept);
        kd_jw_int(w, "lost", lost);
        kd_jw_close(w, '}');
    }
    kd_jw_close(w, ']');
}

static void router(struct kd_jw *w, const struct kd_check *c)
{
    int64_t ties = 0;
    kd_jw_open(w, "router", '{');
    kd_jw_num(w, "mean", c->router_mean);
    kd_jw_num(w, "min", c->router_min);
    kd_jw_int(w, "min_layer", c->router_min_layer);
    kd_jw_open(w, "layers", '[');
    for (int64_t l = 0; l < c->layer_count; l++)
        if (c->layer[l].moe)
            kd_jw_num(w, NULL, c->layer[l].share);
    kd_jw_close(w, ']');
    kd_jw_open(w, "layer_ids", '[');
    for (int64_t l = 0; l < c->layer_count; l++)
        if (c->layer[l].moe)
            kd_jw_int(w, NULL, l);
    kd_jw_close(w, ']');
    kd_jw_open(w, "whole_sets", '[');
    for (int64_t l = 0; l < c->layer_count; l++)
        if (c->layer[l].moe) {
            const struct kd_agreement *a = &c->layer[l].agree;
            kd_jw_num(w, NULL, (double)a->whole / (double)a->tokens);
            ties += a->ties;
        }
    kd_jw_close(w, ']');
    kd_jw_int(w, "ties", ties);
    margins(w, c);
    kd_jw_close(w, '}');
    kd_jw_open(w, "stream", '{');
    kd_jw_int(w, "positions", c->stream_samples);
    kd_jw_open(w, "relative_error", '[');
    for (int64_t l = 0; l < c->layer_count; l++)
        kd_jw_num(w, NULL, c->layer[l].stream);
    kd_jw_close(w, ']');
    kd_jw_close(w, '}');
}

static void positions(struct kd_jw *w, const struct kd_check *c)
{
    kd_jw_open(w, "control", '{');
    kd_jw_int(w, "tokens", c->control_tokens);
    num_or_null(w, "kld", c->control_tokens > 0, c->control_kld);
    num_or_null(w, "top1", c->control_tokens > 0, c->control_top1);
    num_or_null(w, "kld_elsewhere", c->control_tokens < c->tokens, c->plain_kld);
    kd_jw_close(w, '}');
    kd_jw_open(w, "bands", '[');
    for (int b = 0; b < KD_BANDS && c->band[b].tokens; b++) {
        kd_jw_open(w, NULL, '{');
        kd_jw_int(w, "from", c->band[b].first);
        kd_jw_int(w, "tokens", c->band[b].tokens);
        kd_jw_num(w, "kld", c->band[b].kld);
        kd_jw_num(w, "top1", c->band[b].top1);
        kd_jw_close(w, '}');
    }
    kd_jw_close(w, ']');
}

static void sizes(struct kd_jw *w, const struct kd_check *c)
{
    const struct kd_sizes *d = &c->dst;
    if (!d->file_bytes) {
        kd_jw_null(w, "bits");
        kd_jw_null(w, "bytes");
        return;
    }
    kd_jw_open(w, "bits", '{');
    num_or_null(w, "experts", c->bits_experts > 0, c->bits_experts);
    num_or_null(w, "experts_real", c->bits_experts_real > 0, c->bits_experts_real);
    num_or_null(w, "trunk", c->bits_trunk > 0, c->bits_trunk);
    num_or_null(w, "trunk_real", c->bits_trunk_real > 0, c->bits_trunk_real);
    num_or_null(w, "head", d->k[KD_PART_HEAD] > 0, d->k[KD_PART_HEAD]);
    num_or_null(w, "file", c->bits_file > 0, c->bits_file);
    kd_jw_close(w, '}');
    kd_jw_open(w, "bytes", '{');
    for (int p = 0; p < KD_PART_COUNT; p++)
        kd_jw_int(w, kd_part_name((enum kd_part_kind)p), d->bytes[p]);
    kd_jw_int(w, "file", d->file_bytes);
    kd_jw_int(w, "source_file", c->src_file_bytes);
    kd_jw_int(w, "source_weights", c->src_weights);
    kd_jw_close(w, '}');
}

static void interval_or_null(struct kd_jw *w, const char *key, bool there, struct kd_interval i)
{
    if (there)
        interval(w, key, i);
    else
        kd_jw_null(w, key);
}

static void int_or_null(struct kd_jw *w, const char *key, bool there, int64_t value)
{
    if (there)
        kd_jw_int(w, key, value);
    else
        kd_jw_null(w, key);
}

static void flips(struct kd_jw *w, const char *key, const struct kd_flips *f, int64_t n,
                  bool paired)
{
    kd_jw_open(w, key, '{');
    num_or_null(w, "src", paired, (double)f->src_right / (double)n);
    interval_or_null(w, "src_interval", paired, f->src_range);
    kd_jw_num(w, "dst", (double)f->dst_right / (double)n);
    interval(w, "dst_interval", f->dst_range);
    int_or_null(w, "right_to_wrong", paired, f->lost);
    int_or_null(w, "wrong_to_right", paired, f->gained);
    num_or_null(w, "change", paired, (double)(f->gained - f->lost) / (double)n);
    interval_or_null(w, "change_interval", paired, f->change);
    num_or_null(w, "mcnemar_p", paired, f->probability);
    kd_jw_close(w, '}');
}

static void remote(struct kd_jw *w, const struct kd_battery_remote *r)
{
    kd_jw_open(w, "endpoint", '{');
    kd_jw_str(w, "url", r->url);
    kd_jw_str(w, "model", r->model);
    kd_jw_int(w, "refused", r->refused);
    if (r->refused)
        kd_jw_str(w, "first_refusal", r->why);
    kd_jw_bool(w, "shows_thinking", r->shows_thinking);
    kd_jw_int(w, "thinking_expected", r->think_wanted);
    kd_jw_int(w, "thinking_shown", r->think_shown);
    kd_jw_close(w, '}');
}

static void battery(struct kd_jw *w, const struct kd_battery *b)
{
    kd_jw_open(w, "battery", '{');
    kd_jw_str(w, "sha256", b->sha256);
    kd_jw_int(w, "requests", b->requests);
    int_or_null(w, "tokens", b->tokens > 0, b->tokens);
    num_or_null(w, "kld", b->has_kld, b->kld);
    num_or_null(w, "top1", b->has_kld, b->top1);
    flips(w, "exact", &b->exact, b->requests, b->paired);
    flips(w, "calls", &b->calls, b->requests, b->paired);
    if (b->is_remote)
        remote(w, &b->remote);
    kd_jw_close(w, '}');
}

void kd_report_members(struct kd_jw *w, const struct kd_check *c)
{
    if (c->has_text) {
        kd_jw_open(w, "text", '{');
        kd_jw_str(w, "sha256", c->text_sha256);
        kd_jw_int(w, "rows", c->rows);
        kd_jw_int(w, "cols", c->cols);
        kd_jw_int(w, "documents", c->docs);
        kd_jw_close(w, '}');
        kd_jw_int(w, "tokens", c->tokens);
        kld(w, c);
        router(w, c);
        positions(w, c);
    }
    sizes(w, c);
    if (c->has_battery)
        battery(w, &c->battery);
}

void kd_report_verdict_members(struct kd_jw *w, const struct kd_verdict *v)
{
    if (v->count)
        kd_jw_bool(w, "pass", v->pass);
    else
        kd_jw_null(w, "pass");
    kd_jw_open(w, "requirements", '[');
    for (int i = 0; i < v->count; i++) {
        const struct kd_require *r = &v->r[i];
        kd_jw_open(w, NULL, '{');
        kd_jw_str(w, "figure", r->figure);
        kd_jw_num(w, r->at_most ? "at_most" : "at_least", r->bound);
        num_or_null(w, "value", r->measured, r->value);
        kd_jw_bool(w, "pass", r->pass);
        kd_jw_close(w, '}');
    }
    kd_jw_close(w, ']');
}

void kd_report_json(struct kd_buf *out, const struct kd_check *c, const struct kd_verdict *v)
{
    struct kd_jw w = {.out = out};
    kd_jw_open(&w, NULL, '{');
    kd_jw_str(&w, "made_by", "Kondense " KD_VERSION);
    kd_report_verdict_members(&w, v);
    kd_report_members(&w, c);
    kd_jw_close(&w, '}');
    kd_buf_char(out, '\n');
}
