/* Kimi Delta Attention: recurrence for single tokens, chunks of up to 64 for more (k3-model 3.4 and
 * 4.2; docs/numerics.md, Model). Heads are independent: one item of work is one head of one
 * segment. */
#include "base/mem.h"
#include "model/k3_int.h"
#include "num/elem_math.h"

#include <math.h>
#include <string.h>

enum { SUB = 16 }; /* rows of a block in the triangular solve */

/* One worker's arrays; D = head width, C = chunk. */
struct scratch {
    float *q, *k, *v, *g;  /* [C][D]; g: log decay of each token */
    float *left, *rk, *rq; /* [C][D] */
    float *ex;             /* [C][D] */
    float *kq;             /* [D][2C]: decayed k and q, transposed */
    float *p;              /* [2C][D] */
    float *lt, *at;        /* [C][C]: L and A of 4.2, transposed */
};

struct kda_job {
    const struct kd_kern *kern;
    const struct kd_k3_cfg *c;
    const struct kd_k3_layer *L;
    const float *q, *k, *v, *gate, *z, *beta; /* [T][heads * D], beta [T][heads] */
    const float *ea;                          /* [heads] exp(A_log) */
    const struct kd_k3_seg *segs;
    float *y;
    float *mem;
    int64_t mem_each;
};

static int64_t scratch_floats(int64_t D)
{
    return 12 * KD_K3_CHUNK * D + 2 * KD_K3_CHUNK * KD_K3_CHUNK;
}

static struct scratch scratch_of(const struct kda_job *j, int worker)
{
    float *m = j->mem + worker * j->mem_each;
    int64_t step = KD_K3_CHUNK * j->c->kda_dim;
    return (struct scratch){.q = m,
                            .k = m + step,
                            .v = m + 2 * step,
                            .g = m + 3 * step,
                            .left = m + 4 * step,
                            .rk = m + 5 * step,
                            .rq = m + 6 * step,
                            .ex = m + 7 * step,
                            .kq = m + 8 * step,
                            .p = m + 10 * step,
                            .lt = m + 12 * step,
                            .at = m + 12 * step + KD_K3_CHUNK * KD_K3_CHUNK};
}

void kd_k3_softplus(const struct kd_kern *k, const float *x, float *tmp, float *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        tmp[i] = x[i] < 0.0f ? x[i] : -x[i];
    k->exp(tmp, tmp, n);
    for (int64_t i = 0; i < n; i++)
        out[i] = kd_softplus1(x[i], tmp[i]);
}

/* Four taps, K3's: no pointer may change what another reads, so this becomes vector code. */
static void conv4(const float *restrict w, const float *restrict x0, const float *restrict x1,
                  const float *restrict x2, const float *restrict x3, int64_t n,
                  float *restrict out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] =
            w[4 * i] * x0[i] + w[4 * i + 1] * x1[i] + w[4 * i + 2] * x2[i] + w[4 * i + 3] * x3[i];
}

void kd_k3_conv(const struct kd_kern *k, const float *w, int64_t taps, const float *const *x,
                int64_t n, float *out)
{
    if (taps == 4) {
        conv4(w, x[0], x[1], x[2], x[3], n, out);
    } else {
        for (int64_t i = 0; i < n; i++)
            out[i] = w[i * taps] * x[0][i];
        for (int64_t tap = 1; tap < taps; tap++)
            for (int64_t i = 0; i < n; i++)
                out[i] += w[i * taps + tap] * x[tap][i];
    }
    k->silu(out, out, n);
}

/* Convolution of one head and stream at token t of a segment. */
static void conv_row(const struct kda_job *j, const struct kd_k3_seg *seg, int stream,
                     const float *raw, const float *w, int64_t h, int64_t t, float *out)
{
    int64_t D = j->c->kda_dim, W = j->c->conv, ch = j->L->heads * D;
    const float *x[KD_K3_CONV_MAX];
    int64_t tap = 0;
    do { /* W is at least 1 */
        int64_t at = t - (W - 1) + tap;
        x[tap] = at >= 0 ? raw + (seg->first + at) * ch + h * D
                         : seg->state->conv + (stream * (W - 1) + W - 1 + at) * ch + h * D;
    } while (++tap < W);
    kd_k3_conv(j->kern, w + h * D * W, W, x, D, out);
}

