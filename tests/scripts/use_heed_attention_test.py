# SPDX-License-Identifier: BSD-3-Clause
"""What use_heed_attention.py changes in exported programs, what it leaves, and what it says.

    use_heed_attention_test.py --library libheed_ops.so [unittest argument...]
"""

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
SCRIPT = ROOT / "scripts" / "python" / "use_heed_attention.py"

spec = importlib.util.spec_from_file_location("use_heed_attention", SCRIPT)
script = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = script  # for dataclasses
spec.loader.exec_module(script)
import torch  # noqa: E402  the script says what to do where it is missing
from torch.export import Dim, default_decompositions  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention as sdpa  # noqa: E402

sys.path.insert(0, str(ROOT / "tests" / "support"))
from seeds import SeededTest, assert_close  # noqa: E402

BATCH, HEADS, LENGTH, DIM = 2, 4, 5, 8
# Of the largest value: scores up to 10 times as large as the softmax of them, in float32, whose last
# digit is 1e-7; in both layers of Layers.
TOLERANCE = 1e-5


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


class Layer(torch.nn.Module):
    def forward(self, x):
        return x + sdpa(x, x, x, is_causal=True)


class Layers(torch.nn.Module):
    """Whose second layer broadcasts queries."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(), Layer()])
        self.last = Model(lambda x: sdpa(x[:, :1], x, x))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


def exported(function, *inputs, dynamic=None):
    model = function if isinstance(function, torch.nn.Module) else Model(function)
    shapes = None if dynamic is None else (dynamic,) if model.__class__ is Model else dynamic
    return torch.export.export(model, inputs, dynamic_shapes=shapes)


def with_kernels(program):
    """Without CompositeImplicit operators, but with LibTorch's kernel for the CPU."""
    table = default_decompositions()
    table.pop(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default, None)
    return program.run_decompositions(table)


def saved_and_loaded(program):
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    return torch.export.load(buffer)


def targets(program):
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def by_token(tensor):
    """[B, H, L, D] with the strides that a projection leaves"""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


