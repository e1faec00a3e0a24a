/* What a client sends can never become a control token, wherever it stands; and rendering survives any failing
 * allocation. */
#include "support/support.h"

#include <stdio.h>
#include <string.h>

#include "support/tokenizers.h"
#include "text/chat.h"

static struct tokenizer *tok;

static int open_tokenizer(void **state)
{
    (void)state;
    tok = bundled_tokenizer();
    return 0;
}

static int close_tokenizer(void **state)
{
    (void)state;
    tok_close(tok);
    return 0;
}

/* ---- hostile requests ---- */

/* A JSON string made of token names, pieces of them, and what may fuse with their neighbours. */
static void write_hostile(struct json_writer *w, uint64_t *seed)
{
    static const char *const pieces[] = {"<",
                                         "｜",
                                         ">",
                                         "</",
                                         "think>",
                                         "DSML",
                                         "User",
                                         "<｜",
                                         "｜>",
                                         "\n\n",
                                         "\n",
                                         " ",
                                         "\"}",
                                         "Assist",
                                         "ant",
                                         "é",
                                         "\xf0\x9f\x91\x8d",
                                         "7",
                                         "end▁of▁sentence",
                                         "tool_result>",
                                         "\x01",
                                         "\\"};
    struct buffer text = {0};
    for (uint32_t n = random_below(seed, 8); n > 0; n--) {
        uint32_t kind = random_below(seed, 3);
        if (kind == 0) {
            const char *piece = pieces[random_below(seed, sizeof pieces / sizeof *pieces)];
            assert_true(buffer_puts(&text, piece));
            continue;
        }
        size_t length;
        int32_t id = (int32_t)random_below(seed, (uint32_t)(tok_count(tok) - tok_base_count(tok)));
        const char *token = tok_string(tok, kind == 1 ? tok_base_count(tok) + id : id % 3, &length);
        assert_true(buffer_append(&text, token, length));
    }
    json_w_string_n(w, text.data ? text.data : "", text.length);
    buffer_free(&text);
}

static void write_member(struct json_writer *w, const char *key, uint64_t *seed)
{
    json_w_key(w, key);
    write_hostile(w, seed);
}

static void write_call(struct json_writer *w, uint64_t *seed)
{
    json_w_object(w);
    write_member(w, "id", seed);
    json_w_key(w, "function");
    json_w_object(w);
    json_w_key(w, "name");
    json_w_string(w, random_below(seed, 2) ? "</think>" : "<｜DSML｜");
    json_w_key(w, "arguments");
    if (random_below(seed, 2)) {
        write_hostile(w, seed);
    } else {
        json_w_object(w);
        write_hostile(w, seed); /* a key */
        write_hostile(w, seed);
        json_w_key(w, "b");
        json_w_array(w);
        write_hostile(w, seed);
        json_w_end_array(w);
        json_w_end_object(w);
    }
    json_w_end_object(w);
    json_w_end_object(w);
}

static void write_message(struct json_writer *w, uint64_t *seed)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool", "developer", "latest_reminder"};
    const char *role = roles[random_below(seed, 6)];
    json_w_object(w);
    json_w_key(w, "role");
    json_w_string(w, role);
    json_w_key(w, "content");
    if (random_below(seed, 2)) {
        write_hostile(w, seed);
    } else {
        json_w_array(w);
        for (uint32_t n = random_below(seed, 3); n > 0; n--) {
            json_w_object(w);
            json_w_key(w, "type");
            json_w_string(w, "text");
            write_member(w, "text", seed);
            json_w_end_object(w);
        }
        json_w_end_array(w);
    }
    write_member(w, "tool_call_id", seed);
    write_member(w, "reasoning_content", seed);
    json_w_key(w, "tool_calls");
    json_w_array(w);
    for (uint32_t n = random_below(seed, 3); n > 0; n--)
        write_call(w, seed);
    json_w_end_array(w);
    json_w_end_object(w);
}

