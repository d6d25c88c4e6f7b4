#!/usr/bin/env python3
# timeout: 900
"""Many clients at once on the real engine: whole answers, streams, clients that go, that read slowly, that send too
much or rubbish. Nothing may be left over, no answer may be wrong, and the same request always gets the same
answer. KONDENSE_SOAK: seconds (8), KONDENSE_SOAK_CLIENTS (64; fewer with sanitizers)."""
import collections
import json
import os
import random
import socket
import threading
import time

from harness import Server, case, main, parse_events, read_all

SECONDS = float(os.environ.get("KONDENSE_SOAK", "8"))
CLIENTS = int(os.environ.get("KONDENSE_SOAK_CLIENTS", "64"))
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Current weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
QUESTIONS = ["What is the weather in York?", "What is 17 plus 25?", "Name three rivers.", "Hi"]

s = Server("--ctx", "4096", "--parallel", "16", "--queue", "48", "--stall-time", "3", "--request-time", "3", fake=False)
lock = threading.Lock()
count, first, wrong, answers = collections.Counter(), [], [], {}


def body(r, stream):
    q = r.randrange(len(QUESTIONS))
    seed = r.randrange(3)
    temperature = r.choice([0, 1.0])
    b = {"messages": [{"role": "user", "content": QUESTIONS[q]}], "max_tokens": 24, "seed": seed, "temperature": temperature,
         "tools": [TOOL], "stream": stream}
    return b, (q, seed if temperature else 0, temperature)


def check(key, content):
    with lock:
        if answers.setdefault(key, content) != content:
            wrong.append((key, answers[key], content))


def post(b):
    data = json.dumps(b).encode()
    return (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(data)) + data


def whole(r):
    b, key = body(r, False)
    status, data, _ = s.json("POST", "/v1/chat/completions", b, timeout=120)
    assert status in (200, 429), (status, data)
    if status == 200:
        m = data["choices"][0]["message"]
        check(key, (m["content"] or "", m.get("reasoning_content", ""), [c["function"] for c in m.get("tool_calls") or []] and "calls"
                    if data["choices"][0]["finish_reason"] == "tool_calls" else "", data["usage"]["completion_tokens"]))
    return str(status)


def stream(r):
    b, key = body(r, True)
    b["stream_options"] = {"include_usage": True}
    t0 = time.monotonic()
    c = s.raw(post(b))
    c.settimeout(120)
    text, told = b"", None
    while True:
        part = c.recv(65536)
        if not part:
            break
        text += part
        if told is None and (b'"reasoning_content"' in text or b'"content":"' in text.split(b'"content":""')[-1]):
            told = time.monotonic() - t0
    c.close()
    head, _, rest = text.partition(b"\r\n\r\n")
    if b" 429 " in head.split(b"\r\n")[0]:
        return "429"
    assert b" 200 " in head.split(b"\r\n")[0], text[:300]
    plain = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        n = int(size, 16)
        plain, rest = plain + rest[:n], rest[n + 2:]
    events = parse_events(plain.decode())
    assert events[-1][1] == "[DONE]", plain[-300:]
    chunks = [json.loads(d) for _, d in events[:-1]]
    content = "".join(x["delta"].get("content") or "" for c in chunks for x in c["choices"])
    think = "".join(x["delta"].get("reasoning_content") or "" for c in chunks for x in c["choices"])
    reason = [x["finish_reason"] for c in chunks for x in c["choices"] if x["finish_reason"]]
    assert len(reason) == 1 and "<|" not in content + think
    check(key, (content, think, "calls" if reason == ["tool_calls"] else "", chunks[-1]["usage"]["completion_tokens"]))
    with lock:
        first.append(told if told is not None else time.monotonic() - t0)
    return "stream"


def goes(r):
    b, _ = body(r, r.random() < 0.7)
    b["max_tokens"] = 400
    b["ignore_eos"] = True
    c = s.raw(post(b))
    time.sleep(r.random() * 0.5)
    if r.random() < 0.3:
        c.shutdown(socket.SHUT_WR)
        read_all(c, 2)
    c.close()
    return "gone"


def slow_reader(r):
    b, _ = body(r, True)
    c = s.raw(post(b))
    c.settimeout(60)
    for _ in range(20):
        if not c.recv(200):
            break
        time.sleep(r.random() * 0.05)
    c.close()
    return "slow"


def rubbish(r):
    data = r.choice([b"GET", b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n\r\n", b"\x00" * 100, b"{}\r\n\r\n",
                     b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Content-Length: 99999999999\r\n\r\n", bytes(r.randrange(256) for _ in range(200)),
                     b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Content-Length: 9\r\n\r\n{\"a\":[[[["])
    c = s.raw(data)
    c.settimeout(r.random())
    try:
        c.recv(1000)
    except OSError:
        pass
    c.close()
    return "rubbish"


def client(n, until):
    r = random.Random(n)
    while time.monotonic() < until:
        act = r.choices([whole, stream, goes, slow_reader, rubbish], [4, 6, 3, 1, 2])[0]
        try:
            what = act(r)
        except ConnectionResetError:
            what = "reset"
        except Exception as e:
            with lock:
                wrong.append((act.__name__, repr(e)[:500]))
            return
        with lock:
            count[what] += 1


@case("soak", "64 clients, some of which go, read slowly or send rubbish: nothing is left over, answers never differ")
def soak():
    fds = lambda: len(os.listdir(f"/proc/{s.p.pid}/fd"))
    threads_ = lambda: len(os.listdir(f"/proc/{s.p.pid}/task"))
    whole(random.Random(1))
    time.sleep(0.5)
    before = fds(), threads_()
    until = time.monotonic() + SECONDS
    threads = [threading.Thread(target=client, args=(n, until)) for n in range(CLIENTS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong[:5]
    assert s.p.poll() is None
    assert s.idle(30), "something still runs"
    # The reaper takes 10 s for a connection that never made a request; a busy machine takes its time too.
    for _ in range(450):
        left = s.metric("kondense_connections")  # this one among them
        if left <= 1:
            break
        time.sleep(0.1)
    assert left <= 1, left
    time.sleep(0.5)  # the thread of the connection that just asked
    after = fds(), threads_()
    assert after[0] <= before[0] + 2 and after[1] <= before[1] + 2, (before, after)
    first.sort()
    assert count["stream"] and count["200"]
    print(f"soak: {SECONDS:.0f} s, {CLIENTS} clients, {dict(count)}, first token p50 "
          f"{first[len(first) // 2]:.3f} s, p99 {first[int(len(first) * 0.99)]:.3f} s, {len(answers)} distinct requests")
    assert s.stop(40) == 0, s.lines[-3:]
    assert not any("anitizer" in x for x in s.lines), [x for x in s.lines if "anitizer" in x]


if __name__ == "__main__":
    main()
