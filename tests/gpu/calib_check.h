/* What the emulated test of calibration and the one on a device share: random matrices of every
 * type with their CPU products. */
#ifndef KD_TESTS_GPU_CALIB_CHECK_H
#define KD_TESTS_GPU_CALIB_CHECK_H

#include "gpu/encode_check.h"

extern "C" {
#include "codec/expert.h"
#include "gpu/calib.h"
#include "kern/mat_source.h"
}

struct calib_matrix {
    std::vector<uint8_t> bytes;
    std::vector<uint16_t> suh, svh;
    struct kd_mat mat;
};

/* Any bytes are codes; scales and signs keep outputs of the activations' size. */
static inline void calib_make(struct calib_matrix *m, enum kd_mat_type type, int64_t rows,
                              int64_t cols, unsigned rate16, enum kd_codebook cb, uint64_t seed)
{
    auto word = [&](int64_t i) {
        return (uint32_t)(kd_rand_unit(seed, (uint64_t)i) * 4294967296.0);
    };
    const int64_t rp = (rows + 127) / 128 * 128, cp = (cols + 127) / 128 * 128;
    const int64_t ld = cols + 8, lds = (cols + 31) / 32 + 3;
    struct kd_mat w = {};

    w.type = type;
    w.rows = rows;
    w.cols = cols;
    if (type == KD_MAT_EXL3) {
        w.rate = kd_rate_from16(rate16);
        w.cb = cb;
        w.rows_padded = rp;
        w.cols_padded = cp;
        w.ld = rp / 16 + 8; /* a slice of a wider one */
        m->bytes.resize((size_t)(cp / 16 * w.ld * kd_rate_tile_bytes(w.rate)));
        m->suh.resize((size_t)cp);
        m->svh.resize((size_t)rp);
        for (int64_t i = 0; i < cp; i++)
            m->suh[(size_t)i] = (uint16_t)(0x2c00 | (word(i) & 0x83ff));
        for (int64_t i = 0; i < rp; i++)
            m->svh[(size_t)i] = (uint16_t)(0x3800 | (word(cp + i) & 0x83ff));
    } else {
        w.ld = type == KD_MAT_MXFP4 ? ld / 2 : ld;
        m->bytes.resize((size_t)(rows * (type == KD_MAT_F32    ? 4 * ld
                                         : type == KD_MAT_BF16 ? 2 * ld
                                                               : w.ld + lds)));
    }
    for (size_t i = 0; i < m->bytes.size(); i++)
        m->bytes[i] = (uint8_t)(word((int64_t)i + rp + cp) >> 11);
    for (int64_t i = 0; type == KD_MAT_F32 && i < rows * ld; i++)
        ((float *)m->bytes.data())[i] = (float)(0.1 * check_gauss(seed, i));
    for (int64_t i = 0; type == KD_MAT_BF16 && i < rows * ld; i++)
        ((uint16_t *)m->bytes.data())[i] = kd_f32_bf16((float)(0.1 * check_gauss(seed, i)));
    w.data = m->bytes.data();
    if (type == KD_MAT_MXFP4) {
        for (int64_t i = rows * w.ld; i < (int64_t)m->bytes.size(); i++)
            m->bytes[(size_t)i] = (uint8_t)(117 + i % 7);
        w.scale = m->bytes.data() + rows * w.ld;
        w.ld_scale = lds;
    }
    w.suh = m->suh.data();
    w.svh = m->svh.data();
    m->mat = w;
}

struct calib_case {
    enum kd_mat_type type;
    int64_t rows, cols, T;
    unsigned rate16;
    enum kd_codebook cb;
};

static inline std::vector<float> calib_rows(int64_t count, uint64_t seed)
{
    std::vector<float> x((size_t)count);
    for (int64_t i = 0; i < count; i++)
        x[(size_t)i] = (float)(exp(0.5 * check_gauss(seed, i % 61)) * check_gauss(seed + 1, i));
    return x;
}

