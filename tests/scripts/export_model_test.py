# SPDX-License-Identifier: BSD-3-Clause
"""What export_model.py writes for a class of one's own, and what it says."""

import contextlib
import importlib.util
import io
import os
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "export_model.py"

MODELS = """
import torch

class Linear(torch.nn.Module):
    def __init__(self, width: int = 4):
        super().__init__()
        self.fc = torch.nn.Linear(width, width)

    def forward(self, x):
        return self.fc(x)

class Embedding(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(10, 4)

    def forward(self, ids):
        return {"rows": self.table(ids)}

class Scores(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, query, key):
        return self.fc(query) @ key.transpose(-1, -2)

class NotScriptable(torch.nn.Module):
    def forward(self, x, **options):
        return x

class NotExportable(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x

class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(4, 4)
        self.b = torch.nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x))

def make(width):
    return Linear(width)

def number():
    return 3
"""

TIED = ["a.bias", "a.weight", "b.bias", "b.weight"]

spec = importlib.util.spec_from_file_location("export_model", SCRIPT)
export_model = importlib.util.module_from_spec(spec)
spec.loader.exec_module(export_model)
import torch  # noqa: E402  the script says what to do where it is missing

sys.path.insert(0, str(ROOT / "tests" / "support"))
from seeds import MOVE, SeededTest, assert_close  # noqa: E402

try:
    from safetensors.torch import load_file
except ImportError:
    load_file = None
# Of the largest value: what float32 makes of sums of 4 terms, in two orders.
TOLERANCE = 1e-6
needs_safetensors = unittest.skipIf(load_file is None, "no safetensors")


