/* trace_input.h: the sequences of `quire trace` (design/cli.md): one object {"tokens": [...]} ("ids" is as
 * good), or a list of them, a ragged batch. Members that other families or drafts use are read where they are used. */
#ifndef QR_TOOLS_TRACE_INPUT_H
#define QR_TOOLS_TRACE_INPUT_H

#include "checkpoint/config.h"

struct trace_sequence {
    char prefix[24];     /* of its arrays: "", or "seq3." in a list */
    int32_t *tokens;     /* [count] */
    uint8_t *image_mask; /* [count] 1 where the token is image_token_id */
    int32_t count;
    int32_t next_token; /* -1: not given */
    int32_t *prefixes;  /* draft_prefixes */
    int32_t prefix_count;
    int32_t *rows, *picks; /* positions whose logits, whose streams are written; every position where none are given */
    int32_t row_count, pick_count;
    bool picked; /* picks were given */
};

struct trace_input {
    struct trace_sequence *sequences;
    int32_t count;
};

/* Reads `path`. Refuses, with the sequence and the value: no tokens, ids outside the vocabulary, prefixes beyond the
 * sequence. Free with trace_input_free (a zeroed one is fine). */
qr_status trace_input_read(const char *path, const struct qr_config *config, struct trace_input *out, qr_error *err);
void trace_input_free(struct trace_input *input);

/* The cut of one sequence into steps: chunks[] as given, the last number repeating, none: everything at once; positions
 * from decode_from on (-1: none) one at a time. Returns the tokens of the step that starts at `position`. */
struct trace_cut {
    const int32_t *chunks;
    int32_t count;
    int32_t decode_from;
};
int32_t trace_next_chunk(const struct trace_cut *cut, int32_t step, int32_t position, int32_t end);
/* `count` cut so that the step from `position` does not go over one of the sequence's draft_prefixes. */
int32_t trace_to_prefix(const struct trace_sequence *s, int32_t position, int32_t count);
/* "3,1,129" into fresh numbers (qr_free); false when it is no list of positive numbers. NULL text: no numbers. */
bool trace_read_chunks(const char *text, int32_t **out, int32_t *count);

#endif
