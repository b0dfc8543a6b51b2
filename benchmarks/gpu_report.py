#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Turns what scripts/gpu_check.sh ran into Markdown: facts, a table of the tests, the targets,
tables of the rows.

    gpu_report.py --fact NAME=TEXT ... [--tests FILE ...] --bench FILE ... [--doc FILE]

The tests' FILEs are GoogleTest's JSON, one a program; --bench is what heed_bench and gpu_peers.py
wrote. With --doc, all of it replaces what stands between the markers in that file.
"""

import argparse
import json
from pathlib import Path

from report import duration, publish, read, size, verdict

DTYPES = ("Float", "Half", "BFloat16", "Double")  # as parametrized tests are named
WINDOW = "window: at least 8 × as fast as a masked SDPA"
PACKED = "packed: at least 2 × as fast as padded"
DECODING = "decoding: at least 0.7 of the device's memory speed, which a copy measures"
MEMORY = "memory: less than a byte for each pair of query and key"
OWN_WORK = "SDPA's own work: at least 0.97 × as fast as the best of its backends"
TARGETS = (OWN_WORK, WINDOW, PACKED, DECODING, MEMORY)
OUTCOMES = ("yes", "undecided", "**no**")  # from the best to the worst


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


def parts(name):
    """cuda/plain/Half/training/B1_L2 is (plain, "Half, training, B1 L2")."""
    _, kind, *rest = name.split("/")
    return kind, ", ".join(rest).replace("_", " ")


def target_of(kind, peer):
    """What `peer`, a name, is judged by."""
    if peer == "a copy":
        return DECODING
    return {"window": WINDOW, "packed": PACKED, "packed_causal": PACKED}.get(kind, OWN_WORK)


def memory_verdict(result):
    return OUTCOMES[0] if result["peak_bytes"] < result["peak_limit"] else OUTCOMES[-1]


def verdicts(rows):
    """Yields (target, row, outcome, ratio): the worst of a row's peers, for each target."""
    for name, results in rows.items():
        kind, label = parts(name)
        ours = results.get("heed", {})
        worst = {}
        for peer, result in results.items():
            if outcome := verdict(result):
                found = (OUTCOMES.index(outcome), -result["ratio"])
                target = target_of(kind, peer)
                worst[target] = max(worst.get(target, found), found)
        for target, (outcome, ratio) in worst.items():
            yield target, f"{kind}: {label}", OUTCOMES[outcome], -ratio
        if "peak_limit" in ours:
            share = ours["peak_limit"] / max(ours["peak_bytes"], 1)
            yield MEMORY, f"{kind}: {label}", memory_verdict(ours), share


def target_table(rows):
    """A row is a call; its worst peer counts."""
    judged = list(verdicts(rows))
    lines = [
        "| target | calls | met | undecided | not met | the worst |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for target in TARGETS:
        own = [row for row in judged if row[0] == target]
        counts = [sum(row[2] == outcome for row in own) for outcome in OUTCOMES]
        worst = min(own, key=lambda row: row[3], default=None)
        words = f"{worst[1]}: {worst[3]:.2f}" if worst else ""
        lines.append(f"| {target} | {len(own)} | {' | '.join(map(str, counts))} | {words} |")
    return lines


def kernels(result):
    return f"{result['kernels']:.0f}" if "kernels" in result else ""


def ratio(result):
    """Of another process no interval is known: its turns were not taken with ours."""
    text = f"{result['ratio']:.2f}"
    if "ratio_low" in result:
        text += f" ({result['ratio_low']:.2f}–{result['ratio_high']:.2f})"
    return text


def row_lines(name, results):
    label = parts(name)[1]
    ours = results["heed"]
    if "error_message" in ours:
        yield f"| {label} | failed: {ours['error_message']} |" + " |" * 9
        return
    speed = f"{ours['bytes/s'] / 1e9:.0f}" if "bytes/s" in ours else ""
    head = (f"| {label} | {ours.get('label', '')} | {duration(ours)} | {size(ours)} "
            f"| {kernels(ours)} | {speed} ")
    for peer, theirs in results.items():
        if peer == "heed":
            continue
        if "error_message" in theirs:
            yield f"{head}| {peer} | refuses | | | | |"
        else:
            yield (f"{head}| {peer} | {duration(theirs)} | {size(theirs)} | {kernels(theirs)} "
                   f"| {ratio(theirs)} | {verdict(theirs)} |")
        head = "|" + " |" * 5 + " "


def row_tables(rows):
    """The lines of a table for each kind of call."""
    kinds = dict.fromkeys(parts(name)[0] for name in rows)
    lines = []
    for kind in kinds:
        if kind.startswith("peak_"):
            continue
        lines += ["", f"### {kind}", "",
                  "| call | route | heed | peak | kernels | GB/s | peer | its time | its peak "
                  "| its kernels | ratio (95 %) | met |",
                  "|---|---|--:|--:|--:|--:|---|--:|--:|--:|--:|---|"]
        for name, results in rows.items():
            if parts(name)[0] == kind:
                lines += row_lines(name, results)
    return lines


def memory_table(rows):
    """One head of many tokens."""
    lines = ["| call | route | peak | a byte a pair | met |", "|---|---|--:|--:|---|"]
    for name, results in rows.items():
        kind, label = parts(name)
        ours = results.get("heed", {})
        if "error_message" in ours and kind.startswith("peak_"):
            lines.append(f"| {kind}: {label} | failed: {ours['error_message']} | | | |")
        if "peak_limit" in ours:
            limit = size({"peak_bytes": ours["peak_limit"]})
            lines.append(f"| {kind}: {label} | {ours.get('label', '')} | {size(ours)} | {limit} "
                         f"| {memory_verdict(ours)} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fact", action="append", default=[], metavar="NAME=TEXT")
    parser.add_argument("--tests", nargs="+", type=Path, default=[])
    parser.add_argument("--bench", nargs="+", required=True)
    parser.add_argument("--doc", help="a Markdown file with the markers, to update")
    arguments = parser.parse_args()
    context, rows = read(arguments.bench)
    facts = [fact.partition("=") for fact in arguments.fact]
    facts += [("heed", "", context["heed"]), ("date", "", context["date"][:10])]
    lines = [f"- {name}: {text}" for name, _, text in facts]
    if arguments.tests:
        lines += ["", "### Tests", "", *test_table(arguments.tests)]
    lines += ["", "### Targets", "", *target_table(rows)]
    lines += ["", "### Memory of long sequences", "", *memory_table(rows), *row_tables(rows)]
    publish("\n".join(lines) + "\n", arguments.doc)


if __name__ == "__main__":
    main()
