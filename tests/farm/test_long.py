"""The farm's faults, each on SQLite and on PostgreSQL where its programs are installed, two cases at a time.
`make farm-long`.

timeout: 3600"""
# labels: long
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

from test_fast import a_killed_coordinator, rounds_of_sigterm, wrong_bytes
from harness import (EXPERTS, JOBS, PACE, Farm, Lagging, Postgres, Proxy, Skip, WORK, call, done, kill, leased, must, run,
                     start, total)

state = {}
making = threading.Lock()


def postgres():
    with making:
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


# Dies as if the power went, just before or just after the n-th call on a file of this name.
DEATH = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void die_at(const char *call, const char *when, const char *path)
{
    static int seen;
    if (strcmp(call, getenv("DEATH_CALL")) || strcmp(when, getenv("DEATH_WHEN")) ||
        !strstr(path, getenv("DEATH_NAME")))
        return;
    if (++seen == atoi(getenv("DEATH_NTH")))
        raise(SIGKILL);
}
int rename(const char *a, const char *b)
{
    int (*real)(const char *, const char *) = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    die_at("rename", "before", b);
    int rc = real(a, b);
    die_at("rename", "after", b);
    return rc;
}
int unlink(const char *path)
{
    int (*real)(const char *) = (int (*)(const char *))dlsym(RTLD_NEXT, "unlink");
    die_at("unlink", "before", path);
    return real(path);
}
int fsync(int fd)
{
    char link[64], path[4096] = "";
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) < 0)
        return -1;
    die_at("fsync", "before", path);
    return real(fd);
}
int open(const char *path, int flags, ...)
{
    int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    va_list a;
    va_start(a, flags);
    int mode = flags & O_CREAT ? va_arg(a, int) : 0;
    va_end(a);
    die_at("open", "before", path);
    return real(path, flags, mode);
}
"""
STEPS = (  # of layer 2, the last: calibrating, encoding, between write and fsync, fsync and its name, name and DONE,
    ("open", "before", "scratch.latents", 2),  # the quantized forward, sealing
    ("fsync", "before", ".unit", 2), ("rename", "before", ".unit", 1), ("rename", "after", ".unit", 2),
    ("open", "before", "stream.003", 1), ("rename", "before", "model-00003", 1), ("rename", "after", "model-00003", 1))


def preload(name, text):
    """A library to put before the program's calls."""
    lib = WORK / f"{name}.so"
    with making:
        if not lib.exists():
            (WORK / f"{name}.c").write_text(text)
            if subprocess.run(["cc", "-shared", "-fPIC", "-o", lib, WORK / f"{name}.c", "-ldl"], capture_output=True,
                              check=False).returncode:
                raise Skip("no compiler for what is put before the program's calls")
    return str(lib)


def dying(what, when, name, nth):
    """The environment of a process that dies at the nth such call on a file of this name."""
    return {"LD_PRELOAD": preload("death", DEATH), "DEATH_CALL": what, "DEATH_WHEN": when, "DEATH_NAME": name,
            "DEATH_NTH": str(nth)}


def kept(folder):
    """What is whole under its final name: its inode and time, which tell whether it was made again."""
    files = [*folder.glob("model-*.safetensors"), *(folder / ".work").glob("*/*.unit")]
    return {p.relative_to(folder): (p.stat().st_ino, p.stat().st_mtime_ns) for p in files}


@on_both
def coordinator_killed_at_each_step(name, ledger):
    """2: killed while it calibrates, between a unit's write, fsync, name and DONE, in the forward pass, while sealing"""
    f = Farm(name, ledger, trunk="4")
    f.worker("a")
    before = {}
    for i, (what, when, file, nth) in enumerate(STEPS):
        f.convert(resume=i > 0, env=dying(what, when, file, nth))
        assert f.coordinator.wait(120 * PACE) == -signal.SIGKILL, (what, when, file, f.logs())
        now = kept(f.dst)
        again = [p for p in before if p in now and now[p] != before[p]]
        assert not again, (what, when, file, again)
        before = now
    f.convert(resume=True)
    f.finish(240)
    now = kept(f.dst)
    assert all(now[p] == before[p] for p in before if p in now), (before, now)


def wait_done(f, n):
    f.until(done(n), 120)


@once
def postgres_crashes():
    """3: PostgreSQL dies as if the power went, for 1 s and for 60 s; nobody gives up, nothing is lost"""
    pg = Postgres("crash")
    f = Farm("pgcrash", pg.where, lease=3)
    f.convert()
    f.worker("a")
    for pause in (1, 60):
        wait_done(f, 2 if pause == 1 else EXPERTS)
        pg.control("crash")
        time.sleep(pause)
        pg.control("start")
    figures = f.finish(240)
    assert figures["a"]["done"] == JOBS, figures


