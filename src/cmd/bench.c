#include "cmd/bench.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/opt.h"
#include "base/rand.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void kd_series_close(struct kd_series *s)
{
    qsort(s->v, (size_t)s->count, sizeof *s->v, ascending);
}

double kd_series_median(const struct kd_series *s)
{
    return s->count ? s->v[s->count / 2] : 0;
}

int kd_bench_series(const struct kd_bench *b, int (*work)(void *ctx, int64_t n, struct kd_err *err),
                    void *ctx, double per_unit, struct kd_series *s, struct kd_err *err)
{
    double share = b->seconds / KD_BENCH_REPEATS;
    int64_t n = 1;
    s->count = 0;
    /* Growing doubles as warming up. */
    for (;;) {
        double start = kd_clock_s();
        if (work(ctx, n, err))
            return -1;
        double took = kd_clock_s() - start;
        if (took >= share / 2) {
            double more = (double)n * share / took;
            n = more < 1 ? 1 : (int64_t)more;
            break;
        }
        n *= took > 0 && share / took < 4 ? 2 : 4;
    }
    while (s->count < KD_BENCH_REPEATS) {
        double start = kd_clock_s();
        if (work(ctx, n, err))
            return -1;
        double took = kd_clock_s() - start;
        s->v[s->count++] = (double)n * per_unit / (took > 1e-9 ? took : 1e-9);
    }
    kd_series_close(s);
    return 0;
}

void kd_bench_put(const struct kd_bench *b, const char *key, const struct kd_series *s)
{
    kd_jw_open(b->w, key, '{');
    kd_jw_num(b->w, "median", kd_series_median(s));
    kd_jw_num(b->w, "min", s->v[0]);
    kd_jw_num(b->w, "max", s->v[s->count - 1]);
    kd_jw_int(b->w, "repeats", s->count);
    kd_jw_close(b->w, '}');
}

int kd_bench_rates(const struct kd_bench *b, const unsigned *standard,
                   unsigned out[KD_BENCH_RATES + 1], struct kd_err *err)
{
    int n = 0;
    if (!b->rate) {
        for (; standard[n]; n++)
            out[n] = standard[n];
        out[n] = 0;
        return 0;
    }
    for (const char *at = b->rate;; at++) {
        size_t bytes = strcspn(at, ",");
        char number[32];
        double rate = 0;
        snprintf(number, sizeof number, "%.*s", (int)(bytes < 31 ? bytes : 31), at);
        if (kd_parse_num(number, &rate, err))
            return kd_wrap(err, "--rate");
        double sixteenths = rate * 16;
        if (!(rate >= 1 && rate <= 8) || sixteenths > (double)(int)sixteenths)
            return kd_fail(err, KD_EUSAGE, "--rate: %s is not a multiple of 1/16 from 1 to 8",
                           number);
        if (n == KD_BENCH_RATES)
            return kd_fail(err, KD_EUSAGE, "--rate: at most %d rates", KD_BENCH_RATES);
        out[n++] = (unsigned)sixteenths;
        at += bytes;
        if (!*at)
            break;
    }
    out[n] = 0;
    return 0;
}

double kd_bench_ghz(void)
{
    enum { LOOPS = 40000, CHAIN = 16 }; /* short, so that some run is not interrupted */
    double best = 0;
    volatile uint64_t sink = 1;
    for (int r = 0; r < 200; r++) {
        uint64_t x = sink, c = sink | 5;
        double start = kd_clock_s();
        /* A rotation and an exclusive or, each of one cycle and waiting for the one before. */
        for (int i = 0; i < LOOPS; i++) {
            for (int j = 0; j < CHAIN / 2; j++)
                x = (x << 7 | x >> 57) ^ c;
        }
        double took = kd_clock_s() - start, ghz = (double)LOOPS * CHAIN / took * 1e-9;
        sink = x;
        best = ghz > best ? ghz : best;
    }
    return best;
}

int kd_bench_lanes(const struct kd_bench *b, int *lanes, struct kd_err *err)
{
    enum { R = 16, K = 256, T = 16, CALLS = 4, BURSTS = 2000 };
    float *x; /* R and T rows of inputs, then the products */
    double best = 0;
    if (kd_mem_new(&x, (R + T) * K + R * T, sizeof *x, "products", err))
        return -1;
    for (int64_t i = 0; i < (R + T) * K; i++)
        x[i] = (float)(kd_rand_unit(13, (uint64_t)i) * 2 - 1);
    /* In bursts so short that some are not interrupted. */
    for (int i = 0; i < BURSTS; i++) {
        double start = kd_clock_s();
        for (int j = 0; j < CALLS; j++)
            b->run->kern->mm_f32(x, K, R, K, x + R * K, K, T, x + (R + T) * K, R);
        double rate = (double)CALLS * R * K * T / (kd_clock_s() - start) * 1e-9;
        best = rate > best ? rate : best;
    }
    kd_mem_free(x);
    *lanes = 1;
    while (*lanes * b->ghz < best * 0.95)
        *lanes *= 2;
    kd_jw_open(b->w, NULL, '{');
    kd_jw_str(b->w, "type", "float32 products in cache");
    kd_jw_num(b->w, "gproducts_s_core", best);
    kd_jw_int(b->w, "lanes_a_cycle", *lanes);
    kd_jw_close(b->w, '}');
    if (b->screen)
        printf("products in cache: %.1f G/s a core, so %d lanes a cycle at %.2f GHz\n", best,
               *lanes, b->ghz);
    return 0;
}

void kd_bench_cpu_name(char *out, size_t size)
{
    struct kd_buf b;
    struct kd_err err;
    kd_buf_init(&b, 4 << 20);
    snprintf(out, size, "unknown");
    if (!kd_file_read(&b, "/proc/cpuinfo", 4 << 20, &err) && b.data) {
        const char *at = strstr(b.data, "model name");
        at = at ? strchr(at, ':') : NULL;
        if (at)
            snprintf(out, size, "%.*s", (int)strcspn(at + 2, "\n"), at + 2);
    }
    kd_buf_release(&b);
}

void kd_bench_machine(struct kd_jw *w, const struct kd_bench *b)
{
    char cpu[128];
    kd_bench_cpu_name(cpu, sizeof cpu);
    kd_jw_open(w, "machine", '{');
    kd_jw_str(w, "cpu", cpu);
    kd_jw_int(w, "cores_online", sysconf(_SC_NPROCESSORS_ONLN));
    kd_jw_int(w, "threads", kd_pool_threads(b->run->pool));
    kd_jw_str(w, "isa", b->run->kern->name);
    kd_jw_num(w, "ghz", b->ghz);
    kd_jw_close(w, '}');
    kd_jw_open(w, "build", '{');
    kd_jw_str(w, "version", KD_VERSION);
#ifdef __clang__
    kd_jw_str(w, "compiler", __VERSION__);
#else
    kd_jw_str(w, "compiler", "GCC " __VERSION__);
#endif
    kd_jw_str(w, "flags", KD_BUILD_FLAGS);
    kd_jw_close(w, '}');
}
