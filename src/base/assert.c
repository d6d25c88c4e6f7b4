#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>

void kd_assert_fail(const char *expr, const char *file, int line)
{
    fprintf(stderr, "kondense: bug: '%s' does not hold at %s:%d; please report it\n", expr, file,
            line);
    abort();
}
