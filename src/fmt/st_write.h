/* Writing safetensors: the header is computed from the list of tensors before any data exists, so a
 * file's size is known to the byte beforehand. Order of tensors = order of adding. The header is
 * padded with spaces so that the data starts 8-aligned.
 *
 *     kd_st_plan_init(&p);
 *     kd_st_plan_add(&p, name, KD_DT_I16, 3, shape);            (repeat)
 *     int64_t bytes = kd_st_plan_file_bytes(&p);
 *     kd_st_open(&w, path, &p);  kd_st_put(&w, data, bytes) in order;  kd_st_commit(&w);
 */
#ifndef KD_FMT_ST_WRITE_H
#define KD_FMT_ST_WRITE_H

#include "base/file.h"
#include "fmt/ckpt.h"

struct kd_st_plan {
    struct kd_buf header; /* JSON so far */
    int64_t data_bytes;
    int64_t count;
};
void kd_st_plan_init(struct kd_st_plan *p);
void kd_st_plan_release(struct kd_st_plan *p);
/* dtype_name as in the file ("BF16"); bytes are computed from shape and dtype, or taken from
 * `bytes` for KD_DT_OTHER. */
int kd_st_plan_add(struct kd_st_plan *p, const char *name, const char *dtype_name, int rank,
                   const int64_t *shape, int64_t bytes, struct kd_err *err) KD_MUST;
int64_t kd_st_plan_file_bytes(const struct kd_st_plan *p);
/* Length and header, appended to out: what comes before the first tensor. `what` names the file. */
int kd_st_plan_head(const struct kd_st_plan *p, const char *what, struct kd_buf *out,
                    struct kd_err *err) KD_MUST;

struct kd_st_writer {
    struct kd_outfile file;
    int64_t data_bytes, put_bytes;
};
int kd_st_open(struct kd_st_writer *w, const char *path, const struct kd_st_plan *p,
               struct kd_err *err) KD_MUST;
int kd_st_put(struct kd_st_writer *w, const void *data, int64_t bytes, struct kd_err *err) KD_MUST;
/* Fails unless exactly the planned bytes were put. */
int kd_st_commit(struct kd_st_writer *w, struct kd_err *err) KD_MUST;
void kd_st_abort(struct kd_st_writer *w);

#endif
