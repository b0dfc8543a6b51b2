#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Fails unless a CMake file names every C++ source: one that none names is never compiled.

    listed.py ROOT
"""

import os
import pathlib
import re
import sys

FOLDERS = ("src", "tests", "examples", "benchmarks")


def named_sources(root):
    """What the CMake files name, as an expression: a variable or a star in it stands for any word."""
    files = [root / "CMakeLists.txt", *(root / "cmake").rglob("*.cmake")]
    for folder in FOLDERS:
        files += (root / folder).rglob("CMakeLists.txt")
        files += (root / folder).rglob("*.cmake")
    names = set()
    for file in files:
        folder = file.parent.relative_to(root)
        for name in re.findall(r"[\w./${}*]+\.cpp\b", file.read_text()):
            name = name.replace("${PROJECT_SOURCE_DIR}/", "").replace("${CMAKE_CURRENT_SOURCE_DIR}/", "")
            for path in (pathlib.Path(name), folder / name):  # of the root, or of the CMake file's folder
                path = re.escape(os.path.normpath(path))
                names.add(re.sub(r"\\\$\\\{\w+\\\}|\\\*", r"\\w+", path))
    return re.compile("|".join(sorted(names)))


def main():
    root = pathlib.Path(sys.argv[1])
    named = named_sources(root)
    sources = [path.relative_to(root) for folder in FOLDERS for path in (root / folder).rglob("*.cpp")]
    faults = [f"no CMake file names {path}" for path in sorted(sources) if not named.fullmatch(str(path))]
    print("\n".join(faults))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
