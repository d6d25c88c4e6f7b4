/* Encoding with the device's own program on the CPU (emulate_encoder.h). Bytes are the CPU's, lanes
 * wait for memory, a device that fails ends all of them with its sentence. */
#define KD_STAGE_BYTES (16 << 10)
#include "gpu/emulate_encoder.h"

extern "C" {
#include "la/la.h"
}

/* An encoder with so much memory for tensors, all cases on it. */
static int hold(const struct check_case *c, int count, int64_t memory_bytes, int devices)
{
    const struct kd_run cpu = {&kern, NULL, NULL, false};
    const int index[2] = {0, 1};
    struct kd_gpu_encoder_facts f;
    struct kd_gpu_encoder *e;
    struct kd_err err;

    if (kd_gpu_encoder_open(&e, index, devices, memory_bytes, &err)) {
        check_complain(&err);
        return 1;
    }
    int bad = check_all(&cpu, e, c, count);
    kd_gpu_encoder_facts(e, &f);
    printf("%d devices: %lld rounds, %lld tiles, at most %lld of %lld bytes used\n", f.devices,
           (long long)f.rounds, (long long)f.tiles, (long long)f.used_bytes,
           (long long)f.memory_bytes);
    bad += f.used_bytes > f.memory_bytes || f.rounds < 8 || f.tiles < 64;
    kd_gpu_encoder_close(e);
    return bad;
}

/* Two threads, the `nth` call of the runtime fails and all after it: both end with its words. */
static int hold_failure(int64_t nth)
{
    static const struct check_case c = {128,   128,       0, 32, KD_CB_MUL1, KD_RECIPE_PLAIN,
                                        false, KD_MAT_F32};
    const struct kd_run cpu = {&kern, NULL, NULL, false};
    const int index = 0;
    struct kd_gpu_encoder *e;
    struct check_tensor t;
    struct kd_err err, why[2];
    int rc[2];

    memset(&t.want, 0, sizeof t.want);
    if (check_make(&t, c, &cpu, 3) || kd_gpu_encoder_open(&e, &index, 1, 0, &err))
        return 1;
    kd_fake_fail_at = nth;
    std::thread lane[2];
    for (int i = 0; i < 2; i++)
        lane[i] = std::thread([&, i] {
            struct kd_run run = {&kern, NULL, e, false};
            struct kd_quant_out got;
            rc[i] = check_quantize(&t, &run, &got, &why[i]);
            if (!rc[i])
                kd_quant_release(&got);
        });
    for (std::thread &x : lane)
        x.join();
    const bool broke = kd_fake_broken;
    kd_fake_fail_at = 0;
    kd_fake_broken = false;
    kd_gpu_encoder_close(e);
    check_free(&t);
    int bad = 0;
    for (int i = 0; i < 2; i++)
        bad += broke ? rc[i] && (why[i].code != KD_EGPU || !strstr(why[i].msg, "launch failure"))
                     : rc[i] != 0;
    bad += broke && !rc[0] && !rc[1] && nth < 60;
    if (bad)
        printf("failing at call %lld: %d %s, %d %s\n", (long long)nth, rc[0], why[0].msg, rc[1],
               why[1].msg);
    return bad;
}

/* One plain tensor on device 0, whose tensors may take `memory` bytes (0: what is free): what
 * `good` says of it. */
template <class GOOD> static int hold_one(int64_t rows, int64_t cols, int64_t memory, GOOD good)
{
    const struct check_case c = {rows, cols, 0, 32, KD_CB_MUL1, KD_RECIPE_PLAIN, false, KD_MAT_F32};
    const struct kd_run cpu = {&kern, NULL, NULL, false};
    const int index = 0;
    struct kd_gpu_encoder *e;
    struct check_tensor t;
    struct kd_err err;

    memset(&t.want, 0, sizeof t.want);
    if (check_make(&t, c, &cpu, 3) || kd_gpu_encoder_open(&e, &index, 1, memory, &err))
        return 1;
    const struct kd_run run = {&kern, NULL, e, false};
    const bool held = good(&t, &cpu, &run);
    kd_gpu_encoder_close(e);
    check_free(&t);
    return !held;
}

