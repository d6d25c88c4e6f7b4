/* What the emulated test of encoding and the one on a device share: tensors with Hessians, and
 * kd_quant_tensor with an encoder held against the same without. */
#ifndef KD_TESTS_GPU_ENCODE_CHECK_H
#define KD_TESTS_GPU_ENCODE_CHECK_H

extern "C" {
#include "base/rand.h"
#include "codec/quant.h"
#include "gpu/encoder.h"
#include "num/half.h"
}

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <thread>
#include <vector>

struct check_case {
    int64_t rows, cols, tokens; /* tokens 0: no Hessian */
    unsigned sixteenths;
    enum kd_codebook cb;
    enum kd_recipe_name recipe;
    bool full;               /* the full search of the scale */
    enum kd_mat_type stored; /* F32 (also when left out), BF16 or MXFP4 */
};

struct check_tensor {
    struct check_case c;
    std::vector<float> w;
    std::vector<uint8_t> bytes; /* of other types */
    struct kd_mat mat;
    struct kd_hess h;
    struct kd_quant_spec spec;
    struct kd_quant_out want;
};

static inline double check_gauss(uint64_t seed, int64_t i)
{
    const double u = 1.0 - kd_rand_unit(seed, (uint64_t)(2 * i));
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * kd_rand_unit(seed, (uint64_t)(2 * i + 1)));
}

static inline void check_complain(const struct kd_err *err)
{
    fprintf(stderr, "%s\n", err->msg);
}

/* The weights as another type holds them, with room between the rows. */
static inline void check_store(struct check_tensor *t)
{
    const int64_t rows = t->c.rows, cols = t->c.cols;
    const bool bf16 = t->c.stored == KD_MAT_BF16;
    const int64_t ld = bf16 ? cols + 3 : cols / 2 + 16, lds = (cols + 31) / 32 + 1;
    const int64_t codes = rows * ld * (bf16 ? 2 : 1);

    t->bytes.assign((size_t)(codes + (bf16 ? 0 : rows * lds)), 0x7f);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i++) {
            const float w = t->w[(size_t)(r * cols + i)];
            if (bf16)
                ((uint16_t *)t->bytes.data())[r * ld + i] = kd_f32_bf16(w);
            else if (i & 1) /* any code is a weight */
                t->bytes[(size_t)(r * ld + i / 2)] = (uint8_t)(kd_f32_bits(w) >> 7);
        }
    for (int64_t i = 0; !bf16 && i < rows * lds; i++)
        t->bytes[(size_t)(codes + i)] = (uint8_t)(118 + i % 5);
    t->mat.type = t->c.stored;
    t->mat.data = t->bytes.data();
    t->mat.ld = ld;
    t->mat.scale = bf16 ? NULL : t->bytes.data() + codes;
    t->mat.ld_scale = lds;
}

/* Weights and activations of uneven sizes; the Hessian is that of `tokens` of them. */
static inline int check_make(struct check_tensor *t, const struct check_case &c,
                             const struct kd_run *run, uint64_t seed)
{
    std::vector<float> x((size_t)(c.tokens * c.cols));
    struct kd_err err;

    t->c = c;
    t->w.resize((size_t)(c.rows * c.cols));
    for (int64_t i = 0; i < c.rows * c.cols; i++)
        t->w[(size_t)i] =
            (float)(0.02 * exp(0.3 * check_gauss(seed + 1, i % c.cols)) * check_gauss(seed, i));
    for (int64_t i = 0; i < c.tokens * c.cols; i++)
        x[(size_t)i] = (float)(exp(0.5 * check_gauss(seed + 2, i % c.cols)) *
                               (check_gauss(seed + 3, i) + check_gauss(seed + 4, i / c.cols)));
    memset(&t->mat, 0, sizeof t->mat);
    t->mat.type = KD_MAT_F32;
    t->mat.rows = c.rows;
    t->mat.cols = t->mat.ld = c.cols;
    t->mat.data = t->w.data();
    if (c.stored == KD_MAT_BF16 || c.stored == KD_MAT_MXFP4)
        check_store(t);
    memset(&t->spec, 0, sizeof t->spec);
    t->spec.rate = kd_rate_from16(c.sixteenths);
    t->spec.cb = c.cb;
    t->spec.recipe = kd_recipe_of(c.recipe);
    t->spec.recipe.full_scale_search = c.full;
    t->spec.seed = seed;
    t->spec.input_seed = seed + 9;
    if (kd_hess_open(&t->h, c.cols, &err) ||
        kd_hess_add(run, &t->h, x.data(), c.cols, c.tokens, &err)) {
        check_complain(&err);
        return 1;
    }
    kd_hess_close(&t->h);
    return 0;
}

