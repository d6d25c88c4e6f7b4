/* Kernels of the calibration in class `fast` (docs/numerics.md): everything becomes rows of bf16
 * values, in one plane or two (what is left of the rounding), that lie with their inputs side by
 * side; one kernel multiplies them on the matrix units, sums in fp32. */
#ifndef KD_GPU_CALIB_FAST_CUH
#define KD_GPU_CALIB_FAST_CUH

#include "gpu/calib_codes.cuh"
#include "gpu/calib_out.cuh"
#include "gpu/hadamard.cuh"
#include "num/mxfp4_block.h"

namespace kd_fast
{

enum {
    THREADS = 256,
    TILE_M = 256, /* rows of a, of b, and inputs, of a stage */
    TILE_N = 128,
    DEEP = 32,
    STAGES = 4,
    STAGE_BYTES = (TILE_M + TILE_N) * DEEP * 2,
    MULTIPLY_SHARED = STAGES * STAGE_BYTES,
    BAND = 8, /* tiles of a that take turns with one tile of b, so that both stay in the cache */
    BLOCK = 128,
    PITCH = BLOCK + 1,
    CODES_SHARED = BLOCK * PITCH * 4,
    SIDE = 32,
    TURN_SHARED = SIDE * (SIDE + 1) * 4
};

/* Where row r of a matrix goes; the other one of two lies PAIR further. */
KD_HD static inline int64_t place_of(int64_t r, bool both)
{
    return both ? r / PAIR * (2 * PAIR) + r % PAIR : r;
}

/* ---- what is multiplied ---- */

struct planes_job {
    const uint8_t *from, *scale; /* rows `ld` and `ld_scale` bytes apart */
    int64_t ld, ld_scale, rows, cols;
    const int32_t *row; /* which rows, or NULL: 0, 1, ... */
    uint16_t *hi, *lo;  /* lo may be NULL; zeros from cols and rows on */
    int64_t pitch;
    bool both;
};

/* A row a block. */
template <enum kd_calib_stored TYPE>
KD_KERNEL void KD_BOUNDS(THREADS, 4) make_planes(KD_ARGS planes_job j)
{
    const int64_t r = kd_block(), from = j.row && r < j.rows ? j.row[r] : r;
    const int64_t to = place_of(r, j.both) * j.pitch;
    const uint8_t *row = j.from + from * j.ld, *scale = j.scale + from * j.ld_scale;

    for (int64_t i = kd_thread(); i < j.pitch; i += THREADS) {
        float x = 0.0f;
        if (r < j.rows && i < j.cols)
            x = TYPE == KD_CALIB_F32    ? ((const float *)row)[i]
                : TYPE == KD_CALIB_BF16 ? kd_bf16_f32(((const uint16_t *)row)[i])
                                        : kd_mxfp4_f32(row, scale, i);
        put(j.hi, j.lo, to + i, x);
    }
}

struct codes_job {
    const uint8_t *codes; /* the first tile */
    int64_t ld;           /* tiles between rows of tiles */
    struct kd_rate rate;
    enum kd_codebook cb;
    const uint16_t *suh, *svh; /* of the first column */
    int64_t across;            /* blocks of 128 inputs */
    uint16_t *hi, *lo;         /* [outputs][pitch] */
    int64_t pitch;
    bool both;
};

/* Codes in the basis of the weights, 128 inputs x 128 outputs a block. */
KD_KERNEL void KD_BOUNDS(THREADS, 2) make_codes(KD_ARGS codes_job j)
{
    enum { TILES = BLOCK / KD_TILE, WARPS = THREADS / 32 };
    KD_SHARED(shared);
    float *value = (float *)shared; /* [input][PITCH] */
    const int64_t in = kd_block() % j.across * BLOCK, out = kd_block() / j.across * BLOCK;
    const int64_t bytes = kd_rate_tile_bytes(j.rate);
    const unsigned p = (unsigned)kd_thread();
    const int lane = kd_thread() % 32, warp = kd_thread() / 32;
    float v[4];

    for (int t = 0; t < TILES * TILES; t++) {
        const uint8_t *tile =
            j.codes + ((in / KD_TILE + t / TILES) * j.ld + out / KD_TILE + t % TILES) * bytes;
        value[(t / TILES * KD_TILE + (int)kd_tile_row(p)) * PITCH + t % TILES * KD_TILE +
              (int)kd_tile_col(p)] =
            kd_f16_f32(kd_codebook_f16(j.cb, kd_calib_state(tile, j.rate, p)));
    }
    kd_sync_block();
    for (int i = warp; i < BLOCK; i += WARPS) {
        for (int c = 0; c < 4; c++)
            v[c] = value[i * PITCH + 4 * lane + c];
        kd_hadamard128(v, lane);
        for (int c = 0; c < 4; c++)
            value[i * PITCH + 4 * lane + c] = v[c];
    }
    kd_sync_block();
    for (int o = warp; o < BLOCK; o += WARPS) {
        const float scale = kd_f16_f32(j.svh[out + o]);
        const int64_t to = place_of(out + o, j.both) * j.pitch + in + 4 * lane;
        for (int c = 0; c < 4; c++)
            v[c] = value[(4 * lane + c) * PITCH + o];
        kd_hadamard128(v, lane);
        for (int c = 0; c < 4; c++)
            put(j.hi, j.lo, to + c, v[c] * scale * kd_f16_f32(j.suh[in + 4 * lane + c]));
    }
}

struct turn_job {
    const float *x; /* [rows][ld] */
    int64_t ld, rows, cols;
    int64_t across; /* blocks of 32 rows of x; pitch / 32 */
    uint16_t *out;  /* [cols up to 32][pitch], zeros from rows on */
    int64_t pitch;
};

/* The transpose, 32 x 32 a block. */
KD_KERNEL void KD_BOUNDS(THREADS, 4) make_turned(KD_ARGS turn_job j)
{
    KD_SHARED(shared);
    float *tile = (float *)shared;
    const int64_t r0 = kd_block() % j.across * SIDE, c0 = kd_block() / j.across * SIDE;
    const int at = kd_thread() % SIDE;

    for (int r = kd_thread() / SIDE; r < SIDE; r += THREADS / SIDE)
        tile[r * (SIDE + 1) + at] =
            r0 + r < j.rows && c0 + at < j.cols ? j.x[(r0 + r) * j.ld + c0 + at] : 0.0f;
    kd_sync_block();
    for (int c = kd_thread() / SIDE; c < SIDE; c += THREADS / SIDE)
        j.out[(c0 + c) * j.pitch + r0 + at] = kd_f32_bf16(tile[at * (SIDE + 1) + c]);
}

struct choose_job {
    const uint16_t *x; /* [n][ld]: a row is a channel */
    int64_t ld, first;
    const int32_t *row; /* [count] */
    const float *weight;
    int64_t count;
    uint16_t *out; /* [n][pitch] */
    int64_t pitch;
    int32_t *bad;
};

/* out[c][i] = weight[i] x[c][row[i] - first], a channel a block; zeros from count on. */
KD_KERNEL void KD_BOUNDS(THREADS, 4) choose_rows(KD_ARGS choose_job j)
{
    const int64_t c = kd_block();
    bool bad = false;

    for (int64_t i = kd_thread(); i < j.pitch; i += THREADS) {
        const float v =
            i < j.count ? j.weight[i] * kd_bf16_f32(j.x[c * j.ld + j.row[i] - j.first]) : 0.0f;
        bad |= !isfinite(v);
        j.out[c * j.pitch + i] = kd_f32_bf16(v);
    }
    if (bad)
        *j.bad = 1;
}

/* ---- the product, on matrix units of any kind ---- */

template <enum kind KIND> struct tile {
    enum { ROWS_A = TILE_M * 4 / THREADS, ROWS_B = TILE_N * 4 / THREADS };
    float d[4][8][4];
    uint32_t begin[ROWS_A + ROWS_B];
    int32_t warp_m, warp_n, lane, plane_at, deep_at;
    int64_t m0, n0;

    static KD_DEV int at(int row, int chunk)
    {
        return row * DEEP * 2 + (chunk ^ (row >> 1 & 3)) * 16;
    }
    /* Where this thread's rows begin, in units of 16 bytes. */
    KD_DEV void find_rows(const multiply_job &j)
    {
#pragma unroll
        for (int i = 0; i < ROWS_A + ROWS_B; i++) {
            const bool in_a = i < ROWS_A;
            const int64_t r =
                kd_thread() / 4 + (in_a ? i : i - ROWS_A) * (THREADS / 4) + (in_a ? m0 : n0);
            const int64_t most = (in_a ? j.m : KIND < INNER ? j.n : j.rows) - 1;
            begin[i] = (uint32_t)((r < most ? r : most) * (in_a ? j.lda : j.ldb) / 8);
        }
    }
    /* The next 32 inputs of both into a stage. */
    KD_DEV void fetch(const multiply_job &j, int32_t deep, unsigned char *stage)
    {
        const int chunk = kd_thread() % 4, r0 = kd_thread() / 4;
        const unsigned char *a = (const unsigned char *)j.plane[plane_at].a + deep_at * DEEP * 2;
        const unsigned char *b = (const unsigned char *)j.plane[plane_at].b + deep_at * DEEP * 2;

#pragma unroll
        for (int i = 0; i < ROWS_A; i++)
            kd_copy16(stage + at(r0 + i * (THREADS / 4), chunk),
                      a + ((int64_t)begin[i] + chunk) * 16);
#pragma unroll
        for (int i = 0; i < ROWS_B; i++)
            kd_copy16(stage + TILE_M * DEEP * 2 + at(r0 + i * (THREADS / 4), chunk),
                      b + ((int64_t)begin[ROWS_A + i] + chunk) * 16);
        if (++deep_at == deep) {
            deep_at = 0;
            plane_at++;
        }
    }
    KD_DEV void step(const unsigned char *stage)
    {
        const unsigned char *sa = stage, *sb = stage + TILE_M * DEEP * 2;
#pragma unroll
        for (int k = 0; k < DEEP / 16; k++) {
            uint32_t a[4][4], b[4][4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                kd_load_matrices(a[i], sa + at(warp_m + 16 * i + lane % 16, 2 * k + lane / 16));
#pragma unroll
            for (int i = 0; i < 4; i++)
                kd_load_matrices(b[i], sb + at(warp_n + 16 * i + lane % 8 + lane / 16 * 8,
                                               2 * k + lane / 8 % 2));
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    kd_mma_bf16(d[i][2 * c], a[i], b[c][0], b[c][1]);
                    kd_mma_bf16(d[i][2 * c + 1], a[i], b[c][2], b[c][3]);
                }
        }
    }
    KD_DEV void store(const multiply_job &j)
    {
        bool bad = false;

#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int k = 0; k < 8; k += RUN)
                out<KIND>::run(j, m0 + warp_m + 16 * i + lane / 4,
                               n0 + warp_n + 8 * k + 2 * (lane % 4), &d[i][k], &bad);
        if (bad)
            *j.bad = 1;
    }
    KD_DEV void run(const multiply_job &j, unsigned char *shared)
    {
        const int32_t deep = (int32_t)(j.k / DEEP), steps = deep * j.planes;
        const int warp = kd_thread() / 32;

        lane = kd_thread() % 32;
        warp_m = warp % 4 * 64;
        warp_n = warp / 4 * 64;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int k = 0; k < 8; k++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    d[i][k][c] = 0.0f;
        plane_at = deep_at = 0;
        find_rows(j);
        for (int s = 0; s < STAGES - 1; s++) {
            if (s < steps)
                fetch(j, deep, shared + s * STAGE_BYTES);
            kd_copy_group();
        }
#pragma unroll 1
        for (int32_t s = 0; s < steps; s++) {
            kd_copy_wait<STAGES - 2>();
            kd_sync_block(); /* all have what they fetched, and the stage before is free */
            if (s + STAGES - 1 < steps)
                fetch(j, deep, shared + (s + STAGES - 1) % STAGES * STAGE_BYTES);
            kd_copy_group();
            step(shared + s % STAGES * STAGE_BYTES);
        }
        store(j);
    }
};

/* Blocks for an [m][n]. */
KD_HD static inline int64_t tiles_of(int64_t m, int64_t n)
{
    return (m + TILE_M - 1) / TILE_M * ((n + TILE_N - 1) / TILE_N);
}

template <enum kind KIND>
KD_KERNEL void KD_BOUNDS(THREADS, 1) multiply_planes(KD_ARGS multiply_job j)
{
    KD_SHARED(shared);
    const int64_t down = (j.m + TILE_M - 1) / TILE_M, across = (j.n + TILE_N - 1) / TILE_N;
    const int64_t band = kd_block() / (BAND * across), at = kd_block() % (BAND * across);
    const int64_t left = down - band * BAND, high = left < BAND ? left : BAND;
    tile<KIND> t;

    t.m0 = (band * BAND + at % high) * TILE_M;
    t.n0 = at / high * TILE_N;
    if (KIND == SUMS && t.n0 + TILE_N <= t.m0)
        return;
    t.run(j, shared);
}

} // namespace kd_fast
#endif
