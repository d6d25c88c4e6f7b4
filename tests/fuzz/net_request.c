/* Any bytes as a request's head: judged the same when they come one by one, and a sound head has
 * one length and no byte that readers take differently. */
#include "base/assert.h"
#include "net/head.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *s = (const char *)data;
    struct kd_head whole, part;
    enum kd_head_state st = kd_head_parse(&whole, s, bytes, 1000), early = KD_HEAD_MORE;
    for (size_t n = 0; n <= bytes && bytes < 4096 && early == KD_HEAD_MORE; n++)
        early = kd_head_parse(&part, s, n, 1000);
    if (bytes < 4096)
        KD_ASSERT(early == st && (st != KD_HEAD_BAD || part.status == whole.status));
    if (st == KD_HEAD_BAD)
        KD_ASSERT(whole.status >= 400 && whole.status < 600 && whole.why);
    if (st == KD_HEAD_OK) {
        KD_ASSERT(whole.head_bytes <= bytes && whole.length >= 0 && whole.length <= 1000);
        KD_ASSERT(!memchr(s, 0, whole.head_bytes) && !whole.chunked);
    }
    return 0;
}
