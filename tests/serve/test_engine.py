#!/usr/bin/env python3
"""The server with the real engine and a small trained model: tools, the prefix cache, constrained output, the
verdict, fewer experts, the trace, keys."""
import json
import pathlib
import struct
import tempfile
import time

from harness import NANO, Server, calls_of, case, chat_body, comes, main, merge

s = Server("--ctx", "4096", fake=False)
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Current weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
ASK = "What is the weather in York?"


@case("engine", "the small model calls the right tool, streamed and not, and answers with its result")
def tools():
    f = dict(tools=[TOOL], temperature=0, max_tokens=120)
    c = s.chat(ASK, **f)["choices"][0]
    assert calls_of(c["message"]) == [("get_weather", '{"city":"York"}')] and c["finish_reason"] == "tool_calls", c
    m = merge(s.chat_stream(ASK, **f))
    assert (m["tool_calls"][0]["arguments"], m["finish"]) == ('{"city":"York"}', "tool_calls")
    assert m["reasoning_content"] == c["message"]["reasoning_content"]
    after = [{"role": "user", "content": ASK}, c["message"],
             {"role": "tool", "tool_call_id": c["message"]["tool_calls"][0]["id"], "content": "7 degrees"}]
    r = s.ok("/v1/chat/completions", {"messages": after, **f})
    assert r["choices"][0]["finish_reason"] in ("stop", "length", "tool_calls")


@case("engine", "a warm prefix gives the cold answer, and cached_tokens says so")
def cache():
    text = "Tell me about " + "rivers and mountains and " * 20
    f = dict(temperature=0, max_tokens=30, logprobs=True)
    cold, warm = s.chat(text, **f), s.chat(text, **f)
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64
    assert cold["choices"] == warm["choices"], (cold, warm)


@case("engine", "the next turn of a conversation begins with all of the answer before in the cache, whatever its tokens")
def next_turn():
    hits = 0
    for seed in (1, 3, 5):
        f = dict(temperature=1.5, top_p=1, seed=seed, max_tokens=300, tools=[TOOL], reasoning_effort="low")
        r = s.chat(ASK, **f)
        c, u = r["choices"][0], r["usage"]
        if c["finish_reason"] not in ("stop", "tool_calls"):
            continue
        whole = u["prompt_tokens"] + u["completion_tokens"]
        seen, since = None, time.monotonic()
        while time.monotonic() - since < 1.5:  # all answers so far are read again
            now = s.metric("kondense_idle_prefill_tokens_total")
            seen, since = now, since if now == seen else time.monotonic()
            time.sleep(0.05)
        after = [{"role": "user", "content": ASK}, c["message"]]
        after += [{"role": "tool", "tool_call_id": k["id"], "content": "7"} for k in c["message"].get("tool_calls") or []]
        after += [{"role": "user", "content": "And then?"}]
        n = s.ok("/v1/chat/completions", {"messages": after, **f, "max_tokens": 1})["usage"]
        assert n["prompt_tokens_details"]["cached_tokens"] >= whole // 64 * 64, (u, n)
        hits += 1
    assert hits, "no answer came to its end"


@case("engine", "the same seed gives the same answer, another seed another; n choices differ")
def seeds():
    f = dict(max_tokens=30, temperature=1.0)
    a, b, c = (s.chat("Name three rivers.", seed=k, **f)["choices"][0]["message"] for k in (1, 1, 2))
    assert a == b and a != c
    n = s.chat("Name three rivers.", seed=1, n=3, **f)["choices"]
    assert n[0]["message"] == a and n[1]["message"] != n[2]["message"]


