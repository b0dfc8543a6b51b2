#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Turns what distributed_rounds.py wrote into Markdown tables.

    distributed_report.py REPORT [--doc FILE]

With --doc, the tables replace what stands between the markers in that file: "figures" for what was
measured, "scale" for what scale_model.py says.
"""

import argparse
import json
import statistics
from pathlib import Path

import scale_model
from report import publish

FLOAT = 4  # bytes
# (H, G, D), as in distributed_rounds.py.
SIZES = {"ring": (8, 8, 64), "grouped ring": (16, 4, 128), "ulysses": (8, 8, 64)}
MODEL = scale_model.GPT

# (row in words, measurement, the measurement that it is compared with, the ratio that is aimed at)
TRAINING = (
    ("`DataParallel`, 2 × 1 thread", "train/heed data 2 x 1", "train/Python DDP 2 x 1",
     "Python, `DistributedDataParallel`, 2 × 1 thread", 1.15),
    ("`DataParallel`, 2 × 1 thread", "train/heed data 2 x 1", "train/heed 1 x 2",
     "heed, 1 × 2 threads", 0.9),
    ("1 × 2 threads", "train/heed 1 x 2", "train/Python 1 x 2", "Python, 1 × 2 threads", None),
    ("`DataParallel` and `ZeroRedundancyOptimizer`, 2 × 1 thread", "train/heed zero 2 x 1",
     "train/heed 1 x 2", "heed, 1 × 2 threads", None),
    ("`parallelize`, 2 × 1 thread", "train/heed tensor 2 x 1", "train/heed 1 x 2",
     "heed, 1 × 2 threads", None),
    ("`share_sequence`, 2 × 1 thread", "train/heed context 2 x 1", "train/heed 1 x 2",
     "heed, 1 × 2 threads", None),
)


def verdict(value, aim, at_most=False):
    if aim is None:
        return "", ""
    met = value <= aim if at_most else value >= aim
    return f"{aim:.2f}", "yes" if met else "**no**"


class Rounds:
    """The rounds of every measurement. A round is a list of what its processes printed."""

    def __init__(self, results):
        self.results = results

    def __contains__(self, name):
        return name in self.results

    def of(self, name, key, combine=max):
        """A number a round: of its processes' numbers, the greatest, or as `combine` says."""
        return [combine(process[key] for process in processes if key in process)
                for processes in self.results[name]]

    def median(self, name, key, combine=max):
        return statistics.median(self.of(name, key, combine))

    def ratio(self, above, below, key, combine=max):
        """The median of the rounds' ratios, and the least and the greatest."""
        ratios = [a / b for a, b in zip(self.of(above, key, combine), self.of(below, key, combine))]
        return statistics.median(ratios), min(ratios), max(ratios)


def training_table(rounds):
    lines = ["| heed | tokens/s | beside | its tokens/s | ratio (least–greatest) | aim | met "
             "| processor time, its / heed's |", "|---|--:|---|--:|--:|--:|---|--:|"]
    for words, ours, theirs, their_words, aim in TRAINING:
        if ours not in rounds or theirs not in rounds:
            continue
        key = "tokens_per_second"
        value, least, greatest = rounds.ratio(ours, theirs, key)
        shown, met = verdict(value, aim)
        computing, _, _ = rounds.ratio(theirs, ours, "processor_seconds", sum)
        lines.append(f"| {words} | {rounds.median(ours, key):.0f} | {their_words} "
                     f"| {rounds.median(theirs, key):.0f} "
                     f"| {value:.2f} ({least:.2f}–{greatest:.2f}) | {shown} | {met} "
                     f"| {computing:.2f} |")
    return lines


def bytes_of_exchange(exchange, direction, length, processes):
    """What all processes together send in one causal call."""
    if processes == 1:
        return 0
    heads, groups, dim = SIZES[exchange]
    if exchange == "ulysses":
        once = (2 * heads + 2 * groups) * length * dim * FLOAT * (processes - 1) / processes
        return once * (2 if direction == "training" else 1)
    chunk = length / (2 * processes) * groups * 2 * dim * FLOAT
    keys = sum(processes - 1 + rank for rank in range(processes)) * chunk
    gradients = sum(2 * processes - 2 - rank for rank in range(processes)) * chunk
    return keys if direction == "forward" else 2 * keys + gradients


