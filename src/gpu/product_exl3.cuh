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
 * - writes the sums as floats, by chunks. The last warp at 128 outputs of a row adds the chunks in
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

/* What a warp reads next: unit `unit`, whose words begin at `from`; in all `left` more. */
struct reader {
    const uint32_t *from;
    int32_t unit, left;
};
/* A warp's units: `count` of them, from `unit` of block of inputs `block` of the chunk on, and how
 * far it has asked for them. */
struct alignas(16) walk {
    struct reader next;
    int32_t unit, block, count;
};

/* The head of a block's shared memory. Behind it: packed activations, of every warp's block of
 * inputs; rings, of every warp; where activations are not packed, rotated ones [rows][warps * 128];
 * sums. */
struct alignas(16) shared_head {
    uint32_t most[GROUP][WARPS]; /* largest magnitude, as bits: NaN is above infinity */
    int32_t total[GROUP][WARPS]; /* of the rounded activations, as the mode has it */
    int32_t group;               /* of the task, in the launch */
    struct walk walk[WARPS];
    float *y; /* matrices side by side: where the first row's outputs go */
    int64_t ldy;
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

/* Words from the first unit to this one, in a row of blocks. */
KD_DEV int32_t unit_words_before(int rate16, int unit)
{
    return unit / UNITS * 32 * rate16 + unit % UNITS * (rate16 / 4) * 32;
}
KD_DEV const uint32_t *unit_at(const task &k, int rate16, int block, int unit)
{
    return k.w.codes + (int64_t)(k.chunk * k.w.cut.warps + block) * k.w.outs * (32 * rate16) +
           unit_words_before(rate16, unit);
}
/* What comes past the last unit of a task: the next block of inputs, so many words away. */
struct turn {
    int32_t first, last, words;
};
KD_DEV struct turn turn_of(const task &k, int rate16)
{
    return {k.first, k.last,
            k.w.outs * (32 * rate16) + unit_words_before(rate16, k.first) -
                unit_words_before(rate16, k.last)};
}
/* Unit `unit` of a block into the ring, without the tail before it. Both places, where its words
 * begin, are this lane's: 4 lane words on. */
KD_DEV void fetch_unit(const uint32_t *from, int rate16, int unit, uint32_t *to, int lane)
{
    const int words = rate16 / 4, fours = words / 4 * 4, bytes = rate16 % 4;

    for (int i = 0; i < fours; i += 4)
        kd_copy16(to + i * 32, from + i * 32);
    if (words % 4 >= 2) {
        kd_copy4(to - 2 * lane + fours * 32, from - 2 * lane + fours * 32);
        kd_copy4(to - 2 * lane + fours * 32 + 1, from - 2 * lane + fours * 32 + 1);
    }
    if (words % 2)
        kd_copy4(to - 3 * lane + (words - 1) * 32, from - 3 * lane + (words - 1) * 32);
    for (int i = 0; i < bytes; i++)
        kd_copy4(to - 3 * lane + (words + i) * 32,
                 from - 3 * lane + (UNITS - unit) * words * 32 + i * 32);
}
/* Units that a warp asks for in a row, one for each that it multiplies: none at a turn but the
 * last, so that nothing of this has to be asked for each. (Asked for each, 9 cycles of 624 more.)
 *
 * The tail of the unit before comes along where no one has it: in front of a warp's first unit, of
 * a task's, which is a span by itself, and of a block's, which follows the block's last. */
struct span {
    bool asks;
    int32_t units;
    int32_t mask, tail; /* units with none of these bits have it so many words on */
};
KD_DEV struct span span_of(int rate16, const struct turn &t, struct reader *next, int most,
                           bool fresh = false)
{
    const int words = rate16 / 4 * 32;
    const bool alone = fresh || next->unit == t.first;
    const int until = alone ? 1 : t.last - next->unit;
    struct span s = {next->left > 0, most, alone ? 0 : UNITS - 1,
                     alone && next->unit % UNITS ? -words : (UNITS - 1) * words};

    if (s.asks) {
        s.units = until < s.units ? until : s.units;
        s.units = next->left < s.units ? next->left : s.units;
        next->left -= s.units;
    }
    return s;
}
/* One of them. o->from and `to`: this lane's. */
KD_DEV void fetch_one(int rate16, const struct span &s, struct reader *o, uint32_t *to, int lane)
{
    const int words = rate16 / 4;

    if (!(o->unit & s.mask))
        kd_copy4(to - 3 * lane + (ring_words(rate16) - 1) * 32, o->from + s.tail);
    fetch_unit(o->from, rate16, o->unit % UNITS, to, lane);
    o->from += words * 32;
    if (rate16 % 4 && o->unit % UNITS == UNITS - 1)
        o->from += rate16 % 4 * 32;
    o->unit++;
}
KD_DEV void span_end(const struct turn &t, struct reader *o)
{
    if (o->unit == t.last) {
        o->unit = t.first;
        o->from += t.words;
    }
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
        const uint2 suh = input_scales(k, p.first + warp, lane);
        kd_launch_wait();
        row_inputs<MODE::rows>(k, rows, SIDE * (p.first + warp) + 4 * lane, v);
        kd_sync_warp();
        scale_values(suh, scale);
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
    /* With a block of inputs for each warp all its units are of its own. */
    if (MODE::packed && p.warps == WARPS)
        kd_sync_warp();
    else
        kd_sync_block();
}

/* Which units are this warp's, and the first of them on their way. */
template <int R, class MODE> KD_CALL void fetch_first(unsigned char *memory)
{
    const struct parts p = parts_of<MODE>(memory);
    const task &k = p.head->k;
    const int warp = kd_thread() / 32, lane = kd_thread() % 32, units = k.last - k.first,
              all = units * p.warps, at = warp * all / WARPS, end = (warp + 1) * all / WARPS,
              block = at / units, unit = k.first + at - block * units;
    const struct turn t = turn_of(k, R);
    struct reader r = {unit_at(k, R, block, unit) + 4 * lane, unit, end - at};

#pragma unroll 1
    for (int i = 0; i < ring_units(R); i++) {
        const struct span s = span_of(R, t, &r, 1, i == 0);
        if (s.asks) {
            fetch_one(R, s, &r, p.ring + 4 * lane + i * 32 * ring_words(R), lane);
            span_end(t, &r);
        }
        kd_copy_group();
    }
    if (lane == 0)
        p.head->walk[warp] = {r, unit, block, end - at};
}
/* The same where nothing is asked for in advance. */
template <class MODE> KD_CALL void walk_first(unsigned char *memory)
{
    const struct parts p = parts_of<MODE>(memory);
    const task &k = p.head->k;
    const int warp = kd_thread() / 32, units = k.last - k.first, all = units * p.warps,
              at = warp * all / WARPS, end = (warp + 1) * all / WARPS;

    if (kd_thread() % 32 == 0)
        p.head->walk[warp] = {{nullptr, 0, 0}, k.first + at % units, at / units, end - at};
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
    const struct turn t = turn_of(k, R);
    struct walk o = head->walk[kd_thread() / 32];
    uint32_t *const ring = parts_of<MODE>(memory).ring + 4 * lane;
    uint32_t tail = 0;
    int slot = 0; /* in words */

    o.next.from += 4 * lane;
#pragma unroll 1
    while (o.count > 0) {
        const struct parts p = parts_of<MODE>(memory);
        int32_t *sums = p.sums + (o.unit - t.first) * rows * ROW_STRIDE + sums_at(lane);
        int left = t.last - o.unit < o.count ? t.last - o.unit : o.count;
        bool fresh = true;
        m.open(p.rotated + o.block * SIDE, p.stride, p.packed + o.block * MODE::packed, rows,
               p.head->most, p.head->total, o.block, lane);
        o.count -= left;
#pragma unroll 1
        while (left > 0) {
            const struct span s = R ? span_of(R, t, &o.next, left) : span{false, left, 0, 0};
            left -= s.units;
#pragma unroll 1
            for (int i = s.units; i > 0; i--) {
                if constexpr (R) {
                    uint32_t *at = ring + slot;
                    kd_copy_wait<depth - 1>();
                    u.take(at, lane);
                    u.before = tail;
                    if (fresh || o.unit % UNITS == 0)
                        u.before = (at - 3 * lane)[words - 32];
                    tail = u.word[0];
                    fresh = false;
                    if (s.asks)
                        fetch_one(R, s, &o.next, at, lane);
                    kd_copy_group();
                    slot = slot == (depth - 1) * words ? 0 : slot + words;
                } else {
                    u.load(unit_at(k, k.w.rate16, o.block, o.unit & ~(UNITS - 1)), lane);
                }
                m.template unit<R>(u, o.unit & (UNITS - 1), sums, rows, lane);
                sums += rows * ROW_STRIDE;
                o.unit++;
            }
            if (s.asks)
                span_end(t, &o.next);
        }
        o.unit = t.first;
        o.block++;
    }
}

/* Rates that have code of their own: whole ones in every mode, those that experts use in the mode
 * for decoding. */
#define KD_RATES(KD_RATE)                                                                          \
    KD_RATE(16)                                                                                    \
    KD_RATE(32) KD_RATE(48) KD_RATE(64) KD_RATE(80) KD_RATE(96) KD_RATE(112) KD_RATE(128)
/* From 2 to 3 bits, which product_gemm.cuh has, too. */
// clang-format off
#define KD_RATES_FINE(KD_RATE)                                                                     \
    KD_RATE(33)                                                                                    \
    KD_RATE(34) KD_RATE(35) KD_RATE(36) KD_RATE(37) KD_RATE(38) KD_RATE(39) KD_RATE(40)            \
        KD_RATE(41) KD_RATE(42) KD_RATE(43) KD_RATE(44) KD_RATE(45) KD_RATE(46) KD_RATE(47)
// clang-format on
#define KD_RATES_MASKED(KD_RATE)                                                                   \
    KD_RATE(24) KD_RATE(28) KD_RATES_FINE(KD_RATE) KD_RATE(52) KD_RATE(56) KD_RATE(60)

/* head->k (which all threads see) up to its sums in shared memory; no barrier comes after them. */
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
            KD_RATES(KD_FETCH) KD_RATES_MASKED(KD_FETCH) default : walk_first<MODE>(memory);
        }
        prepare<MODE>(memory);
        switch (rate16) {
            KD_RATES(KD_RUN) KD_RATES_MASKED(KD_RUN) default : run_units<0, MODE>(memory);
        }
    } else {
        switch (rate16) {
            KD_RATES(KD_FETCH) default : walk_first<MODE>(memory);
        }
        prepare<MODE>(memory);
        switch (rate16) {
            KD_RATES(KD_RUN) default : run_units<0, MODE>(memory);
        }
    }
