/* Encoding to EXL3 on CUDA devices for many threads at once. Each thread has one tensor under way;
 * the rows of tiles of all tensors are searched together, round by round, so a device is busy
 * although a row waits for the row below it. Every result has the CPU's bits (class `exact`).
 *
 *     kd_gpu_encoder_open(&e, index, count, 0, err);
 *     ... in each thread, for each tensor:
 *     kd_gpu_tensor_open(&t, e, &shape, err);              waits until there is memory for it
 *     kd_gpu_tensor_load(t, &w, &finite, err);
 *     kd_gpu_tensor_rotate(t, su, sv, err);                every call waits until it is done
 *     kd_gpu_tensor_ldlq(t, &job, err);
 *     kd_gpu_tensor_close(t);
 *     kd_gpu_encoder_close(e);                             when no tensor is open
 *
 * Threads: an encoder serves any number; a tensor belongs to one. Once a device has failed, every
 * call returns its error. A build without CUDA has the same functions; they find no device. */
#ifndef KD_GPU_ENCODER_H
#define KD_GPU_ENCODER_H

#include "gpu/product.h"

struct kd_gpu_encoder;
struct kd_gpu_tensor;
struct kd_gpu_square;

enum { KD_GPU_ENCODE_DEVICES = 16, KD_GPU_ENCODE_POINTS = 16 };

/* `index`: `count` devices. memory_bytes: what tensors may take of each, 0: what is free. */
int kd_gpu_encoder_open(struct kd_gpu_encoder **out, const int *index, int count,
                        int64_t memory_bytes, struct kd_err *err) KD_MUST;
void kd_gpu_encoder_close(struct kd_gpu_encoder *e);

/* The class of a calibration (gpu/calib.h), of docs/numerics.md. Encoding is exact in both. */
enum kd_gpu_calib_class { KD_GPU_CALIB_EXACT, KD_GPU_CALIB_FAST };
/* Before the first use; EXACT otherwise. */
void kd_gpu_encoder_calibrate(struct kd_gpu_encoder *e, enum kd_gpu_calib_class c);

/* Whether its devices can search at this rate: below 2 bits a block needs more shared memory than
 * some have (GB10 and the RTX cards). */
bool kd_gpu_encoder_searches(const struct kd_gpu_encoder *e, struct kd_rate rate);

struct kd_gpu_encoder_facts {
    int devices;
    char name[256];       /* of the first */
    int64_t host_bytes;   /* of the host's memory, for copies */
    int64_t memory_bytes; /* that tensors may take, of the smallest */
    int64_t used_bytes;   /* the most that they took so far, of one device */
    /* since the start, all devices together */
    int64_t rounds, tiles;                /* tiles searched, scale searches included */
    double targets_s, search_s, update_s; /* device time: before, in and after the searches */
    double search_blocks_s;               /* search_s, times the multiprocessors that searched */
    double between_s; /* of all tensors that are done: from their memory to LDLQ, and after it */
};
void kd_gpu_encoder_facts(struct kd_gpu_encoder *e, struct kd_gpu_encoder_facts *f);

/* A Hessian [k][k], whole, on every device, for the tensors that share it. *out NULL without an
 * error: it would take too much of their memory, so each has its own. Closed when no tensor uses
 * it. */
int kd_gpu_square_open(struct kd_gpu_square **out, struct kd_gpu_encoder *e, const float *h,
                       int64_t k, struct kd_err *err) KD_MUST;
void kd_gpu_square_close(struct kd_gpu_square *s);

/* Inputs and outputs padded to multiples of 128. */
struct kd_gpu_tensor_shape {
    int64_t k, n;
    struct kd_rate rate;
    enum kd_codebook cb;
    int seam;
    bool square;                         /* it has a Hessian or an L */
    const struct kd_gpu_square *hessian; /* NULL: its own */
};
/* Device memory of one tensor. */
int64_t kd_gpu_tensor_bytes(const struct kd_gpu_tensor_shape *s);
/* Waits for room; KD_ENOMEM when there would be none even alone. */
int kd_gpu_tensor_open(struct kd_gpu_tensor **out, struct kd_gpu_encoder *e,
                       const struct kd_gpu_tensor_shape *s, struct kd_err *err) KD_MUST;
void kd_gpu_tensor_close(struct kd_gpu_tensor *t);

/* Matrices on the device. */
enum kd_gpu_part {
    KD_GPU_PART_HESSIAN, /* [k][k], whole; its own */
    KD_GPU_PART_L,       /* [k][k] */
    KD_GPU_PART_WEIGHTS, /* [k][n] */
    KD_GPU_PART_ROTATED, /* [k][n], the weights in the basis of the codes */
    KD_GPU_PART_VALUES   /* [k][n], what the codes stand for */
};
int kd_gpu_tensor_put(struct kd_gpu_tensor *t, enum kd_gpu_part p, const float *from,
                      struct kd_err *err) KD_MUST;
