#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/progress.h"
#include "cmd/cmd.h"
#include "model/k3.h"
#include "model/k3_names.h"
#include "model/sample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    int64_t layers, threads;
    double latent_eps;
    bool json;
} o;

static const struct kd_opt opts[] = {
    {"layers", 'l', KD_OPT_INT, &o.layers, "N", "check the first N layers (all)", .min = 1,
     .max = KD_K3_LAYERS_MAX},
    {"latent-eps", 0, KD_OPT_NUM, &o.latent_eps, "X",
     "epsilon of the q_a and kv_a norms (what the reference was made with)", .num_min = 1e-12,
     .num_max = 1e-2},
    KD_OPT_ROW_THREADS(&o.threads),
    {"json", 0, KD_OPT_FLAG, &o.json, NULL, "the result as JSON"},
    {0}};

/* The released model's values (k3-model 3.11): greatest |p| after each layer over the tokens 3 4 5
 * 6 7, and logits at the last of them, all at a latent epsilon of 1e-5. */
enum { PUBLISHED_LAYERS = 93, PUBLISHED_TOKENS = 5 };
static const int32_t published_ids[PUBLISHED_TOKENS] = {3, 4, 5, 6, 7};
static const double published_max[PUBLISHED_LAYERS] = {
    .145457,   .187096,   2.080418,  .503955,    .661286,  .812879,   8.043560,  3.890542,
    4.260307,  7.116578,  27.333942, 25.269014,  2.188684, 1.860930,  3.323375,  3.329176,
    3.369560,  3.566468,  9.423682,  9.138697,   8.700302, 20.911718, 33.189644, 21.762516,
    .128100,   .139088,   1.253929,  1.087816,   1.129400, 1.296692,  3.222280,  3.239367,
    3.274488,  3.418396,  5.054258,  14.519582,  .269027,  .537641,   2.840771,  2.838250,
    2.902090,  2.970377,  3.544798,  3.718682,   5.932635, 8.277781,  30.722158, 76.281532,
    .248469,   .349269,   5.185338,  1.083864,   1.581633, 4.665548,  17.335722, 8.986588,
    23.102322, 32.244404, 68.347992, 136.707169, 1.779803, 2.569898,  9.498684,  5.315511,
    5.118953,  5.529315,  14.100409, 10.744359,  9.529266, 9.437151,  18.008358, 23.164268,
    .767903,   2.532459,  8.193798,  4.264643,   5.268568, 5.483759,  13.425593, 8.486910,
    9.855852,  10.429826, 10.775433, 9.943328,   3.216658, 4.696488,  6.770693,  6.396170,
    10.625910, 17.881281, 17.442339, 19.182142,  31.064180};
static const struct {
    int32_t id;
    double logit;
} published_logits[] = {{2494, 15.021948}, {220, 12.808809},   {15, 12.729645},   {382, 12.638526},
                        {16, 12.299946},   {19081, 12.099145}, {397, 12.066601},  {17, 12.004007},
                        {87, 11.973339},   {701, 11.825319},   {1282, 11.765984}, {18, 11.694201},
                        {0, 9.164494},     {1, 3.085321},      {2, 8.215851},     {3, 5.879941},
                        {4, 6.251887},     {5, 5.526429},      {6, 4.302686},     {7, 1.056336},
                        {8, 4.16357},      {9, 1.459655}};

/* fp32 forwards of the released model agree to 1.2e-5; the values have six decimals. Golden
 * streams: k3-model, Decision 2. */
static const double published_rel = 1e-4, published_abs = 2e-6, logit_abs = 1e-3, golden_rel = 1e-5;

/* One prompt on its way through the layers. */
struct prompt {
    int64_t number, T;
    const int32_t *ids;
    struct kd_k3_stream s;
    struct kd_k3_state state;
    int32_t *topk;
};

struct line {
    int64_t layer;
    double got, want; /* published: greatest |p|; golden: got = distance relative to the largest */
    bool ok, routing_ok;
};

