#include "ops/cuda/record.h"

#include <stddef.h>
#include <string.h>

#include "base/alloc.h"
#include "ops/cuda/order.h"

enum {
    FIRST_ROOM = 1 << 20,
    GRAPHS = 1024,       /* kept at once, */
    GRAPH_STARTS = 49152, /* with so many operators together */
    SEEN = 4096,         /* lists remembered by their hash, to be recorded when they come again */
    FEWEST = 8,          /* operators in a list that is worth a graph */
    START_BYTES = 24576  /* of device memory for an operator of a graph: 21,000 on an H200 */
};

/* ---- what an operator holds ---- */

/* Places of a `step` and a rope_spec in an operator; -1: none. */
struct inside {
    size_t bytes;
    int step, rope;
};
#define PLAIN(NAME) [OP_##NAME] = {sizeof(struct op_##NAME), -1, -1}
#define STEP(NAME) [OP_##NAME] = {sizeof(struct op_##NAME), offsetof(struct op_##NAME, step), -1}
#define ROPE(NAME) \
    [OP_##NAME] = {sizeof(struct op_##NAME), offsetof(struct op_##NAME, step), offsetof(struct op_##NAME, rope)}
static const struct inside inside[OPS] = {
    PLAIN(mhc_mix),    PLAIN(collapse),    PLAIN(expand),       PLAIN(norm),       PLAIN(quantize),  PLAIN(linear),
    PLAIN(expert),     PLAIN(combine),     PLAIN(stream_mean),  PLAIN(stream_add), PLAIN(gather),    PLAIN(copy),
    STEP(embed),       STEP(window_write), STEP(position_bias), STEP(compress),    STEP(tail_write), STEP(index_select),
    STEP(attend),      STEP(route),        STEP(engram),        ROPE(query),       ROPE(window_key), ROPE(row_write),
    ROPE(index_query), ROPE(unrotate)};

/* ---- the list ---- */

/* An operator in the list: this, then its struct. What the struct points to on the host stands in the list too; the
 * pointer holds its place there, so that equal lists are equal bytes. */
struct entry {
    uint64_t op;
};

struct kept_graph {
    cudaGraphExec_t graph; /* NULL: empty */
    uint8_t *list;
    size_t used, starts;
    uint64_t stamp;
};

struct recorder {
    uint8_t *list;
    size_t used, room;
    size_t *places; /* of the entries */
    size_t count, most;
    size_t step; /* place of the last step, 0: none */
    struct kept_graph kept[GRAPHS];
    uint64_t hash[GRAPHS]; /* of their lists; 0: empty */
    size_t starts;         /* of all that are kept */
    bool fresh;            /* no graph is kept and no list remembered */
    struct run_mode mode;
    uint64_t seen[SEEN], stamp;
    int64_t recorded, replayed, eager; /* lists */
};

static size_t up_8(size_t n) { return (n + 7) / 8 * 8; }

/* Room for n more bytes, zeroed; their place, or 0 without memory. The first 8 bytes are never used. */
static size_t list_take(struct recorder *r, size_t n)
{
    size_t at = r->used;
    n = up_8(n);
    if (r->used + n > r->room) {
        size_t room = 2 * r->room + n;
        uint8_t *more = qr_realloc(r->list, room);
        if (!more)
            return 0;
        r->list = more;
        r->room = room;
    }
    memset(r->list + at, 0, n);
    r->used += n;
    return at;
}

static void list_clear(struct recorder *r)
{
    r->used = 8;
    r->count = 0;
    r->step = 0;
}

static size_t list_put(struct recorder *r, const void *from, size_t n)
{
    size_t at = list_take(r, n);
    if (at)
        memcpy(r->list + at, from, n);
    return at;
}

/* The place of a step; most operators of a list have the same. */
static size_t put_step(struct recorder *r, const struct step *step)
{
    if (!r->step || memcmp(r->list + r->step, step, sizeof *step) != 0)
        r->step = list_put(r, step, sizeof *step);
    return r->step;
}

static void set_pointer(void *member, size_t place)
{
    uintptr_t bits = place;
    memcpy(member, &bits, sizeof bits);
}

static bool count_one(struct recorder *r, size_t place)
{
    if (r->count == r->most) {
        size_t *more = qr_realloc(r->places, (2 * r->most + 1024) * sizeof *more);
        if (!more)
            return false;
        r->places = more;
        r->most = 2 * r->most + 1024;
    }
    r->places[r->count++] = place;
    return true;
}

/* What lies between members may be anything; without it equal operators are equal bytes. */
static void clear_padding(enum op_number number, union any_op *op)
{
#if __has_builtin(__builtin_clear_padding)
    switch (number) {
#define CLEAR(NAME)                              \
    case OP_##NAME:                              \
        __builtin_clear_padding(&op->NAME);      \
        break;
        QR_OPERATORS(CLEAR)
#undef CLEAR
    case OP_copy:
        __builtin_clear_padding(&op->copy);
        break;
    case OPS:
        break;
    }
#else
    (void)number, (void)op; /* lists are recorded more often */
#endif
}

static qr_status write_down(struct backend *b, enum op_number number, const void *op, qr_error *err)
{
    struct recorder *r = cuda_of(b)->recorder;
    const struct inside *in = &inside[number];
    size_t step = 0, frequencies = 0, before = r->used;
    const struct rope_spec *rope = in->rope >= 0 ? (const void *)((const uint8_t *)op + in->rope) : NULL;
    const struct step *given = NULL;
    bool fits = true;

    if (in->step >= 0)
        memcpy(&given, (const uint8_t *)op + in->step, sizeof given);
    if (given)
        fits = (step = put_step(r, given)) != 0;
    if (fits && rope && !rope->turns && rope->frequencies && rope->dim > 0)
        fits = (frequencies = list_put(r, rope->frequencies, (size_t)(rope->dim / 2) * sizeof(float))) != 0;
    struct entry entry = {number};
    size_t at = fits ? list_take(r, sizeof entry + in->bytes) : 0;
    if (!at || !count_one(r, at)) {
        r->used = before;
        r->step = 0;
        return qr_fail(err, QR_NO_MEMORY, "no memory to write an operator down");
    }
    memcpy(r->list + at, &entry, sizeof entry);
    uint8_t *copy = r->list + at + sizeof entry;
    union any_op clean;
    memcpy(clean.bytes, op, in->bytes);
    clear_padding(number, &clean);
    memcpy(copy, clean.bytes, in->bytes);
    if (given)
        set_pointer(copy + in->step, step);
    if (rope)
        set_pointer(copy + in->rope + offsetof(struct rope_spec, frequencies), frequencies);
    return QR_OK;
}

/* ---- starting ---- */

static void restore_pointer(const uint8_t *list, void *member)
{
    uintptr_t place;
    const void *at;
    memcpy(&place, member, sizeof place);
    at = place ? list + place : NULL;
    memcpy(member, &at, sizeof at);
}

/* Entry i of the list, with its pointers into the list made good. */
static enum op_number read_entry(const struct recorder *r, size_t i, union any_op *op)
{
    struct entry e;
    const uint8_t *at = r->list + r->places[i];
    memcpy(&e, at, sizeof e);
    const struct inside *in = &inside[e.op];
    memcpy(op->bytes, at + sizeof e, in->bytes);
    if (in->step >= 0)
        restore_pointer(r->list, op->bytes + in->step);
    if (in->rope >= 0)
        restore_pointer(r->list, op->bytes + in->rope + offsetof(struct rope_spec, frequencies));
    return (enum op_number)e.op;
}

static qr_status start_one(struct cuda_backend *cuda, enum op_number number, const union any_op *op, qr_error *err)
{
    struct backend *b = &cuda->base;
    switch (number) {
#define START(NAME) \
    case OP_##NAME: \
        return cuda_##NAME(b, &op->NAME, err);
        QR_OPERATORS(START)
#undef START
    case OP_copy:
        return cuda_check(cudaMemcpyAsync(op->copy.to, op->copy.from, (size_t)op->copy.bytes, cudaMemcpyDeviceToDevice,
                                          cuda->stream),
                          "copy", err);
    case OPS:
        break;
    }
    return qr_fail(err, QR_INTERNAL, "operator %u of a list", (unsigned)number);
}

/* ---- operators started together ---- */

enum { MOST_JOINED = 4 };

/* Entries of the list that one start does, ascending. */
struct joined {
    int count;
    size_t at[MOST_JOINED];
    enum op_number number[MOST_JOINED];
    union any_op op[MOST_JOINED];
};

static bool is_between(enum op_number number, enum between_step *step)
{
    switch (number) {
    case OP_combine:
        *step = BETWEEN_COMBINE;
        return true;
    case OP_expand:
        *step = BETWEEN_EXPAND;
        return true;
    case OP_mhc_mix:
        *step = BETWEEN_MIX;
        return true;
    case OP_collapse:
        *step = BETWEEN_COLLAPSE;
        return true;
    default:
        return false;
    }
}

/* Takes the entry behind the last one, if they can be one kernel's work. */
static bool join_between(const struct recorder *r, struct joined *j)
{
    const int last = j->count - 1;
    const size_t next = j->at[last] + 1;
    enum between_step step, next_step;
    if (j->count == MOST_JOINED || next >= r->count || !is_between(j->number[last], &step))
        return false;
    j->at[j->count] = next;
    j->number[j->count] = read_entry(r, next, &j->op[j->count]);
    if (!is_between(j->number[j->count], &next_step) ||
        !cuda_goes_between(step, &j->op[last], next_step, &j->op[j->count]))
        return false;
    j->count++;
    return true;
}

/* Takes the inverse rotation behind an attention; keys may be stored in between. */
static void join_turn(const struct recorder *r, struct joined *j)
{
    for (size_t next = j->at[0] + 1; next < r->count && next <= j->at[0] + 2; next++) {
        j->at[1] = next;
        j->number[1] = read_entry(r, next, &j->op[1]);
        if (j->number[1] == OP_unrotate && cuda_attend_turns(&j->op[0].attend, &j->op[1].unrotate))
            j->count = 2;
        if (j->number[1] != OP_window_write)
            return;
    }
}

/* Takes the experts behind a router. */
static void join_experts(const struct recorder *r, struct joined *j)
{
    j->at[1] = j->at[0] + 1;
    if (j->at[1] >= r->count)
        return;
    j->number[1] = read_entry(r, j->at[1], &j->op[1]);
    if (j->number[1] == OP_expert && cuda_routes_experts(&j->op[0].route, &j->op[1].expert))
        j->count = 2;
}

static void join(const struct recorder *r, size_t i, struct joined *j)
{
    j->count = 1;
    j->at[0] = i;
    j->number[0] = read_entry(r, i, &j->op[0]);
    if (!r->mode.fused)
        return;
    if (j->number[0] == OP_attend)
        join_turn(r, j);
    if (j->number[0] == OP_route)
        join_experts(r, j);
    while (join_between(r, j))
        ;
}

static qr_status start_joined(struct cuda_backend *cuda, const struct joined *j, qr_error *err)
{
    const void *step[BETWEEN_COLLAPSE + 1] = {NULL};
    enum between_step which;
    if (j->count == 1)
        return start_one(cuda, j->number[0], &j->op[0], err);
    if (j->number[0] == OP_attend)
        return cuda_attend_turned(&cuda->base, &j->op[0].attend, &j->op[1].unrotate, err);
    if (j->number[0] == OP_route)
        return cuda_route_experts(&cuda->base, &j->op[0].route, &j->op[1].expert, err);
    for (int i = 0; i < j->count && is_between(j->number[i], &which); i++)
        step[which] = &j->op[i];
    return cuda_between(&cuda->base, step[BETWEEN_COMBINE], step[BETWEEN_EXPAND], step[BETWEEN_MIX],
                        step[BETWEEN_COLLAPSE], err);
}

/* What is done with each start of the list, in its order. */
typedef qr_status each_start(void *user, struct cuda_backend *cuda, const struct joined *j, qr_error *err);

static qr_status for_each_start(struct cuda_backend *cuda, each_start *each, void *user, qr_error *err)
{
    struct joined j;
    size_t taken = 0; /* an entry that was started before its turn; 0: none, for it is never the first */
    for (size_t i = 0; i < cuda->recorder->count; i++) {
        if (taken && i == taken)
            continue;
        join(cuda->recorder, i, &j);
        TRY(each(user, cuda, &j, err));
        if (j.count > 1 && j.number[0] == OP_attend)
            taken = j.at[1];
        else
            i += (size_t)j.count - 1;
    }
    return QR_OK;
}

static qr_status start_now(void *user, struct cuda_backend *cuda, const struct joined *j, qr_error *err)
{
    (void)user;
    return start_joined(cuda, j, err);
}

/* ---- graphs ---- */

static uint64_t hash_of(const uint8_t *bytes, size_t n)
{
    uint64_t h = 0xCBF29CE484222325u, word;
    for (size_t i = 0; i + 8 <= n; i += 8) {
        memcpy(&word, bytes + i, 8);
        h = (h ^ word) * 0x100000001B3u;
        h ^= h >> 29;
    }
    return h ? h : 1;
}

static void drop_graph(struct recorder *r, int i)
{
    struct kept_graph *k = &r->kept[i];
    if (k->graph)
        (void)cudaGraphExecDestroy(k->graph);
    qr_free(k->list);
    r->starts -= k->starts;
    r->hash[i] = 0;
    *k = (struct kept_graph){.graph = NULL};
}

static struct kept_graph *find_graph(struct recorder *r, uint64_t hash)
{
    for (int i = 0; i < GRAPHS; i++) {
        struct kept_graph *k = &r->kept[i];
        if (r->hash[i] == hash && k->used == r->used && memcmp(k->list, r->list, r->used) == 0)
            return k;
    }
    return NULL;
}

/* One start of a graph: its first and its last node. */
struct stretch {
    cudaGraphNode_t first, last;
};

/* The node that the next one of a stream being captured will follow. */
static qr_status newest_node(struct cuda_backend *cuda, cudaGraphNode_t *out, qr_error *err)
{
    enum cudaStreamCaptureStatus status;
    const cudaGraphNode_t *nodes;
    const cudaGraphEdgeData *edges;
    size_t count;
    TRY(cuda_check(cudaStreamGetCaptureInfo(cuda->stream, &status, NULL, NULL, &nodes, &edges, &count), "graph", err));
    if (count != 1)
        return qr_fail(err, QR_INTERNAL, "graph: a list's newest operator has %zu ends, wanted 1", count);
    *out = nodes[0];
    return QR_OK;
}

/* A list on its way into a graph: its starts, which of them wait for which, and how urgent each is. */
struct capturing {
    struct stretch *stretches;
    size_t count;
    struct order *order;
    int32_t *cost, *before, *behind; /* of a start, of the longest path to it, of the longest from it on */
};

/* A start's share of a step's time, roughly: routed experts stream most. */
static int32_t cost_of(const struct joined *j)
{
    return j->number[0] == OP_route ? 4 : j->number[0] == OP_attend || j->number[0] == OP_index_select ? 3 : 1;
}

static qr_status note_start(void *user, struct cuda_backend *cuda, const struct joined *j, qr_error *err)
{
    struct capturing *c = user;
    (void)cuda, (void)err;
    for (int i = 0; i < j->count; i++)
        order_add(c->order, j->number[i], &j->op[i], i > 0);
    c->cost[c->count++] = cost_of(j);
    return QR_OK;
}

/* The longest paths. Returns the longest of all; 0: there are too many edges to tell. */
static int32_t measure(struct capturing *c)
{
    const uint32_t *earlier;
    int32_t longest = 0;
    for (size_t i = 0; i < c->count; i++) {
        size_t n = order_earlier(c->order, i, &earlier);
        if (n > MOST_EARLIER)
            return 0;
        for (size_t e = 0; e < n; e++) {
            int32_t to = c->before[earlier[e]] + c->cost[earlier[e]];
            c->before[i] = to > c->before[i] ? to : c->before[i];
        }
    }
    for (size_t i = c->count; i-- > 0;) {
        size_t n = order_earlier(c->order, i, &earlier);
        c->behind[i] += c->cost[i];
        for (size_t e = 0; e < n; e++)
            if (c->behind[i] > c->behind[earlier[e]])
                c->behind[earlier[e]] = c->behind[i];
        longest = c->before[i] + c->behind[i] > longest ? c->before[i] + c->behind[i] : longest;
    }
    return longest;
}

/* Starts into the capture; what lies on the longest path goes before what may come later. */
struct urging {
    struct capturing *c;
    size_t at;
    int32_t longest;
};

static qr_status capture_start(void *user, struct cuda_backend *cuda, const struct joined *j, qr_error *err)
{
    struct urging *u = user;
    const size_t i = u->at++;
    cuda->priority = u->c->before[i] + u->c->behind[i] == u->longest ? cuda->most_urgent : 0;
    qr_status st = start_joined(cuda, j, err);
    cuda->priority = 0;
    return st == QR_OK ? newest_node(cuda, &u->c->stretches[i].last, err) : st;
}

/* The edge between two nodes; where both are kernels and the device can, the later one is started early. */
static qr_status tie(const struct cuda_backend *cuda, cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t to,
                     qr_error *err)
{
    enum cudaGraphNodeType a, b;
    cudaGraphEdgeData edge = {.from_port = 0};
    TRY(cuda_check(cudaGraphNodeGetType(from, &a), "graph", err));
    TRY(cuda_check(cudaGraphNodeGetType(to, &b), "graph", err));
    if (cuda->starts_early && a == cudaGraphNodeTypeKernel && b == cudaGraphNodeTypeKernel) {
        edge.type = cudaGraphDependencyTypeProgrammatic;
        edge.from_port = cudaGraphKernelNodePortProgrammatic;
    }
    return cuda_check(cudaGraphAddDependencies(graph, &from, &to, &edge, 1), "graph", err);
}

/* The edges of a captured graph, a chain: unties its operators from each other and notes their first nodes. False: some
 * operator has no node of its own, and nothing was untied. */
static qr_status untie(cudaGraph_t graph, struct stretch *stretches, size_t count, bool *untied, qr_error *err)
{
    size_t edges = 0, next = 0;
    TRY(cuda_check(cudaGraphGetEdges(graph, NULL, NULL, NULL, &edges), "graph", err));
    cudaGraphNode_t *from = qr_malloc(2 * edges * sizeof *from), *to = from + edges;
    cudaGraphEdgeData *data = qr_malloc(edges * sizeof *data);
    qr_status st = from && data ? QR_OK : qr_fail(err, QR_NO_MEMORY, "no memory for a graph of %zu edges", edges);
    if (st == QR_OK)
        st = cuda_check(cudaGraphGetEdges(graph, from, to, data, &edges), "graph", err);
    size_t *between = st == QR_OK ? qr_malloc(count * sizeof *between) : NULL;
    if (st == QR_OK && !between)
        st = qr_fail(err, QR_NO_MEMORY, "no memory for a graph of %zu edges", edges);
    *untied = st == QR_OK;
    for (size_t i = 1; *untied && i < count; i++) { /* edges mostly come in the chain's order */
        size_t tried = 0;
        while (tried < edges && from[next] != stretches[i - 1].last) {
            next = (next + 1) % edges;
            tried++;
        }
        between[i] = next;
        stretches[i].first = tried < edges ? to[next] : NULL;
        *untied = tried < edges && stretches[i].last != stretches[i - 1].last;
    }
    for (size_t i = 1; *untied && st == QR_OK && i < count; i++)
        st = cuda_check(
            cudaGraphRemoveDependencies(graph, &from[between[i]], &to[between[i]], &data[between[i]], 1), "graph", err);
    qr_free(from);
    qr_free(data);
    qr_free(between);
    return st;
}

/* Operators that need not wait for each other get no edge. */
static qr_status loosen(struct cuda_backend *cuda, cudaGraph_t graph, struct capturing *c, qr_error *err)
{
    bool untied = true;
    const uint32_t *earlier;
    TRY(untie(graph, c->stretches, c->count, &untied, err));
    for (size_t i = 1; untied && i < c->count; i++) {
        size_t n = order_earlier(c->order, i, &earlier);
        for (size_t e = 0; e < n; e++)
            TRY(tie(cuda, graph, c->stretches[earlier[e]].last, c->stretches[i].first, err));
    }
    return QR_OK;
}

static qr_status capture_ordered(struct cuda_backend *cuda, struct capturing *c, cudaGraph_t *graph, qr_error *err)
{
    TRY(for_each_start(cuda, note_start, c, err));
    struct urging u = {.c = c, .longest = measure(c)};
    TRY(cuda_check(cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal), "graph", err));
    qr_status st = for_each_start(cuda, capture_start, &u, err);
    cudaError_t ended = cudaStreamEndCapture(cuda->stream, graph);
    if (st == QR_OK)
        st = cuda_check(ended, "graph", err);
    /* where there are too many edges to tell, the chain is an order too */
    return st == QR_OK && u.longest > 0 && cuda->recorder->mode.fused ? loosen(cuda, *graph, c, err) : st;
}

