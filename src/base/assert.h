/* Assertions are for our own bugs; struct kd_err is for the world's.
 * KD_ASSERT stays on in every build; KD_DASSERT only where KD_DEBUG is defined (inner loops). */
#ifndef KD_BASE_ASSERT_H
#define KD_BASE_ASSERT_H

void kd_assert_fail(const char *expr, const char *file, int line) __attribute__((noreturn, cold));

#define KD_ASSERT(expr)                                                                            \
    do {                                                                                           \
        if (__builtin_expect(!(expr), 0))                                                          \
            kd_assert_fail(#expr, __FILE__, __LINE__);                                             \
    } while (0)

#ifdef KD_DEBUG
#define KD_DASSERT(expr) KD_ASSERT(expr)
#else
#define KD_DASSERT(expr)                                                                           \
    do {                                                                                           \
        (void)sizeof(expr);                                                                        \
    } while (0)
#endif

#endif
