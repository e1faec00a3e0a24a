/* verify_line.h: one request, fed to a runner by hand. */
#ifndef QR_TOOLS_VERIFY_LINE_H
#define QR_TOOLS_VERIFY_LINE_H

#include "tools/verify_machine.h"

/* A request in STATE slot 0 and its runner. The caller writes `tokens` ([count] and one more) before they are run. */
struct line {
    const struct machine *m;
    struct runner *runner;
    struct model_observer observer; /* `at` NULL: none */
    int32_t *tokens, *blocks, *sources;
    int32_t count, block_count, position;
};

/* Room for `count` tokens, in steps of at most `rows` whose last `logits` want logits. Close it even when this fails. */
qr_status line_open(const struct machine *m, struct backend *backend, int32_t count, int32_t rows, int32_t logits, bool drafts,
                    struct line *out, qr_error *err);
void line_close(struct line *l);

/* Runs the next `count` tokens; logits of the last `logits` of them. */
qr_status line_step(struct line *l, int32_t count, int32_t logits, qr_error *err);
/* The drafter behind a step of `count` tokens: the MTP layer on all of them, or a DSpark block with its greedy chain. */
qr_status line_draft(struct line *l, int32_t count, qr_error *err);

/* `count` tokens that look like anything: words of the keyed generator. */
void line_draw_tokens(const struct machine *m, int32_t *out, int32_t count);

#endif
