#include "fmt/exl3_file.h"

#include "base/show.h"

#include <stdio.h>
#include <string.h>

enum { BLOCK = 128, DIM_MAX = 1 << 26, NAME_MAX_BYTES = 1024 };
enum { MCG_VALUE = (int)0xCBAC1FEDu, MUL1_VALUE = (int)0x83DCD12Du };

int64_t kd_exl3_pad(int64_t dim)
{
    return (dim + BLOCK - 1) / BLOCK * BLOCK;
}

int64_t kd_exl3_bytes(int64_t k, int64_t n, struct kd_rate rate, enum kd_codebook cb)
{
    return k / 16 * (n / 16) * kd_rate_tile_bytes(rate) + 2 * k + 2 * n +
           (cb == KD_CB_3INST ? 0 : 4) + (rate.mask ? 4 : 0);
}

static int part_name(char *out, const char *key, const char *suffix, struct kd_err *err)
{
    int n = snprintf(out, NAME_MAX_BYTES, "%s.%s", key, suffix);
    if (n < 0 || n >= NAME_MAX_BYTES)
        return kd_fail(err, KD_EINVAL, "tensor name '%.60s...' is too long", key);
    return 0;
}

/* *t is NULL when the tensor is not there. */
static int part(const struct kd_ckpt *ck, const char *key, const char *suffix,
                const struct kd_tensor **t, struct kd_err *err)
{
    char name[NAME_MAX_BYTES];
    if (part_name(name, key, suffix, err))
        return -1;
    *t = kd_ckpt_find(ck, name);
    if (*t && !(*t)->data && (*t)->bytes)
        return kd_fail(err, KD_EIO, "tensor '.%s' is in a shard that is not there", suffix);
    if (*t && (*t)->rank < 0)
        return kd_fail(err, KD_EIO, "tensor '.%s' is in a shard that is not there", suffix);
    return 0;
}

/* An I32 scalar, stored as [] or [1]. */
static int scalar(const struct kd_tensor *t, const char *suffix, int32_t *out, struct kd_err *err)
{
    if (t->dtype != KD_DT_I32 || t->bytes != 4)
        return kd_fail(err, KD_ECORRUPT, "'.%s' is not one I32", suffix);
    memcpy(out, t->data, 4);
    return 0;
}

static int vector(const struct kd_ckpt *ck, const char *key, const char *suffix, int64_t n,
                  const uint16_t **out, struct kd_exl3_tensor *x, struct kd_err *err)
{
    const struct kd_tensor *t;
    if (part(ck, key, suffix, &t, err))
        return -1;
    if (!t)
        return kd_fail(err, KD_ECORRUPT, "'.%s' is missing", suffix);
    if (t->dtype != KD_DT_F16 || t->rank != 1 || t->shape[0] != n)
        return kd_fail(err, KD_ECORRUPT, "'.%s' is not F16 [%lld]", suffix, (long long)n);
    *out = (const uint16_t *)(const void *)t->data;
    x->bytes += t->bytes;
    return 0;
}

static int codebook(const struct kd_ckpt *ck, const char *key, struct kd_exl3_tensor *x,
                    struct kd_err *err)
{
    const struct kd_tensor *mcg, *mul1;
    int32_t value = 0;
    if (part(ck, key, "mcg", &mcg, err) || part(ck, key, "mul1", &mul1, err))
        return -1;
    if (mcg && mul1)
        return kd_fail(err, KD_ECORRUPT, "both '.mcg' and '.mul1' are there");
    x->cb = mul1 ? KD_CB_MUL1 : mcg ? KD_CB_MCG : KD_CB_3INST;
    const struct kd_tensor *t = mul1 ? mul1 : mcg;
    if (!t)
        return 0;
    if (scalar(t, mul1 ? "mul1" : "mcg", &value, err))
        return -1;
    if (value != (mul1 ? MUL1_VALUE : MCG_VALUE))
        return kd_fail(err, KD_ENOTSUP, "'.%s' is 0x%08X, a codebook that is not known",
                       mul1 ? "mul1" : "mcg", (unsigned)value);
    x->bytes += t->bytes;
    return 0;
}

/* The rate of the codes' last dimension in sixteenths of a bit. */
static int read_rate(const struct kd_ckpt *ck, const char *key, int64_t sixteenths, bool masked,
                     struct kd_exl3_tensor *x, struct kd_err *err)
{
    const struct kd_tensor *t;
    int32_t mask = 0;
    if (sixteenths < 16 || sixteenths > 128)
        return kd_fail(err, KD_ECORRUPT, "a rate of %lld/16 bits is outside 1 to 8",
                       (long long)sixteenths);
    x->rate = kd_rate_from16((unsigned)sixteenths);
    if (part(ck, key, "kmask", &t, err))
        return -1;
    if (!masked) {
        if (t)
            return kd_fail(err, KD_ECORRUPT, "'.kmask' beside '.trellis'");
        if (sixteenths % 8)
            return kd_fail(err, KD_ECORRUPT,
                           "a rate of %lld/16 bits in '.trellis' is neither whole nor half",
                           (long long)sixteenths);
        if (sixteenths % 16 && x->cb != KD_CB_MUL1)
            return kd_fail(err, KD_ENOTSUP, "a half rate with another codebook than mul1");
        return 0;
    }
    if (!t)
        return kd_fail(err, KD_ECORRUPT, "'.ktrellis' without '.kmask'");
    if (scalar(t, "kmask", &mask, err))
        return -1;
    if (!x->rate.mask || mask != x->rate.mask)
        return kd_fail(err, KD_ECORRUPT, "'.kmask' is 0x%X, a rate of %lld/16 bits has 0x%X",
                       (unsigned)mask, (long long)sixteenths, (unsigned)x->rate.mask);
    x->bytes += t->bytes;
    return 0;
}

