#!/usr/bin/env python3
"""The house rules that a compiler does not check. Each rule is a function below; its sentence says what it
holds. Exceptions stand in tools/tidy-allow.txt, one a line: RULE PATH  # reason. Long files and functions
are no breach.

    tools/tidy.py ROOT [--build DIR --kondense PROGRAM --cc COMPILER]

Without --build the rules about objects, headers and man pages are left out."""
import argparse
import concurrent.futures
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys

args = argparse.ArgumentParser(description=__doc__)
args.add_argument("root", type=pathlib.Path)
args.add_argument("--build", type=pathlib.Path)
args.add_argument("--kondense", type=pathlib.Path)
args.add_argument("--cc", default="cc")
a = args.parse_args()
root = a.root.resolve()
bad = []

allowed = set()
for line in (root / "tools/tidy-allow.txt").read_text().splitlines():
    words = line.split("#")[0].split()
    if words:
        if len(words) != 2 or "#" not in line:
            sys.exit(f"tools/tidy-allow.txt: '{line}' is not RULE PATH  # reason")
        allowed.add(tuple(words))
unused = set(allowed)


def breach(rule, path, text, line=0):
    key = (rule, str(path))
    if key in allowed:
        unused.discard(key)
    else:
        bad.append(f"{path}{f':{line}' if line else ''}: {rule}: {text}")


def find(*patterns):
    return sorted(p.relative_to(root) for t in patterns for p in root.glob(t) if p.is_file())


code = find("src/**/*.[ch]", "src/**/*.cu", "src/**/*.cuh", "tests/**/*.[ch]", "tests/**/*.cu")
heads = [p for p in find("src/**/*.h") if not p.name.endswith("_body.h")]
text_of = {p: (root / p).read_bytes() for p in code}


def bare(source):
    """The source without comments and without the contents of strings; lines stay where they are."""
    def blank(m):
        s = m[0]
        return re.sub(r"[^\n]", " ", s) if s.startswith("/") else s[0] + s[-1]
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, source, flags=re.S)


def names_are_unique():
    """A file name occurs once among sources and tools."""
    seen = {}
    for p in find("src/**/*", "tools/*", "cmake/*"):
        if p.name in seen:
            breach("unique-name", p, f"the same name as {seen[p.name]}")
        seen[p.name] = p


def bytes_are_plain():
    """Code has no tab, no byte outside ASCII, no blank at a line's end, and ends with one newline."""
    for p, data in text_of.items():
        for n, line in enumerate(data.split(b"\n"), 1):
            if b"\t" in line:
                breach("tab", p, "a tab", n)
            if re.search(rb"[^\x20-\x7e\t]", line):
                breach("ascii", p, "a byte outside ASCII", n)
            if line.endswith((b" ", b"\r")):
                breach("blank", p, "a blank at the end of the line", n)
        if not data.endswith(b"\n") or data.endswith(b"\n\n"):
            breach("blank", p, "must end with one newline")


def headers_are_guarded():
    """A header's guard is KD_FOLDER_FILE_H (*_body.h, included more than once, have none); a .c file with
    a header includes it first."""
    for p in heads:
        guards = ["KD_" + re.sub(r"\W", "_", f"{folder}/{p.name}").upper()
                  for folder in (p.parts[1], "/".join(p.parts[1:-1]))]
        m = re.search(r"^\s*#ifndef (\w+)\s+#define (\w+)", bare((root / p).read_text()))
        if not m or m[1] not in guards or m[2] != m[1]:
            breach("guard", p, f"the guard is not {guards[0]}")
    for p in find("src/**/*.c"):
        own = str(p.with_suffix(".h").relative_to("src"))
        first = re.search(r'^\s*#\s*include\s+[<"]([^">]+)', (root / p).read_text(), re.M)
        if (root / "src" / own).exists() and (not first or first[1] not in (own, own[:-2] + "_int.h")):
            breach("own-header", p, f"must include {own} first")


