#include "base/mem.h"
#include "text/chat.h"
#include "text/jtree.h"
#include "text/uclass.h"

#include <string.h>

enum { TAG_BYTES_MAX = 64 << 10, TURN_BYTES_MAX = 256 << 20, TOKEN_BYTES_MAX = 1024 };

enum where {
    IN_THINK,
    IN_GAP, /* between think, response and tools */
    IN_RESPONSE,
    IN_TOOLS,
    IN_CALL,
    IN_ARG,
    AFTER_TOOLS, /* what looks like a call here is none */
    AFTER_MESSAGE,
    AT_END
};

struct kd_turn {
    const struct kd_tok *tok;
    void (*on)(void *ctx, enum kd_turn_part part, const char *name, const char *type,
               const char *text, size_t bytes);
    void *ctx;
    int32_t open, close, sep, stop, eos;
    enum where where;
    bool mute;      /* the call has no name: nothing of it is told */
    int32_t tag_id; /* open or close while a tag is being read, else -1 */
    bool tag_too_long;
    struct kd_buf tag, name, type; /* name, type: scratch for attributes */
    unsigned char held[4];         /* bytes of a character not yet complete */
    size_t held_bytes;
};

int kd_turn_open(struct kd_turn **turn, const struct kd_tok *tok, enum kd_turn_part start,
                 void (*on)(void *ctx, enum kd_turn_part part, const char *name, const char *type,
                            const char *text, size_t bytes),
                 void *ctx, struct kd_err *err)
{
    struct kd_turn *t;
    *turn = NULL;
    if (start != KD_TURN_THINK && start != KD_TURN_RESPONSE)
        return kd_fail(err, KD_EINVAL, "a turn starts with thinking or the response");
    if (kd_mem_zero(&t, 1, sizeof *t, "turn", err))
        return -1;
    t->tok = tok;
    t->on = on;
    t->ctx = ctx;
    t->open = kd_tok_special(tok, "<|open|>");
    t->close = kd_tok_special(tok, "<|close|>");
    t->sep = kd_tok_special(tok, "<|sep|>");
    t->stop = kd_tok_special(tok, "<|end_of_msg|>");
    t->eos = kd_tok_special(tok, "[EOS]");
    t->where = start == KD_TURN_THINK ? IN_THINK : IN_RESPONSE;
    t->tag_id = -1;
    kd_buf_init(&t->tag, TAG_BYTES_MAX);
    kd_buf_init(&t->name, 4 * TAG_BYTES_MAX);
    kd_buf_init(&t->type, 4 * TAG_BYTES_MAX);
    if (t->open < 0 || t->close < 0 || t->sep < 0 || t->stop < 0) {
        kd_turn_close(t);
        return kd_fail(err, KD_ENOTSUP, "the tokenizer lacks the chat format's control tokens");
    }
    *turn = t;
    return 0;
}

void kd_turn_close(struct kd_turn *t)
{
    if (!t)
        return;
    kd_buf_release(&t->tag);
    kd_buf_release(&t->name);
    kd_buf_release(&t->type);
    kd_mem_free(t);
}

static void tell(struct kd_turn *t, enum kd_turn_part part, const char *name, const char *type)
{
    if (!t->mute)
        t->on(t->ctx, part, name, type, NULL, 0);
}

/* Whether s, which is no whole character, may become one with more bytes. */
static bool may_grow(const unsigned char *s, size_t left)
{
    size_t need = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || left >= need)
        return false;
    for (size_t i = 1; i < left; i++)
        if ((s[i] & 0xc0) != 0x80)
            return false;
    return true;
}

