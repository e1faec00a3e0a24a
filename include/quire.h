/* quire.h: the public interface of libquire, the one installed header.
 *
 * Threads: every function may be called from any thread unless its comment says otherwise. An object belongs to the
 * caller until it is closed; closing an object that another thread still uses is a programming error. Objects and places for
 * results are never NULL unless a comment says so.
 * Errors: a function that can fail returns qr_status and, when `err` is not NULL, leaves one sentence in it. The
 * library prints nothing, never exits and never aborts on input. */
#ifndef QUIRE_H
#define QUIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QR_VERSION_MAJOR 0
#define QR_VERSION_MINOR 1
#define QR_VERSION_PATCH 0

#if defined(__GNUC__)
#define QR_API __attribute__((visibility("default")))
#else
#define QR_API
#endif

/* How a call ended. */
typedef enum qr_status {
    QR_OK = 0,
    QR_NO_MEMORY,     /* an allocation failed, or the byte plan does not fit */
    QR_BAD_ARGUMENT,  /* the caller's argument is outside its documented range */
    QR_BAD_FILE,      /* a file is missing, unreadable or malformed */
    QR_BAD_CONFIG,    /* config.json (or a cross-field rule of it) is refused */
    QR_BAD_REQUEST,   /* a request (prompt, sampling field, message) is refused */
    QR_UNSUPPORTED,   /* a feature that this build or model does not have */
    QR_REFUSED,       /* an admission rule (runtime.md 11) is violated; nothing was loaded */
    QR_NUMERIC,       /* a NaN or infinity appeared where the model cannot have one */
    QR_CANCELLED,     /* the caller's callback or qr_cancel asked to stop */
    QR_BUSY,          /* a queue or pool is full; try again later */
    QR_IO,            /* the operating system refused a read or write */
    QR_INTERNAL       /* an invariant of the library is broken; a bug */
} qr_status;

/* One sentence naming what was found and what was wanted. Zero-initialise it. */
typedef struct qr_error {
    qr_status status;
    char message[1000];
} qr_error;

/* "0.1.0" */
QR_API const char *qr_version(void);
/* A short name of a status, such as "bad file". Never NULL. */
QR_API const char *qr_status_name(qr_status status);

/* Text that the library made and the caller frees with qr_text_free. NUL-terminated; `length` excludes the NUL. */
typedef struct qr_text {
    char *data;
    size_t length;
} qr_text;
QR_API void qr_text_free(qr_text *text);

/* Token ids that the library made; free with qr_tokens_free. */
typedef struct qr_tokens {
    int32_t *data;
    size_t count;
} qr_tokens;
QR_API void qr_tokens_free(qr_tokens *tokens);

/* ---- options ----
 * Every struct that is handed in starts with its size: set it with its initialiser (QR_..._OPTIONS, QR_REQUEST,
 * QR_SAMPLING). Fields are only ever added at the end, and zero means the default unless the initialiser says otherwise. A
 * size that this library does not know is QR_BAD_ARGUMENT. Strings are the caller's and are read during the call only. */

typedef enum qr_log_severity { QR_SEVERITY_ERROR, QR_SEVERITY_WARN, QR_SEVERITY_INFO, QR_SEVERITY_DEBUG } qr_log_severity;

/* What takes its time while a model is opened and an engine is created. */
typedef enum qr_phase {
    QR_PHASE_FILES,   /* the folder's files are mapped and their headers checked; bytes */
    QR_PHASE_TEXT,    /* tokenizer and what is made of it; steps */
    QR_PHASE_WEIGHTS  /* weights are prepared (qr_engine_create); bytes */
} qr_phase;
/* "files", "text", "weights" */
QR_API const char *qr_phase_name(qr_phase phase);

typedef struct qr_model_options {
    size_t size;
    const char *device;          /* "cpu" (default), "cpu-reference", "cpu-avx512", "cpu-avx2", "cpu-portable",
                                    "cuda[:N]" (the module libquire_cuda.so) */
    const char *profile;         /* "reference" or "w8a8"; NULL: the folder's */
    const char *prompt_profile;  /* "auto" (default), "v4a", "v4b", "v41" */
    int threads;                 /* 0: every core this process may use */
    /* Called from any thread of the library with one line, no newline. NULL: dropped. */
    void (*log)(void *user, qr_log_severity severity, const char *line);
    qr_log_severity log_level;
    /* Called along the way, on the caller's thread: in the order of the phases, `done` from 0 up to `total` in each, one
     * by one with the tensors. Returning false cancels: the call that is in progress undoes itself and returns
     * QR_CANCELLED. */
    bool (*progress)(void *user, qr_phase phase, uint64_t done, uint64_t total);
    void *user;                  /* given to both */
} qr_model_options;
#define QR_MODEL_OPTIONS {.size = sizeof(qr_model_options), .log_level = QR_SEVERITY_WARN}

