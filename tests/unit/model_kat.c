/* The known-answer test and the unit values of the K3 specification (7.3). The numbers are the
 * specification's, made by its double-precision program. Thirteen layers of this model enlarge the
 * rounding of fp32 sums about twentyfold: bounds are 2e-5 relative near the input, and for the
 * stream and the logits absolute, still under a fifth of what the smallest visible mistake moves
 * (latent epsilon: 3e-4). */
#include "model_kat.h"

static char dir[512];

struct answer {
    int64_t t;
    int32_t best;
    int count; /* logits given */
    double logits[8];
    double sum, sum2; /* NaN: not given */
};

static void near(double got, double want, double rel, double abs, const char *what)
{
    if (!(fabs(got - want) <= rel * fabs(want) + abs))
        fail_msg("%s: %.9g, not %.9g", what, got, want);
}

static void all_near(const float *got, const double *want, int n, double rel, double abs,
                     const char *what)
{
    char name[128];
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s[%d]", what, i);
        near((double)got[i], want[i], rel, abs, name);
    }
}

static double sum2(const float *x, int64_t n)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++)
        s += (double)x[i] * (double)x[i];
    return s;
}

static void check_answers(const float *logits, const struct answer *a, int count)
{
    for (int i = 0; i < count; i++) {
        const float *row = logits + a[i].t * KAT_VOCAB;
        double sum = 0;
        for (int v = 0; v < KAT_VOCAB; v++)
            sum += (double)row[v];
        assert_int_equal(argmax(row, KAT_VOCAB), a[i].best);
        all_near(row, a[i].logits, a[i].count, 0, 6e-5, "logits");
        if (a[i].sum == a[i].sum)
            near(sum, a[i].sum, 0, 1e-3, "sum of logits");
        if (a[i].sum2 == a[i].sum2)
            near(sum2(row, KAT_VOCAB), a[i].sum2, 5e-5, 0, "sum of squared logits");
    }
}

static const struct answer eps5[] = {{0,
                                      57,
                                      8,
                                      {-0.708697291, 1.00673703, 0.15633632, -0.369466716,
                                       0.505685743, -0.854418434, -1.28349507, 0.0688832958},
                                      -2.21917294,
                                      22.072783},
                                     {6,
                                      40,
                                      8,
                                      {0.796620555, -0.0975754814, -0.145042124, -0.679842619,
                                       -0.236477627, 0.602420613, 0.699197156, -0.21537539},
                                      1.28469414,
                                      25.7575352},
                                     {69,
                                      47,
                                      8,
                                      {-0.154325432, 0.164374049, 0.743475322, -0.103601969,
                                       0.463812737, 0.466739482, 0.151889534, -0.304299546},
                                      0.0436466185,
                                      17.9825727}};
static const struct answer eps6[] = {
    {0, 57, 4, {-0.708397673, 1.00642691, 0.156314943, -0.369251126}, NAN, NAN},
    {6, 40, 4, {0.928324764, -0.0639244595, -0.13633875, -0.745797671}, NAN, 27.0042448},
    {69, 47, 4, {-0.151548523, 0.164375499, 0.745009062, -0.103493679}, NAN, 17.984042}};

static void tokens(int32_t ids[KAT_TOKENS])
{
    for (int64_t t = 0; t < KAT_TOKENS; t++)
        ids[t] = kat_token(t);
}

/* step tokens at a time */
static void answers(float eps, int64_t step, enum kd_isa isa, const char *where,
                    const struct answer *a)
{
    struct fixture f;
    struct kd_k3_open o = {.eps_latent = eps};
    struct kd_k3_seq *s;
    int32_t ids[KAT_TOKENS];
    float *logits = new_floats(KAT_TOKENS * KAT_VOCAB);
    tokens(ids);
    fixture_open(&f, where, isa, 0, &o);
    must(kd_k3_seq_open(&s, f.m, &err));
    for (int64_t t = 0; t < KAT_TOKENS; t += step) {
        struct kd_k3_feed feed = {s, ids + t, KAT_TOKENS - t < step ? KAT_TOKENS - t : step, 2};
        must(kd_k3_forward(f.m, &feed, 1, NULL, logits + t * KAT_VOCAB, &err));
    }
    check_answers(logits, a, 3);
    kd_k3_seq_close(s);
    fixture_close(&f);
    free(logits);
}

