#include "slice/heads.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/pieces.h"
#include "base/show.h"
#include "fmt/gguf_config.h"
#include "fmt/stindex.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_READ = 1 << 20, CONFIG_MAX = 64 << 20 };

/* A shard's name without its number; the whole name when it has none. */
static bool same_set(const char *a, const char *b)
{
    struct kd_piece p, q;
    if (!kd_piece_parse(&p, a) || !kd_piece_parse(&q, b) || p.chopped || q.chopped)
        return false;
    return p.count == q.count && p.no_at == q.no_at && !strncmp(a, b, p.no_at);
}

static bool numbered(const char *name)
{
    struct kd_piece p;
    return kd_piece_parse(&p, name) && !p.chopped;
}

static int add_part(struct kd_heads *h, int file, struct kd_err *err)
{
    /* One size missing: all are asked for at once, unless another file is a dead link. */
    if (kd_source_at(h->src, file)->bytes < 0 && kd_source_stat(h->src, -1, err) &&
        (err->code != KD_EREMOTE || kd_source_stat(h->src, file, err)))
        return -1;
    struct kd_head_part *p = &h->parts[h->part_count++];
    p->file = file;
    p->name = kd_source_at(h->src, file)->name;
    p->bytes = kd_source_at(h->src, file)->bytes;
    kd_buf_init(&p->text, KD_GGUF_HEAD_MAX + 1);
    h->file_bytes += p->bytes;
    return 0;
}

/* All files with this ending, when they are one model: numbered alike, or a single one. */
static int gather(struct kd_heads *h, const char *tail, struct kd_err *err)
{
    const char *first = NULL;
    int n = kd_source_count(h->src);
    bool shards = false;
    for (int i = 0; i < n; i++)
        shards |= kd_name_ends(kd_source_at(h->src, i)->name, tail) &&
                  numbered(kd_source_at(h->src, i)->name);
    for (int i = 0; i < n; i++) {
        const char *name = kd_source_at(h->src, i)->name;
        if (!kd_name_ends(name, tail) || (shards && !numbered(name)))
            continue;
        if (first && !same_set(first, name))
            return kd_fail(err, KD_EINVAL,
                           "'%s' holds more than one model ('%s', '%s'): name one of them",
                           kd_source_where(h->src), first, name);
        first = first ? first : name;
        if (add_part(h, i, err))
            return -1;
    }
    return 0;
}

static int parse_gguf(struct kd_heads *h, int i, int64_t have, int64_t *need, struct kd_err *err)
{
    struct kd_head_part *p = &h->parts[i];
    struct kd_gguf *g = &h->set.parts[i].head;
    if (kd_gguf_parse(g, p->text.data, have, p->bytes, p->name, need, err))
        return -1;
    p->read_bytes = have;
    if (*need && (*need > KD_GGUF_HEAD_MAX || have >= p->bytes))
        return kd_fail(err, KD_ECORRUPT, "%s: ends inside its head", p->name);
    return 0;
}

/* Heads of all parts, in as few rounds as the longest takes. */
static int read_gguf(struct kd_heads *h, struct kd_err *err)
{
    int n = h->part_count, open = n;
    int64_t *want;
    struct kd_source_span *spans;
    if (kd_mem_zero(&want, n, sizeof *want, "heads", err))
        return -1;
    int rc = kd_mem_new(&spans, n, sizeof *spans, "heads", err);
    for (int i = 0; !rc && i < n; i++) {
        want[i] = h->parts[i].bytes < FIRST_READ ? h->parts[i].bytes : FIRST_READ;
        if (!want[i])
            rc = kd_fail(err, KD_ECORRUPT, "%s: is empty", h->parts[i].name);
    }
    while (!rc && open) {
        int64_t count = 0;
        for (int i = 0; !rc && i < n; i++) {
            struct kd_head_part *p = &h->parts[i];
            if (!want[i])
                continue;
            int64_t have = (int64_t)p->text.size_bytes;
            void *to = kd_buf_grow(&p->text, (size_t)(want[i] - have));
            rc = kd_buf_ok(&p->text, p->name, err);
            spans[count++] = (struct kd_source_span){
                .file = p->file, .begin = have, .bytes = want[i] - have, .buf = to};
        }
        if (!rc)
            rc = kd_source_read_many(h->src, spans, count, err);
        open = 0;
        for (int i = 0; !rc && i < n; i++) {
            int64_t need = 0, size = h->parts[i].bytes;
            if (!want[i])
                continue;
            rc = parse_gguf(h, i, want[i], &need, err);
            int64_t twice = 2 * want[i] > need ? 2 * want[i] : need;
            want[i] = !need ? 0 : twice < size ? twice : size;
            open += need != 0;
        }
    }
    kd_mem_free(spans);
    kd_mem_free(want);
    return rc ? -1 : 0;
}

