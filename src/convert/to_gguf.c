#include "convert/to_gguf.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/show.h"
#include "convert/to_gguf_int.h"
#include "model/k3.h"
#include "model/k3_names.h"

#include <dirent.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BATCH_BYTES = 8 << 20, FILE_TYPE_MXFP4_MOE = 38 };

/* Where a tensor's values come from. */
enum from { VECTOR, MATRIX, FLOATS, DECAY, KEY_ROWS, VALUE_ROWS, EXPERTS };

/* A layer's tensors in the order of the file; those that a layer has not, its names do not have
 * either (kd_k3_name_parse). `at`: in struct kd_k3_layer, of a struct kd_mat or a float pointer. */
#define AT(member) offsetof(struct kd_k3_layer, member)
static const struct item {
    const char *name;
    size_t at; /* EXPERTS: in struct kd_expert */
    enum from from;
} items[] = {
    {"attn_gate.weight", AT(g), MATRIX},
    {"attn_k.weight", AT(k), MATRIX},
    {"attn_k_b.weight", AT(kv_b), KEY_ROWS},
    {"attn_kv_a_mqa.weight", AT(kv_a), MATRIX},
    {"attn_kv_a_norm.weight", AT(kv_a_norm), VECTOR},
    {"attn_norm.weight", AT(input_norm), VECTOR},
    {"attn_output.weight", AT(o), MATRIX},
    {"attn_q.weight", AT(q), MATRIX},
    {"attn_q_a.weight", AT(q_a), MATRIX},
    {"attn_q_a_norm.weight", AT(q_a_norm), VECTOR},
    {"attn_q_b.weight", AT(q_b), MATRIX},
    {"attn_res_score.weight", AT(attn_res), VECTOR},
    {"attn_v.weight", AT(v), MATRIX},
    {"attn_v_b.weight", AT(kv_b), VALUE_ROWS},
    {"exp_probs_b.bias", AT(router_bias), VECTOR},
    {"ffn_down.weight", AT(down), MATRIX},
    {"ffn_down_exps.weight", offsetof(struct kd_expert, w2), EXPERTS},
    {"ffn_down_shexp.weight", AT(down), MATRIX},
    {"ffn_gate.weight", AT(gate), MATRIX},
    {"ffn_gate_exps.weight", offsetof(struct kd_expert, w1), EXPERTS},
    {"ffn_gate_inp.weight", AT(router), FLOATS},
    {"ffn_gate_shexp.weight", AT(gate), MATRIX},
    {"ffn_norm.weight", AT(post_norm), VECTOR},
    {"ffn_res_score.weight", AT(mlp_res), VECTOR},
    {"ffn_routed_down.weight", AT(routed_down), MATRIX},
    {"ffn_routed_norm.weight", AT(routed_norm), VECTOR},
    {"ffn_routed_up.weight", AT(routed_up), MATRIX},
    {"ffn_up.weight", AT(up), MATRIX},
    {"ffn_up_exps.weight", offsetof(struct kd_expert, w3), EXPERTS},
    {"ffn_up_shexp.weight", AT(up), MATRIX},
    {"ssm_a", AT(decay), DECAY},
    {"ssm_beta.weight", AT(b), MATRIX},
    {"ssm_conv1d_k.weight", AT(k_conv), VECTOR},
    {"ssm_conv1d_q.weight", AT(q_conv), VECTOR},
    {"ssm_conv1d_v.weight", AT(v_conv), VECTOR},
    {"ssm_dt.bias", AT(dt_bias), VECTOR},
    {"ssm_f_a.weight", AT(f_a), MATRIX},
    {"ssm_f_b.weight", AT(f_b), MATRIX},
    {"ssm_g.weight", AT(g), MATRIX},
    {"ssm_norm.weight", AT(o_norm), VECTOR},
};
enum { ITEMS = sizeof items / sizeof *items };
#define END_AT(member) offsetof(struct kd_k3_ends, member)
static const struct item globals[] = {
    {"output.weight", END_AT(head), MATRIX},
    {"output_norm.weight", END_AT(norm), VECTOR},
    {"output_res_score.weight", END_AT(out_res), VECTOR},
    {"token_embd.weight", END_AT(embed), MATRIX},
};

