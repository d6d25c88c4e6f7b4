/* Kernels of a round of encoding: targets of the tiles of all jobs before the search, values,
 * errors and codes after it. Orders are those of codec/exl3_ldlq.c and exl3_scale.c. */
#ifndef KD_GPU_ENCODE_CUH
#define KD_GPU_ENCODE_CUH

#include "gpu/encode_int.cuh"
#include "gpu/lanes.cuh"
#include "num/exl3_ring.h"

#include <math.h>

KD_DEV const kd_encode_part &kd_encode_part_of(const kd_encode_round &q, int block)
{
    int i = 0;

    while (i + 1 < q.count && block >= q.part[i + 1].block)
        i++;
    return q.part[i];
}

/* Rows of targets with the feedback of the rows below in their span, 128 columns a block. */
KD_KERNEL void KD_BOUNDS(KD_ENCODE_COLUMNS, 4) kd_encode_targets(KD_ARGS kd_encode_round q)
{
    KD_SHARED(shared);
    float *ls = (float *)shared, *tile = ls + KD_ENCODE_SPAN * KD_TILE;
    const kd_encode_part &j = kd_encode_part_of(q, kd_block());
    const int me = kd_thread();
    const int64_t c0 = (kd_block() - j.block) * KD_ENCODE_COLUMNS, c = c0 + me;
    const int64_t below = j.row + KD_TILE;
    float acc[KD_TILE];

#pragma unroll
    for (int i = 0; i < KD_TILE; i++)
        acc[i] = j.t[(j.row + i) * j.n + c];
    if (j.l && below < j.end) {
        const int depth = (int)(j.end - below);
        const float *e = j.e + (below - (j.end - KD_ENCODE_SPAN)) * j.n + c;
        for (int u = me; u < depth * KD_TILE; u += KD_ENCODE_COLUMNS)
            ls[u] = j.l[(below + u / KD_TILE) * j.k + j.row + u % KD_TILE];
        kd_sync_block();
        for (int s = 0; s < depth; s++) {
            const float v = e[s * j.n];
#pragma unroll
            for (int i = 0; i < KD_TILE; i++)
                acc[i] = fmaf(ls[s * KD_TILE + i], v, acc[i]);
        }
    }
    for (int i = 0; i < KD_TILE; i++)
        tile[i * (KD_ENCODE_COLUMNS + 1) + me] = acc[i];
    kd_sync_block();
    float *to = q.target + (j.first + c0 / KD_TILE) * KD_TILE_WEIGHTS;
    for (int u = me; u < KD_ENCODE_COLUMNS * KD_TILE; u += KD_ENCODE_COLUMNS) {
        const unsigned p = (unsigned)u % KD_TILE_WEIGHTS;
        to[u] = tile[kd_tile_row(p) * (KD_ENCODE_COLUMNS + 1) + u / KD_TILE_WEIGHTS * KD_TILE +
                     kd_tile_col(p)];
    }
}

/* 16 bits of a packed tile, from the states of a closed ring: those of the last position that ends
 * at or before them, and the first bits of the symbol after it. */
KD_DEV uint16_t kd_encode_half(struct kd_rate rate, const uint16_t *states, unsigned u)
{
    const unsigned period = kd_rate_to16(rate), want = 16 * (u + 1);
    unsigned p = want / period * 16, end = want / period * period;

    /* p positions end at `end` */
    while (end + kd_rate_bits_at(rate, p) <= want) {
        end += kd_rate_bits_at(rate, p);
        p++;
    }
    const unsigned more = want - end, n = kd_rate_bits_at(rate, p);
    const unsigned symbol = more ? states[p & 255u] & ((1u << n) - 1u) : 0u;
    return (uint16_t)((unsigned)states[p - 1] << more | symbol >> (n - more));
}

/* Sums squares one after the other; the others wait for nothing. */
KD_DEV double kd_encode_sum(const double *square, int count)
{
    double sum = 0.0;

    for (int i = 0; i < count; i++)
        sum += square[i];
    return sum;
}

