#include "cmd/inspect.h"

#include "base/mem.h"
#include "base/show.h"
#include "fmt/exl3_file.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_MAX = 1400 };

int kd_tally_add(struct kd_tally *t, const char *text, int64_t count, struct kd_err *err)
{
    int64_t id, zero = 0;
    bool fresh;
    if (kd_names_add(&t->text, text, strlen(text), &id, &fresh, err))
        return -1;
    if (fresh)
        kd_buf_add(&t->counts, &zero, sizeof zero);
    if (kd_buf_ok(&t->counts, "list", err))
        return -1;
    ((int64_t *)(void *)t->counts.data)[id] += count;
    return 0;
}

int64_t kd_tally_count(const struct kd_tally *t, int64_t i)
{
    return ((const int64_t *)(const void *)t->counts.data)[i];
}

int64_t kd_tally_total(const struct kd_tally *t)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < t->text.count; i++)
        sum += kd_tally_count(t, i);
    return sum;
}

/* The name with each number in it as '*', so that layers and experts fall together. */
static const char *pattern(char *out, size_t size, const char *name)
{
    size_t n = 0;
    for (const char *c = name; *c && n + 1 < size; c++) {
        bool first = c == name || c[-1] == '.';
        if (!first || !isdigit((unsigned char)*c)) {
            out[n++] = *c;
            continue;
        }
        size_t digits = strspn(c, "0123456789");
        if (c[digits] == '.' || !c[digits]) {
            out[n++] = '*';
            c += digits - 1;
        } else {
            out[n++] = *c;
        }
    }
    out[n] = 0;
    return out;
}

static void shape_text(char *out, size_t size, int rank, const int64_t *shape)
{
    size_t n = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < rank && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (n < size)
        snprintf(out + n, size - n, "]");
}

static int64_t product(int rank, const int64_t *shape)
{
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        n *= shape[i];
    return n;
}

/* Whether a stored shape is the one that the config asks for. */
static bool shape_fits(const struct kd_inspect *in, const struct kd_tensor *t,
                       const struct kd_k3_name *n)
{
    if (n->part == KD_K3_CODES)
        return t->rank == 3 && t->shape[0] == kd_exl3_pad(n->cols) / 16 &&
               t->shape[1] == kd_exl3_pad(n->rows) / 16;
    if (n->rank < 0)
        return true;
    if (n->dtype == NULL) /* a GGUF's: dimensions of 1 may be written or not */
        return product(t->rank, t->shape) == product(n->rank, n->shape) &&
               t->shape[t->rank - 1] == n->shape[n->rank - 1];
    /* A_log may be padded to any length, in any rank. */
    if (!strcmp(kd_k3_row_name(n->row), "self_attn.A_log"))
        return product(t->rank, t->shape) >= in->cfg.kda_heads;
    return t->rank == n->rank && !memcmp(t->shape, n->shape, (size_t)n->rank * sizeof *n->shape);
}

static int note_oddities(struct kd_inspect *in, const struct kd_tensor *t,
                         const struct kd_k3_name *n, struct kd_err *err)
{
    char name[TEXT_MAX], text[TEXT_MAX + 500], is[200], want[200];
    pattern(name, sizeof name, t->name);
    if (n->dtype && strcmp(n->dtype, t->dtype_name) != 0) {
        snprintf(text, sizeof text, "%s is %s, the release has %s", name, t->dtype_name, n->dtype);
        if (kd_tally_add(&in->odd_dtypes, text, 1, err))
            return -1;
    }
    if (shape_fits(in, t, n))
        return 0;
    shape_text(is, sizeof is, t->rank, t->shape);
    if (n->rank < 0)
        snprintf(want, sizeof want, "a trellis of %lld x %lld", (long long)n->cols,
                 (long long)n->rows);
    else
        shape_text(want, sizeof want, n->rank, n->shape);
    snprintf(text, sizeof text, "%s is %s, the config says %s", name, is, want);
    return kd_tally_add(&in->odd_shapes, text, 1, err);
}

