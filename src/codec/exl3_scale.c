/* The one factor between unit-variance rotated weights and the codebook (EXL3 4.7, Decision 7). */
#include "codec/exl3_work.h"

#include "base/mem.h"

#include <string.h>

enum { POINTS_MAX = 10, SMALL_TILES = 1024, SMALL_SAMPLES = 16, SMALL_SHARE = 8, FEW = 8 };

/* Of mul1 on N(0,1), K = 1..8 (5.2). */
static const double scale_of_k[8] = {1.12, 1.00, 0.96, 0.92, 0.88, 0.88, 0.84, 0.80};
/* Feedback widens the targets a little: by so much at K = 1, 1.5, 2, 2.5, 3, 3.5 (4.7). */
static const double drift_of_k[] = {1.08, 1.035, 1.018, 1.009, 1.004, 1.0};
static const double SCALE_MIN = 0.01;
static const double other_books = 1.24371088; /* standard deviation of 3INST and MCG */

double kd_exl3_unit_scale(struct kd_rate rate, enum kd_codebook cb)
{
    unsigned n = kd_rate_to16(rate), k = n / 16;
    double low = scale_of_k[k - 1], high = scale_of_k[k < 8 ? k : 7];
    return (low + (high - low) * (double)(n % 16) / 16.0) * (cb == KD_CB_MUL1 ? 1.0 : other_books);
}

double kd_exl3_drift(struct kd_rate rate)
{
    unsigned n = kd_rate_to16(rate) - 16, at = n / 8;
    if (at >= 5)
        return 1.0;
    return drift_of_k[at] + (drift_of_k[at + 1] - drift_of_k[at]) * (double)(n % 8) / 8.0;
}

/* The sample's tiles are searched in groups of KD_EXL3_GROUP, whose errors are added in their
 * order.
 */
struct scale_job {
    const struct kd_exl3_work *q;
    const float *samples;  /* tiles in ring order */
    int64_t tiles, stride; /* every stride-th of them */
    int64_t groups;
    double scale[POINTS_MAX];
    int64_t have[POINTS_MAX]; /* groups that are in error[], from the first on */
    double error[POINTS_MAX]; /* sums of squares, in units of the samples */
    int32_t *item;            /* of one search: point * groups + group, */
    double *part;             /* and its error */
};

static void scale_item(void *ctx, int64_t at, int worker)
{
    const struct scale_job *j = ctx;
    const struct kd_exl3_work *q = j->q;
    int64_t item = j->item[at], first = item % j->groups * KD_EXL3_GROUP, used = 0;
    double scale = j->scale[item / j->groups], sum = 0.0;
    float *target = q->targets + (int64_t)worker * KD_EXL3_GROUP * KD_TILE_WEIGHTS;
    uint16_t *states = q->states + (int64_t)worker * KD_EXL3_GROUP * KD_TILE_WEIGHTS;
    for (; used < KD_EXL3_GROUP && (first + used) * j->stride < j->tiles; used++)
        for (int64_t p = 0; p < KD_TILE_WEIGHTS; p++)
            target[used * KD_TILE_WEIGHTS + p] =
                (float)((double)j->samples[(first + used) * j->stride * KD_TILE_WEIGHTS + p] *
                        scale);
    kd_exl3_search(q, worker, target, used, states);
    for (int64_t p = 0; p < used * KD_TILE_WEIGHTS; p++) {
        double d = (double)kd_f16_f32(kd_codebook_f16(q->spec->cb, states[p])) - (double)target[p];
        sum += d * d / (scale * scale);
    }
    j->part[at] = sum;
}

/* error[] of each point over its first want[] groups, of which it has some. */
static int extend(struct scale_job *j, int points, const int64_t want[POINTS_MAX],
                  struct kd_err *err)
{
    int64_t items = 0, at = 0;
    for (int i = 0; i < points; i++)
        for (int64_t g = j->have[i]; g < want[i]; g++)
            j->item[items++] = (int32_t)(i * j->groups + g);
    if (j->q->device) {
        struct kd_gpu_scale s = {.stride = j->stride,
                                 .points = points,
                                 .scale = j->scale,
                                 .items = items,
                                 .item = j->item,
                                 .sum = j->part};
        if (kd_gpu_tensor_scale(j->q->device, &s, err))
            return -1;
    } else {
        kd_pool_run(j->q->run->pool, items, scale_item, j);
    }
    for (int i = 0; i < points; i++)
        for (; j->have[i] < want[i]; j->have[i]++)
            j->error[i] += j->part[at++];
    return 0;
}

