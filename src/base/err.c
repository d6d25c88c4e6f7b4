#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int fill(struct kd_err *err, enum kd_code code, int sys, const char *fmt, va_list ap)
{
    if (!err)
        return -1;
    err->code = code;
    err->sys = sys;
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    return -1;
}

int(kd_fail)(struct kd_err *err, enum kd_code code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fill(err, code, 0, fmt, ap);
    va_end(ap);
    return -1;
}

int(kd_fail_sys)(struct kd_err *err, const char *fmt, ...)
{
    int sys = errno;
    va_list ap;
    va_start(ap, fmt);
    fill(err, sys == ENOMEM ? KD_ENOMEM : KD_EIO, sys, fmt, ap);
    va_end(ap);
    if (err) {
        size_t used = strlen(err->msg);
        char text[96];
        snprintf(err->msg + used, sizeof err->msg - used, ": %s",
                 strerror_r(sys, text, sizeof text));
    }
    return -1;
}

int(kd_wrap)(struct kd_err *err, const char *fmt, ...)
{
    if (!err)
        return -1;
    char old[sizeof err->msg];
    memcpy(old, err->msg, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    size_t used = strlen(err->msg);
    snprintf(err->msg + used, sizeof err->msg - used, ": %.*s",
             (int)(sizeof err->msg - used - 3 > sizeof err->msg ? 0 : sizeof err->msg - used - 3),
             old);
    return -1;
}

int kd_err_exit(const struct kd_err *err)
{
    switch (err->code) {
    case KD_OK:
        return KD_EXIT_DONE;
    case KD_EUSAGE:
        return KD_EXIT_USAGE;
    case KD_EGATE:
        return KD_EXIT_GATE;
    case KD_ECANCEL:
        return KD_EXIT_STOPPED;
    case KD_EINVAL:
    case KD_ENOMEM:
    case KD_EIO:
    case KD_ENET:
    case KD_EREMOTE:
    case KD_ECORRUPT:
    case KD_ENOTSUP:
    case KD_EGPU:
    case KD_ETIMEOUT:
    case KD_CODE_COUNT:
        return KD_EXIT_FAILED;
    }
    return KD_EXIT_FAILED;
}

const char *kd_code_name(enum kd_code code)
{
    static const char *const names[KD_CODE_COUNT] = {
        [KD_OK] = "ok",          [KD_EINVAL] = "invalid",   [KD_EUSAGE] = "usage",
        [KD_ENOMEM] = "memory",  [KD_EIO] = "io",           [KD_ENET] = "net",
        [KD_EREMOTE] = "remote", [KD_ECORRUPT] = "corrupt", [KD_ENOTSUP] = "unsupported",
        [KD_EGPU] = "gpu",       [KD_ETIMEOUT] = "timeout", [KD_ECANCEL] = "stopped",
        [KD_EGATE] = "gate",
    };
    return code >= 0 && code < KD_CODE_COUNT ? names[code] : "unknown";
}
