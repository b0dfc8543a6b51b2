# SPDX-License-Identifier: BSD-3-Clause
"""What heed_ops.py registers for heed's operators: FLOPs, rules for DTensors, compositions.

    operator_rules.py --library libheed_ops.so [unittest argument...]
"""

import sys
import tempfile
import unittest
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "scripts" / "python"),
                str(Path(__file__).resolve().parents[1] / "support")]
import heed_ops  # noqa: E402
from operator_calls import (  # noqa: E402
    TOLERANCES, compiled, leaves, main, make_inputs, make_options, weights_like)
from seeds import SeededTest, assert_close, seed_all  # noqa: E402

heed = torch.ops.heed
LIBRARY = sys.argv[sys.argv.index("--library") + 1] if "--library" in sys.argv else None
OFFSETS, KEY_OFFSETS = torch.tensor([0, 3, 7]), torch.tensor([0, 4, 9])


def packed(inputs):
    return [tensor.detach()[0].transpose(0, 1).contiguous().requires_grad_(tensor.requires_grad)
            for tensor in inputs]


class FlopsTest(SeededTest):
    PAIRS = 2 * 4 * 7 * 9  # of a query and a key, in the batches and heads of make_inputs
    PRODUCTS = {"forward": 2 * (8 + 6), "backward": 2 * (3 * 8 + 2 * 6)}  # for each pair

    def count(self, function):
        with FlopCounterMode(display=False) as counter:
            function()
        return counter.get_total_flops()

    def test_of_both_passes(self):
        forward, backward = (self.PAIRS * each for each in self.PRODUCTS.values())
        for operator in (heed.attend, heed.attend_with_lse, heed.attend_with_weights):
            inputs = make_inputs()
            outputs = []
            found = self.count(lambda: outputs.append(operator(*inputs, causal=True)))
            self.assertEqual(found, forward)
            output = outputs[0] if torch.is_tensor(outputs[0]) else outputs[0][0]
            self.assertEqual(self.count(lambda: output.sum().backward()), backward)
            with torch.no_grad():
                self.assertEqual(self.count(lambda: operator(*inputs, dropout=0.5)), forward)

    def test_are_those_of_pytorch(self):
        inputs = make_inputs(groups=4, grad=False)
        with sdpa_kernel(SDPBackend.MATH):
            expected = self.count(lambda: F.scaled_dot_product_attention(*inputs))
        self.assertEqual(self.count(lambda: heed.attend(*inputs)), expected)

    def test_of_packed_sequences(self):
        inputs = packed(make_inputs())
        pairs = 4 * (3 * 4 + 4 * 5)
        for operator in (heed.attend_varlen, heed.attend_varlen_with_lse):
            def both_passes():
                output = operator(*inputs, OFFSETS, KEY_OFFSETS)
                (output if torch.is_tensor(output) else output[0]).sum().backward()

            self.assertEqual(self.count(both_passes), pairs * sum(self.PRODUCTS.values()))

    def test_of_pages(self):
        query, pages, value_pages = torch.randn(4, 4, 8), torch.randn(3, 2, 16, 8), torch.randn(3, 2, 16, 6)
        table = torch.tensor([[2, 0], [1, 0]])
        found = self.count(lambda: heed.attend_paged(
            query, pages, value_pages, table, torch.tensor([0, 1, 4]), torch.tensor([20, 5])))
        self.assertEqual(found, 4 * (20 + 3 * 5) * self.PRODUCTS["forward"])

    def test_of_the_loss(self):
        x, weight = torch.randn(6, 4, requires_grad=True), torch.randn(9, 4, requires_grad=True)
        targets = torch.arange(6)
        losses = []
        product = 2 * 6 * 4 * 9
        self.assertEqual(self.count(
            lambda: losses.append(heed.linear_cross_entropy(x, weight, targets))), product)
        self.assertEqual(self.count(lambda: losses[0].backward()), 3 * product)

    def test_of_offsets_without_numbers_are_the_most_that_there_can_be(self):
        inputs = [tensor.to("meta") for tensor in packed(make_inputs(grad=False))]
        offsets = [OFFSETS.to("meta"), KEY_OFFSETS.to("meta")]
        for options, pairs in (({}, 7 * 9), ({"longest_query": 4, "longest_key": 5}, 2 * 4 * 5)):
            found = self.count(lambda: heed.attend_varlen(*inputs, *offsets, **options))
            self.assertEqual(found, 4 * pairs * self.PRODUCTS["forward"])


