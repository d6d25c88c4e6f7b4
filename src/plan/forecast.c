/* Decoding with made-up weights: the time of a token hardly depends on what the weights are, but on
 * how many there are, how they are stored and where they lie. */
#include "plan/forecast.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rand.h"
#include "model/k3.h"

#include <string.h>

enum { WARM_TOKENS = 224, TOKENS_MAX = 512, PATTERN = 1 << 20, SCALE_BYTES = 1 << 22 };
static const double measure_s = 0.8, warm_s = 0.6;

/* A layer with its state. */
struct stand_in {
    struct kd_k3_layer L;
    struct kd_k3_state state;
    double seconds, times; /* measured; how many of the model's layers it stands for */
};

struct bench {
    const struct kd_run *run;
    const struct kd_plan_model *m;
    const struct kd_plan_target *form;
    uint8_t *weights; /* what all matrices point into */
    int64_t bytes, at;
    uint8_t *scale; /* MXFP4 exponents, EXL3 signs, all the same small number */
    float *ones;    /* norms, convolutions, biases */
    int64_t expert_first, expert_bytes, expert_slots;
    struct stand_in *stand;
    int64_t count;
    struct kd_k3_stream stream;
    struct kd_store store;
};

double kd_forecast_clock(const struct kd_run *run)
{
    return kd_pool_threads(run->pool) > 1 ? kd_clock_s() : kd_clock_cpu_s();
}

/* Ordinary BF16 numbers around 2^-7 of either sign; as codes of MXFP4 and EXL3 any bits will do. */
static void fill(uint8_t *data, int64_t bytes)
{
    int64_t head = bytes < PATTERN ? bytes : PATTERN;
    for (int64_t i = 0; i + 2 <= head; i += 2) {
        uint16_t v = (uint16_t)((kd_rand_u64(21, (uint64_t)i) & 0x807f) | 0x3c00);
        memcpy(data + i, &v, 2);
    }
    for (int64_t at = head; at < bytes; at += head)
        memcpy(data + at, data, (size_t)(bytes - at < head ? bytes - at : head));
}

static int64_t mat_bytes(const struct kd_mat *w)
{
    return (kd_mat_bytes(w) + 63) / 64 * 64;
}

/* The next `bytes` of the weights; from the start again when they are used up. */
static const uint8_t *next(struct bench *b, int64_t bytes)
{
    if (b->at + bytes > b->bytes)
        b->at = 0;
    int64_t at = b->at;
    b->at += bytes;
    return b->weights ? b->weights + at : NULL; /* NULL: bytes are only being counted */
}

static struct kd_mat shaped(const struct bench *b, const char *row, enum kd_k3_kind kind,
                            int64_t rows, int64_t cols)
{
    unsigned rate16 = kd_plan_rate16(b->form, row, kind, rows, cols);
    struct kd_mat w = {.rows = rows, .cols = cols, .scale = b->scale, .ld_scale = cols / 32};
    if (rate16) {
        w.type = KD_MAT_EXL3;
        w.rows_padded = (rows + 127) / 128 * 128;
        w.cols_padded = (cols + 127) / 128 * 128;
        w.ld = w.rows_padded / 16;
        w.suh = (const uint16_t *)(const void *)b->scale;
        w.svh = w.suh;
        w.rate = kd_rate_from16(rate16);
        w.cb = KD_CB_MUL1;
    } else if (kind == KD_K3_ROUTED && cols % 32 == 0) {
        w.type = KD_MAT_MXFP4;
        w.ld = cols / 2;
    } else {
        w.type = KD_MAT_BF16;
        w.ld = cols;
    }
    return w;
}

static struct kd_mat mat(struct bench *b, const char *row, enum kd_k3_kind kind, int64_t rows,
                         int64_t cols)
{
    struct kd_mat w = shaped(b, row, kind, rows, cols);
    w.data = next(b, mat_bytes(&w));
    return w;
}