void kd_k3_decay(const struct kd_kern *k, const struct kd_k3_cfg *c, const float *z,
                 const float *dt_bias, float ea, float *tmp, float *g)
{
    int64_t n = c->kda_dim;
    for (int64_t i = 0; i < n; i++)
        tmp[i] = z[i] + dt_bias[i];
    if (c->bounded_gate) {
        for (int64_t i = 0; i < n; i++)
            tmp[i] *= ea;
        k->sigmoid(tmp, g, n);
    } else {
        kd_k3_softplus(k, tmp, tmp + n, g, n);
    }
    float scale = c->bounded_gate ? c->gate_lower_bound : -ea;
    for (int64_t i = 0; i < n; i++)
        g[i] *= scale;
}

static void scale_to_unit(const struct kd_kern *k, float *x, int64_t n, float times)
{
    float s = 1.0f / sqrtf(k->dot(x, x, n) + 1e-6f);
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] * s * times;
}

/* q, k, v and log decay of token t into row `row` of the scratch. */
static void token_inputs(const struct kda_job *j, const struct kd_k3_seg *seg, int64_t h, int64_t t,
                         int64_t row, struct scratch *s)
{
    const struct kd_k3_layer *L = j->L;
    int64_t D = j->c->kda_dim, ch = L->heads * D;
    float *q = s->q + row * D, *k = s->k + row * D;
    conv_row(j, seg, 0, j->q, L->q_conv, h, t, q);
    conv_row(j, seg, 1, j->k, L->k_conv, h, t, k);
    conv_row(j, seg, 2, j->v, L->v_conv, h, t, s->v + row * D);
    scale_to_unit(j->kern, q, D, 1.0f / sqrtf((float)D));
    scale_to_unit(j->kern, k, D, 1.0f);
    const float *z = j->z + (seg->first + t) * ch + h * D, *dt = L->dt_bias + h * D;
    kd_k3_decay(j->kern, j->c, z, dt, j->ea[h], s->left, s->g + row * D);
}

/* y = RMS(o) * o_norm * sigmoid(gate) */
static void token_output(const struct kda_job *j, const struct kd_k3_seg *seg, int64_t h, int64_t t,
                         const float *o, float *tmp)
{
    int64_t D = j->c->kda_dim, at = (seg->first + t) * j->L->heads * D + h * D;
    float *y = j->y + at;
    j->kern->sigmoid(j->gate + at, tmp, D);
    j->kern->rmsnorm(o, j->L->o_norm, j->c->eps, D, y);
    for (int64_t d = 0; d < D; d++)
        y[d] *= tmp[d];
}

/* out[i] = x[i] * exp(sum of g over (i, hi) ) for rows lo..hi-1, going down: the decay from token i
 * to the end of token hi-1. Sums start at the near end, so they stay small where they matter. */
static void decay_down(const struct kd_kern *k, const float *x, const float *g, int64_t lo,
                       int64_t hi, int64_t D, float *ex, float *out)
{
    memset(ex + (hi - 1) * D, 0, (size_t)D * sizeof *ex);
    for (int64_t i = hi - 2; i >= lo; i--)
        for (int64_t d = 0; d < D; d++)
            ex[i * D + d] = ex[(i + 1) * D + d] + g[(i + 1) * D + d];
    k->exp(ex + lo * D, ex + lo * D, (hi - lo) * D);
    for (int64_t i = lo * D; i < hi * D; i++)
        out[i] = x[i] * ex[i];
}

/* ex[i] = exp(sum of g over [lo, i]). */
static void decay_up(const struct kd_kern *k, const float *g, int64_t lo, int64_t hi, int64_t D,
                     float *ex)
{
    memcpy(ex + lo * D, g + lo * D, (size_t)D * sizeof *ex);
    for (int64_t i = lo + 1; i < hi; i++)
        for (int64_t d = 0; d < D; d++)
            ex[i * D + d] = ex[(i - 1) * D + d] + g[i * D + d];
    k->exp(ex + lo * D, ex + lo * D, (hi - lo) * D);
}

