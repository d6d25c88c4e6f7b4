/* A trace or list of experts from outside, and a list of the command line: refused, or counts and
 * ids inside the model. */
#include "slice/keep.h"

#include <stdlib.h>
#include <string.h>

enum { LAYERS = 13, EXPERTS = 9 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    int64_t count[LAYERS * EXPERTS] = {0};
    struct kd_err err;
    struct kd_buf ids;
    bool listed;
    if (!kd_keep_trace(count, LAYERS, EXPERTS, data, bytes, &listed, &err)) {
        int64_t sum = 0;
        for (int i = 0; i < LAYERS * EXPERTS; i++) {
            if (count[i] < 0 || (listed && count[i] > 1))
                abort();
            sum += count[i];
        }
        if (!listed && sum != (int64_t)(bytes / 8))
            abort();
    }
    if (bytes > 200)
        return 0;
    char text[201];
    memcpy(text, data, bytes);
    text[bytes] = 0;
    kd_buf_init(&ids, 1 << 16);
    if (!kd_keep_list(&ids, text, EXPERTS, "experts", &err)) {
        const int32_t *id = (const int32_t *)(const void *)ids.data;
        for (size_t i = 0; i < ids.size_bytes / sizeof *id; i++)
            if (id[i] < 0 || id[i] >= EXPERTS || (i && id[i] <= id[i - 1]))
                abort();
    }
    kd_buf_release(&ids);
    return 0;
}
