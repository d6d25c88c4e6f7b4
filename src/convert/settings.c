#include "convert/settings.h"

#include "base/hash.h"

#include <string.h>

/* What decides the output's bytes, and nothing else: no path, host, thread count or time. */
static int settings_json(struct kd_buf *out, const struct kd_job *j, const char *source_json,
                         struct kd_err *err)
{
    const struct kd_convert_settings *s = &j->set;
    static const char *const cb[] = {"3inst", "mcg", "mul1"};
    struct kd_jw w = {.out = out};
    kd_jw_open(&w, NULL, '{');
    kd_jw_int(&w, "format", 1);
    kd_jw_int(&w, "layers", j->cfg.layers);
    kd_jw_str(&w, "version", KD_VERSION);
    kd_jw_open(&w, "rates", '{');
    if (s->wish.size_bytes)
        kd_jw_int(&w, "size_bytes", s->wish.size_bytes);
    else
        kd_jw_num(&w, "experts_bpw", s->wish.experts_bpw);
    kd_jw_num(&w, "trunk_bpw", s->wish.trunk_bpw);
    kd_jw_num(&w, "head_bpw", s->wish.head_bpw);
    kd_jw_bool(&w, "uniform_k", s->wish.uniform_k);
    kd_jw_str(&w, "codebook", cb[s->wish.cb]);
    kd_jw_close(&w, '}');
    kd_jw_open(&w, "recipe", '{');
    kd_jw_str(&w, "name", kd_recipe_text(s->recipe));
    kd_jw_bool(&w, "feedback", j->recipe.feedback);
    kd_jw_bool(&w, "matched", j->recipe.matched);
    kd_jw_num(&w, "row_power", (double)j->recipe.row_power);
    kd_jw_bool(&w, "refit", j->recipe.refit);
    kd_jw_num(&w, "damping", (double)j->recipe.damping);
    kd_jw_bool(&w, "full_scale_search", j->recipe.full_scale_search);
    kd_jw_int(&w, "seam", j->recipe.seam);
    kd_jw_str(&w, "calib_weight", s->weight_routed ? "routed" : "all");
    kd_jw_int(&w, "hessian_tokens", j->T_hess);
    kd_jw_str(&w, "stream", s->stream_bf16 ? "bf16" : "f32");
    kd_jw_int(&w, "block_tokens", j->block_T);
    kd_jw_num(&w, "eps_latent", (double)j->cfg.eps_latent);
    kd_jw_int(&w, "seed", (int64_t)s->seed);
    kd_jw_str(&w, "class", s->calib_fast ? "fast" : "exact");
    kd_jw_close(&w, '}');
    kd_buf_str(out, ",\n  \"source\": ");
    kd_buf_str(out, source_json);
    kd_jw_close(&w, '}');
    kd_buf_char(out, '\n');
    return kd_buf_ok(out, "settings", err);
}

/* What `want` does not know (null) is no difference: digests of shards that come later, and what a
 * look without reading them leaves open. */
static int forget(struct kd_json *have, const struct kd_json *want, struct kd_err *err)
{
    void *iter = NULL;
    const char *key;
    struct kd_json *value;
    if (kd_json_kind(want) == KD_JSON_ARRAY) {
        for (size_t i = 0; i < kd_json_count(want); i++)
            if (kd_json_at(have, i) && forget(kd_json_at(have, i), kd_json_at(want, i), err))
                return -1;
        return 0;
    }
    while (kd_json_next(want, &iter, &key, &value)) {
        struct kd_json *there = kd_json_get(have, key);
        if (!there)
            continue;
        if (kd_json_kind(value) == KD_JSON_NULL ? kd_json_set_copy(have, key, value)
                                                : forget(there, value, err))
            return kd_fail(err, KD_ENOMEM, "settings");
    }
    return 0;
}

