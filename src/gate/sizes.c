#include "gate/sizes.h"

#include "base/file.h"

#include <string.h>

const char *kd_part_name(enum kd_part_kind p)
{
    static const char *const names[KD_PART_COUNT] = {"experts",   "trunk", "lm_head",
                                                     "embedding", "ends",  "vision"};
    return names[p];
}

static enum kd_part_kind part_of(const char *name)
{
    if (strstr(name, "vision_tower.") || strstr(name, "mm_projector."))
        return KD_PART_VISION;
    if (strstr(name, ".experts.") || strstr(name, "_exps."))
        return KD_PART_EXPERTS;
    if (!strncmp(name, "blk.", 4))
        return KD_PART_TRUNK;
    if (!strcmp(name, "output.weight"))
        return KD_PART_HEAD;
    if (!strcmp(name, "token_embd.weight"))
        return KD_PART_EMBED;
    if (strstr(name, "layers."))
        return KD_PART_TRUNK;
    if (strstr(name, "lm_head."))
        return KD_PART_HEAD;
    return strstr(name, "embed_tokens.") ? KD_PART_EMBED : KD_PART_ENDS;
}

/* Weights a tensor stands for and code bits each; *weights = 0 for scales and side vectors.
 * *quantized: its bits are codes. */
static void count(const struct kd_tensor *t, int64_t *weights, double *k, bool *quantized)
{
    static const char *const side[] = {".weight_scale", ".weight_shape", ".suh",  ".svh",
                                       ".mul1",         ".mcg",          ".kmask"};
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->shape[i];
    *weights = 0;
    *k = 0;
    *quantized = true;
    for (size_t i = 0; i < sizeof side / sizeof *side; i++)
        if (kd_name_ends(t->name, side[i]))
            return;
    if (t->rank == 3 && (kd_name_ends(t->name, ".trellis") || kd_name_ends(t->name, ".ktrellis"))) {
        *weights = t->shape[0] * t->shape[1] * 256;
        *k = (double)t->shape[2] / 16;
    } else if (kd_name_ends(t->name, ".weight_packed")) {
        *weights = 2 * n;
        *k = 4;
    } else {
        *weights = n;
        *quantized = t->format != NULL;
        if (t->format) { /* blocks of a GGUF, their scales included */
            *k = 8 * (double)t->bytes / (double)n;
            return;
        }
        *k = t->rank >= 2 ? kd_dtype_bits(t->dtype) : 0; /* a vector is no matrix */
    }
}

int kd_sizes_of(const struct kd_ckpt *ck, struct kd_sizes *out, struct kd_err *err)
{
    double bits[2][KD_PART_COUNT] = {{0}}, coded[2][KD_PART_COUNT] = {{0}};
    memset(out, 0, sizeof *out);
    for (int64_t i = 0; i < kd_ckpt_count(ck); i++) {
        const struct kd_tensor *t = kd_ckpt_at(ck, i);
        enum kd_part_kind p = part_of(t->name);
        int64_t weights;
        double k;
        bool q;
        count(t, &weights, &k, &q);
        out->bytes[p] += t->bytes;
        out->weights[p] += weights;
        if (k > 0) {
            bits[q][p] += k * (double)weights;
            coded[q][p] += (double)weights;
        }
    }
    for (int p = 0; p < KD_PART_COUNT; p++) {
        int q = coded[1][p] > 0;
        out->k[p] = coded[q][p] > 0 ? bits[q][p] / coded[q][p] : 0;
    }
    for (int s = 0; s < kd_ckpt_shard_count(ck); s++) {
        int64_t bytes = kd_ckpt_shard_bytes(ck, s);
        if (bytes < 0)
            return kd_fail(err, KD_EIO, "'%s' is not there", kd_ckpt_shard_name(ck, s));
        out->file_bytes += bytes;
    }
    return 0;
}

int64_t kd_sizes_weights(const struct kd_sizes *s)
{
    int64_t sum = 0;
    for (int p = 0; p < KD_PART_COUNT; p++)
        sum += s->weights[p];
    return sum;
}
