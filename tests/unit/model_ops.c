/* Operations against the vectors of an independent project (tests/data/vectors/ops), within the
 * tolerances of its MANIFEST.json. */
#include "model/k3_int.h"
#include "model_util.h"

static struct kd_kern kern;
static struct kd_run run;
static double tol_abs, tol_rel;

static struct kd_json *load(const char *name)
{
    char file[64], path[512];
    struct kd_json *j;
    snprintf(file, sizeof file, "vectors/ops/%s.json", name);
    must(kd_json_load(&j, data_path(path, file), 1 << 24, &err));
    return j;
}

/* The "data" array of a member as new floats. */
static float *array(const struct kd_json *j, const char *key, int64_t *count)
{
    const struct kd_json *data = kd_json_get(kd_json_get(j, key), "data");
    int64_t n = (int64_t)kd_json_count(data);
    assert_true(n > 0);
    float *out = new_floats(n);
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)kd_json_num_value(kd_json_at(data, (size_t)i));
    if (count)
        *count = n;
    return out;
}

static struct kd_mat mat(const float *w, int64_t rows, int64_t cols)
{
    return (struct kd_mat){.type = KD_MAT_F32, .rows = rows, .cols = cols, .data = w, .ld = cols};
}

static void same(const float *got, const float *want, int64_t n, const char *what)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= tol_abs + tol_rel * fabs((double)want[i])))
            fail_msg("%s[%lld]: %.9g, not %.9g", what, (long long)i, (double)got[i],
                     (double)want[i]);
}

/* The mix is followed by the layer's input norm: with a norm of ones that is undone by the mix's
 * own length, computed here from the expected values. */
static void attnres(void **state)
{
    struct kd_json *j = load("attnres");
    float *p = array(j, "prefix_sum", NULL), *res = array(j, "block_residual", NULL);
    float *proj = array(j, "proj_weight", NULL), *norm = array(j, "norm_weight", NULL);
    float *want = array(j, "out", NULL), *bank = new_floats(8 * 4 * 128), *x = new_floats(4 * 128);
    float query[128], ones[128];
    (void)state;
    for (int i = 0; i < 128; i++) {
        query[i] = norm[i] * proj[i];
        ones[i] = 1.0f;
    }
    for (int t = 0; t < 4; t++)
        for (int b = 0; b < 8; b++)
            memcpy(bank + (b * 4 + t) * 128, res + (t * 8 + b) * 128, 128 * sizeof *bank);
    struct kd_k3_cfg c = {.hidden = 128, .eps = 1e-5f, .block = 1, .layers = 12};
    struct kd_k3_layer L = {.index = 8, .attn_res = query, .input_norm = ones};
    struct kd_k3_stream s = {
        .T = 4, .hidden = 128, .banks = 8, .started = true, .p = p, .bank = bank, .bank_rows = 4};
    must(kd_k3_attn_in(&run, &c, &L, &s, x, &err));
    for (int t = 0; t < 4; t++) {
        double ss = 0;
        for (int i = 0; i < 128; i++)
            ss += (double)want[t * 128 + i] * (double)want[t * 128 + i];
        for (int i = 0; i < 128; i++)
            x[t * 128 + i] *= (float)sqrt(ss / 128 + 1e-5);
    }
    same(x, want, 4 * 128, "mix");
    float *const all[] = {p, res, proj, norm, want, bank, x};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    kd_json_free(j);
}

static void kda_decay(void **state)
{
    struct kd_json *j = load("kda_decay");
    float *z = array(j, "z", NULL), *a = array(j, "A_log", NULL), *dt = array(j, "dt_bias", NULL);
    float *want = array(j, "g", NULL), *alpha = array(j, "alpha", NULL), tmp[32], got[16], ea[4];
    struct kd_k3_cfg c = {.kda_dim = 16,
                          .bounded_gate = true,
                          .gate_lower_bound =
                              (float)kd_json_num_value(kd_json_get(j, "lower_bound"))};
    (void)state;
    kern.exp(a, ea, 4);
    for (int t = 0; t < 4; t++)
        for (int h = 0; h < 4; h++) {
            int at = (t * 4 + h) * 16;
            kd_k3_decay(&kern, &c, z + at, dt + h * 16, ea[h], tmp, got);
            same(got, want + at, 16, "g");
            kern.exp(got, got, 16);
            same(got, alpha + at, 16, "alpha");
        }
    free(z);
    free(a);
    free(dt);
    free(want);
    free(alpha);
    kd_json_free(j);
}