/* One tensor to be written. */
struct out {
    char name[KD_GGUF_NAME_MAX + 1];
    const struct item *item;
    int64_t layer; /* -1: global */
    int type, rank;
    int64_t ne[KD_GGUF_RANK_MAX]; /* innermost first */
    int64_t bytes, part;
};

struct work {
    const struct kd_ckpt *ck;
    const struct kd_k3_cfg *cfg;
    const struct kd_to_gguf *set;
    const struct kd_run *run;
    struct kd_buf list; /* of struct out */
    int64_t count, parts, total_bytes;
    int expert_type;
    char prefix[3072]; /* of the file names */
    char state[4096];  /* what is being done, for a resume */
    bool in_folder;    /* dst is a folder that the run makes */
    char id[65];
    struct kd_gguf_plan *plans; /* one a part */
    struct kd_k3_layer L;       /* index -1: none */
    struct kd_k3_ends ends;
    struct kd_store *store;
    uint8_t *batch;
    int64_t batch_bytes;
};

static struct out *out_at(const struct work *w, int64_t i)
{
    return (struct out *)(void *)w->list.data + i;
}

static int type_of(const struct work *w, const struct out *t)
{
    bool whole;
    switch (t->item->from) {
    case VECTOR:
    case FLOATS:
    case DECAY:
        return KD_GT_F32;
    case EXPERTS:
        if (w->expert_type == KD_GT_MXFP4)
            return KD_GT_MXFP4;
        break;
    case MATRIX:
    case KEY_ROWS:
    case VALUE_ROWS:
        break;
    }
    whole = t->ne[0] % kd_gguf_type_info(w->set->trunk_type)->elems == 0;
    return whole ? w->set->trunk_type : KD_GT_BF16;
}

static int add(struct work *w, const struct kd_k3_map *map, const struct item *item, int64_t layer,
               struct kd_err *err)
{
    struct out t = {.item = item, .layer = layer};
    struct kd_k3_name n;
    if (layer < 0)
        snprintf(t.name, sizeof t.name, "%s", item->name);
    else
        snprintf(t.name, sizeof t.name, "blk.%lld.%s", (long long)layer, item->name);
    if (!kd_k3_name_parse(map, t.name, &n) || !n.params ||
        (!strcmp(item->name, "ffn_routed_norm.weight") && !w->cfg->latent_norm))
        return 0; /* not in this layer */
    t.rank = n.rank;
    for (int i = 0; i < n.rank; i++)
        t.ne[i] = n.shape[n.rank - 1 - i];
    if (!strncmp(item->name, "ssm_conv1d", 10)) { /* taps, 1, channels */
        t.rank = 3;
        t.ne[2] = t.ne[1];
        t.ne[1] = 1;
    }
    t.type = type_of(w, &t);
    if (kd_gguf_bytes(t.type, t.rank, t.ne, &t.bytes, err))
        return kd_wrap(err, "tensor %s", t.name);
    kd_buf_add(&w->list, &t, sizeof t);
    w->count++;
    w->total_bytes += t.bytes;
    return kd_buf_ok(&w->list, "list of tensors", err);
}

static int list_tensors(struct work *w, struct kd_err *err)
{
    struct kd_k3_map map = {.cfg = w->cfg};
    for (size_t i = 0; i < sizeof globals / sizeof *globals; i++)
        if (add(w, &map, &globals[i], -1, err))
            return -1;
    for (int64_t l = 0; l < w->cfg->layers; l++)
        for (int i = 0; i < ITEMS; i++)
            if (add(w, &map, &items[i], l, err))
                return -1;
    return 0;
}

/* Which part each tensor goes to: as many as fit under the limit, in order. */
static void cut_parts(struct work *w)
{
    int64_t data = 0;
    w->parts = 1;
    for (int64_t i = 0; i < w->count; i++) {
        struct out *t = out_at(w, i);
        int64_t padded = (t->bytes + 31) / 32 * 32;
        if (w->set->split_bytes && data && data + padded > w->set->split_bytes) {
            w->parts++;
            data = 0;
        }
        data += padded;
        t->part = w->parts - 1;
    }
}

