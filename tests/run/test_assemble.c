/* A batch becomes a step: rows, row lists against a brute-force twin, and every check before a step may write. */
#include "support/support.h"

#include <string.h>

#include "run/assemble.h"
#include "support/host_backend.h"

enum { LAYERS = 3, BLOCK = 32, RING = 5, TAIL = 3, BLOCKS = 40, SLOTS = 6, MAX_ROWS = 128, MAX_REQUESTS = 4 };

struct fixture {
    struct backend backend;
    struct model_plan plan;
    struct geometry geometry;
    struct assembly *assembly;
    int32_t tokens[MAX_ROWS], blocks[MAX_REQUESTS][8];
    struct batch_span span[MAX_REQUESTS];
    struct batch batch;
};

/* Layer 0: window only; layer 1 owns rows of ratio 2; layer 2 owns rows of ratio 1. */
static void set_up_as(struct fixture *f, int32_t draft_width, bool pads)
{
    memset(f, 0, sizeof *f);
    f->backend = host_backend();
    f->plan.layers = LAYERS;
    f->plan.config.vocab_size = 100;
    f->plan.owners = 2;
    for (int i = 0; i < LAYERS; i++)
        f->plan.owner_of_layer[i] = i - 1;
    f->plan.layer[1].ratio = 2;
    f->plan.layer[2].ratio = 1;
    f->plan.layer[1].owns_rows = f->plan.layer[2].owns_rows = true;
    f->geometry.options.block_tokens = BLOCK;
    f->geometry.options.draft_width = draft_width;
    f->geometry.ring_rows = RING;
    f->geometry.tail_rows[0] = TAIL;
    const struct assembly_limits limits = {.plan = &f->plan,
                                           .geometry = &f->geometry,
                                           .blocks = BLOCKS,
                                           .slots = SLOTS,
                                           .max_rows = MAX_ROWS,
                                           .max_requests = MAX_REQUESTS,
                                           .max_logits = 16,
                                           .max_positions = 8 * BLOCK,
                                           .pads = pads};
    assert_int_equal(assembly_open(&f->backend, &limits, &f->assembly, NULL), QR_OK);
    for (int i = 0; i < MAX_ROWS; i++)
        f->tokens[i] = i * 7 % 100;
    for (int b = 0; b < MAX_REQUESTS; b++)
        for (int i = 0; i < 8; i++)
            f->blocks[b][i] = 1 + b + 4 * i;
}

static void set_up(struct fixture *f, int32_t draft_width) { set_up_as(f, draft_width, false); }

/* Adds a request of `count` tokens at `position` whose last `logits` want logits. */
static struct batch_span *add(struct fixture *f, int32_t position, int32_t count, int32_t logits)
{
    int32_t b = f->batch.count++;
    f->batch.spans = f->span;
    f->span[b] = (struct batch_span){.slot = SLOTS - 1 - b,
                                     .blocks = f->blocks[b],
                                     .block_count = 8,
                                     .first_position = position,
                                     .count = count,
                                     .tokens = f->tokens + b,
                                     .logits_from = count - logits};
    return &f->span[b];
}

static bool listed(struct row_list list, int32_t row)
{
    if (!list.index)
        return row < list.count;
    for (int32_t i = 0; i < list.count; i++)
        if (list.index[i] == row)
            return true;
    return false;
}

static void assert_ascending(struct row_list list)
{
    for (int32_t i = 1; list.index && i < list.count; i++)
        assert_true(list.index[i] > list.index[i - 1]);
}

/* Every row is among those that may emit, tables are as wide, and what stands behind them stands where it stood: what an
 * operator is given is the same, byte for byte. */
