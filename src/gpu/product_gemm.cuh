/* Products of many rows on the matrix units. A block takes 128 outputs and up to 128 rows of
 * activations (64 where those come in two planes; 32 where two blocks are to share a
 * multiprocessor, which decodes faster):
 *
 * - activations lie in device memory as the matrix instructions want them (product_rows.cuh): 16
 *   bits each, 64 inputs of a row in 128 bytes; they come through shared memory two stages deep;
 *
 * - its eight warps are two *sets* of four: one takes the even blocks of 128 inputs, the other the
 *   odd ones, at its own pace. Warp q of a set has unit q of the outputs (product_codes.cuh),
 *   decodes it straight into the A side of matrix instructions and uses it for all rows;
 *
 * - sums are fp32 in registers, in the order of inputs; at the end those of the odd set are added
 *   to the even one's in shared memory, then rotated and scaled.
 *
 * The inputs of a matrix may be cut into chunks, which other blocks take; the cut depends on the
 * matrix alone and the chunks' sums are added in ascending order. So a row has the same bits
 * whatever rows are beside it. */
#ifndef KD_GPU_PRODUCT_GEMM_CUH
#define KD_GPU_PRODUCT_GEMM_CUH

#include "gpu/product_gemm_codes.cuh"

namespace kd_gemm
{

enum {
    THREADS = 256,
    STEP = 64, /* inputs of a stage */
    HEAD_BYTES = 1024,
    NARROW_ROWS = 32, /* what blocks that share a multiprocessor take, of rates up to */
    NARROW_RATE = 64,
    TILE_STRIDE = 164 /* words between rows of sums: no bank twice, neither in nor out */
};

struct head {
    task k;
    int32_t from, rows; /* of this pass */
};

/* Shared memory of a block that takes so many rows. */
KD_HD static constexpr int shared_of(int tokens)
{
    return tokens > NARROW_ROWS ? 99 << 10 : 51 << 10;
}

/* Where output n of 128 lies in a row of sums. */
KD_DEV int tile_at(int n)
{
    return n % 16 / 4 * 40 + n % 4 * 8 + n / 16;
}

/* All products of one pass, up to TOKENS rows; the sums into shared memory behind the head. */
template <class SIDE_A, int TOKENS> struct pass {
    static constexpr int planes = SIDE_A::planes;
    /* Code of its own for so many times `some` rows, so that nothing keeps the compiler from
     * decoding while matrix instructions are under way. */
    static constexpr int some = TOKENS > NARROW_ROWS ? 32 : 16, most = TOKENS / some,
                         least = TOKENS > NARROW_ROWS &&planes == 1 ? 2 : 1;
    static constexpr int plane_bytes = TOKENS * 128, set_bytes = planes * plane_bytes;
    static_assert(HEAD_BYTES + 4 * set_bytes + 4 * 8 * SIDE_A::ring <= shared_of(TOKENS), "stages");
    static_assert(HEAD_BYTES + 4 * TOKENS * TILE_STRIDE <= shared_of(TOKENS), "sums");

    unsigned char *stage; /* of this set; the other stage is 2 sets on */
    const unsigned char *from;
    int64_t step, plane;
    int32_t rows, lane, thread; /* in the set */
    uint32_t at, turn;          /* of this lane's row of fragments */
    SIDE_A side;
    template <int N> struct sums {
        static constexpr int tiles = N * some / 8;
        float of[2][tiles][4];

        KD_DEV void clear()
        {
#pragma unroll
            for (int c = 0; c < 2; c++)
#pragma unroll
                for (int n = 0; n < tiles; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        of[c][n][i] = 0.0f;
        }
        KD_DEV void add(const sums &s)
        {
#pragma unroll
            for (int c = 0; c < 2; c++)
#pragma unroll
                for (int n = 0; n < tiles; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        of[c][n][i] += s.of[c][n][i];
        }
    };

    /* 64 inputs of all rows into stage `to`. */
    KD_DEV void fetch(int to)
    {
        unsigned char *shared = stage + to * 2 * set_bytes;
#pragma unroll
        for (int p = 0; p < planes; p++)
#pragma unroll
            for (int i = 0; i < TOKENS / 16; i++)
                if (16 * i + thread / 8 < rows)
                    kd_copy16(shared + p * plane_bytes + i * 2048 + thread * 16,
                              from + p * plane + i * 2048 + thread * 16);
    }

    template <int HALF, int N> KD_DEV void half(int i, int blocks, bool odd, sums<N> *d)
    {
        kd_copy_wait<1>();
        if (odd)
            kd_sync_last<128>();
        else
            kd_sync_first<128>();
        side.template open<HALF>(i);
        if (HALF == 0 || i + 1 < blocks) {
            from += HALF == 0 ? step : 3 * step;
            fetch(1 - HALF);
        }
        kd_copy_group();
        side.template ahead<HALF>(i + 1 < blocks, i);
        kd_copy_group();
        const unsigned char *b = stage + HALF * 2 * set_bytes + at;
#pragma unroll
        for (int r = 0; r < 4; r++) {
            uint32_t a[2][4];
            side.fragments(r, a);
            const unsigned char *v = b + (turn ^ (uint32_t)(32 * r));
#pragma unroll
            for (int n = 0; n < some / 16 * N; n++)
#pragma unroll
                for (int p = 0; p < planes; p++) {
                    uint32_t x[4];
                    kd_load_matrices(x, v + p * plane_bytes + n * 2048);
#pragma unroll
                    for (int c = 0; c < 2; c++) {
                        mma(d->of[c][2 * n], a[c], x[0], x[1]);
                        mma(d->of[c][2 * n + 1], a[c], x[2], x[3]);
                    }
                }
        }
    }
    static KD_DEV void mma(float s[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
    {
        if constexpr (SIDE_A::halves) {
            const kd_h2 h[4] = {kd_bits_h2(a[0]), kd_bits_h2(a[1]), kd_bits_h2(a[2]),
                                kd_bits_h2(a[3])};
            kd_mma_halves(s, h, kd_bits_h2(b0), kd_bits_h2(b1));
        } else {
            kd_mma_bf16(s, a, b0, b1);
        }
    }

    KD_DEV void run(unsigned char *memory)
    {
        const head *h = (const head *)memory;
        const task &k = h->k;
        const int warp = kd_thread() / 32, set = warp / 4;
        const int blocks = (k.last - k.first + 1 - set) / 2;
        const bool odd = set != 0;

        lane = kd_thread() % 32;
        thread = kd_thread() % 128;
        rows = h->rows;
        step = k.x_step;
        plane = k.x_plane;
        stage = memory + HEAD_BYTES + set * set_bytes;
        from = k.x + h->from * 128 + (int64_t)(k.first + set) * 2 * step;
        at = (uint32_t)((lane % 8 + lane / 16 * 8) * 128);
        turn = (uint32_t)((lane / 8 % 2 ^ lane % 8) * 16);
        side.begin(k, (uint32_t *)(memory + HEAD_BYTES + 4 * set_bytes) + warp * SIDE_A::ring, set,
                   warp % 4, lane);
        if (blocks > 0) {
            side.first();
            fetch(0);
        }
        kd_copy_group();
        kd_copy_group();
        choose<most>(memory, blocks, odd);
    }
    template <int N> KD_DEV void choose(unsigned char *memory, int blocks, bool odd)
    {
        if constexpr (N > least)
            if (rows <= some * (N - 1)) {
                choose<N - 1>(memory, blocks, odd);
                return;
            }
        sums<N> d;
        d.clear();
        if constexpr (SIDE_A::flush) {
            /* Long chains of the matrix units' sums lose bits; 128 inputs do not. */
            sums<N> all;
            all.clear();
#pragma unroll 1
            for (int i = 0; i < blocks; i++) {
                half<0>(i, blocks, odd, &d);
                half<1>(i, blocks, odd, &d);
                all.add(d);
                d.clear();
            }
            store(memory, all, odd);
        } else {
#pragma unroll 1
            for (int i = 0; i < blocks; i++) {
                half<0>(i, blocks, odd, &d);
                half<1>(i, blocks, odd, &d);
            }
            store(memory, d, odd);
        }
    }

    template <int N> KD_DEV void store(unsigned char *memory, const sums<N> &s, bool odd)
    {
        float *to = (float *)(memory + HEAD_BYTES) + lane % 4 * 2 * TILE_STRIDE;
        const int unit = kd_thread() / 32 % 4, g = lane / 4;

        kd_copy_wait<0>();
        kd_sync_block(); /* the stages are free */
#pragma unroll
        for (int turns = 0; turns < 2; turns++) {
            if (odd == (turns == 0))
#pragma unroll
                for (int c = 0; c < 2; c++)
#pragma unroll
                    for (int n = 0; n < sums<N>::tiles; n++)
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            float *p = to + (8 * n + i % 2) * TILE_STRIDE +
                                       tile_at(16 * g + 2 * unit + c + i / 2 * 8);
                            *p = odd ? s.of[c][n][i] : s.of[c][n][i] + *p;
                        }
            kd_sync_block();
        }
    }
};

/* A function of its own for each rate, or the compiler would make one of all and run out of
 * registers. */
template <class SIDE_A, int TOKENS> KD_CALL void run_pass(unsigned char *memory)
{
    pass<SIDE_A, TOKENS> p;

    p.run(memory);
}

/* What a launch multiplies: rows of a task and of one of its passes, at most; blocks that share a
 * multiprocessor. */
#define KD_RATE(r)                                                                                 \
    case r:                                                                                        \
        run_pass<exl3<r, mul1, planes>, tokens>(memory);                                           \
        return;
#define KD_COMMON                                                                                  \
    KD_RATE(16)                                                                                    \
    KD_RATE(24)                                                                                    \
    KD_RATE(28)                                                                                    \
    KD_RATE(32)                                                                                    \
    KD_RATES_FINE(KD_RATE)                                                                         \
    KD_RATE(48)                                                                                    \
    KD_RATE(52)                                                                                    \
    KD_RATE(56)                                                                                    \
    KD_RATE(60)                                                                                    \
    KD_RATE(64)
struct fast {
    static constexpr bool coded = true, mul1 = true;
    static constexpr int planes = 1, tokens = 128, blocks = 1;

    static KD_DEV bool common(int rate16)
    {
        return rate16 <= 64 && (rate16 % 16 == 0 || rate16 == 24 || rate16 == 28 ||
                                (rate16 > 32 && (rate16 < 48 || rate16 % 4 == 0)));
    }
    static KD_DEV int pass_rows(int rate16)
    {
        return common(rate16) ? 128 : 64;
    }
    static KD_DEV void run(unsigned char *memory)
    {
        switch (((const head *)memory)->k.w.rate16) {
            KD_COMMON
        case 80:
            run_pass<exl3<80, true, 1>, 64>(memory);
            return;
        case 96:
            run_pass<exl3<96, true, 1>, 64>(memory);
            return;
        case 112:
            run_pass<exl3<112, true, 1>, 64>(memory);
            return;
        case 128:
            run_pass<exl3<128, true, 1>, 64>(memory);
            return;
        default:
            run_pass<exl3<0, true, 1>, 64>(memory);
        }
    }
};
/* The same for up to NARROW_ROWS rows, rates up to NARROW_RATE. */
struct fast_narrow {
    static constexpr bool coded = true, mul1 = true;
    static constexpr int planes = 1, tokens = NARROW_ROWS, blocks = 2;

    static KD_DEV int pass_rows(int)
    {
        return tokens;
    }
    static KD_DEV void run(unsigned char *memory)
    {
        switch (((const head *)memory)->k.w.rate16) {
            KD_COMMON
        default:
            run_pass<exl3<0, true, 1>, tokens>(memory);
        }
    }
};
template <bool MUL1> struct values {
    static constexpr bool coded = true, mul1 = MUL1;
    static constexpr int planes = 2, tokens = 64, blocks = 1;

    static KD_DEV int pass_rows(int)
    {
        return tokens;
    }
    static KD_DEV void run(unsigned char *memory)
    {
        const int rate16 = ((const head *)memory)->k.w.rate16;

        if constexpr (MUL1)
            switch (rate16) {
                KD_RATE(32)
                KD_RATES_FINE(KD_RATE)
                KD_RATE(48)
                KD_RATE(64)
            default:
                break;
            }
        else
            switch (rate16) {
                KD_RATE(32)
                KD_RATE(48)
                KD_RATE(64)
            default:
                break;
            }
        run_pass<exl3<0, mul1, 2>, tokens>(memory);
    }
};
#undef KD_COMMON
#undef KD_RATE
template <kd_plain::type TYPE> struct plain_kind {
    static constexpr bool coded = false;
    static constexpr int planes = 2, tokens = 64, blocks = 1;

    static KD_DEV int pass_rows(int)
    {
        return tokens;
    }
    static KD_DEV void run(unsigned char *memory)
    {
        run_pass<plain<TYPE>, tokens>(memory);
    }
};

/* The sums of a pass to where they belong: rotated and scaled, or as they are. */
KD_DEV void deliver(const unsigned char *memory)
{
    const head *h = (const head *)memory;
    const task &k = h->k;
    const int lane = kd_thread() % 32;
    const bool four = k.ldy % 4 == 0 && (uintptr_t)k.y % 16 == 0;
    const float *sums = (const float *)(memory + HEAD_BYTES);

#pragma unroll 1
    for (int t = kd_thread() / 32; t < h->rows; t += THREADS / 32) {
        const int col = SIDE * k.out + 4 * lane;
        float v[4], *y = k.y + (int64_t)(h->from + t) * k.ldy + col;
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = sums[t * TILE_STRIDE + tile_at(4 * lane + i)];
        if (k.svh)
            finish(v, k.scale[h->from + t], k.svh + SIDE * k.out, lane);
        if (four && col + 4 <= k.columns)
            *(float4 *)y = make_float4(v[0], v[1], v[2], v[3]);
        else
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (col + i < k.columns)
                    y[i] = v[i];
    }
}

/* head->k, which thread 0 wrote. */
template <class KIND> KD_DEV void run_task(unsigned char *memory)
{
    head *h = (head *)memory;
    const int most = KIND::coded ? KIND::pass_rows(h->k.w.rate16) : (int)KIND::tokens;
    const int rows = h->k.rows; /* thread 0 may write the next task before all are out of here */

#pragma unroll 1
    for (int from = 0; from < rows; from += most) {
        if (kd_thread() == 0) {
            h->from = from;
            h->rows = rows - from < most ? rows - from : most;
        }
        kd_sync_block();
        KIND::run(memory);
        deliver(memory);
        kd_sync_block();
    }
}

/* Matrices of one kind with the same number of rows of activations, side by side. */
struct dense_job {
    kd_exl3::matrix w;
    kd_plain::matrix plain;
    const float *from; /* activations */
    int64_t ldx;
    unsigned char *x; /* the same, prepared, and each row's scale */
    float *scale;
    float *y, *part; /* part: [chunks][rows][outs * 128] where there are several */
    int64_t ldy;
    int32_t ins, outs, first, chunks, blocks; /* its first task; the cut of its inputs */
};
struct dense_args {
    dense_job job[8];
    int32_t jobs, rows, tasks, planes;
};
/* Rows of prepared activations lie in tiles, so that no task's rows pass their end. */
KD_HD static inline int64_t whole_rows(int64_t rows)
{
    return (rows + 7) / 8 * 8;
}

template <class KIND> KD_DEV void dense_pick(const dense_args &a, int index, task *k)
{
    int j = 0;
    while (j + 1 < a.jobs && index >= a.job[j + 1].first)
        j++;
    const dense_job &job = a.job[j];
    const int tiles = (a.rows + KIND::tokens - 1) / KIND::tokens, local = index - job.first;
    const int row = local % tiles * KIND::tokens, chunk = local / tiles % job.chunks;
    const bool parts = job.chunks > 1;
    const int64_t wide = (int64_t)job.outs * SIDE;

    k->w = job.w;
    k->plain = job.plain;
    k->x_step = whole_rows(a.rows) * 128;
    k->x_plane = k->x_step * 2 * job.ins;
    k->x = job.x + (int64_t)row * 128;
    k->scale = job.scale + row;
    k->svh = KIND::coded && !parts ? job.w.svh : nullptr;
    k->ldy = parts ? wide : job.ldy;
    k->y = parts ? job.part + ((int64_t)chunk * a.rows + row) * wide : job.y + row * job.ldy;
    k->columns = parts ? (int)wide : KIND::coded ? job.w.rows : job.plain.rows;
    k->rows = a.rows - row < KIND::tokens ? a.rows - row : (int)KIND::tokens;
    k->out = local / tiles / job.chunks;
    k->first = chunk * job.blocks;
    k->last = k->first + job.blocks < job.ins ? k->first + job.blocks : job.ins;
}

} // namespace kd_gemm
#endif