/* Text of the element we are in; `last` also hands out what is held. */
static void say(struct kd_turn *t, const char *text, size_t bytes, bool last)
{
    unsigned char in[TOKEN_BYTES_MAX + 4];
    char out[3 * sizeof in];
    size_t n = t->held_bytes + bytes, at = 0, size = 0;
    if (t->where != IN_THINK && t->where != IN_RESPONSE && t->where != IN_ARG)
        return;
    memcpy(in, t->held, t->held_bytes);
    if (bytes)
        memcpy(in + t->held_bytes, text, bytes);
    t->held_bytes = 0;
    while (at < n) {
        uint32_t cp;
        size_t c = kd_utf8_char(in + at, n - at, &cp);
        if (!c && !last && may_grow(in + at, n - at)) {
            t->held_bytes = n - at;
            memcpy(t->held, in + at, n - at);
            break;
        }
        memcpy(out + size, c ? (const void *)(in + at) : "\xef\xbf\xbd", c ? c : 3);
        size += c ? c : 3;
        at += c ? c : 1;
    }
    enum kd_turn_part part = t->where == IN_THINK      ? KD_TURN_THINK
                             : t->where == IN_RESPONSE ? KD_TURN_RESPONSE
                                                       : KD_TURN_ARG;
    if (size && !t->mute)
        t->on(t->ctx, part, NULL, NULL, out, size);
}

static void go(struct kd_turn *t, enum where where)
{
    say(t, NULL, 0, true);
    t->where = where;
}

static void leave_arg(struct kd_turn *t)
{
    if (t->where != IN_ARG)
        return;
    go(t, IN_CALL);
    tell(t, KD_TURN_ARG_END, NULL, NULL);
}

static void leave_call(struct kd_turn *t)
{
    leave_arg(t);
    if (t->where != IN_CALL)
        return;
    tell(t, KD_TURN_CALL_END, NULL, NULL);
    t->mute = false;
    t->where = IN_TOOLS;
}

static bool is_gap(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Adds text with &quot; and &amp; undone and each byte that is not UTF-8 as U+FFFD. */
static void unescape(struct kd_buf *out, const char *s, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        uint32_t cp;
        size_t left = bytes - at, n = kd_utf8_char((const unsigned char *)s + at, left, &cp);
        if (left >= 6 && !memcmp(s + at, "&quot;", 6)) {
            kd_buf_char(out, '"');
            n = 6;
        } else if (left >= 5 && !memcmp(s + at, "&amp;", 5)) {
            kd_buf_char(out, '&');
            n = 5;
        } else {
            kd_buf_add(out, n ? s + at : "\xef\xbf\xbd", n ? n : 3);
        }
        at += n ? n : 1;
    }
}

/* The value of an attribute of the tag into out; false if the tag has none of that name. Gaps are
 * taken where they should not be, and a missing last quote. */
static bool find_attr(const struct kd_buf *tag, const char *key, struct kd_buf *out)
{
    const char *s = tag->data, *end = s + tag->size_bytes;
    kd_buf_clear(out);
    while (s < end && is_gap(*s))
        s++;
    while (s < end && !is_gap(*s))
        s++;
    while (s < end) {
        while (s < end && is_gap(*s))
            s++;
        const char *name = s, *value;
        while (s < end && *s != '=' && !is_gap(*s))
            s++;
        size_t name_bytes = (size_t)(s - name);
        while (s < end && is_gap(*s))
            s++;
        if (s == end || *s != '=')
            continue;
        for (s++; s < end && is_gap(*s);)
            s++;
        bool quoted = s < end && *s == '"';
        value = s += quoted;
        while (s < end && (quoted ? *s != '"' : !is_gap(*s)))
            s++;
        if (name_bytes == strlen(key) && !memcmp(name, key, name_bytes)) {
            unescape(out, value, (size_t)(s - value));
            kd_buf_char(out, 0);
            return true;
        }
        s += quoted && s < end;
    }
    return false;
}

/* Whether the tag's name, gaps around it aside, is `name`. */
static bool tag_is(const struct kd_buf *tag, const char *name)
{
    const char *s = tag->data, *end = s + tag->size_bytes;
    size_t n = strlen(name);
    while (s < end && is_gap(*s))
        s++;
    return (size_t)(end - s) >= n && !memcmp(s, name, n) && (s + n == end || is_gap(s[n]));
}

