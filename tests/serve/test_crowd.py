# label: full
"""A thousand connections of which half go away at random: nothing leaks, and who stays gets the answers of an idle server."""
import asyncio
import json
import os
import random
import resource
import socket
import sys
import time

sys.path.insert(0, os.path.join(os.environ["QUIRE_SOURCE"], "tests", "support"))
from served import Faults, Served, until  # noqa: E402

CROWD, KINDS = 1000, 12
os.environ["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=8"  # memory that is free is used again there too
f = Faults()
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
if limits[1] < 2 * CROWD:
    print(f"skipped: a process may open {limits[1]} files here")
    sys.exit(77)


def request(kind):
    return {"messages": [{"role": "user", "content": f"Tell me story number {kind % 4}."}], "max_tokens": 6 + kind, "temperature": kind % 2,
            "seed": kind, "stream": kind % 3 == 0, "thinking": {"type": "disabled"}}


def text_of(body):
    """The words of an answer, streamed or not."""
    if body.startswith("{"):
        return json.loads(body)["choices"][0]["message"]["content"]
    chunks = [json.loads(line[6:]) for line in body.split("\n") if line.startswith("data: {")]
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks)


def plain(data):
    """The body of a response; chunks are put together."""
    head, _, rest = data.partition(b"\r\n\r\n")
    if b"chunked" not in head.lower():
        return rest.decode()
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        if not int(size, 16):
            break
        body, rest = body + rest[:int(size, 16)], rest[int(size, 16) + 2:]
    return body.decode()


async def client(s, kind, leaves):
    reader, writer = await asyncio.open_connection(s.host, s.port)
    body = json.dumps(request(kind)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    if leaves is not None and leaves < 0.2:  # in the middle of its own request
        writer.write(head + body[:len(body) // 2])
        await writer.drain()
        writer.transport.abort()
        return None
    writer.write(head + body)
    await writer.drain()
    if leaves is not None:
        try:
            await asyncio.wait_for(reader.read(1 if leaves > 3 else 1 << 20), leaves)
        except asyncio.TimeoutError:
            pass
        writer.transport.abort()
        return None
    data = await reader.read()
    writer.close()
    return plain(data)


async def crowd(s):
    chance = random.Random(5)
    plans = [(chance.randrange(KINDS), chance.uniform(0, 6) if i % 2 else None) for i in range(CROWD)]
    return plans, await asyncio.gather(*(client(s, *plan) for plan in plans))


def memory(s):
    return int(open(f"/proc/{s.process.pid}/statm").read().split()[1]) * 4096


def slow_reader(s):
    """Answers that nobody reads rest when enough of them waits. That is no work that stands still: /health says so."""
    c = socket.create_connection((s.host, s.port), 60)
    body = json.dumps({**request(1), "n": 15, "max_tokens": 1900, "ignore_eos": True, "stream": True, "logprobs": True, "top_logprobs": 20}).encode()
    c.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    f.expect("they rest", until(lambda: s.metric("requests_paused") == 15, 300), s.metric("requests_paused"))
    f.expect("another is answered", text_of(asyncio.run(client(s, 0, None))) == text_of(asyncio.run(client(s, 0, None))), "")
    end = time.monotonic() + 13
    while time.monotonic() < end and s.metric("requests_paused") == 15:
        health = s.ask("GET", "/health")
        f.expect("the server is well", health[0] == 200, health)
        time.sleep(1)
    c.close()
    f.expect("they end with their reader", until(lambda: s.metric("requests_running") == 0), "")


with Served("--quiet", "--max-queue", "2000", "--max-num-seqs", "16", "--max-model-len", "2048") as s:
    alone = {k: text_of(asyncio.run(client(s, k, None))) for k in range(KINDS)}
    free, open_files = s.metric('kv_blocks{state="free"}'), len(os.listdir(f"/proc/{s.process.pid}/fd"))
    before = memory(s)
    plans, answers = asyncio.run(crowd(s))
    wrong = [(plan, text_of(a), alone[plan[0]]) for plan, a in zip(plans, answers) if plan[1] is None and text_of(a) != alone[plan[0]]]
    f.expect("the answers of an idle server", not wrong, wrong[:2])
    f.expect("everything ends", until(lambda: s.metric("requests_running") == 0 and s.metric("requests_waiting") == 0, 60), "")
    f.expect("no page is lost", until(lambda: s.metric('kv_blocks{state="free"}') == free), (s.metric('kv_blocks{state="free"}'), free))
    # libmicrohttpd, where it is late, misses the end of a connection that comes with the last bytes, until 60 or 120 seconds have passed
    f.expect("no file stays open", until(lambda: len(os.listdir(f"/proc/{s.process.pid}/fd")) <= open_files + 2, 180), os.listdir(f"/proc/{s.process.pid}/fd"))
    for _ in range(2):  # what a second crowd takes was taken by the first
        level = memory(s)
        asyncio.run(crowd(s))
        until(lambda: s.metric("requests_running") == 0, 60)
    f.expect("memory stays where it is", memory(s) < level + (24 << 20), (before, level, memory(s)))
    slow_reader(s)
f.expect("a quiet end", s.status == 0 and s.said == "", (s.status, s.said[-500:]))
sys.exit(1 if f.count else 0)
