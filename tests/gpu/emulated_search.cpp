/* The device's trellis search, run on the CPU (tests/gpu/emulate.h), gives the states of the plain
 * search. */
#define KD_GPU_EMULATE
#include "gpu/trellis_search.cuh"

extern "C" {
#include "kern/kern.h"
#include "num/exl3_ring.h"
}

static float gauss(uint64_t *z)
{
    double u[2];
    for (double &x : u) {
        *z ^= *z << 13;
        *z ^= *z >> 7;
        *z ^= *z << 17;
        x = ((double)(*z >> 11) + 0.5) / 9007199254740992.0;
    }
    return (float)(sqrt(-2 * log(u[0])) * cos(6.283185307179586 * u[1]));
}

/* Where only cheap states' costs are kept: what that took. hard: tiles whose ways must have been
 * looked for in costs that were not kept, and some of which must have been searched again. */
static int hold_cheap(const std::vector<uint64_t> &moved, int tiles, int range, bool hard)
{
    uint64_t sum[KD_GPU_KEPT_MOVED] = {};

    for (size_t i = 0; i < moved.size(); i++)
        sum[i % KD_GPU_KEPT_MOVED] += moved[i];
    const uint64_t written = sum[0] + sum[1] + sum[2] + sum[3];
    printf("  costs up to %d over the least kept: %d KB a tile written, %d read, %.1f segments "
           "walked, %d tiles again\n",
           range, (int)(written / (uint64_t)tiles / 32), (int)(sum[4] / (uint64_t)tiles / 32),
           (double)sum[5] / tiles, (int)sum[6]);
    return hard ? sum[5] < 100 * (uint64_t)tiles || sum[6] == 0 || sum[6] == (uint64_t)tiles
                : sum[6] != 0;
}

template <class STEPS, int BASE, bool MASKED, int TILES = 1>
static int hold(unsigned sixteenths, enum kd_codebook cb, int seam, int tiles, int blocks, int loud,
                int range = KD_GPU_KEPT_RANGE[MASKED], bool hard = false)
{
    const struct kd_rate rate = kd_rate_from16(sixteenths);
    const int segment = kd_gpu_search_segment(rate, STEPS::raw, TILES);
    std::vector<float> target((size_t)tiles * 256);
    std::vector<uint16_t> want(target.size()), got(target.size(), 0xffff);
    std::vector<uint8_t> good((size_t)tiles, 2);
    std::vector<uint16_t> kept((size_t)(blocks * TILES * kd_gpu_search_kept(rate, segment)),
                               0xeeee);
    uint64_t z = 88172645463325252ull + sixteenths;

    for (float &x : target)
        x = gauss(&z);
    for (int i = 0; i < loud * 256;
         i++) /* the first has no path, the second one on a coarser grid */
        target[(size_t)i] = i >= 256 ? 3.0f * target[(size_t)i] : i % 2 ? 60.0f : -60.0f;
    std::vector<uint32_t> again((size_t)tiles);
    std::vector<uint64_t> moved((size_t)blocks * KD_GPU_KEPT_MOVED);
    kd_gpu_search_args a = {target.data(), got.data(), good.data(), kept.data(),
                            again.data(),  tiles,      rate,        cb,
                            seam,          segment,    range,       moved.data()};
    const size_t shared = (size_t)kd_gpu_search_shared(rate, TILES, STEPS::pair, STEPS::cheap);
    if (sizeof(kd_trellis::block_shared<(65536 >> BASE), TILES, STEPS::pair>) +
            (STEPS::cheap ? sizeof(kd_trellis::kept_shared) : 0) !=
        shared) {
        printf("shared memory: %zu, not %zu\n",
               sizeof(kd_trellis::block_shared<(65536 >> BASE), TILES, STEPS::pair>), shared);
        return 1;
    }
    kd_emulate(blocks, kd_gpu_search_threads(STEPS::cheap), shared,
               [&] { kd_gpu_search_tiles<STEPS, BASE, MASKED, TILES>(a); });

    void *scratch = aligned_alloc(64, (kd_trellis_scratch_bytes() + 63) / 64 * 64);
    struct kd_kern k;
    if (kd_kern_pick(&k, nullptr))
        return 1;
    k.trellis_search(target.data(), tiles, rate, cb, seam, want.data(), scratch);
    free(scratch);
    int bad = 0;
    for (int t = 0; t < tiles; t++) {
        bad += good[(size_t)t] != (t == 0 && loud ? 0 : 1) ||
               memcmp(&got[256 * (size_t)t], &want[256 * (size_t)t], 512) != 0;
    }
    printf("rate %.4f codebook %d seam %d, %d tiles in segments of %d: %d wrong\n",
           sixteenths / 16.0, (int)cb, seam, tiles, segment, bad);
    if (STEPS::cheap)
        bad += hold_cheap(moved, tiles, range, hard);
    return bad;
}

