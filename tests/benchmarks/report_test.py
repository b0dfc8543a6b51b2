# SPDX-License-Identifier: BSD-3-Clause
"""The tables that benchmarks/report.py makes."""

import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "report.py"
CONTEXT = {"cpu": "a processor", "num_cpus": 2, "isa": "AVX2", "threads": "2", "libtorch": "2.13.0",
           "compiler": "GNU 12", "date": "2026-01-02T03:04:05"}


def result(name: str, milliseconds: float, **counters) -> dict:
    return {"name": name, "real_time": milliseconds, "time_unit": "ms", **counters}


def compared(ratio: float, **counters) -> dict:
    return {"ratio": ratio, "ratio_low": ratio - 0.1, "ratio_high": ratio + 0.1, **counters}


class Report(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def tables(self, *reports: tuple[dict, list], arguments: tuple[str, ...] = ()) -> str:
        paths = []
        for context, results in reports:
            paths.append(self.folder / f"{len(paths)}.json")
            paths[-1].write_text(json.dumps({"context": context, "benchmarks": results}))
        return subprocess.run([sys.executable, SCRIPT, *paths, *arguments], stdout=subprocess.PIPE,
                              encoding="utf-8", check=True).stdout

    def test_a_peer_of_another_report_stands_below_the_row(self) -> None:
        text = self.tables(
            (CONTEXT, [result("attend/plain/1x2/heed/iterations:1/manual_time", 2, peak_bytes=2048),
                       result("attend/plain/1x2/SDPA/iterations:1/manual_time", 3, peak_bytes=1024,
                              **compared(1.5, target=1.0))]),
            ({"pytorch": "2.13.0"}, [result("attend/plain/1x2/Python SDPA", 4, **compared(2.0))]))
        self.assertIn("- PyTorch: 2.13.0\n", text)
        self.assertIn("1 of 1 comparisons with a target meet it", text)
        self.assertIn("""### attend/plain

| row | heed | GFLOP/s | peak | peer | its time | its peak | ratio (95 %) | target | met |
|---|--:|--:|--:|---|--:|--:|--:|--:|---|
| 1x2 | 2.00 ms |  | 2 KiB | SDPA | 3.00 ms | 1 KiB | 1.50 (1.40–1.60) | 1.00 | yes |
| | | | | Python SDPA | 4.00 ms |  | 2.00 (1.90–2.10) |  |  |
""", text)

    def test_the_short_table_has_the_typical_calls_that_were_measured(self) -> None:
        row = "attend/plain/1x8x50x16"
        report = (CONTEXT, [result(f"{row}/heed", 2), result(f"{row}/SDPA", 3, **compared(1.5)),
                            result("packed/lengths16to1024/heed", 2)])
        short = """Medians on a processor, 2 cores, AVX2, with LibTorch 2.13.0; \
float32 where no dtype is named.

| call | heed | peer | its time | peer's time / heed's |
|---|--:|---|--:|--:|
| 50 tokens, 8 heads of 16 | 2.00 ms | SDPA | 3.00 ms | **1.5** |
"""
        self.assertTrue(self.tables(report).startswith(f"{short}\n## a processor\n\n- machine: a processor"))
        page, tables = self.folder / "performance.md", self.folder / "measurements.md"
        page.write_text("a <!-- typical:begin -->old<!-- typical:end --> b\n")
        tables.write_text("<!-- bench:begin -->old<!-- bench:end --> c\n")
        self.assertEqual("", self.tables(report, arguments=("--typical", str(page), "--doc", str(tables))))
        self.assertEqual(page.read_text(), "a <!-- typical:begin -->\n<!-- typical: a processor -->\n"
                         f"{short}<!-- typical:end --> b\n")
        text = tables.read_text()
        self.assertTrue(text.startswith("<!-- bench:begin -->\n<!-- bench: a processor -->\n"
                                        "## a processor\n\n- machine: a processor"), text)
        self.assertTrue(text.endswith("<!-- bench:end --> c\n"), text)

    def test_each_processor_keeps_its_tables(self) -> None:
        page, tables = self.folder / "performance.md", self.folder / "measurements.md"
        page.write_text("a\n<!-- typical:begin -->\n<!-- typical:end -->\nb\n")
        tables.write_text("c\n<!-- bench:begin -->\n<!-- bench:end -->\nd\n")

        def measure(processor: str, ratio: float) -> None:
            row = "attend/plain/1x8x50x16"
            self.tables(({**CONTEXT, "cpu": processor},
                         [result(f"{row}/heed", 2), result(f"{row}/SDPA", 3, **compared(ratio))]),
                        arguments=("--typical", str(page), "--doc", str(tables)))

        def figures(path: Path) -> list[str]:
            return re.findall(r"^(?:## .*|.*SDPA.*|[a-d])$", path.read_text(), re.MULTILINE)

        measure("EPYC (Zen 4)", 1.5)
        measure("EPYC (Zen 5)", 2.5)
        old = page.read_text()
        measure("EPYC (Zen 5)", 2.5)
        self.assertEqual(page.read_text(), old)
        measure("EPYC (Zen 4)", 1.75)
        self.assertEqual(page.read_text(), old.replace("**1.5**", "**1.8**"))
        self.assertEqual(figures(page), [
            "a", "| 50 tokens, 8 heads of 16 | 2.00 ms | SDPA | 3.00 ms | **1.8** |",
            "| 50 tokens, 8 heads of 16 | 2.00 ms | SDPA | 3.00 ms | **2.5** |", "b"])
        line = "| 1x8x50x16 | 2.00 ms |  |  | SDPA | 3.00 ms |  | {} |  |  |".format
        self.assertEqual(figures(tables), [
            "c", "## EPYC (Zen 4)", line("1.75 (1.65–1.85)"),
            "## EPYC (Zen 5)", line("2.50 (2.40–2.60)"), "d"])

    def test_a_row_without_peers(self) -> None:
        text = self.tables((CONTEXT, [result("read/all/heed", 2, peak_bytes=1)]))
        self.assertIn("| all | 2.00 ms |  | 1 B | | | | | | |\n", text)

    def test_a_peer_of_whose_time_a_share_counts(self) -> None:
        text = self.tables((CONTEXT, [
            result("masks/prefix/1x2/heed", 2, peak_bytes=1),
            result("masks/prefix/1x2/no mask", 4, peak_bytes=1,
                   **compared(1.0, share=0.504, target=0.8))]))
        self.assertIn("| 1x2 | 2.00 ms |  | 1 B | no mask × 0.50 | 4.00 ms | 1 B "
                      "| 1.00 (0.90–1.10) | 0.80 | yes |\n", text)

    def test_the_plot(self) -> None:
        report = (CONTEXT, [result("read/all/heed", 2, peak_bytes=1)])
        self.assertNotIn("![", self.tables(report))
        self.assertIn("](images/length.png)\n",
                      self.tables(report, arguments=("--plot", "images/length.png")))


if __name__ == "__main__":
    unittest.main()