/* lt[j][i] = k_j . k_i e^(G_i - G_j), at[j][i] the same with q_i, for lo <= j < i < hi: halves,
 * with the end of the left half as reference, so that no exponent is ever positive, whatever the
 * gate. */
static void pairs(const struct kd_kern *k, int64_t lo, int64_t hi, int64_t n, int64_t D,
                  struct scratch *s)
{
    if (hi - lo == 1) {
        s->at[lo * n + lo] = k->dot(s->q + lo * D, s->k + lo * D, D);
        return;
    }
    int64_t mid = (lo + hi) / 2;
    decay_down(k, s->k, s->g, lo, mid, D, s->ex, s->left);
    decay_up(k, s->g, mid, hi, D, s->ex);
    for (int64_t i = mid * D; i < hi * D; i++) {
        s->rk[i] = s->k[i] * s->ex[i];
        s->rq[i] = s->q[i] * s->ex[i];
    }
    k->mm_f32(s->rk + mid * D, D, hi - mid, D, s->left + lo * D, D, mid - lo, s->lt + lo * n + mid,
              n);
    k->mm_f32(s->rq + mid * D, D, hi - mid, D, s->left + lo * D, D, mid - lo, s->at + lo * n + mid,
              n);
    pairs(k, lo, mid, n, D, s);
    pairs(k, mid, hi, n, D, s);
}

/* (I + L) V = diag(beta) (v - decayed k S) by forward substitution, in place in s->v. */
static void solve(const struct kd_kern *k, int64_t n, int64_t D, const float *beta, int64_t ld_beta,
                  struct scratch *s)
{
    for (int64_t i = 0; i < n; i++) {
        float b = beta[i * ld_beta];
        for (int64_t d = 0; d < D; d++)
            s->v[i * D + d] = b * (s->v[i * D + d] - s->p[i * D + d]);
        for (int64_t j = 0; j < i; j++)
            s->lt[j * n + i] *= -b;
    }
    for (int64_t i0 = 0; i0 < n; i0 += SUB) {
        int64_t rows = n - i0 < SUB ? n - i0 : SUB;
        if (i0)
            k->gemm_tn(s->lt + i0, n, s->v, D, i0, rows, D, s->v + i0 * D, D);
        for (int64_t i = i0 + 1; i < i0 + rows; i++)
            k->gemm_tn(s->lt + i0 * n + i, n, s->v + i0 * D, D, i - i0, 1, D, s->v + i * D, D);
    }
}

/* n tokens whose inputs are in the scratch; outputs in s->p rows n..2n-1. */
static void chunk(const struct kd_kern *k, int64_t n, int64_t D, const float *beta, int64_t ld_beta,
                  float *S, struct scratch *s)
{
    decay_up(k, s->g, 0, n, D, s->ex);
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < D; d++) {
            s->kq[d * 2 * n + i] = s->k[i * D + d] * s->ex[i * D + d];
            s->kq[d * 2 * n + n + i] = s->q[i * D + d] * s->ex[i * D + d];
        }
    memset(s->p, 0, (size_t)(2 * n * D) * sizeof *s->p);
    k->gemm_tn(s->kq, 2 * n, S, D, D, 2 * n, D, s->p, D);
    /* S decays over the whole chunk: e^(G_n), the last row of ex. */
    memcpy(s->kq, s->ex + (n - 1) * D, (size_t)D * sizeof *s->kq);
    memset(s->at, 0, (size_t)(n * n) * sizeof *s->at);
    pairs(k, 0, n, n, D, s);
    solve(k, n, D, beta, ld_beta, s);
    for (int64_t i0 = 0; i0 < n; i0 += SUB) {
        int64_t rows = n - i0 < SUB ? n - i0 : SUB;
        k->gemm_tn(s->at + i0, n, s->v, D, i0 + rows, rows, D, s->p + (n + i0) * D, D);
    }
    for (int64_t i = 0; i < D; i++)
        for (int64_t d = 0; d < D; d++)
            S[i * D + d] *= s->kq[i];
    decay_down(k, s->k, s->g, 0, n, D, s->ex, s->left);
    k->gemm_tn(s->left, D, s->v, D, n, D, D, S, D);
}

