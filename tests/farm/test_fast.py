"""The farm in half a minute: what everybody's change must not break. The rest is test_long.py.

timeout: 300"""
# labels: heavy
import json
import os
import random
import signal
import ssl
import time
import urllib.error
import urllib.request

if __name__ == "__main__":  # nearly all of the time is encoding
    os.environ.setdefault("KONDENSE_TEST_EXPERTS", "4")
from harness import EXPERTS, PACE, Farm, Proxy, call, done, kill, leased, must, run, total


def two_workers_and_the_same_bytes():
    """two workers, one with its own copy of the source; the trunk's tensors are jobs too; strangers are refused"""
    f = Farm("two", sample=3, trunk="4")
    f.convert("--farm-report", f.dir / "farm.html")
    f.worker("a", "--lanes", 2)
    f.worker("b", "--source", f.src)
    s = f.until(lambda s: len(s["workers"]) == 3)
    # The coordinator's own lanes are as many as its threads can use.
    assert {w["host"]: w["lanes"] for w in s["workers"] if w["id"] != "local"} == {"a": 2, "b": 1}, s["workers"]
    context = ssl.create_default_context(cadata=f.join.read_text()[f.join.read_text().index("-----BEGIN"):])
    about = json.loads(urllib.request.urlopen(f.url + "/farm/v1/about", context=context).read())
    join = ('{"protocol":%d,"version":"%s","class":"%s","canary":"%s","host":"x","incarnation":"i","arch":"a",'
            '"device":"cpu","token":"%s","id":"","key":""}')
    wire, version = about["protocol"], must("--version").split()[1]
    assert about["version"] == version, about
    for body, why in ((join % (wire, "0.0", "exact", "", ""), "version"),
                      (join % (wire - 1, version, "exact", "", ""), "wire"),
                      (join % (wire, version, "fast", "", ""), "class"),
                      (join % (wire, version, "exact", "0" * 64, ""), "canary"), ("{", "")):
        r = urllib.request.Request(f.url + "/farm/v1/join", body.encode(), {"Content-Type": "application/json"})
        try:
            urllib.request.urlopen(r, context=context)
            raise AssertionError(f"joined: {body}")
        except urllib.error.HTTPError as e:
            assert e.code in (400, 403) and why in (text := e.read().decode()), text
    for path in ("claim", "beat", "in/1.1.1." + "0" * 64 + ".1", "b/" + "0" * 64 + ".0"):
        r = urllib.request.Request(f"{f.url}/farm/v1/{path}", b"{}" if "/" not in path else None,
                                   {"Content-Type": "application/json", "Authorization": "Bearer w12345678.0"},
                                   method="PUT" if path.startswith("in") else None)
        try:
            urllib.request.urlopen(r, context=context)
            raise AssertionError(f"let in: {path}")
        except urllib.error.HTTPError as e:
            assert e.code == 401, e.code
    figures = f.finish()
    # Three layers: 10 tensors in each (4 or 2 + 1, 1, 3, 1, 1), 8 where the MLP is dense.
    trunk = f.audit()["jobs"] - 2 * EXPERTS
    assert trunk >= 20 and total(figures) == 2 * EXPERTS + trunk and figures["local"]["done"] == 0, (trunk, figures)
    assert min(figures["a"]["done"], figures["b"]["done"]) > 2, figures
    page = (f.dir / "farm.html").read_text()
    assert page.startswith("<!doctype html>") and "tensors of the trunk" in page
    f.end_workers()


def devices():
    """a device that is none is refused in one line, before anything is joined"""
    for device, why in (("gpu", "neither cpu nor cuda"), ("cuda:x", "neither cpu nor cuda"), ("cuda:0,0", "twice")):
        r = call("worker", "--join", "nowhere", "--device", device)
        assert r.returncode == 2 and why in r.stderr and len(r.stderr.splitlines()) == 1, (device, r)
    r = call("worker", "--join", "nowhere", "--device", "cuda:63")
    assert r.returncode not in (0, 2) and len(r.stderr.splitlines()) == 1 and "join" not in r.stderr, r


