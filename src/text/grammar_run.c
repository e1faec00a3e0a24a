#include "text/grammar_run.h"

#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "text/grammar_store.h"

enum {
    MOST_PLACES = 4096, /* that one step looks at */
    SEEN_SLOTS = 4 * MOST_PLACES,
    STEP_SLOTS = 1 << 14,
    MASKS = 32
};

/* A step that was taken before. */
struct step {
    uint32_t from, byte, to; /* from 0: empty */
};

struct mask {
    uint32_t state; /* 0: empty */
    uint64_t used;
};

struct grammar_run {
    struct grammar *grammar;
    const struct token_trie *trie;
    const struct tokenizer *tok;
    int32_t *ends;
    int32_t end_count;
    struct store *store, *spare;
    struct step *steps;                /* [STEP_SLOTS] */
    uint32_t here, marked;
    uint32_t path[TRIE_LONGEST + 1];   /* states behind the bytes of a token; path[0] is where it begins */
    uint32_t path_count;
    /* of one step */
    struct place work[MOST_PLACES], found[MOST_PLACES], seen[SEEN_SLOTS];
    uint32_t stamps[SEEN_SLOTS], stamp, seen_count;
    uint32_t work_count, found_count;
    bool full, wide;                   /* the store has no room; there are too many places */
    /* masks */
    struct mask masks[MASKS];
    uint32_t *bits;                    /* [MASKS][words] */
    uint32_t words;
    struct grammar_run_counts counts;
};

uint64_t grammar_run_bytes(int32_t vocab)
{
    const uint64_t words = ((uint64_t)vocab + 31) / 32;
    return sizeof(struct grammar_run) + 2 * sizeof(struct store) + STEP_SLOTS * sizeof(struct step) +
           MASKS * words * sizeof(uint32_t);
}

/* ---- places ---- */

/* Notes a place as work to do, once. */
static void visit(struct grammar_run *r, grammar_node_id node, uint32_t frame)
{
    const struct place p = {node, frame};
    if (!r->grammar->nodes[node].lives || r->full || r->wide)
        return;
    uint32_t slot = (uint32_t)(XXH3_64bits(&p, sizeof p) % SEEN_SLOTS);
    for (; r->stamps[slot] == r->stamp; slot = (slot + 1) % SEEN_SLOTS)
        if (r->seen[slot].node == node && r->seen[slot].frame == frame)
            return;
    if (r->seen_count == MOST_PLACES) {
        r->wide = true;
        return;
    }
    r->seen_count++;
    r->stamps[slot] = r->stamp;
    r->seen[slot] = p;
    r->work[r->work_count++] = p;
}

/* Goes into a rule. Behind the last node of the caller there is nothing to come back to but what the caller comes back to. */
static void call(struct grammar_run *r, const struct grammar_node *n, uint32_t frame)
{
    const struct grammar_rule *rule = &r->grammar->rules[n->what];
    const uint32_t depth = r->store->frames[frame].depth + rule->recursive;
    if (n->next == GRAMMAR_RETURN) {
        visit(r, rule->entry, frame);
        return;
    }
    if (depth > GRAMMAR_MOST_DEPTH || !r->grammar->nodes[n->next].lives)
        return;
    const uint32_t inner = store_frame(r->store, n->next, frame, depth);
    if (inner == STORE_FULL)
        r->full = true;
    else
        visit(r, rule->entry, inner);
}

/* What all work comes to: places that eat something, in `found`. */
static void follow(struct grammar_run *r)
{
    while (r->work_count > 0 && !r->full && !r->wide) {
        const struct place p = r->work[--r->work_count];
        const struct grammar_node *n = &r->grammar->nodes[p.node];
        if (n->kind == NODE_EITHER) {
            visit(r, n->next, p.frame);
            visit(r, n->what, p.frame);
        } else if (n->kind == NODE_CALL) {
            call(r, n, p.frame);
        } else if (n->kind == NODE_RETURN && p.frame) {
            const struct frame *f = &r->store->frames[p.frame];
            visit(r, f->node, f->parent);
        } else {
            r->found[r->found_count++] = p;
        }
    }
}

