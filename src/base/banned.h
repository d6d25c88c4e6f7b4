/* Functions that may not be called; each has a better one named beside it. The build puts this file
 * in front of every C file (cmake/flags.cmake), so the standard headers come first: their
 * declarations must not meet the macros. */
#ifndef KD_BASE_BANNED_H
#define KD_BASE_BANNED_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KD_BANNED(name, use) kd_do_not_call_##name##_but_##use

/* No bound on what is written: struct kd_buf, snprintf, memcpy. */
#undef strcpy
#define strcpy(d, s) KD_BANNED(strcpy, kd_buf_or_memcpy)
#undef strcat
#define strcat(d, s) KD_BANNED(strcat, kd_buf)
#undef strncpy
#define strncpy(d, s, n) KD_BANNED(strncpy, snprintf)
#undef strncat
#define strncat(d, s, n) KD_BANNED(strncat, kd_buf)
#undef stpcpy
#define stpcpy(d, s) KD_BANNED(stpcpy, kd_buf)
#undef sprintf
#define sprintf(...) KD_BANNED(sprintf, snprintf)
#undef vsprintf
#define vsprintf(b, f, a) KD_BANNED(vsprintf, vsnprintf)
#undef alloca
#define alloca(n) KD_BANNED(alloca, kd_mem_new)

/* Static state, shared by all threads. */
#undef strtok
#define strtok(s, d) KD_BANNED(strtok, strcspn)
#undef gmtime
#define gmtime(t) KD_BANNED(gmtime, gmtime_r)
#undef localtime
#define localtime(t) KD_BANNED(localtime, localtime_r)
#undef ctime
#define ctime(t) KD_BANNED(ctime, kd_clock_stamp)
#undef asctime
#define asctime(t) KD_BANNED(asctime, kd_clock_stamp)
#undef strerror
#define strerror(e) KD_BANNED(strerror, kd_fail_sys)
#undef rand
#define rand() KD_BANNED(rand, kd_rand_u64)
#undef srand
#define srand(s) KD_BANNED(srand, kd_rand_fork)

/* Take "4x" for 4 and say nothing of overflow. */
#undef atoi
#define atoi(s) KD_BANNED(atoi, kd_parse_int)
#undef atol
#define atol(s) KD_BANNED(atol, kd_parse_int)
#undef atoll
#define atoll(s) KD_BANNED(atoll, kd_parse_int)
#undef atof
#define atof(s) KD_BANNED(atof, kd_parse_num)

#endif