# What may be called where: a regex on bare code, the places where it may stand, and what to do instead.
CALLS = [
    ("getenv", r"\b(?:secure_)?getenv\s*\(", r"src/base/(opt|log)\.c|src/kern/kern\.c|src/cmd/.*|tests/.*",
     "settings come through options (base/opt.h)"),
    ("exit", r"\b_?_?[eE]xit\s*\(", r"src/(base|cmd)/.*|tests/.*", "libraries return, commands exit"),
    ("abort", r"\babort\s*\(", r"src/base/assert\.c|tests/.*", "use KD_ASSERT"),
    ("print", r"\b(?:printf|puts|putchar|perror|vprintf)\s*\(|\bstdout\b|\bstderr\b",
     r"src/(base|cmd)/.*|tests/.*", "libraries do not print: kd_log, or a struct kd_buf"),
    ("assert", r"\bassert\s*\(|<assert\.h>", r"tests/.*", "NDEBUG would take it away: use KD_ASSERT"),
    ("switched-off", r"#\s*if\s+0\b", r"", "delete it: git remembers"),
    ("unfinished", r"\bTO" r"DO\b|\bFIX" r"ME\b|\bX" r"XX\b", r"", "finish it or file it"),
]


def calls_stand_in_their_places():
    """getenv, exit, abort, printing and assert only where they belong; nothing switched off or unfinished."""
    for p, data in text_of.items():
        source, full = bare(data.decode()), data.decode()
        for rule, what, where, instead in CALLS:
            if p.name == "banned.h" or (where and re.fullmatch(where, str(p))):
                continue
            for m in re.finditer(what, full if rule == "unfinished" else source):
                breach(rule, p, instead, source.count("\n", 0, m.start()) + 1)


# Written so that this file does not hold the words themselves.
WORDS = [r"/w[o]rk/", r"/h[o]me/\w", r"d[e]b\.debian\.org", r"p[y]pi\.org", r"p[y]thonhosted\.org",
         r"npm[j]s\.org", r"cr[a]tes\.io", r"helper ag[e]nt", r"sub-?ag[e]nt", r"\bA[I]-(?:made|assisted|written)",
         r"language m[o]del session", r"l[l]vm\.org/apt"]


def words_are_ours():
    """No text of the tree names a machine's paths, a package registry's host, or who typed it."""
    for p in find("*", "docs/**/*", "src/**/*", "tools/*", "cmake/*", "tests/**/*", ".ci/*", ".clang-*"):
        if p.parts[:2] == ("tests", "data") and p.suffix != ".md" or p.name == "LICENSE" or p.parts[0] == "build":
            continue
        try:
            full = (root / p).read_text()
        except UnicodeDecodeError:
            continue
        for w in WORDS:
            for m in re.finditer(w, full, re.I):
                breach("word", p, f"'{m[0]}'", full.count("\n", 0, m.start()) + 1)


def goldens_have_makers():
    """Each file of tests/golden is named in its README.md, which says what made it."""
    files = [p for p in find("tests/golden/**/*") if p.name != "README.md"]
    readme = root / "tests/golden/README.md"
    said = readme.read_text() if readme.exists() else ""
    for p in files:
        if p.name not in said:
            breach("golden", p, "tests/golden/README.md does not say what made it")


def fuzz_targets_have_corpora():
    """Each fuzz target has inputs in the tree, so that a plain test run replays them."""
    for p in find("tests/fuzz/*.c"):
        if p.name != "replay.c" and not list((root / "tests/fuzz/corpus" / p.stem).glob("*")):
            breach("corpus", p, f"no inputs under tests/fuzz/corpus/{p.stem}")


def map_is_true():
    """docs/map.md has a row for every folder of src/, and for no other."""
    page = (root / "docs/map.md").read_text()
    real = {p.parts[1] for p in find("src/*/**/*")}
    said = set(re.findall(r"^\| `(\w+)/` \|", page, re.M))
    for name in sorted(real ^ said):
        breach("map", "docs/map.md", f"{name}/ is {'missing' if name in real else 'not in src/'}")