/* What a source must be for this to lose nothing silently. */
static int check_source(struct work *w, struct kd_err *err)
{
    const struct kd_k3_cfg *c = w->cfg;
    struct kd_expert e;
    if (kd_ckpt_gguf(w->ck))
        return kd_fail(err, KD_EUSAGE, "the source is a GGUF already");
    for (int64_t i = 0; i < kd_ckpt_count(w->ck); i++)
        if (strstr(kd_ckpt_at(w->ck, i)->name, "trellis"))
            return kd_fail(err, KD_ENOTSUP,
                           "tensor %s is EXL3, which GGUF has no type for: convert the original",
                           kd_ckpt_at(w->ck, i)->name);
    if (c->kda_heads != c->heads)
        return kd_fail(err, KD_ENOTSUP,
                       "%lld KDA heads and %lld MLA heads: the format has one number for both",
                       (long long)c->kda_heads, (long long)c->heads);
    w->expert_type = w->set->trunk_type;
    if (c->dense_layers == c->layers)
        return 0;
    if (w->set->dry) { /* shards may be absent: the index names the tensors */
        for (int64_t i = 0; i < kd_ckpt_count(w->ck); i++)
            if (strstr(kd_ckpt_at(w->ck, i)->name, ".experts.0.w1.weight_packed"))
                w->expert_type = KD_GT_MXFP4;
        return 0;
    }
    if (kd_k3_store_open(&w->store, c, w->ck, NULL, err) ||
        w->store->get(w->store, c->dense_layers, 0, &e, err))
        return -1;
    if (e.w1.type == KD_MAT_MXFP4)
        w->expert_type = KD_GT_MXFP4;
    return 0;
}

static int set_names(struct work *w, const char *src, const char *dst, struct kd_err *err)
{
    char name[256], file[300];
    int64_t number, count;
    size_t n = strlen(dst), bare;
    if (kd_gguf_split_parse(dst, &number, &count, &bare))
        return kd_fail(err, KD_EUSAGE,
                       "'%s' is the name of one part of %lld: name it '%.*s.gguf', --split-size "
                       "numbers the parts",
                       dst, (long long)count, (int)bare, dst);
    if (kd_path_same(dst, src))
        return kd_fail(err, KD_EUSAGE, "'%s' is the source; choose another folder", dst);
    if (n > 5 && !strcmp(dst + n - 5, ".gguf")) {
        snprintf(w->prefix, sizeof w->prefix, "%.*s", (int)(n - 5), dst);
    } else {
        w->in_folder = true;
        kd_to_gguf_name(name, sizeof name, src);
        snprintf(file, sizeof file, "%s-%s", name, kd_gguf_type_info(w->set->trunk_type)->name);
        if ((w->set->dry ? kd_dir_could : kd_dir_make)(dst, err) ||
            kd_path_join(w->prefix, sizeof w->prefix, dst, file, err))
            return -1;
    }
    snprintf(w->state, sizeof w->state, "%s.gguf.unfinished", w->prefix);
    return 0;
}

static int part_path(const struct work *w, int64_t part, char *out, size_t size, struct kd_err *err)
{
    if (w->parts > 1)
        return kd_gguf_split_path(out, size, w->prefix, strlen(w->prefix), part + 1, w->parts, err);
    snprintf(out, size, "%s.gguf", w->prefix);
    return 0;
}