struct job {
    struct kd_kern kern;
    struct kd_run run;
    struct kd_ckpt *ck, *golden;
    struct kd_k3_cfg cfg;
    struct kd_k3_ends ends;
    struct kd_store *store;
    struct prompt *prompts;
    int64_t prompt_count;
    int *missing; /* [layers + 1] a shard that is not there, or -1; the last is for the ends */
    struct line line[KD_K3_LAYERS_MAX];
    int64_t layers, done;
    bool logits_done, logits_ok;
    double logits_off;
    char stop[256]; /* why it ended before the end */
};

/* Are the published values this config's? */
static bool released_shape(const struct kd_k3_cfg *c)
{
    int64_t mla = 0;
    for (int64_t l = 0; l < c->layers && l < KD_K3_LAYERS_MAX; l++)
        mla += c->mla[l];
    return c->hidden == 7168 && c->layers == PUBLISHED_LAYERS && c->vocab == 163840 &&
           c->heads == 96 && c->kda_heads == 96 && c->kda_dim == 128 && c->kv_lora == 512 &&
           c->q_lora == 1536 && c->experts == 896 && c->topk == 16 && c->latent == 3584 &&
           c->moe_inter == 3072 && c->block == 12 && mla == 24;
}

/* Which layers lack a shard. */
static int find_missing(struct job *j, struct kd_err *err)
{
    struct kd_k3_map map;
    struct kd_k3_name n;
    if (kd_k3_map_init(&map, &j->cfg, kd_ckpt_config(j->ck), err) ||
        kd_mem_new(&j->missing, j->cfg.layers + 1, sizeof *j->missing, "layers", err))
        return -1;
    for (int64_t l = 0; l <= j->cfg.layers; l++)
        j->missing[l] = -1;
    for (int64_t i = 0; i < kd_ckpt_count(j->ck); i++) {
        const struct kd_tensor *t = kd_ckpt_at(j->ck, i);
        if (!kd_k3_name_parse(&map, t->name, &n) || n.kind == KD_K3_VISION ||
            n.kind == KD_K3_PROJECTOR || n.layer >= j->cfg.layers ||
            kd_ckpt_shard_present(j->ck, t->shard))
            continue;
        j->missing[n.layer < 0 ? j->cfg.layers : n.layer] = t->shard;
    }
    return 0;
}

static const struct kd_tensor *golden_at(const struct job *j, int64_t prompt, const char *what,
                                         int64_t layer)
{
    char name[64];
    if (layer < 0)
        snprintf(name, sizeof name, "%lld.%s", (long long)prompt, what);
    else
        snprintf(name, sizeof name, "%lld.%s.%lld", (long long)prompt, what, (long long)layer);
    return kd_ckpt_find(j->golden, name);
}

static int need_golden(const struct job *j, int64_t prompt, const char *what, int64_t layer,
                       enum kd_dtype dtype, int64_t rows, int64_t cols, const struct kd_tensor **t,
                       struct kd_err *err)
{
    *t = golden_at(j, prompt, what, layer);
    if (!*t || (*t)->dtype != dtype || (*t)->rank != 2 || (*t)->shape[0] != rows ||
        (*t)->shape[1] != cols)
        return kd_fail(err, KD_ECORRUPT,
                       "golden.safetensors: %lld.%s of layer %lld is not there as [%lld, %lld]",
                       (long long)prompt, what, (long long)layer, (long long)rows, (long long)cols);
    return 0;
}

