/* clock.h: time. */
#ifndef QR_BASE_CLOCK_H
#define QR_BASE_CLOCK_H

/* Seconds of a monotonic clock. */
double clock_seconds(void);
/* Seconds that processors have worked for this program, all of its threads together. */
double clock_cpu_seconds(void);

#endif
