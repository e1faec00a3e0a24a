/* label: release */
/* Lists of likeliest ids (ops/shortlist.h) as the device makes them, against the plain code; and answers drawn from them
 * against answers drawn from whole rows. Without a device: a visible skip. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "ops/cpu/reference/reference.h"
#include "ops/device.h"
#include "support/engines.h"
#include "support/ops.h"
#include "support/support.h"

enum { ROWS = 6, ANSWERS = 8 };

static void *send(struct backend *gpu, const void *from, size_t bytes)
{
    void *to;
    MUST(gpu->allocate(gpu, (int64_t)bytes, &to, err));
    MUST(gpu->upload(gpu, to, from, (int64_t)bytes, err));
    MUST(gpu->fence(gpu, err));
    return to;
}

/* ---- the operator ---- */

struct lists {
    struct op_shortlist host, device;
    struct shortlist_part *wanted, *found;
    float *logits, *added;
    uint32_t *left_out;
    struct shortlist_ask asks[ROWS];
};

/* Rows of several kinds: as a model has them, few numbers only, -infinity nearly everywhere, one NaN. */
static void fill(struct lists *l, struct dice *dice, int32_t vocab)
{
    dice_f32(dice, l->logits, (int64_t)ROWS * vocab, 4);
    dice_f32(dice, l->added, (int64_t)ROWS * vocab, 1);
    for (int32_t i = 0; i < vocab; i++) {
        l->logits[2 * (int64_t)vocab + i] = (float)(dice_next(dice) % 3);
        l->added[vocab + i] = (float)(dice_next(dice) % 2);
        if (dice_next(dice) % 1024)
            l->logits[3 * (int64_t)vocab + i] = -INFINITY;
    }
    l->logits[5 * (int64_t)vocab + vocab / 3] = NAN;
    for (int32_t i = 0; i < vocab; i += 1 + (int32_t)(dice_next(dice) % 90))
        l->left_out[i >> 5] |= 1u << (i & 31);
}

static void make(struct lists *l, struct backend *gpu, struct dice *dice, int32_t vocab, bool added)
{
    const size_t bytes = (size_t)ROWS * (size_t)vocab * sizeof(float), parts = ROWS * SHORTLIST_PARTS;
    const size_t marks = ((size_t)vocab + 31) / 32 * sizeof(uint32_t);
    l->logits = malloc(bytes);
    l->added = malloc(bytes);
    l->left_out = calloc(1, marks);
    l->wanted = calloc(parts, sizeof *l->wanted);
    l->found = calloc(parts, sizeof *l->found);
    assert_true(l->logits && l->added && l->left_out && l->wanted && l->found);
    fill(l, dice, vocab);
    for (int32_t i = 0; i < ROWS; i++)
        l->asks[i] = (struct shortlist_ask){.row = i, .added_row = (i + 1) % ROWS, .race = i % 2 == 0, .weigh = i % 3 != 0,
                                            .temperature = 0.3 + 0.3 * i, .seed = 0x123456789ABCDEFull * (uint64_t)(i + 1),
                                            .position = ((int64_t)i << 31) + 5, .tag = STREAM_TARGET};
    l->host = (struct op_shortlist){.rows = ROWS, .vocab = vocab, .asks = l->asks, .logits = l->logits,
                                    .added = added ? l->added : NULL, .left_out = l->left_out, .out = l->wanted};
    l->device = l->host;
    l->device.asks = send(gpu, l->asks, sizeof l->asks);
    l->device.logits = send(gpu, l->logits, bytes);
    l->device.added = added ? send(gpu, l->added, bytes) : NULL;
    l->device.left_out = send(gpu, l->left_out, marks);
    l->device.out = send(gpu, l->found, parts * sizeof *l->found);
    MUST(reference_shortlist(NULL, &l->host, err));
}

static void let_go(struct lists *l, struct backend *gpu)
{
    gpu->release(gpu, (void *)l->device.asks);
    gpu->release(gpu, (void *)l->device.logits);
    if (l->device.added)
        gpu->release(gpu, (void *)l->device.added);
    gpu->release(gpu, (void *)l->device.left_out);
    gpu->release(gpu, l->device.out);
    free(l->logits);
    free(l->added);
    free(l->left_out);
    free(l->wanted);
    free(l->found);
}

static int32_t place_of(const struct shortlist_part *p, int32_t id)
{
    for (int32_t i = 0; i < p->count; i++)
        if (p->ids[i] == id)
            return i;
    return -1;
}

/* What is listed on both sides is the same; what one lists and the other does not is at most as good as the other's bound. */
static void agree(const struct shortlist_part *wanted, const struct shortlist_part *found, int32_t from, int32_t size)
{
    const float slack = 1e-4F;
    if (wanted->count < 0) {
        assert_int_equal(found->count, -1);
        return;
    }
    assert_in_range(found->count, 0, SHORTLIST_LENGTH);
    if (wanted->count < SHORTLIST_LENGTH / 2) /* all there are */
        assert_int_equal(found->count, wanted->count);
    for (int32_t i = 0; i < found->count; i++) {
        const int32_t at = place_of(wanted, found->ids[i]);
        assert_in_range(found->ids[i], from, from + size - 1);
        assert_true(found->keys[i] > found->bound);
        assert_int_equal(place_of(found, found->ids[i]), i);
        if (at < 0)
            assert_true(found->keys[i] <= wanted->bound + slack);
        else
            assert_true(found->logits[i] == wanted->logits[at] && fabsf(found->keys[i] - wanted->keys[at]) <= slack);
    }
    for (int32_t i = 0; i < wanted->count; i++)
        if (place_of(found, wanted->ids[i]) < 0)
            assert_true(wanted->keys[i] <= found->bound + slack);
    assert_true(wanted->largest == found->largest);
    assert_true(fabs(wanted->mass - found->mass) <= 1e-12 * wanted->mass);
}

