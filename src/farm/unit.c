#include "farm/unit.h"

#include "base/hash.h"

#include <stddef.h>
#include <string.h>

static const char magic[8] = {'K', 'D', 'U', 'N', 'I', 'T', '0', '1'};

struct head {
    char magic[8];
    uint64_t digest;
    uint64_t hash; /* of everything after the head */
    int64_t bytes; /* of the whole file */
    int64_t count;
};

struct entry {
    int64_t k, n, rows, cols, codes_at, codes_bytes, suh_at, svh_at;
    uint32_t base, mask, cb, pad;
    struct kd_unit_figures figures;
};

struct body {
    struct kd_unit_info info;
    struct entry entry[KD_UNIT_TENSORS_MAX];
};

static int64_t align64(int64_t x)
{
    return (x + 63) & ~(int64_t)63;
}

/* Places the tensors' parts one after the other; returns the file's size. */
static int64_t place(struct body *b, const struct kd_quant_out *const *q, int count)
{
    int64_t at = align64((int64_t)(sizeof(struct head) + sizeof *b));
    for (int i = 0; i < count; i++) {
        struct entry *e = &b->entry[i];
        *e = (struct entry){.k = q[i]->k,
                            .n = q[i]->n,
                            .rows = q[i]->rows,
                            .cols = q[i]->cols,
                            .codes_bytes = q[i]->codes_bytes,
                            .base = q[i]->rate.base,
                            .mask = q[i]->rate.mask,
                            .cb = (uint32_t)q[i]->cb,
                            .figures = {.mse = q[i]->mse,
                                        .proxy = q[i]->proxy,
                                        .rel_fro = q[i]->rel_fro,
                                        .scale = q[i]->scale,
                                        .rate16 = kd_rate_to16(q[i]->rate),
                                        .cholesky_tries = (uint32_t)q[i]->cholesky_tries,
                                        .fallback = q[i]->fallback}};
        e->codes_at = at;
        e->suh_at = align64(e->codes_at + e->codes_bytes);
        e->svh_at = align64(e->suh_at + 2 * e->k);
        at = align64(e->svh_at + 2 * e->n);
    }
    return at;
}

int64_t kd_unit_size(const int64_t (*shape)[2], const struct kd_rate *rate, int count)
{
    struct kd_quant_out q[KD_UNIT_TENSORS_MAX];
    const struct kd_quant_out *list[KD_UNIT_TENSORS_MAX];
    struct body b;
    memset(q, 0, sizeof q);
    for (int i = 0; i < count; i++) {
        q[i].k = kd_exl3_pad(shape[i][1]);
        q[i].n = kd_exl3_pad(shape[i][0]);
        q[i].rate = rate[i];
        q[i].codes_bytes = q[i].k / 16 * (q[i].n / 16) * (int64_t)kd_rate_tile_bytes(rate[i]);
        list[i] = &q[i];
    }
    return place(&b, list, count);
}

int kd_unit_bytes(struct kd_buf *out, uint64_t digest, const struct kd_quant_out *const *q,
                  int count, const struct kd_unit_info *info, struct kd_err *err)
{
    struct body b;
    struct head h = {.digest = digest, .count = count};
    memset(&b, 0, sizeof b);
    memcpy(h.magic, magic, sizeof magic);
    if (info)
        b.info = *info;
    h.bytes = place(&b, q, count);
    kd_buf_init(out, (size_t)h.bytes);
    char *at = kd_buf_grow(out, (size_t)h.bytes);
    if (kd_buf_ok(out, "unit of work", err))
        return -1;
    memset(at, 0, (size_t)h.bytes);
    memcpy(at + sizeof h, &b, sizeof b);
    for (int i = 0; i < count; i++) {
        const struct entry *e = &b.entry[i];
        memcpy(at + e->codes_at, q[i]->codes, (size_t)e->codes_bytes);
        memcpy(at + e->suh_at, q[i]->suh, 2 * (size_t)e->k);
        memcpy(at + e->svh_at, q[i]->svh, 2 * (size_t)e->n);
    }
    h.hash = kd_xxh64(at + sizeof h, (size_t)h.bytes - sizeof h, 0);
    memcpy(at, &h, sizeof h);
    return 0;
}

int kd_unit_write(const char *path, uint64_t digest, const struct kd_quant_out *const *q, int count,
                  const struct kd_unit_info *info, struct kd_err *err)
{
    struct kd_buf out;
    int rc = kd_unit_bytes(&out, digest, q, count, info, err);
    if (!rc)
        rc = kd_file_write(path, out.data, out.size_bytes, err);
    kd_buf_release(&out);
    return rc;
}