static void steps_that_are_padded_are_alike_wherever_requests_stand(void **state)
{
    (void)state;
    static const int32_t positions[][2] = {{4, 8}, {5, 8}, {5, 9}, {31, 32}, {64, 200}};
    struct fixture f;
    struct step first;
    struct layer_rows layers[LAYERS];
    set_up_as(&f, 1, true);
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
        f.batch.count = 0;
        add(&f, positions[i][0], 1, 1);
        add(&f, positions[i][1], 2, 1);
        assert_int_equal(assembly_fill(f.assembly, &f.batch, NULL), QR_OK);
        const struct step_rows *rows = assembly_rows(f.assembly);
        if (i == 0) {
            first = *assembly_step(f.assembly);
            memcpy(layers, rows->layer, sizeof layers);
        }
        assert_null(rows->layer[1].emit.index);
        assert_int_equal(rows->layer[1].emit.count, 3);
        assert_true(rows->layer[1].emit_padded && !rows->layer[2].emit_padded);
        assert_int_equal(assembly_step(f.assembly)->block_stride, 8);
        assert_memory_equal(assembly_step(f.assembly), &first, sizeof first);
        assert_memory_equal(rows->layer, layers, sizeof layers);
    }
    assembly_close(f.assembly);
}

static void one_request_and_long_spans_are_not_padded(void **state)
{
    (void)state;
    struct fixture f;
    set_up_as(&f, 1, true);
    add(&f, 4, 1, 1);
    assert_int_equal(assembly_fill(f.assembly, &f.batch, NULL), QR_OK);
    assert_int_equal(assembly_rows(f.assembly)->layer[1].emit.count, 0);
    add(&f, 8, 3, 1);
    assert_int_equal(assembly_fill(f.assembly, &f.batch, NULL), QR_OK);
    assert_int_equal(assembly_rows(f.assembly)->layer[1].emit.count, 1);
    assert_false(assembly_rows(f.assembly)->layer[1].emit_padded);
    assembly_close(f.assembly);
}

static void rows_and_lists_are_what_a_walk_over_the_tokens_finds(void **state)
{
    (void)state;
    static const int32_t shapes[][3][2] = {
        {{0, 1}, {7, 4}, {31, 40}}, {{0, 40}, {64, 1}, {3, 2}}, {{0, 5}, {0, 6}, {0, 7}}, {{100, 33}, {1, 1}, {2, 3}}};
    static const uint8_t mask[64] = {0, 1, 1, 0, 1};

    for (size_t shape = 0; shape < sizeof shapes / sizeof *shapes; shape++) {
        struct fixture f;
        set_up(&f, 0);
        for (int b = 0; b < 3; b++)
            add(&f, shapes[shape][b][0], shapes[shape][b][1], b);
        f.span[1].image_mask = mask;
        assert_int_equal(assembly_check(f.assembly, &f.batch, NULL), QR_OK);
        assert_int_equal(assembly_fill(f.assembly, &f.batch, NULL), QR_OK);
        const struct step *s = assembly_step(f.assembly);
        const struct step_rows *rows = assembly_rows(f.assembly);

        int32_t row = 0, counts[8] = {0};
        for (int b = 0; b < 3; b++) {
            const struct batch_span *span = &f.span[b];
            assert_int_equal(s->first_row[b], row);
            assert_int_equal(s->first_position[b], span->first_position);
            assert_int_equal(s->slot[b], span->slot);
            for (int32_t i = 0; i * BLOCK < span->first_position + span->count; i++)
                assert_int_equal(s->block_table[b * s->block_stride + i], span->blocks[i]);
            for (int i = 0; i < LAYERS; i++) {
                assert_int_equal(rows->layer[i].key_from[b], span->first_position);
                assert_int_equal(rows->layer[i].compress_from[b], span->first_position);
            }
            for (int32_t t = 0; t < span->count; t++, row++) {
                int32_t p = span->first_position + t, left = span->count - t;
                assert_int_equal(s->token_ids[row], span->tokens[t]);
                assert_int_equal(s->positions[row], p);
                assert_int_equal(s->batch_id[row], b);
                assert_int_equal(s->image_mask && s->image_mask[row], span->image_mask && span->image_mask[t]);
                assert_true(listed(rows->layer[0].input, row) && listed(rows->layer[2].query, row));
                assert_true(listed(rows->layer[1].key, row));
                assert_false(listed(rows->layer[0].compress, row) || listed(rows->layer[0].emit, row));
                assert_true(listed(rows->layer[1].compress, row) && listed(rows->layer[2].emit, row));
                assert_int_equal(listed(rows->layer[1].emit, row), p % 2 == 1);
                assert_int_equal(listed(rows->layer[0].ring, row), left <= RING);
                assert_int_equal(listed(rows->layer[1].tail, row), left <= TAIL);
                assert_false(listed(rows->layer[2].tail, row));
                assert_int_equal(listed(rows->logits, row), left <= b);
                counts[0] += p % 2 == 1;
                counts[1] += left <= RING;
                counts[2] += left <= b;
            }
        }
        assert_int_equal(s->first_row[3], row);
        assert_int_equal(s->rows, row);
        assert_int_equal(rows->layer[1].emit.count, counts[0]);
        assert_int_equal(rows->layer[2].ring.count, counts[1]);
        assert_int_equal(rows->logits.count, counts[2]);
        assert_ascending(rows->layer[1].emit);
        assert_ascending(rows->layer[1].ring);
        assert_ascending(rows->logits);
        assembly_close(f.assembly);
    }
}

