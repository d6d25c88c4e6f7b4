#include "gate/kld.h"

#include "num/logsum.h"

#include <math.h>

enum { LANES = 8 };

/* Highest value and its lowest index; false if any value is not finite. */
static bool peak(const float *v, int64_t n, float *max, int32_t *at)
{
    float top = v[0], zero = 0;
    int64_t best = 0;
    for (int64_t i = 0; i < n; i++) {
        zero += v[i] * 0.0f; /* NaN once anything is not finite */
        if (v[i] > top) {
            top = v[i];
            best = i;
        }
    }
    *max = top;
    *at = (int32_t)best;
    return zero == 0.0f;
}

static double fold(const double s[LANES])
{
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

void kd_kld_pos(const float *src, const float *dst, int64_t vocab, int32_t next, struct kd_pos *out)
{
    float ma, mb;
    bool fine = peak(src, vocab, &ma, &out->top_src);
    fine = peak(dst, vocab, &mb, &out->top_dst) && fine;
    out->bad = !fine;
    out->has_next = next >= 0 && next < vocab;
    out->nll_src = out->nll_dst = 0;
    if (!fine) {
        out->kld = (double)NAN;
        return;
    }
    double sa[LANES] = {0}, sb[LANES] = {0}, sd[LANES] = {0}, maxa = (double)ma, maxb = (double)mb;
    int64_t whole = vocab - vocab % LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int l = 0; l < LANES; l++) {
            double a = (double)src[i + l] - maxa, b = (double)dst[i + l] - maxb;
            double ea = kd_exp64(a);
            sa[l] += ea;
            sb[l] += kd_exp64(b);
            sd[l] += ea * (a - b);
        }
    for (int64_t i = whole; i < vocab; i++) {
        double a = (double)src[i] - maxa, b = (double)dst[i] - maxb, ea = kd_exp64(a);
        sa[i - whole] += ea;
        sb[i - whole] += kd_exp64(b);
        sd[i - whole] += ea * (a - b);
    }
    double za = fold(sa), la = kd_log64(za), lb = kd_log64(fold(sb));
    double kld = fold(sd) / za - (la - lb);
    out->kld = kld > 0 ? kld : 0; /* rounding can leave -1e-17 */
    if (out->has_next) {
        out->nll_src = la - ((double)src[next] - maxa);
        out->nll_dst = lb - ((double)dst[next] - maxb);
    }
}

struct block {
    const float *src, *dst;
    const int32_t *next;
    int64_t vocab;
    struct kd_pos *out;
};

static void block_pos(void *ctx, int64_t i, int worker)
{
    const struct block *b = ctx;
    (void)worker;
    kd_kld_pos(b->src + i * b->vocab, b->dst + i * b->vocab, b->vocab, b->next[i], &b->out[i]);
}

void kd_kld_block(const struct kd_run *run, const float *src, const float *dst, int64_t vocab,
                  const int32_t *next, int64_t count, struct kd_pos *out)
{
    struct block b = {.src = src, .dst = dst, .next = next, .vocab = vocab, .out = out};
    kd_pool_run(run->pool, count, block_pos, &b);
}

static double ppl(const struct kd_pos *pos, int64_t count, bool dst)
{
    double sum = 0;
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++)
        if (pos[i].has_next) {
            sum += dst ? pos[i].nll_dst : pos[i].nll_src;
            n++;
        }
    return n > 0 ? kd_exp64(sum / (double)n) : 0;
}

double kd_ppl_src(const struct kd_pos *pos, int64_t count)
{
    return ppl(pos, count, false);
}

double kd_ppl_dst(const struct kd_pos *pos, int64_t count)
{
    return ppl(pos, count, true);
}
