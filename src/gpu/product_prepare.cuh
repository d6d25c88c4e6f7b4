/* Activations as products of many rows want them.
 *
 * They are [inputs / 64][rows][64] of 16 bits, for each of one or two planes. Of 64
 * inputs, 16 t + 8 h + 2 r + e lies at 16 r + 8 h + 2 t + e (where lane t of a matrix instruction
 * looks for it, product_gemm_codes.cuh), in pieces of 8; piece p of row i is at p ^ i % 8, so that
 * rows that are read at once lie in other banks of shared memory.
 *
 * - EXL3: scaled by suh, rotated, times a power of two of the row's own, fp16. A second plane has
 *   what the first leaves.
 * - BF16, MXFP4: two planes of bf16. */
#ifndef KD_GPU_PRODUCT_PREPARE_CUH
#define KD_GPU_PRODUCT_PREPARE_CUH

#include "gpu/product_gemm.cuh"
#include "num/elem_math.h"

namespace kd_gemm
{

/* One row, by a block. */
struct row_in {
    const float *x;      /* cols, aligned to 16 */
    const uint16_t *suh; /* NULL: bf16 */
    int32_t cols, ins, planes;
    unsigned char *to; /* of this row */
    int64_t step, plane;
    int32_t turn;  /* the row's number, modulo 8 */
    float *scale;  /* what sums are to be multiplied with */
    float *second; /* not NULL: x becomes SiTU of x and this first */
    float beta, linear;
};

/* Inputs 4 lane .. of a block of 128. */
KD_DEV float4 row_part(const float *x, int at, int cols)
{
    if (at + 4 <= cols)
        return *(const float4 *)(x + at);
    return make_float4(at < cols ? x[at] : 0.0f, at + 1 < cols ? x[at + 1] : 0.0f,
                       at + 2 < cols ? x[at + 2] : 0.0f, 0.0f);
}

KD_DEV void row_write(const row_in &r, int block, int lane, const uint32_t pair[2], int plane)
{
    const int t = lane % 16 / 4, m = 4 * (lane % 4), h = m / 8;
    unsigned char *to = r.to + plane * r.plane + (2 * block + lane / 16) * r.step + 4 * t;

#pragma unroll
    for (int i = 0; i < 2; i++)
        *(uint32_t *)(to + ((2 * (m % 8 / 2 + i) + h) ^ r.turn) * 16) = pair[i];
}

/* The power of two that brings the largest of a row's scaled inputs to 2^11 .. 2^12, so that
 * rotated ones, up to 11.4 times as large, fit fp16. */
KD_DEV float row_power(uint32_t most)
{
    const int e = (int)(most >> 23);

    return e == 255 ? kd_bits_f32(0x7fc00000u)
                    : kd_bits_f32((uint32_t)(e < 12 ? 253 : 265 - e) << 23);
}

KD_DEV void row_halves(const row_in &r, int block, int lane, float up)
{
    const int at = SIDE * block + 4 * lane;
    const float4 f = row_part(r.x, at, r.cols);
    float s[4];
    uint32_t high[2], low[2];

#pragma unroll
    for (int i = 0; i < 4; i++)
        s[i] = at + i < r.cols ? kd_half_float(r.suh[at + i]) : 0.0f;
    float v[4] = {kd_mul(f.x, s[0]), kd_mul(f.y, s[1]), kd_mul(f.z, s[2]), kd_mul(f.w, s[3])};
    kd_hadamard128(v, lane);
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        uint16_t a[2], b[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float x = kd_mul(v[i + j], up);
            a[j] = kd_float_half(x);
            b[j] = kd_float_half(x - kd_half_float(a[j]));
        }
        high[i / 2] = a[0] | (uint32_t)a[1] << 16;
        low[i / 2] = b[0] | (uint32_t)b[1] << 16;
    }
    row_write(r, block, lane, high, 0);
    if (r.planes > 1)
        row_write(r, block, lane, low, 1);
}

KD_DEV void row_bf16(const row_in &r, int block, int lane)
{
    const float4 f = row_part(r.x, SIDE * block + 4 * lane, r.cols);
    const float v[4] = {f.x, f.y, f.z, f.w};
    uint32_t high[2] = {0, 0}, low[2] = {0, 0};

#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t a = kd_f32_bf16(v[i]);
        const uint32_t b = (a & 0x7f80u) == 0x7f80u ? 0 : kd_f32_bf16(v[i] - kd_bits_f32(a << 16));
        high[i / 2] |= a << i % 2 * 16;
        low[i / 2] |= b << i % 2 * 16;
    }
    row_write(r, block, lane, high, 0);
    row_write(r, block, lane, low, 1);
}

/* shared: a word for each warp. */
KD_DEV void prepare_row(const row_in &r, uint32_t *shared)
{
    const int warp = kd_thread() / 32, lane = kd_thread() % 32, warps = THREADS / 32;
    uint32_t most = 0;

    if (r.suh || r.second)
#pragma unroll 4
        for (int b = warp; b < r.ins; b += warps) {
            const int at = SIDE * b + 4 * lane;
            float4 f = row_part(r.x, at, r.cols);
            float v[4] = {f.x, f.y, f.z, f.w};
            if (r.second) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (at + i < r.cols) {
                        v[i] = kd_situ1(v[i], r.second[at + i], r.beta, r.linear);
                        ((float *)r.x)[at + i] = v[i]; /* this lane's alone */
                    }
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float s = r.suh && at + i < r.cols ? kd_half_float(r.suh[at + i]) : 0.0f;
                const uint32_t bits = kd_f32_bits(kd_mul(v[i], s)) & 0x7fffffffu;
                most = bits > most ? bits : most;
            }
        }
    if (!r.suh) {
#pragma unroll 4
        for (int b = warp; b < r.ins; b += warps)
            row_bf16(r, b, lane);
        return;
    }
    most = kd_warp_max(most);
    kd_sync_block(); /* the row before has been read */
    if (lane == 0)
        shared[warp] = most;
    kd_sync_block();
#pragma unroll
    for (int i = 0; i < warps; i++)
        most = shared[i] > most ? shared[i] : most;
    const float up = row_power(most);
    if (kd_thread() == 0)
        *r.scale = kd_f32_bits(up) == 0x7fc00000u ? up : kd_bits_f32(0x7f000000u - kd_f32_bits(up));
#pragma unroll 4
    for (int b = warp; b < r.ins; b += warps)
        row_halves(r, b, lane, up);
}

} // namespace kd_gemm
#endif
