#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Times eager PyTorch and other engines on the rows of a report, in turns with heed_bench.

    python_rows.py PROGRAM REPORT --out FILE    PROGRAM: heed_bench; REPORT: what it wrote

Rows of `attend` have F.scaled_dot_product_attention beside them, those of modules in inference
nn.MultiheadAttention, those of masks compiled FlexAttention. Engines that are installed (engines.py)
stand beside `attend` without a mask and beside decoding. What FILE holds is of REPORT's form, more
contestants for such rows.
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
from engines import ENGINES, INT8_SCALE, Refused, widened
from report import read
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

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


def mask_rule(kind: str, length: int):
    """The rule of documents/<kind>, masks/<kind>, rules/<kind> and windows of reach/<kind>, as
    masks_bench.cpp and reach_bench.cpp make the mask: which query sees which key."""
    if kind.startswith(("mask", "ids")):
        size = length // 16
        causal = kind.endswith("_causal")
        return lambda b, h, i, j: (i // size == j // size) & ((j <= i) | (not causal))
    if match := re.fullmatch(r"blocks(\d+)", kind):
        size = int(match[1])
        seen = block_sparse(length // size)
        return lambda b, h, i, j: seen[i // size, j // size]
    return {
        "all_seen": lambda b, h, i, j: j >= 0,
        "strided128": lambda b, h, i, j: (j <= i) & ((i - j < 128) | ((i - j) % 128 == 0)),
        "prefix512": lambda b, h, i, j: (j <= i) | (j < 512),
        "dilated256": lambda b, h, i, j: ((i - j).abs() <= 256) & ((i - j) % 2 == 0),
        "left256_right128": lambda b, h, i, j: (i - j <= 256) & (j - i <= 128),
        "window512_global16": lambda b, h, i, j: ((i - j).abs() <= 256) | (i % 512 == 0) | (j % 512 == 0),
    }[kind]


def block_sparse(blocks: int) -> torch.Tensor:
    """As many blocks as in masks_bench.cpp, others at random."""
    seen = torch.zeros(blocks, blocks, dtype=torch.bool)
    for i in range(blocks):
        seen[i, [0, *range(max(0, i - 1), min(i + 2, blocks))]] = True
        others = torch.randperm(blocks)
        others = others[~seen[i, others]]
        seen[i, others[:blocks // 4 - int(seen[i].sum())]] = True
    return seen


def flex(rule, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor):
    """Compiled for this row alone."""
    torch._dynamo.reset()
    mask = create_block_mask(rule, None, None, query.shape[2], key.shape[2], device="cpu")
    attention = torch.compile(flex_attention, dynamic=False)
    return lambda: attention(query, key, value, block_mask=mask)


def flex_peer(row: str):
    """Compiling takes long: only some rows of `attend`."""
    kinds = "documents|masks|rules|reach(?=/left|/window)"
    if match := re.fullmatch(rf"(?:{kinds})/(\w+)/(\d+)x(\d+)x(\d+)x\d+x(\d+)", row):
        rule = mask_rule(match[1], int(match[4]))
    elif match := re.fullmatch(r"attend/(plain|causal)/(\d+)x(\d+)x(1024|2048)x(\d+)", row):
        rule = mask_rule("all_seen", 0) if match[1] == "plain" else lambda b, h, i, j: j <= i
    else:
        return
    shape = [int(size) for size in match.groups()[1:]]
    yield "FlexAttention", 0.0, lambda: flex(rule, *torch.randn(3, *shape))


def engine_inputs(row: str):
    """Query, key and value of a row that engines compute, and causal; else None."""
    if match := re.fullmatch(r"attend/(plain|causal|gqa|bf16)/(\d+)x(\d+)x(\d+)x(\d+)", row):
        batch, heads, length, dim = (int(size) for size in match.groups()[1:])
        groups, keys = heads // 4 if match[1] == "gqa" else heads, length
        dtype = torch.bfloat16 if match[1] == "bf16" else torch.float32
    elif match := re.fullmatch(r"decode/(\w+)/B(\d+)_H(\d+)_G(\d+)_L(1)_S(\d+)_D(\d+)", row):
        batch, heads, groups, length, keys, dim = (int(size) for size in match.groups()[1:])
        dtype = {"BFloat16": torch.bfloat16, "Half": torch.half}.get(match[1], torch.float32)
    else:
        return None
    if keys < 128:  # most of such a call is the engine's, not the kernel's
        return None
    query = torch.randn(batch, heads, length, dim, dtype=dtype)
    key, value = torch.randn(2, batch, groups, keys, dim, dtype=dtype)
    if match[1] == "int8":
        key, value = ((heads / INT8_SCALE).round().clamp(-127, 127).to(torch.int8)
                      for heads in (key, value))
    return query, key, value, match[1] == "causal" or length == 1


def prepare(engine, query, key, value, causal: bool):
    """The call to time, whose result was compared with PyTorch's."""
    call, result = engine(query, key, value, causal)
    call()
    expected = F.scaled_dot_product_attention(query, widened(key), widened(value), enable_gqa=True,
                                              is_causal=causal and query.shape[2] > 1).float()
    error = (result().float() - expected).abs().max() / expected.abs().max()
    allowed = 1e-4 if query.dtype == torch.float32 else 5e-2
    if not error <= allowed:
        raise RuntimeError(f"{engine.__name__} differs from PyTorch by {error:.1e} of the largest")
    return call


def peers_of(row: str, engines: dict):
    """(name, target, function that makes the call) for each peer that the row has here."""
    if match := re.fullmatch(r"(?:attend|length)/(\w+)/(\d+)x(\d+)x(\d+)x(\d+)", row):
        shape = [int(size) for size in match.groups()[1:]]
        yield "Python SDPA", 0.0, lambda: sdpa(match[1], shape)
    if match := re.fullmatch(r"(\w+)/(inference|masked)/L(\d+)_E(\d+)", row):
        yield "Python nn.MultiheadAttention", 0.0, lambda: multi_head(
            match[1], match[2] == "masked", int(match[3]), int(match[4]))
    yield from flex_peer(row)
    if inputs := engine_inputs(row):
        for name, (engine, target) in engines.items():
            yield name, target, lambda engine=engine: prepare(engine, *inputs)


def installed_engines() -> dict:
    """ENGINES without those that cannot be had, each of which a line names."""
    inputs = [torch.randn(1, 1, 32, 32) for _ in range(3)]
    found = {}
    for name, (engine, target) in ENGINES.items():
        try:
            prepare(engine, *inputs, causal=False)
            found[name] = engine, target
        except (ImportError, OSError, RuntimeError) as error:
            print(f"{name} is not measured: {str(error).splitlines()[0]}")
    return found


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


def compare(heed: Heed, row: str, name: str, target: float, call, budget: float) -> dict:
    """Returns the peer's result, in the words of heed_bench."""
    turns = take_turns(lambda *work: heed.turn(row, *work), lambda *work: turn(call, *work), budget)
    generator = random.Random(0)
    resampled = sorted(ratio(generator.choices(turns, k=len(turns))) for _ in range(1000))
    result = {
        "name": f"{row}/{name}",
        "real_time": statistics.median(theirs for _, theirs in turns) * 1e6,
        "time_unit": "us",
        "rounds": len(turns),
        "ratio": ratio(turns),
        "ratio_low": resampled[25],
        "ratio_high": resampled[974],
    }
    return result | {"target": target} if target else result


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
    engines = installed_engines()
    with torch.inference_mode():
        for row, contestants in rows.items():
            if any("error_message" in result for result in contestants.values()):
                continue
            for name, target, make in peers_of(row, engines):
                try:
                    call = make()
                    call()
                except Refused:
                    continue
                except Exception as error:  # also that of a compiler which is missing
                    print(f"{row}/{name} is not measured: {str(error).splitlines()[:1]}")
                    continue
                result = compare(heed, row, name, target, call, arguments.seconds)
                results.append(result)
                print(f"{result['name']:70} {result['real_time']:12.1f} us  {result['ratio']:.2f}")
    heed.stop()
    report = {"context": {"pytorch": torch.__version__}, "benchmarks": results}
    Path(arguments.out).write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
