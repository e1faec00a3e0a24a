/* tokenizers.h: tokenizers that several tests start from, and goldens in JSON lines. What cannot be read fails the
 * running test with a sentence. */
#ifndef QR_TESTS_TOKENIZERS_H
#define QR_TESTS_TOKENIZERS_H

#include "base/json.h"
#include "text/tokenizer.h"

/* The tokenizer of models/tiny-v41; close with tok_close. */
struct tokenizer *bundled_tokenizer(void);

/* The published tokenizer (fixture_tokenizer, which must be there), its added tokens replaced by the list in `added`
 * ("tests/golden/text/added_tokens_v41.json") unless that is NULL. */
struct tokenizer *published_tokenizer(const char *added);
/* It with the added tokens of either family's goldens, for a whole group of tests: hand these to cmocka_run_group_tests. */
extern struct tokenizer *tokenizer_as_v4, *tokenizer_as_v41;
int published_begin(void **state);
int published_end(void **state);
/* Its tokenizer.json with the JSON text `list` as added tokens (NULL: its own); qr_free it. */
char *published_json(const char *list, size_t length, size_t *size);

/* A tokenizer.json of 256 byte tokens, 0..255, the merges "t h" -> 256, "th e" -> 257, "Ġ the" -> 258, "a a" -> 259,
 * "aa aa" -> 260, and the added tokens "<a>" 261 and "<a><b>" 262 (special). qr_free it. */
char *small_tokenizer_json(void);

/* The text of a file of the source tree; qr_free it. */
char *read_source(const char *relative, size_t *size);

/* Calls `check` for every line of a JSON-lines file of the source tree and returns how many there were. */
size_t each_line(const char *relative, void (*check)(void *user, const struct json *line), void *user);

/* Member `key` of a line: it must be there, of the right kind. */
const struct json *member(const struct json *line, const char *key, enum json_kind kind);

/* Fails unless `found` holds the ids of `want`, naming the line. */
void assert_ids(const struct json *line, const struct tok_ids *found, const struct json *want);

/* The bytes of a string of hexadecimal digits; `out` is cleared first. */
void bytes_of_hex(const struct json *hex, struct buffer *out);

/* The next of a sequence of pseudorandom numbers; the same on every machine. */
uint32_t random_below(uint64_t *state, uint32_t limit);

#endif
