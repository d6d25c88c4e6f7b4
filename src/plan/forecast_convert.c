/* Converting, counted by stage (convert/layers.c, convert/experts.c, codec/): trellis searches,
 * Hessians, products of calibration tokens with matrices, and the linear algebra of feedback and
 * refit. Rates are measured at the model's own widths. */
#include "plan/forecast.h"

#include "base/mem.h"
#include "base/rand.h"

#include <math.h>
#include <string.h>

enum { TILES = 4, GROUP = 4, COARSE = 10, MEASURE_TOKENS = 512 };
static const double each_s = 0.12;

struct counts {
    const struct kd_run *run;
    const struct kd_plan_target *to;
    double tokens;
    double tiles[129]; /* searches, by sixteenths of a bit */
    double wide[129];  /* those of the scale search's coarse points: targets far outside the
                          codebook's range are searched a second time with wider costs */
    double hessian;    /* multiply-adds of rank updates, upper half */
    double feedback;   /* of LDLQ, refit and figures */
    double mul_bf16, mul_exl3, mul_expert; /* of products with tokens: at the trunk's and the
                                              experts' rates */
};

/* Searches of the scale (codec/exl3_scale.c) beside those of the tensor itself; the coarse ones go
 * to *wide. */
static double scale_tiles(double tk, double tn, double *wide)
{
    double all = tk * tn, longer = tk > tn ? tk : tn;
    *wide = 0;
    if (all < 1024)
        return 3 * (all / 8 < 16 ? all / 8 : 16);
    double extremes = 3 * longer / 16 > 8 ? 3 * longer / 16 : 8;
    double sample = 3 * longer + 2 * extremes;
    *wide = COARSE * ceil(sample / 3);
    return 5 * sample;
}

static double padded(int64_t n)
{
    int64_t blocks = (n + 127) / 128;
    return 128 * (double)blocks;
}

/* A row of tiles is dealt to the threads in groups of four; some threads may be left without. */
static double balance(const struct counts *c, double tn)
{
    double items = ceil(tn / GROUP), threads = kd_pool_threads(c->run->pool);
    return ceil(items / threads) * threads / items;
}

/* kd_quant_tensor of `times` matrices: feedback n k^2/2, H W, per refit round a quadratic form and
 * half a Gram matrix, the error figure; three factorisations and solves of k^3/6. */
static void quantize(struct counts *c, const char *row, enum kd_k3_kind kind, int64_t rows,
                     int64_t cols, double times)
{
    unsigned rate16 = kd_plan_rate16(c->to, row, kind, rows, cols);
    double k = padded(cols), n = padded(rows), tk = k / 16, tn = n / 16;
    if (!rate16)
        return;
    double wide, own = scale_tiles(tk, tn, &wide);
    c->tiles[rate16] += times * (tk * tn * balance(c, tn) + own);
    c->wide[rate16] += times * wide;
    c->feedback += times * (n * k * k * 5.5 + 3 * k * k * k / 6);
}

static void hessian(struct counts *c, double tokens, int64_t width, double times)
{
    c->hessian += times * tokens * padded(width) * padded(width) / 2;
}

static void multiply(struct counts *c, const char *row, enum kd_k3_kind kind, int64_t rows,
                     int64_t cols, double times)
{
    double macs = times * c->tokens * (double)rows * (double)cols;
    if (kind == KD_K3_ROUTED)
        c->mul_expert += macs;
    else if (kd_plan_rate16(c->to, row, kind, rows, cols))
        c->mul_exl3 += macs;
    else
        c->mul_bf16 += macs;
}

static void count_kda(struct counts *c, const struct kd_k3_cfg *g)
{
    int64_t hid = g->hidden, ch = g->kda_heads * g->kda_dim;
    hessian(c, c->tokens, hid, 1);
    quantize(c, "self_attn.q_proj", KD_K3_KDA, ch, hid, 4);
    multiply(c, "self_attn.q_proj", KD_K3_KDA, ch, hid, 4);
    multiply(c, "", KD_K3_KDA, g->kda_dim + g->kda_heads, hid, 1);
    multiply(c, "", KD_K3_KDA, ch, g->kda_dim, 1);
    /* The chunked recurrence: four products with a state of dim x dim and pairs within 64 tokens.
     */
    c->feedback += c->tokens * (double)ch * (4 * (double)g->kda_dim + 3 * 64.0);
    hessian(c, c->tokens, ch, 1);
    quantize(c, "self_attn.o_proj", KD_K3_KDA, hid, ch, 1);
    multiply(c, "self_attn.o_proj", KD_K3_KDA, hid, ch, 1);
}

