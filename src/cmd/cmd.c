#include "cmd/cmd.h"

#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* One line a command, in the order of the help. */
#define KD_COMMANDS(X)                                                                             \
    X(plan)                                                                                        \
    X(fetch)                                                                                       \
    X(slice)                                                                                       \
    X(receipt)                                                                                     \
    X(inspect)                                                                                     \
    X(verify)                                                                                      \
    X(generate)                                                                                    \
    X(chat)                                                                                        \
    X(serve)                                                                                       \
    X(check)                                                                                       \
    X(audit)                                                                                       \
    X(pilot)                                                                                       \
    X(convert)                                                                                     \
    X(farm)                                                                                        \
    X(worker)                                                                                      \
    X(mix)                                                                                         \
    X(synth)                                                                                       \
    X(bench)

#define X(name) extern const struct kd_cmd kd_cmd_##name;
KD_COMMANDS(X)
#undef X

const struct kd_cmd *const kd_cmds[] = {
#define X(name) &kd_cmd_##name,
    KD_COMMANDS(X)
#undef X
        NULL};

volatile int kd_cmd_stop;

static void on_signal(int sig)
{
    (void)sig;
    if (kd_cmd_stop)
        _Exit(KD_EXIT_STOPPED);
    __atomic_store_n(&kd_cmd_stop, 1, __ATOMIC_RELAXED); /* other threads look at it */
}

/* Into what is no plain file itself: a device, a pipe, a link such as /dev/stdout. */
static int put_through(const struct kd_buf *b, const char *path, struct kd_err *err)
{
    FILE *f = fopen(path, "we");
    if (!f)
        return kd_fail_sys(err, "cannot write '%s'", path);
    bool bad = fwrite(b->data, 1, b->size_bytes, f) != b->size_bytes;
    return fclose(f) || bad ? kd_fail_sys(err, "cannot write '%s'", path) : 0;
}

int kd_cmd_put(const struct kd_buf *b, const char *path, struct kd_err *err)
{
    if (kd_buf_ok(b, path, err))
        return -1;
    struct stat st;
    if (strcmp(path, "-") != 0 && !lstat(path, &st) && !S_ISREG(st.st_mode))
        return put_through(b, path, err);
    if (strcmp(path, "-") != 0)
        return kd_file_write(path, b->data, b->size_bytes, err);
    return fwrite(b->data, 1, b->size_bytes, stdout) == b->size_bytes
               ? 0
               : kd_fail_sys(err, "cannot write to standard output");
}

int kd_cmd_put_could(const char *path, const char *made, struct kd_err *err)
{
    struct stat st;
    if (!path || !strcmp(path, "-"))
        return 0;
    if (!stat(path, &st)) {
        if (S_ISDIR(st.st_mode))
            return kd_fail(err, KD_EIO, "cannot write '%s': it is a folder", path);
        return S_ISREG(st.st_mode) ? kd_out_could(path, err) : 0;
    }
    size_t n = made ? strlen(made) : 0;
    while (n > 1 && made[n - 1] == '/')
        n--;
    if (n && !strncmp(path, made, n) && path[n] == '/')
        return kd_dir_could(made, err);
    return kd_out_could(path, err);
}

bool kd_cmd_screen(const char *json, const char *html)
{
    return !(json && !strcmp(json, "-")) && !(html && !strcmp(html, "-"));
}

int kd_cmd_reports_check(const char *json, const char *html, struct kd_err *err)
{
    if (json && html && !strcmp(json, html))
        return kd_fail(err, KD_EUSAGE, "--json and --html cannot both go to '%s', only one of them",
                       json);
    return kd_cmd_put_could(json, NULL, err) || kd_cmd_put_could(html, NULL, err) ? -1 : 0;
}

int kd_cmd_run_open(struct kd_run *run, struct kd_kern *kern, int64_t threads, struct kd_err *err)
{
    memset(run, 0, sizeof *run);
    if (kd_kern_pick(kern, err) || kd_pool_open(&run->pool, (int)threads, err))
        return -1;
    run->kern = kern;
    return 0;
}

void kd_cmd_run_close(struct kd_run *run)
{
    kd_pool_close(run->pool);
    run->pool = NULL;
}

/* Whether nobody reads standard output any more: a pager that was left, `head`. */
static bool reader_gone(void)
{
    struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&p, 1, 0) == 1 && (p.revents & POLLERR);
}

/* The end of what was written to standard output. SIGPIPE is ignored for the sake of sockets; where
 * it was standard output's pipe that closed, the program ends as others do, by that signal. */
