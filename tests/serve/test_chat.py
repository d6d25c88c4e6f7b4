#!/usr/bin/env python3
"""Answers: the parser, streams that equal what is not streamed, tools, stop strings, grammar, over a fake
engine that plays given tokens."""
import json
import os
import pty
import select
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from harness import NANO, Server, calls_of, case, chat_body, comes, main, merge, read_all

s = Server("--ctx", "65536")
THINK = "<|close|>think<|sep|><|open|>response<|sep|>"
RESP = "<|close|>response<|sep|>"
END = "<|close|>message<|sep|><|end_of_msg|>"


def call(name, args, i=1):
    inner = "".join(f'<|open|>argument key="{k}" type="{t}"<|sep|>{v}<|close|>argument<|sep|>' for k, t, v in args)
    return f'<|open|>call tool="{name}" index="{i}"<|sep|>{inner}<|close|>call<|sep|>'


def tools(*calls):
    return "<|open|>tools<|sep|>" + "".join(calls) + "<|close|>tools<|sep|>"


def tool(name, /, **props):
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": props}}}


def both(program, **fields):
    """The answer streamed and not, which must be the same."""
    fields.setdefault("seed", 7)
    whole = s.chat(program, **fields)
    chunks = s.chat_stream(program, stream_options={"include_usage": True}, **fields)
    for i, c in enumerate(whole["choices"]):
        m, got = c["message"], merge(chunks, i)
        assert got["role"] == "assistant"
        assert got["content"] == (m["content"] or ""), (got, m)
        assert got["reasoning_content"] == m.get("reasoning_content", ""), (got, m)
        # A call that was cut stays partial in a stream and is left out otherwise.
        streamed = [(t["name"], t["arguments"]) for t in got["tool_calls"]]
        assert streamed[:len(calls_of(m))] == calls_of(m), (streamed, m)
        if c["finish_reason"] != "length":
            assert len(streamed) == len(calls_of(m))
        assert got["finish"] == c["finish_reason"], (got, c)
        assert got["usage"] == whole["usage"], (got["usage"], whole["usage"])
        if fields.get("logprobs"):
            assert got["logprobs"] == c["logprobs"]["content"]
    return whole["choices"][0]


@case("answers", "reasoning_content, content, finish_reason, usage with cached_tokens and reasoning_tokens")
def plain():
    c = both(f"say I think.{THINK}Hello.{RESP}{END}")
    assert c["message"] == {"role": "assistant", "content": "Hello.", "refusal": None, "reasoning_content": "I think."}
    assert c["finish_reason"] == "stop"
    r = s.chat(f"say I think.{THINK}Hello.{RESP}{END}")
    u = r["usage"]
    assert u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"]
    assert 0 < u["completion_tokens_details"]["reasoning_tokens"] < u["completion_tokens"]
    assert u["prompt_tokens_details"]["cached_tokens"] > 0
    assert r["object"] == "chat.completion" and r["id"].startswith("chatcmpl-") and r["kondense"]["experts_used"] == 4


@case("answers", "thinking that ends without its close (by response, tools, close of response, the message's end)")
def implicit():
    w = tool("f", a={"type": "string"})
    assert both(f"say Hm.<|open|>response<|sep|>Yes.{RESP}{END}")["message"]["content"] == "Yes."
    c = both("say Hm." + tools(call("f", [("a", "string", "x")])) + END, tools=[w])
    assert calls_of(c["message"]) == [("f", '{"a":"x"}')] and c["message"]["content"] is None
    assert c["message"]["reasoning_content"] == "Hm." and c["finish_reason"] == "tool_calls"
    c = both(f"say Hm.{RESP}{END}")
    assert c["message"]["content"] == "" and c["message"]["reasoning_content"] == "Hm."
    c = both("say Hm.<|end_of_msg|>")
    assert c["message"]["content"] == "" and c["finish_reason"] == "stop"