typedef struct qr_engine_options {
    size_t size;
    int32_t max_model_len;          /* ceiling of prompt and output; 0: what fits, at most the config's */
    int32_t max_num_seqs;           /* requests running at once; 0: 1 */
    int32_t max_num_batched_tokens; /* rows a step; 0: 2,048 on the CPU */
    uint64_t kv_ram_bytes;          /* for both pools; 0: half of the memory available beside the mapped weights, or what
                                     * gpu_memory_utilization leaves */
    int32_t block_size;             /* tokens a PAGE; 0: 128 */
    const char *kv_cache_dtype;     /* "bf16", "fp4"; NULL: the family's default */
    const char *index_cache_dtype;  /* "fp4", "fp8", "int8"; NULL: the family's default */
    /* which rows a prompt runs (runtime.md 7): "exact" (default), "off", "bounded"; exact and off give the same bits,
     * bounded (V4.1 only) approximates them and computes no logits of a prompt but its last row's */
    const char *decoder_replay, *encoder_replay;
    int32_t max_prefill_tokens_per_step; /* prefill rows beside decode rows; -1: what decode leaves; 0: never in one step */
    int32_t attn_prefill_chunk_size; /* rows of an attention call at most; 0: 16,384. Bounds its scratch, changes no bit */
    int32_t long_prefill_cap;       /* prefill rows of one request and step; 0: no cap */
    double scheduler_delay_factor;  /* hold a new prompt, while others run, for that many times the last prompt's latency */
    bool no_prefix_caching;
    const char *prefix_provenance;  /* "exact-only" (default), "any" */
    int32_t state_checkpoint_interval_tokens; /* between state images inside a prompt; 0: none */
    /* what drafts: "auto" (default): what the checkpoint holds, if anything, where and as long as that makes answers faster;
     * "dspark" or "mtp", which it must hold: always; "none". Changes no bit unless `verifier` or `forced_acceptance_length` say so */
    const char *method;
    int32_t num_speculative_tokens; /* drafts that a step verifies at most; 0: as many as the drafter makes */
    /* tokens that the drafter makes at once; 0: the checkpoint's block; V4's DSpark up to 7, which a short request checks when
     * the engine is created (a line of the log says how it did; the metrics count it) */
    int32_t draft_width;
    /* How drafts are judged: "match" (default) changes no bit. "ratio" and "block" (speculation.md 4.4, 4.5) keep more of them
     * and answer by the model's distribution, but not with the tokens that the same seed gives without drafts. At
     * temperature 0 all are the same. */
    const char *verifier;
    const char *draft_sampling;     /* "coupled" (with match), "probabilistic" (with the others), "greedy" (with any) */
    /* Benchmarks only: 0: off; from 1 to the drafts of a step and one: steps take so many tokens of an answer on average,
     * right or wrong, and the answer is none of the model's */
    double forced_acceptance_length;
    /* a file of `quire bench drafts --write-profile`: a step verifies as many drafts of each request as their confidences and
     * the measured times of steps say; NULL or "none": as many as there are. Changes no bit; of DSpark with match only */
    const char *speculation_profile;
    /* Flags of runtime.md 12.1 that belong to features which are not built, as NAME and VALUE by turns: refused (QR_REFUSED)
     * with the feature and its rule, unless the value is NULL or what this library does anyway. */
    const char *const *flags;
    size_t flag_count;              /* pairs */
    /* A device with memory of its own: the share of it that may be taken, by others included (0: 0.9), from which the pools get
     * what weights and buffers leave unless kv_ram_bytes says; and MiB of index scores formed at once (0: 2,048 or what the
     * device's scratch holds, whichever is less). */
    double gpu_memory_utilization;
    int32_t indexer_logits_budget_mb;
    /* How steps run on a device that records them (runtime.md 8); all give the same bits. "FULL" (NULL), "TR_HYBRID" or "NONE";
     * level "3" (NULL): fused segments, "0": operator by operator, with TR_HYBRID always; enforce_eager: NONE. */
    const char *cudagraph_mode, *level;
    bool enforce_eager;
    /* A device with memory of its own: bytes of it that routed experts may take, of which the rest lie in pinned host memory and
     * are copied when a step needs them (0: all of them if they fit, or what everything else leaves). Changes no bit. And a
     * file that keeps from run to run which experts are used most, to put these on the device; it is written when the engine is
     * destroyed, and begun when it is not there; one that is none is left as it is (NULL: the first experts of each layer lie on
     * the device). */
    uint64_t expert_memory;
    const char *expert_use;
    /* Numbers of requests, "1,2,4", whose decode steps a device that records them records when the engine opens, for contexts of
     * up to 32 pages; all others when they come again (NULL: every one so). Changes no bit. */
    const char *cudagraph_capture_sizes;
} qr_engine_options;
#define QR_ENGINE_OPTIONS                                                                                              \
    {.size = sizeof(qr_engine_options), .max_prefill_tokens_per_step = -1, .state_checkpoint_interval_tokens = 8192}

/* ---- models ---- */

typedef struct qr_model qr_model;

/* Opens the checkpoint in `dir` as published: config, tokenizer, weights (mapped, not copied). Nothing is allocated for
 * requests yet. `options` may be NULL. QR_REFUSED lists every violated admission rule with its id. */
QR_API qr_status qr_model_open(const char *dir, const qr_model_options *options, qr_model **out, qr_error *err);
/* Every engine of the model must be destroyed before. NULL is fine. */
QR_API void qr_model_close(qr_model *model);

/* What the folder holds and what it would take, without reading a weight: family, a line for each layer, tensors by format,
 * missing and unexpected ones, the byte plan for these options. As text for people, or one JSON object. */
QR_API qr_status qr_inspect(const char *dir, const qr_model_options *model, const qr_engine_options *engine, bool json,
                            qr_text *out, qr_error *err);

