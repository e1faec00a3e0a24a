#include "support/v4_law.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "support/support.h"

static void open_law(struct rig *r, const char *scratch, const char *device, enum qr_profile profile, int threads,
                     int32_t attention_rows)
{
    char folder[512], config[640];
    snprintf(folder, sizeof folder, "%s/section-13", scratch);
    snprintf(config, sizeof config, "%s/config.json", folder);
    if (access(config, F_OK) != 0) {
        char *argv[] = {
            "synth",  "--quiet", "--config", (char *)(uintptr_t)source_path("tests/data/config/v4-section-13.json"),
            "--seed", "13",      "--out",    folder};
        assert_int_equal(tool_synth(8, argv), 0);
    }
    rig_open(r, &(struct rig_options){.model = folder,
                                      .device = device,
                                      .threads = threads,
                                      .profile = profile,
                                      .draft_width = 1,
                                      .draft_rows = LAW_TOKENS,
                                      .max_rows = LAW_TOKENS,
                                      .attention_rows = attention_rows,
                                      .blocks = 32});
}

void law_open(struct rig *r, const char *scratch, const char *device, enum qr_profile profile, int threads)
{
    open_law(r, scratch, device, profile, threads, 0);
}

void law_open_cut(struct rig *r, const char *scratch, const char *device, enum qr_profile profile, int32_t attention_rows)
{
    open_law(r, scratch, device, profile, 2, attention_rows);
}

void law_tokens(const struct rig *r, int32_t out[LAW_TOKENS]) { rig_tokens(r, 130, out, LAW_TOKENS); }

struct rig_request law_whole(struct rig *r, const int32_t *tokens, int32_t count)
{
    struct rig_request whole = rig_request(r, tokens, count, 3, 1, 1);
    rig_run(r, &whole, NULL);
    return whole;
}

void law_decode_equals_prefill(struct rig *r, const struct rig_request *whole, int32_t n, int32_t more)
{
    size_t vocab = (size_t)r->config.vocab_size;
    int32_t slot = n % 3;
    struct rig_request q = rig_request(r, whole->tokens, n + more, slot, 30 - slot, -3); /* blocks falling, apart */
    rig_run(r, &q, (const int32_t[]){n, 1, 0});
    for (int32_t p = 0; p < n + more; p++)
        if (memcmp(q.logits + (size_t)p * vocab, whole->logits + (size_t)p * vocab, vocab * sizeof(float)) != 0)
            fail_msg("prefill of %d tokens, then decoding: the logits of position %d differ", (int)n, (int)p);
    rig_request_free(&q);
}

int32_t law_best(const struct rig *r, const float *logits)
{
    int32_t best = 0;
    for (int32_t i = 1; i < r->config.vocab_size; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}
