#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/status.h"
#include "cli/chat_body.h"
#include "cli/commands.h"
#include "cli/display.h"
#include "cli/interrupt.h"
#include "cli/loaded.h"
#include "cli/print_json.h"
#include "cli/sampling_options.h"

/* Bytes; far beyond what any context holds. */
enum { LARGEST_PROMPT = 1 << 30 };

struct run_options {
    struct model_options model;
    struct sampling_options sampling;
    const char *file, *think, *tools, *schema, *image;
    bool raw;
};

/* Everything that comes on standard input. */
static qr_status read_stdin(char **text, size_t *length, qr_error *err)
{
    struct buffer all = {0};
    char piece[65536];
    size_t n;
    while (all.length <= LARGEST_PROMPT && (n = fread(piece, 1, sizeof piece, stdin)) > 0)
        buffer_append(&all, piece, n);
    if (all.length > LARGEST_PROMPT) {
        buffer_free(&all);
        return qr_fail(err, QR_BAD_REQUEST, "standard input: over %d bytes, at most that many are read", LARGEST_PROMPT);
    }
    if (ferror(stdin) || !buffer_append(&all, "", 0)) {
        buffer_free(&all);
        return qr_fail(err, QR_IO, "standard input: cannot be read");
    }
    *text = all.data;
    *length = all.length;
    return QR_OK;
}

static qr_status read_prompt(const struct run_options *o, const char *argument, char **text, size_t *length, qr_error *err)
{
    if (o->file && strcmp(o->file, "-") != 0)
        return file_read(o->file, LARGEST_PROMPT, text, length, err);
    if (o->file || !argument || strcmp(argument, "-") == 0)
        return read_stdin(text, length, err);
    *length = strlen(argument);
    *text = qr_strndup(argument, *length);
    return *text ? QR_OK : qr_fail(err, QR_NO_MEMORY, "no memory for the prompt");
}

static qr_status make_prompt(const struct run_options *o, const qr_model *model, const char *text, size_t length,
                             struct request_text *out, qr_error *err)
{
    char *tools = NULL, *schema = NULL;
    if (o->raw) {
        const qr_status made = qr_tokenize(model, text, length, true, &out->tokens, err);
        request_text_point(out);
        return made;
    }
    if (strlen(text) != length)
        return qr_fail(err, QR_BAD_REQUEST, "the prompt holds a NUL character; --raw takes it as it is");
    const struct chat_turn turn = {.role = "user", .text = text};
    qr_status st = chat_file_read(o->tools, &tools, err);
    if (st == QR_OK)
        st = chat_file_read(o->schema, &schema, err);
    if (st == QR_OK) {
        const struct chat_body body = {.turns = &turn, .turn_count = 1, .think = o->think, .tools = tools, .schema = schema};
        qr_chat *chat = NULL;
        st = chat_body_open(model, &body, &chat, err);
        if (st == QR_OK)
            st = request_text_chat(out, chat, err);
    }
    qr_free(tools);
    qr_free(schema);
    return st;
}

static qr_status print_answer(const struct answer *a, uint64_t seed, qr_error *err)
{
    struct json_writer *w = json_writer_open(false);
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the result");
    json_w_object(w);
    json_w_member_string_n(w, "text", a->text.data, a->text.length);
    json_w_member_string(w, "finish_reason", qr_finish_name(a->finish));
    json_w_member_int(w, "prompt_tokens", a->usage.prompt_tokens);
    json_w_member_int(w, "cached_tokens", a->usage.cached_tokens);
    json_w_member_int(w, "output_tokens", a->usage.output_tokens);
    json_w_member_number(w, "seconds_to_first_token", a->usage.seconds_to_first_token);
    json_w_member_number(w, "seconds", a->usage.seconds);
    json_w_member_uint(w, "seed", seed);
    json_w_end_object(w);
    return print_json(w, err);
}

