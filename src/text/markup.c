/* Ids of rendered chats and of text with control tokens written out. */
#include "text/chat.h"

#include <string.h>

int kd_chat_ids_of(const struct kd_chat *c, int64_t first, int64_t count, const struct kd_tok *tok,
                   struct kd_ids *out, struct kd_err *err)
{
    for (int64_t i = first; i < first + count; i++) {
        const struct kd_segment *s = &c->seg[i];
        const char *text = c->text.data + s->begin;
        size_t n;
        int32_t id = s->markup ? kd_tok_special_at(tok, text, s->bytes, &n) : -1;
        int rc = id >= 0 && n == s->bytes ? kd_ids_add(out, id, err)
                                          : kd_tok_encode(tok, text, s->bytes, out, err);
        if (rc)
            return -1;
    }
    return 0;
}

int kd_chat_ids(const struct kd_chat *c, const struct kd_tok *tok, struct kd_ids *out,
                struct kd_err *err)
{
    return kd_chat_ids_of(c, 0, c->count, tok, out, err);
}

/* ` key="value"` at s: lengths of the four pieces, or false. */
static bool find_attr(const char *s, size_t left, size_t piece[4])
{
    const char *mid, *end;
    if (left < 5 || *s != ' ' || !(mid = memmem(s, left, "=\"", 2)))
        return false;
    size_t value = (size_t)(mid - s) + 2;
    if (!(end = memchr(s + value, '"', left - value)))
        return false;
    piece[0] = (size_t)(mid - s);
    piece[1] = 2;
    piece[2] = (size_t)(end - s) - value;
    piece[3] = 1;
    return true;
}

/* A tag between its control tokens, in the pieces the template would have made. */
static int tag_ids(const struct kd_tok *tok, const char *s, size_t left, struct kd_ids *out,
                   struct kd_err *err)
{
    size_t piece[4];
    const char *gap = memchr(s, ' ', left);
    size_t n = gap ? (size_t)(gap - s) : left;
    if (kd_tok_encode(tok, s, n, out, err))
        return -1;
    for (s += n, left -= n; find_attr(s, left, piece);)
        for (int i = 0; i < 4; s += piece[i], left -= piece[i], i++)
            if (kd_tok_encode(tok, s, piece[i], out, err))
                return -1;
    return kd_tok_encode(tok, s, left, out, err);
}

int kd_chat_markup_ids(const struct kd_tok *tok, const char *text, size_t bytes, struct kd_ids *out,
                       struct kd_err *err)
{
    int32_t open = kd_tok_special(tok, "<|open|>"), before = -1;
    for (size_t begin = 0, at = 0, n;; at++) {
        int32_t id = at < bytes ? kd_tok_special_at(tok, text + at, bytes - at, &n) : -1;
        if (id < 0 && at < bytes)
            continue;
        int rc = open >= 0 && before == open
                     ? tag_ids(tok, text + begin, at - begin, out, err)
                     : kd_tok_encode(tok, text + begin, at - begin, out, err);
        if (rc || (id >= 0 && kd_ids_add(out, id, err)))
            return -1;
        if (id < 0)
            return 0;
        before = id;
        begin = at + n;
        at = begin - 1;
    }
}
