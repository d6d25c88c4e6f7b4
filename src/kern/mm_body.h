/* The matrix products in DOT16 order, written in the vector vf of the including file.
 *
 * Few tokens: rows are decoded in registers, GEMV_ROWS at a time. More: a panel of weights is
 * decoded to floats once and used for up to MM_PANEL_TOKENS tokens; its 16-lane sums wait in memory
 * between pieces of K, so the register blocks run in the near cache and no order changes. Weights
 * past K count as -0 and activations as +0: fma(-0, +0, s) is s for every s, also -0. */
#include "kern/kern.h"
#include "num/mxfp4_block.h"

#include <string.h>

#define KD_INLINE static inline __attribute__((always_inline))

enum { MM_PANEL_ROWS = 8, MM_PANEL_K = 512, MM_PANEL_TOKENS = 48 };

enum mm_type { MM_F32, MM_BF16, MM_MXFP4 };

/* Weights as bytes: ld and lds in bytes. */
struct mm_weights {
    const uint8_t *data, *scale;
    int64_t ld, lds;
};

/* kd_e8m0_f32 of each byte. */
#define E1(n)  ((n) ? (uint32_t)(n) << 23 : 0x00400000u)
#define E4(n)  E1(n), E1((n) + 1), E1((n) + 2), E1((n) + 3)
#define E16(n) E4(n), E4((n) + 4), E4((n) + 8), E4((n) + 12)
#define E64(n) E16(n), E16((n) + 16), E16((n) + 32), E16((n) + 48)
static const uint32_t mm_e8m0_bits[256] = {E64(0), E64(64), E64(128), E64(192)};
#undef E64
#undef E16
#undef E4
#undef E1

KD_INLINE fp4_key mm_key(const uint8_t *scale_row, int64_t k)
{
    return fp4_prepare(kd_bits_f32(mm_e8m0_bits[scale_row[k / KD_MXFP4_GROUP]]));
}

/* Weights k .. k+15 of a row; `key` is that of their group (MXFP4). */
KD_INLINE void mm_load16(enum mm_type type, const uint8_t *row, fp4_key key, int64_t k,
                         vf out[LANE_REGS])
{
    if (type == MM_MXFP4) {
        fp4_load16(row + k / 2, key, out);
        return;
    }
#pragma GCC unroll 32
    for (int l = 0; l < LANE_REGS; l++) {
        if (type == MM_F32)
            out[l] = vf_load((const float *)(const void *)row + k + l * VF_W);
        else
            out[l] = vf_load_bf16((const uint16_t *)(const void *)row + k + l * VF_W);
    }
}

/* The last n < 16 weights of a row, from k on, padded. */
static void mm_tail(enum mm_type type, const uint8_t *row, int64_t k, int64_t n, float out[16])
{
    for (int64_t i = 0; i < 16; i++)
        out[i] = -0.0f;
    for (int64_t i = 0; i < n; i++) {
        if (type == MM_F32)
            memcpy(&out[i], row + (k + i) * (int64_t)sizeof(float), sizeof(float));
        else
            out[i] = kd_bf16_f32(((const uint16_t *)(const void *)row)[k + i]);
    }
}

/* y[0..rows) for one token. */
KD_INLINE void mm_gemv(enum mm_type type, const int rows, const struct mm_weights *w, int64_t r0,
                       int64_t K, const float *x, float *y)
{
    const uint8_t *row[GEMV_ROWS], *scale[GEMV_ROWS];
    vf acc[GEMV_ROWS][LANE_REGS];
    fp4_key key[GEMV_ROWS];
#pragma GCC unroll 32
    for (int r = 0; r < rows; r++) {
        row[r] = w->data + (r0 + r) * w->ld;
        scale[r] = type == MM_MXFP4 ? w->scale + (r0 + r) * w->lds : NULL;
        key[r] = vf_zero();
#pragma GCC unroll 32
        for (int l = 0; l < LANE_REGS; l++)
            acc[r][l] = vf_zero();
    }
    int64_t k = 0;
    const int64_t step = type == MM_MXFP4 ? KD_MXFP4_GROUP : 16;
    for (; k + step <= K; k += step) {
        if (type == MM_MXFP4)
#pragma GCC unroll 32
            for (int r = 0; r < rows; r++)
                key[r] = mm_key(scale[r], k);
#pragma GCC unroll 32
        for (int64_t h = 0; h < step; h += 16) {
            vf v[LANE_REGS];
#pragma GCC unroll 32
            for (int r = 0; r < rows; r++) {
                mm_load16(type, row[r], key[r], k + h, v);
#pragma GCC unroll 32
                for (int l = 0; l < LANE_REGS; l++)
                    acc[r][l] = vf_fma(v[l], vf_load(x + k + h + l * VF_W), acc[r][l]);
            }
        }
    }
    float xt[16] = {0}, wt[16], lane[16];
    if (k < K)
        memcpy(xt, x + k, (size_t)(K - k) * sizeof *x);
#pragma GCC unroll 32
    for (int r = 0; r < rows; r++) {
        if (k < K) {
            mm_tail(type, row[r], k, K - k, wt);
#pragma GCC unroll 32
            for (int l = 0; l < LANE_REGS; l++)
                acc[r][l] = vf_fma(vf_load(wt + l * VF_W), vf_load(xt + l * VF_W), acc[r][l]);
        }
#pragma GCC unroll 32
        for (int l = 0; l < LANE_REGS; l++)
            vf_store(lane + l * VF_W, acc[r][l]);
        y[r] = vf_fold16(lane);
    }
}

