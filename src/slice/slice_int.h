/* Pieces of slice.c; nothing else includes this. */
#ifndef KD_SLICE_SLICE_INT_H
#define KD_SLICE_SLICE_INT_H

#include "slice/record.h"
#include "slice/slice.h"

enum kd_slice_fate { KD_FATE_DROP, KD_FATE_COPY, KD_FATE_CUT };

/* What becomes of a tensor of the source. */
struct kd_slice_item {
    enum kd_slice_fate fate;
    int32_t layer_at; /* its kept layer, or -1 */
    int32_t to;       /* type to convert to, or -1 */
    int64_t name;     /* its new one: id in names; -1: dropped */
    int64_t bytes;    /* in the output */
    int rank;
    int64_t shape[KD_RANK_MAX];
};

struct kd_slice_file {
    char name[256];
    struct kd_buf head; /* bytes before the data; empty: the file is copied whole */
    int64_t bytes;
};

struct kd_slice {
    struct kd_heads *h;
    struct kd_slice_opts o;
    struct kd_keep keep;
    struct kd_slice_record record;
    struct kd_slice_item *items; /* by the source's tensors */
    struct kd_names names;
    struct kd_slice_file *files;
    int64_t file_count;
    struct kd_buf spans; /* of struct kd_slice_span, before they are cut */
    struct kd_slice_spans plan;
    struct kd_slice_figures f;
    struct kd_buf config, index; /* safetensors: new texts */
    char hash[65];
};

/* Fates, new names, shapes and types. */
int kd_slice_decide(struct kd_slice *s, struct kd_err *err) KD_MUST;
/* Files, their heads and the spans of their data. */
int kd_slice_lay_gguf(struct kd_slice *s, struct kd_err *err) KD_MUST;
int kd_slice_lay_st(struct kd_slice *s, struct kd_err *err) KD_MUST;
/* Adds the spans of tensor i, whose bytes begin at out_at of file `out`. */
void kd_slice_span_add(struct kd_slice *s, int64_t i, int32_t out, int64_t out_at);
/* Opens what was written and holds it against the plan, tensor for tensor. */
int kd_slice_verify(const struct kd_slice *s, const char *path, struct kd_err *err) KD_MUST;

#endif
