# label: release
"""Heads of requests at their limits and beyond (protocol.md 4.1): what can be answered is answered as everything is, with an
error object and a request id; what libmicrohttpd answers itself is what docs/server.md names."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.environ["QUIRE_SOURCE"], "tests", "support"))
from served import Faults, Served  # noqa: E402

f = Faults()
HOST = b"Host: x\r\nConnection: close\r\n"


def refused(s, what, data, status, word):
    """One answer, with the documented error object."""
    got = s.raw(data)
    head, _, body = got.partition(b"\r\n\r\n")
    ours = head.startswith(b"HTTP/1.1 %d " % status) and b"\r\nx-request-id: req_" in head and b"application/json" in head
    f.expect(what, ours and got.count(b"HTTP/1.1") == 1 and word in json.loads(body)["error"]["message"], got[:300])


def heads(s):
    get = lambda path, more=b"": b"GET " + path + b" HTTP/1.1\r\n" + HOST + more + b"\r\n"
    post = lambda more: b"POST /tokenize HTTP/1.1\r\n" + HOST + more + b"\r\n\r\n{}"
    refused(s, "no host", b"GET /health HTTP/1.1\r\n\r\n", 400, "Host")
    refused(s, "a space in a name", get(b"/health", b"a b: x\r\n"), 400, "header")
    refused(s, "a space before the colon", get(b"/health", b"a : x\r\n"), 400, "header")
    refused(s, "two lengths", post(b"Content-Length: 2\r\nContent-Length: 3"), 400, "two ways")
    refused(s, "a length and chunks", post(b"Content-Length: 2\r\nTransfer-Encoding: chunked"), 400, "two ways")
    refused(s, "another coding", post(b"Transfer-Encoding: gzip"), 400, "gzip")
    refused(s, "a body that is too large", post(b"Content-Length: 67108865"), 413, "67108865")
    refused(s, "a path that is too long", get(b"/" + b"x" * 8192), 414, "8193")
    refused(s, "a query that is too long", get(b"/health?" + b"x" * 8185), 414, "8193")
    f.expect("the longest query", s.raw(get(b"/health?" + b"x" * 8184)).startswith(b"HTTP/1.1 200"), "")
    small = len(get(b"/health", b"a: \r\n"))
    f.expect("the largest headers", s.raw(get(b"/health", b"a: " + b"x" * (65536 - small) + b"\r\n")).startswith(b"HTTP/1.1 200"), "")
    refused(s, "one byte more", get(b"/health", b"a: " + b"x" * (65537 - small) + b"\r\n"), 431, "65537 bytes, at most 65536")
    refused(s, "much more", get(b"/health", b"a: " + b"x" * 120000 + b"\r\n"), 431, "at most 65536")


def answers_of_the_library(s):
    """Statuses that clients can rely on, and a connection that ends; the words are not ours."""
    for what, data, status in (
            ("no version", b"GET /health\r\n\r\n", 400), ("no colon", b"GET /health HTTP/1.1\r\n" + HOST + b"nocolon\r\n\r\n", 400),
            ("another version", b"GET /health HTTP/2.0\r\n" + HOST + b"\r\n", 505),
            ("no number", b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Content-Length: abc\r\n\r\n{}", 400),
            ("a length beyond 64 bits", b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Content-Length: " + b"9" * 23 + b"\r\n\r\n{}", 413),
            ("a chunk beyond 64 bits", b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 18 + b"\r\n", 413),
            ("no chunk", b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
            ("far too large", b"GET /health HTTP/1.1\r\n" + HOST + b"a: " + b"x" * 200000 + b"\r\n\r\n", 431)):
        got = s.raw(data)
        f.expect(what, got.startswith(b"HTTP/1.1 %d " % status), got[:200])
    f.expect("it still answers", s.ask("GET", "/health")[0] == 200, "")


with Served() as s:
    heads(s)
    answers_of_the_library(s)
f.expect("a quiet end", s.status == 0, (s.status, s.said))
sys.exit(1 if f.count else 0)
