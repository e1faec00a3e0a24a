#include "ops/cuda/seats.h"

#include <string.h>

#include "base/alloc.h"

/* ---- opening ---- */

static qr_status pinned(size_t bytes, void **out, const char *what, qr_error *err)
{
    const cudaError_t status = cudaHostAlloc(out, bytes + !bytes, cudaHostAllocMapped | cudaHostAllocPortable);
    if (status == cudaSuccess)
        return QR_OK;
    (void)cudaGetLastError();
    return qr_fail(err, QR_NO_MEMORY, "no pinned host memory for %zu bytes of %s (%s)", bytes, what,
                   cudaGetErrorString(status));
}

static qr_status make_books(struct cuda_backend *cuda, struct seats *s, qr_error *err)
{
    struct backend *b = &cuda->base;
    void *p;
    TRY(b->allocate(b, (int64_t)sizeof *s->books, &p, err));
    s->books = p;
    TRY(cuda_check(cudaMemsetAsync(s->books, 0, sizeof *s->books, cuda->stream), "experts", err));
    TRY(pinned(sizeof *s->counts, &p, "counts", err));
    s->counts = p;
    memset(s->counts, 0, sizeof *s->counts);
    return seats_clear(cuda, err);
}

static qr_status make_memory(struct cuda_backend *cuda, struct seats *s, int64_t on_host, qr_error *err)
{
    void *p;
    TRY(cuda_take(cuda, cuda->weights, s->count * s->bytes, &p, err));
    s->memory = p;
    s->host_bytes = on_host * s->bytes;
    TRY(pinned((size_t)s->host_bytes, &p, "experts", err));
    s->host = p;
    return QR_OK;
}

qr_status seats_open(struct backend *b, const struct expert_seating *wanted, qr_error *err)
{
    struct cuda_backend *cuda = cuda_of(b);
    if (cuda->seats || wanted->seats < 1 || wanted->seats > MOST_SEATS || wanted->on_host < 1)
        return qr_fail(err, QR_INTERNAL, "experts in host memory: %lld of them, %d seats%s, wanted 1 to %d",
                       (long long)wanted->on_host, wanted->seats, cuda->seats ? " once more" : "", MOST_SEATS);
    TRY(cuda_enter(cuda, err));
    struct seats *s = cuda->seats = qr_calloc(1, sizeof *s);
    if (!s)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the books of experts in host memory");
    s->count = wanted->seats;
    for (int i = 0; i < 3; i++)
        s->bytes += s->part[i] = cuda_weight_bytes(&wanted->shape[i]);
    TRY(make_books(cuda, s, err));
    return make_memory(cuda, s, wanted->on_host, err);
}

void seats_close(struct cuda_backend *cuda)
{
    struct seats *s = cuda->seats;
    if (!s)
        return;
    if (s->counts)
        (void)cudaFreeHost(s->counts);
    if (s->host)
        (void)cudaFreeHost(s->host);
    cuda->base.release(&cuda->base, s->books);
    qr_free(s);
    cuda->seats = NULL;
}

/* ---- host memory ---- */

qr_status seats_take(struct cuda_backend *cuda, int64_t bytes, void **out, qr_error *err)
{
    struct seats *s = cuda->seats;
    if (!s || bytes > s->host_bytes - s->host_used)
        return qr_fail(err, QR_INTERNAL, "%lld bytes of an expert more than the %lld planned in host memory", (long long)bytes,
                       s ? (long long)s->host_bytes : 0);
    *out = s->host + s->host_used;
    s->host_used += bytes;
    s->host_pieces++;
    return QR_OK;
}

void seats_give(struct cuda_backend *cuda)
{
    if (--cuda->seats->host_pieces == 0)
        cuda->seats->host_used = 0;
}

/* ---- books ---- */

qr_status seats_clear(struct cuda_backend *cuda, qr_error *err)
{
    struct seat_books *books = cuda->seats->books;
    TRY(cuda_enter(cuda, err));
    TRY(cuda_check(cudaMemsetAsync(books->home, 0xFF, sizeof books->home, cuda->stream), "experts", err));
    TRY(cuda_check(cudaMemsetAsync(books->owner, 0, sizeof books->owner, cuda->stream), "experts", err));
    return cuda_check(cudaMemsetAsync(books->stamp, 0, sizeof books->stamp, cuda->stream), "experts", err);
}

/* A view of the same shape in another place. */
static struct weight_view moved(const struct weight_view *w, const uint8_t *to)
{
    struct weight_view view = *w;
    view.values = to;
    view.scales = to + (w->scales - w->values);
    return view;
}

static bool fits(const struct seats *s, const struct expert_table *t, int32_t e)
{
    return t->w1[e]->bytes == s->part[0] && t->w2[e]->bytes == s->part[1] && t->w3[e]->bytes == s->part[2];
}

qr_status seats_fill(struct cuda_backend *cuda, struct expert_table *t, qr_error *err)
{
    const struct seats *s = cuda->seats;
    int32_t model = -1; /* an expert that may sit: all of a layer have its shape */
    t->on_host = 0;
    for (int32_t e = 0; e < t->experts; e++) {
        struct expert_view *view = &t->host[e];
        const int on_host = (t->w1[e] && t->w1[e]->on_host) + (t->w2[e] && t->w2[e]->on_host) + (t->w3[e] && t->w3[e]->on_host);
        view->on_host = on_host > 0;
        if (on_host == 0)
            continue;
        if (on_host < 3 || !fits(s, t, e))
            return qr_fail(err, QR_UNSUPPORTED, "expert: expert %d lies in host memory in part, or in other sizes than its seat",
                           e);
        model = e;
        t->on_host++;
    }
    if (model < 0)
        return QR_OK;
    if (t->experts + s->count > MOST_EXPERTS)
        return qr_fail(err, QR_UNSUPPORTED, "expert: %d experts and %d seats, wanted at most %d together", t->experts, s->count,
                       MOST_EXPERTS);
    for (int32_t i = 0; i < s->count; i++) {
        const uint8_t *at = s->memory + i * s->bytes;
        const struct expert_view *of = &t->host[model];
        t->host[t->experts + i] = (struct expert_view){.w1 = moved(&of->w1, at),
                                                       .w2 = moved(&of->w2, at + s->part[0]),
                                                       .w3 = moved(&of->w3, at + s->part[0] + s->part[1])};
    }
    return QR_OK;
}

qr_status seats_uses(struct backend *b, int32_t experts, const struct weight *const *w1, uint64_t *out, qr_error *err)
{
    struct cuda_backend *cuda = cuda_of(b);
    const size_t bytes = (size_t)experts * sizeof *w1;
    memset(out, 0, (size_t)experts * sizeof *out);
    for (struct expert_table *t = cuda->tables; cuda->seats && t < cuda->tables + EXPERT_TABLES; t++)
        if (t->experts == experts && memcmp(t->w1, w1, bytes) == 0) {
            TRY(b->download(b, out, cuda->seats->books->visits[cuda_table_number(cuda, t)],
                            experts * (int64_t)sizeof *out, err));
            return b->fence(b, err);
        }
    return QR_OK;
}
