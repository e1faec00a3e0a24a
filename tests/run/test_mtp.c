/* label: release */
#define _GNU_SOURCE
/* The MTP layer in the runner: its rows' logits are the same bits however they are brought together, and drafting
 * changes no token, whatever is accepted (v4-model.md 6.3, 6.4). Both profiles. */
#include "support/support.h"

#include <stdlib.h>
#include <string.h>

#include "run/verify_pack.h"
#include "support/scratch.h"
#include "support/shared_memory.h"
#include "support/v4_law.h"

/* Logits of MTP rows by position, filled as they come: [tokens][vocab]. */
struct drafted {
    float *logits;
    int32_t count;
};

static struct drafted drafted_for(const struct rig *r)
{
    struct drafted d = {.logits = calloc(LAW_TOKENS * (size_t)r->config.vocab_size, sizeof(float)),
                        .count = LAW_TOKENS};
    assert_non_null(d.logits);
    return d;
}

/* Runs MTP rows [first, first + count) of one request; rows from `logits_from` on leave their logits in `out`. Row i
 * takes its streams from sources[i]. */
static void draft(struct rig *r, int32_t slot, int32_t first, int32_t count, const int32_t *following,
                  const int32_t *sources, int32_t logits_from, struct drafted *out)
{
    const struct draft_span span = {.slot = slot,
                                    .first_position = first,
                                    .count = count,
                                    .tokens = following,
                                    .sources = sources,
                                    .logits_from = logits_from};
    size_t vocab = (size_t)r->config.vocab_size;
    qr_error err = {0};
    must(runner_draft(r->runner, &span, 1, NULL, &err), &err);
    rig_read(r, out->logits + (size_t)(first + logits_from) * vocab, runner_workspace(r->runner)->logits,
             (int64_t)((size_t)(count - logits_from) * vocab * sizeof(float)));
}

static void rows_from(int32_t first, int32_t count, int32_t *out)
{
    for (int32_t i = 0; i < count; i++)
        out[i] = first + i;
}

/* Every MTP row of the sequence behind one forward: what everything is compared with. */
static struct drafted all_rows(struct rig *r, const struct rig_request *whole)
{
    struct drafted d = drafted_for(r);
    int32_t sources[LAW_TOKENS];
    rows_from(0, LAW_TOKENS, sources);
    draft(r, whole->slot, 0, LAW_TOKENS - 1, whole->tokens + 1, sources, 0, &d);
    return d;
}

static void assert_same_rows(const struct rig *r, const struct drafted *a, const struct drafted *b, int32_t first,
                             int32_t end, const char *what)
{
    size_t vocab = (size_t)r->config.vocab_size;
    for (int32_t p = first; p < end; p++)
        if (memcmp(a->logits + (size_t)p * vocab, b->logits + (size_t)p * vocab, vocab * sizeof(float)) != 0)
            fail_msg("%s: the draft logits of position %d differ", what, (int)p);
}

/* The whole sequence on a fresh rig of one profile. */
struct law {
    struct rig r;
    int32_t tokens[LAW_TOKENS];
    struct rig_request whole;
    struct drafted rows;
};

static void law_begin(struct law *l, enum qr_profile profile)
{
    law_open(&l->r, scratch, fast_device(), profile, 1);
    law_tokens(&l->r, l->tokens);
    l->whole = law_whole(&l->r, l->tokens, LAW_TOKENS);
    l->rows = all_rows(&l->r, &l->whole);
    rig_poison(&l->r);
}

static void law_end(struct law *l)
{
    free(l->rows.logits);
    rig_request_free(&l->whole);
    rig_close(&l->r);
}

/* Chunk by chunk; the last row of a chunk has no following token yet: its streams are kept, and it runs with the next.
 */
static void rows_of_chunks_give_the_bits_of_one_pass(void **state)
{
    (void)state;
    static const int32_t chunks[] = {3, 1, 129, 1, 1, 64, 2, 103};
    for (int profile = 0; profile < 2; profile++) {
        struct law l;
        law_begin(&l, (enum qr_profile)profile);
        struct rig_request q = rig_request(&l.r, l.tokens, LAW_TOKENS, 1, 7, 2);
        struct drafted d = drafted_for(&l.r);
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            int32_t first = q.position, count = chunks[i], sources[LAW_TOKENS], *list[1] = {sources};
            struct rig_request *requests[1] = {&q};
            rig_step(&l.r, requests, &count, 1);
            qr_error err = {0};
            int32_t from = first > 0 ? first - 1 : 0, rows = q.position - 1 - from;
            sources[0] = -1;
            rows_from(0, count, list[0] + (first > 0));
            if (rows > 0)
                draft(&l.r, q.slot, from, rows, l.tokens + from + 1, sources, 0, &d);
            must(runner_keep_streams(l.r.runner, q.slot, count - 1, &err), &err);
        }
        assert_int_equal(q.position, LAW_TOKENS);
        assert_same_rows(&l.r, &l.rows, &d, 0, LAW_TOKENS - 1, "chunks");
        free(d.logits);
        rig_request_free(&q);
        law_end(&l);
    }
}

