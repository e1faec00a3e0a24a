#include "graph.h"

#include <stdlib.h>
#include <string.h>

/* A graph is run in an order that its edges allow, of which QUIRE_EMULATED_ORDER chooses: an edge that is missing
 * shows. */

struct emulated_node {
    struct emulated_task task;
    size_t number, waits; /* waits: for so many, while the graph runs */
};
struct edge {
    cudaGraphNode_t from, to;
    cudaGraphEdgeData data;
};
struct emulated_graph {
    struct emulated_node **nodes;
    struct edge *edges;
    size_t count, edge_count;
    int owners; /* the graph, and what was instantiated of it */
};
struct emulated_stream {
    struct emulated_graph *captured; /* NULL: it is not */
};

static cudaError_t run_task(const struct emulated_task *t)
{
    if (t->type == cudaGraphNodeTypeKernel)
        return emulated_run(t->launch);
    for (size_t i = 0; i < t->height; i++)
        if (t->type == cudaGraphNodeTypeMemset)
            memset((uint8_t *)t->to + i * t->to_pitch, t->value, t->width);
        else
            memmove((uint8_t *)t->to + i * t->to_pitch, (const uint8_t *)t->from + i * t->from_pitch, t->width);
    return cudaSuccess;
}

static void drop_task(const struct emulated_task *t)
{
    if (t->launch)
        t->launch->drop(t->launch);
}

static void *grown(void *p, size_t count, size_t size)
{
    void *more = realloc(p, (count + 1) * size);
    if (!more)
        abort();
    return more;
}

static void add_edge(struct emulated_graph *g, const struct edge *e)
{
    g->edges = grown(g->edges, g->edge_count, sizeof *g->edges);
    g->edges[g->edge_count++] = *e;
}

cudaError_t emulated_do(cudaStream_t stream, const struct emulated_task *task)
{
    struct emulated_graph *g = stream->captured;
    if (!g) {
        const cudaError_t status = run_task(task);
        drop_task(task);
        return status;
    }
    struct emulated_node *node = malloc(sizeof *node);
    if (!node)
        abort();
    *node = (struct emulated_node){.task = *task, .number = g->count};
    g->nodes = grown(g->nodes, g->count, sizeof *g->nodes);
    g->nodes[g->count++] = node;
    if (g->count > 1)
        add_edge(g, &(struct edge){g->nodes[g->count - 2], node, {0, 0, 0}});
    return cudaSuccess;
}

/* ---- streams and their capture ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    (void)flags;
    *out = calloc(1, sizeof **out);
    return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return stream->captured ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    (void)mode;
    if (stream->captured || !(stream->captured = calloc(1, sizeof *stream->captured)))
        return cudaErrorInvalidValue;
    stream->captured->owners = 1;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    *out = stream->captured;
    stream->captured = NULL;
    return *out ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *count)
{
    static const cudaGraphEdgeData plain;
    struct emulated_graph *g = stream->captured;
    (void)id, (void)graph;
    *status = g ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    if (!g)
        return cudaSuccess;
    *count = g->count > 0;
    *nodes = g->count > 0 ? &g->nodes[g->count - 1] : NULL;
    *edges = &plain;
    return cudaSuccess;
}

/* ---- graphs ---- */

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *out)
{
    *out = node->task.type;
    return cudaSuccess;
}

cudaError_t cudaGraphGetEdges(cudaGraph_t g, cudaGraphNode_t *from, cudaGraphNode_t *to, cudaGraphEdgeData *data,
                              size_t *count)
{
    for (size_t i = 0; from && i < g->edge_count && i < *count; i++) {
        from[i] = g->edges[i].from;
        to[i] = g->edges[i].to;
        data[i] = g->edges[i].data;
    }
    *count = g->edge_count;
    return cudaSuccess;
}

cudaError_t cudaGraphAddDependencies(cudaGraph_t g, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
                                     const cudaGraphEdgeData *data, size_t count)
{
    for (size_t i = 0; i < count; i++)
        add_edge(g, &(struct edge){from[i], to[i], data[i]});
    return cudaSuccess;
}

cudaError_t cudaGraphRemoveDependencies(cudaGraph_t g, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
                                        const cudaGraphEdgeData *data, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t at = 0;
        while (at < g->edge_count && (g->edges[at].from != from[i] || g->edges[at].to != to[i] ||
                                      memcmp(&g->edges[at].data, &data[i], sizeof *data) != 0))
            at++;
        if (at == g->edge_count)
            return cudaErrorInvalidValue;
        memmove(&g->edges[at], &g->edges[at + 1], (--g->edge_count - at) * sizeof *g->edges);
    }
    return cudaSuccess;
}

static void drop_graph(cudaGraph_t g)
{
    if (!g || --g->owners > 0)
        return;
    for (size_t i = 0; i < g->count; i++) {
        drop_task(&g->nodes[i]->task);
        free(g->nodes[i]);
    }
    free(g->nodes);
    free(g->edges);
    free(g);
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    drop_graph(g);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t g)
{
    drop_graph(g);
    return cudaSuccess;
}

/* Of a graph that nobody changes afterwards. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long flags)
{
    (void)flags;
    g->owners++;
    *out = g;
    return cudaSuccess;
}

static void end_node(struct emulated_graph *g, const struct emulated_node *node, cudaGraphNode_t *ready, size_t *count)
{
    for (size_t i = 0; i < g->edge_count; i++)
        if (g->edges[i].from == node && --g->edges[i].to->waits == 0)
            ready[(*count)++] = g->edges[i].to;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t stream)
{
    cudaGraphNode_t *ready = malloc((g->count + 1) * sizeof *ready);
    size_t count = 0, done = 0;
    cudaError_t status = cudaSuccess;
    (void)stream;
    if (!ready)
        abort();
    for (size_t i = 0; i < g->count; i++)
        g->nodes[i]->waits = 0;
    for (size_t i = 0; i < g->edge_count; i++)
        g->edges[i].to->waits++;
    for (size_t i = 0; i < g->count; i++)
        if (g->nodes[i]->waits == 0)
            ready[count++] = g->nodes[i];
    while (count > 0 && status == cudaSuccess) {
        const uint32_t at = emulated_choice((uint32_t)count);
        cudaGraphNode_t node = ready[at];
        memmove(&ready[at], &ready[at + 1], (--count - at) * sizeof *ready);
        status = run_task(&node->task);
        end_node(g, node, ready, &count);
        done++;
    }
    free(ready);
    return status == cudaSuccess && done < g->count ? cudaErrorInvalidValue : status; /* a circle */
}
