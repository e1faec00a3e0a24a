/* chats.h: qr_chat, a chat request that was understood. */
#ifndef QR_ENGINE_CHATS_H
#define QR_ENGINE_CHATS_H

#include "engine/grammars.h"
#include "engine/rendered.h"

struct qr_chat {
    const qr_model *model;
    char *json; /* `rendered` points into its document, which points into this */
    struct rendered rendered;
    bool lenient_tools, tool_recovery;
    qr_grammar *grammar; /* NULL: the answer may be anything */
};

#endif