static void known_answers(void **state)
{
    (void)state;
    answers(1e-5f, KAT_TOKENS, KD_ISA_REF, dir, eps5);
    answers(1e-5f, 1, KD_ISA_REF, dir, eps5);
    answers(1e-5f, 7, KD_ISA_COUNT, dir, eps5);
    answers(0, KAT_TOKENS, KD_ISA_COUNT, dir, eps6); /* the default is 1e-6 */
    answers(1e-6f, 1, KD_ISA_COUNT, dir, eps6);
}

/* A bare text config, unprefixed names, F32 trunk: the same model. */
static void bare_text_config(void **state)
{
    const struct kat bare = {.bare = true};
    char where[512];
    (void)state;
    kat_write(&bare, where);
    answers(1e-5f, KAT_TOKENS, KD_ISA_COUNT, where, eps5);
    kat_remove(where);
}

/* One layer taken apart into its stages, as converting and checking do, for the tokens 0..T-1. */
struct staged {
    struct fixture f;
    struct kd_k3_cfg cfg;
    struct kd_k3_ends ends;
    struct kd_store *store;
    struct kd_k3_stream s;
    int64_t T;
    struct kd_k3_layer L;
    struct kd_k3_state state;
    float *x, *y, *a, *f_out; /* inputs of attention and FFN, core output, results; [T][64] */
    float *ffn_x, *z, *u, *un, *inner, *shared, *w, *score;
    int32_t *ids;
};

static void staged_open(struct staged *g, int64_t T)
{
    struct kd_k3_open o = {.eps_latent = 1e-5f};
    int32_t ids[KAT_TOKENS];
    memset(g, 0, sizeof *g);
    g->T = T;
    tokens(ids);
    fixture_open(&g->f, dir, KD_ISA_REF, 0, &o);
    g->cfg = *kd_k3_config(g->f.m);
    const struct kd_ckpt *ck = kd_k3_ckpt(g->f.m);
    must(kd_k3_ends_load(&g->ends, &g->cfg, ck, &err));
    must(kd_k3_store_open(&g->store, &g->cfg, ck, NULL, &err));
    must(kd_k3_stream_init(&g->s, &g->cfg, T, &err));
    must(kd_k3_embed(&g->f.run, &g->cfg, &g->ends, ids, T, &g->s, &err));
    float **const rows[] = {&g->x, &g->y,  &g->a,     &g->f_out,  &g->ffn_x, &g->z,
                            &g->u, &g->un, &g->inner, &g->shared, &g->w,     &g->score};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        *rows[i] = new_floats(T * 96);
    g->ids = calloc((size_t)T * 3, sizeof *g->ids);
}

