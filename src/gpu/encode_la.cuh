/* Kernels of the linear algebra around LDLQ: the change of basis, Cholesky and block LDL, and the
 * sums of the refit. Every element is the chain of operations that src/la and src/codec have. */
#ifndef KD_GPU_ENCODE_LA_CUH
#define KD_GPU_ENCODE_LA_CUH

#include "gpu/lanes.cuh"
#include "num/exl3_ring.h"
#include "num/mxfp4_block.h"

#include <math.h>
#include <stdint.h>

enum {
    KD_LA_TILE = 128, /* a Hadamard block, a panel of Cholesky */
    KD_LA_PITCH = KD_LA_TILE + 1,
    KD_LA_SUB = 16, /* a block of LDL */
    KD_LA_THREADS = 256,
    KD_LA_TILE_SHARED = KD_LA_TILE * KD_LA_PITCH * 4,
    KD_LA_PANEL_SHARED = KD_LA_TILE * KD_LA_TILE * 4,
    KD_LA_ROWS = 32, /* rows of a block of kd_la_row_dots, and columns it takes at a time */
    KD_LA_COLS = 64,
    KD_LA_ROWS_SHARED = 2 * KD_LA_ROWS * (KD_LA_COLS + 1) * 4,
    KD_LA_MS_SHARED = KD_LA_ROWS * (KD_LA_COLS + 1) * 8,
    KD_LA_SIDE = 32, /* of a tile that is transposed */
    KD_LA_SIDE_SHARED = KD_LA_SIDE * (KD_LA_SIDE + 1) * 4,
    KD_LA_SOLVERS = 512,      /* threads of kd_la_solve */
    KD_LA_SOLVE_HELD = 12288, /* unknowns that it keeps in shared memory, if there are no more */
    KD_LA_PIECE = 2048,       /* of a row on its way into shared memory, some of them at once */
    KD_LA_PIECES = 4,
    KD_LA_SOLVE_SHARED = KD_LA_PIECES * KD_LA_PIECE * 4
};

/* ---- the weights as they are stored ---- */

enum kd_la_stored { KD_LA_F32, KD_LA_BF16, KD_LA_MXFP4 };
struct kd_la_load_job {
    const uint8_t *from, *scale; /* [rows], `ld` and `ld_scale` bytes apart */
    int64_t ld, ld_scale, rows, cols;
    float *out; /* [k][n] */
    int64_t n;
    int32_t *bad; /* not 0: some value is not finite */
};

/* out = the matrix transposed, zeros around it; 32 x 32 a block. */
template <enum kd_la_stored TYPE>
KD_KERNEL void KD_BOUNDS(KD_LA_THREADS, 4) kd_la_load(KD_ARGS kd_la_load_job j)
{
    KD_SHARED(shared);
    float *tile = (float *)shared;
    const int64_t across = j.n / KD_LA_SIDE;
    const int64_t i0 = kd_block() / across * KD_LA_SIDE, c0 = kd_block() % across * KD_LA_SIDE;
    const int at = kd_thread() % KD_LA_SIDE;
    bool bad = false;

    for (int r = kd_thread() / KD_LA_SIDE; r < KD_LA_SIDE; r += KD_LA_THREADS / KD_LA_SIDE) {
        float x = 0.0f;
        if (c0 + r < j.rows && i0 + at < j.cols) {
            const uint8_t *row = j.from + (c0 + r) * j.ld;
            x = TYPE == KD_LA_F32    ? ((const float *)row)[i0 + at]
                : TYPE == KD_LA_BF16 ? kd_bf16_f32(((const uint16_t *)row)[i0 + at])
                                     : kd_mxfp4_f32(row, j.scale + (c0 + r) * j.ld_scale, i0 + at);
            bad |= !isfinite(x);
        }
        tile[r * (KD_LA_SIDE + 1) + at] = x;
    }
    if (bad)
        *j.bad = 1;
    kd_sync_block();
    for (int r = kd_thread() / KD_LA_SIDE; r < KD_LA_SIDE; r += KD_LA_THREADS / KD_LA_SIDE)
        j.out[(i0 + r) * j.n + c0 + at] = tile[at * (KD_LA_SIDE + 1) + r];
}

/* out[i] = sum over ascending columns of (w[i][.] / sv)^2 in double, columns with sv 0 left out;
 * cols a multiple of KD_LA_COLS. 32 rows a block. */
