/* Engram: primes, multipliers, row numbers, rows; the figures of v41-model.md 8.3 to 8.6 and 13.3, and the goldens. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/engram.h"
#include "checkpoint/engram_hash.h"
#include "number/bf16.h"
#include "number/e4m3.h"
#include "number/e8m0.h"
#include "number/quantize.h"
#include "support/golden.h"
#include "support/support.h"

static const struct qr_config released = {.n_engram = 2,
                                          .engram_layers = {1, 14},
                                          .engram_num_embeddings = {384006168, 384016682},
                                          .engram_max_ngram = 4,
                                          .engram_n_heads = 8,
                                          .engram_head_dim = 256,
                                          .engram_vocab_size = 16000000,
                                          .engram_pad_token_id = 2,
                                          .engram_compressed_vocab_size = 99092};
static const struct qr_config tiny = {.n_engram = 2,
                                      .engram_layers = {1, 4},
                                      .engram_num_embeddings = {462, 630},
                                      .engram_max_ngram = 4,
                                      .engram_n_heads = 2,
                                      .engram_head_dim = 32,
                                      .engram_vocab_size = 64,
                                      .engram_pad_token_id = 2,
                                      .engram_compressed_vocab_size = 320};

static void made(const struct qr_config *config, struct engram_hash *h)
{
    qr_error err = {0};
    if (engram_hash_make(config, 2, h, &err) != QR_OK)
        fail_msg("%s", err.message);
}

static void released_primes_and_multipliers(void **state)
{
    (void)state;
    static const int primes[2][24] = {{57,  79,  81,  97,  121, 129, 133, 183, 189, 207, 211, 253,
                                       277, 289, 307, 321, 339, 381, 393, 399, 403, 409, 447, 463},
                                      {477, 487, 499, 507, 511, 573, 609, 627, 667, 669, 693, 697,
                                       711, 729, 759, 769, 781, 799, 813, 819, 841, 877, 879, 889}};
    static const uint64_t multipliers[2][4] = {{76632096046245, 4839876093313, 35959672319349, 73987337458391},
                                               {67716810739261, 51510806800915, 30921347202721, 82619226485591}};
    struct engram_hash h;
    made(&released, &h);
    assert_int_equal(h.columns, 24);
    for (int layer = 0; layer < 2; layer++) {
        int64_t sum = 0;
        for (int i = 0; i < 24; i++) {
            assert_int_equal(h.primes[layer * 24 + i], 16000000 + primes[layer][i]);
            assert_int_equal(h.offsets[layer * 24 + i], sum);
            sum += h.primes[layer * 24 + i];
        }
        for (int i = 0; i < 4; i++)
            assert_true(h.multipliers[layer * 4 + i] == multipliers[layer][i]);
    }
    engram_hash_free(&h);
}

static void tiny_primes_and_multipliers(void **state)
{
    (void)state;
    static const int64_t primes[12] = {67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113};
    static const int64_t offsets[12] = {0, 67, 138, 211, 290, 373, 0, 97, 198, 301, 408, 517};
    static const uint64_t multipliers[8] = {23730086441920729, 1498728130745697, 11135362029590511, 22911103885709453,
                                            25472904954249001, 1560015272343281, 22807712826656497, 5869610250689587};
    struct engram_hash h;
    made(&tiny, &h);
    for (int i = 0; i < 12; i++) {
        assert_int_equal(h.primes[i], primes[i]);
        assert_int_equal(h.offsets[i], offsets[i]);
    }
    for (int i = 0; i < 8; i++)
        assert_true(h.multipliers[i] == multipliers[i]);
    engram_hash_free(&h);
}

static void a_model_without_engram_has_no_tables(void **state)
{
    (void)state;
    struct qr_config c = tiny;
    struct engram_hash h;
    c.n_engram = 0;
    made(&c, &h);
    assert_null(h.primes);
    engram_hash_free(&h);
}

static void primes_agree_with_trial_division(void **state)
{
    (void)state;
    int64_t next = 2;
    for (int64_t n = 0; n < 20000; n++) {
        if (n > next)
            for (next = n;; next++) {
                int64_t d = 2;
                while (d * d <= next && next % d)
                    d++;
                if (d * d > next)
                    break;
            }
        assert_int_equal(prime_from(n), next);
    }
    assert_true(prime_from((int64_t)1 << 61) == 2305843009213693967); /* 2^61 + 15 */
    assert_true(prime_from(2147483647) == 2147483647);
    assert_true(prime_from(3215031751) == 3215031767); /* a strong pseudoprime to 2, 3, 5 and 7 */
}

