/* Kernels of a calibration: products of many rows with stored weights in the CPU's order, and the
 * inner rows of an expert. An output of the CPU is a few fma chains, each over some of the inputs,
 * that are folded at the end (docs/numerics.md: DOT16, mm_exl3). So inputs are laid out chain after
 * chain, `deep` of each; a block runs two chains of 128 x 128 outputs after each other and adds
 * them, which is the fold's first step, and kd_calib_sums does the others. */
#ifndef KD_GPU_CALIB_CUH
#define KD_GPU_CALIB_CUH

#include "gpu/calib_codes.cuh"
#include "gpu/chains.cuh"
#include "gpu/hadamard.cuh"
#include "gpu/tn_tile.cuh"
#include "num/elem_math.h"
#include "num/mxfp4_block.h"

enum {
    KD_CALIB_SIDE = 32,
    KD_CALIB_BLOCK = 128, /* inputs or outputs of a Hadamard */
    KD_CALIB_THREADS = 256,
    KD_CALIB_WARPS = KD_CALIB_THREADS / 32,
    KD_CALIB_DOT_CHAINS = 16,
    KD_CALIB_EXL3_CHAINS = 8,
    KD_CALIB_SIDE_SHARED = KD_CALIB_SIDE * (KD_CALIB_SIDE + 1) * 4,
    KD_CALIB_ROTATE_SHARED = KD_CALIB_BLOCK * (KD_CALIB_SIDE + 1) * 4,
    KD_CALIB_CODES_SHARED = KD_TILE * KD_CALIB_BLOCK * 4
};

/* Where input i lies among deep * chains. */
KD_HD static inline int64_t kd_calib_dot_place(int64_t i, int64_t deep)
{
    return i % KD_CALIB_DOT_CHAINS * deep + i / KD_CALIB_DOT_CHAINS;
}
/* A chain of mm_exl3 takes rows r and r + 4 of each tile, r = 0, 1, 8, 9, 2, 3, 10, 11. */
KD_HD static inline int64_t kd_calib_exl3_place(int64_t i, int64_t deep)
{
    const int64_t chain = (i & 1) + (i >> 3 & 1) * 2 + (i >> 1 & 1) * 4;
    return chain * deep + i / KD_TILE * 2 + (i >> 2 & 1);
}

/* ---- rows of floats, weights or activations, for DOT16 ---- */

struct kd_calib_rows_job {
    const uint8_t *from, *scale; /* [rows][cols], `ld` and `ld_scale` bytes apart */
    int64_t ld, ld_scale, rows, cols, deep;
    float *out; /* [16 deep][ldo] */
    int64_t ldo;
    int64_t across; /* rows of out's columns to fill, a multiple of 32: zeros after `rows` */
    float pad;      /* after the last input: +0 for activations, -0 for weights */
};

/* out = the matrix transposed, its inputs chain after chain; 32 x 32 a block. */
template <enum kd_calib_stored TYPE>
KD_KERNEL void KD_BOUNDS(KD_CALIB_THREADS, 4) kd_calib_rows(KD_ARGS kd_calib_rows_job j)
{
    enum { PITCH = KD_CALIB_SIDE + 1, STEP = KD_CALIB_THREADS / KD_CALIB_SIDE };
    KD_SHARED(shared);
    float *tile = (float *)shared;
    const int64_t across = j.across / KD_CALIB_SIDE, all = KD_CALIB_DOT_CHAINS * j.deep;
    const int64_t i0 = kd_block() / across * KD_CALIB_SIDE,
                  r0 = kd_block() % across * KD_CALIB_SIDE;
    const int at = kd_thread() % KD_CALIB_SIDE;

    for (int r = kd_thread() / KD_CALIB_SIDE; r < KD_CALIB_SIDE; r += STEP) {
        float x = i0 + at < j.cols ? 0.0f : j.pad;
        if (r0 + r < j.rows && i0 + at < j.cols) {
            const uint8_t *row = j.from + (r0 + r) * j.ld;
            x = TYPE == KD_CALIB_F32 ? ((const float *)row)[i0 + at]
                : TYPE == KD_CALIB_BF16
                    ? kd_bf16_f32(((const uint16_t *)row)[i0 + at])
                    : kd_mxfp4_f32(row, j.scale + (r0 + r) * j.ld_scale, i0 + at);
        }
        tile[r * PITCH + at] = x;
    }
    kd_sync_block();
    for (int i = kd_thread() / KD_CALIB_SIDE; i < KD_CALIB_SIDE; i += STEP)
        if (i0 + i < all)
            j.out[kd_calib_dot_place(i0 + i, j.deep) * j.ldo + r0 + at] = tile[at * PITCH + i];
}

