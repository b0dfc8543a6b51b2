#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Draws the losses of Python and of heed, and below them their difference.

    training_curve_plot.py PYTHON HEED --out FILE.png

PYTHON is what training_curve.py wrote, HEED what training_curve_test wrote.
"""

import argparse
import sys
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from safetensors.torch import load_file

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
from plot import STYLES  # noqa: E402  the benchmarks' lines

ALLOWED = 1e-4  # as in training_curve_test.cpp


def show(axes, title):
    axes.set_title(title, loc="left", weight="bold")
    axes.grid(which="major", color="#e5e7eb", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", help="what training_curve.py wrote")
    parser.add_argument("heed", help="what training_curve_test wrote")
    parser.add_argument("--out", required=True, help="the PNG file to write")
    arguments = parser.parse_args()
    python, heed = load_file(arguments.python), load_file(arguments.heed)["losses"]
    steps, rows, tokens = python["batches"].shape
    difference = (heed - python["losses"]).abs()
    print(f"{steps} steps of {rows} x {tokens - 1} tokens: the loss falls from {heed[0]:.3f} to "
          f"{heed[-20:].mean():.3f}, and the largest difference is {difference.max():.1e}")
    matplotlib.rcParams.update({"font.size": 9, "axes.titlesize": 10})
    figure = Figure(figsize=(7.5, 5.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    above.plot(heed, label="heed", **STYLES["heed"])
    above.plot(python["losses"], label="transformers", color="#1d4ed8", linestyle="--", zorder=4)
    above.set_ylim(bottom=0)
    above.legend(frameon=False)
    show(above, f"loss of a step, {rows} x {tokens - 1} tokens")
    # A logarithm has no place for the steps whose losses are equal to the last bit.
    below.plot(difference.masked_fill(difference == 0, float("nan")), ".", color="#c2185b", markersize=4)
    below.axhline(ALLOWED, color="#6b7280", linewidth=1)
    below.annotate("allowed in the test", (steps, ALLOWED), (0, 3), textcoords="offset points", ha="right",
                   color="#6b7280")
    below.set_yscale("log")
    below.set_ylim(top=6 * ALLOWED)
    below.set_xlabel("step", labelpad=0)
    show(below, "difference of the two losses")
    figure.savefig(arguments.out, dpi=160, facecolor="white")
    print(f"The plot: {arguments.out}")


if __name__ == "__main__":
    main()
