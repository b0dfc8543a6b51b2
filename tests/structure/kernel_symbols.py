#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Fails if an object of cpu/isa defines a symbol that another build of it could define too, or checks its stack.

    kernel_symbols.py --nm NM [INSTRUCTION_SET OBJECT...]...

The linker keeps one of several definitions of an inline function: that of AVX-512 might then run on
a machine without. So all that an object defines for others must be in the namespace of its
instruction set. Checks of the stack cost time; see cmake/kernels.cmake.
"""

import argparse
import subprocess
import sys


# What compilers put beside a sanitizer's checks: no code of ours.
BOOKKEEPING = ("__odr_asan.", "DW.ref.")


def shared_symbols(listing, instruction_set):
    """What a listing of `nm --demangle` has outside of the instruction set's namespace, and checks of the stack."""
    for line in listing.splitlines():
        kind, _, name = line[17:].partition(" ")  # behind 16 digits
        if name.startswith("__stack_chk"):
            yield kind, name
        # U: undefined. Small letters are local; but v, w: weak, u: unique among all libraries.
        if kind == "U" or (kind.islower() and kind not in "uvw"):
            continue
        if name.startswith(BOOKKEEPING):
            continue
        if f"heed::detail::{instruction_set}::" not in name:
            yield kind, name


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nm", required=True)
    parser.add_argument("words", nargs="+")
    arguments = parser.parse_args()
    faults, objects, instruction_set = [], 0, None
    for word in arguments.words:
        if not word.endswith((".o", ".obj")):
            instruction_set = word
            continue
        listing = subprocess.run([arguments.nm, "--demangle", word], check=True,
                                 capture_output=True, text=True).stdout
        objects += 1
        faults += [f"{word}: {kind} {name}" for kind, name in
                   shared_symbols(listing, instruction_set)]
    print("\n".join(faults) if faults else f"{objects} objects share nothing")
    sys.exit(1 if faults or objects == 0 else 0)


if __name__ == "__main__":
    main()