static void staged_layer(struct staged *g, int64_t l)
{
    const struct kd_run *r = &g->f.run;
    const struct kd_k3_cfg *c = &g->cfg;
    struct kd_k3_layer *L = &g->L;
    int64_t T = g->T;
    must(kd_k3_layer_load(L, c, kd_k3_ckpt(g->f.m), l, NULL, &err));
    must(kd_k3_state_init(&g->state, c, L, &err));
    struct kd_k3_seg seg = {0, T, &g->state};
    must(kd_k3_attn_in(r, c, L, &g->s, g->x, &err));
    must(kd_k3_attn_core(r, c, L, g->x, T, &seg, 1, g->y, &err));
    must(kd_mat_mul(r, &L->o, g->y, 48, T, g->a, 64, &err));
    kd_k3_add_attn(r, c, L, &g->s, g->a);
    must(kd_k3_ffn_in(r, c, L, &g->s, g->ffn_x, &err));
    if (L->moe) {
        must(kd_k3_route(r, c, L, g->ffn_x, T, 0, g->ids, g->w, g->score, &err));
        must(kd_mat_mul(r, &L->routed_down, g->ffn_x, 64, T, g->z, 32, &err));
        must(kd_k3_experts(r, c, l, g->store, g->z, g->ids, g->w, T, g->u, &err));
        kd_k3_latent_norm(r, c, L, g->u, T, g->un);
        must(kd_mat_mul(r, &L->routed_up, g->un, 32, T, g->f_out, 64, &err));
    } else {
        memset(g->f_out, 0, (size_t)T * 64 * sizeof *g->f_out);
    }
    must(kd_k3_mlp_inner(r, c, &L->gate, &L->up, g->ffn_x, T, g->inner, &err));
    must(kd_mat_mul(r, &L->down, g->inner, L->gate.rows, T, g->shared, 64, &err));
    for (int64_t i = 0; i < T * 64; i++)
        g->f_out[i] += g->shared[i];
    kd_k3_add_ffn(r, &g->s, g->f_out);
}

static void staged_next(struct staged *g)
{
    kd_k3_layer_release(&g->L);
    kd_k3_state_release(&g->state);
}

static void staged_close(struct staged *g)
{
    float *const rows[] = {g->x, g->y,  g->a,     g->f_out,  g->ffn_x, g->z,
                           g->u, g->un, g->inner, g->shared, g->w,     g->score};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        free(rows[i]);
    free(g->ids);
    kd_k3_stream_release(&g->s);
    kd_k3_store_close(g->store);
    kd_k3_ends_release(&g->ends);
    fixture_close(&g->f);
}

/* p[0..2], sums of squares of p, attention and FFN outputs at t = 6. */
static const double table[KAT_LAYERS][6] = {
    {2.7550053, -1.59417157, 0.582051329, 267.498515, 46.4120758, 193.789496},
    {4.94970779, -1.68307352, -1.08947079, 447.973007, 72.337965, 144.976255},
    {5.79227502, -1.42279429, -2.72013958, 583.244554, 53.6776539, 127.849327},
    {6.31653134, -2.14181608, -4.28690301, 795.895305, 107.66194, 142.443632},
    {8.93343603, -1.31271648, -7.79749494, 1021.29879, 80.4768575, 128.624556},
    {-1.63187438, 0.817048183, 1.61387239, 143.852471, 48.5751885, 109.35041},
    {-1.56712189, -0.786082073, 1.43211556, 308.540331, 86.0818716, 109.370655},
    {-3.97365871, 3.6157542, 4.327395, 517.753918, 140.419419, 224.173196},
    {-1.78041433, 4.7082881, 5.4672956, 730.350261, 60.5797579, 139.685742},
    {-2.41957743, 5.55162578, 3.71733222, 799.187822, 52.688433, 61.0132025},
    {-0.0299825436, 3.42349349, -0.379041878, 300.768491, 107.812943, 175.801288},
    {2.37406836, 1.16758129, 0.511724971, 450.209522, 110.615959, 75.4714544},
    {3.76239567, 1.87033833, 1.38782308, 758.282927, 145.569358, 104.714544}};
static const int32_t routing[KAT_LAYERS][3] = {
    {0},       {11, 4, 10}, {10, 11, 2}, {4, 11, 0}, {9, 4, 7}, {4, 1, 5},  {2, 10, 3},
    {3, 6, 0}, {5, 10, 8},  {2, 5, 0},   {1, 0, 3},  {1, 6, 3}, {5, 10, 11}};
static const double route_w[5][3] = {{0},
                                     {0.362290009, 0.318570623, 0.319139368},
                                     {0.378913067, 0.281687651, 0.339399282},
                                     {0.286073487, 0.343609115, 0.370317398},
                                     {0.429595224, 0.330137904, 0.240266872}};

