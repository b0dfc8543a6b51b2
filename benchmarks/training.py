#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Time training steps of language models in heed, transformers and JAX, in turns.

    training.py PROGRAM [--filter REGEX] [--doc FILE]      PROGRAM: heed_language_model, as it was built

Prints a table of tokens a second, medians of the turns, and the medians of the turns' ratios; with --doc,
also puts it between the markers in that file, in place of this processor's table. Each row has a process of
heed's, whose peak is that of one model, and one of each peer.
"""

import argparse
import re
import statistics
import sys
from collections import Counter
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path

import torch
from processor import processor
from report import publish
from turns import Failed, Program, Sizes, beside

PEERS = {"transformers": ("float32", "bfloat16"), "compiled": ("float32", "bfloat16"), "JAX": ("float32",)}
PEER_PROGRAM = [sys.executable, str(Path(__file__).resolve().parent / "training_peers.py")]
SMOLLM = {"vocabulary": 49152, "width": 576, "heads": 9, "groups": 3, "hidden": 1536, "context": 512, "batch": 4}
ROWS = [(Sizes(**sizes), dtype) for sizes, dtypes in (
    ({**SMOLLM, "layers": 12}, ("float32", "bfloat16")),
    ({**SMOLLM, "layers": 30}, ("float32", "bfloat16")),  # SmolLM-135M
    ({**SMOLLM, "layers": 12, "vocabulary": 1024}, ("float32", "bfloat16")),
    ({"vocabulary": 96, "layers": 6, "width": 384, "heads": 6, "groups": 6, "hidden": 1024, "context": 256,
      "batch": 12}, ("float32",)),
    ({"vocabulary": 96, "layers": 4, "width": 128, "heads": 4, "groups": 4, "hidden": 344, "context": 64,
      "batch": 64}, ("float32",)),
    ({"vocabulary": 96, "layers": 2, "width": 64, "heads": 4, "groups": 4, "hidden": 176, "context": 32,
      "batch": 16}, ("float32",)),
) for dtype in dtypes]


def name_of(sizes: Sizes, dtype: str) -> str:
    return f"training/{sizes.layers}x{sizes.width}/V{sizes.vocabulary}/{sizes.batch}x{sizes.context}/{dtype}"


class Table:
    """Prints its lines as they are measured."""

    def __init__(self, heed: str, peers: list[str], threads: int, turns: int) -> None:
        self.heed, self.peers, self.threads, self.turns = heed, peers, threads, turns
        self.lines: list[str] = []
        self.asked = Counter()  # peer: number of rows
        self.left_out: dict[tuple[str, str], list[str]] = {}  # (peer, reason): rows

    def add(self, line: str) -> None:
        self.lines.append(line)
        print(line, flush=True)

    def add_head(self) -> None:
        versions = [f"PyTorch {torch.__version__}"]
        for package in ("transformers", "jax"):
            try:
                versions.append(f"{package} {metadata.version(package)}")
            except metadata.PackageNotFoundError:
                pass
        self.add(f"{processor()}, {self.threads} threads, {', '.join(versions)}; tokens a second. Parameters are "
                 "float32 in all rows; bfloat16 is autocast:")
        self.add("")
        self.add("| layers × width | vocabulary | batch × length | dtype | heed | of the product's rate | peak "
                 + "".join(f"| {peer} | ratio " for peer in self.peers) + "|")
        self.add("|--:|--:|--:|---|--:|--:|--:" + "|--:|--:" * len(self.peers) + "|")

    def add_row(self, sizes: Sizes, dtype: str) -> None:
        with ExitStack() as stack:
            def start(command: list[str]) -> Program:
                return stack.enter_context(Program(command, self.threads, dtype, sizes))

            heed = start([self.heed])
            peers = {peer: start([*PEER_PROGRAM, peer]) for peer in self.peers if dtype in PEERS[peer]}
            self.asked.update(list(peers))
            ours, shares, theirs = [], [], {peer: [] for peer in peers}
            for _ in range(1 + self.turns):  # the first warms up, and compiles
                ours.append(heed.ask("train"))
                shares.append(ours[-1] * sizes.training_flop_per_token / heed.ask("product"))
                for peer, program in list(peers.items()):
                    try:
                        theirs[peer].append(program.ask("train"))
                    except Failed as reason:
                        self.left_out.setdefault((peer, str(reason)), []).append(name_of(sizes, dtype))
                        del peers[peer]
            peak = heed.peak_bytes()
        self.add(f"| {sizes.layers} × {sizes.width} | {sizes.vocabulary:,} | {sizes.batch} × {sizes.context} | {dtype} "
                 f"| {statistics.median(ours[1:]):,.0f} | {statistics.median(shares[1:]):.0%} | {peak / 2**20:,.0f} MiB "
                 + "".join(beside(ours[1:], theirs[peer][1:]) if peer in peers else "| | " for peer in self.peers)
                 + "|")

    def add_left_out(self) -> None:
        for (peer, reason), rows in self.left_out.items():
            names = ", ".join(f"`{row}`" for row in rows) if len(rows) < self.asked[peer] else "all rows"
            self.add("")
            self.add(f"Without {peer} in {names}: `{reason}`")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="heed_language_model, as it was built")
    parser.add_argument("--filter", default=".", help="only the rows whose name matches, such as '/12x576/.*/float32'")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS), help="what heed is timed with")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--doc", help="a Markdown file with the markers, to update")
    arguments = parser.parse_args()
    rows = [row for row in ROWS if re.search(arguments.filter, name_of(*row))]
    if not rows:
        sys.exit(f"no row matches {arguments.filter}: {' '.join(name_of(*row) for row in ROWS)}")
    table = Table(arguments.program, arguments.peers, arguments.threads, arguments.turns)
    table.add_head()
    for row in rows:
        table.add_row(*row)
    table.add_left_out()
    if arguments.doc:
        publish("\n".join(table.lines) + "\n", arguments.doc, "training", processor())


if __name__ == "__main__":
    main()
