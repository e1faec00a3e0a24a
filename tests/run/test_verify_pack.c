/* The state machine of greedy drafting (v4-model.md 6.4): the goldens, every small story told in full, and refusals. */
#include "support/support.h"

#include <string.h>

#include "run/verify_pack.h"
#include "support/golden.h"

/* ---- goldens ---- */

static void check_pairs(const char *path)
{
    struct golden *g = golden_open(path);
    int64_t count;
    const int32_t *tail = golden_i32(g, "in.tail", &count), *draft = golden_i32(g, "in.draft", NULL);
    const int32_t *position = golden_i32(g, "in.tail_pos", NULL), *main0 = golden_i32(g, "in.main0", NULL);
    const int32_t *main1 = golden_i32(g, "in.main1", NULL);
    for (int64_t i = 0; i < count; i++) {
        struct pack_slot slot = {.valid = true, .tail = tail[i], .draft = draft[i], .tail_position = position[i]};
        struct pack_rows rows = pack_main_rows(&slot);
        struct pack_verdict v = pack_verify(&slot, (int32_t[]){main0[i], main1[i]});
        assert_int_equal(rows.cached, golden_i32(g, "out.kv_len", NULL)[i]);
        assert_int_equal(v.accepted, golden_i32(g, "out.accepted", NULL)[i]);
        assert_memory_equal(rows.tokens, golden_i32(g, "out.main_tokens", NULL) + 2 * i, sizeof rows.tokens);
        assert_memory_equal(rows.positions, golden_i32(g, "out.main_positions", NULL) + 2 * i, sizeof rows.positions);
        assert_memory_equal(v.tokens, golden_i32(g, "out.mtp_tokens", NULL) + 2 * i, sizeof v.tokens);
        assert_memory_equal(v.positions, golden_i32(g, "out.mtp_positions", NULL) + 2 * i, sizeof v.positions);
        assert_memory_equal(v.sources, golden_i32(g, "out.mtp_state_source", NULL) + 2 * i, sizeof v.sources);
        pack_advance(&slot, &v, 7);
        assert_int_equal(slot.tail, golden_i32(g, "out.new_tail", NULL)[i]);
        assert_int_equal(slot.tail_position, golden_i32(g, "out.new_tail_pos", NULL)[i]);
        assert_int_equal(slot.draft, 7);
    }
    golden_close(g);
}

static void row_pairs_are_the_goldens(void **state)
{
    (void)state;
    check_pairs("tests/golden/ops4/39-verify_pack-w8a8-a.safetensors");
    check_pairs("tests/golden/ops4/39-verify_pack-w8a8-b.safetensors");
}

enum { SLOTS = 4, STREAM = 4 * 8 /* the golden's width of kept streams */ };

