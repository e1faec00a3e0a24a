/* How fast a tokenizer is: bench_text_tokenizer [DIR [MEGABYTES]]. */
#include <stdio.h>
#include <stdlib.h>

#include "tools/bench_text.h"

int main(int argc, char **argv)
{
    struct bench_text figures;
    qr_error err = {0};
    double megabytes = argc > 2 ? strtod(argv[2], NULL) : 4;
    if (!(megabytes > 0 && megabytes < 1000)) {
        fprintf(stderr, "usage: bench_text_tokenizer [DIR [MEGABYTES]]\n");
        return 2;
    }
    if (bench_text_run(argc > 1 ? argv[1] : "models/tiny-v41", (size_t)(megabytes * 1e6), &figures, &err) != QR_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    printf("load %.0f ms, token map %.0f ms\n", figures.load_seconds * 1e3, figures.token_map_seconds * 1e3);
    for (int i = 0; i < BENCH_TEXT_ROWS; i++)
        if (figures.rows[i].bytes > 0)
            printf("%-10s %8.2f MB/s  %6.2f M tokens/s encoded  %6.2f M tokens/s decoded  %.2f bytes/token\n",
                   figures.rows[i].what, figures.rows[i].bytes / figures.rows[i].encode_seconds / 1e6,
                   figures.rows[i].tokens / figures.rows[i].encode_seconds / 1e6,
                   figures.rows[i].tokens / figures.rows[i].decode_seconds / 1e6,
                   figures.rows[i].bytes / figures.rows[i].tokens);
    return 0;
}
