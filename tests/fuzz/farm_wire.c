/* What a worker or a coordinator may be told by the other side: never a crash, and what is accepted
 * is within its bounds. The first byte chooses the message. */
#include "farm/home.h"
#include "farm/wire.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void claim(const char *text, size_t n)
{
    struct kd_wire_claim *c = malloc(sizeof *c);
    struct kd_err err;
    if (c && !kd_wire_claim_read(c, text, n, &err)) {
        if (c->count < 0 || c->count > KD_WIRE_JOBS_MAX)
            abort();
        for (int64_t i = 0; i < c->count; i++) {
            const struct kd_wire_job *j = &c->job[i];
            bool trunk = c->layer.trunk;
            int64_t first = trunk ? KD_JOB_TRUNK : 0, end = trunk ? 65536 : c->layer.experts;
            if (j->expert < first || j->expert >= end || j->weights.bytes < 1 ||
                j->weights.bytes > KD_WIRE_BLOB_MAX || (trunk && j->rows < 1) ||
                j->unit_bytes > KD_WIRE_UNIT_MAX || !kd_wire_is_digest(j->weights.sha256))
                abort();
        }
    }
    free(c);
}

static void beat(const char *text, size_t n)
{
    struct kd_wire_beat b;
    struct kd_json *root;
    struct kd_err err;
    if (kd_json_parse(&root, text, n, "beat", &err))
        return;
    if (!kd_wire_beat_read(&b, root, "held", &err) && (b.count < 0 || b.count > KD_LEDGER_HELD_MAX))
        abort();
    kd_json_free(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kd_wire_join join;
    struct kd_wire_put put;
    struct kd_join_file file;
    struct kd_err err;
    char sha[65];
    int64_t part;
    if (bytes < 1)
        return 0;
    char *text = malloc(bytes);
    if (!text)
        return 0;
    memcpy(text, data + 1, bytes - 1);
    text[bytes - 1] = 0;
    switch (data[0] % 6) {
    case 0:
        claim(text, bytes - 1);
        break;
    case 1:
        if (!kd_wire_join_read(&join, text, bytes - 1, &err) && strchr(join.card.host, ','))
            abort();
        break;
    case 2:
        beat(text, bytes - 1);
        break;
    case 3:
        if (!kd_wire_put_read(&put, text, &err) && !kd_wire_is_digest(put.sha256))
            abort();
        break;
    case 4:
        if (!kd_wire_blob_read(sha, &part, text, &err) && (part < 0 || !kd_wire_is_digest(sha)))
            abort();
        break;
    default:
        if (!kd_join_parse(&file, text, bytes - 1, &err)) {
            if (strchr(file.share, '\n'))
                abort();
            kd_join_release(&file);
        }
    }
    free(text);
    return 0;
}