/* 0: the device did it, and to the CPU's bits; what lies between the rows is left alone. */
static inline int calib_product(const struct kd_run *cpu, struct kd_gpu_encoder *e,
                                const struct calib_case &c)
{
    const int64_t ldx = c.cols + 5, ldy = c.rows + 3;
    const std::vector<float> x = calib_rows(c.T * ldx, 7);
    std::vector<float> want((size_t)(c.T * ldy), 5.0f), got = want;
    struct calib_matrix m;
    struct kd_err err;
    bool done = false;

    calib_make(&m, c.type, c.rows, c.cols, c.rate16, c.cb, 31);
    const struct kd_gpu_source s = kd_mat_source(&m.mat);
    if (kd_mat_mul(cpu, &m.mat, x.data(), ldx, c.T, want.data(), ldy, &err) ||
        kd_gpu_calib_mul(e, &s, x.data(), ldx, c.T, got.data(), ldy, &done, &err)) {
        check_complain(&err);
        return 1;
    }
    const bool same = done && !memcmp(want.data(), got.data(), want.size() * sizeof want[0]);
    if (!same)
        printf("type %d, %lld x %lld, %lld rows, rate %u / 16: %s\n", (int)c.type,
               (long long)c.rows, (long long)c.cols, (long long)c.T, c.rate16,
               done ? "other bits" : "not done");
    return !same;
}

/* An expert's outputs for T rows. */
static inline int calib_whole_expert(const struct kd_run *cpu, struct kd_gpu_encoder *e,
                                     enum kd_mat_type in, enum kd_mat_type out, int64_t latent,
                                     int64_t inter, int64_t T)
{
    const std::vector<float> x = calib_rows(T * latent, 23);
    std::vector<float> g((size_t)(T * inter)), u(g), want((size_t)(T * latent)), got(want);
    struct calib_matrix m[3];
    struct kd_gpu_source w[3];
    struct kd_err err;
    bool done = false;

    for (int i = 0; i < 3; i++) {
        calib_make(&m[i], i < 2 ? in : out, i < 2 ? inter : latent, i < 2 ? latent : inter, 37,
                   KD_CB_MUL1, (uint64_t)(60 + i));
        w[i] = kd_mat_source(&m[i].mat);
    }
    int rc = kd_mat_mul(cpu, &m[0].mat, x.data(), latent, T, g.data(), inter, &err) ||
             kd_mat_mul(cpu, &m[1].mat, x.data(), latent, T, u.data(), inter, &err);
    cpu->kern->situ(g.data(), u.data(), 4.0f, 25.0f, g.data(), T * inter);
    rc = rc || kd_mat_mul(cpu, &m[2].mat, g.data(), inter, T, want.data(), latent, &err) ||
         kd_gpu_calib_expert(e, w, x.data(), T, 4.0f, 25.0f, got.data(), &done, &err);
    if (rc) {
        check_complain(&err);
        return 1;
    }
    const bool same = done && !memcmp(want.data(), got.data(), want.size() * sizeof want[0]);
    if (!same)
        printf("an expert of types %d and %d, %lld x %lld, %lld rows: %s\n", (int)in, (int)out,
               (long long)inter, (long long)latent, (long long)T, done ? "other bits" : "not done");
    return !same;
}

/* A Hessian of rows of which some are not finite, in two calls. */
static inline int calib_hessian(const struct kd_run *cpu, const struct kd_run *run, int64_t k,
                                int64_t T)
{
    std::vector<float> x = calib_rows(T * (k + 1), 3);
    struct kd_hess a = {}, b = {};
    struct kd_err err;
    bool same = false;

    x[(size_t)(5 * (k + 1) + 1)] = INFINITY;
    x[(size_t)((T - 1) * (k + 1))] = NAN;
    if (kd_hess_open(&a, k, &err) || kd_hess_open(&b, k, &err) ||
        kd_hess_on_device(run, &b, &err) || kd_hess_add(cpu, &a, x.data(), k + 1, T, &err) ||
        kd_hess_add(run, &b, x.data(), k + 1, 40, &err) ||
        kd_hess_add(run, &b, x.data() + 40 * (k + 1), k + 1, T - 40, &err)) {
        check_complain(&err);
    } else {
        const bool there = b.sums != NULL;
        kd_hess_close(&a);
        same = there && !kd_hess_finish(&b, &err) && a.rows == b.rows && a.bad_rows == b.bad_rows &&
               a.rows == T - 2 && !memcmp(a.h, b.h, (size_t)(4 * a.k * a.k));
    }
    if (!same)
        printf("a Hessian of %lld inputs is another one\n", (long long)k);
    kd_hess_release(&a);
    kd_hess_release(&b);
    return !same;
}

/* One expert of a layer of T tokens. */
struct calib_expert {
    struct calib_matrix w[3];
    std::vector<uint16_t> z;
    std::vector<int32_t> ids;
    std::vector<float> weight;
    struct kd_hess h;
    struct kd_layer_inputs in;
    struct kd_quant_spec spec[3];
};

