/* What a product of class `fast` is given, and what becomes of its sums: shared by the kernel for
 * matrix units of any kind (calib_fast.cuh) and the one for Hopper's (calib_wide.cuh). */
#ifndef KD_GPU_CALIB_OUT_CUH
#define KD_GPU_CALIB_OUT_CUH

#include "gpu/mma_lanes.cuh"
#include "num/half.h"

#include <math.h>

/* Inputs that a Hessian's sums have in one go (fewer in a test). */
#ifndef KD_CALIB_SEGMENT
#define KD_CALIB_SEGMENT 4096
#endif

namespace kd_fast
{

enum {
    SEGMENT = KD_CALIB_SEGMENT,
    PAIR = 8, /* rows of gate, then as many of up, in a matrix that has both */
    RUN = 4   /* fragments that leave together */
};

KD_DEV void put(uint16_t *hi, uint16_t *lo, int64_t at, float x)
{
    const uint16_t h = kd_f32_bf16(x);

    hi[at] = h;
    if (lo)
        lo[at] = kd_f32_bf16(x - kd_bf16_f32(h));
}

struct plane {
    const uint16_t *a, *b; /* [m][lda], [n][ldb]: rows begin at multiples of 16 bytes */
};

/* Sum over planes of a b^T: [m][n]. */
struct multiply_job {
    struct plane plane[3];
    int32_t planes;
    int64_t lda, ldb, m, n, k; /* k: a multiple of 32 */
    int64_t rows, outs;        /* INNER: others of n and m / 2 are zero; n is even then */
    float *y;                  /* ROWS: [n][ldy]; SUMS: [m][ldy], to which it is added */
    int64_t ldy;
    uint16_t *hi, *lo; /* INNER; lo may be NULL; hi and ldo: multiples of 8 */
    int64_t ldo;
    float beta, linear, over_beta, over_linear; /* and what 1 divided by them is */
    float by_beta, by_linear;                   /* exp(-2 x / beta) = 2^(x by_beta) */
    int32_t *bad;                               /* not 0: some value is not finite */
};

enum kind : int {
    ROWS,  /* y, transposed */
    SUMS,  /* y on and above the diagonal; something below it may change */
    INNER, /* a has gate and up by turns: SiTU of both, [n][ldo] */
    TURNED /* the same, [m / 2][ldo] */
};

/* tanh(x) = *over / result, within 2^-16 of itself; e = exp(-2 |x|). */
KD_DEV float tanh_parts(float x, float e, float *over)
{
    const bool small = fabsf(x) < 0.015625f;

    *over = small ? x - x * x * x * 0.33333334f : copysignf(1.0f - e, x);
    return small ? 1.0f : 1.0f + e;
}

/* kd_situ1 with one division, and without a branch, so that several go side by side. */
KD_DEV float situ(const multiply_job &j, float g, float u)
{
    const float e = kd_exp2_near(fabsf(g) * -1.44269504f);
    const bool bent = j.linear > 0.0f;
    float a, b, under = 1.0f + e;

    under *= tanh_parts(g * j.over_beta, kd_exp2_near(fabsf(g) * j.by_beta), &a);
    a *= g < 0.0f ? j.beta * e : j.beta;
    const float more = tanh_parts(u * j.over_linear, kd_exp2_near(fabsf(u) * j.by_linear), &b);
    return kd_div_near(a * (bent ? b * j.linear : u), bent ? under * more : under);
}

/* ---- what becomes of the sums ---- */

/* Word i of lane t of a quad becomes word t of its lane i. */
KD_DEV void turn_quad(uint32_t w[RUN])
{
    const bool odd = kd_thread() & 1, high = kd_thread() & 2;

#pragma unroll
    for (int i = 0; i < RUN; i += 2) {
        const uint32_t got = kd_shuffle_xor(odd ? w[i] : w[i + 1], 1);
        w[i] = odd ? got : w[i];
        w[i + 1] = odd ? w[i + 1] : got;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t got = kd_shuffle_xor(high ? w[i] : w[i + 2], 2);
        w[i] = high ? got : w[i];
        w[i + 2] = high ? w[i + 2] : got;
    }
}

/* A run: s[i] is a lane's part of a fragment (mma_lanes.cuh), rows r and r + 8 of a, rows c + 8 i
 * and the next one of b. Whole warps call. */
template <enum kind KIND> struct out {
    static KD_DEV void rows(const multiply_job &j, int64_t r, int64_t c, const float (*s)[4])
    {
#pragma unroll
        for (int i = 0; i < 4 * RUN; i++) {
            const int64_t row = r + i % 4 / 2 * 8, col = c + i / 4 * 8 + i % 2;
            if (row < j.m && col < j.n)
                j.y[col * j.ldy + row] = s[i / 4][i % 4];
        }
    }
    static KD_DEV void sums(const multiply_job &j, int64_t r, int64_t c, const float (*s)[4])
    {
#pragma unroll
        for (int i = 0; i < 2 * RUN; i++) {
            const int64_t row = r + i % 2 * 8, col = c + i / 2 * 8;
            if (row < j.m && col < j.n)
                kd_add_pair(j.y + row * j.ldy + col, s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]);
        }
    }
    /* Gate of rows c and c + 1 of b, then up. */
    static KD_DEV void inner(const multiply_job &j, int64_t r, int64_t c, const float (*s)[4],
                             bool *bad)
    {
        const int64_t out = r / (2 * PAIR) * PAIR + r % PAIR;
        const int32_t left = r < j.m && out < j.outs ? (int32_t)(j.rows - c) : 0;
        float v[RUN][2];

#pragma unroll
        for (int i = 0; i < 2 * RUN; i++) {
            const float x = situ(j, s[i / 2][i % 2], s[i / 2][2 + i % 2]);
            v[i / 2][i % 2] = i / 2 * 8 + i % 2 < left ? x : 0.0f;
            *bad |= !isfinite(v[i / 2][i % 2]);
        }
        if (KIND == INNER)
            put_inner(j, r < j.m ? out : -1, c, v);
        else
            put_turned(j, r < j.m ? out : -1, c, v);
    }
    static KD_DEV void put_inner(const multiply_job &j, int64_t out, int64_t c, const float (*v)[2])
    {
#pragma unroll
        for (int i = 0; i < 2 * RUN; i++) {
            const int64_t at = c + i / 2 * 8 + i % 2;
            if (out >= 0 && at < j.n)
                put(j.hi, j.lo, at * j.ldo + out, v[i / 2][i % 2]);
        }
    }
    /* A lane stores eight inputs side by side, of the four eights that its quad has. */
    static KD_DEV void put_turned(const multiply_job &j, int64_t out, int64_t c,
                                  const float (*v)[2])
    {
        uint32_t w[RUN];

#pragma unroll
        for (int i = 0; i < RUN; i++)
            w[i] = kd_bf16_pair(v[i][0], v[i][1]);
        turn_quad(w);
        c += 6 * (kd_thread() % 4);
        if (out >= 0 && c < j.n)
            *(uint4 *)(j.hi + out * j.ldo + c) = make_uint4(w[0], w[1], w[2], w[3]);
    }
    static KD_DEV void run(const multiply_job &j, int64_t r, int64_t c, const float (*s)[4],
                           bool *bad)
    {
        if (KIND == ROWS)
            rows(j, r, c, s);
        else if (KIND == SUMS)
            sums(j, r, c, s);
        else
            inner(j, r, c, s, bad);
    }
};

} // namespace kd_fast
#endif
