/* Whether a step's time hangs on the ceiling: one decoded token behind CONTEXT tokens, when a request may have 8,192
 * positions and when it may have 1,048,576. [MODEL...]: the two trained models. */
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "plan/settle.h"
#include "run/forward.h"
#include "ops/device.h"

enum { CONTEXT = 2000, STEPS = 40, BLOCK = 128, BLOCKS = (CONTEXT + STEPS + 2 * BLOCK) / BLOCK };

struct bench {
    struct qr_config config;
    struct checkpoint *checkpoint;
    struct model_plan plan;
    struct geometry geometry;
    struct token_map map;
    struct backend *backend;
    struct runner *runner;
    int32_t tokens[CONTEXT + STEPS], blocks[BLOCKS];
};

static qr_status open_all(struct bench *b, const char *folder, int32_t ceiling, qr_error *err)
{
    qr_status st = model_folder_open(folder, &b->config, &b->checkpoint, err);
    if (st == QR_OK)
        st = plan_make(&b->config, QR_PROFILE_REFERENCE, &b->plan, err);
    if (st != QR_OK)
        return st;
    const struct geometry_options g = geometry_defaults(&b->plan);
    st = geometry_make(&b->plan, &g, &b->geometry, err);
    if (st == QR_OK && b->config.n_engram > 0) {
        struct tokenizer *tok;
        st = tok_open_ids(folder, NULL, &tok, err);
        if (st == QR_OK) {
            st = token_map_build(tok, &b->map, err);
            tok_close(tok);
        }
    }
    if (st == QR_OK)
        st = backend_open("cpu", 0, NULL, &b->backend, err);
    if (st != QR_OK)
        return st;
    const struct runner_options options = {
        .blocks = BLOCKS + 1,
        .slots = 1,
        .model = {.max_rows = CONTEXT, .max_requests = 1, .max_logits = 1, .max_positions = ceiling}};
    for (int32_t i = 0; i < BLOCKS; i++)
        b->blocks[i] = i + 1;
    for (int32_t i = 0; i < CONTEXT + STEPS; i++)
        b->tokens[i] = i * 7919 % b->config.vocab_size;
    return runner_open(b->checkpoint, &b->plan, &b->geometry, b->backend, b->config.n_engram > 0 ? &b->map : NULL,
                       &options, &b->runner, err);
}

static void close_all(struct bench *b)
{
    runner_close(b->runner);
    if (b->backend)
        b->backend->close(b->backend);
    token_map_free(&b->map);
    checkpoint_close(b->checkpoint);
    qr_free(b);
}

static qr_status step(struct bench *b, int32_t position, int32_t count, qr_error *err)
{
    struct batch_span span = {.request = 1,
                              .blocks = b->blocks,
                              .block_count = BLOCKS,
                              .first_position = position,
                              .count = count,
                              .tokens = b->tokens + position,
                              .logits_from = count - 1,
                              .final = true};
    const struct batch batch = {.step = (uint64_t)position + 1, .count = 1, .spans = &span};
    return runner_step(b->runner, &batch, NULL, err);
}

/* The shortest and the mean decode step under a ceiling, in seconds. */
static qr_status time_under(const char *folder, int32_t ceiling, double *least, double *mean, qr_error *err)
{
    struct bench *b = qr_calloc(1, sizeof *b);
    qr_status st = b ? open_all(b, folder, ceiling, err) : QR_NO_MEMORY;
    double total = 0;
    if (st == QR_OK)
        st = step(b, 0, CONTEXT, err);
    for (int32_t i = 0; st == QR_OK && i < STEPS; i++) {
        const double start = clock_seconds();
        st = step(b, CONTEXT + i, 1, err);
        const double spent = clock_seconds() - start;
        total += spent;
        *least = i == 0 || spent < *least ? spent : *least;
    }
    *mean = total / STEPS;
    if (b)
        close_all(b);
    return st;
}

int main(int argc, char **argv)
{
    static char *const own[] = {"models/tiny-v41", "models/tiny-v4"};
    char *const *models = argc > 1 ? argv + 1 : own;
    const int count = argc > 1 ? argc - 1 : 2;
    for (int i = 0; i < count; i++)
        for (int32_t ceiling = 8192; ceiling <= 1048576; ceiling *= 128) {
            double least = 0, mean = 0;
            qr_error err = {0};
            if (time_under(models[i], ceiling, &least, &mean, &err) != QR_OK) {
                fprintf(stderr, "%s\n", err.message);
                return 1;
            }
            printf("run/ceiling  %s, %d tokens cached, at most %d: %.2f ms a decode step (mean), %.2f (least)\n", models[i],
                   CONTEXT, ceiling, mean * 1e3, least * 1e3);
        }
    return 0;
}
