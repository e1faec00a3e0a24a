/* interrupt.h: the interrupt key and its signal, noted instead of ending the program. */
#ifndef QR_CLI_INTERRUPT_H
#define QR_CLI_INTERRUPT_H

#include <stdbool.h>

/* From now on an interrupt is noted. `second_ends`: another one before the note is taken ends the program with 130, for
 * commands that have nothing else to lose. */
void interrupt_catch(bool second_ends);

/* Whether one came since the last call. */
bool interrupt_taken(void);

/* Waits until `descriptor` can be read, or until an interrupt is noted: true, and the note is taken. Whichever thread the
 * signal meets, the wait ends. */
bool interrupt_before_input(int descriptor);

#endif
