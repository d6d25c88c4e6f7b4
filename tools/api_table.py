#!/usr/bin/env python3
"""Runs the tests of the server and writes what they show as the table in docs/api.md.

    tools/api_table.py BUILD [--check]

--check only compares the table's rows with the tests' and runs nothing."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

root = pathlib.Path(__file__).resolve().parent.parent
page = root / "docs/api.md"
begin, end = "<!-- table: made by tools/api_table.py -->\n", "<!-- end of table -->\n"
tests = sorted((root / "tests/serve").glob("test_*.py"))


def put(rows):
    text = page.read_text()
    lines = ["| what | shown | by | |\n", "|---|---|---|---|\n"]
    lines += [f"| {r['area']} | {r['row']} | {r['test']} | {r['state']} |\n" for r in rows]
    page.write_text(text[:text.index(begin) + len(begin)] + "".join(lines) + text[text.index(end):])


def stated():
    """(area, row, test) of each case, from the sources."""
    for t in tests:
        for m in re.finditer(r'^@case\("([^"]*)",\s*((?:"[^"]*"\s*)+)\)\ndef (\w+)', t.read_text(), re.M):
            yield m[1], "".join(re.findall(r'"([^"]*)"', m[2])), f"{t.stem}: {m[3]}"


def run(build):
    rows = []
    env = {**os.environ, "KONDENSE": f"{build}/kondense", "KONDENSE_FAKE": f"{build}/kondense_fake", "KONDENSE_TEST_ROOT": str(root),
           "KONDENSE_TEST_DATA": str(root / "tests/data"), "PYTHONDONTWRITEBYTECODE": "1"}
    for t in tests:
        with tempfile.TemporaryDirectory() as d:
            r = subprocess.run([sys.executable, str(t)], env={**env, "KONDENSE_API_ROWS": d})
            out = pathlib.Path(d) / (t.stem + ".json")
            got = {x["test"]: x["pass"] for x in json.loads(out.read_text())} if out.exists() else {}
        for area, row, name in stated():
            if name.startswith(t.stem + ":"):
                state = "not run" if name not in got else "pass" if got[name] else "FAIL"
                rows.append({"area": area, "row": row, "test": name, "state": state})
        print(t.name, r.returncode)
    put(rows)
    return any(r["state"] == "FAIL" for r in rows)


def check():
    text = page.read_text()
    bad = [f"docs/api.md: no line for '{row}' ({name})" for area, row, name in stated()
           if f"| {area} | {row} | {name} |" not in text]
    have = re.findall(r"^\| \S.* \| (test_\w+: \w+) \|", text, re.M)
    names = {name for _, _, name in stated()}
    bad += [f"docs/api.md: '{h}' is no test" for h in have if h not in names]
    bad += [f"docs/api.md: {line}" for line in re.findall(r"^.*\| FAIL \|$", text, re.M)]
    print("\n".join(bad) or "api table: in step with the tests")
    return bool(bad)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(check() if "--check" in sys.argv else run(pathlib.Path(sys.argv[1]).resolve()))