static bool same_part(const struct shortlist_part *a, const struct shortlist_part *b)
{
    bool same = a->count == b->count;
    for (int32_t i = 0; same && i < a->count; i++) {
        const int32_t at = place_of(b, a->ids[i]);
        same = at >= 0 && a->keys[i] == b->keys[at] && a->logits[i] == b->logits[at];
    }
    return same && (a->count < 0 || (a->bound == b->bound && a->largest == b->largest && a->mass == b->mass));
}

static void lists_are_those_of_the_plain_code(void **state)
{
    (void)state;
    static const int32_t vocabs[] = {129280, 163840, 4096, 264, 4};
    struct dice dice = {.state = 11};
    struct backend *gpu;
    MUST(backend_cuda_open(NULL, NULL, &gpu, err));
    for (size_t v = 0; v < sizeof vocabs / sizeof *vocabs; v++)
        for (int added = 0; added < 2; added++) {
            struct lists l;
            struct shortlist_part alone[SHORTLIST_PARTS];
            const int32_t size = shortlist_part_size(vocabs[v]);
            const int64_t each = (int64_t)sizeof alone;
            make(&l, gpu, &dice, vocabs[v], added);
            MUST(gpu->shortlist(gpu, &l.device, err));
            MUST(gpu->download(gpu, l.found, l.device.out, ROWS * each, err));
            MUST(gpu->fence(gpu, err));
            for (int32_t i = 0; i < ROWS * SHORTLIST_PARTS; i++)
                agree(&l.wanted[i], &l.found[i], i % SHORTLIST_PARTS * size, size);
            struct op_shortlist one = l.device; /* a row hangs on nobody beside it */
            one.rows = 1;
            one.asks += 4;
            MUST(gpu->shortlist(gpu, &one, err));
            MUST(gpu->download(gpu, alone, one.out, each, err));
            MUST(gpu->fence(gpu, err));
            for (int32_t p = 0; p < SHORTLIST_PARTS; p++)
                assert_true(same_part(&alone[p], &l.found[4 * SHORTLIST_PARTS + p]));
            let_go(&l, gpu);
        }
    const struct op_shortlist odd = {.rows = 1, .vocab = 1001};
    qr_error err = {0};
    assert_int_equal(gpu->shortlist(gpu, &odd, &err), QR_BAD_ARGUMENT);
    gpu->close(gpu);
}

/* ---- engines ---- */

static void answer_all(int m, bool lists, struct reply out[ANSWERS])
{
    static const char *const dirs[] = {"models/tiny-v41", "models/tiny-v4"};
    static const char *const questions[] = {"Add 17 and 25.", "Tell me a story about a dragon."};
    qr_engine_options options = QR_ENGINE_OPTIONS;
    qr_handle handles[ANSWERS];
    qr_prompt prompts[2];
    options.method = "auto";
    options.max_num_seqs = 4;
    options.max_model_len = 256;
    struct opened o = engine_open(dirs[m], "cuda", 1, &options);
    assert_non_null(o.engine->lists);
    if (!lists) { /* nothing runs yet */
        shortlists_close(o.engine->lists);
        o.engine->lists = NULL;
    }
    for (int i = 0; i < 2; i++)
        prompts[i] = chat_prompt(&o, questions[i]);
    for (int i = 0; i < ANSWERS; i++) {
        qr_sampling s = QR_SAMPLING;
        qr_request q = QR_REQUEST;
        s.temperature = i % 4 ? 0.3 * i : 0;
        s.top_p = i % 4 == 2 ? 0.9 : 1;
        s.top_k = i % 4 == 3 ? 30 : 0;
        s.seed = 70 + i;
        q.tokens = prompts[i % 2].tokens.data;
        q.token_count = prompts[i % 2].tokens.count;
        q.sampling = &s;
        q.max_tokens = 40;
        MUST(qr_submit(o.engine, &q, NULL, NULL, &handles[i], err));
    }
    for (int i = 0; i < ANSWERS; i++)
        reply_rest(&o, handles[i], &out[i]);
    int64_t drawn, open;
    shortlists_count(o.engine->lists, &drawn, &open);
    print_message("%s: %lld tokens drawn from lists, %lld lists that proved none\n", dirs[m], (long long)drawn, (long long)open);
    assert_true(lists ? drawn > 100 && drawn > 5 * open : drawn == 0);
    for (int i = 0; i < 2; i++)
        qr_prompt_free(&prompts[i]);
    engine_close(&o);
}

static void answers_are_those_drawn_from_whole_rows(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++) {
        struct reply whole[ANSWERS] = {0}, listed[ANSWERS] = {0};
        answer_all(m, false, whole);
        answer_all(m, true, listed);
        for (int i = 0; i < ANSWERS; i++) {
            assert_string_equal(whole[i].error.message, "");
            assert_same_reply(&whole[i], &listed[i], "drawn from lists");
            reply_free(&whole[i]);
            reply_free(&listed[i]);
        }
    }
}

int main(void)
{
    if (!cuda_device_found())
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_those_of_the_plain_code),
        cmocka_unit_test(answers_are_those_drawn_from_whole_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
