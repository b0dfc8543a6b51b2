#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Times PyTorch's own attentions on the rows of a report that heed_bench --device made.

    gpu_peers.py REPORT --out FILE [--device cpu] [--seconds S]

Rows that `flex_attention` (compiled) or `varlen_attn` can do have them as further contestants in
FILE, which is of REPORT's form. On a GPU their times are those between CUDA's events. They run
after heed and in a process of their own, so what changes the machine's speed in between is in the
ratio. On the CPU flex_attention is not compiled: this only shows that the calls are right.
"""

import argparse
import json
import math
import re
import statistics
import time
from functools import partial
from pathlib import Path

import torch
from report import microseconds_of, read

try:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
except ImportError:  # before PyTorch 2.5
    flex_attention = None
try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # before PyTorch 2.10
    varlen_attn = None

DTYPES = {"BFloat16": torch.bfloat16, "Half": torch.float16, "Float": torch.float32}
MIN_SAMPLE_SECONDS, MIN_SAMPLES, MAX_SAMPLES = 1e-3, 9, 200


class Row:
    """A row's name, read again: see device_row and DeviceShape::name in device_inputs.cpp."""

    def __init__(self, name, device):
        _, self.kind, dtype, mode, sizes = name.split("/")
        self.dtype, self.training, self.device = DTYPES[dtype], mode == "training", device
        self.sizes = {key: int(size) for key, size in re.findall(r"([A-Za-z]+)(\d+)", sizes)}

    def __getattr__(self, name):  # B, H, G, L, S, D, Dv
        return self.sizes[name]

    def randn(self, *shape):
        return torch.randn(shape, dtype=self.dtype, device=self.device)

    def heads(self):
        """query, key and value."""
        shapes = ((self.B, self.H, self.L, self.D), (self.B, self.G, self.S, self.D),
                  (self.B, self.G, self.S, self.Dv))
        return [self.randn(*shape).requires_grad_(self.training) for shape in shapes]


def causal(row):
    return lambda b, h, q, k: k <= q + row.S - row.L


def window(row):
    size = row.S // 32  # as device_bench.cpp has it
    return lambda b, h, q, k: (k <= q) & (k > q - size)