/* The bytes of a model and an engine. A step allocates nothing beyond them. */
typedef struct qr_plan_bytes {
    uint64_t weights;    /* mapped, Engram tables left out; and what is held in another form than the file's */
    uint64_t tables;     /* mapped Engram tables */
    uint64_t pages;      /* PAGE pool */
    uint64_t states;     /* STATE pool */
    uint64_t workspace;  /* everything else of an engine: buffers of a step, scratch, lists, sampler, scheduler */
    uint64_t block_bytes, blocks;
    uint64_t state_bytes, slots;
    int32_t max_model_len;
    /* A device with memory of its own, where the pools lie too; then `workspace` is the host's alone. All 0 on the CPU. */
    uint64_t device_weights;     /* in the device's layout */
    uint64_t device_workspace;   /* buffers of a step, scratch, staging of weights */
    uint64_t device_scores;      /* of that: index scores at once, at most, however long requests are */
    uint64_t device_graphs;      /* recorded steps */
    uint64_t device_collective;  /* reserved for exchange between devices: 0 for one */
    uint64_t device_beside;      /* taken by others and kept free */
    uint64_t device_total;
    /* Routed experts of the backbone: on the device, in pinned host memory; of device_weights: room for some of the latter while
     * they are needed, and how many; bytes of host memory. All 0 when every expert lies on the device. */
    uint64_t device_experts, host_experts;
    uint64_t device_seat_bytes, seats;
    uint64_t host_expert_bytes;
} qr_plan_bytes;
/* Sizes everything before anything is reserved. QR_REFUSED when it does not fit (E31, naming what would) or other rules
 * are violated (all of them are listed): decided by config.json, before a shard is opened. */
QR_API qr_status qr_plan(const char *dir, const qr_model_options *model, const qr_engine_options *engine,
                         qr_plan_bytes *out, qr_error *err);

typedef struct qr_model_info {
    char name[128];              /* the folder's last component */
    char family[32];             /* "DeepSeek-V4.1" or "DeepSeek-V4" */
    char backend[64];            /* the path that computes: part of the arithmetic identity */
    char prompt_profile[8];
    int32_t vocab_size, layers, max_positions;
    int32_t bos, eos, pad;       /* -1: none */
    /* generation_config.json; a missing one: temperature 1, top_p 1 */
    double temperature, top_p;
    bool thinking_levels;        /* the profile knows effort levels */
    char profile[16];            /* of the arithmetic: "reference" or "w8a8" */
} qr_model_info;
QR_API void qr_model_get_info(const qr_model *model, qr_model_info *out);

/* ---- text ---- */

/* Ids of `text` (UTF-8, `length` bytes). With `markup` added tokens are recognised in it; without, none can come out. */
QR_API qr_status qr_tokenize(const qr_model *model, const char *text, size_t length, bool markup, qr_tokens *out,
                             qr_error *err);
QR_API qr_status qr_detokenize(const qr_model *model, const int32_t *ids, size_t count, qr_text *out, qr_error *err);
/* The bytes that one id decodes to, which may be a part of a character; they live as long as the model. No bytes (and
 * *length 0) for an id without a text or outside of the vocabulary. */
QR_API const unsigned char *qr_token_bytes(const qr_model *model, int32_t id, size_t *length);

typedef struct qr_prompt {
    qr_tokens tokens;
    qr_text text;                /* the prompt as one string, for people */
    bool starts_in_reasoning;    /* the answer begins inside <think> */
} qr_prompt;
/* Renders the body of a /v1/chat/completions request (JSON; its messages, tools, thinking members; protocol.md 2) into
 * a prompt. Text of users and tools can never become a control token. */
QR_API qr_status qr_render_chat(const qr_model *model, const char *json, size_t length, qr_prompt *out, qr_error *err);
QR_API void qr_prompt_free(qr_prompt *prompt);

/* ---- engines and requests ---- */

typedef struct qr_engine qr_engine;
typedef uint64_t qr_handle;

/* Reserves every byte of the plan and starts the engine's threads. `options` may be NULL. */
QR_API qr_status qr_engine_create(qr_model *model, const qr_engine_options *options, qr_engine **out, qr_error *err);
/* Cancels what runs and what waits (callbacks get their last events), waits for the threads, frees. NULL is fine. */
QR_API void qr_engine_destroy(qr_engine *engine);
QR_API void qr_engine_get_plan(const qr_engine *engine, qr_plan_bytes *out);

typedef struct qr_logit_bias {
    int32_t token;
    float bias;                  /* added to the logit; cannot revive a banned id */
} qr_logit_bias;

/* How tokens are drawn (speculation.md 4.6, 4.7). The initialiser is plain sampling at temperature 1. */
typedef struct qr_sampling {
    size_t size;
    double temperature;          /* 0: the largest logit, the smaller id of equal ones */
    double top_p;                /* (0, 1] */
    int32_t top_k;               /* 0 or less: off */
    double min_p;                /* 0: off */
    double repetition_penalty;   /* 1: off */
    double frequency_penalty, presence_penalty; /* 0: off */
    int64_t seed;                /* the same request with the same seed gives the same tokens, whatever runs beside it */
    const qr_logit_bias *logit_bias;
    size_t logit_bias_count;
    const int32_t *banned;       /* besides the tokenizer's own list */
    size_t banned_count;
    bool allow_special;          /* do not ban the place holders and image tokens of the tokenizer's list */
} qr_sampling;
#define QR_SAMPLING {.size = sizeof(qr_sampling), .temperature = 1.0, .top_p = 1.0, .repetition_penalty = 1.0}

typedef struct qr_grammar qr_grammar; /* what an answer has to be; see below */

