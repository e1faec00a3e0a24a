#include "base/memory.h"

#include <stdbool.h>
#include <stdio.h>

/* The number behind `key` in a file of "key number" lines; false when there is none. */
static bool read_field(const char *path, const char *format, int64_t *out)
{
    char line[256];
    long long value;
    bool found = false;
    FILE *f = fopen(path, "re");
    while (f && !found && fgets(line, sizeof line, f))
        found = sscanf(line, format, &value) == 1;
    if (f)
        fclose(f);
    if (found)
        *out = value;
    return found;
}

int64_t memory_available(void)
{
    int64_t free_kib = 0, limit, used, cache = 0;
    int64_t bytes = read_field("/proc/meminfo", "MemAvailable: %lld kB", &free_kib) ? free_kib * 1024 : 0;
    /* A container sees its own group at the root of the unified hierarchy; pages of files can be dropped. */
    if (!read_field("/sys/fs/cgroup/memory.max", "%lld", &limit) ||
        !read_field("/sys/fs/cgroup/memory.current", "%lld", &used))
        return bytes;
    (void)read_field("/sys/fs/cgroup/memory.stat", "inactive_file %lld", &cache);
    int64_t left = limit - used + cache;
    if (left < 0)
        left = 0;
    return bytes == 0 || left < bytes ? left : bytes;
}
