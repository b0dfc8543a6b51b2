# SPDX-License-Identifier: BSD-3-Clause
"""The tables that benchmarks/distributed_report.py makes, and the formulas of scale_model.py."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import distributed_report  # noqa: E402
import scale_model  # noqa: E402

CONTEXT = {"processor": "a processor", "cores": 2, "heed": "abc", "date": "2026-01-02", "rounds": 2,
           "loads": [0.5, 1.25], "length": 8192, "skipped": "no root"}
ONE = scale_model.Constants(flops=1e9, attention_flops=1e9, optimizer=0.0, bandwidth=1e8,
                            latency=0.0)


def training(speed: float) -> dict:
    return {"tokens_per_second": speed, "processor_seconds": 1.0, "optimizer_seconds": 0.001, "parameters": 1_800_000,
            "version": "2.13.0"}


def call(seconds: float, computing: float, sent: int) -> dict:
    return {"seconds": seconds, "processor_seconds": computing + 0.1, "computing_seconds": computing, "waiting_seconds": 0.1,
            "bytes": sent, "wire_bytes": 0, "peak_bytes": 2**20, "transfer_seconds": 0.4,
            "transfer_processor_seconds": 0.2}


def results() -> dict:
    link = {"bytes_per_second": 1e8, "small_all_reduce_seconds": 1e-4}
    return {
        "train/heed data 2 x 1": [[training(1200)] * 2, [training(2400)] * 2],
        "train/Python DDP 2 x 1": [[training(1000)], [training(2000)]],
        "train/heed 1 x 2": [[training(2400)], [training(2400)]],
        "train/heed 1 x 1": [[training(2000)], [training(2000)]],
        "ring/training 1 x 2": [[call(0.9, 0, 0)], [call(0.9, 0, 0)]],
        "ring/training 2 x 1": [[call(0.9, 1.0, 50331648), call(1.0, 0.8, 25165824)]] * 2,
        "ring/forward 1 x 2": [[call(0.9, 0, 0)], [call(0.9, 0, 0)]],
        "ring/forward 2 x 1": [[call(0.9, 1.0, 8388608), call(1.0, 0.8, 16777216)]] * 2,
        "experts/forward 1 x 2": [[call(0.04, 0.04, 0)], [call(0.06, 0.06, 0)]],
        "experts/forward 2 x 1": [[call(0.05, 0.02, 0), call(0.04, 0.02, 0)]] * 2,
        "link": [[link, link]],
    }


class Report(unittest.TestCase):
    def tables(self, context: dict = CONTEXT) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "distributed.json"
            path.write_text(json.dumps({"context": context, "results": results()}))
            return subprocess.run([sys.executable, BENCHMARKS / "distributed_report.py", path],
                                  stdout=subprocess.PIPE, encoding="utf-8", check=True).stdout

    def test_ratios_are_medians_of_rounds(self) -> None:
        text = self.tables()
        self.assertIn("| `DataParallel`, 2 × 1 thread | 1800 | Python, `DistributedDataParallel`, "
                      "2 × 1 thread | 1500 | 1.20 (1.20–1.20) | 1.15 | yes | 0.50 |\n", text)
        self.assertIn("| 0.75 (0.50–1.00) | 0.90 | **no** | 0.50 |\n", text)
        self.assertIn("Left out: no root.\n", text)

    def test_a_ring_is_as_slow_as_its_slowest_process(self) -> None:
        self.assertIn("| ring, forward | 2 × 1 | 1000 ms | 0.90 (0.90–0.90) | 0.85 | yes | 0.05 "
                      "| 0.06 | 1 MiB | 25,165,824 | 25,165,824 | 1.111 | 1.10 | **no** |\n", self.tables())

    def test_experts_are_compared_with_one_process(self) -> None:
        text = self.tables()
        self.assertIn("| forward | 1 × 2 | 50.0 ms |  |  |\n", text)
        self.assertIn("| forward | 2 × 1 | 50.0 ms | 1.00 (0.80–1.20) | ", text)

    def test_bytes_that_differ_from_the_formula_are_marked(self) -> None:
        self.assertIn("25,165,824 | 12,582,912 **differs** |", self.tables({**CONTEXT, "length": 4096}))


class Formulas(unittest.TestCase):
    def test_bytes_of_causal_calls(self) -> None:
        # Three chunks of 2048 keys and values travel, and in training twice and back.
        chunk = 2048 * 8 * 2 * 64 * 4
        self.assertEqual(3 * chunk, distributed_report.bytes_of_exchange("ring", "forward", 8192, 2))
        self.assertEqual(9 * chunk, distributed_report.bytes_of_exchange("ring", "training", 8192, 2))

    def test_without_a_transfer_work_is_shared_evenly(self) -> None:
        free = scale_model.Constants(1e9, 1e9, 0.0, 1e30, 0.0)
        for scheme, work in scale_model.SCHEMES.values():
            self.assertAlmostEqual(1.0, scale_model.efficiency(scheme, work, 2, free))

    def test_work_that_cannot_be_split_has_no_time(self) -> None:
        self.assertIsNone(scale_model.data(scale_model.GPT, 64, ONE))
        self.assertIsNone(scale_model.tensor(scale_model.GPT, 8, ONE))

    def test_a_transfer_that_takes_longer_than_the_backward_pass_is_seen(self) -> None:
        slow = scale_model.Constants(1e15, 1e15, 0.0, 1e8, 0.0)
        transfer = scale_model.all_reduce(4 * scale_model.GPT.weights, 2, slow)
        self.assertAlmostEqual(transfer, scale_model.data(scale_model.GPT, 2, slow), places=3)


if __name__ == "__main__":
    unittest.main()