/* sums[t][r] (16 lanes each, tokens MM_PANEL_ROWS lane groups apart) += w[r] * x[t], K a multiple
 * of 16, one register's worth of lanes after the other. */
KD_INLINE void mm_block(const int tokens, const float *const w[MM_ROWS], const float *x,
                        int64_t ldx, int64_t K, float *sums)
{
    for (int l = 0; l < 16; l += VF_W) {
        vf acc[MM_ROWS][MM_TOKENS];
#pragma GCC unroll 32
        for (int t = 0; t < tokens; t++)
#pragma GCC unroll 32
            for (int r = 0; r < MM_ROWS; r++)
                acc[r][t] = vf_load(sums + (t * MM_PANEL_ROWS + r) * 16 + l);
        for (int64_t k = l; k < K; k += 16) {
            vf xv[MM_TOKENS];
#pragma GCC unroll 32
            for (int t = 0; t < tokens; t++)
                xv[t] = vf_load(x + t * ldx + k);
#pragma GCC unroll 32
            for (int r = 0; r < MM_ROWS; r++) {
                vf wv = vf_load(w[r] + k);
#pragma GCC unroll 32
                for (int t = 0; t < tokens; t++)
                    acc[r][t] = vf_fma(wv, xv[t], acc[r][t]);
            }
        }
#pragma GCC unroll 32
        for (int t = 0; t < tokens; t++)
#pragma GCC unroll 32
            for (int r = 0; r < MM_ROWS; r++)
                vf_store(sums + (t * MM_PANEL_ROWS + r) * 16 + l, acc[r][t]);
    }
}

static void mm_block_any(int64_t tokens, const float *const w[MM_ROWS], const float *x, int64_t ldx,
                         int64_t K, float *sums)
{
    enum { N4 = MM_TOKENS < 4 ? MM_TOKENS : 4, N5 = MM_TOKENS < 5 ? MM_TOKENS : 5 };
    switch (tokens) {
    case 1:
        mm_block(1, w, x, ldx, K, sums);
        return;
    case 2:
        mm_block(2, w, x, ldx, K, sums);
        return;
    case 3:
        mm_block(3, w, x, ldx, K, sums);
        return;
    case 4:
        mm_block(N4, w, x, ldx, K, sums);
        return;
    case 5:
        mm_block(N5, w, x, ldx, K, sums);
        return;
    default:
        mm_block(MM_TOKENS, w, x, ldx, K, sums);
    }
}

/* The register blocks of R <= MM_PANEL_ROWS rows, ldw floats apart. Rows past R repeat the last
 * one; nobody reads their sums. */
static void mm_sweep(const float *w, int64_t ldw, int64_t R, const float *x, int64_t ldx, int64_t T,
                     int64_t K, float *sums)
{
    for (int64_t t = 0; t < T; t += MM_TOKENS)
        for (int64_t r = 0; r < R; r += MM_ROWS) {
            const float *row[MM_ROWS];
            for (int64_t i = 0; i < MM_ROWS; i++)
                row[i] = w + (r + i < R ? r + i : R - 1) * ldw;
            mm_block_any(T - t < MM_TOKENS ? T - t : MM_TOKENS, row, x + t * ldx, ldx, K,
                         sums + (t * MM_PANEL_ROWS + r) * 16);
        }
}