KD_KERNEL void KD_BOUNDS(KD_LA_THREADS, 2)
    kd_la_row_ms(const float *w, const float *sv, int64_t cols, double *out)
{
    enum { PITCH = KD_LA_COLS + 1 };
    KD_SHARED(shared);
    double *v = (double *)shared, sum = 0.0;
    const int64_t r0 = (int64_t)kd_block() * KD_LA_ROWS;
    const int me = kd_thread();

    for (int64_t c0 = 0; c0 < cols; c0 += KD_LA_COLS) {
        for (int i = me; i < KD_LA_ROWS * KD_LA_COLS; i += KD_LA_THREADS) {
            const int r = i / KD_LA_COLS, c = i % KD_LA_COLS;
            const float s = sv[c0 + c];
            v[r * PITCH + c] = s != 0.0f ? (double)w[(r0 + r) * cols + c0 + c] / (double)s : 0.0;
        }
        kd_sync_block();
        if (me < KD_LA_ROWS)
            for (int c = 0; c < KD_LA_COLS; c++)
                sum += v[me * PITCH + c] * v[me * PITCH + c];
        kd_sync_block();
    }
    if (me < KD_LA_ROWS)
        out[r0 + me] = sum;
}

/* ---- the sample of the scale search ---- */

/* out[tile] = sum of squares in double, row by row; a thread a tile. */
KD_KERNEL void KD_BOUNDS(KD_LA_TILE, 4)
    kd_la_energy(const float *x, int64_t cols, int64_t tiles, double *out)
{
    const int64_t tile = (int64_t)kd_block() * KD_LA_TILE + kd_thread(), across = cols / KD_LA_SUB;
    double sum = 0.0;

    if (tile >= tiles)
        return;
    const float *at = x + tile / across * KD_LA_SUB * cols + tile % across * KD_LA_SUB;
    for (int r = 0; r < KD_LA_SUB; r++)
#pragma unroll
        for (int c = 0; c < KD_LA_SUB; c++)
            sum += (double)at[r * cols + c] * (double)at[r * cols + c];
    out[tile] = sum;
}

/* A tile a block, in ring order, times drift; pick: their numbers. */
KD_KERNEL void KD_BOUNDS(KD_LA_THREADS, 4)
    kd_la_sample(const float *x, int64_t cols, const int64_t *pick, double drift, float *out)
{
    const int64_t tile = pick[kd_block()], across = cols / KD_LA_SUB;
    const unsigned p = (unsigned)kd_thread();

    out[(int64_t)kd_block() * KD_LA_THREADS + p] =
        (float)((double)x[(tile / across * KD_LA_SUB + kd_tile_row(p)) * cols +
                          tile % across * KD_LA_SUB + kd_tile_col(p)] *
                drift);
}

/* ---- both Hadamards, with what comes before or after them ---- */

enum kd_la_basis {
    KD_LA_ROTATE,   /* x / (left right), then H x H */
    KD_LA_UNROTATE, /* H x H, then (left x) right */
    KD_LA_SQUARE    /* (left x) right, then H x H */
};
struct kd_la_basis_job {
    const float *in;
    float *out; /* may be in */
    int64_t rows, cols;
    const float *left, *right; /* [rows], [cols] */
};

/* Half of a line of 128 that lies `step` apart, all butterflies but the last. */
KD_DEV void kd_la_half(float *line, int step)
{
    float v[KD_LA_TILE / 2];

#pragma unroll
    for (int i = 0; i < KD_LA_TILE / 2; i++)
        v[i] = line[i * step];
#pragma unroll
    for (int h = 1; h < KD_LA_TILE / 2; h *= 2)
#pragma unroll
        for (int i = 0; i < KD_LA_TILE / 2; i++)
            if (!(i & h)) {
                const float p = v[i], q = v[i + h];
                v[i] = p + q;
                v[i + h] = p - q;
            }
#pragma unroll
    for (int i = 0; i < KD_LA_TILE / 2; i++)
        line[i * step] = v[i];
}

/* The last butterfly over a quarter of the line, and 1/sqrt(128). */
KD_DEV void kd_la_last(float *line, int step)
{
#pragma unroll 8
    for (int i = 0; i < KD_LA_TILE / 4; i++) {
        const float p = line[i * step], q = line[(i + KD_LA_TILE / 2) * step];
        line[i * step] = (p + q) * 0x1.6a09e6p-4f;
        line[(i + KD_LA_TILE / 2) * step] = (p - q) * 0x1.6a09e6p-4f;
    }
}

