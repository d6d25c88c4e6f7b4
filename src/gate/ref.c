#include "gate/ref.h"

#include "base/assert.h"
#include "base/mem.h"
#include "fmt/gguf.h"

#include <string.h>

static const char magic[8] = {'K', 'D', 'R', 'E', 'F', '0', '0', '1'};

static int64_t tokens_of(const struct kd_ref_head *h)
{
    return h->rows * h->cols;
}

static int64_t layer_bytes(const struct kd_ref_head *h, int64_t layer)
{
    int64_t route = layer >= h->dense_layers ? tokens_of(h) * (h->topk + 1) * 4 : 0;
    return route + h->samples * h->hidden * 4;
}

/* The special flags are padded, so that all that follows stays 4-aligned. */
static int64_t special_bytes(const struct kd_ref_head *h)
{
    return (tokens_of(h) + 3) / 4 * 4;
}

static int64_t head_bytes(const struct kd_ref_head *h)
{
    return (h->vocab * h->hidden * (h->head_type == KD_MAT_F32 ? 4 : 2) + 3) / 4 * 4;
}

int kd_ref_put(struct kd_ref_out *r, const void *data, int64_t bytes, struct kd_err *err)
{
    kd_sha256_add(&r->sha, data, (size_t)bytes);
    return kd_out_write(&r->file, data, bytes, err);
}

static int put_padded(struct kd_ref_out *r, const uint8_t *data, int64_t bytes, struct kd_err *err)
{
    const uint8_t zero[4] = {0};
    return kd_ref_put(r, data, bytes, err) || kd_ref_put(r, zero, (4 - bytes % 4) % 4, err) ? -1
                                                                                            : 0;
}

static int put_lm_head(struct kd_ref_out *r, const struct kd_mat *m, struct kd_err *err)
{
    int64_t size = m->type == KD_MAT_F32 ? 4 : 2;
    for (int64_t i = 0; i < m->rows; i++)
        if (kd_ref_put(r, (const uint8_t *)m->data + i * m->ld * size, m->cols * size, err))
            return -1;
    const uint8_t zero[4] = {0};
    return kd_ref_put(r, zero, (4 - m->rows * m->cols * size % 4) % 4, err);
}

int kd_ref_create(struct kd_ref_out *r, const char *path, const struct kd_ref_head *head,
                  const struct kd_corpus *text, const uint8_t *special,
                  const struct kd_mat *lm_head, struct kd_err *err)
{
    struct kd_ref_head h = *head;
    int64_t n = tokens_of(head);
    memset(r, 0, sizeof *r);
    if (lm_head->type != KD_MAT_F32 && lm_head->type != KD_MAT_BF16)
        return kd_fail(err, KD_ENOTSUP,
                       "the source's lm_head is quantized; a reference is saved of a model whose "
                       "lm_head is BF16 or F32");
    memcpy(h.magic, magic, sizeof magic);
    if (kd_out_sweep(path, err) || kd_out_open(&r->file, path, err)) /* left by a killed run */
        return -1;
    r->open = true;
    if (kd_sha256_init(&r->sha, err) || kd_ref_put(r, &h, sizeof h, err) ||
        kd_ref_put(r, text->ids, n * 4, err) || kd_ref_put(r, text->doc, n * 4, err) ||
        put_padded(r, special, n, err) || put_lm_head(r, lm_head, err)) {
        kd_ref_abort(r);
        return kd_wrap(err, "%s", path);
    }
    return 0;
}

int kd_ref_put_layer(struct kd_ref_out *r, const struct kd_ref_head *h, const int32_t *ids,
                     const float *margin, const float *stream, struct kd_err *err)
{
    int64_t n = tokens_of(h);
    if (ids && (kd_ref_put(r, ids, n * h->topk * 4, err) || kd_ref_put(r, margin, n * 4, err)))
        return -1;
    return kd_ref_put(r, stream, h->samples * h->hidden * 4, err);
}

int kd_ref_commit(struct kd_ref_out *r, struct kd_err *err)
{
    char hex[65];
    kd_sha256_hex(&r->sha, hex);
    r->sha.ctx = NULL;
    if (kd_out_write(&r->file, hex, 64, err)) {
        kd_ref_abort(r);
        return -1;
    }
    r->open = false;
    return kd_out_commit(&r->file, err);
}

