/* chat_profile.h: the three forms of chat text and their constant strings, byte for byte what the model was trained on
 * (protocol.md 2.1 to 2.3, appendix A). */
#ifndef QR_TEXT_CHAT_PROFILE_H
#define QR_TEXT_CHAT_PROFILE_H

#include "text/prompt.h"

enum chat_profile {
    CHAT_V4A, /* V4's first release */
    CHAT_V4B, /* V4-Flash-0731 and later V4 */
    CHAT_V41  /* V4.1 */
};

/* From "v4a", "v4b" or "v41"; false for any other name. */
bool chat_profile_named(const char *name, enum chat_profile *out);
const char *chat_profile_name(enum chat_profile profile);

/* Added tokens by content. */
#define TOKEN_BOS "<｜begin▁of▁sentence｜>"
#define TOKEN_EOS "<｜end▁of▁sentence｜>"
#define TOKEN_SYSTEM "<｜System｜>"
#define TOKEN_USER "<｜User｜>"
#define TOKEN_ASSISTANT "<｜Assistant｜>"
#define TOKEN_REMINDER "<｜latest_reminder｜>"
#define TOKEN_THINK "<think>"
#define TOKEN_END_THINK "</think>"
#define TOKEN_DSML "｜DSML｜"
#define TOKEN_IMAGE "<｜deepseek_image｜>"
#define TOKEN_ACTION "<｜action｜>"

/* The line that tells V4.1 how hard to think, 1 to 100. */
void chat_write_effort_number(struct prompt *p, int effort);

/* What V4 has instead: two texts, or none. */
enum chat_effort_text { EFFORT_TEXT_NONE, EFFORT_TEXT_MAXIMUM, EFFORT_TEXT_BEYOND };
void chat_write_effort_text(struct prompt *p, enum chat_effort_text text);

/* The two halves of the tool section, around the joined schemas; and what stands before a response schema. */
void chat_write_tools_before(struct prompt *p, enum chat_profile profile);
void chat_write_tools_after(struct prompt *p);
void chat_write_response_format(struct prompt *p);

/* Tags of calls: "<DSML calls>", "</DSML calls>", `<DSML invoke name="` and so on, DSML being the token. A name is
 * written raw. */
void chat_write_block_open(struct prompt *p, enum chat_profile profile);
void chat_write_block_close(struct prompt *p, enum chat_profile profile);
void chat_write_call_open(struct prompt *p, enum chat_profile profile); /* up to and with the first quotation mark */
void chat_write_call_close(struct prompt *p, enum chat_profile profile);
void chat_write_parameter_open(struct prompt *p, enum chat_profile profile); /* up to and with the first quotation mark */
void chat_write_parameter_close(struct prompt *p, enum chat_profile profile);

#endif