enum { DIMENSION_MAX = 1 << 24 };

static bool inside(int64_t at, int64_t size, int64_t bytes)
{
    return at >= 0 && at % 2 == 0 && at <= bytes && size <= bytes - at;
}

static bool check_entry(const struct entry *e, int64_t bytes)
{
    struct kd_rate rate = {(uint8_t)e->base, (uint16_t)e->mask};
    return e->k > 0 && e->k <= DIMENSION_MAX && e->k % 128 == 0 && e->n > 0 &&
           e->n <= DIMENSION_MAX && e->n % 128 == 0 && e->cols > 0 && e->cols <= e->k &&
           e->rows > 0 && e->rows <= e->n && e->base >= 1 && e->base <= 8 && e->mask <= 0xffff &&
           kd_rate_to16(rate) <= 128 && e->cb <= KD_CB_MUL1 &&
           e->codes_bytes == e->k / 16 * (e->n / 16) * kd_rate_tile_bytes(rate) &&
           inside(e->codes_at, e->codes_bytes, bytes) && inside(e->suh_at, 2 * e->k, bytes) &&
           inside(e->svh_at, 2 * e->n, bytes);
}

int kd_unit_view(struct kd_unit *u, const void *bytes, int64_t size, const char *path,
                 uint64_t digest, struct kd_err *err)
{
    const uint8_t *data = bytes;
    struct head h;
    struct body b;
    if (size < (int64_t)(sizeof h + sizeof b))
        return kd_fail(err, KD_ECORRUPT, "'%s' is too short for a unit of work", path);
    memcpy(&h, data, sizeof h);
    memcpy(&b, data + sizeof h, sizeof b);
    if (memcmp(h.magic, magic, sizeof magic) || h.bytes != size || h.count < 1 ||
        h.count > KD_UNIT_TENSORS_MAX ||
        h.hash != kd_xxh64(data + sizeof h, (size_t)(size - (int64_t)sizeof h), 0))
        return kd_fail(err, KD_ECORRUPT, "'%s' is damaged; remove it and resume", path);
    if (h.digest != digest)
        return kd_fail(err, KD_EINVAL, "'%s' belongs to a conversion with other settings", path);
    u->count = (int)h.count;
    u->info = b.info;
    for (int i = 0; i < u->count; i++) {
        const struct entry *e = &b.entry[i];
        if (!check_entry(e, h.bytes))
            return kd_fail(err, KD_ECORRUPT, "'%s' is damaged; remove it and resume", path);
        u->figures[i] = e->figures;
        u->mat[i] = (struct kd_mat){.type = KD_MAT_EXL3,
                                    .rows = e->rows,
                                    .cols = e->cols,
                                    .data = data + e->codes_at,
                                    .ld = e->n / 16,
                                    .rows_padded = e->n,
                                    .cols_padded = e->k,
                                    .suh = (const uint16_t *)(const void *)(data + e->suh_at),
                                    .svh = (const uint16_t *)(const void *)(data + e->svh_at),
                                    .rate = {(uint8_t)e->base, (uint16_t)e->mask},
                                    .cb = (enum kd_codebook)e->cb};
    }
    return 0;
}

int kd_unit_open(struct kd_unit *u, const char *path, uint64_t digest, struct kd_err *err)
{
    memset(u, 0, sizeof *u);
    if (kd_file_map(&u->map, path, err))
        return -1;
    if (kd_unit_view(u, u->map.data, u->map.size_bytes, path, digest, err)) {
        kd_unit_close(u);
        return -1;
    }
    return 0;
}

void kd_unit_close(struct kd_unit *u)
{
    kd_map_release(&u->map);
    memset(u, 0, sizeof *u);
}

struct kd_exl3_tensor kd_unit_tensor(const struct kd_unit *u, int i)
{
    const struct kd_mat *m = &u->mat[i];
    struct kd_exl3_tensor t = {.k = m->cols_padded,
                               .n = m->rows_padded,
                               .rate = m->rate,
                               .cb = m->cb,
                               .codes = m->data,
                               .suh = m->suh,
                               .svh = m->svh};
    t.codes_bytes = t.k / 16 * (t.n / 16) * (int64_t)kd_rate_tile_bytes(t.rate);
    t.bytes = kd_exl3_bytes(t.k, t.n, t.rate, t.cb);
    return t;
}
