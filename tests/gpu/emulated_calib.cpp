/* Calibration with the device's own program on the CPU (emulate_encoder.h): products of every kind
 * of matrix, Hessians and whole experts have the CPU's bits, or in class `fast` keep to its bounds;
 * without room the CPU does them, and a device that fails says so. */
#define KD_CALIB_ROWS          128
#define KD_CALIB_FAST_ROWS     128
#define KD_CALIB_SEGMENT       64
#define KD_CALIB_COLUMNS_BYTES (128 << 10)
#define KD_STAGE_BYTES         (16 << 10)
#include "gpu/emulate_encoder.h"

#include "gpu/calib.cu"
#include "gpu/calib_expert.cu"
#include "gpu/calib_fast.cu"
#include "gpu/calib_inner.cu"
#include "gpu/calib_wide.cu"

#include "gpu/calib_check.h"

static struct kd_gpu_encoder *encoder(int64_t memory_bytes)
{
    const int index[2] = {0, 1};
    struct kd_gpu_encoder *e;
    struct kd_err err;
    if (kd_gpu_encoder_open(&e, index, 2, memory_bytes, &err)) {
        check_complain(&err);
        exit(1);
    }
    return e;
}

static int hold_products(const struct kd_run *cpu, struct kd_gpu_encoder *e)
{
    static const struct calib_case all[] = {
        {KD_MAT_F32, 40, 100, 130, 0, KD_CB_MUL1},     {KD_MAT_F32, 200, 7, 1, 0, KD_CB_MUL1},
        {KD_MAT_BF16, 130, 48, 100, 0, KD_CB_MUL1},    {KD_MAT_MXFP4, 300, 96, 129, 0, KD_CB_MUL1},
        {KD_MAT_EXL3, 130, 200, 140, 37, KD_CB_MUL1},  {KD_MAT_EXL3, 128, 128, 3, 16, KD_CB_MCG},
        {KD_MAT_EXL3, 384, 256, 20, 125, KD_CB_3INST}, {KD_MAT_EXL3, 100, 128, 64, 128, KD_CB_MUL1},
    };
    int bad = 0;
    for (const struct calib_case &c : all)
        bad += calib_product(cpu, e, c);
    return bad;
}

static int hold_fast(const struct kd_run *cpu, const struct kd_run *run)
{
    static const struct calib_case all[] = {
        {KD_MAT_F32, 140, 100, 130, 0, KD_CB_MUL1},   {KD_MAT_BF16, 300, 48, 20, 0, KD_CB_MUL1},
        {KD_MAT_MXFP4, 200, 96, 129, 0, KD_CB_MUL1},  {KD_MAT_EXL3, 130, 200, 140, 37, KD_CB_MUL1},
        {KD_MAT_EXL3, 200, 640, 3, 125, KD_CB_3INST}, /* two pieces of columns */
    };
    int bad = 0;
    kd_gpu_encoder_calibrate(run->encoder, KD_GPU_CALIB_FAST);
    for (const struct calib_case &c : all)
        bad += calib_fast_product(cpu, run->encoder, c);
    bad += calib_fast_hessian(cpu, run, 300, 90);
    bad += calib_fast_inner(run, 160, 200, 150, true) + calib_fast_inner(run, 100, 100, 70, false);
    bad += calib_sum(cpu, run->encoder, true, KD_MAT_EXL3, KD_MAT_EXL3, 160, 200, 150);
    bad += calib_sum(cpu, run->encoder, true, KD_MAT_MXFP4, KD_MAT_MXFP4, 96, 64, 20);
    kd_gpu_encoder_calibrate(run->encoder, KD_GPU_CALIB_EXACT);
    return bad;
}

/* Too little memory for anything but the tensors: nothing is done, nothing fails. */
static int hold_no_room(const struct kd_run *cpu)
{
    struct kd_gpu_encoder *e = encoder(100 << 10);
    const struct kd_run run = {cpu->kern, NULL, e, false};
    const std::vector<float> x = calib_rows(300 * 128, 1);
    std::vector<float> want(300 * 128), got(want);
    struct kd_gpu_latents *l = NULL;
    struct kd_hess h = {};
    struct calib_matrix m;
    struct kd_err err;
    const uint16_t z[1] = {0};

    calib_make(&m, KD_MAT_F32, 128, 128, 0, KD_CB_MUL1, 5);
    const bool held = !kd_mat_mul(cpu, &m.mat, x.data(), 128, 300, want.data(), 128, &err) &&
                      !kd_mat_mul(&run, &m.mat, x.data(), 128, 300, got.data(), 128, &err) &&
                      want == got && !kd_hess_open(&h, 128, &err) &&
                      !kd_hess_on_device(&run, &h, &err) && !h.sums &&
                      !kd_gpu_latents_open(&l, e, z, 1 << 20, 128, &err) && !l;
    kd_hess_release(&h);
    kd_gpu_encoder_close(e);
    if (!held)
        printf("a device without room is not left alone\n");
    return !held;
}