static void opened(struct kd_turn *t)
{
    bool early = t->where == IN_THINK || t->where == IN_GAP || t->where == IN_RESPONSE;
    bool calls = t->where == IN_TOOLS || t->where == IN_CALL || t->where == IN_ARG;
    if (early && tag_is(&t->tag, "think")) {
        go(t, IN_THINK);
    } else if (early && tag_is(&t->tag, "response")) {
        go(t, IN_RESPONSE);
    } else if (early && tag_is(&t->tag, "tools")) {
        go(t, IN_TOOLS);
    } else if ((early || calls) && tag_is(&t->tag, "call")) {
        leave_call(t);
        go(t, IN_CALL);
        t->mute = !find_attr(&t->tag, "tool", &t->name);
        tell(t, KD_TURN_CALL_BEGIN, t->name.data, NULL);
    } else if ((t->where == IN_CALL || t->where == IN_ARG) && tag_is(&t->tag, "argument") &&
               find_attr(&t->tag, "key", &t->name)) {
        bool typed = find_attr(&t->tag, "type", &t->type);
        leave_arg(t);
        go(t, IN_ARG);
        tell(t, KD_TURN_ARG_BEGIN, t->name.data, typed ? t->type.data : "string");
    }
}

static void closed(struct kd_turn *t)
{
    bool calls = t->where == IN_TOOLS || t->where == IN_CALL || t->where == IN_ARG;
    if (t->where == IN_THINK && tag_is(&t->tag, "think")) {
        go(t, IN_GAP);
    } else if ((t->where == IN_THINK || t->where == IN_RESPONSE) && tag_is(&t->tag, "response")) {
        go(t, IN_GAP);
    } else if (tag_is(&t->tag, "argument")) {
        leave_arg(t);
    } else if (tag_is(&t->tag, "call")) {
        leave_call(t);
    } else if (calls && tag_is(&t->tag, "tools")) {
        leave_call(t);
        t->where = AFTER_TOOLS;
    } else if (tag_is(&t->tag, "message")) {
        leave_call(t);
        go(t, AFTER_MESSAGE);
    }
}

/* The tag that was being read is over. */
static void end_tag(struct kd_turn *t)
{
    if (t->tag_id >= 0 && !t->tag_too_long && t->tag.size_bytes) {
        if (t->tag_id == t->open)
            opened(t);
        else
            closed(t);
    }
    t->tag_id = -1;
}

static void end_turn(struct kd_turn *t, bool stopped)
{
    if (stopped)
        leave_call(t);
    go(t, AT_END);
    t->mute = false;
    tell(t, KD_TURN_END, NULL, NULL);
}

static int checked(struct kd_turn *t, int rc, struct kd_err *err)
{
    return t->name.failed || t->type.failed ? kd_fail(err, KD_ENOMEM, "no memory for a tag") : rc;
}

int kd_turn_feed(struct kd_turn *t, int32_t id, struct kd_err *err)
{
    size_t n;
    const char *s = kd_tok_bytes(t->tok, id, &n);
    if (!s || n > TOKEN_BYTES_MAX)
        return kd_fail(err, KD_EINVAL, "id %d is outside the vocabulary", id);
    if (t->where == AT_END)
        return 1;
    if (id == t->stop || id == t->eos) {
        end_turn(t, true);
        return checked(t, 1, err);
    }
    if (id == t->open || id == t->close) {
        end_tag(t);
        t->tag_id = id;
        t->tag_too_long = false;
        kd_buf_clear(&t->tag);
    } else if (id == t->sep) {
        end_tag(t);
    } else if (!kd_tok_is_special(t->tok, id)) {
        if (t->tag_id < 0) {
            say(t, s, n, false);
        } else {
            kd_buf_add(&t->tag, s, n);
            t->tag_too_long = t->tag_too_long || t->tag.failed;
        }
    }
    return checked(t, 0, err);
}

int kd_turn_finish(struct kd_turn *t, struct kd_err *err)
{
    if (t->where != AT_END)
        end_turn(t, false);
    return checked(t, 0, err);
}

/* Collects a turn. */
struct collector {
    struct kd_turn_text *out;
    struct kd_buf name, args, value; /* args: members written so far, without the braces */
    bool string, failed;
};

/* Whether text is a JSON value that may lie one level deep. */
static bool is_json(const struct kd_buf *text)
{
    struct kd_jtree t;
    struct kd_buf deep;
    const char *s = text->data ? text->data : "";
    if (kd_jtree_parse(&t, s, text->size_bytes, NULL))
        return false;
    kd_jtree_release(&t);
    kd_buf_init(&deep, TURN_BYTES_MAX);
    kd_buf_char(&deep, '[');
    kd_buf_add(&deep, s, text->size_bytes);
    kd_buf_char(&deep, ']');
    bool ok = !deep.failed && !kd_jtree_parse(&t, deep.data, deep.size_bytes, NULL);
    if (ok)
        kd_jtree_release(&t);
    kd_buf_release(&deep);
    return ok;
}