/* Slots beside the streams they keep: what a step that refuses must leave alone. */
static void slots_are_the_goldens_and_untouched_unless_live(void **state)
{
    (void)state;
    struct golden *g = golden_open("tests/golden/ops4/39-verify_pack_slots-w8a8-d.safetensors");
    struct pack_slot slots[SLOTS];
    float pool[SLOTS][STREAM];
    const float *streams = golden_f32(g, "in.main_state", NULL);
    memcpy(pool, golden_f32(g, "in.slot_pool", NULL), sizeof pool);
    for (int i = 0; i < SLOTS; i++)
        slots[i] = (struct pack_slot){.valid = golden_bytes(g, "in.slot_valid", NULL)[i],
                                      .generation = golden_i32(g, "in.slot_generation", NULL)[i],
                                      .tail = golden_i32(g, "in.slot_tail", NULL)[i],
                                      .draft = golden_i32(g, "in.slot_draft", NULL)[i],
                                      .tail_position = golden_i32(g, "in.slot_tail_pos", NULL)[i],
                                      .committed = golden_i32(g, "in.slot_committed", NULL)[i]};
    int live = 0;
    for (int b = 0; b < 4; b++) {
        struct pack_slot *slot;
        qr_status st = pack_find(slots, SLOTS, golden_i32(g, "in.slot_ids", NULL)[b],
                                 golden_i32(g, "in.request_generation", NULL)[b], &slot, NULL);
        assert_int_equal(st == QR_OK && slot, golden_bytes(g, "out.live", NULL)[b]);
        if (st != QR_OK || !slot)
            continue;
        live++;
        struct pack_rows rows = pack_main_rows(slot);
        const int32_t chosen[2] = {golden_i32(g, "in.main0", NULL)[b], golden_i32(g, "in.main1", NULL)[b]};
        struct pack_verdict v = pack_verify(slot, chosen);
        assert_int_equal(v.accepted, golden_i32(g, "out.accepted", NULL)[b]);
        assert_memory_equal(rows.tokens, golden_i32(g, "out.main_tokens", NULL) + 2 * b, sizeof rows.tokens);
        assert_memory_equal(rows.positions, golden_i32(g, "out.main_positions", NULL) + 2 * b, sizeof rows.positions);
        assert_memory_equal(v.tokens, golden_i32(g, "out.mtp_tokens", NULL) + 2 * b, sizeof v.tokens);
        assert_memory_equal(v.positions, golden_i32(g, "out.mtp_positions", NULL) + 2 * b, sizeof v.positions);
        memcpy(pool[slot - slots], streams + (2 * b + v.keep) * STREAM, sizeof pool[0]);
        pack_advance(slot, &v, golden_i32(g, "in.new_draft", NULL)[b]);
    }
    assert_true(live > 0);
    for (int i = 0; i < SLOTS; i++) {
        assert_int_equal(slots[i].tail, golden_i32(g, "out.slot_tail", NULL)[i]);
        assert_int_equal(slots[i].draft, golden_i32(g, "out.slot_draft", NULL)[i]);
        assert_int_equal(slots[i].tail_position, golden_i32(g, "out.slot_tail_pos", NULL)[i]);
        assert_int_equal(slots[i].committed, golden_i32(g, "out.slot_committed", NULL)[i]);
    }
    assert_memory_equal(pool, golden_f32(g, "out.slot_pool", NULL), sizeof pool);
    golden_close(g);
}

/* ---- every story ---- */

enum { VOCAB = 2, PROMPT = 2, LENGTH = 5, ALL = PROMPT + LENGTH + 2 };

/* A model whose choice after position p is truth[p], and an MTP layer that guesses what `guesses` says for each
 * position: both are functions of the position, as greedy choices of one sequence are. */
struct story {
    int32_t truth[ALL], guesses[ALL];
    /* what the caches hold: the token whose row each position was last written with */
    int32_t main_written[ALL], mtp_written[ALL];
    int32_t kept_position; /* whose streams the slot keeps */
};

static int32_t token_at(const struct story *s, int32_t position) { return position < 1 ? 0 : s->truth[position - 1]; }

/* One step; appends what it emits. */
static int32_t step(struct story *s, struct pack_slot *slot, int32_t *emitted, int32_t count)
{
    struct pack_rows rows = pack_main_rows(slot);
    int32_t chosen[2];
    for (int r = 0; r < 2; r++) {
        s->main_written[rows.positions[r]] = rows.tokens[r];
        bool right = r == 0 || rows.tokens[1] == token_at(s, rows.positions[1]);
        chosen[r] = right ? s->truth[rows.positions[r]] : VOCAB; /* after a wrong token anything may follow */
    }
    assert_int_equal(rows.tokens[0], token_at(s, rows.positions[0]));
    assert_int_equal(rows.cached, rows.positions[1] + 1);

    struct pack_verdict v = pack_verify(slot, chosen);
    assert_int_equal(v.accepted, slot->draft == chosen[0] ? 2 : 1);
    for (int i = 0; i < v.accepted; i++)
        emitted[count + i] = chosen[i];
    for (int r = 0; r < 2; r++) { /* an MTP row: position, its streams, the token that follows */
        int32_t from = v.sources[r] == PACK_KEPT ? s->kept_position : rows.positions[v.sources[r]];
        assert_int_equal(from, v.positions[r]);
        assert_int_equal(v.tokens[r], token_at(s, v.positions[r] + 1));
        s->mtp_written[v.positions[r]] = v.tokens[r];
    }
    assert_int_equal(v.positions[1], v.positions[0] + 1);
    s->kept_position = rows.positions[v.keep];
    pack_advance(slot, &v, s->guesses[v.positions[1]]);
    assert_int_equal(slot->tail_position, s->kept_position);
    assert_int_equal(slot->tail_position, v.positions[1]);
    return count + v.accepted;
}

