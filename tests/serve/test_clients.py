#!/usr/bin/env python3
# labels: long
# timeout: 900
"""The OpenAI and Anthropic clients drive the server, streaming and not, with tools and JSON. They are installed
into a folder of their own beside the program; without them (no network) this skips."""
import json
import os
import pathlib
import subprocess
import sys

from harness import SKIP, Server, case, main

try:
    import anthropic
    import openai
except ImportError:
    venv = pathlib.Path(os.environ["KONDENSE_FAKE"]).parent / "clients"
    python = venv / "bin/python"
    if os.environ.get("KONDENSE_IN_VENV"):
        print("no clients: skipped")
        sys.exit(SKIP)
    if not python.exists() and subprocess.run([sys.executable, "-m", "venv", str(venv)]).returncode:
        sys.exit(SKIP)
    if subprocess.run([str(python), "-m", "pip", "install", "-q", "openai", "anthropic"]).returncode:
        print("the clients cannot be installed: skipped")
        sys.exit(SKIP)
    os.execve(str(python), [str(python), *sys.argv], {**os.environ, "KONDENSE_IN_VENV": "1"})

s = Server("--ctx", "65536", env={"KONDENSE_API_KEY": "secret"})
url = f"http://127.0.0.1:{s.port}"
oai = openai.OpenAI(base_url=url + "/v1", api_key="secret", max_retries=0)
ant = anthropic.Anthropic(base_url=url, api_key="secret", max_retries=0)
M = "k3-nano"
THINK = "<|close|>think<|sep|><|open|>response<|sep|>"
RESP = "<|close|>response<|sep|>"
END = "<|close|>message<|sep|><|end_of_msg|>"
CALLS = ('<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>'
         'York<|close|>argument<|sep|><|open|>argument key="days" type="number"<|sep|>2<|close|>argument<|sep|><|close|>call<|sep|>'
         '<|close|>tools<|sep|>')
PARAMS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city", "days"]}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMS}}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string", "maxLength": 8}}, "required": ["a", "b"],
          "additionalProperties": False}


def user(text):
    return [{"role": "user", "content": text}]


@case("clients", "openai: chat, whole and streamed; usage, reasoning, models")
def openai_chat():
    program = f"say I think.{THINK}Hello.{RESP}{END}"
    r = oai.chat.completions.create(model=M, messages=user(program), seed=1)
    assert r.choices[0].message.content == "Hello." and r.choices[0].finish_reason == "stop"
    assert r.choices[0].message.reasoning_content == "I think." and r.usage.completion_tokens_details.reasoning_tokens > 0
    text, usage = "", None
    for c in oai.chat.completions.create(model=M, messages=user(program), stream=True, stream_options={"include_usage": True}):
        if c.choices:
            text += c.choices[0].delta.content or ""
        usage = c.usage or usage
    assert text == "Hello." and usage.total_tokens == r.usage.total_tokens
    assert [m.id for m in oai.models.list()] == [M] and oai.models.retrieve(M).id == M


@case("clients", "openai: tools, whole and streamed by the client's own accumulator, the result given back")
def openai_tools():
    program = f"say x{THINK}{RESP}{CALLS}{END}"
    r = oai.chat.completions.create(model=M, messages=user(program), tools=TOOLS)
    call = r.choices[0].message.tool_calls[0]
    assert call.function.name == "get_weather" and json.loads(call.function.arguments) == {"city": "York", "days": 2}
    with oai.chat.completions.stream(model=M, messages=user(program), tools=TOOLS) as st:
        for _ in st:
            pass
        final = st.get_final_completion()
    got = final.choices[0].message.tool_calls[0].function
    assert got.arguments == call.function.arguments and final.choices[0].finish_reason == "tool_calls"
    after = user(program) + [r.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "7"}] + user("Hi")
    assert oai.chat.completions.create(model=M, messages=after, tools=TOOLS).choices[0].message.content == "Hello there."
    forced = oai.chat.completions.create(model=M, messages=user("random 4"), tools=TOOLS, tool_choice="required", max_tokens=2000,
                                         extra_body={"thinking_budget": 5})
    for c in forced.choices[0].message.tool_calls:
        assert set(json.loads(c.function.arguments)) == {"city", "days"}


@case("clients", "openai: JSON by schema, logprobs, n, completions, async")
def openai_more():
    f = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
    r = oai.chat.completions.create(model=M, messages=user("random 2"), response_format=f, max_tokens=500, reasoning_effort="none")
    assert set(json.loads(r.choices[0].message.content)) == {"a", "b"}
    r = oai.chat.completions.create(model=M, messages=user(f"say x{THINK}Hi you{RESP}{END}"), logprobs=True, top_logprobs=2, n=2)
    assert len(r.choices) == 2 and "".join(t.token for t in r.choices[1].logprobs.content) == "Hi you"
    assert oai.completions.create(model=M, prompt="say Hello", max_tokens=5).choices[0].text == "Hello"
    assert "".join(c.choices[0].text for c in oai.completions.create(model=M, prompt="say Hello", stream=True) if c.choices) == "Hello"
    import asyncio

    async def many():
        a = openai.AsyncOpenAI(base_url=url + "/v1", api_key="secret", max_retries=0)
        out = await asyncio.gather(*[a.chat.completions.create(model=M, messages=user("Hi")) for _ in range(8)])
        return [r.choices[0].message.content for r in out]
    assert asyncio.run(many()) == ["Hello there."] * 8


