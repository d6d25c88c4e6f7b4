#include "net/journal.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/opt.h"
#include "base/show.h"
#include "net/url.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static const char first_words[] = "kondense-fetch 1 ";
static const char *const kinds[] = {"span", "done", "drop"};

static int hex64(const char *text, uint64_t *out)
{
    *out = 0;
    for (int i = 0; i < 16; i++) {
        const char *at = strchr("0123456789abcdef", text[i]);
        if (!text[i] || !at)
            return -1;
        *out = *out << 4 | (uint64_t)(at - "0123456789abcdef");
    }
    return text[16] ? -1 : 0;
}

/* The next word of *at, cut off there; NULL at the end. */
static char *next_word(char **at)
{
    char *word = *at, *blank = strchr(word, ' ');
    if (!blank)
        return NULL;
    *blank = 0;
    *at = blank + 1;
    return word;
}

static int parse_line(char *at, struct kd_journal_line *l)
{
    struct kd_err err;
    char *kind = next_word(&at), *a = kind ? next_word(&at) : NULL;
    char *b = a ? next_word(&at) : NULL, *c = b ? next_word(&at) : NULL;
    if (!c)
        return -1;
    memset(l, 0, sizeof *l);
    for (l->kind = KD_JOURNAL_SPAN; strcmp(kinds[l->kind], kind);)
        if (++l->kind > KD_JOURNAL_DROP)
            return -1;
    if (l->kind == KD_JOURNAL_SPAN) {
        char *tag = next_word(&at);
        if (!tag || kd_parse_int(a, 0, INT64_MAX / 4, &l->begin, &err) ||
            kd_parse_int(b, 1, INT64_MAX / 4, &l->bytes, &err) || hex64(c, &l->xxh) ||
            (strcmp(tag, "-") && hex64(tag, &l->tag)))
            return -1;
    } else if (l->kind == KD_JOURNAL_DONE) {
        if (kd_parse_int(a, 0, INT64_MAX / 4, &l->bytes, &err))
            return -1;
        if (strcmp(b, "-")) {
            if (strlen(b) != 64 || strspn(b, "0123456789abcdef") != 64)
                return -1;
            memcpy(l->sha256, b, 65);
        }
    }
    l->name = at;
    return kd_path_check(at, &err);
}

/* Takes the hash off a line (without its newline): 0 when it is right. */
static int take_hash(char *line, size_t n)
{
    uint64_t told;
    if (n < 18 || line[n - 17] != ' ' || memchr(line, 0, n) || hex64(line + n - 16, &told))
        return -1;
    line[n - 17] = 0;
    return told == kd_xxh64(line, n - 17, 0) ? 0 : -1;
}

static int parse_head(char *at, char *commit, size_t commit_size, char *where, size_t where_size)
{
    if (strncmp(at, first_words, sizeof first_words - 1))
        return -1;
    at += sizeof first_words - 1;
    const char *word = next_word(&at);
    if (!word || strlen(word) >= commit_size || strlen(at) >= where_size)
        return -1;
    snprintf(commit, commit_size, "%s", strcmp(word, "-") ? word : "");
    snprintf(where, where_size, "%s", at);
    return 0;
}

int kd_journal_parse(char *text, size_t bytes, size_t *good, char *commit, size_t commit_size,
                     char *where, size_t where_size, kd_journal_see *see, void *ctx,
                     struct kd_err *err)
{
    struct kd_journal_line l;
    *good = 0;
    *commit = *where = 0;
    for (int n = 1; *good < bytes; n++) {
        char *line = text + *good, *end = memchr(line, '\n', bytes - *good);
        if (!end)
            return 0;
        *end = 0;
        bool last = end + 1 == text + bytes;
        if (take_hash(line, (size_t)(end - line))) {
            if (last) /* torn in the middle of an old block */
                return 0;
            return kd_fail(err, KD_ECORRUPT, "line %d is damaged", n);
        }
        if (n == 1 ? parse_head(line, commit, commit_size, where, where_size)
                   : parse_line(line, &l))
            return kd_fail(err, KD_ECORRUPT, "line %d is not one of a fetch's journal", n);
        if (n > 1 && see && see(ctx, &l, err))
            return -1;
        *good = (size_t)(end + 1 - text);
    }
    return 0;
}

static void add_hashed(struct kd_buf *b, size_t from)
{
    if (b->failed)
        return;
    uint64_t h = kd_xxh64(b->data + from, b->size_bytes - from, 0);
    kd_buf_printf(b, " %016llx\n", (unsigned long long)h);
}

