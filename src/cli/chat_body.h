/* chat_body.h: a conversation as the JSON body that qr_chat_open takes. */
#ifndef QR_CLI_CHAT_BODY_H
#define QR_CLI_CHAT_BODY_H

#include "base/json.h"
#include "quire.h"

struct chat_turn {
    const char *role;      /* "system", "user", "assistant" */
    const char *text;
};

struct chat_body {
    const struct chat_turn *turns;
    size_t turn_count;
    const char *think;     /* "off", "low", "high", "max"; NULL: the model's default */
    const char *tools;     /* JSON text of a list, or NULL */
    const char *schema;    /* JSON text of a schema, or NULL */
};

/* The JSON text of a file, parsed once so that what is wrong with it is said of the file; NULL where no name is given. */
qr_status chat_file_read(const char *path, char **text, qr_error *err);
/* Writes a turn as a message object. QR_BAD_REQUEST when its text is no UTF-8. */
qr_status chat_turn_write(struct json_writer *w, const struct chat_turn *turn, qr_error *err);
/* Writes what stands beside the messages as members of the object that is open; turns are not looked at. */
qr_status chat_members_write(struct json_writer *w, const struct chat_body *body, qr_error *err);

/* The conversation as a chat request that was understood. qr_chat_close. */
qr_status chat_body_open(const qr_model *model, const struct chat_body *body, qr_chat **out, qr_error *err);

#endif
