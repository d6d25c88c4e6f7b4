#!/usr/bin/env python3
# labels: fast
"""kondense fetch against a server that misbehaves: every way of doing so ends in the right bytes or in one clear
line with nothing under a final name."""
import concurrent.futures
import hashlib
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

from range_server import Computed, Memory, RangeServer

KONDENSE = os.environ["KONDENSE"]
DATA = pathlib.Path(os.environ.get("KONDENSE_TEST_DATA", pathlib.Path(__file__).parents[1] / "data"))
NANO = DATA / "k3-nano"
cases = []


def case(f):
    cases.append(f)
    return f


def env_of(d, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "KONDENSE_LOG")) and "proxy" not in k.lower()}
    return {**env, "HOME": str(d), "HF_HOME": str(d / "hf"), **more}


def start(d, *args, **env):
    return subprocess.Popen([KONDENSE, "fetch", *map(str, args)], env=env_of(d, **env), stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def fetch(d, *args, rc=0, says=None, **env):
    """Runs to the end; the exit code is rc and the text holds each of `says`. Returns what was printed."""
    p = start(d, *args, **env)
    out, err = p.communicate(timeout=100)
    text = out + err
    assert p.returncode == rc, "exit code %d, not %d: %s" % (p.returncode, rc, text)
    for s in [says] if isinstance(says, str) else says or []:
        assert s in text, "'%s' is not in: %s" % (s, text)
    assert "\x1b" not in text.replace("\x1b[K", "") and "hush" not in text, text
    return text


def blob(size, seed=1):
    return random.Random(seed).randbytes(size)


def safetensors(size, seed=1):
    """Bytes that begin as a safetensors file does."""
    head = b'{"a":{}}'
    return len(head).to_bytes(8, "little") + head + blob(size - 16, seed)


def same(folder, name, data):
    got = (folder / name).read_bytes()
    assert got == data, "%s differs (%d bytes, %d expected)" % (name, len(got), len(data))


# Faults that must heal: the fault, and options that keep the case short.
HEAL = [("short", 2, []), ("cut", 2, []), ("429", 2, []), ("429-date", 1, []), ("500", 2, []), ("503", 2, []),
        ("reset", 2, []), ("reset-midway", 2, []), ("stall", 1, ["--stall", "1"]), ("stall-head", 1, ["--stall", "1"])]
# Faults that must end the run, with what it says.
END = [("ignore-range", "ignores byte ranges"), ("off-by-one", "sends bytes"), ("long", "bytes, asked for were"),
       ("chunked-long", "more bytes than were asked for"), ("416", "shorter than was said"), ("etag", "another ETag"),
       ("total", "the file changed"), ("gzip", "sends 'gzip'"), ("html", "a page (text/html)"), ("404", "status 404"),
       ("403", "status 403: the server says: ?[31mno"), ("loop", "redirects more than"), ("nowhere", "to nowhere"),
       ("to-http", "plain http"), ("to-private", "plain http")]


def heals(d, kind, times, more):
    with RangeServer() as s:
        data = safetensors(700_000)
        s.add("/m/a.safetensors", data)
        s.stall_s = 3
        s.fault("/m/*", kind, times, after=3)
        fetch(d, s.url + "/m/a.safetensors", d / "out", "--piece", "128k", "-j", 2, *more)
        same(d / "out", "a.safetensors", data)
        if kind.startswith("429"):
            t = [r["time"] for r in s.requests()]
            assert max(b - a for a, b in zip(t, t[1:])) >= 0.9, "Retry-After was not honoured"


def ends(d, kind, says):
    with RangeServer() as s:
        data = safetensors(900_000)
        s.add("/m/a.safetensors", data)
        s.fault("/m/*", kind, None, after=3)
        fetch(d, s.url + "/m/a.safetensors", d / "out", "--piece", "128k", "-j", 1, rc=1, says=says)
        assert not (d / "out/a.safetensors").exists(), "an unfinished file has its final name"
        s.faults.clear()
        fetch(d, s.url + "/m/a.safetensors", d / "out", "--piece", "128k")
        same(d / "out", "a.safetensors", data)


for k in HEAL:
    cases.append((lambda d, k=k: heals(d, *k), "heals " + k[0]))
for k in END:
    cases.append((lambda d, k=k: ends(d, *k), "ends " + k[0]))


@case
def ignored_range_of_a_large_file(d):
    """The answer is dropped at its head: what was sent fits into the sockets."""
    with RangeServer() as s:
        s.add_computed("/m/a.gguf", 300 << 20, 1, b"GGUF")
        s.fault("/m/*", "ignore-range", None, after=1)
        fetch(d, s.url + "/m/a.gguf", d / "out", rc=1, says="ignores byte ranges")
        assert s.sent < 40 << 20, "%d bytes were sent" % s.sent


@case
def not_a_model(d):
    """Bytes that are right by every rule of HTTP, and no model: they never get the name."""
    with RangeServer() as s:
        for kind, says in ("html-206", "web page"), ("pointer", "pointer to a large file"):
            s.add("/%s/a.safetensors" % kind, safetensors(5000))
            s.fault("/%s/*" % kind, kind, None, after=1)
            fetch(d, "%s/%s/a.safetensors" % (s.url, kind), d / kind, rc=1, says=[says, "dropped"])
            assert not list((d / kind).glob("a.*"))
        s.add("/g/a.gguf", b"GGML" + blob(500))
        fetch(d, s.url + "/g/a.gguf", d / "g", rc=1, says="does not begin as a GGUF file")


@case
def whole_folder(d):
    """A folder by its links, then nothing to do; a folder without links by its index."""
    with RangeServer() as s:
        s.add_folder("/m", NANO)
        s.add_folder("/n", NANO, listing=False)
        for where in "m", "n":
            out = d / where
            fetch(d, "%s/%s/" % (s.url, where), out, "--exclude", "golden*")
            for p in NANO.iterdir():
                if p.is_file() and (where == "m" or p.suffix in (".safetensors", ".model", ".json")) \
                        and not p.name.startswith("golden"):
                    same(out, p.name, p.read_bytes())
            before = s.sent
            fetch(d, "%s/%s/" % (s.url, where), out, "--exclude", "golden*", says="nothing to do")
            assert s.sent - before < 500_000, "a second run reads files again"
        assert all(r["encoding"] == "identity" for r in s.requests())


@case
def hub(d):
    """Commit, pages of the list, digests; the token goes to the hub and nowhere else; links expire."""
    with RangeServer() as s:
        commit = s.add_repo("owner/name", NANO)
        s.token, s.page, s.link_uses = "tok-1", 3, 4
        where = {"HF_ENDPOINT": s.hub}
        fetch(d, "hf:owner/name", d / "a", rc=1, says="it is private", **where)
        fetch(d, "hf:owner/name", d / "a", rc=1, says="it is private", HF_TOKEN="tok-1", **where)
        assert not any(r["auth"] for r in s.requests()), "the token went to an endpoint that nobody vouched for"
        text = fetch(d, "hf:owner/name", d / "a", "--token-to-endpoint", "--piece", "1M",
                     HF_TOKEN="tok-1", KONDENSE_LOG="debug", **where)
        assert commit in text and "sha256 verified: 4 of" in text, text
        assert not any(r["auth"] for r in s.requests("cdn")), "the token went to another server"
        assert all(r["auth"] == "Bearer tok-1" for r in s.requests("hub")[-12:])
        assert len(s.requests("hub", "*/resolve/*")) > len(list(NANO.iterdir())), "no link expired"
        for p in NANO.iterdir():
            same(d / "a", p.name, p.read_bytes())
        assert "sig=" not in (d / "a/.fetch").read_text()
        # token files, in their order
        (d / "hf").mkdir()
        (d / "hf/token").write_text("tok-1\n")
        fetch(d, "hf:owner/name@" + commit[:40], d / "b", "--include", "config.json", "--token-to-endpoint", **where)
        (d / "other").write_text("wrong")
        fetch(d, "hf:owner/name", d / "c", "--token-to-endpoint", rc=1, HF_TOKEN_PATH=str(d / "other"), **where)
        fetch(d, "hf:owner/name@nix", d / "c", "--token-to-endpoint", rc=1, says="no such branch", **where)
        fetch(d, "hf:owner/none", d / "c", "--token-to-endpoint", rc=1, says="no such repository", **where)


@case
def links_that_always_expire(d):
    """One new link, then the end, with the server's words."""
    with RangeServer() as s:
        s.add_repo("owner/name", {"a.safetensors": Memory(safetensors(300_000))})
        s.link_uses = 0
        fetch(d, "hf:owner/name", d / "a", rc=1, says=["status 403", "Request has expired"], HF_ENDPOINT=s.hub)
        assert len(s.requests("hub", "*/resolve/*")) == 2, len(s.requests("hub", "*/resolve/*"))


@case
def wrong_digest(d):
    with RangeServer() as s:
        f = Memory(safetensors(300_000))
        s.add_repo("owner/name", {"a.safetensors": f})
        f.sha256 = lambda: "0" * 64
        fetch(d, "hf:owner/name", d / "a", rc=1, says=["SHA-256", "dropped"], HF_ENDPOINT=s.hub)
        assert not list((d / "a").glob("a.*"))
        del f.sha256
        fetch(d, "hf:owner/name", d / "a", says="verified: 1 of 1", HF_ENDPOINT=s.hub)


@case
def cache_and_offline(d):
    """Complete files of the hub's cache are used and the cache is never written."""
    with RangeServer() as s:
        commit = s.add_repo("owner/name", NANO)
        base = d / "hf/hub/models--owner--name"
        (base / "blobs").mkdir(parents=True)
        (base / "refs").mkdir()
        (base / "refs/main").write_text(commit)
        (base / "snapshots" / commit).mkdir(parents=True)
        for n in "config.json", "model-00001-of-000002.safetensors":
            shutil.copy(NANO / n, base / "blobs" / n)
            (base / "snapshots" / commit / n).symlink_to("../../blobs/" + n)
        (base / "snapshots" / commit / "tiktoken.model").symlink_to("../../blobs/nowhere")
        (base / "snapshots" / commit / "tokenizer_config.json").write_text("{}")  # another size: not this file
        before = sorted(p.name for p in base.rglob("*"))
        fetch(d, "hf:owner/name", d / "a", says="verified: 4 of", HF_ENDPOINT=s.hub)
        for p in NANO.iterdir():
            same(d / "a", p.name, p.read_bytes())
        assert not s.requests("cdn", "*00001-of*"), "a cached file was fetched"
        assert before == sorted(p.name for p in base.rglob("*"))
    fetch(d, "hf:owner/name", d / "b", "--include", "model-*", HF_HUB_OFFLINE="1")
    same(d / "b", "model-00001-of-000002.safetensors", (NANO / "model-00001-of-000002.safetensors").read_bytes())
    fetch(d, "hf:owner/name@v9", d / "c", rc=1, says="offline", HF_HUB_OFFLINE="1")


@case
def chosen_parts(d):
    with RangeServer() as s:
        for i in range(1, 7):
            s.add("/m/model-%05d-of-000006.safetensors" % i, safetensors(2000, i))
        s.add("/m/config.json", b"{}")
        s.add("/m/README.md", b"x")
        s.listings.add("/m/")

        def names(*o, **k):
            shutil.rmtree(d / "o", ignore_errors=True)
            fetch(d, s.url + "/m", d / "o", *o, **k)
            return sorted(p.name for p in (d / "o").glob("[!.]*"))
        shard = ["model-%05d-of-000006.safetensors" % i for i in range(1, 7)]
        assert names("--parts", "2-3", "--exclude", "*.md") == ["config.json"] + shard[1:3]
        assert names("--layers", "0-1", "--include", "*.safetensors") == shard[:2]
        assert names("--parts", "6", "--include", "*.safetensors,*.md") == ["README.md", shard[5]]
        fetch(d, s.url + "/m", d / "o", "--parts", "3-2", rc=2, says="A <= B")
        fetch(d, s.url + "/m", d / "o", "--parts", "1", "--layers", "1", rc=2, says="give one")
        fetch(d, s.url + "/m", d / "o", "--include", "nix*", rc=2, says="no file")
        text = fetch(d, s.url + "/m", d / "dry", "-n", says="8 of 8")
        assert not (d / "dry").exists(), text


@case
def chopped(d):
    """Pieces of one file come as that file, from a list and from one piece's address."""
    with RangeServer() as s:
        data = b"GGUF" + blob(1_000_000, 5)
        cut = [0, 300_001, 300_002, 800_000, len(data)]
        for i in range(4):
            s.add("/a/x.gguf.part-%02d-of-04" % (i + 1), data[cut[i]:cut[i + 1]])
            s.add("/b/x.gguf-split-" + "abcd"[i], data[cut[i]:cut[i + 1]])
        for i in range(12):
            s.add("/c/x.gguf.part%dof12" % (i + 1), data[i * 90_000:(i + 1) * 90_000 if i < 11 else None])
        s.listings |= {"/a/", "/b/", "/c/"}
        for name, where in enumerate(["/a", "/b", "/c", "/a/x.gguf.part-03-of-04", "/c/x.gguf.part7of12"]):
            fetch(d, s.url + where, d / str(name), "--piece", "100k")
            same(d / str(name), "x.gguf", data)
            assert len(list((d / str(name)).glob("[!.]*"))) == 1
        del s.files["/a/x.gguf.part-02-of-04"]
        fetch(d, s.url + "/a", d / "part", says="3 of 3 files")  # a piece is missing: they stay pieces
        assert not (d / "part/x.gguf").exists()


@case
def kill_anywhere(d):
    """kill -9 at random points, then the same bytes; a final name is never on a part of a file."""
    with RangeServer() as s:
        data = {"model-%05d-of-000003.safetensors" % i: safetensors(3_000_000 + i * 77_777, i) for i in (1, 2, 3)}
        s.add_repo("o/n", {k: Memory(v) for k, v in data.items()})
        s.chunk, s.delay = 1 << 14, 0.006
        s.fault("*.safetensors", "reset-midway", 3, after=20)
        r, kills = random.Random(7), 0
        for n in range(40):
            p = start(d, "hf:o/n", d / "a", "--piece", "64k", "-j", 4, HF_ENDPOINT=s.hub)
            try:
                p.communicate(timeout=r.uniform(0.05, 0.2))
                assert p.returncode == 0
                break
            except subprocess.TimeoutExpired:
                p.kill()
                p.communicate()
                kills += 1
            for k, v in data.items():
                if (d / "a" / k).exists():
                    same(d / "a", k, v)
        fetch(d, "hf:o/n", d / "a", "--piece", "64k", HF_ENDPOINT=s.hub)
        for k, v in data.items():
            same(d / "a", k, v)
        assert kills >= 3, "only %d kills: the case tests nothing" % kills
        whole = sum(map(len, data.values()))
        assert s.sent < whole * 4, "%d bytes were sent for %d: nothing was kept" % (s.sent, whole)
        assert not list((d / "a").glob("*.part"))


def stopped_midway(d, s, *more, after=400_000, sig=signal.SIGKILL, **env):
    """Starts a slow fetch into d/a and ends it when so many bytes were sent."""
    s.chunk, s.delay = 1 << 13, 0.004
    begin = s.sent
    p = start(d, *more, **env)
    for _ in range(3000):
        if s.sent - begin > after or p.poll() is not None:
            break
        time.sleep(0.01)
    p.send_signal(sig)
    p.communicate(timeout=30)
    s.chunk, s.delay = 1 << 16, 0
    return p.returncode


@case
def damaged_part(d):
    """What lies on disk is held against the journal's hashes; a torn journal is read up to the tear."""
    with RangeServer() as s:
        data = safetensors(2_000_000)
        s.add("/m/a.safetensors", data)
        args = [s.url + "/m/a.safetensors", d / "a", "--piece", "64k", "-j", 2]
        rc = stopped_midway(d, s, *args, sig=signal.SIGINT)
        assert rc == 4, rc
        part = d / "a/a.safetensors.part"
        b = bytearray(part.read_bytes())
        b[100] ^= 1
        part.write_bytes(b)
        with open(d / "a/.fetch", "a") as f:
            f.write("span 0 655")
        before = s.sent
        fetch(d, *args)
        same(d / "a", "a.safetensors", data)
        assert 64_000 < s.sent - before < len(data), s.sent - before
        fetch(d, s.url + "/m/other.safetensors", d / "a", rc=1)
        s.add("/m/b.safetensors", data)
        fetch(d, s.url + "/m/b.safetensors", d / "a", rc=2, says="holds a fetch of")
        lines = (d / "a/.fetch").read_text().split("\n")
        (d / "a/.fetch").write_text("\n".join([lines[0], lines[1].replace("span", "spam"), *lines[2:]]))
        fetch(d, *args, rc=1, says="line 2 is damaged")


@case
def changed_between_runs(d):
    with RangeServer() as s:
        s.add("/m/a.safetensors", safetensors(1_500_000, 1))
        args = [s.url + "/m/a.safetensors", d / "a", "--piece", "64k", "-j", 2]
        stopped_midway(d, s, *args)
        s.add("/m/a.safetensors", safetensors(1_500_000, 2))
        fetch(d, *args, rc=1, says="changed at its source")
        s.add_repo("o/n", {"a.json": Memory(b"{}")}, commit="1" * 40)
        fetch(d, "hf:o/n", d / "h", HF_ENDPOINT=s.hub)
        s.add_repo("o/n", {"a.json": Memory(b"{1}")}, commit="2" * 40)
        fetch(d, "hf:o/n", d / "h", rc=2, says="the source moved on", HF_ENDPOINT=s.hub)


@case
def strangers(d):
    """Files that were there before: kept when they are the same, refused otherwise. Names out of a list."""
    with RangeServer() as s:
        data = safetensors(5000)
        s.add_repo("o/n", {"a.safetensors": Memory(data)})
        (d / "a").mkdir()
        (d / "a/a.safetensors").write_bytes(data)
        fetch(d, "hf:o/n", d / "a", says="nothing to do", HF_ENDPOINT=s.hub)
        (d / "b").mkdir()
        (d / "b/a.safetensors").write_bytes(data[:-1] + b"!")
        fetch(d, "hf:o/n", d / "b", rc=1, says="it is another file", HF_ENDPOINT=s.hub)
        (d / "b/a.safetensors").write_bytes(data[:-1])
        fetch(d, "hf:o/n", d / "b", rc=2, says="with another size", HF_ENDPOINT=s.hub)
        for name in "-rf", "a/../../x", "a//x", "a\nb.safetensors", "/etc/x":
            s.add_repo("o/bad", {name: Memory(data)})
            fetch(d, "hf:o/bad", d / "c", rc=1, says="is not a file name", HF_ENDPOINT=s.hub)
        for where in "hf:o", "hf:o/n/../x", "hf:../n", "hf:o/n@a?b", "https://user:geheim@host/x", "http://198.51.100.1/m", "ftp://h/x":
            text = fetch(d, where, d / "d", rc=2 if where.startswith("nix") else 1)
            assert "geheim" not in text, text


@case
def disk_full(d):
    """Foreseen where it can be; otherwise what came stays and a second run goes on."""
    with RangeServer() as s:
        s.add_computed("/m/a.gguf", 60 << 20, 3, b"GGUF")
        s.add_computed("/m/b.gguf", 1 << 50, 3, b"GGUF")
        fetch(d, s.url + "/m/b.gguf", d / "b", rc=1, says="of disk")
        script = """mkdir -p {m} && mount -t tmpfs -o size=150m none {m} || exit 77
        {k} fetch {u} {m}/a --piece 1M --rate 20M 2>{d}/err & p=$!
        while [ ! -e {m}/a/.fetch ] && kill -0 $p; do sleep 0.01; done
        sleep 0.2; dd if=/dev/zero of={m}/fill bs=1M 2>/dev/null; wait $p; echo first $?; rm {m}/fill
        {k} fetch {u} {m}/a --piece 1M 2>&1; echo second $?; sha256sum {m}/a/a.gguf"""
        p = subprocess.run(["unshare", "-rm", "sh", "-c", script.format(m=d / "mnt", k=KONDENSE, d=d, u=s.url + "/m/a.gguf")],
                           env=env_of(d), capture_output=True, text=True, timeout=100)
        if p.returncode == 77 or "unshare" in p.stderr:
            print("  (no mounts here: only the foreseen case)")
            return
        text = p.stdout + (d / "err").read_text()
        assert "first 1" in text and "second 0" in text and "disk is full" in text, text
        assert hashlib.sha256(Computed(60 << 20, 3, b"GGUF").read(0, 60 << 20)).hexdigest() in text, text


@case
def many_hands(d):
    """--rate is kept, --jobs is kept, two runs in one folder are refused."""
    with RangeServer() as s:
        data = safetensors(1_200_000)
        s.add("/m/a.safetensors", data)
        p = start(d, s.url + "/m/a.safetensors", d / "a", "--piece", "64k", "--rate", "400k", "-j", 3)
        began = time.monotonic()
        while not (d / "a/.lock").exists() and p.poll() is None:
            time.sleep(0.01)
        time.sleep(0.2)
        fetch(d, s.url + "/m/a.safetensors", d / "a", rc=1, says="in use by another")
        p.communicate(timeout=60)
        assert p.returncode == 0 and time.monotonic() - began > 1.5, time.monotonic() - began
        same(d / "a", "a.safetensors", data)


def one(f):
    f, name = f if isinstance(f, tuple) else (f, f.__name__)
    with tempfile.TemporaryDirectory(prefix="kd-fetch-") as d:
        try:
            f(pathlib.Path(d))
            return name, None
        except Exception:
            return name, traceback.format_exc()


def main():
    chosen = [c for c in cases if not sys.argv[1:] or any(w in (c[1] if isinstance(c, tuple) else c.__name__) for w in sys.argv[1:])]
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        for name, trouble in pool.map(one, chosen):
            print("%s %s" % ("FAIL" if trouble else "ok  ", name), *([trouble] if trouble else []), flush=True)
            bad += trouble is not None
    print("%d cases, %d failed" % (len(chosen), bad))
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
