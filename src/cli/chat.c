#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/status.h"
#include "cli/chat_body.h"
#include "cli/commands.h"
#include "cli/display.h"
#include "cli/interrupt.h"
#include "cli/lines.h"
#include "cli/loaded.h"
#include "cli/plural.h"
#include "cli/sampling_options.h"

struct chat_program {
    struct model_options model;
    struct sampling_options sampling;
    const char *think, *tools;
    struct loaded loaded;
    qr_session *session;
    char *tools_text;
    struct lines lines;
    int64_t failed;     /* lines that could not be done */
};

/* ---- one turn ---- */

/* Tokens that an answer should have room for. */
static size_t room_for_answer(int32_t max_model_len)
{
    enum { ROOM = 64 };
    return max_model_len / 8 < ROOM ? (size_t)max_model_len / 8 : ROOM;
}

/* Says that the context is full; whether the oldest turns may go. */
static bool may_drop(struct chat_program *p, int32_t max_model_len)
{
    fflush(stdout);
    fprintf(stderr, "The context of %d token%s is full.\n", max_model_len, plural(max_model_len));
    return lines_yes(&p->lines, "Drop the oldest turns? [Y/n] ");
}

/* Makes the prompt; while it leaves no room for an answer the oldest turns go, if the user agrees. */
static qr_status make_room(struct chat_program *p, bool *reasoning, qr_error *err)
{
    qr_plan_bytes plan;
    bool agreed = false;
    qr_engine_get_plan(p->loaded.engine, &plan);
    for (;;) {
        qr_prompt prompt;
        qr_status st = qr_session_prompt(p->session, &prompt, err);
        if (st != QR_OK)
            return st;
        const size_t count = prompt.tokens.count;
        *reasoning = prompt.starts_in_reasoning;
        qr_prompt_free(&prompt);
        if (count + room_for_answer(plan.max_model_len) <= (size_t)plan.max_model_len)
            return QR_OK;
        if (qr_session_turns(p->session) < 2)
            return qr_fail(err, QR_BAD_REQUEST, "the message has %zu tokens, the context holds %d with the answer", count,
                           plan.max_model_len);
        agreed = agreed || may_drop(p, plan.max_model_len);
        if (!agreed)
            return qr_fail(err, QR_BAD_REQUEST, "the context is full: /save the conversation, or start anew with /new");
        qr_session_drop_oldest(p->session);
    }
}

static qr_status say(struct chat_program *p, const char *text, qr_error *err)
{
    const struct chat_turn turn = {.role = "user", .text = text};
    const char *json;
    size_t length;
    struct json_writer *w = json_writer_open(false);
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the message");
    qr_status st = chat_turn_write(w, &turn, err);
    if (st == QR_OK)
        st = json_finish(w, &json, &length, err);
    if (st == QR_OK)
        st = qr_session_append(p->session, json, length, err);
    json_writer_close(w);
    return st;
}

static qr_status answer(struct chat_program *p, qr_error *err)
{
    struct request_text request = {0};
    struct answer answer = {0};
    struct display display;
    uint64_t seed;
    bool reasoning = false;
    qr_status st = make_room(p, &reasoning, err);
    if (st == QR_OK) {
        request_from_options(p->loaded.model, &p->sampling, &request, &seed); /* the session makes the prompt */
        display_open(&display, reasoning);
        st = loaded_answer(&p->loaded, p->session, &request.request, display_show, &display, &answer, err);
        display_close(&display);
    }
    if (st == QR_OK && !p->model.quiet)
        print_usage_line(&answer);
    buffer_free(&answer.text);
    request_text_free(&request);
    return st;
}

static qr_status turn(struct chat_program *p, const char *text, qr_error *err)
{
    qr_status st = say(p, text, err);
    if (st != QR_OK)
        return st;
    st = answer(p, err);
    if (st != QR_OK)
        qr_session_drop_newest(p->session); /* a message that has no answer is not part of the conversation */
    return st;
}

/* ---- commands ---- */

static void print_help(void)
{
    puts("/help             this list\n"
         "/system TEXT      set the system message; without TEXT: show it\n"
         "/think LEVEL      off, low, high or max; without LEVEL: show it\n"
         "/save FILE        write the conversation as JSON\n"
         "/load FILE        go on with a saved conversation\n"
         "/new              forget the conversation\n"
         "/quit             leave (also end of input)\n"
         "An interrupt stops the answer in progress.");
}

/* What --think, /think and --tools say becomes part of every request from now on. */
static qr_status set_members(struct chat_program *p, qr_error *err)
{
    const struct chat_body body = {.think = p->think, .tools = p->tools_text};
    const char *json;
    size_t length;
    struct json_writer *w = json_writer_open(false);
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the request");
    json_w_object(w);
    qr_status st = chat_members_write(w, &body, err);
    json_w_end_object(w);
    if (st == QR_OK)
        st = json_finish(w, &json, &length, err);
    if (st == QR_OK)
        st = qr_session_set(p->session, json, length, err);
    json_writer_close(w);
    return st;
}

static qr_status show_system(const struct chat_program *p, qr_error *err)
{
    struct json_document *doc = NULL;
    qr_text text;
    qr_status st = qr_session_write(p->session, &text, err);
    if (st == QR_OK)
        st = json_parse(text.data, text.length, "the conversation", false, &doc, err);
    if (st == QR_OK) {
        const struct json *first = json_at(json_get(json_root(doc), "messages"), 0);
        const struct json *content = json_equals(json_get(first, "role"), "system") ? json_get(first, "content") : NULL;
        printf("system: %s\n", content && content->kind == JSON_STRING ? content->text : "none");
    }
    json_close(doc);
    qr_text_free(&text);
    return st;
}