/* softplus over its whole range, in double. */
static void softplus(void **state)
{
    (void)state;
    for (double x = -40; x < 40; x += 0.0173) {
        float in = (float)x, tmp, out;
        kd_k3_softplus(&kern, &in, &tmp, &out, 1);
        double want = log1p(exp((double)in));
        assert_true(fabs((double)out - want) <= 5e-7 * want + 1e-38);
    }
}

static void kda_recur1(void **state)
{
    struct kd_json *j = load("kda_recur1");
    float *q = array(j, "q", NULL), *k = array(j, "k", NULL), *v = array(j, "v", NULL);
    float *alpha = array(j, "alpha", NULL), *beta = array(j, "beta", NULL),
          *want = array(j, "out", NULL);
    float *after = array(j, "state_out", NULL), *S = new_floats(4 * 256), out[16], scaled[16];
    (void)state;
    for (int h = 0; h < 4; h++) {
        for (int i = 0; i < 16; i++)
            scaled[i] = q[h * 16 + i] * 0.25f;
        kern.kda_step(S + h * 256, scaled, k + h * 16, v + h * 16, alpha + h * 16, beta[h], 16, 16,
                      out);
        same(out, want + h * 16, 16, "out");
    }
    same(S, after, 4 * 256, "state");
    float *const all[] = {q, k, v, alpha, beta, want, after, S};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    kd_json_free(j);
}

static void shortconv(void **state)
{
    struct kd_json *j = load("shortconv");
    float *w = array(j, "weight", NULL), *in = array(j, "in", NULL), *want = array(j, "out", NULL);
    float *next = array(j, "in_next", NULL), *want_next = array(j, "out_next", NULL), out[64];
    static const float zero[64];
    (void)state;
    for (int t = 0; t < 6; t++) {
        const float *x[4];
        for (int i = 0; i < 4; i++)
            x[i] = t - 3 + i < 0 ? zero : t - 3 + i < 5 ? in + (t - 3 + i) * 64 : next;
        kd_k3_conv(&kern, w, 4, x, 64, out);
        same(out, t < 5 ? want + t * 64 : want_next, 64, "conv");
    }
    free(w);
    free(in);
    free(want);
    free(next);
    free(want_next);
    kd_json_free(j);
}

static void router(void **state)
{
    struct kd_json *j = load("router");
    float *w = array(j, "gate_weight", NULL), *bias = array(j, "bias", NULL),
          *in = array(j, "in", NULL);
    float *idx = array(j, "topk_idx", NULL), *want = array(j, "topk_weight", NULL), got[12],
          one[12], score[48];
    int32_t ids[12];
    struct kd_k3_cfg c = {
        .hidden = 128, .experts = 8, .topk = 2, .routed_scale = 1.0f, .renormalize = true};
    struct kd_k3_layer L = {.router = mat(w, 8, 128), .router_bias = bias};
    (void)state;
    must(kd_k3_route(&run, &c, &L, in, 6, 0, ids, got, score, &err));
    for (int i = 0; i < 12; i++)
        assert_int_equal(ids[i], (int)idx[i]);
    same(got, want, 12, "weights");
    /* One expert instead of two: the first of the two, with all of the weight. */
    must(kd_k3_route(&run, &c, &L, in, 6, 1, ids, one, NULL, &err));
    for (int t = 0; t < 6; t++) {
        assert_int_equal(ids[2 * t], (int)idx[2 * t]);
        assert_int_equal(ids[2 * t + 1], -1);
        assert_true(fabsf(one[2 * t] - 1.0f) < 1e-6f && one[2 * t + 1] == 0.0f);
    }
    assert_int_equal(kd_k3_route(&run, &c, &L, in, 6, 3, ids, one, NULL, &err), -1);
    /* Equal scores: the lowest indexes, in order. */
    memset(w, 0, 8 * 128 * sizeof *w);
    memset(bias, 0, 8 * sizeof *bias);
    c.routed_scale = 2.5f;
    must(kd_k3_route(&run, &c, &L, in, 1, 0, ids, one, NULL, &err));
    assert_int_equal(ids[0], 0);
    assert_int_equal(ids[1], 1);
    assert_true(fabsf(one[0] - 1.25f) < 1e-6f);
    free(w);
    free(bias);
    free(in);
    free(idx);
    free(want);
    kd_json_free(j);
}

/* A store of eight experts in memory, which makes everyone wait once. */
struct memory {
    struct kd_store s;
    struct kd_expert e[8];
    int gets, waits, dones;
};

static int memory_get(struct kd_store *s, int64_t layer, int64_t expert, struct kd_expert *out,
                      struct kd_err *e)
{
    struct memory *m = s->ctx;
    (void)layer;
    (void)e;
    *out = m->e[expert];
    out->ready = false;
    m->gets++;
    return 0;
}

