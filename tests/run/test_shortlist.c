/* Tokens drawn from lists of likeliest ids (run/shortlist.h) against sampling_draw on the whole row. */
#include "support/support.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "ops/cpu/reference/reference.h"
#include "run/shortlist.h"

enum { VOCAB = 6464, SPECIALS = 40 };

struct bench {
    float logits[VOCAB];
    uint32_t left_out[VOCAB / 32], allowed[VOCAB / 32];
    int32_t specials[SPECIALS];
    struct shortlist_part parts[SHORTLIST_PARTS];
    struct sampler_scratch *scratch;
    int64_t count;
};

static double uniform(struct bench *b)
{
    const struct keyed_stream s = {.seed = 77, .position = b->count++, .tag = 99};
    return stream_uniform(stream_word(&s, 0));
}

static int32_t below(struct bench *b, int32_t n) { return (int32_t)(uniform(b) * n); }

/* Kinds of rows: as a model has them; flat; a few numbers only, so that ids are equal; most of them -infinity. */
enum shape { PEAKED, FLAT, EQUALS, HOLES, SHAPES };

static void fill(struct bench *b, enum shape shape)
{
    for (int32_t i = 0; i < VOCAB; i++) {
        const double u = uniform(b), bell = uniform(b) + uniform(b) + uniform(b) - 1.5;
        b->logits[i] = shape == FLAT ? (float)(0.01 * bell) : shape == EQUALS ? (float)(below(b, 4)) : (float)(6 * bell);
        if (shape == HOLES && u < 0.999)
            b->logits[i] = -INFINITY;
    }
    for (int i = 0; shape == PEAKED && i < 12; i++)
        b->logits[below(b, VOCAB)] = (float)(8 + 6 * uniform(b));
}

static struct bench *bench_open(void)
{
    qr_error err = {0};
    struct bench *b = qr_calloc(1, sizeof *b);
    assert_non_null(b);
    must(sampler_scratch_open(VOCAB, &b->scratch, &err), &err);
    for (int i = 0; i < SPECIALS; i++) {
        b->specials[i] = 64 * i + i;
        b->left_out[b->specials[i] >> 5] |= 1u << (b->specials[i] & 31);
    }
    return b;
}

static void bench_close(struct bench *b)
{
    sampler_scratch_close(b->scratch);
    qr_free(b);
}

static bool listed(struct bench *b, const struct sampling_params *p, const struct sampling_row *row, int64_t position,
                   int32_t *token)
{
    qr_error err = {0};
    struct shortlist_ask ask = shortlist_ask(p, position, 0);
    const struct op_shortlist op = {.rows = 1, .vocab = VOCAB, .asks = &ask, .logits = b->logits, .left_out = b->left_out,
                                    .out = b->parts};
    const struct id_list left_out = {b->specials, SPECIALS};
    assert_true(shortlist_helps(p));
    must(reference_shortlist(NULL, &op, &err), &err);
    return shortlist_draw(p, row, &left_out, position, b->parts, b->scratch, token);
}

static const struct sampling_params mixes[] = {
    {.temperature = 0, .repetition_penalty = 1, .top_p = 1},
    {.temperature = 1, .repetition_penalty = 1, .top_p = 1},
    {.temperature = 0.3, .repetition_penalty = 1, .top_p = 1},
    {.temperature = 1.7, .repetition_penalty = 1, .top_p = 1},
    {.temperature = 0.6, .repetition_penalty = 1, .top_p = 0.95},
    {.temperature = 1, .repetition_penalty = 1, .top_p = 0.3},
    {.temperature = 0.7, .repetition_penalty = 1, .top_p = 0},
    {.temperature = 1, .repetition_penalty = 1, .top_p = 1, .top_k = 1},
    {.temperature = 1, .repetition_penalty = 1, .top_p = 1, .top_k = 20},
    {.temperature = 0.8, .repetition_penalty = 1, .top_p = 0.9, .top_k = 40, .min_p = 0.02},
    {.temperature = 1, .repetition_penalty = 1, .top_p = 1, .min_p = 0.2},
    {.temperature = 0.5, .repetition_penalty = 1, .top_p = 0.99},
};
enum { MIXES = sizeof mixes / sizeof *mixes };