/* Heads of all parts. */
static int plan(struct work *w, const char *src, struct kd_err *err)
{
    int file_type = w->expert_type == KD_GT_MXFP4
                        ? FILE_TYPE_MXFP4_MOE
                        : kd_gguf_type_info(w->set->trunk_type)->file_type;
    if (w->parts > KD_GGUF_PARTS_MAX / 2)
        return kd_fail(err, KD_EUSAGE, "--split-size: %lld parts are too many",
                       (long long)w->parts);
    if (kd_mem_zero(&w->plans, w->parts, sizeof *w->plans, "plans of the parts", err))
        return -1;
    for (int64_t i = 0; i < w->parts; i++)
        kd_gguf_plan_init(&w->plans[i]);
    if (kd_to_gguf_keys(&w->plans[0], w->cfg, src, w->set, file_type, err))
        return -1;
    for (int64_t i = 0; w->parts > 1 && i < w->parts; i++) {
        kd_gguf_plan_int(&w->plans[i], "split.no", KD_GV_U16, i);
        kd_gguf_plan_int(&w->plans[i], "split.count", KD_GV_U16, w->parts);
        kd_gguf_plan_int(&w->plans[i], "split.tensors.count", KD_GV_I32, w->count);
    }
    for (int64_t i = 0; i < w->count; i++) {
        const struct out *t = out_at(w, i);
        if (kd_gguf_plan_tensor(&w->plans[t->part], t->name, t->type, t->rank, t->ne, NULL, err))
            return -1;
    }
    return 0;
}

/* Matrices that are made of others: kv_b's key rows transposed head by head, or its value rows. */
static int split_kv_b(const struct work *w, bool keys, struct kd_mat *out, float **block,
                      struct kd_err *err)
{
    const struct kd_k3_cfg *c = w->cfg;
    int64_t lat = c->kv_lora, n = keys ? c->nope : c->v_dim, each = n * lat;
    float *line;
    if (kd_mem_new(block, c->heads * each + lat, sizeof **block, "kv_b", err))
        return -1;
    line = *block + c->heads * each;
    for (int64_t h = 0; h < c->heads; h++)
        for (int64_t i = 0; i < n; i++) {
            float *to = *block + h * each;
            int64_t row = h * (c->nope + c->v_dim) + (keys ? i : c->nope + i);
            if (kd_mat_row(w->run, &w->L.kv_b, row, line, err))
                return -1;
            for (int64_t k = 0; k < lat; k++)
                to[keys ? k * n + i : i * lat + k] = line[k];
        }
    *out = (struct kd_mat){.type = KD_MAT_F32,
                           .rows = c->heads * (keys ? lat : n),
                           .cols = keys ? n : lat,
                           .data = *block,
                           .ld = keys ? n : lat};
    return 0;
}

static int put_mat(struct work *w, struct kd_outfile *f, const struct kd_mat *m, int type,
                   struct kd_err *err)
{
    const struct kd_gguf_type_info *t = kd_gguf_type_info(type);
    int64_t row_bytes = m->cols / t->elems * t->bytes;
    int64_t step = BATCH_BYTES / row_bytes > 0 ? BATCH_BYTES / row_bytes : 1;
    if (step * row_bytes > w->batch_bytes) {
        kd_mem_free(w->batch);
        w->batch_bytes = 0;
        if (kd_mem_new(&w->batch, step * row_bytes, 1, "rows to write", err))
            return -1;
        w->batch_bytes = step * row_bytes;
    }
    for (int64_t r = 0; r < m->rows; r += step) {
        int64_t R = m->rows - r < step ? m->rows - r : step;
        if (w->set->stopped && w->set->stopped())
            return kd_fail(err, KD_ECANCEL, "stopped; go on with --resume");
        if (kd_to_gguf_rows(w->run, m, r, R, type, w->batch, err) ||
            kd_out_write(f, w->batch, R * row_bytes, err))
            return -1;
        kd_progress_add(R * row_bytes, NULL);
    }
    return 0;
}

static int put_experts(struct work *w, struct kd_outfile *f, const struct out *t,
                       struct kd_err *err)
{
    for (int64_t e = 0; e < w->cfg->experts; e++) {
        struct kd_expert x;
        if (w->store->get(w->store, t->layer, e, &x, err))
            return -1;
        const struct kd_mat *m = (const void *)((const char *)&x + t->item->at);
        if ((m->type == KD_MAT_MXFP4) != (t->type == KD_GT_MXFP4))
            return kd_fail(err, KD_ENOTSUP, "expert %lld is stored otherwise than the first one",
                           (long long)e);
        if (put_mat(w, f, m, t->type, err))
            return kd_wrap(err, "expert %lld", (long long)e);
    }
    return 0;
}

