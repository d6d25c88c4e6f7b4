/* Any bytes as the lines of an answer's head: an accepted 206 says exactly what was asked for. */
#include "base/assert.h"
#include "net/get_answer.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kd_answer a;
    kd_answer_init(&a);
    for (size_t at = 0; at < bytes;) {
        const uint8_t *end = memchr(data + at, '\n', bytes - at);
        size_t n = end ? (size_t)(end - data) + 1 - at : bytes - at;
        kd_answer_line(&a, (const char *)data + at, n);
        at += n;
    }
    struct kd_err err;
    if (!kd_answer_check(&a, 10, 10, 100, "", &err))
        KD_ASSERT(a.status == 206 && a.range_begin == 10 && a.range_end == 19 && a.length <= 10);
    KD_ASSERT(strlen(a.location) < sizeof a.location && strlen(a.next) < sizeof a.next);
    return 0;
}
