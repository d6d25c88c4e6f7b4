/* The vocabulary of src/gpu/wgmma_lanes.cuh on the CPU. Boxes are there, and products done, as soon
 * as they are asked for; gates count as on the device. */
#ifndef KD_TESTS_GPU_EMULATE_WGMMA_H
#define KD_TESTS_GPU_EMULATE_WGMMA_H

struct kd_box_map {
    const uint16_t *at;
    int64_t cols, rows, pitch;
    int box;
};

/* What is to come, and whether it is an even turn. */
struct kd_emulated_gate {
    int16_t count, left;
    int32_t bytes : 31;
    uint32_t odd : 1;
};
static_assert(sizeof(kd_emulated_gate) == 8, "a gate has 8 bytes");

KD_DEV void kd_gate_init(uint64_t *gate, int count)
{
    const kd_emulated_gate g = {(int16_t)count, (int16_t)count, 0, 0};
    memcpy(gate, &g, sizeof g);
}
KD_DEV void kd_gates_ready(void)
{
}
static inline void kd_emulated_gate_step(uint64_t *gate, int arrived, int bytes)
{
    kd_emulated_gate g;

    memcpy(&g, gate, sizeof g);
    g.left = (int16_t)(g.left - arrived);
    g.bytes += bytes;
    if (g.left < 0)
        abort();
    if (!g.left && !g.bytes) {
        g.left = g.count;
        g.odd ^= 1;
        kd_emulated.gates++;
    }
    memcpy(gate, &g, sizeof g);
}
KD_DEV void kd_gate_arrive(uint64_t *gate)
{
    kd_emulated_gate_step(gate, 1, 0);
}
KD_DEV void kd_gate_expect(uint64_t *gate, int bytes)
{
    kd_emulated_gate_step(gate, 1, bytes);
}
KD_DEV void kd_gate_wait(uint64_t *gate, uint32_t parity)
{
    kd_emulated_block &e = kd_emulated;
    kd_emulated_gate g;

    for (;;) {
        memcpy(&g, gate, sizeof g);
        if (g.odd != parity)
            return;
        kd_fiber_switch(&e.fiber[(size_t)e.thread], e.main);
    }
}
KD_DEV void kd_load_box(void *shared, const kd_box_map *map, int col, int row, uint64_t *gate)
{
    if ((uintptr_t)shared % KD_BOX_ALIGN || col % 8)
        abort();
    for (int r = 0; r < map->box; r++)
        for (int c = 0; c < KD_BOX_COLS; c++) {
            const bool there = row + r < map->rows && col + c < map->cols;
            ((uint16_t *)shared)[r * KD_BOX_COLS + ((c / 8) ^ (r % 8)) * 8 + c % 8] =
                there ? map->at[(row + r) * map->pitch + col + c] : 0;
        }
    kd_emulated_gate_step(gate, 0, -map->box * KD_BOX_COLS * 2);
}
KD_DEV uint64_t kd_factor(const unsigned char *box)
{
    if ((uintptr_t)box % KD_BOX_ALIGN)
        abort();
    return (uint64_t)(uintptr_t)box;
}
KD_DEV uint64_t kd_factor_at(uint64_t factor, int col)
{
    return factor + (uint64_t)(2 * col);
}
KD_DEV void kd_product_begin(void)
{
}
KD_DEV void kd_product_group(void)
{
}
template <int later> KD_DEV void kd_product_wait(void)
{
}
KD_DEV void kd_product_done(float (*)[4])
{
}
/* Row `row` of a factor, 16 values. */
struct kd_emulated_values {
    double v[16];