/* Whether settings of before are this job's. */
static int compare(const struct kd_job *j, struct kd_json *have, const char *source_json,
                   bool *same, struct kd_err *err)
{
    struct kd_buf now, a, b;
    struct kd_json *want = NULL;
    kd_buf_init(&now, 1 << 26);
    kd_buf_init(&a, 1 << 26);
    kd_buf_init(&b, 1 << 26);
    int rc = settings_json(&now, j, source_json, err) ||
             kd_json_parse(&want, now.data, now.size_bytes, "settings", err) ||
             forget(have, want, err);
    *same = !rc && !kd_json_dump(&a, want, NULL) && !kd_json_dump(&b, have, NULL) &&
            a.size_bytes == b.size_bytes && !memcmp(a.data, b.data, a.size_bytes);
    kd_json_free(want);
    kd_buf_release(&now);
    kd_buf_release(&a);
    kd_buf_release(&b);
    return rc ? -1 : 0;
}

/* Whether dst's receipt was made with the very settings of this job. */
static bool same_receipt(const struct kd_job *j, const char *source_json)
{
    char path[4096];
    struct kd_err ignored;
    struct kd_json *receipt = NULL;
    bool is = false;
    if (kd_path_join(path, sizeof path, j->dst, "kondense.json", &ignored) ||
        kd_json_load(&receipt, path, 1 << 30, &ignored))
        return false;
    struct kd_json *have = kd_json_get(receipt, "settings");
    if (have && compare(j, have, source_json, &is, &ignored))
        is = false;
    kd_json_free(receipt);
    return is;
}

int kd_settings_finished(struct kd_job *j, const char *source_json, bool resume, struct kd_err *err)
{
    if (!resume || !same_receipt(j, source_json))
        return kd_fail(err, KD_EUSAGE, "'%s' already holds a finished model; choose another folder",
                       j->dst);
    j->finished = true;
    return 0;
}

static int unfinished(const struct kd_job *j, struct kd_err *err)
{
    return kd_fail(err, KD_EUSAGE,
                   "'%s' holds an unfinished conversion: add --resume to go on with it, or remove "
                   "the folder",
                   j->dst);
}

static int others(const struct kd_job *j, const char *path, struct kd_err *err)
{
    return kd_fail(err, KD_EUSAGE,
                   "'%s' was begun with other settings or another source (compare %s): use the "
                   "same ones, or remove the folder",
                   j->dst, path);
}

int kd_settings_look(const struct kd_job *j, const char *source_json, bool resume,
                     struct kd_err *err)
{
    char path[4096];
    struct kd_json *have = NULL;
    bool is = false;
    if (kd_job_path(j, path, sizeof path, err, "settings.json"))
        return -1;
    if (!kd_file_exists(path))
        return 0;
    if (!resume)
        return unfinished(j, err);
    /* What does not parse is not what was written: other settings. */
    if (!kd_json_load(&have, path, 1 << 26, NULL) && compare(j, have, source_json, &is, err)) {
        kd_json_free(have);
        return -1;
    }
    kd_json_free(have);
    return is ? 0 : others(j, path, err);
}

int kd_settings_take(struct kd_job *j, const char *source_json, bool resume, struct kd_err *err)
{
    char path[4096];
    struct kd_buf now, old;
    kd_buf_init(&now, 1 << 26);
    kd_buf_init(&old, 1 << 26);
    int rc = settings_json(&now, j, source_json, err);
    if (!rc)
        rc = kd_job_path(j, path, sizeof path, err, "settings.json");
    if (!rc && kd_file_exists(path)) {
        rc = kd_file_read(&old, path, 1 << 26, err);
        if (!rc && !resume)
            rc = unfinished(j, err);
        else if (!rc &&
                 (old.size_bytes != now.size_bytes || memcmp(old.data, now.data, now.size_bytes)))
            rc = others(j, path, err);
    } else if (!rc) {
        rc = kd_file_write(path, now.data, now.size_bytes, err);
    }
    if (!rc)
        j->digest = kd_xxh64(now.data, now.size_bytes, 1);
    kd_buf_release(&now);
    kd_buf_release(&old);
    return rc;
}