static void count_mla(struct counts *c, const struct kd_k3_cfg *g, double row)
{
    int64_t hid = g->hidden, v = g->heads * g->v_dim, q = g->heads * (g->nope + g->rope);
    hessian(c, c->tokens, hid, 1);
    quantize(c, "self_attn.q_a_proj", KD_K3_MLA, g->q_lora, hid, 1);
    quantize(c, "self_attn.g_proj", KD_K3_MLA, v, hid, 1);
    multiply(c, "self_attn.q_a_proj", KD_K3_MLA, g->q_lora, hid, 2);
    hessian(c, c->tokens, g->q_lora, 1);
    quantize(c, "self_attn.q_b_proj", KD_K3_MLA, q, g->q_lora, 1);
    multiply(c, "self_attn.q_b_proj", KD_K3_MLA, q, g->q_lora, 1);
    multiply(c, "self_attn.g_proj", KD_K3_MLA, v, hid, 1);
    multiply(c, "", KD_K3_MLA, g->kv_lora + g->rope, hid, 1);
    /* Absorbed attention over rows of `row` tokens: queries into the latent space and back, scores
     * and sums over half of a row on average, in whole tiles. */
    double heads = (double)g->heads, latent = (double)g->kv_lora;
    c->feedback += c->tokens * heads * latent * (double)(g->nope + g->v_dim);
    c->feedback += c->tokens * heads * row / 2 * (2 * latent + (double)g->rope);
    hessian(c, c->tokens, v, 1);
    quantize(c, "self_attn.o_proj", KD_K3_MLA, hid, v, 1);
    multiply(c, "self_attn.o_proj", KD_K3_MLA, hid, v, 1);
}

static void count_mlp(struct counts *c, const struct kd_k3_cfg *g, enum kd_k3_kind kind,
                      int64_t width)
{
    if (!width)
        return;
    quantize(c, "mlp.gate_proj", kind, width, g->hidden, 2);
    multiply(c, "mlp.gate_proj", kind, width, g->hidden, 4); /* Hessian's rows, and the output */
    hessian(c, c->tokens, width, 1);
    quantize(c, "mlp.down_proj", kind, g->hidden, width, 1);
    multiply(c, "mlp.down_proj", kind, g->hidden, width, 1);
}

static void count_experts(struct counts *c, const struct kd_k3_cfg *g)
{
    int64_t latent = g->latent ? g->latent : g->hidden, inter = g->moe_inter;
    double experts = (double)g->experts, share = (double)g->topk / experts;
    static const char down[] = "block_sparse_moe.routed_expert_down_proj",
                      up[] = "block_sparse_moe.routed_expert_up_proj";
    multiply(c, "", KD_K3_ROUTER, g->experts, g->hidden, 1);
    quantize(c, down, KD_K3_LATENT, latent, g->hidden, 1);
    multiply(c, down, KD_K3_LATENT, latent, g->hidden, 1);
    hessian(c, c->tokens, latent, 2); /* the experts' input, and routed_up's */
    quantize(c, "", KD_K3_ROUTED, inter, latent, 2 * experts);
    multiply(c, "", KD_K3_ROUTED, inter, latent, 2 * experts);
    hessian(c, c->tokens, inter, experts);
    quantize(c, "", KD_K3_ROUTED, latent, inter, experts);
    multiply(c, "", KD_K3_ROUTED, inter, latent, 3 * experts * share);
    quantize(c, up, KD_K3_LATENT, g->hidden, latent, 1);
    multiply(c, up, KD_K3_LATENT, g->hidden, latent, 1);
}

static void count_all(struct counts *c, const struct kd_plan_model *m, double row)
{
    const struct kd_k3_cfg *g = &m->cfg;
    for (int64_t l = 0; l < g->layers; l++) {
        bool moe = kd_k3_is_moe(g, l);
        if (g->mla[l])
            count_mla(c, g, row);
        else
            count_kda(c, g);
        hessian(c, c->tokens, g->hidden, 1); /* FFN inputs */
        count_mlp(c, g, moe ? KD_K3_SHARED : KD_K3_DENSE,
                  moe ? g->shared * g->moe_inter : g->dense_inter);
        if (moe)
            count_experts(c, g);
    }
    hessian(c, c->tokens, g->hidden, 1);
    quantize(c, "", KD_K3_HEAD, g->vocab, g->hidden, 1);
}

/* Measuring. */
struct kernel {
    const struct kd_run *run;
    const struct kd_mat *w;
    int64_t tokens;
    float *x, *y;
    const float *gauss; /* [scales][TILES][256] */
    int64_t scales;
    uint16_t *states;
    void **scratch;
    struct kd_rate rate;
    int64_t width;
};

static void search_item(void *ctx, int64_t i, int worker)
{
    const struct kernel *k = ctx;
    const float *x = k->gauss + i % k->scales * TILES * KD_TILE_WEIGHTS;
    k->run->kern->trellis_search(x, TILES, k->rate, KD_CB_MUL1, 128,
                                 k->states + (int64_t)worker * TILES * KD_TILE_WEIGHTS,
                                 k->scratch[worker]);
}