static int open_prompts(struct job *j, struct kd_err *err)
{
    int64_t n = 0;
    while (j->golden && golden_at(j, n, "ids", -1))
        n++;
    if (j->golden && !n)
        return kd_fail(err, KD_ECORRUPT, "golden.safetensors holds no prompts");
    n = j->golden ? n : 1;
    if (kd_mem_zero(&j->prompts, n, sizeof *j->prompts, "prompts", err))
        return -1;
    j->prompt_count = n;
    for (int64_t i = 0; i < n; i++) {
        struct prompt *p = &j->prompts[i];
        p->number = i;
        p->ids = published_ids;
        p->T = PUBLISHED_TOKENS;
        if (j->golden) {
            const struct kd_tensor *t = golden_at(j, i, "ids", -1);
            if (t->dtype != KD_DT_I32 || t->rank != 1 || t->shape[0] < 1 || t->shape[0] > 1 << 16)
                return kd_fail(err, KD_ECORRUPT, "golden.safetensors: %s is not a list of ids",
                               t->name);
            p->ids = (const int32_t *)(const void *)t->data;
            p->T = t->shape[0];
        }
        if (kd_mem_new(&p->topk, p->T * j->cfg.topk, sizeof *p->topk, "routing", err) ||
            kd_k3_stream_init(&p->s, &j->cfg, p->T, err) ||
            kd_k3_embed(&j->run, &j->cfg, &j->ends, p->ids, p->T, &p->s, err))
            return -1;
    }
    return 0;
}

static double greatest(const float *x, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        double v = fabs((double)x[i]);
        most = v > most || v != v ? v : most;
    }
    return most;
}

static double apart(const float *a, const float *b, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        double v = fabs((double)a[i] - (double)b[i]);
        most = v > most || v != v ? v : most;
    }
    return most;
}