/* As many experts side by side as two devices hold; one takes what is counted for it. */
static int hold_lanes(const struct kd_run *cpu)
{
    struct kd_expert_room room[5];
    struct kd_gpu_encoder_facts f;
    struct kd_expert_out out = {};
    struct kd_err err;
    calib_expert x;
    int bad = calib_expert_make(&x, cpu, 128, 256, 150, true);

    for (int i = 0; i < 5; i++) { /* all that is free; nothing; 1, 3 and 100 experts and a bit */
        const int64_t counts[] = {0, 0, 1, 3, 100};
        const int64_t bytes = i == 0   ? 0
                              : i == 1 ? 1
                                       : room->shared_bytes + room->each_bytes * counts[i] + 5;
        struct kd_gpu_encoder *e = encoder(bytes);
        struct kd_run run = {cpu->kern, NULL, e, false};
        room[i] = kd_expert_room_of(&run, &x.in, 256, x.spec);
        if (i == 2) {
            bad += calib_expert_run(&x, &run, &out, &err);
            kd_gpu_encoder_facts(e, &f);
            bad += 10 * f.used_bytes < 9 * room->each_bytes || f.used_bytes > bytes;
            kd_expert_release(&out);
        }
        kd_gpu_encoder_close(e);
    }
    const bool held = !bad && room[0].lanes == 2 * KD_EXPERT_LANES && room[1].lanes == 2 &&
                      room[2].lanes == 2 && room[3].lanes == 6 &&
                      room[4].lanes == 2 * KD_EXPERT_LANES;
    if (!held)
        printf("experts side by side: %d, %d, %d, %d, %d; %lld bytes each, %lld used\n",
               room[0].lanes, room[1].lanes, room[2].lanes, room[3].lanes, room[4].lanes,
               (long long)room->each_bytes, (long long)f.used_bytes);
    kd_hess_release(&x.h);
    return !held;
}

/* kd_mat_mul goes to the device by itself; the nth call of the runtime fails there. */
static int hold_failure(const struct kd_run *cpu, int64_t nth)
{
    struct kd_gpu_encoder *e = encoder(0);
    const struct kd_run run = {cpu->kern, NULL, e, false};
    const std::vector<float> x = calib_rows(300 * 128, 1);
    std::vector<float> y(300 * 128);
    struct kd_hess h = {};
    struct calib_matrix m;
    struct kd_err err = {};

    calib_make(&m, KD_MAT_BF16, 128, 128, 0, KD_CB_MUL1, 5);
    kd_fake_fail_at = nth;
    int rc = kd_mat_mul(&run, &m.mat, x.data(), 128, 300, y.data(), 128, &err) ||
             kd_hess_open(&h, 128, &err) || kd_hess_on_device(&run, &h, &err) ||
             kd_hess_add(&run, &h, x.data(), 128, 300, &err) || kd_hess_finish(&h, &err);
    const bool broke = kd_fake_broken;
    kd_fake_fail_at = 0;
    kd_fake_broken = false;
    kd_hess_release(&h);
    kd_gpu_encoder_close(e);
    const bool held =
        broke ? rc && err.code == KD_EGPU && strstr(err.msg, "launch failure") : nth > 12 && !rc;
    if (!held)
        printf("failing at call %lld: %d %s\n", (long long)nth, rc, err.msg);
    return !held;
}

int main(void)
{
    const struct kd_run cpu = {&kern, NULL, NULL, false};
    struct kd_err err;

    if (kd_kern_pick(&kern, &err)) {
        check_complain(&err);
        return 1;
    }
    struct kd_gpu_encoder *e = encoder(0);
    const struct kd_run run = {&kern, NULL, e, false};
    int bad = hold_products(&cpu, e);
    bad += calib_whole_expert(&cpu, e, KD_MAT_MXFP4, KD_MAT_EXL3, 160, 96, 140);
    bad += calib_whole_expert(&cpu, e, KD_MAT_EXL3, KD_MAT_BF16, 100, 130, 5);
    bad += calib_sum(&cpu, e, false, KD_MAT_EXL3, KD_MAT_BF16, 100, 130, 200);
    bad += calib_hessian(&cpu, &run, 200, 90);
    bad += calib_expert_check(&cpu, &run, 128, 256, 150, true, true);
    bad += calib_expert_check(&cpu, &run, 128, 128, 140, false, false);
    bad += hold_fast(&cpu, &run);
    emulated_wide = true;
    bad += hold_fast(&cpu, &run);
    kd_gpu_encoder_close(e);
    bad += hold_no_room(&cpu);
    bad += hold_lanes(&cpu);
    for (int64_t nth = 1; nth < 24; nth += 3)
        bad += hold_failure(&cpu, nth);
    return bad != 0;
}
