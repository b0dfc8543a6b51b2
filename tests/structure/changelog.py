#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Fails unless CHANGELOG.md has the form of Keep a Changelog (https://keepachangelog.com/en/1.1.0/).

    changelog.py ROOT
"""

import datetime
import pathlib
import re
import sys

KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def version_of(heading):
    """The numbers of "## [1.2.3] - 2026-01-31"; none if it has another form."""
    found = re.fullmatch(r"## \[(\d+)\.(\d+)\.(\d+)\] - (\d{4}-\d{2}-\d{2})", heading)
    if not found:
        return None
    try:
        datetime.date.fromisoformat(found[4])
    except ValueError:
        return None
    return tuple(map(int, found.groups()[:3]))


def faults(text):
    parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)[1:]
    if not parts or not parts[0].startswith("## [Unreleased]\n"):
        yield 'the first part must be "## [Unreleased]"'
    versions = []
    for part in parts:
        heading = part.split("\n", 1)[0]
        if heading != "## [Unreleased]":
            version = version_of(heading)
            if version is None:
                yield f'"{heading}" must be like "## [1.2.3] - 2026-01-31"'
            elif versions and version >= versions[-1]:
                yield f'"{heading}" must stand before the part of an older version'
            versions += [version] if version else []
        kinds = re.findall(r"^### (.*)", part, flags=re.MULTILINE)
        if unknown := [kind for kind in kinds if kind not in KINDS]:
            yield f'{heading}: "### {unknown[0]}" must be one of {", ".join(KINDS)}'
        elif kinds != sorted(set(kinds), key=KINDS.index):
            yield f"{heading}: each of its kinds must stand once, in this order: {', '.join(KINDS)}"
        before = part.split("\n### ", 1)[0]
        if re.search(r"^- ", before, flags=re.MULTILINE):
            yield f"{heading}: a line must stand below a kind of change, such as ### {KINDS[0]}"


def main():
    found = list(faults((pathlib.Path(sys.argv[1]) / "CHANGELOG.md").read_text()))
    print("\n".join(f"CHANGELOG.md: {fault}" for fault in found))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