static qr_status save(const struct chat_program *p, const char *path, qr_error *err)
{
    qr_text text;
    if (!*path)
        return qr_fail(err, QR_BAD_ARGUMENT, "/save: the file's name is missing");
    qr_status st = qr_session_write(p->session, &text, err);
    if (st == QR_OK)
        st = file_write_atomic(path, text.data, text.length, err);
    qr_text_free(&text);
    return st;
}

static qr_status load(struct chat_program *p, const char *path, qr_error *err)
{
    char *text = NULL;
    size_t size;
    qr_error why = {0};
    if (!*path)
        return qr_fail(err, QR_BAD_ARGUMENT, "/load: the file's name is missing");
    qr_status st = file_read(path, 1 << 28, &text, &size, err);
    if (st != QR_OK)
        return st;
    st = qr_session_read(p->session, text, size, &why);
    if (st != QR_OK)
        qr_fail(err, st, "%s: %s", path, why.message);
    qr_free(text);
    return st;
}

static qr_status set_think(struct chat_program *p, const char *level, qr_error *err)
{
    static const char *const levels[] = {"off", "low", "high", "max"};
    if (!*level) {
        printf("think: %s\n", p->think ? p->think : "the model's default");
        return QR_OK;
    }
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (strcmp(level, levels[i]) == 0) {
            p->think = levels[i];
            return set_members(p, err);
        }
    return qr_fail(err, QR_BAD_ARGUMENT, "/think %s: wanted off, low, high or max", level);
}

/* Does what a line that begins with a slash says; *leave for /quit. */
static qr_status obey(struct chat_program *p, char *line, bool *leave, qr_error *err)
{
    const size_t length = strcspn(line, " \t");
    const char *argument = line + length + strspn(line + length, " \t");
    line[length] = 0;
    if (strcmp(line, "/help") == 0)
        print_help();
    else if (strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0)
        *leave = true;
    else if (strcmp(line, "/new") == 0)
        while (qr_session_drop_newest(p->session))
            ;
    else if (strcmp(line, "/think") == 0)
        return set_think(p, argument, err);
    else if (strcmp(line, "/system") == 0)
        return *argument ? qr_session_set_system(p->session, argument, err) : show_system(p, err);
    else if (strcmp(line, "/save") == 0)
        return save(p, argument, err);
    else if (strcmp(line, "/load") == 0)
        return load(p, argument, err);
    else
        return qr_fail(err, QR_BAD_ARGUMENT, "%s is no command; /help lists them", line);
    return QR_OK;
}

static void greet(const struct chat_program *p)
{
    qr_model_info info;
    qr_model_get_info(p->loaded.model, &info);
    printf("%s (%s). /help for help.\n", info.name, info.family);
}

static void converse(struct chat_program *p)
{
    bool leave = false;
    char *line;
    lines_open(&p->lines);
    if (p->lines.terminal && !p->model.quiet)
        greet(p);
    while (!leave && (line = lines_next(&p->lines, "> "))) {
        qr_error err = {0};
        qr_status st = QR_OK;
        if (strlen(line) != p->lines.length)
            st = qr_fail(&err, QR_BAD_REQUEST, "the line holds a NUL character at byte %zu, wanted text", strlen(line));
        else if (line[0] == '/')
            st = obey(p, line, &leave, &err);
        else if (*line)
            st = turn(p, line, &err);
        if (st != QR_OK) {
            p->failed++;
            fflush(stdout);
            fprintf(stderr, "quire chat: %s\n", err.message);
        }
        free(line);
    }
    if (p->lines.terminal && !leave)
        putchar('\n');
    lines_close(&p->lines);
}

static qr_status start(struct chat_program *p, const char *system, qr_error *err)
{
    qr_status st = chat_file_read(p->tools, &p->tools_text, err);
    if (st == QR_OK)
        st = loaded_open(&p->model, &p->loaded, err);
    if (st == QR_OK)
        st = qr_session_open(p->loaded.engine, &p->session, err);
    if (st == QR_OK)
        st = set_members(p, err);
    if (st == QR_OK && system)
        st = qr_session_set_system(p->session, system, err);
    if (st == QR_OK) {
        interrupt_catch(false);
        converse(p);
    }
    return st;
}

int command_chat(int argc, char **argv)
{
    struct chat_program p = {.model = MODEL_OPTIONS_DEFAULT, .sampling = SAMPLING_OPTIONS_DEFAULT};
    const char *system = NULL;
    qr_error err = {0};
    int status;
    const struct option options[] = {
        MODEL_OPTIONS(p.model),
        ENGINE_OPTIONS(p.model),
        SAMPLING_OPTIONS(p.sampling),
        {.name = "system", .kind = OPTION_STRING, .target = &system, .value = "TEXT", .help = "the system message"},
        {.name = "think", .kind = OPTION_CHOICE, .target = &p.think, .value = "off|low|high|max",
         .help = "think before the answer, and how hard"},
        {.name = "tools", .kind = OPTION_PATH, .target = &p.tools, .value = "FILE", .help = "JSON list of tools"},
        {0}};
    struct command_line line = {.command = "chat", .synopsis = "--model DIR",
                                .about = "A conversation. /help inside lists its commands. Off a terminal every line of the input is "
                                         "a message or a command, and the status is 1 when one of them failed.",
                                .options = options};
    if (!options_parse(&line, argc, argv, &status))
        return status;
    if (!p.model.model) {
        status = options_wrong(&line, "--model DIR is missing");
    } else {
        qr_status st = start(&p, system, &err);
        status = st == QR_OK ? !p.lines.terminal && p.failed > 0 : report_failure("chat", &err);
        qr_session_close(p.session);
        loaded_close(&p.loaded);
    }
    qr_free(p.tools_text);
    options_free(options);
    return status;
}
