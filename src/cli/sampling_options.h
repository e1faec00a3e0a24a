/* sampling_options.h: how tokens are drawn, as flags or as members of a JSON request (protocol.md 4.2), over the defaults
 * of the model's generation_config.json. */
#ifndef QR_CLI_SAMPLING_OPTIONS_H
#define QR_CLI_SAMPLING_OPTIONS_H

#include "base/json.h"
#include "cli/options.h"
#include "serve/members.h"

struct sampling_options {
    double temperature, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty;
    int top_k, max_tokens;
    uint64_t seed;
    bool has_temperature, has_top_p, has_seed;
    struct option_list stop;
    bool ignore_eos;
};

#define SAMPLING_OPTIONS_DEFAULT            \
    {                                       \
        .top_p = 1, .repetition_penalty = 1 \
    }

/* clang-format off */
#define SAMPLING_OPTIONS(s)                                                                                            \
    {.name = "max-tokens", .letter = 'n', .kind = OPTION_INT, .target = &(s).max_tokens, .value = "N",                 \
     .help = "tokens of the answer; default: what fits", .least = 1, .most = 2147483647},                              \
    {.name = "temperature", .kind = OPTION_DOUBLE, .target = &(s).temperature, .value = "T",                           \
     .help = "0: always the likeliest token", .given = &(s).has_temperature, .least = 0, .most = 100},                 \
    {.name = "top-p", .kind = OPTION_DOUBLE, .target = &(s).top_p, .value = "P", .help = "nucleus sampling",           \
     .given = &(s).has_top_p, .least = 0, .most = 1, .above = true},                                                   \
    {.name = "top-k", .kind = OPTION_INT, .target = &(s).top_k, .value = "K", .help = "the K likeliest only",          \
     .least = 0, .most = 2147483647},                                                                                  \
    {.name = "min-p", .kind = OPTION_DOUBLE, .target = &(s).min_p, .value = "P",                                       \
     .help = "drop tokens below P times the likeliest", .least = 0, .most = 1},                                        \
    {.name = "repetition-penalty", .kind = OPTION_DOUBLE, .target = &(s).repetition_penalty, .value = "R",             \
     .help = "above 1: against repetition", .least = 0.01, .most = 100},                                               \
    {.name = "frequency-penalty", .kind = OPTION_DOUBLE, .target = &(s).frequency_penalty, .value = "F",               \
     .help = "for each time a token was made", .least = -100, .most = 100},                                            \
    {.name = "presence-penalty", .kind = OPTION_DOUBLE, .target = &(s).presence_penalty, .value = "F",                 \
     .help = "for tokens that were made", .least = -100, .most = 100},                                                 \
    {.name = "seed", .kind = OPTION_UINT64, .target = &(s).seed, .value = "N",                                         \
     .help = "the same seed gives the same answer; default: drawn and printed", .given = &(s).has_seed},               \
    {.name = "stop", .kind = OPTION_LIST, .target = &(s).stop, .value = "TEXT",                                        \
     .help = "end the answer before this text; may be repeated"},                                                      \
    {.name = "ignore-eos", .kind = OPTION_FLAG, .target = &(s).ignore_eos, .help = "go on past the end token"}
/* clang-format on */

/* Fills sampling and limits from flags, not the prompt. `*seed` gets the seed in use. */
void request_from_options(const qr_model *model, const struct sampling_options *options, struct request_text *out,
                          uint64_t *seed);

/* Fills it from a JSON object with "tokens", "prompt" (text with markup) or "messages", and the members of protocol.md
 * 4.2 that say how tokens are drawn; others are left to the chat template, or refused (cli/request_members.h). Absent members are `defaults`'. The JSON must
 * outlive `out`. QR_BAD_REQUEST names the member. */
qr_status request_from_json(const qr_model *model, const struct json *line, const struct sampling_options *defaults,
                            struct request_text *out, qr_error *err);

#endif
