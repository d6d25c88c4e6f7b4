/* src/num on a device: every conversion, codebook value and rate gives the bits it gives on the
 * host, and so does a DOT16 written with fmaf. Without a device: 77, a skip. */
#include "num/half.h"
#include "num/mxfp4_block.h"
#include "num/trellis_step.h"

#include <cstdio>
#include <vector>

enum { STATES = 65536, DOT_COUNT = 1000, ROW_COLS = 4096 };

/* What one index i in 0..65535 yields; host and device run this same function. */
struct values {
    uint16_t codebook[3], f16_round, bf16_round, tile_bytes;
    uint32_t f16, bf16, fp4, position;
};

/* Which NaN a product yields is the machine's choice. */
KD_HD static uint32_t pattern(float x)
{
    return x == x ? kd_f32_bits(x) : 0x7fc00000u;
}

KD_HD static struct values values_at(uint32_t i)
{
    struct values v;
    for (int cb = 0; cb < 3; cb++)
        v.codebook[cb] = kd_codebook_f16((enum kd_codebook)cb, i);
    /* Patterns of every exponent, with low bits that make ties and near-ties. */
    uint32_t bits = (i << 16) | ((i * 2654435761u) >> 16 & 0x9fffu);
    v.f16_round = kd_f32_f16(kd_bits_f32(bits));
    v.bf16_round = kd_f32_bf16(kd_bits_f32(bits));
    v.f16 = kd_f32_bits(kd_f16_f32((uint16_t)i));
    v.bf16 = kd_f32_bits(kd_bf16_f32((uint16_t)i));
    uint8_t packed = (uint8_t)i, scale = (uint8_t)(i >> 8);
    v.fp4 =
        pattern(kd_mxfp4_f32(&packed, &scale, 0)) ^ pattern(kd_mxfp4_f32(&packed, &scale, 1)) * 31u;
    v.tile_bytes = (uint16_t)kd_rate_tile_bytes(kd_rate_from16(16 + i % 113));
    v.position = kd_tile_row(i & 255u) * 16 + kd_tile_col(i & 255u);
    return v;
}

/* DOT16 of docs/numerics.md. */
KD_HD static float dot16(const float *x, const float *y, int count)
{
    float lane[16] = {0};
    for (int i = 0; i < count; i++)
        lane[i % 16] = fmaf(x[i], y[i], lane[i % 16]);
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

__global__ void values_all(struct values *out)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < STATES)
        out[i] = values_at(i);
}

__global__ void dot_all(const float *x, float *out)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < DOT_COUNT)
        out[i] = dot16(x + i, x + ROW_COLS - i, ROW_COLS - 7 * i % 50);
}

static int check(cudaError_t rc, const char *what)
{
    if (rc != cudaSuccess)
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(rc));
    return rc != cudaSuccess;
}

static int differ(const char *what, const void *a, const void *b, size_t size, size_t count)
{
    size_t bad = 0;
    for (size_t i = 0; i < count; i++)
        bad += memcmp((const char *)a + i * size, (const char *)b + i * size, size) != 0;
    printf("%s: %zu of %zu differ\n", what, bad, count);
    return bad != 0;
}

int main(void)
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices) {
        printf("no device: skipped\n");
        return 77;
    }
    std::vector<struct values> want(STATES), got(STATES);
    std::vector<float> x(2 * ROW_COLS + DOT_COUNT), want_dot(DOT_COUNT), got_dot(DOT_COUNT);
    memset((void *)want.data(), 0, STATES * sizeof(struct values));
    for (uint32_t i = 0; i < STATES; i++)
        want[i] = values_at(i);
    for (size_t i = 0; i < x.size(); i++)
        x[i] = (float)((uint32_t)i * 2654435761u >> 8) * 1.1920929e-7f - 1.0f;
    for (int i = 0; i < DOT_COUNT; i++)
        want_dot[i] = dot16(&x[i], &x[ROW_COLS - i], ROW_COLS - 7 * i % 50);

    struct values *v;
    float *dx, *dy;
    if (check(cudaMalloc((void **)&v, STATES * sizeof *v), "malloc") ||
        check(cudaMalloc((void **)&dx, x.size() * sizeof *dx), "malloc") ||
        check(cudaMalloc((void **)&dy, DOT_COUNT * sizeof *dy), "malloc") ||
        check(cudaMemset(v, 0, STATES * sizeof *v), "memset") ||
        check(cudaMemcpy(dx, x.data(), x.size() * sizeof *dx, cudaMemcpyHostToDevice), "copy"))
        return 1;
    values_all<<<STATES / 256, 256>>>(v);
    dot_all<<<(DOT_COUNT + 127) / 128, 128>>>(dx, dy);
    if (check(cudaGetLastError(), "launch") ||
        check(cudaMemcpy(got.data(), v, STATES * sizeof *v, cudaMemcpyDeviceToHost), "values") ||
        check(cudaMemcpy(got_dot.data(), dy, DOT_COUNT * sizeof *dy, cudaMemcpyDeviceToHost),
              "dots"))
        return 1;
    int bad = differ("values", want.data(), got.data(), sizeof(struct values), STATES);
    bad |= differ("dot16", want_dot.data(), got_dot.data(), sizeof(float), DOT_COUNT);
    return bad;
}
