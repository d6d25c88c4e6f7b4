/* The farm's folder on the coordinator's machine, made by `kondense farm init`: an authority, the
 * server's certificate, one-time join tokens, and who has used them. What a worker needs is one
 * file of it, worker.join.
 *
 *   farm.json     address, names, ledger, shared folder, digests of the tokens
 *   ca.pem ca.key server.pem server.key
 *   worker.join   the address, the authority's certificate, the shared folder and the tokens; give
 *                 it to the workers
 *   taken/ID      digest of the key given to the worker that used a token */
#ifndef KD_FARM_HOME_H
#define KD_FARM_HOME_H

#include "base/buf.h"

#include <stdbool.h>
#include <stdint.h>

enum { KD_HOME_TOKENS_MAX = 1024, KD_HOME_NAMES_MAX = 32, KD_KEY_MAX = 80 };

struct kd_home {
    char dir[2048], url[512], listen[256], ledger[1024];
    char share[2048]; /* see farm/share.h; "": none */
    int port;
    char names[KD_HOME_NAMES_MAX][256];
    int name_count;
    char (*token_sha)[65];
    int tokens;
};
/* url: the https address that workers call, its host one of the names; listen: the address to bind.
 * names: host names and addresses of this machine, separated by commas. ledger: "" is SQLite beside
 * the conversion. share: an absolute path, "" for none. A folder that is a farm already is refused.
 */
struct kd_home_wish {
    const char *url, *listen, *names, *ledger, *share;
    int tokens;
};
int kd_home_init(const char *dir, const struct kd_home_wish *o, struct kd_err *err) KD_MUST;
/* More tokens for a farm that is there: worker.join is written anew with these alone. */
int kd_home_more(const char *dir, int tokens, struct kd_err *err) KD_MUST;
int kd_home_open(struct kd_home *h, const char *dir, struct kd_err *err) KD_MUST;
void kd_home_release(struct kd_home *h);
/* A token's first use makes a worker: its id and its key. KD_EUSAGE: no such token, or used. */
int kd_home_enter(const struct kd_home *h, const char *token, char id[64], char key[KD_KEY_MAX],
                  struct kd_err *err) KD_MUST;
/* The worker whose key this is. */
int kd_home_check(const struct kd_home *h, const char *key, char id[64],
                  struct kd_err *err) KD_MUST;
/* n random bytes as hex into out[2n + 1]. */
int kd_home_random(char *out, int n, struct kd_err *err) KD_MUST;

/* worker.join. */
struct kd_join_file {
    char url[512], share[2048];
    char (*token)[KD_KEY_MAX];
    int tokens;
    struct kd_buf ca; /* PEM */
};
int kd_join_parse(struct kd_join_file *j, const char *text, size_t bytes,
                  struct kd_err *err) KD_MUST;
int kd_join_read(struct kd_join_file *j, const char *path, struct kd_err *err) KD_MUST;
void kd_join_release(struct kd_join_file *j);

#endif