/* A prompt needs its last 128 rows, all but the last for their window keys alone; later rows then find their windows.
 */
static void the_last_rows_of_a_prompt_are_enough(void **state)
{
    (void)state;
    static const int32_t prompts[] = {1, 2, 127, 128, 129, 200, 290};
    for (int profile = 0; profile < 2; profile++) {
        struct law l;
        law_begin(&l, (enum qr_profile)profile);
        for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
            struct rig_request q = rig_request(&l.r, l.tokens, LAW_TOKENS, 2, 5, 3), *requests[1] = {&q};
            struct drafted d = drafted_for(&l.r);
            int32_t length = prompts[i], one = 1, sources[LAW_TOKENS], rows = length < 128 ? length : 128;
            rig_poison(&l.r);
            rig_step(&l.r, requests, &length, 1);
            rows_from(length - rows, rows, sources);
            draft(&l.r, q.slot, length - rows, rows, l.tokens + length - rows + 1, sources, rows - 1, &d);
            for (int32_t step = 0; step < 6; step++) {
                rig_step(&l.r, requests, &one, 1);
                sources[0] = 0;
                draft(&l.r, q.slot, q.position - 1, 1, l.tokens + q.position, sources, 0, &d);
            }
            assert_same_rows(&l.r, &l.rows, &d, length - 1, length + 6, "prompt");
            free(d.logits);
            rig_request_free(&q);
        }
        law_end(&l);
    }
}

/* What a step costs a request whose drafts rest: keys of its rows, and no row through queries, experts or head. Poison in
 * the routes of the pass tells that nobody wrote them. */
static void rest(struct rig *r, int32_t slot, int32_t first, int32_t count, const int32_t *following, const int32_t *sources,
                 struct drafted *none)
{
    const struct workspace *ws = runner_workspace(r->runner);
    int32_t routes[2] = {-77, -77}, found[2];
    qr_error err = {0};
    must(r->backend->upload(r->backend, ws->expert_idx, routes, sizeof routes, &err), &err);
    draft(r, slot, first, count, following, sources, count, none);
    rig_read(r, found, ws->expert_idx, sizeof found);
    assert_memory_equal(found, routes, sizeof routes);
}

/* For longer than a window, in steps of one and of two rows; then it drafts as if it never had. */
static void a_layer_that_rested_drafts_as_if_it_never_had(void **state)
{
    (void)state;
    for (int profile = 0; profile < 2; profile++) {
        struct law l;
        law_begin(&l, (enum qr_profile)profile);
        struct rig_request q = rig_request(&l.r, l.tokens, LAW_TOKENS, 1, 7, 2), *requests[1] = {&q};
        struct drafted d = drafted_for(&l.r);
        int32_t count = 40, sources[LAW_TOKENS];
        rows_from(0, LAW_TOKENS, sources);
        rig_step(&l.r, requests, &count, 1);
        rest(&l.r, q.slot, 0, 40, l.tokens + 1, sources, &d);
        while (q.position < 200) {
            const int32_t first = q.position;
            count = 1 + first % 2;
            rig_step(&l.r, requests, &count, 1);
            rest(&l.r, q.slot, first, count, l.tokens + first + 1, sources, &d);
        }
        for (int32_t first = q.position; first < 210; first = q.position) {
            count = 2;
            rig_step(&l.r, requests, &count, 1);
            draft(&l.r, q.slot, first, 2, l.tokens + first + 1, sources, 0, &d);
            assert_same_rows(&l.r, &l.rows, &d, first, first + 2, "after a rest");
        }
        free(d.logits);
        rig_request_free(&q);
        law_end(&l);
    }
}

/* ---- drafting ---- */

