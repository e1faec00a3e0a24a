"""The manual page lists what --help lists: every command, every part of it, every option with its value, and no other. And
docs/server.md names every option that the server alone has, and none that it has not."""
import os
import re
import subprocess
import sys

PROGRAM = os.environ["QUIRE_PROGRAM"]
PAGE = os.path.join(os.environ["QUIRE_SOURCE"], "docs", "quire.1")
faults = 0


def expect(what, found, wanted):
    global faults
    if found != wanted:
        faults += 1
        print(f"{what}: the text has {sorted(found - wanted)} too much and lacks {sorted(wanted - found)}")


def helped(*line):
    return subprocess.run([PROGRAM, *line, "--help"], capture_output=True, text=True, check=True).stdout


def names_below(text, heading):
    """First words of the lines of a list of commands."""
    return [line.split()[0] for line in text.split(heading + ":\n")[1].splitlines() if line.startswith("  ")]


def helped_options(*line):
    """ "-n, --max-tokens N" for every option but --help. Names stand two blanks or a line's end before their text."""
    rows = [row for row in helped(*line).split("Options:\n")[1].splitlines() if re.match(r"  (-\w,|    --)", row)]
    return {re.split(r"  +", row.strip())[0] for row in rows} - {"-h, --help"}


def plain(line):
    """The words behind a line's macro, without quotes and escapes: BI sets them side by side."""
    words = re.findall(r'"([^"]*)"|([^\s"]+)', line.split(None, 1)[1])
    return re.sub(r"\\(.)", r"\1", "".join(a or b for a, b in words))


sections, title = {}, None
page = open(PAGE).read().splitlines()
for number, line in enumerate(page):
    if line.startswith((".SH ", ".SS ")):
        title = line[4:].lower()
        sections[title] = {"options": set(), "text": ""}
    elif title:
        sections[title]["text"] += line + "\n"
        if page[number - 1] == ".TP" and "\\-" in line:
            sections[title]["options"].add(plain(line))

commands = names_below(helped(), "Commands")
parts = [f"text {part}" for part in names_below(helped("text"), "Parts")]
listed = [c for c in commands if c != "text"] + parts
expect("commands", {t[6:] for t in sections if t.startswith("quire ")}, set(listed))
for command in listed:
    section = sections.get(f"quire {command}", {"options": set(), "text": ""})
    found = set(section["options"])
    for group in re.findall(r"the (\w+ options)", section["text"]):
        found |= sections[group]["options"]
    expect(f"quire {command}", found, helped_options(*command.split()))


def option_names(*line):
    return {name for row in helped_options(*line) for name in re.findall(r"--[a-z0-9-]+", row)}


text = open(os.path.join(os.environ["QUIRE_SOURCE"], "docs", "server.md")).read()
of_others = {"--concurrency", "--model_args", "--tasks"}  # of quire generate and lm_eval, which it quotes
named = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)) - of_others - {"--help"}
own = option_names("serve") - option_names("generate")
expect("docs/server.md, options of the server", named & own, own)
expect("docs/server.md, options", named, named & option_names("serve"))
sys.exit(faults != 0)