#undef KD_FETCH
#undef KD_RUN
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

/* A block of outputs of a row of a task; a warp's are those WARPS apart. */
struct item {
    int32_t n, t;
};
KD_DEV struct item item_of(const task &k, int warp, int j)
{
    const int i = warp + WARPS * j, n = k.rows == 1 ? i : i / k.rows;

    return {k.first / UNITS + n, i - n * k.rows};
}

/* The sums into device memory, [chunk][row][output]. size, total: of row `lane`. */
template <class MODE>
KD_DEV void write_sums(const struct parts &p, float size, int32_t total, int warp, int lane)
{
    const task &k = p.head->k;
    const int rows = k.rows, step_n = rows == 1 ? (int)WARPS : WARPS / rows,
              step_t = WARPS - step_n * rows;
    float *to = k.sums + (int64_t)k.chunk * rows * k.w.outs * SIDE + 4 * lane;
    const struct item one = item_of(k, warp, 0);
    int n = one.n, t = one.t;

    for (; n * UNITS < k.last; n += step_n, t += step_t) {
        if (t >= rows) {
            t -= rows;
            n++;
        }
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
                       ? MODE::value(p.sums[((unit + i / 2) * rows + t) * ROW_STRIDE +
                                            place_at(lane) + i % 2 * 2],
                                     s, u)
                       : 0.0f;
        if (unit >= 0 && unit + 1 < all)
            *(float4 *)at = make_float4(v[0], v[1], v[2], v[3]);
        else if (unit >= 0 && unit < all)
            *(float2 *)at = make_float2(v[0], v[1]);
        else if (unit + 1 >= 0 && unit + 1 < all)
            *(float2 *)(at + 2) = make_float2(v[2], v[3]);
    }
}

