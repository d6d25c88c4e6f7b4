/* Rows of a matrix in another type, over the pool. */
#include "base/mem.h"
#include "convert/to_gguf_int.h"
#include "fmt/gguf_block.h"
#include "num/mxfp4_block.h"

#include <stdatomic.h>
#include <string.h>

enum { ROWS = 16 }; /* of one item of work */

struct job {
    const struct kd_mat *m;
    const struct kd_run *run;
    int64_t r0, R, row_bytes;
    int type;
    uint8_t *out;
    float *lines; /* one for each worker */
    atomic_int failed;
    struct kd_err err;
};

static int put_row(const struct job *j, int64_t row, float *line, uint8_t *out, struct kd_err *err)
{
    const struct kd_mat *m = j->m;
    if ((m->type == KD_MAT_BF16 && j->type == KD_GT_BF16) ||
        (m->type == KD_MAT_F32 && j->type == KD_GT_F32)) {
        int64_t width = m->type == KD_MAT_BF16 ? 2 : 4;
        memcpy(out, (const uint8_t *)m->data + row * m->ld * width, (size_t)(m->cols * width));
        return 0;
    }
    if (m->type != KD_MAT_MXFP4 || j->type != KD_GT_MXFP4)
        return kd_mat_row(j->run, m, row, line, err) ||
                       kd_gguf_encode(j->type, line, m->cols, out, NULL, err)
                   ? -1
                   : 0;
    const uint8_t *pairs = (const uint8_t *)m->data + row * m->ld,
                  *scale = m->scale + row * m->ld_scale;
    for (int64_t g = 0; g < m->cols / KD_MXFP4_GROUP; g++, out += KD_MXFP4_BYTES) {
        if (scale[g] == 255)
            return kd_fail(err, KD_ECORRUPT, "row %lld: the scale of group %lld is not a number",
                           (long long)row, (long long)g);
        kd_gguf_mxfp4_from_pairs(pairs + 16 * g, scale[g], out);
    }
    return 0;
}

static void item(void *ctx, int64_t i, int worker)
{
    struct job *j = ctx;
    struct kd_err err = {0};
    for (int64_t r = i * ROWS; r < j->R && r < (i + 1) * ROWS; r++)
        if (put_row(j, j->r0 + r, j->lines + worker * j->m->cols, j->out + r * j->row_bytes,
                    &err)) {
            if (!atomic_exchange(&j->failed, 1)) {
                kd_wrap(&err, "row %lld", (long long)(j->r0 + r));
                j->err = err;
            }
            return;
        }
}

int kd_to_gguf_rows(const struct kd_run *run, const struct kd_mat *m, int64_t r0, int64_t R,
                    int type, uint8_t *out, struct kd_err *err)
{
    const struct kd_gguf_type_info *t = kd_gguf_type_info(type);
    struct job j = {.m = m, .run = run, .r0 = r0, .R = R, .type = type, .out = out};
    j.row_bytes = m->cols / t->elems * t->bytes;
    if (kd_mem_new(&j.lines, kd_pool_threads(run->pool), m->cols * (int64_t)sizeof *j.lines,
                   "rows being converted", err))
        return -1;
    kd_pool_run(run->pool, (R + ROWS - 1) / ROWS, item, &j);
    kd_mem_free(j.lines);
    return atomic_load(&j.failed) ? kd_fail(err, j.err.code, "%s", j.err.msg) : 0;
}
