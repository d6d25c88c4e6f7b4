/* Any bytes as a machine's description: refused, or a machine that can be written and read again.
 */
#include "plan/machine.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kd_machine m, again;
    struct kd_err err;
    if (kd_machine_parse(&m, (const char *)data, bytes, "fuzz", &err))
        return 0;
    if (m.tiers < 1 || m.tiers > KD_MACHINE_TIERS || m.count != 1 ||
        !memchr(m.key, 0, sizeof m.key) || !(kd_machine_room_gib(&m) > 0))
        abort();
    struct kd_buf a, b;
    kd_buf_init(&a, 1 << 20);
    kd_buf_init(&b, 1 << 20);
    kd_machine_write(&a, &m);
    if (kd_machine_parse(&again, a.data, a.size_bytes, "written", &err))
        abort();
    kd_machine_write(&b, &again);
    if (a.size_bytes != b.size_bytes || memcmp(a.data, b.data, a.size_bytes) != 0)
        abort();
    kd_buf_release(&a);
    kd_buf_release(&b);
    return 0;
}
