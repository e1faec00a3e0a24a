/* tokenizer.h: text to ids and what an id stands for (protocol.md 1). A tokenizer is read-only once opened: any number
 * of threads may use one at once. */
#ifndef QR_TEXT_TOKENIZER_H
#define QR_TEXT_TOKENIZER_H

#include "base/log.h"
#include "text/ids.h"
#include "text/split.h"

struct tokenizer;

/* Reads `dir`/tokenizer.json and, where there is one, `dir`/tokenizer_config.json. QR_BAD_FILE names the file and what
 * about it is not as protocol.md 1.2 and 1.6 want it. The log gets the file's SHA-256 and the Unicode versions of the
 * tables in use. Close with tok_close (NULL is fine). */
qr_status tok_open(const char *dir, const struct qr_log *log, struct tokenizer **out, qr_error *err);
/* The same for whoever needs only what ids stand for (the token map): how text is split and merged is not looked at, and
 * encoding with it is QR_UNSUPPORTED. */
qr_status tok_open_ids(const char *dir, const struct qr_log *log, struct tokenizer **out, qr_error *err);

/* A file that is in memory already; it may go afterwards. */
struct tok_source {
    const char *json; /* tokenizer.json */
    size_t size;
    const char *name;   /* quoted in messages */
    const char *config; /* tokenizer_config.json; NULL: the published names and no limit */
    size_t config_size;
    const char *config_name; /* for messages; NULL: its name alone */
    enum split_engine engine;
    bool ids_only;
};
qr_status tok_load(const struct tok_source *source, const struct qr_log *log, struct tokenizer **out, qr_error *err);
void tok_close(struct tokenizer *tok);

/* ---- encoding ---- */

/* Appends the ids of `text`, n bytes, taken as plain text: no added token is recognised, and none can come out. Bytes
 * that are not UTF-8 count as U+FFFD, one for each maximal bad part. QR_BAD_REQUEST for 2 GiB of text and more. */
qr_status tok_encode_literal(const struct tokenizer *tok, const char *text, size_t n, struct tok_ids *ids,
                             qr_error *err);
/* The same, but added tokens are recognised anywhere in the text: the leftmost, the longest of those. */
qr_status tok_encode_markup(const struct tokenizer *tok, const char *text, size_t n, struct tok_ids *ids,
                            qr_error *err);

/* ---- ids ---- */

/* One more than the largest id, added tokens included. */
int32_t tok_count(const struct tokenizer *tok);
/* Entries of model.vocab. */
int32_t tok_base_count(const struct tokenizer *tok);

/* What `id` decodes to; no bytes for a hole or an id that is out of range. Lives as long as the tokenizer. */
const uint8_t *tok_bytes(const struct tokenizer *tok, int32_t id, size_t *length);
/* The string that tokenizer.json gives it: in the byte-level alphabet for a base token, the content of an added one. */
const char *tok_string(const struct tokenizer *tok, int32_t id, size_t *length);

bool tok_is_added(const struct tokenizer *tok, int32_t id);
/* Marked special in the file. Hides nothing by itself: `</think>` is not special (1.6). */
bool tok_is_special(const struct tokenizer *tok, int32_t id);

/* The id of the added token of this content ("<think>"), or -1. */
int32_t tok_find(const struct tokenizer *tok, const char *content);

/* From tokenizer_config.json; without it, or where it names none, by the published names. -1 when there is none. */
int32_t tok_bos(const struct tokenizer *tok);
int32_t tok_eos(const struct tokenizer *tok);
int32_t tok_pad(const struct tokenizer *tok);
bool tok_adds_bos(const struct tokenizer *tok);
/* model_max_length of tokenizer_config.json; 0 when it gives none. */
int64_t tok_max_length(const struct tokenizer *tok);

/* Appends the ids that are never sampled (1.6), ascending: image pad, start and placeholder, and all place holders.
 * QR_NO_MEMORY leaves `ids` as it was. */
qr_status tok_ban_list(const struct tokenizer *tok, struct tok_ids *ids, qr_error *err);

#endif