typedef struct qr_request {
    size_t size;
    const int32_t *tokens;       /* the prompt; copied */
    size_t token_count;          /* at least 1 */
    const qr_sampling *sampling; /* read during the call; NULL: the initialiser's */
    int32_t max_tokens;          /* 0: what the context leaves */
    int32_t min_tokens;          /* end tokens and stops are not looked for before that many */
    bool ignore_eos;
    const char *const *stop;     /* stop strings, UTF-8, not empty; copied */
    size_t stop_count;
    bool include_stop;           /* the text keeps the stop string */
    const int32_t *stop_tokens;
    size_t stop_token_count;
    int32_t logprobs;            /* -1: none; 0..20: of the drawn token and of that many best ones */
    int32_t prompt_logprobs;     /* -1: none; 0..20: the same of every prompt token after the first */
    const char *id;              /* for messages; copied; NULL: the handle's number */
    int32_t priority;            /* higher ones start first, and give way last when the cache is full */
    uint64_t after;              /* handle of a request that this one shares its beginning with (a fork): it starts once that
                                  * one has passed its prompt or ended, and so finds its pages in the cache; 0: none */
    /* The answer fits this grammar of the same model: tokens that do not are not drawn, end tokens only where it is complete.
     * NULL: anything. Kept as long as the request needs it. Not with the verifiers ratio and block nor with forced
     * acceptance (QR_BAD_REQUEST). A row of which bans leave nothing ends the request with an error. */
    const qr_grammar *grammar;
    bool grammar_after_reasoning; /* it begins behind </think>; before, end tokens and tokens of turns and calls are not drawn */
    const char *cache_salt;      /* cached pages are shared among requests of the same salt alone; copied; NULL, "": none */
    bool no_calls;               /* the token that calls are written with is not drawn: of a chat without tools (protocol.md 3.3) */
} qr_request;
#define QR_REQUEST {.size = sizeof(qr_request), .logprobs = -1, .prompt_logprobs = -1}

typedef struct qr_token_logprob {
    int32_t token;
    int32_t rank;                /* 1: the largest logit; equal logits rank by id */
    float logprob;
} qr_token_logprob;

typedef enum qr_finish {
    QR_FINISH_NONE,              /* still running */
    QR_FINISH_STOP,              /* end token, stop token or stop string */
    QR_FINISH_LENGTH,            /* max_tokens, or the context is full */
    QR_FINISH_CANCELLED,
    QR_FINISH_ERROR
} qr_finish;
/* "stop", "length", "cancelled", "error" */
QR_API const char *qr_finish_name(qr_finish finish);

/* One step of a request's answer. Pointers live until the event is handed back by the next qr_poll of the same handle,
 * or until the callback returns. */
typedef struct qr_event {
    qr_handle handle;
    int32_t token;               /* -1: none (the last event of a request may bring text only) */
    const char *text;            /* text that may be shown now: whole characters, nothing of a stop string */
    size_t text_length;
    qr_token_logprob logprob;    /* of `token`, log softmax of the model's own logits; rank 0 when not asked for */
    const qr_token_logprob *top;
    size_t top_count;
    qr_finish finish;            /* anything but NONE: the last event */
    int32_t stop_token;          /* the token that ended it, or -1 */
    int32_t stop_string;         /* index of the request's stop string that ended it, or -1 */
    const qr_error *error;       /* with QR_FINISH_ERROR */
    /* Prompt log probabilities, in the first event of a request that asked: [prompt_count], entry 0 unused; the best ones
     * of position i at prompt_top[i * prompt_top_count]. */
    const qr_token_logprob *prompt;
    size_t prompt_count;
    const qr_token_logprob *prompt_top;
    size_t prompt_top_count;
} qr_event;

/* Queues a request. With `callback`, events are delivered on a thread of the engine: it must not block nor call the engine
 * but for qr_cancel, qr_pause, qr_release and qr_get_usage; without, fetch them with qr_poll. QR_BAD_REQUEST names the field.
 * QR_BUSY: the queue is full. */
QR_API qr_status qr_submit(qr_engine *engine, const qr_request *request, void (*callback)(void *user, const qr_event *event),
                           void *user, qr_handle *out, qr_error *err);
/* The next event of a request, waiting at most timeout_ms (negative: for ever). QR_BUSY: none came in time. QR_BAD_ARGUMENT:
 * the last event has been handed out, the request was released or has a callback. One thread per handle. */
QR_API qr_status qr_poll(qr_engine *engine, qr_handle handle, int timeout_ms, qr_event *out, qr_error *err);
/* A new request that goes on from what `parent` has said so far: its prompt is the parent's and every token of the answer
 * whose event was made before this call, fetched or not. Pages are shared through the prefix cache, no state is; the parent
 * goes on as if nothing had happened. `how` says how, as for qr_submit: its tokens and `after` are not looked at, max_tokens
 * and min_tokens count from here. With the parent's sampling it draws what the parent goes on to draw (penalties count the
 * parent's answer as prompt; not so with verifier "ratio" or "block", where it wants a seed of its own). Callback and user as for qr_submit. QR_BAD_ARGUMENT: no such request, or it was cancelled.
 * QR_BAD_REQUEST: the context has no room for more. QR_BUSY: the queue is full. */
QR_API qr_status qr_fork(qr_engine *engine, qr_handle parent, const qr_request *how,
                         void (*callback)(void *user, const qr_event *event), void *user, qr_handle *out, qr_error *err);
/* Asks a request to stop. No token follows: those not handed out yet are dropped, and the last event, QR_FINISH_CANCELLED,
 * comes within a step, also while the request waits for its turn. (A callback that is running at this moment goes on.)
 * Unknown handles are ignored. */
QR_API void qr_cancel(qr_engine *engine, qr_handle handle);
/* A paused request draws no more tokens until it goes on; what it holds of the cache stays, unless others need the pages. For
 * readers that are slower than the model. Unknown handles are ignored. */
QR_API void qr_pause(qr_engine *engine, qr_handle handle, bool paused);
/* Cancels if need be and forgets a request whose remaining events nobody wants. Its callback is not called any more, and
 * has returned when qr_release does (unless it is the caller). */
