# SPDX-License-Identifier: BSD-3-Clause
"""Programs that were exported with earlier versions run with this one, and give the numbers that those gave.

    operators_test.py --library libheed_ops.so [unittest argument...]
"""

import argparse
import re
import sys
import unittest
import warnings
from pathlib import Path

import torch

FILES = Path(__file__).resolve().parent / "files"
# The exported operators' kernels round in their own ways.
TOLERANCE = 1e-5


def operators():
    return {schema.name: schema for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("heed::")}


def version_of(text):
    return tuple(map(int, re.match(r"(\d+)\.(\d+)", text).groups()))


class OperatorsTest(unittest.TestCase):
    def check(self, folder, load):
        """`load` returns the program. torch reads what the same or an older torch wrote."""
        expected = torch.load(folder / "expected.pt")
        if version_of(torch.__version__) < version_of(expected["torch"]):
            self.skipTest(f"torch {expected['torch']} wrote {folder}, this is {torch.__version__}")
        run = load()
        with torch.no_grad():
            outputs = run(*expected["inputs"])
        self.assertEqual(len(outputs), len(expected["outputs"]))
        for found, wanted in zip(outputs, expected["outputs"]):
            torch.testing.assert_close(found, wanted, rtol=TOLERANCE, atol=TOLERANCE * wanted.abs().max().item())

    def test_exported_programs_run(self):
        for folder in sorted(FILES.glob("*/operators")):
            with self.subTest(folder=folder.parent.name):
                self.check(folder, lambda: torch.export.load(folder / "program.pt2").module())

    def test_traced_programs_run(self):
        for folder in sorted(FILES.glob("*/operators")):
            with self.subTest(folder=folder.parent.name), warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of TorchScript
                self.check(folder, lambda: torch.jit.load(folder / "traced.pt"))

    def test_operators_take_the_arguments_that_they_took(self):
        today = operators()
        for file in sorted(FILES.glob("*/operators/schemas.txt")):
            for line in file.read_text().splitlines():
                before = torch._C.parse_schema(line)
                with self.subTest(version=file.parts[-3], operator=before.name):
                    self.assertIn(before.name, today, "it is gone, and programs that were exported call it")
                    self.assertTrue(today[before.name].is_backward_compatible_with(before),
                                    f"\n{today[before.name]}\ncannot stand in for\n{before}\n"
                                    "Add arguments behind the others, with defaults.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    arguments, rest = parser.parse_known_args()
    torch.ops.load_library(arguments.library)
    unittest.main(argv=[sys.argv[0], *rest])
