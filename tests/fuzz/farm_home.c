/* Any bytes as a farm's farm.json: refused, or an address with a port, names, and tokens that are
 * digests; nobody enters with another token. */
#include "base/assert.h"
#include "farm/home.h"
#include "fuzz/files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kd_home h;
    struct kd_err err;
    char id[64], key[KD_KEY_MAX];
    fuzz_file("farm.json", data, bytes);
    if (kd_home_open(&h, fuzz_dir(), &err)) {
        KD_ASSERT(err.code != KD_OK && err.msg[0]);
        return 0;
    }
    KD_ASSERT(h.port > 0 && h.port < 65536 && h.name_count >= 2 &&
              h.name_count <= KD_HOME_NAMES_MAX && h.tokens <= KD_HOME_TOKENS_MAX);
    for (int i = 0; i < h.name_count; i++)
        KD_ASSERT(h.names[i][0]);
    for (int i = 0; i < h.tokens; i++)
        KD_ASSERT(strlen(h.token_sha[i]) == 64);
    KD_ASSERT(kd_home_enter(&h, "no token of this farm", id, key, &err));
    kd_home_release(&h);
    return 0;
}
