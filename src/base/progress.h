/* A progress line with rate and estimate on stderr: after one second, at most six times a second on
 * a terminal, one line a minute otherwise. Work done before a resume counts for the share but not
 * for the rate. The unit "bytes" prints as MB, GB. Thread-safe; one line at a time in a process.
 *
 *     kd_progress_begin("convert", "tiles", total, done_before);
 *     kd_progress_add(n, "layer 3 of 9, expert 17");
 *     kd_progress_end();
 */
#ifndef KD_BASE_PROGRESS_H
#define KD_BASE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

void kd_progress_begin(const char *what, const char *unit, int64_t total, int64_t done_before);
/* note may be NULL: keeps the one before. */
void kd_progress_add(int64_t done, const char *note);
void kd_progress_end(void);
void kd_progress_wipe(void); /* for the log: clears the line, it comes back at the next add */
void kd_progress_quiet(bool quiet); /* --quiet */

#endif
