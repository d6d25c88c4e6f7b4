/* What the calibration's .cu files share: parts of a space, a matrix as it is stored, and the steps
 * of a product in class `exact` (calib.cu) and in class `fast` (calib_fast.cu). */
#ifndef KD_GPU_CALIB_INT_CUH
#define KD_GPU_CALIB_INT_CUH

extern "C" {
#include "gpu/calib.h"
}
#include "gpu/calib_codes.cuh"
#include "gpu/encode_int.cuh"

/* Smaller in a test, which has small matrices. */
#ifndef KD_CALIB_ROWS
#define KD_CALIB_ROWS          1024
#define KD_CALIB_FAST_ROWS     16384
#define KD_CALIB_COLUMNS_BYTES (128 << 20)
#endif

namespace kd_fast
{
enum kind : int;
struct multiply_job;
} // namespace kd_fast

namespace kd_calib
{

enum {
    ROWS = KD_CALIB_ROWS,                   /* of a piece */
    FAST_ROWS = KD_CALIB_FAST_ROWS,         /* the same in class `fast` */
    COLUMNS_BYTES = KD_CALIB_COLUMNS_BYTES, /* of weights as floats at once, or 128 columns */
    SUMS_ROWS = 1024,
    PAD = 128,       /* inputs or outputs of a Hadamard */
    EXL3_CHAINS = 8, /* of an output's sum */
    DOT_CHAINS = 16
};

static inline int64_t up_to(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Parts of a space one after the other; without a space only their sizes. */
struct parts {
    unsigned char *base;
    int64_t at = 0;

    template <class T> void take(T **out, int64_t bytes)
    {
        *out = base ? (T *)(base + at) : nullptr;
        at += up_to(bytes, 256);
    }
};

/* ---- a matrix as it is stored ---- */

struct shape {
    int64_t n, inputs; /* outputs up to 128; chains * deep */
    int64_t deep, half;
    int64_t lines, width, pitch; /* of its data, bytes; pitch: in host memory */
    int64_t scales;              /* bytes a row */
};

static inline shape shape_of(const struct kd_gpu_source *w)
{
    shape s = {};

    if (w->type == KD_GPU_MAT_EXL3) {
        const int64_t tile = kd_rate_tile_bytes(w->rate);
        s.n = w->rows_padded;
        s.half = EXL3_CHAINS / 2;
        s.deep = w->cols_padded / EXL3_CHAINS;
        s.lines = w->cols_padded / KD_TILE;
        s.width = w->rows_padded / KD_TILE * tile;
        s.pitch = w->ld * tile;
    } else {
        const bool packed = w->type == KD_GPU_MAT_MXFP4;
        const int64_t each = w->type == KD_GPU_MAT_F32 ? 4 : 2;
        s.n = up_to(w->rows, PAD);
        s.half = DOT_CHAINS / 2;
        s.deep = (w->cols + DOT_CHAINS - 1) / DOT_CHAINS;
        s.lines = w->rows;
        s.width = packed ? (w->cols + 1) / 2 : each * w->cols;
        s.pitch = packed ? w->ld : each * w->ld;
        s.scales = packed ? (w->cols + 31) / 32 : 0;
    }
    s.inputs = 2 * s.half * s.deep;
    return s;
}

struct stored {
    shape s;
    uint8_t *data, *scale;
    uint16_t *suh, *svh;

    void take(parts *p, const struct kd_gpu_source *w)
    {
        const bool exl3 = w->type == KD_GPU_MAT_EXL3;
        s = shape_of(w);
        p->take(&data, s.lines * s.width);
        p->take(&scale, s.scales * s.lines);
        p->take(&suh, exl3 ? 2 * w->cols_padded : 0);
        p->take(&svh, exl3 ? 2 * w->rows_padded : 0);
    }
    int put(const struct kd_gpu_tensor *t, const struct kd_gpu_source *w, struct kd_err *err)
    {
        if (kd_gpu_tensor_copy_rows(t, data, s.width, w->data, s.pitch, s.width, s.lines, err) ||
            (s.scales && kd_gpu_tensor_copy_rows(t, scale, s.scales, w->scale, w->ld_scale,
                                                 s.scales, s.lines, err)))
            return -1;
        return w->type == KD_GPU_MAT_EXL3 && (kd_gpu_tensor_copy(t, suh, w->suh, 2 * w->cols_padded,
                                                                 cudaMemcpyHostToDevice, err) ||
                                              kd_gpu_tensor_copy(t, svh, w->svh, 2 * w->rows_padded,
                                                                 cudaMemcpyHostToDevice, err))
                   ? -1
                   : 0;
    }
};

static inline int started(struct kd_err *err)
{
    return kd_gpu_failed(cudaGetLastError(), err, "calibrating");
}

/* A space of so many bytes: 1 when a device has no room for it. */
static inline int open_space(struct kd_gpu_tensor *t, struct kd_gpu_encoder *e, int64_t bytes,
                             struct kd_err *err)
{
    struct kd_err why = {};
    *t = {};
    t->bytes = bytes;
    if (!kd_encode_space_open(t, e, &why))
        return 0;
    if (why.code == KD_ENOMEM)
        return 1;
    if (err)
        *err = why;
    return -1;
}

/* ---- class `exact` (calib.cu); all on the device, asynchronous on t's stream ---- */

/* Columns c0 .. c0 + n of the matrix as floats [inputs][n], inputs chain after chain. */
void expand(const struct kd_gpu_tensor *t, const struct kd_gpu_source *w, const stored &m,
            int64_t c0, int64_t n, float *out);
/* T rows, ldx apart, as the chains need them: [inputs][tc], tc = T up to 128. */
void turn(const struct kd_gpu_tensor *t, const struct kd_gpu_source *w, const stored &m,
          const void *x, bool bf16, int64_t ldx, int64_t T, float *out);
/* c = [half][tc][n] for the turned rows and n expanded columns. */
void multiply(const struct kd_gpu_tensor *t, const stored &m, const float *a, int64_t T,
              const float *b, int64_t n, float *c);
void fold(const struct kd_gpu_tensor *t, const struct kd_gpu_source *w,
          const struct kd_calib_sums_job &j);
void inner_of(const struct kd_gpu_tensor *t, const struct kd_gpu_source *w,
              const struct kd_calib_inner_job &j);
/* h += x^T x over S rows of k floats. */
int add_rows(cudaStream_t stream, const float *x, int64_t S, int64_t k, float *h,
             struct kd_err *err);

/* A stream and t->bytes of the encoder's device `device`, held (kd_encode_hold) until they are
 * closed; *room false: there is no room. close_own also after an error. */
int open_own(struct kd_gpu_tensor *t, struct kd_gpu_encoder *e, int device, bool *room,
             struct kd_err *err);
void close_own(struct kd_gpu_tensor *t, struct kd_gpu_encoder *e, int device);

/* ---- class `fast` (calib_fast.cu) ---- */

/* Rows of bf16 values, `pitch` apart, a multiple of 32; lo: what is left of their rounding, or
 * NULL. */
struct planes {
    uint16_t *hi, *lo;
    int64_t pitch;

    void take(parts *p, int64_t rows, int64_t wide, bool split)
    {
        pitch = wide;
        p->take(&hi, 2 * rows * wide);
        p->take(&lo, split ? 2 * rows * wide : 0);
        if (!split)
            lo = nullptr;
    }
};

/* Of the planes of a matrix, and whether one would not hold it. */
static inline int64_t fast_pitch(const struct kd_gpu_source *w)
{
    return w->type == KD_GPU_MAT_EXL3 ? w->cols_padded : up_to(w->cols, 32);
}
static inline bool fast_split(const struct kd_gpu_source *w)
{
    return w->type == KD_GPU_MAT_EXL3 || w->type == KD_GPU_MAT_F32;
}

/* T rows of floats or bf16 (of those that `row` lists, unless it is NULL) as planes, zeros up to
 * the pitch. */
void fast_rows(const struct kd_gpu_tensor *t, const void *x, bool bf16, int64_t ldx, int64_t cols,
               const int32_t *row, int64_t T, const planes &out);
/* Outputs c0 .. c0 + n of the matrix; n a multiple of 128, zeros after the last one. `both`: every
 * other eight rows of `out`, which begins with them. */
int fast_weights(const struct kd_gpu_tensor *t, const struct kd_gpu_source *w, const stored &m,
                 int64_t c0, int64_t n, const planes &out, bool both, struct kd_err *err);
/* out [k up to 32][pitch] = the transpose of T rows of k floats; zeros after the last row. */
void fast_turn(cudaStream_t stream, const float *x, int64_t ldx, int64_t T, int64_t k,
               const planes &out);
/* Products. count: fast_count_bytes (of a Hessian of k inputs; else of any) for those that are
 * queued on the stream, so that their blocks share the work as they come; NULL: they share it
 * evenly. */
int64_t fast_count_bytes(int64_t k);
/* y[t][r] for r < rows. */
int fast_multiply(cudaStream_t stream, const planes &w, int64_t rows, const planes &x, int64_t T,
                  float *y, int64_t ldy, int32_t *count, struct kd_err *err);
/* h [k][k] += x x^T, x [k][pitch], on and above the diagonal (below it anything): sums over 4,096
 * inputs are added one after the other. */
int fast_sums(cudaStream_t stream, const planes &x, int64_t k, float *h, struct kd_err *err,
              int32_t *count = nullptr);
/* SiTU of gate and up, both in w (n outputs each): [T up to 32][out.pitch], or turned
 * [n][out.pitch], zeros after row T and output `outs`. *bad = 1 when one is not finite. */
int fast_inner(cudaStream_t stream, const planes &w, int64_t n, int64_t outs, const planes &x,
               int64_t T, float beta, float linear, bool turned, const planes &out, int32_t *bad,
               int32_t *count, struct kd_err *err);

/* The product on Hopper (calib_wide.cu): whether the current device and this program have it; and
 * as launch_multiply in calib_fast.cu. */
bool wide_is_here(void);
int wide_multiply(cudaStream_t stream, enum kd_fast::kind kind, const kd_fast::multiply_job &j,
                  int32_t *count, struct kd_err *err);

/* An expert's outputs for picked rows of z. */
struct fast_expert {
    stored w[3];
    int64_t rows; /* at a time */
    planes both, down, x, mid;
    float *y;             /* [rows][w2 rows] */
    int32_t *bad, *taken; /* taken: as `count` above */

    int64_t take(const struct kd_gpu_source src[3], int64_t count, unsigned char *base);
    int begin(const struct kd_gpu_tensor *t, const struct kd_gpu_source src[3], struct kd_err *err);
    int run(const struct kd_gpu_tensor *t, const struct kd_gpu_source src[3], const uint16_t *z,
            const int32_t *row, int64_t n, float beta, float linear, struct kd_err *err);
};

/* As their names without fast_ (calib.h). */
int64_t fast_mul_bytes(const struct kd_gpu_source *w, int64_t T);
int fast_mul(struct kd_gpu_encoder *e, const struct kd_gpu_source *w, const float *x, int64_t ldx,
             int64_t T, float *y, int64_t ldy, bool *done, struct kd_err *err);
int64_t fast_inner_bytes(const struct kd_gpu_inner *j);
int fast_inner_sums(struct kd_gpu_encoder *e, const struct kd_gpu_inner *j, bool *done,
                    struct kd_err *err);

/* ---- both ---- */

/* BF16 latents on a device of the encoder. */
const uint16_t *latents_at(const struct kd_gpu_latents *l, const struct kd_gpu_tensor *t);

/* An expert's rows, `rows` at a time (`raw`: room for so many latents, unless they are there):
 * add(z, first, T, from, to), routed ones are [from, to) of the list. Then waits. */
template <class ADD>
static inline int each_piece(const struct kd_gpu_tensor *t, const struct kd_gpu_inner *j,
                             int64_t rows, uint16_t *raw, ADD add, struct kd_err *err)
{
    const int64_t latent = j->w1->cols;
    int64_t from = 0;

    for (int64_t first = 0; first < j->T; first += rows) {
        const int64_t T = kd_least64(rows, j->T - first);
        const uint16_t *z = j->latents ? latents_at(j->latents, t) + first * latent : raw;
        int64_t to = from;
        while (j->routed_h && to < j->routed && j->row[to] < first + T)
            to++;
        if ((!j->latents && kd_gpu_tensor_copy(t, raw, j->z + first * latent, 2 * T * latent,
                                               cudaMemcpyHostToDevice, err)) ||
            add(z, first, T, from, to) || started(err))
            return -1;
        from = to;
    }
    return kd_gpu_tensor_settle(t, err);
}

/* What the sums [n][n] came to, unless a row was not finite. */
int take_inner(const struct kd_gpu_tensor *t, const struct kd_gpu_inner *j, int64_t n,
               const float *h, const float *routed_h, const int32_t *bad, bool *good,
               struct kd_err *err);

/* An expert's matrices, its list of routed rows, and empty sums, into the space of its inner
 * Hessian. */
template <class SPACE>
int put_inner(const struct kd_gpu_tensor *t, const struct kd_gpu_inner *j, SPACE *s,
              struct kd_err *err)
{
    const int64_t square = 4 * s->w1.s.n * s->w1.s.n;

    if (s->w1.put(t, j->w1, err) || s->w3.put(t, j->w3, err) ||
        kd_gpu_failed(cudaMemsetAsync(s->h, 0, (size_t)square, t->stream), err, "a Hessian") ||
        kd_gpu_failed(cudaMemsetAsync(s->bad, 0, sizeof *s->bad, t->stream), err, "a Hessian"))
        return -1;
    if (j->routed_h &&
        (kd_gpu_failed(cudaMemsetAsync(s->routed_h, 0, (size_t)square, t->stream), err,
                       "a Hessian") ||
         kd_gpu_tensor_copy(t, s->weight, j->weight, 4 * j->routed, cudaMemcpyHostToDevice, err) ||
         kd_gpu_tensor_copy(t, s->row, j->row, 4 * j->routed, cudaMemcpyHostToDevice, err)))
        return -1;
    return 0;
}

} // namespace kd_calib

#endif