@case("clients", "openai: errors are the client's own classes")
def openai_errors():
    for cls, act in ((openai.BadRequestError, lambda: oai.chat.completions.create(model=M, messages=[])),
                     (openai.NotFoundError, lambda: oai.chat.completions.create(model="x", messages=user("a"))),
                     (openai.RateLimitError, lambda: oai.chat.completions.create(model=M, messages=user("refuse full"))),
                     (openai.InternalServerError, lambda: oai.chat.completions.create(model=M, messages=user("fail it broke"))),
                     (openai.AuthenticationError, lambda: oai.with_options(api_key="no").models.list())):
        try:
            act()
        except cls as e:
            assert e.request_id and e.body["message"], e
        else:
            raise AssertionError(cls)
    try:
        for _ in oai.chat.completions.create(model=M, messages=user(f"say x{THINK}Hi\nfail it broke"), stream=True):
            pass
    except openai.APIError as e:
        assert "it broke" in str(e), e
    else:
        raise AssertionError("a failed stream ended quietly")


@case("clients", "openai: responses, whole and streamed, stored, continued, deleted, tools")
def openai_responses():
    program = f"say I think.{THINK}Hello.{RESP}{END}"
    r = oai.responses.create(model=M, input=program)
    assert r.output_text == "Hello." and r.status == "completed" and r.usage.output_tokens_details.reasoning_tokens > 0
    assert oai.responses.retrieve(r.id).output_text == "Hello."
    assert oai.responses.create(model=M, input="Hi", previous_response_id=r.id).output_text == "Hello there."
    oai.responses.delete(r.id)
    with oai.responses.stream(model=M, input=program) as st:
        kinds = [e.type for e in st]
        final = st.get_final_response()
    assert final.output_text == "Hello." and kinds[0] == "response.created" and kinds[-1] == "response.completed"
    flat = [{"type": "function", "name": "get_weather", "parameters": PARAMS, "strict": False}]
    r = oai.responses.create(model=M, input=f"say x{THINK}{RESP}{CALLS}{END}", tools=flat)
    call = next(i for i in r.output if i.type == "function_call")
    assert json.loads(call.arguments) == {"city": "York", "days": 2}
    r = oai.responses.create(model=M, input=[*[i.model_dump() for i in r.output], {"type": "function_call_output", "call_id": call.call_id,
                                                                                   "output": "7"}, *user("Hi")], tools=flat)
    assert r.output_text == "Hello there."


@case("clients", "anthropic: messages whole and streamed, thinking, tools with results, count_tokens, errors")
def anthropic_all():
    program = f"say I think.{THINK}Hello.{RESP}{CALLS}{END}"
    tools = [{"name": "get_weather", "input_schema": PARAMS}]
    f = dict(model=M, max_tokens=2000, messages=user(program), tools=tools, thinking={"type": "enabled", "budget_tokens": 1024})
    r = ant.messages.create(**f)
    assert [b.type for b in r.content] == ["thinking", "text", "tool_use"] and r.stop_reason == "tool_use"
    assert r.content[2].input == {"city": "York", "days": 2}
    with ant.messages.stream(**f) as st:
        text = "".join(st.text_stream)
        final = st.get_final_message()
    assert text == "Hello." and [b.type for b in final.content] == [b.type for b in r.content]
    assert final.content[2].input == r.content[2].input and final.usage.output_tokens == r.usage.output_tokens
    after = user(program) + [{"role": "assistant", "content": r.content}, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": r.content[2].id, "content": "7"}, {"type": "text", "text": "Hi"}]}]
    assert ant.messages.create(**{**f, "messages": after}).content[-1].text == "Hello there."
    assert ant.messages.count_tokens(model=M, messages=user("Hi")).input_tokens > 0
    for cls, act in ((anthropic.BadRequestError, lambda: ant.messages.create(model=M, max_tokens=5, messages=[])),
                     (anthropic.NotFoundError, lambda: ant.messages.create(model="x", max_tokens=5, messages=user("a"))),
                     (anthropic.RateLimitError, lambda: ant.messages.create(model=M, max_tokens=5, messages=user("refuse full"))),
                     (anthropic.AuthenticationError, lambda: ant.with_options(api_key="no").messages.create(
                         model=M, max_tokens=5, messages=user("a")))):
        try:
            act()
        except cls as e:
            assert e.request_id, e
        else:
            raise AssertionError(cls)


if __name__ == "__main__":
    main()