@on_both
def half_killed(name, ledger):
    """kill -9 of two of four workers at once, in the middle of a layer; the other two finish"""
    f = Farm(name, ledger, lease=1)
    f.convert()
    for n in "abcd":
        f.worker(n)
    s = f.until(lambda s: sum(w["held"] > 0 for w in s["workers"]) >= 2)
    busy = [w["host"] for w in s["workers"] if w["held"] > 0][:2]
    for n in busy:
        kill(f.workers[n])
    figures = f.finish(240)
    assert total(figures) == JOBS, figures


@on_both
def wrong_bytes_too(name, ledger):
    """13: as in test_fast, on both ledgers"""
    wrong_bytes(name, ledger)


@on_both
def wrong_bytes_outlive_nothing(name, ledger):
    """13, 2: the coordinator dies after it has found a wrong unit and before it removes it; the unit goes all the same"""
    f = Farm(name, ledger, sample=1, only_workers=False)
    f.convert(env=dying("unlink", "before", ".unit", 1))
    f.worker("off", fault="subtle")
    assert f.coordinator.wait(120 * PACE) == -signal.SIGKILL, f.logs()
    kill(f.workers["off"])
    f.convert(resume=True)
    f.finish()


@on_both
def two_coordinators_too(name, ledger):
    """16: as in test_fast, on both ledgers"""
    a_killed_coordinator(name, ledger)


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
def database_lost():
    """4: the database's folder is deleted; an empty server in its place, rebuild and a resume: nothing is made again"""
    pg = Postgres("lost")
    f = Farm("pglost", pg.where)
    f.convert()
    f.worker("a")
    f.until(done(EXPERTS + 2))
    kill(f.coordinator)
    kill(f.workers["a"])
    before = kept(f.dst)
    pg.control("crash")
    shutil.rmtree(pg.dir / "data")
    pg.control("start")
    said = must("farm", "rebuild", f.dst)
    units = len(list((f.dst / ".work").glob("*/expert.*.unit")))
    assert f"{units} whole units" in said and "0 damaged" in said, said
    f.convert(resume=True)
    f.worker("b")
    figures = f.finish()
    assert figures["b"]["done"] == JOBS - units - EXPERTS and "a" not in figures, (units, figures)
    now = kept(f.dst)
    assert all(now[p] == before[p] for p in before if p in now), (before, now)


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


@on_both
def damaged_on_disk(name, ledger):
    """9, 10: one bit flips in a stored unit, another loses its tail; rebuild names them and they are redone"""
    f = Farm(name, ledger)
    f.convert()
    f.worker("a")
    f.until(done(EXPERTS + 3), 200)
    kill(f.coordinator)
    units = sorted((f.dst / ".work").glob("*/expert.*.unit"))
    assert len(units) >= 2, units
    data = bytearray(units[0].read_bytes())
    data[len(data) // 2] ^= 1
    units[0].write_bytes(data)
    units[1].write_bytes(units[1].read_bytes()[:-7])
    said = must("farm", "rebuild", f.dst)
    assert "2 damaged ones removed" in said, said
    f.convert(resume=True)
    f.finish()


@on_both
def full_disk(name, ledger):
    """11: the coordinator's disk is full; it says so, hands out nothing, and goes on when there is room"""
    disk = WORK / f"{name}.disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(disk)], capture_output=True,
                      check=False).returncode:
        raise Skip("cannot mount a small file system here")
    try:
        f = Farm(name, ledger)
        f.dst = disk / "dst"
        f.convert()
        f.worker("a")
        f.until(done(1))
        hog = disk / "hog"
        try:
            with open(hog, "wb", buffering=0) as h:
                while True:
                    h.write(b"x" * 65536)
        except OSError:
            pass
        time.sleep(4 * PACE)
        before = f.status()["jobs_done"]
        time.sleep(2 * PACE)
        assert f.coordinator.poll() is None, f.logs()
        assert f.status()["jobs_done"] <= before + 1
        assert "disk is full" in f.log() + (f.dir / "coordinator.log").read_text(), f.logs()
        hog.unlink(missing_ok=True)
        f.finish(240)
    finally:
        for p in ("a",):
            if f.workers[p].poll() is None:
                kill(f.workers[p])
        if f.coordinator.poll() is None:
            kill(f.coordinator)
        subprocess.run(["umount", "-l", str(disk)], check=False)


@on_both
def full_worker(name, ledger):
    """11: a worker's disk is full; it hands its jobs back, the other does them"""
    disk = WORK / f"{name}.disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True,
                      check=False).returncode:
        raise Skip("cannot mount a small file system here")
    try:
        f = Farm(name, ledger)
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


