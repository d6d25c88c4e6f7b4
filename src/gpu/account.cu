/* Where a device's time goes. */
#include "gpu/device.cuh"
#include "gpu/lanes.cuh"

#include <string.h>

extern "C" {
#include "gpu/account.h"
}

namespace
{

enum { EVENTS = 1 << 15, AHEAD_NS = 5000000 };

/* Time for the host to come with launches. */
KD_KERNEL void wait_a_moment(uint64_t ns)
{
    uint64_t from, now;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(from));
    do
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - from < ns);
}

} // namespace

/* Event i ends what span i names; event 0 begins the first. */
struct kd_gpu_account_run {
    cudaEvent_t event[EVENTS];
    struct {
        const char *part, *kernel;
    } span[EVENTS];
    int events;
    bool each;
    const char *part;
    cudaError_t failed;
};

/* What a graph records happens when it runs, which is when nobody looks. */
static bool is_recorded(struct kd_gpu *g)
{
    enum cudaStreamCaptureStatus now = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(g->stream, &now) != cudaSuccess ||
           now != cudaStreamCaptureStatusNone;
}

static void mark(struct kd_gpu *g, const char *kernel)
{
    struct kd_gpu_account_run *r = g->account;
    cudaError_t rc = r->events < EVENTS ? cudaEventCreate(&r->event[r->events]) : cudaErrorUnknown;

    if (rc == cudaSuccess) {
        r->span[r->events] = {r->part, kernel};
        rc = cudaEventRecord(r->event[r->events++], g->stream);
    }
    if (r->failed == cudaSuccess)
        r->failed = rc;
}

void kd_gpu_mark(struct kd_gpu *g, const char *kernel)
{
    if (g->account && g->account->each && !is_recorded(g))
        mark(g, kernel);
}

extern "C" int kd_gpu_account_begin(struct kd_gpu *g, bool each, struct kd_err *err)
{
    if (kd_mem_zero((void **)&g->account, 1, sizeof *g->account, "an account", err))
        return -1;
    g->account->each = each;
    KD_LAUNCH(wait_a_moment, 1, 1, 0, g->stream, (uint64_t)AHEAD_NS);
    mark(g, NULL);
    return 0;
}

extern "C" void kd_gpu_account_at(struct kd_gpu *g, const char *part)
{
    if (!g->account || is_recorded(g))
        return;
    if (!g->account->each && g->account->part)
        mark(g, NULL);
    g->account->part = part;
}

static bool same(const char *a, const char *b)
{
    return a == b || (a && b && !strcmp(a, b));
}

static void add(struct kd_gpu_account *a, const char *part, const char *kernel, double ms)
{
    int i = 0;

    while (i < a->rows && !(same(a->row[i].part, part) && same(a->row[i].kernel, kernel)))
        i++;
    if (i == KD_GPU_ACCOUNT_ROWS)
        return;
    if (i == a->rows)
        a->row[a->rows++] = {part, kernel, 0, 0.0};
    a->row[i].count++;
    a->row[i].ms += ms;
}

extern "C" int kd_gpu_account_end(struct kd_gpu *g, struct kd_gpu_account *a, struct kd_err *err)
{
    struct kd_gpu_account_run *r = g->account;
    int rc;

    mark(g, "the rest");
    g->account = NULL;
    rc = kd_gpu_failed(r->failed, err, "an account of more launches than there are events for") ||
         kd_gpu_failed(cudaStreamSynchronize(g->stream), err, "an account");
    for (int i = 1; i < r->events && !rc; i++) {
        float ms;
        rc = kd_gpu_failed(cudaEventElapsedTime(&ms, r->event[i - 1], r->event[i]), err,
                           "an account");
        if (!rc)
            add(a, r->span[i].part, r->each ? r->span[i].kernel : NULL, (double)ms);
    }
    for (int i = 0; i < r->events; i++)
        cudaEventDestroy(r->event[i]);
    kd_mem_free(r);
    return rc ? -1 : 0;
}