@case("answers", "an answer cut at any limit: the same fields streamed and not, reasoning never in content")
def limits():
    program = f"say One two three.{THINK}Four five.{RESP}" + tools(call("f", [("a", "string", "six"), ("b", "number", "7")])) + END
    w = [tool("f", a={"type": "string"}, b={"type": "integer"})]
    for n in list(range(1, 80, 3)) + [200]:
        c = both(program, max_tokens=n, tools=w)
        m = c["message"]
        assert "<|" not in json.dumps(m), m
        assert "One two three.".startswith(m.get("reasoning_content", ""))
        assert "Four five.".startswith(m["content"] or ""), m
        assert c["finish_reason"] in ("length", "tool_calls")
    assert calls_of(m) == [("f", '{"a":"six","b":7}')]


@case("answers", "no control text in content, reasoning or arguments; spelled-out markers are text")
def no_leak():
    c = both(f"say a<|sep|>b<|open|>x<|sep|>c{THINK}d<|open|>weird tag=\"1\"<|sep|>e<|close|>weird<|sep|>f{RESP}{END}")
    text = json.dumps(c["message"])
    assert "<|" not in text and "weird" not in text, text


@case("answers", "characters over several tokens are never cut; broken bytes become U+FFFD")
def characters():
    text = "\u00e4\u20ac\U0001f600\u4e2d\u6587"
    c = both(f"say {text}{THINK}{text}{RESP}{END}")
    assert c["message"]["content"] == text and c["message"]["reasoning_content"] == text
    for chunk in s.chat_stream(f"say {text}{THINK}{text}{RESP}{END}"):
        assert "\ufffd" not in json.dumps(chunk, ensure_ascii=False)


@case("tools", "several calls, ids of their own, arguments one JSON text")
def calls():
    w = [tool("f", a={"type": "string"}), tool("g", n={"type": "integer"})]
    c = both(f"say x{THINK}Let me see.{RESP}" + tools(call("f", [("a", "string", 'q"\\\\n\u00e4')]), call("g", [("n", "number", "2")], 2),
                                                       call("f", [], 3)) + END, tools=w)
    assert calls_of(c["message"]) == [("f", '{"a":"q\\"\\\\\\n\u00e4"}'), ("g", '{"n":2}'), ("f", "{}")] or \
        [json.loads(a) for _, a in calls_of(c["message"])][1:] == [{"n": 2}, {}], c
    ids = [t["id"] for t in c["message"]["tool_calls"]]
    assert len(set(ids)) == 3 and all(len(i) <= 64 and i.replace("_", "").isalnum() for i in ids)
    assert c["message"]["content"] == "Let me see." and c["finish_reason"] == "tool_calls"


@case("tools", "types by the schema where nothing is lost; else what the model wrote; never invalid JSON")
def coercion():
    t = [tool("f", s={"type": "string"}, i={"type": "integer"}, n={"type": "number"}, b={"type": "boolean"},
              o={"type": "object"}, l={"type": "array"}, u={"anyOf": [{"type": "integer"}, {"type": "null"}]}, any={})]
    def args(*a):
        c = both(f"say x{THINK}{RESP}" + tools(call("f", a)) + END, tools=t)
        return json.loads(calls_of(c["message"])[0][1])
    assert args(("s", "number", "1.50"), ("i", "string", "7"), ("n", "string", "2.5"), ("b", "string", "true"),
                ("o", "string", '{"a": [1, 2]}'), ("l", "string", "[1]"), ("u", "string", "null")) == {
        "s": "1.50", "i": 7, "n": 2.5, "b": True, "o": {"a": [1, 2]}, "l": [1], "u": None}
    assert args(("i", "number", "2.0"), ("s", "boolean", "true"), ("s2", "string", "5"), ("any", "string", "7")) == {
        "i": 2, "s": "true", "s2": "5", "any": "7"}
    assert args(("i", "number", "seven"), ("o", "object", "{broken"), ("n", "number", "1e3")) == {
        "i": "seven", "o": "{broken", "n": 1000.0}
    assert args(("s", "string", "1"), ("s", "string", "2")) == {"s": "1"}


