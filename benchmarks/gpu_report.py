#!/usr/bin/env python3
"""Turns what scripts/gpu_check.sh ran into Markdown: facts, a table of the tests, tables of the rows.

    gpu_report.py --fact NAME=TEXT ... --tests FILE ... --bench FILE [--doc FILE]

The tests' FILEs are GoogleTest's JSON, one a program; --bench is what heed_bench wrote. With --doc,
all of it replaces what stands between the markers in that file.
"""

import argparse
import json
from pathlib import Path

from report import publish, read, tables

DTYPES = ("Float", "Half", "BFloat16", "Double")  # as parametrized tests are named


def cases(path):
    report = json.loads(path.read_text())
    return [case for suite in report["testsuites"] for case in suite["testsuite"]]


def test_row(name, tests):
    ran = [case for case in tests if case["result"] == "COMPLETED"]
    tensors = [case for case in ran if "devices" in case]
    by_dtype = [sum(case["name"].endswith(f"/{dtype}") for case in tensors) for dtype in DTYPES]
    failed = sum("failures" in case for case in tests)
    skipped = sum(case["result"] == "SKIPPED" for case in tests)
    counts = (len(tests), len(tensors), *by_dtype, failed, skipped)
    return f"| {name} | " + " | ".join(str(count) for count in counts) + " |"


def test_table(paths):
    """Tests that ask for devices ran on the one that was named; the others need none."""
    programs = {path.stem: cases(path) for path in paths}
    everything = [case for tests in programs.values() for case in tests]
    return [
        "| program | tests | on the device | " + " | ".join(DTYPES) + " | failed | skipped |",
        "|---|" + "--:|" * (len(DTYPES) + 4),
        *(test_row(name, tests) for name, tests in programs.items()),
        test_row("all", everything),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fact", action="append", default=[], metavar="NAME=TEXT")
    parser.add_argument("--tests", nargs="+", type=Path, required=True)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--doc", help="a Markdown file with the markers, to update")
    arguments = parser.parse_args()
    context, rows = read([arguments.bench])
    facts = [fact.partition("=") for fact in arguments.fact]
    facts += [("heed", "", context["heed"]), ("date", "", context["date"][:10])]
    lines = [f"- {name}: {text}" for name, _, text in facts]
    lines += ["", "### Tests", "", *test_table(arguments.tests), *tables(rows)]
    publish("\n".join(lines) + "\n", arguments.doc)


if __name__ == "__main__":
    main()