/* Draws at many positions; returns how many of them lists proved. */
static int32_t compare(struct bench *b, const struct sampling_params *given, const struct sampling_row *row, int32_t draws)
{
    struct sampling_params p = *given;
    struct sampling_row whole = *row;
    int32_t proved = 0;
    p.seed = (uint64_t)(uniform(b) * 1e18);
    whole.logits = b->logits;
    for (int32_t i = 0; i < draws; i++) {
        int32_t from_list, from_row;
        qr_error err = {0};
        const int64_t position = ((int64_t)below(b, 3) << 33) + i;
        if (!listed(b, &p, row, position, &from_list))
            continue;
        must(sampling_draw(&p, &whole, position, b->scratch, &from_row, &err), &err);
        assert_int_equal(from_list, from_row);
        proved++;
    }
    return proved;
}

static void lists_give_the_tokens_of_whole_rows(void **state)
{
    (void)state;
    enum { DRAWS = 8 };
    struct bench *b = bench_open();
    const struct id_list specials = {b->specials, SPECIALS};
    const struct sampling_row rows[] = {{.banned = &specials, .banned_lists = 1}, {.banned = NULL}};
    for (int shape = 0; shape < SHAPES; shape++)
        for (int m = 0; m < MIXES; m++)
            for (int r = 0; r < 2; r++) {
                fill(b, shape);
                const int32_t proved = compare(b, &mixes[m], &rows[r], DRAWS);
                const bool sums = mixes[m].top_p < 1 && mixes[m].top_k == 0; /* what is left out has to be banned */
                if (shape == PEAKED && !(sums && r == 1))
                    assert_in_range(proved, DRAWS - 1, DRAWS);
            }
    bench_close(b);
}

/* The likeliest id of all is banned in turn, in lists of every kind, and by a grammar. */
static void bans_and_grammars_count(void **state)
{
    (void)state;
    struct bench *b = bench_open();
    for (int m = 0; m < MIXES; m++) {
        int32_t ids[30], proved = 0;
        struct id_list lists[2] = {{b->specials, SPECIALS}, {ids, 0}};
        const struct sampling_row row = {.banned = lists, .banned_lists = 2};
        fill(b, PEAKED);
        for (int32_t n = 0; n < 30; n++) {
            struct sampling_row whole = row;
            struct sampling_params greedy = SAMPLING_PARAMS_DEFAULT;
            qr_error err = {0};
            whole.logits = b->logits;
            greedy.temperature = 0;
            must(sampling_draw(&greedy, &whole, 0, b->scratch, &ids[n], &err), &err);
            lists[1].count = n + 1;
            proved += compare(b, &mixes[m], &row, 2);
        }
        if (mixes[m].top_p == 1 && mixes[m].min_p == 0 && mixes[m].top_k < 20)
            assert_in_range(proved, 45, 60);
    }
    for (int m = 0; m < MIXES; m++)
        for (int turn = 0; turn < 6; turn++) {
            const struct sampling_row row = {.allowed = b->allowed};
            memset(b->allowed, 0, sizeof b->allowed);
            for (int32_t n = 0; n < 1 << (2 * turn); n++) {
                const int32_t id = below(b, VOCAB);
                b->allowed[id >> 5] |= 1u << (id & 31);
            }
            compare(b, &mixes[m], &row, 4);
        }
    bench_close(b);
}

/* A few bans beside what sums leave out keep no list from proving its token: listed ids are taken off, others weigh nothing. */
static void a_few_bans_are_taken_off_the_sums(void **state)
{
    (void)state;
    enum { DRAWS = 8 };
    struct bench *b = bench_open();
    for (int m = 0; m < MIXES; m++)
        for (int turn = 0; turn < 8; turn++) {
            int32_t ids[3] = {below(b, VOCAB), below(b, VOCAB), b->specials[turn]};
            const struct id_list lists[2] = {{b->specials, SPECIALS}, {ids, 3}};
            const struct sampling_row row = {.banned = lists, .banned_lists = 2};
            fill(b, PEAKED);
            if (turn % 2)
                b->logits[ids[0]] = 10;
            assert_in_range(compare(b, &mixes[m], &row, DRAWS), DRAWS - 1, DRAWS);
        }
    bench_close(b);
}