static int put_tensor(struct work *w, struct kd_outfile *f, const struct out *t, struct kd_err *err)
{
    const char *from = t->layer < 0 ? (const char *)&w->ends : (const char *)&w->L;
    struct kd_mat m;
    float *block = NULL;
    if (t->layer >= 0 && w->L.index != t->layer) {
        kd_k3_layer_release(&w->L);
        w->L.index = -1;
        if (kd_k3_layer_load(&w->L, w->cfg, w->ck, t->layer, NULL, err))
            return -1;
    }
    switch (t->item->from) {
    case EXPERTS:
        return put_experts(w, f, t, err);
    case MATRIX:
    case FLOATS:
        memcpy(&m, from + t->item->at, sizeof m);
        return put_mat(w, f, &m, t->type, err);
    case KEY_ROWS:
    case VALUE_ROWS: {
        int rc = split_kv_b(w, t->item->from == KEY_ROWS, &m, &block, err) ||
                 put_mat(w, f, &m, t->type, err);
        kd_mem_free(block);
        return rc ? -1 : 0;
    }
    case VECTOR:
    case DECAY:
        break;
    }
    memcpy(&block, from + t->item->at, sizeof block);
    if (!block)
        return kd_fail(err, KD_ECORRUPT, "the source has nothing for it");
    int64_t rows = t->rank > 1 ? t->ne[2] : 1, cols = t->bytes / 4 / rows;
    m = (struct kd_mat){.type = KD_MAT_F32, .rows = rows, .cols = cols, .data = block, .ld = cols};
    float *negative = NULL;
    if (t->item->from == DECAY) {
        if (kd_mem_new(&negative, cols, sizeof *negative, "ssm_a", err))
            return -1;
        for (int64_t i = 0; i < cols; i++)
            negative[i] = -block[i];
        m.data = negative;
    }
    int rc = put_mat(w, f, &m, KD_GT_F32, err);
    kd_mem_free(negative);
    return rc;
}

/* Whether this part is there already, whole: its size and its head are the planned ones. */
static bool part_done(const char *path, const struct kd_buf *head, int64_t bytes)
{
    struct kd_map map;
    if (!kd_file_exists(path) || kd_file_map(&map, path, NULL))
        return false;
    bool same = map.size_bytes == bytes && !memcmp(map.data, head->data, head->size_bytes);
    kd_map_release(&map);
    return same;
}

static int put_part(struct work *w, int64_t part, struct kd_err *err)
{
    static const uint8_t zero[32];
    char path[4096];
    struct kd_buf head;
    struct kd_outfile f = {.fd = -1};
    int64_t bytes = kd_gguf_plan_file_bytes(&w->plans[part]), tensors = 0;
    kd_buf_init(&head, KD_GGUF_HEAD_MAX);
    int rc = part_path(w, part, path, sizeof path, err) ||
             kd_gguf_plan_head(&w->plans[part], &head, err);
    if (!rc && part_done(path, &head, bytes)) {
        kd_progress_add(w->plans[part].data_bytes, path);
        kd_buf_release(&head);
        return 0;
    }
    if (!rc)
        rc = kd_out_open(&f, path, err) ||
             kd_out_write(&f, head.data, (int64_t)head.size_bytes, err);
    kd_buf_release(&head);
    for (int64_t i = 0; !rc && i < w->count; i++) {
        const struct out *t = out_at(w, i);
        if (t->part != part)
            continue;
        kd_progress_add(0, t->name);
        rc = put_tensor(w, &f, t, err);
        if (rc && err->code != KD_ECANCEL)
            kd_wrap(err, "tensor %s", t->name);
        if (!rc)
            rc = kd_out_write(&f, zero, -t->bytes & 31, err);
        tensors++;
    }
    if (!rc && f.written_bytes != bytes)
        rc = kd_fail(err, KD_EIO, "%s: %lld bytes written, %lld planned", path,
                     (long long)f.written_bytes, (long long)bytes);
    if (!rc)
        rc = kd_out_commit(&f, err);
    if (!rc)
        kd_log(KD_LOG_INFO, "convert", "part=%lld tensors=%lld bytes=%lld msg=\"written\"",
               (long long)part + 1, (long long)tensors, (long long)bytes);
    kd_out_abort(&f);
    return rc ? -1 : 0;
}

