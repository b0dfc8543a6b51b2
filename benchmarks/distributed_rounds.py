#!/usr/bin/env python3
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
import platform
import socket
import subprocess
import sys
from pathlib import Path

PEER = Path(__file__).resolve().parent / "distributed_peer.py"
LIMIT = 600  # seconds of one measurement
SLOW = "1gbit"

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
            (processes, threads, ["ring", f"backward={backward}", f"ulysses={ulysses}"])
        for backward, direction in enumerate(("forward", "training"))
        for ulysses, exchange in enumerate(("ring", "ulysses"))
        for processes, threads in ((1, 2), (2, 1), (4, 1))
        if processes > 1 or not ulysses
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
        processes, threads, arguments = work
        environment = {
            **os.environ, "WORLD_SIZE": str(processes), "MASTER_ADDR": machines.address,
            "MASTER_PORT": str(machines.port()), "OMP_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "PASSIVE", "TORCH_CPP_LOG_LEVEL": "ERROR",  # there are no names
            "LOCAL_WORLD_SIZE": str(machines.local_size(processes)),
        }
        command = self.command(threads, arguments, machines.interface)
        started = [
            subprocess.Popen([*machines.command(rank), *command], stdout=subprocess.PIPE, text=True,
                             env={**environment, "RANK": str(rank), "LOCAL_RANK": "0"})
            for rank in range(processes)
        ]
        try:
            printed = [process.communicate(timeout=LIMIT)[0] for process in started]
        finally:
            for process in started:
                process.kill()
        if any(process.returncode for process in started):
            sys.exit(f"{name} failed: {' '.join(command)}")
        rounds = self.found.setdefault(name, [])
        rounds.append([json.loads(line) for text in printed for line in text.splitlines()])
        first = rounds[-1][0]
        shown = {key: f"{value:.4g}" for key, value in first.items() if isinstance(value, float)}
        print(f"  {name}: {shown}", flush=True)


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def measure_two_machines(measurements, rounds, works):
    """Returns why there are none, or None."""
    with contextlib.ExitStack() as stack:
        try:
            machines = stack.enter_context(TwoMachines())
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", None) or str(error).encode()
            return f"two network namespaces cannot be made here: {reason.decode().strip()}"
        for index in range(rounds):
            print(f"Two machines, round {index + 1} of {rounds}", flush=True)
            for link, slowed in (("fast", contextlib.nullcontext()),
                                 (SLOW, machines.slowed(SLOW))):
                with slowed:
                    measurements.measure(f"{link}/link", machines, (2, 1, ["link"]))
                    for name, work in works.items():
                        measurements.measure(f"{link}/{name}", machines, work)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program", help="heed_distributed_bench, as it was built")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--smoke", action="store_true", help="run each kind once, tiny")
    parser.add_argument("--revision", default="unknown", help="heed's commit")
    arguments = parser.parse_args()

    extra = {"train": ["steps=10"], "ring": ["L=8192", "repetitions=3"]}
    works, two_machines, rounds = WORKS, TWO_MACHINES, arguments.rounds
    if arguments.smoke:
        extra = {"train": ["steps=1"], "ring": ["L=64", "repetitions=1"], "link": ["repetitions=1"]}
        works = {name: work for name, work in WORKS.items() if work[0] <= 2}
        two_machines = {name: TWO_MACHINES[name] for name in ("train/data", "ring/training")}
        rounds = 1
    measurements = Measurements(arguments.program, extra)
    context = {
        "processor": processor(), "cores": len(os.sched_getaffinity(0)), "heed": arguments.revision,
        "date": datetime.date.today().isoformat(), "rounds": rounds,
        "length": 64 if arguments.smoke else 8192, "skipped": "the measurement was stopped",
        "loads": [],  # of the last minute, before each round
    }

    def write():
        report = {"context": context, "results": measurements.found}
        arguments.out.write_text(json.dumps(report))

    for index in range(rounds):
        print(f"Round {index + 1} of {rounds}", flush=True)
        context["loads"].append(os.getloadavg()[0])
        for name, work in works.items():
            measurements.measure(name, OneMachine(), work)
        measurements.measure("link", OneMachine(), (2, 1, ["link"]))
        write()
    context["skipped"] = measure_two_machines(measurements, (rounds + 1) // 2, two_machines)
    if context["skipped"]:
        print(f"Left out: {context['skipped']}")
    write()


if __name__ == "__main__":
    main()
