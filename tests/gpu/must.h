/* For tests on a device: whatever must work there. */
#ifndef KD_TESTS_GPU_MUST_H
#define KD_TESTS_GPU_MUST_H

#include <stdio.h>
#include <stdlib.h>

/* `err` is the caller's struct kd_err. */
#define must(expr)                                                                                 \
    do {                                                                                           \
        if (expr) {                                                                                \
            printf("%s: %s\n", #expr, err.msg);                                                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#endif
