/* tokenizer_file.h: reads the part of tokenizer.json that the models use (protocol.md 1.2) and refuses the rest with a
 * sentence: a setting that is silently ignored would give other ids. */
#ifndef QR_TEXT_TOKENIZER_FILE_H
#define QR_TEXT_TOKENIZER_FILE_H

#include "base/json.h"
#include "text/bpe.h"
#include "text/regex_split.h"
#include "text/vocab.h"

/* Zero-initialise; free with tokenizer_file_free. */
struct tokenizer_file {
    struct vocab vocab; /* model.vocab and added_tokens */
    int32_t base_count; /* entries of model.vocab */
    struct bpe bpe;
    bool ignore_merges;                                /* a piece that is a token as a whole is not merged */
    struct split_pattern patterns[REGEX_SPLIT_PASSES]; /* point into the JSON document */
};

/* `name` (the path) begins every message. Besides the settings it holds to account: ids used twice, added ids that are
 * not those which the file's order gives (1.6), merges of unknown tokens or into an added one (literal text could then
 * become a control token), bytes without a token, and, in a vocabulary of the published size, known names at other
 * ids. With `ids_only` nothing but the vocabulary and the added tokens is read and held to account. */
qr_status tokenizer_file_read(const struct json *root, const char *name, bool ids_only, struct tokenizer_file *out,
                              qr_error *err);
void tokenizer_file_free(struct tokenizer_file *file);

#endif