/* A pair whose costs the threads keep themselves, as where no copy engine does. */
template <int BASE, bool MASKED> struct by_threads : kd_trellis::half_steps<BASE, MASKED, true> {
    static constexpr bool raw = false;
};

int main(void)
{
    using namespace kd_trellis;
    int bad = 0;

    /* Every kind of rate; whole seams and tiles without a path (six grids) are left to a few. */
    bad += hold<half_steps<2, false, false>, 2, false>(32, KD_CB_MUL1, 128, 2, 2, 0);
    bad += hold<cheap_steps<2, false>, 2, false>(32, KD_CB_MUL1, 128, 3, 2, 0);
    bad += hold<cheap_steps<2, false>, 2, false>(32, KD_CB_MUL1, 16, 4, 1, 2);
    bad += hold<cheap_steps<2, false>, 2, false>(32, KD_CB_MCG, 32, 6, 1, 0, 60, true);
    bad += hold<cheap_steps<2, false>, 2, false>(32, KD_CB_3INST, 64, 2, 1, 0, 255);
    bad += hold<cheap_steps<2, true>, 2, true>(37, KD_CB_MUL1, 64, 2, 1, 0);
    bad += hold<cheap_steps<2, true>, 2, true>(40, KD_CB_MUL1, 32, 2, 1, 0);
    bad += hold<cheap_steps<2, true>, 2, true>(47, KD_CB_MCG, 32, 2, 1, 0);
    bad += hold<cheap_steps<2, true>, 2, true>(33, KD_CB_3INST, 8, 2, 1, 0);
    bad += hold<half_steps<2, false, true>, 2, false, 2>(32, KD_CB_MUL1, 16, 3, 1, 2);
    bad += hold<half_steps<2, true, true>, 2, true, 2>(37, KD_CB_MUL1, 64, 2, 1, 0);
    bad += hold<half_steps<3, true, true>, 3, true, 2>(52, KD_CB_MCG, 16, 2, 1, 0);
    bad += hold<by_threads<3, true>, 3, true, 2>(52, KD_CB_MUL1, 16, 2, 1, 0);
    bad += hold<half_steps<2, true, false>, 2, true>(37, KD_CB_MUL1, 128, 1, 1, 0);
    bad += hold<half_steps<1, false, false>, 1, false>(16, KD_CB_3INST, 32, 1, 1, 0);
    bad += hold<half_steps<1, true, false>, 1, true>(24, KD_CB_MUL1, 16, 1, 1, 0);
    bad += hold<half_steps<3, false, true>, 3, false, 2>(48, KD_CB_MCG, 32, 1, 1, 0);
    bad += hold<half_steps<4, false, true>, 4, false, 2>(64, KD_CB_MUL1, 32, 2, 1, 0);
    bad += hold<fine_steps<4, true>, 4, true, 2>(72, KD_CB_MUL1, 8, 1, 1, 0);
    bad += hold<fine_steps<5, false>, 5, false, 2>(80, KD_CB_MUL1, 16, 2, 1, 2);
    bad += hold<fine_steps<6, false>, 6, false, 2>(96, KD_CB_MCG, 32, 1, 1, 0);
    bad += hold<fine_steps<7, false>, 7, false>(112, KD_CB_3INST, 64, 1, 1, 0);
    bad += hold<fine_steps<6, true>, 6, true, 2>(100, KD_CB_MCG, 16, 1, 1, 0);
    bad += hold<fine_steps<7, true>, 7, true, 2>(120, KD_CB_MUL1, 8, 1, 1, 0);
    bad += hold<fine_steps<8, false>, 8, false, 2>(128, KD_CB_MUL1, 8, 1, 1, 0);
    return bad != 0;
}
