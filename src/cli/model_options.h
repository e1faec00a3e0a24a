/* model_options.h: what every command that loads a model takes, and how a command ends. */
#ifndef QR_CLI_MODEL_OPTIONS_H
#define QR_CLI_MODEL_OPTIONS_H

#include "base/log.h"
#include "cli/options.h"
#include "quire.h"

struct model_options {
    const char *model; /* NULL when absent */
    const char *device;
    const char *profile; /* NULL: the folder's */
    const char *prompt_profile;
    const char *log_level;
    int threads;       /* 0: every core */
    int max_model_len; /* 0: what fits */
    bool quiet;

    /* the pools and the step (runtime.md 12.1); 0 or NULL: the default */
    int block_size, max_num_seqs, max_num_batched_tokens;
    uint64_t kv_ram_bytes;
    const char *kv_cache_dtype, *index_cache_dtype;
};

#define MODEL_OPTIONS_DEFAULT                                          \
    {                                                                  \
        .device = "cpu", .prompt_profile = "auto", .log_level = "warn" \
    }

/* Rows for a command's table; `m` is a struct model_options. */
/* clang-format off */
#define MODEL_OPTIONS(m)                                                                                               \
    {.name = "model", .kind = OPTION_PATH, .target = &(m).model, .value = "DIR", .help = "the checkpoint's folder"},   \
    {.name = "device", .kind = OPTION_STRING, .target = &(m).device, .value = "DEVICE",                                \
     .help = "cpu (default), cpu-reference or cuda[:N]"},                                                              \
    {.name = "threads", .kind = OPTION_INT, .target = &(m).threads, .value = "N", .help = "default: every core",       \
     .least = 0, .most = 4096},                                                                                        \
    {.name = "profile", .kind = OPTION_CHOICE, .target = &(m).profile, .value = "reference|w8a8",                      \
     .help = "the arithmetic; default: the folder's"},                                                                 \
    {.name = "prompt-profile", .kind = OPTION_CHOICE, .target = &(m).prompt_profile, .value = "auto|v4a|v4b|v41",      \
     .help = "the form of chat text; default: the model's"},                                                           \
    {.name = "max-model-len", .kind = OPTION_INT, .target = &(m).max_model_len, .value = "N",                          \
     .help = "ceiling of prompt and output; default: what fits", .least = 1, .most = 2147483647},                      \
    {.name = "log-level", .kind = OPTION_CHOICE, .target = &(m).log_level, .value = "error|warn|info|debug",           \
     .help = "what is said on standard error; default: warn"},                                                         \
    {.name = "quiet", .kind = OPTION_FLAG, .target = &(m).quiet, .help = "no progress, statistics or warnings"}

/* Rows for commands that run requests. */
#define ENGINE_OPTIONS(m)                                                                                              \
    {.name = "max-num-seqs", .kind = OPTION_INT, .target = &(m).max_num_seqs, .value = "N",                            \
     .help = "requests running at once; default 1", .least = 1, .most = 65536},                                        \
    {.name = "max-num-batched-tokens", .kind = OPTION_INT, .target = &(m).max_num_batched_tokens, .value = "N",        \
     .help = "rows of a step; default 2048", .least = 1, .most = 1 << 20},                                             \
    {.name = "kv-ram-bytes", .kind = OPTION_UINT64, .target = &(m).kv_ram_bytes, .value = "N",                         \
     .help = "bytes of the cache pools; default: half of the memory available"},                                       \
    {.name = "block-size", .kind = OPTION_INT, .target = &(m).block_size, .value = "N",                                \
     .help = "tokens of a page; default 128", .least = 1, .most = 65536},                                              \
    {.name = "kv-cache-dtype", .kind = OPTION_CHOICE, .target = &(m).kv_cache_dtype, .value = "bf16|fp4",              \
     .help = "container of main and window rows; changes no bit"},                                                     \
    {.name = "index-cache-dtype", .kind = OPTION_CHOICE, .target = &(m).index_cache_dtype, .value = "fp4|fp8|int8",    \
     .help = "container of index keys"}
/* clang-format on */

/* The same as the library wants them. `m` must outlive both. */
qr_model_options model_options_model(const struct model_options *m);
qr_engine_options model_options_engine(const struct model_options *m);

/* A log that writes to standard error what the options ask for; errors only when quiet. */
struct qr_log model_options_log(const struct model_options *m);

/* Prints "quire COMMAND: message" and returns the exit status that belongs to err->status: 3 when refused before
 * loading, otherwise 1. */
int report_failure(const char *command, const qr_error *err);

#endif
