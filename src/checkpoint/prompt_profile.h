/* prompt_profile.h: which form of chat text a model folder was trained with. */
#ifndef QR_CHECKPOINT_PROMPT_PROFILE_H
#define QR_CHECKPOINT_PROMPT_PROFILE_H

#include "base/log.h"
#include "checkpoint/config.h"
#include "text/chat_profile.h"

/* V4.1 has one form. Of V4's two the encoder file beside the weights decides (protocol.md 2.1); without one the later
 * form is assumed, and said in the log. QR_NO_MEMORY is the only failure. */
qr_status prompt_profile_of(const char *dir, const struct qr_config *config, const struct qr_log *log,
                            enum chat_profile *out, qr_error *err);

#endif