class ExportModel(SeededTest):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)
        Path("models.py").write_text(MODELS)
        paths = mock.patch.object(sys, "path", list(sys.path))
        paths.start()
        self.addCleanup(paths.stop)
        self.addCleanup(sys.modules.pop, "models", None)

    def export(self, *arguments):
        printed = io.StringIO()
        command = ["export_model.py", "--seed", str(MOVE), *arguments]
        with mock.patch.object(sys, "argv", command):
            with contextlib.redirect_stdout(printed):
                export_model.main()
        return printed.getvalue().splitlines()

    def says(self, *arguments):
        """The error, one that stops the script before it writes anything."""
        printed = io.StringIO()
        with self.assertRaises(SystemExit) as stopped, contextlib.redirect_stderr(printed):
            self.export(*arguments)
        self.assertEqual(list(Path().glob("out.*")), [])
        message = printed.getvalue() if stopped.exception.code == 2 else stopped.exception.code
        return message.splitlines()[-1].split("export_model.py: ")[1]

    def archive(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.jit.load("out.pt").state_dict()

    def test_scripts_and_traces_the_same_weights(self):
        self.assertEqual(self.export("models:Linear", "--out", "out.pt"), ["out.pt"])
        scripted = self.archive()
        traced = ("--trace", "--example-shape", "2,3,4", "--out", "out.pt")
        self.assertEqual(self.export("models.py:Linear", *traced), ["out.pt"])
        self.assertEqual(list(scripted), ["fc.weight", "fc.bias"])
        for name, tensor in self.archive().items():
            self.assertTrue(tensor.equal(scripted[name]), name)

    def assert_same_weights(self, weights):
        """As a TorchScript archive of the same seed has them."""
        self.export("models:Linear", "--out", "out.pt")
        expected = self.archive()
        self.assertEqual(sorted(weights), sorted(expected))
        for name, tensor in expected.items():
            self.assertTrue(weights[name].equal(tensor), name)

    def test_writes_programs(self):
        self.export("models:Linear", "--out", "out.pt2", "--example-shape", "2,3,4", "--fixture")
        program = torch.export.load("out.pt2")
        self.assert_same_weights(program.state_dict)
        fixture = torch.load("out.fixture.pt")
        assert_close(program.module()(fixture["x"]), fixture["none.output"], TOLERANCE)
        self.export("models:Tied", "--out", "out.pt2", "--example-shape", "2,4")
        self.assertEqual(sorted(torch.export.load("out.pt2").state_dict), TIED)

    @needs_safetensors
    def test_writes_safetensors(self):
        self.export("models:Linear", "--out", "out.safetensors")
        self.assert_same_weights(load_file("out.safetensors"))
        self.export("models:Linear", "--format", "safetensors", "--out", "out.bin")
        self.assert_same_weights(load_file("out.bin"))
        self.export("models:Tied", "--out", "out.safetensors")
        self.assertEqual(sorted(load_file("out.safetensors")), TIED)

    def test_takes_trained_weights(self):
        trained = torch.nn.ModuleDict({"fc": torch.nn.Linear(3, 3)}).state_dict()
        torch.save(trained, "state.pt")
        torch.save({"epoch": 7, "model": trained}, "checkpoint.pt")
        for weights in (("state.pt",), ("checkpoint.pt", "--key", "model")):
            self.export("models:make", "--args", "[3]", "--out", "out.pt", "--weights", *weights)
            self.assertTrue(self.archive()["fc.weight"].equal(trained["fc.weight"]))

    def test_writes_fixtures_of_several_inputs(self):
        self.export("models:Scores", "--example-shape", "2,3,4", "--example-shape", "2,5,4",
                    "--fixture", "--out", "out.pt")
        fixture = torch.load("out.fixture.pt")
        self.assertEqual(fixture["query"].shape, (2, 3, 4))
        self.assertEqual(fixture["key"].shape, (2, 5, 4))
        self.assertEqual(fixture["none.output"].shape, (2, 3, 5))
        weight, bias = self.archive().values()
        projected = fixture["query"] @ weight.T + bias
        expected = projected @ fixture["key"].transpose(1, 2)
        assert_close(fixture["none.output"], expected, TOLERANCE)
        gradient = fixture["loss_weight"].transpose(1, 2) @ projected
        assert_close(fixture["none.grad.key"], gradient, TOLERANCE)

    def test_takes_example_tokens_and_a_dict_as_output(self):
        torch.save(torch.tensor([[1, 2, 9]]), "ids.pt")
        self.export("models:Embedding", "--example", "ids.pt", "--trace", "--fixture", "--out",
                    "out.pt")
        fixture = torch.load("out.fixture.pt")
        self.assertTrue(fixture["none.output"].equal(self.archive()["table.weight"][fixture["x"]]))
        self.assertNotIn("none.grad.x", fixture)

    def test_does_not_warn(self):
        for output in (["--trace", "--out", "out.pt"], ["--out", "out.pt2"]):
            command = [sys.executable, "-W", "error::DeprecationWarning", str(SCRIPT),
                       "models:Linear", "--example-shape", "2,4", "--fixture", *output]
            ran = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual((ran.returncode, ran.stderr), (0, ""))

    def test_says_what_is_wrong_with_a_target(self):
        out = ("--out", "out.pt")
        self.assertEqual(self.says("models", *out), "models must be module:Class or file.py:Class")
        self.assertEqual(self.says("no.py:Linear", *out), "no.py is not a file")
        self.assertEqual(
            self.says("absent:Linear", *out), "cannot import absent: No module named 'absent'"
        )
        self.assertEqual(
            self.says("models:Liner", *out),
            "models has no torch.nn.Module, and no function that returns one, named Liner",
        )
        self.assertEqual(
            self.says("models:number", *out), "number must return a torch.nn.Module, not int"
        )
        self.assertEqual(
            self.says("models:make", *out),
            "cannot build make from {}: make() missing 1 required positional argument: 'width' "
            "(--args gives the arguments)",
        )
        self.assertIn(
            "width=4 is not JSON such as '{\"emb_dim\": 64}'",
            self.says("models:make", "--args", "width=4", *out),
        )

    def test_says_what_is_wrong_with_weights(self):
        def says(*weights):
            return self.says("models:Linear", "--out", "out.pt", "--weights", *weights)

        torch.save({"epoch": 7, "model": {}}, "checkpoint.pt")
        torch.save(torch.nn.Linear(4, 4), "module.pt")
        torch.save({"fc.weight": torch.ones(4, 4)}, "part.pt")
        self.assertEqual(says("absent.pt"), "cannot read absent.pt: No such file or directory")
        self.assertEqual(
            says("module.pt"),
            "module.pt must be a file of tensors, as torch.save(module.state_dict(), ...) writes "
            "it",
        )
        self.assertEqual(
            says("checkpoint.pt"),
            "checkpoint.pt must hold a state_dict (--key names the entry that is one); it has "
            "epoch, model",
        )
        self.assertEqual(
            says("checkpoint.pt", "--key", "ema"), "checkpoint.pt holds nothing under ema"
        )
        self.assertEqual(
            says("part.pt"),
            "part.pt does not fit: Error(s) in loading state_dict for Linear: Missing key(s) in "
            'state_dict: "fc.bias".',
        )

    def test_says_what_is_wrong_with_inputs_and_output(self):
        out = ("--out", "out.pt")
        self.assertEqual(
            self.says("models:Linear", "--fixture", *out),
            "error: --trace and --fixture need --example-shape or --example",
        )
        # From 2.15 on, PyTorch names the operator first.
        self.assertRegex(
            self.says("models:Linear", "--trace", "--example-shape", "2,5", *out),
            "cannot trace Linear: (addmm: )?mat1 and mat2 shapes cannot be multiplied",
        )
        self.assertEqual(
            self.says("models:Linear", "--trace", "--example-shape", "2,4", "--example-shape", "2",
                      *out),
            "2 inputs are too many: forward takes x",
        )
        with self.assertRaises(SystemExit) as stopped:  # several lines: the place in the source
            self.export("models:NotScriptable", *out)
        self.assertRegex(
            str(stopped.exception),
            r"TorchScript cannot compile NotScriptable \(--trace records a call instead\): ",
        )
        self.assertEqual(
            self.says("models:Linear", "--out", "."), "--out must name a file; . is a directory"
        )

    def test_says_what_is_wrong_with_a_format(self):
        model = "models:Linear"
        self.assertEqual(
            self.says(model, "--format", "pt2", "--out", "out.pt", "--example-shape", "2,4"),
            "error: --out out.pt has the ending of torchscript, not of pt2",
        )
        self.assertEqual(
            self.says(model, "--format", "torchscript", "--out", "out.safetensors"),
            "error: --out out.safetensors has the ending of safetensors, not of torchscript",
        )
        self.assertEqual(
            self.says(model, "--out", "out.pt2"),
            "error: pt2 needs --example-shape or --example: torch.export calls the module",
        )
        self.assertEqual(
            self.says(model, "--out", "out.pt2", "--trace", "--example-shape", "2,4"),
            "error: --script and --trace are for torchscript, not for pt2",
        )
        self.assertIn("invalid choice: 'onnx'", self.says(model, "--format", "onnx", "--out", "x"))
        self.assertIn(
            "torch.export cannot export NotExportable: ",
            self.says("models:NotExportable", "--out", "out.pt2", "--example-shape", "2,4"),
        )
        command = [sys.executable, str(SCRIPT), model, "--out", "out.pt2", "--example-shape", "2,5"]
        ran = subprocess.run(command, capture_output=True, text=True)
        reason = r"\Aexport_model.py: torch.export cannot export Linear: .*\n\Z"
        self.assertRegex(ran.stderr, reason)  # and nothing that torch logs
        with mock.patch.dict(sys.modules, {"safetensors.torch": None}):
            self.assertEqual(
                self.says(model, "--out", "out.safetensors"),
                f"--format safetensors: '{sys.executable} -m pip install safetensors' first",
            )


if __name__ == "__main__":
    unittest.main()
