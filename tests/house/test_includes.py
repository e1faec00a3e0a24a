# label: once
"""No include goes upward in the house: a floor of src/ knows itself and the floors below it."""
import pathlib
import re

import house

FLOORS = "base number text checkpoint plan cache comm ops model sched run engine".split()
KNOWS = {floor: set(FLOORS[: i + 1]) for i, floor in enumerate(FLOORS)}
# sched is pure logic: no weight, no operator. The program's people and the server use the public header.
KNOWS["sched"] -= {"ops", "model"}
KNOWS["cli"] = {"cli", "serve", "base"}
KNOWS["serve"] = {"serve", "base"}
KNOWS["tools"] = set(FLOORS) | {"tools", "cli", "serve"}

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')


def faults_of(name):
    floor = name.split("/")[1]
    if floor not in KNOWS:
        yield f"{name}: src/{floor} is no floor of the house"
        return
    for number, line in enumerate((house.ROOT / name).read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match or match[1] == "quire.h":
            continue
        path = match[1]
        if not (house.ROOT / "src" / path).is_file() or ".." in path:
            yield f'{name}:{number}: "{path}" is not written floor/file.h'
        elif path.split("/")[0] not in KNOWS[floor]:
            yield f'{name}:{number}: {floor} includes "{path}", which is not below it'


sources = [n for n in house.files() if n.startswith("src/") and pathlib.Path(n).suffix in house.CODE]
house.end([fault for name in sources for fault in faults_of(name)], len(sources))
