#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Export scikit-learn's handwritten digits to the CSV file that the examples read.

Each line is an image: its 64 pixels from 0 to 16, row by row, then the digit that it shows. This is
the format of UCI's own files optdigits.tes and optdigits.tra, so these can be used as well.
"""

import argparse
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Export the 1,797 handwritten digits of scikit-learn as CSV, one image a line."
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file to write")
    out = parser.parse_args().out
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        sys.exit(
            f"export_digits.py: cannot import scikit-learn ({error}): "
            f"install it with '{sys.executable} -m pip install scikit-learn'"
        )
    digits = load_digits()
    lines = (
        ",".join(str(int(value)) for value in (*image.flat, digit))
        for image, digit in zip(digits.images, digits.target)
    )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text("\n".join(lines) + "\n", encoding="ascii")
    except OSError as error:
        sys.exit(f"export_digits.py: cannot write {out}: {error.strerror}")
    print(f"{out}: {len(digits.target)} images")


if __name__ == "__main__":
    main()
