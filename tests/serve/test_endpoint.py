#!/usr/bin/env python3
"""kondense check --battery --endpoint: a server gets the battery. Against our own server the figures are those of
the local check; against small servers that know all answers, know no tools, talk nonsense, hang or are gone, each
ends with the right figures or one clear line."""
import http.server
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import threading
import time

from harness import DATA, NANO, Server, case, main

BATTERY = DATA / "agent-battery.json"
items = json.loads(BATTERY.read_text())
tmp = tempfile.TemporaryDirectory()
TMP = pathlib.Path(tmp.name)


def turn(item):
    """The expected turn as a server says it."""
    text, thinking = item["expected_text"], item["request"].get("thinking", True)
    m = {"role": "assistant", "content": None}
    if thinking:
        m["reasoning_content"], text = text.split("<|close|>think<|sep|>", 1)
        text = text.removeprefix("<|open|>response<|sep|>")
    m["content"] = text.split("<|close|>response<|sep|>", 1)[0]
    if item["expected_call"]:
        f = item["expected_call"]
        m["tool_calls"] = [{"id": "c", "type": "function",
                            "function": {"name": f["name"], "arguments": json.dumps(f["arguments"])}}]
    return m


class Fake:
    """answer(body, count, handler) gives (status, headers, bytes or object), or None when it has done all itself."""

    def __init__(self, answer, models=("m",)):
        fake = self
        self.seen, self.heads, self.lock = [], [], threading.Lock()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *a):
                pass

            def send(self, status, headers, data):
                if not isinstance(data, bytes):
                    data = json.dumps(data).encode()
                self.send_response(status)
                for k, v in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
                    self.send_header(k, v)
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                fake.heads.append(dict(self.headers))
                self.send(200, {}, {"object": "list", "data": [{"id": m} for m in models]})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with fake.lock:
                    fake.seen.append(body)
                    fake.heads.append(dict(self.headers))
                    count = len(fake.seen)
                r = answer(body, count, self)
                if r:
                    self.send(*r)

        class Quiet(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request, client_address):
                pass

        self.s = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.s.server_address[1]}/v1"
        threading.Thread(target=self.s.serve_forever, daemon=True).start()


