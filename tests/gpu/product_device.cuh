/* What the parts of gpu_product_device share. */
#ifndef KD_TESTS_GPU_PRODUCT_DEVICE_CUH
#define KD_TESTS_GPU_PRODUCT_DEVICE_CUH

#include "gpu/device.cuh"
#include "gpu/loaded.h"
#include "gpu/mma_lanes.cuh"
#include "gpu/product_check.h"

extern "C" {
#include "gpu/product.h"
}

#include <stdio.h>
#include <stdlib.h>

#include <algorithm>

static void cuda(cudaError_t rc)
{
    must(kd_gpu_failed(rc, &err, "the test"));
}
static void *device_bytes(struct kd_gpu *g, int64_t bytes)
{
    void *p;

    must(kd_gpu_alloc(g, &p, bytes, "a test", &err));
    return p;
}

static struct kd_gpu_source source_of(const fixture *f)
{
    struct kd_gpu_source s = {};

    s.type = KD_GPU_MAT_EXL3;
    s.rows = f->rows;
    s.cols = f->cols;
    s.data = f->tiles.data();
    s.ld = f->R / 16;
    s.rows_padded = f->R;
    s.cols_padded = f->C;
    s.suh = f->suh.data();
    s.svh = f->svh.data();
    s.rate = f->rate;
    s.cb = f->cb;
    return s;
}

/* What the device can do. */
__global__ void __launch_bounds__(1024) read_all(const uint4 *from, int64_t count, uint32_t *out)
{
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t sum = 0;

    for (; i + 3 * step < count; i += 4 * step) {
        uint4 v[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[j] = __ldcs(from + i + j * step);
#pragma unroll
        for (int j = 0; j < 4; j++)
            sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    if (sum == 1234567)
        *out = sum;
}
__device__ static uint64_t nanoseconds(void)
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}
/* Multiplications and byte permutations in turn, 16 x 64 of each a pass; among 32 of them
 * `matrix` matrix instructions. Cycles and nanoseconds of a warp go to took[0] and took[1]. */
template <int matrix>
__global__ void __launch_bounds__(512)
    issue_all(uint32_t seed, int passes, uint64_t *took, uint32_t *out)
{
    uint32_t x[16];
    int32_t d[4][4] = {};
    const uint64_t cycle = (uint64_t)clock64(), ns = nanoseconds();

#pragma unroll
    for (int i = 0; i < 16; i++)
        x[i] = seed * (threadIdx.x + i);
    const uint32_t a = x[1], b = x[2];
    for (int p = 0; p < passes; p++)
#pragma unroll 8
        for (int r = 0; r < 64; r++)
#pragma unroll
            for (int i = 0; i < 16; i++) {
                x[i] = __byte_perm(x[i] * 0x83DCD12Du, 0, 0x4213);
                if (i % 4 < matrix) {
                    int32_t *c = d[i / 4];
                    kd_mma_bytes(c, a, b, a, b, a, b, c[0], c[1], c[2], c[3]);
                }
            }
    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < 16; i++)
        sum += x[i] + (uint32_t)d[i / 4][i % 4];
    if (sum == 1234567)
        *out = sum;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        took[0] = (uint64_t)clock64() - cycle;
        took[1] = nanoseconds() - ns;
    }
}

/* Seconds of one run of what `record` adds to the stream, median over `times`. */
template <class F> static double seconds(struct kd_gpu *g, int times, F record)
{
    cudaGraph_t graph;
    cudaGraphExec_t run;
    std::vector<double> took;

    cuda(cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeThreadLocal));
    record();
    cuda(cudaStreamEndCapture(g->stream, &graph));
    cuda(cudaGraphInstantiate(&run, graph, 0));
    for (int i = 0; i < times + 2; i++) {
        float ms;
        cuda(cudaEventRecord(g->begin, g->stream));
        cuda(cudaGraphLaunch(run, g->stream));
        cuda(cudaEventRecord(g->end, g->stream));
        cuda(cudaEventSynchronize(g->end));
        cuda(cudaEventElapsedTime(&ms, g->begin, g->end));
        if (i >= 2)
            took.push_back(ms * 1e-3);
    }
    cudaGraphExecDestroy(run);
    cudaGraphDestroy(graph);
    std::sort(took.begin(), took.end());
    return took[took.size() / 2];
}

struct limits {
    double bytes, issues; /* a second; a thread's instructions */
    double matrix;        /* other instructions whose place a matrix instruction takes */
};

/* Seconds of `passes` passes; *clock: the card's in GHz meanwhile, which no tool tells. */
template <int matrix>
static double issue_seconds(struct kd_gpu *g, int sms, int passes, void *memory, double *clock)
{
    uint64_t took[2];
    const double s = seconds(g, 5, [&] {
        issue_all<matrix>
            <<<2 * sms, 512, 0, g->stream>>>(3, passes, (uint64_t *)memory, (uint32_t *)memory + 4);
    });

    must(kd_gpu_download(g, took, memory, sizeof took, &err));
    *clock = (double)took[0] / (double)took[1];
    return s;
}

static struct limits limits_of(struct kd_gpu *g, int blocks)
{
    const int64_t size = 2ll << 30;
    const int sms = blocks ? blocks : g->facts.sms, passes = 200;
    void *memory = device_bytes(g, size);
    struct limits l;

    l.bytes = (double)size / seconds(g, 5, [&] {
                  read_all<<<2 * sms, 1024, 0, g->stream>>>((uint4 *)memory, size / 16,
                                                            (uint32_t *)memory);
              });
    double clock[2];
    const double plain = issue_seconds<0>(g, sms, passes, memory, &clock[0]);
    l.issues = 2.0 * 16 * 64 * passes * 512 * 2 * sms / plain;
    l.matrix = (issue_seconds<1>(g, sms, passes, memory, &clock[1]) / plain - 1.0) * 2.0 * 16 / 4;
    cuda(cudaGetLastError());
    kd_gpu_release(g, memory);
    printf("%d multiprocessors: %.0f GB/s read, %.3g instructions/s (a thread's), a matrix "
           "instruction in the place of %.1f; %.3f GHz, beside matrix instructions %.3f\n",
           sms, l.bytes * 1e-9, l.issues, l.matrix, clock[0], clock[1]);
    return l;
}

#endif
