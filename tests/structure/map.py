#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Fails unless CONTRIBUTING.md's map of src names every file there, and no other.

    map.py ROOT

A name without an ending stands for a header and its source. Names follow the heading of their floor,
**`core/`**, or stand behind a folder's name in the same row.
"""

import pathlib
import re
import sys


def mapped_files(text, src):
    """The files of src that the map names."""
    section = text.split("### The floors of src", 1)[1].split("\n## ", 1)[0]
    found, unknown = set(), []
    for part in re.split(r"^\*\*`(?=\w+/`)", section, flags=re.MULTILINE)[1:]:
        floor = src / part.split("/", 1)[0]
        for row in re.findall(r"^\| (`.*)$", part, flags=re.MULTILINE):
            cell, meaning = row.split(" | ", 1)
            folder = re.fullmatch(r"`(\w+)/`", cell)
            names = re.findall(r"`([\w/.]+)`", meaning if folder else cell)
            base = floor / folder[1] if folder else floor
            for name in names:
                endings = [""] if name.endswith((".h", ".cpp")) else [".h", ".cpp"]
                files = [base / (name + ending) for ending in endings]
                files = [file for file in files if file.exists()]
                if not files:
                    unknown.append(f"{base / name}")
                found.update(files)
    return found, unknown


def main():
    root = pathlib.Path(sys.argv[1])
    src = root / "src"
    found, unknown = mapped_files((root / "CONTRIBUTING.md").read_text(), src)
    files = {path for path in src.rglob("*") if path.suffix in (".h", ".cpp")}
    faults = [f"CONTRIBUTING.md does not name {path.relative_to(root)}"
              for path in sorted(files - found)]
    faults += [f"CONTRIBUTING.md names {name}, which is not there" for name in unknown]
    print("\n".join(faults))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