static void refused(struct fixture *f, const char *part_of_message)
{
    qr_error err = {0};
    assert_int_equal(assembly_check(f->assembly, &f->batch, &err), QR_INTERNAL);
    if (!strstr(err.message, part_of_message))
        fail_msg("'%s' does not say '%s'", err.message, part_of_message);
    assembly_close(f->assembly);
}

/* Lengths of 0 and below among them: known failure 15 (runtime.md 15). */
static void every_broken_batch_is_refused_by_name(void **state)
{
    (void)state;
    struct fixture f;

    set_up(&f, 0);
    refused(&f, "step of 0 requests");
    set_up(&f, 0);
    add(&f, 0, 0, 0);
    refused(&f, "request 0 of the step has 0 tokens");
    set_up(&f, 0);
    add(&f, 4, 1, 0)->count = -1;
    refused(&f, "request 0 of the step has -1 tokens");
    set_up(&f, 0);
    add(&f, -1, 2, 0);
    refused(&f, "positions -1 to 0");
    set_up(&f, 0);
    add(&f, 8 * BLOCK - 1, 2, 0);
    refused(&f, "positions 255 to 256, wanted 0 to 255");
    set_up(&f, 0);
    add(&f, 0, 4, 0)->logits_from = 5;
    refused(&f, "wants logits from token 5 of 4");
    set_up(&f, 0);
    add(&f, 0, MAX_ROWS - 1, 0);
    add(&f, 0, 2, 0);
    refused(&f, "step of 129 rows");
    set_up(&f, 0);
    add(&f, 0, 20, 17);
    refused(&f, "17 rows of logits");
    set_up(&f, 0);
    f.tokens[2] = 100;
    add(&f, 4, 3, 0);
    refused(&f, "token 100 at position 6");
    set_up(&f, 0);
    add(&f, 0, 1, 0);
    add(&f, 0, 1, 0)->slot = SLOTS;
    refused(&f, "request 1 of the step has slot 6");
    set_up(&f, 0);
    add(&f, 0, 1, 0);
    add(&f, 0, 1, 0)->slot = SLOTS - 1;
    refused(&f, "requests 0 and 1 of the step have the same slot 5");
    set_up(&f, 0);
    add(&f, BLOCK, 1, 0)->block_count = 1;
    refused(&f, "has 1 blocks, positions to 32 want 2");
    set_up(&f, 0);
    f.blocks[0][1] = 0;
    add(&f, BLOCK, 1, 0);
    refused(&f, "block 1 has id 0, wanted 1 to 39");
    set_up(&f, 0);
    f.blocks[0][1] = BLOCKS;
    add(&f, BLOCK, 1, 0);
    refused(&f, "block 1 has id 40");
    set_up(&f, 0);
    f.blocks[0][1] = f.blocks[0][0];
    add(&f, BLOCK, 1, 0);
    refused(&f, "names block id 1 twice");
    set_up(&f, 0);
    f.blocks[1][0] = f.blocks[0][1];
    add(&f, BLOCK, 1, 0);
    add(&f, BLOCK, 1, 0);
    refused(&f, "block id 5 is written by request 0 of the step and named by request 1");
}