void kd_ref_abort(struct kd_ref_out *r)
{
    char hex[65];
    if (!r->open)
        return;
    if (r->sha.ctx)
        kd_sha256_hex(&r->sha, hex); /* releases it */
    kd_out_abort(&r->file);
    memset(r, 0, sizeof *r);
}

/* Every count small enough that no product below can overflow. */
static bool sane(const struct kd_ref_head *h)
{
    const int64_t big = 1 << 20;
    return !memcmp(h->magic, magic, sizeof magic) && h->rows > 0 && h->rows <= big && h->cols > 0 &&
           h->cols <= big && h->rows * h->cols <= INT32_MAX && h->docs >= 0 &&
           h->docs <= h->rows * h->cols && h->hidden > 0 && h->hidden <= big && h->layers > 0 &&
           h->layers <= KD_K3_LAYERS_MAX && h->dense_layers >= 0 && h->dense_layers <= h->layers &&
           h->vocab > 0 && h->vocab <= 16 * big && h->experts >= 0 && h->experts <= big &&
           h->topk >= 0 && h->topk <= 1024 && h->topk <= h->experts && h->samples > 0 &&
           h->samples <= h->rows * h->cols && h->samples <= big && h->weights > 0 &&
           h->file_bytes >= 0 && (h->head_type == KD_MAT_F32 || h->head_type == KD_MAT_BF16) &&
           memchr(h->text_sha256, 0, sizeof h->text_sha256) &&
           memchr(h->source_id, 0, sizeof h->source_id) && memchr(h->name, 0, sizeof h->name);
}

static int64_t size_of(const struct kd_ref_head *h)
{
    int64_t n = tokens_of(h), total = (int64_t)sizeof *h + 8 * n + special_bytes(h) + head_bytes(h);
    for (int64_t l = 0; l < h->layers; l++)
        total += layer_bytes(h, l);
    return total + n * h->hidden * 4 + 64;
}

/* The ids index tables later: checked here, once. */
static bool ids_fine(const struct kd_ref *r)
{
    const struct kd_ref_head *h = r->head;
    int64_t n = tokens_of(h);
    for (int64_t i = 0; i < n; i++)
        if (r->ids[i] < 0 || r->ids[i] >= h->vocab || r->doc[i] < 0 || r->doc[i] >= h->docs)
            return false;
    return true;
}

static int check_digest(const struct kd_ref *r, struct kd_err *err)
{
    char hex[65];
    size_t body = (size_t)r->map.size_bytes - 64;
    if (kd_sha256_of(r->map.data, body, hex, err))
        return -1;
    if (memcmp(hex, r->map.data + body, 64) != 0)
        return kd_fail(err, KD_ECORRUPT, "its bytes do not match its digest; save it again");
    return ids_fine(r) ? 0 : kd_fail(err, KD_ECORRUPT, "a token id or document is out of range");
}

int kd_ref_open(struct kd_ref *r, const char *path, struct kd_err *err)
{
    memset(r, 0, sizeof *r);
    if (kd_file_map(&r->map, path, err))
        return -1;
    const struct kd_ref_head *h = (const void *)r->map.data;
    if (r->map.size_bytes < (int64_t)sizeof *h || !sane(h) || r->map.size_bytes != size_of(h)) {
        kd_ref_close(r);
        return kd_fail(err, KD_ECORRUPT, "%s: not a reference file, or cut short", path);
    }
    int64_t n = tokens_of(h);
    const uint8_t *at = r->map.data + sizeof *h;
    r->head = h;
    r->ids = (const void *)at;
    r->doc = (const void *)(at + 4 * n);
    r->special = at + 8 * n;
    at = r->special + special_bytes(h);
    r->lm_head = (struct kd_mat){.type = (enum kd_mat_type)h->head_type,
                                 .rows = h->vocab,
                                 .cols = h->hidden,
                                 .data = at,
                                 .ld = h->hidden};
    r->layers = at + head_bytes(h);
    at = r->layers;
    for (int64_t l = 0; l < h->layers; l++)
        at += layer_bytes(h, l);
    r->hidden = (const void *)at;
    if (check_digest(r, err)) {
        kd_ref_close(r);
        return kd_wrap(err, "%s", path);
    }
    return 0;
}

