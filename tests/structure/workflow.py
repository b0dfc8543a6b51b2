#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Fails unless .github/workflows/ci.yml runs what there is: the parts of .ci/run, the rows of compat_matrix.sh.

    workflow.py ROOT

Also fails if an action has no version of three numbers.
"""

import pathlib
import re
import sys


def listed(workflow, name):
    """The words of a list of the matrix: `row: [debian12, debian13]`."""
    return re.findall(r"[\w.-]+", re.search(rf"^ +{name}: \[([^]]*)\]$", workflow, flags=re.MULTILINE)[1])


def faults(root):
    workflow = (root / ".github/workflows/ci.yml").read_text()
    parts = re.findall(r"^    (\w+)\) ", (root / ".ci/run").read_text(), flags=re.MULTILINE)
    rows = re.findall(r'^  "([\w-]+) +\w+ +[\w.=]+ ', (root / "scripts/compat_matrix.sh").read_text(), flags=re.MULTILINE)
    for name, there in (("part", parts), ("row", rows)):
        for word in sorted(set(there) ^ set(listed(workflow, name))):
            yield f"ci.yml: {name} {word} must be in both the matrix and what it runs"
    for action in re.findall(r"uses: (.*)", workflow):
        if not re.fullmatch(r"[\w/-]+@v\d+\.\d+\.\d+", action):
            yield f"ci.yml: {action} must have a version of three numbers"


def main():
    found = list(faults(pathlib.Path(sys.argv[1])))
    print("\n".join(found))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
