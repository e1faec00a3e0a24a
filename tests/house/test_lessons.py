# label: once
"""docs/lessons.md names for every lesson, need and worked example a test that there is: a file, and a name or a check in it."""
import re

import house

LESSONS, NEEDS, EXAMPLES = 47, 31, 15
WANTED = [str(n) for n in range(1, LESSONS + 1)] + [f"C{n}" for n in range(1, NEEDS + 1)] + [f"E{n}" for n in range(1, EXAMPLES + 1)]
ROW = re.compile(r"^\| (\d+|[CE]\d+) \|[^|]+\| (.*) \|$")
HELD_BY = re.compile(r'`(tests/[^`]+)`((?: "[^"]+")+)')


def is_there(text, name, needle):
    """Whether the file holds it: a case of a golden file, a test that runs, or words of a check."""
    if name.endswith(".jsonl"):
        return re.search(r'"id": ?"%s"' % re.escape(needle), text)
    if re.fullmatch(r"[a-z0-9_]{12,}", needle):
        return re.search(r"_test\(%s\)" % needle, text)
    return needle in text


faults, found = [], []
for line in (house.ROOT / "docs/lessons.md").read_text().splitlines():
    row = ROW.match(line)
    if not row:
        continue
    found.append(row[1])
    held = HELD_BY.findall(row[2])
    if ", ".join(f"`{name}`{needles}" for name, needles in held) != row[2]:
        faults.append(f"{row[1]}: {row[2]}")
    for name, needles in held:
        path = house.ROOT / name
        text = path.read_text() if path.is_file() else ""
        faults += [f"{row[1]}: {name} has no {needle}" for needle in re.findall('"([^"]+)"', needles) if not is_there(text, name, needle)]
if found != WANTED:
    faults.append(f"found {found}, wanted 1 to {LESSONS}, C1 to C{NEEDS} and E1 to E{EXAMPLES} in their order")
house.end(faults, len(found))