class DecompositionsTest(SeededTest):
    def test_are_the_operators(self):
        for dtype, tolerance in TOLERANCES.items():
            inputs = make_inputs(dtype)
            for name, options in make_options().items():
                for op in (heed.attend, heed.attend_with_lse, heed.attend_with_weights):
                    with self.subTest(op=op, options=name, dtype=dtype):
                        found = heed_ops.decompositions()[op.default](*inputs, **options)
                        expected = op(*inputs, **options)
                        self.check(found, expected, tolerance)
            angles = torch.rand(7, 3) * 6
            for interleaved in (False, True):
                call = (inputs[0], angles.cos(), angles.sin())
                self.check(heed_ops.rotate(*call, interleaved=interleaved),
                           heed.rotate(*call, interleaved=interleaved), tolerance)
            call = (inputs[0], torch.linspace(0.5, 2, 8).to(dtype))
            self.check(heed_ops.rms_norm(*call, eps=1e-3), heed.rms_norm(*call, eps=1e-3), tolerance)
            call = (torch.randn(5, 6).to(dtype), torch.randn(7, 6).to(dtype),
                    torch.tensor([6, 0, -100, 3, 3]))
            for reduction in ("mean", "sum", "none"):
                options = {"reduction": reduction, "softcap": 2.0, "z_loss": 0.1,
                           "label_smoothing": 0.1, "class_weight": torch.linspace(0.5, 2, 7).to(dtype)}
                self.check(heed_ops.linear_cross_entropy(*call, **options),
                           heed.linear_cross_entropy(*call, **options), tolerance)

    def check(self, found, expected, tolerance):
        pairs = [(found, expected)] if torch.is_tensor(found) else zip(found, expected)
        for one, other in pairs:
            self.assertEqual(one.dtype, other.dtype)
            assert_close(one.double(), other.double(), tolerance)

    def test_of_fewer_batches(self):
        inputs = make_inputs(torch.float64, batch=4)
        for of in ("cycled", "repeated"):
            options = {"mask": torch.rand(2, 7, 9) > 0.3, "mask_batch": of}
            self.check(heed_ops.attention(*inputs, **options)[0], heed.attend(*inputs, **options), 1e-12)

    def test_refuse_dropout(self):
        with self.assertRaisesRegex(ValueError, r"^heed_ops.decompositions: dropout \(0.5\) must be 0$"):
            heed_ops.attention(*make_inputs(), dropout=0.5)

    def program(self):
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.linspace(0.5, 2, 8))

            def forward(self, query, key, value, bias):
                angles = torch.arange(query.shape[2])[:, None] * torch.tensor([1.0, 0.1])
                query = heed.rotate(heed.rms_norm(query, self.weight), angles.cos(), angles.sin())
                return heed.attend(query, key, value, bias=bias, causal=True, left_window=4, softcap=3.0)

        length = torch.export.Dim("length", min=2, max=64)
        inputs = (*make_inputs(keys=7, grad=False), torch.randn(7, 7))
        program = torch.export.export(
            Model(), inputs, dynamic_shapes=(*[{2: length}] * 3, {0: length, 1: length}))
        longer = (*make_inputs(length=12, keys=12, grad=False), torch.randn(12, 12))
        return program.run_decompositions(heed_ops.decompositions()), longer, program.module()(*longer)

    def test_leave_no_operator_in_a_program(self):
        program, inputs, expected = self.program()
        self.assertNotIn("heed", " ".join(str(node.target) for node in program.graph.nodes))
        assert_close(program.module()(*inputs), expected, TOLERANCES[torch.float32])

    def test_run_in_onnx_runtime(self):
        try:
            import onnxruntime
            import onnxscript  # noqa: F401
        except ImportError as error:
            self.skipTest(f"Python cannot import {error.name}")
        program, inputs, expected = self.program()
        with tempfile.TemporaryDirectory() as folder:
            torch.onnx.export(program, f=f"{folder}/model.onnx", dynamo=True, verbose=False)
            session = onnxruntime.InferenceSession(f"{folder}/model.onnx")
            found = session.run(None, {argument.name: tensor.numpy() for argument, tensor
                                       in zip(session.get_inputs(), inputs)})
        assert_close(torch.from_numpy(found[0]), expected, TOLERANCES[torch.float32])


