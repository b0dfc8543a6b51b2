#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Fails if a comment of the C++ sources begins as if its subject stood elsewhere.

    comments.py ROOT

"What two rows have in common", "The same for keys", "Of all queries": a reader who comes from another
file looks for the subject in vain. A comment says what this is: see CONTRIBUTING.md, Style.
"""

import pathlib
import re
import sys

FOLDERS = ("src", "include", "tests", "examples", "benchmarks")
WITHOUT_SUBJECT = re.compile(r"^\s*//[/<]*\s*(?:What|The same|Of|Whose|Those)\s")
COMMENT = re.compile(r"^\s*//(?! SPDX-)")


def faults(text):
    """(line number, line) where the first line of a comment has no subject."""
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        if WITHOUT_SUBJECT.match(line) and not COMMENT.match(before):
            yield number, line.strip()
        before = line


def main():
    root = pathlib.Path(sys.argv[1])
    files = [path for folder in FOLDERS
             for path in sorted((root / folder).rglob("*")) if path.suffix in (".h", ".cpp")]
    found = [f"{path.relative_to(root)}:{number}: {line}"
             for path in files for number, line in faults(path.read_text())]
    print("\n".join(found))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
