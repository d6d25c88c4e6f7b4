/* The trellis search on a device against the one of this machine's CPU, and its speed. Without a
 * device: 77, a skip.
 *
 *     gpu_search_device [TILES [RATE[,SEAM[,BLOCKS[,WAY]]]]...]
 *
 * The tiles that are timed (1,056 and more fill a device), the rates that are wanted instead of
 * all: bits, positions on either side of the seam, multiprocessors, at 2 bits and more which way
 * (1: one tile at a time, 2: and the costs of cheap states alone are kept). */
extern "C" {
#include "gpu/gpu.h"
#include "kern/kern.h"
}

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

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

struct run {
    unsigned sixteenths;
    enum kd_codebook codebook;
    int seam;
};

/* `tiles` tiles for the time, `held` of them against the CPU. */
static int run_one(struct kd_gpu *g, const struct kd_kern *k, struct run r, int64_t tiles,
                   int64_t held, int blocks, enum kd_gpu_search_way way = KD_SEARCH_BY_DEVICE)
{
    const struct kd_rate rate = kd_rate_from16(r.sixteenths);
    std::vector<float> target((size_t)tiles * 256);
    std::vector<uint16_t> got(target.size()), want((size_t)held * 256);
    struct kd_gpu_tile_figures f;
    struct kd_err err;
    uint64_t z = 88172645463325252ull + r.sixteenths;
    double square = 0, best = 0;
    int64_t bad = 0;

    for (float &x : target)
        x = gauss(&z);
    struct kd_gpu_tiles job = {target.data(), tiles,  rate,       r.codebook,
                               r.seam,        blocks, got.data(), way};
    for (int i = 0; i < 3; i++) {
        if (kd_gpu_search(g, &job, &f, &err)) {
            fprintf(stderr, "%s\n", err.msg);
            return 1;
        }
        best = (double)tiles / f.seconds > best ? (double)tiles / f.seconds : best;
    }
    if (held) {
        void *scratch = aligned_alloc(64, (kd_trellis_scratch_bytes() + 63) / 64 * 64);
        k->trellis_search(target.data(), held, rate, r.codebook, r.seam, want.data(), scratch);
        free(scratch);
    }
    for (int64_t t = 0; t < tiles; t++) {
        uint16_t *s = &got[256 * (size_t)t];
        bad += t < held && memcmp(s, &want[256 * (size_t)t], 512) != 0;
        for (int i = 0; i < 256; i++) {
            double d = kd_f16_f32(kd_codebook_f16(r.codebook, s[i])) - target[256 * (size_t)t + i];
            square += d * d;
        }
    }
    printf("rate %.4f codebook %d seam %3d: %7.0f tiles/s on %3d blocks, %.1f KB a tile written, "
           "%.1f read, %lld KB shared, MSE %.6f, %lld of %lld wrong\n",
           r.sixteenths / 16.0, (int)r.codebook, r.seam, best, f.blocks,
           (double)f.tile_written_bytes / 1024, (double)f.tile_read_bytes / 1024,
           (long long)f.shared_bytes / 1024, square / (256.0 * (double)tiles), (long long)bad,
           (long long)held);
    if (f.cheap)
        printf("    cheap states' costs alone: %.1f segments walked a tile, %lld tiles again\n",
               f.tile_walks, (long long)f.again);
    return bad != 0;
}

/* Rates by name. */
static int run_named(struct kd_gpu *g, const struct kd_kern *k, char **name, int names,
                     int64_t tiles)
{
    int bad = 0;

    for (int i = 0; i < names; i++) {
        double bits = 0;
        int seam = 128, blocks = 0, way = 0;
        if (sscanf(name[i], "%lf,%d,%d,%d", &bits, &seam, &blocks, &way) < 1 || bits < 1 ||
            bits > 8 || way < 0 || way > KD_SEARCH_CHEAP) {
            fprintf(stderr, "%s: no rate\n", name[i]);
            return 1;
        }
        bad |= run_one(g, k, {(unsigned)(16 * bits), KD_CB_MUL1, seam}, tiles, 64, blocks,
                       (enum kd_gpu_search_way)way);
    }
    kd_gpu_close(g);
    return bad;
}

int main(int argc, char **argv)
{
    static const struct run runs[] = {
        {32, KD_CB_MUL1, 128},  {32, KD_CB_MUL1, 64},   {33, KD_CB_MUL1, 128},
        {37, KD_CB_MUL1, 128},  {16, KD_CB_MUL1, 128},  {24, KD_CB_MUL1, 128},
        {48, KD_CB_MUL1, 128},  {48, KD_CB_MCG, 128},   {52, KD_CB_MUL1, 128},
        {64, KD_CB_MUL1, 128},  {64, KD_CB_3INST, 128}, {72, KD_CB_MUL1, 128},
        {80, KD_CB_MUL1, 128},  {96, KD_CB_MUL1, 128},  {112, KD_CB_MUL1, 128},
        {128, KD_CB_MUL1, 128},
    };
    const int64_t tiles = argc > 1 ? atoll(argv[1]) : 2112;
    struct kd_gpu *g;
    struct kd_kern k;
    struct kd_err err;
    int bad = 0;

    if (!kd_gpu_count()) {
        printf("no device: skipped\n");
        return 77;
    }
    if (kd_kern_pick(&k, &err) || kd_gpu_open(&g, 0, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    printf("%s, %d multiprocessors, %d.%d\n", kd_gpu_facts(g)->name, kd_gpu_facts(g)->sms,
           kd_gpu_facts(g)->major, kd_gpu_facts(g)->minor);
    if (argc > 2)
        return run_named(g, &k, argv + 2, argc - 2, tiles);
    for (const struct run &r : runs)
        bad |= run_one(g, &k, r, tiles, 64, 0);
    /* As a small device would run it. */
    bad |= run_one(g, &k, runs[0], tiles, 0, 48);
    bad |= run_one(g, &k, runs[3], tiles, 0, 48);
    for (const struct run &r : {runs[0], runs[1], runs[3]})
        for (int blocks : {0, 48}) {
            bad |= run_one(g, &k, r, tiles, 64, blocks, KD_SEARCH_ONE);
            bad |= run_one(g, &k, r, tiles, tiles < 2112 ? tiles : 2112, blocks, KD_SEARCH_CHEAP);
        }
    bad |= run_one(g, &k, {32, KD_CB_3INST, 128}, tiles, 256, 0, KD_SEARCH_CHEAP);
    bad |= run_one(g, &k, {46, KD_CB_MCG, 32}, tiles, 256, 0, KD_SEARCH_CHEAP);
    kd_gpu_close(g);
    return bad;
}