static void attention(struct bench *b, struct kd_k3_layer *L)
{
    const struct kd_k3_cfg *c = &b->m->cfg;
    int64_t hid = c->hidden, ch = c->kda_heads * c->kda_dim, v = c->heads * c->v_dim;
    if (L->mla) {
        L->q_a = mat(b, "self_attn.q_a_proj", KD_K3_MLA, c->q_lora, hid);
        L->q_b = mat(b, "self_attn.q_b_proj", KD_K3_MLA, c->heads * (c->nope + c->rope), c->q_lora);
        L->kv_a = mat(b, "", KD_K3_MLA, c->kv_lora + c->rope, hid);
        L->kv_b = mat(b, "", KD_K3_MLA, c->heads * (c->nope + c->v_dim), c->kv_lora);
        L->g = mat(b, "self_attn.g_proj", KD_K3_MLA, v, hid);
        L->o = mat(b, "self_attn.o_proj", KD_K3_MLA, hid, v);
        L->q_a_norm = L->kv_a_norm = b->ones;
        return;
    }
    L->q = mat(b, "self_attn.q_proj", KD_K3_KDA, ch, hid);
    L->k = mat(b, "self_attn.k_proj", KD_K3_KDA, ch, hid);
    L->v = mat(b, "self_attn.v_proj", KD_K3_KDA, ch, hid);
    L->g = mat(b, "self_attn.g_proj", KD_K3_KDA, ch, hid);
    L->f_a = mat(b, "", KD_K3_KDA, c->kda_dim, hid);
    L->f_b = mat(b, "", KD_K3_KDA, ch, c->kda_dim);
    L->b = mat(b, "", KD_K3_KDA, c->kda_heads, hid);
    L->o = mat(b, "self_attn.o_proj", KD_K3_KDA, hid, ch);
    L->q_conv = L->k_conv = L->v_conv = L->decay = L->dt_bias = L->o_norm = b->ones;
}

static void feed_forward(struct bench *b, struct kd_k3_layer *L)
{
    const struct kd_k3_cfg *c = &b->m->cfg;
    int64_t hid = c->hidden, w = L->moe ? c->shared * c->moe_inter : c->dense_inter;
    enum kd_k3_kind kind = L->moe ? KD_K3_SHARED : KD_K3_DENSE;
    if (w) {
        L->gate = mat(b, "mlp.gate_proj", kind, w, hid);
        L->up = mat(b, "mlp.up_proj", kind, w, hid);
        L->down = mat(b, "mlp.down_proj", kind, hid, w);
    }
    if (!L->moe)
        return;
    L->router = mat(b, "", KD_K3_ROUTER, c->experts, hid);
    L->router_bias = b->ones;
    L->routed_down =
        mat(b, "block_sparse_moe.routed_expert_down_proj", KD_K3_LATENT, c->latent, hid);
    L->routed_up = mat(b, "block_sparse_moe.routed_expert_up_proj", KD_K3_LATENT, hid, c->latent);
    L->routed_norm = c->latent_norm ? b->ones : NULL;
}

static void make_layer(struct bench *b, struct kd_k3_layer *L, int64_t index)
{
    memset(L, 0, sizeof *L);
    L->index = index;
    L->mla = b->m->cfg.mla[index] != 0;
    L->moe = kd_k3_is_moe(&b->m->cfg, index);
    L->heads = L->mla ? b->m->cfg.heads : b->m->cfg.kda_heads;
    L->input_norm = L->post_norm = L->attn_res = L->mlp_res = b->ones;
    attention(b, L);
    feed_forward(b, L);
}

/* Experts lie behind the trunk, each layer's its own, as many as there is room for. */
static int get_expert(struct kd_store *s, int64_t layer, int64_t e, struct kd_expert *out,
                      struct kd_err *err)
{
    struct bench *b = s->ctx;
    const struct kd_k3_cfg *c = &b->m->cfg;
    const uint8_t *at =
        b->weights + b->expert_first + (layer * c->experts + e) % b->expert_slots * b->expert_bytes;
    (void)err;
    *out = (struct kd_expert){.tier = KD_TIER_HOST, .ready = true};
    out->w1 = shaped(b, "", KD_K3_ROUTED, c->moe_inter, c->latent);
    out->w3 = out->w1;
    out->w2 = shaped(b, "", KD_K3_ROUTED, c->latent, c->moe_inter);
    out->w1.data = at;
    out->w3.data = at + mat_bytes(&out->w1);
    out->w2.data = at + 2 * mat_bytes(&out->w1);
    return 0;
}

