/* The table of subcommands. To add one: a file cmd_<name>.c with its options and one run function,
 * a line here and in cmd.c, a page under docs/man (generated: make man), a test under tests/cli. */
#ifndef KD_CMD_CMD_H
#define KD_CMD_CMD_H

#include "base/buf.h"
#include "base/opt.h"
#include "kern/mat.h"

extern const struct kd_cmd *const kd_cmds[]; /* ends with NULL */
int kd_main(int argc, const char **argv);

/* Rows of the option tables that several commands have; where: what the variable is. */
#define KD_OPT_ROW_THREADS(where)                                                                  \
    {                                                                                              \
        .name = "threads", .letter = 't', .type = KD_OPT_INT, .out = (where), .arg = "N",          \
        .help = "threads; default one a CPU; the result does not depend on it", .min = 1,          \
        .max = 4096                                                                                \
    }
#define KD_OPT_ROW_JSON(where)                                                                     \
    {                                                                                              \
        .name = "json", .letter = 'j', .type = KD_OPT_FLAG, .out = (where), .help = "print JSON"   \
    }

/* Writes what `b` holds to the file `path`, whole or not at all, or to standard output for "-";
 * into what is there and is no plain file (a device, a pipe, a link) as it is. */
int kd_cmd_put(const struct kd_buf *b, const char *path, struct kd_err *err) KD_MUST;
/* Of reports whose files may be NULL: whether the text for people goes to standard output, which it
 * does not where a report does ("-"). */
bool kd_cmd_screen(const char *json, const char *html);
/* Whether kd_cmd_put could write there, told before long work; path NULL or "-" always can. `made`:
 * a folder that the command makes first, or NULL. */
int kd_cmd_put_could(const char *path, const char *made, struct kd_err *err) KD_MUST;
/* Two reports in one file would be neither, and one that cannot be written is told at once. */
int kd_cmd_reports_check(const char *json, const char *html, struct kd_err *err) KD_MUST;
/* What every command that computes needs: the kernel table and a pool (threads 0: all CPUs). */
int kd_cmd_run_open(struct kd_run *run, struct kd_kern *kern, int64_t threads,
                    struct kd_err *err) KD_MUST;
void kd_cmd_run_close(struct kd_run *run);
/* Set by SIGINT and SIGTERM; long work looks at it between units and stops with KD_ECANCEL. */
extern volatile int kd_cmd_stop;

#endif
