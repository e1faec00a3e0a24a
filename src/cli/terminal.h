/* terminal.h: the terminal as it was found, given back on every way out while an editor has it. */
#ifndef QR_CLI_TERMINAL_H
#define QR_CLI_TERMINAL_H

/* Notes the modes of the terminal on standard input. A signal that ends the program sets them again before it does. */
void terminal_keep(void);
/* From now on signals end the program as they did before. */
void terminal_forget(void);

#endif