static inline int check_quantize(const struct check_tensor *t, const struct kd_run *run,
                                 struct kd_quant_out *out, struct kd_err *err)
{
    return kd_quant_tensor(run, &t->mat, t->c.tokens ? &t->h : NULL, &t->spec, out, err);
}

static inline void check_free(struct check_tensor *t)
{
    kd_hess_release(&t->h);
    kd_quant_release(&t->want);
}

/* What differs, or NULL. */
static inline const char *check_differs(const struct kd_quant_out *a, const struct kd_quant_out *b)
{
    return a->codes_bytes != b->codes_bytes                           ? "size"
           : memcmp(a->suh, b->suh, (size_t)a->k * 2) != 0            ? "suh"
           : memcmp(a->svh, b->svh, (size_t)a->n * 2) != 0            ? "svh"
           : memcmp(a->codes, b->codes, (size_t)a->codes_bytes) != 0  ? "codes"
           : memcmp(&a->scale, &b->scale, sizeof a->scale) != 0       ? "scale"
           : memcmp(&a->mse, &b->mse, sizeof a->mse) != 0             ? "mse"
           : memcmp(&a->proxy, &b->proxy, sizeof a->proxy) != 0       ? "proxy"
           : memcmp(&a->rel_fro, &b->rel_fro, sizeof a->rel_fro) != 0 ? "rel_fro"
           : a->cholesky_tries != b->cholesky_tries                   ? "tries"
           : a->fallback != b->fallback                               ? "fallback"
                                                                      : NULL;
}

/* All cases on the CPU, then all at once on the encoder, a thread each, every other one with a
 * shared Hessian; how many differ. */
static inline int check_all(const struct kd_run *cpu, struct kd_gpu_encoder *e,
                            const struct check_case *c, int count)
{
    std::vector<struct check_tensor> t((size_t)count);
    std::vector<std::thread> threads;
    std::vector<int> bad((size_t)count);
    struct kd_err err;
    int sum = 0;

    for (int i = 0; i < count; i++)
        if (check_make(&t[(size_t)i], c[i], cpu, 100 + 17 * (uint64_t)i) ||
            check_quantize(&t[(size_t)i], cpu, &t[(size_t)i].want, &err)) {
            check_complain(&err);
            return 1;
        }
    const struct kd_run with = {cpu->kern, NULL, e, false};
    for (int i = 0; i < count; i += 2)
        if (t[(size_t)i].c.tokens && kd_hess_share(&with, &t[(size_t)i].h, &err)) {
            check_complain(&err);
            return 1;
        }
    for (int i = 0; i < count; i++)
        threads.emplace_back([&, i] {
            const struct check_tensor *me = &t[(size_t)i];
            struct kd_run run = with;
            struct kd_quant_out got;
            struct kd_err why;
            const char *what;
            if (check_quantize(me, &run, &got, &why)) {
                check_complain(&why);
                bad[(size_t)i] = 1;
                return;
            }
            what = check_differs(&me->want, &got);
            bad[(size_t)i] = what != NULL;
            printf("%5lld x %5lld, rate %.4f, codebook %d, recipe %s, %lld tokens: MSE %.5f, %s\n",
                   (long long)me->c.rows, (long long)me->c.cols, me->c.sixteenths / 16.0,
                   (int)me->c.cb, kd_recipe_text(me->c.recipe), (long long)me->c.tokens, got.mse,
                   what ? what : "the CPU's bytes");
            kd_quant_release(&got);
        });
    for (std::thread &x : threads)
        x.join();
    for (int i = 0; i < count; i++) {
        sum += bad[(size_t)i];
        check_free(&t[(size_t)i]);
    }
    return sum;
}

#endif