static int begin(struct kd_journal *j, const char *where, const char *commit, struct kd_err *err)
{
    kd_buf_printf(&j->pending, "%s%s %s", first_words, *commit ? commit : "-", where);
    add_hashed(&j->pending, 0);
    return kd_journal_flush(j, err);
}

static int read_old(struct kd_journal *j, const char *path, const char *where, const char *commit,
                    kd_journal_see *see, void *ctx, struct kd_err *err)
{
    char old_commit[64], old_where[1200];
    struct kd_buf text;
    size_t good = 0;
    kd_buf_init(&text, KD_JOURNAL_MAX + 1);
    int rc = kd_file_read(&text, path, KD_JOURNAL_MAX, err);
    if (!rc && text.size_bytes)
        rc = kd_journal_parse(text.data, text.size_bytes, &good, old_commit, sizeof old_commit,
                              old_where, sizeof old_where, see, ctx, err)
                 ? kd_wrap(err, "%s", path)
                 : 0;
    kd_buf_release(&text);
    if (rc)
        return -1;
    if (good && strcmp(old_where, where))
        return kd_fail(err, KD_EUSAGE,
                       "this folder holds a fetch of '%s': choose another, or remove %s", old_where,
                       path);
    if (good && strcmp(old_commit, commit))
        return kd_fail(err, KD_EUSAGE,
                       "the source moved on: this folder was begun from commit %.12s, now it is "
                       "%.12s; fetch that one with @%.12s..., or choose another folder",
                       *old_commit ? old_commit : "none", *commit ? commit : "none", old_commit);
    if (ftruncate(j->fd, (off_t)good) || lseek(j->fd, 0, SEEK_END) < 0)
        return kd_fail_sys(err, "cannot write '%s'", path);
    return good ? 0 : begin(j, where, commit, err);
}

int kd_journal_open(struct kd_journal *j, const char *dst, const char *where, const char *commit,
                    kd_journal_see *see, void *ctx, struct kd_err *err)
{
    char path[4096], shown[1100];
    kd_buf_init(&j->pending, 64 << 20);
    j->fd = -1;
    if (kd_path_join(path, sizeof path, dst, ".fetch", err))
        return -1;
    j->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (j->fd < 0)
        return kd_fail_sys(err, "cannot open '%s'", path);
    if (read_old(j, path, kd_show_text(shown, sizeof shown, where), commit, see, ctx, err)) {
        kd_journal_close(j);
        return -1;
    }
    return 0;
}

void kd_journal_add(struct kd_journal *j, const struct kd_journal_line *l)
{
    size_t from = j->pending.size_bytes;
    if (l->kind == KD_JOURNAL_SPAN && l->tag)
        kd_buf_printf(&j->pending, "span %lld %lld %016llx %016llx %s", (long long)l->begin,
                      (long long)l->bytes, (unsigned long long)l->xxh, (unsigned long long)l->tag,
                      l->name);
    else if (l->kind == KD_JOURNAL_SPAN)
        kd_buf_printf(&j->pending, "span %lld %lld %016llx - %s", (long long)l->begin,
                      (long long)l->bytes, (unsigned long long)l->xxh, l->name);
    else if (l->kind == KD_JOURNAL_DONE)
        kd_buf_printf(&j->pending, "done %lld %s - %s", (long long)l->bytes,
                      *l->sha256 ? l->sha256 : "-", l->name);
    else
        kd_buf_printf(&j->pending, "drop 0 - - %s", l->name);
    add_hashed(&j->pending, from);
}

int kd_journal_write(struct kd_journal *j, struct kd_err *err)
{
    const char *at = j->pending.data;
    size_t left = j->pending.size_bytes;
    if (kd_buf_ok(&j->pending, "the journal", err))
        return -1;
    while (left) {
        ssize_t n = write(j->fd, at, left);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return kd_fail_sys(err, "cannot write the journal of the fetch");
        at += n;
        left -= (size_t)n;
    }
    kd_buf_clear(&j->pending);
    return 0;
}

int kd_journal_flush(struct kd_journal *j, struct kd_err *err)
{
    if (kd_journal_write(j, err))
        return -1;
    if (fdatasync(j->fd))
        return kd_fail_sys(err, "cannot write the journal of the fetch");
    return 0;
}

void kd_journal_close(struct kd_journal *j)
{
    if (j->fd >= 0)
        close(j->fd);
    j->fd = -1;
    kd_buf_release(&j->pending);
}
