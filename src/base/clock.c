#include "base/clock.h"

#include <stdio.h>
#include <time.h>

double kd_clock_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double kd_clock_cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double kd_clock_thread_s(pthread_t thread)
{
    struct timespec t;
    clockid_t id;
    if (pthread_getcpuclockid(thread, &id) || clock_gettime(id, &t))
        return 0;
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void kd_clock_stamp(char *out, size_t size)
{
    time_t now = time(NULL);
    struct tm tm;
    gmtime_r(&now, &tm);
    if (!strftime(out, size, "%Y-%m-%dT%H:%M:%SZ", &tm) && size)
        out[0] = 0;
}

void kd_clock_human(char *out, size_t size, double seconds)
{
    if (!(seconds >= 0) || seconds > 3.15e9)
        snprintf(out, size, "unknown");
    else if (seconds < 10)
        snprintf(out, size, "%.1f s", seconds);
    else if (seconds < 60)
        snprintf(out, size, "%.0f s", seconds);
    else if (seconds < 3600)
        snprintf(out, size, "%d min %02d s", (int)seconds / 60, (int)seconds % 60);
    else if (seconds < 48 * 3600)
        snprintf(out, size, "%d h %02d min", (int)seconds / 3600, (int)seconds / 60 % 60);
    else
        snprintf(out, size, "%.1f days", seconds / 86400);
}
