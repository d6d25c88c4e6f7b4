#include "base/opt.h"

#include "base/assert.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <popt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPTS_MAX = 64 };

int kd_parse_int(const char *text, int64_t min, int64_t max, int64_t *out, struct kd_err *err)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno || isspace((unsigned char)*text))
        return kd_fail(err, KD_EUSAGE, "'%s' is not a whole number", text);
    if (v < min || v > max)
        return kd_fail(err, KD_EUSAGE, "%s is outside %lld to %lld", text, (long long)min,
                       (long long)max);
    *out = v;
    return 0;
}

int kd_parse_num(const char *text, double *out, struct kd_err *err)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || isspace((unsigned char)*text) || !isfinite(v))
        return kd_fail(err, KD_EUSAGE, "'%s' is not a number", text);
    *out = v;
    return 0;
}

int kd_parse_size(const char *text, int64_t *out, struct kd_err *err)
{
    static const char units[] = "kMGT";
    char *end;
    double v = strtod(text, &end);
    const char *unit = *end ? strchr(units, *end == 'K' ? 'k' : *end) : NULL;
    if (end == text || isspace((unsigned char)*text) || !(v >= 0) ||
        (*end && (!unit || (end[1] && strcmp(end + 1, "iB") != 0 && strcmp(end + 1, "B") != 0))))
        return kd_fail(err, KD_EUSAGE, "'%s' is not a size such as 4096, 700M or 1.5G", text);
    for (const char *u = units; unit && u <= unit; u++)
        v *= 1024;
    if (v > 9e18)
        return kd_fail(err, KD_EUSAGE, "'%s' is too large", text);
    *out = (int64_t)v;
    return 0;
}

void kd_size_text(char *out, size_t size, int64_t bytes)
{
    static const char units[] = "TGMk";
    for (int u = 0; u < 4; u++) {
        int shift = 10 * (4 - u);
        if (bytes >> shift >= 100 || (bytes && bytes % (1LL << shift) == 0)) {
            snprintf(out, size, "%lld%c", (long long)((bytes - 1) >> shift) + 1, units[u]);
            return;
        }
    }
    snprintf(out, size, "%lld", (long long)bytes);
}

static int chosen(const char *choices, const char *value)
{
    size_t n = strlen(value);
    for (const char *c = choices; *c;) {
        size_t m = strcspn(c, "|");
        if (m == n && !memcmp(c, value, n))
            return 1;
        c += m + (c[m] == '|');
    }
    return 0;
}

static int add_to_list(struct kd_opt_list *list, const char *value, struct kd_err *err)
{
    if (list->environment)
        *list = (struct kd_opt_list){.count = 0};
    if (list->count == KD_OPT_LIST_MAX)
        return kd_fail(err, KD_EUSAGE, "given more than %d times", KD_OPT_LIST_MAX);
    list->v[list->count++] = value;
    return 0;
}

static int set_size(const struct kd_opt *o, const char *value, struct kd_err *err)
{
    int64_t bytes;
    char least[32], most[32];
    if (kd_parse_size(value, &bytes, err))
        return -1;
    if (o->max > o->min && (bytes < o->min || bytes > o->max)) {
        kd_size_text(least, sizeof least, o->min);
        kd_size_text(most, sizeof most, o->max);
        return kd_fail(err, KD_EUSAGE, "%s is outside %s to %s", value, least, most);
    }
    *(int64_t *)o->out = bytes;
    return 0;
}

