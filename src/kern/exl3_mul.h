/* The whole product with an EXL3 matrix: rotate x (x * suh, Hadamard of every 128 columns), mm_exl3
 * over the pool in fixed cuts, Hadamard of every 128 rows, * svh; padding is cropped. */
#ifndef KD_KERN_EXL3_MUL_H
#define KD_KERN_EXL3_MUL_H

#include "kern/mat.h"

/* As kd_mat_mul, for w->type == KD_MAT_EXL3 and T > 0. Fails only for lack of memory. */
int kd_exl3_mul(const struct kd_run *run, const struct kd_mat *w, const float *x, int64_t ldx,
                int64_t T, float *y, int64_t ldy, struct kd_err *err) KD_MUST;

/* One token with activations rounded to int8 after the rotation, by their largest; mul1 only. For
 * decoding: conversion and checks never use it. Error: half a step of the largest activation each.
 */
int kd_exl3_mul_int8(const struct kd_run *run, const struct kd_mat *w, const float *x, float *y,
                     struct kd_err *err) KD_MUST;

#endif
