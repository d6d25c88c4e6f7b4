#include "cmd/remote.h"

#include "base/file.h"
#include "cmd/cmd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kd_remote_flags kd_remote;

static bool stopped(void)
{
    return kd_cmd_stop;
}

static const char *env(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

static bool env_true(const char *name)
{
    const char *v = env(name);
    return v && strcmp(v, "0") && strcmp(v, "false") && strcmp(v, "no") && strcmp(v, "OFF");
}

/* The token of a file, without the line end; "" when there is none. */
static int token_file(const char *path, char *out, size_t size, struct kd_err *err)
{
    struct kd_buf text;
    *out = 0;
    if (!kd_file_exists(path))
        return 0;
    kd_buf_init(&text, 4096);
    int rc = kd_file_read(&text, path, 2048, err);
    if (!rc && text.data) {
        size_t from = strspn(text.data, " \t\r\n");
        size_t n = strcspn(text.data + from, " \t\r\n");
        if (n >= size)
            rc = kd_fail(err, KD_EINVAL, "'%s' holds no token: it is too long", path);
        else
            snprintf(out, size, "%.*s", (int)n, text.data + from);
    }
    kd_buf_release(&text);
    return rc;
}

int kd_cmd_source_opts(struct kd_source_opts *so, struct kd_err *err)
{
    static char home[2048], cache[2200], file[2200], token[1100];
    memset(so, 0, sizeof *so);
    const char *hf = env("HF_HOME"), *xdg = env("XDG_CACHE_HOME"), *user = env("HOME");
    int n = hf    ? snprintf(home, sizeof home, "%s", hf)
            : xdg ? snprintf(home, sizeof home, "%s/huggingface", xdg)
                  : snprintf(home, sizeof home, "%s/.cache/huggingface", user ? user : "");
    if (n >= (int)sizeof home)
        return kd_fail(err, KD_EUSAGE, "HF_HOME is too long");
    const char *hub = env("HF_HUB_CACHE"), *path = env("HF_TOKEN_PATH"), *given = env("HF_TOKEN");
    if ((hub ? snprintf(cache, sizeof cache, "%s", hub)
             : snprintf(cache, sizeof cache, "%s/hub", home)) >= (int)sizeof cache ||
        (path ? snprintf(file, sizeof file, "%s", path)
              : snprintf(file, sizeof file, "%s/token", home)) >= (int)sizeof file)
        return kd_fail(err, KD_EUSAGE, "HF_HUB_CACHE or HF_TOKEN_PATH is too long");
    if (given ? snprintf(token, sizeof token, "%s", given) >= (int)sizeof token
              : token_file(file, token, sizeof token, err))
        return given ? kd_fail(err, KD_EUSAGE, "HF_TOKEN is too long") : -1;
    so->get.jobs = (int)kd_remote.jobs;
    so->get.rate = kd_remote.rate;
    so->get.allow_http = kd_remote.allow_http;
    so->get.allow_private = kd_remote.allow_private;
    so->get.proxied = env("https_proxy") || env("HTTPS_PROXY") || env("http_proxy") ||
                      env("all_proxy") || env("ALL_PROXY");
    so->get.stopped = stopped;
    so->endpoint = env("HF_ENDPOINT");
    so->token = *token ? token : NULL;
    so->token_to_endpoint = kd_remote.token_to_endpoint;
    so->hub_cache = cache;
    so->offline = env_true("HF_HUB_OFFLINE");
    return 0;
}