static void make_all(struct bench *b, struct kd_mat *head)
{
    b->at = 0;
    for (int64_t i = 0; i < b->count; i++)
        make_layer(b, &b->stand[i].L, b->stand[i].L.index);
    *head = mat(b, "", KD_K3_HEAD, b->m->cfg.vocab, b->m->cfg.hidden);
}

/* Which layers stand in: all, or the first of each kind. */
static void choose(struct bench *b, bool whole)
{
    const struct kd_k3_cfg *c = &b->m->cfg;
    b->count = 0;
    for (int64_t l = 0; l < c->layers; l++) {
        struct stand_in *same = NULL;
        for (int64_t i = 0; !whole && i < b->count && !same; i++) {
            int64_t k = b->stand[i].L.index;
            if (c->mla[k] == c->mla[l] && kd_k3_is_moe(c, k) == kd_k3_is_moe(c, l))
                same = &b->stand[i];
        }
        if (same) {
            same->times++;
            continue;
        }
        b->stand[b->count++] = (struct stand_in){.L = {.index = l}, .times = 1};
    }
}

/* How many bytes the chosen layers and the head take; experts not counted. */
static int64_t needed(struct bench *b)
{
    struct kd_mat head;
    b->bytes = INT64_MAX / 2;
    make_all(b, &head);
    return b->at;
}

static int take_memory(struct bench *b, int64_t budget, bool *whole, struct kd_err *err)
{
    const struct kd_k3_cfg *c = &b->m->cfg;
    struct kd_mat w1 = shaped(b, "", KD_K3_ROUTED, c->moe_inter, c->latent),
                  w2 = shaped(b, "", KD_K3_ROUTED, c->latent, c->moe_inter);
    b->expert_bytes = 2 * mat_bytes(&w1) + mat_bytes(&w2);
    choose(b, true);
    int64_t trunk = needed(b), all = b->m->moe_layers * c->experts;
    *whole = trunk <= budget / 2;
    if (!*whole) {
        choose(b, false);
        trunk = needed(b);
    }
    if (trunk > budget - b->expert_bytes * c->topk)
        return kd_fail(err, KD_EINVAL, "layers of %lld MB do not fit in %lld MB of memory",
                       (long long)(trunk >> 20), (long long)(budget >> 20));
    b->expert_slots = (budget - trunk) / b->expert_bytes;
    if (b->expert_slots > all)
        b->expert_slots = all > 0 ? all : 1;
    b->expert_first = trunk;
    b->bytes = trunk;
    int64_t total = trunk + b->expert_slots * b->expert_bytes;
    int64_t widest = c->kda_heads * c->kda_dim * c->conv;
    widest = widest > c->hidden ? widest : c->hidden;
    widest = widest > c->experts ? widest : c->experts;
    widest =
        widest > c->q_lora + c->kv_lora + c->latent ? widest : c->q_lora + c->kv_lora + c->latent;
    if (kd_mem_new(&b->weights, total, 1, "made-up weights", err) ||
        kd_mem_new(&b->scale, SCALE_BYTES, 1, "made-up scales", err) ||
        kd_mem_new(&b->ones, widest, sizeof *b->ones, "made-up norms", err))
        return -1;
    fill(b->weights, total);
    for (int64_t i = 0; i < SCALE_BYTES; i++)
        b->scale[i] = i & 1 ? 0x1c : 0x78; /* an exponent of 2^-7; as halves 0x1c78 */
    for (int64_t i = 0; i < widest; i++)
        b->ones[i] = 0.5f;
    return 0;
}