static void the_generator_gives_numpys_words_and_outputs(void **state)
{
    (void)state;
    static const uint32_t words[8] = {0x8ad70d07, 0x77d32a34, 0xb84a4fa5, 0x993ed609,
                                      0xc8698e49, 0xd5f972de, 0xbcf148de, 0x7d79ebae};
    static const uint64_t outputs[4] = {15187255322829266483u, 959186003677246517u, 7126631698937927467u,
                                        14663106486854050627u};
    uint32_t found[8];
    struct pcg64 g;
    pcg64_seed_words(10007, found);
    assert_memory_equal(found, words, sizeof words);
    pcg64_seed(&g, 10007);
    for (int i = 0; i < 4; i++)
        assert_true(pcg64_next(&g) == outputs[i]);
    uint64_t bound = ((uint64_t)1 << 63) + 1; /* about half of all draws are rejected */
    for (int i = 0; i < 1000; i++)
        assert_true(pcg64_below(&g, bound) < bound);
    assert_int_equal(pcg64_below(&g, 1), 0);
}

static void rows_of_the_specification(void **state)
{
    (void)state;
    static const struct {
        int layer;
        int64_t newest_first[4], columns[5]; /* columns 0, 1, 2, 8, 23 */
    } cases[] = {{0, {0, 2, 2, 2}, {5702652, 24393184, 39183301, 131476717, 380066193}},
                 {1, {0, 2, 2, 2}, {14361964, 29977809, 32716444, 132225184, 372375971}},
                 {0, {1000, 100, 10, 1}, {4875750, 19683464, 44316924, 139993317, 375339123}},
                 {1, {1000, 100, 10, 1}, {9120218, 24090613, 42120943, 134674824, 379879015}}};
    static const int column[5] = {0, 1, 2, 8, 23};
    struct engram_hash h;
    made(&released, &h);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t ids[4], rows[24];
        for (int s = 0; s < 4; s++)
            ids[3 - s] = cases[i].newest_first[s];
        engram_hash_rows(&h, cases[i].layer, ids, rows);
        for (int c = 0; c < 5; c++)
            assert_int_equal(rows[column[c]], cases[i].columns[c]);
    }
    engram_hash_free(&h);
}

static void a_dead_place_hides_everything_before_it(void **state)
{
    (void)state;
    struct engram_hash h;
    int64_t rows[24], same[24];
    made(&released, &h);
    for (int dead = 0; dead < 4; dead++) {
        int64_t ids[4] = {70, 71, 72, 73}, padded[4] = {70, 71, 72, 73};
        ids[dead] = ENGRAM_DEAD;
        for (int i = 0; i <= dead; i++)
            padded[i] = h.pad;
        engram_hash_rows(&h, 1, ids, rows);
        engram_hash_rows(&h, 1, padded, same);
        assert_memory_equal(rows, same, sizeof rows);
    }
    engram_hash_free(&h);
}

static struct json_document *parsed(const char *path)
{
    char *text;
    size_t size;
    struct json_document *doc;
    qr_error err = {0};
    if (file_read(path, 1 << 26, &text, &size, &err) != QR_OK ||
        json_parse(text, size, path, true, &doc, &err) != QR_OK)
        fail_msg("%s", err.message);
    qr_free(text);
    return doc;
}

/* The golden row numbers of one case, from its tokens and the folder's token map. */
static void check_case(const struct json *golden_case, const struct json *map, const struct qr_config *config,
                       const struct engram_hash *h, struct golden *g)
{
    const struct json *tokens = json_get(golden_case, "tokens");
    const int64_t *want = golden_i64(g, "engram.rows", NULL);
    int64_t n = (int64_t)tokens->count, rows[64];
    int64_t *history = test_malloc((size_t)(n + h->ngram) * sizeof *history);
    for (int64_t i = 0; i < n + h->ngram - 1; i++) {
        int64_t token = 0;
        history[i] = ENGRAM_DEAD;
        if (i < h->ngram - 1)
            continue;
        assert_true(json_int64(json_at(tokens, (size_t)(i - h->ngram + 1)), &token));
        if (token != config->image_token_id)
            assert_true(json_int64(json_at(map, (size_t)token), &history[i]));
    }
    assert_int_equal(golden_count(g, "engram.rows"), h->layers * n * h->columns);
    for (int32_t layer = 0; layer < h->layers; layer++)
        for (int64_t p = 0; p < n; p++) {
            engram_hash_rows(h, layer, history + p, rows);
            for (int32_t c = 0; c < h->columns; c++)
                assert_int_equal(rows[c], want[(layer * n + p) * h->columns + c]);
        }
    test_free(history);
}

