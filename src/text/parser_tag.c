#include "text/parser_tag.h"

#include <string.h>

static void skip_space(const char **text, size_t *length)
{
    if (*length > 0 && **text == ' ') {
        (*text)++;
        (*length)--;
    }
}

static enum tag_match against(const char *text, size_t length, const char *want, enum tag_match whole)
{
    size_t full = strlen(want);
    if (length > full || memcmp(text, want, length) != 0)
        return MATCH_NONE;
    return length == full ? whole : MATCH_PARTIAL;
}

static enum tag_match better(enum tag_match a, enum tag_match b) { return a > b ? a : b; }

enum tag_match tag_block(const char *text, size_t length)
{
    skip_space(&text, &length);
    return better(against(text, length, "tool_calls>", MATCH_BLOCK), against(text, length, "calls>", MATCH_BLOCK));
}

enum tag_match tag_call_opener(const char *text, size_t length)
{
    skip_space(&text, &length);
    return against(text, length, "invoke name=\"", MATCH_CALL);
}

enum tag_match tag_closer(const char *text, size_t length)
{
    enum tag_match block = tag_block(text, length);
    skip_space(&text, &length);
    return better(block, better(against(text, length, "invoke>", MATCH_CALL),
                                against(text, length, "parameter>", MATCH_PARAMETER)));
}

/* ---- parameters ---- */

static const char before_key[] = "parameter name=\"";
static const char between[] = "\" string=\"";

bool tag_parameter_in_key(const char *text, size_t length)
{
    skip_space(&text, &length);
    return length >= strlen(before_key) && memcmp(text, before_key, strlen(before_key)) == 0;
}

enum tag_match tag_parameter_opener(const char *text, size_t length)
{
    if (!tag_parameter_in_key(text, length)) {
        skip_space(&text, &length);
        return against(text, length, before_key, MATCH_PARTIAL);
    }
    skip_space(&text, &length);
    bool closed = length >= strlen(before_key) + 2 && text[length - 1] == '>' && text[length - 2] == '"';
    return closed ? MATCH_PARAMETER : MATCH_PARTIAL;
}

/* Where the last `" string="` of key and attribute stands, or their end. */
static size_t find_attribute(const char *text, size_t length)
{
    size_t width = strlen(between);
    for (size_t i = length; i-- > 0;) {
        if (i + width <= length && memcmp(text + i, between, width) == 0)
            return i;
    }
    return length;
}

static bool is(const char *text, size_t length, const char *want)
{
    return length == strlen(want) && memcmp(text, want, length) == 0;
}

enum string_attribute tag_parameter_read(const char *text, size_t length, const char **key, size_t *key_length)
{
    skip_space(&text, &length);
    *key = text + strlen(before_key);
    length -= strlen(before_key) + 2; /* the key and what follows it, without `">` */
    *key_length = find_attribute(*key, length);
    if (*key_length == length)
        return STRING_UNKNOWN;
    const char *attribute = *key + *key_length + strlen(between);
    size_t attribute_length = length - *key_length - strlen(between);
    if (memchr(attribute, '"', attribute_length)) { /* `string="a"b">`: no attribute, the key goes on */
        *key_length = length;
        return STRING_UNKNOWN;
    }
    if (is(attribute, attribute_length, "true"))
        return STRING_TRUE;
    return is(attribute, attribute_length, "false") ? STRING_FALSE : STRING_UNKNOWN;
}
