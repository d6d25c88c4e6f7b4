"""What the tests of the server share: a server of their own on a free port, a small client, and cases.

A case is a function with what it shows. Those with a `row` appear in docs/api.md (tools/api_table.py)."""
import atexit
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback

ROOT = pathlib.Path(os.environ.get("KONDENSE_TEST_ROOT", pathlib.Path(__file__).resolve().parents[2]))
DATA = pathlib.Path(os.environ.get("KONDENSE_TEST_DATA", ROOT / "tests/data"))
NANO = DATA / "k3-nano"
SKIP = 77
cases = []


def case(area, row=None):
    def add(f):
        cases.append((area, row, f))
        return f
    return add


class Server:
    """kondense (or its fake) serving; gone at exit."""

    def __init__(self, *options, fake=True, model=NANO, env=None, wait=True):
        program = os.environ["KONDENSE_FAKE" if fake else "KONDENSE"]
        self.lines = []
        self.p = subprocess.Popen([program, "serve", str(model), "--port", "0", *options],
                                  stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
                                  env={**os.environ, **(env or {})})
        self.port = None
        self.ready, self.listening = threading.Event(), threading.Event()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        atexit.register(self.kill)
        if wait and (not self.ready.wait(120) or not self.port):
            sys.exit("the server did not start:\n" + "\n".join(self.lines))

    def read(self):
        for line in self.p.stderr:
            self.lines.append(line.rstrip("\n"))
            m = re.search(r"listening on http://\S+:(\d+)", line)
            if m:
                self.port = int(m[1])
                self.listening.set()
            if re.search(r"model .* open in \d", line):
                self.ready.set()
        self.listening.set()
        self.ready.set()

    def kill(self):
        if self.p.poll() is None:
            self.p.kill()
            self.p.wait()

    def stop(self, timeout=30):
        self.p.send_signal(signal.SIGTERM)
        return self.p.wait(timeout)

    def request(self, method, path, body=None, headers=None, timeout=60):
        """(status, headers, bytes)"""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        with contextlib.closing(c):
            h = dict(headers or {})
            if body is not None and not isinstance(body, (bytes, str)):
                body = json.dumps(body)
            if isinstance(body, str):
                body = body.encode()
            if body is not None:
                h.setdefault("Content-Type", "application/json")
            c.request(method, path, body, h)
            r = c.getresponse()
            return r.status, r.headers, r.read()

    def json(self, method, path, body=None, headers=None, timeout=60):
        status, h, data = self.request(method, path, body, headers, timeout)
        return status, json.loads(data) if data else None, h

    def ok(self, path, body, **kw):
        status, data, _ = self.json("POST", path, body, **kw)
        assert status == 200, (status, data)
        return data

    def chat(self, program="", **fields):
        return self.ok("/v1/chat/completions", chat_body(program, **fields))

    def stream(self, path, body, timeout=60):
        """All server-sent events as (event, data text); fails unless the stream ended whole."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        with contextlib.closing(c):
            c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            r = c.getresponse()
            assert r.status == 200, (r.status, r.read())
            assert r.headers["Content-Type"].startswith("text/event-stream")
            return parse_events(r.read().decode())

    def chat_stream(self, program="", **fields):
        body = chat_body(program, stream=True, **fields)
        events = self.stream("/v1/chat/completions", body)
        assert events[-1] == (None, "[DONE]"), events[-3:]
        return [json.loads(d) for _, d in events[:-1]]

    def raw(self, data=b""):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        if data:
            s.sendall(data if isinstance(data, bytes) else data.encode())
        return s

    def metric(self, name):
        _, _, text = self.request("GET", "/metrics")
        m = re.search(rf"^{re.escape(name)} (\S+)$", text.decode(), re.M)
        return float(m[1]) if m else None

    def idle(self, seconds=10):
        """Waits until nothing runs."""
        return comes(lambda: self.metric("kondense_running") == 0 and self.metric("kondense_waiting") == 0, seconds)

    def runs(self):
        """Waits until something runs."""
        return comes(lambda: self.metric("kondense_running") > 0)


def comes(what, seconds=20):
    """Waits until what() is true: a machine may be slow, so nothing is asserted after a fixed pause."""
    until = time.monotonic() + seconds
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def chat_body(program="", **fields):
    return {"messages": [{"role": "user", "content": program or "Hi"}], **fields}


def parse_events(text):
    out = []
    for block in text.split("\n\n"):
        kind, data = None, None
        for line in block.split("\n"):
            if line.startswith("event: "):
                kind = line[7:]
            elif line.startswith("data: "):
                data = line[6:]
            else:
                assert not line or line.startswith(":"), line
        if data is not None:
            out.append((kind, data))
    return out


def read_all(s, seconds=15):
    data, until = b"", time.monotonic() + seconds
    s.settimeout(0.5)
    while time.monotonic() < until:
        try:
            part = s.recv(65536)
        except TimeoutError:
            continue
        except ConnectionError:
            break
        if not part:
            break
        data += part
    return data


def merge(chunks, index=0):
    """A chat stream's chunks as the message they make, with finish reason and usage."""
    m = {"role": None, "content": "", "reasoning_content": "", "tool_calls": [], "finish": None,
         "usage": None, "logprobs": []}
    ids = {c["id"] for c in chunks}
    assert len(ids) == 1, ids
    for c in chunks:
        if c.get("usage"):
            m["usage"] = c["usage"]
        for ch in c["choices"]:
            if ch["index"] != index:
                continue
            d = ch["delta"]
            m["role"] = d.get("role", m["role"])
            m["content"] += d.get("content") or ""
            m["reasoning_content"] += d.get("reasoning_content") or ""
            for t in d.get("tool_calls", []):
                while len(m["tool_calls"]) <= t["index"]:
                    m["tool_calls"].append({"id": None, "name": "", "arguments": ""})
                k = m["tool_calls"][t["index"]]
                k["id"] = t.get("id", k["id"])
                k["name"] += t["function"].get("name", "")
                k["arguments"] += t["function"].get("arguments", "")
            if ch.get("logprobs"):
                m["logprobs"] += ch["logprobs"]["content"]
            assert m["finish"] is None, "a chunk after the finish reason"
            m["finish"] = ch["finish_reason"]
    return m


def calls_of(message):
    return [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or []]


def main():
    """Runs the cases, all of them or those named; a table of results where asked for."""
    wanted, bad, rows = sys.argv[1:], [], []
    for area, row, f in cases:
        if wanted and f.__name__ not in wanted:
            continue
        try:
            f()
            print(f"ok   {f.__name__}")
            good = True
        except Exception:
            traceback.print_exc()
            print(f"FAIL {f.__name__}")
            bad.append(f.__name__)
            good = False
        sys.stdout.flush()
        if row:
            rows.append({"area": area, "row": row, "test": f"{pathlib.Path(sys.argv[0]).stem}: {f.__name__}",
                         "pass": good})
    out = os.environ.get("KONDENSE_API_ROWS")
    if out:
        (pathlib.Path(out) / (pathlib.Path(sys.argv[0]).stem + ".json")).write_text(json.dumps(rows))
    if bad:
        sys.exit("failed: " + ", ".join(bad))