static void requests_may_share_blocks_that_neither_writes(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f, 0);
    f.blocks[1][0] = f.blocks[0][0];
    add(&f, BLOCK, 1, 0);
    add(&f, BLOCK, 1, 0);
    assert_int_equal(assembly_check(f.assembly, &f.batch, NULL), QR_OK);
    assembly_close(f.assembly);
}

static void verify_steps_are_held_to_the_draft_width(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f, 2);
    f.batch.tentative = true;
    add(&f, 9, 3, 3);
    assert_int_equal(assembly_check(f.assembly, &f.batch, NULL), QR_OK);
    f.span[0].count = 4;
    refused(&f, "draft width of 2");
    set_up(&f, 2);
    f.batch.tentative = true;
    add(&f, 0, 1, 1);
    refused(&f, "position above 0");
    set_up(&f, 0);
    f.batch.tentative = true;
    add(&f, 9, 1, 1);
    refused(&f, "draft width of 0");
}

/* Two requests beside one that decodes: the first goes back to row 32 to run rows below 50 again; of the second no window
 * reaches below 64 in the layers before the last. */
static void rows_that_are_run_again_see_one_another_and_leave_nothing(void **state)
{
    (void)state;
    struct fixture f;
    struct row_plan back = {.first = 32, .end = 57}, rebuilt = {.first = 64, .end = 100};
    set_up(&f, 0);
    for (int32_t i = 0; i < LAYERS; i++) {
        const bool last = i == LAYERS - 1; /* the decoder: a tail of 9 rows */
        back.layer[i] = (struct layer_start){
            .query = last ? 48 : 32, .key = last ? 48 : 32, .compress = i ? 50 : 57, .low = last ? 48 : 0, .again = last ? 0 : 50};
        rebuilt.layer[i] = (struct layer_start){.query = 64, .key = 64, .compress = i ? 96 : 100, .low = last ? 0 : 64};
    }
    struct batch_span *one = add(&f, 32, 25, 1), *two = add(&f, 64, 36, 1);
    add(&f, 80, 1, 1);
    one->rows = &back;
    one->write_from = 50;
    two->rows = &rebuilt;
    two->write_from = 96;
    assert_int_equal(assembly_check(f.assembly, &f.batch, NULL), QR_OK);
    assert_int_equal(assembly_fill(f.assembly, &f.batch, NULL), QR_OK);
    const struct step_rows *rows = assembly_rows(f.assembly);
    for (int32_t i = 0; i < LAYERS; i++) {
        const struct layer_rows *l = &rows->layer[i];
        const bool last = i == LAYERS - 1;
        assert_int_equal(l->key_from[0], last ? 48 : 50);
        assert_int_equal(l->key_from[1], 64);
        assert_int_equal(l->key_from[2], 80);
        assert_int_equal(l->again.count, last ? 0 : 18);
        for (int32_t row = 0; row < 25 + 36 + 1; row++) {
            const bool first = row < 25, second = !first && row < 61, again = first && !last && row < 18;
            const bool query = !first || !last || row >= 16;
            assert_int_equal(listed(l->query, row), query);
            assert_int_equal(listed(l->key, row), query);
            assert_int_equal(listed(l->again, row), again);
            assert_int_equal(listed(l->once, row), query && !again);
            assert_int_equal(l->window_low[row], again ? 32 : first ? (last ? 48 : 0) : second ? (last ? 0 : 64) : 0);
            assert_int_equal(listed(l->ring, row), first ? row >= 20 : second ? row >= 56 : true);
            if (i > 0)
                assert_int_equal(listed(l->compress, row), first ? row >= 18 : second ? row >= 57 : true);
        }
    }
    assembly_close(f.assembly);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_that_are_padded_are_alike_wherever_requests_stand),
        cmocka_unit_test(one_request_and_long_spans_are_not_padded),
        cmocka_unit_test(rows_and_lists_are_what_a_walk_over_the_tokens_finds),
        cmocka_unit_test(rows_that_are_run_again_see_one_another_and_leave_nothing),
        cmocka_unit_test(every_broken_batch_is_refused_by_name),
        cmocka_unit_test(requests_may_share_blocks_that_neither_writes),
        cmocka_unit_test(verify_steps_are_held_to_the_draft_width),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