static void tell(struct story *s)
{
    struct pack_slot slot = {.generation = 3};
    int32_t emitted[ALL], count = 0;
    memset(s->main_written, -1, sizeof s->main_written);
    memset(s->mtp_written, -1, sizeof s->mtp_written);
    for (int32_t p = 0; p < PROMPT; p++) { /* the prompt, and its rows of the MTP layer */
        s->main_written[p] = token_at(s, p);
        s->mtp_written[p] = token_at(s, p + 1);
    }
    s->kept_position = PROMPT - 1;
    assert_int_equal(pack_start(&slot, PROMPT, s->truth[PROMPT - 1], s->guesses[PROMPT - 1], NULL), QR_OK);
    while (slot.committed < LENGTH - 1)
        count = step(s, &slot, emitted, count);

    assert_int_equal(slot.committed, count);
    for (int32_t i = 0; i < count; i++) /* the greedy sequence, whatever was guessed */
        assert_int_equal(emitted[i], s->truth[PROMPT + i]);
    for (int32_t p = 0; p <= slot.tail_position; p++) { /* caches of committed positions hold the sequence */
        assert_int_equal(s->main_written[p], token_at(s, p));
        assert_int_equal(s->mtp_written[p], token_at(s, p + 1));
    }
    assert_int_equal(slot.tail, token_at(s, slot.tail_position + 1));
    assert_int_equal(slot.tail_position, PROMPT - 1 + count);
}

static void any_truth_and_any_guesses_give_the_greedy_sequence_and_caches(void **state)
{
    (void)state;
    for (int32_t truth = 0; truth < 1 << (ALL - 1); truth++)
        for (int32_t guess = 0; guess < 1 << LENGTH; guess++) {
            struct story s;
            for (int32_t i = 0; i < ALL; i++) {
                s.truth[i] = truth >> i & 1;
                s.guesses[i] = i < PROMPT - 1 ? 0 : guess >> (i - PROMPT + 1) & 1;
            }
            tell(&s);
        }
}

/* ---- refusals ---- */

static void slots_out_of_range_invalid_or_stale_are_refused_by_name(void **state)
{
    (void)state;
    struct pack_slot slots[2] = {{.valid = true, .generation = 4, .tail = 1}, {.generation = 9}}, *found = slots;
    qr_error err = {0};
    assert_int_equal(pack_find(slots, 2, PACK_NO_SLOT, 0, &found, &err), QR_OK);
    assert_null(found);
    assert_int_equal(pack_find(slots, 2, 0, 4, &found, &err), QR_OK);
    assert_ptr_equal(found, &slots[0]);
    assert_int_equal(pack_find(slots, 2, 2, 4, &found, &err), QR_BAD_ARGUMENT);
    assert_non_null(strstr(err.message, "bad slot: 2, wanted -1 to 1"));
    assert_int_equal(pack_find(slots, 2, -2, 4, &found, &err), QR_BAD_ARGUMENT);
    assert_int_equal(pack_find(slots, 2, 1, 9, &found, &err), QR_BAD_ARGUMENT);
    assert_non_null(strstr(err.message, "bad slot: 1 holds no request"));
    assert_int_equal(pack_find(slots, 2, 0, 3, &found, &err), QR_BAD_ARGUMENT);
    assert_non_null(strstr(err.message, "stale slot: 0 is of generation 4, the request of 3"));
    assert_null(found);
    assert_int_equal(pack_start(&slots[1], 0, 1, 2, &err), QR_BAD_ARGUMENT);
    assert_false(slots[1].valid);
    pack_stop(&slots[0]);
    assert_int_equal(slots[0].generation, 5);
    assert_int_equal(pack_find(slots, 2, 0, 5, &found, &err), QR_BAD_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(row_pairs_are_the_goldens),
        cmocka_unit_test(slots_are_the_goldens_and_untouched_unless_live),
        cmocka_unit_test(any_truth_and_any_guesses_give_the_greedy_sequence_and_caches),
        cmocka_unit_test(slots_out_of_range_invalid_or_stale_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
