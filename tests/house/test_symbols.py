# label: once
"""What the built library shows and uses: exports begin with qr_; memory comes from base/alloc.c; nothing prints, exits or
aborts; no variable outlives a call."""
import re
import subprocess

import house

# Functions that take memory past base/alloc.h, print, or end the process.
FORBIDDEN = set("""malloc calloc realloc free reallocarray strdup strndup __strdup asprintf vasprintf __asprintf_chk
    __vasprintf_chk getline getdelim posix_memalign aligned_alloc memalign open_memstream printf puts putchar vprintf
    __printf_chk __vprintf_chk perror exit _exit _Exit abort __assert_fail""".split())
EXEMPT = {"alloc.c.o": {"malloc", "calloc", "realloc", "free", "posix_memalign"}}


def tool(*line):
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout


def exports():
    """Name of every symbol that the shared library offers."""
    for line in tool("nm", "-D", "--defined-only", house.BUILD / "libquire.so").splitlines():
        yield line.split()[-1]


def members(text):
    """Splits the output of a tool over an archive into (object file, its lines)."""
    name, lines = None, []
    for line in text.splitlines():
        header = re.match(r"^(\S+\.o):", line)
        if header:
            if name:
                yield name, lines
            name, lines = header[1], []
        elif line.strip():
            lines.append(line)
    if name:
        yield name, lines


faults = []
looked_at = 0
for symbol in exports():
    looked_at += 1
    if not symbol.startswith("qr_"):
        faults.append(f"libquire.so exports {symbol}, which does not begin with qr_")

archive = house.BUILD / "libquire.a"
for name, lines in members(tool("nm", "-u", archive)):
    for symbol in {line.split()[-1] for line in lines} & FORBIDDEN - EXEMPT.get(name, set()):
        faults.append(f"{name} calls {symbol}")
for name, lines in members(tool("objdump", "-t", archive)):
    looked_at += 1
    for line in lines:
        entry = re.match(r"^[0-9a-f]+ .{7} (\S+)\s+[0-9a-f]*[1-9a-f][0-9a-f]*\s+(.*)$", line)
        if entry and re.match(r"\.(data|bss|tdata|tbss)(?!\.rel\.ro)|\*COM\*", entry[1]):
            faults.append(f"{name} has the variable {entry[2]} in {entry[1]}")
house.end(faults, looked_at)