def documents(row):
    length = row.L // 16
    return lambda b, h, q, k: (k <= q) & (q // length == k // length)


def dense_mask(row):
    mask = torch.rand(row.L, row.S, device=row.device) < 0.75
    return lambda b, h, q, k: mask[q, k]


def bias(row):
    values = row.randn(row.H, row.L, row.S)
    return lambda score, b, h, q, k: score + values[h, q, k]


def alibi(row):
    slopes = torch.exp2(-8.0 * torch.arange(1, row.H + 1, device=row.device) / row.H)
    return lambda score, b, h, q, k: score - slopes[h] * (q - k)


def softcap(row):
    return lambda score, b, h, q, k: torch.tanh(score / 30.0) * 30.0


MASKS = {"causal": causal, "causal_longer_keys": causal, "window": window, "grouped": causal,
         "documents": documents, "mask": dense_mask, "value_dim": causal, "alibi": causal,
         "softcap": causal}
SCORES = {"bias": bias, "alibi": alibi, "softcap": softcap}
PLAIN = {"plain", "decoding"}


def compiled():
    """For one row: the compiler gives up on a function that it compiled for too many calls."""
    torch.compiler.reset()
    return torch.compile(flex_attention, dynamic=False)


def flex_call(row):
    """What `flex_attention` does of a row; None where it cannot."""
    if not flex_attention or row.kind not in PLAIN | MASKS.keys() | SCORES.keys():
        return None
    if row.device == "cpu" and row.training:
        return None
    query, key, value = row.heads()
    mask = None
    if row.kind in MASKS:
        mask = create_block_mask(MASKS[row.kind](row), None, None, row.L, row.S, device=row.device)
    score = SCORES[row.kind](row) if row.kind in SCORES else None
    attention = flex_attention if row.device == "cpu" else compiled()
    call = partial(attention, query, key, value, score_mod=score, block_mask=mask,
                   enable_gqa=row.H != row.G)
    return with_gradients(row, call, (query, key, value))


def lengths(row):
    """Of the sequences of a packed row: see sequence_lengths in device_sequences_bench.cpp."""
    if row.kind == "packed_equal":
        return [row.L] * row.B
    if row.kind == "documents":
        return [row.L // 16] * 16
    if row.kind == "window":
        return [row.L]
    return [row.L * n // row.B for n in range(1, row.B + 1)]


def varlen_call(row):
    """What `varlen_attn` does of a row, on a GPU alone."""
    kinds = ("packed", "packed_causal", "packed_equal", "documents", "window")
    if not varlen_attn or row.kind not in kinds or row.device == "cpu":
        return None
    if row.dtype == torch.float32:
        return None
    counts = lengths(row)
    offsets = torch.tensor([0, *counts], device=row.device).cumsum(0, dtype=torch.int32)
    shapes = ((sum(counts), heads, row.D) for heads in (row.H, row.G, row.G))
    query, key, value = (row.randn(*shape).requires_grad_(row.training) for shape in shapes)
    seen = {"packed": (-1, -1), "window": (row.S // 32 - 1, 0)}.get(row.kind, (-1, 0))
    call = partial(varlen_attn, query, key, value, offsets, offsets, max(counts), max(counts),
                   window_size=seen)
    return with_gradients(row, call, (query, key, value))


def with_gradients(row, call, inputs):
    if not row.training:
        return call
    output_gradient = torch.randn_like(call())
    return lambda: torch.autograd.grad(call(), inputs, output_gradient)


def time_batch(call, count, device):
    """Seconds a call."""
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - start) / count
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / count


def measure_time(call, budget, device):
    for _ in range(3):  # compiles, too
        call()
    once = time_batch(call, 1, device)
    count = math.ceil(MIN_SAMPLE_SECONDS / once)
    samples = min(max(int(budget / (count * once)), MIN_SAMPLES), MAX_SAMPLES)
    return statistics.median(time_batch(call, count, device) for _ in range(samples))


def measure_device(call):
    """Bytes and kernels of a call on the GPU."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    peak = torch.cuda.max_memory_allocated() - before
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        call()
        torch.cuda.synchronize()
    kernels = sum(event.device_type == torch.autograd.DeviceType.CUDA
                  for event in profile.events())
    return {"peak_bytes": peak, "kernels": kernels}


def measure(name, call, ours, budget, device):
    seconds = measure_time(call, budget, device)
    return {
        "name": name,
        "real_time": seconds * 1e6,
        "time_unit": "us",
        "ratio": seconds * 1e6 / microseconds_of(ours),
        **(measure_device(call) if device != "cpu" else {}),
    }


def peers(name, contestants, budget, device):
    """Yields the results of PyTorch's attentions on one row; a refusal in the words of heed_bench.
    """
    row = Row(name, device)
    for peer, make in (("flex_attention", flex_call), ("varlen_attn", varlen_call)):
        try:
            with torch.set_grad_enabled(row.training):
                call = make(row)
                if call:
                    yield measure(f"{name}/{peer}", call, contestants["heed"], budget, device)
        except Exception as error:  # of the compiler, the driver and memory, of any class
            reason = str(error).partition("\n")[0]
            yield {"name": f"{name}/{peer}", "error_occurred": True,
                   "error_message": f"refused: {reason}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", help="what heed_bench --benchmark_out wrote, for its rows")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each row")
    parser.add_argument("--out", required=True, help="the JSON file to write")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    _, rows = read([arguments.report])
    results = []
    for name, contestants in rows.items():
        if "error_message" in contestants.get("heed", {"error_message": ""}):
            continue
        for result in peers(name, contestants, arguments.seconds, arguments.device):
            results.append(result)
            words = result.get("error_message") or f"{result['real_time']:.1f} us"
            print(f"{result['name']:90} {words}", flush=True)
    report = {"context": {"pytorch": torch.__version__}, "benchmarks": results}
    Path(arguments.out).write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
