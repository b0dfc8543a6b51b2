#!/usr/bin/env python3
"""Times eager PyTorch on the rows of a report, in turns with heed_bench.

    python_rows.py PROGRAM REPORT --out FILE    PROGRAM: heed_bench; REPORT: what it wrote

Rows of `attend` have F.scaled_dot_product_attention beside them, those of modules in inference
nn.MultiheadAttention. What FILE holds is of REPORT's form, one more contestant for each such row.
"""

import argparse
import json
import math
import random
import re
import statistics
import subprocess
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from report import read
from torch import nn

HEADS = 8  # as in modules_bench.cpp
MIN_SAMPLE_SECONDS = 200e-6  # as in timing.cpp
MIN_TURN_SECONDS = 0.02
SETTLE_SECONDS = 0.01  # after which the threads of the last turn no longer spin
MIN_ROUNDS, MAX_ROUNDS = 9, 100


def sdpa(kind: str, shape: list[int]):
    """The peer of attend/<kind> and length/<kind>: see attend_bench.cpp and length_bench.cpp."""
    batch, heads, length, dim = shape
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    groups = heads // 4 if kind == "gqa" else heads
    query = torch.randn(batch, heads, length, dim, dtype=dtype)
    key, value = torch.randn(2, batch, groups, length, dim, dtype=dtype)
    mask = None
    if kind in ("mask_2d", "mask_4d"):
        leading = (batch, 1) if kind == "mask_4d" else ()
        mask = torch.rand(*leading, length, length) < 0.75
        mask[..., 0] = True
    elif kind == "bias":
        mask = torch.randn(1, heads, length, length)
    elif kind == "window256":
        mask = torch.ones(length, length, dtype=torch.bool).tril().triu(-255)
    return lambda: F.scaled_dot_product_attention(
        query, key, value, mask, is_causal=kind == "causal", enable_gqa=groups != heads)


def multi_head(module: str, masked: bool, length: int, width: int):
    """The peer of <module>/inference and <module>/masked, as modules_bench.cpp has it."""
    heads = 1 if module in ("Attention", "AttentionV1") else HEADS
    peer = nn.MultiheadAttention(width, heads, batch_first=True).eval()
    x = torch.randn(1, length, width)
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1) if masked else None
    return lambda: peer(x, x, x, need_weights=False, attn_mask=hidden)


def peer_of(row: str):
    """Returns (name, call), or None for a row that has no peer here."""
    if match := re.fullmatch(r"(?:attend|length)/(\w+)/(\d+)x(\d+)x(\d+)x(\d+)", row):
        return "Python SDPA", sdpa(match[1], [int(size) for size in match.groups()[1:]])
    if match := re.fullmatch(r"(\w+)/(inference|masked)/L(\d+)_E(\d+)", row):
        call = multi_head(match[1], match[2] == "masked", int(match[3]), int(match[4]))
        return "Python nn.MultiheadAttention", call
    return None


class Heed:
    """heed_bench, which waits for its turns."""

    def __init__(self, program: str) -> None:
        self.process = subprocess.Popen([program, "--turns"], text=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)

    def turn(self, row: str, samples: int, calls: int) -> float:
        time.sleep(SETTLE_SECONDS)
        self.process.stdin.write(f"{row} {samples} {calls}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def stop(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def time_batch(call, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def turn(call, samples: int, calls: int) -> float:
    """As heed_bench --turns does it: seconds a call, the median of the samples."""
    time.sleep(SETTLE_SECONDS)
    call()
    return statistics.median(time_batch(call, calls) for _ in range(samples))


def take_turns(first, second, budget: float) -> list[tuple[float, float]]:
    """Both are functions of (samples, calls in each); returns what they gave, turn by turn."""
    work, round_seconds = [], 0.0
    for side in (first, second):
        call_seconds = side(3, 1)
        calls = math.ceil(MIN_SAMPLE_SECONDS / call_seconds)
        samples = math.ceil(MIN_TURN_SECONDS / (calls * call_seconds))
        work.append((samples, calls))
        round_seconds += (samples * calls + 1) * call_seconds + SETTLE_SECONDS
    rounds = min(max(int(budget / round_seconds), MIN_ROUNDS), MAX_ROUNDS)
    return [(first(*work[0]), second(*work[1])) for _ in range(rounds)]


def ratio(turns: list[tuple[float, float]]) -> float:
    """The second's median over the first's."""
    ours, theirs = (statistics.median(side) for side in zip(*turns))
    return theirs / ours


def compare(heed: Heed, row: str, budget: float):
    """Returns the row's result, in the words of heed_bench; None where it has no peer here."""
    peer = peer_of(row)
    if not peer:
        return None
    name, call = peer
    turns = take_turns(lambda *work: heed.turn(row, *work), lambda *work: turn(call, *work), budget)
    generator = random.Random(0)
    resampled = sorted(ratio(generator.choices(turns, k=len(turns))) for _ in range(1000))
    return {
        "name": f"{row}/{name}",
        "real_time": statistics.median(theirs for _, theirs in turns) * 1e6,
        "time_unit": "us",
        "rounds": len(turns),
        "ratio": ratio(turns),
        "ratio_low": resampled[25],
        "ratio_high": resampled[974],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="heed_bench, as it was built")
    parser.add_argument("report", help="what heed_bench --benchmark_out wrote, for its rows")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each row")
    parser.add_argument("--out", required=True, help="the JSON file to write")
    arguments = parser.parse_args()
    context, rows = read([arguments.report])
    torch.set_num_threads(int(context["threads"]))
    torch.manual_seed(0)
    heed = Heed(arguments.program)
    results = []
    with torch.inference_mode():
        for row, contestants in rows.items():
            if any("error_message" in result for result in contestants.values()):
                continue
            if result := compare(heed, row, arguments.seconds):
                results.append(result)
                print(f"{result['name']:70} {result['real_time']:12.1f} us  {result['ratio']:.2f}")
    heed.stop()
    report = {"context": {"pytorch": torch.__version__}, "benchmarks": results}
    Path(arguments.out).write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
