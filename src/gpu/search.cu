/* The host's side of the trellis search. */
#include "gpu/search.cuh"
#include "gpu/trellis_search.cuh"

#include <algorithm>
#include <set>
#include <vector>

namespace
{

typedef void (*search_kernel)(kd_gpu_search_args);

/* A kernel with its needs. */
struct search_form {
    search_kernel kernel;
    int tiles; /* side by side */
    bool pair, cheap;
    int64_t shared;
};

template <class STEPS, int BASE, bool MASKED, int TILES> search_form form_of(struct kd_rate r)
{
    return {kd_gpu_search_tiles<STEPS, BASE, MASKED, TILES>, TILES, STEPS::pair, STEPS::cheap,
            kd_gpu_search_shared(r, TILES, STEPS::pair, STEPS::cheap)};
}
template <int BASE, bool PAIR> search_form half_form(struct kd_rate r)
{
    using namespace kd_trellis;
    return r.mask             ? form_of < half_steps<BASE, true, PAIR>, BASE, true,
           PAIR ? 2 : 1 > (r) : form_of < half_steps<BASE, false, PAIR>, BASE, false,
           PAIR ? 2 : 1 > (r);
}
template <int BASE> search_form fine_form(struct kd_rate r)
{
    using namespace kd_trellis;
    return r.mask ? form_of<fine_steps<BASE, true>, BASE, true, 2>(r)
                  : form_of<fine_steps<BASE, false>, BASE, false, 2>(r);
}

search_form cheap_form(struct kd_rate r)
{
    using namespace kd_trellis;
    return r.mask ? form_of<cheap_steps<2, true>, 2, true, 1>(r)
                  : form_of<cheap_steps<2, false>, 2, false, 1>(r);
}

/* Two tiles side by side where their costs fit: never at 1 bit, at 2 on some devices. The others
 * have little bandwidth, too; but a block that keeps cheap states' costs alone needs more registers
 * than there are where its warps cannot hand them on. */
search_form form_for(struct kd_rate r, const struct kd_gpu_facts *f,
                     enum kd_gpu_search_way way = KD_SEARCH_BY_DEVICE)
{
    using namespace kd_trellis;
    const bool fits = kd_gpu_search_shared(r, 2, true, false) <= f->block_shared_bytes;

    switch (r.base) {
    case 1:
        return half_form<1, false>(r);
    case 2:
        if (way == KD_SEARCH_BY_DEVICE)
            way = fits ? way : f->major >= 9 ? KD_SEARCH_CHEAP : KD_SEARCH_ONE;
        return way == KD_SEARCH_CHEAP ? cheap_form(r)
               : way == KD_SEARCH_ONE ? half_form<2, false>(r)
                                      : half_form<2, true>(r);
    case 3:
        return half_form<3, true>(r);
    case 4:
        return r.mask ? form_of<fine_steps<4, true>, 4, true, 2>(r)
                      : form_of<half_steps<4, false, true>, 4, false, 2>(r);
    case 5:
        return fine_form<5>(r);
    case 6:
        return fine_form<6>(r);
    case 7:
        return fine_form<7>(r);
    default:
        return form_of<fine_steps<8, false>, 8, false, 2>(r);
    }
}

} // namespace

/* What searches need besides their tiles, kept from one to the next. */
struct kd_gpu_search_scratch {
    uint16_t *kept;
    uint32_t *again;
    uint8_t *good;
    uint64_t *moved;
    int64_t kept_bytes, tiles; /* room */
    cudaEvent_t done;          /* of the last search */
};

namespace
{

int64_t moved_bytes(int blocks)
{
    return (int64_t)blocks * KD_GPU_KEPT_MOVED * (int64_t)sizeof(uint64_t);
}

int scratch_of(struct kd_gpu *g, struct kd_gpu_search_scratch **out, struct kd_err *err)
{
    struct kd_gpu_search_scratch *m = g->search;

    if (!m) {
        if (kd_mem_zero(&m, 1, sizeof *m, "a device", err))
            return -1;
        g->search = m;
        if (kd_gpu_failed(cudaEventCreateWithFlags(&m->done, cudaEventDisableTiming), err,
                          "an event") ||
            kd_gpu_failed(cudaMalloc(&m->moved, (size_t)moved_bytes(g->facts.sms)), err,
                          "device memory for counts"))
            return -1;
    }
    *out = m;
    return 0;
}

int grow(struct kd_gpu_search_scratch *m, int64_t kept_bytes, int64_t tiles, struct kd_err *err)
{
    if (kept_bytes > m->kept_bytes) {
        cudaFree(m->kept);
        m->kept = nullptr;
        m->kept_bytes = 0;
        if (kd_gpu_failed(cudaMalloc(&m->kept, (size_t)kept_bytes), err,
                          "device memory for kept costs"))
            return -1;
        m->kept_bytes = kept_bytes;
    }
    if (tiles > m->tiles) {
        cudaFree(m->again);
        cudaFree(m->good);
        m->again = nullptr;
        m->good = nullptr;
        m->tiles = 0;
        if (kd_gpu_failed(cudaMalloc(&m->again, (size_t)tiles * 4), err,
                          "device memory for tiles") ||
            kd_gpu_failed(cudaMalloc(&m->good, (size_t)tiles), err, "device memory for tiles"))
            return -1;
        m->tiles = tiles;
    }
    return 0;
}

/* Where KD_COPY_OUT holds, the copy engine keeps a pair's costs. */
bool is_raw(const struct kd_gpu_facts *f, const search_form &form)
{
    return form.pair && f->major >= 9 && f->major < 12;
}
int segment_of(const struct kd_gpu_facts *f, const search_form &form, struct kd_rate r)
{
    return kd_gpu_search_segment(r, is_raw(f, form), form.tiles);
}

/* Device memory where so many blocks keep costs. */
int64_t kept_bytes(const struct kd_gpu_facts *f, const search_form &form, struct kd_rate r,
                   int blocks)
{
    return blocks * form.tiles * kd_gpu_search_kept(r, segment_of(f, form, r)) *
           (int64_t)sizeof(uint16_t);
}

enum { TILE_BYTES = sizeof(uint32_t) + sizeof(uint8_t) }; /* again, good */

int blocks_of(const struct kd_gpu *g, int asked, int64_t tiles)
{
    const int most = asked > 0 && asked < g->facts.sms ? asked : g->facts.sms;
    return tiles < most ? (int)tiles : most;
}

} // namespace

