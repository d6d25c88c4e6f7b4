/* A build without CUDA. */
#include "gpu/gpu.h"

int kd_gpu_count(void)
{
    return 0;
}

int kd_gpu_open(struct kd_gpu **out, int index, struct kd_err *err)
{
    *out = NULL;
    return kd_fail(err, KD_ENOTSUP,
                   "device cuda:%d: this kondense was built without CUDA (make gpu); "
                   "use the CPU (--device cpu)",
                   index);
}

void kd_gpu_close(struct kd_gpu *g)
{
    (void)g;
}

const struct kd_gpu_facts *kd_gpu_facts(const struct kd_gpu *g)
{
    (void)g;
    return NULL;
}

void kd_gpu_lock(struct kd_gpu *g)
{
    (void)g;
}

void kd_gpu_unlock(struct kd_gpu *g)
{
    (void)g;
}

int kd_gpu_search(struct kd_gpu *g, const struct kd_gpu_tiles *job,
                  struct kd_gpu_tile_figures *figures, struct kd_err *err)
{
    (void)g;
    (void)job;
    (void)figures;
    return kd_fail(err, KD_ENOTSUP, "this kondense was built without CUDA");
}
