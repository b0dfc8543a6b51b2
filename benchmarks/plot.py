#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Draws time over L, a line for each contestant, from the JSON of heed_bench and python_rows.py.

    plot.py JSON... --out FILE.png    nothing is drawn where the reports have no such rows
"""

import argparse
import math
import re

import matplotlib
from report import microseconds_of, read
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

# Title, and the rows: the group in their pattern is L.
PANELS = (
    ("attend, causal, 8 heads of 64", r"length/causal/1x8x(\d+)x64"),
    ("attend, causal, window of 256", r"length/window256/1x8x(\d+)x64"),
    ("MultiHeadAttention, 8 heads of 64", r"MultiHeadAttention/inference/L(\d+)_E512"),
    ("GroupQueryAttention, 8 heads over 2", r"GroupQueryAttention/inference/L(\d+)_E512"),
)
STYLES = {
    "heed": {"color": "#c2185b", "linewidth": 2.6, "zorder": 3},
    "textbook": {"color": "#6b7280"},
    "SDPA": {"color": "#1d4ed8"},
    "Python SDPA": {"color": "#0891b2", "linestyle": "--"},
    "linear+SDPA": {"color": "#1d4ed8"},
    "nn::MultiheadAttention": {"color": "#15803d"},
    "Python nn.MultiheadAttention": {"color": "#b45309", "linestyle": "--"},
}
LABEL_GAP = 0.062  # of a panel's height


def series(rows, pattern):
    """Returns {contestant: [(L, seconds)]}, by L."""
    lines = {}
    for row, results in rows.items():
        if not (match := re.fullmatch(pattern, row)):
            continue
        for contestant, result in results.items():
            # Parts of a module have no line.
            if contestant in STYLES and "error_message" not in result:
                point = (int(match[1]), microseconds_of(result) * 1e-6)
                lines.setdefault(contestant, []).append(point)
    return {contestant: sorted(points) for contestant, points in lines.items()}


def spread(heights):
    """Moves heights apart until all gaps are wide enough for a label."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    heights = list(heights)
    for _ in range(200):
        for below, above in zip(order, order[1:]):
            lack = LABEL_GAP - (heights[above] - heights[below])
            if lack > 0:
                heights[below] -= lack / 2
                heights[above] += lack / 2
    return heights


def label(axes, lines):
    """Writes each line's name beside its last point."""
    low, high = (math.log10(limit) for limit in axes.get_ylim())
    ends = [(math.log10(points[-1][1]) - low) / (high - low) for points in lines.values()]
    for contestant, height in zip(lines, spread(ends)):
        axes.text(1.02, height, contestant, transform=axes.transAxes, va="center",
                  color=STYLES[contestant]["color"],
                  weight="bold" if contestant == "heed" else "normal")


def draw(axes, title, length, lines):
    """Lines over what `length` names; the y axis is the caller's."""
    for contestant, points in lines.items():
        axes.plot(*zip(*points), marker="o", markersize=3, **STYLES[contestant])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.margins(y=0.1)
    axes.set_title(title, loc="left", weight="bold")
    axes.set_xlabel(length, labelpad=0)
    axes.xaxis.set_major_locator(LogLocator(base=4))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.grid(which="major", color="#e5e7eb", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("json", nargs="+", help="what heed_bench and python_rows.py wrote")
    parser.add_argument("--out", required=True, help="the PNG file to write")
    arguments = parser.parse_args()
    _, rows = read(arguments.json)
    panels = [(title, lines) for title, pattern in PANELS if (lines := series(rows, pattern))]
    if not panels:
        print("The reports have no rows over L: nothing is drawn.")
        return
    matplotlib.rcParams.update({"font.size": 9, "axes.titlesize": 10})
    height = math.ceil(len(panels) / 2)
    figure = Figure(figsize=(10.5, 3.4 * height), layout="constrained")
    grid = figure.subplots(height, 2, squeeze=False, sharey="row")
    for axes in grid.flat[len(panels):]:
        axes.set_visible(False)
    for axes, (title, lines) in zip(grid.flat, panels):
        draw(axes, title, "L", lines)
        axes.yaxis.set_major_formatter(EngFormatter(unit="s"))
    for axes, (_, lines) in zip(grid.flat, panels):  # with the limits that a row of panels shares
        label(axes, lines)
    figure.savefig(arguments.out, dpi=160, facecolor="white")
    print(f"The plot: {arguments.out}")


if __name__ == "__main__":
    main()