/* The list as a graph. */
static qr_status capture(struct cuda_backend *cuda, cudaGraph_t *graph, qr_error *err)
{
    const size_t count = cuda->recorder->count;
    struct capturing c = {.stretches = qr_calloc(count, sizeof *c.stretches),
                          .cost = qr_calloc(3 * count, sizeof *c.cost)};
    qr_status st = c.stretches && c.cost
                       ? order_open(count, &c.order, err)
                       : qr_fail(err, QR_NO_MEMORY, "no memory for a graph of %zu operators", count);
    if (st == QR_OK) {
        c.before = c.cost + count;
        c.behind = c.before + count;
        st = capture_ordered(cuda, &c, graph, err);
    }
    qr_free(c.stretches);
    qr_free(c.cost);
    order_close(c.order);
    return st;
}

/* A place for a graph of so many starts: those that were not used for longest go. */
static int make_place(struct recorder *r, size_t starts)
{
    for (;;) {
        int oldest = -1, empty = -1;
        for (int i = 0; i < GRAPHS; i++) {
            if (!r->kept[i].graph)
                empty = i;
            else if (oldest < 0 || r->kept[i].stamp < r->kept[oldest].stamp)
                oldest = i;
        }
        if (empty >= 0 && (oldest < 0 || r->starts + starts <= GRAPH_STARTS))
            return empty;
        drop_graph(r, oldest);
    }
}