/* The last conv-1 raw rows become the state. */
static void keep_conv(const struct kda_job *j, const struct kd_k3_seg *seg, int64_t h)
{
    int64_t D = j->c->kda_dim, W = j->c->conv, ch = j->L->heads * D;
    const float *const raw[3] = {j->q, j->k, j->v};
    for (int s = 0; s < 3; s++)
        for (int64_t i = 0; i < W - 1; i++) { /* ascending: sources lie at or after their places */
            int64_t at = seg->count - (W - 1) + i;
            float *to = seg->state->conv + (s * (W - 1) + i) * ch + h * D;
            const float *from = at >= 0
                                    ? raw[s] + (seg->first + at) * ch + h * D
                                    : seg->state->conv + (s * (W - 1) + W - 1 + at) * ch + h * D;
            memcpy(to, from, (size_t)D * sizeof *to);
        }
}

/* A draft's way back: the head's state before it, and each token's raw rows. */
static void undo_begin(const struct kda_job *j, const struct kd_k3_seg *seg, int64_t h,
                       const struct kd_k3_undo *u)
{
    int64_t D = j->c->kda_dim, W = j->c->conv, ch = j->L->heads * D;
    const float *const raw[3] = {j->q, j->k, j->v};
    memcpy(u->S + h * D * D, seg->state->S + h * D * D, (size_t)(D * D) * sizeof(float));
    for (int64_t i = 0; i < 3 * (W - 1); i++)
        memcpy(u->conv + i * ch + h * D, seg->state->conv + i * ch + h * D,
               (size_t)D * sizeof(float));
    for (int s = 0; s < 3; s++)
        for (int64_t t = 0; t < seg->count; t++)
            memcpy(u->raw[s] + t * ch + h * D, raw[s] + (seg->first + t) * ch + h * D,
                   (size_t)D * sizeof(float));
}

static void undo_token(const struct kda_job *j, const struct scratch *s, int64_t h, int64_t t,
                       float beta, const struct kd_k3_undo *u)
{
    int64_t D = j->c->kda_dim, at = t * j->L->heads * D + h * D;
    memcpy(u->k + at, s->k, (size_t)D * sizeof(float));
    memcpy(u->v + at, s->v, (size_t)D * sizeof(float));
    memcpy(u->alpha + at, s->g, (size_t)D * sizeof(float));
    u->beta[t * j->L->heads + h] = beta;
}

void kd_k3_kda_replay(const struct kd_kern *k, const struct kd_k3_cfg *c, int64_t heads,
                      struct kd_k3_state *s, int64_t h, int64_t kept)
{
    const struct kd_k3_undo u = kd_k3_undo_of(s, c, heads);
    int64_t D = c->kda_dim, W = c->conv, ch = heads * D;
    float *S = s->S + h * D * D;
    memcpy(S, u.S + h * D * D, (size_t)(D * D) * sizeof(float));
    for (int64_t t = 0; t < kept; t++) {
        int64_t at = t * ch + h * D;
        k->kda_step(S, u.k + at, u.k + at, u.v + at, u.alpha + at, u.beta[t * heads + h], D, D,
                    u.out + h * D);
    }
    for (int i = 0; i < 3; i++)
        for (int64_t n = 0; n < W - 1; n++) {
            int64_t at = kept - (W - 1) + n;
            const float *from = at >= 0 ? u.raw[i] + at * ch + h * D
                                        : u.conv + (i * (W - 1) + W - 1 + at) * ch + h * D;
            memcpy(s->conv + (i * (W - 1) + n) * ch + h * D, from, (size_t)D * sizeof(float));
        }
}

