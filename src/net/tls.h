/* TLS in front of a plain server of this process (net/srv.h on a loopback port): bytes are taken
 * off the wire, decrypted and passed on, so that the server's own checks of every request stay as
 * they are. And the small certificates that this needs: an authority of our own, and a server's
 * certificate signed by it. TLS 1.2 and up. The process must ignore SIGPIPE, as kd_main does. */
#ifndef KD_NET_TLS_H
#define KD_NET_TLS_H

#include "base/err.h"

#include <stdint.h>

struct kd_tls;
struct kd_tls_options {
    const char *host;                 /* to listen on; NULL: 127.0.0.1 */
    int port;                         /* 0: any free one, see kd_tls_port */
    const char *cert_file, *key_file; /* PEM: the chain, its key */
    int to_port;                      /* of the plain server on 127.0.0.1 */
    int64_t connections;              /* at once; 0: 256 */
};
int kd_tls_open(struct kd_tls **out, const struct kd_tls_options *o, struct kd_err *err) KD_MUST;
int kd_tls_port(const struct kd_tls *t);
/* Cuts what is open and waits for its threads. */
void kd_tls_close(struct kd_tls *t);

/* An authority (P-256, valid ten years): its certificate and its private key (mode 0600), PEM. */
int kd_cert_authority(const char *cert_file, const char *key_file, const char *name,
                      struct kd_err *err) KD_MUST;
/* A server's certificate for these names and addresses (count of them, at most 32), signed by the
 * authority, valid ten years. */
int kd_cert_server(const char *cert_file, const char *key_file, const char *ca_cert_file,
                   const char *ca_key_file, const char *const *names, int count,
                   struct kd_err *err) KD_MUST;

#endif
