#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Tests of scripts/lib/locked.py, and of the lists that it reads: they pin what scripts install by version and hash."""

import pathlib
import re
import subprocess
import sys
import unittest

LIB = pathlib.Path(__file__).resolve().parents[2] / "scripts/lib"
SCRIPTS = LIB.parent
ENTRY = re.compile(r"([\w.-]+)==([\w.]+)(?: ; [^\\]+)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)(?:    #.*\n)+")
LIST = r"""one==1.0 \
    --hash=sha256:11
    # via
    #   -r requirements.in
    #   two-parts
three==3 ; python_full_version < '3.11' \
    --hash=sha256:33 \
    --hash=sha256:34
    # via one
two-parts==2 \
    --hash=sha256:22
    # via torch
"""


def locked(*arguments, text=LIST):
    """What it prints for a list of this text, and how it ended."""
    process = subprocess.run([sys.executable, LIB / "locked.py", "/dev/stdin", *arguments],
                             input=text, capture_output=True, text=True, check=False)
    return process.returncode, process.stdout, process.stderr


class Locked(unittest.TestCase):
    def names(self, *arguments):
        status, printed, _ = locked(*arguments)
        self.assertEqual(status, 0)
        return re.findall(r"^([\w-]+)==", printed, flags=re.MULTILINE)

    def test_prints_what_a_package_needs(self):
        self.assertEqual(self.names("three"), ["three"])
        self.assertEqual(self.names("one"), ["one", "three"])
        self.assertEqual(self.names("Two_Parts"), ["one", "three", "two-parts"])
        self.assertEqual(locked("three")[1], LIST[LIST.index("three=="):LIST.index("two-parts==")])

    def test_prints_what_a_package_that_is_left_out_needs(self):
        self.assertEqual(self.names("torch"), ["one", "three", "two-parts"])
        self.assertEqual(self.names("torch", "--without", "three"), ["one", "two-parts"])

    def test_refuses_what_the_list_does_not_name(self):
        self.assertEqual(locked("four"), (1, "", "/dev/stdin has no four\n"))


class Lists(unittest.TestCase):
    def test_pin_each_package(self):
        for name in ("requirements", "engines"):
            text = re.sub(r"\A(?:#.*\n)+", "", (LIB / f"{name}.txt").read_text())
            self.assertEqual(ENTRY.sub("", text), "")
            pinned = {entry[1] for entry in ENTRY.finditer(text)}
            wanted = re.findall(r"^[\w-]+", (LIB / f"{name}.in").read_text(), flags=re.MULTILINE)
            self.assertEqual(set(wanted) - pinned - {"torch"}, set())

    def test_have_the_torch_that_scripts_install(self):
        version = re.search(r"^wanted_torch=(.*)$", (LIB / "environment.sh").read_text(), flags=re.MULTILINE)[1]
        self.assertIn(f"torch=={version}\n", (LIB / "requirements.in").read_text())

    def test_are_all_that_pip_reads(self):
        # What is not in a list: torch, and vLLM with a torch of its own.
        allowed = ('pip_install "torch==$wanted_torch" "torch==$wanted_torch"', 'pip_install "$1" "$1"',
                   'pip_install "$1" --no-deps --require-hashes', 'pip_install "${unfinished[@]}"',
                   'pip install --quiet "torch==$1"', "pip install --quiet --no-deps --require-hashes")
        for script in sorted(SCRIPTS.rglob("*.sh")):
            for line in script.read_text().splitlines():
                if re.search(r"^[^#]*\bpip_install |^[^#]*/pip install", line):
                    self.assertTrue(any(call in line for call in allowed), f"{script.name}: {line}")


if __name__ == "__main__":
    unittest.main()
