/* An encoder's device for the program itself (kondense_emulated): convert, check and pilot with
 * --device cuda run as on a machine that has one, over a fake runtime and emulated kernels. The
 * KD_FAKE_FAIL_AT-th call of the runtime from its start fails, and all after it; it has
 * KD_FAKE_FREE bytes free, and blocks of KD_FAKE_SHARED bytes. A layer's trunk in class `fast` runs
 * on device_emulated.cpp. */
#define KD_ENCODE_ROUND_TILES 1024
#define KD_STAGE_BYTES        (16 << 10)
#define KD_EMULATED_DEVICE
#include "gpu/emulate_encoder.h"

extern "C" {
#include "base/clock.h"
}

#include "gpu/calib.cu"
#include "gpu/calib_expert.cu"
#include "gpu/calib_fast.cu"
#include "gpu/calib_inner.cu"
#include "gpu/calib_wide.cu"

static int begin(void)
{
    const char *fail = getenv("KD_FAKE_FAIL_AT"), *room = getenv("KD_FAKE_FREE"),
               *shared = getenv("KD_FAKE_SHARED");
    struct kd_err err;

    if (fail)
        kd_fake_fail_at = atoll(fail);
    if (room)
        emulated_free = atoll(room);
    if (shared)
        emulated_shared = atoll(shared);
    return kd_kern_pick(&kern, &err);
}
static const int begun = begin();

extern "C" int kd_gpu_count(void)
{
    return begun ? 0 : EMULATED_DEVICES;
}

extern "C" int64_t kd_emulated_free(void)
{
    return emulated_free;
}

/* The CPU's, whose time is that of a device with one multiprocessor. */
extern "C" int kd_gpu_search(struct kd_gpu *g, const struct kd_gpu_tiles *j,
                             struct kd_gpu_tile_figures *f, struct kd_err *err)
{
    const double start = kd_clock_s();
    if (kd_gpu_search_launch(g, nullptr, j->rate, j->codebook, j->seam, 1, j->target, j->states,
                             j->tiles, err))
        return -1;
    memset(f, 0, sizeof *f);
    f->seconds = kd_clock_s() - start;
    f->blocks = 1;
    return 0;
}
