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

/* ---- class `fast`: held to the bounds of docs/numerics.md ---- */

/* |got - want| at most 2^-14 of the sum of |x| |w|. */
static inline int calib_fast_product(const struct kd_run *cpu, struct kd_gpu_encoder *e,
                                     const struct calib_case &c)
{
    const int64_t ldx = c.cols + 5, ldy = c.rows + 3;
    const std::vector<float> x = calib_rows(c.T * ldx, 7);
    std::vector<float> want((size_t)(c.T * ldy), 5.0f), got = want;
    std::vector<float> w((size_t)(c.rows * c.cols));
    struct calib_matrix m;
    struct kd_err err;
    bool done = false;
    double worst = 0;

    calib_make(&m, c.type, c.rows, c.cols, c.rate16, c.cb, 31);
    const struct kd_gpu_source s = kd_mat_source(&m.mat);
    if (kd_mat_mul(cpu, &m.mat, x.data(), ldx, c.T, want.data(), ldy, &err) ||
        kd_mat_dequant(cpu, &m.mat, w.data(), c.cols, &err) ||
        kd_gpu_calib_mul(e, &s, x.data(), ldx, c.T, got.data(), ldy, &done, &err)) {
        check_complain(&err);
        return 1;
    }
    bool between = true; /* what lies between the rows is left alone */
    for (int64_t t = 0; t < c.T; t += 1 + c.T / 8)
        for (int64_t r = 0; r < ldy; r++) {
            const size_t at = (size_t)(t * ldy + r);
            double all = 1e-30;
            between &= r < c.rows || got[at] == 5.0f;
            for (int64_t i = 0; r < c.rows && i < c.cols; i++)
                all += fabs((double)x[(size_t)(t * ldx + i)] * (double)w[(size_t)(r * c.cols + i)]);
            if (r < c.rows)
                worst = fmax(worst, fabs((double)got[at] - (double)want[at]) / all);
        }
    const bool good = done && between && worst < 0x1p-14;
    if (!good)
        printf("fast: type %d, %lld x %lld, %lld rows, rate %u / 16: %s 2^%.1f of it\n",
               (int)c.type, (long long)c.rows, (long long)c.cols, (long long)c.T, c.rate16,
               done ? "off by" : "not done", log2(worst));
    return !good;
}

/* The most that two sums of x^T x differ, relative to the root of their diagonals' product; *mean:
 * the root of the mean square of all. */
static inline double calib_sums_differ(const float *want, const float *got, int64_t k, double *mean)
{
    double worst = 0, bad = 0, all = 0;
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = i; j < k; j++) {
            const double a = (double)want[i * k + j], d = (double)got[i * k + j] - a;
            const double scale = sqrt((double)want[i * k + i] * (double)want[j * k + j]);
            worst = fmax(worst, scale > 0 ? fabs(d) / scale : fabs(d) > 0);
            bad += d * d;
            all += a * a;
        }
    *mean = sqrt(bad / all);
    return worst;
}

/* A Hessian within 2^-7.9 of the root of its diagonals. */
static inline int calib_fast_hessian(const struct kd_run *cpu, const struct kd_run *run, int64_t k,
                                     int64_t T)
{
    const std::vector<float> x = calib_rows(T * (k + 1), 3);
    struct kd_hess a = {}, b = {};
    struct kd_err err;
    double mean = 1, worst = 1;

    if (kd_hess_open(&a, k, &err) || kd_hess_open(&b, k, &err) ||
        kd_hess_on_device(run, &b, &err) || kd_hess_add(cpu, &a, x.data(), k + 1, T, &err) ||
        kd_hess_add(run, &b, x.data(), k + 1, 40, &err) ||
        kd_hess_add(run, &b, x.data() + 40 * (k + 1), k + 1, T - 40, &err)) {
        check_complain(&err);
    } else if (b.sums && !kd_hess_finish(&b, &err)) {
        kd_hess_close(&a);
        worst = calib_sums_differ(a.h, b.h, a.k, &mean);
    }
    const bool good = worst > 0 && worst < 0.00419 && mean < 0x1p-8 && a.rows == b.rows;
    if (!good)
        printf("fast: a Hessian of %lld inputs: off by %g, %g\n", (long long)k, worst, mean);
    kd_hess_release(&a);
    kd_hess_release(&b);
    return !good;
}

/* An expert's inner Hessian, both kinds, fast against exact: within 2^-6 and on average 2^-7, also
 * of few rows. */
