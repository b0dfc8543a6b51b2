#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Prints the name of this machine's processor, with its generation: "AMD EPYC (Zen 4)".

The tables in docs/ have one part for each name. A virtual machine's name for its processor says "AMD EPYC"
for several generations, which differ more in speed than many rows do.
"""

import platform
from pathlib import Path

# Vendor, family, the first and the last model, as the Linux kernel tells them apart.
GENERATIONS = (
    ("AuthenticAMD", 25, 0x10, 0x1F, "Zen 4"),
    ("AuthenticAMD", 25, 0x60, 0x7F, "Zen 4"),
    ("AuthenticAMD", 25, 0xA0, 0xAF, "Zen 4"),
    ("AuthenticAMD", 26, 0x00, 0x2F, "Zen 5"),
    ("AuthenticAMD", 26, 0x40, 0x4F, "Zen 5"),
    ("AuthenticAMD", 26, 0x60, 0x7F, "Zen 5"),
)


def processor_in(info: str) -> str:
    """The processor's name as /proc/cpuinfo tells it."""
    fields = {}
    for line in info.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    if "model name" not in fields:
        return platform.machine()
    family, model = int(fields.get("cpu family", 0)), int(fields.get("model", 0))
    for vendor, of_family, first, last, generation in GENERATIONS:
        if (fields.get("vendor_id"), family) == (vendor, of_family) and first <= model <= last:
            return f"{fields['model name']} ({generation})"
    return f"{fields['model name']} (family {family} model {model})"


def processor() -> str:
    return processor_in(Path("/proc/cpuinfo").read_text(encoding="utf-8"))


if __name__ == "__main__":
    print(processor())