@case("tools", "string arguments stream as they are made")
def streaming_arguments():
    long = "word " * 200
    chunks = s.chat_stream(f"say x{THINK}{RESP}" + tools(call("f", [("a", "string", long)])) + END,
                           tools=[tool("f", a={"type": "string"})])
    deltas = [c for c in chunks if c["choices"] and c["choices"][0]["delta"].get("tool_calls")]
    first = deltas[0]["choices"][0]["delta"]["tool_calls"][0]
    assert first["function"] == {"name": "f", "arguments": ""} and first["id"] and first["type"] == "function"
    assert len(deltas) > 100, len(deltas)
    assert json.loads(merge(chunks)["tool_calls"][0]["arguments"]) == {"a": long}


@case("tools", "undeclared tools and tool_choice none: calls are dropped, counted, logged, finish is stop")
def undeclared():
    before = s.metric("kondense_dropped_calls_total")
    program = f"say x{THINK}Hi.{RESP}" + tools(call("evil", [("a", "string", "x")]), call("f", [("a", "string", "y")], 2)) + END
    w = [tool("f", a={"type": "string"})]
    assert calls_of(both(program, tools=w)["message"]) == [("f", '{"a":"y"}')]
    c = both(program, tools=w, tool_choice="none")
    assert "tool_calls" not in c["message"] and c["finish_reason"] == "stop" and c["message"]["content"] == "Hi."
    c = both(program)
    assert "tool_calls" not in c["message"] and c["finish_reason"] == "stop"
    assert s.metric("kondense_dropped_calls_total") > before
    assert all(comes(lambda: any(f"dropped_calls={n}" in x for x in s.lines)) for n in (1, 2))


@case("tools", "parallel_tool_calls false: one call; call-shaped text after the tools is none")
def one_call():
    w = [tool("f", a={"type": "string"})]
    two = tools(call("f", [("a", "string", "1")]), call("f", [("a", "string", "2")], 2))
    c = both(f"say x{THINK}{RESP}{two}" + END, tools=w, parallel_tool_calls=False)
    assert calls_of(c["message"]) == [("f", '{"a":"1"}')]
    c = both(f"say x{THINK}{RESP}" + tools(call("f", [("a", "string", "1")])) + call("f", [("a", "string", "2")], 2) + END, tools=w)
    assert calls_of(c["message"]) == [("f", '{"a":"1"}')]


@case("sampling", "stop strings: only in the answer, over token borders, not returned")
def stop_strings():
    program = f"say stop END here.{THINK}Hello END world.{RESP}{END}"
    for stop, want in (("END", "Hello "), (["zzz", "o EN"], "Hell"), ("Hello", ""), ("zzz", "Hello END world.")):
        c = both(program, stop=stop)
        assert c["message"]["content"] == want, (stop, c)
        assert c["message"]["reasoning_content"] == "stop END here." and c["finish_reason"] == "stop"


@case("sampling", "logprobs: one item a token of the answer, the likeliest beside; streamed ones the same")
def logprobs():
    c = both(f"say x{THINK}Hello there \u00e4.{RESP}{END}", logprobs=True, top_logprobs=3)
    items = c["logprobs"]["content"]
    assert b"".join(bytes(i["bytes"]) for i in items).decode() == "Hello there \u00e4.", items
    assert all(len(i["top_logprobs"]) == 3 for i in items)
    assert both(f"say x{THINK}Hi{RESP}{END}")["logprobs"] is None


@case("sampling", "n choices, each with its index, also streamed")
def choices():
    program = "random 5"
    whole = s.chat(program, n=3, max_tokens=30, seed=1, reasoning_effort="none")
    assert [c["index"] for c in whole["choices"]] == [0, 1, 2]
    chunks = s.chat_stream(program, n=3, max_tokens=30, seed=1, reasoning_effort="none")
    texts = [merge(chunks, i)["content"] for i in range(3)]
    assert texts == [c["message"]["content"] for c in whole["choices"]] and len(set(texts)) == 3


