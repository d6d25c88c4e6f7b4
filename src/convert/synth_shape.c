/* The config of a range of layers, and of one rank's widths. */
#include "base/mem.h"
#include "convert/synth_int.h"

#include <string.h>

enum { BLOCK = 128 };

static void layer_list(struct kd_jw *w, const char *key, const struct kd_k3_cfg *c,
                       const struct kd_synth_opts *o, bool mla)
{
    kd_jw_open(w, key, '[');
    for (int64_t l = o->first; l <= o->last; l++)
        if ((c->mla[l] != 0) == mla)
            kd_jw_int(w, NULL, l - o->first + 1);
    kd_jw_close(w, ']');
}

/* Copies the members of `patch` into `to`, those of objects one by one. */
static int merge(struct kd_json *to, const struct kd_json *patch, struct kd_err *err)
{
    void *at = NULL;
    const char *key;
    struct kd_json *value;
    while (kd_json_next(patch, &at, &key, &value)) {
        struct kd_json *old = kd_json_get(to, key);
        if (old && kd_json_kind(value) == KD_JSON_OBJECT) {
            if (merge(old, value, err))
                return -1;
        } else if (kd_json_set_copy(to, key, value)) {
            return kd_fail(err, KD_ENOMEM, "config");
        }
    }
    return 0;
}

static int one_cut(const char *what, int64_t count, int64_t width, int64_t ranks,
                   struct kd_err *err)
{
    if (count % ranks || count / ranks * width % BLOCK)
        return kd_fail(
            err, KD_ENOTSUP,
            "--rank: %s of %lld x %lld cannot be cut among %lld ranks in equal multiples "
            "of %d",
            what, (long long)count, (long long)width, (long long)ranks, BLOCK);
    return 0;
}

static int check_cut(const struct kd_k3_cfg *c, const struct kd_synth_opts *o, struct kd_err *err)
{
    int64_t n = o->ranks;
    if (one_cut("MLA heads", c->heads, c->v_dim, n, err) ||
        one_cut("KDA heads", c->kda_heads, c->kda_dim, n, err) ||
        one_cut("experts' width", c->moe_inter, 1, n, err) ||
        one_cut("dense width", c->dense_inter, 1, n, err))
        return -1;
    /* Codes lie in blocks of the queries' rows too. */
    return o->wish.trunk_bpw > 0 ? one_cut("queries", c->heads, c->nope + c->rope, n, err) : 0;
}

static int check_range(const struct kd_k3_cfg *c, struct kd_synth_opts *o, struct kd_err *err)
{
    if (o->last < 0)
        o->last = c->layers - 1;
    if (o->first < 0 || o->first > o->last || o->last >= c->layers)
        return kd_fail(err, KD_EUSAGE, "--layers %lld-%lld: the config has layers 0 to %lld",
                       (long long)o->first, (long long)o->last, (long long)c->layers - 1);
    if (o->ranks > 1 && (o->rank < 0 || o->rank >= o->ranks))
        return kd_fail(err, KD_EUSAGE, "--rank %d/%d: ranks are counted from 0", o->rank, o->ranks);
    return 0;
}

int kd_synth_shape(struct kd_json *config, const struct kd_k3_cfg *whole,
                   const struct kd_synth_opts *opts, struct kd_k3_cfg *cut, struct kd_err *err)
{
    struct kd_synth_opts o = *opts;
    struct kd_buf text;
    struct kd_json *patch = NULL;
    if (check_range(whole, &o, err) || (o.ranks > 1 && check_cut(whole, &o, err)))
        return -1;
    int64_t n = o.ranks > 1 ? o.ranks : 1, dense = whole->dense_layers - o.first,
            layers = o.last - o.first + 1;
    kd_buf_init(&text, 1 << 20);
    struct kd_jw w = {.out = &text, .compact = true};
    kd_jw_open(&w, NULL, '{');
    kd_jw_int(&w, "num_hidden_layers", layers);
    kd_jw_int(&w, "first_k_dense_replace", dense < 0 ? 0 : dense > layers ? layers : dense);
    kd_jw_int(&w, "num_attention_heads", whole->heads / n);
    kd_jw_int(&w, "num_key_value_heads", whole->heads / n);
    kd_jw_int(&w, "moe_intermediate_size", whole->moe_inter / n);
    kd_jw_int(&w, "intermediate_size", whole->dense_inter / n);
    kd_jw_open(&w, "linear_attn_config", '{');
    kd_jw_int(&w, "num_heads", whole->kda_heads / n);
    layer_list(&w, "full_attn_layers", whole, &o, true);
    layer_list(&w, "kda_layers", whole, &o, false);
    kd_jw_close(&w, '}');
    kd_jw_close(&w, '}');
    struct kd_json *to = whole->nested ? kd_json_get(config, "text_config") : config;
    int rc = kd_buf_ok(&text, "config", err) ||
             kd_json_parse(&patch, text.data, text.size_bytes, "config", err) ||
             merge(to, patch, err);
    kd_json_free(patch);
    kd_buf_release(&text);
    if (rc)
        return -1;
    kd_json_del(config, "vision_config");
    return kd_k3_cfg_parse(cut, config, NULL, err) || kd_k3_cfg_check(cut, config, err) ? -1 : 0;
}
