#include "base/mem.h"
#include "fmt/exl3_file.h"
#include "fmt/gguf.h"
#include "fmt/gguf_block.h"
#include "model/k3_int.h"
#include "model/k3_names.h"
#include "num/half.h"

#include <stdio.h>
#include <string.h>

enum { NAME_MAX_BYTES = 256, KEY_MAX_BYTES = 128 };

static const char *const prefixes[] = {"language_model.", ""};

static void name_of(char out[NAME_MAX_BYTES], int prefix, int64_t layer, const char *key,
                    const char *suffix)
{
    if (layer >= 0)
        snprintf(out, NAME_MAX_BYTES, "%smodel.layers.%lld.%s%s", prefixes[prefix],
                 (long long)layer, key, suffix);
    else
        snprintf(out, NAME_MAX_BYTES, "%s%s%s", prefixes[prefix], key, suffix);
}

static const struct kd_tensor *find(const struct kd_ckpt *ck, int64_t layer, const char *key,
                                    const char *suffix)
{
    char name[NAME_MAX_BYTES];
    const struct kd_tensor *t = NULL;
    if (kd_ckpt_gguf(ck)) {
        char full[KEY_MAX_BYTES];
        snprintf(full, sizeof full, "%s%s", key, suffix);
        for (int at = 0; !t && kd_k3_gguf_name(&at, layer, full, name, sizeof name);)
            t = kd_ckpt_find(ck, name);
        return t;
    }
    for (int p = 0; !t && p < 2; p++) {
        name_of(name, p, layer, key, suffix);
        t = kd_ckpt_find(ck, name);
    }
    return t;
}

static int missing(const struct kd_ckpt *ck, int64_t layer, const char *key, const char *suffix,
                   struct kd_err *err)
{
    char name[NAME_MAX_BYTES], full[KEY_MAX_BYTES];
    int at = 0;
    snprintf(full, sizeof full, "%s%s", key, suffix);
    if (kd_ckpt_gguf(ck) && kd_k3_gguf_name(&at, layer, full, name, sizeof name))
        return kd_fail(err, KD_ECORRUPT, "tensor %s is missing", name);
    name_of(name, 0, layer, key, suffix);
    return kd_fail(err, KD_ECORRUPT, "tensor %s is missing (also without 'language_model.')", name);
}

static int not_there(const struct kd_ckpt *ck, const struct kd_tensor *t, struct kd_err *err)
{
    return kd_fail(err, KD_EIO, "tensor %s: its file %s is not there", t->name,
                   kd_ckpt_shard_name(ck, t->shard));
}

int kd_k3_tensor(const struct kd_ckpt *ck, int64_t layer, const char *suffix,
                 const struct kd_tensor **t, struct kd_err *err)
{
    *t = find(ck, layer, suffix, "");
    if (!*t)
        return missing(ck, layer, suffix, "", err);
    return (*t)->rank < 0 || (!(*t)->data && (*t)->bytes) ? not_there(ck, *t, err) : 0;
}

/* "[96, 7168]" */
static void shape_text(char *out, size_t size, int rank, const int64_t *shape)
{
    size_t n = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < rank && n + 24 < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%lld", i ? ", " : "", (long long)shape[i]);
    snprintf(out + n, size - n, "]");
}

/* Shapes agree when they do after leaving out dimensions of 1: writers differ in those. */
static int check_shape(const struct kd_tensor *t, int rank, const int64_t *want, struct kd_err *err)
{
    int i = 0, j = 0;
    for (;;) {
        while (i < t->rank && t->shape[i] == 1)
            i++;
        while (j < rank && want[j] == 1)
            j++;
        if (i >= t->rank || j >= rank || t->shape[i] != want[j])
            break;
        i++;
        j++;
    }
    if (i >= t->rank && j >= rank)
        return 0;
    char found[128], expected[128];
    shape_text(found, sizeof found, t->rank, t->shape);
    shape_text(expected, sizeof expected, rank, want);
    return kd_fail(err, KD_ECORRUPT, "tensor %s: its shape is %s, the config says %s", t->name,
                   found, expected);
}