static enum kd_inspect_class class_of(const struct kd_k3_name *n)
{
    if (n->kind == KD_K3_ROUTED)
        return KD_CLASS_EXPERTS;
    if (n->kind == KD_K3_HEAD)
        return KD_CLASS_HEAD;
    return n->part == KD_K3_CODES || n->part == KD_K3_SIDE ? KD_CLASS_TRUNK : KD_CLASS_STORED;
}

static void add_sum(struct kd_inspect_sum *s, int64_t params, int64_t bytes)
{
    s->tensors++;
    s->params += params;
    s->bytes += bytes;
}

/* Bits of one code in sixteenths; 0 for what holds no codes. */
static int64_t code_bits16(const struct kd_tensor *t, const struct kd_k3_name *n,
                           enum kd_dtype dtype)
{
    switch (n->part) {
    case KD_K3_PLAIN:
        return t->format ? 128 * t->format->bytes / t->format->elems : 16 * kd_dtype_bits(dtype);
    case KD_K3_PACKED:
        return 64;
    case KD_K3_CODES:
        return t->rank == 3 ? t->shape[2] : 0;
    case KD_K3_SCALE:
    case KD_K3_SIDE:
        break;
    }
    return 0;
}

static int add_tensor(struct kd_inspect *in, const struct kd_tensor *t, int32_t *mains,
                      int32_t *scales, struct kd_err *err)
{
    struct kd_k3_name n;
    char name[TEXT_MAX];
    bool known = kd_k3_name_parse(&in->map, t->name, &n), here = t->rank >= 0;
    if (!known && kd_tally_add(&in->unknown, pattern(name, sizeof name, t->name), 1, err))
        return -1;
    if (known) {
        int64_t at = (int64_t)(n.layer + 1) * KD_K3_ROWS_MAX + n.row;
        mains[at] += n.part == KD_K3_PLAIN || n.part == KD_K3_PACKED || n.part == KD_K3_CODES;
        scales[at] += (n.part == KD_K3_SCALE) - (n.part == KD_K3_PACKED);
        in->parts[n.part]++;
    }
    if (here && kd_tally_add(&in->dtypes, t->dtype_name, 1, err))
        return -1;
    if (here && known && note_oddities(in, t, &n, err))
        return -1;
    int64_t bytes = t->bytes, params = n.params;
    enum kd_dtype dtype = t->dtype;
    if (!here && n.rank >= 0) {
        dtype = !strcmp(n.dtype, "BF16")  ? KD_DT_BF16
                : !strcmp(n.dtype, "F32") ? KD_DT_F32
                                          : KD_DT_U8;
        bytes = product(n.rank, n.shape) * kd_dtype_bits(dtype) / 8;
    } else if (!here) {
        in->unsized++;
    }
    if (here && (!known || n.part == KD_K3_PLAIN))
        params = product(t->rank, t->shape);
    add_sum(&in->kinds[n.kind], params, bytes);
    add_sum(&in->total, params, bytes);
    if (!known)
        return 0;
    enum kd_inspect_class c = class_of(&n);
    add_sum(&in->classes[c], params, bytes);
    in->rate16[c] += (double)params * (double)code_bits16(t, &n, dtype);
    if (n.kind == KD_K3_ROUTED && n.part == KD_K3_PACKED)
        in->packed_bytes += bytes;
    if (n.kind == KD_K3_ROUTED && n.part == KD_K3_SCALE)
        in->scale_bytes += bytes;
    return 0;
}

/* Matrices and vectors that a whole model has and this one has not. Vision parts count only where
 * some are there: a text-only checkpoint is whole without them. */
static int find_missing(struct kd_inspect *in, const int32_t *mains, const int32_t *scales,
                        struct kd_err *err)
{
    bool vision = in->kinds[KD_K3_VISION].tensors || in->kinds[KD_K3_PROJECTOR].tensors;
    for (int row = 0; row < kd_k3_row_count(); row++) {
        enum kd_k3_kind kind = kd_k3_row_kind(row);
        int64_t missing = 0, unpaired = 0;
        char text[200];
        for (int64_t layer = -1; layer < KD_K3_LAYERS_MAX; layer++) {
            int64_t at = (layer + 1) * KD_K3_ROWS_MAX + row;
            int64_t want = kd_k3_row_expect(&in->map, row, layer);
            missing += want > mains[at] ? want - mains[at] : 0;
            unpaired += scales[at] < 0 ? -scales[at] : scales[at];
        }
        if (missing && (vision || (kind != KD_K3_VISION && kind != KD_K3_PROJECTOR)) &&
            kd_tally_add(&in->missing, kd_k3_row_name(row), missing, err))
            return -1;
        snprintf(text, sizeof text, "%s: weight_packed or weight_scale without the other",
                 kd_k3_row_name(row));
        if (unpaired && kd_tally_add(&in->missing, text, unpaired, err))
            return -1;
    }
    return 0;
}

