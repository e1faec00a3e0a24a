# label: once
"""No file of the project names a place of the machine it was written on."""
import re

import house

# In two pieces, or this file would be the first fault.
PLACE = re.compile(rb"(?<![\w./~<-])/(?:wo" rb"rk|ro" rb"ot|tm" rb"p|ho" rb"me/\w+|Us" rb"ers/\w+)(?:/|\b)")

names = house.files()
faults = []
for name in names:
    data = (house.ROOT / name).read_bytes()
    if b"\0" in data:
        continue
    for number, line in enumerate(data.splitlines(), 1):
        match = PLACE.search(line)
        if match:
            faults.append(f"{name}:{number}: {match[0].decode()}")
house.end(faults, len(names))
