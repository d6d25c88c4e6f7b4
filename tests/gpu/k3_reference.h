/* What the kernels of gpu/k3_ops.h are held against, in plain C++: the CPU's operations where their
 * bits are promised, double precision where a bound is. */
#ifndef KD_TESTS_GPU_K3_REFERENCE_H
#define KD_TESTS_GPU_K3_REFERENCE_H

extern "C" {
#include "gpu/k3_ops.h"
#include "kern/kern.h"
}
#include "num/elem_math.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

typedef std::vector<float> floats;

/* Reproducible values in [-1, 1). */
struct values {
    uint64_t z;
    explicit values(uint64_t seed) : z(seed * 0x9E3779B97F4A7C15ull + 88172645463325252ull)
    {
    }
    float next()
    {
        z ^= z << 13;
        z ^= z >> 7;
        z ^= z << 17;
        return (float)((double)(z >> 11) * (2.0 / 9007199254740992.0) - 1.0);
    }
    floats some(size_t n, float scale = 1, float middle = 0)
    {
        floats v(n);
        for (float &x : v)
            x = middle + scale * next();
        return v;
    }
};

static inline size_t bits_differ(const floats &a, const floats &b)
{
    size_t n = a.size() != b.size();
    for (size_t i = 0; i < a.size() && i < b.size(); i++)
        n += memcmp(&a[i], &b[i], 4) != 0;
    return n;
}

/* Largest difference over the largest value. */
static inline double apart(const floats &a, const std::vector<double> &want)
{
    double most = 0, d = 0;
    for (size_t i = 0; i < want.size(); i++) {
        most = std::max(most, std::fabs(want[i]));
        d = std::isfinite(a[i]) ? std::max(d, std::fabs(a[i] - want[i])) : INFINITY;
    }
    return d / most;
}

/* One mix in double precision; p and the banks as the kernel finds them. */
static inline std::vector<double> mix_want(const kd_gpu_k3_mix &m, floats *p_after,
                                           floats *bank_after)
{
    const int64_t n = m.hidden;
    std::vector<double> out((size_t)(m.rows * n));
    for (int64_t r = 0; r < m.rows; r++) {
        const int64_t row = m.pick ? m.pick[r] : r;
        floats p(m.p + row * n, m.p + (row + 1) * n);
        std::vector<const float *> v;
        for (int b = 0; b < m.banks; b++)
            v.push_back(m.bank + (b * m.bank_rows + row) * n);
        floats old = p;
        for (int64_t i = 0; m.add && i < n; i++) {
            float a = m.more ? m.add[row * n + i] + m.more[row * n + i] : m.add[row * n + i];
            p[(size_t)i] = m.replace ? a : p[(size_t)i] + a;
        }
        if (m.push) {
            std::copy(old.begin(), old.end(),
                      bank_after->begin() + (m.banks * m.bank_rows + row) * n);
            v.push_back(old.data());
        }
        std::copy(p.begin(), p.end(), p_after->begin() + row * n);
        std::vector<double> mixed(p.begin(), p.end());
        if (m.query && !v.empty()) {
            v.push_back(p.data());
            std::vector<double> score;
            for (const float *c : v) {
                double vv = 0, vq = 0;
                for (int64_t i = 0; i < n; i++) {
                    vv += (double)c[i] * c[i];
                    vq += (double)c[i] * m.query[i];
                }
                score.push_back(vq / std::sqrt(vv / (double)n + m.eps));
            }
            double best = *std::max_element(score.begin(), score.end()), sum = 0;
            for (double &s : score)
                sum += s = std::exp(s - best);
            for (int64_t i = 0; i < n; i++) {
                mixed[(size_t)i] = 0;
                for (size_t c = 0; c < v.size(); c++)
                    mixed[(size_t)i] += score[c] / sum * v[c][i];
            }
        }
        double square = 0;
        for (double x : mixed)
            square += x * x;
        for (int64_t i = 0; i < n; i++)
            out[(size_t)(r * n + i)] =
                mixed[(size_t)i] / std::sqrt(square / (double)n + m.eps) * m.norm[i];
    }
    return out;
}

