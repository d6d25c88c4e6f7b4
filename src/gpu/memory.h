/* Device memory and copies, in the order of the device's stream. Pointers to device memory are
 * plain pointers that only kernels may follow. */
#ifndef KD_GPU_MEMORY_H
#define KD_GPU_MEMORY_H

#include "gpu/gpu.h"

/* Filled with zeros; aligned to 256 bytes. The error names what it was for, how much was asked and
 * how much is free. Neither may be called while a graph is captured. NULL is released as nothing.
 */
int kd_gpu_alloc(struct kd_gpu *g, void **out, int64_t bytes, const char *what,
                 struct kd_err *err) KD_MUST;
void kd_gpu_release(struct kd_gpu *g, void *p);
/* Host memory that copies need not be staged from (a copy to or from it runs beside the host). */
int kd_gpu_host_alloc(struct kd_gpu *g, void **out, int64_t bytes, const char *what,
                      struct kd_err *err) KD_MUST;
void kd_gpu_host_release(struct kd_gpu *g, void *p);

/* Bytes free at this moment. */
int kd_gpu_free_bytes(struct kd_gpu *g, int64_t *bytes, struct kd_err *err) KD_MUST;

/* After what the stream holds so far. Ordinary host memory may be used again at return; memory of
 * kd_gpu_host_alloc after the next kd_gpu_wait. */
int kd_gpu_upload(struct kd_gpu *g, void *to, const void *from, int64_t bytes,
                  struct kd_err *err) KD_MUST;
int kd_gpu_copy(struct kd_gpu *g, void *to, const void *from, int64_t bytes,
                struct kd_err *err) KD_MUST;
int kd_gpu_zero(struct kd_gpu *g, void *p, int64_t bytes, struct kd_err *err) KD_MUST;
/* Returns when the bytes are there. */
int kd_gpu_download(struct kd_gpu *g, void *to, const void *from, int64_t bytes,
                    struct kd_err *err) KD_MUST;
/* Until the stream is done; reports what any kernel before it met. */
int kd_gpu_wait(struct kd_gpu *g, struct kd_err *err) KD_MUST;

#endif