/* Waits for all sums; then into device memory with them, and counts them in. A bit for each of this
 * warp's items of which now all `chunks` chunks are there. Their counters go back to 0. */
template <class MODE> KD_DEV uint32_t deliver(unsigned char *memory, int chunks)
{
    const struct parts p = parts_of<MODE>(memory);
    const task &k = p.head->k;
    const int warp = kd_thread() / 32, lane = kd_thread() % 32;
    float size = 0.0f;
    int32_t total = 0;
    bool whole = false;

    if (lane < k.rows) {
        size = MODE::size(largest(p.head->most[lane]));
        if (MODE::packed)
#pragma unroll
            for (int i = 0; i < WARPS; i++)
                total += MODE::total(p.head->total[lane][i]);
    }
    kd_sync_block();
    write_sums<MODE>(p, size, total, warp, lane);
    kd_sync_warp();
    const struct item i = item_of(k, warp, lane);
    const int from = k.first > UNITS * i.n ? k.first : UNITS * i.n,
              to = k.last < UNITS * i.n + UNITS ? k.last : UNITS * i.n + UNITS;
    if (from < to) {
        int32_t *counter = k.counter + i.t * k.w.outs + i.n;
        whole = kd_device_count(counter, to - from) + to - from == UNITS * chunks;
        if (whole)
            *counter = 0;
    }
    const uint32_t wholes = kd_ballot(whole);
    kd_sync_warp();
    return wholes;
}
/* Takes the first of a warp's items out. */
KD_DEV struct item next_item(const task &k, uint32_t *wholes)
{
    const uint32_t first = *wholes & (0u - *wholes);

    *wholes -= first;
    return item_of(k, kd_thread() / 32, (int)kd_bits_set(first - 1));
}

