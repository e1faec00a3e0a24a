# label: release
"""/metrics (protocol.md 4.9): every name is documented and every documented name is there, with a help and a type; they count
what was asked."""
import os
import re
import sys

sys.path.insert(0, os.path.join(os.environ["QUIRE_SOURCE"], "tests", "support"))
from served import Faults, Served  # noqa: E402

f = Faults()
ASK = {"messages": [{"role": "user", "content": "Tell me of a dragon. " * 60}], "max_tokens": 8, "temperature": 0}


def documented():
    text = open(os.path.join(os.environ["QUIRE_SOURCE"], "docs", "server.md")).read()
    table = text.split("## Metrics\n")[1].split("\n## ")[0].split("|---|---|\n")[1].split("\n\n")[0]
    return set(re.findall(r"`(\w+)(?:\{[\w,]+\})?`", table))


def read(text, prefix):
    """Samples by name and labels; a fault for each without a head."""
    helps, types, samples = set(), {}, {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helps.add(line.split()[2])
        elif line.startswith("# TYPE "):
            types[line.split()[2]] = line.split()[3]
        else:
            name, value = line.rsplit(" ", 1)
            samples[name] = float(value)
            base = name.split("{")[0]
            family = re.sub("_(bucket|sum|count)$", "", base)
            family = family if types.get(family) == "histogram" else base
            f.expect("a help and a type", family in helps and family in types, line)
    return samples, {n[len(prefix):] for n in types if n.startswith(prefix)}


with Served("--metrics-alias-vllm") as s:
    for _ in range(2):
        s.post("/v1/chat/completions", ASK)
    s.stream("/v1/completions", {"prompt": "Once", "max_tokens": 8})
    s.post("/v1/chat/completions", {})
    samples, names = read(s.ask("GET", "/metrics")[2].decode(), "quire_")
    f.expect("names", names == documented(), (names - documented(), documented() - names))
    for name, value in (("quire_requests_finished_total{reason=\"length\"}", 3), ("quire_generation_tokens_total", 24),
                        ("quire_requests_total{endpoint=\"/chat/completions\",status=\"200\"}", 2),
                        ("quire_requests_total{endpoint=\"/chat/completions\",status=\"400\"}", 1), ("quire_requests_running", 0),
                        ("quire_e2e_seconds_count", 3), ("quire_first_byte_seconds_count", 3), ("vllm:generation_tokens_total", 24)):
        f.expect(name, samples.get(name) == value, samples.get(name))
    hit, looked = samples["quire_prefix_hit_tokens_total"], samples["quire_prefix_lookup_tokens_total"]
    f.expect("the second found the first", 0 < hit < looked and samples["quire_prefix_hit_ratio"] == hit / looked, (hit, looked))
    f.expect("steps", samples["quire_step_seconds_count"] == samples["quire_steps_total"] > 0 and samples["quire_process_cpu_seconds_total"] > 0, samples)
    f.expect("first bytes", samples["quire_first_byte_seconds_sum"] >= samples["quire_ttft_seconds_sum"] > 0, samples)
    f.expect("rows", samples['quire_rows_total{kind="prefill"}'] > 0 and samples["quire_state_bytes_moved_total{direction=\"saved\"}"] >= 0, samples)
sys.exit(1 if f.count else 0)
