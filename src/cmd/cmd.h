/* The table of subcommands. To add one: a file cmd_<name>.c with its options and one run function,
 * a line here and in cmd.c, a page under docs/man (generated: make man), a test under tests/cli. */
#ifndef KD_CMD_CMD_H
#define KD_CMD_CMD_H

#include "base/opt.h"
#include "kern/mat.h"

extern const struct kd_cmd *const kd_cmds[]; /* ends with NULL */
int kd_main(int argc, const char **argv);

/* What every command that computes needs: the kernel table and a pool (threads 0: all CPUs). */
int kd_cmd_run_open(struct kd_run *run, struct kd_kern *kern, int64_t threads,
                    struct kd_err *err) KD_MUST;
void kd_cmd_run_close(struct kd_run *run);
/* Set by SIGINT and SIGTERM; long work looks at it between units and stops with KD_ECANCEL. */
extern volatile int kd_cmd_stop;

#endif