QR_API void qr_release(qr_engine *engine, qr_handle handle);

typedef struct qr_usage {
    int32_t prompt_tokens, cached_tokens;
    int32_t output_tokens;                  /* drawn, those that a cancel dropped included */
    double seconds_to_first_token, seconds; /* from submit */
    double seconds_prefill, seconds_decode; /* spent in steps */
    int32_t draft_steps, draft_proposed, draft_accepted;
    bool begun;                             /* its turn has come */
} qr_usage;
/* Counts of a request; valid from its first event until it is released (a finished handle keeps them until qr_release or
 * the last event has been handed back). */
QR_API qr_status qr_get_usage(qr_engine *engine, qr_handle handle, qr_usage *out, qr_error *err);

/* ---- chat requests and what is read out of their answers ---- */

/* Where and why a request is refused, in the terms of an HTTP answer (protocol.md 4.10). */
typedef struct qr_issue {
    int status;                  /* 400 and the like; 0: it is not the request's fault */
    char code[48];               /* "image_role"; "" where the protocol names none */
    char param[96];              /* JSON path of what is wrong: "messages[2].content[0]" */
} qr_issue;

/* ---- structured output (docs/structured.md) ---- */

typedef enum qr_grammar_kind {
    QR_GRAMMAR_JSON_OBJECT, /* any JSON object; takes no text */
    QR_GRAMMAR_JSON_SCHEMA, /* a JSON Schema; what of it is not supported is refused by name */
    QR_GRAMMAR_REGEX,       /* a regular expression that the whole answer matches */
    QR_GRAMMAR_CHOICE       /* a JSON list of strings, one of which the answer is */
} qr_grammar_kind;
/* JSON comes with the white space that people write, and no more: after { [ , : and before } ] at most one space, or one line
 * feed and up to 32 spaces. Properties come in the order in which they are declared. Nesting is bounded (128).
 * QR_BAD_REQUEST says what of the text is not supported; `issue` (may be NULL) names the place in a schema. The model must
 * outlive the grammar, and so must what uses it; any number of requests may, on any thread. */
QR_API qr_status qr_grammar_open(const qr_model *model, qr_grammar_kind kind, const char *text, size_t length, qr_grammar **out,
                                 qr_issue *issue, qr_error *err);
QR_API void qr_grammar_close(qr_grammar *grammar); /* NULL is fine; requests that were submitted keep what they need */

typedef struct qr_chat qr_chat;

/* Blocks of calls as a model spelt them. A chat whose request brings calls back by the ids that they were given, with the same names
 * and arguments, is written in those bytes, and its prompt goes on in what is cached; other calls are written in the model's own
 * form. Bounded: blocks of `most_bytes` altogether, the oldest go. Any thread. */
typedef struct qr_call_blocks qr_call_blocks;
typedef struct qr_kept_call {
    const char *id, *name, *arguments; /* as they were told; arguments are JSON. An id counts from its last _ on */
} qr_kept_call;
QR_API qr_status qr_call_blocks_open(size_t most_bytes, qr_call_blocks **out, qr_error *err);
QR_API void qr_call_blocks_close(qr_call_blocks *blocks); /* NULL is fine; behind the last chat that uses it is being opened */
/* Copies a block: `text` is UTF-8, from the blank line before its first tag to its last one's end. One of more than 256 KiB is not
 * kept, which is no error. Ids should hold 96 random bits: who knows them has the block. */
QR_API qr_status qr_call_blocks_keep(qr_call_blocks *blocks, const qr_kept_call *calls, size_t count, const char *text,
                                     size_t length, qr_error *err);

/* What a server decides where requests do not. */
typedef struct qr_chat_options {
    size_t size;
    const char *thinking;        /* "on" (NULL) or "off" */
    const char *effort;          /* a name or number that the prompt profile knows; NULL: "high" */
    bool vendor_extensions;      /* protocol.md 2.10 */
    bool lenient_tools;          /* calls of tools that are not declared are let through */
    bool tool_recovery;          /* misspelled tags are tags (3.5) */
    qr_call_blocks *call_blocks; /* NULL: calls are written in the model's own form */
} qr_chat_options;
#define QR_CHAT_OPTIONS {.size = sizeof(qr_chat_options)}

/* Understands the body of a /v1/chat/completions request (JSON, copied): its prompt, and what the parser of its answer must
 * know. `options` may be NULL. QR_BAD_REQUEST says in `issue` (may be NULL) what an HTTP server answers. The model must
 * outlive it. */
QR_API qr_status qr_chat_open(const qr_model *model, const char *json, size_t length, const qr_chat_options *options,
                              qr_chat **out, qr_issue *issue, qr_error *err);
QR_API void qr_chat_close(qr_chat *chat); /* NULL is fine; parsers first */

typedef struct qr_chat_info {
    const int32_t *tokens;       /* the prompt; lives as long as the chat */
    size_t token_count;
    const char *text;            /* the same as one string, for people */
    size_t text_length;
    bool starts_in_reasoning;    /* the answer begins inside <think> */
    bool thinking;
    size_t tools;                /* that the answer may call */
} qr_chat_info;
QR_API void qr_chat_get_info(const qr_chat *chat, qr_chat_info *out);
/* The pieces of the prompt's text, from 0 on: markup is one control token, what is between two of them was tokenized as plain
 * text. NULL behind the last. Not NUL-terminated; lives as long as the chat. */
