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

#include <stdbool.h>

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

/* Ways to search at 2 bits and a little more, where a device has the shared memory for all: two
 * tiles side by side, one by itself, one of which only the costs of cheap states are kept. */
enum kd_gpu_search_way { KD_SEARCH_BY_DEVICE, KD_SEARCH_ONE, KD_SEARCH_CHEAP };

/* The trellis search of kern.h for tiles in host memory: the same states, bit for bit. */
struct kd_gpu_tiles {
    const float *target; /* [tiles][256] in ring order */
    int64_t tiles;
    struct kd_rate rate;
    enum kd_codebook codebook;
    int seam;         /* 8 to 128, a multiple of 8 */
    int blocks;       /* at most so many at once; 0: one a multiprocessor */
    uint16_t *states; /* [tiles][256] */
    enum kd_gpu_search_way way;
};
struct kd_gpu_tile_figures {
    double seconds; /* of the kernel alone */
    int blocks;
    int64_t shared_bytes; /* of a block */
    /* Costs written to device memory for one tile, sectors read there: computed, or (cheap) counted
     * by the kernel. */
    int64_t tile_written_bytes, tile_read_bytes;
    bool cheap;
    double tile_walks; /* cheap: segments walked for a tile */
    int64_t again;     /* cheap: tiles searched again with all costs kept */
};
int kd_gpu_search(struct kd_gpu *g, const struct kd_gpu_tiles *job,
                  struct kd_gpu_tile_figures *figures, struct kd_err *err) KD_MUST;

#endif