/* Greedy decoding, one row a step: `tokens` from `length` on are filled in, with the logits of every position. */
static struct rig_request plain_run(struct rig *r, int32_t *tokens, int32_t length, int32_t end)
{
    struct rig_request q = rig_request(r, tokens, end, 0, 4, 1), *requests[1] = {&q};
    int32_t count = length, vocab = r->config.vocab_size;
    while (q.position < end) {
        rig_step(r, requests, &count, 1);
        if (q.position < end)
            tokens[q.position] = law_best(r, q.logits + (size_t)(q.position - 1) * (size_t)vocab);
        count = 1;
    }
    return q;
}

/* One request that drafts. Which drafts are right is dictated: bit i of `pattern` for step i, so that runs of accepted
 * and rejected ones occur; what the MTP layer itself says is compared row by row. */
struct drafting {
    struct law *l;
    const int32_t *truth;
    struct rig_request q;
    struct pack_slot slot;
    struct drafted rows;
};

static void start(struct drafting *d, int32_t length)
{
    struct rig *r = &d->l->r;
    struct rig_request *requests[1] = {&d->q};
    int32_t sources[LAW_TOKENS], rows = length < 128 ? length : 128;
    qr_error err = {0};
    rig_step(r, requests, &length, 1);
    rows_from(length - rows, rows, sources);
    draft(r, d->q.slot, length - rows, rows, d->truth + length - rows + 1, sources, rows - 1, &d->rows);
    must(runner_keep_streams(r->runner, d->q.slot, length - 1, &err), &err);
    must(pack_start(&d->slot, length, d->truth[length], 0, &err), &err);
}

static void verify_step(struct drafting *d, bool right)
{
    struct rig *r = &d->l->r;
    size_t vocab = (size_t)r->config.vocab_size;
    qr_error err = {0};
    int32_t next = d->slot.tail_position + 2;
    d->slot.draft = right ? d->truth[next] : (d->truth[next] + 1) % r->config.vocab_size;

    struct pack_rows main = pack_main_rows(&d->slot);
    struct batch_span span = rig_span(r, &d->q, 2);
    span.tokens = main.tokens;
    assert_int_equal(span.first_position, main.positions[0]);
    const struct batch batch = {.count = 1, .spans = &span, .tentative = true};
    must(runner_step(r->runner, &batch, NULL, &err), &err);
    float *logits = malloc(2 * vocab * sizeof *logits);
    assert_non_null(logits);
    rig_read(r, logits, runner_workspace(r->runner)->logits, (int64_t)(2 * vocab * sizeof *logits));
    const int32_t chosen[2] = {law_best(r, logits), law_best(r, logits + vocab)};
    struct pack_verdict v = pack_verify(&d->slot, chosen);
    assert_int_equal(v.accepted, right ? 2 : 1);
    memcpy(d->q.logits + (size_t)main.positions[0] * vocab, logits, (size_t)v.accepted * vocab * sizeof *logits);
    free(logits);

    must(runner_commit(r->runner, &v.accepted, &err), &err);
    draft(r, d->q.slot, v.positions[0], 2, v.tokens, v.sources, 0, &d->rows);
    must(runner_keep_streams(r->runner, d->q.slot, v.keep, &err), &err);
    pack_advance(&d->slot, &v, 0);
    d->q.position += v.accepted;
}

static void check_drafting(struct law *l, const int32_t *truth, const struct rig_request *plain, int32_t length,
                           int32_t end, uint32_t pattern)
{
    struct rig *r = &l->r;
    size_t vocab = (size_t)r->config.vocab_size;
    struct drafting d = {.l = l, .truth = truth, .rows = drafted_for(r)};
    d.q = rig_request(r, truth, end, 2, 25, -2);
    rig_poison(r);
    start(&d, length);
    for (int32_t step = 0; d.q.position + 2 < end; step++)
        verify_step(&d, pattern >> step % 8 & 1);

    int32_t position = d.q.position;
    assert_memory_equal(d.q.logits, plain->logits, (size_t)position * vocab * sizeof(float));
    /* what stands in the caches is what plain decoding left: it goes on with the same bits */
    rig_run(r, &d.q, (const int32_t[]){1, 0});
    assert_memory_equal(d.q.logits, plain->logits, (size_t)end * vocab * sizeof(float));
    assert_same_rows(r, &l->rows, &d.rows, length - 1, position - 1, "drafting");
    free(d.rows.logits);
    rig_request_free(&d.q);
}