QR_API const char *qr_chat_segment(const qr_chat *chat, size_t index, size_t *length, bool *markup);
/* What the request wants its answer to be: response_format, a forced tool_choice, strict tools. NULL: anything. Lives as long
 * as the chat. It is a grammar behind the reasoning (qr_request.grammar_after_reasoning: info.starts_in_reasoning). */
QR_API const qr_grammar *qr_chat_grammar(const qr_chat *chat);

/* What comes of the tokens of an answer (protocol.md 3). */
typedef enum qr_delta_kind {
    QR_DELTA_REASONING,          /* text */
    QR_DELTA_CONTENT,            /* text */
    QR_DELTA_CALL,               /* a call begins; its text is the name */
    QR_DELTA_ARGUMENTS,          /* a piece of the call's JSON */
    QR_DELTA_CALL_END,           /* the call is whole */
    QR_DELTA_CALL_LOST           /* the call was cut and does not count; what was sent of it cannot be taken back */
} qr_delta_kind;
/* No text ends inside a character. */
typedef struct qr_delta {
    qr_delta_kind kind;
    uint32_t call;               /* calls are counted from 0 */
    const char *text;            /* UTF-8, not NUL-terminated */
    size_t length;
} qr_delta;

typedef struct qr_parser qr_parser;
typedef struct qr_parser_options {
    size_t size;
    const char *const *stop;     /* stop strings of visible content, copied (those of qr_request see all text instead) */
    size_t stop_count;
    bool include_stop;           /* the content keeps the stop string */
    bool ignore_eos;
    int32_t min_tokens;          /* until so many tokens came, stop strings are text */
} qr_parser_options;
#define QR_PARSER_OPTIONS {.size = sizeof(qr_parser_options)}

typedef enum qr_answer_end {
    QR_ANSWER_OPEN,              /* more may come */
    QR_ANSWER_STOP,              /* end token, stop token or stop string */
    QR_ANSWER_TOOL_CALLS,        /* at least one whole call, and no more to say */
    QR_ANSWER_LENGTH
} qr_answer_end;
/* "", "stop", "tool_calls", "length" */
QR_API const char *qr_answer_end_name(qr_answer_end end);

/* Where the text of a token belongs. HIDDEN: to neither, or it has none. HELD: that is not known yet, as it may be the beginning of
 * a call, or be dropped before one. */
typedef enum qr_place { QR_PLACE_HIDDEN, QR_PLACE_REASONING, QR_PLACE_CONTENT, QR_PLACE_HELD } qr_place;

typedef struct qr_parser_state {
    qr_answer_end end;           /* once it is not OPEN, what follows does not belong to the answer: cancel the request */
    int32_t stop_string;         /* index of the stop string that ended it, or -1 */
    qr_place place;              /* of the token pushed last */
    qr_place place_of_held;      /* of those before it that were HELD, all at once: what they turned out to be, or HELD still */
    int64_t tokens, reasoning_tokens;
    int64_t calls, refused_calls, cut_calls; /* whole ones; whose text became content or that were dropped; cut off */
    int64_t discarded_tokens;    /* behind a finished block of calls */
} qr_parser_state;

/* `options` may be NULL. The chat must outlive it. One thread at a time. */
QR_API qr_status qr_parser_open(const qr_chat *chat, const qr_parser_options *options, qr_parser **out, qr_error *err);
QR_API void qr_parser_close(qr_parser *parser); /* NULL is fine */
/* Takes the next token; `out` lists what it lets out, until the next call. The result does not depend on how tokens arrive.
 * QR_BAD_REQUEST: a token outside the vocabulary. */
QR_API qr_status qr_parser_push(qr_parser *parser, int32_t token, const qr_delta **out, size_t *count, qr_error *err);
/* No more tokens come: `last`, the last event of the request, says why. Lets out what was held, completes or drops an open
 * call. Does nothing once the end is known. */
QR_API qr_status qr_parser_finish(qr_parser *parser, const qr_event *last, const qr_delta **out, size_t *count,
                                  qr_error *err);
QR_API void qr_parser_get_state(const qr_parser *parser, qr_parser_state *out);

/* ---- sleep: memory that nobody needs for a while (runtime.md 12.2) ---- */

enum {
    QR_SLEEP_WEIGHTS = 1, /* what is held of the weights in another form than the file's, and the buffers of a step */
    QR_SLEEP_KV_CACHE = 2 /* both pools: every cached page and image is forgotten */
};
/* Gives back what the tags name. Running requests go back to waiting and compute what they had again when the engine is
 * awake; nothing runs until then, requests may be submitted and cancelled. Returns when it is done, or another thread has woken
 * it. A wake of these tags that goes on ends with QR_CANCELLED. */
QR_API qr_status qr_engine_sleep(qr_engine *engine, unsigned tags, qr_error *err);
/* Takes it back, in the size it had; with both tags awake the engine goes on. Weights that are other ones by now make the
 * cache another one. QR_NO_MEMORY: it sleeps on. */
QR_API qr_status qr_engine_wake(qr_engine *engine, unsigned tags, qr_error *err);

/* ---- events that the acceptance suite injects (runtime.md 13) ---- */

typedef enum qr_injection {
    QR_INJECT_CANCEL,      /* as qr_cancel */
    QR_INJECT_PREEMPT,     /* a running request gives its pages and its slot back and waits again, as for lack of pages */
    QR_INJECT_DROP_IMAGES, /* every state image is forgotten */
    QR_INJECT_DROP_CACHE,  /* and every cached page */
    QR_INJECT_RELOCATE,    /* a running request's state moves to another free slot */
    QR_INJECT_REVERSE      /* the order of the running requests is turned around */
} qr_injection;
/* Does it before step `at_step` of the engine (the first is 1); one that has passed: before the next. None of them changes a
 * token. `handle`: of cancel, preempt and relocate; a request that is over or does not run is passed over. */
