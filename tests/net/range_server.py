#!/usr/bin/env python3
"""A file server that misbehaves to order, with a small model hub in front of it: what the tests of fetching,
slicing and auditing talk to. Files come from folders, from memory, or are computed byte for byte from (file,
offset), so that 600 GB can be served from nothing.

In a test:

    with RangeServer() as s:
        s.add_folder("/m", DIR)                    # http://127.0.0.1:PORT/m/NAME, and /m/ lists it
        s.add_repo("owner/name", DIR)              # the hub: s.hub is HF_ENDPOINT, its files live at s.cdn
        s.add_computed("/big/part-1.gguf", size=50 << 30, seed=1, head=b"...")
        s.fault("/m/a.safetensors", "short", times=2)
        ...
        s.log                                      # every request: dicts

By hand:  range_server.py --folder DIR [--computed NAME=BYTES ...] [--fault PATH=KIND[:TIMES] ...]

Kinds of faults: ignore-range, off-by-one, short, cut, long, chunked-long, 429, 429-date, 403, 404, 416, 500, 503,
etag, total, gzip, html, html-206, stall, reset, reset-midway, no-range, pointer, loop, to-private, to-http, nowhere.
"""
import argparse
import collections
import email.utils
import fnmatch
import gzip
import hashlib
import http.server
import json
import os
import pathlib
import random
import re
import socket
import struct
import sys
import threading
import time
import urllib.parse

BLOCK = 1 << 20


class Memory:
    """A file whose bytes are at hand."""

    def __init__(self, data):
        self.data, self.size = data, len(data)
        self.etag = '"%s"' % hashlib.sha256(data).hexdigest()[:32]

    def read(self, begin, size):
        return self.data[begin:begin + size]

    def sha256(self):
        return hashlib.sha256(self.data).hexdigest()


