/* label: release */
/* quire run: one prompt, its answer on standard output and everything else on standard error. */
#define _GNU_SOURCE
#include "support/program.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/scratch.h"
#include "support/support.h"

#define RUN "run", TINY
#define STORY "Tell me a story about a dog."

static int64_t int_at(const struct json *object, const char *key)
{
    int64_t n;
    if (!json_int64(json_get(object, key), &n))
        fail_msg("no integer %s", key);
    return n;
}

/* A folder of the bundled model's files with another generation_config.json. */
static const char *model_with(const char *generation)
{
    static char folders[4][4096];
    static int turn;
    char *dir = folders[turn];
    const char *from = source_path("models/tiny-v41");
    assert_true(turn < 4);
    snprintf(dir, sizeof folders[0], "%s/model%d", scratch, turn++);
    assert_int_equal(mkdir(dir, 0755), 0);
    DIR *files = opendir(from);
    assert_non_null(files);
    for (struct dirent *e; (e = readdir(files));)
        if (e->d_name[0] != '.' && strcmp(e->d_name, "generation_config.json") != 0)
            assert_int_equal(symlink(scratch_path(from, e->d_name), scratch_path(dir, e->d_name)), 0);
    closedir(files);
    scratch_write(scratch_path(dir, "generation_config.json"), generation, strlen(generation));
    return dir;
}

static void the_answer_and_nothing_else_is_printed(void **state)
{
    (void)state;
    struct ran r = QUIRE(RUN, GREEDY, "-n", "8", STORY), quiet = QUIRE(RUN, GREEDY, "-n", "8", "--quiet", STORY);
    assert_status(&r, 0);
    assert_true(r.out_length > 4);
    assert_says(r.err, " prompt tokens (0 cached) at ");
    assert_says(r.err, ", 8 tokens at ");
    assert_says(r.err, "first after ");
    assert_says(r.err, "ended by length\n");
    assert_silent(r.out, "tokens");
    assert_silent(r.out, "\033");
    assert_string_equal(quiet.out, r.out);
    assert_string_equal(quiet.err, "");
    ran_free(&r);
    ran_free(&quiet);
}

static void a_prompt_comes_from_the_line_a_file_or_the_input(void **state)
{
    (void)state;
    const char *path = scratch_path(scratch, "prompt");
    scratch_write(path, STORY, strlen(STORY));
    struct ran line = QUIRE(RUN, GREEDY, "-n", "6", STORY);
    struct ran others[] = {QUIRE(RUN, GREEDY, "-n", "6", "--file", path), QUIRE_INPUT(STORY, RUN, GREEDY, "-n", "6", "-"),
                           QUIRE_INPUT(STORY, RUN, GREEDY, "-n", "6"),
                           QUIRE_INPUT(STORY, RUN, GREEDY, "-n", "6", "--file", "-")};
    for (int i = 0; i < 4; i++) {
        assert_status(&others[i], 0);
        assert_string_equal(others[i].out, line.out);
        ran_free(&others[i]);
    }
    ran_free(&line);
}

static void json_is_one_object_and_holds_the_whole_answer(void **state)
{
    (void)state;
    struct ran r = QUIRE(RUN, "--json", "-n", "8", "--ignore-eos", "--seed", "77", "--raw", "Once upon"),
               text = QUIRE(RUN, "-n", "8", "--ignore-eos", "--seed", "77", "--raw", "Once upon");
    assert_status(&r, 0);
    struct json_document *doc = whole_json(r.out, r.out_length);
    const struct json *root = json_root(doc), *answer = json_get(root, "text");
    assert_int_equal(int_at(root, "output_tokens"), 8);
    assert_int_equal(int_at(root, "seed"), 77);
    assert_true(int_at(root, "prompt_tokens") > 0 && int_at(root, "cached_tokens") == 0);
    assert_true(json_equals(json_get(root, "finish_reason"), "length"));
    assert_true(strncmp(text.out, answer->text, answer->length) == 0 && text.out_length == answer->length + 1);
    json_close(doc);
    ran_free(&text);
    ran_free(&r);
}

static void a_seed_is_drawn_and_printed_and_gives_the_same_answer_again(void **state)
{
    (void)state;
    struct ran a = QUIRE(RUN, "--temperature", "5", "--ignore-eos", "-n", "20", STORY), b = QUIRE(RUN, "--temperature", "5", "--ignore-eos", "-n", "20", STORY);
    char seed[32], other[32];
    assert_status(&a, 0);
    assert_int_equal(sscanf(a.err, "seed %31[0-9]\n", seed), 1);
    assert_int_equal(sscanf(b.err, "seed %31[0-9]\n", other), 1);
    assert_string_not_equal(seed, other);
    assert_string_not_equal(a.out, b.out);
    struct ran again = QUIRE(RUN, "--temperature", "5", "--ignore-eos", "-n", "20", "--seed", seed, STORY);
    assert_string_equal(again.out, a.out);
    assert_silent(again.err, "seed");
    struct ran greedy = QUIRE(RUN, GREEDY, "-n", "2", STORY);
    assert_silent(greedy.err, "seed"); /* nothing is drawn */
    ran_free(&greedy);
    ran_free(&again);
    ran_free(&b);
    ran_free(&a);
}

