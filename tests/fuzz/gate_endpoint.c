/* Any bytes as what a server answers: a chat completion (first byte even), a list of models, an
 * error. Refused in words, or parts that can be judged. */
#include "base/assert.h"
#include "gate/endpoint.h"
#include "net/call.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kd_err err;
    struct kd_said a;
    char model[128], why[64];
    if (!bytes)
        return 0;
    const char *body = (const char *)data + 1;
    size_t n = bytes - 1;
    if (*data % 2) {
        if (!kd_endpoint_model(model, sizeof model, body, n, &err))
            KD_ASSERT(*model && strlen(model) < sizeof model);
        kd_reply_why(why, sizeof why, body, n);
        for (const char *c = why; *c; c++)
            KD_ASSERT((unsigned char)*c >= 32 && *c != 127);
        return 0;
    }
    if (kd_said_parse(&a, body, n, &err)) {
        KD_ASSERT(err.code == KD_EREMOTE && err.msg[0]);
        return 0;
    }
    KD_ASSERT(a.calls || a.bad_call);
    for (size_t i = 0; i < kd_json_count(a.calls); i++) {
        const struct kd_json *call = kd_json_at(a.calls, i);
        KD_ASSERT(kd_json_kind(kd_json_get(call, "name")) == KD_JSON_STR);
        KD_ASSERT(a.bad_call || kd_json_kind(kd_json_get(call, "arguments")) == KD_JSON_OBJECT);
        /* A call fits itself when it is alone. */
        KD_ASSERT(kd_json_count(a.calls) != 1 || a.bad_call || kd_battery_call_fits(call, a.calls));
    }
    kd_said_release(&a);
    return 0;
}
