/* Matrices of ggml's blocks on a device: kern's bits in every format, alone and as experts, then
 * how long they take. Without a device: 77, a skip.
 *
 *     gpu_blocks_device [quick]        the bits alone */
extern "C" {
#include "base/clock.h"
#include "gpu/product.h"
#include "kern/kern.h"
}

#include "gpu/bits.h"
#include "gpu/block_check.h"
#include "gpu/loaded.h"

#include <stdio.h>
#include <string.h>

#include <vector>

static std::vector<float> noise(int64_t count)
{
    std::vector<float> v((size_t)count);
    for (float &x : v)
        x = (float)(int32_t)bits() * 0x1p-31f;
    return v;
}

/* In host memory, rows further apart than they are long, and at odd places. */
struct blocks {
    struct kd_gpu_source s;
    std::vector<uint8_t> data;
};
static void make(blocks *b, const kd_block_format *f, int64_t rows, int64_t cols)
{
    const int64_t ld = cols / f->elems * f->bytes + 3;

    b->data.assign((size_t)(rows * ld), 0xff);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols / f->elems; i++)
            block_make(f, &b->data[(size_t)(r * ld + i * f->bytes)], bits);
    b->s = {};
    b->s.type = KD_GPU_MAT_BLOCK;
    b->s.rows = rows;
    b->s.cols = cols;
    b->s.data = b->data.data();
    b->s.ld = ld;
    b->s.format = f;
}

static void want_of(const struct kd_kern *k, const blocks *b, const float *x, int64_t ldx,
                    int64_t T, float *y)
{
    k->mm_block(b->s.format, b->data.data(), b->s.ld, b->s.rows, b->s.cols, x, ldx, T, y,
                b->s.rows);
}

/* Two formats in one call. */
static int64_t hold_format(struct kd_gpu *g, const struct kd_kern *k, const kd_block_format *f)
{
    const int64_t cols = (f->elems == 32 ? 13 : 5) * f->elems, rows[2] = {97, 40};
    blocks b[2];
    int64_t bad = 0;

    make(&b[0], f, rows[0], cols);
    make(&b[1], block_format(KD_BLOCK_Q8_0), rows[1], cols);
    for (int64_t T : {1, 2, 3, 7, 16, 45}) {
        loaded h(g);
        const std::vector<float> x = noise(T * cols);
        struct kd_gpu_mat m[2] = {h.load(&b[0].s), h.load(&b[1].s)};
        struct kd_gpu_job job[2];
        const float *on = h.copy(x);
        for (int i = 0; i < 2; i++)
            job[i] = {&m[i], on, cols, (float *)h.get(4 * T * rows[i]), rows[i]};
        const int64_t bytes = kd_gpu_mul_scratch(job, 2, T);
        must(kd_gpu_mul(g, KD_GPU_FAST, job, 2, T, h.get(bytes), bytes, &err));
        for (int i = 0; i < 2; i++) {
            std::vector<float> want((size_t)(T * rows[i]));
            want_of(k, &b[i], x.data(), cols, T, want.data());
            const std::vector<float> got = h.floats(job[i].y, T * rows[i]);
            bad += memcmp(want.data(), got.data(), 4 * want.size()) != 0;
        }
    }
    return bad;
}

/* Some experts, each matrix in a format of its own, against products one by one. */
static int64_t hold_experts(struct kd_gpu *g, const struct kd_kern *k, int64_t T)
{
    enum { EXPERTS = 6, TOP = 3, COLS = 544, INNER = 416 };
    static const enum kd_block_kind kinds[3] = {KD_BLOCK_Q4_0, KD_BLOCK_IQ4_NL, KD_BLOCK_MXFP4};
    const struct kd_gpu_experts_shape shape = {EXPERTS, COLS, INNER, T, TOP};
    std::vector<blocks> b(3 * EXPERTS);
    std::vector<struct kd_gpu_mat> m;
    std::vector<int32_t> ids;
    std::vector<float> want((size_t)(T * COLS), 0.0f), a(INNER), u(INNER), y(COLS);
    const std::vector<float> x = noise(T * COLS), weight = noise(T * TOP);
    struct kd_gpu_experts *e;
    loaded h(g);

    for (size_t i = 0; i < b.size(); i++) {
        make(&b[i], block_format(kinds[i % 3]), i % 3 < 2 ? INNER : COLS, i % 3 < 2 ? COLS : INNER);
        m.push_back(h.load(&b[i].s));
    }
    for (int64_t i = 0; i < T * TOP; i++)
        ids.push_back((int32_t)(bits() % (EXPERTS + 1)) - 1);
    for (int64_t t = 0; t < T; t++)
        for (int32_t id = 0; id < EXPERTS; id++)
            for (int j = 0; j < TOP; j++) {
                if (ids[(size_t)(t * TOP + j)] != id)
                    continue;
                want_of(k, &b[(size_t)(3 * id)], &x[(size_t)(t * COLS)], COLS, 1, a.data());
                want_of(k, &b[(size_t)(3 * id + 1)], &x[(size_t)(t * COLS)], COLS, 1, u.data());
                k->situ(a.data(), u.data(), 4.0f, 7.0f, a.data(), INNER);
                want_of(k, &b[(size_t)(3 * id + 2)], a.data(), INNER, 1, y.data());
                k->axpy(weight[(size_t)(t * TOP + j)], y.data(), &want[(size_t)(t * COLS)], COLS);
            }
    must(kd_gpu_experts_open(&e, g, &shape, NULL, &err));
    must(kd_gpu_experts_set(e, 0, EXPERTS, (const struct kd_gpu_mat(*)[3])m.data(), &err));
    const struct kd_gpu_experts_call c = {h.copy(x),   COLS,           T,
                                          h.copy(ids), h.copy(weight), TOP,
                                          4.0f,        7.0f,           (float *)h.get(4 * T * COLS),
                                          COLS,        nullptr,        0.0f};
    must(kd_gpu_experts_mul(e, KD_GPU_FAST, &c, &err));
    const std::vector<float> got = h.floats(c.y, T * COLS);
    kd_gpu_experts_close(e);
    return memcmp(want.data(), got.data(), 4 * want.size()) != 0;
}

