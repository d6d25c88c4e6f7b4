/* Time. Monotonic seconds for durations; wall time only for people and logs. Thread-safe. */
#ifndef KD_BASE_CLOCK_H
#define KD_BASE_CLOCK_H

#include <pthread.h>
#include <stddef.h>

double kd_clock_s(void);                    /* monotonic, seconds */
double kd_clock_cpu_s(void);                /* CPU time of this process, seconds */
double kd_clock_thread_s(pthread_t thread); /* of one of its threads that has not been joined */
/* "2026-11-29T16:03:26Z" */
void kd_clock_stamp(char *out, size_t size);
/* "1 h 05 min", "3 min 20 s", "12 s", "0.8 s" */
void kd_clock_human(char *out, size_t size, double seconds);

#endif