    kd_emulated_values(uint64_t factor, int row)
    {
        const uint64_t box = factor / KD_BOX_ALIGN * KD_BOX_ALIGN,
                       first = factor % KD_BOX_ALIGN / 16;

        for (int k = 0; k < 16; k++) {
            const uint64_t chunk = (first + (uint64_t)k / 8) ^ (uint64_t)(row % 8);
            const uint16_t *at = (const uint16_t *)(box + (uint64_t)row * 128 + chunk * 16);
            v[k] = (double)kd_bf16_f32(at[k % 8]);
        }
    }
    void add_product(float *sum, const kd_emulated_values &x) const
    {
        double all = (double)*sum;

        for (int k = 0; k < 16; k++)
            all += v[k] * x.v[k];
        *sum = (float)all;
    }
};
KD_DEV void kd_product_bf16(float (*d)[4], uint64_t a, uint64_t b, bool add)
{
    const int lane = kd_emulated.thread % 32, row = kd_emulated.thread / 32 % 4 * 16 + lane / 4;
    const kd_emulated_values x(a, row), below(a, row + 8);

    for (int i = 0; i < 64; i++) {
        const kd_emulated_values y(b, i / 2 * 8 + lane % 4 * 2 + i % 2);
        float *sum = &d[i / 2][i % 2];
        if (!add)
            sum[0] = sum[2] = 0.0f;
        y.add_product(&sum[0], x);
        y.add_product(&sum[2], below);
    }
}
KD_DEV void kd_load_bytes(void *shared, const void *from, int bytes, uint64_t *gate)
{
    if ((uintptr_t)shared % 16 || (uintptr_t)from % 16 || bytes % 16)
        abort();
    memcpy(shared, from, (size_t)bytes);
    kd_emulated_gate_step(gate, 0, -bytes);
}
KD_DEV void kd_shared_written(void)
{
}
KD_DEV void kd_product_done_of(float (&)[16][4])
{
}
/* Value k of row `row` of a factor of half floats. */
static inline double kd_emulated_factor(uint64_t factor, int row, int k)
{
    const uint64_t box = factor / KD_BOX_ALIGN * KD_BOX_ALIGN,
                   chunk = (factor % KD_BOX_ALIGN / 16 + (uint64_t)k / 8) ^ (uint64_t)(row % 8);
    return (double)kd_half_float(
        *(const uint16_t *)(box + (uint64_t)row * 128 + chunk * 16 + (uint64_t)k % 8 * 2));
}
KD_DEV void kd_product_halves(float (&d)[16][4], uint64_t a, uint64_t b, bool add)
{
    const int lane = kd_emulated.thread % 32, row = kd_emulated.thread / 32 % 4 * 16 + lane / 4;

    for (int q = 0; q < 16; q++)
        for (int i = 0; i < 4; i++) {
            double sum = add ? (double)d[q][i] : 0.0;
            for (int k = 0; k < 16; k++)
                sum += kd_emulated_factor(a, row + i / 2 * 8, k) *
                       kd_emulated_factor(b, 8 * q + lane % 4 * 2 + i % 2, k);
            d[q][i] = (float)sum;
        }
}
KD_DEV void kd_product_halves_rows(float (&d)[16][4], const kd_h2 a[4], uint64_t b)
{
    const int lane = kd_emulated.thread % 32, g = lane / 4;
    uint32_t(*v)[8] = kd_emulated_words[kd_emulated.thread / 32];

    for (int i = 0; i < 4; i++)
        v[lane][i] = kd_h2_bits(a[i]);
    kd_sync_warp();
    for (int q = 0; q < 16; q++)
        for (int i = 0; i < 4; i++) {
            double sum = (double)d[q][i];
            for (int k = 0; k < 16; k++)
                sum += (double)kd_emulated_half(4 * g + k % 8 / 2, i / 2 + k / 8 * 2, k % 2) *
                       kd_emulated_factor(b, 8 * q + lane % 4 * 2 + i % 2, k);
            d[q][i] = (float)sum;
        }
    kd_sync_warp();
}
/* Blocks run one after the other here. */
KD_DEV void kd_turn_wait(const int32_t *turn, int32_t from)
{
    if (*turn < from)
        abort();
}
KD_DEV void kd_turn_end(int32_t *turn, int32_t next)
{
    *turn = next;
}

#endif
