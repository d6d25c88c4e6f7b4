/* Any bytes as a battery's file: refused, or each request is the text that was parsed, and an
 * expected call fits itself. */
#include "base/assert.h"
#include "fuzz/files.h"
#include "gate/battery.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void look(const struct kd_battery_file *f, const struct kd_battery_item *it)
{
    struct kd_json *again, *calls = kd_json_new_array();
    struct kd_buf a, b;
    struct kd_err err;
    KD_ASSERT(calls && it->request >= f->text.data &&
              it->request + it->request_bytes <= f->text.data + f->text.size_bytes);
    kd_buf_init(&a, 1 << 26);
    kd_buf_init(&b, 1 << 26);
    KD_ASSERT(!kd_json_parse(&again, it->request, it->request_bytes, "request", &err));
    KD_ASSERT(!kd_json_dump(&a, again, &err) && !kd_json_dump(&b, it->parsed, &err));
    KD_ASSERT(a.size_bytes == b.size_bytes && !memcmp(a.data, b.data, a.size_bytes));
    KD_ASSERT(it->expected_bytes);
    if (kd_battery_call_fits(it->call, calls))
        KD_ASSERT(kd_json_kind(it->call) == KD_JSON_NULL);
    kd_buf_release(&a);
    kd_buf_release(&b);
    kd_json_free(again);
    kd_json_free(calls);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kd_battery_file f;
    struct kd_err err;
    if (kd_battery_load(&f, fuzz_file("battery.json", data, bytes), (int64_t)bytes % 3, &err)) {
        KD_ASSERT(err.code == KD_ECORRUPT && err.msg[0]);
        return 0;
    }
    KD_ASSERT(f.count > 0);
    for (int64_t i = 0; i < f.count; i++)
        look(&f, &f.item[i]);
    kd_battery_file_release(&f);
    return 0;
}
