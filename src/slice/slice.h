/* A smaller model out of a larger one, wherever that lies, in one pass: only the ranges that are
 * needed are read, each goes to its place in files whose layout is known beforehand. Router rows,
 * correction bias and the experts' matrices follow one sorted list (slice/keep.h). GGUF gives one
 * GGUF file, safetensors a folder. A slice of everything is its source, byte for byte (a split GGUF
 * gives its merged form).
 *
 *     if (kd_slice_open(&s, source, &opts, err)) ...         reads heads, plans
 *     const struct kd_slice_figures *f = kd_slice_figures(s);
 *     if (kd_slice_run(s, "k3-12x16.gguf", err)) ...
 *
 * While it runs, all is under DST.part/ with a journal; the same call goes on after a kill. DST
 * appears when the result opened as the model it should be and every tensor of the source is
 * accounted for. One thread. */
#ifndef KD_SLICE_SLICE_H
#define KD_SLICE_SLICE_H

#include "base/pool.h"
#include "slice/heads.h"
#include "slice/keep.h"
#include "slice/spans.h"

struct kd_slice;

struct kd_slice_opts {
    struct kd_keep_wish keep;
    int requant;                   /* a GGUF type for the matrices, or -1 */
    bool keep_head;                /* output.weight stays as it is stored */
    struct kd_slice_limits limits; /* zero: gaps of 1 MiB, requests of 16 MiB */
    struct kd_pool *pool;          /* or NULL */
    bool (*stopped)(void);         /* or NULL */
};

struct kd_slice_figures {
    bool gguf, blocks_whole, everything;
    int64_t layers, layers_kept, experts, experts_kept, used, used_now;
    int64_t tensors, copied, sliced,
        dropped; /* copied + sliced + dropped = tensors of the source */
    int64_t params, params_kept;
    int64_t source_bytes, head_bytes;                /* of the files; of heads that were read */
    int64_t requests, wanted_bytes, gap_bytes;       /* to come */
    int64_t untouched_bytes;                         /* of the source, never asked for */
    int64_t out_bytes, out_files, out_tensors;       /* of weights */
    int64_t converted, converted_from, converted_to; /* tensors, their bytes before and after */
    int64_t rows_unfit;                              /* left as they are: rows of no whole blocks */
    const char *plan_hash;
    /* Once it ran: */
    int64_t resumed;    /* requests found done */
    int64_t zero_spans; /* expert or tensor pieces that are nothing but zeros */
    int64_t
        zero_scales; /* converted blocks whose scale is 0 and whose values were not; this run's */
    double error, power; /* of converted values, squared sums; of those done in this run */
};

int kd_slice_open(struct kd_slice **out, struct kd_source *src, const struct kd_slice_opts *o,
                  struct kd_err *err) KD_MUST;
void kd_slice_close(struct kd_slice *s);
const struct kd_slice_figures *kd_slice_figures(const struct kd_slice *s);
/* Output file i of figures.out_files, for people. */
const char *kd_slice_file(const struct kd_slice *s, int64_t i, int64_t *bytes);
/* What kd_slice_run would refuse of what is there; makes nothing. */
int kd_slice_could(const struct kd_slice *s, const char *dst, struct kd_err *err) KD_MUST;
int kd_slice_run(struct kd_slice *s, const char *dst, struct kd_err *err) KD_MUST;

#endif