/* Two threads a line. */
KD_DEV void kd_la_hadamard(float *tile, int across, int along)
{
    float *line = tile + kd_thread() % KD_LA_TILE * across;
    const int half = kd_thread() / KD_LA_TILE;

    kd_la_half(line + half * KD_LA_TILE / 2 * along, along);
    kd_sync_block();
    kd_la_last(line + half * KD_LA_TILE / 4 * along, along);
    kd_sync_block();
}

template <enum kd_la_basis WHAT>
KD_KERNEL void KD_BOUNDS(KD_LA_THREADS, 2) kd_la_basis_kernel(KD_ARGS kd_la_basis_job j)
{
    KD_SHARED(shared);
    float *tile = (float *)shared;
    const int64_t across = j.cols / KD_LA_TILE;
    const int64_t r0 = kd_block() / across * KD_LA_TILE, c0 = kd_block() % across * KD_LA_TILE;
    const int col = kd_thread() % KD_LA_TILE;
    const float right = j.right[c0 + col];

    for (int r = kd_thread() / KD_LA_TILE; r < KD_LA_TILE; r += KD_LA_THREADS / KD_LA_TILE) {
        float x = j.in[(r0 + r) * j.cols + c0 + col];
        if (WHAT == KD_LA_ROTATE) {
            /* The quotient of the product: a scale alone may be tiny. */
            const double d = (double)j.left[r0 + r] * (double)right;
            x = d != 0.0 ? (float)((double)x / d) : 0.0f;
        } else if (WHAT == KD_LA_SQUARE) {
            x = j.left[r0 + r] * x * right;
        }
        tile[r * KD_LA_PITCH + col] = x;
    }
    kd_sync_block();
    kd_la_hadamard(tile, KD_LA_PITCH, 1);
    kd_la_hadamard(tile, 1, KD_LA_PITCH);
    for (int r = kd_thread() / KD_LA_TILE; r < KD_LA_TILE; r += KD_LA_THREADS / KD_LA_TILE) {
        float x = tile[r * KD_LA_PITCH + col];
        if (WHAT == KD_LA_UNROTATE)
            x = j.left[r0 + r] * x * right;
        j.out[(r0 + r) * j.cols + c0 + col] = x;
    }
}

/* ---- Cholesky: h = U^T U in panels of 128 rows ---- */

/* U of the panel's diagonal block, and of `add` on h's diagonal. *bad: the first row without a
 * positive finite pivot, counted from 1; then nothing counts any more. */
KD_KERNEL void KD_BOUNDS(KD_LA_THREADS, 1)
    kd_la_diagonal(float *h, int64_t k, int64_t p, int32_t *bad)
{
    KD_SHARED(shared);
    float *u = (float *)shared;
    const int me = kd_thread(), ty = me / 16, tx = me % 16;

    for (int i = me; i < KD_LA_TILE * KD_LA_TILE; i += KD_LA_THREADS)
        u[i / KD_LA_TILE * KD_LA_PITCH + i % KD_LA_TILE] =
            h[(p + i / KD_LA_TILE) * k + p + i % KD_LA_TILE];
    kd_sync_block();
    for (int q = 0; q < KD_LA_TILE; q++) {
        const float *row = u + q * KD_LA_PITCH;
        const float pivot = row[q], d = sqrtf(pivot);
        if (!(pivot > 0.0f) || !isfinite(pivot)) {
            if (!me && !*bad)
                *bad = (int32_t)(p + q + 1);
            return;
        }
        if (me > q && me < KD_LA_TILE)
            u[q * KD_LA_PITCH + me] /= d;
        kd_sync_block();
        if (!me)
            u[q * KD_LA_PITCH + q] = d;
        for (int s = (q + 1) / 16 * 16 + ty; s < KD_LA_TILE; s += 16) {
            if (s <= q)
                continue;
            const float less = -row[s];
            for (int c = s / 16 * 16 + tx; c < KD_LA_TILE; c += 16)
                if (c >= s)
                    u[s * KD_LA_PITCH + c] = fmaf(less, row[c], u[s * KD_LA_PITCH + c]);
        }
        kd_sync_block();
    }
    for (int i = me; i < KD_LA_TILE * KD_LA_TILE; i += KD_LA_THREADS)
        h[(p + i / KD_LA_TILE) * k + p + i % KD_LA_TILE] =
            u[i / KD_LA_TILE * KD_LA_PITCH + i % KD_LA_TILE];
}

