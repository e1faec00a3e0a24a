# label: once
"""The plots of docs/performance.md are what tools/plot draws from its tables, and the page shows each of them."""
import importlib.machinery
import importlib.util

import house

path = str(house.ROOT / "tools/plot")
spec = importlib.util.spec_from_loader("plot", importlib.machinery.SourceFileLoader("plot", path))
plot = importlib.util.module_from_spec(spec)
house.sys.dont_write_bytecode = True
spec.loader.exec_module(plot)

text = (house.ROOT / "docs/performance.md").read_text()
faults = []
drawn = plot.pictures(text)
for name, svg in drawn.items():
    file = house.ROOT / f"docs/plots/{name}.svg"
    if not file.is_file() or file.read_text() != svg:
        faults.append(f"docs/plots/{name}.svg is not what tools/plot draws: run it")
    if f"(plots/{name}.svg)" not in text:
        faults.append(f"docs/performance.md does not show plots/{name}.svg")
for file in (house.ROOT / "docs/plots").glob("*"):
    if file.stem not in drawn:
        faults.append(f"{file.name} is drawn by nobody")
house.end(faults, len(drawn))
