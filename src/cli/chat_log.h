/* chat_log.h: a conversation: its turns, and its file. */
#ifndef QR_CLI_CHAT_LOG_H
#define QR_CLI_CHAT_LOG_H

#include "cli/chat_body.h"

/* Zero-initialise; free with chat_log_free. Turns alternate user, assistant; the system message stands apart. */
struct chat_log {
    char *system;              /* or NULL */
    struct chat_turn *turns;   /* strings are owned */
    size_t count, capacity;
};

void chat_log_free(struct chat_log *log);
/* Forgets the turns; the system message stays. */
void chat_log_clear(struct chat_log *log);
size_t chat_log_turns(const struct chat_log *log);

/* Copies; role is one of the literals "user" and "assistant". false without memory. */
bool chat_log_add(struct chat_log *log, const char *role, const char *text, size_t length, const char *reasoning);
void chat_log_drop_newest(struct chat_log *log);
/* The oldest question with its answer. */
void chat_log_drop_oldest(struct chat_log *log);
qr_status chat_log_system(struct chat_log *log, const char *text, qr_error *err);

qr_status chat_log_render(const struct chat_log *log, const qr_model *model, const char *think, const char *tools,
                          qr_prompt *out, qr_error *err);

/* {"messages": [{"role", "content", "reasoning_content"?}...]}; a load that fails leaves the conversation as it was. */
qr_status chat_log_save(const struct chat_log *log, const char *path, qr_error *err);
qr_status chat_log_load(struct chat_log *log, const char *path, qr_error *err);

#endif