/* Whether two seeds answer alike. */
static bool seeds_agree(const char *model, const char *option, const char *value)
{
    const char *line[] = {"run",    "--model", model,  "--kv-ram-bytes", "50000000", "-n", "16", STORY,
                          "--seed", "1",       option, value,            NULL};
    struct ran a = program_run(NULL, line);
    line[9] = "2";
    struct ran b = program_run(NULL, line);
    assert_status(&a, 0);
    assert_status(&b, 0);
    const bool same = strcmp(a.out, b.out) == 0;
    ran_free(&a);
    ran_free(&b);
    return same;
}

static void the_folder_says_how_to_sample_and_flags_say_it_better(void **state)
{
    (void)state;
    static const char *const folders[] = {"{\"temperature\": 0.0}", "{\"temperature\": 1.5, \"top_p\": 0.000001}"};
    static const char *const better[][2] = {{"--temperature", "1.5"}, {"--top-p", "1"}};
    for (int i = 0; i < 2; i++) {
        const char *model = model_with(folders[i]);
        assert_true(seeds_agree(model, NULL, NULL));
        assert_false(seeds_agree(model, better[i][0], better[i][1]));
    }
    const char *lively = model_with("{\"temperature\": 1.5}");
    assert_false(seeds_agree(lively, NULL, NULL));
    assert_true(seeds_agree(lively, "--temperature", "0"));
    assert_true(seeds_agree(lively, "--top-k", "1"));
}

static void without_a_limit_the_answer_may_fill_the_context(void **state)
{
    (void)state;
    struct ran r = QUIRE(RUN, GREEDY, "--max-model-len", "64", "--ignore-eos", "--json", STORY);
    assert_status(&r, 0);
    struct json_document *doc = whole_json(r.out, r.out_length);
    const struct json *root = json_root(doc);
    assert_int_equal(int_at(root, "prompt_tokens") + int_at(root, "output_tokens"), 64);
    assert_true(json_equals(json_get(root, "finish_reason"), "length"));
    json_close(doc);
    ran_free(&r);
}

static void a_stop_ends_the_answer_before_it(void **state)
{
    (void)state;
    struct ran whole = QUIRE(RUN, GREEDY, "--quiet", "--raw", "-n", "20", "Once upon a time");
    assert_status(&whole, 0);
    char *blank = strchr(whole.out + 1, ' '); /* the second word begins there */
    assert_non_null(blank);
    char word[16];
    snprintf(word, sizeof word, "%.4s", blank);
    struct ran cut = QUIRE(RUN, GREEDY, "--raw", "-n", "20", "--stop", "never said", "--stop", word, "Once upon a time");
    assert_status(&cut, 0);
    assert_int_equal(cut.out_length, (size_t)(blank - whole.out) + 1);
    assert_int_equal(strncmp(cut.out, whole.out, cut.out_length - 1), 0);
    assert_says(cut.err, "ended by stop");
    ran_free(&cut);
    ran_free(&whole);
}

static void what_is_asked_for_stands_in_the_prompt(void **state)
{
    (void)state;
    static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"description\":\"of a town\","
                                "\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]";
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"}}}";
    const char *tools_path = scratch_path(scratch, "tools.json"), *schema_path = scratch_path(scratch, "schema.json");
    scratch_write(tools_path, tools, strlen(tools));
    scratch_write(schema_path, schema, strlen(schema));
    struct ran plain = QUIRE(RUN, GREEDY, "-n", "1", "--json", STORY);
    struct ran more[] = {QUIRE(RUN, GREEDY, "-n", "1", "--json", "--tools", tools_path, STORY),
                         QUIRE(RUN, GREEDY, "-n", "1", "--json", "--json-schema", schema_path, STORY),
                         QUIRE(RUN, GREEDY, "-n", "1", "--json", "--think", "max", STORY)};
    struct json_document *doc = whole_json(plain.out, plain.out_length);
    const int64_t shortest = int_at(json_root(doc), "prompt_tokens");
    json_close(doc);
    for (int i = 0; i < 3; i++) {
        assert_status(&more[i], 0);
        doc = whole_json(more[i].out, more[i].out_length);
        assert_true(int_at(json_root(doc), "prompt_tokens") > shortest);
        json_close(doc);
        ran_free(&more[i]);
    }
    ran_free(&plain);
}

