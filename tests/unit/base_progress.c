/* base/progress: on a terminal it draws one line and wipes it; elsewhere it is silent at first. */
#include "base/clock.h"
#include "base/log.h"
#include "base/progress.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static int saved = -1;

static void redirect(int fd)
{
    fflush(stderr);
    saved = dup(STDERR_FILENO);
    assert_true(saved >= 0 && dup2(fd, STDERR_FILENO) >= 0);
}

static void restore(void)
{
    fflush(stderr);
    assert_true(dup2(saved, STDERR_FILENO) >= 0);
    close(saved);
}

static void wait_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

/* All that was written: a terminal hands it over in pieces, and a little later. */
static size_t drain(int fd, char *out, size_t size)
{
    size_t used = 0;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (used + 1 < size && poll(&p, 1, 50) == 1) {
        ssize_t n = read(fd, out + used, size - 1 - used);
        if (n <= 0)
            break;
        used += (size_t)n;
    }
    out[used] = 0;
    return used;
}

/* A terminal of 60 columns; -1 where there is none to be had. */
static int terminal(int *screen)
{
    const char *name;
    *screen = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
    if (*screen < 0 || grantpt(*screen) || unlockpt(*screen) || !(name = ptsname(*screen)))
        return -1;
    int fd = open(name, O_RDWR | O_NOCTTY);
    struct winsize size = {.ws_row = 24, .ws_col = 60};
    return fd < 0 || ioctl(fd, TIOCSWINSZ, &size) ? -1 : fd;
}

static void draws_on_a_terminal(void **state)
{
    (void)state;
    int screen, fd = terminal(&screen);
    if (fd < 0)
        skip();
    char out[4096];
    redirect(fd);
    double began = kd_clock_s();
    kd_progress_begin("convert", "tiles", 1000, 200);
    kd_progress_add(50, "layer 1");
    bool slow = kd_clock_s() - began > 0.9; /* a busy machine: then it may have been drawn */
    size_t at_once = drain(screen, out, sizeof out);
    wait_ms(1050);
    began = kd_clock_s();
    kd_progress_add(250, "layer 2 of 9, expert 17, a note too long for the line");
    kd_progress_add(1, NULL); /* too soon after the last: not drawn */
    slow = slow || kd_clock_s() - began > 0.15;
    char logged[4096];
    drain(screen, out, sizeof out);
    kd_log(KD_LOG_ERROR, "test", "n=1");
    drain(screen, logged, sizeof logged);
    kd_progress_end();
    restore();
    if (slow)
        skip();
    assert_int_equal(at_once, 0);
    assert_memory_equal(out, "convert  50.0 %  500/1000 tiles  ", 33);
    assert_non_null(strstr(out, " left  la"));
    assert_int_equal(strlen(out), 59); /* never wraps */
    assert_int_equal(strncmp(logged, "\r\033[Kt=", 6), 0);
    close(fd);
    close(screen);
}

static void is_silent_elsewhere(void **state)
{
    (void)state;
    int ends[2];
    char out[256];
    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    redirect(ends[1]);
    kd_progress_begin("check", "tokens", 10, 0);
    for (int i = 0; i < 10; i++)
        kd_progress_add(1, NULL);
    kd_progress_wipe();
    kd_progress_end();
    restore();
    assert_int_equal(drain(ends[0], out, sizeof out), 0);
    close(ends[0]);
    close(ends[1]);
}

static void can_be_quiet(void **state)
{
    (void)state;
    int screen, fd = terminal(&screen);
    if (fd < 0)
        skip();
    char out[256];
    kd_progress_quiet(true);
    redirect(fd);
    kd_progress_begin("check", "tokens", 0, 0);
    wait_ms(1050);
    kd_progress_add(1, NULL);
    kd_progress_end();
    restore();
    kd_progress_quiet(false);
    assert_int_equal(drain(screen, out, sizeof out), 0);
    close(fd);
    close(screen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_on_a_terminal),
        cmocka_unit_test(is_silent_elsewhere),
        cmocka_unit_test(can_be_quiet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