@case("engine", "constrained output: JSON by schema and forced calls are valid whatever the model wants")
def constrained():
    schema = {"type": "object", "properties": {"city": {"enum": ["York", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
              "required": ["city", "days"]}
    f = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    for temperature in (0, 1.0):
        c = s.chat("Answer in JSON.", response_format=f, temperature=temperature, seed=3, max_tokens=200, thinking_budget=20)["choices"][0]
        v = json.loads(c["message"]["content"])
        assert v["city"] in ("York", "Rome") and 1 <= v["days"] <= 9 and set(v) == {"city", "days"}
        c = s.chat("Hi", tools=[TOOL], tool_choice="required", temperature=temperature, seed=3, max_tokens=400, thinking_budget=20,
                   parallel_tool_calls=False)["choices"][0]
        assert c["finish_reason"] in ("tool_calls", "length")
        for name, args in calls_of(c["message"]):
            assert name == "get_weather" and set(json.loads(args)) == {"city"}


@case("engine", "a strict tool that the model is free to call is called by its schema; without strict it says what it likes")
def strict():
    t = json.loads(json.dumps(TOOL))
    t["function"]["parameters"]["properties"]["city"] = {"enum": ["Rome", "Oslo"]}
    t["function"]["parameters"]["additionalProperties"] = False
    f = dict(temperature=0, max_tokens=120)
    free = calls_of(s.chat(ASK, tools=[t], **f)["choices"][0]["message"])
    assert free == [("get_weather", '{"city":"York"}')], free
    t["function"]["strict"] = True
    c = s.chat(ASK, tools=[t], **f)["choices"][0]
    assert calls_of(c["message"]) in ([("get_weather", '{"city":"Rome"}')], [("get_weather", '{"city":"Oslo"}')]), c
    c = s.chat("Hi", tools=[t], **f)["choices"][0]
    assert c["message"]["content"] or calls_of(c["message"]), c
    m = merge(s.chat_stream(ASK, tools=[t], parallel_tool_calls=False, **f))
    assert json.loads(m["tool_calls"][0]["arguments"])["city"] in ("Rome", "Oslo") and len(m["tool_calls"]) == 1
    t["function"]["parameters"]["properties"]["city"] = {"type": "string", "pattern": "^a"}
    status, data, _ = s.json("POST", "/v1/chat/completions", chat_body(ASK, tools=[t], **f))
    assert status == 400 and "city" in data["error"]["message"], data
    t["function"]["strict"] = False
    assert s.chat(ASK, tools=[t], **f)["choices"][0]["message"]


@case("engine", "logprobs are of the model: sorted, the token at temperature 0 is the likeliest")
def logprobs():
    c = s.chat("Hi", temperature=0, logprobs=True, top_logprobs=5, max_tokens=60, reasoning_effort="none")["choices"][0]
    for t in c["logprobs"]["content"]:
        top = [x["logprob"] for x in t["top_logprobs"]]
        assert top == sorted(top, reverse=True) and t["logprob"] == top[0] <= 0


@case("engine", "stop strings and logit_bias work on the model's own tokens")
def stop_and_bias():
    base = s.chat("Hi", temperature=0, max_tokens=60, reasoning_effort="none")["choices"][0]["message"]["content"]
    if len(base) > 4:
        c = s.chat("Hi", temperature=0, max_tokens=60, reasoning_effort="none", stop=base[2:4])["choices"][0]
        assert c["message"]["content"] == base[:base.index(base[2:4])] and c["finish_reason"] == "stop"
    ids = s.ok("/tokenize", {"prompt": base})["tokens"]
    if ids:
        c = s.chat("Hi", temperature=0, max_tokens=60, reasoning_effort="none", logit_bias={str(ids[0]): -100})["choices"][0]
        assert not c["message"]["content"].startswith(s.ok("/detokenize", {"tokens": ids[:1]})["prompt"])


@case("operation", "the stored verdict is printed at the start; its absence is a warning")
def verdict():
    assert any("no quality verdict" in x for x in s.lines)
    with tempfile.TemporaryDirectory() as d:
        for f in NANO.iterdir():
            (pathlib.Path(d) / f.name).symlink_to(f.resolve())
        for passed, word in ((True, "verdict: passed kld 0.021"), (False, "verdict: FAILED kld 0.021")):
            (pathlib.Path(d) / "kondense.json").write_text(json.dumps({"verdict": {"pass": passed, "requirements": [
                {"figure": "kld", "at_most": 0.05, "value": 0.021, "pass": passed}]}}))
            v = Server(fake=False, model=d)
            assert any(word in x for x in v.lines), v.lines
            v.kill()


@case("operation", "--experts-used is in the reply and the log, warned of, and changes the answer's making; --trace writes the routing")
def experts():
    with tempfile.TemporaryDirectory() as d:
        trace = pathlib.Path(d) / "trace.bin"
        e = Server("--experts-used", "2", "--trace", str(trace), "--ctx", "1024", fake=False)
        r = e.chat("Hi", temperature=0, max_tokens=8)
        assert r["kondense"]["experts_used"] == 2
        chunks = e.chat_stream("Hi", temperature=0, max_tokens=8)
        assert [c["kondense"]["experts_used"] for c in chunks if "kondense" in c] == [2]
        assert "kondense" in next(c for c in chunks if c["choices"][0]["finish_reason"])
        body = {**chat_body("Hi"), "max_tokens": 8}
        assert e.ok("/v1/messages", body)["kondense"] == {"experts_used": 2}
        events = e.stream("/v1/messages", {**body, "stream": True})
        assert json.loads(events[0][1])["message"]["kondense"] == {"experts_used": 2}
        assert e.ok("/v1/responses", {"input": "Hi", "max_output_tokens": 8})["kondense"] == {"experts_used": 2}
        assert e.ok("/v1/completions", {"prompt": "Hi", "max_tokens": 4})["kondense"] == {"experts_used": 2}
        assert any("fewer experts" in x for x in e.lines)
        assert comes(lambda: any("experts=2" in x for x in e.lines))
        assert e.stop() == 0
        data = trace.read_bytes()
        pairs = list(struct.iter_unpack("<II", data))
        assert len(data) % 16 == 0 and pairs and len({p[1] for p in pairs}) > 2, pairs[:8]


@case("operation", "slots: what runs and waits, of the asking key alone, without any text")
def slots():
    with tempfile.TemporaryDirectory() as d:
        f = pathlib.Path(d) / "keys"
        f.write_text("one\ntwo\n")
        f.chmod(0o600)
        e = Server("--api-key-file", str(f), "--parallel", "1", "--ctx", "4096", fake=False)
        key = {k: {"Authorization": f"Bearer {k}"} for k in ("one", "two")}
        long = json.dumps(chat_body("my words", max_tokens=3000, ignore_eos=True, stream=True))
        socks = []
        for k in ("one", "one", "two"):
            socks.append(e.raw(f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {k}\r\n"
                               f"Content-Type: application/json\r\nContent-Length: {len(long)}\r\n\r\n{long}"))
            time.sleep(0.3)
        until = time.monotonic() + 20
        while True:
            one, two = (e.json("GET", "/slots", headers=key[k])[1] for k in ("one", "two"))
            if [x["state"] for x in one] == ["running", "waiting"] and one[0]["made_tokens"] > 2 or time.monotonic() > until:
                break
            time.sleep(0.05)
        assert [x["state"] for x in one] == ["running", "waiting"] and [x["state"] for x in two] == ["waiting"], (one, two)
        assert one[0]["prompt_tokens"] > 10 and one[0]["made_tokens"] > 2 and one[0]["choices"] == 1 and two[0]["queued_s"] > 0
        assert "words" not in json.dumps(one + two)
        assert e.json("GET", "/slots")[0] == 401
        for c in socks:
            c.close()
        e.kill()


@case("operation", "a model that cannot be opened ends the program with a reason")
def no_model():
    n = Server(fake=False, model="/nowhere/at/all", wait=False)
    assert n.p.wait(20) == 1
    n.reader.join(10)
    assert any("nowhere" in x for x in n.lines), n.lines




if __name__ == "__main__":
    main()