@case("sampling", "thinking_budget: thinking ends after so many tokens")
def budget():
    c = both("say " + "one two three four five six seven " * 4 + f"{THINK}Answer.{RESP}{END}", thinking_budget=6, max_tokens=80)
    r = s.chat("say " + "a b c d e f g h " * 8, thinking_budget=6, max_tokens=40)
    assert r["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 6, r
    assert c["message"]["content"], c


@case("sampling", "min_tokens and ignore_eos hold the end back; return_token_ids gives the ids")
def ends():
    r = s.chat(f"say x{THINK}Hi.{RESP}{END}", min_tokens=50, max_tokens=60, seed=3)
    assert r["usage"]["completion_tokens"] >= 50
    r = s.chat(f"say x{THINK}Hi.{RESP}{END}", ignore_eos=True, max_tokens=60)
    assert r["usage"]["completion_tokens"] == 60 and r["choices"][0]["finish_reason"] == "length"
    r = s.chat(f"say x{THINK}Hi.{RESP}{END}", return_token_ids=True)
    assert len(r["choices"][0]["token_ids"]) == r["usage"]["completion_tokens"]


def valid(value, schema):
    t = schema.get("type")
    if "anyOf" in schema:
        return any(valid(value, x) for x in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    if t == "object":
        p = schema.get("properties", {})
        return isinstance(value, dict) and all(k in value for k in schema.get("required", [])) and \
            all(k in p and valid(v, p[k]) for k, v in value.items())
    if t == "array":
        return isinstance(value, list) and all(valid(v, schema["items"]) for v in value) and \
            schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 1e9)
    return {"string": isinstance(value, str), "null": value is None, "boolean": isinstance(value, bool),
            "integer": isinstance(value, int) and not isinstance(value, bool),
            "number": isinstance(value, (int, float)) and not isinstance(value, bool)}[t]


SCHEMA = {"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "tags": {"type": "array", "items": {"enum": ["a", "b", "long one"]}, "minItems": 1, "maxItems": 3},
    "more": {"anyOf": [{"type": "null"}, {"type": "boolean"}]}}, "required": ["name", "age", "tags"]}


@case("grammar", "json_schema: random tokens give JSON of the schema, compact, after free thinking")
def json_schema():
    f = {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA, "strict": True}}
    for seed in range(1, 7):
        c = both(f"random {seed}", response_format=f, max_tokens=900, seed=seed, thinking_budget=10)
        text = c["message"]["content"]
        assert c["finish_reason"] == "stop", c
        value = json.loads(text)
        assert valid(value, SCHEMA), text
        assert text.startswith('{"name":"') and '","age":' in text, text


@case("grammar", "json_object: random tokens give an object")
def json_object():
    for seed in range(1, 5):
        c = both(f"random {seed}", response_format={"type": "json_object"}, max_tokens=900, seed=seed, reasoning_effort="none")
        assert isinstance(json.loads(c["message"]["content"]), dict)


@case("grammar", "tool_choice required and named: random tokens give calls of the schema, think first")
def forced_calls():
    w = [tool("f", **SCHEMA["properties"]), {"type": "function", "function": {"name": "g"}}]
    w[0]["function"]["parameters"]["required"] = SCHEMA["required"]
    for seed in range(1, 7):
        c = both(f"random {seed}", tools=w, tool_choice="required", max_tokens=2000, seed=seed, thinking_budget=5)
        assert c["finish_reason"] == "tool_calls", c
        for name, args in calls_of(c["message"]):
            assert name in "fg"
            assert name == "g" or valid(json.loads(args), SCHEMA), args
        c = both(f"random {seed}", tools=w, tool_choice={"type": "function", "function": {"name": "f"}}, max_tokens=2000,
                 seed=seed, reasoning_effort="none")
        assert [n for n, _ in calls_of(c["message"])] == ["f"], c
        assert valid(json.loads(calls_of(c["message"])[0][1]), SCHEMA)


@case("grammar", "response_format with tools: an answer of the schema or calls")
def format_with_tools():
    for seed in range(1, 5):
        c = both(f"random {seed}", tools=[tool("f", a={"type": "integer"})], response_format={"type": "json_object"},
                 max_tokens=2000, seed=seed, reasoning_effort="none")
        text = c["message"]["content"]
        assert calls_of(c["message"]) or isinstance(json.loads(text), dict), c


@case("streams", "role first, one id, finish last, usage chunk with empty choices, [DONE]")
def stream_form():
    chunks = s.chat_stream(f"say x{THINK}Hi.{RESP}{END}", stream_options={"include_usage": True})
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"]
    assert chunks[-2]["choices"][0]["delta"] == {} and chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert all(c["usage"] is None for c in chunks[:-1])
    assert all(c["object"] == "chat.completion.chunk" for c in chunks)
    assert not any("usage" in c for c in s.chat_stream(f"say x{THINK}Hi.{RESP}{END}"))


