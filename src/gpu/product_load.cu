/* Matrices into device memory. */
#include "gpu/product.cuh"
#include "gpu/product_pack.cuh"

namespace
{

using namespace kd_codes;

enum { ALIGN = 256 };

/* What kd_gpu_mat_make fills memory with. */
enum fill { FILL_BITS, FILL_SUH, FILL_SVH, FILL_BF16, FILL_F32, FILL_E8M0 };

__device__ uint32_t mix_bits(uint64_t seed, int64_t at)
{
    uint64_t z = seed + (uint64_t)(at + 1) * 0x9e3779b97f4a7c15ull;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return (uint32_t)(z >> 32);
}

__global__ void __launch_bounds__(256)
    fill_words(uint32_t *to, int64_t words, enum fill what, uint64_t seed)
{
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < words;
         i += (int64_t)gridDim.x * 256) {
        const uint32_t b = mix_bits(seed, i), signs = b & 0x80008000u;
        uint32_t v = b;

        if (what == FILL_SUH) /* halves of 0.017 to 0.034 */
            v = 0x24402440u | signs | (b & 0x003f003fu) << 4;
        else if (what == FILL_SVH) /* 1 to 1.5 */
            v = 0x3c003c00u | signs | (b & 0x01ff01ffu);
        else if (what == FILL_BF16) /* 0.03 to 0.06 */
            v = 0x3d003d00u | signs | (b & 0x007f007fu);
        else if (what == FILL_F32)
            v = 0x3d000000u | (b & 0x807fffffu);
        else if (what == FILL_E8M0) /* 2^-8 to 2^-5 */
            v = 0x77777777u + (b & 0x03030303u);
        to[i] = v;
    }
}

int64_t whole(int64_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

int check(const struct kd_gpu_source *s, struct kd_err *err)
{
    if (s->rows <= 0 || s->cols <= 0 || s->rows > INT32_MAX / 2 || s->cols > INT32_MAX / 2)
        return kd_fail(err, KD_EINVAL, "a matrix of %lld x %lld on a device", (long long)s->rows,
                       (long long)s->cols);
    if (s->type == KD_GPU_MAT_EXL3) {
        const unsigned rate = kd_rate_to16(s->rate);
        if (s->rows_padded != (s->rows + SIDE - 1) / SIDE * SIDE ||
            s->cols_padded != (s->cols + SIDE - 1) / SIDE * SIDE || rate < 16 || rate > 128 ||
            s->rate.mask != kd_rate_mask(rate % 16))
            return kd_fail(err, KD_EINVAL, "an EXL3 matrix of %lld x %lld stored as %lld x %lld",
                           (long long)s->rows, (long long)s->cols, (long long)s->rows_padded,
                           (long long)s->cols_padded);
        return 0;
    }
    if (s->type == KD_GPU_MAT_MXFP4 && s->cols % 32)
        return kd_fail(err, KD_EINVAL, "an MXFP4 matrix with rows of %lld", (long long)s->cols);
    if (s->type == KD_GPU_MAT_BLOCK) {
        if (!s->format || s->format->kind == KD_BLOCK_ANY || s->cols % s->format->elems)
            return kd_fail(err, KD_ENOTSUP, "a matrix of %s with rows of %lld on a device",
                           s->format ? s->format->name : "no format", (long long)s->cols);
        return 0;
    }
    if (s->type != KD_GPU_MAT_F32 && s->type != KD_GPU_MAT_BF16 && s->type != KD_GPU_MAT_MXFP4)
        return kd_fail(err, KD_ENOTSUP, "a matrix of type %d on a device", (int)s->type);
    return 0;
}

int64_t code_bytes(const struct kd_gpu_source *s)
{
    return s->rows_padded * s->cols_padded / 256 * kd_rate_tile_bytes(s->rate);
}

/* The matrix's parts in `memory`. */
void place(struct kd_gpu_mat *m, const struct kd_gpu_source *s, void *memory)
{
    char *at = (char *)memory;

    *m = {};
    m->type = s->type;
    m->rows = s->rows;
    m->cols = s->cols;
    m->data = at;
    m->format = s->format;
    if (s->type == KD_GPU_MAT_EXL3) {
        m->rows_padded = s->rows_padded;
        m->cols_padded = s->cols_padded;
        m->rate = s->rate;
        m->cb = s->cb;
        m->suh = (const uint16_t *)(at + whole(code_bytes(s)));
        m->svh = m->suh + s->cols_padded;
    } else if (s->type == KD_GPU_MAT_MXFP4) {
        m->scale =
            (const uint8_t *)at + whole(s->rows * kd_gpu_row_bytes(s->type, s->cols, s->format));
    }
}

int copy_rows(struct kd_gpu *g, void *to, int64_t to_step, const void *from, int64_t from_step,
              int64_t bytes, int64_t rows, struct kd_err *err)
{
    return kd_gpu_failed(cudaMemcpy2DAsync(to, (size_t)to_step, from, (size_t)from_step,
                                           (size_t)bytes, (size_t)rows, cudaMemcpyHostToDevice,
                                           g->stream),
                         err, "copying a matrix to the device");
}

int load_exl3(struct kd_gpu *g, struct kd_gpu_mat *m, const struct kd_gpu_source *s,
              struct kd_err *err)
{
    const int64_t tile = kd_rate_tile_bytes(s->rate), k = s->cols_padded / 16,
                  n = s->rows_padded / 16;
    const int ins = (int)(s->cols_padded / SIDE), outs = (int)(s->rows_padded / SIDE);
    void *staged = NULL;

    if (kd_gpu_failed(cudaMallocAsync(&staged, (size_t)(k * n * tile), g->stream), err,
                      "device memory for a matrix on its way"))
        return -1;
    const pack_args a = {(const uint8_t *)staged,    n,   (uint32_t *)m->data,
                         (int)kd_rate_to16(s->rate), ins, outs};
    if (copy_rows(g, staged, n * tile, s->data, s->ld * tile, n * tile, k, err) ||
        copy_rows(g, (void *)m->suh, s->cols_padded * 2, s->suh, s->cols_padded * 2,
                  s->cols_padded * 2, 1, err) ||
        copy_rows(g, (void *)m->svh, s->rows_padded * 2, s->svh, s->rows_padded * 2,
                  s->rows_padded * 2, 1, err)) {
        cudaFreeAsync(staged, g->stream);
        return -1;
    }
    pack_codes<<<(unsigned)(((int64_t)ins * outs * UNITS * 32 + 255) / 256), 256, 0, g->stream>>>(
        a);
    const int rc = kd_gpu_failed(cudaGetLastError(), err, "ordering codes on the device");
    cudaFreeAsync(staged, g->stream);
    return rc;
}

int fill_memory(struct kd_gpu *g, const void *to, int64_t bytes, enum fill what, uint64_t seed,
                struct kd_err *err)
{
    fill_words<<<1024, 256, 0, g->stream>>>((uint32_t *)to, bytes / 4, what, seed);
    return kd_gpu_failed(cudaGetLastError(), err, "making a matrix on the device");
}

} // namespace