static int memory_wait(struct kd_store *s, int64_t layer, int64_t expert, struct kd_expert *out,
                       struct kd_err *e)
{
    struct memory *m = s->ctx;
    (void)layer;
    (void)e;
    *out = m->e[expert];
    out->ready = true;
    m->waits++;
    return 0;
}

static void memory_done(struct kd_store *s, int64_t layer, int64_t expert)
{
    (void)layer;
    (void)expert;
    ((struct memory *)s->ctx)->dones++;
}

/* An array that stays in own[] until the test ends. */
static float *take(const struct kd_json *j, const char *name, float **own, int *n)
{
    return own[(*n)++] = array(j, name, NULL);
}

static void moe(void **state)
{
    struct kd_json *j = load("moe");
    struct memory m = {.s = {.get = memory_get, .wait = memory_wait, .done = memory_done}};
    float *own[64];
    int n = 0;
    (void)state;
#define TAKE(name) take(j, name, own, &n)
    for (int e = 0; e < 8; e++) {
        char key[3][32];
        for (int i = 0; i < 3; i++)
            snprintf(key[i], sizeof key[i], "experts_%d_w%d_weight", e, i + 1);
        m.e[e].w1 = mat(TAKE(key[0]), 48, 64);
        m.e[e].w2 = mat(TAKE(key[1]), 64, 48);
        m.e[e].w3 = mat(TAKE(key[2]), 48, 64);
    }
    m.s.ctx = &m;
    struct kd_k3_cfg c = {.hidden = 128,
                          .experts = 8,
                          .topk = 2,
                          .routed_scale = 1.0f,
                          .renormalize = true,
                          .latent_norm = true,
                          .latent = 64,
                          .moe_inter = 48,
                          .eps = 1e-5f,
                          .situ_beta = 4.0f,
                          .situ_linear = 25.0f};
    struct kd_k3_layer L = {.index = 1,
                            .moe = true,
                            .router = mat(TAKE("gate_weight"), 8, 128),
                            .router_bias = TAKE("e_score_correction_bias"),
                            .routed_down = mat(TAKE("down_weight"), 64, 128),
                            .routed_up = mat(TAKE("up_weight"), 128, 64),
                            .routed_norm = TAKE("norm_weight"),
                            .gate = mat(TAKE("shared_w1_weight"), 96, 128),
                            .up = mat(TAKE("shared_w3_weight"), 96, 128),
                            .down = mat(TAKE("shared_w2_weight"), 128, 96)};
    const float *x = TAKE("in"), *want = TAKE("out");
    float z[192], u[192], w[6], inner[288], f[384], g[384];
    int32_t ids[6];
    must(kd_k3_route(&run, &c, &L, x, 3, 0, ids, w, NULL, &err));
    must(kd_mat_mul(&run, &L.routed_down, x, 128, 3, z, 64, &err));
    must(kd_k3_experts(&run, &c, 1, &m.s, z, ids, w, 3, u, &err));
    kd_k3_latent_norm(&run, &c, &L, u, 3, z);
    must(kd_mat_mul(&run, &L.routed_up, z, 64, 3, f, 128, &err));
    must(kd_k3_mlp_inner(&run, &c, &L.gate, &L.up, x, 3, inner, &err));
    must(kd_mat_mul(&run, &L.down, inner, 96, 3, g, 128, &err));
    for (int i = 0; i < 384; i++)
        f[i] += g[i];
    same(f, want, 384, "MoE");
    assert_true(m.gets > 0 && m.gets == m.waits && m.gets == m.dones);
    for (int i = 0; i < n; i++)
        free(own[i]);
    kd_json_free(j);
}

static int start(void **state)
{
    struct kd_json *m = load("MANIFEST");
    const struct kd_json *tol = kd_json_get(m, "tolerance");
    (void)state;
    tol_abs = kd_json_num_value(kd_json_get(tol, "fp32_abs"));
    tol_rel = kd_json_num_value(kd_json_get(tol, "fp32_rel"));
    assert_true(tol_abs > 0 && tol_abs < 1e-4 && tol_rel > 0 && tol_rel < 1e-3);
    kd_json_free(m);
    must(kd_kern_pick(&kern, &err));
    run.kern = &kern;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attnres),    cmocka_unit_test(kda_decay), cmocka_unit_test(softplus),
        cmocka_unit_test(kda_recur1), cmocka_unit_test(shortconv), cmocka_unit_test(router),
        cmocka_unit_test(moe),
    };
    return cmocka_run_group_tests(tests, start, NULL);
}