/* The panel right of it: U_pp^T X = H, a column a thread, 16 rows at a time. */
KD_KERNEL void KD_BOUNDS(KD_LA_TILE, 2) kd_la_panel(float *h, int64_t k, int64_t p)
{
    KD_SHARED(shared);
    float *u = (float *)shared;
    const int64_t c = p + (kd_block() + 1) * (int64_t)KD_LA_TILE + kd_thread();

    for (int i = kd_thread(); i < KD_LA_TILE * KD_LA_TILE; i += KD_LA_TILE)
        u[i] = h[(p + i / KD_LA_TILE) * k + p + i % KD_LA_TILE];
    kd_sync_block();
    for (int r = 0; r < KD_LA_TILE; r += KD_LA_SUB) {
        float x[KD_LA_SUB];
#pragma unroll
        for (int i = 0; i < KD_LA_SUB; i++)
            x[i] = h[(p + r + i) * k + c];
#pragma unroll 4
        for (int s = 0; s < r; s++) {
            const float less = -h[(p + s) * k + c];
#pragma unroll
            for (int i = 0; i < KD_LA_SUB; i++)
                x[i] = fmaf(u[s * KD_LA_TILE + r + i], less, x[i]);
        }
#pragma unroll
        for (int q = 0; q < KD_LA_SUB; q++) {
            const float *row = u + (r + q) * KD_LA_TILE + r;
            x[q] /= row[q];
#pragma unroll
            for (int s = q + 1; s < KD_LA_SUB; s++)
                x[s] = fmaf(-row[s], x[q], x[s]);
        }
#pragma unroll
        for (int i = 0; i < KD_LA_SUB; i++)
            h[(p + r + i) * k + c] = x[i];
    }
}

/* ---- block LDL from U ---- */

/* Block b of 16 rows: (U_bb^-1 U[b, right of it])^T into the lower triangle. A thread a column. */
KD_KERNEL void KD_BOUNDS(KD_LA_THREADS, 2) kd_la_ldl(float *h, int64_t k, int64_t chunks)
{
    KD_SHARED(shared);
    float *u = (float *)shared;
    const int64_t p = kd_block() / chunks * KD_LA_SUB;
    const int64_t first = kd_block() % chunks * KD_LA_THREADS, c = first + kd_thread();

    if (first + KD_LA_THREADS <= p + KD_LA_SUB)
        return;
    u[kd_thread()] = h[(p + kd_thread() / KD_LA_SUB) * k + p + kd_thread() % KD_LA_SUB];
    kd_sync_block();
    if (c < p + KD_LA_SUB || c >= k)
        return;
    float x[KD_LA_SUB];
#pragma unroll
    for (int q = 0; q < KD_LA_SUB; q++)
        x[q] = h[(p + q) * k + c];
#pragma unroll
    for (int q = KD_LA_SUB - 1; q >= 0; q--) {
#pragma unroll
        for (int s = q + 1; s < KD_LA_SUB; s++)
            x[q] = fmaf(-u[q * KD_LA_SUB + s], x[s], x[q]);
        x[q] /= u[q * KD_LA_SUB + q];
    }
#pragma unroll
    for (int q = 0; q < KD_LA_SUB; q++)
        h[c * k + p + q] = x[q];
}

/* Zeros into the diagonal blocks and all above, a row a block. */
KD_KERNEL void kd_la_ldl_clear(float *h, int64_t k)
{
    const int64_t i = kd_block();

    for (int64_t c = i / KD_LA_SUB * KD_LA_SUB + kd_thread(); c < k; c += KD_LA_THREADS)
        h[i * k + c] = 0.0f;
}

/* ---- U^T U x = rhs, one block ---- */

/* 32 unknowns in the first warp, then what they take from all after them. */
KD_DEV void kd_la_forward(const float *u, int64_t k, float *x)
{
    const int me = kd_thread();

    for (int64_t p = 0; p < k; p += 32) {
        if (me < 32) {
            float mine = x[p + me];
#pragma unroll 4
            for (int q = 0; q < 32; q++) {
                const float *row = u + (p + q) * k + p;
                if (me == q)
                    mine /= row[q];
                const float less = -kd_shuffle(mine, q);
                if (me > q)
                    mine = fmaf(less, row[me], mine);
            }
            x[p + me] = mine;
        }
        kd_sync_block();
        for (int64_t c = p + 32 + me; c < k; c += KD_LA_SOLVERS) {
            float sum = x[c];
#pragma unroll
            for (int q = 0; q < 32; q++)
                sum = fmaf(-x[p + q], u[(p + q) * k + c], sum);
            x[c] = sum;
        }
        kd_sync_block();
    }
}

