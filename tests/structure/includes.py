#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Fails if a source includes a file of a floor above its own, or lacks an include.

    includes.py ROOT      the folder that holds src and include

The floors of src, and the rooms of a floor that has some, from the ground up. A file includes files of its own floor and of those before it.
A public header is of the floor whose folder holds its source; one without a source, of the highest
floor that it includes.

A file that names detail::x includes the header of x, or one that includes it. The presets compile the files of a target
together, where a file finds what the file before has included; a project that adds heed's sources compiles each alone.
"""

import collections
import pathlib
import re
import sys

FLOORS = ["core", "cpu", "attend", "modules", "modules/sharded", "modules/layers", "modules/caches",
          "modules/attentions", "weights", "models", "distributed", "ops"]
# What each instruction set compiles for itself: nothing inline may come from elsewhere.
ISA = "cpu/isa"
ISA_MAY_INCLUDE = {"stdint.h", "immintrin.h", "arm_neon.h", "core/ceil_div.h", "core/element_types.h"}

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)
# Declarations begin lines: namespaces are not indented.
DECLARATION = re.compile(
    r"^(?:class|struct|enum class) (?:HEED_\w+ )*(\w+)|^using (\w+) =|^(?:inline )?constexpr [^=;{(]*\b(k[A-Z]\w*)"
    r"|^(?!return\b|using\b)\w[^\n;{}()=#]*?[\s&*>](\w+)\(", re.MULTILINE)
COMMENT = re.compile(r"//.*")


def declared(path):
    """The names that a header declares in a namespace."""
    return {next(filter(None, names)) for names in DECLARATION.findall(path.read_text())}


def includes(path):
    """(delimiter, name) of each include of a file."""
    return INCLUDE.findall(path.read_text())


class Tree:
    def __init__(self, root):
        self.root = root
        self.sources = sorted(
            path for path in (root / "src").rglob("*") if path.suffix in (".h", ".cpp")
        )
        # The floor of each public header that has a source.
        self.header_floors = {
            name: self.floor_of_source(path)
            for path in self.sources
            if path.suffix == ".cpp"
            for _, name in includes(path)
            if name.startswith("heed/") and pathlib.Path(name).stem == path.stem
        }

    def floor_of_source(self, path):
        folder = path.relative_to(self.root / "src").parent
        return next(FLOORS.index(name) for name in (str(folder), *map(str, folder.parents))
                    if name in FLOORS)

    def floor_of_header(self, name):
        if name in self.header_floors:
            return self.header_floors[name]
        inner = [name for _, name in includes(self.root / "include" / name)
                 if name.startswith("heed/")]
        return max((self.floor_of_header(name) for name in inner), default=0)

    def file_of(self, name):
        """The file of heed that an include names, or None."""
        paths = (self.root / folder / name for folder in ("include", "src"))
        return next((path for path in paths if path.exists()), None)

    def reached(self, path, found=None):
        """The file, and all files of heed that it includes, directly or not."""
        found = set() if found is None else found
        if path is not None and path not in found:
            found.add(path)
            for _, name in includes(path):
                self.reached(self.file_of(name), found)
        return found

    def missing_includes(self):
        headers = [*(self.root / "src").rglob("*.h"), *(self.root / "include").rglob("*.h")]
        holders = collections.defaultdict(set)
        for header in headers:
            for name in declared(header):
                holders[name].add(header)
        for path in self.sources:
            used = set(re.findall(r"\bdetail::(\w+)", COMMENT.sub("", path.read_text())))
            reached = self.reached(path)
            for name in sorted(used & holders.keys()):
                if not holders[name] & reached:
                    wanted = " or ".join(str(header.relative_to(self.root)) for header in sorted(holders[name]))
                    yield f"{path.relative_to(self.root)} names detail::{name}, but does not include {wanted}"

    def faults(self):
        yield from self.misplaced_includes()
        yield from self.missing_includes()

    def misplaced_includes(self):
        for path in self.sources:
            own = self.floor_of_source(path)
            name_of_path = path.relative_to(self.root)
            for delimiter, name in includes(path):
                if name.startswith("heed/"):
                    floor = self.floor_of_header(name)
                elif delimiter == '"':
                    if not (self.root / "src" / name).exists():
                        yield f"{name_of_path} includes {name}, which src does not hold"
                        continue
                    floor = self.floor_of_source(self.root / "src" / name)
                else:
                    floor = 0
                if floor > own:
                    yield (f"{name_of_path} includes {name}: {FLOORS[own]} is below "
                           f"{FLOORS[floor]}")
                in_isa = name_of_path.is_relative_to(f"src/{ISA}")
                if in_isa and not name.startswith(ISA + "/") and name not in ISA_MAY_INCLUDE:
                    yield f"{name_of_path} includes {name}: {ISA} shares no inline function"


def main():
    faults = list(Tree(pathlib.Path(sys.argv[1])).faults())
    for fault in faults:
        print(fault)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
