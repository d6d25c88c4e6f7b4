/* Any bytes as a safetensors file: refused, or each tensor lies inside it. */
#include "fmt/st.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kd_st st;
    struct kd_err err;
    int64_t sum = 0;
    if (kd_st_parse(&st, data, (int64_t)bytes, (int64_t)bytes, "fuzz", &err))
        return 0;
    for (int64_t i = 0; i < st.count; i++) {
        const struct kd_st_tensor *e = &st.tensors[i];
        if (e->begin < 0 || e->t.bytes < 0 ||
            e->t.bytes > st.file_bytes - st.data_offset - e->begin ||
            kd_st_find(&st, e->t.name) != &e->t)
            abort();
        sum += e->t.bytes;
    }
    if (sum != st.file_bytes - st.data_offset)
        abort();
    kd_st_release(&st);
    return 0;
}