/* The list as a graph ready to run. NULL with `err` set on failure. */
static struct kept_graph *record_graph(struct cuda_backend *cuda, uint64_t hash, qr_error *err)
{
    struct recorder *r = cuda->recorder;
    const int place = make_place(r, r->count);
    struct kept_graph *k = &r->kept[place];
    cudaGraph_t graph = NULL;
    qr_status st = capture(cuda, &graph, err);
    if (st == QR_OK)
        st = cuda_check(cudaGraphInstantiate(&k->graph, graph, 0), "graph", err);
    if (graph)
        (void)cudaGraphDestroy(graph);
    k->list = st == QR_OK ? qr_malloc(r->used) : NULL;
    if (!k->list) {
        if (st == QR_OK)
            qr_fail(err, QR_NO_MEMORY, "no memory to keep a graph");
        drop_graph(r, place);
        return NULL;
    }
    memcpy(k->list, r->list, r->used);
    k->used = r->used;
    k->starts = r->count;
    r->starts += r->count;
    r->hash[place] = hash;
    r->fresh = false;
    r->recorded++;
    return k;
}

static qr_status start_eagerly(struct cuda_backend *cuda, qr_error *err)
{
    cuda->recorder->eager++;
    return for_each_start(cuda, start_now, NULL, err);
}