class Disk:
    def __init__(self, path):
        self.path, self.size = path, os.path.getsize(path)
        self.etag = '"%s-%d"' % (path.name, self.size)

    def read(self, begin, size):
        with open(self.path, "rb") as f:
            f.seek(begin)
            return f.read(size)

    def sha256(self):
        with open(self.path, "rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest()


class Computed:
    """Each byte follows from (seed, offset); the first ones may be given. All bytes lie in 0x30..0x3f, so that
    as half, BF16, float or block scale they are finite and moderate numbers. Block i of the file is one random
    MiB rotated by an odd step times i: no two aligned places within 512 TiB hold the same MiB."""

    def __init__(self, size, seed, head=b""):
        self.size, self.head = size, head
        self.base = bytes(b & 0x0f | 0x30 for b in random.Random(seed).randbytes(BLOCK))
        self.etag = '"computed-%d-%d"' % (seed, size)

    def read(self, begin, size):
        out = bytearray()
        while size:
            if begin < len(self.head):
                piece = self.head[begin:begin + size]
            else:
                block, at = divmod(begin, BLOCK)
                turn = (block * 524309 + (block >> 20)) % BLOCK
                take = min(size, BLOCK - at)
                from_ = (turn + at) % BLOCK
                piece = self.base[from_:from_ + take]
                piece += self.base[:take - len(piece)]
            out += piece
            begin += len(piece)
            size -= len(piece)
        return bytes(out)


class Fault:
    def __init__(self, pattern, kind, times, after):
        self.pattern, self.kind, self.times, self.after = pattern, kind, times, after


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60

    def log_message(self, *a):
        pass

    def reply(self, status, body=b"", headers=(), length=None):
        self.send_response(status)
        for k, v in headers:
            self.send_header(k, v)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        owner = self.server.owner
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path)
        with owner.lock:
            owner.log.append({"role": self.server.role, "path": path, "query": url.query,
                              "range": self.headers.get("Range"), "auth": self.headers.get("Authorization"),
                              "encoding": self.headers.get("Accept-Encoding"), "time": time.monotonic()})
            fault = owner.take_fault(path)
        try:
            self.answer(owner, url, path, fault)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_HEAD = do_GET

    def answer(self, owner, url, path, fault):
        if self.server.role == "hub":
            return owner.hub_answer(self, url, path, fault)
        if self.server.role == "cdn" and not owner.signature_holds(url.query):
            return self.reply(403, b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>",
                              [("Content-Type", "application/xml")])
        if path.endswith("/") and path in owner.listings and not fault:
            return self.listing(owner, path)
        self.file(owner.files.get(path), fault)

    def listing(self, owner, path):
        names = sorted(p[len(path):] for p in owner.files if p.startswith(path) and "/" not in p[len(path):])
        links = "".join('<li><a href="%s">%s</a>' % (urllib.parse.quote(n), n) for n in names)
        body = '<html><a href="../">up</a> <a href="sub/">sub/</a> <a href="?C=N">x</a>' + links
        self.reply(200, body.encode(), [("Content-Type", "text/html; charset=utf-8")])

    def file(self, f, fault):
        kind = fault.kind if fault else None
        if self.simple_fault(kind):
            return
        if not f:
            return self.reply(404, b"no such file", [("Content-Type", "text/plain")])
        m = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        head = [("Content-Type", "application/octet-stream"), ("Accept-Ranges", "bytes"),
                ("ETag", '"other"' if kind == "etag" else f.etag)]
        if not m or kind in ("ignore-range", "no-range"):
            self.send_response(200)
            for k, v in head:
                self.send_header(k, v)
            self.send_header("Content-Length", str(f.size))
            self.end_headers()
            return self.stream(f, 0, f.size)
        begin, end = int(m[1]), min(int(m[2] or f.size - 1), f.size - 1)
        if begin >= f.size:
            return self.reply(416, b"", head + [("Content-Range", "bytes */%d" % f.size)])
        self.part(f, head, begin, end, kind)

    def simple_fault(self, kind):
        """Faults that need no file. True when answered."""
        port = self.server.owner.port
        if kind in ("403", "404", "416", "500", "503"):
            self.reply(int(kind), b"the server says: \x1b[31mno\x1b[0m " + kind.encode(), [("Content-Type", "text/plain")])
        elif kind == "429":
            self.reply(429, b"slow down", [("Retry-After", "1")])
        elif kind == "429-date":
            self.reply(429, b"slow down", [("Retry-After", email.utils.formatdate(time.time() + 2, usegmt=True))])
        elif kind == "html":
            self.reply(200, b"<!DOCTYPE html><html>log in first</html>", [("Content-Type", "text/html")])
        elif kind == "reset":
            self.abort()
        elif kind == "loop":
            self.reply(302, b"", [("Location", self.path)])
        elif kind == "nowhere":
            self.reply(302, b"", [])
        elif kind == "to-private":
            self.reply(302, b"", [("Location", "http://10.0.0.1/x")])
        elif kind == "to-http":
            self.reply(302, b"", [("Location", "http://198.51.100.1/x")])
        elif kind == "stall-head":
            time.sleep(self.server.owner.stall_s)
            self.close_connection = True
        else:
            return False
        return True

    def part(self, f, head, begin, end, kind):
        size, total, claim_begin = end - begin + 1, f.size, begin
        length = size
        if kind == "off-by-one":
            claim_begin += 1
            end += 1
        elif kind == "total":
            total += 7
        elif kind == "long":
            length = size + 5
        elif kind == "cut":
            length = size = max(size // 2, 1)  # says so in Content-Length, not in Content-Range
        elif kind == "gzip":
            body = gzip.compress(f.read(begin, size))
            return self.reply(206, body, head + [("Content-Range", "bytes %d-%d/%d" % (begin, end, total)),
                                                 ("Content-Encoding", "gzip")])
        elif kind in ("html-206", "pointer"):
            text = b"<!doctype html><p>log in" if kind == "html-206" else b"version https://git-lfs.github.com/spec/v1\n"
            body = (text * (size // len(text) + 1))[:size]
            return self.reply(206, body, head + [("Content-Range", "bytes %d-%d/%d" % (begin, end, total))])
        self.send_response(206)
        for k, v in head + [("Content-Range", "bytes %d-%d/%d" % (claim_begin, end, total))]:
            self.send_header(k, v)
        if kind == "chunked-long":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            body = f.read(begin, size) + b"extra"
            self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
            return
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if kind in ("short", "stall", "reset-midway"):
            self.stream(f, begin, size // 2)
            self.wfile.flush()
            if kind == "stall":
                time.sleep(self.server.owner.stall_s)
            if kind == "reset-midway":
                return self.abort()
            self.close_connection = True
            return
        self.stream(f, begin, size)
        if kind == "long":
            self.wfile.write(b"extra")

    def stream(self, f, begin, size):
        owner = self.server.owner
        while size and self.command != "HEAD":
            n = min(size, owner.chunk)
            self.wfile.write(f.read(begin, n))
            with owner.lock:
                owner.sent += n
            if owner.delay:
                time.sleep(owner.delay)
            begin += n
            size -= n

    def abort(self):
        """A reset, not an orderly end."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, owner, role, port=0):
        self.owner, self.role = owner, role
        super().__init__(("127.0.0.1", port), Handler)

    def handle_error(self, request, client_address):
        pass


class RangeServer:
    def __init__(self, port=0):
        self.lock = threading.Lock()
        self.files, self.listings, self.repos = {}, set(), {}
        self.faults, self.log, self.sent = [], [], 0
        self.stall_s, self.chunk, self.delay = 5, 1 << 16, 0
        self.link_uses = None   # a signed link holds for so many requests; None: for ever
        self.links = collections.Counter()
        self.serial = 0
        self.page = 1000        # entries of one page of the hub's tree
        self.token = None       # the hub wants this one
        self.servers = {r: Server(self, r, port if r == "plain" else 0) for r in ("plain", "hub", "cdn")}
        self.port = self.servers["plain"].server_port
        self.url = "http://127.0.0.1:%d" % self.port
        self.hub = "http://127.0.0.1:%d" % self.servers["hub"].server_port
        self.cdn = "http://127.0.0.1:%d" % self.servers["cdn"].server_port
        for s in self.servers.values():
            threading.Thread(target=s.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *a):
        for s in self.servers.values():
            s.shutdown()
            s.server_close()

    # what it serves

    def add(self, path, what):
        self.files[path] = what if hasattr(what, "read") else Memory(what)
        return self.files[path]

    def add_folder(self, prefix, folder, listing=True):
        for p in sorted(pathlib.Path(folder).rglob("*")):
            if p.is_file():
                self.add("%s/%s" % (prefix, p.relative_to(folder)), Disk(p))
        if listing:
            self.listings.add(prefix + "/")

    def add_computed(self, path, size, seed, head=b""):
        return self.add(path, Computed(size, seed, head))

    def add_repo(self, name, folder, commit=None):
        """A repository: a folder, or {path: file}."""
        if isinstance(folder, (str, pathlib.Path)):
            folder = {str(p.relative_to(folder)): Disk(p) for p in sorted(pathlib.Path(folder).rglob("*")) if p.is_file()}
        commit = commit or hashlib.sha1(name.encode()).hexdigest()
        self.repos[name] = (commit, folder)
        for p, f in folder.items():
            self.add("/blob/%s/%s/%s" % (name, commit, p), f)
        return commit

    def fault(self, pattern, kind, times=1, after=0):
        """The first `after` requests that fit are answered well, the next `times` are not (None: all)."""
        self.faults.append(Fault(pattern, kind, times, after))

    def take_fault(self, path):
        for f in self.faults:
            if not fnmatch.fnmatchcase(path, f.pattern) or f.times == 0:
                continue
            if f.after:
                f.after -= 1
                continue
            if f.times is not None:
                f.times -= 1
            return f
        return None

    # the hub

    def signature_holds(self, query):
        sig = urllib.parse.parse_qs(query).get("sig", [""])[0]
        with self.lock:
            if sig not in self.links:
                return False
            if self.link_uses is not None and self.links[sig] <= 0:
                return False
            self.links[sig] -= 1
            return True

    def hub_answer(self, h, url, path, fault):
        if self.token and h.headers.get("Authorization") != "Bearer " + self.token:
            return h.reply(401, b'{"error":"Invalid username or password."}', [("X-Error-Code", "RepoNotFound")])
        m = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)", path)
        r = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        repo = self.repos.get((m or r)[1]) if m or r else None
        if h.simple_fault(fault.kind if fault else None):
            return
        if not repo:
            return h.reply(404, b'{"error":"Repository not found"}', [("X-Error-Code", "RepoNotFound")])
        commit, files = repo
        if m and m[2] == "revision":
            if m[3] not in ("main", commit):
                return h.reply(404, b'{"error":"Invalid rev id"}', [("X-Error-Code", "RevisionNotFound")])
            return h.reply(200, json.dumps({"id": m[1], "sha": commit}).encode(), [("Content-Type", "application/json")])
        if m:
            return self.tree(h, m, url, files)
        if r[3] not in files or r[2] != commit:
            return h.reply(404, b"Entry not found", [("X-Error-Code", "EntryNotFound")])
        with self.lock:
            self.serial += 1
            sig = "s%d" % self.serial
            self.links[sig] = self.link_uses if self.link_uses is not None else 0
        to = "%s/blob/%s/%s/%s?sig=%s&secret=hush" % (self.cdn, r[1], commit, urllib.parse.quote(r[3]), sig)
        h.reply(302, b"", [("Location", to), ("X-Repo-Commit", commit), ("X-Linked-Size", str(files[r[3]].size))])

    def tree(self, h, m, url, files):
        begin = int(urllib.parse.parse_qs(url.query).get("cursor", ["0"])[0])
        names = sorted(files)
        out = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "assets"}]
        for n in names[begin:begin + self.page]:
            e = {"type": "file", "oid": "0" * 40, "size": files[n].size, "path": n}
            if n.endswith((".safetensors", ".gguf", ".model")) and hasattr(files[n], "sha256"):
                e["lfs"] = {"oid": files[n].sha256(), "size": files[n].size, "pointerSize": 135}
            out.append(e)
        head = [("Content-Type", "application/json")]
        if begin + self.page < len(names):
            head.append(("Link", '<%s%s?recursive=true&cursor=%d>; rel="next"' % (self.hub, urllib.parse.quote(url.path),
                                                                                  begin + self.page)))
        h.reply(200, json.dumps(out).encode(), head)

    # what was asked

    def requests(self, role=None, path=None):
        with self.lock:
            return [r for r in self.log if role in (None, r["role"]) and (path is None or fnmatch.fnmatch(r["path"], path))]


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--folder", type=pathlib.Path, help="served at /m/ and as the hub's repository test/model")
    a.add_argument("--computed", action="append", default=[], metavar="NAME=BYTES", help="served at /big/NAME")
    a.add_argument("--fault", action="append", default=[], metavar="PATH=KIND[:TIMES]")
    a.add_argument("--port", type=int, default=0)
    a.add_argument("--ready", type=pathlib.Path, help="write the addresses here as shell variables when listening")
    o = a.parse_args()
    s = RangeServer(o.port)
    if o.folder:
        s.add_folder("/m", o.folder)
        s.add_repo("test/model", o.folder)
    for i, c in enumerate(o.computed):
        name, size = c.split("=")
        s.add_computed("/big/" + name, int(size), i)
    for f in o.fault:
        path, kind = f.split("=")
        kind, _, times = kind.partition(":")
        s.fault(path, kind, int(times or 1))
    text = "URL=%s\nHUB=%s\nCDN=%s\n" % (s.url, s.hub, s.cdn)
    if o.ready:
        tmp = o.ready.with_suffix(".tmp")
        tmp.write_text(text)
        tmp.rename(o.ready)
    print(text, end="", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    sys.exit(main())
