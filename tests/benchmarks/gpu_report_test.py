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


class GpuReport(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_the_tables_replace_what_is_between_the_markers(self) -> None:
        suites = [
            {"testsuite": [case("Equals/Float", devices="cuda"), case("Equals/Half", devices="cuda",
                                                                     failures=[{}])]},
            {"testsuite": [case("Refuses"), case("Python", "SKIPPED", devices="cuda")]}]
        tests = self.folder / "some_test.json"
        tests.write_text(json.dumps({"testsuites": suites}))
        rows = [{"name": "cuda/plain/Half/1x2/heed", "real_time": 2, "time_unit": "ms"}]
        bench = self.folder / "bench.json"
        bench.write_text(json.dumps({"context": {"heed": "v1", "date": "2026-01-02T03:04:05"},
                                     "benchmarks": rows}))
        doc = self.folder / "gpu.md"
        doc.write_text("before\n<!-- bench:begin -->\nold\n<!-- bench:end -->\nafter\n")
        subprocess.run([sys.executable, SCRIPT, "--fact", "GPU=one = two", "--tests", tests,
                        "--bench", bench, "--doc", doc], check=True)
        text = doc.read_text()
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

### cuda/plain/Half
"""), text)
        self.assertTrue(text.endswith("<!-- bench:end -->\nafter\n"), text)


if __name__ == "__main__":
    unittest.main()