static qr_status start_list(struct cuda_backend *cuda, qr_error *err)
{
    struct recorder *r = cuda->recorder;
    if (r->count < FEWEST || r->mode.graphs == GRAPHS_NONE)
        return start_eagerly(cuda, err);
    uint64_t hash = hash_of(r->list, r->used);
    struct kept_graph *k = find_graph(r, hash);
    if (!k && r->seen[hash % SEEN] != hash) {
        r->seen[hash % SEEN] = hash;
        r->fresh = false;
        return start_eagerly(cuda, err);
    }
    if (!k && !(k = record_graph(cuda, hash, err)))
        return err ? err->status : QR_INTERNAL;
    k->stamp = ++r->stamp;
    r->replayed++;
    return cuda_check(cudaGraphLaunch(k->graph, cuda->stream), "graph", err);
}

qr_status record_flush(struct cuda_backend *cuda, qr_error *err)
{
    struct recorder *r = cuda->recorder;
    if (!r || r->count == 0)
        return QR_OK;
    qr_status st = cuda_enter(cuda, err);
    if (st == QR_OK)
        st = start_list(cuda, err);
    list_clear(r);
    return st;
}

void record_count(const struct recorder *r, struct backend_counts *out)
{
    *out = (struct backend_counts){.graphs_recorded = r->recorded, .graphs_replayed = r->replayed, .lists_eager = r->eager};
}

