/* parser_tag.h: the tags of calls as the model writes them: `<` or `</`, the DSML token, at most one space, a name
 * (protocol.md 3.2, 3.3). A tag's text here is what follows the token. Both generations' spellings are read. */
#ifndef QR_TEXT_PARSER_TAG_H
#define QR_TEXT_PARSER_TAG_H

#include <stdbool.h>
#include <stddef.h>

enum tag_match {
    MATCH_NONE,    /* can no longer become one */
    MATCH_PARTIAL, /* may still become one */
    MATCH_BLOCK,   /* "calls>", "tool_calls>" */
    MATCH_CALL,    /* "invoke>", or the start of a call's opener: `invoke name="` */
    MATCH_PARAMETER
};

enum tag_match tag_block(const char *text, size_t length);       /* either way: MATCH_BLOCK */
enum tag_match tag_call_opener(const char *text, size_t length); /* MATCH_CALL, up to and with the quotation mark */
/* Closers of a call's inside: MATCH_CALL, MATCH_BLOCK, MATCH_PARAMETER. */
enum tag_match tag_closer(const char *text, size_t length);

/* An opener `parameter name="K" string="B">` or `parameter name="K">`; MATCH_PARAMETER once it is whole. */
enum tag_match tag_parameter_opener(const char *text, size_t length);

/* Has a partial opener come to its key, where any text may stand? */
bool tag_parameter_in_key(const char *text, size_t length);

enum string_attribute { STRING_UNKNOWN, STRING_TRUE, STRING_FALSE };

/* The key and attribute of a whole opener. K ends at the last place that leaves a whole attribute behind it. */
enum string_attribute tag_parameter_read(const char *text, size_t length, const char **key, size_t *key_length);

#endif