static void count_layers(struct kd_inspect *in)
{
    const struct kd_k3_cfg *c = &in->cfg;
    for (int64_t l = 0; l < c->layers; l++) {
        in->layers_mla += c->mla[l];
        in->layers_moe += kd_k3_is_moe(c, l);
    }
    in->layers_kda = c->layers - in->layers_mla;
    for (int i = 0; i < kd_ckpt_shard_count(in->ck); i++)
        in->shards_present += kd_ckpt_shard_present(in->ck, i);
}

/* All text weights but the embedding table, with topk experts in each MoE layer. */
static void count_active(struct kd_inspect *in)
{
    static const enum kd_k3_kind always[] = {KD_K3_KDA,    KD_K3_MLA,    KD_K3_ROUTER,
                                             KD_K3_LATENT, KD_K3_SHARED, KD_K3_DENSE,
                                             KD_K3_NORMS,  KD_K3_HEAD,   KD_K3_FINAL};
    const struct kd_k3_cfg *c = &in->cfg;
    int64_t width = c->latent ? c->latent : c->hidden;
    in->active = in->layers_moe * c->topk * 3 * width * c->moe_inter;
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        in->active += in->kinds[always[i]].params;
}

static void tally_init(struct kd_tally *t)
{
    kd_names_init(&t->text);
    kd_buf_init(&t->counts, (size_t)KD_NAMES_MAX * sizeof(int64_t));
}

static void tally_release(struct kd_tally *t)
{
    kd_names_release(&t->text);
    kd_buf_release(&t->counts);
}

static int map_init(struct kd_inspect *in, const struct kd_json *config, struct kd_err *err)
{
    if (kd_k3_map_init(&in->map, &in->cfg, config, err))
        return -1;
    in->map.gguf = kd_ckpt_gguf(in->ck) != NULL;
    return 0;
}

int kd_inspect_open(struct kd_inspect *in, const struct kd_ckpt *ck, struct kd_err *err)
{
    enum { CELLS = (KD_K3_LAYERS_MAX + 1) * KD_K3_ROWS_MAX };
    memset(in, 0, sizeof *in);
    in->ck = ck;
    kd_buf_init(&in->unknown_keys, 1 << 20);
    tally_init(&in->unknown);
    tally_init(&in->dtypes);
    tally_init(&in->odd_dtypes);
    tally_init(&in->odd_shapes);
    tally_init(&in->missing);
    int32_t *counts;
    const struct kd_json *config = kd_ckpt_config(ck);
    if (!config)
        return kd_fail(err, KD_EINVAL, "a single file has no config.json; give its folder");
    if (kd_k3_cfg_parse(&in->cfg, config, &in->unknown_keys, err) || map_init(in, config, err) ||
        kd_mem_zero(&counts, 2 * CELLS, sizeof *counts, "tensor counts", err))
        return -1;
    count_layers(in);
    int rc = 0;
    for (int64_t i = 0; i < kd_ckpt_count(ck) && !rc; i++)
        rc = add_tensor(in, kd_ckpt_at(ck, i), counts, counts + CELLS, err);
    if (!rc)
        rc = find_missing(in, counts, counts + CELLS, err);
    kd_mem_free(counts);
    count_active(in);
    if (kd_k3_cfg_check(&in->cfg, config, &in->refusal) == 0)
        in->refusal.code = KD_OK;
    return rc;
}

void kd_inspect_close(struct kd_inspect *in)
{
    kd_buf_release(&in->unknown_keys);
    tally_release(&in->unknown);
    tally_release(&in->dtypes);
    tally_release(&in->odd_dtypes);
    tally_release(&in->odd_shapes);
    tally_release(&in->missing);
}
