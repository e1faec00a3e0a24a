/* model_options.h: what every command that loads a model takes, and how a command ends. */
#ifndef QR_CLI_MODEL_OPTIONS_H
#define QR_CLI_MODEL_OPTIONS_H

#include "base/log.h"
#include "cli/options.h"
#include "quire.h"

/* Flags of features that are not built: no help lists them, the library refuses them, naming feature and rule.
 * X(m, row, flag, kind, value). */
/* clang-format off */
#define FEATURE_FLAGS(X, m)                                                                                            \
    X(m, 0, "pipeline-parallel-size", OPTION_STRING, "N")                                                              \
    X(m, 1, "context-parallel-size", OPTION_STRING, "N")                                                               \
    X(m, 2, "data-parallel-size", OPTION_STRING, "N")                                                                  \
    X(m, 3, "enable-dp-attention", OPTION_SET, "on")                                                                   \
    X(m, 4, "enable-tbo", OPTION_STRING, "prefill")                                                                    \
    X(m, 5, "enable-tbo-decode", OPTION_SET, "on")                                                                     \
    X(m, 6, "kv-transfer", OPTION_STRING, "NAME")                                                                      \
    X(m, 7, "offload-ram-bytes", OPTION_STRING, "N")                                                                   \
    X(m, 8, "offload-disk-bytes", OPTION_STRING, "N")                                                                  \
    X(m, 9, "offload-dir", OPTION_STRING, "DIR")                                                                      \
    X(m, 10, "disaggregation", OPTION_STRING, "prefill|decode")                                                        \
    X(m, 11, "enable-eplb", OPTION_SET, "on")                                                                          \
    X(m, 12, "online-quantization", OPTION_STRING, "NAME")                                                             \
    X(m, 13, "decoder-graph-sizes", OPTION_STRING, "LIST")                                                             \
    X(m, 14, "tp", OPTION_STRING, "N")                                                                                 \
    X(m, 15, "ep", OPTION_STRING, "N")                                                                                 \
    X(m, 16, "enable-expert-parallel", OPTION_SET, "on")                                                               \
    X(m, 17, "export-hidden-states", OPTION_SET, "on")                                                                 \
    X(m, 18, "fused-moe-communication", OPTION_SET, "on")                                                              \
    X(m, 19, "index-query-grid", OPTION_STRING, "fp4|plane")
enum { FEATURE_COUNT = 20 };
#define FEATURE_NAME(m, row, flag, kind_, value_) [row] = {flag, NULL},
#define FEATURE_ROW(m, row, flag, kind_, value_)                                                                       \
    , {.name = flag, .kind = kind_, .target = &(m).features[row][1], .value = value_, .help = ""}
/* clang-format on */

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
    double gpu_utilization;
    int indexer_logits_mb;
    uint64_t expert_memory;
    const char *expert_use;
    const char *level, *graph_mode, *capture_sizes;
    bool eager;
    const char *kv_cache_dtype, *index_cache_dtype;
    const char *decoder_replay, *encoder_replay, *prefix_provenance;
    int max_prefill_rows, attn_chunk, long_prefill_cap, image_interval; /* the first -1: what decode leaves */
    double delay_factor;
    bool no_prefix_caching;
    const char *method; /* of drafts */
    int speculative_tokens, draft_width;
    const char *verifier, *draft_sampling;
    double forced_length; /* 0: off */
    const char *speculation_profile;
    const char *features[FEATURE_COUNT][2]; /* flag, value; value NULL: absent */
};

#define MODEL_OPTIONS_DEFAULT                                          \
    {                                                                  \
        .device = "cpu", .prompt_profile = "auto", .log_level = "warn", .max_prefill_rows = -1, .image_interval = 8192, \
        .features = {FEATURE_FLAGS(FEATURE_NAME, )}                                                                     \
    }