static inline int calib_fast_inner(const struct kd_run *run, int64_t latent, int64_t inter,
                                   int64_t T, bool there)
{
    const int64_t n = (inter + 127) / 128 * 128;
    std::vector<float> h[4], z = calib_rows(T * latent, 17), weight;
    struct kd_gpu_latents *l = NULL;
    std::vector<uint16_t> zb;
    std::vector<int32_t> row;
    struct calib_matrix m[2];
    struct kd_gpu_inner j = {};
    struct kd_err err = {};
    double mean[2] = {1, 1}, worst[2] = {1, 1};
    bool done[2] = {};

    for (float v : z)
        zb.push_back(kd_f32_bf16(v));
    for (int64_t t = 0; t < T; t++)
        if (t % 3 == 1 || t > T - 9) {
            row.push_back((int32_t)t);
            weight.push_back(0.2f + 0.01f * (float)(t % 50));
        }
    for (auto &x : h)
        x.resize((size_t)(n * n));
    for (int i = 0; i < 2; i++)
        calib_make(&m[i], KD_MAT_EXL3, inter, latent, 37, KD_CB_MUL1, (uint64_t)(60 + i));
    const struct kd_gpu_source w1 = kd_mat_source(&m[0].mat), w3 = kd_mat_source(&m[1].mat);
    int rc = there ? kd_gpu_latents_open(&l, run->encoder, zb.data(), T, latent, &err) : 0;
    for (int fast = 0; !rc && fast < 2; fast++) {
        j = {&w1,
             &w3,
             T,
             zb.data(),
             l,
             4.0f,
             25.0f,
             h[2 * fast].data(),
             h[2 * fast + 1].data(),
             row.data(),
             weight.data(),
             (int64_t)row.size()};
        kd_gpu_encoder_calibrate(run->encoder, fast ? KD_GPU_CALIB_FAST : KD_GPU_CALIB_EXACT);
        rc = kd_gpu_inner_sums(run->encoder, &j, &done[fast], &err);
    }
    kd_gpu_latents_close(l);
    for (int i = 0; !rc && i < 2; i++)
        worst[i] = calib_sums_differ(h[i].data(), h[2 + i].data(), n, &mean[i]);
    bool good = !rc && done[0] && done[1];
    for (int i = 0; i < 2; i++)
        good &= worst[i] > 0 && worst[i] < 0x1p-6 && mean[i] < 0x1p-7;
    if (!good)
        printf("fast: inner rows, %lld x %lld, %lld rows: off by %g and %g, %g and %g %s\n",
               (long long)inter, (long long)latent, (long long)T, worst[0], worst[1], mean[0],
               mean[1], err.msg);
    return !good;
}

/* The sum of three experts over T tokens: exact has the bits of products and axpy on the CPU, fast
 * is within 2^-11 of them on average. */
static inline int calib_sum(const struct kd_run *cpu, struct kd_gpu_encoder *e, bool fast,
                            enum kd_mat_type in, enum kd_mat_type out, int64_t latent,
                            int64_t inter, int64_t T)
{
    std::vector<float> z = calib_rows(T * latent, 23), want((size_t)(T * latent)), got(want);
    std::vector<uint16_t> zb;
    struct kd_gpu_routed *r = NULL;
    struct kd_err err = {};
    bool all = true;
    double bad = 0, sum = 0;

    for (float &v : z) {
        zb.push_back(kd_f32_bf16(v));
        v = kd_bf16_f32(zb.back());
    }
    kd_gpu_encoder_calibrate(e, fast ? KD_GPU_CALIB_FAST : KD_GPU_CALIB_EXACT);
    int rc = kd_gpu_routed_open(&r, e, 1, zb.data(), T, latent, &err);
    for (int x = 0; !rc && r && x < 3; x++) {
        struct calib_matrix m[3];
        struct kd_gpu_source w[3];
        std::vector<int32_t> row;
        std::vector<float> weight, xs, g, u, y;
        bool done = false;
        for (int i = 0; i < 3; i++) {
            calib_make(&m[i], i < 2 ? in : out, i < 2 ? inter : latent, i < 2 ? latent : inter, 37,
                       KD_CB_MUL1, (uint64_t)(60 + 3 * x + i));
            w[i] = kd_mat_source(&m[i].mat);
        }
        for (int64_t t = 0; t < T; t++)
            if ((t + x) % 3) {
                row.push_back((int32_t)t);
                weight.push_back(0.3f + 0.01f * (float)(t % 40));
                xs.insert(xs.end(), z.begin() + t * latent, z.begin() + (t + 1) * latent);
            }
        const int64_t n = (int64_t)row.size();
        g.resize((size_t)(n * inter));
        u.resize(g.size());
        y.resize((size_t)(n * latent));
        rc = kd_mat_mul(cpu, &m[0].mat, xs.data(), latent, n, g.data(), inter, &err) ||
             kd_mat_mul(cpu, &m[1].mat, xs.data(), latent, n, u.data(), inter, &err);
        cpu->kern->situ(g.data(), u.data(), 4.0f, 25.0f, g.data(), n * inter);
        rc = rc || kd_mat_mul(cpu, &m[2].mat, g.data(), inter, n, y.data(), latent, &err) ||
             kd_gpu_routed_add(r, w, row.data(), weight.data(), n, 4.0f, 25.0f, &done, &err);
        for (int64_t i = 0; i < n; i++)
            cpu->kern->axpy(weight[(size_t)i], &y[(size_t)(i * latent)],
                            &want[(size_t)(row[(size_t)i] * latent)], latent);
        all &= done;
    }
    rc = rc || !r || kd_gpu_routed_take(r, got.data(), &err);
    kd_gpu_routed_close(r);
    for (size_t i = 0; i < want.size(); i++) {
        bad += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        sum += (double)want[i] * (double)want[i];
    }
    const double off = sqrt(bad / sum);
    const bool good = !rc && all && sum > 0 && (fast ? off > 0 && off < 0x1p-11 : !(off > 0));
    if (!good)
        printf("a sum of experts of types %d and %d, fast %d: rc %d %s, off by %g\n", (int)in,
               (int)out, fast, rc, err.msg, off);
    return !good;
}

#endif