void kd_ref_close(struct kd_ref *r)
{
    kd_map_release(&r->map);
    memset(r, 0, sizeof *r);
}

void kd_ref_layer(const struct kd_ref *r, int64_t layer, const int32_t **ids, const float **margin,
                  const float **stream)
{
    const struct kd_ref_head *h = r->head;
    int64_t n = tokens_of(h);
    const uint8_t *at = r->layers;
    KD_ASSERT(layer >= 0 && layer < h->layers);
    for (int64_t l = 0; l < layer; l++)
        at += layer_bytes(h, l);
    *ids = NULL;
    *margin = NULL;
    if (layer >= h->dense_layers) {
        *ids = (const void *)at;
        *margin = (const void *)(at + n * h->topk * 4);
        at += n * (h->topk + 1) * 4;
    }
    *stream = (const void *)at;
}

int kd_ref_fits(const struct kd_ref *r, const struct kd_k3_cfg *c, struct kd_err *err)
{
    const struct kd_ref_head *h = r->head;
    if (h->hidden != c->hidden || h->layers != c->layers || h->dense_layers != c->dense_layers ||
        h->vocab != c->vocab || h->experts != c->experts || h->topk != c->topk)
        return kd_fail(
            err, KD_EINVAL,
            "the reference is of another model (%s: hidden %lld, %lld layers, vocabulary "
            "%lld)",
            h->name, (long long)h->hidden, (long long)h->layers, (long long)h->vocab);
    return 0;
}

int kd_source_id(const struct kd_ckpt *ck, char out[65], struct kd_err *err)
{
    const struct kd_gguf_set *gguf = kd_ckpt_gguf(ck);
    struct kd_sha256 sha;
    char path[4096], hex[65] = "";
    /* The config of a GGUF is in its first part. */
    if (!gguf && (kd_path_join(path, sizeof path, kd_ckpt_dir(ck), "config.json", err) ||
                  kd_sha256_file(path, hex, err)))
        return -1;
    if (kd_sha256_init(&sha, err))
        return -1;
    kd_sha256_add(&sha, hex, strlen(hex));
    int rc = 0;
    for (int s = 0; s < kd_ckpt_shard_count(ck) && !rc; s++) {
        if (gguf) { /* which may lie in pieces */
            const struct kd_map *m = &gguf->parts[s].map;
            rc = kd_sha256_of(m->data, (size_t)m->size_bytes, hex, err);
        } else {
            rc = kd_path_join(path, sizeof path, kd_ckpt_dir(ck), kd_ckpt_shard_name(ck, s), err) ||
                 kd_sha256_file(path, hex, err);
        }
        if (!rc)
            kd_sha256_add(&sha, hex, 64);
    }
    kd_sha256_hex(&sha, out);
    return rc ? -1 : 0;
}

int kd_source_id_receipt(const char *dir, char out[65], struct kd_err *err)
{
    struct kd_sha256 sha;
    struct kd_json *root;
    char path[4096];
    out[0] = 0;
    if (kd_path_join(path, sizeof path, dir, "kondense.json", err))
        return -1;
    if (!kd_file_exists(path))
        return 0;
    if (kd_json_load(&root, path, (size_t)1 << 30, err))
        return -1;
    const struct kd_json *source = kd_json_get(kd_json_get(root, "settings"), "source");
    const struct kd_json *shards = kd_json_get(source, "shards");
    const char *hex = kd_json_text(kd_json_get(source, "config_sha256"), NULL);
    if (!hex || strlen(hex) != 64 || !kd_json_count(shards)) {
        kd_json_free(root);
        return 0;
    }
    if (kd_sha256_init(&sha, err)) {
        kd_json_free(root);
        return -1;
    }
    kd_sha256_add(&sha, hex, 64);
    for (size_t i = 0; i < kd_json_count(shards); i++) {
        hex = kd_json_text(kd_json_get(kd_json_at(shards, i), "sha256"), NULL);
        if (hex)
            kd_sha256_add(&sha, hex, strlen(hex));
    }
    kd_sha256_hex(&sha, out);
    kd_json_free(root);
    return 0;
}