static int refuse_others(const struct kd_ckpt *ck, const char *key, struct kd_err *err)
{
    static const char *const parts[] = {"su", "sv", "scale", "bias"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const struct kd_tensor *t;
        if (part(ck, key, parts[i], &t, err))
            return -1;
        if (t)
            return kd_fail(err, KD_ENOTSUP, "'.%s' is there, which is not supported%s", parts[i],
                           i == 3 ? "" : " (a file of an old exllamav3)");
    }
    return 0;
}

static int find(const struct kd_ckpt *ck, const char *key, struct kd_exl3_tensor *out, bool *found,
                struct kd_err *err)
{
    const struct kd_tensor *whole, *masked;
    if (part(ck, key, "trellis", &whole, err) || part(ck, key, "ktrellis", &masked, err))
        return -1;
    if (!whole && !masked)
        return 0;
    *found = true;
    if (whole && masked)
        return kd_fail(err, KD_ECORRUPT, "both '.trellis' and '.ktrellis' are there");
    const struct kd_tensor *t = whole ? whole : masked;
    if (t->dtype != KD_DT_I16 || t->rank != 3)
        return kd_fail(err, KD_ECORRUPT, "the codes are not I16 of rank 3");
    for (int i = 0; i < 2; i++)
        if (t->shape[i] < 1 || t->shape[i] > DIM_MAX / 16 || t->shape[i] % (BLOCK / 16))
            return kd_fail(err, KD_ECORRUPT, "%lld tiles are not a whole number of 128-blocks",
                           (long long)t->shape[i]);
    out->k = t->shape[0] * 16;
    out->n = t->shape[1] * 16;
    out->codes = t->data;
    out->codes_bytes = out->bytes = t->bytes;
    return refuse_others(ck, key, err) || codebook(ck, key, out, err) ||
                   read_rate(ck, key, t->shape[2], masked, out, err) ||
                   vector(ck, key, "suh", out->k, &out->suh, out, err) ||
                   vector(ck, key, "svh", out->n, &out->svh, out, err)
               ? -1
               : 0;
}

int kd_exl3_find(const struct kd_ckpt *ck, const char *key, struct kd_exl3_tensor *out, bool *found,
                 struct kd_err *err)
{
    char shown[256];
    memset(out, 0, sizeof *out);
    *found = false;
    if (find(ck, key, out, found, err))
        return kd_wrap(err, "EXL3 tensor '%s'", kd_show_text(shown, sizeof shown, key));
    return 0;
}

static int add(struct kd_st_plan *p, const char *key, const char *suffix, const char *dtype,
               int rank, const int64_t *shape, struct kd_err *err)
{
    char name[NAME_MAX_BYTES];
    return part_name(name, key, suffix, err) || kd_st_plan_add(p, name, dtype, rank, shape, 0, err)
               ? -1
               : 0;
}

int kd_exl3_plan(struct kd_st_plan *p, const char *key, int64_t k, int64_t n, struct kd_rate rate,
                 enum kd_codebook cb, struct kd_err *err)
{
    unsigned rate16 = kd_rate_to16(rate);
    if (k < BLOCK || k > DIM_MAX || k % BLOCK || n < BLOCK || n > DIM_MAX || n % BLOCK)
        return kd_fail(err, KD_EINVAL, "EXL3 tensor '%s': %lld x %lld is not padded to 128", key,
                       (long long)k, (long long)n);
    if (rate16 < 16 || rate16 > 128 || rate.mask != kd_rate_mask(rate16 % 16))
        return kd_fail(err, KD_EINVAL, "EXL3 tensor '%s': a rate of %u/16 bits cannot be stored",
                       key, rate16);
    int64_t codes[3] = {k / 16, n / 16, rate16};
    if (add(p, key, rate.mask ? "ktrellis" : "trellis", "I16", 3, codes, err) ||
        add(p, key, "suh", "F16", 1, &k, err) || add(p, key, "svh", "F16", 1, &n, err))
        return -1;
    if (cb != KD_CB_3INST && add(p, key, cb == KD_CB_MUL1 ? "mul1" : "mcg", "I32", 0, NULL, err))
        return -1;
    return rate.mask ? add(p, key, "kmask", "I32", 0, NULL, err) : 0;
}

int kd_exl3_put_marks(struct kd_st_writer *w, struct kd_rate rate, enum kd_codebook cb,
                      struct kd_err *err)
{
    int32_t value = cb == KD_CB_MUL1 ? MUL1_VALUE : MCG_VALUE, mask = rate.mask;
    return (cb != KD_CB_3INST && kd_st_put(w, &value, 4, err)) ||
                   (mask && kd_st_put(w, &mask, 4, err))
               ? -1
               : 0;
}

int kd_exl3_put(struct kd_st_writer *w, const struct kd_exl3_tensor *t, struct kd_err *err)
{
    int64_t codes = t->k / 16 * (t->n / 16) * kd_rate_tile_bytes(t->rate);
    if (kd_st_put(w, t->codes, codes, err) || kd_st_put(w, t->suh, 2 * t->k, err) ||
        kd_st_put(w, t->svh, 2 * t->n, err))
        return -1;
    return kd_exl3_put_marks(w, t->rate, t->cb, err);
}