class Shards:
    """The checks of one of two processes."""

    def __init__(self):
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

        self.mesh = init_device_mesh("cpu", (2,))
        self.whole = [Replicate()]
        self.distribute = distribute_tensor
        self.placements = {"batch": [Shard(0)], "heads": [Shard(1)], "length": [Shard(2)],
                           "whole": self.whole}

    def spread(self, tensor, placements):
        spread = self.distribute(tensor.detach(), self.mesh, placements)
        return spread.requires_grad_(tensor.requires_grad)

    def spread_options(self, options):
        return {name: self.spread(value, self.whole) if torch.is_tensor(value) else value
                for name, value in options.items()}

    def check(self, operator, inputs, placements, options=None, others=(), function=None):
        """Outputs and gradients are those of one process. Returns the outputs, in shards."""
        options = options or {}
        own = torch.utils._pytree.tree_leaves(operator(*inputs, *others, **options))
        spread, spread_options = ([self.spread(tensor, placements) for tensor in inputs],
                                  self.spread_options(options))
        found = torch.utils._pytree.tree_leaves(
            (function or operator)(*spread, *others, **spread_options))
        given = [torch.where(output.isinf(), 0, weights_like(output)) for output in own]
        for one, other in zip(found, own):
            assert_close(one.full_tensor(), other, TOLERANCES[other.dtype])
        tensors = leaves(inputs, options)
        if not tensors:
            return found
        expected = torch.autograd.grad(own, tensors, given)
        gradients = torch.autograd.grad(found, leaves(spread, spread_options),
                                        [self.spread(tensor, self.whole) for tensor in given])
        for one, other in zip(gradients, expected):
            assert_close(one.full_tensor(), other, TOLERANCES[other.dtype])
        return found

    def attention(self):
        for placements in self.placements.values():
            inputs = make_inputs(torch.float64)
            for options in make_options().values():
                self.check(heed.attend_with_lse, inputs, placements, options)
            options = make_options()["all"]
            self.check(heed.attend, inputs, placements, options)
            self.check(heed.attend_with_weights, inputs, placements, options)
            with torch.no_grad():
                self.check(heed.attend, make_inputs(torch.float64, grad=False), placements)

    def work_is_shared(self):
        for name, size in (("batch", (1, 4)), ("heads", (2, 2)), ("length", (2, 4))):
            found, = self.check(heed.attend, make_inputs(), self.placements[name])
            assert tuple(found.to_local().shape[:2]) == size, (name, found.to_local().shape)

    def sizes_that_do_not_divide(self):
        for sizes in ({"batch": 3}, {"heads": 3, "groups": 3}, {"groups": 1}, {"batch": 1}):
            for placements in self.placements.values():
                self.check(heed.attend, make_inputs(torch.float64, **sizes), placements)

    def fewer_masks(self):
        options = {"mask": torch.rand(2, 7, 9) > 0.3, "mask_batch": "cycled"}
        for placements in self.placements.values():
            self.check(heed.attend, make_inputs(torch.float64, batch=4), placements, options)

    def sequences_and_pages(self):
        inputs = packed(make_inputs(torch.float64))
        for name in ("heads", "whole"):
            for operator in (heed.attend_varlen, heed.attend_varlen_with_lse):
                self.check(operator, inputs, self.placements[name], {"causal": True},
                           (OFFSETS, KEY_OFFSETS))
            pages = [torch.randn(shape) for shape in ((4, 4, 8), (3, 2, 16, 8), (3, 2, 16, 6))]
            self.check(heed.attend_paged, pages, self.placements[name], {"causal": True}, (
                torch.tensor([[2, 0], [1, 0]]), torch.tensor([0, 1, 4]), torch.tensor([20, 5])))

    def layers(self):
        x = make_inputs(torch.float64)[0]
        angles = torch.rand(7, 3, dtype=torch.float64) * 6
        for placements in self.placements.values():
            self.check(lambda x: heed.rotate(x, angles.cos(), angles.sin()), [x], placements)
        weight = torch.linspace(0.5, 2, 8, dtype=torch.float64, requires_grad=True)
        for name, placements in self.placements.items():
            spread = self.spread(x, placements), self.spread(weight, self.whole)
            found = torch.autograd.grad(heed.rms_norm(*spread).square().sum(), spread)
            expected = torch.autograd.grad(heed.rms_norm(x, weight).square().sum(), (x, weight))
            for one, other in zip(found, expected):
                assert_close(one.full_tensor(), other, TOLERANCES[torch.float64])

    def losses(self):
        x, weight = (torch.randn(rows, 4, dtype=torch.float64, requires_grad=True)
                     for rows in (6, 8))
        for placements in (self.whole, self.placements["batch"]):
            self.check(heed.linear_cross_entropy, [x, weight], placements, others=(torch.arange(6),))

    def compiled_functions(self):
        for name in ("batch", "heads"):
            self.check(heed.attend, make_inputs(), self.placements[name], {"causal": True},
                       function=compiled(heed.attend))

    def errors(self):
        query, key, value = (self.spread(tensor, self.placements["heads"])
                             for tensor in make_inputs())
        for name, tensor in (("bias", torch.zeros(7, 9)), ("sinks", torch.zeros(4)),
                             ("mask", torch.ones(2, 4, 7, 9).bool())):
            try:
                heed.attend(query.detach(), key.detach(), value.detach(), **{name: tensor})
            except ValueError as error:
                assert str(error) == (
                    f"attend: {name} must be a DTensor, as other arguments are; "
                    "torch.distributed.tensor.distribute_tensor makes one"), error
            else:
                raise AssertionError(f"{name} was taken")
        mask = torch.rand(7, 9) > 0.3
        assert_close(heed.attend(query, key, value, mask=mask).full_tensor(),
                     heed.attend(*make_inputs(), mask=mask), TOLERANCES[torch.float32])


def check_shards(rank, library, folder, check):
    torch.set_num_threads(1)
    heed_ops.load(library)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank,
                                         world_size=2)
    seed_all()
    for each in check:
        getattr(Shards(), each)()
    torch.distributed.destroy_process_group()


@unittest.skipUnless(torch.distributed.is_available() and torch.distributed.is_gloo_available(),
                     "torch has no gloo")
class ShardsTest(SeededTest):
    """Two processes, which share batches or heads, compute what one computes."""

    def test_shards(self):
        checks = [name for name, value in vars(Shards).items()
                  if callable(value) and name not in ("__init__", "spread", "spread_options", "check")]
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(check_shards, (LIBRARY, folder, checks), nprocs=2)


if __name__ == "__main__":
    heed_ops.load(LIBRARY)
    heed_ops.load(LIBRARY)  # does nothing
    main(__doc__.splitlines()[0])
