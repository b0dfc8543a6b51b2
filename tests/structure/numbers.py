#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Fails if a public option or constructor takes a bool as a number.

    numbers.py ROOT

An option that is a number is declared by HEED_NUMBER_ARG or HEED_DERIVED_NUMBER_ARG, and a class
whose constructor takes a number has HEED_NO_BOOL: see arg.h.
"""

import pathlib
import re
import sys

OPTION = re.compile(r"\b(?:TORCH|HEED)_ARG\((?:std::optional<)?(?:double|float|\w*int\w*|size_t)\b.*")
CONSTRUCTOR = re.compile(r"^  (?:/\* implicit \*/ |explicit )?((?!HEED|TORCH)[A-Z]\w+)\(([^;{]*?)\)\s*[;:{]",
                         re.MULTILINE)
NUMBER = re.compile(r"\b(?:int64_t|double)\b(?!>)")
PRIVATE = re.compile(r"^ private:$.*?(?=^ public:$|^};$)", re.MULTILINE | re.DOTALL)


def faults(text):
    yield from OPTION.findall(text)
    public = PRIVATE.sub("", text)
    for name in {name for name, taken in CONSTRUCTOR.findall(public) if NUMBER.search(taken)}:
        if f"HEED_NO_BOOL({name});" not in public:
            yield f"{name} has no HEED_NO_BOOL"


def main():
    include = pathlib.Path(sys.argv[1]) / "include" / "heed"
    found = [f"{path.relative_to(include.parent)}: {fault}" for path in sorted(include.rglob("*.h"))
             if path.name != "arg.h" for fault in faults(path.read_text())]
    for fault in found:
        print(fault)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
