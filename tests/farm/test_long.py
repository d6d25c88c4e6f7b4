"""The farm's faults, each on SQLite and on PostgreSQL where its programs are installed. `make farm-long`.

timeout: 3600"""
# labels: long
import os
import random
import shutil
import signal
import subprocess
import sys
import time

from harness import (EXPERTS, JOBS, PACE, Farm, Postgres, Proxy, Skip, WORK, call, done, kill, leased, must, run,
                     start, total)

state = {}


def postgres():
    if "pg" not in state:
        state["pg"] = Postgres("shared")
    return state["pg"].where


def on_both(f):
    """The case on SQLite, then on PostgreSQL."""
    def sqlite():
        f(f"{f.__name__}_lite", "")

    def pg():
        f(f"{f.__name__}_pg", postgres())
    for g in (sqlite, pg):
        g.__name__ = f"{f.__name__}_{g.__name__}"
        g.__doc__ = f.__doc__
        cases.append(g)
    return f


def once(f):
    cases.append(f)
    return f


cases = []


@on_both
def kill_storm(name, ledger):
    """1: a random one of four workers is killed every 250 ms for ten seconds, and comes back"""
    f = Farm(name, ledger, lease=1)
    f.convert()
    names = ["a", "b", "c", "d"]
    for n in names:
        f.worker(n)
    rnd, end, kills = random.Random(5), time.time() + 10 * PACE, 0
    while time.time() < end and f.coordinator.poll() is None:
        n = rnd.choice(names)
        kill(f.workers[n])
        kills += 1
        time.sleep(0.25)
        f.worker(n)
    figures = f.finish(240)
    assert total(figures) == JOBS and kills > 5, (kills, figures)


@on_both
def coordinator_killed_often(name, ledger):
    """2, 18: the coordinator (and so the blob server) is killed at random moments, also while it forwards"""
    f = Farm(name, ledger)
    rnd = random.Random(7)
    f.convert()
    f.worker("a")
    f.worker("b")
    for _ in range(8):
        time.sleep(rnd.uniform(0.2, 2.5) * PACE)
        if f.coordinator.poll() is not None:
            break
        kill(f.coordinator)
        f.convert(resume=True)
    f.finish(240)


def wait_done(f, n):
    f.until(done(n), 120)


@once
def postgres_crashes():
    """3: PostgreSQL dies as if the power went, for 1 s and for 8 s; nobody gives up, nothing is lost"""
    pg = Postgres("crash")
    f = Farm("pgcrash", pg.where, lease=3)
    f.convert()
    f.worker("a")
    for pause in (1, 8):
        wait_done(f, 2 if pause == 1 else EXPERTS)
        pg.control("crash")
        time.sleep(pause)
        pg.control("start")
    figures = f.finish(240)
    assert figures["a"]["done"] == JOBS, figures


@once
def ledger_lost():
    """4: the ledger's file is deleted; farm rebuild finds the same results on disk"""
    f = Farm("ledger")
    f.convert()
    f.worker("a")
    f.until(done(EXPERTS + 2))
    kill(f.coordinator)
    units = len(list((f.dst / ".work").glob("*/expert.*.unit")))
    for p in (f.dst / ".work").glob("ledger.db*"):
        p.unlink()
    said = must("farm", "rebuild", f.dst)
    assert f"{units} whole units" in said and "0 damaged" in said, said
    f.convert(resume=True)
    f.finish()


@once
def ledger_garbage():
    """4: the ledger's file is overwritten with noise; the next start makes it anew"""
    f = Farm("garbage")
    f.convert()
    f.worker("a")
    f.until(done(2))
    kill(f.coordinator)
    for p in (f.dst / ".work").glob("ledger.db*"):
        p.write_bytes(os.urandom(8192))
    f.convert(resume=True)
    f.finish()


@on_both
def partition(name, ledger):
    """5, 7: a worker's line is half open for three leases, then heals; others finish its work"""
    f = Farm(name, ledger, lease=1)
    f.convert()
    proxy = Proxy(f.port)
    f.worker("cut", url=proxy.url)
    f.until(leased("cut"))
    proxy.frozen = True
    f.worker("b")
    time.sleep(3)
    proxy.frozen = False
    f.finish(240)


@on_both
def stopped_worker(name, ledger):
    """6: SIGSTOP for three leases, then CONT; what it held was done by another, its own result is absorbed"""
    f = Farm(name, ledger, lease=1)
    f.convert()
    a = f.worker("a")
    f.until(leased("a"))
    a.send_signal(signal.SIGSTOP)
    f.worker("b")
    f.until(done(2))
    time.sleep(3)
    a.send_signal(signal.SIGCONT)
    figures = f.finish(240)
    assert total(figures) == JOBS, figures