int64_t record_graph_bytes(void) { return (int64_t)GRAPH_STARTS * START_BYTES; }

void record_forget(struct cuda_backend *cuda)
{
    struct recorder *r = cuda->recorder;
    if (!r || r->fresh)
        return;
    for (int i = 0; i < GRAPHS; i++)
        drop_graph(r, i);
    memset(r->seen, 0, sizeof r->seen);
    r->fresh = true;
}

void record_run_as(struct cuda_backend *cuda, const struct run_mode *mode)
{
    (void)record_flush(cuda, NULL);
    record_forget(cuda);
    cuda->recorder->mode = *mode;
}

qr_status record_open(struct recorder **out, qr_error *err)
{
    struct recorder *r = qr_calloc(1, sizeof *r);
    if (r && (r->list = qr_calloc(FIRST_ROOM, 1))) {
        r->mode = (struct run_mode){.graphs = GRAPHS_FULL, .fused = true};
        r->room = FIRST_ROOM;
        r->fresh = true;
        list_clear(r);
        *out = r;
        return QR_OK;
    }
    qr_free(r);
    return qr_fail(err, QR_NO_MEMORY, "no memory for the CUDA backend");
}

void record_close(struct recorder *r)
{
    if (!r)
        return;
    for (int i = 0; i < GRAPHS; i++)
        drop_graph(r, i);
    qr_free(r->list);
    qr_free(r->places);
    qr_free(r);
}

