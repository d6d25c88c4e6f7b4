#!/usr/bin/env python3
"""Anthropic's messages and OpenAI's responses: the order of events, bodies equal to streams, conversations."""
import json

from harness import Server, case, main

s = Server("--ctx", "65536")
THINK = "<|close|>think<|sep|><|open|>response<|sep|>"
RESP = "<|close|>response<|sep|>"
END = "<|close|>message<|sep|><|end_of_msg|>"
CALL = ('<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="a" type="string"<|sep|>x "y"'
        '<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>')
PROGRAM = f"say I think.{THINK}Hello.{RESP}{CALL}{END}"
ON = {"type": "enabled", "budget_tokens": 1000}
TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}}
FLAT = {"type": "function", "name": "f", "description": "d", "parameters": TOOL["input_schema"]}


def msg(program=PROGRAM, **f):
    return {"model": "k3-nano", "max_tokens": 200, "messages": [{"role": "user", "content": program}], **f}


def msg_stream(**f):
    """The events of a stream, checked for their order, and the message they make."""
    events = s.stream("/v1/messages", msg(stream=True, **f))
    data = [json.loads(d) for _, d in events]
    assert all(k == d["type"] for (k, _), d in zip(events, data)), events
    kinds = [d["type"] for d in data]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("message_delta") == kinds.count("message_stop") == kinds.count("message_start") == 1
    m = data[0]["message"]
    assert m["content"] == [] and m["stop_reason"] is None and m["usage"]["output_tokens"] == 0
    open_ = None
    for d in data[1:-2]:
        if d["type"] == "content_block_start":
            assert open_ is None and d["index"] == len(m["content"])
            open_ = d["index"]
            m["content"].append(dict(d["content_block"]))
            partial = ""
        elif d["type"] == "content_block_stop":
            assert d["index"] == open_
            if m["content"][open_]["type"] == "tool_use":
                m["content"][open_]["input"] = json.loads(partial or "{}")
            open_ = None
        else:
            assert d["type"] == "content_block_delta" and d["index"] == open_, d
            x, b = d["delta"], m["content"][open_]
            if x["type"] == "thinking_delta":
                assert not b["signature"]
                b["thinking"] += x["thinking"]
            elif x["type"] == "signature_delta":
                b["signature"] = x["signature"]
            elif x["type"] == "text_delta":
                b["text"] += x["text"]
            else:
                partial += x["partial_json"]
    assert open_ is None
    m.update(data[-2]["delta"])
    m["usage"] = data[-2]["usage"]
    return m


def same(a, b):
    def bare(m):
        m = json.loads(json.dumps(m))
        m.pop("id")
        for c in m["content"]:
            c.pop("id", None)
        return m
    assert bare(a) == bare(b), (a, b)


@case("anthropic", "events: message_start whole, blocks start/stop once, signature before a thinking block's stop, one "
      "message_delta; the body is the same object")
def messages():
    for f, reason in (({"tools": [TOOL], "thinking": ON}, "tool_use"), ({"thinking": ON}, "end_turn"),
                      ({"thinking": ON, "max_tokens": 5}, "max_tokens")):
        whole, streamed = s.ok("/v1/messages", msg(**f)), msg_stream(**f)
        same(whole, streamed)
        assert whole["stop_reason"] == reason and whole["type"] == "message" and whole["role"] == "assistant"
    blocks = s.ok("/v1/messages", msg(tools=[TOOL], thinking=ON))["content"]
    assert [b["type"] for b in blocks] == ["thinking", "text", "tool_use"]
    assert blocks[0]["thinking"] == "I think." and blocks[0]["signature"] and blocks[2]["input"] == {"a": 'x "y"'}
    u = s.ok("/v1/messages", msg())["usage"]
    n = s.ok("/v1/messages/count_tokens", msg())["input_tokens"]
    assert u["input_tokens"] + u["cache_read_input_tokens"] == n


@case("anthropic", "thinking is off unless asked for; budget_tokens bounds it; stop_sequences say which")
def thinking():
    m = s.ok("/v1/messages", msg(f"say Hi there.{RESP}{END}"))
    assert [b["type"] for b in m["content"]] == ["text"]
    m = s.ok("/v1/messages", msg(f"say Hi there.{RESP}{END}", stop_sequences=["zz", "the"]))
    assert m["stop_reason"] == "stop_sequence" and m["stop_sequence"] == "the" and m["content"][0]["text"] == "Hi "
    m = s.ok("/v1/messages", msg("say " + "a b c d e f " * 20, thinking={"type": "enabled", "budget_tokens": 4}, max_tokens=60))
    assert len(m["content"][0]["thinking"].split()) <= 4, m


