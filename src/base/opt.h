/* Commands and options as tables. From a table come parsing (popt underneath), -h, the man page's
 * OPTIONS and the environment names. Numbers are strict ("4x" is an error), sizes take k, M, G, T
 * (powers of 1024). Flags > environment (KONDENSE_<NAME>; not LOG and ISA, which are the
 * program's own) > default.
 *
 * A command file holds one function that fills a struct kd_cmd and one that does the work:
 *
 *     static struct { int64_t layers; const char *json; bool quiet; } o;
 *     static const struct kd_opt opts[] = {
 *         {"layers", 'l', KD_OPT_INT, &o.layers, "N", "layers to run", .min = 1, .max = 1000},
 *         {0}};
 *     const struct kd_cmd kd_cmd_inspect = {"inspect", "show what a checkpoint holds", "PATH",
 *                                           "kondense inspect k3-nano --json", opts, 1, 1, run};
 */
#ifndef KD_BASE_OPT_H
#define KD_BASE_OPT_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum kd_opt_type {
    KD_OPT_FLAG, /* bool * */
    KD_OPT_INT,  /* int64_t *, min..max */
    KD_OPT_NUM,  /* double *, num_min..num_max (when num_max > num_min) */
    KD_OPT_STR,  /* const char **; `choices` "a|b|c" limits it; may be given once */
    KD_OPT_SIZE, /* int64_t *, bytes: 1.5G, 700M, 4096 */
    KD_OPT_LIST  /* struct kd_opt_list *: as KD_OPT_STR, each time it is given adds one; one from
                    the environment counts only when the command line has none */
};

enum { KD_OPT_LIST_MAX = 16 };
struct kd_opt_list {
    const char *v[KD_OPT_LIST_MAX];
    int count;
    bool environment; /* v[0] came from there */
};

struct kd_opt {
    const char *name; /* long name without "--"; NULL ends the table */
    char letter;      /* or 0 */
    enum kd_opt_type type;
    void *out;        /* keeps its value (the default) when the option is not given */
    const char *arg;  /* what the help calls the value */
    const char *help; /* one line; ends with the default where there is one */
    int64_t min, max;
    double num_min, num_max;
    const char *choices;
};

struct kd_cmd {
    const char *name;
    const char *summary; /* one line */
    const char *args;    /* "SRC DST" */
    const char *example; /* one or more lines */
    const struct kd_opt *opts;
    int args_min, args_max; /* number of positional arguments */
    /* argv holds the positional arguments. Returns 0 or -1 with err filled. */
    int (*run)(int argc, const char **argv, struct kd_err *err);
    const char *details; /* paragraphs for the man page (JSON keys, rules), or NULL */
};

/* Parses argv[1..] into the table's variables. Positional arguments go to args (at most
 * cmd->args_max), their number to *argc_out. `help` is set when -h was given (then nothing else
 * counts). KD_EUSAGE names the option and the reason. */
int kd_opt_parse(const struct kd_cmd *cmd, int argc, const char **argv, const char **args,
                 int *argc_out, bool *help, struct kd_err *err) KD_MUST;
/* What -h prints. */
void kd_opt_help(struct kd_buf *out, const struct kd_cmd *cmd);
/* The man page in scdoc's language. */
void kd_opt_man(struct kd_buf *out, const struct kd_cmd *cmd);
/* Strict numbers, also for lists and environment. */
int kd_parse_int(const char *text, int64_t min, int64_t max, int64_t *out,
                 struct kd_err *err) KD_MUST;
int kd_parse_num(const char *text, double *out, struct kd_err *err) KD_MUST;
int kd_parse_size(const char *text, int64_t *out, struct kd_err *err) KD_MUST;
/* A short size for kd_parse_size, at least `bytes` and within 1 % of it: "713G", "1367k", "99". */
void kd_size_text(char *out, size_t size, int64_t bytes);

#endif
