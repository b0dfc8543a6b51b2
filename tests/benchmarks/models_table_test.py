# SPDX-License-Identifier: BSD-3-Clause
"""The tables of benchmarks/models.py and encoders.py, of programs that answer at once."""

import contextlib
import io
import sys
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import encoders  # noqa: E402
import models  # noqa: E402

HEED = """
import sys
speed = {"unpacked": 150.0, "int4_activations": 400.0}.get(sys.argv[3], 300.0)
for line in sys.stdin:
    print({"start": 2.0, "token": 7}.get(line.split()[0], speed), flush=True)
"""
PEER = """
import sys
engine = sys.argv[1]
if engine == "vLLM":
    import nothing_of_this_name
for line in sys.stdin:
    if engine == "CTranslate2" and line.startswith("batch"):
        sys.exit("no batches")
    speed = 100.0 if engine == "llama.cpp" else 50.0
    print({"start": 1.0, "token": 7}.get(line.split()[0], speed), flush=True)
"""
ENGINES = ["llama.cpp", "CTranslate2", "vLLM"]


class Table(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.heed = self.folder / "heed"
        self.heed.write_text(f"#!{sys.executable}\n{HEED}")
        self.heed.chmod(0o755)
        self.suite = replace(models.LANGUAGE_MODELS, files=self.folder / "files.py", peers=self.folder / "peers.py",
                             pythons={})
        self.suite.files.write_text("")
        self.suite.peers.write_text(PEER)

    def lines(self, kind: str) -> list[str]:
        table = models.Table(self.suite, str(self.heed), self.folder, ENGINES, threads=1, turns=2)
        rows = [("135M", kind, work) for work in ("start", "prompt/128", "batch/16")]
        with contextlib.redirect_stdout(io.StringIO()):
            table.add_rows("135M", kind, rows)
            table.add_left_out()
        return table.lines

    def test_rows_name_the_best_of_the_others(self) -> None:
        start, prompt, batch, *rest = self.lines("float32")
        self.assertEqual("| 135M | float32 | start | 2.00 s | 2.00 s |  | 1.00 s | 1.00 s |  | llama.cpp | 0.50 |", start)
        self.assertEqual("| 135M | float32 | prompt/128 | 150 | 300 |  | 100 | 50.0 |  | llama.cpp | 3.00 |", prompt)
        self.assertEqual("| 135M | float32 | batch/16 | 150 | 300 |  | 100 |  |  | llama.cpp | 3.00 |", batch)
        self.assertEqual(
            ["", "Without vLLM in all rows: `ModuleNotFoundError: No module named 'nothing_of_this_name'`",
             "", "Without CTranslate2 in `models/135M/float32/batch/16`: `no batches`"], rest)

    def test_formats_that_an_engine_lacks_are_not_asked_for(self) -> None:
        _, prompt, _ = self.lines("int4")
        self.assertEqual("| 135M | int4 | prompt/128 |  | 300 | 400 | 100 |  |  | llama.cpp | 4.00 |", prompt)

    def test_engines_that_disagree_are_told(self) -> None:
        self.suite.peers.write_text(PEER.replace('"token": 7', '"token": 8'))
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            self.lines("float32")
        self.assertEqual("The engines do not agree on `token 128`: {'heed': 7.0, 'heed, packed': 7.0, "
                         "'llama.cpp': 8.0, 'CTranslate2': 8.0}\n", errors.getvalue())

    def test_files_that_cannot_be_made_leave_the_engine_out(self) -> None:
        self.suite.files.write_text("import sys\nif sys.argv[1] == 'llama.cpp': sys.exit('no files')")
        _, prompt, _, _, reason = self.lines("int4")
        self.assertEqual("| 135M | int4 | prompt/128 |  | 300 | 400 |  |  |  |  |  |", prompt)
        self.assertEqual("Without llama.cpp in all rows: `no files`", reason)


class Encoders(unittest.TestCase):
    def test_a_work_is_asked_with_its_numbers(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            program, files = Path(folder) / "heed", Path(folder) / "files.py"
            program.write_text(f"#!{sys.executable}\nimport sys\nfor line in sys.stdin:\n"
                               "    print(line.split()[-1] if line.startswith('batch 32') else 1, flush=True)\n")
            program.chmod(0o755)
            files.write_text("")
            suite = replace(encoders.ENCODERS, files=files)
            table = models.Table(suite, str(program), Path(folder), [], threads=1, turns=1)
            with contextlib.redirect_stdout(io.StringIO()):
                table.add_rows("MiniLM", "bfloat16", [("MiniLM", "bfloat16", "batch/32x128")])
        self.assertEqual(["| MiniLM | bfloat16 | batch/32x128 | 128 | 128 |  |  |  |"], table.lines)

    def test_names_have_the_suite(self) -> None:
        self.assertEqual([("ViT-base", "int8", "batch/8x224")], encoders.ENCODERS.chosen("^encoders/ViT.*int8/batch/8x"))
        self.assertEqual({"MiniLM", "ViT-base"}, {row[0] for row in encoders.ENCODERS.chosen(".")})


class Rows(unittest.TestCase):
    def test_some_are_measured_only_if_the_filter_names_them(self) -> None:
        self.assertEqual({"135M"}, {row[0] for row in models.LANGUAGE_MODELS.chosen(".")})
        self.assertEqual({"1100M"}, {row[0] for row in models.LANGUAGE_MODELS.chosen("/1100M/")})
        self.assertEqual([("135M", "int4", "decode/64")], models.LANGUAGE_MODELS.chosen("int4/decode/64$"))


if __name__ == "__main__":
    unittest.main()