static inline int calib_expert_make(struct calib_expert *x, const struct kd_run *cpu,
                                    int64_t latent, int64_t inter, int64_t T, bool routed)
{
    std::vector<float> z = calib_rows(T * latent, 17);
    struct kd_err err;

    calib_make(&x->w[0], KD_MAT_MXFP4, inter, latent, 0, KD_CB_MUL1, 1);
    calib_make(&x->w[1], KD_MAT_MXFP4, inter, latent, 0, KD_CB_MUL1, 2);
    calib_make(&x->w[2], KD_MAT_MXFP4, latent, inter, 0, KD_CB_MUL1, 3);
    for (float &v : z) {
        x->z.push_back(kd_f32_bf16(v));
        v = kd_bf16_f32(x->z.back());
    }
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < 2; i++) { /* every third token, and all of the last ones */
            x->ids.push_back(i == 1 && (t % 3 == 0 || t > T - 20) ? 4 : (int32_t)i);
            x->weight.push_back((float)(0.2 + 0.01 * (double)(t % 50)));
        }
    memset(&x->h, 0, sizeof x->h);
    if (kd_hess_open(&x->h, latent, &err) || kd_hess_add(cpu, &x->h, z.data(), latent, T, &err)) {
        check_complain(&err);
        return 1;
    }
    kd_hess_close(&x->h);
    x->in = {};
    x->in.T = T;
    x->in.latent = latent;
    x->in.z = x->z.data();
    x->in.h_in = &x->h;
    x->in.topk = 2;
    x->in.ids = x->ids.data();
    x->in.w = x->weight.data();
    x->in.situ_beta = 4.0f;
    x->in.situ_linear = 25.0f;
    x->in.weight_routed = routed;
    x->in.blend_rows = 100;
    x->in.fallback_rows = 8;
    x->in.block_rows = 64;
    for (int p = 0; p < 3; p++) {
        x->spec[p] = {};
        x->spec[p].rate = kd_rate_from16(p == 1 ? 37 : 32);
        x->spec[p].cb = KD_CB_MUL1;
        x->spec[p].recipe = kd_recipe_of(KD_RECIPE_DEFAULT);
        x->spec[p].recipe.full_scale_search = false;
        x->spec[p].seed = (uint64_t)(40 + p);
        x->spec[p].input_seed = p == 2 ? 50 : 51;
    }
    return 0;
}

static inline int calib_expert_run(struct calib_expert *x, const struct kd_run *run,
                                   struct kd_expert_out *out, struct kd_err *err)
{
    return kd_expert_quantize(run, 4, &x->w[0].mat, &x->w[1].mat, &x->w[2].mat, &x->in, x->spec,
                              out, err);
}

/* The whole expert on the CPU and with an encoder; `latents`: they lie on the device. */
static inline int calib_expert_check(const struct kd_run *cpu, const struct kd_run *run,
                                     int64_t latent, int64_t inter, int64_t T, bool routed,
                                     bool latents)
{
    struct kd_gpu_latents *there = NULL;
    struct kd_expert_out a = {}, b = {};
    struct calib_expert x;
    struct kd_err err;

    if (calib_expert_make(&x, cpu, latent, inter, T, routed) ||
        calib_expert_run(&x, cpu, &a, &err) ||
        (latents && kd_gpu_latents_open(&there, run->encoder, x.in.z, T, latent, &err))) {
        check_complain(&err);
        return 1;
    }
    x.in.z_there = there;
    if (calib_expert_run(&x, run, &b, &err)) {
        check_complain(&err);
        return 1;
    }
    const bool same = (there != NULL) == latents && !strcmp(a.hess_digest, b.hess_digest) &&
                      a.routed_rows == b.routed_rows && !check_differs(&a.w1, &b.w1) &&
                      !check_differs(&a.w3, &b.w3) && !check_differs(&a.w2, &b.w2);
    if (!same)
        printf("an expert of %lld x %lld over %lld tokens%s is another one: %.8s, %.8s\n",
               (long long)inter, (long long)latent, (long long)T, routed ? ", some weighted" : "",
               a.hess_digest, b.hess_digest);
    kd_gpu_latents_close(there);
    kd_expert_release(&a);
    kd_expert_release(&b);
    kd_hess_release(&x.h);
    return !same;
}

#endif
