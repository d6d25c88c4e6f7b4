/* gemm_tn, scale_f16, hadamard and kda_step, written in the vector vf of the including file (after
 * mm_body.h, which has the macros). */

enum {
    TN_COLS = TN_REGS * VF_W,
    TN_DEPTH = 128,     /* s in one piece: a panel of b stays in the near cache */
    TN_ROWS_PACKED = 96 /* rows of a packed for all panels of b; a multiple of TN_ROWS */
};

/* c (TN_ROWS x TN_COLS) += panels a [S][TN_ROWS] and b [S][TN_COLS], s ascending. */
KD_INLINE void tn_block(const float *a, const float *b, int64_t S, float *c, int64_t ldc)
{
    vf acc[TN_ROWS][TN_REGS];
#pragma GCC unroll 32
    for (int i = 0; i < TN_ROWS; i++)
#pragma GCC unroll 32
        for (int j = 0; j < TN_REGS; j++)
            acc[i][j] = vf_load(c + i * ldc + j * VF_W);
    for (int64_t s = 0; s < S; s++, a += TN_ROWS, b += TN_COLS) {
        vf bv[TN_REGS];
#pragma GCC unroll 32
        for (int j = 0; j < TN_REGS; j++)
            bv[j] = vf_load(b + j * VF_W);
#pragma GCC unroll 32
        for (int i = 0; i < TN_ROWS; i++) {
            vf av = vf_set1(a[i]);
#pragma GCC unroll 32
            for (int j = 0; j < TN_REGS; j++)
                acc[i][j] = vf_fma(av, bv[j], acc[i][j]);
        }
    }
#pragma GCC unroll 32
    for (int i = 0; i < TN_ROWS; i++)
#pragma GCC unroll 32
        for (int j = 0; j < TN_REGS; j++)
            vf_store(c + i * ldc + j * VF_W, acc[i][j]);
}

/* A block that sticks out of c goes through a copy. */
static void tn_edge(const float *a, const float *b, int64_t S, float *c, int64_t ldc, int64_t rows,
                    int64_t cols)
{
    float t[TN_ROWS * TN_COLS] = {0};
    for (int64_t i = 0; i < rows; i++)
        memcpy(t + i * TN_COLS, c + i * ldc, (size_t)cols * sizeof *t);
    tn_block(a, b, S, t, TN_COLS);
    for (int64_t i = 0; i < rows; i++)
        memcpy(c + i * ldc, t + i * TN_COLS, (size_t)cols * sizeof *t);
}

/* out[s][0..width) = m[s*ld + 0..n), zeros after n. */
KD_INLINE void tn_pack(const int width, const float *m, int64_t ld, int64_t S, int64_t n,
                       float *out)
{
    if (n >= width) {
        for (int64_t s = 0; s < S; s++)
            memcpy(out + s * width, m + s * ld, (size_t)width * sizeof *m);
        return;
    }
    memset(out, 0, (size_t)(S * width) * sizeof *out);
    for (int64_t s = 0; s < S; s++)
        memcpy(out + s * width, m + s * ld, (size_t)n * sizeof *m);
}

/* Up to TN_FEW rows and TN_FEW_COLS columns, straight from where a and b lie. */
enum { TN_FEW = 4, TN_FEW_REGS = VF_W == 8 ? 2 : 4, TN_FEW_COLS = TN_FEW_REGS * VF_W };

KD_INLINE void tn_few(const int rows, const float *a, int64_t lda, const float *b, int64_t ldb,
                      int64_t S, float *c, int64_t ldc)
{
    vf acc[TN_FEW][TN_FEW_REGS];
#pragma GCC unroll 32
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 32
        for (int j = 0; j < TN_FEW_REGS; j++)
            acc[i][j] = vf_load(c + i * ldc + j * VF_W);
    for (int64_t s = 0; s < S; s++, a += lda, b += ldb) {
        vf bv[TN_FEW_REGS];
#pragma GCC unroll 32
        for (int j = 0; j < TN_FEW_REGS; j++)
            bv[j] = vf_load(b + j * VF_W);
#pragma GCC unroll 32
        for (int i = 0; i < rows; i++) {
            vf av = vf_set1(a[i]);
#pragma GCC unroll 32
            for (int j = 0; j < TN_FEW_REGS; j++)
                acc[i][j] = vf_fma(av, bv[j], acc[i][j]);
        }
    }
#pragma GCC unroll 32
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 32
        for (int j = 0; j < TN_FEW_REGS; j++)
            vf_store(c + i * ldc + j * VF_W, acc[i][j]);
}

