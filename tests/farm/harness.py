"""What the farm's tests share: a small model, its conversion on one machine as the reference, a
coordinator and workers as real processes on loopback, a proxy that breaks connections, a private
PostgreSQL server. Every scenario ends with the output being byte for byte the reference."""
import atexit
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import small

ROOT = small.ROOT
PROGRAM = os.environ["KONDENSE"]
FAULTY = os.environ.get("KONDENSE_FAULTY", PROGRAM)
PACE = float(os.environ.get("KONDENSE_TEST_PACE", "1"))  # patience on slow machines
SKIP = 77
WORK = pathlib.Path(tempfile.mkdtemp(prefix="kondense-farm-"))
WORK.chmod(0o755)
EXPERTS = int(os.environ.get("KONDENSE_TEST_EXPERTS", "6"))  # a layer
JOBS = 2 * EXPERTS
processes = []
mine = threading.local()  # .processes: of the case that runs in this thread


def stop_all(of):
    for p in of:
        if p.poll() is None:
            p.send_signal(signal.SIGCONT)
            p.kill()
            p.wait()


@atexit.register
def end():
    stop_all(processes)
    for pg in sorted(WORK.glob("*.pg")):
        subprocess.run(["sh", str(ROOT / "tests/farm/pg.sh"), "crash", str(pg)], check=False)
    shutil.rmtree(WORK, ignore_errors=True)


def own(p):
    """A process that ends with its case."""
    processes.append(p)
    mine.processes.append(p)
    return p


def call(*args, **kw):
    return subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, **kw)


def must(*args):
    r = call(*args)
    assert r.returncode == 0, r.stderr
    return r.stdout


def start(args, log, env=None, program=None):
    p = subprocess.Popen([program or PROGRAM, *map(str, args)], stdout=open(log, "ab"),
                         stderr=subprocess.STDOUT, env={**os.environ, "KONDENSE_LOG": "info", **(env or {})})
    return own(p)


ports = set()


def free_port():
    """One that no other case of this program was given: it is bound later."""
    while True:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        if port not in ports:
            ports.add(port)
            return port


def listing(folder):
    out = {}
    for p in sorted(pathlib.Path(folder).rglob("*")):
        rel = p.relative_to(folder)
        if p.is_file() and rel.parts[0] != ".work" and rel.name != "convert.log":
            out[str(rel)] = hashlib.sha256(p.read_bytes()).hexdigest()
    return out


SETTINGS = ["--calib", ROOT / "tests/data/text/calib.txt", "--rows", 4, "--cols", 64, "--bpw", 2,
            "--head-bpw", "stored", "--quiet"]
references = {}
making = threading.RLock()


def model():
    src = WORK / "src"
    with making:
        if not src.exists():
            (WORK / "config.json").write_text(json.dumps(small.config(EXPERTS)))
            must("synth", src, "--config", WORK / "config.json", "--seed", 7)
    return src


def reference(trunk):
    """The files of a conversion alone, made the first time."""
    with making:
        if trunk not in references:
            must("convert", model(), WORK / f"alone-{trunk}", *SETTINGS, "--trunk-bpw", trunk)
            references[trunk] = listing(WORK / f"alone-{trunk}")
    return references[trunk]