def ring_table(rounds, length):
    lines = ["| | processes × threads | time | efficiency | aim | met | by processor time "
             "| without transfer | peak memory of a process | sent by all | formula "
             "| computation, max / mean | aim | met |",
             "|---|---|--:|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|---|"]
    for direction in ("forward", "training"):
        for exchange in SIZES:
            for processes, threads in ((1, 2), (2, 1), (4, 1)):
                name = f"{exchange}/{direction} {processes} x {threads}"
                if name in rounds:
                    lines.append(ring_row(rounds, name, exchange, direction, processes, length))
    return lines


def ring_row(rounds, name, exchange, direction, processes, length):
    ours = exchange != "ulysses"
    alone = f"{exchange if ours else 'ring'}/{direction} 1 x 2"
    time = rounds.median(name, "seconds")
    function = exchange if processes > 1 else exchange.replace("ring", "`attend`")
    cells = [f"{function}, {direction}",
             name.rsplit(" ", 3)[1] + " × " + name.rsplit(" ", 1)[1], f"{time * 1e3:.0f} ms"]
    peak = f"{rounds.median(name, 'peak_bytes') / 2**20:.0f} MiB"
    if processes == 1:
        return "| " + " | ".join([*cells, *[""] * 5, peak, *[""] * 5]) + " |"
    value, least, greatest = rounds.ratio(alone, name, "seconds")
    efficiency = verdict(value, 0.85 if ours else None)
    computing, _, _ = rounds.ratio(alone, name, "processor_seconds", sum)
    pure = ""
    if "transfer_processor_seconds" in rounds.results[name][0][0]:
        pure = statistics.median(
            one / (all_of - transfer) for one, all_of, transfer in
            zip(rounds.of(alone, "processor_seconds", sum), rounds.of(name, "processor_seconds", sum),
                rounds.of(name, "transfer_processor_seconds", sum)))
        pure = f"{pure:.2f}"
    sent = rounds.median(name, "bytes", sum)
    formula = bytes_of_exchange(exchange, direction, length, processes)
    even = rounds.median(name, "computing_seconds", lambda n: greatest_by_mean(list(n)))
    cells += [f"{value:.2f} ({least:.2f}–{greatest:.2f})", *efficiency, f"{computing:.2f}", pure, peak,
              f"{sent:,.0f}", f"{formula:,.0f}" + ("" if sent == formula else " **differs**"),
              f"{even:.3f}", *verdict(even, 1.1 if ours else None, at_most=True)]
    return "| " + " | ".join(cells) + " |"


def experts_table(rounds):
    lines = ["| | processes × threads | time | efficiency (least–greatest) | by processor time |",
             "|---|---|--:|--:|--:|"]
    for direction in ("forward", "training"):
        alone = f"experts/{direction} 1 x 2"
        for processes, threads in ((1, 2), (2, 1), (4, 1)):
            name = f"experts/{direction} {processes} x {threads}"
            if name not in rounds:
                continue
            efficiency = computing = ""
            if processes > 1 and alone in rounds:
                value, least, greatest = rounds.ratio(alone, name, "seconds")
                efficiency = f"{value:.2f} ({least:.2f}–{greatest:.2f})"
                computing = f"{rounds.ratio(alone, name, 'processor_seconds', sum)[0]:.2f}"
            lines.append(f"| {direction} | {processes} × {threads} "
                         f"| {rounds.median(name, 'seconds') * 1e3:.1f} ms | {efficiency} "
                         f"| {computing} |")
    return lines


def greatest_by_mean(numbers):
    return max(numbers) / statistics.mean(numbers)


def bytes_of_training(scheme, parameters):
    """What a process sends in a step of training, on average, with two processes."""
    processes = 2
    reduced = 2 * (processes - 1) / processes  # of an all-reduce's size
    activations = FLOAT * MODEL.tokens * MODEL.width
    if scheme == "data":
        return reduced * FLOAT * parameters
    if scheme == "zero":
        return (reduced + (processes - 1) / processes) * FLOAT * parameters
    if scheme == "tensor":
        numbers_of_loss = 3 * FLOAT * MODEL.tokens
        return reduced * ((4 * MODEL.layers + 2) * activations + numbers_of_loss)
    if scheme == "context":
        keys = 2 * FLOAT * MODEL.tokens * MODEL.groups_width
        return (9 / 4 * (processes - 1) / processes * MODEL.layers * keys
                + reduced * FLOAT * parameters)
    return None


