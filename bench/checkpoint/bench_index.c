/* How fast the names of a released checkpoint are read, and what they weigh in memory: the index alone, then the index
 * with the headers of its shards. [CONFIG]: the config of the checkpoint, made header-true and sparse; V4.1-Flash. */
#define _GNU_SOURCE
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_index.h"
#include "cli/commands.h"

enum { ROUNDS = 21 };

static double held(void)
{
    const struct mallinfo2 m = mallinfo2();
    return (double)(m.uordblks + m.hblkhd) / 1e6;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct figures {
    double seconds[ROUNDS], megabytes;
    int64_t tensors;
};

static void print(const char *what, struct figures *f)
{
    qsort(f->seconds, ROUNDS, sizeof *f->seconds, by_value);
    printf("checkpoint/index  %s, %lld tensors: %.1f ms (median; %.1f to %.1f), %.1f MB held\n", what,
           (long long)f->tensors, f->seconds[ROUNDS / 2] * 1e3, f->seconds[0] * 1e3, f->seconds[ROUNDS - 1] * 1e3,
           f->megabytes);
}

static qr_status time_index(const char *folder, struct figures *f, qr_error *err)
{
    qr_status st = QR_OK;
    char *path = path_join(folder, "model.safetensors.index.json");
    for (int i = 0; path && st == QR_OK && i < ROUNDS; i++) {
        struct tensor_table table;
        struct shard_list shards = {0};
        const double before = held(), start = clock_seconds();
        tensor_table_init(&table);
        st = checkpoint_index_read(path, &table, &shards, err);
        f->seconds[i] = clock_seconds() - start;
        f->megabytes = held() - before;
        f->tensors = (int64_t)table.count;
        shard_list_free(&shards);
        tensor_table_free(&table);
    }
    qr_free(path);
    return path ? st : QR_NO_MEMORY;
}

static qr_status time_folder(const char *folder, struct figures *f, qr_error *err)
{
    qr_status st = QR_OK;
    for (int i = 0; st == QR_OK && i < ROUNDS; i++) {
        struct checkpoint *ck = NULL;
        const double before = held(), start = clock_seconds();
        st = checkpoint_open(folder, &ck, err);
        f->seconds[i] = clock_seconds() - start;
        f->megabytes = held() - before;
        f->tensors = st == QR_OK ? checkpoint_count(ck) : 0;
        checkpoint_close(ck);
    }
    return st;
}

int main(int argc, char **argv)
{
    char *config = argc > 1 ? argv[1] : "tests/data/config/v41-flash.json";
    char scratch[] = P_tmpdir "/quire-bench-XXXXXX", folder[64], command[128];
    struct figures index = {0}, all = {0};
    qr_error err = {0};
    if (!mkdtemp(scratch))
        return 1;
    snprintf(folder, sizeof folder, "%s/model", scratch);
    char *synth[] = {"synth", "--quiet", "--config", config, "--values", "none", "--out", folder};
    int failed = tool_synth(sizeof synth / sizeof *synth, synth);
    if (!failed && (time_index(folder, &index, &err) != QR_OK || time_folder(folder, &all, &err) != QR_OK)) {
        fprintf(stderr, "%s\n", err.message);
        failed = 1;
    }
    if (!failed) {
        print("index", &index);
        print("index and headers", &all);
    }
    snprintf(command, sizeof command, "rm -r %s", scratch);
    return system(command) || failed;
}