static void what_fails_says_so_in_one_sentence_and_a_status(void **state)
{
    (void)state;
    const char *broken = scratch_path(scratch, "broken.json");
    scratch_write(broken, "[{", 2);
    const struct {
        struct ran r;
        int status;
        const char *says;
    } all[] = {
        {QUIRE("run", "hi"), 2, "quire run: --model DIR is missing\n"},
        {QUIRE("run", "--model", "", "hi"), 2, "--model is \"\", wanted the name of a folder"},
        {QUIRE("run", "--model", "/no/such", "hi"), 1, "/no/such/config.json: cannot open"},
        {QUIRE(RUN, "--temperature", "hot", "hi"), 2, "--temperature is \"hot\", wanted a number"},
        {QUIRE(RUN, "-n", "0", "hi"), 2, "-n is 0, wanted 1 to"},
        {QUIRE(RUN, "--think", "hard", "hi"), 2, "--think is \"hard\", wanted off|low|high|max"},
        {QUIRE(RUN, "one", "two"), 2, "argument \"two\" is one too many"},
        {QUIRE(RUN, "--file", "a", "hi"), 2, "--file a and the prompt \"hi\" are given, wanted one of them"},
        {QUIRE(RUN, "--raw", "--think", "off", "hi"), 2, "--think says nothing to --raw"},
        {QUIRE(RUN, "--raw", "--tools", "a", "hi"), 2, "--tools says nothing to --raw"},
        {QUIRE(RUN, "--raw", "--json-schema", "a", "hi"), 2, "--json-schema says nothing to --raw"},
        {QUIRE(RUN, "--raw", "--prompt-profile", "v41", "hi"), 2, "--prompt-profile says nothing to --raw"},
        {QUIRE(RUN, "--device", "abacus", "hi"), 2, "--device is \"abacus\", wanted cpu"},
        {QUIRE(RUN, "--profile", "w8a8", "hi"), 2, "profile is w8a8, DeepSeek-V4.1 has the reference profile only"},
        {QUIRE(RUN, "--profile", "w4a4", "hi"), 2, "--profile is \"w4a4\", wanted reference|w8a8"},
        {QUIRE(RUN, "--image", broken, "hi"), 3, "E12"},
        {QUIRE(RUN, "--tools", broken, "hi"), 1, "broken.json: not valid JSON"},
        {QUIRE(RUN, "--json-schema", broken, "hi"), 1, "broken.json: not valid JSON"},
        {QUIRE(RUN, "--max-model-len", "1", "hi"), 3, "max_model_len is 1, wanted at least 2"},
        {QUIRE(RUN, "--top-p", "0", "hi"), 2, "--top-p is 0, wanted above 0 to 1"},
        {QUIRE(RUN, "--method", "none", "--num-speculative-tokens", "2", "hi"), 3, "E08 2 drafts in a step without a method"},
        {QUIRE(RUN, "--method", "none", "--verifier", "ratio", "hi"), 3, "E08 verifier is ratio without a method"},
        {QUIRE(RUN, "--verifier", "relaxed", "hi"), 2, "--verifier is \"relaxed\", wanted match|ratio|block"},
        {QUIRE(RUN, "--method", "none", "--forced-acceptance-length", "3", "hi"), 3, "E09 a forced acceptance length of 3 without drafts"},
        {QUIRE(RUN, "--method", "dspark", "--draft-width", "7", "hi"), 3, "E08 a draft width of 7, wanted 5 to 5"},
        {QUIRE(RUN, "--file", "/no/such/prompt"), 1, "/no/such/prompt: "},
        {QUIRE(RUN, "--raw", ""), 1, "token"},
        {QUIRE(RUN, "--max-model-len", "8", STORY), 1, "8"},
        {QUIRE(RUN, "--max-model-len", "65537", "hi"), 3, "max-model-len is 65537, wanted at most max_position_embeddings 65536"},
        {QUIRE(RUN, "--block-size", "48", "hi"), 3, "E03"},
        {QUIRE(RUN, "--index-cache-dtype", "int8", "hi"), 3, "E05"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct ran r = all[i].r;
        assert_status(&r, all[i].status);
        assert_says(r.err, all[i].says);
        assert_string_equal(r.out, "");
        assert_says(r.err, "quire run: ");
        ran_free(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_answer_and_nothing_else_is_printed),
        cmocka_unit_test(a_prompt_comes_from_the_line_a_file_or_the_input),
        cmocka_unit_test(json_is_one_object_and_holds_the_whole_answer),
        cmocka_unit_test(a_seed_is_drawn_and_printed_and_gives_the_same_answer_again),
        cmocka_unit_test(the_folder_says_how_to_sample_and_flags_say_it_better),
        cmocka_unit_test(without_a_limit_the_answer_may_fill_the_context),
        cmocka_unit_test(a_stop_ends_the_answer_before_it),
        cmocka_unit_test(what_is_asked_for_stands_in_the_prompt),
        cmocka_unit_test(what_fails_says_so_in_one_sentence_and_a_status),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