bool kd_gpu_search_fits(const struct kd_gpu_facts *f, struct kd_rate rate)
{
    return form_for(rate, f).shared <= f->block_shared_bytes;
}

int64_t kd_gpu_search_room(const struct kd_gpu_facts *f, int64_t tiles)
{
    int64_t most = 0;

    for (unsigned sixteenths = 16; sixteenths <= 128; sixteenths++) {
        const struct kd_rate r = kd_rate_from16(sixteenths);
        const search_form form = form_for(r, f);
        if (form.shared <= f->block_shared_bytes)
            most = std::max(most, kept_bytes(f, form, r, f->sms));
    }
    return most + moved_bytes(f->sms) + tiles * TILE_BYTES;
}

void kd_gpu_search_close(struct kd_gpu *g)
{
    struct kd_gpu_search_scratch *m = g->search;

    if (!m)
        return;
    cudaFree(m->kept);
    cudaFree(m->again);
    cudaFree(m->good);
    cudaFree(m->moved);
    if (m->done)
        cudaEventDestroy(m->done);
    kd_mem_free(m);
    g->search = nullptr;
}

static int launch(struct kd_gpu *g, cudaStream_t stream, const search_form &form,
                  struct kd_rate rate, enum kd_codebook codebook, int seam, int blocks,
                  const float *target, uint16_t *states, int64_t tiles, struct kd_err *err)
{
    const int segment = segment_of(&g->facts, form, rate);
    const int grid = blocks_of(g, blocks, tiles);
    struct kd_gpu_search_scratch *m;

    if (tiles <= 0)
        return 0;
    if (tiles > UINT32_MAX)
        return kd_fail(err, KD_EINVAL, "%lld tiles in one search", (long long)tiles);
    if (seam < 8 || seam > 128 || seam % 8)
        return kd_fail(err, KD_EINVAL, "a seam of %d positions: 8 to 128 by eights", seam);
    if (form.shared > g->facts.block_shared_bytes)
        return kd_fail(err, KD_EGPU,
                       "%s: %lld bytes of shared memory a block, this rate needs %lld; use the CPU",
                       g->facts.name, (long long)g->facts.block_shared_bytes,
                       (long long)form.shared);
    if (scratch_of(g, &m, err) || grow(m, kept_bytes(&g->facts, form, rate, grid), tiles, err))
        return -1;
    const kd_gpu_search_args a = {target,
                                  states,
                                  m->good,
                                  m->kept,
                                  m->again,
                                  tiles,
                                  rate,
                                  codebook,
                                  seam,
                                  segment,
                                  KD_GPU_KEPT_RANGE[rate.mask != 0],
                                  m->moved};
    if (kd_gpu_failed(cudaFuncSetAttribute((const void *)form.kernel,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           (int)form.shared),
                      err, "shared memory for the search") ||
        kd_gpu_failed(cudaStreamWaitEvent(stream, m->done, 0), err, "the search before"))
        return -1;
    form.kernel<<<grid, kd_gpu_search_threads(form.cheap), (size_t)form.shared, stream>>>(a);
    return kd_gpu_failed(cudaGetLastError(), err, "starting the search") ||
                   kd_gpu_failed(cudaEventRecord(m->done, stream), err, "an event")
               ? -1
               : 0;
}

int kd_gpu_search_launch(struct kd_gpu *g, cudaStream_t stream, struct kd_rate rate,
                         enum kd_codebook codebook, int seam, int blocks, const float *target,
                         uint16_t *states, int64_t tiles, struct kd_err *err)
{
    return launch(g, stream, form_for(rate, &g->facts), rate, codebook, seam, blocks, target,
                  states, tiles, err);
}

