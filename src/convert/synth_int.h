/* What the files of synth share; nothing else includes this. */
#ifndef KD_CONVERT_SYNTH_INT_H
#define KD_CONVERT_SYNTH_INT_H

#include "convert/synth.h"
#include "model/k3_names.h"

/* config <- what is left of it, and cut <- its figures. whole: the config's as it came. */
int kd_synth_shape(struct kd_json *config, const struct kd_k3_cfg *whole,
                   const struct kd_synth_opts *o, struct kd_k3_cfg *cut,
                   struct kd_err *err) KD_MUST;

/* How the elements of one stored tensor are made. Rows are cut out of a whole tensor: element
 * (r, c) is number (row0 + r) * whole_cols + col0 + c of the stream `seed`. */
enum kd_synth_kind {
    KD_SYNTH_BELL,   /* normal, times gain; F32, BF16 or F16 */
    KD_SYNTH_NORM,   /* 1 + a tenth of normal */
    KD_SYNTH_UNIT,   /* uniform in [0, 1) */
    KD_SYNTH_SIGNS,  /* +-(1 + a tenth of normal) times gain, F16 */
    KD_SYNTH_CODES,  /* MXFP4: two a byte */
    KD_SYNTH_SCALES, /* MXFP4: exponents around `gain` */
    KD_SYNTH_BITS    /* rows of random bytes */
};
struct kd_synth_item {
    enum kd_synth_kind kind;
    char type; /* 'f' F32, 'b' BF16, 'h' F16, 'u' bytes */
    int64_t rows, cols, whole_cols, row0, col0;
    uint64_t seed;
    float gain;
    /* BITS: a row is a tile, which of the whole follows from its place in a grid of them. */
    int64_t grid, whole_grid;
};
int64_t kd_synth_row_bytes(const struct kd_synth_item *i);
/* Rows lo to hi. */
void kd_synth_rows(const struct kd_synth_item *i, int64_t lo, int64_t hi, uint8_t *out);

#endif