static void begin_step(struct grammar_run *r)
{
    if (++r->stamp == 0) {
        memset(r->stamps, 0, sizeof r->stamps);
        r->stamp = 1;
    }
    r->seen_count = r->work_count = r->found_count = 0;
    r->full = r->wide = false;
}

static uint32_t end_step(struct grammar_run *r)
{
    follow(r);
    if (r->full || r->wide)
        return STORE_FULL;
    store_sort(r->found, r->found_count);
    const uint32_t state = store_state(r->store, r->found, r->found_count);
    r->full = state == STORE_FULL;
    return state;
}

/* ---- room ---- */

static uint32_t copy_state(struct grammar_run *r, uint32_t state)
{
    const struct state *s = &r->store->states[state];
    if (s->count > MOST_PLACES)
        return STORE_FULL;
    for (uint32_t i = 0; i < s->count; i++) {
        const struct place *p = &r->store->places[s->first + i];
        r->found[i] = (struct place){p->node, store_copy_frame(r->spare, r->store, p->frame)};
        if (r->found[i].frame == STORE_FULL)
            return STORE_FULL;
    }
    store_sort(r->found, s->count);
    return store_state(r->spare, r->found, s->count);
}

/* Moves the states in use to the other store; all others are forgotten. */
static bool collect(struct grammar_run *r)
{
    bool good = true;
    store_clear(r->spare);
    uint32_t *roots[2] = {&r->here, &r->marked};
    for (uint32_t i = 0; good && i < 2 + r->path_count; i++) {
        uint32_t *root = i < 2 ? roots[i] : &r->path[i - 2];
        *root = copy_state(r, *root);
        good = *root != STORE_FULL;
    }
    struct store *old = r->store;
    r->store = r->spare;
    r->spare = old;
    memset(r->steps, 0, STEP_SLOTS * sizeof *r->steps);
    memset(r->masks, 0, sizeof r->masks);
    r->counts.collections++;
    return good;
}

/* ---- steps: each tries again with an emptied store where there was no room ---- */

static void eat_byte(struct grammar_run *r, uint32_t from, unsigned byte)
{
    const struct state *s = &r->store->states[from];
    for (uint32_t i = 0; i < s->count; i++) {
        const struct place p = r->store->places[s->first + i];
        const struct grammar_node *n = &r->grammar->nodes[p.node];
        if (n->kind == NODE_BYTE ? n->what == byte : n->kind == NODE_BYTES && byte_set_has(&r->grammar->sets[n->what], byte))
            visit(r, n->next, p.frame);
    }
}

/* path[at] by a byte. STORE_FULL: it cannot be followed. */
static uint32_t step(struct grammar_run *r, uint32_t at, unsigned byte)
{
    for (int turn = 0; turn < 2; turn++) {
        const uint32_t from = r->path[at];
        struct step *known = &r->steps[(from * 0x9e3779b1u ^ byte * 0x85ebca6bu) >> 18 & (STEP_SLOTS - 1)];
        if (from == 0)
            return 0;
        if (known->from == from && known->byte == byte)
            return known->to;
        begin_step(r);
        eat_byte(r, from, byte);
        const uint32_t to = end_step(r);
        if (to != STORE_FULL) {
            *known = (struct step){from, byte, to};
            return to;
        }
        if (r->wide || !collect(r))
            break;
    }
    return STORE_FULL;
}

static qr_status cannot_follow(const struct grammar_run *r, qr_error *err)
{
    return qr_fail(err, QR_BAD_REQUEST, "the grammar has more than %d ways to go on at once, which is too ambiguous to follow",
                   r->wide ? MOST_PLACES : STORE_PLACES);
}

/* path[0] by bytes to path[length]; *fits: they do. */
static qr_status walk(struct grammar_run *r, const uint8_t *bytes, size_t length, bool *fits, qr_error *err)
{
    *fits = false;
    for (uint32_t i = 0; i < length; i++) {
        r->path_count = i + 1;
        const uint32_t to = step(r, i, bytes[i]);
        if (to == STORE_FULL)
            return cannot_follow(r, err);
        r->path[i + 1] = to;
        if (to == 0)
            return QR_OK;
    }
    r->path_count = (uint32_t)length + 1;
    *fits = true;
    return QR_OK;
}