QR_API qr_status qr_inject(qr_engine *engine, qr_injection what, qr_handle handle, uint64_t at_step, qr_error *err);

/* Log probabilities of given tokens: out[i] = log p(tokens[i] | tokens[0 .. i-1]) for i in [from, count), from >= 1; of the
 * raw model distribution. Blocks the caller; takes its turn among the requests. */
QR_API qr_status qr_score(qr_engine *engine, const int32_t *tokens, size_t count, size_t from, double *out, qr_error *err);
/* The same, and in best[i] the token with the largest logit at position i, the smaller id of equal ones. Under bounded
 * replay tokens[0 .. from-1] are the prompt, the others an answer that is given: one step for each. */
QR_API qr_status qr_score_best(qr_engine *engine, const int32_t *tokens, size_t count, size_t from, double *out,
                               int32_t *best, qr_error *err);

/* ---- sessions ----
 * A conversation on an engine: its messages, the members of a chat request beside them, and the answer in progress. Every
 * prompt goes on from the one before, so that what the prefix cache holds of it is not computed again. One thread per
 * session; the engine must outlive it. */

typedef struct qr_session qr_session;

QR_API qr_status qr_session_open(qr_engine *engine, qr_session **out, qr_error *err);
/* Another session that has said the same so far and goes its own way from here. QR_BUSY while an answer is in progress. */
QR_API qr_status qr_session_fork(const qr_session *session, qr_session **out, qr_error *err);
/* Cancels the answer in progress. NULL is fine. */
QR_API void qr_session_close(qr_session *session);

/* What follows fails with QR_BUSY while an answer is in progress, and leaves the conversation as it was when it fails. */

/* Sets the members that requests have beside their messages (a JSON object: tools, thinking, reasoning_effort ...), in
 * place of those before. What they say is checked with the next prompt. */
QR_API qr_status qr_session_set(qr_session *session, const char *json, size_t length, qr_error *err);
/* The system text (UTF-8); NULL: none. */
QR_API qr_status qr_session_set_system(qr_session *session, const char *text, qr_error *err);
/* Adds a message of a chat request, {"role", "content" ...}: of the user, a tool, also of the assistant. */
QR_API qr_status qr_session_append(qr_session *session, const char *json, size_t length, qr_error *err);
/* How many times the user has spoken. */
QR_API size_t qr_session_turns(const qr_session *session);
/* Takes back the newest message; drops the oldest question with all that came of it. False: there is none, or only one. */
QR_API bool qr_session_drop_newest(qr_session *session);
QR_API bool qr_session_drop_oldest(qr_session *session);
/* The messages as {"messages": [...]}, to be kept; and such a body (any chat request) in place of the messages, whose
 * prompt must be one that the model's template can make. */
QR_API qr_status qr_session_write(const qr_session *session, qr_text *out, qr_error *err);
QR_API qr_status qr_session_read(qr_session *session, const char *json, size_t length, qr_error *err);

/* The prompt of the next answer. */
QR_API qr_status qr_session_prompt(const qr_session *session, qr_prompt *out, qr_error *err);
/* Starts the next answer. `how` says how (NULL: the initialiser's); its tokens are not looked at. Without a grammar in it the
 * answer is held to what the members ask of it, as qr_chat_grammar is. The handle is for
 * qr_cancel, qr_get_usage and qr_release; its events come from qr_session_poll alone. */
QR_API qr_status qr_session_start(qr_session *session, const qr_request *how, qr_handle *out, qr_error *err);
/* As qr_poll. With the last event what was said has become the newest message, of a cancelled answer what there is of it;
 * one that failed leaves none. */
QR_API qr_status qr_session_poll(qr_session *session, int timeout_ms, qr_event *out, qr_error *err);

/* ---- metrics ---- */

/* How long something took, how often: count[i] times more than qr_histogram_bound(i - 1) seconds and at most
 * qr_histogram_bound(i). */
enum { QR_HISTOGRAM_BUCKETS = 16 };
typedef struct qr_histogram {
    uint64_t count[QR_HISTOGRAM_BUCKETS];
    double sum;                  /* seconds of all of them */
} qr_histogram;
/* Upper bound of a bucket in seconds, the same for every histogram; infinity for the last. */
QR_API double qr_histogram_bound(int bucket);

/* Why a step of a request that decodes verified no draft. */
typedef enum qr_rest {
    QR_REST_NO_DRAFTER,          /* nothing drafts */
    QR_REST_COST,                /* by what is known of drafts and of steps' times they make the answer slower */
    QR_REST_TIMES,               /* the times of steps without drafts are not known yet */
    QR_REST_END,                 /* the answer has room for one more token only */
    QR_REST_CONFIDENCE,          /* the drafter's own confidence was too small (a speculation profile) */
    QR_REST_LOST,                /* a draft pass that failed, or drafts that were dropped on the way */
    QR_REST_GRAMMAR,             /* the first draft did not fit the request's grammar */
    QR_REST_REASONS
} qr_rest;
/* "no drafter", "cost", "times", "end", "confidence", "lost", "grammar" */
QR_API const char *qr_rest_name(qr_rest rest);

/* What became of drafts. A step here is one request's part of a step that decodes, its row and its drafts; prompts never
 * enter. emitted = decode_steps + accepted - dropped_by_stop; decode_steps = verify_steps + all rests. */
