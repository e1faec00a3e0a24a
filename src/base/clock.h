/* clock.h: time. */
#ifndef QR_BASE_CLOCK_H
#define QR_BASE_CLOCK_H

/* Seconds of a monotonic clock. */
double clock_seconds(void);

#endif