/* Points without an error yet, of every stride-th tile of the sample. */
static void begin_points(struct scale_job *j, int64_t stride, double centre, double step,
                         int points)
{
    int64_t tiles = (j->tiles + stride - 1) / stride;
    j->stride = stride;
    j->groups = (tiles + KD_EXL3_GROUP - 1) / KD_EXL3_GROUP;
    int middle = points / 2;
    for (int i = 0; i < points; i++) {
        double s = centre + step * (double)(i - middle);
        j->scale[i] = s < SCALE_MIN ? SCALE_MIN : s;
        j->have[i] = 0;
        j->error[i] = 0.0;
    }
}

/* So many groups that a point's error, by what it is so far, is over `limit` by a sixteenth. */
static int64_t enough(const struct scale_job *j, int i, double limit)
{
    double more = (double)j->have[i] * 1.0625 * limit / j->error[i] + 1.0;
    return more < (double)j->groups ? (int64_t)more : j->groups;
}

/* The point with the least error, the first among equals: its error and its neighbours' are over
 * all groups. Others are left once they have more over some groups than it has over all, which
 * further groups cannot take back. Points first to last are taken whole from the start. */
static int least_of(struct scale_job *j, int points, int first, int last, int *least,
                    struct kd_err *err)
{
    int64_t want[POINTS_MAX];
    for (int i = 0; i < points; i++)
        want[i] = i < first || i > last ? (j->groups + FEW - 1) / FEW : j->groups;
    for (bool more = true; more;) {
        int at = -1;
        if (extend(j, points, want, err))
            return -1;
        more = false;
        for (int i = 0; i < points; i++)
            if (j->have[i] == j->groups && (at < 0 || j->error[i] < j->error[at]))
                at = i;
        for (int i = 0; i < points; i++) {
            if (i == at - 1 || i == at + 1)
                want[i] = j->groups;
            else if (j->have[i] < j->groups && j->error[i] <= j->error[at])
                want[i] = enough(j, i, j->error[at]);
            more |= want[i] > j->have[i];
        }
        *least = at;
    }
    return 0;
}

/* Where the parabola through three points has its minimum, in steps from the middle one. */
static double parabola(const double mse[3], double limit)
{
    double bend = mse[0] - 2.0 * mse[1] + mse[2];
    double offset = bend > 0.0 ? 0.5 * (mse[0] - mse[2]) / bend : 0.0;
    return offset < -limit ? -limit : offset > limit ? limit : offset;
}

/* Points around `centre`, then the parabola through the best of them and its neighbours. Points
 * first to last are the likely ones. */
static int best_of(struct scale_job *j, int points, int first, int last, double step, double *best,
                   struct kd_err *err)
{
    int at;
    if (least_of(j, points, first, last, &at, err))
        return -1;
    *best = j->scale[at];
    if (at > 0 && at + 1 < points)
        *best += step * parabola(j->error + at - 1, 0.5);
    if (*best < SCALE_MIN)
        *best = SCALE_MIN;
    return 0;
}

/* The whole range, then around the best of it. `likely`: where the best is expected. */
static int full_best(struct scale_job *j, double likely, double *best, struct kd_err *err)
{
    /* 0.1 to 1.9 in units of 4.7, whose rows have the standard deviation of 3INST. */
    const double step = 0.2 * other_books, fine = 0.075 * other_books;
    double coarse;
    int below = 1;
    begin_points(j, 3, 1.1 * other_books, step, 10);
    while (below + 2 < 9 && j->scale[below + 1] <= likely)
        below++;
    if (best_of(j, 10, below - 1, below + 2, step, &coarse, err))
        return -1;
    begin_points(j, 1, coarse, fine, 5);
    return best_of(j, 5, 0, 4, fine, best, err);
}

/* Three points of a small sample: so far apart that the sample's noise moves the minimum little. */
static int small_best(struct scale_job *j, double centre, double *best, struct kd_err *err)
{
    double step = 0.12 * centre;
    int at;
    begin_points(j, 1, centre, step, 3);
    if (least_of(j, 3, 0, 2, &at, err))
        return -1;
    *best = centre + step * parabola(j->error, 1.0);
    return 0;
}

static void take_tile(const struct kd_exl3_work *q, int64_t tk, int64_t tn, double drift,
                      float *out)
{
    const float *t = q->t + tk * KD_TILE * q->n + tn * KD_TILE;
    for (unsigned p = 0; p < KD_TILE_WEIGHTS; p++)
        out[p] = (float)((double)t[kd_tile_row(p) * q->n + kd_tile_col(p)] * drift);
}

/* Tiles in order of energy (largest or smallest first), ties by position: the `want` best by
 * insertion. */