static void golden_row_numbers_are_equal(void **state)
{
    (void)state;
    static const char *const folders[] = {"spec-13.1", "wide", "pad"};
    int checked = 0;
    for (int i = 0; i < 3; i++) {
        char path[200];
        struct qr_config config;
        struct engram_hash h;
        qr_error err = {0};
        snprintf(path, sizeof path, "tests/golden/v41/%s/model/config.json", folders[i]);
        if (config_read(source_path(path), &config, &err) != QR_OK)
            fail_msg("%s", err.message);
        if (!config.n_engram)
            continue;
        snprintf(path, sizeof path, "tests/golden/v41/%s/token_map.json", folders[i]);
        struct json_document *map = parsed(source_path(path));
        snprintf(path, sizeof path, "tests/golden/v41/%s/cases.json", folders[i]);
        struct json_document *cases = parsed(source_path(path));
        int64_t pad;
        assert_true(json_int64(json_at(json_root(map), (size_t)config.engram_pad_token_id), &pad));
        assert_int_equal(engram_hash_make(&config, pad, &h, &err), QR_OK);
        for (const struct json *c = json_get(json_root(cases), "cases")->child; c; c = c->next) {
            snprintf(path, sizeof path, "tests/golden/v41/%s/%s", folders[i], json_get(c, "file")->text);
            struct golden *g = golden_open(path);
            check_case(c, json_root(map), &config, &h, g);
            golden_close(g);
            checked++;
        }
        engram_hash_free(&h);
        json_close(map);
        json_close(cases);
    }
    assert_true(checked >= 4);
}

static void rows_are_gathered_exactly(void **state)
{
    (void)state;
    struct checkpoint *ck;
    struct qr_config config;
    struct engram_table t;
    qr_error err = {0};
    assert_int_equal(config_read(source_path("tests/golden/v41/spec-13.1/model/config.json"), &config, &err), QR_OK);
    assert_int_equal(checkpoint_open(source_path("tests/golden/v41/spec-13.1/model"), &ck, &err), QR_OK);
    for (int32_t ordinal = 0; ordinal < config.n_engram; ordinal++) {
        if (engram_open(ck, &config, ordinal, &t, &err) != QR_OK)
            fail_msg("%s", err.message);
        int64_t n = t.rows, *rows = test_malloc((size_t)n * sizeof *rows);
        int32_t blocks = t.width / 32;
        uint16_t *out = test_malloc((size_t)(n * t.width) * sizeof *out);
        uint8_t *codes = test_malloc((size_t)(n * t.width)), *scales = test_malloc((size_t)(n * blocks));
        for (int64_t i = 0; i < n; i++)
            rows[i] = n - 1 - i;
        engram_prefetch(&t, rows, n);
        assert_int_equal(engram_gather(&t, rows, n, out, &err), QR_OK);
        assert_int_equal(engram_gather_codes(&t, rows, n, codes, scales, &err), QR_OK);
        for (int64_t i = 0; i < n; i++)
            for (int32_t c = 0; c < t.width; c++) {
                float exact =
                    e4m3_decode(t.codes[rows[i] * t.width + c]) * e8m0_decode(t.scales[rows[i] * blocks + c / 32]);
                assert_true(bf16_decode(out[i * t.width + c]) == exact);
                assert_int_equal(codes[i * t.width + c], t.codes[rows[i] * t.width + c]);
            }
        for (int64_t i = 0; i < n * blocks; i++)
            assert_int_equal(scales[i], t.scales[(n - 1 - i / blocks) * blocks + i % blocks]);
        test_free(scales);
        test_free(codes);
        test_free(out);
        test_free(rows);
    }
    checkpoint_close(ck);
}

static void a_nan_scale_and_a_row_outside_are_refused(void **state)
{
    (void)state;
    uint8_t codes[3 * 64] = {0}, scales[6] = {1, 2, 3, 255, 5, 6}, out_scales[2];
    const struct engram_table t = {"folder/file", "layers.1.engram.embed.scale", codes, scales, 3, 64};
    uint16_t out[64];
    qr_error err = {0};
    for (int64_t row = -1; row <= 3; row++) {
        qr_status want = row == 1 ? QR_NUMERIC : row < 0 || row > 2 ? QR_INTERNAL : QR_OK;
        assert_int_equal(engram_gather(&t, &row, 1, out, &err), want);
        assert_int_equal(engram_gather_codes(&t, &row, 1, codes, out_scales, &err), want);
        engram_prefetch(&t, &row, 1);
        if (row == 1)
            assert_string_equal(err.message,
                                "folder/file: tensor layers.1.engram.embed.scale: scale byte 255 (NaN) at index 3");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_primes_and_multipliers),
        cmocka_unit_test(tiny_primes_and_multipliers),
        cmocka_unit_test(a_model_without_engram_has_no_tables),
        cmocka_unit_test(primes_agree_with_trial_division),
        cmocka_unit_test(the_generator_gives_numpys_words_and_outputs),
        cmocka_unit_test(rows_of_the_specification),
        cmocka_unit_test(a_dead_place_hides_everything_before_it),
        cmocka_unit_test(golden_row_numbers_are_equal),
        cmocka_unit_test(rows_are_gathered_exactly),
        cmocka_unit_test(a_nan_scale_and_a_row_outside_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
