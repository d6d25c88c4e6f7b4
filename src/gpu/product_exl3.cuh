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
    RING = 40,      /* words that a lane has on their way: units of some rate */
    RING_UNITS = 4, /* and at most so many */
    CHUNKS_READ = 8 /* that are loaded at once */
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
 * inputs; rings, of every warp; rotated activations [rows][warps * 128]; sums, which take the place
 * of the rotated activations where those are packed. */
struct alignas(16) shared_head {
    uint32_t most[GROUP][WARPS]; /* largest magnitude, as bits: NaN is above infinity */
    int32_t total[GROUP][WARPS]; /* of the rounded activations */
    int32_t whole[64];           /* blocks of outputs that this block finishes */
    int32_t wholes;
    int32_t job, group; /* of the task; its place in the launch */
    task k; /* kept here, so that nothing of it takes registers while units are multiplied */
};
/* packed: a mode's */
KD_HD static inline int64_t shared_bytes(int packed, int rows, int warps, int units)
{
    const int64_t rotated = 4ll * (packed && rows > PART ? (int)PART : rows) * warps * SIDE,
                  sums = 4ll * rows * units * ROW_STRIDE;

    return (int64_t)sizeof(shared_head) + 4ll * packed * warps + 128ll * RING * WARPS +
           (!packed          ? rotated + sums
            : rotated > sums ? rotated
                             : sums);
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
    const struct cut c = cut_of(k.w.ins);
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
           ((int64_t)(k.chunk * cut_of(k.w.ins).warps + block) * k.w.outs + unit / UNITS) * 32 *
               rate16;
}
KD_DEV void fetch_next(int rate16, bool fresh, struct reader *o, uint32_t *to, int lane)
{
    if (o->left > 0) {
        if (fresh || o->unit % UNITS == 0)
            kd_copy4(to + (ring_words(rate16) - 1) * 32 + lane,
                     o->from + (o->unit + 3) % UNITS * (rate16 / 4) * 32 + lane * 4);
        fetch_unit(o->from, rate16, o->unit % UNITS, to, lane);
        o->left--;
        o->unit++;
        if (o->unit % UNITS == 0)
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

/* The first units of this warp on their way. */
template <class MODE> KD_DEV void fetch_first(unsigned char *memory)
{
    const struct parts p = parts_of<MODE>(memory);
    const task &k = p.head->k;
    const int rate16 = k.w.rate16, depth = ring_units(rate16), lane = kd_thread() % 32;
    const struct place o = place_of(p);
    struct reader r = {codes_at(k, rate16, o.block, o.unit), o.unit, o.end - o.at, o.block};

#pragma unroll 1
    for (int i = 0; i < depth; i++) {
        const bool turn = fetch_turn(k, rate16, &r);
        fetch_next(rate16, i == 0 || turn, &r, p.ring + i * 32 * ring_words(rate16), lane);
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
    uint32_t *at, *ring_end, tail = 0;
    int32_t *sums, left, unit, block;
    bool fresh = true;
    {
        const struct parts p = parts_of<MODE>(memory);
        const struct place o = place_of(p);
        const int units = k.last - k.first;
        const int ahead = o.at + (o.end - o.at < depth ? o.end - o.at : depth);

        at = p.ring;
        ring_end = at + depth * words;
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
                   p.warps, p.head->most, p.head->total, block, lane);
        }
        if constexpr (R) {
            kd_copy_wait<depth - 1>();
            u.take(at, lane);
            u.before = fresh || unit % UNITS == 0 ? at[words - 32 + lane] : tail;
            tail = u.word[0];
            const bool turn = fetch_turn(k, R, &next);
            fetch_next(R, turn, &next, at, lane);
            at = at + words == ring_end ? ring_end - depth * words : at + words;
        } else {
            u.load(codes_at(k, k.w.rate16, block, unit), lane);
        }
        m.template unit<R>(u, unit % UNITS, sums, rows, lane);
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
#define KD_RATE(r)                                                                                 \
    case r:                                                                                        \
        run_units<r, MODE>(memory);                                                                \
        return;
template <class MODE> KD_DEV void run_rate(unsigned char *memory)
{
    const int rate16 = ((const shared_head *)memory)->k.w.rate16;

    switch (rate16) {
        KD_RATE(16)
        KD_RATE(32)
        KD_RATE(48) KD_RATE(64) KD_RATE(80) KD_RATE(96) KD_RATE(112) KD_RATE(128) default : break;
    }
    if constexpr (MODE::masked)
        switch (rate16) {
            KD_RATE(24)
            KD_RATE(28)
            KD_RATE(33)
            KD_RATE(34)
            KD_RATE(35)
            KD_RATE(36)
            KD_RATE(37)
            KD_RATE(38) KD_RATE(39) KD_RATE(40) KD_RATE(41) KD_RATE(42) KD_RATE(43) KD_RATE(44)
                KD_RATE(45) KD_RATE(46) KD_RATE(47) KD_RATE(52) KD_RATE(56) KD_RATE(60) default
                : break;
        }
    run_units<0, MODE>(memory);
}
#undef KD_RATE

/* head->k (which all threads see) up to its sums in shared memory, and a barrier. What launches
 * before this one write is read only here. */
template <class MODE> KD_DEV void multiply(unsigned char *memory)
{
    const int thread = kd_thread(), warp = thread / 32, lane = thread % 32;

    fetch_first<MODE>(memory);
    {
        const struct parts p = parts_of<MODE>(memory);
        const task &k = p.head->k;
        float scale[4];

        if (warp < p.warps)
            input_scales(k, p.first + warp, lane, scale);
        /* Output scales, 256 bytes for every 128, which are wanted at the end. */
        for (int i = k.first / UNITS * 2 + thread; i < (k.last + UNITS - 1) / UNITS * 2;
             i += 32 * WARPS)
            kd_prefetch(k.w.svh + 64 * i);
        kd_launch_wait();
        const int words = (k.last - k.first) * k.rows * ROW_STRIDE;

#pragma unroll 1
        for (int first = 0, end; first < k.rows; first = end) {
            end = MODE::packed && first + PART < k.rows ? first + PART : k.rows;
            if (warp < p.warps)
                rotate_inputs(k, scale, first, end, p.first + warp, p.rotated + warp * SIDE,
                              p.stride, p.head->most, warp, lane);
            kd_sync_block();
            if (MODE::packed && warp < p.warps)
                MODE::pack(p.rotated + warp * SIDE, p.stride, first, end, p.warps, p.head->most,
                           p.packed + warp * MODE::packed, lane);
            kd_sync_block();
        }
        for (int i = thread; i < words; i += 32 * WARPS)
            p.sums[i] = 0;
        kd_sync_block();
    }
    run_rate<MODE>(memory);
    kd_sync_block();
}

/* The sums into device memory. Counts this task's units in; head->whole then names the blocks of
 * 128 outputs of which all of `chunks` chunks are there, this block having brought the last.
 * Counters go back to 0. head->wholes was 0. */
template <class MODE> KD_DEV void deliver(unsigned char *memory, int chunks)
{
    const struct parts p = parts_of<MODE>(memory);
    const task &k = p.head->k;
    const int count = (k.last - k.first) * k.rows, lane = kd_thread() % 32;
    const int blocks = (k.last + UNITS - 1) / UNITS - k.first / UNITS;
    float *to = k.sums + (int64_t)k.chunk * k.rows * k.w.outs * SIDE + lane;

#pragma unroll 1
    for (int i = kd_thread() / 32; i < count; i += WARPS) {
        const int u = i / k.rows, t = i % k.rows;
        const float most = kd_bits_f32(kd_warp_max(lane < p.warps ? p.head->most[t][lane] : 0));
        int32_t total = MODE::packed && lane < p.warps ? p.head->total[t][lane] : 0;
#pragma unroll
        for (int mask = 1; mask < WARPS; mask *= 2)
            total += kd_shuffle_int(total, lane ^ mask);
        total = kd_shuffle_int(total, 0);
        to[((int64_t)t * k.w.outs * UNITS + k.first + u) * UNIT_OUTS] =
            MODE::value(p.sums[i * ROW_STRIDE + lane], most, total);
    }
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

/* 128 outputs of one row, 4 a lane: chunks added in order, rotated, scaled. `sums` are a chunk's,
 * at this block of outputs; chunks are `step` floats apart. */
KD_DEV void finish(const float *sums, int64_t step, int chunks, const uint16_t *svh, int lane,
                   float v[4])
{
    /* Output 4 lane + i is tile column 4 (lane & 3) + i of tile lane / 4. */
    const int at = (lane & 1) * 2 * UNIT_OUTS + lane / 4 * 4 + (lane >> 1 & 1);
    float scale[4];

#pragma unroll
    for (int i = 0; i < 4; i++)
        scale[i] = kd_half_float(svh[4 * lane + i]);
#pragma unroll 1
    for (int first = 0; first < chunks; first += CHUNKS_READ) {
        float some[CHUNKS_READ][4];
#pragma unroll
        for (int c = 0; c < CHUNKS_READ; c++)
            if (first + c < chunks)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    some[c][i] = kd_load_fresh(sums + (first + c) * step + at + i / 2 * UNIT_OUTS +
                                               i % 2 * 2);
#pragma unroll
        for (int c = 0; c < CHUNKS_READ; c++)
            if (first + c < chunks)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    v[i] = first + c ? v[i] + some[c][i] : some[c][i];
    }
    kd_hadamard128(v, lane);
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = kd_mul(v[i], scale[i]);
}

/* Matrices with the same number of rows of activations, side by side. */
struct dense_job {
    matrix w;
    const float *x;
    float *y;
    int64_t ldx, ldy;
    int64_t sums;          /* floats from args.sums */
    int32_t counter;       /* from args.counter, [groups][outs / 128] */
    int32_t first, ranges; /* its first task; cuts of its units */
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
    const struct cut c = cut_of(job.w.ins);
    const int local = index - job.first, range = local / c.chunks % job.ranges;
    const int units = job.w.outs * UNITS, left = a.rows - local / c.chunks / job.ranges * a.group;

    const int group = local / c.chunks / job.ranges;

    to->wholes = 0;
    to->job = j;
    to->group = group;
    to->k = {job.w,
             job.x + (int64_t)group * a.group * job.ldx,
             job.ldx,
             nullptr,
             left < a.group ? left : a.group,
             local % c.chunks,
             (int)((int64_t)range * units / job.ranges),
             (int)((int64_t)(range + 1) * units / job.ranges),
             a.sums + job.sums + (int64_t)group * a.group * c.chunks * job.w.outs * SIDE,
             a.counter + job.counter + group * job.w.outs};
}

/* The blocks of outputs that are whole. */
KD_DEV void dense_finish(const dense_args &a, const shared_head *head)
{
    const task &k = head->k;
    const dense_job &job = a.job[head->job];
    const int chunks = cut_of(k.w.ins).chunks;

    for (int i = kd_thread() / 32; i < head->wholes * k.rows; i += WARPS) {
        const int n = head->whole[i / k.rows], t = i % k.rows, lane = kd_thread() % 32;
        const int at = SIDE * n + 4 * lane;
        float v[4], *y = job.y + (int64_t)(head->group * a.group + t) * job.ldy + at;

        finish(k.sums + ((int64_t)t * k.w.outs + n) * SIDE, (int64_t)k.rows * k.w.outs * SIDE,
               chunks, k.w.svh + SIDE * n, lane, v);
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (at + e < k.w.rows)
                y[e] = v[e];
    }
}

} // namespace kd_exl3
#endif
