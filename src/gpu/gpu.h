/* A CUDA device, behind plain C. A build without CUDA has the same functions; they find no device.
 *
 *     struct kd_gpu *g;
 *     if (kd_gpu_open(&g, 0, err)) ...        no device, too old a driver: one line says which
 *     kd_gpu_search(g, &job, &figures, err);
 *     kd_gpu_close(g);
 *
 * One thread at a time for each struct kd_gpu; several take turns with kd_gpu_lock. */
#ifndef KD_GPU_GPU_H
#define KD_GPU_GPU_H

#include "base/err.h"
#include "num/trellis_step.h"

struct kd_gpu;

struct kd_gpu_facts {
    char name[256];
    int major, minor; /* compute capability */
    int sms;
    int64_t memory_bytes, free_bytes;
    int64_t block_shared_bytes; /* that one block may have */
    double ghz;                 /* the highest clock of its multiprocessors */
};

int kd_gpu_count(void);
int kd_gpu_open(struct kd_gpu **out, int index, struct kd_err *err) KD_MUST;
void kd_gpu_close(struct kd_gpu *g);
const struct kd_gpu_facts *kd_gpu_facts(const struct kd_gpu *g);
/* Not to be taken twice; no call here takes it. */
void kd_gpu_lock(struct kd_gpu *g);
void kd_gpu_unlock(struct kd_gpu *g);

/* The trellis search of kern.h for tiles in host memory: the same states, bit for bit. */
struct kd_gpu_tiles {
    const float *target; /* [tiles][256] in ring order */
    int64_t tiles;
    struct kd_rate rate;
    enum kd_codebook codebook;
    int seam;         /* 8 to 128, a multiple of 8 */
    int blocks;       /* at most so many at once; 0: one a multiprocessor */
    uint16_t *states; /* [tiles][256] */
};
struct kd_gpu_tile_figures {
    double seconds; /* of the kernel alone */
    int blocks;
    int64_t shared_bytes;       /* of a block */
    int64_t tile_traffic_bytes; /* costs written to device memory for one tile */
};
int kd_gpu_search(struct kd_gpu *g, const struct kd_gpu_tiles *job,
                  struct kd_gpu_tile_figures *figures, struct kd_err *err) KD_MUST;

#endif
