#include "net/source_int.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/jscan.h"
#include "base/mem.h"
#include "base/pieces.h"
#include "net/links.h"

#include <string.h>

enum { PAGE_MAX = 64 << 20, INDEX_MAX = 256 << 20 };
static const char index_name[] = "model.safetensors.index.json";

/* What is tried beside an index: files of a model that no list names. */
static const char *const companions[] = {
    "config.json",           "configuration.json",       "generation_config.json",
    "tokenizer_config.json", "tokenizer.json",           "tiktoken.model",
    "tokenizer.model",       "special_tokens_map.json",  "chat_template.jinja",
    "kondense.json",         "quantization_config.json", "LICENSE",
    "model.safetensors"};
enum { COMPANIONS = sizeof companions / sizeof *companions };

struct web {
    struct kd_source *s;
    char base[KD_URL_MAX]; /* the folder, with the '/' at its end */
    bool model;            /* a weight file or a config was among the links */
    int32_t *seen;         /* places in the parts + 1, by hash of the name; 0: free */
    int64_t seen_cap;      /* a power of two, at least twice the parts */
};

/* The slot of a name in w->seen: its own, or the free one where it goes. */
static int64_t slot(const struct web *w, const char *name)
{
    int64_t i = (int64_t)(kd_fnv64(name) & (uint64_t)(w->seen_cap - 1));
    while (w->seen[i] && strcmp(w->s->parts[w->seen[i] - 1].name, name))
        i = (i + 1) & (w->seen_cap - 1);
    return i;
}

static int more_slots(struct web *w, struct kd_err *err)
{
    int64_t cap = w->seen_cap ? 2 * w->seen_cap : 1024;
    if (2 * (int64_t)w->s->part_count < w->seen_cap)
        return 0;
    kd_mem_free(w->seen);
    w->seen_cap = cap;
    if (kd_mem_zero(&w->seen, cap, sizeof *w->seen, "list", err))
        return -1;
    for (int i = 0; i < w->s->part_count; i++)
        w->seen[slot(w, w->s->parts[i].name)] = i + 1;
    return 0;
}

static int put(struct web *w, const char *name, int64_t bytes, struct kd_err *err)
{
    struct kd_buf at;
    if (more_slots(w, err))
        return -1;
    int64_t place = slot(w, name);
    if (w->seen[place])
        return 0;
    kd_buf_init(&at, KD_URL_MAX);
    kd_buf_str(&at, w->base);
    kd_url_escape(&at, name);
    int rc = kd_buf_ok(&at, name, err);
    if (!rc)
        rc = kd_source_put(w->s, name, NULL, at.data, NULL, bytes, NULL, err);
    if (!rc)
        w->seen[place] = w->s->part_count;
    kd_buf_release(&at);
    return rc;
}

static int found(void *ctx, const char *name, struct kd_err *err)
{
    struct web *w = ctx;
    struct kd_piece p;
    w->model = w->model || !strcmp(name, "config.json") || kd_name_ends(name, ".safetensors") ||
               kd_name_ends(name, ".gguf") || kd_piece_parse(&p, name);
    return put(w, name, -1, err);
}

/* Shards out of the index's weight_map, which is flat: names as keys, shards as values. */
static int shards(struct web *w, const char *text, size_t bytes, struct kd_err *err)
{
    struct kd_jscan_limits limits = {.depth = 8, .string_bytes = 4096, .total_bytes = INDEX_MAX};
    struct kd_jscan s;
    char last[KD_SOURCE_NAME_MAX] = "";
    bool map = false;
    int rc;
    kd_jscan_open(&s, text, bytes, &limits);
    while (!(rc = kd_jscan_next(&s, err)) && s.tok != KD_JT_END) {
        if (s.tok == KD_JT_NAME && s.depth == 1)
            map = !strcmp(s.text, "weight_map");
        if (s.tok != KD_JT_STR || !map || s.depth != 2 || !strcmp(last, s.text))
            continue;
        snprintf(last, sizeof last, "%s", s.text);
        if ((rc = put(w, s.text, -1, err)))
            break;
    }
    kd_jscan_close(&s);
    return rc ? kd_wrap(err, "%s", index_name) : 0;
}