static void eat_token(struct grammar_run *r, uint32_t from, int32_t token)
{
    const struct state *s = &r->store->states[from];
    for (uint32_t i = 0; i < s->count; i++) {
        const struct place p = r->store->places[s->first + i];
        const struct grammar_node *n = &r->grammar->nodes[p.node];
        if (n->kind == NODE_TOKEN && n->what == (uint32_t)token)
            visit(r, n->next, p.frame);
    }
}

/* By the token itself, or by its bytes, whose state is path[last]. */
static uint32_t step_token(struct grammar_run *r, int32_t token, uint32_t last)
{
    for (int turn = 0; turn < 2; turn++) {
        begin_step(r);
        eat_token(r, r->here, token);
        const struct state *by_bytes = &r->store->states[last ? r->path[last] : 0];
        for (uint32_t i = 0; i < by_bytes->count; i++)
            visit(r, r->store->places[by_bytes->first + i].node, r->store->places[by_bytes->first + i].frame);
        const uint32_t to = end_step(r);
        if (to != STORE_FULL || r->wide || !collect(r))
            return to;
    }
    return STORE_FULL;
}

static bool ends_with(const struct grammar_run *r, int32_t token)
{
    for (int32_t i = 0; i < r->end_count; i++)
        if (r->ends[i] == token)
            return true;
    return false;
}

qr_status grammar_run_push(struct grammar_run *r, int32_t token, qr_error *err)
{
    size_t length;
    bool fits = false;
    qr_status st = QR_OK;
    const uint8_t *bytes = tok_bytes(r->tok, token, &length);
    r->path[0] = r->here;
    r->path_count = 1;
    if (length > 0 && length <= TRIE_LONGEST && !tok_is_added(r->tok, token))
        st = walk(r, bytes, length, &fits, err);
    if (st != QR_OK)
        return st;
    const uint32_t to = step_token(r, token, fits ? (uint32_t)length : 0);
    r->path_count = 0;
    if (to == STORE_FULL)
        return cannot_follow(r, err);
    if (to == 0 && !(ends_with(r, token) && grammar_run_complete(r)))
        return qr_fail(err, QR_BAD_REQUEST, "token %d does not fit the grammar here", token);
    if (to)
        r->here = to;
    return QR_OK;
}

qr_status grammar_run_push_bytes(struct grammar_run *r, const char *bytes, size_t length, qr_error *err)
{
    grammar_run_mark(r);
    for (size_t i = 0; i < length; i++) {
        r->path[0] = r->here;
        r->path_count = 1;
        const uint32_t to = step(r, 0, (uint8_t)bytes[i]);
        r->path_count = 0;
        if (to == STORE_FULL)
            return cannot_follow(r, err);
        if (to == 0) {
            grammar_run_rewind(r);
            return qr_fail(err, QR_BAD_REQUEST, "byte %zu does not fit the grammar", i);
        }
        r->here = to;
    }
    return QR_OK;
}

void grammar_run_mark(struct grammar_run *r) { r->marked = r->here; }
void grammar_run_rewind(struct grammar_run *r) { r->here = r->marked; }

bool grammar_run_complete(const struct grammar_run *r)
{
    const struct state *s = &r->store->states[r->here];
    return s->count > 0 && r->store->places[s->first].node == GRAMMAR_RETURN; /* the smallest */
}

/* ---- masks ---- */

static void set_bit(uint32_t *mask, int32_t id) { mask[id >> 5] |= UINT32_C(1) << (id & 31); }

/* Tokens that the grammar names, and those that end the answer. */
static void add_tokens(struct grammar_run *r, uint32_t *mask)
{
    const struct state *s = &r->store->states[r->here];
    for (uint32_t i = 0; i < s->count; i++) {
        const struct grammar_node *n = &r->grammar->nodes[r->store->places[s->first + i].node];
        if (n->kind == NODE_TOKEN && n->what < (uint32_t)r->trie->vocab)
            set_bit(mask, (int32_t)n->what);
    }
    for (int32_t i = 0; i < r->end_count && grammar_run_complete(r); i++)
        if (r->ends[i] >= 0 && r->ends[i] < r->trie->vocab)
            set_bit(mask, r->ends[i]);
}

