"use strict";
// Model text only ever goes into textContent: it is never markup.
const $ = (id) => document.getElementById(id);
const log = $("log"), status = $("status");
let messages = [], running = null, model = "";

function make(tag, name, parent) {
  const e = document.createElement(tag);
  e.className = name;
  parent.append(e);
  return e;
}

function headers() {
  const h = {"Content-Type": "application/json"};
  if ($("key").value) h.Authorization = "Bearer " + $("key").value;
  return h;
}

function busy(on) {
  $("send").hidden = on;
  $("stop").hidden = !on;
}

function follow(act) {
  const near = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  act();
  if (near) log.scrollTop = log.scrollHeight;
}

function showUser(text) {
  follow(() => { make("div", "text", make("div", "turn user", log)).textContent = text; });
  log.scrollTop = log.scrollHeight;
}

// One assistant turn on the page; its parts appear as they come.
class Turn {
  constructor() {
    this.box = make("div", "turn assistant", log);
    this.message = {role: "assistant", reasoning_content: "", content: "", tool_calls: []};
    this.calls = [];
  }
  think(text) {
    if (!this.thinkBox) {
      this.fold = make("details", "think", this.box);
      this.title = make("summary", "", this.fold);
      this.title.textContent = "Thinking\u2026";
      this.thinkBox = make("div", "text", this.fold);
    }
    this.message.reasoning_content += text;
    this.thinkBox.append(document.createTextNode(text));
  }
  thought() {
    if (this.title) this.title.textContent = "Thinking";
  }
  say(text) {
    if (!text) return;
    this.thought();
    this.textBox = this.textBox || make("div", "text answer", this.box);
    this.message.content += text;
    this.textBox.append(document.createTextNode(text));
  }
  call(delta) {
    this.thought();
    let c = this.calls[delta.index];
    if (!c) {
      const box = make("div", "call", this.box);
      c = this.calls[delta.index] = {id: delta.id, name: "", args: "", box,
        nameBox: make("div", "name", box), argsBox: make("div", "args", box)};
    }
    const f = delta.function || {};
    if (f.name) c.nameBox.textContent = c.name += f.name;
    if (f.arguments) {
      c.args += f.arguments;
      c.argsBox.textContent = c.args;
    }
  }
  end(reason) {
    this.thought();
    const m = {role: "assistant", content: this.message.content};
    if (this.message.reasoning_content) m.reasoning_content = this.message.reasoning_content;
    const whole = reason === "tool_calls" ? this.calls : [];
    if (whole.length)
      m.tool_calls = whole.map((c) => ({id: c.id, type: "function",
        function: {name: c.name, arguments: c.args}}));
    messages.push(m);
    this.askResults(whole);
  }
  // A person answers the calls; when all are answered the chat goes on.
  askResults(calls) {
    let open = calls.length;
    for (const c of calls) {
      const form = make("form", "result", c.box), input = make("input", "", form);
      input.placeholder = "Result of this call";
      make("button", "", form).textContent = "Give";
      form.addEventListener("submit", (e) => {
        e.preventDefault();
        messages.push({role: "tool", tool_call_id: c.id, content: input.value});
        make("div", "text", c.box).textContent = "\u2192 " + input.value;
        form.remove();
        if (!--open) ask();
      });
    }
  }
}

async function* events(response) {
  const reader = response.body.getReader(), decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    rest += decoder.decode(value, {stream: true});
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const p of parts)
      for (const line of p.split("\n"))
        if (line.startsWith("data: ")) yield line.slice(6);
  }
}

function request() {
  const body = {model, messages: [], stream: true, stream_options: {include_usage: true},
    reasoning_effort: $("effort").value, temperature: Number($("temperature").value),
    max_completion_tokens: Number($("tokens").value)};
  if ($("system").value) body.messages.push({role: "system", content: $("system").value});
  body.messages.push(...messages);
  if ($("tools").value.trim()) body.tools = JSON.parse($("tools").value);
  return body;
}

function fail(turn, text) {
  make("div", "text error", turn.box).textContent = text;
}

async function ask() {
  const turn = new Turn(), began = performance.now();
  let reason = null, usage = null, whole = false;
  running = new AbortController();
  busy(true);
  status.textContent = "waiting\u2026";
  try {
    const r = await fetch("v1/chat/completions",
      {method: "POST", headers: headers(), body: JSON.stringify(request()), signal: running.signal});
    if (!r.ok) throw new Error((await r.json()).error.message);
    for await (const data of events(r)) {
      if (data === "[DONE]") { whole = true; break; }
      const e = JSON.parse(data);
      if (e.error) throw new Error(e.error.message);
      if (e.usage) usage = e.usage;
      const c = e.choices && e.choices[0];
      if (!c) continue;
      status.textContent = "";
      follow(() => {
        if (c.delta.reasoning_content) turn.think(c.delta.reasoning_content);
        if (c.delta.content) turn.say(c.delta.content);
        for (const d of c.delta.tool_calls || []) turn.call(d);
      });
      if (c.finish_reason) reason = c.finish_reason;
    }
    if (!whole) throw new Error("the answer was cut off");
  } catch (e) {
    if (e.name === "AbortError") reason = reason || "stopped";
    else fail(turn, e.message);
  }
  running = null;
  busy(false);
  turn.end(reason);
  const seconds = (performance.now() - began) / 1000;
  status.textContent = usage ? usage.completion_tokens + " tokens in " + seconds.toFixed(1) + " s, " +
      usage.prompt_tokens + " in the prompt (" + usage.prompt_tokens_details.cached_tokens + " cached)"
    : reason === "stopped" ? "stopped" : "";
  if (reason === "length") status.textContent += ", cut at the limit";
  $("text").focus();
}

$("form").addEventListener("submit", (e) => {
  e.preventDefault();
  const text = $("text").value;
  if (!text.trim() || running) return;
  $("text").value = "";
  messages.push({role: "user", content: text});
  showUser(text);
  ask();
});

$("text").addEventListener("keydown", (e) => {
  if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
    e.preventDefault();
    $("form").requestSubmit();
  }
});

$("stop").addEventListener("click", () => running && running.abort());

$("fresh").addEventListener("click", () => {
  if (running) running.abort();
  messages = [];
  log.replaceChildren();
  status.textContent = "";
});

async function findModel() {
  try {
    const r = await fetch("v1/models", {headers: headers()});
    if (!r.ok) throw new Error((await r.json()).error.message);
    model = (await r.json()).data[0].id;
    $("model").textContent = model;
    status.textContent = "";
  } catch (e) {
    status.textContent = e.message;
  }
}

$("key").addEventListener("change", findModel);
findModel();