/* WEIGHTS = a matrix of F32, BF16 or MXFP4, transposed, with zeros up to k and n. */
int kd_gpu_tensor_load(struct kd_gpu_tensor *t, const struct kd_gpu_source *w, bool *finite,
                       struct kd_err *err) KD_MUST;
/* Sums of squares of WEIGHTS in double: of each column over ascending rows [n]; of each row over
 * ascending columns, divided by sv before (a column with 0 is left out) [k]. */
int kd_gpu_tensor_columns(struct kd_gpu_tensor *t, double *sum, struct kd_err *err) KD_MUST;
int kd_gpu_tensor_rows(struct kd_gpu_tensor *t, const float *sv, double *sum,
                       struct kd_err *err) KD_MUST;

/* ROTATED = WEIGHTS in the basis of the codes (codec/exl3_basis.c), su [k], sv [n]. */
int kd_gpu_tensor_rotate(struct kd_gpu_tensor *t, const float *su, const float *sv,
                         struct kd_err *err) KD_MUST;
/* VALUES back into the basis of the weights. */
int kd_gpu_tensor_unrotate(struct kd_gpu_tensor *t, const float *su, const float *sv,
                           struct kd_err *err) KD_MUST;
/* L = left HESSIAN right between Hadamards; diagonal [k] out. */
int kd_gpu_tensor_square(struct kd_gpu_tensor *t, const float *left, const float *right,
                         float *diagonal, struct kd_err *err) KD_MUST;
/* L + add I -> its U, as kd_la_cholesky; *good false: not positive definite, L is destroyed. */
int kd_gpu_tensor_cholesky(struct kd_gpu_tensor *t, float add, bool *good,
                           struct kd_err *err) KD_MUST;
/* U in L -> L, as kd_la_block_ldl. */
int kd_gpu_tensor_ldl(struct kd_gpu_tensor *t, struct kd_err *err) KD_MUST;

/* LDLQ over ROTATED with L (or without feedback) into VALUES and codes. */
struct kd_gpu_ldlq {
    bool feedback;
    uint8_t *codes; /* out: (k/16) * (n/16) tiles */
    double sum;     /* out: of squared errors, in the order of codec/exl3_ldlq.c */
};
int kd_gpu_tensor_ldlq(struct kd_gpu_tensor *t, struct kd_gpu_ldlq *job,
                       struct kd_err *err) KD_MUST;

/* The scale search. Sums of squares of ROTATED's tiles, row by row in double; then some of them
 * times drift as the sample; then squared errors at a few scales, in units of the sample, of groups
 * of four of every stride-th tile of it, in the order of codec/exl3_scale.c. */
int kd_gpu_tensor_energy(struct kd_gpu_tensor *t, double *energy, struct kd_err *err) KD_MUST;
int kd_gpu_tensor_sample(struct kd_gpu_tensor *t, const int64_t *pick, int64_t tiles, double drift,
                         struct kd_err *err) KD_MUST;
struct kd_gpu_scale {
    int64_t stride;
    int points; /* at most KD_GPU_ENCODE_POINTS */
    const double *scale;
    int64_t items;       /* at most points times the groups there are */
    const int32_t *item; /* number of the point times the groups there are, plus the group's */
    double *sum;         /* out, of each item */
};
int kd_gpu_tensor_scale(struct kd_gpu_tensor *t, const struct kd_gpu_scale *job,
                        struct kd_err *err) KD_MUST;

/* The refit, after LDLQ. Sums are in double, over ascending rows (or columns), as in
 * codec/exl3_refit.c. */
/* ROTATED = HESSIAN WEIGHTS; dot[c]: of column c of both. */
int kd_gpu_tensor_weigh(struct kd_gpu_tensor *t, double *dot, struct kd_err *err) KD_MUST;
/* quad[c] = x^T HESSIAN x for column c of VALUES. */
int kd_gpu_tensor_quads(struct kd_gpu_tensor *t, double *quad, struct kd_err *err) KD_MUST;
/* Of VALUES and ROTATED: column[c], or row[i] (the other one NULL). */
int kd_gpu_tensor_dots(struct kd_gpu_tensor *t, double *column, double *row,
                       struct kd_err *err) KD_MUST;
/* VALUES times a factor for each row, or for each column (the other one NULL). */
int kd_gpu_tensor_stretch(struct kd_gpu_tensor *t, const float *rows, const float *columns,
                          struct kd_err *err) KD_MUST;
/* L = (VALUES VALUES^T) o HESSIAN, on and above the diagonal, which goes to diagonal [k]. */
int kd_gpu_tensor_gram(struct kd_gpu_tensor *t, float *diagonal, struct kd_err *err) KD_MUST;

/* rhs [k] <- (U^T U)^-1 rhs, U in L after kd_gpu_tensor_cholesky. */
int kd_gpu_tensor_solve(struct kd_gpu_tensor *t, float *rhs, struct kd_err *err) KD_MUST;
/* VALUES = WEIGHTS - VALUES; sums of squares of the rows of WEIGHTS and of that [k]. */
int kd_gpu_tensor_error(struct kd_gpu_tensor *t, double *power, double *error,
                        struct kd_err *err) KD_MUST;

#endif