class Farm:
    """A farm's folder, one conversion in it, its coordinator and workers."""

    def __init__(self, name, ledger="", tokens=12, lease=2, sample=64, only_workers=True, settings=(), trunk="stored",
                 share=""):
        self.src = model()
        self.reference = reference(trunk)
        self.dir = WORK / name
        self.dir.mkdir()
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.dst = self.dir / "dst"
        self.settings = [*SETTINGS, "--trunk-bpw", trunk, *settings]
        self.options = ["--farm", self.url, "--farm-dir", self.dir / "farm", "--lease", lease,
                        "--sample", sample, *(["--only-workers"] if only_workers else [])]
        must("farm", "init", self.dir / "farm", "--farm", self.url, "--listen", "127.0.0.1",
             "--tokens", tokens, "--ledger", ledger, "--share", share)
        self.join = self.dir / "farm/worker.join"
        self.workers = {}
        self.coordinator = None
        self.watched = []

    def convert(self, *more, resume=False, options=None, env=None):
        self.coordinator = start(["convert", self.src, self.dst, *self.settings,
                                  *(self.options if options is None else options), *more,
                                  *(["--resume"] if resume else [])], self.dir / "coordinator.log", env)
        return self.coordinator

    def worker(self, name, *more, fault=None, url=None, env=None):
        env = {**(env or {}), **({"KONDENSE_TEST_FAULT": fault} if fault else {})}
        args = ["worker", "--join", self.join, "--dir", self.dir / name, "--name", name, "--threads", 1,
                "--quiet", *(["--farm", url] if url else []), *more]
        self.workers[name] = start(args, self.dir / f"{name}.log", env, FAULTY if fault else PROGRAM)
        return self.workers[name]

    def status(self):
        r = call("farm", "status", self.dst, "--json")
        return json.loads(r.stdout) if r.returncode == 0 else None

    def until(self, what, seconds=120):
        """Waits until what(status) is true; returns that status."""
        end = time.time() + seconds * PACE
        while time.time() < end:
            s = self.status()
            if s and what(s):
                return s
            if self.coordinator.poll() is not None:
                raise AssertionError(f"the coordinator ended early:\n{self.logs()}")
            time.sleep(0.05)
        raise AssertionError(f"did not happen in {seconds * PACE:.0f} s\n{self.logs()}")

    def logs(self):
        out = []
        for p in sorted(self.dir.glob("*.log")):
            out.append(f"--- {p.name}\n" + "\n".join(p.read_text(errors="replace").splitlines()[-25:]))
        return "\n".join(out)

    def log(self):
        return (self.dst / "convert.log").read_text()

    def finish(self, seconds=150, code=0):
        """The coordinator ends well, the bytes are the reference's, every expert was done once."""
        try:
            rc = self.coordinator.wait(seconds * PACE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not finished after {seconds * PACE:.0f} s\n{self.logs()}") from None
        assert rc == code, f"exit code {rc}\n{self.logs()}"
        got, want = listing(self.dst), self.reference
        assert got == want, sorted(k for k in {*got, *want} if got.get(k) != want.get(k))
        audit = self.audit()
        assert audit["jobs_done"] == audit["jobs"] and audit["unexplained"] == 0, (audit, self.logs())
        return self.figures()

    def audit(self):
        """What the ledger says of itself at the end: every attempt that was handed out has its end."""
        lines = [line for line in self.log().splitlines() if " unexplained=" in line]
        return {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)\b", lines[-1])}

    def figures(self):
        """What the log says at the end of each worker, by host."""
        out = {}
        for line in self.log().splitlines():
            m = dict(re.findall(r"(\w+)=(\S+)", line))
            if "seconds_per_expert" in m:
                out[m["host"] if m["worker"] != "local" else "local"] = {
                    k: int(v) if v.isdigit() else v for k, v in m.items()}
        return out

    def end_workers(self, seconds=20):
        for name, p in self.workers.items():
            if p.poll() is None:
                try:
                    p.wait(seconds * PACE)
                except subprocess.TimeoutExpired:
                    raise AssertionError(f"{name} did not leave\n{self.logs()}") from None


def total(figures, key="done"):
    return sum(f[key] for f in figures.values())


def kill(p):
    p.kill()
    p.wait()


def leased(name):
    return lambda s: any(w["host"] == name and w["held"] > 0 for w in s["workers"])


def done(n):
    return lambda s: s["jobs_done"] >= n


class Proxy:
    """TCP between a worker and the coordinator: forwards, and breaks on demand.

    swallow    of the next so many connections, what the server says after the client's first words
               past the handshake is thrown away and the connection cut: a reply is lost
    frozen     nothing is forwarded and nothing closed: a half-open line
    delay      seconds before each piece
    cut        chance that a piece ends its connection"""

    def __init__(self, port, delay=0, cut=0, seed=1):
        self.to, self.delay, self.cut = port, delay, cut
        self.swallow, self.swallowed, self.frozen = 0, 0, False
        self.random = random.Random(seed)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.url = f"https://127.0.0.1:{self.port}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            a, _ = self.listener.accept()
            try:
                b = socket.create_connection(("127.0.0.1", self.to), 5)
            except OSError:
                a.close()
                continue
            b.settimeout(None)
            state = {"client": 0, "lose": False, "may_lose": False}
            if self.swallow > 0:
                self.swallow -= 1
                state["may_lose"] = True
            for x, y, way in ((a, b, "up"), (b, a, "down")):
                threading.Thread(target=self.pump, args=(x, y, way, state), daemon=True).start()

    def pump(self, a, b, way, state):
        try:
            while data := a.recv(1 << 16):
                while self.frozen:
                    time.sleep(0.05)
                if self.delay:
                    time.sleep(self.delay)
                if self.cut and self.random.random() < self.cut:
                    break
                if way == "up":
                    state["client"] += 1
                    # TLS 1.3: hello, then finished (with or before the request).
                    if state["client"] >= 3 or (state["client"] == 2 and len(data) > 200):
                        state["lose"] = state["may_lose"]
                elif state["lose"]:
                    time.sleep(0.3)  # the server has acted by now
                    self.swallowed += 1
                    break
                b.sendall(data)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Lagging:
    """Two folders that show each other's files late, as two clients of one NFS server do: two seconds, and for
    half a second more a file is there without its bytes."""

    def __init__(self, here, there, lag=2.0):
        self.sides, self.lag, self.over = (here, there), lag, False
        self.thread = threading.Thread(target=self.follow, daemon=True)
        self.thread.start()

    def look(self):
        now, out = time.time(), [{}, {}]
        for side, folder in enumerate(self.sides):
            for p in folder.rglob("*"):
                if not p.name.startswith(".") and ".tmp" not in p.name:
                    out[side][p.relative_to(folder)] = now
        return out

    def follow(self):
        seen, shown = [{}, {}], [set(), set()]  # of each side: its files' first sight; what came from the other
        while not self.over:
            there = self.look()
            for side, folder in enumerate(self.sides):
                for name, at in there[side].items():
                    seen[side].setdefault(name, at)
                for name, since in list(seen[side].items()):
                    try:
                        self.one(side, folder, name, since, there, seen, shown)
                    except OSError:
                        pass
            time.sleep(0.1)

    def one(self, side, folder, name, since, there, seen, shown):
        other = self.sides[1 - side]
        if name not in there[side]:  # removed here: so it is there, in time
            del seen[side][name]
            shown[side].discard(name)
            if name in shown[1 - side]:
                (other / name).unlink(missing_ok=True)
            return
        if name in shown[side]:
            return
        age = time.time() - since
        if (folder / name).is_dir():
            if age > self.lag:
                (other / name).mkdir(exist_ok=True)
            return
        if age > self.lag and name not in shown[1 - side]:
            shown[1 - side].add(name)
            (other / name).touch()
        if age > self.lag + 0.5 and (other / name).stat().st_size == 0:
            (other / name).write_bytes((folder / name).read_bytes())


class Postgres:
    def __init__(self, name):
        self.dir = WORK / f"{name}.pg"
        self.where = self.control("start")

    def control(self, what):
        r = subprocess.run(["sh", str(ROOT / "tests/farm/pg.sh"), what, str(self.dir)], stdin=subprocess.DEVNULL,
                           capture_output=True, text=True, check=False)
        if r.returncode == SKIP:
            raise Skip("PostgreSQL's programs are not installed")
        assert r.returncode == 0, r.stderr
        return r.stdout.strip()


class Skip(Exception):
    pass


def run_one(f):
    """What became of a case: ok, skip or FAIL."""
    began = time.time()
    mine.processes = []
    try:
        f()
        print(f"ok    {f.__name__}  {time.time() - began:.1f} s  {f.__doc__}", flush=True)
        return "ok"
    except Skip as e:
        print(f"skip  {f.__name__}: {e}", flush=True)
        return "skip"
    except Exception:  # every failure of a case is reported, whatever it is
        print(f"FAIL  {f.__name__}\n{traceback.format_exc()}", flush=True)
        return "FAIL"
    finally:
        stop_all(mine.processes)


def run(cases, side_by_side=1):
    """Runs the named cases (all without names), so many at once; 77 when all were skipped."""
    wanted = sys.argv[1:]
    with ThreadPoolExecutor(side_by_side) as pool:
        ends = list(pool.map(run_one, [f for f in cases if not wanted or f.__name__ in wanted]))
    sys.exit(1 if "FAIL" in ends else SKIP if ends and "ok" not in ends else 0)
