/* token_counts.h: which ids a request has seen, for the penalties of sampling (speculation.md 4.7, steps 1 and 2).
 * Kept up to date token by token, so that a step costs as much as there are distinct ids, however long the prompt. */
#ifndef QR_RUN_TOKEN_COUNTS_H
#define QR_RUN_TOKEN_COUNTS_H

#include "base/status.h"

struct token_counts;

/* 9 bytes an id of the vocabulary; nothing is allocated later. */
qr_status token_counts_open(int32_t vocab, struct token_counts **out, qr_error *err);
void token_counts_close(struct token_counts *counts); /* NULL is fine */
uint64_t token_counts_bytes(int32_t vocab);

/* Forgets everything. */
void token_counts_clear(struct token_counts *counts);
/* Marks the ids of the prompt; before any push. Ids outside the vocabulary are ignored, here and in push and pop. */
void token_counts_prompt(struct token_counts *counts, const int32_t *ids, int64_t n);
/* One more id of the output. */
void token_counts_push(struct token_counts *counts, int32_t id);
/* Takes back the newest push, which was of `id`: drafts are pushed for their rows and popped after them. */
void token_counts_pop(struct token_counts *counts, int32_t id);

/* The distinct ids of prompt and output, in order of first appearance, and how often the output holds an id. */
const int32_t *token_counts_distinct(const struct token_counts *counts, int32_t *n);
int32_t token_counts_output(const struct token_counts *counts, int32_t id);

#endif