@case("streams", "a failure is an error event, no [DONE], no last chunk")
def stream_failure():
    for path, body in (("/v1/chat/completions", chat_body(f"say x{THINK}Hi\nfail it broke", stream=True)),
                       ("/v1/completions", {"prompt": "say Hi\nfail it broke", "stream": True, "max_tokens": 50}),
                       ("/v1/messages", {**chat_body(f"say x{THINK}Hi\nfail it broke"), "stream": True, "max_tokens": 50}),
                       ("/v1/responses", {"input": f"say x{THINK}Hi\nfail it broke", "stream": True})):
        for close in ("", "Connection: close\r\n"):
            data = json.dumps(body)
            r = s.raw(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{close}Content-Type: application/json\r\n"
                      f"Content-Length: {len(data.encode())}\r\n\r\n{data}")
            text = read_all(r).decode()
            assert "Transfer-Encoding: chunked" in text and "it broke" in text, text
            assert "[DONE]" not in text and not text.endswith("0\r\n\r\n") and "message_stop" not in text, text
            r.close()


@case("streams", "a client that goes ends its answer")
def cancel():
    before = s.metric("kondense_aborted_total")
    for stream in (True, False):
        data = json.dumps(chat_body("slow 20\nsay " + "a b c d " * 500, stream=stream))
        r = s.raw(f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                  f"Content-Length: {len(data)}\r\n\r\n{data}")
        assert s.runs()
        r.close()
        assert s.idle(5)
    assert s.metric("kondense_aborted_total") >= before + 2


@case("streams", "keep-alive comments while nothing comes")
def keep_alive():
    data = json.dumps(chat_body(f"wait 6500\nsay x{THINK}Hi.{RESP}{END}", stream=True))
    r = s.raw(f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
              f"Content-Length: {len(data)}\r\n\r\n{data}")
    text = read_all(r, 9).decode()
    assert ": keep-alive\n\n" in text and "[DONE]" in text, text
    r.close()


@case("completions", "text, echo, several prompts, stop, stream the same as not")
def text_completions():
    path = "/v1/completions"
    for f in ({}, {"echo": True}, {"stop": "wor"}, {"n": 2}, {"max_tokens": 3}, {"logprobs": 2}):
        body = {"prompt": ["say Hello world, \u4e2d.", "say Two"], "max_tokens": 40, **f}
        whole = s.ok(path, body)
        events = s.stream(path, {**body, "stream": True, "stream_options": {"include_usage": True}})
        assert events[-1][1] == "[DONE]"
        chunks = [json.loads(d) for _, d in events[:-1]]
        for i, c in enumerate(whole["choices"]):
            mine = [x for k in chunks for x in k["choices"] if x["index"] == i]
            assert "".join(x["text"] for x in mine) == c["text"], (f, c)
            assert mine[-1]["finish_reason"] == c["finish_reason"]
        assert chunks[-1]["usage"] == whole["usage"]
    assert s.ok(path, {"prompt": "say Hello", "echo": True})["choices"][0]["text"] == "say HelloHello"


@case("models", "list and one, with the context's length")
def model_list():
    _, data, _ = s.json("GET", "/v1/models")
    assert data["object"] == "list" and data["data"][0]["id"] == "k3-nano" and data["data"][0]["context_length"] == 65536


@case("operation", "apply-template gives the text that the model reads; props says how the server is set up")
def template():
    body = chat_body("Hi <|sep|>", reasoning_effort="none")
    r = s.ok("/apply-template", body)
    assert r["prompt"] == '<|open|>message role="user"<|sep|>Hi <|sep|><|close|>message<|sep|><|end_of_msg|><|open|>message role="assistant"<|sep|><|open|>response<|sep|>'
    assert r["count"] == s.ok("/tokenize", body)["count"]
    assert s.json("POST", "/apply-template", {"messages": []})[0] == 400
    status, p, _ = s.json("GET", "/props")
    assert status == 200 and p["n_ctx"] == 65536 and p["experts_used"] == 4 and p["model"] and p["vocab"] > 4000, p
    assert s.json("GET", "/slots")[:2] == (200, [])


