/* parser_section.h: reasoning and content, where newlines and brackets are held until it is known whether a tag follows
 * (protocol.md 3.3, rows R and C). */
#ifndef QR_TEXT_PARSER_SECTION_H
#define QR_TEXT_PARSER_SECTION_H

#include "text/parser_state.h"

void parser_in_section(struct parser *p, int symbol);
/* No more symbols: lets out what is held. */
void parser_end_section(struct parser *p);

#endif
