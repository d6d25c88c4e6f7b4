/* An account of encoding: how long the calls of gpu/encoder.h take, by what they do. The program is
 * linked so that they pass through here (--wrap). */
#ifndef KD_TESTS_GPU_ENCODE_ACCOUNT_H
#define KD_TESTS_GPU_ENCODE_ACCOUNT_H

extern "C" {
#include "base/clock.h"
#include "gpu/encoder.h"
}

#include <stdio.h>
#include <string.h>

#include <mutex>

// clang-format off
#define ACCOUNT_CALLS(X) \
    X(open, (struct kd_gpu_tensor **t, struct kd_gpu_encoder *e, const struct kd_gpu_tensor_shape *s, struct kd_err *err), (t, e, s, err)) \
    X(put, (struct kd_gpu_tensor *t, enum kd_gpu_part p, const float *from, struct kd_err *err), (t, p, from, err)) \
    X(load, (struct kd_gpu_tensor *t, const struct kd_gpu_source *w, bool *finite, struct kd_err *err), (t, w, finite, err)) \
    X(columns, (struct kd_gpu_tensor *t, double *sum, struct kd_err *err), (t, sum, err)) \
    X(rows, (struct kd_gpu_tensor *t, const float *sv, double *sum, struct kd_err *err), (t, sv, sum, err)) \
    X(square, (struct kd_gpu_tensor *t, const float *left, const float *right, float *diagonal, struct kd_err *err), (t, left, right, diagonal, err)) \
    X(cholesky, (struct kd_gpu_tensor *t, float add, bool *good, struct kd_err *err), (t, add, good, err)) \
    X(ldl, (struct kd_gpu_tensor *t, struct kd_err *err), (t, err)) \
    X(rotate, (struct kd_gpu_tensor *t, const float *su, const float *sv, struct kd_err *err), (t, su, sv, err)) \
    X(energy, (struct kd_gpu_tensor *t, double *energy, struct kd_err *err), (t, energy, err)) \
    X(sample, (struct kd_gpu_tensor *t, const int64_t *pick, int64_t tiles, double drift, struct kd_err *err), (t, pick, tiles, drift, err)) \
    X(scale, (struct kd_gpu_tensor *t, const struct kd_gpu_scale *job, struct kd_err *err), (t, job, err)) \
    X(ldlq, (struct kd_gpu_tensor *t, struct kd_gpu_ldlq *job, struct kd_err *err), (t, job, err)) \
    X(unrotate, (struct kd_gpu_tensor *t, const float *su, const float *sv, struct kd_err *err), (t, su, sv, err)) \
    X(weigh, (struct kd_gpu_tensor *t, double *dot, struct kd_err *err), (t, dot, err)) \
    X(quads, (struct kd_gpu_tensor *t, double *quad, struct kd_err *err), (t, quad, err)) \
    X(dots, (struct kd_gpu_tensor *t, double *column, double *row, struct kd_err *err), (t, column, row, err)) \
    X(stretch, (struct kd_gpu_tensor *t, const float *rows, const float *columns, struct kd_err *err), (t, rows, columns, err)) \
    X(gram, (struct kd_gpu_tensor *t, float *diagonal, struct kd_err *err), (t, diagonal, err)) \
    X(solve, (struct kd_gpu_tensor *t, float *rhs, struct kd_err *err), (t, rhs, err)) \
    X(error, (struct kd_gpu_tensor *t, double *power, double *error, struct kd_err *err), (t, power, error, err))
// clang-format on

#define ACCOUNT_NAME(name, parameters, arguments) ACCOUNT_##name,
enum account_call { ACCOUNT_CALLS(ACCOUNT_NAME) ACCOUNT_COUNT };

struct account {
    std::mutex lock;
    double seconds[ACCOUNT_COUNT];
    int64_t calls[ACCOUNT_COUNT];
};
static struct account account;

static int account_add(enum account_call which, double began, int rc)
{
    std::lock_guard<std::mutex> one(account.lock);
    account.seconds[which] += kd_clock_s() - began;
    account.calls[which]++;
    return rc;
}

static inline void account_clear(void)
{
    std::lock_guard<std::mutex> one(account.lock);
    memset(account.seconds, 0, sizeof account.seconds);
    memset(account.calls, 0, sizeof account.calls);
}

/* Milliseconds of a tensor, and its calls. */
static inline void account_print(const char *what, int tensors)
{
#define ACCOUNT_TEXT(name, parameters, arguments) #name,
    static const char *const names[] = {ACCOUNT_CALLS(ACCOUNT_TEXT)};
    double all = 0;

    printf("   %s, ms of a tensor (calls):", what);
    for (int i = 0; i < ACCOUNT_COUNT; i++) {
        if (!account.calls[i])
            continue;
        printf(" %s %.2f (%.3g),", names[i], 1e3 * account.seconds[i] / tensors,
               (double)account.calls[i] / tensors);
        all += account.seconds[i];
    }
    printf(" all %.2f\n", 1e3 * all / tensors);
}

#define ACCOUNT_WRAP(name, parameters, arguments)                                                  \
    extern "C" int __real_kd_gpu_tensor_##name parameters;                                         \
    extern "C" int __wrap_kd_gpu_tensor_##name parameters;                                         \
    extern "C" int __wrap_kd_gpu_tensor_##name parameters                                          \
    {                                                                                              \
        const double began = kd_clock_s();                                                         \
        return account_add(ACCOUNT_##name, began, __real_kd_gpu_tensor_##name arguments);          \
    }
ACCOUNT_CALLS(ACCOUNT_WRAP)

#endif