@case("anthropic", "system as text or blocks, tool_use and tool_result (is_error too), thinking echoed, any/tool/none")
def conversation():
    turns = [{"role": "user", "content": [{"type": "text", "text": "first", "cache_control": {"type": "ephemeral"}}]},
             {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "text", "text": "Yes."},
                                               {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": "b"}}]},
             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": "no"},
                                          {"type": "text", "text": "go on"}]}]
    chat = [{"role": "system", "content": [{"type": "text", "text": "sys"}]},
            {"role": "user", "content": [{"type": "text", "text": "first"}]},
            {"role": "assistant", "reasoning_content": "Hm.", "content": [{"type": "text", "text": "Yes."}],
             "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"a": "b"}}}]},
            {"role": "tool", "tool_call_id": "t1", "content": ["Error: ", "no"]},
            {"role": "user", "content": [{"type": "text", "text": "go on"}]}]
    n = s.ok("/v1/messages/count_tokens", {"system": [{"type": "text", "text": "sys"}], "messages": turns, "tools": [TOOL],
                                           "thinking": ON})["input_tokens"]
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": TOOL["input_schema"]}}
    assert n == s.ok("/tokenize", {"messages": chat, "tools": [tool]})["count"]
    for choice, want in (({"type": "any"}, "tool_use"), ({"type": "tool", "name": "f"}, "tool_use"), ({"type": "none"}, "end_turn")):
        m = s.ok("/v1/messages", msg(f"say x{RESP}{CALL}{END}", tools=[TOOL], tool_choice={**choice, "disable_parallel_tool_use": True}))
        assert m["stop_reason"] == want, (choice, m)


@case("anthropic", "errors in its own form; a missing max_tokens, images, server tools are 400")
def anthropic_errors():
    for body in ({"messages": [{"role": "user", "content": "a"}]}, msg(messages=[]), msg(messages=[{"role": "x", "content": "a"}]),
                 msg(messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}]), msg(tools=[{"name": "f"}]),
                 msg(tools=[{"type": "web_search_20250305", "name": "w"}]), msg(tool_choice={"type": "x"}),
                 msg(thinking={"type": "x"}), b"{"):
        status, e, h = s.json("POST", "/v1/messages", body)
        assert status == 400 and e["type"] == "error" and e["error"]["type"] == "invalid_request_error", (status, e)
        assert e["error"]["message"] and e["request_id"] == h["x-request-id"]
    status, e, _ = s.json("POST", "/v1/messages", msg(model="x"))
    assert status == 404 and e["error"]["type"] == "not_found_error"
    status, e, h = s.json("POST", "/v1/messages", msg("refuse full"))
    assert status == 429 and e["error"]["type"] == "rate_limit_error" and h["Retry-After"]
    assert s.json("POST", "/v1/messages?beta=true", msg())[0] == 200


def resp_stream(**f):
    """Events checked for numbers and places; (types, the last response)."""
    events = s.stream("/v1/responses", {"input": PROGRAM, "stream": True, **f})
    data = [json.loads(d) for _, d in events]
    assert all(k == d["type"] for (k, _), d in zip(events, data))
    assert [d["sequence_number"] for d in data] == list(range(len(data)))
    assert [d["type"] for d in data[:2]] == ["response.created", "response.in_progress"]
    items, text = [], {}
    for d in data[2:-1]:
        t = d["type"]
        if t == "response.output_item.added":
            assert d["output_index"] == len(items)
            items.append(d["item"]["id"])
        elif t == "response.output_item.done":
            assert d["item"]["id"] == items[d["output_index"]] == items[-1]
        else:
            assert d["item_id"] == items[d["output_index"]], d
            if "function_call" not in t:
                assert d["content_index"] == 0
            if t.endswith(".delta"):
                text[d["item_id"]] = text.get(d["item_id"], "") + d["delta"]
            if t.endswith("text.done"):
                assert d["text"] == text[d["item_id"]]
            if t.endswith("arguments.done"):
                assert d["arguments"] == text[d["item_id"]]
    last = data[-1]["response"]
    if last["status"] == "completed":
        assert [i["id"] for i in last["output"]] == items
    return [d["type"] for d in data], last