@case("operation", "health, readyz, metrics in Prometheus' form")
def health():
    assert s.json("GET", "/health")[:2] == (200, {"status": "ok"}) and s.json("GET", "/readyz")[0] == 200
    status, headers, text = s.request("GET", "/metrics")
    assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
    for line in text.decode().splitlines():
        assert line.startswith("#") or len(line.rsplit(" ", 1)) == 2 and float(line.rsplit(" ", 1)[1]) >= 0, line
    assert b'kondense_replies_total{path="/v1/chat/completions",status="200"}' in text


@case("operation", "SIGTERM: what runs ends whole, new requests are refused, then the end")
def drain():
    d = Server("--drain", "20")
    out = []
    t = threading.Thread(target=lambda: out.append(d.chat(f"slow 60\nsay x{THINK}" + "word " * 20 + f"{RESP}{END}")))
    t.start()
    assert d.runs()
    assert d.stop(30) == 0
    t.join()
    assert out[0]["choices"][0]["message"]["content"] == "word " * 20, out


@case("operation", "SIGTERM with no patience: the answer is cut and says so")
def drain_cut():
    d = Server("--drain", "0.2", "--effort", "medium")
    assert d.json("GET", "/props")[1]["effort"] == "high"  # as in a request
    data = json.dumps(chat_body("slow 50\nsay " + "a b c d " * 500, stream=True))
    r = d.raw(f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
              f"Content-Length: {len(data)}\r\n\r\n{data}")
    assert d.runs()
    assert d.stop(20) == 0
    text = read_all(r).decode()
    assert "[DONE]" not in text and not text.endswith("0\r\n\r\n")


@case("operation", "the log: one line a request, as text or JSON, no text of prompts or keys in it")
def log():
    j = Server("--log", "json", env={"KONDENSE_API_KEY": "secret"})
    j.json("POST", "/v1/chat/completions", chat_body("my private words"), {"Authorization": "Bearer secret", "X-Request-Id": "abc"})
    assert comes(lambda: any('"id":"abc"' in x.replace(": ", ":") for x in j.lines)), j.lines
    lines = [json.loads(x) for x in j.lines]
    assert {"info", "warning"} <= {x.get("level") for x in lines} and any("listening on" in x.get("message", "") for x in lines)
    assert lines[-1]["path"] == "/v1/chat/completions" and lines[-1]["status"] == 200 and lines[-1]["id"] == "abc"
    assert "tokens=" in lines[-1]["note"] and "experts=" in lines[-1]["note"]
    assert not any("private" in x or "secret" in x for x in j.lines)
    j.kill()


@case("operation", "in a terminal a status line stands below the log and moves on")
def status_line():
    main, other = pty.openpty()
    p = subprocess.Popen([os.environ["KONDENSE_FAKE"], "serve", str(NANO), "--port", "0"], stdin=subprocess.DEVNULL,
                         stdout=subprocess.DEVNULL, stderr=other)
    os.close(other)
    seen, until = b"", time.monotonic() + 20
    while seen.count(b"waiting 0") < 2 and time.monotonic() < until:
        if select.select([main], [], [], 0.2)[0]:
            seen += os.read(main, 4096)
    p.terminate()
    assert p.wait(20) == 0
    os.close(main)
    log, _, status = seen.partition(b"running ")
    assert log.endswith(b"\r\n") and b"model k3-nano open in" in log, seen
    parts = (b"running " + status).split(b"\r\x1b[K")
    assert len(parts) >= 2 and all(x.startswith(b"running 0  waiting 0  prefill") and b"\n" not in x for x in parts), seen


