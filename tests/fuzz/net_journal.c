/* Any bytes as a fetch's journal: never more counted than there is, and names are paths inside. */
#include "base/assert.h"
#include "net/journal.h"
#include "net/url.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int see(void *ctx, const struct kd_journal_line *l, struct kd_err *err)
{
    (void)ctx;
    KD_ASSERT(!kd_path_check(l->name, err) && l->begin >= 0 && l->bytes >= 0);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = malloc(bytes + 1), commit[64], where[200];
    size_t good;
    struct kd_err err;
    if (!text)
        return 0;
    memcpy(text, data, bytes);
    if (kd_journal_parse(text, bytes, &good, commit, sizeof commit, where, sizeof where, see, NULL,
                         &err))
        KD_ASSERT(err.code == KD_ECORRUPT);
    KD_ASSERT(good <= bytes);
    free(text);
    return 0;
}