@case("responses", "events in order, each with its place; the last carries the whole response; the body is the same")
def responses():
    for f, kinds, status in (({"tools": [FLAT]}, ["reasoning", "message", "function_call"], "completed"),
                             ({}, ["reasoning", "message"], "completed"),
                             ({"max_output_tokens": 4}, ["reasoning"], "incomplete")):
        types, last = resp_stream(**f)
        assert types[-1] == f"response.{status}" and [i["type"] for i in last["output"]] == kinds, last
        whole = s.ok("/v1/responses", {"input": PROGRAM, **f})
        bare = lambda r: [{k: v for k, v in i.items() if k not in ("id", "call_id")} for i in r["output"]]
        assert bare(whole) == bare(last) and whole["status"] == status and whole["usage"] == last["usage"]
        for key in ("id", "object", "created_at", "model", "parallel_tool_calls", "tool_choice", "tools", "error",
                    "incomplete_details", "usage"):
            assert key in whole
        assert "cached_tokens" in whole["usage"]["input_tokens_details"]
        assert "reasoning_tokens" in whole["usage"]["output_tokens_details"]


@case("responses", "stored: GET, DELETE, previous_response_id continues the conversation; store false is not kept")
def stored():
    one = s.ok("/v1/responses", {"input": f"say t{THINK}One.{RESP}{END}", "instructions": "sys"})
    status, got, _ = s.json("GET", "/v1/responses/" + one["id"])
    assert status == 200 and got == one
    two = s.ok("/v1/responses", {"input": f"say t{THINK}Two.{RESP}{END}", "previous_response_id": one["id"], "instructions": "sys"})
    chat = [{"role": "system", "content": "sys"}, {"role": "user", "content": f"say t{THINK}One.{RESP}{END}"},
            {"role": "assistant", "reasoning_content": "t", "content": "One."}, {"role": "user", "content": f"say t{THINK}Two.{RESP}{END}"}]
    assert two["usage"]["input_tokens"] == s.ok("/tokenize", {"messages": chat})["count"]
    assert s.json("DELETE", "/v1/responses/" + one["id"])[1] == {"id": one["id"], "object": "response", "deleted": True}
    assert s.json("GET", "/v1/responses/" + one["id"])[0] == 404 and s.json("DELETE", "/v1/responses/" + one["id"])[0] == 404
    status, e, _ = s.json("POST", "/v1/responses", {"input": "a", "previous_response_id": one["id"]})
    assert status == 404 and e["error"]["code"] == "previous_response_not_found"
    no = s.ok("/v1/responses", {"input": "a", "store": False})
    assert s.json("GET", "/v1/responses/" + no["id"])[0] == 404


@case("responses", "stored responses belong to their key and have limits of bytes and time")
def isolation():
    k = Server("--store", "8k", "--api-key", "one")
    h = {"Authorization": "Bearer one"}
    ids = [k.json("POST", "/v1/responses", {"input": "Hi"}, h)[1]["id"] for _ in range(12)]
    assert k.json("GET", "/v1/responses/" + ids[-1], headers=h)[0] == 200
    assert k.json("GET", "/v1/responses/" + ids[0], headers=h)[0] == 404
    k.kill()


@case("responses", "input items: messages, calls, outputs, reasoning; text.format; reasoning.effort; errors")
def items():
    r = s.ok("/v1/responses", {"input": [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":"b"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "done"}, {"role": "user", "content": "b"}], "tools": [FLAT]})
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": TOOL["input_schema"]}}
    chat = [{"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "reasoning_content": "Hm.", "content": [{"type": "text", "text": "Yes."}],
             "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":"b"}'}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "done"}, {"role": "user", "content": "b"}]
    assert r["usage"]["input_tokens"] == s.ok("/tokenize", {"messages": chat, "tools": [tool]})["count"]
    f = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object", "properties": {"a": {"type": "integer"}},
                                                                   "required": ["a"]}, "strict": True}}
    r = s.ok("/v1/responses", {"input": "random 3", "text": f, "reasoning": {"effort": "none"}, "max_output_tokens": 300})
    assert set(json.loads(r["output"][0]["content"][0]["text"])) == {"a"}, r
    for body in ({}, {"input": 5}, {"input": [5]}, {"input": [{"type": "computer_call"}]}, {"input": "a", "tools": [{"type": "web_search"}]},
                 {"input": "a", "store": "x"}, {"input": "a", "background": True}, {"input": "a", "max_output_tokens": 0},
                 {"input": "a", "reasoning": {"effort": "x"}}, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}):
        status, e, _ = s.json("POST", "/v1/responses", body)
        assert status == 400 and e["error"]["message"], (body, status, e)


if __name__ == "__main__":
    main()