@once
def drifting_device():
    """a device fails and computes otherwise from then on: the worker's own canary ends it, another does the rest"""
    f = Farm("drift")
    f.convert()
    a = f.worker("a", fault="drift", env={"KONDENSE_TEST_FAULT_EXPERT": "1"})
    assert a.wait(120 * PACE) not in (0, 4), f.logs()
    assert "not to be trusted" in (f.dir / "a.log").read_text(), f.logs()
    f.worker("b")
    figures = f.finish(240)
    assert figures["a"]["failures"] == 1 and total(figures) == JOBS, figures


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


@on_both
def clock_skew(name, ledger):
    """17: one worker's clock is an hour ahead, another's an hour behind: no effect"""
    lib = preload("shim", SHIM)
    f = Farm(name, ledger, lease=20)
    f.convert()
    for n, s in (("ahead", 3600), ("behind", -3600)):
        f.worker(n, env={"LD_PRELOAD": lib, "SHIM_SECONDS": str(s)})
    figures = f.finish(240)
    assert total(figures) == JOBS and all(w["crashes"] == 0 for w in figures.values()), figures


@on_both
def bad_line(name, ledger):
    """5: a slow line that breaks again and again"""
    f = Farm(name, ledger, lease=3)
    f.convert()
    f.worker("a", url=Proxy(f.port, delay=0.02, cut=0.03, seed=3).url)
    f.worker("b", url=Proxy(f.port, delay=0.02, cut=0.03, seed=4).url)
    f.finish(300)


@once
def shared_folder():
    """blobs and units through a folder that both see: next to nothing by HTTPS, and nothing left in it"""
    share = WORK / "share"
    f = Farm("shared", share=share, trunk="4")
    f.convert()
    f.worker("a")
    f.worker("b", "--share", "none")
    figures = f.finish()
    assert figures["a"]["done"] > 4 and figures["a"]["down_bytes"] == 0 and figures["a"]["up_bytes"] > 0, figures
    assert figures["b"]["down_bytes"] > 0, figures
    left = [p for p in share.rglob("*") if p.is_file()]
    assert not left, left


@once
def lagging_folder():
    """19: the shared folder shows files two seconds late, and without their bytes at first: no false poison"""
    here, there = WORK / "here", WORK / "there"
    here.mkdir()
    there.mkdir()
    lagging = Lagging(here, there)
    f = Farm("lagging", share=here)
    f.convert()
    f.until(lambda s: (there / "in").is_dir())
    f.worker("a", "--share", there)
    figures = f.finish(240)
    lagging.over = True
    assert figures["a"]["done"] == JOBS and figures["a"]["failures"] == 0, figures
    # Everything goes through the folder although it shows late.
    assert figures["a"]["down_bytes"] == 0 and "HTTPS" not in (f.dir / "a.log").read_text(), f.logs()
    assert "poisoned" not in f.log(), f.log()


@once
def blind_folder():
    """19: a folder in which the other side's files never show: HTTPS serves, after three waits"""
    here, there = WORK / "blind-here", WORK / "blind-there"
    (there / "in").mkdir(parents=True)
    here.mkdir()
    f = Farm("blind", share=here)
    f.convert()
    f.worker("a", "--share", there)
    figures = f.finish(240)
    assert figures["a"]["done"] == JOBS and figures["a"]["failures"] == 0, figures
    assert "a minute of HTTPS" in (f.dir / "a.log").read_text(), f.logs()


@on_both
def small_worker(name, ledger):
    """20: a worker with room for one expert at a time"""
    f = Farm(name, ledger)
    f.convert()
    f.worker("a", "--memory", "1")
    figures = f.finish()
    assert figures["a"]["done"] == JOBS, figures


@on_both
def changed_inputs(name, ledger):
    """22: a resume with another calibration text, source or rate is refused, with its reason"""
    f = Farm(name, ledger)
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
    r = call("convert", f.src, f.dst, *f.settings, *f.options, "--resume", "--bpw", 3)
    assert r.returncode == 2 and "other settings or another source" in r.stderr, r.stderr
    f.convert(resume=True)
    f.finish()


@on_both
def going_back(name, ledger):
    """farm rebuild --from-layer drops sealed layers; they come out the same"""
    f = Farm(name, ledger)
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
    """23: SIGTERM to all at random moments, 200 rounds (KONDENSE_TEST_ROUNDS) of as many conversions as that takes"""
    print(f"      {rounds_of_sigterm(name, ledger, int(os.environ.get('KONDENSE_TEST_ROUNDS', '200')))} conversions")


@on_both
def comes_back(name, ledger):
    """a worker leaves and comes back with its key; drain sends it away"""
    f = Farm(name, ledger, tokens=1)
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
    # The two that take as long as a third of the others come first.
    run(sorted(cases, key=lambda f: not f.__name__.startswith("terminate_everything")), side_by_side=2)