@case("tools", "an answer that comes back unchanged is told to the model in the tokens it made, by message and call ids; a changed one is rendered")
def echoed():
    w = [tool("f", **SCHEMA["properties"])]
    other = 0
    for seed in range(1, 5):
        fields = dict(tools=w, tool_choice="required", max_tokens=2000, seed=seed, thinking_budget=5, return_token_ids=True)
        c = s.chat(f"random {seed}", **fields)["choices"][0]
        m, made = c["message"], c["token_ids"]

        def ids(message, **more):
            after = [{"role": "user", "content": f"random {seed}"}, message] + [
                {"role": "tool", "tool_call_id": k["id"], "content": "7"} for k in message["tool_calls"]]
            return s.ok("/tokenize", {"messages": after, "tools": w, **more})["tokens"]

        def holds(got):
            return any(got[i:i + len(made)] == made for i in range(len(got)))

        assert holds(ids(m)), (made, ids(m))
        parsed = json.loads(json.dumps(m))
        for k in parsed["tool_calls"]:
            k["function"]["arguments"] = json.dumps(json.loads(k["function"]["arguments"]), ensure_ascii=False)
        if all(json.dumps(json.loads(k["function"]["arguments"]), ensure_ascii=False, separators=(",", ":")) == k["function"]["arguments"]
               for k in m["tool_calls"]):
            assert holds(ids(parsed)), "spaces in arguments count"
        moved = json.loads(json.dumps(m))
        moved["tool_calls"][0]["id"] = "call_elsewhere"
        rendered = ids(moved)
        other += rendered != ids(m)
        edited = {**m, "reasoning_content": m.get("reasoning_content", "") + "!"}
        assert not holds(ids(edited)) and not holds(ids(m, thinking={"type": "disabled"}))
    assert other, "random tokens that rendering gives too: this shows nothing"
    plain = s.chat(f"say x{THINK}Hi there.{RESP}{END}", return_token_ids=True)["choices"][0]
    got = s.ok("/tokenize", {"messages": [{"role": "user", "content": "a"}, plain["message"], {"role": "user", "content": "b"}]})["tokens"]
    assert any(got[i:i + len(plain["token_ids"])] == plain["token_ids"] for i in range(len(got)))


@case("tools", "with --cache-dir the tokens of answers outlive the server, killed or not; of another key's they stay unknown")
def echoed_after_restart():
    with tempfile.TemporaryDirectory() as d:
        w = [tool("f", **SCHEMA["properties"])]
        fields = dict(tools=w, tool_choice="required", max_tokens=2000, thinking_budget=5, return_token_ids=True)
        keys = Path(d, "keys")
        keys.write_text("one\ntwo\n")
        keys.chmod(0o600)
        start = lambda: Server("--cache-dir", d + "/cache", "--api-key-file", str(keys))
        mine, other = ({"Authorization": "Bearer " + k} for k in ("one", "two"))

        def ask(server, seed):
            return json.loads(server.request("POST", "/v1/chat/completions", dict(
                model="k3-nano", messages=[{"role": "user", "content": f"random {seed}"}], seed=seed, **fields), mine)[2])["choices"][0]

        def holds(server, c, headers):
            m = c["message"]
            after = [{"role": "user", "content": "x"}, m] + [
                {"role": "tool", "tool_call_id": k["id"], "content": "7"} for k in m["tool_calls"]]
            got = json.loads(server.request("POST", "/tokenize", {"messages": after, "tools": w}, headers)[2])["tokens"]
            return any(got[i:i + len(c["token_ids"])] == c["token_ids"] for i in range(len(got)))

        a = start()
        made = [ask(a, seed) for seed in range(1, 5)]
        assert all(holds(a, c, mine) for c in made)
        a.kill()  # as kill -9 does
        b = start()
        assert all(holds(b, c, mine) for c in made)
        assert not all(holds(b, c, other) for c in made), "rendering gives the same: this shows nothing"
        made.append(ask(b, 9))
        assert b.stop() == 0
        file = Path(d, "cache", "answers.kdsaid")
        assert file.stat().st_mode & 0o777 == 0o600
        file.write_bytes(file.read_bytes()[:-3])  # the last one is torn
        c = start()
        assert all(holds(c, x, mine) for x in made[:-1])
        c.kill()


@case("operation", "a request over --timeout ends with length")
def timeout():
    d = Server("--timeout", "1")
    r = d.chat("slow 100\nsay " + "a b c d " * 100)
    assert r["choices"][0]["finish_reason"] == "length"
    d.kill()


if __name__ == "__main__":
    main()