static int read_floats(const struct kd_tensor *t, int64_t first, int64_t count, float *out,
                       struct kd_err *err)
{
    if (t->dtype == KD_DT_F32) {
        memcpy(out, t->data + 4 * first, (size_t)count * 4);
        return 0;
    }
    if (t->dtype != KD_DT_BF16 && t->dtype != KD_DT_F16)
        return kd_fail(err, KD_ENOTSUP, "tensor %s: type %s; F32, BF16 or F16 is read here",
                       t->name, t->dtype_name);
    for (int64_t i = 0; i < count; i++) {
        uint16_t h;
        memcpy(&h, t->data + 2 * (first + i), 2);
        out[i] = t->dtype == KD_DT_BF16 ? kd_bf16_f32(h) : kd_f16_f32(h);
    }
    return 0;
}

/* Vectors of a layer come out of one block. */
struct arena {
    const struct kd_ckpt *ck;
    int64_t layer;
    float *next;
};

static float *take(struct arena *a, int64_t count)
{
    float *p = a->next;
    a->next += count;
    return p;
}

/* Rows [r0, r1) of a [rows][a][b] tensor as floats. */
static int load_rows(struct arena *a, const char *suffix, int64_t rows, int64_t mid, int64_t cols,
                     int64_t r0, int64_t r1, float **out, struct kd_err *err)
{
    const struct kd_tensor *t;
    const int64_t want[3] = {rows, mid, cols};
    if (kd_k3_tensor(a->ck, a->layer, suffix, &t, err) || check_shape(t, 3, want, err))
        return -1;
    *out = take(a, (r1 - r0) * mid * cols);
    return read_floats(t, r0 * mid * cols, (r1 - r0) * mid * cols, *out, err);
}

static int load_vec(struct arena *a, const char *suffix, int64_t count, float **out,
                    struct kd_err *err)
{
    return load_rows(a, suffix, count, 1, 1, 0, count, out, err);
}

/* exp(A_log), correctly rounded but for the last bit now and then; a GGUF holds its negative. The
 * file may pad A_log to the head width; the first `heads` entries count. */
static int load_decay(struct arena *a, int64_t heads, int64_t lo, int64_t hi, float **out,
                      struct kd_err *err)
{
    const struct kd_tensor *t;
    if (kd_k3_tensor(a->ck, a->layer, "self_attn.A_log", &t, err))
        return -1;
    int64_t n = 1, wide = 0;
    for (int i = 0; i < t->rank; i++) {
        n *= t->shape[i];
        wide += t->shape[i] > 1;
    }
    if (wide > 1 || n < heads)
        return check_shape(t, 1, &heads, err);
    *out = take(a, hi - lo);
    if (read_floats(t, lo, hi - lo, *out, err))
        return -1;
    for (int64_t i = 0; i < hi - lo; i++) {
        float v = (*out)[i];
        if (!kd_ckpt_gguf(a->ck))
            (*out)[i] = v == v ? kd_k3_decay_of(v) : v;
        else if (v > 0)
            return kd_fail(err, KD_ECORRUPT, "tensor %s: %g is not -exp of anything", t->name,
                           (double)v);
        else
            (*out)[i] = -v;
    }
    return 0;
}

/* norm .* proj of an attention-residual query. */
static int load_res(struct arena *a, const char *norm, const char *proj, int64_t hidden,
                    float **out, struct kd_err *err)
{
    float *p, *keep;
    if (kd_ckpt_gguf(a->ck)) /* folded there */
        return load_vec(a, proj, hidden, out, err);
    if (load_vec(a, norm, hidden, out, err))
        return -1;
    keep = a->next;
    if (load_vec(a, proj, hidden, &p, err))
        return -1;
    for (int64_t i = 0; i < hidden; i++)
        (*out)[i] *= p[i];
    a->next = keep;
    return 0;
}

static int exl3_mat(const struct kd_ckpt *ck, int64_t layer, const char *key, int64_t rows,
                    int64_t cols, struct kd_mat *out, bool *found, struct kd_err *err)
{
    char name[NAME_MAX_BYTES];
    struct kd_exl3_tensor e;
    *found = false;
    for (int p = 0; p < 2 && !*found; p++) {
        name_of(name, p, layer, key, "");
        if (kd_exl3_find(ck, name, &e, found, err))
            return -1;
    }
    if (!*found)
        return 0;
    if (e.k != kd_exl3_pad(cols) || e.n != kd_exl3_pad(rows))
        return kd_fail(
            err, KD_ECORRUPT,
            "tensor %s: EXL3 of %lld inputs and %lld outputs, the config says %lld and %lld "
            "(padded to 128)",
            name, (long long)e.k, (long long)e.n, (long long)cols, (long long)rows);
    *out = (struct kd_mat){.type = KD_MAT_EXL3,
                           .rows = rows,
                           .cols = cols,
                           .data = e.codes,
                           .ld = e.n / KD_TILE,
                           .rows_padded = e.n,
                           .cols_padded = e.k,
                           .suh = e.suh,
                           .svh = e.svh,
                           .rate = e.rate,
                           .cb = e.cb};
    return 0;
}

