#!/usr/bin/env python3
"""Turns the JSON of heed_bench and python_rows.py into Markdown tables, one a group of rows.

With --doc, the tables replace what stands between the markers in that file.
"""

import argparse
import json
import sys
from pathlib import Path

BEGIN = "<!-- bench:begin -->"
END = "<!-- bench:end -->"
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
    if "target" not in result:
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
    lines = [f"- {key}: {value}" for key, value in facts.items()] + ["", summary(rows)]
    if plot:
        lines += ["", f"![Time over L of one sequence in float32, heed beside its peers]({plot})"]
    return "\n".join(lines + tables(rows)) + "\n"


def publish(text, doc=None):
    """Puts the text between the markers in the file `doc`; without one, prints it."""
    if not doc:
        sys.stdout.write(text)
        return
    path = Path(doc)
    before, rest = path.read_text().split(BEGIN)
    _, after = rest.split(END)
    path.write_text(f"{before}{BEGIN}\n{text}{END}{after}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("json", nargs="+", help="what heed_bench and python_rows.py wrote")
    parser.add_argument("--plot", help="what plot.py drew, as the tables are to name it")
    parser.add_argument("--doc", help="a Markdown file with the markers, to update")
    arguments = parser.parse_args()
    publish(markdown(*read(arguments.json), arguments.plot), arguments.doc)


if __name__ == "__main__":
    main()
