/* Positions in, figures out. */
#include "base/mem.h"
#include "gate/check.h"
#include "num/logsum.h"

#include <string.h>

enum { CLUSTERS_MIN = 10 }; /* fewer documents than this: rows are drawn instead */
static const uint64_t seed = 0x6b6c64u;
static const int64_t band_first[KD_BANDS] = {0, 64, 256, 1024, 4096};

double kd_kld_bin_floor(int bin)
{
    double edge = 1.0 / 2097152.0; /* 2^-21 */
    for (int i = 0; i < bin; i++)
        edge *= 2;
    return bin ? edge : 0;
}

static int bin_of(double kld)
{
    double edge = 1.0 / 1048576.0;
    int bin = 0;
    while (bin < KD_KLD_BINS - 1 && kld >= edge) {
        edge *= 2;
        bin++;
    }
    return bin;
}

static int spread(struct kd_check *c, const struct kd_pos *pos, struct kd_err *err)
{
    double *v;
    if (kd_mem_new(&v, c->tokens, sizeof *v, "KLD of positions", err))
        return -1;
    int64_t same = 0;
    memset(c->kld_bin, 0, sizeof c->kld_bin);
    for (int64_t i = 0; i < c->tokens; i++) {
        v[i] = pos[i].kld;
        c->kld_bin[bin_of(v[i])]++;
        same += pos[i].top_src == pos[i].top_dst;
    }
    c->kld_mean = kd_stats_mean(v, c->tokens);
    c->top1 = (double)same / (double)c->tokens;
    kd_stats_sort(v, c->tokens);
    c->kld_median = kd_stats_quantile(v, c->tokens, 0.5);
    c->kld_p95 = kd_stats_quantile(v, c->tokens, 0.95);
    c->kld_p99 = kd_stats_quantile(v, c->tokens, 0.99);
    c->kld_max = v[c->tokens - 1];
    c->ppl_src = kd_ppl_src(pos, c->tokens);
    c->ppl_dst = kd_ppl_dst(pos, c->tokens);
    kd_mem_free(v);
    return 0;
}

static void bands(struct kd_check *c, const struct kd_pos *pos)
{
    for (int b = 0; b < KD_BANDS; b++) {
        int64_t end = b + 1 < KD_BANDS ? band_first[b + 1] : c->cols, n = 0, same = 0;
        double sum = 0;
        for (int64_t i = 0; i < c->tokens; i++)
            if (i % c->cols >= band_first[b] && i % c->cols < end) {
                sum += pos[i].kld;
                same += pos[i].top_src == pos[i].top_dst;
                n++;
            }
        c->band[b] = (struct kd_band){.first = band_first[b], .tokens = n};
        if (n) {
            c->band[b].kld = sum / (double)n;
            c->band[b].top1 = (double)same / (double)n;
        }
    }
}

static void controls(struct kd_check *c, const struct kd_pos *pos, const uint8_t *control)
{
    double sum = 0, rest = 0;
    int64_t n = 0, same = 0;
    for (int64_t i = 0; i < c->tokens; i++) {
        if (!control[i]) {
            rest += pos[i].kld;
            continue;
        }
        sum += pos[i].kld;
        same += pos[i].top_src == pos[i].top_dst;
        n++;
    }
    c->control_tokens = n;
    c->control_kld = n ? sum / (double)n : 0;
    c->control_top1 = n ? (double)same / (double)n : 0;
    c->plain_kld = n < c->tokens ? rest / (double)(c->tokens - n) : 0;
}

/* Sums of clusters: by document, or by row where there are few documents. */
static int ranges(struct kd_check *c, const struct kd_pos *pos, const int32_t *doc,
                  struct kd_err *err)
{
    int64_t all = c->docs > c->rows ? c->docs : c->rows, used = 0;
    double *sum;
    if (kd_mem_zero(&sum, 3 * all, sizeof *sum, "sums of documents", err))
        return -1;
    double *same = sum + all, *weight = same + all;
    for (int pass = 0; pass < 2; pass++) {
        c->by_documents = pass == 0;
        memset(sum, 0, (size_t)(3 * all) * sizeof *sum);
        for (int64_t i = 0; i < c->tokens; i++) {
            int64_t at = c->by_documents ? doc[i] : i / c->cols;
            sum[at] += pos[i].kld;
            same[at] += pos[i].top_src == pos[i].top_dst;
            weight[at] += 1;
        }
        used = 0;
        for (int64_t i = 0; i < all; i++)
            if (weight[i] > 0) {
                sum[used] = sum[i];
                same[used] = same[i];
                weight[used++] = weight[i];
            }
        if (used >= CLUSTERS_MIN)
            break;
    }
    c->clusters = used;
    int rc = kd_stats_bootstrap(sum, weight, used, seed, &c->kld_range, err);
    if (!rc)
        rc = kd_stats_bootstrap(same, weight, used, seed, &c->top1_range, err);
    kd_mem_free(sum);
    return rc;
}

static void routers(struct kd_check *c)
{
    double sum = 0;
    int64_t n = 0;
    c->router_min = 1;
    c->router_min_layer = -1;
    for (int64_t l = 0; l < c->layer_count; l++) {
        struct kd_check_layer *L = &c->layer[l];
        if (!L->moe)
            continue;
        L->share = kd_router_share(&L->agree);
        sum += L->share;
        n++;
        if (L->share < c->router_min || c->router_min_layer < 0) {
            c->router_min = L->share;
            c->router_min_layer = l;
        }
    }
    c->router_mean = n ? sum / (double)n : 1;
}

int kd_check_figures(struct kd_check *c, const struct kd_pos *pos, const int32_t *doc,
                     const uint8_t *control, struct kd_err *err)
{
    for (int64_t i = 0; i < c->tokens; i++)
        if (pos[i].bad)
            return kd_fail(err, KD_ECORRUPT,
                           "a logit at row %lld, position %lld is not finite: one of the models is "
                           "broken",
                           (long long)(i / c->cols), (long long)(i % c->cols));
    if (spread(c, pos, err) || ranges(c, pos, doc, err))
        return -1;
    bands(c, pos);
    controls(c, pos, control);
    routers(c);
    return 0;
}

int kd_check_sizes(struct kd_check *c, const struct kd_ckpt *src, const struct kd_ckpt *dst,
                   struct kd_err *err)
{
    if (src) {
        struct kd_sizes s;
        if (kd_sizes_of(src, &s, err))
            return -1;
        c->src_weights = kd_sizes_weights(&s);
        c->src_file_bytes = s.file_bytes;
    }
    if (kd_sizes_of(dst, &c->dst, err))
        return -1;
    const struct kd_sizes *d = &c->dst;
    int64_t experts = d->weights[KD_PART_EXPERTS], trunk = d->weights[KD_PART_TRUNK];
    c->bits_experts = d->k[KD_PART_EXPERTS];
    if (experts)
        c->bits_experts_real = 8 * (double)d->bytes[KD_PART_EXPERTS] / (double)experts;
    c->bits_trunk = d->k[KD_PART_TRUNK];
    if (trunk)
        c->bits_trunk_real = 8 * (double)d->bytes[KD_PART_TRUNK] / (double)trunk;
    if (c->src_weights)
        c->bits_file = 8 * (double)d->file_bytes / (double)c->src_weights;
    return 0;
}

void kd_check_release(struct kd_check *c)
{
    kd_mem_free(c->layer);
    memset(c, 0, sizeof *c);
}
