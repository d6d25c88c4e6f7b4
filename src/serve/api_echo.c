#include "serve/api_echo.h"

#include "serve/said.h"

enum { ARGS_BYTES_MAX = 256 << 20 };

static void add_node(struct kd_said_message *m, const struct kd_jnode *v)
{
    kd_said_text(m, v ? v->text : "", v ? v->bytes : 0);
}

/* Content, or its parts, as one text. */
static void add_content(struct kd_said_message *m, const struct kd_jtree *t,
                        const struct kd_jnode *content)
{
    struct kd_buf all;
    if (!content || content->kind == KD_JSON_STR) {
        add_node(m, content);
        return;
    }
    kd_buf_init(&all, KD_ASK_BYTES_MAX);
    for (const struct kd_jnode *p = kd_jtree_first(t, content); p; p = kd_jtree_next(t, p)) {
        const struct kd_jnode *s = p->kind == KD_JSON_STR ? p : kd_jtree_get(t, p, "text");
        if (s)
            kd_buf_add(&all, s->text, s->bytes);
    }
    m->b.failed = m->b.failed || all.failed;
    kd_said_text(m, all.data ? all.data : "", all.size_bytes);
    kd_buf_release(&all);
}

static const char *text_of(const struct kd_jnode *v)
{
    return v && v->kind == KD_JSON_STR ? v->text : "";
}

static void add_call(struct kd_said_message *m, const struct kd_jtree *t,
                     const struct kd_jnode *call)
{
    const struct kd_jnode *f = kd_jtree_get(t, call, "function"),
                          *args = kd_jtree_get(t, f, "arguments");
    const char *id = text_of(kd_jtree_get(t, call, "id")),
               *name = text_of(kd_jtree_get(t, f, "name"));
    struct kd_buf text;
    if (!args || args->kind == KD_JSON_STR) {
        kd_said_call(m, id, name, args ? args->text : "{}", args ? args->bytes : 2);
        return;
    }
    kd_buf_init(&text, ARGS_BYTES_MAX);
    if (kd_jtree_dump(&text, t, args, KD_JSTYLE_COMPACT, NULL) || text.failed)
        m->b.failed = true;
    else
        kd_said_call(m, id, name, text.data, text.size_bytes);
    kd_buf_release(&text);
}

/* The key of a message that a client sent back. */
static int key_of(const struct kd_jtree *t, const struct kd_jnode *message, const char *owner,
                  bool thinking, char key[65])
{
    struct kd_said_message m;
    const struct kd_jnode *why = kd_jtree_get(t, message, "reasoning_content"),
                          *calls = kd_jtree_get(t, message, "tool_calls");
    kd_said_begin(&m, owner, thinking);
    add_node(&m, why ? why : kd_jtree_get(t, message, "reasoning"));
    add_content(&m, t, kd_jtree_get(t, message, "content"));
    for (const struct kd_jnode *c = kd_jtree_first(t, calls); c; c = kd_jtree_next(t, c))
        add_call(&m, t, c);
    return kd_said_key(&m, key);
}

int kd_echo_ids(struct kd_api *api, const char *owner, const struct kd_jtree *t,
                const struct kd_jnode *messages, bool thinking, const struct kd_chat *chat,
                struct kd_ids *out, struct kd_err *err)
{
    const struct kd_jnode *m = kd_jtree_first(t, messages);
    int64_t at = 0, number = 0;
    for (int64_t i = 0; i < chat->turns; i++) {
        const struct kd_chat_turn *turn = &chat->turn[i];
        char key[65];
        for (; m && number < turn->message; number++)
            m = kd_jtree_next(t, m);
        if (kd_chat_ids_of(chat, at, turn->first - at, api->tok, out, err))
            return -1;
        at = turn->first;
        if (m && !key_of(t, m, owner, thinking, key) && kd_said_get(api->said, key, out))
            at += turn->count;
    }
    return kd_chat_ids_of(chat, at, chat->count - at, api->tok, out, err);
}

void kd_echo_keep(struct kd_api *api, const char *owner, const struct kd_choice *c, bool thinking,
                  const struct kd_ids *made)
{
    struct kd_said_message m;
    char key[65];
    bool whole =
        made->count && made->id[made->count - 1] == kd_tok_special(api->tok, "<|end_of_msg|>");
    for (int64_t i = 0; i < c->call_count; i++)
        whole = whole && c->calls[i]->complete;
    if (!whole)
        return;
    kd_said_begin(&m, owner, thinking);
    kd_said_text(&m, c->think.data ? c->think.data : "", c->think.size_bytes);
    kd_said_text(&m, c->text.data ? c->text.data : "", c->text.size_bytes);
    for (int64_t i = 0; i < c->call_count; i++) {
        const struct kd_call *k = c->calls[i];
        kd_said_call(&m, k->id, k->name.data, k->args.data, k->args.size_bytes);
    }
    if (!kd_said_key(&m, key))
        kd_said_put(api->said, key, made->id, made->count);
}
