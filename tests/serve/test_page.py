#!/usr/bin/env python3
"""The chat page in a headless Chromium: streaming, stop, folded thinking, tool calls and their results, text that
is never markup, and the width of a phone. Skips without Chromium. KONDENSE_SHOTS: a folder for screenshots."""
import atexit
import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
import time

from harness import SKIP, Server, case, main

chromium = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
if not chromium:
    print("no chromium: skipped")
    sys.exit(SKIP)

THINK = "<|close|>think<|sep|><|open|>response<|sep|>"
END = "<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>"


class Browser:
    """Chromium by its debugging pipe: NUL-ended JSON on descriptors 3 and 4."""

    def __init__(self, width, height):
        to_r, self.w = os.pipe()
        self.r, from_w = os.pipe()
        self.dir = tempfile.TemporaryDirectory()
        def wire():
            os.dup2(to_r, 30), os.dup2(from_w, 31), os.dup2(30, 3), os.dup2(31, 4)
        self.p = subprocess.Popen(
            [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
             "--disable-dev-shm-usage", f"--user-data-dir={self.dir.name}", f"--window-size={width},{height}", "about:blank"],
            preexec_fn=wire, pass_fds=(3, 4, to_r, from_w), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        atexit.register(self.kill)
        self.n, self.rest, self.events = 0, b"", []
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = None
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        self.call("Runtime.enable")
        self.call("Log.enable")
        self.call("Network.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)

    def kill(self):
        if self.p.poll() is None:
            self.p.kill()
            self.p.wait()

    def call(self, method, **params):
        self.n += 1
        m = {"id": self.n, "method": method, "params": params}
        if getattr(self, "session", None):
            m["sessionId"] = self.session
        os.write(self.w, json.dumps(m).encode() + b"\0")
        until = time.monotonic() + 60
        while time.monotonic() < until:
            while b"\0" in self.rest:
                one, self.rest = self.rest.split(b"\0", 1)
                got = json.loads(one)
                if got.get("id") == self.n:
                    assert "error" not in got, (method, got)
                    return got["result"]
                self.events.append(got)
            if select.select([self.r], [], [], 1)[0]:
                self.rest += os.read(self.r, 1 << 20)
        raise TimeoutError(method)

    def js(self, code):
        r = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in r, r
        return r["result"].get("value")

    def wait(self, code, seconds=20):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.js(f"!!({code})"):
                return
            time.sleep(0.05)
        raise AssertionError(f"never: {code}; page: {self.js('document.body.innerText')}")

    def open(self, url):
        self.call("Page.enable")
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && document.getElementById('model').textContent !== ''")

    def type(self, text):
        self.js("document.getElementById('text').focus()")
        self.call("Input.insertText", text=text)

    def click(self, selector):
        self.js(f"document.querySelector({json.dumps(selector)}).click()")

    def shot(self, name):
        out = os.environ.get("KONDENSE_SHOTS")
        if out:
            data = self.call("Page.captureScreenshot", format="png")["data"]
            (pathlib.Path(out) / f"{name}.png").write_bytes(base64.b64decode(data))

    def complaints(self):
        self.call("Runtime.evaluate", expression="1")
        bad = []
        for e in self.events:
            if e.get("method") == "Runtime.exceptionThrown":
                bad.append(e["params"]["exceptionDetails"])
            if e.get("method") == "Log.entryAdded" and e["params"]["entry"]["level"] == "error" and \
                    "favicon" not in json.dumps(e) and "INCOMPLETE_CHUNKED" not in json.dumps(e):
                bad.append(e["params"]["entry"])
        return bad

    def foreign(self, port):
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"
                and not e["params"]["request"]["url"].startswith((f"http://127.0.0.1:{port}/", "data:", "about:"))]


s = Server("--ctx", "65536")
url = f"http://127.0.0.1:{s.port}/"
phone, desk = Browser(390, 844), Browser(1200, 800)


def send(b, program):
    b.type(program)
    b.click("#send")


@case("page", "answers stream in, thinking is folded, the status tells tokens")
def streaming():
    b = desk
    b.open(url)
    send(b, f"slow 30\nsay Let me think about this.{THINK}" + "one two three four five six seven eight nine ten " * 2 + END)
    b.wait("document.querySelector('.think')")
    assert not b.js("document.querySelector('.think').open")
    b.wait("document.querySelector('.answer')")
    early = b.js("document.querySelector('.answer').textContent.length")
    b.shot("streaming")
    b.wait("!document.getElementById('send').hidden")
    late = b.js("document.querySelector('.answer').textContent.length")
    assert 0 < early < late, (early, late)
    assert b.js("document.querySelector('.think .text').textContent") == "Let me think about this."
    assert "tokens in" in b.js("document.getElementById('status').textContent")
    assert not b.js("document.querySelector('.think .text').checkVisibility()")
    b.click(".think summary")
    assert b.js("document.querySelector('.think .text').checkVisibility()")
    b.shot("done")


@case("page", "the stop button ends the answer, and the server's work")
def stop():
    b = desk
    b.open(url)
    send(b, f"slow 40\nsay x{THINK}" + "word " * 300 + END)
    b.wait("document.querySelector('.answer') && document.querySelector('.answer').textContent.length > 10")
    b.click("#stop")
    b.wait("!document.getElementById('send').hidden")
    assert s.idle(5)
    n = b.js("document.querySelector('.answer').textContent.length")
    time.sleep(0.4)
    assert n == b.js("document.querySelector('.answer').textContent.length") and n < 1500
    assert b.js("document.getElementById('status').textContent") == "stopped"


TOOLS = json.dumps([{"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}}])


@case("page", "tool calls are shown and can be answered; the chat goes on")
def tools():
    b = phone
    b.open(url)
    b.js(f"document.getElementById('tools').value = {json.dumps(TOOLS)}")
    send(b, f'say I look.{THINK}<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
            '<|open|>argument key="city" type="string"<|sep|>York<|close|>argument<|sep|><|close|>call<|sep|>'
            '<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>')
    b.wait("document.querySelector('.call form')")
    assert b.js("document.querySelector('.call .name').textContent") == "get_weather"
    assert b.js("document.querySelector('.call .args').textContent") == '{"city":"York"}'
    b.shot("tools")
    b.js("document.querySelector('.call input').value = '7 degrees'")
    b.click(".call form button")
    b.wait("document.querySelectorAll('.turn.assistant').length === 2")
    b.wait("!document.getElementById('send').hidden")


@case("page", "model text is text: markup in it does nothing")
def text_only():
    b = desk
    b.open(url)
    send(b, f"say <b>x</b>{THINK}<img src=x onerror=\"document.title='bad'\"><script>document.title='bad'</script> ok{END}")
    b.wait("!document.getElementById('send').hidden && document.querySelector('.answer')")
    assert "<script>" in b.js("document.querySelector('.answer').textContent")
    assert b.js("document.querySelectorAll('.turn img, .turn script, .turn b').length") == 0
    assert b.js("document.title") == "Kondense"


@case("page", "errors are shown in words; a new chat clears")
def errors():
    b = desk
    b.open(url)
    send(b, f"say x{THINK}Hi\nfail it broke")
    b.wait("document.querySelector('.error')")
    assert "it broke" in b.js("document.querySelector('.error').textContent")
    b.click("#fresh")
    assert b.js("document.getElementById('log').children.length") == 0


@case("page", "usable at the width of a phone: nothing wider than the screen, buttons large enough, input in view")
def width():
    b = phone
    b.open(url)
    send(b, f"say I think about long words.{THINK}" + "averyveryverylongword" * 20 + " and short ones. " * 40 + END)
    b.wait("!document.getElementById('send').hidden && document.querySelector('.answer')")
    assert b.js("document.documentElement.scrollWidth") <= 390
    assert b.js("Math.max(...[...document.querySelectorAll('body *')].map(e => e.getBoundingClientRect().right))") <= 391
    r = b.js("(r => [r.bottom, r.height, r.width])(document.getElementById('send').getBoundingClientRect())")
    assert r[0] <= 844 and r[1] >= 40 and r[2] >= 40, r
    assert b.js("document.getElementById('text').getBoundingClientRect().width") > 200
    b.shot("phone")


@case("page", "no errors in the console, no requests to anywhere else")
def quiet():
    for b in (phone, desk):
        assert not b.complaints(), b.complaints()
        assert not b.foreign(s.port), b.foreign(s.port)


if __name__ == "__main__":
    main()