/* Whether it is an unfinished file of this very conversion: NAME.gguf.tmpXXXXXX, or a part's.
 * Others whose names begin alike may be at work in the same folder. */
static bool is_left_over(const char *file, const char *name)
{
    char whole[512];
    int64_t number, count;
    size_t n = strlen(file), bare = strlen(name);
    if (n < 10 || strncmp(file + n - 10, ".tmp", 4) != 0 || strncmp(file, name, bare) != 0 ||
        snprintf(whole, sizeof whole, "%.*s", (int)n - 10, file) >= (int)sizeof whole)
        return false;
    size_t prefix;
    return !strcmp(whole + bare, ".gguf") ||
           (kd_gguf_split_parse(whole, &number, &count, &prefix) && prefix == bare);
}

/* Unfinished files of a run that was killed. */
static int sweep(const struct work *w, struct kd_err *err)
{
    char dir[4096], name[512], path[4096];
    const char *slash = strrchr(w->prefix, '/');
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - w->prefix) + 1 : 1,
             slash ? w->prefix : ".");
    kd_to_gguf_name(name, sizeof name, w->prefix);
    DIR *d = opendir(dir);
    struct dirent *e;
    if (!d)
        return kd_fail_sys(err, "cannot read the folder '%s'", dir);
    int rc = 0;
    while (!rc && (e = readdir(d))) {
        if (!is_left_over(e->d_name, name))
            continue;
        rc = kd_path_join(path, sizeof path, dir, e->d_name, err);
        if (!rc && unlink(path))
            rc = kd_fail_sys(err, "cannot remove '%s'", path);
    }
    closedir(d);
    return rc;
}

/* Whether the state file at hand is this run's; a dry run does not know the source's fingerprint,
 * which stands first in it. */
static bool same_state(const struct work *w, const struct kd_buf *old, const struct kd_buf *now)
{
    size_t skip = 0;
    while (w->set->dry && skip < old->size_bytes && old->data[skip] != ' ')
        skip++;
    size_t from = w->set->dry ? strcspn(now->data, " ") : 0;
    return old->size_bytes - skip == now->size_bytes - from &&
           !memcmp(old->data + skip, now->data + from, now->size_bytes - from);
}

/* Without a state file nobody knows what the parts that are there were made of. */
static int check_parts(const struct work *w, struct kd_err *err)
{
    char part[4096];
    for (int64_t i = 0; i < w->parts; i++) {
        if (part_path(w, i, part, sizeof part, err))
            return -1;
        if (kd_file_exists(part))
            return kd_fail(err, KD_EUSAGE, "'%s' is there already; choose another name", part);
        if (kd_out_could(part, err) && !(w->in_folder && err->sys == ENOENT))
            return -1;
    }
    return 0;
}

/* The state file says which source and settings the parts that are there belong to. */
static int check_state(struct work *w, struct kd_buf *now, struct kd_err *err)
{
    struct kd_buf old;
    kd_buf_printf(now, "%s %s %lld %lld\n", w->id, kd_gguf_type_info(w->set->trunk_type)->name,
                  (long long)w->set->split_bytes, (long long)w->parts);
    if (!kd_file_exists(w->state))
        return check_parts(w, err);
    kd_buf_init(&old, 4096);
    int rc = kd_file_read(&old, w->state, 4095, err);
    if (!rc && !w->set->resume)
        rc = kd_fail(err, KD_EUSAGE, "'%s' is unfinished; add --resume", w->prefix);
    else if (!rc && !same_state(w, &old, now))
        rc = kd_fail(err, KD_EUSAGE,
                     "'%s' was begun from another source or with other settings; remove it",
                     w->prefix);
    kd_buf_release(&old);
    return rc;
}

