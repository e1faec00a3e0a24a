/* How fast JSON is read: the index of a released checkpoint (96,085 tensors), as events and as a tree. */
#include <stdio.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/json.h"

static bool count_key(void *user, const char *text, size_t length)
{
    (void)text;
    (void)length;
    ++*(int64_t *)user;
    return true;
}

static void make_index(struct buffer *b)
{
    buffer_puts(b, "{\"metadata\": {\"total_size\": 510286023000}, \"weight_map\": {\n");
    for (int i = 0; i < 96085; i++)
        buffer_printf(b, "%s    \"layers.%d.ffn.experts.%d.w%d.weight\": \"model-%05d-of-00046.safetensors\"",
                      i ? ",\n" : "", i / 2400, i % 2400 / 6, i % 6, i / 2089 + 1);
    buffer_puts(b, "\n}}\n");
}

int main(void)
{
    const int rounds = 20;
    struct buffer b = {0};
    const struct json_events events = {.key = count_key};
    make_index(&b);
    if (b.failed)
        return 1;

    int64_t keys = 0;
    double start = clock_seconds();
    for (int i = 0; i < rounds; i++)
        json_scan(b.data, b.length, "index", &events, &keys, NULL);
    double events_time = (clock_seconds() - start) / rounds;

    start = clock_seconds();
    for (int i = 0; i < rounds; i++) {
        struct json_document *doc;
        if (json_parse(b.data, b.length, "index", true, &doc, NULL) != QR_OK)
            return 1;
        json_close(doc);
    }
    double tree_time = (clock_seconds() - start) / rounds;

    double mib = (double)b.length / (1 << 20);
    printf("base/json  %.1f MiB, %lld keys: events %.1f ms (%.0f MiB/s), tree with unique keys %.1f ms (%.0f MiB/s)\n",
           mib, (long long)keys / rounds, events_time * 1e3, mib / events_time, tree_time * 1e3, mib / tree_time);
    buffer_free(&b);
    return 0;
}