def headers_stand_alone():
    """Each header compiles by itself."""
    def check(p):
        flags = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c"] if "x86" in p.parts else []
        r = subprocess.run([a.cc, "-std=c17", "-D_GNU_SOURCE", f"-I{root}/src", "-fsyntax-only", "-x", "c", *flags,
                            str(root / p)], capture_output=True, text=True)
        return p, r.returncode, r.stderr
    x86 = platform.machine() in ("x86_64", "AMD64")
    mine = [p for p in heads if ("arm" if x86 else "x86") not in p.parts]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for p, rc, err in pool.map(check, mine):
            if rc:
                breach("stand-alone", p, "does not compile alone:\n" + "\n".join(err.splitlines()[:4]))


def registers_stay_home():
    """No object outside kern/x86 uses AVX, so that the program starts on every x86-64."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return
    def check(p):
        out = subprocess.run(["objdump", "-d", "--no-show-raw-insn", str(p)], capture_output=True, text=True,
                             check=True).stdout
        m = re.search(r"^<?.*(?:%[yz]mm\d|\tv[a-z0-9]+\s.*%xmm\d).*$", out, re.M)
        return p, m and m[0].strip()
    objects = [p for p in a.build.glob("CMakeFiles/k*.dir/**/*.o") if "/kern/x86/" not in str(p)]
    if not objects:
        breach("registers", a.build, "no objects to look at")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for p, hit in pool.map(check, objects):
            if hit:
                breach("registers", p.relative_to(a.build), f"wide vector code: {hit}")


def run(*words):
    r = subprocess.run([str(a.kondense), *words], capture_output=True, text=True)
    if r.returncode:
        breach("man", "kondense " + " ".join(words), f"exit {r.returncode}: {r.stderr.strip()}")
    return r.stdout


def pages_are_true():
    """Every command has its generated man page, in step with -h, and a line in the program's own page
    and in README.md."""
    names = re.findall(r"^  ([a-z]+) +\S", run("help"), re.M)
    if not names:
        breach("man", "kondense help", "lists no command")
    own, readme = (root / "docs/man/kondense.1.scd").read_text(), (root / "README.md").read_text()
    for c in names:
        page = root / f"docs/man/kondense-{c}.1.scd"
        made, help_text = run("man", c), run(c, "-h")
        if not page.exists() or page.read_text() != made:
            breach("man", page.relative_to(root), "is not what 'kondense man' prints (make man)")
        plain = made.replace("\\", "")
        for opt in re.findall(r"^  (?:-\w, |    )?(--[\w-]+)", help_text, re.M):
            if f"*{opt}*" not in plain:
                breach("man", page.relative_to(root), f"-h has {opt}, the page has not")
        if f"*kondense-{c}*(1)" not in own:
            breach("man", "docs/man/kondense.1.scd", f"does not list kondense-{c}")
        if f"`{c}`" not in readme:
            breach("man", "README.md", f"does not list the command {c}")
    for p in find("docs/man/kondense-*.scd"):
        if p.name[len("kondense-"):].split(".")[0] not in names:
            breach("man", p, "there is no such command")
    if shutil.which("scdoc"):
        for p in find("docs/man/*.scd"):
            r = subprocess.run(["scdoc"], input=(root / p).read_bytes(), capture_output=True)
            if r.returncode:
                breach("man", p, r.stderr.decode().strip())


rules = [names_are_unique, bytes_are_plain, headers_are_guarded, calls_stand_in_their_places, words_are_ours,
         goldens_have_makers, fuzz_targets_have_corpora, map_is_true]
if a.build:
    rules += [headers_stand_alone, registers_stay_home, pages_are_true]
for rule in rules:
    rule()
if a.build:
    for rule, path in sorted(unused):
        bad.append(f"tools/tidy-allow.txt: {rule} {path}: no longer needed")
print("\n".join(bad) or f"tidy: clean, {len(rules)} rules over {len(code)} files")
sys.exit(bool(bad))
