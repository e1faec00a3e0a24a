#!/usr/bin/env python3
"""What the server costs: 16 streams at once beside `quire generate --concurrency 16` with the same requests, in one run.

    bench/serve_overhead.py [--program build/release/quire] [--model models/tiny-v41] [--streams 16] [--tokens 256] [--rounds 3]

Prints tokens a second of both, their ratio, and the median and largest gap between two chunks of a stream."""
import argparse
import http.client
import json
import statistics
import subprocess
import tempfile
import threading
import time

a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
a.add_argument("--program", default="build/release/quire")
a.add_argument("--model", default="models/tiny-v41")
a.add_argument("--streams", type=int, default=16)
a.add_argument("--tokens", type=int, default=256)
a.add_argument("--rounds", type=int, default=3)
o = a.parse_args()
COMMON = ["--model", o.model, "--kv-ram-bytes", "200000000", "--max-model-len", "4096", "--quiet"]


def request(i):
    return {"messages": [{"role": "user", "content": f"Tell me story number {i}."}], "max_tokens": o.tokens, "temperature": 1, "seed": i, "ignore_eos": True}


def by_generate():
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for i in range(o.streams):
            file.write(json.dumps({"id": i, **request(i)}) + "\n")
        file.flush()
        line = [o.program, "generate", *COMMON, "--requests", file.name, "--concurrency", str(o.streams)]
        empty = time.monotonic()  # loading is no part of it: the same with one token each
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as short:
            short.write(json.dumps({"id": 0, **request(0), "max_tokens": 1}) + "\n")
            short.flush()
            subprocess.run([*line[:-4], "--requests", short.name, "--concurrency", "1"], check=True, capture_output=True)
        loading = time.monotonic() - empty
        begun = time.monotonic()
        subprocess.run(line, check=True, capture_output=True)
        return o.streams * o.tokens / (time.monotonic() - begun - loading)


def by_serve(port):
    gaps, lock = [], threading.Lock()

    def client(i):
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        c.request("POST", "/v1/chat/completions", json.dumps({**request(i), "stream": True}))
        r, last, mine = c.getresponse(), None, []
        while line := r.readline():
            if line.startswith(b"data: {"):
                now = time.monotonic()
                mine += [now - last] if last else []
                last = now
        with lock:
            gaps.extend(mine)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(o.streams)]
    begun = time.monotonic()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return o.streams * o.tokens / (time.monotonic() - begun), gaps


with subprocess.Popen([o.program, "serve", *COMMON, "--max-num-seqs", str(o.streams), "--port", "0"], stdout=subprocess.PIPE) as server:
    port = int(server.stdout.readline().decode().rsplit(":", 1)[1])
    for n in range(o.rounds):
        alone = by_generate()
        served, gaps = by_serve(port)
        print(f"round {n}: generate {alone:.1f} tokens/s, serve {served:.1f} tokens/s, ratio {served / alone:.3f}; "
              f"between chunks {1000 * statistics.median(gaps):.1f} ms, at most {1000 * max(gaps):.1f} ms", flush=True)
    server.terminate()
