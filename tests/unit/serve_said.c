/* Answers found again by their messages, within a byte limit, and after a restart from their file.
 */
#include "serve/said.h"

#include "base/file.h"
#include "unit/serve_util.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[] = "/tmp/kd-said-XXXXXX", path[64];
static const char model[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

static void key_of(int n, char key[65])
{
    struct kd_said_message m;
    char text[16];
    snprintf(text, sizeof text, "%d", n);
    kd_said_begin(&m, "owner", true);
    kd_said_text(&m, text, strlen(text));
    kd_said_call(&m, "call_1", "f", "{\"a\": 1}", 8);
    assert_int_equal(kd_said_key(&m, key), 0);
}

/* Answer n has n % 7 + 1 tokens from n on. */
static void put(struct kd_said *s, int n)
{
    int32_t ids[7];
    char key[65];
    for (int i = 0; i < 7; i++)
        ids[i] = n + i;
    key_of(n, key);
    kd_said_put(s, key, ids, n % 7 + 1);
}

static bool has(struct kd_said *s, int n)
{
    struct kd_ids ids = {0};
    char key[65];
    key_of(n, key);
    bool found = kd_said_get(s, key, &ids);
    assert_int_equal(ids.count, found ? n % 7 + 1 : 0);
    for (int64_t i = 0; i < ids.count; i++)
        assert_int_equal(ids.id[i], n + i);
    kd_ids_release(&ids);
    return found;
}

static struct kd_said *start(int64_t max_bytes, const char *of)
{
    struct kd_said *s;
    must(kd_said_open(&s, max_bytes, &err));
    must(kd_said_keep(s, path, of, &err));
    return s;
}

static void restarts(void **state)
{
    (void)state;
    struct kd_said *s = start(1 << 20, model);
    for (int n = 0; n < 20; n++)
        put(s, n);
    kd_said_close(s);
    s = start(1 << 20, model);
    for (int n = 0; n < 20; n++)
        assert_true(has(s, n));
    put(s, 20);
    kd_said_close(s);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    /* Cut anywhere in the last record: the others are whole. */
    int64_t all = (int64_t)st.st_size;
    for (int64_t cut = all - 1; cut > all - 40; cut -= 7) {
        assert_int_equal(truncate(path, cut), 0);
        s = start(1 << 20, model);
        assert_true(has(s, 0) && has(s, 19) && !has(s, 20));
        put(s, 20);
        kd_said_close(s);
        s = start(1 << 20, model);
        assert_true(has(s, 20));
        kd_said_close(s);
    }
    char other[65];
    memcpy(other, model, sizeof other);
    other[63] = '0';
    s = start(1 << 20, other);
    assert_false(has(s, 0));
    kd_said_close(s);
}

/* The file stays within some times the limit, and the newest survive. */
static void bounded(void **state)
{
    enum { MAX = 4000, PUTS = 2000 };
    (void)state;
    unlink(path);
    struct kd_said *s = start(MAX, model);
    for (int n = 0; n < PUTS; n++) {
        put(s, n);
        assert_true(kd_file_size(path, &err) <= 5 * MAX);
    }
    assert_true(has(s, PUTS - 1) && !has(s, 0));
    kd_said_close(s);
    s = start(MAX, model);
    assert_true(has(s, PUTS - 1) && has(s, PUTS - 5) && !has(s, PUTS - 100));
    kd_said_close(s);
}

static void no_folder(void **state)
{
    struct kd_said *s;
    (void)state;
    must(kd_said_open(&s, 1000, &err));
    assert_int_equal(kd_said_keep(s, "/nowhere/answers.kdsaid", model, &err), -1);
    assert_non_null(strstr(err.msg, "/nowhere/answers.kdsaid"));
    kd_said_close(s);
}

int main(void)
{
    if (!mkdtemp(dir))
        return 1;
    snprintf(path, sizeof path, "%s/answers.kdsaid", dir);
    const struct CMUnitTest tests[] = {cmocka_unit_test(restarts), cmocka_unit_test(bounded),
                                       cmocka_unit_test(no_folder)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    struct kd_err ignored;
    return kd_dir_remove(dir, &ignored) ? 1 : rc;
}
