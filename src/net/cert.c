/* Certificates, see tls.h. */
#include "base/file.h"
#include "net/tls.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { NAMES_MAX = 32, DAYS = 3650 };

static int ssl_fail(struct kd_err *err, const char *what)
{
    char text[160];
    ERR_error_string_n(ERR_get_error(), text, sizeof text);
    return kd_fail(err, KD_EINVAL, "%s: %s", what, text);
}

static int write_pem(BIO *b, const char *path, struct kd_err *err)
{
    char *data;
    long n = BIO_get_mem_data(b, &data);
    return kd_file_write(path, data, (size_t)n, err);
}

/* Its file is never readable by others, not even for a moment. */
static int write_key(EVP_PKEY *key, const char *path, struct kd_err *err)
{
    BIO *b = BIO_new(BIO_s_mem());
    char *data;
    if (!b || PEM_write_bio_PrivateKey(b, key, NULL, NULL, 0, NULL, NULL) != 1) {
        BIO_free(b);
        return ssl_fail(err, "a private key");
    }
    long n = BIO_get_mem_data(b, &data);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), rc = 0;
    if (fd < 0 || write(fd, data, (size_t)n) != n || fsync(fd))
        rc = kd_fail_sys(err, "cannot write '%s'", path);
    if (fd >= 0 && close(fd) && !rc)
        rc = kd_fail_sys(err, "cannot write '%s'", path);
    BIO_free(b);
    return rc;
}

static int write_cert(X509 *x, const char *path, struct kd_err *err)
{
    BIO *b = BIO_new(BIO_s_mem());
    int rc = b && PEM_write_bio_X509(b, x) == 1 ? write_pem(b, path, err)
                                                : ssl_fail(err, "a certificate");
    BIO_free(b);
    return rc;
}

static int extension(X509 *x, X509V3_CTX *ctx, int nid, const char *value)
{
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, ctx, nid, value);
    int ok = e && X509_add_ext(x, e, -1);
    X509_EXTENSION_free(e);
    return ok;
}

/* A certificate without its signature. */
static X509 *blank(EVP_PKEY *key, const char *name)
{
    uint64_t serial;
    X509 *x = X509_new();
    X509_NAME *n;
    if (!x || RAND_bytes((unsigned char *)&serial, sizeof serial) != 1 ||
        !X509_set_version(x, X509_VERSION_3) ||
        !ASN1_INTEGER_set_uint64(X509_get_serialNumber(x), serial >> 1) ||
        !X509_gmtime_adj(X509_getm_notBefore(x), -86400L) ||
        !X509_gmtime_adj(X509_getm_notAfter(x), 86400L * DAYS) || !X509_set_pubkey(x, key) ||
        !(n = X509_get_subject_name(x)) ||
        !X509_NAME_add_entry_by_txt(n, "CN", MBSTRING_UTF8, (const unsigned char *)name, -1, -1,
                                    0)) {
        X509_free(x);
        return NULL;
    }
    return x;
}

int kd_cert_authority(const char *cert_file, const char *key_file, const char *name,
                      struct kd_err *err)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *x = key ? blank(key, name) : NULL;
    X509V3_CTX ctx;
    int rc = 0;
    if (x) {
        X509V3_set_ctx(&ctx, x, x, NULL, NULL, 0);
        X509_set_issuer_name(x, X509_get_subject_name(x));
    }
    if (!x || !extension(x, &ctx, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
        !extension(x, &ctx, NID_key_usage, "critical,keyCertSign,cRLSign") ||
        !extension(x, &ctx, NID_subject_key_identifier, "hash") || !X509_sign(x, key, EVP_sha256()))
        rc = ssl_fail(err, "the authority's certificate");
    if (!rc)
        rc = write_key(key, key_file, err) || write_cert(x, cert_file, err);
    X509_free(x);
    EVP_PKEY_free(key);
    return rc ? -1 : 0;
}

static int read_pair(const char *cert_file, const char *key_file, X509 **x, EVP_PKEY **key,
                     struct kd_err *err)
{
    BIO *c = BIO_new_file(cert_file, "r"), *k = BIO_new_file(key_file, "r");
    *x = c ? PEM_read_bio_X509(c, NULL, NULL, NULL) : NULL;
    *key = k ? PEM_read_bio_PrivateKey(k, NULL, NULL, NULL) : NULL;
    BIO_free(c);
    BIO_free(k);
    return *x && *key ? 0 : ssl_fail(err, cert_file);
}

/* "DNS:host,IP:10.0.0.1": names are checked, since a comma would begin another entry. */
static int alt_names(char *out, size_t size, const char *const *names, int count,
                     struct kd_err *err)
{
    size_t n = 0;
    unsigned char ip[16];
    for (int i = 0; i < count; i++) {
        const char *s = names[i];
        bool is_ip = inet_pton(AF_INET, s, ip) == 1 || inet_pton(AF_INET6, s, ip) == 1;
        size_t good = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.");
        if (!is_ip && (!*s || s[good] || strlen(s) > 253))
            return kd_fail(err, KD_EINVAL, "'%.80s' is no host name or address", s);
        n += (size_t)snprintf(out + n, size - n, "%s%s:%s", n ? "," : "", is_ip ? "IP" : "DNS", s);
        if (n >= size)
            return kd_fail(err, KD_EINVAL, "too many names for one certificate");
    }
    return 0;
}

int kd_cert_server(const char *cert_file, const char *key_file, const char *ca_cert_file,
                   const char *ca_key_file, const char *const *names, int count, struct kd_err *err)
{
    char alt[4096];
    X509 *ca = NULL, *x = NULL;
    EVP_PKEY *ca_key = NULL, *key = NULL;
    X509V3_CTX ctx;
    if (count < 1 || count > NAMES_MAX)
        return kd_fail(err, KD_EINVAL, "a server's certificate takes 1 to %d names", NAMES_MAX);
    int rc = alt_names(alt, sizeof alt, names, count, err) ||
             read_pair(ca_cert_file, ca_key_file, &ca, &ca_key, err);
    if (!rc) {
        key = EVP_EC_gen("P-256");
        x = key ? blank(key, names[0]) : NULL;
        if (x)
            X509V3_set_ctx(&ctx, ca, x, NULL, NULL, 0);
        if (!x || !X509_set_issuer_name(x, X509_get_subject_name(ca)) ||
            !extension(x, &ctx, NID_basic_constraints, "critical,CA:FALSE") ||
            !extension(x, &ctx, NID_key_usage, "critical,digitalSignature") ||
            !extension(x, &ctx, NID_ext_key_usage, "serverAuth") ||
            !extension(x, &ctx, NID_subject_alt_name, alt) ||
            !extension(x, &ctx, NID_authority_key_identifier, "keyid") ||
            !X509_sign(x, ca_key, EVP_sha256()))
            rc = ssl_fail(err, "the server's certificate");
    }
    if (!rc)
        rc = write_key(key, key_file, err) || write_cert(x, cert_file, err);
    X509_free(x);
    X509_free(ca);
    EVP_PKEY_free(key);
    EVP_PKEY_free(ca_key);
    return rc ? -1 : 0;
}
