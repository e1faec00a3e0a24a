#include "text/chat_profile.h"

#include <stdio.h>
#include <string.h>

static const char *const names[] = {[CHAT_V4A] = "v4a", [CHAT_V4B] = "v4b", [CHAT_V41] = "v41"};

/* How the generations spell a tag: what stands between the DSML token and a tag's name, and the name of a block. */
static const struct spelling {
    const char *gap, *block;
} spellings[] = {
    [CHAT_V4A] = {"", "tool_calls"},
    [CHAT_V4B] = {"", "tool_calls"},
    [CHAT_V41] = {" ", " calls"},
};

bool chat_profile_named(const char *name, enum chat_profile *out)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(names[i], name) == 0) {
            *out = (enum chat_profile)i;
            return true;
        }
    }
    return false;
}

const char *chat_profile_name(enum chat_profile profile) { return names[profile]; }

/* ---- constant texts: {GAP} and {BLOCK} are a profile's, and the tokens written in them are tokens ---- */

static const char tools_before[] =
    "## Tools\n"
    "\n"
    "You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "
    "\"<｜DSML｜{BLOCK}>\" block like the following:\n"
    "\n"
    "<｜DSML｜{BLOCK}>\n"
    "<｜DSML｜{GAP}invoke name=\"$TOOL_NAME\">\n"
    "<｜DSML｜{GAP}parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE"
    "</｜DSML｜{GAP}parameter>\n"
    "...\n"
    "</｜DSML｜{GAP}invoke>\n"
    "<｜DSML｜{GAP}invoke name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</｜DSML｜{GAP}invoke>\n"
    "</｜DSML｜{BLOCK}>\n"
    "\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, booleans, "
    "arrays, objects), pass the value in JSON format and set `string=\"false\"`.\n"
    "\n"
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside "
    "<think>...</think> BEFORE any tool calls or final response.\n"
    "\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n"
    "\n"
    "### Available Tool Schemas\n"
    "\n";

static const char tools_after[] =
    "\n"
    "\n"
    "You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";

static const char effort_maximum[] =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n"
    "\n";

static const char effort_beyond[] =
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the "
    "problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying "
    "cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are certain "
    "that no assumption remains unchecked and no error remains undiscovered.\n"
    "\n";

static const char response_format[] =
    "## Response Format:\n"
    "\n"
    "You MUST strictly adhere to the following schema to reply:\n";

struct substitution {
    const char *mark;
    const char *text;
    bool markup;
};

static const struct substitution *substitution_at(const struct substitution *table, const char *text)
{
    for (; table->mark; table++)
        if (strncmp(table->mark, text, strlen(table->mark)) == 0)
            return table;
    return NULL;
}

static void write_constant(struct prompt *p, const char *text, const struct spelling *s)
{
    const struct substitution table[] = {
        {"{GAP}", s->gap, false},
        {"{BLOCK}", s->block, false},
        {TOKEN_DSML, TOKEN_DSML, true},
        {TOKEN_THINK, TOKEN_THINK, true},
        {TOKEN_END_THINK, TOKEN_END_THINK, true},
        {NULL, NULL, false},
    };
    const char *plain = text;
    while (*text) {
        const struct substitution *here = substitution_at(table, text);
        if (!here) {
            text++;
            continue;
        }
        prompt_literal(p, plain, (size_t)(text - plain));
        if (here->markup)
            prompt_markup(p, here->text);
        else
            prompt_puts(p, here->text);
        text += strlen(here->mark);
        plain = text;
    }
    prompt_puts(p, plain);
}

void chat_write_effort_number(struct prompt *p, int effort)
{
    char line[128];
    snprintf(line, sizeof line,
             "Reasoning Effort: %d (range 1-100, the higher the value, the more thorough the reasoning)\n\n", effort);
    prompt_puts(p, line);
}

void chat_write_effort_text(struct prompt *p, enum chat_effort_text text)
{
    if (text == EFFORT_TEXT_MAXIMUM)
        prompt_puts(p, effort_maximum);
    else if (text == EFFORT_TEXT_BEYOND)
        prompt_puts(p, effort_beyond);
}

void chat_write_tools_before(struct prompt *p, enum chat_profile profile)
{
    write_constant(p, tools_before, &spellings[profile]);
}

void chat_write_tools_after(struct prompt *p) { prompt_puts(p, tools_after); }
void chat_write_response_format(struct prompt *p) { prompt_puts(p, response_format); }

void chat_write_block_open(struct prompt *p, enum chat_profile profile)
{
    write_constant(p, "<｜DSML｜{BLOCK}>", &spellings[profile]);
}

void chat_write_block_close(struct prompt *p, enum chat_profile profile)
{
    write_constant(p, "</｜DSML｜{BLOCK}>", &spellings[profile]);
}

void chat_write_call_open(struct prompt *p, enum chat_profile profile)
{
    write_constant(p, "<｜DSML｜{GAP}invoke name=\"", &spellings[profile]);
}

void chat_write_call_close(struct prompt *p, enum chat_profile profile)
{
    write_constant(p, "</｜DSML｜{GAP}invoke>", &spellings[profile]);
}

void chat_write_parameter_open(struct prompt *p, enum chat_profile profile)
{
    write_constant(p, "<｜DSML｜{GAP}parameter name=\"", &spellings[profile]);
}

void chat_write_parameter_close(struct prompt *p, enum chat_profile profile)
{
    write_constant(p, "</｜DSML｜{GAP}parameter>", &spellings[profile]);
}
