#include "base/progress.h"

#include "base/clock.h"
#include "base/show.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char what[32], unit[16], note[96];
    int64_t total, done, before;
    double began, shown;
    bool on, drawn, quiet, tty;
} now;

static void wipe(void)
{
    if (now.drawn)
        fputs("\r\033[K", stderr);
    now.drawn = false;
}

/* A line that wrapped could not be wiped. */
static int columns(void)
{
    struct winsize size = {.ws_col = 0};
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) || size.ws_col < 20)
        return 79;
    return size.ws_col - 1;
}

static void draw(double t)
{
    double took = t - now.began, share = now.total ? (double)now.done / (double)now.total : 0;
    double rate = took > 0 ? (double)(now.done - now.before) / took : 0;
    char left[32], line[320];
    kd_clock_human(left, sizeof left, rate > 0 ? (double)(now.total - now.done) / rate : -1);
    if (!strcmp(now.unit, "bytes")) {
        char done[32], total[32], speed[32];
        kd_show_bytes(done, sizeof done, now.done);
        kd_show_bytes(total, sizeof total, now.total);
        kd_show_bytes(speed, sizeof speed, (int64_t)rate);
        snprintf(line, sizeof line, "%s %5.1f %%  %s of %s  %s/s  %s left  %s", now.what,
                 100 * share, done, total, speed, left, now.note);
    } else {
        snprintf(line, sizeof line, "%s %5.1f %%  %lld/%lld %s  %.4g/s  %s left  %s", now.what,
                 100 * share, (long long)now.done, (long long)now.total, now.unit, rate, left,
                 now.note);
    }
    if (now.tty) {
        wipe();
        fprintf(stderr, "%.*s", columns(), line);
        fflush(stderr);
        now.drawn = true;
    } else {
        fprintf(stderr, "%s\n", line);
    }
    now.shown = t;
}

void kd_progress_begin(const char *what, const char *unit, int64_t total, int64_t done_before)
{
    pthread_mutex_lock(&lock);
    bool quiet = now.quiet;
    memset(&now, 0, sizeof now);
    snprintf(now.what, sizeof now.what, "%s", what);
    snprintf(now.unit, sizeof now.unit, "%s", unit);
    now.total = total;
    now.done = now.before = done_before;
    now.began = kd_clock_s();
    now.tty = isatty(STDERR_FILENO);
    now.quiet = quiet;
    now.on = true;
    now.shown = now.tty ? now.began + 1 - 1. / 6 : now.began;
    pthread_mutex_unlock(&lock);
}

void kd_progress_add(int64_t done, const char *note)
{
    pthread_mutex_lock(&lock);
    now.done += done;
    if (note)
        snprintf(now.note, sizeof now.note, "%s", note);
    double t = kd_clock_s();
    if (now.on && !now.quiet && t - now.shown >= (now.tty ? 1. / 6 : 60))
        draw(t);
    pthread_mutex_unlock(&lock);
}

void kd_progress_end(void)
{
    pthread_mutex_lock(&lock);
    wipe();
    now.on = false;
    pthread_mutex_unlock(&lock);
}

void kd_progress_wipe(void)
{
    pthread_mutex_lock(&lock);
    wipe();
    pthread_mutex_unlock(&lock);
}

void kd_progress_quiet(bool quiet)
{
    pthread_mutex_lock(&lock);
    now.quiet = quiet;
    pthread_mutex_unlock(&lock);
}
