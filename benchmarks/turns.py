# SPDX-License-Identifier: BSD-3-Clause
"""Programs that train or run a language model of the same sizes, timed in turns.

Each is a process of its own: PROGRAM THREADS DTYPE VOCABULARY LAYERS WIDTH HEADS GROUPS HIDDEN CONTEXT BATCH,
or without the sizes where files have them. It answers each line of its standard input with a number, such as
"train" with tokens a second.
"""

import importlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class Sizes:
    """As in support/language_model.h; the defaults are those of language_model.py's narrow model."""

    vocabulary: int = 256
    layers: int = 4
    width: int = 128
    heads: int = 4
    groups: int = 2
    hidden: int = 344
    context: int = 128
    batch: int = 8

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def training_flop_per_token(self) -> int:
        """Those of the layers' and the head's products and of causal attention. The backward pass has twice as
        many as the forward pass."""
        projections = 2 * self.width * (self.width + self.groups * self.head_dim)
        # Scores and outputs, with the (L + 1) / 2 keys that a query sees on average.
        attention = self.width * (self.context + 1)
        layer = projections + attention + 3 * self.width * self.hidden
        return 3 * 2 * (self.layers * layer + self.vocabulary * self.width)


class Failed(Exception):
    """A program ended instead of answering."""


class Program:
    def __init__(self, command: list[str], threads: int, dtype: str, sizes: Sizes | None = None) -> None:
        self.errors = tempfile.TemporaryFile()
        numbers = map(str, astuple(sizes)) if sizes else ()
        self.process = subprocess.Popen([*command, str(threads), dtype, *numbers],
                                        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors)

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_) -> None:
        """Ends the process, also in the middle of a step."""
        self.process.kill()
        self.process.communicate()
        self.errors.close()

    def ask(self, work: str) -> float:
        try:
            self.process.stdin.write(f"{work}\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise Failed(self.reason())
        return float(answer)

    def reason(self) -> str:
        """Why the process ended: the last line of its errors."""
        status = self.process.wait()
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), f"it ended with {status}")

    def peak_bytes(self) -> int:
        """The most memory that the process has had so far."""
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def answer_lines(module: str, load: Callable[[], Callable[..., float]]) -> None:
    """A program of Python: answers "start" with the seconds that loading takes, without the import of `module`, and
    each other line, a work and numbers, as the loaded engine does."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # engines print
    importlib.import_module(module)
    start = time.perf_counter()
    answer = load()
    start_seconds = time.perf_counter() - start
    for line in sys.stdin:
        work, *numbers = line.split()
        value = start_seconds if work == "start" else answer(work, *map(int, numbers))
        print(value, file=answers, flush=True)


def throughput(step: Callable[[], int]) -> float:
    """Tokens a second of `step`, which returns their number, over about half a second."""
    start, count, seconds = time.perf_counter(), 0, 0.0
    while seconds < 0.5:
        count += step()
        seconds = time.perf_counter() - start
    return count / seconds


def beside(ours: list[float], theirs: list[float]) -> str:
    """A peer's cells: the median of its turns, and that of the turns' ratios."""
    ratio = statistics.median(a / b for a, b in zip(ours, theirs))
    return f"| {statistics.median(theirs):,.0f} | {ratio:.2f} "
