#!/usr/bin/env python3
"""Hostile HTTP against the whole program: smuggling, slow and vanishing clients, browsers on other sites."""
import json
import os
import random
import socket
import threading
import time

from harness import Server, case, chat_body, comes, main, read_all

s = Server("--request-time", "1.5", "--stall-time", "1.5", "--connections", "64", "--ctx", "65536")
BODY = json.dumps(chat_body())
HEAD = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def ask(data, seconds=5):
    r = s.raw(data)
    text = read_all(r, seconds).decode("latin-1")
    r.close()
    return text


def refused(data, status):
    text = ask(data)
    assert text.startswith(f"HTTP/1.1 {status} "), (data, text)
    body = text.split("\r\n\r\n", 1)[1]
    assert json.loads(body)["error"]["message"], text
    assert "<html" not in text.lower() and "Connection: close" in text, text


@case("hostile", "two lengths, a length with Transfer-Encoding, odd lengths: 400 in JSON, and the connection closed")
def smuggling():
    n = len(BODY)
    for h in (f"Content-Length: {n}\r\nContent-Length: {n}\r\n", f"Content-Length: {n}\r\nContent-Length: 0\r\n",
              f"Content-Length: {n}, {n}\r\n", f"Content-Length: +{n}\r\n", f"Content-Length: {n}x\r\n",
              f"Content-Length : {n}\r\n", f"Content-Length: {n}\r\nTransfer-Encoding: chunked\r\n",
              f"Transfer-Encoding: chunked\r\nContent-Length: {n}\r\n", "Transfer-Encoding: chunked, identity\r\n",
              f"Content-Length:\r\n {n}\r\n", f"Content-Length: {n}\r\nHost: other\r\n"):
        refused(HEAD + h + "\r\n" + BODY, 400)
    refused(HEAD + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411)


