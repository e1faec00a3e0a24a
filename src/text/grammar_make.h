/* grammar_make.h: whole grammars from what requests ask for. On failure `path` (96 bytes; may be NULL) holds the JSON
 * pointer of what is wrong in a schema, or nothing. */
#ifndef QR_TEXT_GRAMMAR_MAKE_H
#define QR_TEXT_GRAMMAR_MAKE_H

#include "base/log.h"
#include "text/chat.h"
#include "text/grammar.h"

enum grammar_kind { GRAMMAR_JSON_OBJECT, GRAMMAR_JSON_SCHEMA, GRAMMAR_REGEX, GRAMMAR_CHOICE };

/* JSON_OBJECT takes no text; JSON_SCHEMA a schema; REGEX an expression that the whole answer matches; CHOICE a JSON list of
 * strings. `name` is quoted in sentences. QR_BAD_REQUEST: it is refused. */
qr_status grammar_make(enum grammar_kind kind, const char *text, size_t length, const char *name, struct grammar **out,
                       char *path, qr_error *err);
/* Of a parsed schema; of a parsed list. */
qr_status grammar_make_schema(const struct json *schema, const char *name, struct grammar **out, char *path, qr_error *err);
qr_status grammar_make_choice(const struct json *list, const char *name, struct grammar **out, qr_error *err);

/* What the answer to a chat request has to be behind its reasoning: a forced call, JSON where a response_format wants it (or
 * calls, where tools are declared), and where tools are strict any text and then calls of declared tools with parameters by
 * their schemas. *out NULL: anything. `param`: the member that is wrong. `log` (may be
 * NULL) is told of tools' schemas that cannot be held to. */
qr_status grammar_make_answer(const struct chat *chat, enum chat_profile profile, const struct tokenizer *tok,
                              const struct qr_log *log, struct grammar **out, char *path, const char **param, qr_error *err);

#endif