/* Values, errors and codes of four tiles of a row. */
KD_KERNEL void KD_BOUNDS(KD_ENCODE_THREADS, 2) kd_encode_values(KD_ARGS kd_encode_round q)
{
    enum { COLS = KD_ENCODE_GROUP * KD_TILE, PITCH = COLS + 1 };
    KD_SHARED(shared);
    double *square = (double *)shared;
    float *value = (float *)(square + KD_ENCODE_GROUP * KD_TILE_WEIGHTS);
    uint16_t *states = (uint16_t *)(value + KD_TILE * PITCH);
    const kd_encode_part &j = kd_encode_part_of(q, kd_block());
    const int me = kd_thread();
    const int64_t item = kd_block() - j.block, across = j.n / KD_TILE;
    const int64_t tile0 = j.first + item * KD_ENCODE_GROUP;

    for (int i = 0; i < KD_ENCODE_GROUP; i++) {
        const unsigned p = (unsigned)me;
        const uint16_t s = q.states[(tile0 + i) * KD_TILE_WEIGHTS + p];
        const float v = kd_f16_f32(kd_codebook_f16(j.cb, s));
        const double d = (double)q.target[(tile0 + i) * KD_TILE_WEIGHTS + p] - (double)v;
        square[i * KD_TILE_WEIGHTS + me] = d * d;
        states[i * KD_TILE_WEIGHTS + me] = s;
        value[kd_tile_row(p) * PITCH + i * KD_TILE + kd_tile_col(p)] = v;
    }
    kd_sync_block();
    for (int u = me; u < KD_TILE * COLS; u += KD_ENCODE_THREADS) {
        const int row = u / COLS, col = u % COLS;
        const int64_t c = item * COLS + col, at = (j.row + row) * j.n + c;
        const float v = value[row * PITCH + col];
        j.e[(j.row + row - (j.end - KD_ENCODE_SPAN)) * j.n + c] = j.r[at] - v;
        j.t[at] = v;
    }
    const unsigned halves = kd_rate_to16(j.rate);
    uint16_t *codes =
        (uint16_t *)j.codes + (j.row / KD_TILE * across + item * KD_ENCODE_GROUP) * (int64_t)halves;
    for (unsigned u = (unsigned)me; u < KD_ENCODE_GROUP * halves; u += KD_ENCODE_THREADS) {
        const unsigned h = u % halves, at = h + 1 == halves && (halves & 1u) ? h : h ^ 1u;
        codes[u - h + at] = kd_encode_half(j.rate, states + u / halves * KD_TILE_WEIGHTS, h);
    }
    if (me == KD_ENCODE_THREADS - 1)
        j.sum[j.row / KD_TILE * (across / KD_ENCODE_GROUP) + item] =
            kd_encode_sum(square, KD_ENCODE_GROUP * KD_TILE_WEIGHTS);
}

/* Tiles of one group of a scale search that are samples; the rest of its four are zero. */
KD_DEV int kd_encode_used(const kd_encode_part &j, int64_t group)
{
    const int64_t left = (j.tiles + j.stride - 1) / j.stride - group * KD_ENCODE_GROUP;
    return left < KD_ENCODE_GROUP ? (int)left : KD_ENCODE_GROUP;
}

/* Targets of scale searches, an item a block. */
KD_KERNEL void KD_BOUNDS(KD_ENCODE_THREADS, 2) kd_encode_scale_targets(KD_ARGS kd_encode_round q)
{
    const kd_encode_part &j = kd_encode_part_of(q, kd_block());
    const int64_t at = kd_block() - j.block, item = j.list[j.item + at];
    const int64_t first = item % j.groups * KD_ENCODE_GROUP;
    const double scale = j.scale[item / j.groups];
    const int used = kd_encode_used(j, item % j.groups), p = kd_thread();

    for (int i = 0; i < KD_ENCODE_GROUP; i++)
        q.target[(j.first + at * KD_ENCODE_GROUP + i) * KD_TILE_WEIGHTS + p] =
            i < used
                ? (float)((double)j.sample[(first + i) * j.stride * KD_TILE_WEIGHTS + p] * scale)
                : 0.0f;
}

KD_KERNEL void KD_BOUNDS(KD_ENCODE_THREADS, 2) kd_encode_scale_sums(KD_ARGS kd_encode_round q)
{
    KD_SHARED(shared);
    double *square = (double *)shared;
    const kd_encode_part &j = kd_encode_part_of(q, kd_block());
    const int64_t at = kd_block() - j.block, item = j.list[j.item + at];
    const double scale = j.scale[item / j.groups];
    const int used = kd_encode_used(j, item % j.groups), p = kd_thread();

    for (int i = 0; i < used; i++) {
        const int64_t w = (j.first + at * KD_ENCODE_GROUP + i) * KD_TILE_WEIGHTS + p;
        const double d =
            (double)kd_f16_f32(kd_codebook_f16(j.cb, q.states[w])) - (double)q.target[w];
        square[i * KD_TILE_WEIGHTS + p] = d * d / (scale * scale);
    }
    kd_sync_block();
    if (!p)
        j.sum[j.item + at] = kd_encode_sum(square, used * KD_TILE_WEIGHTS);
}

#endif