/* ---- EXL3 ---- */

struct kd_calib_rotate_job {
    const void *x; /* [T][ldx] floats, or BF16 */
    bool bf16;
    int64_t ldx, T, cols, deep;
    const uint16_t *suh;
    float *out; /* [8 deep][ldo]; columns T .. ldo zero */
    int64_t ldo;
};

/* out = the rows times suh, Hadamards over 128 inputs, transposed. 32 rows, 128 inputs a block. */
KD_KERNEL void KD_BOUNDS(KD_CALIB_THREADS, 4) kd_calib_rotate(KD_ARGS kd_calib_rotate_job j)
{
    enum { PITCH = KD_CALIB_SIDE + 1 };
    KD_SHARED(shared);
    float *turned = (float *)shared;
    const int64_t across = j.ldo / KD_CALIB_SIDE;
    const int64_t i0 = kd_block() / across * KD_CALIB_BLOCK,
                  t0 = kd_block() % across * KD_CALIB_SIDE;
    const int lane = kd_thread() % 32;

    for (int t = kd_thread() / 32; t < KD_CALIB_SIDE; t += KD_CALIB_WARPS) {
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int64_t at = i0 + 4 * lane + i, from = (t0 + t) * j.ldx + at;
            v[i] = 0.0f;
            if (t0 + t < j.T && at < j.cols)
                v[i] = (j.bf16 ? kd_bf16_f32(((const uint16_t *)j.x)[from])
                               : ((const float *)j.x)[from]) *
                       kd_f16_f32(j.suh[at]);
        }
        kd_hadamard128(v, kd_thread());
#pragma unroll
        for (int i = 0; i < 4; i++)
            turned[(4 * lane + i) * PITCH + t] = v[i];
    }
    kd_sync_block();
    for (int i = kd_thread() / 32; i < KD_CALIB_BLOCK; i += KD_CALIB_WARPS)
        j.out[kd_calib_exl3_place(i0 + i, j.deep) * j.ldo + t0 + lane] = turned[i * PITCH + lane];
}

struct kd_calib_codes_job {
    const uint8_t *codes; /* the first tile */
    int64_t ld;           /* tiles between rows of tiles */
    struct kd_rate rate;
    enum kd_codebook cb;
    int64_t deep;
    float *out; /* [8 deep][n] */
    int64_t n;  /* a multiple of 128 */
};

/* out = the codes' values, a row of eight tiles a block. */
KD_KERNEL void KD_BOUNDS(KD_CALIB_THREADS, 4) kd_calib_codes(KD_ARGS kd_calib_codes_job j)
{
    enum { TILES = KD_CALIB_BLOCK / KD_TILE };
    KD_SHARED(shared);
    float *value = (float *)shared;
    const int64_t across = j.n / KD_CALIB_BLOCK, bytes = kd_rate_tile_bytes(j.rate);
    const int64_t row = kd_block() / across, c0 = kd_block() % across * KD_CALIB_BLOCK;
    const unsigned p = (unsigned)kd_thread();

    for (int t = 0; t < TILES; t++) {
        const uint8_t *tile = j.codes + (row * j.ld + c0 / KD_TILE + t) * bytes;
        value[kd_tile_row(p) * KD_CALIB_BLOCK + t * KD_TILE + kd_tile_col(p)] =
            kd_f16_f32(kd_codebook_f16(j.cb, kd_calib_state(tile, j.rate, p)));
    }
    kd_sync_block();
    for (int u = kd_thread(); u < KD_TILE * KD_CALIB_BLOCK; u += KD_CALIB_THREADS)
        j.out[kd_calib_exl3_place(row * KD_TILE + u / KD_CALIB_BLOCK, j.deep) * j.n + c0 +
              u % KD_CALIB_BLOCK] = value[u];
}

/* ---- the chains ---- */

