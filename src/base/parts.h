/* Where the time of a long piece of work goes. A thread that leads work (not the helpers of its
 * pool) says which part it is in; its wall time is added up by scope and part, each moment once.
 * Off, and free, until kd_parts_begin. Thread-safe; one measurement at a time in a process.
 *
 *     int was = kd_part_enter(KD_PART_SEARCH);
 *     ...
 *     kd_part_leave(was);                             // the part around it goes on */
#ifndef KD_BASE_PARTS_H
#define KD_BASE_PARTS_H

enum kd_part {
    KD_PART_FORWARD, /* what no other part claims */
    KD_PART_HESSIAN,
    KD_PART_SEARCH, /* from a Hessian to codes */
    KD_PART_WRITE,
    KD_PART_WAIT, /* for others: parts inside are theirs */
    KD_PARTS
};
enum kd_scope {
    KD_SCOPE_LAYER,   /* once a layer */
    KD_SCOPE_EXPERT,  /* once an expert; several threads at a time */
    KD_SCOPE_COMPARE, /* done for the measurement alone */
    KD_SCOPES
};

/* Zeroes all and puts the calling thread into (LAYER, FORWARD); kd_parts_end stops and gives
 * seconds. */
void kd_parts_begin(void);
void kd_parts_end(double seconds[KD_SCOPES][KD_PARTS]);

/* A part of the scope at hand. Of a thread that is in no scope, and inside WAIT, nothing is
 * counted. */
int kd_part_enter(enum kd_part part);
/* A scope's FORWARD, or its WAIT, whatever the thread did. */
int kd_scope_enter(enum kd_scope scope, enum kd_part part);
void kd_part_leave(int was);

#endif