def two_machines_table(rounds):
    lines = ["| scheme | tokens/s | tokens/s at 1 Gbit/s | sent by a process, a step | formula |",
             "|---|--:|--:|--:|--:|"]
    for scheme in ("data", "zero", "tensor", "tensor, sequence_parallel", "context"):
        name = f"fast/train/{scheme}"
        if name not in rounds:
            continue
        slow = f"1gbit/train/{scheme}"
        formula = bytes_of_training(scheme, rounds.median(name, "parameters"))
        lines.append(
            f"| {scheme} | {rounds.median(name, 'tokens_per_second'):.0f} "
            f"| {rounds.median(slow, 'tokens_per_second'):.0f} "
            f"| {rounds.median(name, 'wire_bytes', statistics.mean) / 1e6:.2f} MB "
            f"| {'' if formula is None else f'{formula / 1e6:.2f} MB'} |")
    return lines


def hidden_table(rounds):
    lines = ["| call | link | time | waited | bare transfer | hidden | sent by both, as tensors "
             "| on the wire |", "|---|---|--:|--:|--:|--:|--:|--:|"]
    for call in ("ring/forward", "ring/training", "ulysses/forward", "ulysses/training"):
        for link in ("fast", "1gbit"):
            name = f"{link}/{call}"
            if name not in rounds:
                continue
            waited, hidden, transfer = rounds.median(name, "waiting_seconds"), "", ""
            if "transfer_seconds" in rounds.results[name][0][0]:
                shares = [1 - w / t for w, t in zip(rounds.of(name, "waiting_seconds"),
                                                    rounds.of(name, "transfer_seconds"))]
                hidden = f"{max(0.0, statistics.median(shares)):.0%}"
                transfer = f"{rounds.median(name, 'transfer_seconds') * 1e3:.0f} ms"
            lines.append(
                f"| {call.replace('/', ', ')} | {link.replace('1gbit', '1 Gbit/s')} "
                f"| {rounds.median(name, 'seconds') * 1e3:.0f} ms | {waited * 1e3:.0f} ms "
                f"| {transfer} | {hidden} | {rounds.median(name, 'bytes', sum) / 1e6:.1f} MB "
                f"| {rounds.median(name, 'wire_bytes', sum) / 1e6:.1f} MB |")
    return lines


def facts(context, rounds):
    versions = {process["version"] for processes in rounds.results.get("train/Python 1 x 2", [])
                for process in processes if "version" in process}
    return [
        f"- machine: {context['processor']}, {context['cores']} cores, shared; load before the "
        f"rounds {', '.join(f'{load:.1f}' for load in context['loads'])}",
        f"- PyTorch: {', '.join(sorted(versions)) or 'not measured'}",
        f"- heed: {context['heed']}", f"- rounds: {context['rounds']}", f"- date: {context['date']}",
    ]


def figures(report):
    context, rounds = report["context"], Rounds(report["results"])
    lines = [*facts(context, rounds), "", "### Training", "", *training_table(rounds), "",
             f"### Attention over {context['length']} tokens", "",
             *ring_table(rounds, context["length"]), "", "### Experts", "", *experts_table(rounds),
             "", "### Two machines", ""]
    if context["skipped"]:
        lines.append(f"Left out: {context['skipped']}.")
    else:
        lines += [*two_machines_table(rounds), "", *hidden_table(rounds)]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("--doc", help="a Markdown file with the markers, to update")
    arguments = parser.parse_args()
    report = json.loads(arguments.report.read_text())
    publish(figures(report) + ("" if arguments.doc else "\n### Many processes\n\n"),
            arguments.doc, "figures")
    publish("\n".join(scale_model.markdown(report)) + "\n", arguments.doc, "scale")


if __name__ == "__main__":
    main()
