/* Checked allocation. Every size that comes from input goes through these: products are checked
 * for overflow and failure is reported, never fatal. Blocks are 64-byte aligned (a cache line and
 * a full vector register) and released with kd_mem_free. Contents are undefined unless said.
 * Thread-safe. */
#ifndef KD_BASE_MEM_H
#define KD_BASE_MEM_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

/* count * size bytes into *out (NULL for zero bytes). `what` names it in the error. */
int kd_mem_new(void *out, int64_t count, int64_t size, const char *what,
               struct kd_err *err) KD_MUST;
/* The same, zeroed. */
int kd_mem_zero(void *out, int64_t count, int64_t size, const char *what,
                struct kd_err *err) KD_MUST;
void kd_mem_free(void *block);
/* a * b in *out; -1 if it does not fit in int64_t or either is negative. */
int kd_mul64(int64_t a, int64_t b, int64_t *out) KD_MUST;
/* Most resident anonymous memory of this process so far, in bytes, as it was before large blocks of
 * this file were freed and is now; pages of mapped files are not in it. Blocks under 16 MiB that
 * are touched and freed within 50 ms may be missed. 0 where the system does not tell. */
int64_t kd_mem_peak_bytes(void);
/* The system's own peak (VmHWM): with the pages of mapped files, which it takes back when it needs
 * them. */
int64_t kd_mem_resident_peak_bytes(void);
/* Anonymous memory in use now, in bytes; 0 where the system does not tell. */
int64_t kd_mem_anon_bytes(void);
/* What the machine, or the container that this is, could still give to a process without swapping,
 * in bytes; 0 where the system does not tell. */
int64_t kd_mem_available_bytes(void);
/* From here on a freed block of 256 KiB or more is the system's again at once, in every thread. (By
 * itself the C library keeps some of them for the thread that had them: memory that is nobody's and
 * counts all the same, once for each of many threads.) */
void kd_mem_keep_little(void);
/* For tests: the n-th allocation from now fails (n >= 1); 0 switches it off. */
void kd_mem_fail_nth(int64_t n);
/* Bytes handed out by kd_mem_new and kd_mem_zero and not yet freed, and their highest value. */
int64_t kd_mem_live_bytes(void);
int64_t kd_mem_live_peak_bytes(void);

#endif
