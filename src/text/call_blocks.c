#include "text/call_blocks.h"

#include <pthread.h>
#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "text/schema.h"

enum { PLACES = 4096, MOST_BLOCK = 256 << 10 };

/* A block and what it holds, in one piece of memory. */
struct kept_block {
    struct kept_block *below, *newer; /* of the same place; of all */
    size_t bytes, count, length;
    const char *text;
    qr_kept_call calls[];
};

/* A block has the place of its first id, the newest of them on top. */
struct qr_call_blocks {
    pthread_mutex_t lock;
    size_t most_bytes, bytes;
    struct kept_block *oldest, *newest;
    struct kept_block *places[PLACES];
};

/* What is behind the kind of an id: APIs give one call ids of their own. */
static const char *key_of(const char *id)
{
    const char *behind = strrchr(id, '_');
    return behind ? behind + 1 : id;
}

static size_t place_of(const char *id)
{
    const char *key = key_of(id);
    return (size_t)(XXH3_64bits(key, strlen(key)) % PLACES);
}

/* ---- memory ---- */

qr_status call_blocks_open(size_t most_bytes, struct qr_call_blocks **out, qr_error *err)
{
    struct qr_call_blocks *b = qr_calloc(1, sizeof *b);
    *out = b;
    if (!b)
        return qr_fail(err, QR_NO_MEMORY, "no memory for blocks of calls");
    b->most_bytes = most_bytes;
    pthread_mutex_init(&b->lock, NULL);
    return QR_OK;
}

static void drop_oldest(struct qr_call_blocks *b)
{
    struct kept_block *k = b->oldest, **at = &b->places[place_of(k->calls[0].id)];
    while (*at != k)
        at = &(*at)->below;
    *at = k->below;
    b->oldest = k->newer;
    if (!b->oldest)
        b->newest = NULL;
    b->bytes -= k->bytes;
    qr_free(k);
}

static void add_newest(struct qr_call_blocks *b, struct kept_block *k)
{
    struct kept_block **top = &b->places[place_of(k->calls[0].id)];
    k->below = *top;
    *top = k;
    *(b->newest ? &b->newest->newer : &b->oldest) = k;
    b->newest = k;
    b->bytes += k->bytes;
}

void call_blocks_close(struct qr_call_blocks *b)
{
    if (!b)
        return;
    while (b->oldest)
        drop_oldest(b);
    pthread_mutex_destroy(&b->lock);
    qr_free(b);
}

static const char *put(char **at, const char *text, size_t length)
{
    char *to = *at;
    memcpy(to, text, length);
    to[length] = '\0';
    *at += length + 1;
    return to;
}

static struct kept_block *copy_of(const qr_kept_call *calls, size_t count, const char *text, size_t length)
{
    size_t bytes = sizeof(struct kept_block) + count * sizeof *calls + length + 1;
    for (size_t i = 0; i < count; i++)
        bytes += strlen(calls[i].id) + strlen(calls[i].name) + strlen(calls[i].arguments) + 3;
    struct kept_block *k = bytes <= MOST_BLOCK ? qr_malloc(bytes) : NULL;
    if (!k)
        return NULL;
    char *at = (char *)&k->calls[count];
    *k = (struct kept_block){.bytes = bytes, .count = count, .length = length};
    k->text = put(&at, text, length);
    for (size_t i = 0; i < count; i++)
        k->calls[i] = (qr_kept_call){.id = put(&at, calls[i].id, strlen(calls[i].id)),
                                     .name = put(&at, calls[i].name, strlen(calls[i].name)),
                                     .arguments = put(&at, calls[i].arguments, strlen(calls[i].arguments))};
    return k;
}

qr_status call_blocks_keep(struct qr_call_blocks *b, const qr_kept_call *calls, size_t count, const char *text,
                           size_t length, qr_error *err)
{
    if (count == 0 || length > MOST_BLOCK)
        return QR_OK; /* it is written anew then */
    struct kept_block *k = copy_of(calls, count, text, length);
    if (!k)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a block of %zu calls", count);
    pthread_mutex_lock(&b->lock);
    while (b->oldest && b->bytes + k->bytes > b->most_bytes)
        drop_oldest(b);
    if (k->bytes <= b->most_bytes) {
        add_newest(b, k);
        k = NULL;
    }
    pthread_mutex_unlock(&b->lock);
    qr_free(k);
    return QR_OK;
}

/* ---- what is brought back ---- */

static bool same_arguments(const char *kept, const struct json *given)
{
    struct json_document *document;
    qr_error err;
    if (!given || json_parse(kept, strlen(kept), "arguments", false, &document, &err) != QR_OK)
        return false;
    const bool same = schema_same_value(json_root(document), given);
    json_close(document);
    return same;
}

static bool same_call(const qr_kept_call *kept, const struct chat_call *given)
{
    return given->id && strcmp(key_of(kept->id), key_of(given->id->text)) == 0 &&
           strlen(kept->name) == given->name_length && memcmp(kept->name, given->name, given->name_length) == 0 &&
           same_arguments(kept->arguments, given->arguments);
}

static bool same_calls(const struct kept_block *k, const struct chat_call *calls)
{
    size_t i = 0;
    for (; calls && i < k->count && same_call(&k->calls[i], calls); i++)
        calls = calls->next;
    return !calls && i == k->count;
}

/* The token that tags begin with is one; everything else is text. */
static void write_text(struct prompt *p, const char *text, const char *end)
{
    for (const char *token; (token = strstr(text, TOKEN_DSML)); text = token + strlen(TOKEN_DSML)) {
        prompt_literal(p, text, (size_t)(token - text));
        prompt_markup(p, TOKEN_DSML);
    }
    prompt_literal(p, text, (size_t)(end - text));
}

bool call_blocks_write(struct qr_call_blocks *b, const struct chat_call *calls, struct prompt *p)
{
    if (!b || !calls || !calls->id)
        return false;
    pthread_mutex_lock(&b->lock);
    const struct kept_block *k = b->places[place_of(calls->id->text)];
    while (k && !same_calls(k, calls))
        k = k->below;
    const bool found = k != NULL;
    if (found)
        write_text(p, k->text, k->text + k->length);
    pthread_mutex_unlock(&b->lock);
    return found;
}
