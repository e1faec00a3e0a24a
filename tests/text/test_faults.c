/* label: faults */
/* Every allocation of the text floor fails once: a status, no crash, nothing leaked, and what the caller gave is as it
 * was. */
#include "support/support.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "support/tokenizers.h"
#include "text/detokenizer.h"
#include "text/token_map.h"

/* Runs `work` with its n-th allocation failing, n = 1, 2, ... until it gets through; `sticky` fails all later ones
 * too. Returns how many times it failed. */
static int64_t fail_in_turn(qr_status (*work)(void *user, qr_error *err), void *user, int sticky)
{
    for (int64_t n = 1;; n++) {
        qr_error err = {0};
        int64_t live = alloc_live();
        alloc_fault_at(n, sticky);
        qr_status st = work(user, &err);
        alloc_fault_at(0, 0);
        if (alloc_live() != live)
            fail_msg("allocation %d failing: %d pieces of memory are left", (int)n, (int)(alloc_live() - live));
        if (st == QR_OK)
            return n - 1;
        if (st != QR_NO_MEMORY || err.status != QR_NO_MEMORY || !err.message[0])
            fail_msg("allocation %d failing: status %d, \"%s\"", (int)n, st, err.message);
    }
}

static qr_status open_bundled(void *user, qr_error *err)
{
    struct tokenizer *tok;
    qr_status st = tok_open(user, NULL, &tok, err);
    if (st != QR_OK)
        assert_null(tok);
    tok_close(tok);
    return st;
}

static void opening_survives(void **state)
{
    char dir[4096];
    (void)state;
    snprintf(dir, sizeof dir, "%s", source_path("models/tiny-v41"));
    assert_true(fail_in_turn(open_bundled, dir, 0) > 20);
    fail_in_turn(open_bundled, dir, 1);
}

static struct tokenizer *load_small(enum split_engine engine)
{
    struct tokenizer *tok;
    char *json = small_tokenizer_json();
    const struct tok_source source = {.json = json, .size = strlen(json), .name = "small", .engine = engine};
    assert_int_equal(tok_load(&source, NULL, &tok, NULL), QR_OK);
    qr_free(json);
    return tok;
}

static qr_status load_regex(void *user, qr_error *err)
{
    struct tokenizer *tok;
    const struct tok_source source = {.json = user,
                                      .size = strlen(user),
                                      .name = "small",
                                      .config = "{\"bos_token\":\"<a>\"}",
                                      .config_size = 19,
                                      .engine = SPLIT_REGEX};
    qr_status st = tok_load(&source, NULL, &tok, err);
    tok_close(tok);
    return st;
}

static void loading_with_the_regex_engine_survives(void **state)
{
    char *json = small_tokenizer_json();
    (void)state;
    assert_true(fail_in_turn(load_regex, json, 0) > 20);
    fail_in_turn(load_regex, json, 1);
    qr_free(json);
}

struct text {
    struct tokenizer *tok;
    struct buffer text;
};

static qr_status encode(void *user, qr_error *err)
{
    const struct text *t = user;
    struct tok_ids ids = {0};
    qr_status st = tok_encode_markup(t->tok, t->text.data, t->text.length, &ids, err);
    if (st != QR_OK)
        assert_int_equal(ids.count, 0);
    tok_ids_free(&ids);
    return st;
}

static qr_status decode(void *user, qr_error *err)
{
    struct detokenizer d;
    struct buffer out = {0};
    qr_status st;
    const struct text *t = user;
    detok_start(&d, t->tok);
    for (int32_t id = 0; id < tok_count(t->tok); id++) {
        struct detokenizer before = d;
        size_t length = out.length;
        st = detok_push(&d, id, &out, err);
        if (st != QR_OK) {
            assert_memory_equal(&before, &d, sizeof d);
            assert_int_equal(out.length, length);
            /* Once there is memory again it goes on as if nothing had been. */
            alloc_fault_at(0, 0);
            assert_int_equal(detok_push(&d, id, &out, NULL), QR_OK);
            break;
        }
    }
    if (st == QR_OK)
        st = detok_flush(&d, &out, err);
    buffer_free(&out);
    return st;
}

static qr_status ban(void *user, qr_error *err)
{
    struct tok_ids ids = {0};
    const struct text *t = user;
    qr_status st = tok_ban_list(t->tok, &ids, err);
    tok_ids_free(&ids);
    return st;
}

static qr_status map(void *user, qr_error *err)
{
    struct token_map map;
    const struct text *t = user;
    qr_status st = token_map_build(t->tok, &map, err);
    token_map_free(&map);
    return st;
}

static void encoding_decoding_and_mapping_survive(void **state)
{
    (void)state;
    for (int engine = 0; engine < 2; engine++) {
        struct text t = {.tok = load_small(engine ? SPLIT_REGEX : SPLIT_AUTO)};
        /* Short pieces, a long one, bad bytes, added tokens; long enough for a cache. */
        for (int i = 0; i < 100; i++)
            buffer_puts(&t.text, "the <a>\xFF aaaaaaa 123 日本<a><b>");
        for (int i = 0; i < 300; i++)
            buffer_puts(&t.text, "a");
        assert_true(fail_in_turn(encode, &t, 0) > 3);
        fail_in_turn(encode, &t, 1);
        assert_true(fail_in_turn(decode, &t, 0) > 2);
        assert_true(fail_in_turn(map, &t, 0) > 4);
        fail_in_turn(map, &t, 1);
        buffer_free(&t.text);
        tok_close(t.tok);
    }
    struct text bundled = {.tok = bundled_tokenizer()};
    assert_true(fail_in_turn(ban, &bundled, 0) > 1);
    tok_close(bundled.tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_survives),
        cmocka_unit_test(loading_with_the_regex_engine_survives),
        cmocka_unit_test(encoding_decoding_and_mapping_survive),
    };
    if (!alloc_fault_supported()) {
        fprintf(stderr, "skipped: this build cannot make allocations fail (the debug preset can)\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