static int by_id(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static int compare_golden(struct job *j, struct prompt *p, int64_t layer, bool moe,
                          struct line *out, struct kd_err *err)
{
    const struct kd_tensor *t;
    int64_t n = p->T * j->cfg.hidden, k = j->cfg.topk;
    if (need_golden(j, p->number, "stream", layer + 1, KD_DT_F32, p->T, j->cfg.hidden, &t, err))
        return -1;
    const float *want = (const float *)(const void *)t->data;
    double top = greatest(want, n), rel = apart(p->s.p, want, n) / (top > 0 ? top : 1);
    out->got = rel > out->got || rel != rel ? rel : out->got;
    out->ok = out->ok && rel <= out->want;
    if (!moe)
        return 0;
    if (need_golden(j, p->number, "topk", layer, KD_DT_I32, p->T, k, &t, err))
        return -1;
    for (int64_t i = 0; i < p->T; i++)
        qsort(p->topk + i * k, (size_t)k, sizeof *p->topk, by_id);
    if (memcmp(p->topk, t->data, (size_t)(p->T * k) * sizeof *p->topk) != 0)
        out->routing_ok = false;
    return 0;
}

/* All prompts through one layer, and the comparison. */
static int run_layer(struct job *j, int64_t layer, struct kd_err *err)
{
    struct kd_k3_layer L;
    struct line *out = &j->line[layer];
    *out = (struct line){.layer = layer,
                         .want = j->golden ? golden_rel : published_max[layer],
                         .ok = true,
                         .routing_ok = true};
    if (kd_k3_layer_load(&L, &j->cfg, j->ck, layer, NULL, err))
        return -1;
    int rc = 0;
    for (int64_t i = 0; i < j->prompt_count && !rc; i++) {
        struct prompt *p = &j->prompts[i];
        struct kd_k3_probe probe = {.ids = p->topk};
        struct kd_k3_seg seg = {0, p->T, &p->state};
        rc = kd_k3_state_init(&p->state, &j->cfg, &L, err) ||
             kd_k3_layer_forward(&j->run, &j->cfg, &L, j->store, NULL, &p->s, &seg, 1, &probe, err);
        kd_k3_state_release(&p->state);
        if (rc)
            break;
        if (j->golden) {
            rc = compare_golden(j, p, layer, L.moe, out, err);
        } else {
            out->got = greatest(p->s.p, p->T * j->cfg.hidden);
            out->ok = fabs(out->got - out->want) <= published_rel * out->want + published_abs;
        }
    }
    kd_k3_layer_release(&L);
    return rc ? -1 : 0;
}

static void forget_layer(const struct job *j, int64_t layer)
{
    struct kd_k3_map map;
    struct kd_k3_name n;
    if (kd_k3_map_init(&map, &j->cfg, kd_ckpt_config(j->ck), NULL))
        return;
    for (int64_t i = 0; i < kd_ckpt_count(j->ck); i++) {
        const struct kd_tensor *t = kd_ckpt_at(j->ck, i);
        if (t->data && kd_k3_name_parse(&map, t->name, &n) && n.layer == layer)
            kd_ckpt_forget(j->ck, t);
    }
}

static bool line_good(const struct line *l)
{
    return l->ok && l->routing_ok;
}

static int run_layers(struct job *j, struct kd_err *err)
{
    int64_t want = o.layers ? o.layers : j->cfg.layers;
    kd_progress_begin("verify", "layers", want, 0);
    for (int64_t l = 0; l < want; l++) {
        char note[64];
        if (kd_cmd_stop)
            return kd_fail(err, KD_ECANCEL, "stopped after %lld layers", (long long)l);
        if (j->missing[l] >= 0) {
            snprintf(j->stop, sizeof j->stop, "layer %lld needs %s, which is not there",
                     (long long)l, kd_ckpt_shard_name(j->ck, j->missing[l]));
            break;
        }
        if (run_layer(j, l, err))
            return -1;
        j->done = l + 1;
        snprintf(note, sizeof note, "layer %lld", (long long)l);
        kd_progress_add(1, note);
        if (j->cfg.hidden >= 2048)
            forget_layer(j, l);
        if (!line_good(&j->line[l]))
            break;
    }
    kd_progress_end();
    return 0;
}

static int check_logits(struct job *j, struct kd_err *err)
{
    int64_t hid = j->cfg.hidden, vocab = j->cfg.vocab;
    j->logits_ok = true;
    for (int64_t i = 0; i < j->prompt_count; i++) {
        struct prompt *p = &j->prompts[i];
        int64_t first = j->golden ? 0 : p->T - 1, rows = p->T - first;
        float *h;
        if (kd_mem_new(&h, p->T * hid + rows * vocab, sizeof *h, "logits", err))
            return -1;
        float *logits = h + p->T * hid;
        const struct kd_tensor *t = NULL;
        int rc =
            kd_k3_final(&j->run, &j->cfg, &j->ends, &p->s, h, err) ||
            kd_mat_mul(&j->run, &j->ends.head, h + first * hid, hid, rows, logits, vocab, err) ||
            (j->golden && need_golden(j, i, "logits", -1, KD_DT_F32, p->T, vocab, &t, err));
        double off = 0;
        if (!rc && t) {
            const float *want = (const float *)(const void *)t->data;
            off = apart(logits, want, rows * vocab) / greatest(want, rows * vocab);
            j->logits_ok = j->logits_ok && off <= golden_rel;
        } else if (!rc) {
            for (size_t k = 0; k < sizeof published_logits / sizeof *published_logits; k++) {
                double d = fabs((double)logits[published_logits[k].id] - published_logits[k].logit);
                off = d > off || d != d ? d : off;
            }
            const struct kd_sampling greedy = {.temperature = 0};
            int32_t best = -1;
            rc = kd_sample(&greedy, logits, vocab, 0, &best, err);
            j->logits_ok = off <= logit_abs && best == published_logits[0].id;
        }
        j->logits_off = off > j->logits_off || off != off ? off : j->logits_off;
        kd_mem_free(h);
        if (rc)
            return -1;
    }
    j->logits_done = true;
    return 0;
}

static void print_json(const struct job *j, struct kd_buf *b)
{
    struct kd_jw w = {.out = b};
    kd_jw_open(&w, NULL, '{');
    kd_jw_str(&w, "reference", j->golden ? "golden" : "published");
    kd_jw_num(&w, "latent_eps", (double)j->cfg.eps_latent);
    kd_jw_int(&w, "layers_checked", j->done);
    kd_jw_int(&w, "layers", j->cfg.layers);
    kd_jw_open(&w, "values", '[');
    for (int64_t l = 0; l < j->done; l++) {
        const struct line *x = &j->line[l];
        kd_jw_open(&w, NULL, '{');
        kd_jw_int(&w, "layer", l);
        kd_jw_num(&w, j->golden ? "distance" : "max", x->got);
        kd_jw_num(&w, j->golden ? "bound" : "published", x->want);
        if (j->golden)
            kd_jw_bool(&w, "routing", x->routing_ok);
        kd_jw_bool(&w, "ok", line_good(x));
        kd_jw_close(&w, '}');
    }
    kd_jw_close(&w, ']');
    if (j->done && !line_good(&j->line[j->done - 1]))
        kd_jw_int(&w, "first_difference", j->done - 1);
    else
        kd_jw_null(&w, "first_difference");
    if (j->logits_done) {
        kd_jw_open(&w, "logits", '{');
        kd_jw_num(&w, "distance", j->logits_off);
        kd_jw_bool(&w, "ok", j->logits_ok);
        kd_jw_close(&w, '}');
    } else {
        kd_jw_null(&w, "logits");
    }
    if (j->stop[0])
        kd_jw_str(&w, "stopped", j->stop);
    else
        kd_jw_null(&w, "stopped");
    kd_jw_close(&w, '}');
    kd_buf_char(b, '\n');
}

static void print_text(const struct job *j, struct kd_buf *b)
{
    if (j->golden)
        kd_buf_printf(
            b, "against golden.safetensors beside the model (%lld prompts), latent epsilon %g\n",
            (long long)j->prompt_count, (double)j->cfg.eps_latent);
    else
        kd_buf_printf(
            b, "against the published values of Kimi K3 (ids 3 4 5 6 7), latent epsilon %g\n",
            (double)j->cfg.eps_latent);
    for (int64_t l = 0; l < j->done; l++) {
        const struct line *x = &j->line[l];
        kd_buf_printf(b, "layer %3lld %s ", (long long)l, j->cfg.mla[l] ? "MLA" : "KDA");
        if (j->golden)
            kd_buf_printf(b, "stream %.2e of its largest value apart (bound %.0e)%s", x->got,
                          x->want, x->routing_ok ? "" : ", other experts chosen");
        else
            kd_buf_printf(b, "max |p| %11.6f  published %11.6f", x->got, x->want);
        kd_buf_str(b, line_good(x) ? "  ok\n" : "  DIFFERS\n");
    }
    if (j->logits_done)
        kd_buf_printf(b, "logits %.2e apart  %s\n", j->logits_off, j->logits_ok ? "ok" : "DIFFER");
    if (j->stop[0])
        kd_buf_printf(b, "%lld of %lld layers checked; %s\n", (long long)j->done,
                      (long long)j->cfg.layers, j->stop);
    else
        kd_buf_printf(b, "%lld of %lld layers checked\n", (long long)j->done,
                      (long long)j->cfg.layers);
}

static int report(const struct job *j, struct kd_err *err)
{
    struct kd_buf b;
    kd_buf_init(&b, 1 << 24);
    if (o.json)
        print_json(j, &b);
    else
        print_text(j, &b);
    int rc = kd_buf_ok(&b, "the result", err);
    if (!rc)
        fwrite(b.data, 1, b.size_bytes, stdout);
    kd_buf_release(&b);
    if (rc)
        return -1;
    if (j->done && !line_good(&j->line[j->done - 1]))
        return kd_fail(err, KD_EGATE, "layer %lld is the first that differs",
                       (long long)(j->done - 1));
    if (j->logits_done && !j->logits_ok)
        return kd_fail(err, KD_EGATE, "the layers agree, the logits differ");
    if (!j->done)
        return kd_fail(err, KD_EIO, "nothing could be checked: %s", j->stop);
    return 0;
}

static int open_reference(struct job *j, struct kd_err *err)
{
    char path[4096];
    bool released = released_shape(&j->cfg);
    if (!released) {
        if (kd_path_join(path, sizeof path, kd_ckpt_dir(j->ck), "golden.safetensors", err))
            return -1;
        if (!kd_file_exists(path))
            return kd_fail(err, KD_ENOTSUP,
                           "the published values are those of the released model, which this "
                           "config is not, and "
                           "no golden.safetensors lies beside it");
        if (kd_ckpt_open(&j->golden, path, false, err))
            return -1;
    }
    /* What the published values and the goldens were made with. */
    j->cfg.eps_latent = o.latent_eps > 0 ? (float)o.latent_eps : released ? 1e-5f : 1e-6f;
    return 0;
}

static int work(struct job *j, const char *dir, struct kd_err *err)
{
    if (kd_ckpt_open(&j->ck, dir, true, err))
        return -1;
    const struct kd_json *config = kd_ckpt_config(j->ck);
    if (!config)
        return kd_fail(err, KD_EINVAL, "'%s' has no config.json; name the model's folder", dir);
    if (kd_k3_cfg_parse(&j->cfg, config, NULL, err) || kd_k3_cfg_check(&j->cfg, config, err) ||
        kd_k3_known(&j->cfg, j->ck, err) || find_missing(j, err))
        return -1;
    if (o.layers > j->cfg.layers)
        return kd_fail(err, KD_EUSAGE, "--layers %lld: the model has %lld", (long long)o.layers,
                       (long long)j->cfg.layers);
    if (j->missing[j->cfg.layers] >= 0)
        return kd_fail(err, KD_EIO, "nothing can be checked without the embedding: %s is not there",
                       kd_ckpt_shard_name(j->ck, j->missing[j->cfg.layers]));
    if (open_reference(j, err) || kd_k3_ends_load(&j->ends, &j->cfg, j->ck, err) ||
        kd_k3_store_open(&j->store, &j->cfg, j->ck, NULL, err) || open_prompts(j, err) ||
        run_layers(j, err))
        return -1;
    if (j->done == j->cfg.layers && line_good(&j->line[j->done - 1]) && check_logits(j, err))
        return -1;
    return report(j, err);
}

static int run(int argc, const char **argv, struct kd_err *err)
{
    struct job *j;
    (void)argc;
    if (kd_mem_zero(&j, 1, sizeof *j, "verification", err))
        return -1;
    int rc = kd_cmd_run_open(&j->run, &j->kern, o.threads, err);
    if (!rc)
        rc = work(j, argv[0], err);
    for (int64_t i = 0; i < j->prompt_count; i++) {
        kd_k3_stream_release(&j->prompts[i].s);
        kd_mem_free(j->prompts[i].topk);
    }
    kd_mem_free(j->prompts);
    kd_mem_free(j->missing);
    kd_k3_store_close(j->store);
    kd_k3_ends_release(&j->ends);
    if (j->golden)
        kd_ckpt_close(j->golden);
    if (j->ck)
        kd_ckpt_close(j->ck);
    kd_cmd_run_close(&j->run);
    kd_mem_free(j);
    return rc;
}

const struct kd_cmd kd_cmd_verify = {
    .name = "verify",
    .summary = "hold a checkpoint's forward pass against known values, layer by layer",
    .args = "SRC",
    .example = "kondense verify Kimi-K3 --layers 4\nkondense verify k3-nano",
    .opts = opts,
    .args_min = 1,
    .args_max = 1,
    .run = run,
    .details = "The released Kimi K3 is held against its published values, with as many of its "
               "files as are there "
               "(the one with the embedding is needed, then layer 0's, and so on); another model "
               "against the "
               "golden.safetensors beside it. Layers run one after the other; the first that "
               "differs is named and ends "
               "the run (exit code 3), as does a missing file (exit code 0 when all layers before "
               "it agree).\n\n"
               "JSON: reference, latent_eps, layers_checked, layers, values (layer, max and "
               "published or distance, "
               "bound and routing, ok), first_difference, logits (distance, ok), stopped."};
