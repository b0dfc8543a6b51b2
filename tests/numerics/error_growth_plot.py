#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Draws how errors grow with the length, from what error_growth prints.

    error_growth_plot.py CSV --out FILE.png
"""

import argparse
import csv
import sys
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
from plot import draw, label  # noqa: E402  the benchmarks' lines and labels

# Title, dtype, quantity and what the length is of.
PANELS = (
    ("float32, output", "Float", "output", "S, for 16 queries"),
    ("float32, gradients", "Float", "gradients", "L = S"),
    ("bfloat16, output", "BFloat16", "output", "S, for 16 queries"),
    ("bfloat16, gradients", "BFloat16", "gradients", "L = S"),
)


def read(path):
    """Returns {(dtype, quantity): {contestant: [(length, roundoffs)]}}."""
    panels = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            lines = panels.setdefault((row["dtype"], row["quantity"]), {})
            point = (int(row["length"]), float(row["roundoffs"]))
            lines.setdefault(row["contestant"], []).append(point)
    return panels


def show_roundoffs(axes):
    axes.set_ylabel("roundoffs")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv", help="what error_growth printed")
    parser.add_argument("--out", required=True, help="the PNG file to write")
    arguments = parser.parse_args()
    panels = read(arguments.csv)
    matplotlib.rcParams.update({"font.size": 9, "axes.titlesize": 10})
    figure = Figure(figsize=(10.5, 6.8), layout="constrained")
    grid = figure.subplots(2, 2, sharey="row")
    for axes, (title, dtype, quantity, name) in zip(grid.flat, PANELS):
        draw(axes, title, name, panels[dtype, quantity])
        show_roundoffs(axes)
    for axes, (_, dtype, quantity, _) in zip(grid.flat, PANELS):  # with the limits that rows share
        label(axes, panels[dtype, quantity])
    figure.savefig(arguments.out, dpi=160, facecolor="white")
    print(f"The plot: {arguments.out}")


if __name__ == "__main__":
    main()