static void end_argument(struct collector *c)
{
    if (!c->string && is_json(&c->value))
        kd_buf_add(&c->args, c->value.data, c->value.size_bytes);
    else
        kd_jtree_quote(&c->args, c->value.data ? c->value.data : "", c->value.size_bytes);
}

static void end_call(struct collector *c)
{
    struct kd_buf *out = &c->out->calls_json;
    struct kd_jtree t;
    kd_buf_char(&c->args, '}');
    if (c->args.failed || kd_jtree_parse(&t, c->args.data, c->args.size_bytes, NULL)) {
        c->failed = true;
        return;
    }
    kd_buf_str(out, c->out->call_count++ ? ",{\"name\":" : "{\"name\":");
    kd_jtree_quote(out, c->name.data, c->name.size_bytes);
    kd_buf_str(out, ",\"arguments\":");
    if (kd_jtree_dump(out, &t, kd_jtree_root(&t), KD_JSTYLE_COMPACT, NULL))
        c->failed = true;
    kd_buf_char(out, '}');
    kd_jtree_release(&t);
}

static void collect(void *ctx, enum kd_turn_part part, const char *name, const char *type,
                    const char *text, size_t bytes)
{
    struct collector *c = ctx;
    switch (part) {
    case KD_TURN_THINK:
        kd_buf_add(&c->out->think, text, bytes);
        break;
    case KD_TURN_RESPONSE:
        kd_buf_add(&c->out->content, text, bytes);
        break;
    case KD_TURN_CALL_BEGIN:
        kd_buf_clear(&c->name);
        kd_buf_str(&c->name, name);
        kd_buf_clear(&c->args);
        kd_buf_char(&c->args, '{');
        break;
    case KD_TURN_ARG_BEGIN:
        if (c->args.size_bytes > 1)
            kd_buf_char(&c->args, ',');
        kd_jtree_quote(&c->args, name, strlen(name));
        kd_buf_char(&c->args, ':');
        c->string = !strcmp(type, "string");
        kd_buf_clear(&c->value);
        break;
    case KD_TURN_ARG:
        kd_buf_add(&c->value, text, bytes);
        break;
    case KD_TURN_ARG_END:
        end_argument(c);
        break;
    case KD_TURN_CALL_END:
        end_call(c);
        break;
    case KD_TURN_END:
        break;
    }
}

int kd_turn_parse(const struct kd_tok *tok, enum kd_turn_part start, const int32_t *ids,
                  int64_t count, struct kd_turn_text *out, struct kd_err *err)
{
    struct collector c = {.out = out};
    struct kd_turn *t;
    struct kd_buf *all[] = {&out->think, &out->content, &out->calls_json,
                            &c.name,     &c.args,       &c.value};
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        kd_buf_init(all[i], TURN_BYTES_MAX);
        kd_buf_add(all[i], "", 0);
    }
    kd_buf_char(&out->calls_json, '[');
    int rc = kd_turn_open(&t, tok, start, collect, &c, err);
    for (int64_t i = 0; i < count && !rc; i++)
        rc = kd_turn_feed(t, ids[i], err);
    out->ended = rc == 1;
    if (rc >= 0)
        rc = kd_turn_finish(t, err);
    kd_turn_close(t);
    kd_buf_char(&out->calls_json, ']');
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        c.failed = c.failed || all[i]->failed;
    if (!rc && c.failed)
        rc = kd_fail(err, KD_ENOMEM, "the turn does not fit into memory");
    for (size_t i = 3; i < sizeof all / sizeof *all; i++)
        kd_buf_release(all[i]);
    if (rc)
        kd_turn_text_release(out);
    return rc;
}

void kd_turn_text_release(struct kd_turn_text *t)
{
    kd_buf_release(&t->think);
    kd_buf_release(&t->content);
    kd_buf_release(&t->calls_json);
    memset(t, 0, sizeof *t);
}