/* A sum that leaves specials out proves nothing for a request that may draw them. */
static void sums_are_of_what_may_be_drawn(void **state)
{
    (void)state;
    struct bench *b = bench_open();
    const struct sampling_row row = {.banned = NULL};
    const struct sampling_params p = {.temperature = 1, .repetition_penalty = 1, .top_p = 0.5};
    for (int32_t i = 0; i < VOCAB; i++)
        b->logits[i] = -20;
    for (int i = 0; i < SPECIALS; i++)
        b->logits[b->specials[i]] = 3;
    b->logits[5000] = 4;
    assert_int_equal(compare(b, &p, &row, 4), 0);
    bench_close(b);
}

static void rows_that_are_no_numbers_are_left_to_the_whole_row(void **state)
{
    (void)state;
    struct bench *b = bench_open();
    const struct sampling_row row = {.banned = NULL};
    const float bad[] = {NAN, INFINITY};
    int32_t token;
    for (int i = 0; i < 2; i++)
        for (int m = 0; m < MIXES; m++) {
            fill(b, PEAKED);
            b->logits[below(b, VOCAB)] = bad[i];
            assert_false(listed(b, &mixes[m], &row, 0, &token));
        }
    for (int32_t i = 0; i < VOCAB; i++)
        b->logits[i] = -INFINITY;
    for (int m = 0; m < MIXES; m++)
        assert_false(listed(b, &mixes[m], &row, 0, &token));
    bench_close(b);
}

/* A part has more of the likeliest ids than it can list, and those that it lists are banned. */
static void what_no_list_has_room_for_is_not_forgotten(void **state)
{
    (void)state;
    enum { CROWD = 100, BANNED = 80 };
    struct bench *b = bench_open();
    int32_t ids[BANNED];
    const struct id_list lists[2] = {{b->specials, SPECIALS}, {ids, BANNED}};
    const struct sampling_row row = {.banned = lists, .banned_lists = 2};
    fill(b, PEAKED);
    for (int32_t i = 0; i < CROWD; i++)
        b->logits[i] = 40 - 0.01f * (float)i;
    for (int32_t i = 0; i < BANNED; i++)
        ids[i] = i;
    for (int m = 0; m < MIXES; m++) {
        const int32_t proved = compare(b, &mixes[m], &row, 4);
        if (mixes[m].temperature == 0) /* noise brings others among the first */
            assert_int_equal(proved, 0);
    }
    bench_close(b);
}

/* Keys are rounded: one that comes as near as that to an id that is not listed does not win. */
static void a_race_that_rounding_could_decide_is_left_to_the_whole_row(void **state)
{
    (void)state;
    struct bench *b = bench_open();
    const struct sampling_params *p = &mixes[1];
    const struct sampling_row row = {.banned = NULL};
    const struct id_list none = {NULL, 0};
    int32_t token = -1;
    for (int i = 0; i < SHORTLIST_PARTS; i++)
        b->parts[i].bound = -INFINITY;
    b->parts[2] = (struct shortlist_part){.count = 1, .ids = {7}, .logits = {1}, .keys = {2}, .bound = 1.99F};
    assert_true(shortlist_draw(p, &row, &none, 0, b->parts, b->scratch, &token));
    assert_int_equal(token, 7);
    b->parts[5].bound = 1.99999F;
    assert_false(shortlist_draw(p, &row, &none, 0, b->parts, b->scratch, &token));
    bench_close(b);
}

static void what_changes_logits_has_no_lists(void **state)
{
    (void)state;
    const struct logit_bias bias = {.id = 3, .value = 1};
    struct sampling_params p = SAMPLING_PARAMS_DEFAULT;
    assert_true(shortlist_helps(&p));
    p.bias = &bias;
    p.bias_count = 1;
    assert_false(shortlist_helps(&p));
    p.bias_count = 0;
    p.frequency_penalty = 0.1;
    assert_false(shortlist_helps(&p));
    p.frequency_penalty = 0;
    p.temperature = 1e-9; /* keys of a race would be no floats */
    assert_false(shortlist_helps(&p));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_give_the_tokens_of_whole_rows),
        cmocka_unit_test(bans_and_grammars_count),
        cmocka_unit_test(a_few_bans_are_taken_off_the_sums),
        cmocka_unit_test(sums_are_of_what_may_be_drawn),
        cmocka_unit_test(rows_that_are_no_numbers_are_left_to_the_whole_row),
        cmocka_unit_test(what_no_list_has_room_for_is_not_forgotten),
        cmocka_unit_test(a_race_that_rounding_could_decide_is_left_to_the_whole_row),
        cmocka_unit_test(what_changes_logits_has_no_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
