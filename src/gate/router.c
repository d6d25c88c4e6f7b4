#include "gate/router.h"

#include <math.h>
#include <stdbool.h>

static bool among(const int32_t *ids, int64_t k, int64_t e)
{
    for (int64_t i = 0; i < k; i++)
        if (ids[i] == e)
            return true;
    return false;
}

float kd_router_margin(const float *score, int64_t experts, const int32_t *ids, int64_t k)
{
    if (k >= experts || k < 1)
        return 0;
    float last = score[ids[0]], next = -INFINITY;
    for (int64_t i = 1; i < k; i++)
        last = score[ids[i]] < last ? score[ids[i]] : last;
    for (int64_t e = 0; e < experts; e++)
        if (score[e] > next && !among(ids, k, e))
            next = score[e];
    return last - next;
}

int64_t kd_router_kept(const int32_t *a, const int32_t *b, int64_t topk)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < topk; i++)
        for (int64_t j = 0; j < topk; j++)
            if (a[i] == b[j]) {
                kept++;
                break;
            }
    return kept;
}

static int bin_of(float margin)
{
    float edge = 1.0f / 65536.0f;
    int bin = 0;
    while (bin < KD_MARGIN_BINS - 1 && margin >= edge) {
        edge *= 2;
        bin++;
    }
    return bin;
}

double kd_router_bin_floor(int bin)
{
    double edge = 1.0 / 131072.0;
    for (int i = 0; i < bin; i++)
        edge *= 2;
    return bin ? edge : 0;
}

void kd_router_add(struct kd_agreement *g, const int32_t *src, const int32_t *dst,
                   const float *margin, int64_t tokens, int64_t topk)
{
    g->topk = topk;
    for (int64_t t = 0; t < tokens; t++) {
        int64_t kept = kd_router_kept(src + t * topk, dst + t * topk, topk);
        g->kept += kept;
        g->whole += kept == topk;
        g->ties += margin[t] == 0;
        if (kept == topk)
            g->bin_kept[bin_of(margin[t])]++;
        else
            g->bin_lost[bin_of(margin[t])]++;
    }
    g->tokens += tokens;
}

double kd_router_share(const struct kd_agreement *g)
{
    return g->tokens ? (double)g->kept / (double)(g->tokens * g->topk) : 0;
}