/* Refuses what is there and is not this run's; of a run that is not dry, writes its state. */
static int begin(struct work *w, struct kd_err *err)
{
    struct kd_buf b;
    kd_buf_init(&b, 4096);
    int rc = check_state(w, &b, err);
    if (!rc && !w->set->dry && !kd_file_exists(w->state))
        rc = kd_file_write(w->state, b.data, b.size_bytes, err);
    kd_buf_release(&b);
    return !rc && w->set->resume && !w->set->dry ? sweep(w, err) : rc;
}

static int check_disk(const struct work *w, struct kd_err *err)
{
    int64_t need = 0, have = kd_disk_free_bytes(w->prefix);
    char path[4096], needed[32], left[32];
    for (int64_t i = 0; i < w->parts; i++) {
        if (part_path(w, i, path, sizeof path, err))
            return -1;
        if (!kd_file_exists(path))
            need += kd_gguf_plan_file_bytes(&w->plans[i]);
    }
    if (have < 0 || need <= have)
        return 0;
    kd_show_bytes(needed, sizeof needed, need);
    kd_show_bytes(left, sizeof left, have);
    return kd_fail(err, KD_EIO, "'%s.gguf' needs %s of disk, %s are free", w->prefix, needed, left);
}

static int write_all(struct work *w, struct kd_err *err)
{
    if (kd_k3_ends_load(&w->ends, w->cfg, w->ck, err) || check_disk(w, err) || begin(w, err))
        return -1;
    kd_progress_begin("convert", "bytes", w->total_bytes, 0);
    int rc = 0;
    for (int64_t i = 0; !rc && i < w->parts; i++)
        rc = put_part(w, i, err);
    kd_progress_end();
    if (!rc && unlink(w->state))
        rc = kd_fail_sys(err, "cannot remove '%s'", w->state);
    return rc;
}

static void sum_up(const struct work *w, struct kd_to_gguf_done *done)
{
    memset(done, 0, sizeof *done);
    done->parts = w->parts;
    done->tensors = w->count;
    for (int64_t i = 0; i < w->parts; i++)
        done->file_bytes += kd_gguf_plan_file_bytes(&w->plans[i]);
    for (int64_t i = 0; i < w->count; i++) {
        const struct out *t = out_at(w, i);
        int64_t n = 1;
        for (int k = 0; k < t->rank; k++)
            n *= t->ne[k];
        done->parameters += n;
        done->data_bytes += t->bytes;
        if (t->type == KD_GT_MXFP4)
            done->mxfp4_bytes += t->bytes;
        else if (t->item->from == VECTOR || t->item->from == FLOATS || t->item->from == DECAY)
            done->f32_bytes += t->bytes;
        else
            done->trunk_bytes += t->bytes;
    }
}

int kd_to_gguf(const struct kd_ckpt *ck, const struct kd_k3_cfg *cfg, const char *src,
               const char *dst, const struct kd_to_gguf *set, const struct kd_run *run,
               struct kd_to_gguf_done *done, struct kd_err *err)
{
    struct work *w;
    if (kd_mem_zero(&w, 1, sizeof *w, "conversion", err))
        return -1;
    w->ck = ck;
    w->cfg = cfg;
    w->set = set;
    w->run = run;
    w->L.index = -1;
    kd_buf_init(&w->list, (size_t)KD_GGUF_TENSORS_MAX * sizeof(struct out));
    int rc = check_source(w, err) || set_names(w, src, dst, err) || list_tensors(w, err);
    if (!rc) {
        cut_parts(w);
        rc = plan(w, src, err) || (!set->dry && kd_k3_ckpt_fingerprint(ck, cfg, w->id, err));
    }
    if (!rc) {
        sum_up(w, done);
        rc = part_path(w, 0, done->path, sizeof done->path, err);
    }
    if (!rc)
        rc = set->dry ? begin(w, err) : write_all(w, err);
    for (int64_t i = 0; w->plans && i < w->parts; i++)
        kd_gguf_plan_release(&w->plans[i]);
    kd_mem_free(w->plans);
    kd_k3_store_close(w->store);
    kd_k3_layer_release(&w->L);
    kd_k3_ends_release(&w->ends);
    kd_mem_free(w->batch);
    kd_buf_release(&w->list);
    kd_mem_free(w);
    return rc ? -1 : 0;
}