/* Matrices that do not stay in a cache, one call after the other. */
static void time_format(struct kd_gpu *g, enum kd_block_kind kind, int64_t T)
{
    enum { ROWS = 12288, COLS = 7168, CALLS = 40 };
    const kd_block_format *f = block_format(kind);
    blocks b;
    loaded h(g);
    std::vector<struct kd_gpu_mat> m;

    make(&b, f, ROWS, COLS);
    const int64_t each = kd_gpu_mat_bytes(&b.s);
    for (int64_t i = 0; i < (200ll << 20) / each + 2; i++)
        m.push_back(h.load(&b.s));
    struct kd_gpu_job job = {m.data(), h.copy(noise(T * COLS)), COLS, (float *)h.get(4 * T * ROWS),
                             ROWS};
    const int64_t bytes = kd_gpu_mul_scratch(&job, 1, T);
    void *scratch = h.get(bytes);
    double best = 1e9;
    for (int again = 0; again < 5; again++) {
        must(kd_gpu_wait(g, &err));
        const double start = kd_clock_s();
        for (int i = 0; i < CALLS; i++) {
            job.w = &m[(size_t)i % m.size()];
            must(kd_gpu_mul(g, KD_GPU_FAST, &job, 1, T, scratch, bytes, &err));
        }
        must(kd_gpu_wait(g, &err));
        const double s = (kd_clock_s() - start) / CALLS;
        best = s < best ? s : best;
    }
    printf("%-8s %d x %d, %2lld rows: %7.1f us, %5.0f GB/s, %5.2f Tweights/s\n", f->name, ROWS,
           COLS, (long long)T, best * 1e6, (double)each / best * 1e-9,
           (double)ROWS * COLS / best * 1e-12);
}

int main(int argc, char **)
{
    static const enum kd_block_kind timed[] = {KD_BLOCK_Q8_0,  KD_BLOCK_MXFP4,   KD_BLOCK_Q4_0,
                                               KD_BLOCK_Q4_K,  KD_BLOCK_Q6_K,    KD_BLOCK_Q2_K,
                                               KD_BLOCK_IQ3_S, KD_BLOCK_IQ2_XXS, KD_BLOCK_IQ1_S};
    struct kd_gpu *g;
    struct kd_kern k;
    int64_t bad = 0, experts = 0;

    if (!kd_gpu_count()) {
        printf("no device: skipped\n");
        return 77;
    }
    must(kd_kern_pick(&k, &err));
    must(kd_gpu_open(&g, 0, &err));
    printf("%s\n", kd_gpu_facts(g)->name);
    for (int kind = KD_BLOCK_Q8_0; kind <= KD_BLOCK_Q2_0; kind++) {
        const int64_t wrong = hold_format(g, &k, block_format((enum kd_block_kind)kind));
        if (wrong)
            printf("%s: %lld products differ\n", block_format((enum kd_block_kind)kind)->name,
                   (long long)wrong);
        bad += wrong;
    }
    for (int64_t T : {1, 5, 16, 70, 400})
        experts += hold_experts(g, &k, T);
    printf("%d formats: %lld products differ from kern's, of experts %lld\n", (int)KD_BLOCK_Q2_0,
           (long long)bad, (long long)experts);
    for (enum kd_block_kind kind : timed)
        for (int64_t T : {1, 8})
            if (argc < 2)
                time_format(g, kind, T);
    kd_gpu_close(g);
    return bad || experts;
}