/* By the index, and by asking for the companions that may be there. */
static int by_index(struct web *w, struct kd_err *err)
{
    struct kd_source *s = w->s;
    struct kd_get_page page;
    struct kd_buf text;
    int files[COMPANIONS];
    int64_t sizes[COMPANIONS];
    char at[KD_URL_MAX + 64];
    snprintf(at, sizeof at, "%s%s", w->base, index_name);
    kd_buf_init(&text, INDEX_MAX + 1);
    int rc = kd_get_page(s->get, at, NULL, INDEX_MAX, &text, &page, err);
    if (!rc && page.status == 200)
        rc = put(w, index_name, (int64_t)text.size_bytes, err) ||
                     shards(w, text.data ? text.data : "", text.size_bytes, err)
                 ? -1
                 : 0;
    kd_buf_release(&text);
    for (int i = 0; i < COMPANIONS && !rc; i++) {
        snprintf(at, sizeof at, "%s%s", w->base, companions[i]);
        files[i] = kd_get_add(s->get, at, NULL, -1, err);
        rc = files[i] < 0 ? -1 : 0;
    }
    if (!rc)
        rc = kd_get_sizes(s->get, files, COMPANIONS, sizes, err);
    for (int i = 0; i < COMPANIONS && !rc; i++)
        if (sizes[i] >= 0)
            rc = put(w, companions[i], sizes[i], err);
    return rc;
}

static int folder(struct web *w, struct kd_err *err)
{
    struct kd_source *s = w->s;
    struct kd_get_page page;
    struct kd_buf text;
    struct kd_err no = {.code = KD_OK};
    kd_buf_init(&text, PAGE_MAX + 1);
    /* A server that lists nothing may refuse in any way; its files may still be there. */
    int rc = 0;
    if (!kd_get_page(s->get, w->base, NULL, PAGE_MAX, &text, &page, &no)) {
        if (page.status == 200 && !strcmp(page.type, "text/html") && text.data)
            rc = kd_links_scan(text.data, text.size_bytes, found, w, err);
    } else if (no.code != KD_EREMOTE) {
        *err = no;
        rc = -1;
    }
    kd_buf_release(&text);
    if (rc || w->model)
        return rc;
    for (int i = 0; i < s->part_count; i++)
        kd_mem_free(s->parts[i].name);
    s->part_count = 0;
    kd_mem_free(w->seen);
    w->seen = NULL;
    w->seen_cap = 0;
    rc = by_index(w, err);
    if (!rc && !s->part_count)
        rc = kd_fail(err, KD_EREMOTE,
                     "'%s' lists no files, and has neither %s nor config.json (a file's address "
                     "works without a list)",
                     s->where, index_name);
    return rc;
}

/* A file's address: its name has a file's ending, or that of a piece. */
static bool is_file(const char *name)
{
    static const char *const endings[] = {".safetensors", ".gguf", ".json", ".model",
                                          ".gz",          ".txt",  ".bin",  ".jinja"};
    struct kd_piece p;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (kd_name_ends(name, endings[i]))
            return true;
    return kd_piece_parse(&p, name);
}

static int one_file(struct web *w, const char *where, const char *name, struct kd_err *err)
{
    struct kd_piece p;
    if (!kd_piece_parse(&p, name) || !p.count)
        return kd_source_put(w->s, name, NULL, where, NULL, -1, NULL, err);
    for (int64_t i = 1; i <= p.count; i++) {
        char sister[KD_SOURCE_NAME_MAX];
        if (!kd_piece_sister(sister, sizeof sister, name, &p, i))
            return kd_fail(err, KD_EINVAL, "'%s' is too long", name);
        if (put(w, sister, -1, err))
            return -1;
    }
    return 0;
}

int kd_source_list_web(struct kd_source *s, const char *where, struct kd_err *err)
{
    struct kd_origin o;
    struct web *w;
    char name[KD_SOURCE_NAME_MAX];
    if (kd_url_origin(&o, where, err))
        return -1;
    size_t path = strcspn(where, "?#"), n = path;
    const char *host = strstr(where, "://") + 3;
    while (n && where[n - 1] != '/')
        n--;
    if (where + n <= host) /* https://host */
        n = path;
    if (path - n >= sizeof name || path >= KD_URL_MAX - 2)
        return kd_fail(err, KD_EINVAL, "'%s' is too long", s->where);
    memcpy(name, where + n, path - n);
    name[path - n] = 0;
    if (kd_mem_zero(&w, 1, sizeof *w, "list", err))
        return -1;
    w->s = s;
    int rc;
    if (!kd_url_unescape(name) && is_file(name)) {
        snprintf(w->base, sizeof w->base, "%.*s", (int)n, where);
        rc = one_file(w, where, name, err);
    } else if (where[path]) {
        rc = kd_fail(err, KD_EINVAL, "'%s': a folder's address has no '?' or '#'", s->where);
    } else {
        snprintf(w->base, sizeof w->base, "%.*s%s", (int)path, where,
                 where[path - 1] == '/' ? "" : "/");
        rc = folder(w, err);
    }
    kd_mem_free(w->seen);
    kd_mem_free(w);
    return rc;
}
