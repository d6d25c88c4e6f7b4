/* Any bytes as a page of links: what is found is one plain name. */
#include "base/assert.h"
#include "base/file.h"
#include "base/pieces.h"
#include "net/links.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int found(void *ctx, const char *name, struct kd_err *err)
{
    struct kd_piece p;
    char sister[300];
    (void)ctx;
    KD_ASSERT(!kd_name_check(name, err) && *name != '-' && *name != '.');
    if (kd_piece_parse(&p, name) && kd_piece_sister(sister, sizeof sister, name, &p, p.no))
        KD_ASSERT(!strcmp(sister, name));
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kd_err err;
    KD_ASSERT(!kd_links_scan((const char *)data, bytes, found, NULL, &err));
    return 0;
}