/* Unit values of layers 2 and 3 at t = 6. */
static void layer_two(struct staged *g)
{
    static const double x[] = {-0.0800056108, -0.305040169, 0.708651625};
    static const double beta[] = {0.518401459, 0.722099662, 0.569836163};
    static const double S[] = {0.0297602398, -0.0737765387, -0.0699081379};
    static const double out[] = {0.0457576324, 0.0156009472, -1.05574606};
    float b[3];
    all_near(g->x + 6 * 64, x, 3, 2e-5, 4e-6, "layer 2 x");
    must(kd_mat_mul(&g->f.run, &g->L.b, g->x + 6 * 64, 64, 1, b, 3, &err));
    g->f.kern.sigmoid(b, b, 3);
    all_near(b, beta, 3, 2e-5, 4e-6, "layer 2 beta");
    all_near(g->state.S, S, 3, 2e-5, 4e-6, "layer 2 S");
    all_near(g->a + 6 * 64, out, 3, 2e-5, 1e-5, "layer 2 attention");
}

static void layer_three(struct staged *g)
{
    static const double x[] = {1.05483479, -0.482198951, -0.242965681};
    static const double q[] = {1.25925599, 1.64565545, 2.11458995};
    static const double k[] = {1.90903677, 1.83797837, -0.105804151};
    static const double v[] = {-3.8674755, -1.60684613, 3.19530099};
    static const double pe[] = {-0.117513161, 0.0182448896, -0.0917353358};
    static const double out[] = {0.958034574, -0.978240003, -0.0328018198};
    float cq[24], qs[72], kv[96];
    all_near(g->x + 6 * 64, x, 3, 2e-5, 4e-6, "layer 3 x");
    must(kd_k3_q_latent(&g->f.run, &g->cfg, &g->L, g->x + 6 * 64, 1, cq, &err));
    must(kd_mat_mul(&g->f.run, &g->L.q_b, cq, 24, 1, qs, 72, &err));
    all_near(qs, q, 3, 2e-5, 4e-6, "layer 3 q");
    must(kd_mat_mul(&g->f.run, &g->L.kv_b, kd_k3_state_row(&g->state, &g->cfg, 6), 48, 1, kv, 96,
                    &err));
    all_near(kv, k, 3, 2e-5, 1e-5, "layer 3 k_nope");
    all_near(kv + 16, v, 3, 2e-5, 4e-6, "layer 3 v");
    all_near(kd_k3_state_row(&g->state, &g->cfg, 6) + 40, pe, 3, 2e-5, 4e-6, "layer 3 k_pe");
    all_near(g->a + 6 * 64, out, 3, 2e-5, 1e-5, "layer 3 attention");
}

static void layer_table(void **state)
{
    struct staged g;
    char what[64];
    (void)state;
    staged_open(&g, 7);
    for (int64_t l = 0; l < KAT_LAYERS; l++) {
        staged_layer(&g, l);
        const float *p = g.s.p + 6 * 64;
        snprintf(what, sizeof what, "layer %d", (int)l);
        all_near(p, table[l], 3, 0, 1e-5 * sqrt(table[l][3]), what);
        near(sum2(p, 64), table[l][3], 5e-5, 0, what);
        near(sum2(g.a + 6 * 64, 64), table[l][4], 5e-5, 0, what);
        near(sum2(g.f_out + 6 * 64, 64), table[l][5], 5e-5, 0, what);
        for (int i = 0; l && i < 3; i++) {
            int at = 0;
            while (at < 3 && g.ids[6 * 3 + at] != routing[l][i])
                at++;
            assert_true(at < 3);
            if (l < 5)
                near((double)g.w[6 * 3 + at], route_w[l][i], 2e-5, 0, "routing weight");
        }
        if (l == 2)
            layer_two(&g);
        if (l == 3)
            layer_three(&g);
        staged_next(&g);
    }
    staged_close(&g);
}