enum { SECTOR = 32 }; /* bytes that the memory moves at a time */

/* Bytes that one tile writes where all costs are kept, and reads: sectors with a state that leads
 * to the known end of a segment. */
static void whole_bytes(const struct kd_gpu_tiles *job, int segment, bool raw, int64_t *written,
                        int64_t *read)
{
    using namespace kd_trellis;
    const struct kd_rate r = job->rate;
    const int64_t columns = (65536 >> r.base) / KEPT_ROWS;

    *written = *read = 0;
    for (int end : {job->seam, 256}) {
        const int begin = end == 256 && job->seam < 256 ? segment : 0;
        for (int last = end, first; last > begin; last = first) {
            first = std::max(last - segment, begin);
            const unsigned in = kd_rate_bits_at(r, (unsigned)first);
            unsigned bits = in;
            for (int p = first; p < last; p++)
                bits += kd_rate_bits_at(r, (unsigned)p + 1);
            std::set<int64_t> seen;
            for (int y = 0; y < 1 << (bits - in); y++) {
                const int e = y << (16 - bits);
                const int64_t at = raw ? 2 * edge_costs<16384, true>::place(e)
                                       : e % KEPT_ROWS * columns + e / KEPT_ROWS;
                seen.insert(at * (int64_t)sizeof(uint16_t) / SECTOR);
            }
            *written += (65536 >> in) * (int64_t)sizeof(uint16_t);
            *read += SECTOR * (int64_t)seen.size();
        }
    }
}

/* What one tile of a search wrote and read; of the last one, whose counts are still there. */
static int moved_of(struct kd_gpu *g, const search_form &form, const struct kd_gpu_tiles *job,
                    struct kd_gpu_tile_figures *f, struct kd_err *err)
{
    int64_t written, read;

    whole_bytes(job, segment_of(&g->facts, form, job->rate), is_raw(&g->facts, form), &written,
                &read);
    f->cheap = form.cheap;
    f->tile_written_bytes = written;
    f->tile_read_bytes = read;
    f->tile_walks = 0;
    f->again = 0;
    if (!form.cheap)
        return 0;
    std::vector<uint64_t> moved((size_t)f->blocks * KD_GPU_KEPT_MOVED);
    if (kd_gpu_failed(
            cudaMemcpy(moved.data(), g->search->moved, moved.size() * 8, cudaMemcpyDeviceToHost),
            err, "copying counts"))
        return -1;
    int64_t sum[KD_GPU_KEPT_MOVED] = {};
    for (size_t i = 0; i < moved.size(); i++)
        sum[i % KD_GPU_KEPT_MOVED] += (int64_t)moved[i];
    f->again = sum[6];
    f->tile_walks = (double)sum[5] / (double)job->tiles;
    /* Of those that were searched again, all costs once more. */
    f->tile_written_bytes =
        (SECTOR * (sum[0] + sum[1] + sum[2] + sum[3]) + f->again * written) / job->tiles;
    f->tile_read_bytes = (SECTOR * sum[4] + f->again * read) / job->tiles;
    return 0;
}

extern "C" int kd_gpu_search(struct kd_gpu *g, const struct kd_gpu_tiles *job,
                             struct kd_gpu_tile_figures *figures, struct kd_err *err)
{
    const search_form form = form_for(job->rate, &g->facts, job->way);
    kd_gpu_bytes target, states;
    float ms = 0;

    if (job->tiles <= 0)
        return 0;
    if (kd_gpu_failed(cudaSetDevice(g->index), err, "choosing the device") ||
        target.get(job->tiles * 1024, err, "device memory for tiles") ||
        states.get(job->tiles * 512, err, "device memory for states") ||
        kd_gpu_failed(cudaMemcpyAsync(target.at, job->target, (size_t)job->tiles * 1024,
                                      cudaMemcpyHostToDevice, g->stream),
                      err, "copying tiles") ||
        kd_gpu_failed(cudaEventRecord(g->begin, g->stream), err, "an event") ||
        launch(g, g->stream, form, job->rate, job->codebook, job->seam, job->blocks,
               (const float *)target.at, (uint16_t *)states.at, job->tiles, err) ||
        kd_gpu_failed(cudaEventRecord(g->end, g->stream), err, "an event") ||
        kd_gpu_failed(cudaMemcpyAsync(job->states, states.at, (size_t)job->tiles * 512,
                                      cudaMemcpyDeviceToHost, g->stream),
                      err, "copying states") ||
        kd_gpu_failed(cudaStreamSynchronize(g->stream), err, "the search") ||
        kd_gpu_failed(cudaEventElapsedTime(&ms, g->begin, g->end), err, "an event"))
        return -1;
    if (figures) {
        figures->seconds = ms * 1e-3;
        figures->blocks = blocks_of(g, job->blocks, job->tiles);
        figures->shared_bytes = form.shared;
        return moved_of(g, form, job, figures, err);
    }
    return 0;
}