static int mxfp4_mat(const struct kd_ckpt *ck, const struct kd_tensor *packed,
                     const struct kd_tensor *scale, int64_t rows, int64_t cols, struct kd_mat *out,
                     struct kd_err *err)
{
    if (!scale)
        return kd_fail(err, KD_ECORRUPT, "tensor %s has no weight_scale beside it", packed->name);
    if (packed->rank < 0 || !packed->data)
        return not_there(ck, packed, err);
    if (scale->rank < 0 || !scale->data)
        return not_there(ck, scale, err);
    if (cols % 32)
        return kd_fail(err, KD_ECORRUPT, "tensor %s: %lld inputs are not groups of 32",
                       packed->name, (long long)cols);
    if (packed->dtype != KD_DT_U8 || (scale->dtype != KD_DT_U8 && scale->dtype != KD_DT_F8_E8M0))
        return kd_fail(err, KD_ENOTSUP, "tensor %s: types %s and %s; U8 is read here", packed->name,
                       packed->dtype_name, scale->dtype_name);
    const int64_t want_packed[2] = {rows, cols / 2}, want_scale[2] = {rows, cols / 32};
    if (check_shape(packed, 2, want_packed, err) || check_shape(scale, 2, want_scale, err))
        return -1;
    *out = (struct kd_mat){.type = KD_MAT_MXFP4,
                           .rows = rows,
                           .cols = cols,
                           .data = packed->data,
                           .ld = cols / 2,
                           .scale = scale->data,
                           .ld_scale = cols / 32};
    return 0;
}

/* A tensor's rows as they are stored; `skip` bytes of other matrices stand before them. */
static int plain_mat(const struct kd_tensor *t, int64_t skip, int64_t rows, int64_t cols,
                     struct kd_mat *out, struct kd_err *err)
{
    const struct kd_block_format *f = t->dtype == KD_DT_F16 ? kd_gguf_format(KD_GT_F16) : t->format;
    *out = (struct kd_mat){.rows = rows, .cols = cols, .data = t->data + skip, .ld = cols};
    if (t->dtype == KD_DT_F32 || t->dtype == KD_DT_BF16) {
        out->type = t->dtype == KD_DT_F32 ? KD_MAT_F32 : KD_MAT_BF16;
    } else if (f && cols % f->elems == 0) {
        out->type = KD_MAT_BLOCK;
        out->format = f;
        out->ld = cols / f->elems * f->bytes;
    } else {
        return kd_fail(err, KD_ENOTSUP,
                       "tensor %s: type %s; a matrix is F32, F16, BF16, MXFP4, EXL3 or a type of "
                       "GGUF that holds weights",
                       t->name, t->dtype_name);
    }
    return 0;
}

/* One expert's part of the tensor that holds those of a whole layer. */
static int stacked_mat(const struct kd_ckpt *ck, int64_t layer, int64_t expert, char w,
                       int64_t rows, int64_t cols, struct kd_mat *out, struct kd_err *err)
{
    char key[] = "block_sparse_moe.experts.*.w1";
    key[sizeof key - 2] = w;
    const struct kd_tensor *t = find(ck, layer, key, ".weight");
    if (!t)
        return missing(ck, layer, key, ".weight", err);
    const int64_t want[3] = {t->shape[0], rows, cols};
    if (check_shape(t, 3, want, err))
        return -1;
    if (expert >= t->shape[0])
        return kd_fail(err, KD_ECORRUPT, "tensor %s holds %lld experts, not %lld", t->name,
                       (long long)t->shape[0], (long long)expert + 1);
    return plain_mat(t, t->bytes / t->shape[0] * expert, rows, cols, out, err);
}