/* Tokens whose bytes fit. */
static qr_status add_texts(struct grammar_run *r, uint32_t *mask, qr_error *err)
{
    const struct token_trie *t = r->trie;
    r->path[0] = r->here;
    for (uint32_t i = 0; i < t->count;) {
        const struct trie_node *n = &t->nodes[i];
        r->path_count = n->depth;
        const uint32_t to = step(r, n->depth - 1u, n->byte);
        if (to == STORE_FULL)
            return cannot_follow(r, err);
        r->path[n->depth] = to;
        if (to && n->token >= 0)
            set_bit(mask, n->token);
        i = to ? i + 1 : n->skip;
    }
    r->path_count = 0;
    return QR_OK;
}

static uint32_t *mask_bits(struct grammar_run *r, int i) { return r->bits + (size_t)i * r->words; }

/* The entry of the state here, or the one whose turn to go it is. */
static int find_mask(const struct grammar_run *r)
{
    int oldest = 0;
    for (int i = 0; i < MASKS; i++) {
        if (r->masks[i].state == r->here)
            return i;
        if (r->masks[i].used < r->masks[oldest].used)
            oldest = i;
    }
    return oldest;
}

qr_status grammar_run_mask(struct grammar_run *r, const uint32_t **mask, qr_error *err)
{
    const int i = find_mask(r);
    const uint64_t now = r->counts.masks_made + r->counts.masks_found + 1;
    uint32_t *bits = mask_bits(r, i);
    *mask = bits;
    if (r->masks[i].state == r->here && r->here) {
        r->counts.masks_found++;
        r->masks[i].used = now;
        return QR_OK;
    }
    memset(bits, 0, r->words * sizeof *bits);
    r->masks[i].state = 0;
    qr_status st = add_texts(r, bits, err);
    r->path_count = 0;
    if (st != QR_OK)
        return st;
    add_tokens(r, bits);
    r->masks[i] = (struct mask){r->here, now};
    r->counts.masks_made++;
    return QR_OK;
}

struct grammar_run_counts grammar_run_counts(const struct grammar_run *r) { return r->counts; }

/* ---- life ---- */

static qr_status start(struct grammar_run *r, qr_error *err)
{
    begin_step(r);
    visit(r, r->grammar->rules[r->grammar->start].entry, 0);
    r->here = r->marked = end_step(r);
    return r->here == STORE_FULL ? cannot_follow(r, err) : QR_OK;
}

qr_status grammar_run_open(const struct grammar_run_options *o, struct grammar_run **out, qr_error *err)
{
    *out = NULL;
    struct grammar_run *r = qr_calloc(1, sizeof *r);
    if (r) {
        r->words = ((uint32_t)o->trie->vocab + 31) / 32;
        r->store = qr_malloc(sizeof *r->store);
        r->spare = qr_malloc(sizeof *r->spare);
        r->steps = qr_calloc(STEP_SLOTS, sizeof *r->steps);
        r->bits = qr_calloc((size_t)MASKS * r->words + 1, sizeof *r->bits);
        r->ends = qr_calloc((size_t)o->end_count + 1, sizeof *r->ends);
    }
    if (!r || !r->store || !r->spare || !r->steps || !r->bits || !r->ends) {
        grammar_run_close(r);
        return qr_fail(err, QR_NO_MEMORY, "no memory to follow a grammar");
    }
    r->grammar = grammar_hold(o->grammar);
    r->trie = o->trie;
    r->tok = o->tok;
    r->end_count = o->end_count;
    if (o->end_count)
        memcpy(r->ends, o->ends, (size_t)o->end_count * sizeof *r->ends);
    store_clear(r->store);
    qr_status st = start(r, err);
    if (st != QR_OK) {
        grammar_run_close(r);
        return st;
    }
    *out = r;
    return QR_OK;
}

void grammar_run_close(struct grammar_run *r)
{
    if (!r)
        return;
    grammar_release(r->grammar);
    qr_free(r->store);
    qr_free(r->spare);
    qr_free(r->steps);
    qr_free(r->bits);
    qr_free(r->ends);
    qr_free(r);
}