/* Unit values of token 0 in layers 0 and 1. */
static void token_zero(void **state)
{
    static const double x0[] = {0.301759914, -0.265925925, 1.14812991};
    static const double q0[] = {-0.343421673, -0.0473185652, -0.798983284};
    static const double z0[] = {0.791340668, 0.626076653, 0.355395073},
                        z2[] = {-1.09938477, -0.419238698, -0.0204443272};
    static const double beta0[] = {0.258836855, 0.684991185, 0.679402182};
    static const double S0[] = {-0.0444222264, -0.00290170736, -0.0332273818};
    static const double S25[] = {-0.000306803614, 4.29106779e-05, 2.15151318e-06};
    static const double a0[] = {-1.03009828, -0.272348399, -0.0928567733};
    static const double x1[] = {-0.302092369, -1.02106089, 0.187064147};
    static const double score[] = {0.511158405, 0.573082253, 0.307624411};
    static const double z1[] = {0.743858664, 0.270563669, 0.167538608};
    static const double situ9[] = {17.5704444, 11.7582485, -3.0719045},
                        out9[] = {6.08816585, 3.33550109, 0.486185969};
    static const double shared[] = {-4.2802016, -1.22867734, 0.905605945},
                        f1[] = {-4.45305428, -0.990973762, 1.00486258};
    struct staged g;
    float buf[64], fa[16], up[32], gate[32];
    (void)state;
    staged_open(&g, 1);
    const struct kd_run *r = &g.f.run;
    staged_layer(&g, 0);
    all_near(g.x, x0, 3, 2e-5, 0, "x");
    must(kd_mat_mul(r, &g.L.q, g.x, 64, 1, buf, 64, &err));
    all_near(buf, q0, 3, 2e-5, 1e-6, "q_proj");
    must(kd_mat_mul(r, &g.L.f_a, g.x, 64, 1, fa, 16, &err));
    must(kd_mat_mul(r, &g.L.f_b, fa, 16, 1, buf, 64, &err));
    all_near(buf, z0, 3, 2e-5, 1e-6, "z head 0");
    all_near(buf + 32, z2, 3, 2e-5, 1e-6, "z head 2");
    must(kd_mat_mul(r, &g.L.b, g.x, 64, 1, buf, 3, &err));
    g.f.kern.sigmoid(buf, buf, 3);
    all_near(buf, beta0, 3, 2e-5, 0, "beta");
    all_near(g.state.S, S0, 3, 2e-5, 1e-8, "S[0][0]");
    all_near(g.state.S + (2 * 16 + 5) * 16, S25, 3, 2e-5, 1e-10, "S[2][5]");
    all_near(g.a, a0, 3, 2e-5, 1e-6, "attention");
    staged_next(&g);

    staged_layer(&g, 1);
    all_near(g.ffn_x, x1, 3, 2e-5, 1e-6, "MoE x");
    for (int i = 0; i < 3; i++)
        near((double)(g.score[i] - g.L.router_bias[i]), score[i], 2e-5, 1e-6, "score");
    static const int32_t picked[] = {9, 11, 10};
    assert_memory_equal(g.ids, picked, sizeof picked);
    all_near(g.z, z1, 3, 2e-5, 1e-6, "z");
    struct kd_expert e;
    must(g.store->get(g.store, 1, 9, &e, &err));
    must(kd_mat_mul(r, &e.w1, g.z, 32, 1, gate, 32, &err));
    must(kd_mat_mul(r, &e.w3, g.z, 32, 1, up, 32, &err));
    g.f.kern.situ(gate, up, 4.0f, 25.0f, gate, 32);
    all_near(gate, situ9, 3, 2e-5, 1e-6, "expert 9 SiTU");
    must(kd_mat_mul(r, &e.w2, gate, 32, 1, buf, 32, &err));
    all_near(buf, out9, 3, 2e-5, 1e-6, "expert 9");
    all_near(g.shared, shared, 3, 2e-5, 1e-6, "shared");
    all_near(g.f_out, f1, 3, 2e-5, 1e-6, "f");
    staged_next(&g);
    staged_close(&g);
}

