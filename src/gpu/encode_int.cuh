/* A tensor's side of encoding, shared by encode.cu (rounds, memory) and encode_la.cu. */
#ifndef KD_GPU_ENCODE_INT_CUH
#define KD_GPU_ENCODE_INT_CUH

extern "C" {
#include "gpu/encoder.h"
}
#include "gpu/encode_stage.cuh"

static inline int64_t kd_most64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t kd_least64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

enum {
    KD_ENCODE_GROUP = 4, /* tiles whose squared errors are one sum */
    KD_ENCODE_SPAN = 128,
    KD_ENCODE_COLUMNS = 128, /* of a block of the first kernel */
    KD_ENCODE_THREADS = 256, /* of the kernels after the search */
    KD_ENCODE_JOBS = 64,     /* in one round */
    KD_ENCODE_TURNS = 4      /* tensors of a device between their searches at once */
};

/* One job's part of a round: a row of tiles, or some items of a scale search. */
struct kd_encode_part {
    struct kd_rate rate;
    enum kd_codebook cb;
    int32_t block; /* its first block in each kernel */
    int64_t first; /* its first tile among the round's */
    int64_t k, n;
    int64_t row, end; /* rows row..row+15 of a span that ends at `end` */
    const float *l;   /* NULL: no feedback */
    const float *r;   /* [k][n] rotated weights */
    float *t;         /* [k][n] targets, then values */
    float *e;         /* [SPAN][n] errors of the span */
    uint8_t *codes;
    double *sum; /* one of each item */
    /* scale search */
    const float *sample;
    const double *scale;
    const int32_t *list; /* of the items: kd_gpu_scale's */
    int64_t tiles, stride, groups, item;
};

struct kd_encode_round {
    float *target;    /* [tiles][256], ring order */
    uint16_t *states; /* likewise */
    int count;
    struct kd_encode_part part[KD_ENCODE_JOBS];
};

struct kd_encode_device;

struct kd_gpu_tensor {
    struct kd_encode_device *dev;
    int index; /* of the device */
    struct kd_gpu_tensor_shape shape;
    cudaStream_t stream;
    cudaEvent_t done;
    bool turn; /* see kd_encode_take_turn */
    double turn_began;
    int64_t bytes;
    unsigned char *memory;
    const float *h;          /* [k][k], NULL unless square; of kd_gpu_square or its own */
    float *own, *l;          /* [k][k], likewise */
    float *w, *r, *t;        /* [k][n]: kd_gpu_part */
    float *spare;            /* [k][n], NULL unless square */
    float *e, *left, *right; /* [128][n]; [longest of k, n] */
    float *sample;
    int64_t samples; /* tiles of it */
    uint8_t *codes;
    double *sum, *scale;
    int32_t *list; /* of a scale search */
    int32_t *bad;  /* see kd_la_diagonal, kd_la_load */
};

struct kd_gpu_square {
    struct kd_gpu_encoder *e;
    int64_t k, bytes;
    float *at[KD_GPU_ENCODE_DEVICES];
};

struct kd_encode_job {
    struct kd_encode_job *next;
    struct kd_gpu_tensor *t;
    bool scale, feedback, done;
    int64_t row; /* LDLQ: of the next row of tiles */
    struct kd_encode_part part;
    int64_t items; /* scale search: all of them */
    int rc;
};

/* Tiles that a sample of the scale search may have. */
int64_t kd_encode_samples(const struct kd_gpu_tensor_shape *s);
/* On the tensor's device. */
const float *kd_encode_square_at(const struct kd_gpu_square *s, const struct kd_gpu_tensor *t);
/* Hands a job in and waits for its end. */
int kd_encode_run(struct kd_encode_job *j, struct kd_err *err);
/* t->bytes of a device, which becomes t's; waits. */
int kd_encode_take_room(struct kd_gpu_encoder *e, struct kd_gpu_tensor *t, struct kd_err *err);
void kd_encode_give_room(struct kd_gpu_tensor *t);
/* A tensor's linear algebra is done in turns, in the order of asking: were all tensors at it side
 * by side, they would come to their searches all at once, and leave them so. LDLQ gives the turn
 * back while it waits. */
int kd_encode_take_turn(struct kd_gpu_tensor *t, struct kd_err *err);
void kd_encode_give_turn(struct kd_gpu_tensor *t);

/* t->bytes of a device at t->memory, a stream and a turn; no more is needed of t. */
int kd_encode_space_open(struct kd_gpu_tensor *t, struct kd_gpu_encoder *e, struct kd_err *err);
void kd_encode_space_close(struct kd_gpu_tensor *t);
/* Its memory, stream and event alone. */
void kd_gpu_tensor_end(struct kd_gpu_tensor *t);
/* Memory of devices first .. first + count - 1 for what stays (some part of it at most), or
 * `briefly`, while nobody waits for a tensor's: false, or it is taken of each until it is given
 * back. */
bool kd_encode_hold(struct kd_gpu_encoder *e, int first, int count, int64_t bytes, bool briefly);
void kd_encode_let_go(struct kd_gpu_encoder *e, int first, int count, int64_t bytes);
int kd_encode_devices(const struct kd_gpu_encoder *e);
/* kd_gpu_encoder_calibrate's FAST. */
bool kd_encode_is_fast(const struct kd_gpu_encoder *e);
/* The device's index for CUDA. */
int kd_encode_device_index(const struct kd_gpu_encoder *e, int device);
struct kd_encode_device *kd_encode_device_at(struct kd_gpu_encoder *e, int device);
struct kd_stage *kd_encode_stage(const struct kd_encode_device *d);
/* Which of the encoder's devices t is on. */
int kd_encode_device_of(const struct kd_gpu_tensor *t);

/* The calling thread speaks to the tensor's device from here on. */
int kd_gpu_tensor_here(const struct kd_gpu_tensor *t, struct kd_err *err);
/* To the device: `from` has been read when it returns. From it: all that was asked before is waited
 * for, then, or by kd_gpu_tensor_settle, which must follow. t: its dev, index, stream and done. */
int kd_gpu_tensor_copy(const struct kd_gpu_tensor *t, void *to, const void *from, int64_t bytes,
                       enum cudaMemcpyKind kind, struct kd_err *err);
/* Rows of `width` bytes, `pitch` apart, to rows `to_pitch` apart on the device; and back. */
int kd_gpu_tensor_copy_rows(const struct kd_gpu_tensor *t, void *to, int64_t to_pitch,
                            const void *from, int64_t pitch, int64_t width, int64_t rows,
                            struct kd_err *err);
int kd_gpu_tensor_fetch_rows(const struct kd_gpu_tensor *t, void *to, int64_t to_pitch,
                             const void *from, int64_t pitch, int64_t width, int64_t rows,
                             struct kd_err *err);
/* Waits for all that was asked of it. */
int kd_gpu_tensor_settle(const struct kd_gpu_tensor *t, struct kd_err *err);

#endif
