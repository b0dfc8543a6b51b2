#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Turns the JSON of heed_bench and python_rows.py into Markdown tables.

A short table has one line for each typical call. After it, each group of rows has a table. With
--typical and --doc, they are put between the markers in these files, in place of the tables of the
same processor. Those of other processors stay.
"""

import argparse
import json
import re
import sys
from pathlib import Path

# What the short table shows: the call in words, its row and the peer.
TYPICAL = (
    ("50 tokens, 8 heads of 16", "attend/plain/1x8x50x16", "SDPA"),
    ("causal, 2 sequences of 1024 tokens, 8 heads of 64", "attend/causal/2x8x1024x64", "SDPA"),
    ("bfloat16, 2048 tokens, 32 heads of 64", "attend/bf16/1x32x2048x64", "SDPA"),
    ("causal, window of 256, 8192 tokens, 2 heads of 64", "window256/1x2x8192x8192x64", "SDPA"),
    ("16 sequences of 16 to 1024 tokens, packed", "packed/lengths16to1024", "SDPA, padded"),
    ("decoding one token, 4096 keys, 32 heads over 8, float32",
     "decode/Float/B1_H32_G8_L1_S4096_D128", "SDPA"),
    ("decoding one token, 4096 keys, 32 heads over 8, bfloat16",
     "decode/BFloat16/B1_H32_G8_L1_S4096_D128", "SDPA"),
    ("training with dropout, 2 sequences of 2048 tokens, 8 heads of 64",
     "dropout/training/2x8x2048x2048x64", "SDPA"),
    ("`MultiHeadAttention`, inference, 512 tokens, E = 512",
     "MultiHeadAttention/inference/L512_E512", "nn::MultiheadAttention"),
    ("`MultiHeadAttention`, training with dropout, 512 tokens, E = 512",
     "MultiHeadAttention/training/L512_E512_dropout0.1", "textbook"),
)
NAME_SUFFIX = "/iterations:1/manual_time"
TIME_UNITS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}  # in microseconds


def read(paths):
    """Returns (context, rows): rows maps a row's name to its contestants' results, ours first."""
    context, rows = {}, {}
    for path in paths:
        report = json.loads(Path(path).read_text())
        context = {**report["context"], **context}
        for result in report["benchmarks"]:
            row, contestant = result["name"].removesuffix(NAME_SUFFIX).rsplit("/", 1)
            rows.setdefault(row, {})[contestant] = result
    return context, rows


def microseconds_of(result):
    return result["real_time"] * TIME_UNITS[result["time_unit"]]


def duration(result):
    microseconds = microseconds_of(result)
    if microseconds < 1e3:
        return f"{microseconds:.1f} µs"
    return f"{microseconds / 1e3:.2f} ms" if microseconds < 1e6 else f"{microseconds / 1e6:.2f} s"


def size(result):
    if "peak_bytes" not in result:
        return ""
    count = result["peak_bytes"]
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def verdict(result):
    """Whether the target is met; undecided when the interval holds it and the ratio is below."""
    if "target" not in result or "ratio" not in result:
        return ""
    if result["ratio"] >= result["target"]:
        return "yes"
    return "undecided" if result["ratio_high"] >= result["target"] else "**no**"


def group(name):
    """attend/causal/1x8x50x16 belongs to "attend/causal"."""
    return name.rsplit("/", 1)[0]


def table(rows):
    lines = [
        "| row | heed | GFLOP/s | peak | peer | its time | its peak | ratio (95 %) | target | met |",
        "|---|--:|--:|--:|---|--:|--:|--:|--:|---|",
    ]
    for name, results in rows:
        (_, ours), *peers = results.items()
        if "error_message" in ours:
            lines.append(f"| {name} | failed: {ours['error_message']} |" + " |" * 8)
            continue
        speed = f"{ours['FLOP/s'] / 1e9:.0f}" if "FLOP/s" in ours else ""
        head = f"| {name.rsplit('/', 1)[1]} | {duration(ours)} | {speed} | {size(ours)} "
        if not peers:
            lines.append(head + "|" + " |" * 6)
        for peer, theirs in peers:
            if "share" in theirs:
                peer += f" × {theirs['share']:.2f}"
            ratio = f"{theirs['ratio']:.2f} ({theirs['ratio_low']:.2f}–{theirs['ratio_high']:.2f})"
            target = f"{theirs['target']:.2f}" if "target" in theirs else ""
            lines.append(
                f"{head}| {peer} | {duration(theirs)} | {size(theirs)} "
                f"| {ratio} | {target} | {verdict(theirs)} |"
            )
            head = "| | | | "
    return lines


def tables(rows):
    """The lines of a table a group."""
    lines = []
    for title in dict.fromkeys(group(name) for name in rows):
        members = [(name, results) for name, results in rows.items() if group(name) == title]
        lines += ["", f"### {title}", "", *table(members)]
    return lines


def typical(context, rows):
    """The short table, of those calls that were measured."""
    lines = [
        f"Medians on {context['cpu']}, {context['num_cpus']} cores, {context['isa']}, with LibTorch "
        f"{context['libtorch']}; float32 where no dtype is named.",
        "",
        "| call | heed | peer | its time | peer's time / heed's |",
        "|---|--:|---|--:|--:|",
    ]
    for words, row, peer in TYPICAL:
        results = rows.get(row, {})
        theirs = results.get(peer, {})
        if "ratio" in theirs:
            lines.append(f"| {words} | {duration(results['heed'])} | {peer} | {duration(theirs)} "
                         f"| **{theirs['ratio']:.1f}** |")
    return "\n".join(lines) + "\n"


def summary(rows):
    verdicts = [verdict(r) for results in rows.values() for r in results.values() if "ratio" in r]
    judged = [v for v in verdicts if v]
    return (
        f"{judged.count('yes')} of {len(judged)} comparisons with a target meet it; "
        f"{judged.count('**no**')} do not; {judged.count('undecided')} are undecided: the ratio is "
        "below the target, the interval around it is not."
    )


def markdown(context, rows, plot=None):
    facts = {
        "machine": f"{context['cpu']}, {context['num_cpus']} cores, {context['isa']}",
        "threads": context["threads"],
        "LibTorch": context["libtorch"],
        "PyTorch": context.get("pytorch", "not measured"),
        "compiler": context["compiler"],
        "heed": context.get("heed", "unknown"),
        "date": context["date"][:10],
    }
    lines = [f"## {context['cpu']}", ""]
    lines += [f"- {key}: {value}" for key, value in facts.items()] + ["", summary(rows)]
    if plot:
        lines += ["", f"![Time over L of one sequence in float32, heed beside its peers]({plot})"]
    return "\n".join(lines + tables(rows)) + "\n"


def with_part(parts, marker, name, text):
    """Several parts, each after a mark with its name: `text` replaces the part `name`, or follows the others."""
    pieces = re.split(rf"<!-- {marker}: (.*) -->\n", parts)
    named = {**dict(zip(pieces[1::2], pieces[2::2])), name: text}
    return "\n".join(f"<!-- {marker}: {key} -->\n{part.strip()}\n" for key, part in named.items())


def publish(text, doc=None, marker="bench", processor=None):
    """Puts the text between the markers in the file `doc`, as the part of `processor` if that is given;
    without a file, prints it."""
    if not doc:
        sys.stdout.write(text)
        return
    path = Path(doc)
    begin, end = f"<!-- {marker}:begin -->", f"<!-- {marker}:end -->"
    before, rest = path.read_text().split(begin)
    old, after = rest.split(end)
    if processor:
        text = with_part(old, marker, processor, text)
    path.write_text(f"{before}{begin}\n{text}{end}{after}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("json", nargs="+", help="what heed_bench and python_rows.py wrote")
    parser.add_argument("--plot", help="what plot.py drew, as the tables are to name it")
    parser.add_argument("--typical", help="a Markdown file with the markers, to update with the short table")
    parser.add_argument("--doc", help="another one, to update with the tables of all rows")
    arguments = parser.parse_args()
    context, rows = read(arguments.json)
    publish(typical(context, rows) + ("" if arguments.typical else "\n"), arguments.typical, "typical",
            context["cpu"])
    publish(markdown(context, rows, arguments.plot), arguments.doc, processor=context["cpu"])


if __name__ == "__main__":
    main()