/* States after all 70 tokens. */
static void last_states(void **state)
{
    static const double S[] = {-0.00476326666, 0.0796904589, -0.0552314124};
    static const double conv[] = {-0.534413223, 0.318128351, -0.256075155};
    struct staged g;
    (void)state;
    staged_open(&g, KAT_TOKENS);
    for (int64_t l = 0; l < KAT_LAYERS; l++) {
        staged_layer(&g, l);
        if (l == 0) {
            all_near(g.state.S, S, 3, 2e-5, 1e-7, "S[0][0]");
            near(sum2(g.state.S, 3 * 16 * 16), 1.87997116, 2e-5, 0, "layer 0 state");
            for (int i = 0; i < 3; i++)
                near((double)g.state.conv[(3 + i) * 48], conv[i], 2e-5, 1e-6, "k history");
        }
        if (l == 10)
            near(sum2(g.state.S, 3 * 16 * 16), 1.29873023, 5e-5, 0, "layer 10 state");
        staged_next(&g);
    }
    staged_close(&g);
}

/* The generator itself, against the values the specification lists. */
static void generator(void **state)
{
    struct kd_ckpt *ck;
    const struct kd_tensor *t;
    (void)state;
    assert_true(kd_fnv64("language_model.model.embed_tokens.weight") == 0xdec43c721d10b8a6u);
    must(kd_ckpt_open(&ck, dir, false, &err));
    must(kd_k3_tensor(ck, 1, "block_sparse_moe.experts.0.w1.weight_packed", &t, &err));
    static const uint8_t packed[] = {147, 245, 251, 164}, scale[] = {126, 125, 127, 126};
    assert_memory_equal(t->data, packed, 4);
    must(kd_k3_tensor(ck, 1, "block_sparse_moe.experts.0.w1.weight_scale", &t, &err));
    assert_memory_equal(t->data, scale, 4);
    assert_int_equal(kd_k3_tensor(ck, 1, "nothing.weight", &t, &err), -1);
    assert_non_null(strstr(err.msg, "model.layers.1.nothing.weight"));
    kd_ckpt_close(ck);
}

/* Opens, feeds and closes with the n-th allocation failing, for every n: an error each time, never
 * a leak, until all succeed. */
static void out_of_memory(void **state)
{
    struct kd_kern kern;
    struct kd_run run = {.kern = &kern};
    int32_t ids[9];
    float *logits = new_floats(2 * KAT_VOCAB);
    bool failed = true;
    int64_t n;
    (void)state;
    for (int64_t t = 0; t < 9; t++)
        ids[t] = kat_token(t);
    must(kd_kern_pick(&kern, &err));
    int64_t before = kd_mem_live_bytes();
    for (n = 1; failed && n < 10000; n += n < 100 ? 1 : KD_TEST_SLOW ? 29 : 7) {
        struct kd_k3_model *m = NULL;
        struct kd_k3_seq *s = NULL;
        kd_mem_fail_nth(n);
        failed = kd_k3_open(&m, dir, &run, NULL, &err) || kd_k3_seq_open(&s, m, &err);
        if (!failed) {
            struct kd_k3_feed feed = {s, ids, 8, 1};
            failed = kd_k3_forward(m, &feed, 1, NULL, logits, &err) != 0;
            feed = (struct kd_k3_feed){s, ids + 8, 1, 1};
            failed = failed || kd_k3_forward(m, &feed, 1, NULL, logits, &err) != 0;
        }
        if (failed)
            assert_int_equal(err.code, KD_ENOMEM);
        kd_mem_fail_nth(0);
        kd_k3_seq_close(s);
        kd_k3_close(m);
        assert_int_equal(kd_mem_live_bytes(), before);
    }
    assert_true(!failed && n > 100);
    free(logits);
}

static int make(void **state)
{
    const struct kat plain = {0};
    (void)state;
    kat_write(&plain, dir);
    return 0;
}

static int drop(void **state)
{
    (void)state;
    kat_remove(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generator),     cmocka_unit_test(known_answers),
        cmocka_unit_test(layer_table),   cmocka_unit_test(token_zero),
        cmocka_unit_test(last_states),   cmocka_unit_test(bare_text_config),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, make, drop);
}