static int open_gguf(struct kd_heads *h, struct kd_err *err)
{
    const struct kd_gguf **heads;
    int n = h->part_count;
    if (kd_mem_zero(&h->set.parts, n, sizeof *h->set.parts, "parts", err))
        return -1;
    h->set.part_count = n;
    for (int i = 0; i < n; i++)
        if (!(h->set.parts[i].path = strdup(h->parts[i].name)))
            return kd_fail(err, KD_ENOMEM, "parts: no memory");
    if (read_gguf(h, err) || kd_mem_new(&heads, n, sizeof(const struct kd_gguf *), "heads", err))
        return -1;
    for (int i = 0; i < n; i++) {
        heads[i] = &h->set.parts[i].head;
        h->count += heads[i]->tensor_count;
        h->parts[i].head_bytes = heads[i]->data_offset;
    }
    int rc = kd_gguf_set_check(heads, n, err);
    kd_mem_free(heads);
    if (rc || kd_mem_zero(&h->t, h->count, sizeof *h->t, "tensors", err))
        return -1;
    struct kd_head_tensor *t = h->t;
    for (int i = 0; i < n; i++) {
        const struct kd_gguf *g = &h->set.parts[i].head;
        for (int64_t k = 0; k < g->tensor_count; k++, t++) {
            const struct kd_gguf_tensor *s = &g->tensors[k];
            *t = (struct kd_head_tensor){.name = s->name, .part = i, .type = s->type};
            t->begin = g->data_offset + s->offset;
            t->bytes = s->bytes;
            t->rank = s->rank;
            for (int d = 0; d < s->rank; d++)
                t->shape[d] = s->ne[s->rank - 1 - d];
            snprintf(t->dtype, sizeof t->dtype, "%s", kd_gguf_type_info(s->type)->name);
        }
    }
    if (kd_gguf_config(&h->config, &h->set, &h->why))
        h->config = NULL;
    return 0;
}

/* The header's length of every shard, then every header. */
static int read_st(struct kd_heads *h, struct kd_err *err)
{
    int n = h->part_count;
    struct kd_source_span *spans;
    uint8_t(*len)[8];
    if (kd_mem_new(&spans, n, sizeof *spans, "headers", err))
        return -1;
    int rc = kd_mem_new(&len, n, sizeof *len, "headers", err);
    for (int i = 0; !rc && i < n; i++)
        spans[i] = (struct kd_source_span){.file = h->parts[i].file, .bytes = 8, .buf = len[i]};
    if (!rc)
        rc = kd_source_read_many(h->src, spans, n, err);
    for (int i = 0; !rc && i < n; i++) {
        struct kd_head_part *p = &h->parts[i];
        uint64_t bytes = 0;
        for (int b = 7; b >= 0; b--)
            bytes = bytes << 8 | len[i][b];
        if (bytes > KD_ST_HEADER_MAX || (int64_t)bytes > p->bytes - 8) {
            rc = kd_fail(err, KD_ECORRUPT, "%s: a header of %llu bytes in a file of %lld", p->name,
                         (unsigned long long)bytes, (long long)p->bytes);
            break;
        }
        kd_buf_add(&p->text, len[i], 8);
        spans[i].begin = 8;
        spans[i].bytes = (int64_t)bytes;
        spans[i].buf = kd_buf_grow(&p->text, (size_t)bytes);
        p->read_bytes = 8 + (int64_t)bytes;
        rc = kd_buf_ok(&p->text, p->name, err);
    }
    if (!rc)
        rc = kd_source_read_many(h->src, spans, n, err);
    kd_mem_free(len);
    kd_mem_free(spans);
    return rc ? -1 : 0;
}

