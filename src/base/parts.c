#include "base/parts.h"

#include "base/clock.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { PLACES = (int)KD_SCOPES * (int)KD_PARTS, NOWHERE = -1, UNCOUNTED = -2 };

static atomic_bool on;
static atomic_uint round_now; /* what a thread remembers of an earlier measurement is void */
static _Atomic int64_t spent_ns[PLACES];

static _Thread_local struct {
    unsigned round;
    int at; /* scope * KD_PARTS + part, or NOWHERE */
    int64_t since_ns;
} mine = {.at = NOWHERE};

static int place(int scope, int part)
{
    return scope * KD_PARTS + part;
}

static int go(int to)
{
    int64_t now = (int64_t)(kd_clock_s() * 1e9);
    unsigned round = atomic_load(&round_now);
    if (mine.round != round) {
        mine.round = round;
        mine.at = NOWHERE;
    }
    int was = mine.at;
    if (was != NOWHERE)
        atomic_fetch_add(&spent_ns[was], now - mine.since_ns);
    mine.at = to;
    mine.since_ns = now;
    return was;
}

void kd_parts_begin(void)
{
    atomic_fetch_add(&round_now, 1);
    for (int i = 0; i < PLACES; i++)
        atomic_store(&spent_ns[i], 0);
    atomic_store(&on, true);
    go(place(KD_SCOPE_LAYER, KD_PART_FORWARD));
}

void kd_parts_end(double seconds[KD_SCOPES][KD_PARTS])
{
    go(NOWHERE);
    atomic_store(&on, false);
    for (int i = 0; i < PLACES; i++)
        seconds[i / KD_PARTS][i % KD_PARTS] = (double)atomic_load(&spent_ns[i]) * 1e-9;
}

int kd_part_enter(enum kd_part part)
{
    if (!atomic_load(&on) || mine.round != atomic_load(&round_now) || mine.at == NOWHERE ||
        mine.at % KD_PARTS == KD_PART_WAIT)
        return UNCOUNTED;
    return go(place(mine.at / KD_PARTS, (int)part));
}

int kd_scope_enter(enum kd_scope scope, enum kd_part part)
{
    return atomic_load(&on) ? go(place((int)scope, (int)part)) : UNCOUNTED;
}

void kd_part_leave(int was)
{
    if (was != UNCOUNTED && atomic_load(&on))
        go(was);
}
