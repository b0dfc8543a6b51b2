#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Fails unless each file says its license: a line with an SPDX tag near its beginning or its end, or REUSE.toml.

    licenses.py ROOT

Also fails if LICENSES does not have just the texts of these licenses, or REUSE.toml names what is not there. It looks at
what git knows; without git, at all but what .gitignore names.
"""

import pathlib
import re
import subprocess
import sys

TAG = re.compile(r"^\W*SPDX-License-" r"Identifier: ([\w.-]+)(?: -->| \*/)?$", re.MULTILINE)
IGNORED = re.compile(r"(?:build[^/]*|shared|\.cache|\.git)/|(?:.*/)?__pycache__/|.*\.orig$")


def files(root):
    """The names of all files that are heed's."""
    known = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, text=True, check=False)
    if known.returncode == 0 and known.stdout:
        return [name for name in known.stdout.split("\0") if name and (root / name).is_file()]
    names = (str(path.relative_to(root)) for path in sorted(root.rglob("*")) if path.is_file())
    return [name for name in names if not IGNORED.match(name)]


def annotations(root):
    """A pattern and a license for each path of REUSE.toml that has one."""
    for block in (root / "REUSE.toml").read_text().split("[[annotations]]")[1:]:
        license_name = re.search(r'^SPDX-License-Identifier = "(.*)"$', block, flags=re.MULTILINE)
        if license_name:
            for path in re.findall(r'^  "(.*)",$', block, flags=re.MULTILINE):
                words = {"**": ".*", "*": "[^/]*"}
                pattern = "".join(words.get(part) or re.escape(part) for part in re.split(r"(\*\*|\*)", path))
                yield path, re.compile(pattern), license_name[1]


def license_of(path):
    """The license that a file's own line names."""
    lines = path.read_text(errors="replace").splitlines()
    found = TAG.search("\n".join(lines[:3] + lines[-2:]))
    return found and found[1]


def faults(root):
    listed, used, matched = list(annotations(root)), set(), set()
    for name in files(root):
        if name == "LICENSE" or name.startswith("LICENSES/"):
            continue
        found = {path: license_name for path, pattern, license_name in listed if pattern.fullmatch(name)}
        matched |= set(found)
        license_name = next(iter(found.values()), None) or license_of(root / name)
        if license_name:
            used.add(license_name)
        else:
            yield f"{name} names no license: begin it with SPDX-License-Identifier, or name it in REUSE.toml"
    for path in sorted({path for path, _, _ in listed} - matched):
        yield f"REUSE.toml names {path}, which is not there"
    for name in sorted(used ^ {path.stem for path in (root / "LICENSES").glob("*.txt")}):
        yield f"LICENSES/{name}.txt must be there if files name that license, and only then"
    if (root / "LICENSES/BSD-3-Clause.txt").read_text() != (root / "LICENSE").read_text():
        yield "LICENSES/BSD-3-Clause.txt must be LICENSE"


def main():
    found = list(faults(pathlib.Path(sys.argv[1])))
    print("\n".join(found))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