static void head_item(void *ctx, int64_t item, int worker)
{
    const struct kda_job *j = ctx;
    int64_t heads = j->L->heads, D = j->c->kda_dim, h = item % heads;
    const struct kd_k3_seg *seg = &j->segs[item / heads];
    struct scratch s = scratch_of(j, worker);
    float *S = seg->state->S + h * D * D;
    struct kd_k3_undo undo = {0};
    if (seg->draft) {
        undo = kd_k3_undo_of(seg->state, j->c, heads);
        undo_begin(j, seg, h, &undo);
    }
    int64_t t = 0;
    while (t < seg->count) {
        int64_t n = seg->draft ? 1 : KD_K3_CHUNK - (seg->state->pos + t) % KD_K3_CHUNK;
        n = n < seg->count - t ? n : seg->count - t;
        const float *beta = j->beta + (seg->first + t) * heads + h;
        for (int64_t i = 0; i < n; i++)
            token_inputs(j, seg, h, t + i, i, &s);
        float *o = s.p + n * D;
        if (n == 1) {
            j->kern->exp(s.g, s.g, D);
            if (seg->draft)
                undo_token(j, &s, h, t, *beta, &undo);
            j->kern->kda_step(S, s.q, s.k, s.v, s.g, *beta, D, D, o);
        } else {
            chunk(j->kern, n, D, beta, heads, S, &s);
        }
        for (int64_t i = 0; i < n; i++)
            token_output(j, seg, h, t + i, o + i * D, s.ex);
        t += n;
    }
    keep_conv(j, seg, h);
}

/* All projections of x: q, k, v, gate, z [T][ch], beta [T][heads]. */
static int project(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
                   const float *x, int64_t T, float *buf, struct kda_job *j, struct kd_err *err)
{
    int64_t ch = L->heads * c->kda_dim, hid = c->hidden;
    float *q = buf, *k = q + T * ch, *v = k + T * ch, *gate = v + T * ch, *z = gate + T * ch;
    float *fa = z + T * ch, *beta = fa + T * c->kda_dim;
    const struct kd_mat_job jobs[] = {{&L->q, x, hid, T, q, ch},
                                      {&L->k, x, hid, T, k, ch},
                                      {&L->v, x, hid, T, v, ch},
                                      {&L->g, x, hid, T, gate, ch},
                                      {&L->f_a, x, hid, T, fa, c->kda_dim},
                                      {&L->b, x, hid, T, beta, L->heads}};
    if (kd_mat_mul_many(r, jobs, 6, err) || kd_mat_mul(r, &L->f_b, fa, c->kda_dim, T, z, ch, err))
        return -1;
    r->kern->sigmoid(beta, beta, T * L->heads);
    j->q = q;
    j->k = k;
    j->v = v;
    j->gate = gate;
    j->z = z;
    j->beta = beta;
    return 0;
}

int kd_k3_kda_core(const struct kd_run *r, const struct kd_k3_cfg *c, const struct kd_k3_layer *L,
                   const float *x, int64_t T, const struct kd_k3_seg *segs, int64_t seg_count,
                   float *y, struct kd_err *err)
{
    if (c->conv < 1 || c->conv > KD_K3_CONV_MAX)
        return kd_fail(err, KD_ENOTSUP, "a convolution of %lld taps: 1 to %d", (long long)c->conv,
                       KD_K3_CONV_MAX);
    int64_t ch = L->heads * c->kda_dim, threads = kd_pool_threads(r->pool);
    struct kda_job j = {.kern = r->kern,
                        .c = c,
                        .L = L,
                        .segs = segs,
                        .y = y,
                        .mem_each = scratch_floats(c->kda_dim)};
    float *buf;
    int64_t floats = T * (5 * ch + c->kda_dim + L->heads) + threads * j.mem_each;
    if (kd_mem_new(&buf, floats, sizeof *buf, "KDA scratch", err))
        return -1;
    j.mem = buf;
    j.ea = L->decay;
    int rc = project(r, c, L, x, T, buf + threads * j.mem_each, &j, err);
    for (int64_t i = 0; i < seg_count && !rc; i++)
        rc = segs[i].draft ? kd_k3_undo_reserve(segs[i].state, c, L->heads, err) : 0;
    if (!rc) {
        kd_pool_run(r->pool, seg_count * L->heads, head_item, &j);
        for (int64_t i = 0; i < seg_count; i++)
            segs[i].state->pos += segs[i].count;
    }
    kd_mem_free(buf);
    return rc;
}