int kd_k3_mat(const struct kd_ckpt *ck, int64_t layer, const char *key, int64_t rows, int64_t cols,
              struct kd_mat *out, struct kd_err *err)
{
    long long expert;
    char w, end;
    if (kd_ckpt_gguf(ck) &&
        sscanf(key, "block_sparse_moe.experts.%lld.w%c%c", &expert, &w, &end) == 2)
        return stacked_mat(ck, layer, expert, w, rows, cols, out, err);
    const struct kd_tensor *t = find(ck, layer, key, ".weight");
    if (!t) {
        const struct kd_tensor *packed = find(ck, layer, key, ".weight_packed");
        if (packed)
            return mxfp4_mat(ck, packed, find(ck, layer, key, ".weight_scale"), rows, cols, out,
                             err);
        bool found = false;
        if (!kd_ckpt_gguf(ck) && exl3_mat(ck, layer, key, rows, cols, out, &found, err))
            return -1;
        if (found)
            return 0;
        if (kd_ckpt_gguf(ck))
            return missing(ck, layer, key, ".weight", err);
        char name[NAME_MAX_BYTES];
        name_of(name, 0, layer, key, "");
        return kd_fail(err, KD_ECORRUPT,
                       "tensor %s is missing: none of .weight, .weight_packed, .trellis, .ktrellis "
                       "(also without 'language_model.')",
                       name);
    }
    if (t->rank < 0 || !t->data)
        return not_there(ck, t, err);
    const int64_t want[2] = {rows, cols};
    return check_shape(t, 2, want, err) ? -1 : plain_mat(t, 0, rows, cols, out, err);
}

int kd_k3_mat_part(const struct kd_ckpt *ck, int64_t layer, const char *key, int64_t rows,
                   int64_t cols, int64_t r0, int64_t r1, int64_t c0, int64_t c1, struct kd_mat *out,
                   struct kd_err *err)
{
    struct kd_mat whole;
    if (kd_k3_mat(ck, layer, key, rows, cols, &whole, err))
        return -1;
    if (r0 == 0 && r1 == rows && c0 == 0 && c1 == cols) {
        *out = whole;
        return 0;
    }
    if (kd_mat_slice(&whole, r0, r1, c0, c1, out, err))
        return kd_wrap(err, "cutting %s of layer %lld among ranks", key, (long long)layer);
    return 0;
}

int kd_k3_share(const struct kd_k3_part *p, int64_t count, int64_t width, const char *what,
                int64_t *lo, int64_t *hi, struct kd_err *err)
{
    *lo = 0;
    *hi = count;
    if (!p || p->ranks <= 1)
        return 0;
    if (p->rank < 0 || p->rank >= p->ranks)
        return kd_fail(err, KD_EINVAL, "rank %d of %d", p->rank, p->ranks);
    int64_t step = 1;
    while (step * width % KD_K3_BLOCK)
        step *= 2;
    int64_t blocks = count / step;
    if (count % step || blocks < p->ranks)
        return kd_fail(
            err, KD_ENOTSUP,
            "%s: %lld x %lld channels cannot be cut among %d ranks at multiples of %d; use "
            "fewer ranks",
            what, (long long)count, (long long)width, p->ranks, KD_K3_BLOCK);
    *lo = blocks * p->rank / p->ranks * step;
    *hi = blocks * (p->rank + 1) / p->ranks * step;
    return 0;
}