class UseHeedAttention(SeededTest):
    def setUp(self):
        super().setUp()
        self.qkv = torch.randn(3, BATCH, HEADS, LENGTH, DIM).unbind()

    def assert_computes(self, program, function, inputs):
        expected, actual = function(*inputs), program.module()(*inputs)
        assert_close(actual, expected, TOLERANCE)
        self.assertEqual(actual.stride(), expected.stride())

    def changes(self, function, *inputs, calls=1):
        """Replaces all calls, with the same numbers. Returns the program."""
        program = exported(function, *inputs)
        report = script.use_heed_attention(program)
        self.assertEqual(([len(report.changed), report.left]), [calls, []])
        program = saved_and_loaded(program)
        self.assertNotIn("aten.scaled_dot_product_attention.default", targets(program))
        self.assert_computes(program, function, inputs)
        return program

    def leaves(self, function, *inputs):
        """Changes nothing. Returns why."""
        program = exported(function, *inputs)
        before = str(program.graph)
        report = script.use_heed_attention(program)
        self.assertEqual(report.changed, [])
        self.assertEqual(str(program.graph), before)
        ((name, reason),) = report.left
        return reason

    def test_plain_causal_and_scaled(self):
        self.changes(lambda q, k, v: sdpa(q, k, v), *self.qkv)
        program = self.changes(lambda q, k, v: sdpa(q, k, v, is_causal=True, scale=0.3), *self.qkv)
        (node,) = program.graph.find_nodes(
            op="call_function", target=torch.ops.heed.attend.default)
        self.assertEqual(node.kwargs, {"causal": True, "scale": 0.3})

    def test_causal_keeps_the_first_query_at_the_first_key(self):
        q, k, v = self.qkv
        for queries, keys in ((3, 5), (5, 3)):
            self.changes(lambda q, k, v: sdpa(q, k, v, is_causal=True),
                         q[:, :, :queries], k[:, :, :keys], v[:, :, :keys])

    def test_masks(self):
        full = (BATCH, HEADS, LENGTH, LENGTH)
        for shape in ((5, 5), (1, 5), (5, 1), (4, 5, 5), (1, 1, 5), full, (2, 1, 1, 5),
                      (1, 4, 1, 1), (2, 1, 5, 1)):
            for mask in (torch.rand(shape) > 0.3, torch.randn(shape)):
                with self.subTest(shape=shape, dtype=mask.dtype):
                    self.changes(lambda q, k, v, m: sdpa(q, k, v, m), *self.qkv, mask)

    def test_rows_that_see_nothing_are_zero(self):
        seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
        seen[2] = False
        hidden = torch.zeros(LENGTH, LENGTH).masked_fill(~seen, -torch.inf)
        for mask in (seen, hidden):
            program = self.changes(lambda q, k, v, m: sdpa(q, k, v, m), *self.qkv, mask)
            self.assertEqual(program.module()(*self.qkv, mask)[:, :, 2].abs().max(), 0)

    def test_grouped_heads(self):
        q, k, v = self.qkv
        self.changes(lambda q, k, v: sdpa(q, k, v, enable_gqa=True), q, k[:, :2], v[:, :2])
        self.changes(lambda q, k, v: sdpa(q, k, v), q, k[:, :1], v[:, :1])

    def test_other_sizes_and_types(self):
        q, k, v = self.qkv
        self.changes(lambda q, k, v: sdpa(q, k, v), q, k, v[..., :3])
        self.changes(lambda q, k, v: sdpa(q, k, v), *(x.double() for x in self.qkv))

    def test_fewer_dimensions(self):
        for inputs in ([x[0] for x in self.qkv], [x[0, 0] for x in self.qkv]):
            self.changes(lambda q, k, v: sdpa(q, k, v, is_causal=True), *inputs)
        sequences = [x[0] for x in self.qkv]
        for shape in ((), (5,), (5, 5), (4, 1, 5)):
            self.changes(lambda q, k, v, m: sdpa(q, k, v, m), *sequences, torch.randn(shape))

    def test_dropout_stays(self):
        program = exported(lambda q, k, v: sdpa(q, k, v, dropout_p=0.25), *self.qkv)
        script.use_heed_attention(program)
        (node,) = program.graph.find_nodes(
            op="call_function", target=torch.ops.heed.attend.default)
        self.assertEqual(node.kwargs, {"dropout": 0.25})

    def test_strides_for_the_views_after_it(self):
        def merged(q, k, v):
            return sdpa(q, k, v).transpose(1, 2).view(BATCH, LENGTH, -1)

        program = self.changes(merged, *(by_token(x) for x in self.qkv))
        self.assertEqual(targets(program)[:2], ["heed.attend.default", "aten.transpose.int"])
        self.changes(lambda q, k, v: sdpa(q, k, v).view(BATCH, -1, DIM), *self.qkv)

    def test_sizes_stay_dynamic(self):
        def causal(q, k, v):
            return sdpa(q, k, v, is_causal=True)

        def own(x):
            return sdpa(x, 2 * x, x + 1, is_causal=True)

        def masked(x, m):
            return sdpa(x, 2 * x, x + 1, m)

        sizes = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC}
        for function, inputs, dynamic, others in (
            (causal, self.qkv, (sizes,) * 3, [torch.randn(3, 4, n, DIM) for n in (6, 9, 9)]),
            (causal, self.qkv, (sizes,) * 3, [torch.randn(3, 4, n, DIM) for n in (9, 6, 6)]),
            (own, self.qkv[:1], (sizes,), [torch.randn(3, 4, 7, DIM)]),
            (masked, (self.qkv[0], torch.rand(2, 1, 1, 5) > 0.3),
             (sizes, {0: Dim.DYNAMIC, 3: Dim.DYNAMIC}),
             [torch.randn(3, 4, 7, DIM), torch.rand(3, 1, 1, 7) > 0.3]),
        ):
            program = exported(function, *inputs, dynamic=dynamic)
            report = script.use_heed_attention(program)
            self.assertEqual(len(report.changed), 1, report)
            self.assert_computes(saved_and_loaded(program), function, others)

    def test_branches(self):
        def function(x):
            with torch.no_grad():
                y = sdpa(x, x, x)
            return sdpa(x, y, y)

        self.changes(function, self.qkv[0], calls=2)

    def test_kernels(self):
        program = with_kernels(
            exported(lambda q, k, v, m: sdpa(q, k, v, m), *self.qkv, torch.randn(5, 5)))
        self.assertIn("aten._scaled_dot_product_flash_attention_for_cpu.default", targets(program))
        report = script.use_heed_attention(program)
        self.assertEqual(report.changed, ["_scaled_dot_product_flash_attention_for_cpu"])
        self.assertEqual(report.left, [])
        inputs = (*self.qkv, torch.randn(5, 5))
        self.assert_computes(saved_and_loaded(program), sdpa, inputs)

    def test_says_why_a_call_stays(self):
        q, k, v = self.qkv
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        for function, inputs, reason in (
            (sdpa, (q[:1], k, v), "the batch of key (2) is not known to be query's (1)"),
            (sdpa, (q, k, v[:1]), "the batch of value (1) is not known to be query's (2)"),
            (sdpa, (q, k[:, :1], v), "key has 1 heads, and value 4"),
            (sdpa, (q[0, :1], k[0], v[0]), "key has 4 heads, query 1, without enable_gqa"),
            (sdpa, (q[:1], k[:1], v[:1], torch.randn(2, 1, 5, 5)),
             "attn_mask [2, 1, 5, 5] is not known to broadcast to [1, 4, 5, 5]"),
            (sdpa, (q[0], k[0], v[0], torch.randn(1, 1, 5, 5)),
             "attn_mask has 4 dimensions, query 3"),
            (sdpa, (q[None], k[None], v[None]), "query, key and value have 5, 5, 5 dimensions"),
            (lambda q, k, v: kernel(q, k, v)[1], self.qkv, "its log-sum-exp is used"),
        ):
            with self.subTest(reason):
                self.assertEqual(self.leaves(function, *inputs), reason)

    def test_leaves_a_causal_call_with_a_mask(self):
        mask = torch.rand(5, 5) > 0.3
        try:
            reason = self.leaves(lambda q, k, v: sdpa(q, k, v, mask, is_causal=True), *self.qkv)
        except RuntimeError as error:
            self.assertIn("should not be set when is_causal", str(error))
            self.skipTest("torch refuses such a call")
        self.assertEqual(reason, "it has both attn_mask and is_causal")

    def test_says_why_a_kernel_for_cuda_stays(self):
        kernel = torch.ops.aten._scaled_dot_product_efficient_attention
        inputs = [x.to("meta") for x in self.qkv]
        self.assertEqual(
            self.leaves(lambda q, k, v: kernel(q, k, v, None, False)[0], *inputs),
            "it is a kernel for CUDA: export the program without run_decompositions")

    def test_names_calls_by_their_submodules(self):
        report = script.use_heed_attention(exported(Layers(), self.qkv[0]))
        self.assertEqual(
            str(report),
            "changed 2 of 3 calls of attention\n"
            "  changed: layers.0 (scaled_dot_product_attention)\n"
            "  changed: layers.1 (scaled_dot_product_attention_1)\n"
            "  left: last (scaled_dot_product_attention_2): key has 4 heads, query 1, without "
            "enable_gqa")