static int by_place(const void *a, const void *b)
{
    const struct kd_head_tensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* The index against the shards that it names, whose tensors are `here`: each in the one and in the
 * other. */
static int check_index(const struct kd_heads *h, const struct kd_stindex *ix,
                       const struct kd_names *here, struct kd_err *err)
{
    char shown[256];
    for (int64_t i = 0; i < h->count; i++) {
        const char *part = h->parts[h->t[i].part].name;
        int64_t id = kd_names_find(&ix->names, h->t[i].name);
        kd_show_text(shown, sizeof shown, h->t[i].name);
        if (id < 0)
            return kd_fail(err, KD_ECORRUPT, "%s: tensor '%s' is not in the index", part, shown);
        if (strcmp(ix->shards.at[ix->shard[id]], part) != 0)
            return kd_fail(err, KD_ECORRUPT,
                           "%s: tensor '%s' is here, but the index puts it into %s", part, shown,
                           ix->shards.at[ix->shard[id]]);
    }
    for (int64_t id = 0; id < ix->names.count; id++)
        if (kd_names_find(here, ix->names.at[id]) < 0)
            return kd_fail(err, KD_ECORRUPT, "%s: tensor '%s' is in the index but not here",
                           ix->shards.at[ix->shard[id]],
                           kd_show_text(shown, sizeof shown, ix->names.at[id]));
    return 0;
}

/* ix: the index where there is one, else NULL. */
static int open_st(struct kd_heads *h, const struct kd_stindex *ix, struct kd_err *err)
{
    struct kd_names seen;
    if (read_st(h, err))
        return -1;
    for (int i = 0; i < h->part_count; i++) {
        struct kd_head_part *p = &h->parts[i];
        if (kd_st_parse(&p->st, p->text.data, (int64_t)p->text.size_bytes, p->bytes, p->name, err))
            return -1;
        kd_buf_release(&p->text);
        h->count += p->st.count;
        p->head_bytes = p->st.data_offset;
    }
    if (kd_mem_zero(&h->t, h->count, sizeof *h->t, "tensors", err))
        return -1;
    struct kd_head_tensor *t = h->t;
    kd_names_init(&seen);
    int rc = 0;
    for (int i = 0; !rc && i < h->part_count; i++) {
        const struct kd_st *st = &h->parts[i].st;
        struct kd_head_tensor *first = t;
        for (int64_t k = 0; !rc && k < st->count; k++, t++) {
            const struct kd_tensor *s = &st->tensors[k].t;
            int64_t id;
            bool fresh = true;
            *t = (struct kd_head_tensor){.name = s->name, .part = i, .type = -1, .rank = s->rank};
            t->begin = st->data_offset + st->tensors[k].begin;
            t->bytes = s->bytes;
            memcpy(t->shape, s->shape, (size_t)s->rank * sizeof *s->shape);
            snprintf(t->dtype, sizeof t->dtype, "%s", s->dtype_name);
            rc = kd_names_add(&seen, s->name, strlen(s->name), &id, &fresh, err);
            if (!rc && !fresh)
                rc = kd_fail(err, KD_ECORRUPT, "%s: tensor '%s' is in another shard too",
                             h->parts[i].name, s->name);
        }
        if (!rc && st->count)
            qsort(first, (size_t)st->count, sizeof *first, by_place);
    }
    if (!rc && ix)
        rc = check_index(h, ix, &seen, err);
    kd_names_release(&seen);
    return rc ? -1 : 0;
}

static int read_config(struct kd_heads *h, struct kd_err *err)
{
    int f = kd_source_find(h->src, "config.json");
    if (f < 0) {
        kd_fail(&h->why, KD_EINVAL, "'%s' has no config.json", kd_source_where(h->src));
        return 0;
    }
    return kd_source_load(h->src, f, CONFIG_MAX, &h->config_text, err) ||
                   kd_json_parse(&h->config, h->config_text.data, h->config_text.size_bytes,
                                 "config.json", err)
               ? -1
               : 0;
}

/* No file with a model's ending. Pieces of a chopped file are one only when all are there. */
static int nothing(const struct kd_heads *h, struct kd_err *err)
{
    struct kd_piece p;
    char sister[512];
    for (int i = 0; i < kd_source_count(h->src); i++) {
        const char *name = kd_source_at(h->src, i)->name;
        if (!kd_piece_parse(&p, name) || !p.chopped)
            continue;
        for (int64_t no = 1; kd_piece_sister(sister, sizeof sister, name, &p, no); no++)
            if (kd_source_find(h->src, sister) < 0)
                return kd_fail(err, KD_ECORRUPT, "'%s': '%s' is missing, a piece of '%.*s'",
                               kd_source_where(h->src), sister, (int)p.base_bytes, name);
    }
    return kd_fail(err, KD_EINVAL, "'%s' has no .gguf or .safetensors file",
                   kd_source_where(h->src));
}

/* The index of a folder's shards; *found false: it has none. */
static int load_index(const struct kd_heads *h, struct kd_stindex *ix, bool *found,
                      struct kd_err *err)
{
    static const char name[] = "model.safetensors.index.json";
    struct kd_buf text;
    int f = kd_source_find(h->src, name);
    const bool plain = f >= 0;
    if (!plain) /* gzipped: beside a model that is on this machine */
        f = kd_source_find(h->src, "model.safetensors.index.json.gz");
    const char *path = f < 0 ? NULL : kd_source_path(h->src, f);
    *found = path || plain;
    if (path)
        return kd_stindex_load(ix, path, err);
    if (!plain)
        return 0;
    kd_buf_init(&text, KD_STINDEX_BYTES_MAX);
    int rc = kd_source_load(h->src, f, KD_STINDEX_BYTES_MAX, &text, err) ||
             kd_stindex_parse(ix, text.data, text.size_bytes, name, err);
    kd_buf_release(&text);
    return rc ? -1 : 0;
}

static int by_file(const void *a, const void *b)
{
    const struct kd_head_part *x = a, *y = b;
    return (x->file > y->file) - (x->file < y->file); /* files are sorted by name */
}

/* The shards that the index names, and no other file. */
static int gather_indexed(struct kd_heads *h, const struct kd_stindex *ix, struct kd_err *err)
{
    char shown[256];
    for (int64_t i = 0; i < ix->shards.count; i++) {
        int f = kd_source_find(h->src, ix->shards.at[i]);
        if (f < 0)
            return kd_fail(err, KD_EIO, "'%s': the shard '%s' that the index names is not there",
                           kd_source_where(h->src),
                           kd_show_text(shown, sizeof shown, ix->shards.at[i]));
        if (add_part(h, f, err))
            return -1;
    }
    if (!h->part_count)
        return kd_fail(err, KD_ECORRUPT, "'%s': its index names no shard", kd_source_where(h->src));
    qsort(h->parts, (size_t)h->part_count, sizeof *h->parts, by_file);
    return 0;
}

static int gather_named(struct kd_heads *h, struct kd_err *err)
{
    if (gather(h, ".gguf", err))
        return -1;
    h->gguf = h->part_count > 0;
    if (!h->gguf && gather(h, ".safetensors", err))
        return -1;
    if (!h->part_count)
        return nothing(h, err);
    struct kd_piece p;
    if (kd_piece_parse(&p, h->parts[0].name) && !p.chopped && p.count > 0 &&
        p.count != h->part_count)
        return kd_fail(err, KD_ECORRUPT, "'%s': %d of %lld parts are there",
                       kd_source_where(h->src), h->part_count, (long long)p.count);
    return 0;
}

static int open_files(struct kd_heads *h, struct kd_err *err)
{
    struct kd_stindex ix = {0};
    bool indexed;
    if (kd_mem_zero(&h->parts, kd_source_count(h->src), sizeof *h->parts, "parts", err) ||
        load_index(h, &ix, &indexed, err))
        return -1;
    int rc = indexed ? gather_indexed(h, &ix, err) : gather_named(h, err);
    if (!rc)
        rc = h->gguf ? open_gguf(h, err) : open_st(h, indexed ? &ix : NULL, err);
    kd_stindex_release(&ix);
    return rc ? -1 : 0;
}

static int open_all(struct kd_heads *h, struct kd_err *err)
{
    if (open_files(h, err) || (!h->gguf && read_config(h, err)))
        return -1;
    for (int64_t i = 0; i < h->count; i++)
        h->data_bytes += h->t[i].bytes;
    h->k3 = h->config && !kd_k3_cfg_parse(&h->cfg, h->config, NULL, &h->why) &&
            !kd_k3_map_init(&h->map, &h->cfg, h->config, &h->why);
    h->map.gguf = h->gguf;
    return 0;
}

int kd_heads_open(struct kd_heads **out, struct kd_source *src, struct kd_err *err)
{
    struct kd_heads *h;
    *out = NULL;
    if (kd_mem_zero(&h, 1, sizeof *h, "heads", err))
        return -1;
    h->src = src;
    kd_buf_init(&h->config_text, CONFIG_MAX);
    if (open_all(h, err)) {
        kd_heads_close(h);
        return -1;
    }
    *out = h;
    return 0;
}

void kd_heads_close(struct kd_heads *h)
{
    if (!h)
        return;
    for (int64_t i = 0; i < h->set.part_count; i++) {
        kd_gguf_release(&h->set.parts[i].head);
        free(h->set.parts[i].path);
    }
    kd_mem_free(h->set.parts);
    for (int i = 0; i < h->part_count; i++) {
        kd_buf_release(&h->parts[i].text);
        kd_st_release(&h->parts[i].st);
    }
    kd_mem_free(h->parts);
    kd_mem_free(h->t);
    kd_json_free(h->config);
    kd_buf_release(&h->config_text);
    kd_mem_free(h);
}

static int64_t product(const struct kd_head_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->shape[i]; /* no overflow: its bytes were computed from it */
    return n;
}

/* Without a config: by what names of packed and side tensors end in. */
static int64_t params_by_name(const struct kd_head_tensor *t)
{
    static const char *const side[] = {".weight_scale", ".weight_shape", ".suh",  ".svh",
                                       ".mul1",         ".mcg",          ".kmask"};
    for (size_t i = 0; t->type < 0 && i < sizeof side / sizeof *side; i++)
        if (kd_name_ends(t->name, side[i]))
            return 0;
    if (t->type < 0 && t->rank == 3 &&
        (kd_name_ends(t->name, ".trellis") || kd_name_ends(t->name, ".ktrellis")))
        return t->shape[0] * t->shape[1] * 256;
    return kd_name_ends(t->name, ".weight_packed") ? 2 * product(t) : product(t);
}

int64_t kd_head_params(const struct kd_heads *h, const struct kd_head_tensor *t)
{
    struct kd_k3_name n;
    if (!h->k3 || !kd_k3_name_parse(&h->map, t->name, &n))
        return params_by_name(t);
    if (n.part == KD_K3_SCALE || n.part == KD_K3_SIDE)
        return 0;
    if (n.part == KD_K3_CODES)
        return n.params;
    if (n.part == KD_K3_PACKED)
        return 2 * product(t);
    int64_t all = product(t);
    if (!h->gguf && !strcmp(kd_k3_row_name(n.row), "self_attn.A_log") && all > h->cfg.kda_heads)
        return h->cfg.kda_heads;
    return all;
}

enum part { PART_OTHER, PART_ROUTED, PART_EMBED, PART_VISION };

static enum part part_of(const struct kd_heads *h, const char *name)
{
    struct kd_k3_name n;
    if (h->k3 && kd_k3_name_parse(&h->map, name, &n)) {
        if (n.kind == KD_K3_VISION || n.kind == KD_K3_PROJECTOR)
            return PART_VISION;
        return n.kind == KD_K3_ROUTED  ? PART_ROUTED
               : n.kind == KD_K3_EMBED ? PART_EMBED
                                       : PART_OTHER;
    }
    if (strstr(name, "vision_tower.") || strstr(name, "mm_projector.") || !strncmp(name, "v.", 2))
        return PART_VISION;
    if (strstr(name, "_exps.") || strstr(name, ".experts."))
        return PART_ROUTED;
    return strstr(name, "embed_tokens.") || !strncmp(name, "token_embd.", 11) ? PART_EMBED
                                                                              : PART_OTHER;
}

void kd_heads_sum(const struct kd_heads *h, struct kd_heads_sum *sum)
{
    memset(sum, 0, sizeof *sum);
    for (int64_t i = 0; i < h->count; i++) {
        const struct kd_head_tensor *t = &h->t[i];
        int64_t params = kd_head_params(h, t);
        enum part p = part_of(h, t->name);
        sum->params += params;
        sum->bytes += t->bytes;
        sum->routed_params += p == PART_ROUTED ? params : 0;
        sum->routed_bytes += p == PART_ROUTED ? t->bytes : 0;
        sum->embed_params += p == PART_EMBED ? params : 0;
        sum->embed_bytes += p == PART_EMBED ? t->bytes : 0;
        sum->vision_params += p == PART_VISION ? params : 0;
        sum->vision_bytes += p == PART_VISION ? t->bytes : 0;
    }
}

int64_t kd_heads_active(const struct kd_heads_sum *sum, int64_t used, int64_t experts)
{
    int64_t rest = sum->params - sum->routed_params - sum->embed_params - sum->vision_params;
    return rest + (experts > 0 ? sum->routed_params / experts * used : sum->routed_params);
}

const char *kd_head_type(const struct kd_head_tensor *t)
{
    static const char *const exl3[] = {".trellis", ".ktrellis", ".suh",  ".svh",
                                       ".mul1",    ".mcg",      ".kmask"};
    if (t->type >= 0)
        return t->dtype;
    if (kd_name_ends(t->name, ".weight_packed") || kd_name_ends(t->name, ".weight_scale"))
        return "MXFP4";
    for (size_t i = 0; i < sizeof exl3 / sizeof *exl3; i++)
        if (kd_name_ends(t->name, exl3[i]))
            return "EXL3";
    return t->dtype;
}

void kd_heads_mix(const struct kd_heads *h, char *out, size_t size)
{
    enum { TYPES_MAX = 64 };
    struct {
        const char *name;
        int64_t bytes;
    } types[TYPES_MAX];
    int n = 0;
    for (int64_t i = 0; i < h->count; i++) {
        const struct kd_head_tensor *t = &h->t[i];
        const char *type = kd_head_type(t);
        int at = 0;
        while (at < n && strcmp(types[at].name, type) != 0)
            at++;
        if (at == TYPES_MAX)
            continue;
        if (at == n) {
            types[n].name = type;
            types[n++].bytes = 0;
        }
        types[at].bytes += t->bytes;
    }
    *out = 0;
    for (size_t used = 0; n > 0 && used < size;) {
        int best = 0;
        for (int i = 1; i < n; i++)
            if (types[i].bytes > types[best].bytes)
                best = i;
        used +=
            (size_t)snprintf(out + used, size - used, "%s%s", used ? ", " : "", types[best].name);
        types[best] = types[--n];
    }
}

const struct kd_json *kd_heads_config(const struct kd_heads *h, const char *key)
{
    const struct kd_json *text = kd_json_get(h->config, "text_config");
    const struct kd_json *v = kd_json_get(text, key);
    return v ? v : kd_json_get(h->config, key);
}

void kd_heads_name(const struct kd_heads *h, char *out, size_t size)
{
    const char *where = kd_source_where(h->src);
    size_t n = strlen(where);
    if (!strncmp(where, "hf:", 3)) {
        where += 3;
        n = strcspn(where, "@");
        const char *slash = memchr(where, '/', n);
        const char *more = slash ? memchr(slash + 1, '/', n - (size_t)(slash + 1 - where)) : NULL;
        n = more ? (size_t)(more - where) : n;
    } else {
        while (n > 1 && where[n - 1] == '/')
            n--;
        for (size_t i = n; i-- > 0;)
            if (where[i] == '/') {
                where += i + 1;
                n -= i + 1;
                break;
            }
    }
    snprintf(out, size, "%.*s", (int)n, where);
}