static int set(const struct kd_opt *o, const char *value, struct kd_err *err)
{
    double num = 0;
    switch (o->type) {
    case KD_OPT_FLAG:
        *(bool *)o->out = strcmp(value, "0") != 0;
        return 0;
    case KD_OPT_INT:
        return kd_parse_int(value, o->min, o->max, o->out, err);
    case KD_OPT_NUM:
        if (kd_parse_num(value, &num, err))
            return -1;
        if (o->num_max > o->num_min && (num < o->num_min || num > o->num_max))
            return kd_fail(err, KD_EUSAGE, "%s is outside %g to %g", value, o->num_min, o->num_max);
        *(double *)o->out = num;
        return 0;
    case KD_OPT_STR:
        if (o->choices && !chosen(o->choices, value))
            return kd_fail(err, KD_EUSAGE, "'%s' is not one of %s", value, o->choices);
        *(const char **)o->out = value;
        return 0;
    case KD_OPT_SIZE:
        return set_size(o, value, err);
    case KD_OPT_LIST:
        return add_to_list(o->out, value, err);
    }
    return 0;
}

/* KONDENSE_LOG and KONDENSE_ISA are the program's own and no option's. */
static bool is_programs_own(const char *name)
{
    return !strcmp(name, "log") || !strcmp(name, "isa");
}

static int from_environment(const struct kd_cmd *cmd, struct kd_err *err)
{
    for (const struct kd_opt *o = cmd->opts; o && o->name; o++) {
        if (is_programs_own(o->name))
            continue;
        char name[64] = "KONDENSE_";
        size_t n = strlen(name);
        for (const char *c = o->name; *c && n + 1 < sizeof name; c++)
            name[n++] = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
        name[n] = 0;
        const char *value = getenv(name);
        if (value && *value && set(o, value, err))
            return kd_wrap(err, "environment variable %s", name);
        if (value && *value && o->type == KD_OPT_LIST)
            ((struct kd_opt_list *)o->out)->environment = true;
    }
    return 0;
}

int kd_opt_parse(const struct kd_cmd *cmd, int argc, const char **argv, const char **args,
                 int *argc_out, bool *help, struct kd_err *err)
{
    struct poptOption table[OPTS_MAX + 2];
    char *text[OPTS_MAX];
    int n = 0, rc;
    memset(table, 0, sizeof table);
    memset(text, 0, sizeof text);
    *argc_out = 0;
    *help = false;
    for (const struct kd_opt *o = cmd->opts; o && o->name && n < OPTS_MAX; o++, n++)
        table[n] = (struct poptOption){
            o->name, o->letter, o->type == KD_OPT_FLAG ? POPT_ARG_NONE : POPT_ARG_STRING,
            NULL,    n + 1,     NULL,
            NULL};
    table[n] = (struct poptOption){"help", 'h', POPT_ARG_NONE, NULL, OPTS_MAX + 1, NULL, NULL};
    if (from_environment(cmd, err))
        return -1;
    poptContext ctx = poptGetContext(cmd->name, argc, argv, table, 0);
    if (!ctx)
        return kd_fail(err, KD_ENOMEM, "cannot parse the command line");
    int bad = 0;
    while (!bad && (rc = poptGetNextOpt(ctx)) > 0) {
        if (rc == OPTS_MAX + 1) {
            *help = true;
            continue;
        }
        KD_ASSERT(cmd->opts && rc <= n);
        const struct kd_opt *o = &cmd->opts[rc - 1];
        /* The value lives as long as the program: options keep pointers into it. */
        char *value = o->type == KD_OPT_FLAG ? NULL : poptGetOptArg(ctx);
        bad = set(o, value ? value : "1", err);
        if (bad)
            kd_wrap(err, "--%s", o->name);
        if ((o->type != KD_OPT_STR && o->type != KD_OPT_LIST) || bad)
            free(value);
    }
    if (!bad && rc < -1)
        bad = kd_fail(err, KD_EUSAGE, "%s: %s (see kondense %s -h)",
                      poptBadOption(ctx, POPT_BADOPTION_NOALIAS),
                      rc == POPT_ERROR_BADOPT ? "no such option" : poptStrerror(rc), cmd->name);
    const char **rest = bad ? NULL : poptGetArgs(ctx);
    for (; !bad && rest && *rest; rest++) {
        if (*argc_out == cmd->args_max)
            bad = kd_fail(err, KD_EUSAGE, "'%s' is one argument too many: kondense %s %s", *rest,
                          cmd->name, cmd->args);
        else
            args[(*argc_out)++] = strdup(*rest);
    }
    if (!bad && !*help && *argc_out < cmd->args_min)
        bad = kd_fail(err, KD_EUSAGE, "too few arguments: kondense %s %s (see kondense %s -h)",
                      cmd->name, cmd->args, cmd->name);
    poptFreeContext(ctx);
    return bad ? -1 : 0;
}

