# label: once
"""After cmake --install, pkg-config finds the library and a program of five lines runs with it."""
import os
import pathlib
import shutil
import subprocess
import tempfile

import house

PROGRAM = """
#include <quire.h>
#include <stdio.h>
int main(void) { return puts(qr_version()) < 0; }
"""

compiler = shutil.which("cc")
if not compiler or not shutil.which("pkg-config"):
    house.skip("cc or pkg-config is not here")

faults = []
with tempfile.TemporaryDirectory() as folder:
    prefix = pathlib.Path(folder) / "prefix"
    subprocess.run(["cmake", "--install", house.BUILD, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)
    pc = next(prefix.rglob("quire.pc"))
    library = str(next(prefix.rglob("libquire.so")).parent)
    flags = subprocess.run(["pkg-config", f"--define-variable=prefix={prefix}", "--cflags", "--libs", pc],
                           check=True, capture_output=True, text=True).stdout.split()
    source = pathlib.Path(folder) / "program.c"
    source.write_text(PROGRAM)
    subprocess.run([compiler, source, "-o", source.with_suffix(""), *flags], check=True)
    environment = dict(os.environ, LD_LIBRARY_PATH=library)
    version = subprocess.run([source.with_suffix("")], check=True, capture_output=True, text=True, env=environment).stdout
    program = subprocess.run([prefix / "bin/quire", "--version"], check=True, capture_output=True, text=True).stdout
    if program != f"quire {version}":
        faults.append(f"the program says {program!r}, the library {version!r}")
    if [p.name for p in (prefix / "include").iterdir()] != ["quire.h"]:
        faults.append("more than one header is installed")
    if not list(prefix.rglob("quire.1*")):
        faults.append("no man page is installed")
house.end(faults, 1)