/* One token through the layers; seconds of each are added when `count`. */
static int token(struct bench *b, int64_t pos, bool count, struct kd_err *err)
{
    struct kd_k3_stream *s = &b->stream;
    const struct kd_k3_cfg *c = &b->m->cfg;
    s->T = 1;
    s->banks = 0;
    s->started = true;
    for (int64_t i = 0; i < c->hidden; i++)
        s->p[i] = (float)kd_rand_unit(5, (uint64_t)(pos * c->hidden + i)) - 0.5f;
    for (int64_t i = 0; i < b->count; i++) {
        struct stand_in *w = &b->stand[i];
        struct kd_k3_seg seg = {.first = 0, .count = 1, .state = &w->state};
        double start = kd_forecast_clock(b->run);
        /* A bank is there once layer 0 has run; one that stands alone gets it from p. */
        if (!s->banks && w->L.index % c->block != 0) {
            memcpy(s->bank, s->p, (size_t)c->hidden * sizeof(float));
            s->banks = 1;
        }
        if (s->banks == kd_k3_banks(c) && w->L.index % c->block == 0)
            s->banks--;
        if (kd_k3_layer_forward(b->run, c, &w->L, &b->store, NULL, s, &seg, 1, NULL, err))
            return -1;
        if (count)
            w->seconds += kd_forecast_clock(b->run) - start;
    }
    return 0;
}

static int run_tokens(struct bench *b, const struct kd_mat *head, struct kd_forecast *f,
                      struct kd_err *err)
{
    const struct kd_k3_cfg *c = &b->m->cfg;
    float *logits;
    if (kd_mem_new(&logits, c->vocab, sizeof *logits, "logits", err))
        return -1;
    double start = kd_forecast_clock(b->run), head_s = 0;
    int64_t pos = 0, counted = 0;
    int rc = 0;
    for (bool count = false; !rc && pos < TOKENS_MAX; pos++) {
        double now = kd_forecast_clock(b->run);
        if (!count && pos > 0 && (pos >= WARM_TOKENS || now - start > warm_s)) {
            count = true;
            start = now;
        }
        if (count && counted > 1 && now - start > measure_s)
            break;
        rc = token(b, pos, count, err);
        now = kd_forecast_clock(b->run);
        if (!rc)
            rc = kd_mat_mul(b->run, head, b->stream.p, c->hidden, 1, logits, c->vocab, err);
        if (count) {
            head_s += kd_forecast_clock(b->run) - now;
            counted++;
        }
    }
    kd_mem_free(logits);
    if (rc || !counted)
        return rc;
    f->head_s = head_s / (double)counted;
    f->layers_s = 0;
    for (int64_t i = 0; i < b->count; i++)
        f->layers_s += b->stand[i].seconds / (double)counted * b->stand[i].times;
    f->token_s = f->layers_s + f->head_s;
    return 0;
}

int kd_forecast_decode(struct kd_forecast *f, const struct kd_run *run,
                       const struct kd_plan_model *m, const struct kd_plan_target *form,
                       int64_t budget, struct kd_err *err)
{
    struct bench b = {.run = run, .m = m, .form = form};
    struct kd_mat head;
    b.store = (struct kd_store){.get = get_expert, .ctx = &b};
    if (kd_mem_zero(&b.stand, m->cfg.layers, sizeof *b.stand, "layers", err))
        return -1;
    int rc =
        take_memory(&b, budget, &f->whole, err) || kd_k3_stream_init(&b.stream, &m->cfg, 1, err);
    int64_t made = 0;
    if (!rc) {
        make_all(&b, &head);
        for (; !rc && made < b.count; made++)
            rc = kd_k3_state_init(&b.stand[made].state, &m->cfg, &b.stand[made].L, err);
    }
    if (!rc)
        rc = run_tokens(&b, &head, f, err);
    f->stand_ins = (int)b.count;
    for (int64_t i = 0; i < made; i++)
        kd_k3_state_release(&b.stand[i].state);
    kd_k3_stream_release(&b.stream);
    kd_mem_free(b.weights);
    kd_mem_free(b.scale);
    kd_mem_free(b.ones);
    kd_mem_free(b.stand);
    return rc ? -1 : 0;
}