static void drafts_accepted_or_rejected_give_the_sequence_and_bits_without_drafting(void **state)
{
    (void)state;
    static const int32_t lengths[] = {2, 31, 120, 126, 127, 128, 250};
    static const uint32_t patterns[] = {0x00, 0xFF, 0xAA, 0x6D, 0x11};
    for (int profile = 0; profile < 2; profile++) {
        struct law l;
        law_open(&l.r, scratch, fast_device(), (enum qr_profile)profile, 1);
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            int32_t length = lengths[i], end = length + 24, sources[LAW_TOKENS];
            law_tokens(&l.r, l.tokens);
            struct rig_request plain = plain_run(&l.r, l.tokens, length, end);
            struct rig_request again = rig_request(&l.r, l.tokens, end, 1, 6, 1);
            rig_run(&l.r, &again, NULL);
            l.rows = drafted_for(&l.r);
            rows_from(0, end, sources);
            draft(&l.r, 1, 0, end - 1, l.tokens + 1, sources, 0, &l.rows);
            for (size_t k = i % 2; k < sizeof patterns / sizeof *patterns; k += 2)
                check_drafting(&l, l.tokens, &plain, length, end, patterns[k]);
            free(l.rows.logits);
            rig_request_free(&plain);
            rig_request_free(&again);
        }
        rig_close(&l.r);
    }
}

/* ---- refusals ---- */

static void assert_refused(struct rig *r, struct draft_span span, const char *what)
{
    qr_error err = {0};
    assert_int_equal(runner_draft(r->runner, &span, 1, NULL, &err), QR_INTERNAL);
    if (!strstr(err.message, what))
        fail_msg("\"%s\" does not say \"%s\"", err.message, what);
}

static void draft_rows_out_of_range_are_refused_and_change_nothing(void **state)
{
    (void)state;
    struct rig r;
    int32_t tokens[LAW_TOKENS], zero[4] = {0}, bad_token[1] = {512}, far_row[1] = {8}, below[1] = {-2};
    law_open(&r, scratch, fast_device(), QR_PROFILE_REFERENCE, 1);
    law_tokens(&r, tokens);
    struct rig_request q = rig_request(&r, tokens, 12, 1, 3, 1), *requests[1] = {&q};
    int32_t count = 8;
    rig_step(&r, requests, &count, 1);
    int64_t bytes;
    const uint8_t *pool = rig_pool(&r, &bytes);
    uint8_t *before = malloc((size_t)bytes), *after = malloc((size_t)bytes);
    assert_true(before && after);
    rig_read(&r, before, pool, bytes);

    struct draft_span good = {.slot = 1, .first_position = 7, .count = 1, .tokens = tokens, .sources = zero};
    struct draft_span s = good;
    s.slot = 4;
    assert_refused(&r, s, "has slot 4, wanted 0 to 3");
    s = good;
    s.count = 0;
    assert_refused(&r, s, "0 rows");
    s = good;
    s.first_position = -1;
    assert_refused(&r, s, "from position -1");
    s = good;
    s.logits_from = 2;
    assert_refused(&r, s, "logits from row 2 of 1");
    s = good;
    s.tokens = bad_token;
    assert_refused(&r, s, "token 512 after position 7, the vocabulary has 512");
    s = good;
    s.sources = far_row;
    assert_refused(&r, s, "streams of row 8, the last step had 8 rows");
    s = good;
    s.sources = below;
    assert_refused(&r, s, "streams of row -2");
    s = good;
    s.first_position = 8;
    assert_refused(&r, s, "ends before position 9, slot 1 has 8 committed");
    qr_error err = {0};
    assert_int_equal(runner_draft(r.runner, (struct draft_span[]){good, good}, 2, NULL, &err), QR_INTERNAL);
    assert_non_null(strstr(err.message, "same slot 1"));
    assert_int_equal(runner_keep_streams(r.runner, 1, 8, &err), QR_INTERNAL);
    assert_int_equal(runner_keep_streams(r.runner, 4, 0, &err), QR_INTERNAL);
    rig_read(&r, after, pool, bytes);
    assert_memory_equal(before, after, (size_t)bytes);
    must(runner_draft(r.runner, &good, 1, NULL, &err), &err);
    free(before);
    free(after);
    rig_request_free(&q);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_chunks_give_the_bits_of_one_pass),
        cmocka_unit_test(the_last_rows_of_a_prompt_are_enough),
        cmocka_unit_test(a_layer_that_rested_drafts_as_if_it_never_had),
        cmocka_unit_test(drafts_accepted_or_rejected_give_the_sequence_and_bits_without_drafting),
        cmocka_unit_test(draft_rows_out_of_range_are_refused_and_change_nothing),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
