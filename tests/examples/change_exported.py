# SPDX-License-Identifier: BSD-3-Clause
"""Copies what export_language_model.py wrote, to test what run_exported says of it.

    change_exported.py DIR

DIR_other_logits has logits that no program computes; DIR_damaged has the first 1000 bytes of heed.pt2.
"""

import shutil
import sys
from pathlib import Path

try:
    import torch
except ImportError as error:
    sys.exit(f"change_exported.py: cannot import torch ({error})")


def main() -> None:
    source = Path(sys.argv[1])
    if not (source / "expected.pt").is_file():
        sys.exit(f"change_exported.py: cannot read {source}/expected.pt")
    other_logits, damaged = (
        Path(shutil.copytree(source, f"{source}_{name}", dirs_exist_ok=True))
        for name in ("other_logits", "damaged")
    )
    expected = torch.load(source / "expected.pt")
    expected["logits"] += 0.001
    torch.save(expected, other_logits / "expected.pt")
    (damaged / "heed.pt2").write_bytes((source / "heed.pt2").read_bytes()[:1000])


if __name__ == "__main__":
    main()
