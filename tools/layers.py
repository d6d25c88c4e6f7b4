#!/usr/bin/env python3
"""Who may include whom. Fails when a file of src/ includes what its folder may not use (tools/layers.txt):
one of our folders, or an outside header that has an owner; and when CMakeLists.txt links a folder to one
that it may not include."""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
may, owners, bad = {}, {}, []
for line in (root / "tools/layers.txt").read_text().splitlines():
    who, colon, whom = line.split("#")[0].partition(":")
    if colon:
        (owners if who.startswith("<") else may)[who.strip(" <>")] = set(whom.split())

for f in sorted((root / "src").rglob("*")):
    if f.suffix not in (".c", ".h", ".cu", ".cuh"):
        continue
    me = f.relative_to(root / "src").parts[0]
    if me not in may:
        bad.append(f"{f.relative_to(root)}: '{me}' has no line in tools/layers.txt")
        continue
    for n, text in enumerate(f.read_text().splitlines(), 1):
        m = re.match(r'\s*#\s*include\s+(["<])([^">]+)', text)
        if not m:
            continue
        at, head = f"{f.relative_to(root)}:{n}", m[2]
        if m[1] == '"':
            to, slash, _ = head.partition("/")
            if not slash:
                bad.append(f'{at}: "{head}" is not written from src/ ("folder/file.h")')
            elif to != me and to not in may[me]:
                bad.append(f"{at}: {me}/ may not include {to}/")
        for start, allowed in owners.items():
            if m[1] == "<" and head.startswith(start) and me not in allowed:
                bad.append(f"{at}: only {', '.join(sorted(allowed))} may include <{head}>")

for m in re.finditer(r"^kd_lib\((\w+)([^)]*)\)", (root / "CMakeLists.txt").read_text(), re.M):
    for dep in re.findall(r"\bkd_(\w+)", m[2]):
        if dep not in may.get(m[1], ()):
            bad.append(f"CMakeLists.txt: kd_{m[1]} links kd_{dep}, which tools/layers.txt does not allow")

print("\n".join(bad) or "layers: clean")
sys.exit(bool(bad))
