/* Matrices for the tests of products on a device, and what the mode for decoding is to give. */
#ifndef KD_TESTS_GPU_PRODUCT_CHECK_H
#define KD_TESTS_GPU_PRODUCT_CHECK_H

extern "C" {
#include "kern/exl3_mul.h"
#include "num/exl3_ring.h"
}

#include "gpu/bits.h"

#include <math.h>
#include <string.h>

#include <vector>

static float gauss(void)
{
    float s = 0;
    for (int i = 0; i < 12; i++)
        s += (float)(bits() & 0xffffffu) / 16777216.0f;
    return s - 6.0f;
}

struct fixture {
    kd_rate rate;
    kd_codebook cb;
    int64_t rows, cols, R, C, T; /* outputs, inputs; padded; tokens */
    std::vector<uint8_t> tiles;
    std::vector<uint16_t> suh, svh;
    std::vector<float> x, y;
};

static void fixture_make(fixture *f, unsigned rate16, kd_codebook cb, int64_t rows, int64_t cols,
                         int64_t T)
{
    f->rate = kd_rate_from16(rate16);
    f->cb = cb;
    f->rows = rows;
    f->cols = cols;
    f->R = (rows + 127) / 128 * 128;
    f->C = (cols + 127) / 128 * 128;
    f->T = T;
    f->tiles.resize((size_t)(f->R * f->C / 256 * 2 * rate16));
    for (uint8_t &b : f->tiles)
        b = (uint8_t)bits();
    f->suh.resize((size_t)f->C);
    f->svh.resize((size_t)f->R);
    for (uint16_t &h : f->suh)
        h = kd_f32_f16((bits() & 1 ? 0.02f : -0.02f) * (1.0f + (float)(bits() & 15u) / 16.0f));
    for (uint16_t &h : f->svh)
        h = kd_f32_f16(bits() & 1 ? 1.25f : -0.75f);
    f->x.resize((size_t)(T * f->C));
    for (float &v : f->x)
        v = gauss();
    f->y.assign((size_t)(T * rows), 7.0f);
}

static inline kd_mat fixture_mat(const fixture *f)
{
    kd_mat m = {};
    m.type = KD_MAT_EXL3;
    m.rows = f->rows;
    m.cols = f->cols;
    m.data = f->tiles.data();
    m.ld = f->R / 16;
    m.rows_padded = f->R;
    m.cols_padded = f->C;
    m.suh = f->suh.data();
    m.svh = f->svh.data();
    m.rate = f->rate;
    m.cb = f->cb;
    return m;
}

/* The definition of the mode for decoding, one row. */
static inline void fast_row(const fixture *f, const kd_kern *kern, int64_t t, std::vector<float> *y)
{
    const int blocks = (int)(f->C / 128), chunks = (blocks + 7) / 8,
              warps = (blocks + chunks - 1) / chunks;
    std::vector<float> r((size_t)f->C, 0.0f), out((size_t)f->R, 0.0f);
    const int64_t bytes = kd_rate_tile_bytes(f->rate);

    for (int64_t i = 0; i < f->cols; i++)
        r[(size_t)i] = f->x[(size_t)(t * f->C + i)] * kd_f16_f32(f->suh[(size_t)i]);
    kern->hadamard(r.data(), r.data(), f->C / 128);
    for (int chunk = 0; chunk < chunks; chunk++) {
        const int64_t first = 128ll * chunk * warps,
                      last = first + 128 * warps < f->C ? first + 128 * warps : f->C;
        float most = 0;
        int32_t total = 0;
        std::vector<int32_t> q((size_t)f->C), sum((size_t)f->R, 0), part;
        for (int64_t i = first; i < last; i++)
            most = fmaxf(most, fabsf(r[(size_t)i]));
        for (int64_t i = first; i < last; i++)
            total += q[(size_t)i] =
                (int32_t)rintf(r[(size_t)i] * (most > 0 ? 32639.0f / most : 0.0f));
        for (int64_t b = first; b < last; b += 128) {
            part.assign((size_t)f->R, 0);
            for (int64_t k = b / 16; k < b / 16 + 8; k++)
                for (int64_t n = 0; n < f->R / 16; n++) {
                    uint16_t states[256];
                    kd_ring_states(&f->tiles[(size_t)((k * (f->R / 16) + n) * bytes)], f->rate,
                                   states);
                    for (unsigned p = 0; p < 256; p++) {
                        const uint32_t s = states[p] * 0x83DCD12Du;
                        part[(size_t)(16 * n + kd_tile_col(p))] +=
                            q[(size_t)(16 * k + kd_tile_row(p))] *
                            ((int)((s & 255u) + (s >> 8 & 255u) + (s >> 16 & 255u) + (s >> 24)) -
                             510);
                    }
                }
            for (int64_t n = 0; n < f->R; n++)
                sum[(size_t)n] += (part[(size_t)n] + 4) >> 3;
        }
        for (int64_t n = 0; n < f->R; n++) {
            const float v = fmaf((float)sum[(size_t)n], 7096.0f, -238.0f * (float)total) *
                            (most / 32639.0f * (1.0f / 131072.0f));
            out[(size_t)n] = chunk ? out[(size_t)n] + v : v;
        }
    }
    kern->hadamard(out.data(), out.data(), f->R / 128);
    y->resize((size_t)f->rows);
    for (int64_t n = 0; n < f->rows; n++)
        (*y)[(size_t)n] = out[(size_t)n] * kd_f16_f32(f->svh[(size_t)n]);
}

/* Root mean square of the difference, relative to `want`. */
static inline double relative(const std::vector<float> &want, const std::vector<float> &got)
{
    double square = 0, off = 0;

    for (size_t i = 0; i < want.size(); i++) {
        const double d = (double)want[i] - (double)got[i];
        square += (double)want[i] * (double)want[i];
        off += d * d;
    }
    return sqrt(off / square);
}

#endif