/* R <= MM_PANEL_ROWS rows from r0 for T <= MM_PANEL_TOKENS tokens. */
KD_INLINE void mm_panel(enum mm_type type, const struct mm_weights *w, int64_t r0, int64_t R,
                        int64_t K, const float *x, int64_t ldx, int64_t T, float *y, int64_t ldy)
{
    float sums[MM_PANEL_TOKENS * MM_PANEL_ROWS * 16], panel[MM_PANEL_ROWS * MM_PANEL_K];
    int64_t whole = K / 16 * 16;
    memset(sums, 0, (size_t)T * MM_PANEL_ROWS * 16 * sizeof *sums);
    for (int64_t k0 = 0; k0 < whole; k0 += MM_PANEL_K) {
        int64_t kc = whole - k0 < MM_PANEL_K ? whole - k0 : MM_PANEL_K;
        if (type == MM_F32) {
            mm_sweep((const float *)(const void *)(w->data + r0 * w->ld) + k0,
                     w->ld / (int64_t)sizeof(float), R, x + k0, ldx, T, kc, sums);
            continue;
        }
        for (int64_t r = 0; r < R; r++) {
            const uint8_t *row = w->data + (r0 + r) * w->ld;
            const uint8_t *scale = type == MM_MXFP4 ? w->scale + (r0 + r) * w->lds : NULL;
            for (int64_t k = 0; k < kc; k += 16) {
                vf v[LANE_REGS];
                mm_load16(type, row, type == MM_MXFP4 ? mm_key(scale, k0 + k) : vf_zero(), k0 + k,
                          v);
#pragma GCC unroll 32
                for (int l = 0; l < LANE_REGS; l++)
                    vf_store(panel + r * MM_PANEL_K + k + l * VF_W, v[l]);
            }
        }
        mm_sweep(panel, MM_PANEL_K, R, x + k0, ldx, T, kc, sums);
    }
    if (whole < K) {
        float xt[MM_PANEL_TOKENS * 16] = {0};
        for (int64_t r = 0; r < R; r++)
            mm_tail(type, w->data + (r0 + r) * w->ld, whole, K - whole, panel + r * 16);
        for (int64_t t = 0; t < T; t++)
            memcpy(xt + t * 16, x + t * ldx + whole, (size_t)(K - whole) * sizeof *x);
        mm_sweep(panel, 16, R, xt, 16, T, 16, sums);
    }
    for (int64_t t = 0; t < T; t++)
        for (int64_t r = 0; r < R; r++)
            y[t * ldy + r] = vf_fold16(sums + (t * MM_PANEL_ROWS + r) * 16);
}

KD_INLINE void mm_any(enum mm_type type, const struct mm_weights *w, int64_t R, int64_t K,
                      const float *x, int64_t ldx, int64_t T, float *y, int64_t ldy)
{
    /* Up to here decoding again for each token costs less than a panel. */
    const int64_t few = type == MM_F32 ? 1 : type == MM_BF16 ? 4 : 2;
    if (T <= few) {
        int64_t r = 0;
        for (; r + GEMV_ROWS <= R; r += GEMV_ROWS)
            for (int64_t t = 0; t < T; t++)
                mm_gemv(type, GEMV_ROWS, w, r, K, x + t * ldx, y + t * ldy + r);
        for (; r < R; r++)
            for (int64_t t = 0; t < T; t++)
                mm_gemv(type, 1, w, r, K, x + t * ldx, y + t * ldy + r);
        return;
    }
    for (int64_t r = 0; r < R; r += MM_PANEL_ROWS)
        for (int64_t t = 0; t < T; t += MM_PANEL_TOKENS)
            mm_panel(type, w, r, R - r < MM_PANEL_ROWS ? R - r : MM_PANEL_ROWS, K, x + t * ldx, ldx,
                     T - t < MM_PANEL_TOKENS ? T - t : MM_PANEL_TOKENS, y + t * ldy + r, ldy);
}

static void mm_f32(const float *w, int64_t ldw, int64_t R, int64_t K, const float *x, int64_t ldx,
                   int64_t T, float *y, int64_t ldy)
{
    struct mm_weights m = {.data = (const uint8_t *)w, .ld = ldw * (int64_t)sizeof *w};
    mm_any(MM_F32, &m, R, K, x, ldx, T, y, ldy);
}

static void mm_bf16(const uint16_t *w, int64_t ldw, int64_t R, int64_t K, const float *x,
                    int64_t ldx, int64_t T, float *y, int64_t ldy)
{
    struct mm_weights m = {.data = (const uint8_t *)w, .ld = ldw * (int64_t)sizeof *w};
    mm_any(MM_BF16, &m, R, K, x, ldx, T, y, ldy);
}

static void mm_mxfp4(const uint8_t *packed, int64_t ldp, const uint8_t *scale, int64_t lds,
                     int64_t R, int64_t K, const float *x, int64_t ldx, int64_t T, float *y,
                     int64_t ldy)
{
    struct mm_weights m = {.data = packed, .scale = scale, .ld = ldp, .lds = lds};
    mm_any(MM_MXFP4, &m, R, K, x, ldx, T, y, ldy);
}

static float mm_dot(const float *x, const float *y, int64_t n)
{
    struct mm_weights m = {.data = (const uint8_t *)x};
    float sum;
    mm_gemv(MM_F32, 1, &m, 0, n, y, &sum);
    return sum;
}

static void set_mm(struct kd_kern *k)
{
    k->mm_f32 = mm_f32;
    k->mm_bf16 = mm_bf16;
    k->mm_mxfp4 = mm_mxfp4;
    k->dot = mm_dot;
}