/* A weight that is not finite is found by the device and named as the CPU names it. */
static int hold_not_finite(void)
{
    return hold_one(128, 100, 0, [](check_tensor *t, const kd_run *cpu, const kd_run *run) {
        struct kd_quant_out got;
        struct kd_err err, want;
        t->w[77 * 100 + 5] = INFINITY;
        t->w[78 * 100 + 4] = NAN;
        return check_quantize(t, cpu, &got, &want) && check_quantize(t, run, &got, &err) &&
               err.code == want.code && !strcmp(err.msg, want.msg) &&
               strstr(err.msg, "row 77, column 5") != NULL;
    });
}

static int hold_no_room(void)
{
    return hold_one(128, 128, 1000, [](check_tensor *t, const kd_run *, const kd_run *run) {
        struct kd_quant_out got;
        struct kd_err err;
        return check_quantize(t, run, &got, &err) && err.code == KD_ENOMEM &&
               strstr(err.msg, "--device cpu") != NULL;
    });
}

/* Rows longer than a piece; unknowns in shared memory and not. */
static int hold_solve(bool held)
{
    const int64_t k = KD_LA_PIECE + 128;
    const struct kd_run cpu = {&kern, NULL, NULL, false};
    std::vector<float> u((size_t)(k * k)), want((size_t)k), got;

    for (int64_t i = 0; i < k * k; i++)
        u[(size_t)i] = (float)(0.03 * (kd_rand_unit(1, (uint64_t)i) - 0.5));
    for (int64_t i = 0; i < k; i++) {
        u[(size_t)(i * k + i)] = (float)(1 + kd_rand_unit(2, (uint64_t)i));
        want[(size_t)i] = (float)kd_rand_unit(3, (uint64_t)i);
    }
    got = want;
    kd_la_solve_factored(&cpu, u.data(), k, want.data());
    KD_LAUNCH(kd_la_solve, 1, KD_LA_SOLVERS, KD_LA_SOLVE_SHARED + (held ? 4 * k : 0), NULL,
              u.data(), k, got.data(), held);
    const bool same = !memcmp(want.data(), got.data(), (size_t)(4 * k));
    if (!same)
        printf("a system of %lld unknowns is solved differently\n", (long long)k);
    return !same;
}

int main(void)
{
    static const struct check_case all[] = {
        {128, 128, 64, 32, KD_CB_MUL1, KD_RECIPE_DEFAULT, false, KD_MAT_F32},
        {100, 256, 200, 37, KD_CB_MUL1, KD_RECIPE_DEFAULT, false, KD_MAT_MXFP4},
        {256, 130, 0, 32, KD_CB_MUL1, KD_RECIPE_PLAIN, false, KD_MAT_BF16},
        {128, 256, 128, 49, KD_CB_3INST, KD_RECIPE_UPSTREAM, true, KD_MAT_BF16},
        {128, 128, 64, 125, KD_CB_MCG, KD_RECIPE_DEFAULT, false, KD_MAT_F32},
    };
    enum { COUNT = sizeof all / sizeof *all };
    struct kd_err err;
    int bad = 0;

    if (kd_kern_pick(&kern, &err)) {
        check_complain(&err);
        return 1;
    }
    bad += hold(all, COUNT, 0, 1);
    bad += hold(all, 3, 1400 << 10, 2); /* memory for about one tensor at a time */
    for (int64_t nth = 1; nth < 120; nth += nth < 4 ? 1 : 13)
        bad += hold_failure(nth);
    bad += hold_solve(true) + hold_solve(false);
    bad += hold_not_finite();
    bad += hold_no_room();
    return bad != 0;
}
