#include "base/mem.h"
#include "fmt/gguf.h"

#include <strings.h>

/* ggml's types; ids 4, 5, 31-33 and 36-38 were removed there. */
static const struct kd_gguf_type_info types[KD_GT_MAX] = {
    [KD_GT_F32] = {"F32", 1, 4, 0},
    [KD_GT_F16] = {"F16", 1, 2, 1},
    [KD_GT_Q4_0] = {"Q4_0", 32, 18, 2},
    [KD_GT_Q4_1] = {"Q4_1", 32, 20, 3},
    [KD_GT_Q5_0] = {"Q5_0", 32, 22, 8},
    [KD_GT_Q5_1] = {"Q5_1", 32, 24, 9},
    [KD_GT_Q8_0] = {"Q8_0", 32, 34, 7},
    [KD_GT_Q8_1] = {"Q8_1", 32, 36, -1},
    [KD_GT_Q2_K] = {"Q2_K", 256, 84, 10},
    [KD_GT_Q3_K] = {"Q3_K", 256, 110, 12},
    [KD_GT_Q4_K] = {"Q4_K", 256, 144, 15},
    [KD_GT_Q5_K] = {"Q5_K", 256, 176, 17},
    [KD_GT_Q6_K] = {"Q6_K", 256, 210, 18},
    [KD_GT_Q8_K] = {"Q8_K", 256, 292, -1},
    [KD_GT_IQ2_XXS] = {"IQ2_XXS", 256, 66, 19},
    [KD_GT_IQ2_XS] = {"IQ2_XS", 256, 74, 20},
    [KD_GT_IQ3_XXS] = {"IQ3_XXS", 256, 98, 23},
    [KD_GT_IQ1_S] = {"IQ1_S", 256, 50, 24},
    [KD_GT_IQ4_NL] = {"IQ4_NL", 32, 18, 25},
    [KD_GT_IQ3_S] = {"IQ3_S", 256, 110, 26},
    [KD_GT_IQ2_S] = {"IQ2_S", 256, 82, 28},
    [KD_GT_IQ4_XS] = {"IQ4_XS", 256, 136, 30},
    [KD_GT_I8] = {"I8", 1, 1, -1},
    [KD_GT_I16] = {"I16", 1, 2, -1},
    [KD_GT_I32] = {"I32", 1, 4, -1},
    [KD_GT_I64] = {"I64", 1, 8, -1},
    [KD_GT_F64] = {"F64", 1, 8, -1},
    [KD_GT_IQ1_M] = {"IQ1_M", 256, 56, 31},
    [KD_GT_BF16] = {"BF16", 1, 2, 32},
    [KD_GT_TQ1_0] = {"TQ1_0", 256, 54, 36},
    [KD_GT_TQ2_0] = {"TQ2_0", 256, 66, 37},
    [KD_GT_MXFP4] = {"MXFP4", 32, 17, 38},
    [KD_GT_NVFP4] = {"NVFP4", 64, 36, 39},
    [KD_GT_Q1_0] = {"Q1_0", 128, 18, 40},
    [KD_GT_Q2_0] = {"Q2_0", 64, 18, 41},
};

const struct kd_gguf_type_info *kd_gguf_type_info(int64_t id)
{
    return id >= 0 && id < KD_GT_MAX && types[id].name ? &types[id] : NULL;
}

int kd_gguf_type_named(const char *name)
{
    for (int i = 0; i < KD_GT_MAX; i++)
        if (types[i].name && !strcasecmp(types[i].name, name))
            return i;
    return -1;
}

int kd_gguf_bytes(int64_t type, int rank, const int64_t *ne, int64_t *bytes, struct kd_err *err)
{
    const struct kd_gguf_type_info *t = kd_gguf_type_info(type);
    if (!t)
        return kd_fail(err, KD_ENOTSUP, "type id %lld is not known here", (long long)type);
    if (rank < 1 || rank > KD_GGUF_RANK_MAX)
        return kd_fail(err, KD_ECORRUPT, "%d dimensions, outside 1 to %d", rank, KD_GGUF_RANK_MAX);
    int64_t n = 1;
    for (int i = 0; i < rank; i++) {
        if (ne[i] < 1 || ne[i] > INT64_C(1) << 40)
            return kd_fail(err, KD_ECORRUPT, "extent %lld is outside 1 to 2^40", (long long)ne[i]);
        if (kd_mul64(n, ne[i], &n))
            return kd_fail(err, KD_ECORRUPT, "the product of its extents does not fit in 64 bits");
    }
    if (ne[0] % t->elems)
        return kd_fail(err, KD_ECORRUPT, "rows of %lld values are not whole blocks of %lld (%s)",
                       (long long)ne[0], (long long)t->elems, t->name);
    if (kd_mul64(n / t->elems, t->bytes, bytes))
        return kd_fail(err, KD_ECORRUPT, "its size does not fit in 64 bits");
    return 0;
}

const char *kd_gguf_value_name(enum kd_gguf_value type)
{
    static const char *const names[KD_GV_COUNT] = {"u8",  "i8",  "u16",  "i16",    "u32",
                                                   "i32", "f32", "bool", "string", "array",
                                                   "u64", "i64", "f64"};
    return type < KD_GV_COUNT ? names[type] : "unknown";
}
