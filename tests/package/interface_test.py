#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""interface.py says what is broken, and what to do."""

import contextlib
import io
import pathlib
import tempfile
import unittest

import interface

BEFORE = ["header heed/a.h", "libheed heed::f(int)", "libheed heed::g()", "libheed_distributed heed::distributed::h()"]


class InterfaceTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write(headers=["a"], symbols=["heed::f(int)", "heed::g()"])
        self.write_file("tests/package/exported_symbols_distributed.txt", ["heed::distributed::h()"])
        self.write_file("tests/package/interface/0.9.0.txt", ["older"])
        self.write_file("tests/package/interface/0.10.1.txt", BEFORE)
        self.admit()

    def write_file(self, name, lines):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines))

    def write(self, headers, symbols):
        for path in self.root.glob("include/heed/*.h"):
            path.unlink()
        for header in headers:
            self.write_file(f"include/heed/{header}.h", [])
        self.write_file("tests/package/exported_symbols.txt", symbols)

    def admit(self, *lines):
        self.write_file("tests/package/interface/broken.txt", ["# What is gone.", "", "# Because.", *lines])

    def check(self, version):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            status = interface.check(self.root, interface.version_of(version))
        self.assertEqual(status, 1 if "\n  " in output.getvalue() else 0)
        return output.getvalue()

    def test_the_same_is_no_fault(self):
        self.assertEqual(self.check("0.10.1"), "since 0.10.1: 4 kept, 0 changed, 0 gone, 0 new\n\n")

    def test_new_names_are_no_fault(self):
        self.write(headers=["a", "b"], symbols=["heed::f(int)", "heed::g()", "heed::g(int)"])
        self.assertEqual(self.check("0.10.2"), "since 0.10.1: 4 kept, 0 changed, 0 gone, 2 new\n\n")

    def test_what_is_gone_is_named(self):
        self.write(headers=[], symbols=["heed::f(long)", "heed::g()"])
        text = self.check("0.11.0")
        self.assertIn("since 0.10.1: 2 kept, 1 changed, 1 gone, 1 new\n", text)
        self.assertIn("Programs of heed 0.10.1 use what is not there any more:\n  header heed/a.h\n"
                      "  libheed heed::f(int)\nKeep it, marked [[deprecated]]", text)
        self.assertNotIn("may not break", text)

    def test_what_is_admitted_is_no_fault_of_a_version_that_may_break_it(self):
        self.write(headers=[], symbols=["heed::f(long)", "heed::g()"])
        self.admit("header heed/a.h", "libheed heed::f(int)")
        for version in ("0.11.0", "1.0.0"):
            self.assertEqual(self.check(version), "since 0.10.1: 2 kept, 1 changed, 1 gone, 1 new\n\n")

    def test_a_patch_breaks_nothing(self):
        self.write(headers=["a"], symbols=["heed::f(long)", "heed::g()"])
        self.admit("libheed heed::f(int)")
        self.assertIn("Version 0.10.2 may not break what 0.10.1 promised:\n  libheed heed::f(int)\n"
                      "Keep it, or let the version in CMakeLists.txt be 0.11.0", self.check("0.10.2"))

    def test_from_1_0_on_a_minor_version_breaks_no_names(self):
        self.write_file("tests/package/interface/1.0.0.txt", BEFORE)
        self.write(headers=["a"], symbols=["heed::f(long)"])
        self.admit("libheed heed::f(int)", "libheed heed::g()")
        self.assertIn("Version 1.1.0 may not break what 1.0.0 promised:\n  libheed heed::g()\n"
                      "Keep it, or let the version in CMakeLists.txt be 2.0.0", self.check("1.1.0"))
        self.assertIn("  libheed heed::f(int)\n  libheed heed::g()\n", self.check("1.0.1"))
        self.assertNotIn("\n  ", self.check("2.0.0"))

    def test_what_is_admitted_must_be_gone(self):
        self.admit("libheed heed::g()", "libheed heed::unknown()")
        self.assertIn("lines that are there, or that heed 0.10.1 did not have:\n  libheed heed::g()\n"
                      "  libheed heed::unknown()\nRemove them.", self.check("0.11.0"))

    def test_a_release_is_recorded(self):
        self.write(headers=["b"], symbols=["heed::f(int)"])
        self.admit("header heed/a.h", "libheed heed::g()")
        interface.write(self.root, (0, 11, 0))
        self.assertEqual(self.check("0.11.0"), "since 0.11.0: 3 kept, 0 changed, 0 gone, 0 new\n\n")
        self.assertEqual((self.root / "tests/package/interface/broken.txt").read_text(), "# What is gone.\n")


if __name__ == "__main__":
    unittest.main()
