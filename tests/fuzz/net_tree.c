/* Any bytes as the hub's list of files: names stay inside the folder, sizes are sizes. */
#include "base/assert.h"
#include "base/mem.h"
#include "net/source_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kd_source *s;
    struct kd_err err;
    if (kd_mem_zero(&s, 1, sizeof *s, "source", &err))
        return 0;
    if (!kd_get_open(&s->get, NULL, &err) &&
        kd_source_tree(s, (const char *)data, bytes, "", "https://hub/o/n/resolve/c/", "tok", &err))
        KD_ASSERT(err.code != KD_OK);
    for (int i = 0; i < s->part_count; i++)
        KD_ASSERT(!kd_path_check(s->parts[i].name, &err) && s->parts[i].bytes >= 0);
    kd_source_close(s);
    return 0;
}
