# SPDX-License-Identifier: BSD-3-Clause
"""The tables that benchmarks/gpu_report.py makes."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_report.py"


def case(name: str, result: str = "COMPLETED", **more) -> dict:
    return {"name": name, "result": result, **more}


def result(row: str, contestant: str, **more) -> dict:
    return {"name": f"cuda/{row}/{contestant}", "real_time": 2, "time_unit": "ms", **more}


def peer(row: str, contestant: str, ratio: float, target: float) -> dict:
    return result(row, contestant, ratio=ratio, ratio_low=ratio - 0.1, ratio_high=ratio + 0.1,
                  target=target)


class GpuReport(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, name: str, content: dict) -> Path:
        path = self.folder / name
        path.write_text(json.dumps(content))
        return path

    def report(self, rows: list[dict], peers: list[dict] = (), suites: list[dict] = ()) -> str:
        tests = self.write("some_test.json", {"testsuites": list(suites)})
        context = {"heed": "v1", "date": "2026-01-02T03:04:05"}
        bench = self.write("bench.json", {"context": context, "benchmarks": rows})
        others = self.write("peers.json", {"context": {}, "benchmarks": list(peers)})
        doc = self.folder / "gpu.md"
        doc.write_text("before\n<!-- bench:begin -->\nold\n<!-- bench:end -->\nafter\n")
        subprocess.run([sys.executable, SCRIPT, "--fact", "GPU=one = two", "--tests", tests,
                        "--bench", bench, others, "--doc", doc], check=True)
        return doc.read_text()

    def test_the_tables_replace_what_is_between_the_markers(self) -> None:
        suites = [
            {"testsuite": [case("Equals/Float", devices="cuda"), case("Equals/Half", devices="cuda",
                                                                     failures=[{}])]},
            {"testsuite": [case("Refuses"), case("Python", "SKIPPED", devices="cuda")]}]
        text = self.report([result("plain/Half/inference/B1_L2", "heed")], suites=suites)
        self.assertTrue(text.startswith("""before
<!-- bench:begin -->
- GPU: one = two
- heed: v1
- date: 2026-01-02

### Tests

| program | tests | on the device | Float | Half | BFloat16 | Double | failed | skipped |
|---|--:|--:|--:|--:|--:|--:|--:|--:|
| some_test | 4 | 2 | 1 | 1 | 0 | 0 | 1 | 1 |
| all | 4 | 2 | 1 | 1 | 0 | 0 | 1 | 1 |

### Targets
"""), text)
        self.assertTrue(text.endswith("<!-- bench:end -->\nafter\n"), text)

    def test_each_target_counts_the_worst_peer_of_each_call(self) -> None:
        plain, slow = "plain/Half/inference/B1_L2", "plain/Half/training/B1_L2"
        text = self.report([
            result(plain, "heed"), peer(plain, "SDPA flash", 1.2, 0.97),
            peer(plain, "SDPA math", 3.0, 0.97),
            result(slow, "heed"), peer(slow, "SDPA flash", 0.5, 0.97),
            peer(slow, "SDPA math", 2.0, 0.97),
            result("window/Half/inference/B1", "heed"),
            peer("window/Half/inference/B1", "SDPA efficient", 7.95, 8),
            result("packed/Half/inference/B1", "heed"),
            peer("packed/Half/inference/B1", "SDPA cuDNN, padded", 2.5, 2),
            result("decoding/Half/inference/B1", "heed"),
            peer("decoding/Half/inference/B1", "a copy", 0.8, 0.7),
            result("peak_plain/Half/inference/B1", "heed", peak_bytes=100, peak_limit=50)])
        table = text.partition("### Targets\n\n")[2].partition("\n\n")[0].splitlines()[2:]
        figures = [line.split(" | ", 1)[1] for line in table]
        self.assertEqual(figures, [
            "2 | 1 | 0 | 1 | plain: Half, training, B1 L2: 0.50 |",
            "1 | 0 | 1 | 0 | window: Half, inference, B1: 7.95 |",
            "1 | 1 | 0 | 0 | packed: Half, inference, B1: 2.50 |",
            "1 | 1 | 0 | 0 | decoding: Half, inference, B1: 0.80 |",
            "1 | 0 | 0 | 1 | peak_plain: Half, inference, B1: 0.50 |"])

    def test_a_row_has_its_route_and_peers(self) -> None:
        row = "plain/Half/inference/B1_L2"
        text = self.report(
            [result(row, "heed", label="flash", peak_bytes=2048, kernels=3),
             peer(row, "SDPA flash", 1.0, 0.97),
             result(row, "SDPA cuDNN", error_message="refused: no kernel")],
            [result(row, "flex_attention", ratio=1.5, kernels=4)])
        self.assertIn("""### plain

| call | route | heed | peak | kernels | GB/s | peer | its time | its peak | its kernels \
| ratio (95 %) | met |
|---|---|--:|--:|--:|--:|---|--:|--:|--:|--:|---|
| Half, inference, B1 L2 | flash | 2.00 ms | 2 KiB | 3 |  | SDPA flash | 2.00 ms |  |  \
| 1.00 (0.90–1.10) | yes |
| | | | | | | SDPA cuDNN | refuses | | | | |
| | | | | | | flex_attention | 2.00 ms |  | 4 | 1.50 |  |
""", text)


if __name__ == "__main__":
    unittest.main()
