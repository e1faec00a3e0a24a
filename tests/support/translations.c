#include "support/translations.h"

#include <string.h>

#include "base/alloc.h"

char *quoted(const char *text)
{
    char *copy = qr_strdup(text);
    assert_non_null(copy);
    for (char *c = copy; *c; c++)
        if (*c == '\'')
            *c = '"';
    return copy;
}

/* Without the blanks between its words. */
static char *compact(const char *text)
{
    char *json = quoted(text);
    struct json_document *doc;
    struct json_writer *w = json_writer_open(false);
    qr_error err = {0};
    const char *out;
    size_t length;
    must(json_parse(json, strlen(json), "the chat that is wanted", false, &doc, &err), &err);
    json_w_value(w, json_root(doc));
    must(json_finish(w, &out, &length, &err), &err);
    char *copy = qr_strndup(out, length);
    assert_non_null(copy);
    json_writer_close(w);
    json_close(doc);
    qr_free(json);
    return copy;
}

static void check_one(translator read, const struct translated_case *c)
{
    char *body = quoted(c->body);
    struct json_document *doc;
    struct translation t = {0};
    struct refusal refusal = {0};
    qr_error err = {0};
    must(json_parse(body, strlen(body), c->name, false, &doc, &err), &err);
    const bool good = read(json_root(doc), &t, &refusal);
    if (c->chat) {
        char *want = compact(c->chat);
        if (!good)
            fail_msg("%s: refused with %d: %s", c->name, refusal.status, refusal.message);
        if (strcmp(t.text, want) != 0)
            fail_msg("%s: it becomes\n%s\nwanted\n%s", c->name, t.text, want);
        qr_free(want);
    } else if (good || refusal.status != 400 || strncmp(refusal.message, c->refusal, strlen(c->refusal)) != 0) {
        fail_msg("%s: %s, wanted a refusal: %s", c->name, good ? "it was read" : refusal.message, c->refusal);
    }
    translation_free(&t);
    json_close(doc);
    qr_free(body);
}

void check_translations(translator read, const struct translated_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++)
        check_one(read, &cases[i]);
}

void check_translation_faults(translator read, const char *text)
{
    char *body = quoted(text);
    struct json_document *doc;
    qr_error err = {0};
    bool good = false;
    must(json_parse(body, strlen(body), "body", false, &doc, &err), &err);
    for (int64_t n = 1; !good; n++) {
        struct translation t = {0};
        struct refusal refusal = {0};
        const int64_t live = alloc_live();
        alloc_fault_at(n, n % 2 == 0);
        good = read(json_root(doc), &t, &refusal);
        alloc_fault_at(0, 0);
        if (!good && refusal.status != 500)
            fail_msg("allocation %d failing: %d, %s", (int)n, refusal.status, refusal.message);
        translation_free(&t);
        assert_int_equal(alloc_live(), live);
    }
    json_close(doc);
    qr_free(body);
}
