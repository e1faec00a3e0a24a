/* parser_block.h: a block of calls: calls, names, values and bodies, and a refused block, which is text
 * (protocol.md 3.3 rows B to X, 3.5). */
#ifndef QR_TEXT_PARSER_BLOCK_H
#define QR_TEXT_PARSER_BLOCK_H

#include "text/parser_state.h"

/* A call's opener has come up to its name. */
void parser_begin_name(struct parser *p);

void parser_in_block(struct parser *p, int symbol);
void parser_in_name(struct parser *p, int symbol);
void parser_in_call(struct parser *p, int symbol);
void parser_in_value(struct parser *p, int symbol);
void parser_in_body(struct parser *p, int symbol);
void parser_in_raw(struct parser *p, int symbol);

/* No more symbols. With `completes` a call that lacks nothing but its closer counts, else it is cut. */
void parser_end_in_call(struct parser *p, bool completes);
void parser_end_in_body(struct parser *p, bool completes);
void parser_cut_call(struct parser *p);

#endif
