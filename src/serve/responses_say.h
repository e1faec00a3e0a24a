/* responses_say.h: generations as /v1/responses tells them (protocol.md 4.6). */
#ifndef QR_SERVE_RESPONSES_SAY_H
#define QR_SERVE_RESPONSES_SAY_H

#include "serve/job.h"

extern const struct dialect responses_dialect; /* job->own is a struct responses_way (serve/responses_output.h) */

#endif
