/* The parts of a product with an EXL3 matrix (kern/mat.h has the whole): rotate x (x * suh,
 * Hadamard of every 128 columns), then for each 128 rows mm_exl3, their Hadamard, * svh; padding is
 * cropped.
 */
#ifndef KD_KERN_EXL3_MUL_H
#define KD_KERN_EXL3_MUL_H

#include "kern/mat.h"

/* Soon w's inputs will be rotated: its scales are asked for. */
void kd_exl3_foresee(const struct kd_mat *w);
/* rotated[T][cols_padded]; sums[T]: what fast products need of the inputs, NULL for exact ones. */
void kd_exl3_turn(const struct kd_kern *kern, const struct kd_mat *w, const float *x, int64_t ldx,
                  int64_t T, float *rotated, float *sums);
/* Floats that kd_exl3_block_mul needs for its outputs on their way back. */
int64_t kd_exl3_out_floats(int64_t T);
/* Rows 128 * item and the 127 after it, as far as there are, for all tokens; sums as above. */
void kd_exl3_block_mul(const struct kd_kern *kern, const struct kd_mat *w, int64_t item,
                       const float *rotated, const float *sums, int64_t T, float *out, float *y,
                       int64_t ldy);

/* One token with activations rounded to int8 after the rotation, by their largest; mul1 only. For
 * decoding: conversion and checks never use it. Error: half a step of the largest activation each.
 */
int kd_exl3_mul_int8(const struct kd_run *run, const struct kd_mat *w, const float *x, float *y,
                     struct kd_err *err) KD_MUST;

#endif
