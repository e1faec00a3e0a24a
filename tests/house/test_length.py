# label: once
"""A source file has at most 800 lines: beyond that it is two modules that have not met yet."""
import pathlib

import house

MOST = 800
FOLDERS = ("src/", "include/", "tests/", "fuzz/", "bench/")

sources = [n for n in house.files() if n.startswith(FOLDERS) and not n.startswith("tests/golden/")
           and pathlib.Path(n).suffix in house.CODE | {".py"}]
faults = []
for name in sources:
    lines = (house.ROOT / name).read_bytes().count(b"\n")
    if lines > MOST:
        faults.append(f"{name}: {lines} lines, at most {MOST}")
house.end(faults, len(sources))
