/* Any bytes as an index: refused, or each tensor has a shard whose name is a plain file name. */
#include "base/file.h"
#include "fmt/stindex.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kd_stindex ix;
    struct kd_err err;
    if (kd_stindex_parse(&ix, data, bytes, "fuzz", &err))
        return 0;
    for (int64_t i = 0; i < ix.names.count; i++)
        if (ix.shard[i] < 0 || ix.shard[i] >= ix.shards.count ||
            kd_names_find(&ix.names, ix.names.at[i]) != i)
            abort();
    for (int64_t i = 0; i < ix.shards.count; i++)
        if (kd_name_check(ix.shards.at[i], &err))
            abort();
    kd_stindex_release(&ix);
    return 0;
}