@case("hostile", "broken request lines and headers, other protocols, too much of everything: own JSON errors")
def malformed():
    for data, status in ((b"GARBAGE\r\n\r\n", 400), (b"GET / HTTP/1.1\n\n", 400), (b"GET / HTTP/3.0\r\n\r\n", 505),
                         (b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03\n", 400), (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
                         (b"GET / HTTP/1.1\r\n\r\n", 400), (b"GET /%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
                         (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: \x00\r\n\r\n", 400),
                         (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
                         (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 40000 + b"\r\n\r\n", 431),
                         (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414)):
        refused(data, status)


@case("hostile", "slow bytes do not help: a request that is not whole in time is shut")
def slow():
    parts = [s.raw(), s.raw("GET"), s.raw(HEAD + "Content-Length: 100\r\n\r\n{")]
    t0 = time.monotonic()
    alive = set(range(3))
    while alive and time.monotonic() - t0 < 6:
        time.sleep(0.2)
        for i in list(alive):
            try:
                if i:
                    parts[i].sendall(b" ")
                parts[i].settimeout(0.01)
                if not parts[i].recv(4096):
                    alive.discard(i)
            except TimeoutError:
                pass
            except OSError:
                alive.discard(i)
    assert not alive, alive
    for p in parts:
        p.close()


@case("hostile", "a client that does not read its stream stalls only itself, and is cut")
def unread():
    body = json.dumps(chat_body("say " + "word " * 4000 + "\nloop", stream=True, max_tokens=60000))
    r = socket.socket()
    r.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    r.connect(("127.0.0.1", s.port))
    r.sendall((HEAD + f"Content-Length: {len(body)}\r\n\r\n{body}").encode())
    assert s.runs()
    t0 = time.monotonic()
    assert s.chat()["choices"][0]["message"]["content"] == "Hello there."
    assert time.monotonic() - t0 < 5
    assert s.idle(12), "the stalled stream still runs"
    r.close()


@case("hostile", "a half-closed client counts as gone")
def half_closed():
    body = json.dumps(chat_body("slow 50\nsay " + "a b c d " * 200))
    r = s.raw(HEAD + f"Content-Length: {len(body)}\r\n\r\n{body}")
    assert s.runs()
    r.shutdown(socket.SHUT_WR)
    assert s.idle(3)
    r.close()


@case("hostile", "more connections than the limit: 503 in JSON, and service goes on after")
def crowd():
    crowd_ = [s.raw() for _ in range(110)]
    health = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert comes(lambda: " 503 " in ask(health).split("\r\n")[0])
    text = ask(health)
    assert " 503 " in text.split("\r\n")[0] and json.loads(text.split("\r\n\r\n", 1)[1])["error"], text
    for c in crowd_:
        c.close()
    assert comes(lambda: s.json("GET", "/health")[0] == 200)


@case("hostile", "pipelined requests: the second is not served unseen")
def pipelined():
    get = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    text = ask(get + "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert text.count("HTTP/1.1 ") == 1 and "Connection: close" in text, text


@case("browsers", "Host must be loopback or configured (DNS rebinding): 403")
def hosts():
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "192.168.0.1", "evil.example:80"):
        text = ask(f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
        assert " 403 " in text.split("\r\n")[0], text
    for host in ("localhost", "127.0.0.1", "[::1]", f"localhost:{s.port}", "LOCALHOST"):
        text = ask(f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
        assert " 200 " in text.split("\r\n")[0], text
    k = Server("--allow-host", "box.lan,other", "--allow-origin", "https://ui.example")
    for headers, status in (({"Host": "box.lan:9"}, 200), ({"Host": "x.lan"}, 403), ({"Origin": "https://ui.example"}, 200),
                            ({"Origin": "https://ui.example.evil"}, 403)):
        assert k.request("GET", "/v1/models", headers=headers)[0] == status, headers
    k.kill()


@case("browsers", "a foreign Origin is refused, POST needs application/json; no CORS headers")
def origins():
    for o in ("http://evil.example", "null", "https://localhost.evil.example", "file://"):
        assert s.request("POST", "/v1/chat/completions", chat_body(), {"Origin": o})[0] == 403
    status, headers, _ = s.request("POST", "/v1/chat/completions", chat_body(), {"Origin": f"http://127.0.0.1:{s.port}"})
    assert status == 200 and not any(h.lower().startswith("access-control") for h in headers)
    for t in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx"):
        assert s.request("POST", "/v1/chat/completions", BODY, {"Content-Type": t})[0] == 415
    assert s.request("OPTIONS", "/v1/chat/completions", headers={"Origin": "http://evil.example"})[0] == 403


@case("browsers", "the page: content security policy without inline script, nothing from outside")
def page():
    status, headers, html = s.request("GET", "/")
    assert status == 200 and "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"] and headers["X-Content-Type-Options"] == "nosniff"
    _, _, js = s.request("GET", "/chat.js")
    for word in (b"innerHTML", b"insertAdjacent", b"document.write", b"eval(", b"http://", b"https://"):
        assert word not in js and word not in html, word
    assert b"<script>" not in html and b"onclick" not in html and b"style=" not in html


@case("hostile", "random bytes and random cuts of good requests: the server lives, nothing stays open")
def noise():
    rng = random.Random(int(os.environ.get("KONDENSE_TEST_SEED", "5")))
    good = (HEAD + f"Content-Length: {len(BODY)}\r\n\r\n{BODY}").encode()

    def one(seed):
        r = random.Random(seed)
        data = bytearray(good)
        for _ in range(r.randrange(0, 12)):
            data[r.randrange(len(data))] = r.randrange(256)
        try:
            c = s.raw(bytes(data[:r.randrange(1, len(data) + 1)]))
            c.settimeout(0.2)
            try:
                c.recv(4096)
            except OSError:
                pass
            c.close()
        except OSError:
            pass
    threads = [threading.Thread(target=lambda: [one(rng.random()) for _ in range(25)]) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert s.idle(5)
    assert comes(lambda: s.metric("kondense_connections") <= 2) and s.p.poll() is None
    assert s.chat()["choices"][0]["message"]["content"] == "Hello there."


if __name__ == "__main__":
    main()
