/* A matrix described for a device (gpu/product.h). */
#ifndef KD_KERN_MAT_SOURCE_H
#define KD_KERN_MAT_SOURCE_H

#include "gpu/product.h"
#include "kern/mat.h"

/* Borrows what w borrows. type KD_GPU_MAT_NONE: no matrix, or one of a type that devices take for
 * running a model alone (blocks of ggml: model/k3_device_load.c). */
struct kd_gpu_source kd_mat_source(const struct kd_mat *w);

#endif
