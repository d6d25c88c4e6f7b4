/* An encoder's device for the program itself (kondense_emulated): convert, check and pilot with
 * --device cuda run as on a machine that has one, over a fake runtime and emulated kernels. The
 * KD_FAKE_FAIL_AT-th call of the runtime from its start fails, and all after it; it has
 * KD_FAKE_FREE bytes free, and blocks of KD_FAKE_SHARED bytes. A layer's trunk in class `fast` runs
 * on device_emulated.cpp. */
#define KD_ENCODE_ROUND_TILES 1024
#define KD_STAGE_BYTES        (16 << 10)
#define KD_EMULATED_DEVICE
#include "gpu/emulate_encoder.h"

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

extern "C" int kd_gpu_search(struct kd_gpu *, const struct kd_gpu_tiles *,
                             struct kd_gpu_tile_figures *, struct kd_err *err)
{
    return kd_fail(err, KD_ENOTSUP, "no search alone on an emulated device");
}