/* A few rows are not worth packing b for. Returns how many columns are done. */
static int64_t tn_few_rows(const float *a, int64_t lda, const float *b, int64_t ldb, int64_t S,
                           int64_t I, int64_t J, float *c, int64_t ldc)
{
    int64_t j = 0;
    for (; j + TN_FEW_COLS <= J; j += TN_FEW_COLS)
        switch (I) {
        case 1:
            tn_few(1, a, lda, b + j, ldb, S, c + j, ldc);
            break;
        case 2:
            tn_few(2, a, lda, b + j, ldb, S, c + j, ldc);
            break;
        case 3:
            tn_few(3, a, lda, b + j, ldb, S, c + j, ldc);
            break;
        default:
            tn_few(TN_FEW, a, lda, b + j, ldb, S, c + j, ldc);
        }
    return j;
}

static void gemm_tn(const float *a, int64_t lda, const float *b, int64_t ldb, int64_t S, int64_t I,
                    int64_t J, float *c, int64_t ldc)
{
    float pa[TN_ROWS_PACKED * TN_DEPTH], pb[TN_DEPTH * TN_COLS];
    if (I > 0 && I <= TN_FEW) {
        int64_t done = tn_few_rows(a, lda, b, ldb, S, I, J, c, ldc);
        b += done;
        c += done;
        J -= done;
    }
    for (int64_t s0 = 0; s0 < S; s0 += TN_DEPTH) {
        int64_t sc = S - s0 < TN_DEPTH ? S - s0 : TN_DEPTH;
        for (int64_t i0 = 0; i0 < I; i0 += TN_ROWS_PACKED) {
            int64_t ic = I - i0 < TN_ROWS_PACKED ? I - i0 : TN_ROWS_PACKED;
            for (int64_t i = 0; i < ic; i += TN_ROWS)
                tn_pack(TN_ROWS, a + s0 * lda + i0 + i, lda, sc, ic - i, pa + i * sc);
            for (int64_t j = 0; j < J; j += TN_COLS) {
                int64_t jc = J - j < TN_COLS ? J - j : TN_COLS;
                tn_pack(TN_COLS, b + s0 * ldb + j, ldb, sc, jc, pb);
                for (int64_t i = 0; i < ic; i += TN_ROWS) {
                    float *to = c + (i0 + i) * ldc + j;
                    if (ic - i >= TN_ROWS && jc == TN_COLS)
                        tn_block(pa + i * sc, pb, sc, to, ldc);
                    else
                        tn_edge(pa + i * sc, pb, sc, to, ldc, ic - i < TN_ROWS ? ic - i : TN_ROWS,
                                jc);
                }
            }
        }
    }
}

static void scale_f16(const float *x, const uint16_t *h, int64_t n, float *out)
{
    int64_t i = 0;
    for (; i + VF_W <= n; i += VF_W)
        vf_store(out + i, vf_mul(vf_load(x + i), vf_load_f16(h + i)));
    for (; i < n; i++)
        out[i] = x[i] * kd_f16_f32(h[i]);
}