extern "C" int64_t kd_gpu_mat_bytes(const struct kd_gpu_source *s)
{
    struct kd_err err;

    if (check(s, &err))
        return -1;
    if (s->type == KD_GPU_MAT_EXL3)
        return whole(code_bytes(s)) + whole(2 * (s->rows_padded + s->cols_padded));
    if (s->type == KD_GPU_MAT_MXFP4)
        return whole(s->rows * kd_gpu_row_bytes(s->type, s->cols, s->format)) +
               whole(s->rows * kd_gpu_scale_bytes(s->cols));
    return whole(s->rows * kd_gpu_row_bytes(s->type, s->cols, s->format));
}

extern "C" int kd_gpu_mat_load(struct kd_gpu *g, struct kd_gpu_mat *m,
                               const struct kd_gpu_source *s, void *memory, struct kd_err *err)
{
    if (check(s, err) || kd_gpu_failed(cudaSetDevice(g->index), err, "choosing the device"))
        return -1;
    place(m, s, memory);
    if (s->type == KD_GPU_MAT_EXL3)
        return load_exl3(g, m, s, err);
    const int64_t bytes = kd_gpu_stored_bytes(s->type, s->cols, s->format);
    const int64_t step = s->type == KD_GPU_MAT_F32    ? s->ld * 4
                         : s->type == KD_GPU_MAT_BF16 ? s->ld * 2
                                                      : s->ld;
    if (copy_rows(g, memory, kd_gpu_row_bytes(s->type, s->cols, s->format), s->data, step, bytes,
                  s->rows, err))
        return -1;
    if (s->type == KD_GPU_MAT_MXFP4)
        return copy_rows(g, (void *)m->scale, kd_gpu_scale_bytes(s->cols), s->scale, s->ld_scale,
                         s->cols / 32, s->rows, err);
    return 0;
}

extern "C" int kd_gpu_mat_make(struct kd_gpu *g, struct kd_gpu_mat *m,
                               const struct kd_gpu_source *s, uint64_t seed, void *memory,
                               struct kd_err *err)
{
    if (check(s, err) || kd_gpu_failed(cudaSetDevice(g->index), err, "choosing the device"))
        return -1;
    place(m, s, memory);
    switch (s->type) {
    case KD_GPU_MAT_BLOCK: /* halves among random bytes may be anything */
        return kd_fail(err, KD_ENOTSUP, "blocks made on a device");
    case KD_GPU_MAT_EXL3:
        return fill_memory(g, m->data, code_bytes(s), FILL_BITS, seed, err) ||
                       fill_memory(g, m->suh, 2 * s->cols_padded, FILL_SUH, seed + 1, err) ||
                       fill_memory(g, m->svh, 2 * s->rows_padded, FILL_SVH, seed + 2, err)
                   ? -1
                   : 0;
    case KD_GPU_MAT_MXFP4:
        return fill_memory(g, m->data, s->rows * kd_gpu_row_bytes(s->type, s->cols, s->format),
                           FILL_BITS, seed, err) ||
                       fill_memory(g, m->scale, s->rows * kd_gpu_scale_bytes(s->cols), FILL_E8M0,
                                   seed + 1, err)
                   ? -1
                   : 0;
    default:
        return fill_memory(g, m->data, s->rows * kd_gpu_row_bytes(s->type, s->cols, s->format),
                           s->type == KD_GPU_MAT_F32 ? FILL_F32 : FILL_BF16, seed, err);
    }
}