static int load_kda(struct kd_k3_layer *L, const struct kd_k3_cfg *c, struct arena *a,
                    const struct kd_k3_part *part, struct kd_err *err)
{
    int64_t h0, h1, d = c->kda_dim, all = c->kda_heads * d, hid = c->hidden, l = a->layer;
    if (kd_k3_share(part, c->kda_heads, d, "KDA heads", &h0, &h1, err))
        return -1;
    L->heads = h1 - h0;
    int64_t r0 = h0 * d, r1 = h1 * d;
    const struct kd_ckpt *ck = a->ck;
    if (kd_k3_mat_part(ck, l, "self_attn.q_proj", all, hid, r0, r1, 0, hid, &L->q, err) ||
        kd_k3_mat_part(ck, l, "self_attn.k_proj", all, hid, r0, r1, 0, hid, &L->k, err) ||
        kd_k3_mat_part(ck, l, "self_attn.v_proj", all, hid, r0, r1, 0, hid, &L->v, err) ||
        kd_k3_mat_part(ck, l, "self_attn.g_proj", all, hid, r0, r1, 0, hid, &L->g, err) ||
        kd_k3_mat(ck, l, "self_attn.f_a_proj", d, hid, &L->f_a, err) ||
        kd_k3_mat_part(ck, l, "self_attn.f_b_proj", all, d, r0, r1, 0, d, &L->f_b, err) ||
        kd_k3_mat_part(ck, l, "self_attn.b_proj", c->kda_heads, hid, h0, h1, 0, hid, &L->b, err) ||
        kd_k3_mat_part(ck, l, "self_attn.o_proj", hid, all, 0, hid, r0, r1, &L->o, err))
        return -1;
    if (load_rows(a, "self_attn.q_conv1d.weight", all, 1, c->conv, r0, r1, &L->q_conv, err) ||
        load_rows(a, "self_attn.k_conv1d.weight", all, 1, c->conv, r0, r1, &L->k_conv, err) ||
        load_rows(a, "self_attn.v_conv1d.weight", all, 1, c->conv, r0, r1, &L->v_conv, err) ||
        load_rows(a, "self_attn.dt_bias", all, 1, 1, r0, r1, &L->dt_bias, err) ||
        load_decay(a, c->kda_heads, h0, h1, &L->decay, err))
        return -1;
    return load_vec(a, "self_attn.o_norm.weight", d, &L->o_norm, err);
}

/* kv_b of a GGUF: rows of keys (stored transposed, latent by channel) and of values, head by head.
 * The only matrix that is copied; BF16 where both are, else floats. */
static int gguf_kv_b(struct kd_k3_layer *L, const struct kd_k3_cfg *c, const struct kd_ckpt *ck,
                     int64_t h0, int64_t h1, struct kd_err *err)
{
    int64_t nope = c->nope, v = c->v_dim, lat = c->kv_lora, rows = (h1 - h0) * (nope + v);
    const int64_t kshape[3] = {c->heads, lat, nope}, vshape[3] = {c->heads, v, lat};
    const struct kd_tensor *k = find(ck, L->index, "self_attn.kv_b_proj", ".weight");
    char name[NAME_MAX_BYTES];
    snprintf(name, sizeof name, "blk.%lld.attn_v_b.weight", (long long)L->index);
    const struct kd_tensor *vt = kd_ckpt_find(ck, name);
    struct kd_mat km, vm;
    if (!k || !vt)
        return k ? kd_fail(err, KD_ECORRUPT, "tensor %s is missing", name)
                 : missing(ck, L->index, "self_attn.kv_b_proj", ".weight", err);
    if (check_shape(k, 3, kshape, err) || check_shape(vt, 3, vshape, err) ||
        plain_mat(k, 0, c->heads * lat, nope, &km, err) ||
        plain_mat(vt, 0, c->heads * v, lat, &vm, err))
        return -1;
    bool half = km.type == KD_MAT_BF16 && vm.type == KD_MAT_BF16;
    if (kd_mem_new(&L->owned_kv_b, rows * lat, half ? 2 : 4, "kv_b", err))
        return -1;
    const struct kd_run alone = {0}; /* rows of plain types need no kernels */
    float *all = L->owned_kv_b, *line;
    uint16_t *halves = L->owned_kv_b;
    if (kd_mem_new(&line, nope > lat ? nope : lat, sizeof *line, "kv_b", err))
        return -1;
    int rc = 0;
    for (int64_t h = h0; h < h1 && !rc; h++)
        for (int64_t r = 0; r < lat + v && !rc; r++) {
            bool key = r < lat;
            int64_t n = key ? nope : lat, row = (h - h0) * (nope + v);
            rc = key ? kd_mat_row(&alone, &km, h * lat + r, line, err)
                     : kd_mat_row(&alone, &vm, h * v + r - lat, line, err);
            for (int64_t i = 0; i < n; i++) {
                int64_t at = key ? (row + i) * lat + r : (row + nope + r - lat) * lat + i;
                if (half)
                    halves[at] = (uint16_t)(kd_f32_bits(line[i]) >> 16);
                else
                    all[at] = line[i];
            }
        }
    kd_mem_free(line);
    L->kv_b = (struct kd_mat){.type = half ? KD_MAT_BF16 : KD_MAT_F32,
                              .rows = rows,
                              .cols = lat,
                              .data = L->owned_kv_b,
                              .ld = lat};
    return rc;
}

