/* model.h: an opened folder: everything of qr_model that no request changes. */
#ifndef QR_ENGINE_MODEL_H
#define QR_ENGINE_MODEL_H

#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/generation_config.h"
#include "plan/plan.h"
#include "text/token_map.h"

struct qr_model {
    char *dir, *name;              /* the folder, and its last component */
    char device[32];               /* as it was asked for */
    int threads;
    struct qr_log log;
    void (*log_line)(void *user, qr_log_severity severity, const char *line);
    bool (*progress)(void *user, qr_phase phase, uint64_t done, uint64_t total);
    void *user;
    char prompt_profile[8];        /* "v4a", "v4b" or "v41" */
    struct qr_config config;
    struct model_plan plan;
    struct checkpoint *checkpoint;
    struct tokenizer *tokenizer;
    struct token_map map;          /* empty without Engram */
    struct generation_config generation;
    struct tok_ids banned;         /* the tokenizer's list (protocol.md 1.6) */
    struct model_trie *trie;       /* of its tokens, made with the first grammar (grammars.h) */
};

/* What qr_model_open does, without the tokenizer when `text` is false (sizes need none). */
qr_status model_open_parts(const char *dir, const qr_model_options *given, bool text, qr_model **out, qr_error *err);

/* The tokenizer of a folder, with no more ids than the config's vocabulary. Close with tok_close. */
qr_status model_tokenizer_open(const char *dir, const struct qr_config *config, const struct qr_log *log,
                               struct tokenizer **out, qr_error *err);

/* Its compressed token map, with as many keys as the config says; leaves `out` as it is where the config has no Engram
 * layers. Free with token_map_free, after a failure too. */
qr_status model_map_make(const char *dir, const struct qr_config *config, const struct tokenizer *tok,
                         struct token_map *out, qr_error *err);

/* Tells the caller how far a phase is; QR_CANCELLED when it wants to stop. */
qr_status model_say_progress(const qr_model *model, qr_phase phase, uint64_t done, uint64_t total, qr_error *err);

/* Config and plan of a folder as config.json alone decides them: no shard is opened. */
qr_status model_config_read(const char *dir, const qr_model_options *given, struct qr_config *config,
                            struct model_plan *plan, qr_error *err);

/* The options with defaults filled in; QR_BAD_ARGUMENT for a struct of another size or a value that is none of its set,
 * QR_UNSUPPORTED for a device that this build or machine does not have. */
qr_status model_options_read(const qr_model_options *given, qr_model_options *out, qr_error *err);

/* The model of an engine (engine.h). */
const qr_model *engine_model(const qr_engine *engine);

#endif
