/* Work that is recorded once and started again with one call (CUDA graphs).
 *
 *     kd_gpu_graph_begin(g, err);      from here the device's stream records instead of running
 *     ... kernels and copies between device arrays ...
 *     kd_gpu_graph_end(g, &graph, err);
 *     kd_gpu_graph_run(g, graph, err); in stream order, any number of times
 *
 * What is recorded keeps its addresses and sizes; what changes from run to run must lie in device
 * memory. */
#ifndef KD_GPU_GRAPH_H
#define KD_GPU_GRAPH_H

#include "gpu/gpu.h"

struct kd_gpu_graph;

int kd_gpu_graph_begin(struct kd_gpu *g, struct kd_err *err) KD_MUST;
int kd_gpu_graph_end(struct kd_gpu *g, struct kd_gpu_graph **out, struct kd_err *err) KD_MUST;
/* Ends a recording that met an error; the stream runs again. */
void kd_gpu_graph_cancel(struct kd_gpu *g);
int kd_gpu_graph_run(struct kd_gpu *g, const struct kd_gpu_graph *graph,
                     struct kd_err *err) KD_MUST;
void kd_gpu_graph_free(struct kd_gpu_graph *graph);

#endif
