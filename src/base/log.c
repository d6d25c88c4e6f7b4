#include "base/log.h"

#include "base/clock.h"
#include "base/progress.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RULES_MAX = 16 };

static const char *const level_name[] = {"error", "warn", "info", "debug"};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char component[24];
    enum kd_log_level level;
} rules[RULES_MAX];
static int rule_count;
static enum kd_log_level level_default = KD_LOG_WARN;
static FILE *file;

static int level_of(const char *text, size_t bytes)
{
    for (int i = 0; i < 4; i++)
        if (strlen(level_name[i]) == bytes && !memcmp(level_name[i], text, bytes))
            return i;
    return -1;
}

int kd_log_setup(const char *spec, struct kd_err *err)
{
    rule_count = 0;
    level_default = KD_LOG_WARN;
    while (spec && *spec) {
        size_t n = strcspn(spec, ",");
        const char *eq = memchr(spec, '=', n);
        const char *word = eq ? eq + 1 : spec;
        int level = level_of(word, (size_t)(spec + n - word));
        if (level < 0 || (eq && (size_t)(eq - spec) >= sizeof rules[0].component) ||
            (eq && rule_count == RULES_MAX))
            return kd_fail(err, KD_EUSAGE,
                           "log setting '%.*s' is not LEVEL or COMPONENT=LEVEL with LEVEL one of "
                           "error, warn, info, debug",
                           (int)n, spec);
        if (eq) {
            memcpy(rules[rule_count].component, spec, (size_t)(eq - spec));
            rules[rule_count].component[eq - spec] = 0;
            rules[rule_count++].level = (enum kd_log_level)level;
        } else {
            level_default = (enum kd_log_level)level;
        }
        spec += n + (spec[n] == ',');
    }
    return 0;
}

bool kd_log_on(enum kd_log_level level, const char *component)
{
    for (int i = 0; i < rule_count; i++)
        if (!strcmp(rules[i].component, component))
            return level <= rules[i].level;
    return level <= level_default;
}

void kd_log(enum kd_log_level level, const char *component, const char *fmt, ...)
{
    bool to_err = kd_log_on(level, component);
    if (!to_err && level > KD_LOG_INFO)
        return;
    char stamp[32], text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    /* One record, one line: text from outside must not forge another. */
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = ' ';
    kd_clock_stamp(stamp, sizeof stamp);
    pthread_mutex_lock(&lock);
    if (to_err) {
        kd_progress_wipe();
        fprintf(stderr, "t=%s lvl=%s at=%s %s\n", stamp, level_name[level], component, text);
    }
    if (file && level <= KD_LOG_INFO) {
        fprintf(file, "t=%s lvl=%s at=%s %s\n", stamp, level_name[level], component, text);
        fflush(file);
    }
    pthread_mutex_unlock(&lock);
}

int kd_log_file(const char *path, struct kd_err *err)
{
    FILE *next = NULL;
    if (path && !(next = fopen(path, "ae")))
        return kd_fail_sys(err, "cannot write the log '%s'", path);
    pthread_mutex_lock(&lock);
    if (file)
        fclose(file);
    file = next;
    pthread_mutex_unlock(&lock);
    return 0;
}
