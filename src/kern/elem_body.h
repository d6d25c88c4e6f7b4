/* The elementwise kernels, compiled once for each instruction set: the including file has that
 * set's flags and defines KD_DOT(x, y, n), its DOT16 product. Every operation is correctly rounded,
 * so all copies give the same bits. Blocks of 64 go through a local array: it tells the compiler
 * that in-place calls are fine, and tails run the same vector code on zeros. */
#include "kern/kern.h"
#include "num/elem_math.h"

#include <string.h>

enum { ELEM_BLOCK = 64 };

#define KD_ELEM_MAP(name, fn)                                                                      \
    static void name(const float *x, float *out, int64_t n)                                        \
    {                                                                                              \
        float t[ELEM_BLOCK];                                                                       \
        int64_t i = 0;                                                                             \
        for (; i + ELEM_BLOCK <= n; i += ELEM_BLOCK) {                                             \
            for (int j = 0; j < ELEM_BLOCK; j++)                                                   \
                t[j] = fn(x[i + j]);                                                               \
            memcpy(out + i, t, sizeof t);                                                          \
        }                                                                                          \
        if (i == n)                                                                                \
            return;                                                                                \
        memset(t, 0, sizeof t);                                                                    \
        memcpy(t, x + i, (size_t)(n - i) * sizeof *t);                                             \
        for (int j = 0; j < ELEM_BLOCK; j++)                                                       \
            t[j] = fn(t[j]);                                                                       \
        memcpy(out + i, t, (size_t)(n - i) * sizeof *t);                                           \
    }
KD_ELEM_MAP(elem_exp, kd_exp1)
KD_ELEM_MAP(elem_sigmoid, kd_sigmoid1)
KD_ELEM_MAP(elem_silu, kd_silu1)
#undef KD_ELEM_MAP

static void situ_block(const float *g, const float *u, float beta, float linear, float *out)
{
    float t[ELEM_BLOCK];
    for (int j = 0; j < ELEM_BLOCK; j++)
        t[j] = beta * kd_tanh1(g[j] / beta) * kd_sigmoid1(g[j]);
    if (linear > 0.0f)
        for (int j = 0; j < ELEM_BLOCK; j++)
            t[j] *= linear * kd_tanh1(u[j] / linear);
    else
        for (int j = 0; j < ELEM_BLOCK; j++)
            t[j] *= u[j];
    memcpy(out, t, sizeof t);
}

static void elem_situ(const float *g, const float *u, float beta, float linear, float *out,
                      int64_t n)
{
    int64_t i = 0;
    for (; i + ELEM_BLOCK <= n; i += ELEM_BLOCK)
        situ_block(g + i, u + i, beta, linear, out + i);
    if (i == n)
        return;
    float a[ELEM_BLOCK] = {0}, b[ELEM_BLOCK] = {0};
    size_t bytes = (size_t)(n - i) * sizeof *a;
    memcpy(a, g + i, bytes);
    memcpy(b, u + i, bytes);
    situ_block(a, b, beta, linear, a);
    memcpy(out + i, a, bytes);
}

static void elem_axpy(float a, const float *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = __builtin_fmaf(a, x[i], y[i]);
}

static void elem_rmsnorm(const float *x, const float *w, float eps, int64_t n, float *out)
{
    if (n <= 0)
        return;
    float scale = 1.0f / __builtin_sqrtf(KD_DOT(x, x, n) / (float)n + eps);
    float t[ELEM_BLOCK];
    int64_t i = 0;
    for (; i + ELEM_BLOCK <= n; i += ELEM_BLOCK) {
        for (int j = 0; j < ELEM_BLOCK; j++)
            t[j] = x[i + j] * scale;
        if (w)
            for (int j = 0; j < ELEM_BLOCK; j++)
                t[j] *= w[i + j];
        memcpy(out + i, t, sizeof t);
    }
    for (; i < n; i++)
        out[i] = w ? x[i] * scale * w[i] : x[i] * scale;
}

/* The pairwise fold of DOT16. */
static inline float fold16(const float *lane)
{
    float a[8];
    for (int l = 0; l < 8; l++)
        a[l] = lane[l] + lane[l + 8];
    for (int l = 0; l < 4; l++)
        a[l] += a[l + 4];
    return (a[0] + a[2]) + (a[1] + a[3]);
}

static void elem_softmax(float *x, int64_t n)
{
    if (n <= 0)
        return;
    float lane[16];
    for (int l = 0; l < 16; l++)
        lane[l] = x[0];
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int l = 0; l < 16; l++)
            lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    float max = lane[0];
    for (int l = 1; l < 16; l++)
        max = lane[l] > max ? lane[l] : max;
    for (; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (i = 0; i < n; i++)
        x[i] -= max;
    elem_exp(x, x, n);
    memset(lane, 0, sizeof lane);
    for (i = 0; i + 16 <= n; i += 16)
        for (int l = 0; l < 16; l++)
            lane[l] += x[i + l];
    for (int l = 0; i + l < n; l++)
        lane[l] += x[i + l];
    float sum = fold16(lane);
    for (i = 0; i < n; i++)
        x[i] /= sum;
}

static void set_elem(struct kd_kern *k)
{
    k->exp = elem_exp;
    k->sigmoid = elem_sigmoid;
    k->silu = elem_silu;
    k->situ = elem_situ;
    k->axpy = elem_axpy;
    k->rmsnorm = elem_rmsnorm;
    k->softmax = elem_softmax;
}