def said(message, finish="stop"):
    return 200, {}, {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": finish}]}


def find(body):
    return next(i for i in items if i["request"]["messages"] == body["messages"] and
                i["request"].get("tools") == body.get("tools") and
                i["request"]["thinking"] == body["chat_template_kwargs"]["thinking"])


def right(body, count, handler):
    return said(turn(find(body)))


def check(*args, rows=12, battery=BATTERY, env=None):
    """(exit code, figures, standard output, standard error)"""
    out = TMP / "figures.json"
    out.unlink(missing_ok=True)
    p = subprocess.run([os.environ["KONDENSE"], "check", "--battery", battery, "--battery-rows", str(rows), "--json", out,
                        *map(str, args)], capture_output=True, text=True, timeout=120, env={**os.environ, **(env or {})})
    return p.returncode, json.loads(out.read_text()) if out.exists() else None, p.stdout, p.stderr


def fails(code, words, *args, **kw):
    rc, figures, _, err = check(*args, **kw)
    assert (rc, figures) == (code, None), (rc, figures, err)
    assert words in err and err.count("\n") == 1, err
    return err


@case("endpoint", "our own server's figures are those of the local check")
def agree():
    rows = 16
    s = Server("--ctx", "4096", fake=False)
    url = f"http://127.0.0.1:{s.port}"
    rc, r, out, _ = check(NANO, "--endpoint", url, rows=rows)
    assert rc == 0, out
    rc, l, out, _ = check(NANO, NANO, rows=rows)
    assert rc == 0, out
    s.stop()
    for key in ("exact", "calls"):
        b = r["battery"][key]
        assert b == l["battery"][key], (key, b, l["battery"][key])
        assert 0 < b["dst"] < 1 and b["src"] == b["dst"] and b["right_to_wrong"] == b["wrong_to_right"] == 0, b
    assert r["battery"]["tokens"] == l["battery"]["tokens"] and r["battery"]["kld"] is None
    assert r["battery"]["sha256"] == l["battery"]["sha256"]
    assert r["battery"]["endpoint"]["shows_thinking"] and r["battery"]["endpoint"]["model"] == "k3-nano"


@case("endpoint", "all answers right: 1 and 1; the request is greedy, keeps the tools, and the key is in no other place")
def perfect():
    key, page = TMP / "key", TMP / "page.html"
    key.write_text("# mine\nsk-secret\n")
    key.chmod(0o600)
    f = Fake(right)
    rc, r, out, err = check("--endpoint", f.url, "--key-file", key, "--html", page, "--require",
                            "battery.exact=1,battery.calls=1", rows=60)
    assert rc == 0, err
    b = r["battery"]
    assert b["exact"]["dst"] == b["calls"]["dst"] == 1 and b["exact"]["src"] is None and b["requests"] == 60
    assert r["pass"] is True and r["bits"] is None and b["kld"] is None and b["tokens"] is None
    assert b["endpoint"]["thinking_shown"] == b["endpoint"]["thinking_expected"] > 0
    assert "not measured" in out and "100.0 %" in out, out
    html = page.read_text()
    assert "not measured" in html and "Valid tool calls" in html and "60 of 60" in html
    assert "sk-secret" not in html + out + err + json.dumps(r)
    assert len(f.seen) == 60 and len(f.heads) == 61
    assert all(h["Authorization"] == "Bearer sk-secret" for h in f.heads)
    for q in f.seen:
        assert q["temperature"] == 0 and q["stream"] is False and q["model"] == "m" and q["max_tokens"] > 32, q
        assert "thinking" not in q and "thinking_effort" not in q
    assert any("thinking_effort" in q["chat_template_kwargs"] for q in f.seen)
    again = check("--endpoint", f.url)[1], check("--endpoint", f.url, "--parallel", 1)[1]
    assert again[0] == again[1]
    assert "Authorization" not in f.heads[-1]


@case("endpoint", "what makes a turn wrong: thinking, answer, arguments, a second call, the token limit")
def wrong():
    def spoil(m, how):
        if how == "think":
            m["reasoning_content"] = m.get("reasoning_content", "") + " Well."
        elif how == "answer":
            m["content"] += " "
        elif how == "arguments" and "tool_calls" in m:
            m["tool_calls"][0]["function"]["arguments"] = '{"broken": '
        elif how == "twice" and "tool_calls" in m:
            m["tool_calls"] *= 2
        elif how == "list" and "tool_calls" in m:
            m["tool_calls"][0]["function"]["arguments"] = "[1]"
        return m
    calls = sum(i["expected_call"] is not None for i in items[:24])
    thinks = sum(i["request"]["thinking"] for i in items[:24])
    for how, exact, call in (("none", 24, 24), ("think", 0, 24), ("answer", 0, 24), ("arguments", 24 - calls, 24 - calls),
                             ("twice", 24 - calls, 24 - calls), ("list", 24 - calls, 24 - calls), ("length", 0, 0)):
        f = Fake(lambda q, n, h: said(spoil(turn(find(q)), how), "length" if how == "length" else "tool_calls"))
        rc, r, _, err = check("--endpoint", f.url, rows=24)
        b = r["battery"]
        assert (round(b["exact"]["dst"] * 24), round(b["calls"]["dst"] * 24)) == (exact, call), (how, b)
    assert 0 < thinks < 24


@case("endpoint", "a server without tools and thinking: the turns without either are right, and the rest is said")
def plain():
    def answer(q, n, h):
        m = turn(find(q))
        return said({"role": "assistant", "content": m["content"] or "I cannot call tools."})
    rc, r, out, err = check("--endpoint", Fake(answer).url, rows=40)
    quiet = sum(i["expected_call"] is None for i in items[:40])
    b = r["battery"]
    assert rc == 0 and round(b["exact"]["dst"] * 40) == round(b["calls"]["dst"] * 40) == quiet > 0, b
    assert b["endpoint"]["shows_thinking"] is False and "shows no thinking" in out, out

    def refuse(q, n, h):
        return (400, {}, {"error": {"message": "tools are <b>not</b> supported\x1b[2J"}}) if q.get("tools") else right(q, n, h)
    order = sorted(items[:40], key=lambda i: "tools" in i["request"])
    some = TMP / "some.json"
    some.write_text(json.dumps(order))
    page = TMP / "page.html"
    rc, r, out, err = check("--endpoint", Fake(refuse).url, "--html", page, "--parallel", 1, rows=40, battery=some)
    tools = sum("tools" in i["request"] for i in order)
    b = r["battery"]
    assert rc == 0 and b["endpoint"]["refused"] == tools and round(b["exact"]["dst"] * 40) == 40 - tools, (rc, b, err)
    assert b["endpoint"]["first_refusal"] == "400: tools are <b>not</b> supported?[2J", b
    assert "<b>" not in page.read_text() and "\x1b" not in out and f"refused   {tools}" in out
    rc, r, out, err = check("--endpoint", Fake(refuse).url, "--require", "battery.exact=0.9", "--parallel", 1, rows=40, battery=some)
    assert rc == 3 and "battery.exact" in err
    f = Fake(lambda q, n, h: (400, {}, {"error": "no such thing"}))
    fails(1, "answered 400: no such thing", "--endpoint", f.url, "--parallel", 1, rows=40)
    assert len(f.seen) == 8
    fails(1, "took none of the 3 requests: 400: no such thing", "--endpoint", f.url, rows=3)
    fails(1, "answered 401: who are you", "--endpoint", Fake(lambda q, n, h: (401, {}, {"detail": "who are you"})).url)


@case("endpoint", "nonsense ends it with one line")
def nonsense():
    for body, words in ((b"<html>hello</html>", "not valid JSON"), (b"", "not valid JSON"), (b"[]", "no choices[0].message"),
                        (b'{"choices": []}', "no choices[0].message"), (b'{"choices": [{"message": 7}]}', "no choices[0].message"),
                        (b'{"choices": [{"message": {"content": 7}}]}', "'content' is not a string"),
                        (b'{"choices": [{"message": {"tool_calls": {}}}]}', "'tool_calls' is not an array"),
                        (b'{"choices": [{"message": {"content": "\xff"}}]}', "not valid JSON"),
                        (b'{"a":' * 100000, "not valid JSON")):
        err = fails(1, words, "--endpoint", Fake(lambda q, n, h: (200, {}, body)).url)
        assert "battery request" in err
    fails(1, "larger than 16777216 bytes", "--endpoint", Fake(lambda q, n, h: (200, {}, b" " * (17 << 20))).url)
    fails(2, "serves 2 models ('a' and others)", "--endpoint", Fake(right, ("a", "b")).url)
    fails(1, "give --model NAME", "--endpoint", Fake(right, ()).url)
    assert check("--endpoint", Fake(right, ("a", "b")).url + "/chat/completions", "--model", "b")[0] == 0
    other = Fake(right)
    to = Fake(lambda q, n, h: (302, {"Location": other.url + "/chat/completions"}, b""))
    fails(1, "answered 302", "--endpoint", to.url)
    assert not other.seen


@case("endpoint", "a hang ends at the timeout, an interrupt ends a hang, a dead peer and a mute one are named")
def silence():
    def hang(q, n, h):
        time.sleep(20)
    t = time.monotonic()
    fails(1, "no whole answer within 0.4 s", "--endpoint", Fake(hang).url, "--timeout", 0.4)

    def trickle(q, n, h):
        h.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(100):
            h.wfile.write(b" ")
            time.sleep(0.1)
    fails(1, "no whole answer within 0.4 s", "--endpoint", Fake(trickle).url, "--timeout", 0.4)
    p = subprocess.Popen([os.environ["KONDENSE"], "check", "--battery", BATTERY, "--endpoint", Fake(hang).url],
                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    time.sleep(0.5)
    p.send_signal(signal.SIGINT)
    assert p.wait(10) == 4 and "stopped" in p.stderr.read()
    s = socket.create_server(("127.0.0.1", 0))
    port = s.getsockname()[1]
    s.close()
    fails(1, f"127.0.0.1:{port}", "--endpoint", f"http://127.0.0.1:{port}", "--model", "m")

    def mute(q, n, h):
        h.close_connection = True
        h.connection.shutdown(socket.SHUT_RDWR)
    fails(1, "battery request", "--endpoint", Fake(mute).url, "--model", "m", "--parallel", 1)

    def short(q, n, h):
        h.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
        mute(q, n, h)
    fails(1, "battery request", "--endpoint", Fake(short).url, "--model", "m", "--parallel", 1)
    assert time.monotonic() - t < 60


@case("endpoint", "429 and 503 are asked again after Retry-After, and so is a call whose connection broke later on")
def again():
    def busy(q, n, h):
        if n in (1, 4):
            return 429 if n == 1 else 503, {"Retry-After": "1"}, {"error": {"message": "later"}}
        if n == 6:
            h.close_connection = True
            h.connection.shutdown(socket.SHUT_RDWR)
            return None
        return right(q, n, h)
    f = Fake(busy)
    t = time.monotonic()
    rc, r, _, err = check("--endpoint", f.url, "--parallel", 1, rows=8)
    assert rc == 0 and r["battery"]["exact"]["dst"] == 1 and len(f.seen) == 11, (rc, err, len(f.seen))
    assert time.monotonic() - t >= 2


@case("endpoint", "what may not be called, and keys that others can read")
def refused():
    f = Fake(right)
    for url, words in (("http://example.invalid/v1", "--allow-http"), ("http://127.evil.invalid/v1", "--allow-http"),
                       ("http://[::2]/v1", "--allow-http"), ("ftp://localhost/", "neither https nor http"),
                       ("http://me:pw@127.0.0.1:1/v1", "--key-file"), ("nonsense://", "not a URL"), ("", "not a URL")):
        err = fails(2, words, "--endpoint=" + url)
        assert "pw@" not in err
    key = TMP / "open"
    key.write_text("sk\n")
    key.chmod(0o644)
    fails(1, "chmod 600", "--endpoint", f.url, "--key-file", key)
    key.chmod(0o600)
    key.write_text("#\n\n")
    fails(1, "no key in it", "--endpoint", f.url, "--key-file", key)
    key.write_text("two words\n")
    fails(1, "not one word", "--endpoint", f.url, "--key-file", key)
    fails(2, "takes the place of DST", NANO, NANO, "--endpoint", f.url)
    fails(2, "need logits", "--text", BATTERY, "--endpoint", f.url)
    p = subprocess.run([os.environ["KONDENSE"], "check", "--endpoint", f.url], capture_output=True, text=True)
    assert p.returncode == 2 and "needs --battery" in p.stderr
    bad = TMP / "bad.json"
    bad.write_text(json.dumps([{**items[0], "expected_text": "no turn"}]))
    fails(1, "battery request 0: 'expected_text' is not a turn", "--endpoint", f.url, battery=bad)
    assert not f.seen
    dead = {"http_proxy": "http://127.0.0.1:1", "all_proxy": "http://127.0.0.1:1"}
    assert check("--endpoint", f.url, env=dead)[0] == 0


if __name__ == "__main__":
    main()
