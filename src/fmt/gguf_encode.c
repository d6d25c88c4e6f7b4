/* Encoders: the bytes of ggml's reference encoders for every finite input (gguf-slicing
 * specification 2.5). Inputs that are not finite, and scales that overflow, are refused here. */
#include "fmt/gguf.h"
#include "fmt/gguf_block.h"

#include <math.h>
#include <string.h>

static int not_finite(const float *x, int64_t n, int64_t first, struct kd_err *err)
{
    for (int64_t i = 0; i < n; i++)
        if ((kd_f32_bits(x[i]) & 0x7f800000u) == 0x7f800000u)
            return kd_fail(err, KD_EINVAL, "value %lld is not finite", (long long)(first + i));
    return 0;
}

static int put_half(float d, int64_t first, uint8_t *out, struct kd_err *err)
{
    uint16_t h = kd_f32_f16(d);
    if ((h & 0x7c00u) == 0x7c00u)
        return kd_fail(err, KD_EINVAL, "the scale %g of the values from %lld on is over 65504",
                       (double)d, (long long)first);
    out[0] = (uint8_t)h;
    out[1] = (uint8_t)(h >> 8);
    return 0;
}

static float largest(const float *x, int n)
{
    float most = 0;
    for (int i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most;
}

/* To the nearest whole number, halves away from zero. |x| < 2^23. */
static float round_away(float x)
{
    float t = (float)(int)x, rest = x - t;
    if (rest >= 0.5f)
        return t + 1;
    return rest <= -0.5f ? t - 1 : t;
}

static int q8_0_encode(const float *x, int64_t first, uint8_t *out, struct kd_err *err)
{
    float most = largest(x, KD_Q8_0_ELEMS), d = most / 127, inverse = d > 0 ? 1 / d : 0;
    /* 1/d overflows where d itself rounds to a half of 0: then the block is 0 whatever it holds. */
    if (kd_f32_bits(inverse) == 0x7f800000u)
        inverse = 0;
    for (int i = 0; i < KD_Q8_0_ELEMS; i++)
        out[2 + i] = (uint8_t)(int8_t)round_away(x[i] * inverse);
    return put_half(d, first, out, err);
}

static int q1_0_encode(const float *x, int64_t first, uint8_t *out, struct kd_err *err)
{
    float sum = 0;
    memset(out, 0, 18);
    for (int i = 0; i < 128; i++) {
        sum += fabsf(x[i]); /* one after the other, as the reference sums */
        if (x[i] >= 0)
            out[2 + i / 8] |= (uint8_t)(1 << (i % 8));
    }
    return put_half(sum / 128, first, out, err);
}

/* floor of the float nearest to log2(x): that float is a whole number already for the last few
 * values under a power of two. x > 0. */
static int log2_floor(float x)
{
    uint32_t u = kd_f32_bits(x);
    int e = (int)(u >> 23) - 127;
    if (e == -127) { /* subnormal */
        e = -150;
        for (uint32_t m = u; m; m >>= 1)
            e++;
        return e;
    }
    int64_t below = (int64_t)(0x800000u - (u & 0x7fffffu)); /* in 2^-24 of the next power */
    if (below > 64)
        return e;
    double exact = (double)(e + 1) - (double)below * 0x1p-24 * 1.4426950408889634;
    return (float)exact == (float)(e + 1) ? e + 1 : e;
}

static unsigned nearest_fp4(float x, float d)
{
    unsigned best = 0;
    float least = fabsf(x);
    for (unsigned c = 1; c < 16; c++) {
        float off = fabsf((float)kd_fp4_doubled(c) * d - x);
        if (off < least) {
            least = off;
            best = c;
        }
    }
    return best;
}

static void mxfp4_encode(const float *x, uint8_t *out)
{
    float most = largest(x, KD_MXFP4_ELEMS);
    int e = most > 0 ? log2_floor(most) - 2 + 127 : 0;
    out[0] = (uint8_t)(e < 0 ? 0 : e);
    float d = kd_e8m0_half_f32(out[0]);
    for (int i = 0; i < 16; i++)
        out[1 + i] = (uint8_t)(nearest_fp4(x[i], d) | nearest_fp4(x[i + 16], d) << 4);
}

/* Whether a block has values and a scale that makes them all 0. */
static bool lost(int64_t type, const float *x, const uint8_t *block)
{
    bool zero = type != KD_GT_MXFP4 && !(block[0] | (block[1] & 0x7f));
    return zero && largest(x, (int)kd_gguf_type_info(type)->elems) > 0;
}

static int encode_block(int64_t type, const float *x, int64_t first, uint8_t *out,
                        struct kd_err *err)
{
    uint16_t h;
    switch (type) {
    case KD_GT_F32:
        memcpy(out, x, sizeof *x);
        return 0;
    case KD_GT_F16:
        return put_half(*x, first, out, err);
    case KD_GT_BF16:
        h = kd_f32_bf16(*x);
        if ((h & 0x7f80u) == 0x7f80u)
            return kd_fail(err, KD_EINVAL, "value %lld overflows BF16", (long long)first);
        out[0] = (uint8_t)h;
        out[1] = (uint8_t)(h >> 8);
        return 0;
    case KD_GT_Q8_0:
        return q8_0_encode(x, first, out, err);
    case KD_GT_Q1_0:
        return q1_0_encode(x, first, out, err);
    default:
        mxfp4_encode(x, out);
        return 0;
    }
}

int kd_gguf_encode(int64_t type, const float *x, int64_t n, uint8_t *out,
                   struct kd_gguf_encoded *stats, struct kd_err *err)
{
    const struct kd_gguf_type_info *t = kd_gguf_type_info(type);
    bool plain = type == KD_GT_F32 || type == KD_GT_F16 || type == KD_GT_BF16;
    if (!t || (!plain && type != KD_GT_Q8_0 && type != KD_GT_Q1_0 && type != KD_GT_MXFP4))
        return kd_fail(err, KD_ENOTSUP, "%s cannot be written here", t ? t->name : "this type");
    if (n % t->elems)
        return kd_fail(err, KD_EINVAL, "%lld values are not whole blocks of %lld (%s)",
                       (long long)n, (long long)t->elems, t->name);
    for (int64_t i = 0; i < n; i += t->elems, out += t->bytes) {
        if (not_finite(x + i, t->elems, i, err) || encode_block(type, x + i, i, out, err))
            return -1;
        if (stats && !plain) {
            stats->blocks++;
            stats->zero_scale += lost(type, x + i, out);
        }
    }
    return 0;
}

void kd_gguf_mxfp4_from_pairs(const uint8_t *pairs, uint8_t scale, uint8_t *block)
{
    block[0] = scale;
    for (int j = 0; j < 16; j++) {
        unsigned low = pairs[j / 2] >> (j % 2 * 4) & 15u,
                 high = pairs[8 + j / 2] >> (j % 2 * 4) & 15u;
        block[1 + j] = (uint8_t)(low | high << 4);
    }
}
