# SPDX-License-Identifier: BSD-3-Clause
"""The table of benchmarks/training.py, of programs that answer at once."""

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import training  # noqa: E402
from turns import Failed, Program, Sizes  # noqa: E402

TINY = Sizes(vocabulary=10, layers=2, width=8, heads=2, groups=1, hidden=16, context=3, batch=5)
HEED = """
import sys
for work in sys.stdin:
    print({"train": 100, "product": 1e6}[work.strip()], flush=True)
"""
PEER = HEED.replace("100", "50")


class Table(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.heed = Path(folder.name) / "heed"
        self.heed.write_text(f"#!{sys.executable}\n{HEED}")
        self.heed.chmod(0o755)

    def lines(self, peer: str) -> list[str]:
        """Those of a row of float32 and of one of bfloat16, with a program in each peer's place."""
        command, training.PEER_PROGRAM = training.PEER_PROGRAM, [sys.executable, "-c", peer]
        self.addCleanup(setattr, training, "PEER_PROGRAM", command)
        table = training.Table(str(self.heed), ["transformers", "JAX"], threads=1, turns=2)
        with contextlib.redirect_stdout(io.StringIO()):
            table.add_row(TINY, "float32")
            table.add_row(TINY, "bfloat16")
            table.add_left_out()
        return table.lines

    def test_rows(self) -> None:
        float32, bfloat16 = self.lines(PEER)
        # 100 tokens a second, of 7776 FLOP each, beside 1e6 FLOP a second
        self.assertRegex(float32, r"^\| 2 × 8 \| 10 \| 5 × 3 \| float32 \| 100 \| 78% \| \d+ MiB "
                                  r"\| 50 \| 2.00 \| 50 \| 2.00 \|$")
        self.assertRegex(bfloat16, r"\| bfloat16 .* MiB \| 50 \| 2.00 \| \| \|$")  # JAX has float32 alone

    def test_peers_that_fail_are_left_out(self) -> None:
        float32, bfloat16, *rest = self.lines("import nothing_of_this_name")
        self.assertRegex(float32, r" MiB \| \| \| \| \|$")
        self.assertRegex(bfloat16, r" MiB \| \| \| \| \|$")
        self.assertEqual(["", "Without transformers in all rows: "
                          "`ModuleNotFoundError: No module named 'nothing_of_this_name'`",
                          "", "Without JAX in all rows: "
                          "`ModuleNotFoundError: No module named 'nothing_of_this_name'`"], rest)


class FlopPerToken(unittest.TestCase):
    def test_training(self) -> None:
        # Of a layer: queries and outputs 2 * 8 * 8, keys and values 2 * 8 * 4, feed-forward 3 * 8 * 16, scores
        # and their products with values 2 * 8 * 2 keys. The head: 10 * 8. Twice, three times.
        layer = 2 * 8 * 8 + 2 * 8 * 4 + 3 * 8 * 16 + 2 * 8 * 2
        self.assertEqual(2 * 3 * (2 * layer + 10 * 8), TINY.training_flop_per_token)


class Programs(unittest.TestCase):
    def test_a_program_that_is_killed_has_its_status_as_reason(self) -> None:
        with Program([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], 1, "float32", TINY) as program:
            with self.assertRaisesRegex(Failed, "^it ended with -9$"):
                program.ask("train")


if __name__ == "__main__":
    unittest.main()
