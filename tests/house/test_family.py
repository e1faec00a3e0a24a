# label: once
"""Both families are data: no code outside plan, checkpoint, text and model asks which one it has before it."""
import pathlib
import re

import house

MAY_ASK = {"plan", "checkpoint", "text", "model"}
ASKS = re.compile(r"\bfamily\s*[!=]=|[!=]=\s*QR_FAMILY_|\bcase\s+QR_FAMILY_|\bswitch\s*\([^)]*\bfamily\b")

sources = [n for n in house.files() if n.startswith("src/") and pathlib.Path(n).suffix in house.CODE
           and n.split("/")[1] not in MAY_ASK]
faults = []
for name in sources:
    for number, line in enumerate((house.ROOT / name).read_text().splitlines(), 1):
        if ASKS.search(line):
            faults.append(f"{name}:{number}: asks for the family")
house.end(faults, len(sources))
