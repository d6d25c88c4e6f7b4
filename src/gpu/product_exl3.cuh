/* Products of a few rows with EXL3 codes. A block takes a *task*: up to 1,024 inputs (a *chunk*,
 * up to eight blocks of 128) and some units of 32 outputs, for up to 16 rows of activations. It
 *
 * - sets its first codes on their way, which no launch before can change;
 *
 * - scales and rotates the chunk's activations and rounds them to a step of the chunk's own;
 *
 * - multiplies: its warps share the units of all blocks of inputs evenly. A warp keeps 128 inputs
 * in registers as the B side of matrix instructions and decodes units straight into the A side;
 * sums are integers in shared memory, so that the order in which warps add does not matter;
 *
 * - writes the sums as floats, by chunks. The last block at 128 outputs adds the chunks in
 * ascending order, rotates and scales.
 *
 * The cut into chunks depends on the matrix alone, that into units and rows matters to nobody. */
#ifndef KD_GPU_PRODUCT_EXL3_CUH
#define KD_GPU_PRODUCT_EXL3_CUH

#include "gpu/product_modes.cuh"

namespace kd_exl3
{

enum {
    RING = 40,       /* words that a lane has on their way: units of some rate */
    RING_UNITS = 4,  /* and at most so many */
    CHUNKS_READ = 12 /* that are loaded at once */
};

/* Words of a unit in the ring: its own, its bytes', the tail of the unit before. */
KD_HD static constexpr int ring_words(int rate16)
{
    return rate16 / 4 + rate16 % 4 + 1;
}
KD_HD static constexpr int ring_units(int rate16)
{
    return RING / ring_words(rate16) < RING_UNITS ? RING / ring_words(rate16) : (int)RING_UNITS;
}

/* The head of a block's shared memory. Behind it: packed activations, of every warp's block of
 * inputs; rings, of every warp; where activations are not packed, rotated ones [rows][warps * 128];
 * sums. */
struct alignas(16) shared_head {
    uint32_t most[GROUP][WARPS]; /* largest magnitude, as bits: NaN is above infinity */
    int32_t total[GROUP][WARPS]; /* of the rounded activations, as the mode has it */
    int32_t whole[64];           /* blocks of outputs that this block finishes */
    int32_t wholes;
    int32_t job, group; /* of the task; its place in the launch */
    task k; /* kept here, so that nothing of it takes registers while units are multiplied */
};
/* packed: a mode's */
KD_HD static inline int64_t shared_bytes(int packed, int rows, int warps, int units)
{
    return (int64_t)sizeof(shared_head) + 4ll * packed * warps + 128ll * RING * WARPS +
           (packed ? 0 : 4ll * rows * warps * SIDE) + 4ll * rows * units * ROW_STRIDE;
}

/* The parts of a block's shared memory. */
struct parts {
    shared_head *head;
    uint32_t *packed, *ring; /* this warp's ring */
    float *rotated;
    int32_t *sums;
    int32_t stride, warps, first; /* of `rotated`; blocks of inputs: how many, the first */
};
template <class MODE> KD_DEV struct parts parts_of(unsigned char *memory)
{
    shared_head *head = (shared_head *)memory;
    const task &k = head->k;
    const struct cut c = k.w.cut;
    const int left = k.w.ins - k.chunk * c.warps;
    uint32_t *packed = (uint32_t *)(memory + sizeof *head), *ring = packed + MODE::packed * c.warps;
    float *rotated = (float *)(ring + 32 * RING * WARPS);

    return {head,
            packed,
            ring + 32 * RING * (kd_thread() / 32),
            rotated,
            (int32_t *)(MODE::packed ? rotated : rotated + k.rows * c.warps * SIDE),
            c.warps * SIDE,
            left < c.warps ? left : c.warps,
            k.chunk * c.warps};
}

/* Which units a warp has: places begin .. end - 1 of the task's, by blocks of inputs. */
struct place {
    int32_t at, end, unit, block;
};
KD_DEV struct place place_of(const struct parts &p)
{
    const int units = p.head->k.last - p.head->k.first, all = units * p.warps;
    const int warp = kd_thread() / 32, at = warp * all / WARPS;

    return {at, (warp + 1) * all / WARPS, p.head->k.first + at % units, at / units};
}
/* Unit 0 .. 3 of a block into the ring, without the tail before it. */
KD_DEV void fetch_unit(const uint32_t *block, int rate16, int unit, uint32_t *to, int lane)
{
    const int words = rate16 / 4, fours = words / 4 * 4, bytes = rate16 % 4;
    const uint32_t *at = block + unit * words * 32;

    for (int i = 0; i < fours; i += 4)
        kd_copy16(to + i * 32 + lane * 4, at + i * 32 + lane * 4);
    if (words % 4 >= 2) {
        kd_copy4(to + fours * 32 + lane * 2, at + fours * 32 + lane * 2);
        kd_copy4(to + fours * 32 + lane * 2 + 1, at + fours * 32 + lane * 2 + 1);
    }
    if (words % 2)
        kd_copy4(to + (words - 1) * 32 + lane, at + (words - 1) * 32 + lane);
    for (int i = 0; i < bytes; i++)
        kd_copy4(to + (words + i) * 32 + lane, block + UNITS * words * 32 + i * 32 + lane);
}

/* What a warp reads of its units: next comes `unit` of the block at `from`, in all `left` more. */
struct reader {
    const uint32_t *from;
    int32_t unit, left, block; /* of inputs, in the chunk */
};
KD_DEV const uint32_t *codes_at(const task &k, int rate16, int block, int unit)
{
    return k.w.codes +
           ((int64_t)(k.chunk * k.w.cut.warps + block) * k.w.outs + unit / UNITS) * 32 * rate16;
}
KD_DEV void fetch_next(int rate16, bool fresh, struct reader *o, uint32_t *to, int lane)
{
    if (o->left > 0) {
        const int unit = o->unit & (UNITS - 1);
        if (fresh || unit == 0)
            kd_copy4(to + (ring_words(rate16) - 1) * 32 + lane,
                     o->from + ((unit + 3) & (UNITS - 1)) * (rate16 / 4) * 32 + lane * 4);
        fetch_unit(o->from, rate16, unit, to, lane);
        o->left--;
        o->unit++;
        if (unit == UNITS - 1)
            o->from += 32 * rate16;
    }
    kd_copy_group();
}
/* Past the last unit of a block of inputs comes the next block's first. */
KD_DEV bool fetch_turn(const task &k, int rate16, struct reader *o)
{
    if (o->unit != k.last)
        return false;
    o->unit = k.first;
    o->block++;
    o->from = codes_at(k, rate16, o->block, o->unit);
    return true;
}

/* Scaled and rotated activations of this warp's block of inputs, largest magnitudes of all. Waits
 * for the launch before. */
template <class MODE>
KD_DEV void load_inputs(const struct parts &p, float (*v)[4], int warp, int lane)
{
    const task &k = p.head->k;
    const int rows = kd_shuffle_int(k.rows, 0); /* now the compiler knows that lanes agree */
    float scale[4];

    if (warp < p.warps) {
        input_scales(k, p.first + warp, lane, scale);
        kd_launch_wait();
        row_inputs<MODE::rows>(k, rows, SIDE * (p.first + warp) + 4 * lane, v);
        kd_sync_warp();
        if (rows == 1)
            rotate_rows<1>(v, scale, p.head->most, warp, lane);
        else
#pragma unroll
            for (int t = 0; t < MODE::rows; t += 4)
                if (t < rows)
                    rotate_rows<4>(v + t, scale, p.head->most + t, warp, lane);
    } else {
        kd_launch_wait();
#pragma unroll
        for (int i = 0; i < 4 * MODE::rows; i++)
            v[i / 4][i % 4] =
                0.0f; /* or it would be alive, for the compiler, all the time before */
        if (lane < rows) {
            p.head->most[lane][warp] = 0;
            p.head->total[lane][warp] = 0;
        }
    }
}

/* Activations in shared memory as the mode wants them, sums of 0, a barrier. What launches before
 * this one write is read only here. */
template <class MODE> KD_DEV void prepare(unsigned char *memory)
{
    const int thread = kd_thread(), warp = kd_shuffle_int(thread / 32, 0), lane = thread % 32;
    const struct parts p = parts_of<MODE>(memory);
    const task &k = p.head->k;
    const int words = (k.last - k.first) * k.rows * ROW_STRIDE;
    float v[MODE::rows][4];

    /* Output scales, 256 bytes for every 128, which are wanted at the end. */
    for (int i = k.first / UNITS * 2 + thread; i < (k.last + UNITS - 1) / UNITS * 2;
         i += 32 * WARPS)
        kd_prefetch(k.w.svh + 64 * i);
    for (int i = thread; i < words; i += 32 * WARPS)
        p.sums[i] = 0;
    load_inputs<MODE>(p, v, warp, lane);
    if constexpr (MODE::packed) {
        kd_sync_block();
        if (warp < p.warps)
            MODE::pack(v, kd_shuffle_int(k.rows, 0), p.head->most, p.head->total, warp,
                       p.packed + warp * MODE::packed, lane);
    } else if (warp < p.warps) {
#pragma unroll
        for (int t = 0; t < MODE::rows; t++)
            if (t < k.rows)
                *(float4 *)(p.rotated + t * p.stride + warp * SIDE + 4 * lane) =
                    make_float4(v[t][0], v[t][1], v[t][2], v[t][3]);
    }
    kd_sync_block();
}

/* The first units of this warp on their way. */
template <int R, class MODE> KD_CALL void fetch_first(unsigned char *memory)
{
    const struct parts p = parts_of<MODE>(memory);
    const task &k = p.head->k;
    const struct place o = place_of(p);
    struct reader r = {codes_at(k, R, o.block, o.unit), o.unit, o.end - o.at, o.block};

#pragma unroll 1
    for (int i = 0; i < ring_units(R); i++) {
        const bool turn = fetch_turn(k, R, &r);
        fetch_next(R, i == 0 || turn, &r, p.ring + i * 32 * ring_words(R), kd_thread() % 32);
    }
}

/* All units of a warp. A function of its own for each rate, or the compiler would make one of all
 * and run out of registers. What is needed rarely is read again from shared memory then. */
template <int R, class MODE> KD_CALL void run_units(unsigned char *memory)
{
    const shared_head *head = (const shared_head *)memory;
    const task &k = head->k;
    const int lane = kd_thread() % 32, rows = k.rows;
    MODE m(k.w.codebook);
    unit_codes<R> u(k.w.rate16);
    constexpr int depth = R ? ring_units(R) : 1, words = 32 * ring_words(R);
    struct reader next;
    uint32_t tail = 0;
    int slot = 0; /* in words */
    int32_t *sums, left, unit, block;
    bool fresh = true;
    uint32_t *const ring = parts_of<MODE>(memory).ring;
    {
        const struct parts p = parts_of<MODE>(memory);
        const struct place o = place_of(p);
        const int units = k.last - k.first;
        const int ahead = o.at + (o.end - o.at < depth ? o.end - o.at : depth);

        unit = o.unit;
        block = o.block;
        left = o.end - o.at;
        sums = p.sums + (unit - k.first) * rows * ROW_STRIDE;
        if constexpr (R) {
            /* Where fetch_first stopped: behind a unit, which may be a block's last. */
            next.block = (ahead - 1) / units;
            next.unit = k.first + (ahead - 1) % units + 1;
            next.left = o.end - ahead;
            next.from = codes_at(k, R, next.block, next.unit);
        }
    }
#pragma unroll 1
    while (left > 0) {
        if (fresh) {
            const struct parts p = parts_of<MODE>(memory);
            m.open(p.rotated + block * SIDE, p.stride, p.packed + block * MODE::packed, rows,
                   p.head->most, p.head->total, block, lane);
        }
        if constexpr (R) {
            uint32_t *at = ring + slot;
            kd_copy_wait<depth - 1>();
            u.take(at, lane);
            u.before = fresh || (unit & (UNITS - 1)) == 0 ? at[words - 32 + lane] : tail;
            tail = u.word[0];
            const bool turn = fetch_turn(k, R, &next);
            fetch_next(R, turn, &next, at, lane);
            slot = slot == (depth - 1) * words ? 0 : slot + words;
        } else {
            u.load(codes_at(k, k.w.rate16, block, unit), lane);
        }
        m.template unit<R>(u, unit & (UNITS - 1), sums, rows, lane);
        sums += rows * ROW_STRIDE;
        left--;
        unit++;
        fresh = unit == k.last;
        if (fresh) {
            unit = k.first;
            block++;
            sums -= (k.last - k.first) * rows * ROW_STRIDE;
        }
    }
}

/* Rates that have code of their own: whole ones in every mode, those that experts use in the mode
 * for decoding. */
#define KD_RATES(KD_RATE)                                                                          \
    KD_RATE(16)                                                                                    \
    KD_RATE(32) KD_RATE(48) KD_RATE(64) KD_RATE(80) KD_RATE(96) KD_RATE(112) KD_RATE(128)
/* From 2 to 3 bits, which product_gemm.cuh has, too. */
#define KD_RATES_FINE(KD_RATE)                                                                     \
    KD_RATE(33)                                                                                    \
    KD_RATE(34) KD_RATE(35) KD_RATE(36) KD_RATE(37) KD_RATE(38) KD_RATE(39) KD_RATE(40)            \
        KD_RATE(41) KD_RATE(42) KD_RATE(43) KD_RATE(44) KD_RATE(45) KD_RATE(46) KD_RATE(47)
#define KD_RATES_MASKED(KD_RATE)                                                                   \
    KD_RATE(24) KD_RATE(28) KD_RATES_FINE(KD_RATE) KD_RATE(52) KD_RATE(56) KD_RATE(60)

/* head->k (which all threads see) up to its sums in shared memory, and a barrier. */
template <class MODE> KD_DEV void multiply(unsigned char *memory)
{
    const int rate16 = ((const shared_head *)memory)->k.w.rate16;

#define KD_FETCH(r)                                                                                \
    case r:                                                                                        \
        fetch_first<r, MODE>(memory);                                                              \
        break;
#define KD_RUN(r)                                                                                  \
    case r:                                                                                        \
        run_units<r, MODE>(memory);                                                                \
        break;
    if constexpr (MODE::masked) {
        switch (rate16) {
            KD_RATES(KD_FETCH) KD_RATES_MASKED(KD_FETCH) default : break;
        }
        prepare<MODE>(memory);
        switch (rate16) {
            KD_RATES(KD_RUN) KD_RATES_MASKED(KD_RUN) default : run_units<0, MODE>(memory);
        }
    } else {
        switch (rate16) {
            KD_RATES(KD_FETCH) default : break;
        }
        prepare<MODE>(memory);
        switch (rate16) {
            KD_RATES(KD_RUN) default : run_units<0, MODE>(memory);
        }
    }
#undef KD_FETCH
#undef KD_RUN
    kd_sync_block();
}
#undef KD_RATES
#undef KD_RATES_MASKED

/* Where output 4 lane + i of 128 is: in unit place_unit + i / 2 at place_at + i % 2 * 2. (It is
 * column 4 (lane % 4) + i of tile lane / 4.) */
KD_DEV int place_unit(int lane)
{
    return lane % 2 * 2;
}
KD_DEV int place_at(int lane)
{
    return lane / 4 * 4 + lane / 2 % 2;
}

/* The sums into device memory, [chunk][row][output]. */
template <class MODE> KD_DEV void write_sums(const struct parts &p, int warp, int lane)
{
    const task &k = p.head->k;
    float size = 0.0f, *to = k.sums + (int64_t)k.chunk * k.rows * k.w.outs * SIDE + 4 * lane;
    int32_t total = 0;

    if (lane < k.rows) {
        size = MODE::size(largest(p.head->most[lane]));
        if (MODE::packed)
#pragma unroll
            for (int i = 0; i < WARPS; i++)
                total += MODE::total(p.head->total[lane][i]);
    }
    int n = k.first / UNITS, t = warp;
    while (true) {
        for (; t >= k.rows; n++)
            t -= k.rows;
        if (n * UNITS >= k.last)
            break;
        const int unit = n * UNITS + place_unit(lane) - k.first, all = k.last - k.first;
        const float s = kd_shuffle(size, t);
        const int32_t u = kd_shuffle_int(total, t);
        float *at = to + ((int64_t)t * k.w.outs + n) * SIDE;
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = unit + i / 2 >= 0 && unit + i / 2 < all
                       ? MODE::value(p.sums[((unit + i / 2) * k.rows + t) * ROW_STRIDE +
                                            place_at(lane) + i % 2 * 2],
                                     s, u)
                       : 0.0f;
        if (unit >= 0 && unit + 1 < all)
            *(float4 *)at = make_float4(v[0], v[1], v[2], v[3]);
        else if (unit >= 0 && unit < all)
            *(float2 *)at = make_float2(v[0], v[1]);
        else if (unit + 1 >= 0 && unit + 1 < all)
            *(float2 *)(at + 2) = make_float2(v[2], v[3]);
        t += WARPS;
    }
}

/* The sums into device memory. Counts this task's units in; head->whole then names the blocks of
 * 128 outputs of which all of `chunks` chunks are there, this block having brought the last.
 * Counters go back to 0. head->wholes was 0. */
template <class MODE> KD_DEV void deliver(unsigned char *memory, int chunks)
{
    const struct parts p = parts_of<MODE>(memory);
    const task &k = p.head->k;
    const int blocks = (k.last + UNITS - 1) / UNITS - k.first / UNITS;

    write_sums<MODE>(p, kd_thread() / 32, kd_thread() % 32);
    kd_sync_block();
    if (kd_thread() < blocks) {
        kd_device_fence(); /* for all of the block's sums: the barrier is before it */
        const int i = k.first / UNITS + kd_thread();
        const int a = k.first > UNITS * i ? k.first : UNITS * i,
                  b = k.last < UNITS * i + UNITS ? k.last : UNITS * i + UNITS;
        if (kd_device_add(k.counter + i, b - a) + b - a == UNITS * chunks) {
            k.counter[i] = 0;
            p.head->whole[kd_shared_add(&p.head->wholes, 1)] = i;
            kd_device_fence();
        }
    }
    kd_sync_block();
}

/* 128 outputs of ROWS rows, 4 a lane: chunks added in order, rotated. `sums` are the first chunk's
 * and row's, at this block of outputs; chunks and rows are `step` and `row` floats apart. */
template <int ROWS>
KD_DEV void finish(const float *sums, int64_t step, int64_t row, int chunks, int lane,
                   float (*v)[4])
{
    sums += 4 * lane;
#pragma unroll
    for (int t = 0; t < ROWS; t++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[t][i] = -0.0f; /* changes no sum */
#pragma unroll 1
    for (int left = chunks; left > 0; left -= CHUNKS_READ) {
        float4 some[ROWS][CHUNKS_READ];
#pragma unroll
        for (int t = 0; t < ROWS; t++)
#pragma unroll
            for (int c = 0; c < CHUNKS_READ; c++) {
                some[t][c] = make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
                if (c < left)
                    some[t][c] = kd_load_fresh(sums + t * row + c * step);
            }
#pragma unroll
        for (int t = 0; t < ROWS; t++)
#pragma unroll
            for (int c = 0; c < CHUNKS_READ; c++) {
                v[t][0] += some[t][c].x;
                v[t][1] += some[t][c].y;
                v[t][2] += some[t][c].z;
                v[t][3] += some[t][c].w;
            }
        sums += CHUNKS_READ * step;
    }
    kd_hadamard128_rows<ROWS>(v, lane);
}
KD_DEV void scale_outputs(const uint16_t *svh, int lane, float v[4])
{
    const uint2 s = *(const uint2 *)(svh + 4 * lane);

    v[0] = kd_mul(v[0], kd_half_float((uint16_t)s.x));
    v[1] = kd_mul(v[1], kd_half_float((uint16_t)(s.x >> 16)));
    v[2] = kd_mul(v[2], kd_half_float((uint16_t)s.y));
    v[3] = kd_mul(v[3], kd_half_float((uint16_t)(s.y >> 16)));
}

/* Matrices with the same number of rows of activations, side by side. */
struct dense_job {
    matrix w;
    const float *x;
    float *y;
    int64_t ldx, ldy;
    int64_t sums;    /* floats from args.sums */
    int32_t counter; /* from args.counter, [groups][outs / 128] */
    int32_t first;   /* its first task */
    struct spread units;
};
struct dense_args {
    dense_job job[8];
    int32_t jobs, rows, tasks;
    int32_t group; /* rows of a task */
    float *sums;
    int32_t *counter;
};

/* The job of a task, and what of it the task is. */
KD_DEV void dense_pick(const dense_args &a, int index, shared_head *to)
{
    int j = 0;
    while (j + 1 < a.jobs && index >= a.job[j + 1].first)
        j++;
    const dense_job &job = a.job[j];
    const int chunks = job.w.cut.chunks, local = index - job.first, some = local / chunks;
    const int group = a.rows > a.group ? some / job.units.ranges : 0;
    const int range = some - group * job.units.ranges, left = a.rows - group * a.group;

    to->wholes = 0;
    to->job = j;
    to->group = group;
    to->k = {job.w,
             job.x + (int64_t)group * a.group * job.ldx,
             job.ldx,
             nullptr,
             left < a.group ? left : a.group,
             local - some * chunks,
             spread_first(job.units, range),
             spread_first(job.units, range + 1),
             a.sums + job.sums + (int64_t)group * a.group * chunks * job.w.outs * SIDE,
             a.counter + job.counter + group * job.w.outs};
}

/* The blocks of outputs that are whole. */
KD_DEV void dense_finish(const dense_args &a, const shared_head *head)
{
    const task &k = head->k;
    const dense_job &job = a.job[head->job];
    const int64_t row = (int64_t)k.w.outs * SIDE;
    const int pairs = (k.rows + 1) / 2, lane = kd_thread() % 32;

    for (int i = kd_thread() / 32; i < head->wholes * pairs; i += WARPS) {
        const int n = head->whole[i / pairs], t = i % pairs * 2;
        const int at = SIDE * n + 4 * lane, rows = k.rows - t < 2 ? 1 : 2;
        float v[2][4], *y = job.y + (int64_t)(head->group * a.group + t) * job.ldy + at;

        if (rows == 1)
            finish<1>(k.sums + t * row + SIDE * n, k.rows * row, row, k.w.cut.chunks, lane, v);
        else
            finish<2>(k.sums + t * row + SIDE * n, k.rows * row, row, k.w.cut.chunks, lane, v);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            if (j >= rows)
                continue;
            scale_outputs(k.w.svh + SIDE * n, lane, v[j]);
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (at + e < k.w.rows)
                    y[j * job.ldy + e] = v[j][e];
        }
    }
}

} // namespace kd_exl3
#endif