/* Piece `piece` of row p, from the fourth element at or before the diagonal. */
KD_DEV void kd_la_fetch(const float *u, int64_t k, int64_t p, int64_t piece, float *to)
{
    const int64_t first = p / 4 * 4 + piece * KD_LA_PIECE;

    for (int at = 4 * kd_thread(); at < KD_LA_PIECE; at += 4 * KD_LA_SOLVERS)
        if (first + at < k)
            kd_copy16(to + at, u + p * k + first + at);
}

/* The next piece; false after the last one. */
KD_DEV bool kd_la_next(int64_t k, int64_t *p, int64_t *piece)
{
    if ((*p / 4 * 4) + (*piece + 1) * KD_LA_PIECE < k) {
        ++*piece;
        return true;
    }
    *piece = 0;
    return --*p >= 0;
}

/* From the last unknown up: a dot product with those after it in sixteen lanes of the first warp
 * (twice), which all threads fetch the rows for. */
KD_DEV void kd_la_backward(const float *u, int64_t k, float *x, float *pieces)
{
    int64_t p = k - 1, piece = 0, next = p, next_piece = 0;
    const int me = kd_thread(), lane = me % 16;
    bool more = true;
    float sum = 0.0f;

    for (int i = 0; i < KD_LA_PIECES - 1; i++) {
        if (more) {
            kd_la_fetch(u, k, next, next_piece, pieces + i * KD_LA_PIECE);
            more = kd_la_next(k, &next, &next_piece);
        }
        kd_copy_group();
    }
    for (int at = 0; p >= 0; at = (at + 1) % KD_LA_PIECES) {
        kd_copy_wait<KD_LA_PIECES - 2>();
        kd_sync_block(); /* the piece is there for all, and all are done with the one before */
        if (more) {
            kd_la_fetch(u, k, next, next_piece,
                        pieces + (at + KD_LA_PIECES - 1) % KD_LA_PIECES * KD_LA_PIECE);
            more = kd_la_next(k, &next, &next_piece);
        }
        kd_copy_group();
        const int64_t now = p, first = p / 4 * 4 + piece * KD_LA_PIECE;
        const bool begins = !piece;
        kd_la_next(k, &p, &piece);
        if (me >= 32)
            continue;
        const float *row = pieces + at * KD_LA_PIECE;
        const int left = k - first < KD_LA_PIECE ? (int)(k - first) : KD_LA_PIECE;
        const int skip = (int)(now + 1 - first); /* negative after the first piece */
        if (begins)
            sum = 0.0f;
#pragma unroll 8
        for (int i = begins ? skip + lane : (skip + lane) & 15; i < left; i += 16)
            sum = fmaf(row[i], x[first + i], sum);
        if (p == now)
            continue;
        float all = sum;
#pragma unroll
        for (int h = 8; h; h /= 2)
            all += kd_shuffle_xor(all, h);
        if (!me)
            x[now] = (x[now] - all) / (begins ? row[now - first] : u[now * k + now]);
        kd_sync_warp();
    }
}

/* held: shared memory has room for the unknowns. */
KD_KERNEL void KD_BOUNDS(KD_LA_SOLVERS, 1)
    kd_la_solve(const float *u, int64_t k, float *rhs, bool held)
{
    KD_SHARED(shared);
    float *pieces = (float *)shared, *x = rhs;

    if (held) {
        x = pieces + KD_LA_PIECES * KD_LA_PIECE;
        for (int64_t i = kd_thread(); i < k; i += KD_LA_SOLVERS)
            x[i] = rhs[i];
        kd_sync_block();
    }
    kd_la_forward(u, k, x);
    kd_la_backward(u, k, x, pieces);
    kd_sync_block();
    for (int64_t i = kd_thread(); held && i < k; i += KD_LA_SOLVERS)
        rhs[i] = x[i];
}

/* ---- the rest ---- */