static int load_mla(struct kd_k3_layer *L, const struct kd_k3_cfg *c, struct arena *a,
                    const struct kd_k3_part *part, struct kd_err *err)
{
    int64_t h0, h1, v = c->v_dim, qd = c->nope + c->rope, kd = c->nope + v, hid = c->hidden;
    int64_t l = a->layer, n = c->heads;
    if (kd_k3_share(part, n, v, "MLA heads", &h0, &h1, err))
        return -1;
    L->heads = h1 - h0;
    const struct kd_ckpt *ck = a->ck;
    if (kd_k3_mat(ck, l, "self_attn.q_a_proj", c->q_lora, hid, &L->q_a, err) ||
        kd_k3_mat_part(ck, l, "self_attn.q_b_proj", n * qd, c->q_lora, h0 * qd, h1 * qd, 0,
                       c->q_lora, &L->q_b, err) ||
        kd_k3_mat(ck, l, "self_attn.kv_a_proj_with_mqa", c->kv_lora + c->rope, hid, &L->kv_a,
                  err) ||
        (kd_ckpt_gguf(ck) ? gguf_kv_b(L, c, ck, h0, h1, err)
                          : kd_k3_mat_part(ck, l, "self_attn.kv_b_proj", n * kd, c->kv_lora,
                                           h0 * kd, h1 * kd, 0, c->kv_lora, &L->kv_b, err)) ||
        kd_k3_mat_part(ck, l, "self_attn.g_proj", n * v, hid, h0 * v, h1 * v, 0, hid, &L->g, err) ||
        kd_k3_mat_part(ck, l, "self_attn.o_proj", hid, n * v, 0, hid, h0 * v, h1 * v, &L->o, err))
        return -1;
    if (load_vec(a, "self_attn.q_a_layernorm.weight", c->q_lora, &L->q_a_norm, err))
        return -1;
    return load_vec(a, "self_attn.kv_a_layernorm.weight", c->kv_lora, &L->kv_a_norm, err);
}

/* gate, up, down of `width` under `base`. */
static int load_mlp(struct kd_k3_layer *L, const struct kd_k3_cfg *c, struct arena *a,
                    const char *base, int64_t width, const struct kd_k3_part *part,
                    struct kd_err *err)
{
    char key[3][96];
    static const char *const names[3] = {"gate_proj", "up_proj", "down_proj"};
    for (int i = 0; i < 3; i++)
        snprintf(key[i], sizeof key[i], "%s%s", base, names[i]);
    int64_t r0, r1, hid = c->hidden, l = a->layer;
    if (kd_k3_share(part, width, 1, "MLP width", &r0, &r1, err) ||
        kd_k3_mat_part(a->ck, l, key[0], width, hid, r0, r1, 0, hid, &L->gate, err) ||
        kd_k3_mat_part(a->ck, l, key[1], width, hid, r0, r1, 0, hid, &L->up, err))
        return -1;
    return kd_k3_mat_part(a->ck, l, key[2], hid, width, 0, hid, r0, r1, &L->down, err);
}

static int load_moe(struct kd_k3_layer *L, const struct kd_k3_cfg *c, struct arena *a,
                    const struct kd_k3_part *part, struct kd_err *err)
{
    const struct kd_ckpt *ck = a->ck;
    int64_t l = a->layer;
    if (kd_k3_mat(ck, l, "block_sparse_moe.gate", c->experts, c->hidden, &L->router, err) ||
        kd_k3_mat(ck, l, "block_sparse_moe.routed_expert_down_proj", c->latent, c->hidden,
                  &L->routed_down, err) ||
        kd_k3_mat(ck, l, "block_sparse_moe.routed_expert_up_proj", c->hidden, c->latent,
                  &L->routed_up, err) ||
        load_vec(a, "block_sparse_moe.gate.e_score_correction_bias", c->experts, &L->router_bias,
                 err))
        return -1;
    if (c->latent_norm &&
        load_vec(a, "block_sparse_moe.routed_expert_norm.weight", c->latent, &L->routed_norm, err))
        return -1;
    if (!c->shared)
        return 0;
    return load_mlp(L, c, a, "block_sparse_moe.shared_experts.", c->shared * c->moe_inter, part,
                    err);
}

