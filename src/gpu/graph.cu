/* Recorded work. */
#include "gpu/device.cuh"

extern "C" {
#include "gpu/graph.h"
}

struct kd_gpu_graph {
    cudaGraphExec_t exec;
};

extern "C" int kd_gpu_graph_begin(struct kd_gpu *g, struct kd_err *err)
{
    return kd_gpu_failed(cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeThreadLocal), err,
                         "recording a graph");
}

extern "C" void kd_gpu_graph_cancel(struct kd_gpu *g)
{
    cudaGraph_t recorded = nullptr;

    if (cudaStreamEndCapture(g->stream, &recorded) == cudaSuccess && recorded)
        cudaGraphDestroy(recorded);
    cudaGetLastError(); /* the next call starts clean */
}

extern "C" int kd_gpu_graph_end(struct kd_gpu *g, struct kd_gpu_graph **out, struct kd_err *err)
{
    cudaGraph_t recorded = nullptr;
    struct kd_gpu_graph *graph;
    int rc;

    *out = nullptr;
    if (kd_gpu_failed(cudaStreamEndCapture(g->stream, &recorded), err, "recording a graph"))
        return -1;
    rc = kd_mem_zero(&graph, 1, sizeof *graph, "a graph", err);
    if (!rc && kd_gpu_failed(cudaGraphInstantiate(&graph->exec, recorded, 0), err,
                             "making a graph ready")) {
        kd_mem_free(graph);
        rc = -1;
    }
    cudaGraphDestroy(recorded);
    if (rc)
        return -1;
    *out = graph;
    return 0;
}

extern "C" int kd_gpu_graph_run(struct kd_gpu *g, const struct kd_gpu_graph *graph,
                                struct kd_err *err)
{
    return kd_gpu_failed(cudaGraphLaunch(graph->exec, g->stream), err, "starting a graph");
}

extern "C" void kd_gpu_graph_free(struct kd_gpu_graph *graph)
{
    if (!graph)
        return;
    cudaGraphExecDestroy(graph->exec);
    kd_mem_free(graph);
}
