#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compares what programs may use of heed with the record of its last release, and says what is broken.

    interface.py check ROOT VERSION    fails if something is broken that VERSION may not break, or that is not admitted
    interface.py write ROOT VERSION    records VERSION as a release, and admits nothing any more

The interface is the headers in include/heed, and what the shared libraries export, as exported_symbols.txt and
exported_symbols_distributed.txt beside this script list it, but for heed::detail; package.exported_symbols compares
these with the libraries. Releases are in interface/VERSION.txt. What is gone since the last one must stand in
interface/broken.txt, a line each, below a comment that says what programs do instead. docs/stability.md says which
version may break what.
"""

import pathlib
import re
import sys

LISTS = {"libheed": "exported_symbols.txt", "libheed_distributed": "exported_symbols_distributed.txt"}
FOLDER = pathlib.Path("tests/package")


def version_of(text):
    return tuple(int(number) for number in text.split("."))


def interface_of(root):
    """Lines such as "header heed/attend.h" and "libheed heed::attend(...)"."""
    include = root / "include"
    lines = {f"header {path.relative_to(include)}" for path in include.rglob("*.h")}
    for library, name in LISTS.items():
        lines |= {f"{library} {symbol}" for symbol in (root / FOLDER / name).read_text().splitlines()}
    return {line for line in lines if " heed::detail::" not in name_of(line)}


def last_release(root):
    """Its version, and its interface."""
    files = {version_of(path.stem): path for path in (root / FOLDER / "interface").glob("[0-9]*.txt")}
    version = max(files)
    return version, set(files[version].read_text().splitlines())


def admitted(root):
    path = root / FOLDER / "interface/broken.txt"
    return {line for line in path.read_text().splitlines() if line and not line.startswith("#")}


def name_of(line):
    """A line without what overloads and signatures differ in: "libheed heed::attend"."""
    return re.sub(r"\(.*", "", line)


def may_break(release, version):
    """What a version may break of a release: "names", "signatures", whose callers are compiled anew, or nothing."""
    if version[0] > release[0] or version[0] == 0 and version[1] > release[1]:
        return "names"
    return "signatures" if version[:2] > release[:2] else ""


def describe(lines):
    return "".join(f"\n  {line}" for line in sorted(lines))


def faults(release, before, today, listed, version):
    """Sentences that say what is wrong, and what to do."""
    release_text, version_text = (".".join(map(str, numbers)) for numbers in (release, version))
    gone = before - today
    if new := gone - listed:
        yield (f"Programs of heed {release_text} use what is not there any more:{describe(new)}\n"
               "Keep it, marked [[deprecated]] if something else takes its place. If it must go, add these lines to "
               f"{FOLDER}/interface/broken.txt below a comment, and tell users in CHANGELOG.md.")
    if wrong := listed - gone:
        yield (f"{FOLDER}/interface/broken.txt has lines that are there, or that heed {release_text} did not "
               f"have:{describe(wrong)}\nRemove them.")
    allowed = may_break(release, version)
    names = {name_of(line) for line in today}
    forbidden = {line for line in gone if not allowed or allowed == "signatures" and name_of(line) not in names}
    if forbidden:
        next_version = f"0.{release[1] + 1}.0" if release[0] == 0 else f"{release[0] + 1}.0.0"
        yield (f"Version {version_text} may not break what {release_text} promised:{describe(forbidden)}\n"
               f"Keep it, or let the version in CMakeLists.txt be {next_version}; see docs/stability.md.")


def check(root, version):
    release, before = last_release(root)
    today = interface_of(root)
    gone = before - today
    names = {name_of(line) for line in today}
    changed = {line for line in gone if name_of(line) in names}
    print(f"since {'.'.join(map(str, release))}: {len(before & today)} kept, {len(changed)} changed, "
          f"{len(gone - changed)} gone, {len(today - before)} new")
    found = list(faults(release, before, today, admitted(root), version))
    print("\n\n".join(found))
    return 1 if found else 0


def write(root, version):
    folder = root / FOLDER / "interface"
    text = "".join(f"{line}\n" for line in sorted(interface_of(root)))
    (folder / f"{'.'.join(map(str, version))}.txt").write_text(text)
    kept = (folder / "broken.txt").read_text().split("\n\n", 1)[0]
    (folder / "broken.txt").write_text(kept.rstrip("\n") + "\n")
    return 0


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in ("check", "write"):
        sys.exit(__doc__)
    root, version = pathlib.Path(sys.argv[2]), version_of(sys.argv[3])
    sys.exit({"check": check, "write": write}[sys.argv[1]](root, version))


if __name__ == "__main__":
    main()
