/* Copies between ordinary memory and a device, fast: the driver moves such memory with one thread
 * and one piece after the other. Here pieces pass through a few buffers that the device reaches by
 * itself, filled and emptied by several threads. One for each device; any number of threads use
 * it. */
#ifndef KD_GPU_ENCODE_STAGE_CUH
#define KD_GPU_ENCODE_STAGE_CUH

#include "gpu/device.cuh"

struct kd_stage;

/* Smaller in a test, which has small matrices. */
#ifndef KD_STAGE_BYTES
#define KD_STAGE_BYTES (4 << 20)
#endif

enum {
    KD_STAGE_SLOTS = 12,
    KD_STAGE_SLOT = KD_STAGE_BYTES,
    KD_STAGE_LEAST = KD_STAGE_SLOT / 4 /* under so many bytes the driver is as fast */
};

/* Rows of `width` bytes; pitches in bytes. */
struct kd_stage_rows {
    void *to;
    const void *from;
    int64_t to_pitch, from_pitch, width, rows;
    bool down; /* to ordinary memory, else from it */
};

/* `index`: the device, which is the calling thread's. */
int kd_stage_open(struct kd_stage **out, int index, struct kd_err *err);
void kd_stage_close(struct kd_stage *s);
/* Up: what was given is read when it returns, and copied on the stream. Down: waits for nothing
 * that was queued before, so that is the caller's to do; all is there when it returns. *done false:
 * too little, or rows too wide for it, and nothing was done. */
int kd_stage_copy(struct kd_stage *s, cudaStream_t stream, const struct kd_stage_rows *r,
                  bool *done, struct kd_err *err);

#endif
