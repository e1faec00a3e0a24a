/* label: full once */
/* The two trained models beside golden/models: forced greedy choices and negative log likelihood, both profiles of
 * tiny-v4, on the fast path. Quality has a test of its own. */
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "support/rig.h"
#include "support/shared_memory.h"
#include "support/v4_case.h"

static const struct model {
    const char *name, *nll; /* folder; member of nll.jsonl */
    enum qr_profile profile;
} models[] = {{"tiny-v4", "nll", QR_PROFILE_REFERENCE},
              {"tiny-v4", "nll_w8a8", QR_PROFILE_W8A8},
              {"tiny-v41", "nll", QR_PROFILE_REFERENCE}};
enum { MODELS = sizeof models / sizeof *models, POSITIONS = 2048 };

static void open_model(struct rig *r, const struct model *m)
{
    char folder[64];
    snprintf(folder, sizeof folder, "models/%s", m->name);
    rig_open(r, &(struct rig_options){.model = folder,
                                      .device = fast_device(),
                                      .threads = 2,
                                      .profile = m->profile,
                                      .max_rows = POSITIONS,
                                      .max_positions = POSITIONS,
                                      .blocks = 80});
}

/* Calls `line` for every line of a golden; returns how many there are. */
static int32_t each_line(const struct model *m, const char *file, struct rig *r,
                         void (*line)(struct rig *r, const struct json *e, void *user), void *user)
{
    char path[128], *text;
    size_t size;
    int32_t lines = 0;
    snprintf(path, sizeof path, "tests/golden/models/%s/%s", m->name, file);
    assert_int_equal(file_read(source_path(path), 1 << 26, &text, &size, NULL), QR_OK);
    for (char *at = text, *end; *at; at = end + (*end == '\n'), lines++) {
        struct json_document *doc;
        end = at + strcspn(at, "\n");
        assert_int_equal(json_parse(at, (size_t)(end - at), path, false, &doc, NULL), QR_OK);
        line(r, json_root(doc), user);
        json_close(doc);
    }
    qr_free(text);
    return lines;
}

/* ---- greedy choices ---- */

struct choices {
    int32_t equal, all;
};

static void force_line(struct rig *r, const struct json *e, void *user)
{
    struct choices *c = user;
    int32_t prompt_count, count;
    int32_t *prompt = v4_ints(json_get(e, "prompt_ids"), &prompt_count),
            *tokens = v4_ints(json_get(e, "tokens"), &count);
    int32_t *ids = realloc(prompt, (size_t)(prompt_count + count) * sizeof *ids);
    assert_non_null(ids);
    memcpy(ids + prompt_count, tokens, (size_t)count * sizeof *ids);
    struct rig_request q = rig_request(r, ids, prompt_count + count, 0, 1, 1);
    rig_run(r, &q, NULL);
    for (int32_t i = 0; i < count; i++) {
        double margin;
        const float *row = q.logits + (int64_t)(prompt_count - 1 + i) * r->config.vocab_size;
        int32_t best = best_of(row, r->config.vocab_size);
        assert_true(json_double(json_at(json_get(e, "margin"), (size_t)i), &margin));
        c->all++;
        c->equal += best == tokens[i];
        if (best != tokens[i] && margin >= 2)
            fail_msg("%.*s: token %d is %d, wanted %d by a margin of %g", (int)json_get(e, "id")->length,
                     json_get(e, "id")->text, (int)i, (int)best, (int)tokens[i], margin);
    }
    rig_request_free(&q);
    free(ids);
    free(tokens);
}

static void forced_on_the_golden_the_choices_are_the_goldens(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        struct rig r;
        struct choices c = {0, 0};
        open_model(&r, &models[i]);
        assert_true(each_line(&models[i], "greedy.jsonl", &r, force_line, &c) > 20);
        if (c.equal < 0.985 * c.all)
            fail_msg("%s: %d of %d choices are the golden's, wanted 98.5 %%", models[i].name, (int)c.equal, (int)c.all);
        rig_close(&r);
    }
}

/* ---- likelihood ---- */

struct likelihood {
    const char *member;
    double found, wanted;
};

static double nll_of(const float *logits, int32_t vocab, int32_t token)
{
    double largest = logits[best_of(logits, vocab)], sum = 0;
    for (int32_t v = 0; v < vocab; v++)
        sum += exp((double)logits[v] - largest);
    return largest + log(sum) - (double)logits[token];
}

static void score_line(struct rig *r, const struct json *e, void *user)
{
    struct likelihood *l = user;
    int32_t count;
    int32_t *ids = v4_ints(json_get(e, "tokens"), &count);
    double found = 0, wanted;
    assert_true(json_double(json_get(e, l->member), &wanted));
    struct rig_request q = rig_request(r, ids, count, 0, 1, 1);
    rig_run(r, &q, NULL);
    for (int32_t i = 1; i < count; i++)
        found += nll_of(q.logits + (int64_t)(i - 1) * r->config.vocab_size, r->config.vocab_size, ids[i]);
    if (!(fabs(found - wanted) <= 0.02 * wanted))
        fail_msg("%s: %s is %g, wanted %g within 2 %%", json_get(e, "id")->text, l->member, found, wanted);
    l->found += found;
    l->wanted += wanted;
    rig_request_free(&q);
    free(ids);
}

static void the_likelihood_of_texts_is_the_goldens(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        struct rig r;
        struct likelihood l = {.member = models[i].nll};
        open_model(&r, &models[i]);
        assert_true(each_line(&models[i], "nll.jsonl", &r, score_line, &l) >= 8);
        if (!(fabs(l.found - l.wanted) <= 0.005 * l.wanted))
            fail_msg("%s: the sum of %s is %g, wanted %g within 0.5 %%", models[i].name, l.member, l.found, l.wanted);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forced_on_the_golden_the_choices_are_the_goldens),
        cmocka_unit_test(the_likelihood_of_texts_is_the_goldens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