/* KDA a token at a time by the CPU's kernels, from and to host states. */
static inline void kda_want(const kd_kern &k, const kd_gpu_k3_kda &a, const kd_gpu_k3_seg &seg,
                            float *y)
{
    enum { D = KD_GPU_K3_DIM, W = KD_GPU_K3_TAPS };
    const int64_t ch = a.heads * D;
    float *S = seg.kda + a.state, *conv = S + a.heads * D * D;
    const float *raw[3] = {a.q, a.k, a.v}, *taps[3] = {a.q_conv, a.k_conv, a.v_conv};
    for (int64_t t = seg.first; t < seg.first + seg.count; t++)
        for (int64_t h = 0; h < a.heads; h++) {
            float in[3][D], alpha[D], gate[D], o[D];
            for (int s = 0; s < 3; s++)
                for (int c = 0; c < D; c++) {
                    float *x = conv + s * (W - 1) * ch + h * D + c, sum;
                    const float *w = taps[s] + (h * D + c) * W, now = raw[s][t * ch + h * D + c];
                    sum = w[0] * x[0];
                    sum += w[1] * x[ch];
                    sum += w[2] * x[2 * ch];
                    sum += w[3] * now;
                    in[s][c] = sum;
                    x[0] = x[ch];
                    x[ch] = x[2 * ch];
                    x[2 * ch] = now;
                }
            for (int s = 0; s < 3; s++)
                k.silu(in[s], in[s], D);
            float iq = 1.0f / sqrtf(k.dot(in[0], in[0], D) + 1e-6f),
                  ik = 1.0f / sqrtf(k.dot(in[1], in[1], D) + 1e-6f);
            for (int c = 0; c < D; c++) {
                in[0][c] = in[0][c] * iq * (1.0f / sqrtf((float)D));
                in[1][c] = in[1][c] * ik * 1.0f;
                alpha[c] = (a.z[t * ch + h * D + c] + a.dt_bias[h * D + c]) * a.decay[h];
            }
            k.sigmoid(alpha, alpha, D);
            for (float &x : alpha)
                x *= a.lower_bound;
            k.exp(alpha, alpha, D);
            float beta = a.beta[t * a.heads + h];
            k.sigmoid(&beta, &beta, 1);
            k.kda_step(S + h * D * D, in[0], in[1], in[2], alpha, beta, D, D, o);
            k.rmsnorm(o, a.o_norm, a.eps, D, o);
            k.sigmoid(a.gate + t * ch + h * D, gate, D);
            for (int c = 0; c < D; c++)
                y[t * ch + h * D + c] = o[c] * gate[c];
        }
}

/* Attention of one row over a host cache of rows, in double precision, kv_b as floats. */
static inline void mla_want(const kd_gpu_k3_mla &m, const float *const *page, int64_t row,
                            int64_t positions, const floats &kv_b, double *y)
{
    enum { D = KD_GPU_K3_DIM, R = KD_GPU_K3_ROPE };
    const int64_t w = m.kv_lora + R;
    for (int64_t h = 0; h < m.heads; h++) {
        const float *q = m.q + (row * m.heads + h) * (D + R);
        std::vector<double> latent((size_t)w, 0.0), score, context((size_t)m.kv_lora, 0.0);
        for (int64_t d = 0; d < D; d++)
            for (int64_t c = 0; c < m.kv_lora; c++)
                latent[(size_t)c] += (double)q[d] * kv_b[(size_t)((h * 2 * D + d) * m.kv_lora + c)];
        for (int64_t c = 0; c < R; c++)
            latent[(size_t)(m.kv_lora + c)] = q[D + c];
        auto at = [&](int64_t s) {
            return page[s / KD_GPU_K3_PAGE] + m.page + s % KD_GPU_K3_PAGE * w;
        };
        double best = -INFINITY, sum = 0;
        for (int64_t s = 0; s < positions; s++) {
            double x = 0;
            for (int64_t c = 0; c < w; c++)
                x += latent[(size_t)c] * at(s)[c];
            score.push_back(x / std::sqrt((double)(D + R)));
            best = std::max(best, score.back());
        }
        for (int64_t s = 0; s < positions; s++) {
            const double e = std::exp(score[(size_t)s] - best);
            sum += e;
            for (int64_t c = 0; c < m.kv_lora; c++)
                context[(size_t)c] += e * at(s)[c];
        }
        for (int64_t d = 0; d < D; d++) {
            double x = 0;
            for (int64_t c = 0; c < m.kv_lora; c++)
                x += context[(size_t)c] / sum * kv_b[(size_t)((h * 2 * D + D + d) * m.kv_lora + c)];
            y[h * D + d] = x / (1 + std::exp(-(double)m.gate[(row * m.heads + h) * D + d]));
        }
    }
}

/* The router of one row: a plain sort. */
static inline void route_want(const kd_kern &k, const kd_gpu_k3_route &a, int64_t row, int32_t *ids,
                              float *w)
{
    floats s(a.logits + row * a.experts, a.logits + (row + 1) * a.experts), b(s.size());
    std::vector<int32_t> order(s.size());
    k.sigmoid(s.data(), s.data(), a.experts);
    for (size_t e = 0; e < s.size(); e++) {
        b[e] = s[e] + a.bias[e];
        b[e] = b[e] == b[e] ? b[e] : -INFINITY;
        order[e] = (int32_t)e;
    }
    std::sort(order.begin(), order.end(), [&](int32_t x, int32_t y) {
        return b[(size_t)x] > b[(size_t)y] || (b[(size_t)x] == b[(size_t)y] && x < y);
    });
    float sum = 0;
    for (int64_t i = 0; i < a.used; i++)
        sum += s[(size_t)order[(size_t)i]];
    for (int64_t i = 0; i < a.topk; i++) {
        const bool there = i < a.used;
        const float x = there ? s[(size_t)order[(size_t)i]] : 0.0f;
        ids[i] = there ? order[(size_t)i] : -1;
        w[i] = there ? (a.renormalize ? x / (sum + 1e-20f) : x) * a.scale : 0.0f;
    }
}

#endif
