# SPDX-License-Identifier: BSD-3-Clause
"""Derivatives of heed's operators that are batched, or that torch.func takes.

    operator_transforms.py --library libheed_ops.so [unittest argument...]
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from operator_calls import (  # noqa: E402
    TOLERANCES, main, make_inputs, make_options, weights_like)
from seeds import SeededTest, assert_close  # noqa: E402

heed = torch.ops.heed


def without_leaves(options):
    return {name: value.detach() if torch.is_tensor(value) else value
            for name, value in options.items()}


class TransformsTest(SeededTest):
    """Derivatives that are batched, or that torch.func takes: of autograd's numbers, in any case."""

    offsets = torch.tensor([0, 2, 2, 4])
    key_offsets = torch.tensor([0, 3, 4, 5])

    def functions(self):
        """Name: a function of small float64 leaves, and these."""
        query, key, value = make_inputs(torch.float64, length=3, keys=4, heads=2, groups=1, dim=4,
                                        value_dim=3)
        found = {}
        for name, options in make_options(length=3, keys=4, heads=2).items():
            own = without_leaves(options)
            found[f"attend, {name}"] = (
                lambda *tensors, own=own: heed.attend(*tensors, **own), (query, key, value))
        found["attend_with_lse"] = (
            lambda *tensors: torch.cat(heed.attend_with_lse(*tensors, causal=True)[:1]
                                       + (heed.attend_with_lse(*tensors)[1][..., None],), 3),
            (query, key, value))
        bias = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
        sinks = torch.randn(2, dtype=torch.float64, requires_grad=True)
        found["attend, bias and sinks"] = (
            lambda query, bias, sinks: heed.attend(query, key.detach(), value.detach(), bias=bias,
                                                   sinks=sinks), (query, bias, sinks))
        packed = [torch.randn(rows, heads, 4, dtype=torch.float64, requires_grad=True)
                  for rows, heads in ((4, 2), (5, 1), (5, 1))]
        for name, options in (("plain", {}), ("causal", {"causal": True}),
                              ("longest", {"longest_query": 2, "longest_key": 3, "softcap": 2.0})):
            found[f"attend_varlen, {name}"] = (
                lambda *tensors, options=options: heed.attend_varlen(
                    *tensors, self.offsets, self.key_offsets, **options), tuple(packed))
        angles = torch.rand(3, 2, dtype=torch.float64) * 6
        for interleaved in (False, True):
            found[f"rotate, {interleaved}"] = (
                lambda x, interleaved=interleaved: heed.rotate(
                    x, angles.cos(), angles.sin(), interleaved=interleaved), (query,))
        weight = torch.linspace(0.5, 2, 4, dtype=torch.float64, requires_grad=True)
        found["rms_norm"] = (heed.rms_norm, (query, weight))
        x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
        classes = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
        targets = torch.tensor([4, -100, 0, 2])
        for options in ({}, {"reduction": "none", "label_smoothing": 0.1},
                        {"softcap": 2.0, "z_loss": 0.1}):
            found[f"linear_cross_entropy, {options}"] = (
                lambda *tensors, options=options: heed.linear_cross_entropy(
                    *tensors, targets, **options), (x, classes))
        return found

    def check_each(self, check):
        for name, (function, inputs) in self.functions().items():
            with self.subTest(name):
                check(function, inputs)

    def check_all_close(self, found, expected):
        self.assertEqual(len(found), len(expected))
        for one, other in zip(found, expected):
            assert_close(one, other, TOLERANCES[torch.float64])

    def test_batched_gradients(self):
        def check(function, inputs):
            output = function(*inputs)
            gradients = torch.randn(3, *output.shape, dtype=torch.float64)
            one_by_one = [torch.autograd.grad(output, inputs, gradient, retain_graph=True)
                          for gradient in gradients]
            expected = [torch.stack(column) for column in zip(*one_by_one)]
            self.check_all_close(torch.autograd.grad(
                output, inputs, gradients, retain_graph=True, is_grads_batched=True), expected)
            self.check_all_close(torch.vmap(lambda gradient: torch.autograd.grad(
                output, inputs, gradient, retain_graph=True))(gradients), expected)
            twice = torch.vmap(torch.vmap(lambda gradient: torch.autograd.grad(
                output, inputs, gradient, retain_graph=True)), in_dims=1, out_dims=1)
            self.check_all_close(twice(gradients[:, None]), [one[:, None] for one in expected])

        self.check_each(check)

    def test_batched_gradients_of_kernels_are_the_same_bits(self):
        """Also with dropout, which drops the same weights for each."""
        inputs = make_inputs(torch.float32, length=40, keys=40)
        for options in ({"causal": True}, {"dropout": 0.5}):
            output = heed.attend(*inputs, **options)
            gradients = torch.randn(2, *output.shape)
            found = torch.autograd.grad(output, inputs, gradients, retain_graph=True,
                                        is_grads_batched=True)
            for n in range(2):
                own = torch.autograd.grad(output, inputs, gradients[n], retain_graph=True)
                for one, other in zip(found, own):
                    self.assertTrue(torch.equal(one[n], other))
            none = torch.vmap(lambda gradient: torch.autograd.grad(
                output, inputs, gradient, retain_graph=True))(gradients[:0])
            self.assertEqual([one.shape for one in none], [(0, *one.shape) for one in inputs])

    def test_jacobians(self):
        def check(function, inputs):
            one_by_one = torch.autograd.functional.jacobian(function, inputs)
            self.check_all_close(torch.autograd.functional.jacobian(function, inputs, vectorize=True),
                                 one_by_one)
            places = tuple(range(len(inputs)))
            detached = [tensor.detach() for tensor in inputs]
            self.check_all_close(torch.func.jacrev(function, places)(*detached), one_by_one)
            self.check_all_close(torch.func.jacfwd(function, places)(*detached), one_by_one)

        self.check_each(check)

    def test_hessians(self):
        def check(function, inputs):
            def loss(*tensors):
                return (function(*tensors) * weights).sin().sum()

            weights = weights_like(function(*inputs).detach())
            one_by_one = torch.autograd.functional.hessian(loss, inputs)
            vectorized = torch.autograd.functional.hessian(loss, inputs, vectorize=True)
            transformed = torch.func.hessian(loss, tuple(range(len(inputs))))(
                *(tensor.detach() for tensor in inputs))
            for row, others in zip(one_by_one, zip(vectorized, transformed)):
                for other in others:
                    self.check_all_close(other, row)

        self.check_each(check)

    def test_gradcheck_with_batches(self):
        def check(function, inputs):
            self.assertTrue(torch.autograd.gradcheck(function, inputs, check_batched_grad=True))
            self.assertTrue(torch.autograd.gradgradcheck(function, inputs, check_batched_grad=True))

        self.check_each(check)

    def test_vjp_and_jvp(self):
        def check(function, inputs):
            detached = tuple(tensor.detach() for tensor in inputs)
            output, pull = torch.func.vjp(function, *detached)
            weights = weights_like(output)
            own = torch.autograd.grad(function(*inputs), inputs, weights)
            self.check_all_close(pull(weights), own)
            tangents = tuple(torch.randn_like(tensor) for tensor in detached)
            along = torch.func.jvp(function, detached, tangents)[1]
            moved_by = sum((one * other).sum() for one, other in zip(own, tangents))
            sizes = sum((one * other).abs().sum() for one, other in zip(own, tangents))
            self.assertLess(((along * weights).sum() - moved_by).abs(), 1e-12 * sizes)
            places = tuple(range(len(inputs)))
            self.check_all_close(torch.func.grad(
                lambda *tensors: (function(*tensors) * weights).sum(), places)(*detached), own)

        self.check_each(check)


if __name__ == "__main__":
    main(__doc__.splitlines()[0])