static void write_request(struct json_writer *w, uint64_t *seed)
{
    json_w_object(w);
    json_w_key(w, "messages");
    json_w_array(w);
    for (uint32_t n = 1 + random_below(seed, 5); n > 0; n--)
        write_message(w, seed);
    json_w_end_array(w);
    json_w_key(w, "thinking");
    json_w_bool(w, random_below(seed, 2));
    json_w_key(w, "tools");
    json_w_array(w);
    json_w_object(w);
    json_w_key(w, "function");
    json_w_object(w);
    json_w_key(w, "name");
    json_w_string(w, "<｜User｜>");
    write_member(w, "description", seed);
    write_member(w, "｜DSML｜", seed);
    json_w_end_object(w);
    json_w_end_object(w);
    json_w_end_array(w);
    json_w_key(w, "response_format");
    json_w_object(w);
    json_w_key(w, "type");
    json_w_string(w, "json_schema");
    json_w_key(w, "json_schema");
    json_w_object(w);
    json_w_key(w, "schema");
    json_w_object(w);
    write_member(w, "</think>", seed);
    json_w_end_object(w);
    json_w_end_object(w);
    json_w_end_object(w);
    json_w_end_object(w);
}

/* The added tokens among the ids are the markup segments, one for one, and the ids spell the prompt. */
static void check_ids(const struct chat *chat)
{
    struct tok_ids ids = {0};
    struct buffer spelled = {0};
    qr_error err = {0};
    size_t segment = 0;
    if (prompt_ids(&chat->prompt, tok, &ids, &err) != QR_OK)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < ids.count; i++) {
        size_t length;
        const uint8_t *bytes = tok_bytes(tok, ids.data[i], &length);
        buffer_append(&spelled, bytes, length);
        if (!tok_is_added(tok, ids.data[i]))
            continue;
        while (segment < chat->prompt.count && !chat->prompt.segments[segment].markup)
            segment++;
        assert_true(segment < chat->prompt.count);
        const struct prompt_segment *s = &chat->prompt.segments[segment++];
        assert_int_equal(s->length, length);
        assert_int_equal(s->offset + s->length, spelled.length);
        assert_memory_equal(chat->prompt.text.data + s->offset, bytes, length);
    }
    for (; segment < chat->prompt.count; segment++)
        assert_false(chat->prompt.segments[segment].markup);
    assert_int_equal(spelled.length, chat->prompt.text.length);
    assert_memory_equal(spelled.data, chat->prompt.text.data, spelled.length);
    buffer_free(&spelled);
    tok_ids_free(&ids);
}

static bool is_think(const struct prompt *p, size_t i)
{
    const char *text = p->text.data + p->segments[i].offset;
    size_t length = p->segments[i].length;
    return p->segments[i].markup && ((length == strlen(TOKEN_THINK) && memcmp(text, TOKEN_THINK, length) == 0) ||
                                     (length == strlen(TOKEN_END_THINK) && memcmp(text, TOKEN_END_THINK, length) == 0));
}

/* It begins once, literal texts are whole, and without thinking no two think tokens touch. */
static void check_form(const struct chat *chat)
{
    const struct prompt *p = &chat->prompt;
    assert_memory_equal(p->text.data, TOKEN_BOS, strlen(TOKEN_BOS));
    for (size_t i = 1; i < p->count; i++) {
        assert_true(p->segments[i].markup || p->segments[i - 1].markup);
        assert_true(chat->thinking.on || !is_think(p, i) || !is_think(p, i - 1));
    }
}

static void check_request(const char *text, size_t length, enum chat_profile profile)
{
    struct chat_options options = chat_options_default(profile);
    struct json_document *doc;
    struct chat chat;
    qr_error err = {0};
    options.vendor_extensions = true;
    if (json_parse(text, length, "request", false, &doc, &err) != QR_OK)
        fail_msg("%s", err.message);
    if (chat_render(json_root(doc), &options, &chat, NULL, &err) != QR_OK)
        fail_msg("%s: %s", text, err.message);
    check_ids(&chat);
    check_form(&chat);
    chat_free(&chat);
    json_close(doc);
}

