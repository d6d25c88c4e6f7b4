/* One error type for the whole program.
 *
 * A function that can fail returns 0 or -1 and fills a struct kd_err that the caller owns. The
 * sentence is written once, where the cause is known (kd_fail); callers put the place in front of
 * it (kd_wrap). Style: lower case, no full stop, what went wrong first, then what to do.
 *
 *     if (kd_file_map(&map, path, err))
 *         return kd_wrap(err, "layer %d", layer);
 *
 * Thread-safe: yes, a kd_err belongs to one thread at a time. */
#ifndef KD_BASE_ERR_H
#define KD_BASE_ERR_H

enum kd_code {
    KD_OK,
    KD_EINVAL,   /* a value outside its range: the caller's or the user's */
    KD_EUSAGE,   /* wrong flag or argument */
    KD_ENOMEM,   /* memory could not be had */
    KD_EIO,      /* the operating system refused a read, write or rename */
    KD_ENET,     /* the network */
    KD_EREMOTE,  /* the other side answered with an error */
    KD_ECORRUPT, /* bytes from outside that break their format */
    KD_ENOTSUP,  /* well-formed, but nothing here can do it */
    KD_EGPU,     /* a device or its driver */
    KD_ETIMEOUT, /* a deadline passed */
    KD_ECANCEL,  /* a signal or the user stopped it; can be resumed */
    KD_EGATE,    /* a quality requirement was not met */
    KD_CODE_COUNT
};

struct kd_err {
    enum kd_code code;
    int sys; /* errno where the system said no, else 0 */
    char msg[480];
};

/* Exit codes of the program, as the man page lists them. */
enum kd_exit {
    KD_EXIT_DONE = 0,
    KD_EXIT_FAILED = 1,
    KD_EXIT_USAGE = 2,
    KD_EXIT_GATE = 3,
    KD_EXIT_STOPPED = 4
};

#define KD_MUST __attribute__((warn_unused_result))

/* Fills err and returns -1. err may be NULL. */
int kd_fail(struct kd_err *err, enum kd_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4), cold));
/* As kd_fail with code KD_EIO (KD_ENOMEM for ENOMEM), and ": " strerror(errno) after the sentence.
 */
int kd_fail_sys(struct kd_err *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3), cold));
/* Puts "place: " before the sentence already there and returns -1. */
int kd_wrap(struct kd_err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3), cold));
#ifdef __clang_analyzer__
/* Tells clang's analyzer what it cannot see across files: these never return 0. */
#define kd_fail(...)     (kd_fail(__VA_ARGS__), -1)
#define kd_fail_sys(...) (kd_fail_sys(__VA_ARGS__), -1)
#define kd_wrap(...)     (kd_wrap(__VA_ARGS__), -1)
#endif
/* The exit code a command ends with for this error. */
int kd_err_exit(const struct kd_err *err);
/* "corrupt", "io", ...: for JSON and logs. */
const char *kd_code_name(enum kd_code code);

#endif
