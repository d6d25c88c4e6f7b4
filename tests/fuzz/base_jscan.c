/* Any bytes through the JSON scanner, whole and in windows of a size the input picks: both must see
 * the same tokens, or both refuse. */
#include "base/jscan.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

struct pieces {
    const uint8_t *at;
    size_t left, step;
};

static int fill(void *ctx, const uint8_t **data, size_t *bytes, struct kd_err *err)
{
    struct pieces *p = ctx;
    (void)err;
    *data = p->at;
    *bytes = p->left < p->step ? p->left : p->step;
    p->at += *bytes;
    p->left -= *bytes;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const struct kd_jscan_limits limits = {
        .depth = 6, .string_bytes = 200, .total_bytes = 1 << 20};
    if (!bytes)
        return 0;
    struct pieces p = {data + 1, bytes - 1, 1u + data[0] % 32u};
    struct kd_jscan a, b;
    struct kd_err err;
    kd_jscan_open(&a, data + 1, bytes - 1, &limits);
    kd_jscan_open_fill(&b, fill, &p, &limits);
    for (;;) {
        int ra = kd_jscan_next(&a, &err), rb = kd_jscan_next(&b, &err);
        if (ra != rb || (!ra && (a.tok != b.tok || a.depth != b.depth)))
            abort();
        if (!ra && (a.tok == KD_JT_NAME || a.tok == KD_JT_STR) &&
            (a.text_bytes != b.text_bytes || memcmp(a.text, b.text, a.text_bytes + 1) != 0))
            abort();
        if (!ra && a.tok == KD_JT_INT && a.integer != b.integer)
            abort();
        if (ra || a.tok == KD_JT_END)
            break;
    }
    kd_jscan_close(&a);
    kd_jscan_close(&b);
    return 0;
}
