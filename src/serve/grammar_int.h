/* Inside grammar*.c: the compiled form and the vocabulary's tries. */
#ifndef KD_SERVE_GRAMMAR_INT_H
#define KD_SERVE_GRAMMAR_INT_H

#include "serve/grammar.h"

/* A node of the automaton. Edges of one node may overlap: all are followed. */
enum kd_gop {
    KD_G_RET,   /* the open rule ends */
    KD_G_BYTES, /* consumes a byte by its edges */
    KD_G_SPLIT, /* goes on at every edge's target at once */
    KD_G_CALL,  /* opens rule `arg`, goes on at `next` when it ends */
    KD_G_ID,    /* consumes control token `arg` */
    KD_G_RAW,   /* consumes any bytes, each character counted; may go on at `next` */
    KD_G_NUM,   /* consumes a JSON number in bounds `arg`; may go on at `next` once it is one */
    KD_G_INDEX, /* consumes the count of the rule around this one, in digits */
    KD_G_END    /* the turn is complete */
};
enum {
    KD_G_BODY = 1, /* of a node: inside a JSON string, between characters */
    KD_G_INC = 1,  /* of an edge: counts; not past the bound's most */
    KD_G_NEED = 2  /* of an edge: not below the bound's least */
};

struct kd_gnode {
    uint8_t op, flags;
    int32_t next, arg; /* arg of BYTES, SPLIT, RAW: bounds, or -1 */
    int32_t edge;      /* first, or -1 */
};
struct kd_gedge {
    uint8_t lo, hi, flags;
    int32_t to, more; /* more: the node's next edge, or -1 */
};
struct kd_gbound {
    int64_t least, most;
};
struct kd_gnum {
    bool integer, bounded;
    double min, max;
    int64_t imin, imax; /* with integer */
};

struct kd_grammar {
    const struct kd_vocab *v;
    struct kd_gnode *node;
    struct kd_gedge *edge;
    struct kd_gbound *bound;
    struct kd_gnum *num;
    int32_t *rule; /* start node of each rule */
    int64_t nodes, edges, bounds, nums, rules;
    int64_t node_cap, edge_cap, bound_cap, num_cap, rule_cap;
    int32_t start;
};

/* A trie in preorder: node i has its byte, the depth of its path, the node after its subtree, and
 * the first of the tokens below it; tokens are sorted by bytes, so those below lie together and
 * those that end at i are the ones before i + 1's. */
struct kd_trie {
    int64_t count;
    uint8_t *byte;
    uint16_t *depth;
    int32_t *end, *first; /* [count + 1] */
    int32_t *id;          /* tokens */
    int64_t ids;
};

struct kd_vocab {
    const struct kd_tok *tok;
    int64_t vocab, words;            /* words of 64 bits in a mask */
    struct kd_trie plain;            /* whole characters that a JSON string takes as they are */
    struct kd_trie other;            /* the rest, without those that hold control characters */
    uint64_t *plain_bits, *all_bits; /* all: every ordinary token */
    uint16_t *chars;                 /* [vocab] characters of each token */
    uint8_t *kind; /* [vocab] 0 none, 1 plain, 2 other, 3 with control characters */
    int64_t plain_chars_max, chars_max;
    int32_t open, close, sep, stop;
};

#endif