/* ---- what the backend is called with ---- */

static bool is_attention(enum op_number number) { return number == OP_attend || number == OP_index_select; }

/* In hybrid mode attention ends a list and is no part of the next: what follows is written down anew. */
static qr_status take_down(struct backend *b, enum op_number number, const void *op, qr_error *err)
{
    struct cuda_backend *cuda = cuda_of(b);
    union any_op alone;
    if (cuda->recorder->mode.graphs != GRAPHS_HYBRID || !is_attention(number))
        return write_down(b, number, op, err);
    TRY(record_flush(cuda, err));
    TRY(cuda_enter(cuda, err));
    memcpy(alone.bytes, op, inside[number].bytes);
    return start_one(cuda, number, &alone, err);
}

/* An empty list of rows is no work: only its arguments are looked at, now. */
#define RECORD(NAME)                                                                             \
    static qr_status record_##NAME(struct backend *b, const struct op_##NAME *op, qr_error *err) \
    {                                                                                            \
        if (op->rows.count == 0)                                                                 \
            return cuda_##NAME(b, op, err);                                                      \
        return take_down(b, OP_##NAME, op, err);                                                 \
    }
#define RECORDED(X)                                                                                                  \
    X(embed)                                                                                                         \
    X(mhc_mix) X(collapse) X(expand) X(norm) X(quantize) X(linear) X(query) X(window_key) X(window_write)            \
        X(position_bias) X(compress) X(tail_write) X(row_write) X(index_query) X(index_select) X(attend) X(unrotate) \
            X(route) X(combine) X(engram) X(stream_mean) X(stream_add) X(gather)
RECORDED(RECORD)

/* The caller's lists of weights are read now; the list holds those of the table made from them. */
static qr_status record_expert(struct backend *b, const struct op_expert *op, qr_error *err)
{
    if (op->rows.count == 0)
        return cuda_expert(b, op, err);
    const struct expert_table *t = cuda_expert_table(cuda_of(b), op->experts, op->w1, op->w2, op->w3, err);
    if (!t)
        return err ? err->status : QR_INTERNAL;
    struct op_expert copy = *op;
    copy.w1 = t->w1;
    copy.w2 = t->w2;
    copy.w3 = t->w3;
    return write_down(b, OP_expert, &copy, err);
}

qr_status record_copy(struct backend *b, void *to, const void *from, int64_t bytes, qr_error *err)
{
    struct op_copy op = {to, from, bytes};
    return bytes > 0 ? write_down(b, OP_copy, &op, err) : QR_OK;
}

void record_install(struct backend *b)
{
#define INSTALL(NAME) b->NAME = record_##NAME;
    QR_OPERATORS(INSTALL)
#undef INSTALL
    b->copy = record_copy;
}
