/* commands.h: the commands of the program. Each takes its own part of the line (argv[0] is the command's name) and
 * returns the exit status: 0 done, 1 the work failed, 2 the line is wrong, 3 refused before loading. */
#ifndef QR_CLI_COMMANDS_H
#define QR_CLI_COMMANDS_H

/* src/cli */
int command_run(int argc, char **argv);
int command_chat(int argc, char **argv);
int command_serve(int argc, char **argv);
int command_generate(int argc, char **argv);
int command_eval(int argc, char **argv);
int command_inspect(int argc, char **argv);

/* src/tools */
int tool_trace(int argc, char **argv);
int tool_op(int argc, char **argv);
int tool_verify(int argc, char **argv);
int tool_acceptance(int argc, char **argv);
int tool_bench(int argc, char **argv);
int tool_synth(int argc, char **argv);
int tool_quantize(int argc, char **argv);
int tool_text(int argc, char **argv);

#endif
