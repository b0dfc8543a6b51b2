#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs heed_distributed_bench and its peer in Python, in turns, and writes what they print.

    distributed_rounds.py PROGRAM --out FILE [--rounds N] [--smoke]

Each measurement is a line of WORKS, TWO_MACHINES or LINKS. The file has, for each of them, a list of
rounds, and for each round what the processes printed. Two network namespaces stand for two machines;
making them needs root. Without it, these measurements are left out.
"""

import argparse
import contextlib
import datetime
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from processor import processor

PEER = Path(__file__).resolve().parent / "distributed_peer.py"
LIMIT = 600  # seconds of one measurement
ATTEMPTS = 3  # another program may take the port in the meantime
SLOW = "1gbit"

EXCHANGES = {
    "ring": ["H=8", "G=8", "D=64"],
    "grouped ring": ["H=16", "G=4", "D=128"],
    "ulysses": ["H=8", "G=8", "D=64", "ulysses=1"],
}
# name: (number of processes, threads of each, arguments). "python" is the peer. Two processes cannot
# split the model's 3 key/value heads: tensor parallel rows have 6.
WORKS = {
    "train/heed 1 x 2": (1, 2, ["train"]),
    "train/heed 1 x 1": (1, 1, ["train"]),
    "train/heed data 2 x 1": (2, 1, ["train", "data=2"]),
    "train/Python 1 x 2": (1, 2, ["python"]),
    "train/Python DDP 2 x 1": (2, 1, ["python"]),
    "train/heed zero 2 x 1": (2, 1, ["train", "data=2", "zero=1"]),
    "train/heed tensor 2 x 1": (2, 1, ["train", "tensor=2", "groups=6"]),
    "train/heed context 2 x 1": (2, 1, ["train", "context=2"]),
    **{
        f"{exchange}/{direction} {processes} x {threads}":
            (processes, threads, ["ring", f"backward={backward}", *arguments])
        for backward, direction in enumerate(("forward", "training"))
        for exchange, arguments in EXCHANGES.items()
        for processes, threads in ((1, 2), (2, 1), (4, 1))
        if processes > 1 or exchange != "ulysses"
    },
    **{
        f"experts/{direction} {processes} x {threads}":
            (processes, threads, ["experts", f"backward={backward}"])
        for backward, direction in enumerate(("forward", "training"))
        for processes, threads in ((1, 2), (2, 1), (4, 1))
    },
}
TWO_MACHINES = {
    "train/data": (2, 1, ["train", "data=2"]),
    "train/zero": (2, 1, ["train", "data=2", "zero=1"]),
    "train/tensor": (2, 1, ["train", "tensor=2", "groups=6"]),
    "train/tensor, sequence_parallel":
        (2, 1, ["train", "tensor=2", "groups=6", "sequence_parallel=1"]),
    "train/context": (2, 1, ["train", "context=2"]),
    "ring/forward": (2, 1, ["ring", "backward=0"]),
    "ring/training": (2, 1, ["ring", "backward=1"]),
    "ulysses/forward": (2, 1, ["ring", "backward=0", "ulysses=1"]),
    "ulysses/training": (2, 1, ["ring", "backward=1", "ulysses=1"]),
}


class OneMachine:
    """Processes on this machine, joined by the loopback device."""

    interface = None
    address = "127.0.0.1"

    def command(self, _rank):
        return []

    def local_size(self, processes):
        return processes

    def port(self):
        with socket.socket() as free:
            free.bind((self.address, 0))
            return free.getsockname()[1]


class TwoMachines:
    """Process r in network namespace r % 2; a veth pair joins the two."""

    interface = "heed0"
    address = "10.77.0.1"

    def __init__(self):
        self.names = [f"heed-{os.getpid()}-{i}" for i in range(2)]

    def __enter__(self):
        try:
            self.make()
        except (OSError, subprocess.CalledProcessError):
            self.__exit__()
            raise
        return self

    def make(self):
        for name in self.names:
            run("ip", "netns", "add", name)
        peers = [f"heed{os.getpid() % 10**6}{side}" for side in "ab"]
        run("ip", "link", "add", peers[0], "type", "veth", "peer", "name", peers[1])
        for i, (name, peer) in enumerate(zip(self.names, peers)):
            run("ip", "link", "set", peer, "netns", name, "name", self.interface)
            run("ip", "-n", name, "address", "add", f"10.77.0.{i + 1}/24", "dev", self.interface)
            run("ip", "-n", name, "link", "set", self.interface, "up")
            run("ip", "-n", name, "link", "set", "lo", "up")

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)

    @contextlib.contextmanager
    def slowed(self, rate):
        for name in self.names:
            run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", self.interface, "root",
                "tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
        yield
        for name in self.names:
            run("ip", "netns", "exec", name, "tc", "qdisc", "delete", "dev", self.interface, "root")

    def command(self, rank):
        return ["ip", "netns", "exec", self.names[rank % 2]]

    def local_size(self, processes):
        return processes // 2

    def port(self):
        return 29500


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


class Measurements:
    def __init__(self, program, extra):
        self.program = program
        self.extra = extra  # arguments of each mode
        self.found = {}

    def command(self, threads, arguments, interface):
        mode = arguments[0]
        extra = self.extra.get("train" if mode == "python" else mode, [])
        if mode == "python":
            return [sys.executable, str(PEER), str(threads), extra[0].removeprefix("steps=")]
        if interface:
            extra = [*extra, f"interface={interface}"]
        return [self.program, *arguments, f"threads={threads}", *extra]

    def measure(self, name, machines, work):
        for attempt in range(ATTEMPTS):
            printed = self.attempt(machines, work)
            if printed:
                break
            print(f"  {name}: failed, attempt {attempt + 1}", flush=True)
        else:
            sys.exit(f"{name} failed: {work}")
        self.found.setdefault(name, []).append(printed)
        shown = {key: f"{value:.4g}" for key, value in printed[0].items()
                 if isinstance(value, float)}
        print(f"  {name}: {shown}", flush=True)

    def attempt(self, machines, work):
        """What the processes printed; None if one failed."""
        processes, threads, arguments = work
        environment = {
            **os.environ, "WORLD_SIZE": str(processes), "MASTER_ADDR": machines.address,
            "MASTER_PORT": str(machines.port()), "OMP_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "PASSIVE",
            "LOCAL_WORLD_SIZE": str(machines.local_size(processes)),
        }
        command = self.command(threads, arguments, machines.interface)
        started = [
            subprocess.Popen([*machines.command(rank), *command], stdout=subprocess.PIPE, text=True,
                             env={**environment, "RANK": str(rank), "LOCAL_RANK": "0"})
            for rank in range(processes)
        ]
        try:
            end = time.monotonic() + LIMIT
            while time.monotonic() < end and not any(process.poll() for process in started):
                if all(process.poll() == 0 for process in started):
                    texts = [process.stdout.read() for process in started]
                    return [json.loads(line) for text in texts for line in text.splitlines()]
                time.sleep(0.05)
            return None
        finally:
            for process in started:
                process.kill()
                process.wait()


def make_two_machines(stack):
    """The machines, or None, and why there are none."""
    try:
        return stack.enter_context(TwoMachines()), None
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or str(error).encode()
        return None, f"two network namespaces cannot be made here: {reason.decode().strip()}"


def measure_links(measurements, machines, works):
    for link, slowed in (("fast", contextlib.nullcontext()), (SLOW, machines.slowed(SLOW))):
        with slowed:
            for name, work in {"link": (2, 1, ["link"]), **works}.items():
                measurements.measure(f"{link}/{name}", machines, work)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program", help="heed_distributed_bench, as it was built")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--smoke", action="store_true", help="run each kind once, tiny")
    parser.add_argument("--revision", default="unknown", help="heed's commit")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # removes the namespaces

    extra = {"train": ["steps=10"], "ring": ["L=8192", "repetitions=3"], "experts": ["tokens=2048"]}
    works, two_machines, rounds = dict(WORKS), TWO_MACHINES, arguments.rounds
    if arguments.smoke:
        extra = {"train": ["steps=1"], "ring": ["L=64", "repetitions=1"],
                 "experts": ["tokens=64", "repetitions=1"], "link": ["repetitions=1"]}
        works = {name: WORKS[name] for name in
                 ("train/heed data 2 x 1", "train/heed tensor 2 x 1", "train/heed context 2 x 1",
                  "train/Python DDP 2 x 1", "ring/training 2 x 1", "ulysses/training 2 x 1",
                  "experts/training 2 x 1")}
        two_machines = {name: TWO_MACHINES[name] for name in ("train/data", "ring/training")}
        rounds = 1
    works["link"] = (2, 1, ["link"])
    measurements = Measurements(arguments.program, extra)
    context = {
        "processor": processor(), "cores": len(os.sched_getaffinity(0)), "heed": arguments.revision,
        "date": datetime.date.today().isoformat(), "length": 64 if arguments.smoke else 8192,
        "loads": [],  # of the last minute, before each round
    }
    with contextlib.ExitStack() as stack:
        machines, context["skipped"] = make_two_machines(stack)
        if context["skipped"]:
            print(f"Left out: {context['skipped']}")
        for index in range(rounds):
            print(f"Round {index + 1} of {rounds}", flush=True)
            context["loads"].append(os.getloadavg()[0])
            for name, work in works.items():
                measurements.measure(name, OneMachine(), work)
            if machines:
                measure_links(measurements, machines, two_machines)
            context["rounds"] = index + 1
            arguments.out.write_text(
                json.dumps({"context": context, "results": measurements.found}))


if __name__ == "__main__":
    main()
