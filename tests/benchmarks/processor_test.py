# SPDX-License-Identifier: BSD-3-Clause
"""What benchmarks/processor.py calls a processor."""

import platform
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from processor import processor_in  # noqa: E402

INFO = """processor\t: {number}
vendor_id\t: {vendor}
cpu family\t: {family}
model\t\t: {model}
model name\t: {name}

"""


def name(vendor: str, family: int, model: int, text: str) -> str:
    return processor_in("".join(
        INFO.format(number=number, vendor=vendor, family=family, model=model, name=text)
        for number in range(2)))


class Processor(unittest.TestCase):
    def test_generations_of_one_name_differ(self) -> None:
        self.assertEqual("AMD EPYC (Zen 4)", name("AuthenticAMD", 25, 17, "AMD EPYC"))
        self.assertEqual("AMD EPYC (Zen 5)", name("AuthenticAMD", 26, 2, "AMD EPYC"))

    def test_others_have_their_numbers(self) -> None:
        self.assertEqual("AMD EPYC (family 25 model 1)", name("AuthenticAMD", 25, 1, "AMD EPYC"))
        self.assertEqual("Intel(R) Xeon(R) (family 26 model 2)",
                         name("GenuineIntel", 26, 2, "Intel(R) Xeon(R)"))

    def test_a_processor_without_a_name(self) -> None:
        self.assertEqual(platform.machine(), processor_in("processor\t: 0\nBogoMIPS\t: 50.00\n"))


if __name__ == "__main__":
    unittest.main()