static void hadamard(const float *x, float *out, int64_t blocks)
{
    enum { REGS = 128 / VF_W };
    const vf scale = vf_set1(0x1.6a09e6p-4f);
    for (int64_t b = 0; b < blocks; b++, x += 128, out += 128) {
        vf v[REGS];
#pragma GCC unroll 32
        for (int i = 0; i < REGS; i++) {
            v[i] = vf_load(x + i * VF_W);
#pragma GCC unroll 32
            for (int h = 1; h < VF_W; h *= 2)
                v[i] = vf_butterfly(v[i], h);
        }
#pragma GCC unroll 32
        for (int h = 1; h < REGS; h *= 2)
#pragma GCC unroll 32
            for (int i = 0; i < REGS; i++)
                if (!(i & h)) {
                    vf p = v[i], q = v[i + h];
                    v[i] = vf_add(p, q);
                    v[i + h] = vf_sub(p, q);
                }
#pragma GCC unroll 32
        for (int i = 0; i < REGS; i++)
            vf_store(out + i * VF_W, vf_mul(v[i], scale));
    }
}

/* `regs` registers of value channels, from S and v on. The decay is multiplied twice rather than
 * stored once: the state is read twice and written once. */
KD_INLINE void kda_cols(const int regs, float *S, const float *q, const float *k, const float *v,
                        const float *alpha, float beta, int64_t dk, int64_t dv, float *out)
{
    enum { REGS_MAX = 8 };
    vf r[REGS_MAX], o[REGS_MAX], d[REGS_MAX];
#pragma GCC unroll 32
    for (int c = 0; c < regs; c++)
        r[c] = o[c] = vf_zero();
    for (int64_t i = 0; i < dk; i++) {
        vf a = vf_set1(alpha[i]), ki = vf_set1(k[i]);
#pragma GCC unroll 32
        for (int c = 0; c < regs; c++)
            r[c] = vf_fma(ki, vf_mul(vf_load(S + i * dv + c * VF_W), a), r[c]);
    }
#pragma GCC unroll 32
    for (int c = 0; c < regs; c++)
        d[c] = vf_mul(vf_set1(beta), vf_sub(vf_load(v + c * VF_W), r[c]));
    for (int64_t i = 0; i < dk; i++) {
        vf a = vf_set1(alpha[i]), ki = vf_set1(k[i]), qi = vf_set1(q[i]);
#pragma GCC unroll 32
        for (int c = 0; c < regs; c++) {
            float *s = S + i * dv + c * VF_W;
            vf n = vf_fma(ki, d[c], vf_mul(vf_load(s), a));
            vf_store(s, n);
            o[c] = vf_fma(qi, n, o[c]);
        }
    }
#pragma GCC unroll 32
    for (int c = 0; c < regs; c++)
        vf_store(out + c * VF_W, o[c]);
}

static void kda_step(float *S, const float *q, const float *k, const float *v, const float *alpha,
                     float beta, int64_t dk, int64_t dv, float *out)
{
    int64_t j = 0;
    if (VF_W == 16) /* with 32 registers: a whole row of K3's state, which lies in one piece */
        for (; j + 8 * VF_W <= dv; j += 8 * VF_W)
            kda_cols(8, S + j, q, k, v + j, alpha, beta, dk, dv, out + j);
    for (; j + 4 * VF_W <= dv; j += 4 * VF_W)
        kda_cols(4, S + j, q, k, v + j, alpha, beta, dk, dv, out + j);
    for (; j + VF_W <= dv; j += VF_W)
        kda_cols(1, S + j, q, k, v + j, alpha, beta, dk, dv, out + j);
    for (; j < dv; j++) {
        float r = 0, o = 0;
        for (int64_t i = 0; i < dk; i++)
            r = __builtin_fmaf(k[i], S[i * dv + j] * alpha[i], r);
        float d = beta * (v[j] - r);
        for (int64_t i = 0; i < dk; i++) {
            float *s = S + i * dv + j;
            *s = __builtin_fmaf(k[i], d, *s * alpha[i]);
            o = __builtin_fmaf(q[i], *s, o);
        }
        out[j] = o;
    }
}

static void set_tn(struct kd_kern *k)
{
    k->gemm_tn = gemm_tn;
    k->scale_f16 = scale_f16;
    k->hadamard = hadamard;
    k->kda_step = kda_step;
}