/* 128 outputs of ROWS rows, 4 a lane: chunks added in order, rotated. `sums` are the first chunk's
 * and row's, at its block of outputs; chunks are `step` floats apart, rows `row`. */
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
/* This lane's four scales of a block of outputs; asked for before the sums, which take as long. */
KD_DEV uint2 output_scales(const uint16_t *svh, int lane)
{
    return kd_load_const((const uint2 *)(svh + 4 * lane));
}
KD_DEV void scale_outputs(uint2 s, float v[4])
{
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
    int32_t counter; /* from args.counter, [groups][rows of a task][outs / 128] */
    int32_t first;   /* its first task */
    struct spread units;
};
struct dense_args {
    int32_t jobs, rows, tasks;
    int32_t group; /* rows of a task */
    float *sums;
    int32_t *counter;
    dense_job job[8];
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

    to->group = group;
    to->y = job.y + (int64_t)group * a.group * job.ldy;
    to->ldy = job.ldy;
    to->k = {job.w,
             job.x + (int64_t)group * a.group * job.ldx,
             job.ldx,
             nullptr,
             left < a.group ? left : a.group,
             local - some * chunks,
             spread_first(job.units, range),
             spread_first(job.units, range + 1),
             a.sums + job.sums + (int64_t)group * a.group * chunks * job.w.outs * SIDE,
             a.counter + job.counter + group * a.group * job.w.outs};
}

/* A warp's items that are whole; two at a time, as each alone would wait for its loads. */
KD_DEV void dense_finish(const shared_head *head, uint32_t wholes)
{
    const task &k = head->k;
    const int64_t row = (int64_t)k.w.outs * SIDE;
    const int chunks = k.w.cut.chunks, lane = kd_thread() % 32;

    while (wholes) {
        struct item i[2];
        uint2 svh[2] = {};
        float v[2][4];

        i[0] = next_item(k, &wholes);
        const int some = wholes ? 2 : 1;
        i[1] = wholes ? next_item(k, &wholes) : i[0];
        const float *from = k.sums + i[0].t * row + SIDE * i[0].n;
#pragma unroll
        for (int j = 0; j < 2; j++)
            if (j < some)
                svh[j] = output_scales(k.w.svh + SIDE * i[j].n, lane);
        if (some == 1)
            finish<1>(from, k.rows * row, 0, chunks, lane, v);
        else
            finish<2>(from, k.rows * row, (i[1].t - i[0].t) * row + SIDE * (i[1].n - i[0].n),
                      chunks, lane, v);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int at = SIDE * i[j].n + 4 * lane;
            if (j >= some)
                continue;
            scale_outputs(svh[j], v[j]);
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (at + e < k.w.rows)
                    head->y[i[j].t * head->ldy + at + e] = v[j][e];
        }
    }
}

} // namespace kd_exl3
#endif