static qr_status run(const struct run_options *o, bool json, const char *argument, qr_error *err)
{
    struct loaded l = {0};
    struct request_text request = {0};
    struct answer answer = {0};
    struct display display;
    qr_chat_info info = {0};
    char *text = NULL;
    size_t length = 0;
    uint64_t seed = 0;
    qr_status st = read_prompt(o, argument, &text, &length, err);
    if (st == QR_OK)
        st = loaded_open(&o->model, &l, err);
    if (st == QR_OK)
        request_from_options(l.model, &o->sampling, &request, &seed);
    if (st == QR_OK)
        st = make_prompt(o, l.model, text, length, &request, err);
    if (st == QR_OK) {
        interrupt_catch(true);
        if (!o->model.quiet && request.sampling.temperature > 0 && !o->sampling.has_seed)
            fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
        if (request.chat)
            qr_chat_get_info(request.chat, &info);
        display_open(&display, !json && info.starts_in_reasoning);
        st = loaded_answer(&l, NULL, &request.request, json ? NULL : display_show, &display, &answer, err);
        if (!json)
            display_close(&display);
    }
    if (st == QR_OK && json)
        st = print_answer(&answer, seed, err);
    if (st == QR_OK && !o->model.quiet) {
        fflush(stdout);
        print_usage_line(&answer);
    }
    buffer_free(&answer.text);
    request_text_free(&request);
    loaded_close(&l);
    qr_free(text);
    return st;
}

/* What would be passed over: 0, or 2 after a sentence. */
static int check_line(const struct command_line *line, const struct run_options *o)
{
    const struct {
        const char *name;
        bool given;
    } of_chat[] = {{"think", o->think}, {"tools", o->tools}, {"json-schema", o->schema}, {"image", o->image},
                   {"prompt-profile", strcmp(o->model.prompt_profile, "auto") != 0}};
    if (!o->model.model)
        return options_wrong(line, "--model DIR is missing");
    if (o->file && line->argument_count)
        return options_wrong(line, "--file %s and the prompt \"%s\" are given, wanted one of them", o->file, line->arguments[0]);
    for (size_t i = 0; o->raw && i < sizeof of_chat / sizeof *of_chat; i++)
        if (of_chat[i].given)
            return options_wrong(line, "--%s says nothing to --raw, which takes the prompt as it is", of_chat[i].name);
    return 0;
}

int command_run(int argc, char **argv)
{
    struct run_options o = {.model = MODEL_OPTIONS_DEFAULT, .sampling = SAMPLING_OPTIONS_DEFAULT};
    bool json = false;
    qr_error err = {0};
    int status;
    const struct option options[] = {
        MODEL_OPTIONS(o.model),
        ENGINE_OPTIONS(o.model),
        SAMPLING_OPTIONS(o.sampling),
        {.name = "file", .letter = 'f', .kind = OPTION_PATH, .target = &o.file, .value = "FILE",
         .help = "the prompt's file; - for standard input"},
        {.name = "raw", .kind = OPTION_FLAG, .target = &o.raw, .help = "the prompt as it is, added tokens recognised"},
        {.name = "think", .kind = OPTION_CHOICE, .target = &o.think, .value = "off|low|high|max",
         .help = "think before the answer, and how hard"},
        {.name = "tools", .kind = OPTION_PATH, .target = &o.tools, .value = "FILE", .help = "JSON list of tools"},
        {.name = "json-schema", .kind = OPTION_PATH, .target = &o.schema, .value = "FILE",
         .help = "ask for an answer by this schema"},
        {.name = "image", .kind = OPTION_PATH, .target = &o.image, .value = "FILE", .help = "a picture for the prompt"},
        {.name = "json", .kind = OPTION_FLAG, .target = &json, .help = "one JSON object on standard output"},
        {0}};
    struct command_line line = {.command = "run", .synopsis = "--model DIR [PROMPT | --file FILE | -]",
                                .about = "Renders a one-turn chat and streams the answer.", .options = options, .most = 1};
    if (!options_parse(&line, argc, argv, &status))
        return status;
    status = check_line(&line, &o);
    if (status != 0) {
        options_free(options);
        return status;
    }
    if (o.image) {
        status = 3;
        fprintf(stderr, "quire run: E12: images are not built\n");
    } else {
        qr_status st = run(&o, json, line.argument_count ? line.arguments[0] : NULL, &err);
        status = st == QR_OK ? 0 : report_failure("run", &err);
    }
    options_free(options);
    return status;
}
