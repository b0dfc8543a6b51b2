#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Fails if a source includes a file of a floor above its own.

    includes.py ROOT      the folder that holds src and include

The floors of src, and the rooms of a floor that has some, from the ground up. A file includes files of its own floor and of those before it.
A public header is of the floor whose folder holds its source; one without a source, of the highest
floor that it includes.
"""

import pathlib
import re
import sys

FLOORS = ["core", "cpu", "attend", "modules", "modules/sharded", "modules/layers", "modules/caches",
          "modules/attentions", "weights", "models", "distributed", "ops"]
# What each instruction set compiles for itself: nothing inline may come from elsewhere.
ISA = "cpu/isa"
ISA_MAY_INCLUDE = {"stdint.h", "immintrin.h", "arm_neon.h", "core/ceil_div.h", "core/element_types.h"}

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)


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

    def faults(self):
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
