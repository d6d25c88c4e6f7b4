/* Products with weights in blocks, for the vector of the including file; after mm_body.h.
 *
 * Q8_0 and MXFP4 with few tokens are decoded in registers. All else goes through a panel of decoded
 * rows, as in mm_body.h, whose register blocks and order these are. */
#include "num/block.h"

/* The 32 values of one block of Q8_0 or MXFP4. */
KD_INLINE void block_load32(enum kd_block_kind kind, const uint8_t *b, vf out[2 * LANE_REGS])
{
    if (kind == KD_BLOCK_Q8_0) {
        vf d = vf_set1(kd_f16_f32(kd_block_u16(b)));
#pragma GCC unroll 32
        for (int l = 0; l < 2 * LANE_REGS; l++)
            out[l] = vf_mul(vf_load_i8(b + 2 + l * VF_W), d);
        return;
    }
    if (b[0] == 255) { /* NaN in OCP's text; ggml's value for it has no E8M0 of its own */
        float slow[32];
        kd_mxfp4_decode(b, slow);
        for (int l = 0; l < 2 * LANE_REGS; l++)
            out[l] = vf_load(slow + l * VF_W);
        return;
    }
    fp4_load32(b + 1, fp4_prepare(kd_e8m0_f32(b[0])), out);
}

/* y[0..rows) for one token; rows ldw bytes apart. */
KD_INLINE void block_gemv(enum kd_block_kind kind, const int rows, const uint8_t *w, int64_t ldw,
                          int64_t K, const float *x, float *y)
{
    const int64_t bytes = kind == KD_BLOCK_Q8_0 ? KD_Q8_0_BYTES : KD_MXFP4_BYTES;
    vf acc[GEMV_ROWS][LANE_REGS];
#pragma GCC unroll 32
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 32
        for (int l = 0; l < LANE_REGS; l++)
            acc[r][l] = vf_zero();
    for (int64_t k = 0; k < K; k += 32, w += bytes) {
#pragma GCC unroll 32
        for (int r = 0; r < rows; r++) {
            vf v[2 * LANE_REGS];
            block_load32(kind, w + r * ldw, v);
#pragma GCC unroll 32
            for (int l = 0; l < 2 * LANE_REGS; l++)
                acc[r][l % LANE_REGS] =
                    vf_fma(v[l], vf_load(x + k + l * VF_W), acc[r][l % LANE_REGS]);
        }
    }
#pragma GCC unroll 32
    for (int r = 0; r < rows; r++) {
        float lane[16];
#pragma GCC unroll 32
        for (int l = 0; l < LANE_REGS; l++)
            vf_store(lane + l * VF_W, acc[r][l]);
        y[r] = vf_fold16(lane);
    }
}

KD_INLINE void block_few(enum kd_block_kind kind, const uint8_t *w, int64_t ldw, int64_t R,
                         int64_t K, const float *x, int64_t ldx, int64_t T, float *y, int64_t ldy)
{
    int64_t r = 0;
    for (; r + GEMV_ROWS <= R; r += GEMV_ROWS)
        for (int64_t t = 0; t < T; t++)
            block_gemv(kind, GEMV_ROWS, w + r * ldw, ldw, K, x + t * ldx, y + t * ldy + r);
    for (; r < R; r++)
        for (int64_t t = 0; t < T; t++)
            block_gemv(kind, 1, w + r * ldw, ldw, K, x + t * ldx, y + t * ldy + r);
}

/* n values of a row, whole blocks. */
static void block_decode(const struct kd_block_format *f, const uint8_t *b, int64_t n, float *out)
{
    if (f->kind != KD_BLOCK_Q8_0 && f->kind != KD_BLOCK_MXFP4) {
        f->decode(b, n / f->elems, out);
        return;
    }
    for (int64_t k = 0; k < n; k += 32, b += f->bytes) {
        vf v[2 * LANE_REGS];
        block_load32(f->kind == KD_BLOCK_Q8_0 ? KD_BLOCK_Q8_0 : KD_BLOCK_MXFP4, b, v);
        for (int l = 0; l < 2 * LANE_REGS; l++)
            vf_store(out + k + l * VF_W, v[l]);
    }
}

/* R <= MM_PANEL_ROWS rows for T <= MM_PANEL_TOKENS tokens. */
static void block_panel(const struct kd_block_format *f, const uint8_t *w, int64_t ldw, int64_t R,
                        int64_t K, const float *x, int64_t ldx, int64_t T, float *y, int64_t ldy)
{
    float sums[MM_PANEL_TOKENS * MM_PANEL_ROWS * 16], panel[MM_PANEL_ROWS * MM_PANEL_K];
    int64_t whole = K / 16 * 16;
    memset(sums, 0, (size_t)T * MM_PANEL_ROWS * 16 * sizeof *sums);
    for (int64_t k0 = 0; k0 < whole; k0 += MM_PANEL_K) {
        int64_t kc = whole - k0 < MM_PANEL_K ? whole - k0 : MM_PANEL_K;
        for (int64_t r = 0; r < R; r++)
            block_decode(f, w + r * ldw + k0 / f->elems * f->bytes, kc, panel + r * MM_PANEL_K);
        mm_sweep(panel, MM_PANEL_K, R, x + k0, ldx, T, kc, sums);
    }
    if (whole < K) { /* blocks of one value only */
        float xt[MM_PANEL_TOKENS * 16] = {0};
        for (int64_t i = 0; i < R * 16; i++)
            panel[i] = -0.0f;
        for (int64_t r = 0; r < R; r++)
            block_decode(f, w + r * ldw + whole / f->elems * f->bytes, K - whole, panel + r * 16);
        for (int64_t t = 0; t < T; t++)
            memcpy(xt + t * 16, x + t * ldx + whole, (size_t)(K - whole) * sizeof *x);
        mm_sweep(panel, 16, R, xt, 16, T, 16, sums);
    }
    for (int64_t t = 0; t < T; t++)
        for (int64_t r = 0; r < R; r++)
            y[t * ldy + r] = vf_fold16(sums + (t * MM_PANEL_ROWS + r) * 16);
}

static void mm_blocks(const struct kd_block_format *f, const uint8_t *w, int64_t ldw, int64_t R,
                      int64_t K, const float *x, int64_t ldx, int64_t T, float *y, int64_t ldy)
{
    if (T <= 2 && f->kind == KD_BLOCK_Q8_0) {
        block_few(KD_BLOCK_Q8_0, w, ldw, R, K, x, ldx, T, y, ldy);
        return;
    }
    if (T <= 2 && f->kind == KD_BLOCK_MXFP4) {
        block_few(KD_BLOCK_MXFP4, w, ldw, R, K, x, ldx, T, y, ldy);
        return;
    }
    for (int64_t r = 0; r < R; r += MM_PANEL_ROWS)
        for (int64_t t = 0; t < T; t += MM_PANEL_TOKENS)
            block_panel(f, w + r * ldw, ldw, R - r < MM_PANEL_ROWS ? R - r : MM_PANEL_ROWS, K,
                        x + t * ldx, ldx, T - t < MM_PANEL_TOKENS ? T - t : MM_PANEL_TOKENS,
                        y + t * ldy + r, ldy);
}
