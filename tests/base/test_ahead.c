#define _GNU_SOURCE
/* What is read ahead of whoever goes through a file: everything, in order, and never too far. */
#include "base/ahead.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/file.h"
#include "support/support.h"

enum { PARTS = 3, MOST = 64 };
static const uint64_t sizes[PARTS] = {2 * AHEAD_PIECE + 5, 1, AHEAD_PIECE};

static struct {
    pthread_mutex_t lock;
    struct ahead_part piece[MOST];
    int count;
    uint64_t bytes;
} brought = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void note(const void *data, uint64_t bytes)
{
    pthread_mutex_lock(&brought.lock);
    if (brought.count < MOST)
        brought.piece[brought.count++] = (struct ahead_part){data, bytes};
    brought.bytes += bytes;
    pthread_mutex_unlock(&brought.lock);
}

static uint64_t bytes_brought(void)
{
    pthread_mutex_lock(&brought.lock);
    const uint64_t bytes = brought.bytes;
    pthread_mutex_unlock(&brought.lock);
    return bytes;
}

static void rest(long milliseconds) { nanosleep(&(struct timespec){.tv_nsec = milliseconds * 1000000}, NULL); }

/* Waits until so much has come, and a while for more that must not. */
static uint64_t settled(uint64_t least)
{
    for (int i = 0; i < 2000 && bytes_brought() < least; i++)
        rest(1);
    rest(20);
    return bytes_brought();
}

static struct read_ahead *open_parts(uint8_t *memory, uint64_t distance)
{
    struct ahead_part parts[PARTS + 1] = {{NULL, 0}};
    struct read_ahead *a;
    qr_error err = {0};
    uint64_t at = 0;
    for (int i = 0; i < PARTS; i++) {
        parts[i + 1] = (struct ahead_part){memory + at, sizes[i]};
        at += sizes[i];
    }
    brought.count = 0;
    brought.bytes = 0;
    must(ahead_open(parts, PARTS + 1, distance, note, &a, &err), &err);
    return a;
}

static int by_place(const void *a, const void *b)
{
    const uintptr_t x = (uintptr_t)((const struct ahead_part *)a)->data, y = (uintptr_t)((const struct ahead_part *)b)->data;
    return (x > y) - (x < y);
}

static void every_byte_is_brought_once(void **state)
{
    (void)state;
    uint8_t *memory = malloc(sizes[0] + sizes[1] + sizes[2]);
    struct read_ahead *a = open_parts(memory, UINT64_MAX / 2);
    assert_int_equal(settled(sizes[0] + sizes[1] + sizes[2]), sizes[0] + sizes[1] + sizes[2]);
    ahead_close(a);
    qsort(brought.piece, (size_t)brought.count, sizeof *brought.piece, by_place);
    const uint8_t *at = memory;
    for (int i = 0; i < brought.count; i++) {
        assert_ptr_equal(brought.piece[i].data, at);
        assert_true(brought.piece[i].bytes <= AHEAD_PIECE);
        at += brought.piece[i].bytes;
    }
    free(memory);
}

static void nothing_begins_farther_ahead_than_was_said(void **state)
{
    (void)state;
    uint8_t *memory = malloc(sizes[0] + sizes[1] + sizes[2]);
    struct read_ahead *a = open_parts(memory, AHEAD_PIECE + 1);
    assert_int_equal(settled(2 * AHEAD_PIECE), 2 * AHEAD_PIECE);
    ahead_passed(a, AHEAD_PIECE - 1);
    assert_int_equal(settled(2 * AHEAD_PIECE), 2 * AHEAD_PIECE);
    ahead_passed(a, 1);
    assert_int_equal(settled(sizes[0]), sizes[0]); /* the next part begins five bytes too far */
    ahead_passed(a, 5);
    assert_int_equal(settled(sizes[0] + 1), sizes[0] + 1);
    ahead_close(a); /* with a part left */
    assert_int_equal(bytes_brought(), sizes[0] + 1);
    free(memory);
}

static void a_mapped_file_is_read(void **state)
{
    (void)state;
    struct mapped_file file;
    struct read_ahead *a;
    qr_error err = {0};
    const char *path = source_path("tests/base/test_ahead.c");
    must(file_map(path, &file, &err), &err);
    must(ahead_open(&(struct ahead_part){file.data + 3, file.size - 3}, 1, 1, NULL, &a, &err), &err);
    ahead_passed(a, file.size);
    ahead_close(a);
    ahead_passed(NULL, 1);
    ahead_close(NULL);
    file_unmap(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_is_brought_once),
        cmocka_unit_test(nothing_begins_farther_ahead_than_was_said),
        cmocka_unit_test(a_mapped_file_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