class Command(SeededTest):
    library = ""

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)

    def run_script(self, *arguments):
        printed = io.StringIO()
        with mock.patch.object(sys, "argv", ["use_heed_attention.py", *arguments]):
            with contextlib.redirect_stdout(printed):
                script.main()
        return printed.getvalue()

    def says(self, *arguments):
        with self.assertRaises(SystemExit) as stopped:
            self.run_script(*arguments, "--library", self.library)
        self.assertFalse(Path("out.pt2").exists())
        return stopped.exception.code

    def test_writes_the_changed_program(self):
        x = torch.randn(BATCH, HEADS, LENGTH, DIM)
        torch.export.save(exported(Layers(), x), "in.pt2")
        command = [sys.executable, "-W", "error::DeprecationWarning", str(SCRIPT), "in.pt2",
                   "out.pt2", "--library", self.library]
        ran = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertEqual(ran.stdout.splitlines()[0],
                         "out.pt2: changed 2 of 3 calls of attention")
        program = torch.export.load("out.pt2")
        self.assertEqual(targets(program).count("heed.attend.default"), 2)
        assert_close(program.module()(x), Layers()(x), TOLERANCE)

    def test_says_what_is_wrong(self):
        Path("text.pt2").write_text("text")
        x = torch.randn(2)
        torch.export.save(exported(lambda x: x + 1, x), "other.pt2")
        self.assertEqual(
            self.says("missing.pt2", "out.pt2"),
            "use_heed_attention.py: cannot read missing.pt2: No such file or directory")
        self.assertRegex(
            self.says("text.pt2", "out.pt2"),
            "^use_heed_attention.py: text.pt2 must be a program that torch.export.save wrote: ")
        self.assertEqual(
            self.says("other.pt2", "out.pt2"),
            "use_heed_attention.py: other.pt2 holds no call of attention: was it exported with "
            "run_decompositions?")
        x = torch.randn(BATCH, HEADS, LENGTH, DIM)
        torch.export.save(exported(Layers(), x), "in.pt2")
        self.assertEqual(
            self.says("in.pt2", "missing/out.pt2"),
            "use_heed_attention.py: cannot write missing/out.pt2: No such file or directory")

    def test_says_what_is_wrong_with_the_library(self):
        def says(*arguments):
            command = [sys.executable, str(SCRIPT), "in.pt2", "out.pt2", *arguments]
            ran = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(ran.returncode, 1)
            return ran.stderr

        self.assertRegex(says(), "^use_heed_attention.py: cannot load libheed_ops.so: ")
        self.assertRegex(says("--library", "no.so"), "^use_heed_attention.py: cannot load no.so: ")
        self.assertEqual(
            says("--library", "libc.so.6"),
            "use_heed_attention.py: libc.so.6 registers no heed::attend; it must be heed's "
            "libheed_ops.so\n")

    def test_the_function_says_that_the_library_is_missing(self):
        code = f"""
import sys
sys.path.insert(0, {str(SCRIPT.parent)!r})
import torch
from use_heed_attention import use_heed_attention
program = torch.export.export(torch.nn.Linear(2, 2), (torch.randn(1, 2),))
try:
    use_heed_attention(program)
except RuntimeError as error:
    print(error)
"""
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual(
            ran.stdout,
            "use_heed_attention: heed::attend is not registered: "
            'torch.ops.load_library("libheed_ops.so") comes first\n')


def main():
    arguments = sys.argv[1:]
    if arguments[:1] != ["--library"] or len(arguments) < 2:
        sys.exit("use_heed_attention_test.py: --library libheed_ops.so must come first")
    Command.library = os.path.abspath(arguments[1])
    script.load_library(Path(Command.library))
    warnings.filterwarnings("ignore", category=FutureWarning, module="copyreg")  # of torch.export
    unittest.main(argv=[sys.argv[0], *arguments[2:]])


if __name__ == "__main__":
    main()