static int flush_out(struct kd_err *err)
{
    if (!fflush(stdout) && !ferror(stdout))
        return 0;
    if (reader_gone()) {
        signal(SIGPIPE, SIG_DFL);
        raise(SIGPIPE);
    }
    return kd_fail(err, KD_EIO, "cannot write the result to standard output");
}

static int print(struct kd_buf *b)
{
    int rc = b->failed;
    if (!rc && b->size_bytes)
        fwrite(b->data, 1, b->size_bytes, stdout); /* flush_out tells whether it could */
    kd_buf_release(b);
    return rc ? KD_EXIT_FAILED : KD_EXIT_DONE;
}

static int help_all(void)
{
    struct kd_buf b;
    kd_buf_init(&b, 1 << 20);
    kd_buf_str(&b, "kondense " KD_VERSION ": takes Kimi K3 to a model that fits, and proves it\n\n"
                   "usage: kondense COMMAND [options] ...\n\n");
    for (int i = 0; kd_cmds[i]; i++)
        kd_buf_printf(&b, "  %-10s %s\n", kd_cmds[i]->name, kd_cmds[i]->summary);
    kd_buf_str(&b, "\n'kondense COMMAND -h' shows a command's options and an example.\n");
    return print(&b);
}

static const struct kd_cmd *find(const char *name)
{
    for (int i = 0; kd_cmds[i]; i++)
        if (!strcmp(kd_cmds[i]->name, name))
            return kd_cmds[i];
    return NULL;
}

static int run_parsed(const struct kd_cmd *cmd, int count, const char **args, bool help,
                      struct kd_err *err)
{
    if (help) {
        struct kd_buf b;
        kd_buf_init(&b, 1 << 20);
        kd_opt_help(&b, cmd);
        return print(&b);
    }
    int rc = cmd->run(count, args, err);
    kd_progress_end();
    bool unsaid = rc && err->sys == EPIPE && ferror(stdout);
    if (!rc || unsaid)
        rc = flush_out(err);
    if (!rc)
        return KD_EXIT_DONE;
    fprintf(stderr, "kondense %s: %s\n", cmd->name, err->msg);
    return kd_err_exit(err);
}

static int run_command(const struct kd_cmd *cmd, int argc, const char **argv)
{
    struct kd_err err = {.code = KD_OK};
    const char *args[64] = {NULL};
    int count, code;
    bool help;
    if (kd_opt_parse(cmd, argc, argv, args, &count, &help, &err)) {
        fprintf(stderr, "kondense %s: %s\n", cmd->name, err.msg);
        code = kd_err_exit(&err);
    } else {
        code = run_parsed(cmd, count, args, help, &err);
    }
    for (int i = 0; i < count; i++)
        free((void *)(uintptr_t)args[i]);
    return code;
}

static int dispatch(int argc, const char **argv)
{
    struct kd_err err;
    struct sigaction act = {.sa_handler = on_signal};
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file over the limit is a failed write, with a sentence */
    if (kd_log_setup(getenv("KONDENSE_LOG"), &err)) {
        fprintf(stderr, "kondense: KONDENSE_LOG: %s\n", err.msg);
        return KD_EXIT_USAGE;
    }
    if (argc < 2 || !strcmp(argv[1], "-h") || !strcmp(argv[1], "--help") ||
        (!strcmp(argv[1], "help") && argc == 2))
        return argc < 2 ? (help_all(), KD_EXIT_USAGE) : help_all();
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "version")) {
        printf("kondense %s\n", KD_VERSION);
        return KD_EXIT_DONE;
    }
    const char *name = argv[1];
    if ((!strcmp(name, "help") || !strcmp(name, "man")) && argc == 3) {
        const struct kd_cmd *cmd = find(argv[2]);
        if (cmd) {
            struct kd_buf b;
            kd_buf_init(&b, 1 << 20);
            if (*name == 'm')
                kd_opt_man(&b, cmd);
            else
                kd_opt_help(&b, cmd);
            return print(&b);
        }
        name = argv[2];
    }
    const struct kd_cmd *cmd = find(name);
    if (!cmd) {
        fprintf(stderr, "kondense: '%s' is not a command (see kondense --help)\n", name);
        return KD_EXIT_USAGE;
    }
    return run_command(cmd, argc - 1, argv + 1);
}

/* A standard stream that the caller closed is not to become a file that the program opens, into
 * which a line of text would go: something takes its number that fails as it would. */
static void hold_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            _Exit(KD_EXIT_FAILED);
}

int kd_main(int argc, const char **argv)
{
    struct kd_err err;
    hold_streams();
    int code = dispatch(argc, argv);
    if (code != KD_EXIT_DONE || !flush_out(&err))
        return code;
    fprintf(stderr, "kondense: %s\n", err.msg);
    return KD_EXIT_FAILED;
}