static int load_all(struct kd_k3_layer *L, const struct kd_k3_cfg *c, struct arena *a,
                    const struct kd_k3_part *part, struct kd_err *err)
{
    int64_t hid = c->hidden;
    if (load_vec(a, "input_layernorm.weight", hid, &L->input_norm, err) ||
        load_vec(a, "post_attention_layernorm.weight", hid, &L->post_norm, err) ||
        load_res(a, "mlp_res_norm.weight", "mlp_res_proj.weight", hid, &L->mlp_res, err))
        return -1;
    /* Layer 0 has no banks before its attention: these two are there in the release and never used,
     * but by whoever writes the model in another form. */
    if ((L->index > 0 || find(a->ck, 0, "self_attention_res_proj", ".weight")) &&
        load_res(a, "self_attention_res_norm.weight", "self_attention_res_proj.weight", hid,
                 &L->attn_res, err))
        return -1;
    if (L->mla ? load_mla(L, c, a, part, err) : load_kda(L, c, a, part, err))
        return -1;
    return L->moe ? load_moe(L, c, a, part, err)
                  : load_mlp(L, c, a, "mlp.", c->dense_inter, part, err);
}

int kd_k3_known(const struct kd_k3_cfg *cfg, const struct kd_ckpt *ck, struct kd_err *err)
{
    struct kd_k3_map map;
    struct kd_k3_name name;
    if (kd_k3_map_init(&map, cfg, kd_ckpt_config(ck), err))
        return -1;
    for (int64_t i = 0; i < kd_ckpt_count(ck); i++) {
        const struct kd_tensor *t = kd_ckpt_at(ck, i);
        if (!kd_k3_name_parse(&map, t->name, &name))
            return kd_fail(err, KD_ENOTSUP,
                           "tensor %s is not known here, so no forward pass is run", t->name);
        /* The experts of a GGUF: not only the first of them must be there. */
        if (kd_ckpt_gguf(ck) && name.rank == 3 && check_shape(t, 3, name.shape, err))
            return -1;
    }
    return 0;
}

int kd_k3_layer_load(struct kd_k3_layer *L, const struct kd_k3_cfg *cfg, const struct kd_ckpt *ck,
                     int64_t layer, const struct kd_k3_part *part, struct kd_err *err)
{
    memset(L, 0, sizeof *L);
    if (layer < 0 || layer >= cfg->layers)
        return kd_fail(err, KD_EINVAL, "layer %lld of %lld", (long long)layer,
                       (long long)cfg->layers);
    L->index = layer;
    L->mla = cfg->mla[layer];
    L->moe = kd_k3_is_moe(cfg, layer);
    /* One more hidden is room for the second factor while a residual query is folded. */
    int64_t floats = 5 * cfg->hidden + cfg->experts + cfg->latent + cfg->q_lora + cfg->kv_lora +
                     cfg->kda_heads * (cfg->kda_dim * (3 * cfg->conv + 1) + 1) + cfg->kda_dim;
    if (kd_mem_new(&L->owned, floats, sizeof(float), "layer vectors", err))
        return -1;
    struct arena a = {.ck = ck, .layer = layer, .next = L->owned};
    if (load_all(L, cfg, &a, part, err)) {
        kd_k3_layer_release(L);
        return -1;
    }
    return 0;
}

void kd_k3_layer_release(struct kd_k3_layer *L)
{
    kd_mem_free(L->owned);
    kd_mem_free(L->owned_kv_b);
    memset(L, 0, sizeof *L);
}

int kd_k3_ends_load(struct kd_k3_ends *e, const struct kd_k3_cfg *cfg, const struct kd_ckpt *ck,
                    struct kd_err *err)
{
    memset(e, 0, sizeof *e);
    int64_t hid = cfg->hidden;
    if (kd_mem_new(&e->owned, 3 * hid, sizeof(float), "final vectors", err))
        return -1;
    struct arena a = {.ck = ck, .layer = -1, .next = e->owned};
    if (kd_k3_mat(ck, -1, "model.embed_tokens", cfg->vocab, hid, &e->embed, err) ||
        kd_k3_mat(ck, -1, "lm_head", cfg->vocab, hid, &e->head, err) ||
        load_vec(&a, "model.norm.weight", hid, &e->norm, err) ||
        load_res(&a, "model.output_attn_res_norm.weight", "model.output_attn_res_proj.weight", hid,
                 &e->out_res, err)) {
        kd_k3_ends_release(e);
        return -1;
    }
    return 0;
}

void kd_k3_ends_release(struct kd_k3_ends *e)
{
    kd_mem_free(e->owned);
    memset(e, 0, sizeof *e);
}