@once
def damaged_on_disk():
    """9, 10: one bit flips in a stored unit, another loses its tail; rebuild names them and they are redone"""
    f = Farm("flip")
    f.convert()
    f.worker("a")
    f.until(done(EXPERTS + 3), 200)
    kill(f.coordinator)
    units = sorted((f.dst / ".work").glob("*/expert.*.unit"))
    if len(units) >= 2:
        data = bytearray(units[0].read_bytes())
        data[len(data) // 2] ^= 1
        units[0].write_bytes(data)
        units[1].write_bytes(units[1].read_bytes()[:-7])
        said = must("farm", "rebuild", f.dst)
        assert "2 damaged ones removed" in said, said
    f.convert(resume=True)
    f.finish()


@once
def full_disk():
    """11: the coordinator's disk is full; it says so, hands out nothing, and goes on when there is room"""
    disk = WORK / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(disk)], capture_output=True,
                      check=False).returncode:
        raise Skip("cannot mount a small file system here")
    try:
        f = Farm("full")
        f.dst = disk / "dst"
        f.convert()
        f.worker("a")
        f.until(done(1))
        hog = disk / "hog"
        with open(hog, "wb") as h:
            try:
                while True:
                    h.write(b"x" * 65536)
                    h.flush()
            except OSError:
                pass
        time.sleep(4 * PACE)
        before = f.status()["jobs_done"]
        time.sleep(2 * PACE)
        assert f.coordinator.poll() is None, f.logs()
        assert f.status()["jobs_done"] <= before + 1
        assert "disk is full" in f.log() + (f.dir / "coordinator.log").read_text(), f.logs()
        hog.unlink()
        f.finish(240)
    finally:
        for p in ("a",):
            if f.workers[p].poll() is None:
                kill(f.workers[p])
        if f.coordinator.poll() is None:
            kill(f.coordinator)
        subprocess.run(["umount", "-l", str(disk)], check=False)


@once
def full_worker():
    """11: a worker's disk is full; it hands its jobs back, the other does them"""
    disk = WORK / "wdisk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True,
                      check=False).returncode:
        raise Skip("cannot mount a small file system here")
    try:
        f = Farm("fullworker")
        f.convert()
        f.workers["small"] = start(["worker", "--join", f.join, "--dir", disk, "--name", "small", "--quiet"],
                                   f.dir / "small.log")
        f.until(lambda s: len(s["workers"]) == 2)
        time.sleep(2)
        f.worker("b")
        figures = f.finish(240)
        assert figures["b"]["done"] == JOBS, figures
    finally:
        kill(f.workers["small"])
        subprocess.run(["umount", "-l", str(disk)], check=False)


@on_both
def poison_nan(name, ledger):
    """12: an expert that no worker can compute is poison after two hosts, and encoded by the coordinator"""
    f = Farm(name, ledger)
    f.convert()
    for n in ("a", "b"):
        f.worker(n, fault="nan", env={"KONDENSE_TEST_FAULT_EXPERT": "2"})
    f.finish(240)
    assert "poisoned; encoded here" in f.log(), f.log()


@on_both
def poison_crash(name, ledger):
    """12: an expert that kills its workers runs alone, then is poison; the fleet survives"""
    f = Farm(name, ledger, lease=1)
    f.convert()
    end = time.time() + 200 * PACE
    env = {"KONDENSE_TEST_FAULT_EXPERT": "1"}
    while f.coordinator.poll() is None and time.time() < end:
        for n in ("a", "b", "c"):
            if n not in f.workers or f.workers[n].poll() is not None:
                f.worker(n, fault="crash", env=env)
        time.sleep(0.5)
    f.finish(10)
    assert "poisoned; encoded here" in f.log(), f.log()


@on_both
def slow_worker(name, ledger):
    """15: a worker far slower than the other holds up nothing: its last experts are done twice"""
    f = Farm(name, ledger, lease=4)
    f.convert()
    f.worker("slow", fault="slow", env={"KONDENSE_TEST_FAULT_MS": str(int(20000 * PACE))})
    f.until(leased("slow"))
    began = time.time()
    f.worker("fast")
    figures = f.finish(240)
    assert figures["fast"]["done"] >= JOBS - 2, (figures, time.time() - began)


SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t c, struct timespec *t)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int rc = real(c, t);
    if (c == CLOCK_REALTIME)
        t->tv_sec += atol(getenv("SHIM_SECONDS"));
    return rc;
}
time_t time(time_t *out)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out)
        *out = t.tv_sec;
    return t.tv_sec;
}
"""


@once
def clock_skew():
    """17: one worker's clock is an hour ahead, another's an hour behind: no effect"""
    (WORK / "shim.c").write_text(SHIM)
    lib = WORK / "shim.so"
    if subprocess.run(["cc", "-shared", "-fPIC", "-o", lib, WORK / "shim.c", "-ldl"], capture_output=True,
                      check=False).returncode:
        raise Skip("no compiler for the clock shim")
    f = Farm("clock", lease=2)
    f.convert()
    for n, s in (("ahead", 3600), ("behind", -3600)):
        f.worker(n, env={"LD_PRELOAD": str(lib), "SHIM_SECONDS": str(s)})
    figures = f.finish(240)
    assert total(figures) == JOBS and all(w["crashes"] == 0 for w in figures.values()), figures


@once
def bad_line():
    """5: a slow line that breaks again and again"""
    f = Farm("line", lease=3)
    f.convert()
    f.worker("a", url=Proxy(f.port, delay=0.02, cut=0.03, seed=3).url)
    f.worker("b", url=Proxy(f.port, delay=0.02, cut=0.03, seed=4).url)
    f.finish(300)


@once
def small_worker():
    """20: a worker with room for one expert at a time"""
    f = Farm("small")
    f.convert()
    f.worker("a", "--memory", "1")
    figures = f.finish()
    assert figures["a"]["done"] == JOBS, figures


@once
def changed_inputs():
    """22: a resume with another calibration text or another source is refused, with its reason"""
    f = Farm("changed")
    f.convert()
    f.worker("a")
    f.until(done(2))
    kill(f.coordinator)
    text = f.dir / "calib.txt"
    text.write_bytes(f.settings[1].read_bytes() + b" more")
    r = call("convert", f.src, f.dst, "--calib", text, *f.settings[2:], *f.options, "--resume")
    assert r.returncode == 2 and "other settings or another source" in r.stderr, r.stderr
    src = f.dir / "src2"
    shutil.copytree(f.src, src)
    shard = sorted(src.glob("*.safetensors"))[-1]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    r = call("convert", src, f.dst, *f.settings, *f.options, "--resume")
    assert r.returncode == 2 and "other settings or another source" in r.stderr, r.stderr
    f.convert(resume=True)
    f.finish()


@once
def going_back():
    """farm rebuild --from-layer drops sealed layers; they come out the same"""
    f = Farm("back")
    f.convert()
    f.worker("a")
    f.until(lambda s: any(c["layer"] == 2 for c in s["layers"]))
    kill(f.coordinator)
    said = must("farm", "rebuild", f.dst, "--from-layer", 1)
    assert "sealed shards dropped" in said, said
    f.convert(resume=True)
    f.finish()


@on_both
def terminate_everything(name, ledger):
    """23: SIGTERM to all at random moments, round after round"""
    f = Farm(name, ledger, tokens=64)
    rnd = random.Random(11)
    rounds = int(os.environ.get("KONDENSE_TEST_ROUNDS", "12"))
    for i in range(rounds):
        f.convert(resume=i > 0)
        a, b = f.worker("a"), f.worker("b")
        time.sleep(rnd.uniform(0.3, 2.0) * PACE)
        for p in (f.coordinator, a, b):
            if p.poll() is None:
                p.terminate()
        codes = [p.wait(60 * PACE) for p in (f.coordinator, a, b)]
        if codes[0] == 0:
            break
        assert codes[0] == 4, (codes, f.logs())
    else:
        f.convert(resume=True)
        f.worker("a")
    f.finish(240)


@once
def comes_back():
    """a worker leaves and comes back with its key; drain sends it away"""
    f = Farm("back2", tokens=1)
    f.convert()
    a = f.worker("a")
    f.until(done(1))
    a.terminate()
    a.wait(60)
    f.worker("a")
    f.until(lambda s: s["workers"][1]["state"] == "ACTIVE" and s["jobs_done"] > 1)
    must("farm", "drain", f.dst, "--worker", f.status()["workers"][1]["id"])
    assert f.workers["a"].wait(60) == 0, f.logs()
    second = f.worker("stranger")  # the only token is spent
    assert second.wait(30) not in (0, None), f.logs()
    f.worker("a")
    f.finish()


if __name__ == "__main__":
    if not sys.argv[1:] and "KONDENSE_TEST_ONLY" in os.environ:
        sys.argv[1:] = os.environ["KONDENSE_TEST_ONLY"].split()
    run(cases)
