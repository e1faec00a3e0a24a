#include "base/log.h"

#include <stdarg.h>

#include "base/sentence.h"

void qr_logf(const struct qr_log *log, enum qr_log_level level, const char *format, ...)
{
    char line[SENTENCE_ROOM];
    va_list ap;
    if (!log || !log->write || level > log->level)
        return;
    va_start(ap, format);
    sentence_format(line, sizeof line, format, ap);
    va_end(ap);
    log->write(log->user, level, line);
}