/* n groups of tiles, or n times one group at each of the coarse points' scales. */
static int search(const struct kernel *k, int64_t n, struct kd_err *err)
{
    (void)err;
    kd_pool_run(k->run->pool, n * k->scales, search_item, (void *)(uintptr_t)k);
    return 0;
}

/* Unit Gaussian tiles, first as they are, then times the coarse points' scales: 0.1 to 1.9 times
 * the standard deviation of the other codebooks. */
static void fill_gauss(float *out)
{
    enum { N = TILES * KD_TILE_WEIGHTS };
    for (int64_t i = 0; i < N; i++) {
        double u = 1 - kd_rand_unit(7, (uint64_t)(2 * i)),
               v = kd_rand_unit(7, (uint64_t)(2 * i + 1));
        out[i] = (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
    }
    for (int64_t p = 0; p < COARSE; p++)
        for (int64_t i = 0; i < N; i++)
            out[(p + 1) * N + i] = out[i] * (float)(1.24371088 * (0.1 + 0.2 * (double)p));
}

/* Blocks of 96 x 96 of a rank update, as la/la_exact.c cuts it. */
enum { LA_BLOCK = 96, LA_ROWS = 512 };

static void update_item(void *ctx, int64_t i, int worker)
{
    const struct kernel *k = ctx;
    int64_t blocks = k->width / LA_BLOCK;
    (void)worker;
    k->run->kern->gemm_tn(k->x + i % blocks * LA_BLOCK, k->width,
                          k->x + i / blocks % blocks * LA_BLOCK, k->width, LA_ROWS, LA_BLOCK,
                          LA_BLOCK, k->y + i % (blocks * blocks) * LA_BLOCK * LA_BLOCK, LA_BLOCK);
}

static int update(const struct kernel *k, int64_t n, struct kd_err *err)
{
    (void)err;
    kd_pool_run(k->run->pool, n, update_item, (void *)(uintptr_t)k);
    return 0;
}

static int product(const struct kernel *k, int64_t n, struct kd_err *err)
{
    for (int64_t i = 0; i < n; i++)
        if (kd_mat_mul(k->run, k->w, k->x, k->w->cols, k->tokens, k->y, k->w->rows, err))
            return -1;
    return 0;
}

/* Units a second: n doubles until a run takes its time, then the best of three. */
static int rate_of(double *out, const struct kernel *k,
                   int (*work)(const struct kernel *, int64_t, struct kd_err *), double units,
                   struct kd_err *err)
{
    double best = 0;
    for (int64_t n = 1;; n *= 2) {
        double start = kd_forecast_clock(k->run);
        if (work(k, n, err))
            return -1;
        double took = kd_forecast_clock(k->run) - start;
        if (took < each_s / 2)
            continue;
        best = (double)n * units / took;
        for (int i = 0; i < 2; i++) {
            start = kd_forecast_clock(k->run);
            if (work(k, n, err))
                return -1;
            double again = (double)n * units / (kd_forecast_clock(k->run) - start);
            best = again > best ? again : best;
        }
        *out = best;
        return 0;
    }
}

static int search_seconds(struct kd_forecast *f, const struct counts *c, struct kernel *k,
                          struct kd_err *err)
{
    enum { N = TILES * KD_TILE_WEIGHTS };
    float *gauss;
    int rc = kd_mem_new(&gauss, (1 + COARSE) * (int64_t)N, sizeof *gauss, "tiles", err);
    if (!rc)
        fill_gauss(gauss);
    for (unsigned r = 16; !rc && r <= 128; r++) {
        double rate;
        k->rate = kd_rate_from16(r);
        for (int wide = 0; !rc && wide < 2; wide++) {
            double tiles = wide ? c->wide[r] : c->tiles[r];
            if (!(tiles > 0))
                continue;
            k->scales = wide ? COARSE : 1;
            k->gauss = gauss + (wide ? N : 0);
            rc = rate_of(&rate, k, search, (double)(TILES * k->scales), err);
            f->tiles += tiles;
            f->search_s += rc ? 0 : tiles / rate;
        }
    }
    kd_mem_free(gauss);
    return rc;
}

static int product_seconds(double *seconds, double macs, struct kernel *k, struct kd_mat *w,
                           struct kd_err *err)
{
    double rate;
    if (!(macs > 0))
        return 0;
    k->w = w;
    k->tokens = MEASURE_TOKENS;
    if (rate_of(&rate, k, product, (double)w->rows * (double)w->cols * (double)k->tokens, err))
        return -1;
    *seconds += macs / rate;
    return 0;
}

static struct kd_mat exl3_mat(const uint8_t *data, int64_t rows, int64_t cols, double bits)
{
    int64_t r = (rows + 127) / 128 * 128, k = (cols + 127) / 128 * 128;
    return (struct kd_mat){.type = KD_MAT_EXL3,
                           .rows = rows,
                           .cols = cols,
                           .data = data,
                           .ld = r / 16,
                           .rows_padded = r,
                           .cols_padded = k,
                           .suh = (const uint16_t *)(const void *)data,
                           .svh = (const uint16_t *)(const void *)data,
                           .rate = kd_rate_from16((unsigned)(bits * 16)),
                           .cb = KD_CB_MUL1};
}

static int seconds_of(struct kd_forecast *f, const struct counts *c, const struct kd_plan_model *m,
                      struct kernel *k, const uint8_t *data, struct kd_err *err)
{
    const struct kd_k3_cfg *g = &m->cfg;
    int64_t latent = g->latent ? g->latent : g->hidden, wide = g->kda_heads * g->kda_dim;
    /* Wide matrices are measured on a piece: rates level off. */
    int64_t rows = wide < 2048 ? wide : 2048, cols = g->hidden < 2048 ? g->hidden : 2048,
            erows = g->moe_inter < 2048 ? g->moe_inter : 2048,
            ecols = latent < 2048 ? latent : 2048;
    struct kd_mat trunk = exl3_mat(data, rows, cols, c->to->trunk_bpw),
                  expert = exl3_mat(data, erows, ecols, c->to->experts_bpw),
                  plain = {
                      .type = KD_MAT_BF16, .rows = rows, .cols = cols, .data = data, .ld = cols};
    double update_rate;
    k->width = 192;
    if (search_seconds(f, c, k, err) ||
        rate_of(&update_rate, k, update, (double)LA_ROWS * LA_BLOCK * LA_BLOCK, err) ||
        product_seconds(&f->products_s, c->mul_bf16, k, &plain, err) ||
        product_seconds(&f->products_s, c->mul_exl3, k, &trunk, err) ||
        product_seconds(&f->products_s, c->mul_expert, k, &expert, err))
        return -1;
    f->hessian_s = c->hessian / update_rate;
    f->feedback_s = c->feedback / update_rate;
    f->hessian_gmac = c->hessian * 1e-9;
    f->feedback_gmac = c->feedback * 1e-9;
    f->products_gmac = (c->mul_bf16 + c->mul_exl3 + c->mul_expert) * 1e-9;
    return 0;
}

int kd_forecast_convert(struct kd_forecast *f, const struct kd_run *run,
                        const struct kd_plan_model *m, const struct kd_plan_target *exl3,
                        int64_t rows, int64_t cols, struct kd_err *err)
{
    enum { WIDE = 2048 };
    struct counts *c;
    struct kernel k = {.run = run};
    uint16_t *data = NULL;
    int threads = kd_pool_threads(run->pool), made = 0;
    if (kd_mem_zero(&c, 1, sizeof *c, "counts", err))
        return -1;
    c->run = run;
    c->to = exl3;
    c->tokens = (double)rows * (double)cols;
    count_all(c, m, (double)cols);
    int rc = kd_mem_new(&data, (int64_t)WIDE * WIDE, sizeof *data, "weights", err) ||
             kd_mem_new(&k.x, (int64_t)MEASURE_TOKENS * WIDE, sizeof *k.x, "inputs", err) ||
             kd_mem_zero(&k.y, (int64_t)MEASURE_TOKENS * WIDE, sizeof *k.y, "outputs", err) ||
             kd_mem_new(&k.states, (int64_t)threads * TILES * KD_TILE_WEIGHTS, sizeof *k.states,
                        "states", err) ||
             kd_mem_zero(&k.scratch, threads, sizeof *k.scratch, "scratch", err);
    for (; !rc && made < threads; made++)
        rc = kd_mem_new(&k.scratch[made], 1, (int64_t)kd_trellis_scratch_bytes(), "search", err);
    if (!rc) {
        for (int64_t i = 0; i < (int64_t)WIDE * WIDE; i++)
            data[i] = (uint16_t)((kd_rand_u64(22, (uint64_t)i) & 0x807f) | 0x3c00);
        for (int64_t i = 0; i < (int64_t)MEASURE_TOKENS * WIDE; i++)
            k.x[i] = (float)(kd_rand_unit(23, (uint64_t)i) * 3.4 - 1.7);
        rc = seconds_of(f, c, m, &k, (const uint8_t *)data, err);
    }
    f->convert_s = f->search_s + f->hessian_s + f->products_s + f->feedback_s;
    for (int i = 0; k.scratch && i < threads; i++)
        kd_mem_free(k.scratch[i]);
    kd_mem_free(k.scratch);
    kd_mem_free(k.states);
    kd_mem_free(k.x);
    kd_mem_free(k.y);
    kd_mem_free(data);
    kd_mem_free(c);
    return rc ? -1 : 0;
}
