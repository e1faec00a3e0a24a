/* label: full once */
/* The trained drafters bring what they were trained to bring: tokens a verify step on the first eight requests of each kind
 * of golden/models, greedy, all drafts verified, against the live figures of its README, less 5 %. */
#include <stdio.h>
#include <string.h>

#include "base/jsonl.h"
#include "cli/sampling_options.h"
#include "support/engines.h"
#include "support/support.h"

enum { KINDS = 64, OF_A_KIND = 8 };

struct kind {
    char name[32];
    int taken;
    qr_draft_metrics drafts;
};

struct gain {
    struct opened o;
    struct kind kinds[KINDS];
    int kind_count;
};

static struct kind *kind_of(struct gain *g, const struct json *line)
{
    const struct json *name = json_get(line, "kind");
    for (int i = 0; i < g->kind_count; i++)
        if (json_equals(name, g->kinds[i].name))
            return &g->kinds[i];
    assert_true(g->kind_count < KINDS && name->length < sizeof g->kinds->name);
    struct kind *kind = &g->kinds[g->kind_count++];
    memcpy(kind->name, name->text, name->length);
    return kind;
}

/* Answers a request; the counts of an engine that runs nothing else grow by those of its kind. */
static void answer(struct gain *g, struct kind *kind, const struct json *line)
{
    const struct sampling_options defaults = SAMPLING_OPTIONS_DEFAULT;
    struct request_text r = {0};
    qr_metrics before = {.size = sizeof before}, after = {.size = sizeof after};
    qr_error err = {0};
    if (request_from_json(g->o.model, json_get(line, "request"), &defaults, &r, &err) != QR_OK)
        fail_msg("%s", err.message);
    qr_get_metrics(g->o.engine, &before);
    struct reply reply = reply_of(&g->o, &r.request);
    qr_get_metrics(g->o.engine, &after);
    kind->drafts.emitted += after.drafts.emitted - before.drafts.emitted;
    kind->drafts.decode_steps += after.drafts.decode_steps - before.drafts.decode_steps;
    reply_free(&reply);
    request_text_free(&r);
}

static double tokens_a_step(const qr_draft_metrics *m) { return m->decode_steps ? (double)m->emitted / (double)m->decode_steps : 0; }

/* Tokens a step over all requests, and in `mean` over the kinds. */
static double gain(const char *model, const char *method, double *mean)
{
    struct gain g = {.kind_count = 0};
    struct jsonl_reader reader;
    struct json_document *doc;
    char path[200];
    qr_engine_options options = QR_ENGINE_OPTIONS;
    qr_draft_metrics all = {0};
    options.method = method;
    options.max_model_len = 4096;
    snprintf(path, sizeof path, "models/%s", model);
    g.o = engine_open(path, NULL, 2, &options);
    snprintf(path, sizeof path, "tests/golden/models/%s/quality.jsonl", model);
    FILE *file = fopen(source_path(path), "r");
    assert_non_null(file);
    jsonl_open(&reader, file, path);
    while (jsonl_next(&reader, &doc, NULL) == QR_OK && doc) {
        struct kind *kind = kind_of(&g, json_root(doc));
        if (kind->taken++ < OF_A_KIND)
            answer(&g, kind, json_root(doc));
        json_close(doc);
    }
    jsonl_close(&reader);
    fclose(file);
    *mean = 0;
    for (int i = 0; i < g.kind_count; i++) {
        const struct kind *kind = &g.kinds[i];
        print_message("%s, %-12s %.2f tokens a step\n", model, kind->name, tokens_a_step(&kind->drafts));
        *mean += tokens_a_step(&kind->drafts) / g.kind_count;
        all.emitted += kind->drafts.emitted;
        all.decode_steps += kind->drafts.decode_steps;
    }
    engine_close(&g.o);
    print_message("%s: all %.3f, mean of kinds %.3f\n", model, tokens_a_step(&all), *mean);
    return tokens_a_step(&all);
}

static void dspark_of_the_v41_brings_the_live_figures(void **state)
{
    (void)state;
    double mean;
    assert_true(gain("tiny-v41", "dspark", &mean) >= 0.95 * 2.69);
    assert_true(mean >= 0.95 * 3.16);
}

static void mtp_of_the_v4_brings_the_live_figures(void **state)
{
    (void)state;
    double mean;
    assert_true(gain("tiny-v4", "mtp", &mean) >= 0.95 * 1.87);
    assert_true(mean >= 0.95 * 1.93);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dspark_of_the_v41_brings_the_live_figures),
        cmocka_unit_test(mtp_of_the_v4_brings_the_live_figures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
