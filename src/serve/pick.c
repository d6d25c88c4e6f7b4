#include "serve/pick.h"

#include "num/largest.h"
#include "num/logsum.h"

#include <math.h>
#include <string.h>

bool kd_pick_counts(const struct kd_pick *p)
{
    return p->presence != 0.0 || p->frequency != 0.0 || p->repetition != 1.0;
}

static void penalize(const struct kd_pick *p, const int32_t *counts, int64_t vocab, float *x)
{
    for (int64_t i = 0; i < vocab; i++) {
        if (!counts[i])
            continue;
        int32_t made = counts[i] & ~KD_PICK_PROMPT;
        double v = (double)x[i];
        v = v > 0.0 ? v / p->repetition : v * p->repetition;
        if (made)
            v -= p->presence + p->frequency * (double)made;
        x[i] = (float)v;
    }
}

static void apply_mask(const uint64_t *mask, int64_t vocab, float *x)
{
    for (int64_t i = 0; i < vocab; i++)
        if (!(mask[i / 64] >> (i % 64) & 1))
            x[i] = -INFINITY;
}

static void log_probs(const struct kd_pick *p, const float *logits, int64_t vocab, float max,
                      struct kd_picked *out)
{
    double sum = 0.0;
    for (int64_t i = 0; i < vocab; i++)
        sum += kd_exp64((double)logits[i] - (double)max);
    double norm = (double)max + kd_log64(sum);
    out->logprob = (float)((double)logits[out->id] - norm);
    int want = p->logprobs - 1;
    for (int64_t i = 0; i < vocab && want > 0; i++) {
        int at = out->top_count;
        if (at == want && !(logits[i] > out->top[want - 1].logprob))
            continue;
        at = at < want ? out->top_count++ : want - 1;
        for (; at > 0 && logits[i] > out->top[at - 1].logprob; at--)
            out->top[at] = out->top[at - 1];
        out->top[at] = (struct kd_top){(int32_t)i, logits[i]};
    }
    for (int i = 0; i < out->top_count; i++)
        out->top[i].logprob = (float)((double)out->top[i].logprob - norm);
}

int kd_pick_token(const struct kd_pick *p, const int32_t *counts, const uint64_t *mask,
                  const float *logits, int64_t vocab, int64_t position, float *scratch,
                  struct kd_picked *out, struct kd_err *err)
{
    const float *x = logits;
    memset(out, 0, sizeof *out);
    if (kd_any_nan(logits, vocab))
        return kd_fail(err, KD_ECORRUPT, "the model gave a NaN at position %lld",
                       (long long)position);
    if (counts || mask || p->bias_count) {
        memcpy(scratch, logits, (size_t)vocab * sizeof *scratch);
        for (int64_t i = 0; i < p->bias_count; i++)
            scratch[p->bias[i].id] += p->bias[i].add;
        if (counts)
            penalize(p, counts, vocab, scratch);
        if (mask)
            apply_mask(mask, vocab, scratch);
        x = scratch;
        if (kd_any_nan(x, vocab) || kd_largest(x, vocab) == -INFINITY)
            return kd_fail(err, KD_EINVAL, "no token is allowed at position %lld",
                           (long long)position);
    }
    if (kd_sample(&p->sampling, x, vocab, position, &out->id, err))
        return -1;
    if (p->logprobs)
        log_probs(p, logits, vocab, kd_largest(logits, vocab), out);
    return 0;
}
