#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Says what many processes would do, by formulas with the constants that were measured.

    scale_model.py REPORT      REPORT: distributed.json, as distributed_rounds.py writes it

Each process computes on one core and has a link of its own. A collective of P processes is a ring, as
Gloo's: an all-reduce of n bytes takes 2 (P - 1) / P * n / bandwidth + 2 (P - 1) * latency.
"""

import argparse
import json
import statistics
from dataclasses import dataclass, replace
from pathlib import Path

FLOAT = 4  # bytes
BUCKETS = (1 << 20, 25 << 20)  # DataParallel's: the first, and the others
PROCESSES = (8, 64, 512)
MOST = 4096  # processes, where the search for the end of a scheme's use stops


@dataclass
class Constants:
    """Of one process of one thread, and of a link."""

    flops: float  # of products in training
    attention_flops: float
    optimizer: float  # seconds for each parameter
    bandwidth: float  # bytes a second, each way
    latency: float  # seconds of a message


@dataclass
class Workload:
    name: str
    layers: int
    width: int
    heads: int
    groups_width: int  # of all key/value heads
    hidden: int
    vocabulary: int
    length: int
    batch: int

    @property
    def tokens(self):
        return self.batch * self.length

    @property
    def weights(self):
        attention = 2 * self.width * (self.width + self.groups_width)
        return (self.layers * (attention + 3 * self.width * self.hidden)
                + self.vocabulary * self.width)

    def attention_flops(self):
        """Of a step: causal, 2 products forward and 5 backward for each layer."""
        return 7 * self.layers * self.batch * self.length**2 * self.width

    def product_flops(self):
        return 6 * self.weights * self.tokens


GPT = Workload("`train_gpt`, 16 × 128 tokens", layers=4, width=192, heads=6, groups_width=96, hidden=512,
               vocabulary=256, length=128, batch=16)
MIDDLE = Workload("354 M parameters, 512 × 1024 tokens", layers=24, width=1024, heads=16,
                  groups_width=1024, hidden=2736, vocabulary=50304, length=1024, batch=512)
LONG = replace(MIDDLE, name="the same, 1 × 131072 tokens", length=131072, batch=1)


def all_reduce(count, processes, constants):
    if processes == 1:
        return 0.0
    share = 2 * (processes - 1) / processes
    return share * count / constants.bandwidth + 2 * (processes - 1) * constants.latency


def gradients(work, processes, backward, constants):
    """Seconds of the gradients' all-reduce that the backward pass does not hide: buckets go out as
    they are filled, the last one after its end."""
    size = FLOAT * work.weights
    buckets = 1 + max(0, -(-(size - BUCKETS[0]) // BUCKETS[1]))
    whole = sum(all_reduce(size / buckets, processes, constants) for _ in range(buckets))
    last = whole / buckets
    return max(whole - backward * (1 - 1 / buckets), last)


def computation(work, constants):
    return (work.product_flops() / constants.flops
            + work.attention_flops() / constants.attention_flops)


def update(work, constants):
    return work.weights * constants.optimizer


def data(work, processes, constants):
    """Seconds of a step, or None if the scheme cannot split the work so far."""
    if processes > work.batch:
        return None
    own = computation(work, constants) / processes
    return own + gradients(work, processes, 2 / 3 * own, constants) + update(work, constants)


def tensor(work, processes, constants):
    if work.heads % processes:
        return None
    activations = FLOAT * work.tokens * work.width
    exchange = (4 * work.layers + 2) * all_reduce(activations, processes, constants)
    return (computation(work, constants) + update(work, constants)) / processes + exchange


def context(work, processes, constants):
    if processes > work.length // 2:
        return None
    products = work.product_flops() / constants.flops / processes
    attention = work.attention_flops() / constants.attention_flops / processes / work.layers
    # Of the causal keys and values, 3/4 of the chunks travel.
    share = 3 / 4 * FLOAT * 2 * work.groups_width * work.tokens / processes
    transfer = share / constants.bandwidth + constants.latency
    forward, backward = 2 / 7 * attention / processes, 5 / 7 * attention / processes
    layer = forward + backward + (processes - 1) * (
        max(forward, transfer) + max(backward, 2 * transfer))
    own = products + work.layers * layer
    return own + gradients(work, processes, 2 / 3 * own, constants) + update(work, constants)


SCHEMES = {
    "data": (data, GPT), "tensor": (tensor, GPT), "context": (context, GPT),
    "data ": (data, MIDDLE), "tensor ": (tensor, MIDDLE), "context ": (context, LONG),
}


def median_of(results, name, key):
    return statistics.median(processes[0][key] for processes in results[name])


def link(results, name):
    return (median_of(results, name, "bytes_per_second"),
            median_of(results, name, "small_all_reduce_seconds") / 2)


def constants_of(report, link_name):
    """The constants of a measurement, with one of the links that were measured. Speeds are those of
    processor time, because others may use the machine too."""
    results, length = report["results"], report["context"]["length"]
    heads_width, processes = 8 * 64, 2  # of the ring's calls
    computing = statistics.median(statistics.mean(process["computing_seconds"] for process in found)
                                  for found in results["ring/training 2 x 1"])
    attention = 7 * length**2 * heads_width / processes / computing
    optimizer = (median_of(results, "train/heed 1 x 1", "optimizer_seconds")
                 / median_of(results, "train/heed 1 x 1", "parameters"))
    step = median_of(results, "train/heed 1 x 1", "processor_seconds")
    products = step - GPT.attention_flops() / attention - GPT.weights * optimizer
    bandwidth, latency = link(results, link_name)
    return Constants(GPT.product_flops() / products, attention, optimizer, bandwidth, latency)


def seconds(value):
    if value is None:
        return "–"
    for unit, factor in (("h", 1 / 3600), ("min", 1 / 60), ("s", 1), ("ms", 1e3)):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def powers():
    count = 1
    while count <= MOST:
        yield count
        count *= 2


def efficiency(scheme, work, processes, constants):
    time = scheme(work, processes, constants)
    return 0.0 if time is None else scheme(work, 1, constants) / (processes * time)


def row(name, scheme, work, constants):
    cells = [name.strip(), work.name, seconds(scheme(work, 1, constants))]
    for processes in PROCESSES:
        time = scheme(work, processes, constants)
        share = efficiency(scheme, work, processes, constants)
        cells.append("–" if time is None else f"{seconds(time)} ({share:.0%})")
    pays = max(p for p in powers() if efficiency(scheme, work, p, constants) >= 0.5)
    times = {p: scheme(work, p, constants) for p in powers()}
    fastest = min((p for p in times if times[p] is not None), key=times.get)
    return f"| {' | '.join(cells)} | {pays} | {fastest} |"


def table(constants):
    lines = [
        "| scheme | work | 1 process | " + " | ".join(f"{p}" for p in PROCESSES)
        + " | half efficient up to | fastest with |",
        "|---|---|--:|" + "--:|" * (len(PROCESSES) + 2),
    ]
    return lines + [row(name, scheme, work, constants)
                    for name, (scheme, work) in SCHEMES.items()]


def check(report, link_name):
    """Lines that compare the formulas with what was measured: two processes."""
    constants = constants_of(report, link_name)
    prefix = link_name.removesuffix("link")
    names = ({"data": "train/heed data 2 x 1", "tensor": "train/heed tensor 2 x 1",
              "context": "train/heed context 2 x 1"} if not prefix else
             {name: f"{prefix}train/{name}" for name in ("data", "tensor", "context")})
    lines = []
    for name, measured_name in names.items():
        if measured_name not in report["results"]:
            continue
        speed = max(processes[0]["tokens_per_second"]
                    for processes in report["results"][measured_name])
        predicted = SCHEMES[name][0](GPT, 2, constants)
        lines.append(f"| {name} | {prefix.strip('/') or 'loopback'} | {seconds(GPT.tokens / speed)} "
                     f"| {seconds(predicted)} |")
    return lines


def markdown(report):
    results = report["results"]
    measured = [name for name in ("link", "fast/link", "1gbit/link") if name in results]
    slow = measured[-1]
    constants = constants_of(report, slow)
    lines = [
        "Constants: "
        f"{constants.flops / 1e9:.3g} GFLOP/s in products and "
        f"{constants.attention_flops / 1e9:.3g} GFLOP/s in attention for each process, "
        f"{constants.optimizer * 1e9:.2g} ns a parameter in AdamW, "
        f"{constants.bandwidth / 1e6:.3g} MB/s and {constants.latency * 1e6:.3g} µs a message on the "
        "slowed link.",
        "",
        "| two processes | link | measured step, the fastest | formula |",
        "|---|---|--:|--:|",
        *[line for name in measured for line in check(report, name)],
        "",
        "On that link:",
        "",
        *table(constants),
        "",
        "With a link of 25 Gbit/s and the same latency:",
        "",
        *table(replace(constants, bandwidth=25e9 / 8)),
    ]
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("report", type=Path)
    print("\n".join(markdown(json.loads(parser.parse_args().report.read_text()))))


if __name__ == "__main__":
    main()