static void option_head(char *out, size_t size, const struct kd_opt *o)
{
    char letter[8] = "    ";
    if (o->letter)
        snprintf(letter, sizeof letter, "-%c, ", o->letter);
    snprintf(out, size, "%s--%s%s%s", letter, o->name, o->arg ? " " : "", o->arg ? o->arg : "");
}

void kd_opt_help(struct kd_buf *out, const struct kd_cmd *cmd)
{
    kd_buf_printf(out, "kondense %s: %s\n\nusage: kondense %s [options] %s\n\n", cmd->name,
                  cmd->summary, cmd->name, cmd->args);
    size_t wide = 12;
    char head[96];
    for (const struct kd_opt *o = cmd->opts; o && o->name; o++) {
        option_head(head, sizeof head, o);
        if (strlen(head) > wide && strlen(head) <= 28)
            wide = strlen(head);
    }
    for (const struct kd_opt *o = cmd->opts; o && o->name; o++) {
        option_head(head, sizeof head, o);
        kd_buf_printf(out, "  %-*s  %s\n", (int)wide, head, o->help);
    }
    kd_buf_printf(out, "  %-*s  %s\n", (int)wide, "-h, --help", "this text");
    kd_buf_printf(out, "\nexample:\n  %s\n", cmd->example);
}

/* Words mean themselves, also where scdoc looks for lists and tables. */
static void escaped(struct kd_buf *out, const char *text)
{
    bool line_start = true;
    for (; *text; text++) {
        if (strchr("_*\\#<>`", *text) || (line_start && strchr("-.;:|[]!", *text)))
            kd_buf_char(out, '\\');
        kd_buf_char(out, *text);
        line_start = *text == '\n';
    }
}

void kd_opt_man(struct kd_buf *out, const struct kd_cmd *cmd)
{
    kd_buf_printf(out, "kondense-%s(1)\n\n# NAME\n\nkondense-%s - ", cmd->name, cmd->name);
    escaped(out, cmd->summary);
    kd_buf_printf(out, "\n\n# SYNOPSIS\n\n*kondense %s* [options] ", cmd->name);
    escaped(out, cmd->args);
    if (cmd->details) {
        kd_buf_str(out, "\n\n# DESCRIPTION\n\n");
        escaped(out, cmd->details);
    }
    kd_buf_str(out, "\n\n# OPTIONS\n\n");
    for (const struct kd_opt *o = cmd->opts; o && o->name; o++) {
        kd_buf_char(out, '*');
        if (o->letter)
            kd_buf_printf(out, "-%c*, *", o->letter);
        kd_buf_printf(out, "--%s*", o->name);
        if (o->arg) {
            kd_buf_char(out, ' ');
            escaped(out, o->arg);
        }
        kd_buf_str(out, "\n\t");
        escaped(out, o->help);
        kd_buf_str(out, "\n\n");
    }
    kd_buf_str(out,
               "*-h*, *--help*\n\tthis text\n\nEach option can also be set by an environment "
               "variable: KONDENSE\\_ and its name in capitals with\n\\_ for -.\n\n"
               "# EXIT STATUS\n\n0 done; 1 failed; 2 wrong use; 3 a quality requirement was not "
               "met; 4 stopped by a signal,\ncan be resumed.\n\n# EXAMPLE\n\n```\n");
    kd_buf_str(out, cmd->example);
    kd_buf_str(out, "\n```\n");
}