/* The diagonal to `out`, after `add` was added to it. */
KD_KERNEL void kd_la_take_diagonal(float *h, int64_t k, float add, float *out)
{
    const int64_t i = (int64_t)kd_block() * KD_LA_THREADS + kd_thread();

    if (i < k) {
        if (add != 0.0f)
            h[i * k + i] += add;
        out[i] = h[i * k + i];
    }
}

/* l *= h on and above the diagonal, a row a block. */
KD_KERNEL void kd_la_times(float *l, const float *h, int64_t k)
{
    const int64_t i = kd_block();

    for (int64_t c = i + kd_thread(); c < k; c += KD_LA_THREADS)
        l[i * k + c] *= h[i * k + c];
}

/* Rows times left, columns times right; NULL: one. A row a block. */
KD_KERNEL void kd_la_stretch(float *x, int64_t cols, const float *left, const float *right)
{
    const int64_t i = kd_block();

    for (int64_t c = kd_thread(); c < cols; c += KD_LA_THREADS)
        x[i * cols + c] *= left ? left[i] : right[c];
}

/* out [cols][rows] = x [rows][cols] transposed, 32 x 32 a block; both multiples of 32. */
KD_KERNEL void KD_BOUNDS(KD_LA_THREADS, 4)
    kd_la_transpose(const float *x, int64_t rows, int64_t cols, float *out)
{
    enum { SIDE = KD_LA_SIDE, STEP = KD_LA_THREADS / SIDE };
    KD_SHARED(shared);
    float *tile = (float *)shared;
    const int64_t across = cols / SIDE;
    const int64_t r0 = kd_block() / across * SIDE, c0 = kd_block() % across * SIDE;
    const int at = kd_thread() % SIDE;

    for (int r = kd_thread() / SIDE; r < SIDE; r += STEP)
        tile[r * (SIDE + 1) + at] = x[(r0 + r) * cols + c0 + at];
    kd_sync_block();
    for (int c = kd_thread() / SIDE; c < SIDE; c += STEP)
        out[(c0 + c) * rows + r0 + at] = tile[at * (SIDE + 1) + c];
}

/* out[c] = sum over ascending rows of x[.][c] y[.][c] in double. A thread a column. */
KD_KERNEL void KD_BOUNDS(KD_LA_ROWS, 8)
    kd_la_column_dots(const float *x, const float *y, int64_t rows, int64_t cols, double *out)
{
    const int64_t c = (int64_t)kd_block() * KD_LA_ROWS + kd_thread();
    double sum = 0.0;

#pragma unroll 16
    for (int64_t i = 0; i < rows; i++)
        sum += (double)x[i * cols + c] * (double)y[i * cols + c];
    out[c] = sum;
}

/* out[i] = sum over ascending columns of x[i][.] y[i][.] in double; cols a multiple of KD_LA_COLS.
 * 32 rows a block: all threads fetch, one warp adds. */
KD_KERNEL void KD_BOUNDS(KD_LA_THREADS, 2)
    kd_la_row_dots(const float *x, const float *y, int64_t cols, double *out)
{
    enum { PITCH = KD_LA_COLS + 1 };
    KD_SHARED(shared);
    float *xs = (float *)shared, *ys = xs + KD_LA_ROWS * PITCH;
    const int64_t r0 = (int64_t)kd_block() * KD_LA_ROWS;
    const int me = kd_thread();
    double sum = 0.0;

    for (int64_t c0 = 0; c0 < cols; c0 += KD_LA_COLS) {
        for (int i = me; i < KD_LA_ROWS * KD_LA_COLS; i += KD_LA_THREADS) {
            const int r = i / KD_LA_COLS, c = i % KD_LA_COLS;
            xs[r * PITCH + c] = x[(r0 + r) * cols + c0 + c];
            ys[r * PITCH + c] = y[(r0 + r) * cols + c0 + c];
        }
        kd_sync_block();
        if (me < KD_LA_ROWS)
            for (int c = 0; c < KD_LA_COLS; c++)
                sum += (double)xs[me * PITCH + c] * (double)ys[me * PITCH + c];
        kd_sync_block();
    }
    if (me < KD_LA_ROWS)
        out[r0 + me] = sum;
}

/* values = weights - values. */
KD_KERNEL void kd_la_error(const float *w, int64_t count, float *values)
{
    const int64_t i = (int64_t)kd_block() * KD_LA_THREADS + kd_thread();

    if (i < count)
        values[i] = w[i] - values[i];
}

#endif