def a_killed_worker_and_a_late_one():
    """kill -9 after its first lease; another joins late and does the rest"""
    f = Farm("killed")
    f.convert()
    f.worker("a")
    f.until(leased("a"))
    kill(f.workers.pop("a"))
    f.worker("late")
    # What a person sees meanwhile: layers, rates, shares, idle time, bytes, and the run on other numbers.
    s = f.until(lambda s: any(c["layer"] == 2 for c in s["layers"]))
    text = must("farm", "status", f.dst)
    for word in ("layers    [##", "experts/s", "share", "idle", "down", "on workers like these, on 1: "):
        assert word in text, text
    hours = [w["experts_s"] for w in s["on_workers"]]
    assert len(hours) == 7 and all(abs(2 * b - a) < 1e-6 * a for a, b in zip(hours, hours[1:])), hours
    figures = f.finish()
    assert total(figures) == 2 * EXPERTS and figures["late"]["done"] >= 1, figures
    f.end_workers()


def a_killed_coordinator(name="coordinator", ledger=""):
    """kill -9 of the coordinator in the middle of a layer; the worker waits for it and goes on"""
    f = Farm(name, ledger)
    f.convert()
    f.worker("a")
    f.until(done(2))
    second = call("convert", f.src, f.dst, *f.settings, *f.options, "--resume")
    assert second.returncode != 0 and "in use by another" in second.stderr, second.stderr
    kill(f.coordinator)
    other = call("convert", f.src, f.dst, *f.settings, *f.options, "--resume", "--seed", 9)
    assert other.returncode == 2 and "other settings" in other.stderr, other.stderr
    f.convert(resume=True)
    figures = f.finish()
    assert figures["a"]["done"] >= 2 * EXPERTS - 1, figures
    f.end_workers()


def wrong_bytes(name="wrong", ledger=""):
    """wrong codes with right framing are refused; a wrong but sound unit is found by encoding it again"""
    f = Farm(name, ledger, sample=1, only_workers=False)
    f.convert()
    f.worker("liar", fault="wrong")
    f.worker("off", fault="subtle")
    f.finish()
    log = f.log()
    assert "relative error" in log and "unit refused" in log, log
    assert "wrong bytes" in log, log
    figures = f.figures()
    assert figures["off"]["state"] == "QUARANTINED", figures


def a_lost_reply_and_a_polite_leave():
    """the reply to a claim is lost on the wire: the same token finds the lease; SIGTERM to another worker: what it
    holds goes back at once, without a penalty"""
    f = Farm("lost", lease=60)
    f.convert()
    proxy = Proxy(f.port)
    proxy.swallow = 4
    f.worker("a", url=proxy.url)
    b = f.worker("b")
    f.until(leased("b"))
    b.send_signal(signal.SIGTERM)
    assert b.wait(30 * PACE) == 4, f.logs()
    left = next(w for w in f.status()["workers"] if w["host"] == "b")
    assert left["state"] == "GONE" and left["held"] == 0, left
    figures = f.finish()
    assert proxy.swallowed >= 2, proxy.swallowed
    # A lease that nobody knew of would have run out after its 60 seconds.
    assert "expired_leases" not in f.log() and total(figures) == 2 * EXPERTS, (figures, f.log())
    for name in "ab":
        assert figures[name]["crashes"] == 0 and figures[name]["failures"] == 0, figures
    f.end_workers()


def rounds_of_sigterm(name, ledger, rounds):
    """SIGTERM to the coordinator and two workers at a random moment, so many times; each conversion that comes to
    its end has the reference's bytes, and the next begins. How many did."""
    rnd, ended, f = random.Random(11), 0, None
    for _ in range(rounds):
        again = f is not None
        f = f or Farm(f"{name}.{ended}", ledger, tokens=4, lease=1)
        f.convert(resume=again)
        a, b = f.worker("a"), f.worker("b")
        time.sleep(rnd.uniform(0.1, 2.0) * PACE)
        for p in (f.coordinator, a, b):
            if p.poll() is None:
                p.terminate()
        codes = [p.wait(60 * PACE) for p in (f.coordinator, a, b)]
        if codes[0] == 0:
            f.finish()
            f, ended = None, ended + 1
        else:
            assert codes[0] == 4, (codes, f.logs())
    if f:
        f.convert(resume=True)
        f.worker("a")
        f.finish(240)
        ended += 1
    return ended


def sigterm_to_all():
    """23, in short: SIGTERM to everything, three rounds"""
    assert rounds_of_sigterm("sigterm", "", 3) >= 1


if __name__ == "__main__":
    # The longest first.
    run([two_workers_and_the_same_bytes, wrong_bytes, sigterm_to_all, a_killed_coordinator,
         a_killed_worker_and_a_late_one, a_lost_reply_and_a_polite_leave, devices], side_by_side=2)
