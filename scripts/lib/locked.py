#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Prints what pip must install for some packages: their entries in a list with hashes, and those of what they need.

    locked.py LIST NAME... [--without NAME]

LIST is written by uv, whose comments say because of which packages an entry is there. A package that the list leaves
out, such as torch, counts for what it needs.
"""

import argparse
import re
import sys

ENTRY = re.compile(r"^([\w.-]+)==.*?(?=^[\w.-]+==|\Z)", re.MULTILINE | re.DOTALL)
REASON = re.compile(r"^    #(?: via|  ) ([\w.-]+)$", re.MULTILINE)


def plain(name):
    """The name as uv writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(text, names):
    """The entries for the names and what they need, in the list's order."""
    entries = [(entry[1], entry[0]) for entry in ENTRY.finditer(text)]
    wanted, before = {plain(name) for name in names}, set()
    while wanted != before:
        before = set(wanted)
        wanted |= {name for name, entry in entries if wanted & set(REASON.findall(entry))}
    return [(name, entry) for name, entry in entries if name in wanted]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("list")
    parser.add_argument("names", nargs="+")
    parser.add_argument("--without", action="append", default=[])
    arguments = parser.parse_args()
    with open(arguments.list, encoding="utf-8") as file:
        text = file.read()
    known = {entry[1] for entry in ENTRY.finditer(text)} | set(REASON.findall(text))
    for name in arguments.names:
        if plain(name) not in known:
            sys.exit(f"{arguments.list} has no {name}")
    entries = needed(text, arguments.names)
    print("".join(entry for name, entry in entries if name not in arguments.without), end="")


if __name__ == "__main__":
    main()