static void extremes(const double *energy, int64_t tiles, int64_t want, bool largest, int64_t *out)
{
    int64_t have = 0;
    for (int64_t i = 0; i < tiles; i++) {
        int64_t at = have;
        while (at > 0 &&
               (largest ? energy[i] > energy[out[at - 1]] : energy[i] < energy[out[at - 1]]))
            at--;
        if (at >= want)
            continue;
        if (have < want)
            have++;
        memmove(out + at + 1, out + at, (size_t)(have - 1 - at) * sizeof *out);
        out[at] = i;
    }
}

static int tile_energy(struct kd_exl3_work *q, double *energy, struct kd_err *err)
{
    if (q->device)
        return kd_gpu_tensor_energy(q->device, energy, err);
    for (int64_t tk = 0; tk < q->k / KD_TILE; tk++)
        for (int64_t r = 0; r < KD_TILE; r++)
            for (int64_t c = 0; c < q->n; c++) {
                double v = (double)q->t[(tk * KD_TILE + r) * q->n + c];
                double *e = energy + tk * (q->n / KD_TILE) + c / KD_TILE;
                *e = r || c % KD_TILE ? *e + v * v : v * v;
            }
    return 0;
}

/* The sample of 4.7: a wrapped diagonal three tiles wide, and the loudest and quietest tiles.
 * Returns how many tile numbers it left in pick. energy: of the tiles. */
static int64_t full_sample(const struct kd_exl3_work *q, const double *energy, int64_t *pick)
{
    int64_t tk = q->k / KD_TILE, tn = q->n / KD_TILE, longer = tk > tn ? tk : tn, count = 0;
    for (int64_t i = 0; i < longer; i++)
        for (int64_t d = 0; d < 3; d++)
            pick[count++] = i % tk * tn + (i + d) % tn;
    int64_t want = 3 * longer / 16 > 8 ? 3 * longer / 16 : 8;
    want = want < tk * tn / 2 ? want : tk * tn / 2;
    extremes(energy, tk * tn, want, true, pick + count);
    extremes(energy, tk * tn, want, false, pick + count + want);
    return count + 2 * want;
}

/* A few tiles spread over rows and columns. */
static int64_t small_sample(const struct kd_exl3_work *q, int64_t *pick)
{
    int64_t tk = q->k / KD_TILE, tn = q->n / KD_TILE;
    int64_t count = tk * tn / SMALL_SHARE < SMALL_SAMPLES ? tk * tn / SMALL_SHARE : SMALL_SAMPLES;
    for (int64_t i = 0; i < count; i++)
        pick[i] = i * tk / count * tn + (5 * i) % tn;
    return count;
}

int kd_exl3_scale_search(struct kd_exl3_work *q, double drift, double *scale, struct kd_err *err)
{
    int64_t tk = q->k / KD_TILE, tn = q->n / KD_TILE, longer = tk > tn ? tk : tn;
    bool full = q->spec->recipe.full_scale_search || tk * tn >= SMALL_TILES;
    int64_t most = full ? 4 * longer + 32 : SMALL_SAMPLES, *pick = NULL;
    struct scale_job j = {.q = q};
    double *energy = NULL, likely = kd_exl3_unit_scale(q->spec->rate, q->spec->cb) / drift;
    float *samples = NULL;
    bool here = !q->device;
    int rc = -1;
    if (kd_mem_new(&pick, most, sizeof *pick, "scale search", err) ||
        kd_mem_new(&energy, full ? tk * tn : 0, sizeof *energy, "scale search", err) ||
        kd_mem_new(&samples, here ? most : 0, KD_TILE_WEIGHTS * sizeof *samples, "scale search",
                   err) ||
        kd_mem_new(&j.item, POINTS_MAX * most, sizeof *j.item, "scale search", err) ||
        kd_mem_new(&j.part, POINTS_MAX * most, sizeof *j.part, "scale search", err) ||
        (full && tile_energy(q, energy, err)))
        goto out;
    j.tiles = full ? full_sample(q, energy, pick) : small_sample(q, pick);
    for (int64_t i = 0; here && i < j.tiles; i++)
        take_tile(q, pick[i] / tn, pick[i] % tn, drift, samples + i * KD_TILE_WEIGHTS);
    if (q->device && kd_gpu_tensor_sample(q->device, pick, j.tiles, drift, err))
        goto out;
    j.samples = samples;
    rc = full ? full_best(&j, likely, scale, err) : small_best(&j, likely, scale, err);
out:
    kd_mem_free(pick);
    kd_mem_free(energy);
    kd_mem_free(samples);
    kd_mem_free(j.item);
    kd_mem_free(j.part);
    return rc;
}