enum { QR_MAX_DRAFTS = 7 };      /* that a step of a request verifies */
typedef struct qr_draft_metrics {
    uint64_t decode_steps;       /* all of them */
    uint64_t verify_steps;       /* with at least one draft */
    uint64_t proposed;           /* tokens that the drafter made, */
    uint64_t verified;           /* that a step ran, */
    uint64_t unverified;         /* that a step had and left out, */
    uint64_t discarded;          /* that no step will see: their request was preempted, cancelled or failed */
    uint64_t accepted;           /* of those verified; behind the end of an answer too */
    uint64_t emitted;            /* tokens that decode steps brought */
    uint64_t dropped_by_stop;    /* tokens behind the end of an answer */
    uint64_t accepted_histogram[QR_MAX_DRAFTS + 1]; /* of verify steps, by drafts accepted */
    uint64_t verified_histogram[QR_MAX_DRAFTS + 1]; /* of decode steps, by drafts verified */
    /* of verify steps, for draft k: that ran it; that accepted all before it as well; that accepted it */
    uint64_t position_verified[QR_MAX_DRAFTS], position_reached[QR_MAX_DRAFTS], position_accepted[QR_MAX_DRAFTS];
    uint64_t rests[QR_REST_REASONS];
    uint64_t draft_passes, drafted_requests; /* over that many requests */
    double draft_seconds;        /* of those passes */
    uint64_t batch_steps;        /* steps of the engine in which something was verified */
    double verify_seconds;       /* of those steps */
    /* ratios of these */
    double acceptance_length_verify_steps; /* 1 + accepted / verify_steps; 0: none */
    double acceptance_length_decode_steps; /* 1 + accepted / decode_steps; 0: none */
    double acceptance_rate;      /* accepted / verified */
    double unconditional[QR_MAX_DRAFTS]; /* P(draft k accepted | verified) */
    double conditional[QR_MAX_DRAFTS];   /* P(draft k accepted | verified, all before it accepted) */
    /* the drafter's estimate that draft k and all before it are accepted: its mean, to be held against `unconditional`, and
     * its expected calibration error over 15 bins; -1: it makes none */
    double survival_estimate[QR_MAX_DRAFTS], calibration_error[QR_MAX_DRAFTS];
} qr_draft_metrics;

typedef struct qr_metrics {
    size_t size;                 /* sizeof(qr_metrics), set by the caller; how much was filled in */
    uint64_t requests_submitted, requests_finished, requests_cancelled, requests_failed;
    uint64_t requests_running, requests_waiting;
    uint64_t steps, prefill_rows, decode_rows;
    double step_seconds;
    uint64_t prompt_tokens, cached_tokens, output_tokens;
    uint64_t blocks_total, blocks_free, slots_total, slots_free;
    uint64_t index_rows_rounded; /* index keys that their container rounded (runtime.md 2.1) */
    /* the prefix cache (runtime.md 12.3); hit rate: cached_tokens / looked_up_tokens */
    uint64_t preemptions;
    uint64_t wanted_tokens;      /* prompt tokens that a cache which forgets nothing could have served */
    uint64_t hits;               /* prompts that started from cached pages: */
    uint64_t hits_restored, hits_restored_lower, hits_rerun; /* from an image at the hit, from a lower one, by a rerun */
    uint64_t rows_rerun;         /* rows below hits that were run again */
    uint64_t row_layers_trimmed; /* rows times layers that no result needed */
    uint64_t images_wanted, images_declined; /* boundaries where an image would have served; and had no room */
    uint64_t images_kept, images_dropped, images_evicted, images_orphaned; /* stored, no room, for pages, with their page */
    uint64_t chunks_cut;         /* prefill chunks that ended where an image was taken */
    uint64_t images_held;        /* pages that hold images now */
    double last_step_age;        /* seconds since the last step that went well; -1: none yet */
    /* latencies (runtime.md 12.3) */
    qr_histogram time_to_first_token; /* from submit */
    qr_histogram inter_token;    /* between two tokens of one request */
    qr_histogram queue;          /* from submit to the end of the wait: its first step begins */
    qr_histogram step;
    double longest_silence;      /* seconds since the last token of the running request that has been silent longest; 0: none
                                  * has said anything yet */
    uint64_t rows_backed_off;    /* rows that a bounded decoder's last chunks ran again */
    qr_draft_metrics drafts;
    uint64_t looked_up_tokens;   /* prompt tokens of all that began, scores included; cached_tokens are those found of them */
    uint64_t requests_prefilling; /* running, and nothing said yet */
    uint64_t blocks_vacant;      /* of blocks_free: hold nothing; the others hold pages and images that give way when need be */
    uint64_t prefill_steps, prefill_chunks; /* steps with rows of prompts, chunks of prompts in them */
    uint64_t prefill_context_tokens; /* tokens before those chunks */
    uint64_t decode_steps, decode_requests; /* steps with rows of requests that decode, and those requests, step by step */
    uint64_t requests_paused;    /* of those running: by qr_pause */
    /* a device with memory of its own; 0 elsewhere */
    uint64_t device_bytes, device_bytes_most; /* taken, and at most so far: never more than the plan says */
    uint64_t weights_laid;       /* tensors brought into the device's layout: each once, and once more with each wake */
    uint64_t graphs_recorded, graphs_replayed; /* lists of operators, */
    uint64_t lists_eager;        /* and those that no graph was there for */
    /* with routed experts in host memory: those, layer by layer, that steps found on the device, those that had to be copied, and
     * bytes copied */
    uint64_t experts_found, experts_copied, expert_bytes;
} qr_metrics;
QR_API void qr_get_metrics(const qr_engine *engine, qr_metrics *out);

#ifdef __cplusplus
}
#endif
#endif