/* Rows for a command's table; `m` is a struct model_options. */
/* clang-format off */
#define MODEL_OPTIONS(m)                                                                                               \
    {.name = "model", .kind = OPTION_PATH, .target = &(m).model, .value = "DIR", .help = "the checkpoint's folder"},   \
    {.name = "device", .kind = OPTION_DEVICE, .target = &(m).device, .value = "DEVICE",                                \
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

/* Rows for commands that have a cache. */
#define CACHE_OPTIONS(m)                                                                                               \
    {.name = "kv-ram-bytes", .kind = OPTION_UINT64, .target = &(m).kv_ram_bytes, .value = "N",                         \
     .help = "bytes of the cache pools; default: half of the memory available, on a GPU what is left there"},          \
    {.name = "gpu-memory-utilization", .kind = OPTION_DOUBLE, .target = &(m).gpu_utilization, .value = "X",            \
     .help = "share of a GPU's memory that may be taken; default 0.9", .least = 0.01, .most = 1},                      \
    {.name = "expert-memory", .kind = OPTION_UINT64, .target = &(m).expert_memory, .value = "N",                        \
     .help = "bytes of a GPU for routed experts, the rest lying in pinned host memory; changes no bit; default: all, or " \
             "what is left there"},                                                                                     \
    {.name = "indexer-logits-budget-mb", .kind = OPTION_INT, .target = &(m).indexer_logits_mb, .value = "N",           \
     .help = "MiB of index scores that a GPU forms at once; default 2048, at most its scratch", .least = 1,            \
     .most = 1 << 20},                                                                                                 \
    {.name = "block-size", .kind = OPTION_INT, .target = &(m).block_size, .value = "N",                                \
     .help = "tokens of a page; default 128", .least = 1, .most = 65536},                                              \
    {.name = "kv-cache-dtype", .kind = OPTION_CHOICE, .target = &(m).kv_cache_dtype, .value = "bf16|fp4",              \
     .help = "container of main and window rows; changes no bit"},                                                     \
    {.name = "index-cache-dtype", .kind = OPTION_CHOICE, .target = &(m).index_cache_dtype, .value = "fp4|fp8|int8",    \
     .help = "container of index keys"}

/* Rows for commands that run requests. */
#define ENGINE_OPTIONS(m)                                                                                              \
    {.name = "max-num-seqs", .kind = OPTION_INT, .target = &(m).max_num_seqs, .value = "N",                            \
     .help = "requests running at once; default 1", .least = 1, .most = 65536},                                        \
    {.name = "max-num-batched-tokens", .kind = OPTION_INT, .target = &(m).max_num_batched_tokens, .value = "N",        \
     .help = "rows of a step; default 2048", .least = 1, .most = 1 << 20},                                             \
    CACHE_OPTIONS(m),                                                                                                  \
    {.name = "expert-use", .kind = OPTION_PATH, .target = &(m).expert_use, .value = "FILE",                             \
     .help = "keeps which routed experts are used most, to put these on the GPU when not all fit; default: none"},      \
    {.name = "cudagraph-mode", .kind = OPTION_CHOICE, .target = &(m).graph_mode, .value = "FULL|TR_HYBRID|NONE",       \
     .help = "what a GPU records of steps: all (default), what is between attention, or nothing; changes no bit"},     \
    {.name = "cudagraph-capture-sizes", .kind = OPTION_STRING, .target = &(m).capture_sizes, .value = "SIZES",         \
     .help = "numbers of requests, 1,2,4, whose decode steps a GPU records at the start; default: each when it comes again"}, \
    {.name = "level", .kind = OPTION_CHOICE, .target = &(m).level, .value = "0|3",                                     \
     .help = "0: operator by operator; 3: fused segments, the default of a GPU; changes no bit"},                      \
    {.name = "enforce-eager", .kind = OPTION_FLAG, .target = &(m).eager, .help = "--cudagraph-mode NONE, whatever that says"}, \
    {.name = "decoder-replay", .kind = OPTION_CHOICE, .target = &(m).decoder_replay, .value = "exact|bounded|off",     \
     .help = "layers behind the last KV source run the rows that later results need (default), the last window alone, which " \
             "is an approximation, or every row"},                                                                     \
    {.name = "decoder-swa-bounded-replay", .kind = OPTION_SET, .target = &(m).decoder_replay, .value = "bounded",      \
     .help = "--decoder-replay bounded"},                                                                              \
    {.name = "no-decoder-swa-bounded-replay", .kind = OPTION_SET, .target = &(m).decoder_replay, .value = "off",       \
     .help = "--decoder-replay off"},                                                                                  \
    {.name = "encoder-replay", .kind = OPTION_CHOICE, .target = &(m).encoder_replay, .value = "exact|bounded|off",     \
     .help = "start from any cached page (default), the same from one block below it, which is an approximation, or "  \
             "from state images only"},                                                                                \
    {.name = "encoder-swa-bounded-replay", .kind = OPTION_SET, .target = &(m).encoder_replay, .value = "bounded",      \
     .help = "--encoder-replay bounded"},                                                                              \
    {.name = "no-encoder-swa-bounded-replay", .kind = OPTION_SET, .target = &(m).encoder_replay, .value = "off",       \
     .help = "--encoder-replay off"},                                                                                  \
    {.name = "no-prefix-caching", .kind = OPTION_FLAG, .target = &(m).no_prefix_caching,                               \
     .help = "compute every prompt from its first token"},                                                             \
    {.name = "prefix-provenance", .kind = OPTION_CHOICE, .target = &(m).prefix_provenance, .value = "exact-only|any",  \
     .help = "which cached pages may be used; default: those that a cold run would have made, and under bounded replay its own"}, \
    {.name = "state-checkpoint-interval-tokens", .kind = OPTION_INT, .target = &(m).image_interval, .value = "N",      \
     .help = "tokens between state images inside a prompt; 0: none; default 8192", .least = 0, .most = 2147483647},    \
    {.name = "max-prefill-tokens-per-step", .kind = OPTION_INT, .target = &(m).max_prefill_rows, .value = "N",         \
     .help = "prefill rows beside decode rows; 0: never in one step; default: what decode leaves", .least = -1,        \
     .most = 1 << 20},                                                                                                 \
    {.name = "attn-prefill-chunk-size", .kind = OPTION_INT, .target = &(m).attn_chunk, .value = "N",                   \
     .help = "rows of an attention call at most; bounds its scratch, changes no bit; default 16384", .least = 1,              \
     .most = 1 << 20},                                                                                                 \
    {.name = "long-prefill-cap", .kind = OPTION_INT, .target = &(m).long_prefill_cap, .value = "N",                    \
     .help = "prefill rows of one request and step; default 0: no cap", .least = 0, .most = 2147483647},               \
    {.name = "scheduler-delay-factor", .kind = OPTION_DOUBLE, .target = &(m).delay_factor, .value = "X",               \
     .help = "hold new prompts for X times the last prompt's latency; default 0", .least = 0, .most = 1e6},            \
    {.name = "method", .kind = OPTION_CHOICE, .target = &(m).method, .value = "auto|none|dspark|mtp",                  \
     .help = "what drafts tokens that a step verifies; auto (default): what the checkpoint holds, while that pays"},                          \
    {.name = "num-speculative-tokens", .kind = OPTION_INT, .target = &(m).speculative_tokens, .value = "N",            \
     .help = "drafts that a step verifies at most; default: as many as the drafter makes", .least = 1, .most = 64},    \
    {.name = "draft-width", .kind = OPTION_INT, .target = &(m).draft_width, .value = "N",                              \
     .help = "tokens that the drafter makes at once, to 7 with a V4 DSpark; default: the checkpoint's block", .least = 1, .most = 64}, \
    {.name = "verifier", .kind = OPTION_CHOICE, .target = &(m).verifier, .value = "match|ratio|block",                 \
     .help = "how drafts are judged; match (default) changes no bit; ratio and block keep the distribution of answers, but " \
             "not the tokens that a seed gives without drafts"},                                                       \
    {.name = "draft-sampling", .kind = OPTION_CHOICE, .target = &(m).draft_sampling, .value = "coupled|greedy|probabilistic", \
     .help = "how drafts are drawn; default: coupled with match, else probabilistic"},                                 \
    {.name = "forced-acceptance-length", .kind = OPTION_DOUBLE, .target = &(m).forced_length, .value = "L",            \
     .help = "for benchmarks: steps take L tokens on average, right or wrong; answers are none of the model's", .least = 1, .most = 65}, \
    {.name = "speculation-profile", .kind = OPTION_PATH, .target = &(m).speculation_profile, .value = "FILE",           \
     .help = "as many drafts a step as confidences and the times in a file of bench drafts say; default: all of them"} \
    FEATURE_FLAGS(FEATURE_ROW, m)
/* clang-format on */

/* The same as the library wants them. `m` must outlive both. */
qr_model_options model_options_model(const struct model_options *m);
qr_engine_options model_options_engine(const struct model_options *m);

/* A log that writes to standard error what the options ask for; errors only when quiet. */
struct qr_log model_options_log(const struct model_options *m);

/* Prints "quire COMMAND: message" and returns the exit status that belongs to err->status: 3 when refused before
 * loading, 2 when an option asks for what this model does not take (QR_BAD_ARGUMENT), otherwise 1. */
int report_failure(const char *command, const qr_error *err);

#endif
