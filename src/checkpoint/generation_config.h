/* generation_config.h: what a folder says about sampling when a request says nothing (protocol.md 1.2). */
#ifndef QR_CHECKPOINT_GENERATION_CONFIG_H
#define QR_CHECKPOINT_GENERATION_CONFIG_H

#include "base/status.h"

enum { GENERATION_MAX_EOS = 32 };

struct generation_config {
    int32_t eos[GENERATION_MAX_EOS]; /* tokens that end an answer, as listed */
    int32_t eos_count;               /* 0: the file names none; config.json's eos_token_id holds then */
    double temperature;              /* 0 where do_sample is false */
    double top_p;
};

/* What holds without a file: temperature 1, top_p 1, no end token. */
struct generation_config generation_config_default(void);

/* Reads `dir`/generation_config.json; a missing file gives the defaults, other members are ignored. Fails with
 * QR_BAD_FILE for what is no JSON object, QR_BAD_CONFIG for an end token outside [0, vocab_size), a temperature outside
 * 0..2 or a top_p outside (0, 1], naming file, member and value. */
qr_status generation_config_read(const char *dir, int32_t vocab_size, struct generation_config *out, qr_error *err);
/* The same from memory; `name` is quoted in errors. */
qr_status generation_config_parse(const char *json, size_t size, const char *name, int32_t vocab_size,
                                  struct generation_config *out, qr_error *err);

#endif
