/* Any bytes as a file of answers: never more is whole than there is, and what was taken in is
 * found. */
#include "base/assert.h"
#include "serve/said.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kd_said *s;
    struct kd_ids ids = {0};
    struct kd_err err;
    char key[65] = "";

    if (kd_said_open(&s, 4096, &err))
        return 0;
    int64_t whole = kd_said_read(s, data, (int64_t)bytes, "fuzz");
    KD_ASSERT(whole >= 0 && whole <= (int64_t)bytes);
    for (int i = 0; i < 64; i++)
        key[i] = '0';
    KD_ASSERT(kd_said_get(s, key, &ids) == (ids.count > 0));
    kd_ids_release(&ids);
    kd_said_close(s);
    return 0;
}
