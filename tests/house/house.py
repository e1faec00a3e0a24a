"""What the tests of the house share: where it is, what belongs to it, how a test ends."""
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(os.environ.get("QUIRE_SOURCE") or pathlib.Path(__file__).parents[2])
BUILD = pathlib.Path(os.environ.get("QUIRE_BUILD") or ROOT / "build/release")
CODE = {".c", ".h", ".cu", ".cuh"}


def files():
    """Every file that belongs to the project: what git tracks or would add; without git, all that is there."""
    git = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                         capture_output=True)
    if git.returncode == 0:
        names = [os.fsdecode(n) for n in git.stdout.split(b"\0") if n]
    else:
        names = [str(p.relative_to(ROOT)) for p in ROOT.rglob("*")]
    return sorted(n for n in names if not n.startswith("build/") and (ROOT / n).is_file())


def end(faults, looked_at):
    """Prints the faults and leaves: a test that looked at nothing has failed too."""
    for fault in faults:
        print(fault)
    print(f"{looked_at} looked at, {len(faults)} faults")
    sys.exit(1 if faults or not looked_at else 0)


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)