KD_KERNEL void KD_BOUNDS(kd_tn::TN_THREADS, 2) kd_calib_chains(KD_ARGS kd_calib_chains_job j)
{
    KD_SHARED(shared);
    const int64_t across = j.n / kd_tn::TN_TILE, tiles = j.rows / kd_tn::TN_TILE * across;
    const int64_t q = kd_block() / tiles, tile = kd_block() % tiles;
    const int64_t i0 = tile / across * kd_tn::TN_TILE, j0 = tile % across * kd_tn::TN_TILE;
    float *mine = kd_tn::tn_mine(j.c + q * j.rows * j.n, j.n, i0, j0);
    kd_gpu_tn_job chain = {j.a + q * j.deep * j.lda,
                           j.b + q * j.deep * j.n,
                           nullptr,
                           j.lda,
                           j.n,
                           j.n,
                           j.deep,
                           j.rows,
                           j.n,
                           false,
                           false};
    float acc[8][8];

    for (int second = 0; second < 2; second++) {
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int c = 0; c < 8; c++)
                acc[i][c] = 0.0f;
        kd_tn::tn_start(chain, i0, j0, (float *)shared);
        kd_tn::tn_chain<false>(chain, i0, j0, (float *)shared, acc);
        if (second)
            break;
        kd_tn::tn_put(mine, j.n, acc);
        chain.a += j.half * j.deep * j.lda;
        chain.b += j.half * j.deep * j.n;
        kd_sync_block();
    }
    float kept[8][8];
    kd_tn::tn_get(mine, j.n, kept);
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int c = 0; c < 8; c++)
            kept[i][c] += acc[i][c];
    kd_tn::tn_put(mine, j.n, kept);
}

/* What is left of the fold. */
template <int HALF> KD_DEV float4 kd_calib_fold(const float *at, int64_t plane)
{
    float4 v[HALF];

#pragma unroll
    for (int q = 0; q < HALF; q++)
        v[q] = *(const float4 *)(at + q * plane);
#pragma unroll
    for (int h = HALF / 2; h; h /= 2)
#pragma unroll
        for (int q = 0; q < h; q++) {
            v[q].x += v[q + h].x;
            v[q].y += v[q + h].y;
            v[q].z += v[q + h].z;
            v[q].w += v[q + h].w;
        }
    return v[0];
}

/* A row's block of 128 outputs, four a lane, back from the basis of the codes. */
KD_DEV void kd_calib_back(const float *c, int64_t rows, int64_t n, int64_t at, const uint16_t *svh,
                          float v[4])
{
    const float4 s = kd_calib_fold<KD_CALIB_EXL3_CHAINS / 2>(c + at, rows * n);

    v[0] = s.x;
    v[1] = s.y;
    v[2] = s.z;
    v[3] = s.w;
    kd_hadamard128(v, kd_thread());
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] *= kd_f16_f32(svh[at % n + i]);
}

/* Four outputs, of either kind. */
template <bool EXL3>
KD_DEV void kd_calib_out(const float *c, int64_t rows, int64_t n, int64_t at, const uint16_t *svh,
                         float v[4])
{
    if (EXL3) {
        kd_calib_back(c, rows, n, at, svh, v);
        return;
    }
    const float4 s = kd_calib_fold<KD_CALIB_DOT_CHAINS / 2>(c + at, rows * n);
    v[0] = s.x;
    v[1] = s.y;
    v[2] = s.z;
    v[3] = s.w;
}

template <bool EXL3>
KD_KERNEL void KD_BOUNDS(KD_CALIB_THREADS, 4) kd_calib_sums(KD_ARGS kd_calib_sums_job j)
{
    const int64_t at = ((int64_t)kd_block() * KD_CALIB_THREADS + kd_thread()) * 4;
    float v[4];

    if (at - kd_thread() % 32 * 4 >= j.T * j.n) /* whole warps: n is a multiple of 128 */
        return;
    kd_calib_out<EXL3>(j.c, j.rows, j.n, at, j.svh, v);
    const int64_t col = j.c0 + at % j.n;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (col + i < j.cols)
            j.y[at / j.n * j.ldy + col + i] = v[i];
}

/* ---- an expert's inner rows ---- */

template <bool EXL3>
KD_KERNEL void KD_BOUNDS(KD_CALIB_THREADS, 2) kd_calib_inner(KD_ARGS kd_calib_inner_job j)
{
    const int64_t at = ((int64_t)kd_block() * KD_CALIB_THREADS + kd_thread()) * 4, col = at % j.n;
    float g[4], u[4];
    bool bad = false;

    if (at - kd_thread() % 32 * 4 >= j.T * j.n)
        return;
    kd_calib_out<EXL3>(j.gate, j.rows, j.n, at, j.gate_svh, g);
    kd_calib_out<EXL3>(j.up, j.rows, j.n, at, j.up_svh, u);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        g[i] = col + i < j.cols ? kd_situ1(g[i], u[i], j.beta, j.linear) : 0.0f;
        bad |= !isfinite(g[i]);
    }
    *(float4 *)(j.inner + at) = make_float4(g[0], g[1], g[2], g[3]);
    if (bad)
        *j.bad = 1;
}

#endif