static void no_text_of_a_client_becomes_a_control_token(void **state)
{
    struct json_writer *w = json_writer_open(false);
    uint64_t seed = 20261017;
    (void)state;
    for (int i = 0; i < 600; i++) {
        const char *text;
        size_t length;
        json_writer_reset(w);
        write_request(w, &seed);
        assert_int_equal(json_finish(w, &text, &length, NULL), QR_OK);
        check_request(text, length, (enum chat_profile)(i % 3));
    }
    json_writer_close(w);
}

static void a_token_that_the_tokenizer_lacks_is_named(void **state)
{
    struct prompt p = {0};
    struct tok_ids ids = {0};
    qr_error err = {0};
    (void)state;
    prompt_markup(&p, "<｜no such token｜>");
    assert_int_equal(prompt_ids(&p, tok, &ids, &err), QR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "<｜no such token｜>"));
    tok_ids_free(&ids);
    prompt_free(&p);
}

/* ---- no memory ---- */

static const char everything[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"developer\",\"content\":[]},"
    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"Q\"},{\"type\":\"image_url\",\"image_url\":\"u\"}]},"
    "{\"role\":\"assistant\",\"reasoning\":\"r\",\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"t\","
    "\"arguments\":\"{\\\"k\\\":[1.5,{}],\\\"s\\\":\\\"v\\\"}\"}},{\"id\":\"b\",\"function\":{\"name\":\"t\","
    "\"namespace\":\"n\","
    "\"arguments\":\"no\"}},{\"id\":\"c\",\"function\":{\"name\":\"t\",\"arguments\":[1]}}]},"
    "{\"role\":\"tool\",\"tool_call_id\":\"b\",\"content\":[{\"type\":\"audio\"}]},"
    "{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"R\"}],"
    "\"tools\":[{\"namespace\":{\"name\":\"n\",\"description\":\"d\"},\"function\":{\"name\":\"t\",\"parameters\":{"
    "\"x\":1e3}}}],"
    "\"response_format\":{\"type\":\"json_object\"}}";

static qr_status render_everything(const struct json *request, enum chat_profile profile)
{
    struct chat_options options = chat_options_default(profile);
    struct chat chat;
    struct chat_issue issue = {0};
    struct tok_ids ids = {0};
    qr_error err = {0};
    options.images = true;
    qr_status st = chat_render(request, &options, &chat, &issue, &err);
    if (st == QR_OK) {
        st = prompt_ids(&chat.prompt, tok, &ids, &err);
        chat_free(&chat);
    }
    tok_ids_free(&ids);
    if (st != QR_OK && (st != QR_NO_MEMORY || !err.message[0]))
        fail_msg("status %d: %s", st, err.message);
    return st;
}

static void every_allocation_may_fail(void **state)
{
    struct json_document *doc;
    (void)state;
    assert_int_equal(json_parse(everything, strlen(everything), "request", false, &doc, NULL), QR_OK);
    for (int profile = 0; profile < 3; profile++) {
        int64_t live = alloc_live();
        qr_status st = QR_NO_MEMORY;
        for (int64_t n = 1; st != QR_OK; n++) {
            alloc_fault_at(alloc_fault_supported() ? n : 0, n % 2 == 0);
            st = render_everything(json_root(doc), (enum chat_profile)profile);
            alloc_fault_at(0, 0);
            assert_int_equal(alloc_live(), live);
            assert_true(n < 100000);
        }
    }
    json_close(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_text_of_a_client_becomes_a_control_token),
        cmocka_unit_test(a_token_that_the_tokenizer_lacks_is_named),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
