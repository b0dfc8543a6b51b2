#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Print the schemas of LibTorch's attention operators, one a line, as Python's torch states them.

    schemas.py > tests/cuda/schemas/VERSION.txt
    schemas.py --compare tests/cuda/schemas    with the file of torch's version; exits with 77 without one
"""

import argparse
import difflib
import sys
from pathlib import Path

try:
    import torch
except ImportError as error:
    print(f"schemas.py: {error}")
    sys.exit(77)

OPERATORS = (
    "_flash_attention_forward",
    "_flash_attention_backward",
    "_efficient_attention_forward",
    "_efficient_attention_backward",
    "_fused_sdp_choice",
    "scaled_dot_product_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_backward",
)


def schemas() -> list:
    """Of every overload, the plain one first."""
    lines = []
    for name in OPERATORS:
        overloads = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
        lines += sorted(map(str, overloads), key=lambda schema: schema.partition("(")[0])
    return lines


def compare(folder: Path) -> int:
    version = torch.__version__.partition("+")[0]
    path = folder / f"{version}.txt"
    if not path.exists():
        print(f"schemas.py: there is no file of LibTorch {version}")
        return 77
    changes = list(difflib.unified_diff(path.read_text(encoding="utf-8").splitlines(), schemas(),
                                        str(path), f"LibTorch {torch.__version__}", n=0, lineterm=""))
    print("\n".join(changes))
    return 1 if changes else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", type=Path, metavar="FOLDER")
    folder = parser.parse_args().compare
    if folder:
        return compare(folder)
    print("\n".join(schemas()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
