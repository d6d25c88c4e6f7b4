#include "fmt/st_write.h"

#include "fmt/st.h"

#include <string.h>

void kd_st_plan_init(struct kd_st_plan *p)
{
    memset(p, 0, sizeof *p);
    kd_buf_init(&p->header, KD_ST_HEADER_MAX);
    kd_buf_str(&p->header, "{\"__metadata__\":{\"format\":\"pt\"}");
}

void kd_st_plan_release(struct kd_st_plan *p)
{
    kd_buf_release(&p->header);
}

int kd_st_plan_add(struct kd_st_plan *p, const char *name, const char *dtype_name, int rank,
                   const int64_t *shape, int64_t bytes, struct kd_err *err)
{
    enum kd_dtype dtype;
    int bits;
    int64_t end;
    if (kd_st_name_check(name, strlen(name), err))
        return -1;
    if (kd_st_dtype(dtype_name, &dtype, &bits))
        return kd_fail(err, KD_EINVAL, "tensor '%s': dtype '%s' is not known", name, dtype_name);
    if (rank < 0 || rank > KD_RANK_MAX)
        return kd_fail(err, KD_EINVAL, "tensor '%s': rank %d is outside 0 to %d", name, rank,
                       KD_RANK_MAX);
    /* Sub-byte dtypes have the size of their shape too, so a given size is only a check on it. */
    int64_t size;
    if (kd_st_bytes(rank, shape, bits, &size, err))
        return kd_wrap(err, "tensor '%s'", name);
    if (dtype == KD_DT_OTHER && bytes != size)
        return kd_fail(err, KD_EINVAL, "tensor '%s': %lld bytes given, its shape needs %lld", name,
                       (long long)bytes, (long long)size);
    if (__builtin_add_overflow(p->data_bytes, size, &end))
        return kd_fail(err, KD_EINVAL, "tensor '%s': the file would be too large", name);
    kd_buf_char(&p->header, ',');
    kd_json_quote(&p->header, name, strlen(name));
    kd_buf_printf(&p->header, ":{\"dtype\":\"%s\",\"shape\":[", dtype_name);
    for (int i = 0; i < rank; i++)
        kd_buf_printf(&p->header, "%s%lld", i ? "," : "", (long long)shape[i]);
    kd_buf_printf(&p->header, "],\"data_offsets\":[%lld,%lld]}", (long long)p->data_bytes,
                  (long long)end);
    p->data_bytes = end;
    p->count++;
    return kd_buf_ok(&p->header, "safetensors header", err);
}

/* The closing brace and the spaces that make 8 + header a multiple of 8. */
static int64_t tail_bytes(const struct kd_st_plan *p)
{
    return 1 + (8 - (int64_t)(p->header.size_bytes + 1) % 8) % 8;
}

int64_t kd_st_plan_file_bytes(const struct kd_st_plan *p)
{
    return 8 + (int64_t)p->header.size_bytes + tail_bytes(p) + p->data_bytes;
}

int kd_st_plan_head(const struct kd_st_plan *p, const char *what, struct kd_buf *out,
                    struct kd_err *err)
{
    int64_t tail = tail_bytes(p);
    uint64_t n = p->header.size_bytes + (uint64_t)tail;
    if (p->header.failed || n > KD_ST_HEADER_MAX)
        return kd_fail(err, KD_EINVAL,
                       "%s: its header would be over the format's limit of %d bytes", what,
                       KD_ST_HEADER_MAX);
    for (int i = 0; i < 8; i++)
        kd_buf_char(out, (char)(uint8_t)(n >> (8 * i)));
    kd_buf_add(out, p->header.data, p->header.size_bytes);
    kd_buf_add(out, "}        ", (size_t)tail);
    return kd_buf_ok(out, what, err);
}

int kd_st_open(struct kd_st_writer *w, const char *path, const struct kd_st_plan *p,
               struct kd_err *err)
{
    struct kd_buf head;
    memset(w, 0, sizeof *w);
    w->file.fd = -1;
    kd_buf_init(&head, KD_ST_HEADER_MAX + 8);
    int rc = kd_st_plan_head(p, path, &head, err) || kd_out_open(&w->file, path, err);
    w->data_bytes = p->data_bytes;
    if (!rc && kd_out_write(&w->file, head.data, (int64_t)head.size_bytes, err)) {
        kd_st_abort(w);
        rc = -1;
    }
    kd_buf_release(&head);
    return rc ? -1 : 0;
}

int kd_st_put(struct kd_st_writer *w, const void *data, int64_t bytes, struct kd_err *err)
{
    if (bytes < 0 || bytes > w->data_bytes - w->put_bytes)
        return kd_fail(err, KD_EINVAL, "%s: %lld bytes more than planned", w->file.path,
                       (long long)(bytes - (w->data_bytes - w->put_bytes)));
    if (kd_out_write(&w->file, data, bytes, err))
        return -1;
    w->put_bytes += bytes;
    return 0;
}

int kd_st_commit(struct kd_st_writer *w, struct kd_err *err)
{
    if (w->put_bytes != w->data_bytes) {
        kd_fail(err, KD_EINVAL, "%s: %lld of %lld planned bytes were written", w->file.path,
                (long long)w->put_bytes, (long long)w->data_bytes);
        kd_st_abort(w);
        return -1;
    }
    return kd_out_commit(&w->file, err);
}

void kd_st_abort(struct kd_st_writer *w)
{
    kd_out_abort(&w->file);
}
