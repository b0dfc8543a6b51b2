# SPDX-License-Identifier: BSD-3-Clause
"""heed's operators in Python: their numbers, and what PyTorch asks of operators.

    operators.py --library libheed_ops.so [unittest argument...]
"""

import itertools
import logging
import sys
from pathlib import Path

import torch
import torch._dynamo.testing
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from operator_calls import (  # noqa: E402
    DEVICES, GRADIENTS, TOLERANCES, are_equal, compiled, leaves, main, make_inputs, make_options,
    on_cpu, reference, reference_with_weights, weights_like)
from seeds import SeededTest, assert_close, moved  # noqa: E402

heed = torch.ops.heed


class AttendTest(SeededTest):
    def each(self, dtypes=(torch.float32,)):
        for device, dtype in itertools.product(DEVICES, dtypes):
            for options in make_options(device).values():
                yield make_inputs(dtype, device), options

    def check_close(self, found, expected, dtype):
        assert_close(found.double().cpu(), expected.double().cpu(), TOLERANCES[dtype])

    def test_outputs_and_lses_are_those_of_the_reference(self):
        for inputs, options in self.each(TOLERANCES):
            output, lse = reference(*[tensor.cpu() for tensor in inputs], **on_cpu(options))
            dtype = inputs[0].dtype
            found, found_lse = heed.attend_with_lse(*inputs, **options)
            self.check_close(found, output, dtype)
            self.check_close(found_lse, lse, dtype)
            self.check_close(heed.attend(*inputs, **options), output, dtype)
            with torch.no_grad():
                self.check_close(heed.attend(*inputs, **options), output, dtype)
                self.check_close(heed.attend_with_lse(*inputs, **options)[1], lse, dtype)

    def test_gradients_are_those_of_the_reference(self):
        for inputs, options in self.each((torch.float64, torch.float32)):
            # A query that sees nothing has an lse of -inf, whose gradient the reference has not.
            output, lse = heed.attend_with_lse(*inputs, **options)
            of_output = weights_like(output)
            of_lse = torch.where(lse.isinf(), 0, weights_like(lse))
            tensors = leaves(inputs, options)
            found = torch.autograd.grad((output, lse), tensors, (of_output, of_lse))
            output, lse = reference(*inputs, **options)
            finite = torch.where(lse.isinf(), 0, lse)
            expected = torch.autograd.grad((output, finite), tensors,
                                           (of_output.double(), of_lse.double()))
            for one, other in zip(found, expected):
                self.check_close(one, other.nan_to_num(0), inputs[0].dtype)

    def test_weights_and_their_gradients_are_those_of_the_reference(self):
        for inputs, options in self.each((torch.float64, torch.float32)):
            dtype, tensors = inputs[0].dtype, leaves(inputs, options)
            results = heed.attend_with_weights(*inputs, **options)
            expected = reference_with_weights(*[tensor.cpu() for tensor in inputs],
                                              **on_cpu(options))[:2]
            for one, other in zip(results, expected):
                self.check_close(one, other, dtype)
            given = [weights_like(result) for result in results]
            found = torch.autograd.grad(results, tensors, given)
            expected = torch.autograd.grad(expected, tensors, [each.double().cpu() for each in given])
            for one, other in zip(found, expected):
                self.check_close(one, other.nan_to_num(0), dtype)

    def test_weights_are_those_that_dropout_leaves(self):
        query, key, value = make_inputs(torch.float64, groups=4)
        output, weights = heed.attend_with_weights(query, key, value, dropout=0.5)
        self.check_close(weights @ value, output, torch.float64)
        self.assertTrue((weights == 0).any())

    def test_masks_of_fewer_batches(self):
        for name, of in itertools.product(("mask", "bias"), ("cycled", "repeated")):
            inputs = make_inputs(torch.float64, batch=4)
            scores = torch.randn(2, 1, 7, 9, dtype=torch.float64)
            options = {name: scores > 0 if name == "mask" else scores.requires_grad_(),
                       "mask_batch": of}
            output, expected = heed.attend(*inputs, **options), reference(*inputs, **options)[0]
            self.check_close(output, expected, torch.float64)
            tensors = leaves(inputs, options)
            found = torch.autograd.grad(output, tensors, weights_like(output))
            self.assertTrue(are_equal(found, torch.autograd.grad(
                compiled(heed.attend)(*inputs, **options), tensors, weights_like(output))))
            expected = torch.autograd.grad(expected, tensors, weights_like(output))
            for one, other in zip(found, expected):
                self.check_close(one, other.nan_to_num(0), torch.float64)

    def test_second_derivatives(self):
        inputs = make_inputs(torch.float64, length=3, keys=4)
        self.assertTrue(torch.autograd.gradgradcheck(
            lambda *tensors: heed.attend(*tensors, causal=True), inputs))

    def test_passes_opcheck(self):
        for inputs, options in self.each((torch.float32, torch.bfloat16)):
            torch.library.opcheck(heed.attend, inputs, options)
            torch.library.opcheck(heed.attend_with_lse, inputs, options)
            torch.library.opcheck(heed.attend_with_weights, inputs, options)

    def test_passes_opcheck_without_gradients_and_for_odd_shapes(self):
        for sizes in ({"grad": False}, {"length": 1}, {"batch": 1, "groups": 1},
                      {"length": 0}, {"keys": 0}, {"batch": 0}, {"heads": 2, "groups": 2}):
            with self.subTest(**sizes):
                torch.library.opcheck(heed.attend, make_inputs(**sizes), {})
                torch.library.opcheck(heed.attend_with_lse, make_inputs(**sizes), {})
                torch.library.opcheck(heed.attend_with_weights, make_inputs(**sizes), {})

    def test_strides_of_inputs_are_any(self):
        query, key, value = make_inputs(grad=False)
        wide = torch.randn(2, 7, 4, 16)[..., ::2].transpose(1, 2).requires_grad_()
        torch.library.opcheck(heed.attend, (wide, key, value), {"causal": True})
        torch.library.opcheck(heed.attend, (query, key.flip(2).transpose(2, 3).contiguous()
                                            .transpose(2, 3), value), {})

    def test_heads_merge_without_a_copy(self):
        for inputs, options in self.each():
            output = heed.attend(*inputs, **options)
            self.assertTrue(output.transpose(1, 2).is_contiguous())

    def check_compiled(self, inputs, options, **how):
        tensors = leaves(inputs, options)
        for attend in (heed.attend, lambda *own, **more: heed.attend_with_lse(*own, **more)[0],
                       lambda *own, **more: torch.cat(heed.attend_with_weights(*own, **more), 3)):
            own = attend(*inputs, **options)
            whole = compiled(attend, **how)(*inputs, **options)
            self.assertTrue(torch.equal(own, whole))
            gradients = [torch.autograd.grad(each, tensors, weights_like(own)) for each in (own, whole)]
            if own.is_cuda:  # gradients of biases are sums in an order that changes
                torch.testing.assert_close(*gradients)
            else:
                self.assertTrue(are_equal(*gradients))

    def test_compiles_to_the_same_bits_without_graph_breaks(self):
        for inputs, options in self.each((torch.float32, torch.bfloat16)):
            self.check_compiled(inputs, options)

    def test_compiles_with_inductor_and_sizes_that_are_symbols(self):
        options = make_options()["all"]
        for dtype in (torch.float32, torch.bfloat16):
            self.check_compiled(make_inputs(dtype), options, backend="inductor",
                                dynamic=True)

    def test_compiles_once_for_all_lengths_and_windows(self):
        def padded(query, key, value, window, length, keys):
            return heed.attend(query, key, value, left_window=window, right_window=window + 1)

        def packed(query, key, value, window, length, keys):
            offsets = torch.tensor([0, query.shape[2]]), torch.tensor([0, key.shape[2]])
            rows = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
            return heed.attend_varlen(*rows, *offsets, window=window, longest_query=length,
                                      longest_key=keys)

        for function, batch in ((padded, 2), (packed, 1)):
            counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
            whole = compiled(function, counter, dynamic=True)
            for window, length, keys in ((3, 7, 9), (5, 12, 13), (2, 5, 10)):
                inputs = make_inputs(batch=batch, length=length, keys=keys)
                one, other = (each(*inputs, window, length, keys) for each in (function, whole))
                self.assertTrue(torch.equal(one, other))
                self.assertTrue(are_equal(torch.autograd.grad(one, inputs, weights_like(one)),
                                          torch.autograd.grad(other, inputs, weights_like(one))))
            self.assertEqual(counter.frame_count, 1)

    def test_windows_of_compiled_functions_are_checked_when_they_run(self):
        inputs = make_inputs()
        whole = compiled(lambda window: heed.attend(*inputs, window=window), dynamic=True)
        whole(3)
        with self.assertRaisesRegex(ValueError, r"^attend: window \(-2\) must be at least 1"):
            whole(-2)

    def test_gradients_pass_through_the_lse_in_compiled_functions(self):
        for inputs, options in self.each():
            tensors = leaves(inputs, options)
            results = []
            for attend in (heed.attend_with_lse, compiled(heed.attend_with_lse)):
                output, lse = attend(*inputs, **options)
                of_lse = torch.where(lse.isinf(), 0, weights_like(lse))
                results.append((lse, *torch.autograd.grad(
                    (output, lse), tensors, (weights_like(output), of_lse))))
                results.append(torch.autograd.grad(attend(*inputs, **options)[1], tensors, of_lse,
                                                   allow_unused=True, materialize_grads=True))
            self.assertTrue(are_equal(results[0] + results[1], results[2] + results[3]))

    def test_dropout_draws_anew_and_follows_the_seed(self):
        inputs = make_inputs(torch.float64, keys=64)

        def draw(seed=None):
            if seed is not None:
                torch.manual_seed(moved(seed))
            return heed.attend(*inputs, dropout=0.5)

        self.assertTrue(torch.equal(draw(7), draw(7)))
        self.assertFalse(torch.equal(draw(), draw()))

    def test_dropout_of_compiled_functions(self):
        inputs = make_inputs(torch.float64, keys=64)

        def two(*inputs):
            return heed.attend(*inputs, dropout=0.5), heed.attend(*inputs, dropout=0.5)

        for backend, grad in itertools.product(("aot_eager", "inductor"), (True, False)):
            with self.subTest(backend=backend, grad=grad), torch.set_grad_enabled(grad):
                function = compiled(two, backend)
                one, other = function(*inputs)
                self.assertFalse(torch.equal(one, other))
                torch.manual_seed(moved(1))
                drawn = function(*inputs)
                torch.manual_seed(moved(1))
                again = function(*inputs)
                self.assertTrue(torch.equal(drawn[0], again[0]))
                # Of 336 numbers that scatter by 0.2: 9 times what their mean does.
                difference = one.mean() - heed.attend(*inputs).mean()
                self.assertLess(difference.abs(), 0.1)
                if grad:
                    # The output is linear in value, whichever weights are dropped.
                    gradient = torch.autograd.grad(one, inputs[2], weights_like(one))[0]
                    # Its terms are of any sign: it is small by chance.
                    terms = one * weights_like(one)
                    difference = (gradient * inputs[2]).sum() - terms.sum()
                    self.assertLess(difference.abs(), 1e-12 * terms.abs().sum())

    def test_meta_tensors_have_the_shapes_of_results(self):
        query, key, value = (tensor.to("meta") for tensor in make_inputs(torch.bfloat16))
        output, lse = heed.attend_with_lse(query, key, value)
        self.assertEqual((output.shape, output.dtype), ((2, 4, 7, 6), torch.bfloat16))
        self.assertEqual((lse.shape, lse.dtype), ((2, 4, 7), torch.float32))

    def test_exports_with_a_length_of_any_size(self):
        class Model(torch.nn.Module):
            def forward(self, query, key, value):
                return heed.attend(query, key, value, causal=True)

        length = torch.export.Dim("length", min=2, max=64)
        program = torch.export.export(
            Model(), tuple(make_inputs(length=7, keys=7, grad=False)),
            dynamic_shapes=({2: length}, {2: length}, {2: length}))
        longer = make_inputs(length=12, keys=12, grad=False)
        self.assertTrue(torch.equal(program.module()(*longer),
                                    heed.attend(*longer, causal=True)))

    def test_autocast_converts_as_sdpa_does(self):
        for device, dtype in itertools.product(DEVICES, (torch.bfloat16, torch.float16)):
            for given in TOLERANCES:
                with self.subTest(device=device, dtype=dtype, given=given):
                    inputs = make_inputs(given, device, groups=4, length=5, keys=5, value_dim=8)
                    bias = torch.randn(5, 5).to(device, given)
                    for disabled in (False, True):
                        with torch.autocast(device, dtype, enabled=not disabled):
                            own = heed.attend(*inputs, bias=bias)
                            expected = F.scaled_dot_product_attention(*inputs, bias)
                            whole = compiled(heed.attend)(*inputs, bias=bias)
                            both = heed.attend_with_weights(*inputs, bias=bias)
                        self.assertEqual([tensor.dtype for tensor in both], [own.dtype] * 2)
                        self.check_close(both[0], expected, own.dtype)
                        self.assertEqual(own.dtype, expected.dtype)
                        self.assertTrue(torch.equal(own, whole))
                        self.check_close(own, expected, own.dtype)
                        gradient = torch.autograd.grad(own.sum(), inputs)
                        self.assertEqual(gradient[0].dtype, given)

    def test_vmap_is_a_loop(self):
        inputs = [torch.stack([tensor, 2 * tensor]) for tensor in make_inputs(grad=False)]
        torch._C._functorch._set_vmap_fallback_warning_enabled(False)
        for options in make_options().values():
            found = torch.vmap(lambda *tensors: heed.attend(*tensors, **options))(*inputs)
            for n in range(2):
                each = heed.attend(*(tensor[n] for tensor in inputs), **options)
                self.assertTrue(torch.equal(found[n], each))

    def test_transforms_of_functions(self):
        query, key, value = make_inputs(torch.float64)
        for name, options in make_options().items():
            with self.subTest(options=name):
                options = {key: value.detach() if torch.is_tensor(value) else value
                           for key, value in options.items()}

                def loss(query, key, value):
                    return heed.attend(query, key, value, **options).square().sum()

                expected = torch.autograd.grad(loss(query, key, value), (query, key, value))
                found = torch.func.grad(loss, (0, 1, 2))(query, key, value)
                for one, other in zip(found, expected):
                    self.check_close(one, other, torch.float64)
                tangent = torch.ones_like(query)
                along = torch.func.jvp(lambda query: loss(query, key, value), (query,),
                                       (tangent,))[1]
                self.check_close(along, expected[0].sum(), torch.float64)
        each = torch.vmap(torch.func.grad(lambda one: heed.attend(
            one[None], key[:1], value[:1], causal=True).square().sum()))(query)
        expected = torch.autograd.grad(heed.attend(
            query, key[:1].expand(2, -1, -1, -1), value[:1].expand(2, -1, -1, -1),
            causal=True).square().sum(), query)[0]
        self.check_close(each, expected, torch.float64)


class AttendVarlenTest(SeededTest):
    offsets = torch.tensor([0, 3, 3, 8])
    key_offsets = torch.tensor([0, 4, 5, 12])

    def inputs(self, device="cpu", dtype=torch.float32):
        query, key, value = make_inputs(dtype, batch=1, length=8, keys=12)
        return [tensor.detach()[0].transpose(0, 1).contiguous().to(device).requires_grad_()
                for tensor in (query, key, value)]

    def options(self):
        sinks = torch.randn(4, generator=torch.Generator().manual_seed(moved(2))).requires_grad_()
        return ({}, {"causal": True}, {"window": 2}, {"sinks": sinks, "scale": 0.2},
                {"longest_query": 5, "longest_key": 7, "softcap": 3.0},
                {"alibi_slopes": torch.rand(4)}, {"left_window": 2, "right_window": 1},
                {"causal": True, "top_left": True},
                {"relative_bias": torch.randn(4, 5).requires_grad_(),
                 "alibi_slopes": torch.rand(4).requires_grad_()})

    def test_is_attend_for_each_sequence(self):
        for options in self.options():
            query, key, value = self.inputs()
            packed = (query, key, value, self.offsets, self.key_offsets)
            found = heed.attend_varlen(*packed, **options)
            output, lse = heed.attend_varlen_with_lse(*packed, **options)
            assert_close(output, found, TOLERANCES[torch.float32])
            own = {name: option for name, option in options.items() if "longest" not in name}
            for n in range(3):
                rows = slice(self.offsets[n], self.offsets[n + 1])
                keys = slice(self.key_offsets[n], self.key_offsets[n + 1])
                expected = heed.attend_with_lse(
                    *(tensor[which].transpose(0, 1)[None] for tensor, which in
                      ((query, rows), (key, keys), (value, keys))), **own)
                for one, other in zip((found, lse), expected):
                    assert_close(one[rows], other[0].transpose(0, 1), TOLERANCES[torch.float32])

    def test_offsets_may_be_int32(self):
        inputs = self.inputs()
        for operator in (heed.attend_varlen, heed.attend_varlen_with_lse):
            found = operator(*inputs, self.offsets.int(), self.key_offsets.int())
            expected = operator(*inputs, self.offsets, self.key_offsets)
            self.assertTrue(are_equal(torch.utils._pytree.tree_leaves(found),
                                      torch.utils._pytree.tree_leaves(expected)))

    def test_passes_opcheck(self):
        for dtype in (torch.float32, torch.bfloat16):
            for options in self.options():
                for operator in (heed.attend_varlen, heed.attend_varlen_with_lse):
                    torch.library.opcheck(operator, (
                        *self.inputs(dtype=dtype), self.offsets, self.key_offsets), options)

    def test_compiles_to_the_same_bits(self):
        # One operator at a time: the order in which gradients of two are added is autograd's.
        for operator in (heed.attend_varlen, heed.attend_varlen_with_lse):
            def attend(*tensors, **options):
                return operator(*tensors, self.offsets, self.key_offsets, **options)

            for options in self.options():
                inputs = self.inputs()
                tensors = leaves(inputs, options)
                results = []
                for each in (attend, compiled(attend)):
                    outputs = torch.utils._pytree.tree_leaves(each(*inputs, **options))
                    results.append((*outputs, *torch.autograd.grad(
                        outputs, tensors, [weights_like(output) for output in outputs])))
                self.assertTrue(are_equal(*results))

    def test_dropout_of_compiled_functions(self):
        inputs = self.inputs()
        output = compiled(heed.attend_varlen)(*inputs, self.offsets, self.key_offsets, dropout=0.5)
        self.assertFalse(torch.allclose(output, heed.attend_varlen(
            *inputs, self.offsets, self.key_offsets)))
        gradient = torch.autograd.grad(output, inputs[2], weights_like(output))[0]
        terms = output * weights_like(output)
        difference = (gradient * inputs[2]).sum() - terms.sum()
        self.assertLess(difference.abs(), 1e-5 * terms.abs().sum())


    def test_autocast_converts(self):
        for operator in (heed.attend_varlen, heed.attend_varlen_with_lse):
            with torch.autocast("cpu", torch.bfloat16):
                found = operator(*self.inputs(), self.offsets, self.key_offsets)
            expected = operator(*self.inputs(dtype=torch.bfloat16), self.offsets, self.key_offsets)
            self.assertTrue(are_equal(torch.utils._pytree.tree_leaves(found),
                                      torch.utils._pytree.tree_leaves(expected)))


class AttendPagedTest(SeededTest):
    table = torch.tensor([[5, 0, 0], [1, 4, 2]])
    offsets = torch.tensor([0, 1, 4])
    lengths = torch.tensor([14, 40])

    def inputs(self, dtype=torch.float32):
        return [torch.randn(shape).to(dtype)
                for shape in ((4, 4, 8), (6, 2, 16, 8), (6, 2, 16, 6))]

    def options(self):
        return ({}, {"causal": True}, {"causal": True, "window": 5, "sinks": torch.randn(4)},
                {"causal": True, "left_window": 9}, {"softcap": 2.0, "scale": 0.3},
                {"causal": True, "relative_bias": torch.randn(4, 7)},
                {"causal": True, "alibi_slopes": torch.rand(4)})

    def call(self, *tensors, **options):
        return heed.attend_paged(*tensors, self.table, self.offsets, self.lengths, **options)

    def test_is_attend_for_each_sequence(self):
        for dtype, options in itertools.product(TOLERANCES, self.options()):
            query, key_pages, value_pages = self.inputs(dtype)
            found = self.call(query, key_pages, value_pages, **options)
            for n in range(2):
                rows = slice(self.offsets[n], self.offsets[n + 1])
                key, value = (pages[self.table[n]].transpose(0, 1).flatten(1, 2)[:, :self.lengths[n]]
                              for pages in (key_pages, value_pages))
                expected = heed.attend(query[rows].transpose(0, 1)[None], key[None], value[None],
                                       **options)[0].transpose(0, 1)
                assert_close(found[rows], expected, TOLERANCES[dtype])

    def test_pages_may_be_quantized(self):
        query, key, value = self.inputs()
        scales = [torch.rand(6, 2, 16) / 100 for _ in range(2)]
        pages = [(torch.randn_like(tensor) * 40).to(torch.int8) for tensor in (key, value)]
        found = self.call(query, *pages, key_scales=scales[0], value_scales=scales[1], causal=True)
        expected = self.call(query, *(page * scale[..., None] for page, scale in zip(pages, scales)),
                             causal=True)
        assert_close(found, expected, TOLERANCES[torch.float32])

    def test_drafts_see_their_paths(self):
        query, key, value = self.inputs()
        found = self.call(query, key, value, parents=torch.tensor([-1, -1, 0, 0]))
        self.assertFalse(torch.equal(found, self.call(query, key, value, causal=True)))
        whole = compiled(lambda *tensors: self.call(*tensors, parents=torch.tensor([-1, -1, 0, 0])))
        self.assertTrue(torch.equal(whole(query, key, value), found))

    def test_passes_opcheck(self):
        for dtype, options in itertools.product((torch.float32, torch.bfloat16), self.options()):
            torch.library.opcheck(heed.attend_paged, (
                *self.inputs(dtype), self.table, self.offsets, self.lengths), options)

    def test_compiles_to_the_same_bits(self):
        for options in self.options():
            inputs = self.inputs()
            self.assertTrue(torch.equal(compiled(self.call)(*inputs, **options),
                                        self.call(*inputs, **options)))

    def test_autocast_gives_the_query_the_dtype_of_the_pages(self):
        query, key, value = self.inputs(torch.bfloat16)
        for call in (self.call, compiled(self.call)):
            with torch.autocast("cpu", torch.float16):
                found = call(query.float(), key, value)
            self.assertTrue(torch.equal(found, self.call(query, key, value)))

    def test_gradients_are_refused(self):
        query, key, value = self.inputs()
        for call in (self.call, compiled(self.call)):
            with self.assertRaisesRegex(Exception, "attend_paged: key_pages must not require grad: "
                                        "pages hold no gradients; use torch::NoGradGuard"):
                call(query, key.clone().requires_grad_(), value)


class LayersTest(SeededTest):
    def angles(self, *shape):
        angles = torch.rand(shape, generator=torch.Generator().manual_seed(moved(1))) * 6
        return angles.cos(), angles.sin()

    def rotated(self, x, cos, sin, interleaved):
        cos, sin = (t[:, None] if t.dim() == 3 else t for t in (cos, sin))
        turned = 2 * cos.shape[-1]
        rows = x[..., :turned].double()
        first, second = ((rows[..., ::2], rows[..., 1::2]) if interleaved
                         else rows.chunk(2, -1))
        pairs = (first * cos - second * sin, second * cos + first * sin)
        joined = torch.stack(pairs, -1).flatten(-2) if interleaved else torch.cat(pairs, -1)
        return torch.cat([joined, x[..., turned:].double()], -1)

    def test_rotate(self):
        for dtype, interleaved, shape in itertools.product(
                TOLERANCES, (False, True), ((7, 4), (2, 7, 4), (7, 3))):
            x = make_inputs(dtype)[0]
            cos, sin = self.angles(*shape)
            found = heed.rotate(x, cos, sin, interleaved=interleaved)
            expected = self.rotated(x, cos, sin, interleaved)
            assert_close(found.double(), expected, TOLERANCES[dtype])
            weight = weights_like(x)
            assert_close(torch.autograd.grad((found.double() * weight).sum(), x)[0].double(),
                         torch.autograd.grad((expected * weight).sum(), x)[0].double(),
                         TOLERANCES[dtype])

    def test_rms_norm(self):
        pairs = [(dtype, dtype) for dtype in TOLERANCES]
        # Autocast's usual pair.
        pairs += [(torch.bfloat16, torch.float32), (torch.float16, torch.float32)]
        for dtype, weight_dtype in pairs:
            x = make_inputs(dtype)[0]
            weight = torch.linspace(0.5, 2, 8).to(weight_dtype).requires_grad_()
            found = heed.rms_norm(x, weight, eps=1e-3)
            self.assertEqual(found.dtype, dtype)
            expected = F.rms_norm(x.double(), (8,), weight.double(), 1e-3)
            assert_close(found.double(), expected, TOLERANCES[dtype])
            factor = weights_like(x)
            for one, other in zip(
                    torch.autograd.grad((found.double() * factor).sum(), (x, weight)),
                    torch.autograd.grad((expected * factor).sum(), (x, weight))):
                assert_close(one, other, TOLERANCES[dtype])

    def test_pass_opcheck(self):
        for dtype in (torch.float32, torch.bfloat16):
            x = make_inputs(dtype)[0]
            by_token = torch.randn(2, 7, 4, 8).to(dtype).transpose(1, 2).requires_grad_()
            for tensor in (x, by_token, x.detach()):
                torch.library.opcheck(heed.rotate, (tensor, *self.angles(7, 4)))
                for weight_dtype in {dtype, torch.float32}:
                    torch.library.opcheck(heed.rms_norm, (
                        tensor, torch.ones(8, dtype=weight_dtype).requires_grad_()))

    def test_angles_may_require_gradients(self):
        x, angles = make_inputs()[0], torch.linspace(0, 6, 28).reshape(7, 4).requires_grad_()

        def turn(x, angles):
            return heed.rotate(x, angles.cos(), angles.sin())

        expected = self.rotated(x, angles.cos(), angles.sin(), False)
        for function in (turn, compiled(turn)):
            found = function(x, angles)
            for one, other in zip(
                    torch.autograd.grad((found * weights_like(x)).sum(), (x, angles)),
                    torch.autograd.grad((expected * weights_like(x)).sum(), (x, angles),
                                        retain_graph=True)):
                assert_close(one, other.float(), TOLERANCES[torch.float32])

    def test_compile_to_the_same_bits(self):
        x, cos, sin = make_inputs()[0], *self.angles(7, 4)
        weight = torch.ones(8, requires_grad=True)

        def layers(x, weight):
            return heed.rotate(heed.rms_norm(x, weight), cos, sin)

        own, whole = layers(x, weight), compiled(layers)(x, weight)
        self.assertTrue(torch.equal(own, whole))
        self.assertTrue(are_equal(torch.autograd.grad(own, (x, weight), weights_like(own)),
                                  torch.autograd.grad(whole, (x, weight), weights_like(own))))

    def test_autocast_keeps_the_dtype_of_x(self):
        x, angles = make_inputs()[0], self.angles(7, 4)
        for dtype in (torch.float32, torch.bfloat16):
            with torch.autocast("cpu", torch.bfloat16):
                self.assertEqual(heed.rotate(x.to(dtype), *angles).dtype, dtype)
                self.assertEqual(heed.rms_norm(x.to(dtype), torch.ones(8)).dtype, dtype)

    def test_second_derivatives_and_transforms(self):
        x = make_inputs(torch.float64)[0]
        weight = torch.linspace(0.5, 2, 8, dtype=torch.float64, requires_grad=True)
        cos, sin = self.angles(7, 4)
        cos, sin = cos.double(), sin.double()
        self.assertTrue(torch.autograd.gradgradcheck(heed.rms_norm, (x, weight)))
        self.assertTrue(torch.autograd.gradgradcheck(lambda x: heed.rotate(x, cos, sin), x))
        for function in (lambda x: heed.rms_norm(x, weight.detach()).pow(3).sum(),
                         lambda x: heed.rotate(x, cos, sin).pow(3).sum()):
            assert_close(torch.func.grad(function)(x.detach()),
                         torch.autograd.grad(function(x), x)[0], TOLERANCES[torch.float64])


def make_loss(dtype=torch.float32, rows=9, classes=11):
    """x [N, E], weight [V, E], targets [N] of which one is ignored, and a bias [V]."""
    tensors = (torch.randn(rows, 6), torch.randn(classes, 6), torch.randn(classes))
    x, weight, bias = (tensor.to(dtype).requires_grad_() for tensor in tensors)
    targets = torch.randint(classes, (rows,))
    targets[2] = -100
    return x, weight, targets, bias


class LossTest(SeededTest):
    OPTIONS = ({}, {"reduction": "sum"}, {"reduction": "none"}, {"label_smoothing": 0.1},
               {"ignore_index": 3}, {"class_weight": torch.linspace(0.5, 2, 11)})

    def check(self, found, expected, leaves, tolerance):
        assert_close(found.double(), expected.double(), tolerance)
        weight = weights_like(found)
        for one, other in zip(
                torch.autograd.grad((found * weight).sum(), leaves, retain_graph=True),
                torch.autograd.grad((expected * weight).sum(), leaves, retain_graph=True)):
            assert_close(one.double(), other.double(), tolerance)

    def test_is_cross_entropy_of_the_scores(self):
        for options in self.OPTIONS:
            for dtype in (torch.float32, torch.float64):
                x, weight, targets, bias = make_loss(dtype)
                if options.get("ignore_index"):
                    targets = targets.clamp_min(0)
                options = {name: value.to(dtype) if torch.is_tensor(value) else value
                           for name, value in options.items()}
                found = heed.linear_cross_entropy(x, weight, targets, bias=bias, **options)
                theirs = {"weight" if name == "class_weight" else name: value
                          for name, value in options.items()}
                expected = F.cross_entropy(F.linear(x, weight, bias), targets, **theirs)
                self.assertEqual(found.dtype, dtype)
                self.check(found, expected, (x, weight, bias), TOLERANCES[dtype])

    def test_softcap_and_z_loss(self):
        x, weight, targets, _ = make_loss(torch.float64)
        found = heed.linear_cross_entropy(x, weight, targets, softcap=1.5, z_loss=0.1)
        scores = 1.5 * torch.tanh(F.linear(x, weight) / 1.5)
        z = torch.logsumexp(scores, 1).square()[targets >= 0].mean()
        expected = F.cross_entropy(scores, targets) + 0.1 * z
        self.check(found, expected, (x, weight), TOLERANCES[torch.float64])

    def test_passes_opcheck(self):
        for dtype in (torch.float32, torch.bfloat16):
            x, weight, targets, bias = make_loss(dtype)
            for options in self.OPTIONS[:4]:
                torch.library.opcheck(heed.linear_cross_entropy, (x, weight, targets),
                                      {"bias": bias, **options})
            torch.library.opcheck(heed.linear_cross_entropy, (x.detach(), weight, targets))
            torch.library.opcheck(heed.linear_cross_entropy,
                                  (x.detach(), weight.detach(), targets))

    def test_compiles_to_the_same_numbers(self):
        x, weight, targets, bias = make_loss()
        for options in self.OPTIONS:
            if options.get("ignore_index"):
                continue

            def loss(x, weight, bias):
                return heed.linear_cross_entropy(x.sin(), weight, targets, bias=bias, **options)

            self.check(compiled(loss)(x, weight, bias), loss(x, weight, bias), (x, weight, bias),
                       TOLERANCES[torch.float32])

    def test_autocast_converts_as_linear_does(self):
        x, weight, targets, bias = make_loss()
        with torch.autocast("cpu", torch.bfloat16):
            found = heed.linear_cross_entropy(x, weight, targets, bias=bias)
            expected = F.cross_entropy(F.linear(x, weight, bias), targets)
        self.assertEqual(found.dtype, torch.float32)
        self.check(found, expected, (x, weight, bias), TOLERANCES[torch.bfloat16])

    def test_wanted_gradients(self):
        x, weight, targets, bias = make_loss()
        given = (torch.ones(()), x.detach(), weight.detach(), targets)
        each = heed.linear_cross_entropy_backward(*given, bias=bias.detach())
        for n in range(3):
            found = heed.linear_cross_entropy_backward(
                *given, bias=bias.detach(), wanted=[i == n for i in range(3)])
            for i, (one, of_all) in enumerate(zip(found, each)):
                self.assertTrue(one is None if i != n else torch.equal(one, of_all), i)

    def test_meta_tensors_have_the_shapes_of_results(self):
        x, weight, targets, _ = (tensor.detach().to("meta") for tensor in make_loss(torch.bfloat16))
        for reduction, shape in (("mean", ()), ("none", (9,))):
            found = heed.linear_cross_entropy(x, weight, targets, reduction=reduction)
            self.assertEqual((found.shape, found.dtype), (shape, torch.float32))


class Wrapped(torch.Tensor):
    """Holds a tensor, and notes which operators are called with it."""

    operators = []

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        cls.operators.append(str(function))

        def unwrapped(values):
            return tree_map_only(cls, lambda tensor: tensor.inner, values)
        result = function(*unwrapped(args), **unwrapped(kwargs or {}))
        return tree_map_only(torch.Tensor, cls, result)


class WrappedTest(SeededTest):
    """A subclass of Tensor sees an operator for each pass, and none of those inside."""

    def seen(self, call):
        Wrapped.operators.clear()
        result = call()
        return [name for name in Wrapped.operators if name.startswith("heed.")], result

    def test_sees_the_operators(self):
        tensors = [Wrapped(tensor) for tensor in make_inputs(grad=False)]
        names, output = self.seen(lambda: heed.attend(*tensors))
        self.assertEqual(names, ["heed.attend.default"])
        expected = heed.attend(*(tensor.inner for tensor in tensors))
        self.assertTrue(torch.equal(output.inner, expected))
        for tensor in tensors:
            tensor.requires_grad_()
        names, output = self.seen(lambda: heed.attend(*tensors))
        self.assertEqual(names, ["heed._attend_forward.default"])
        names, _ = self.seen(
            lambda: torch.autograd.grad(output, tensors, Wrapped(torch.ones_like(expected))))
        self.assertEqual(names, ["heed.attend_backward.default"])


class WantedTest(SeededTest):
    def test_gradients_are_those_wanted(self):
        query, key, value = make_inputs(grad=False)
        options = {"bias": torch.randn(1, 4, 7, 9), "sinks": torch.randn(4),
                   "relative_bias": torch.randn(4, 5), "alibi_slopes": torch.rand(4)}
        kept = heed._attend_forward(query, key, value, **options)
        gradient = torch.randn_like(kept[0])

        def gradients(**wanted):
            return heed.attend_backward(gradient, None, *kept, query, key, value, **options, **wanted)
        each = gradients()
        for n in range(len(each)):
            found = gradients(wanted=[i == n for i in range(len(each))])
            for i, (one, of_all) in enumerate(zip(found, each)):
                if i == n:
                    self.assertTrue(torch.equal(one, of_all), i)
                else:
                    self.assertIsNone(one, i)
        # As compiled functions in a cache of PyTorch's may have it from an earlier heed.
        *found, of_relative_bias, of_slopes = gradients(wanted=[True] * 5)
        for one, of_all in zip(found, each):
            self.assertTrue(torch.equal(one, of_all))
        self.assertIsNone(of_relative_bias)
        self.assertIsNone(of_slopes)


class TagsTest(SeededTest):
    def test_say_which_operators_draw(self):
        """Compilers must not merge two of their calls. An operator with a seed draws nothing."""
        names = sorted(name.removeprefix("heed::") for name in torch._C._dispatch_get_all_op_names()
                       if name.startswith("heed::"))
        self.assertIn("attend", names)
        for name in names:
            operator = getattr(heed, name).default
            arguments = {argument.name for argument in operator._schema.arguments}
            draws = "dropout" in arguments and "seed" not in arguments
            self.assertEqual(torch.Tag.nondeterministic_seeded in operator.tags, draws, name)
            self.assertIn(torch.Tag.pt2_compliant_tag, operator.tags, name)


class ErrorsTest(SeededTest):
    """The same words and the same type, whoever sees the call first."""

    def setUp(self):
        super().setUp()
        logging.disable(logging.ERROR)  # PyTorch logs what a fake tensor refuses
        self.addCleanup(logging.disable, logging.NOTSET)

    def calls(self):
        query, key, value = make_inputs()
        x, cos, sin = query, torch.ones(7, 4), torch.ones(7, 4)
        packed = [torch.randn(8, 4, 8)] * 3
        offsets = torch.tensor([0, 8])
        yield ("attend: key dim 0 (1) must equal query dim 0 (2); query [2, 4, 7, 8], key "
               "[1, 2, 9, 8]", lambda: heed.attend(query, key[:1], value))
        yield ("attend: query rank (3) must equal 4; query [4, 7, 8]",
               lambda: heed.attend(query[0], key, value))
        yield ("attend: window (0) must be at least 1",
               lambda: heed.attend(query, key, value, window=0))
        yield ("attend_with_lse: dropout (1.5) must be in [0, 1)",
               lambda: heed.attend_with_lse(query, key, value, dropout=1.5))
        yield ("attend_with_weights: key rank (3) must equal 4; key [2, 9, 8]",
               lambda: heed.attend_with_weights(query, key[0], value))
        yield ("attend: mask_batch (every) must be each, cycled or repeated",
               lambda: heed.attend(query, key, value, mask_batch="every"))
        yield ("attend_paged: query rank (4) must equal 3; query [2, 4, 7, 8]",
               lambda: heed.attend_paged(query, key, value, torch.zeros(1, 1).long(), offsets,
                                         offsets[1:]))
        yield ("attend_varlen_with_lse: longest_query and longest_key must be given together",
               lambda: heed.attend_varlen_with_lse(*packed, offsets, offsets, longest_key=8))
        yield ("attend_varlen: longest_query and longest_key must be given together",
               lambda: heed.attend_varlen(*packed, offsets, offsets, longest_query=8))
        yield ("rotate: cos must be [L, R / 2] or [B, L, R / 2]; x [2, 4, 7, 8], cos [6, 4]",
               lambda: heed.rotate(x, cos[:6], sin[:6]))
        yield ("rotate: sin must have the shape of cos; sin [7, 3], cos [7, 4]",
               lambda: heed.rotate(x, cos, sin[:, :3]))
        yield ("rotate: cos dim 1 (5) must be at least 1 and at most half of x dim 3 (8); x "
               "[2, 4, 7, 8], cos [7, 5]",
               lambda: heed.rotate(x, torch.ones(7, 5), torch.ones(7, 5)))
        yield ("rotate: cos dtype (Long) must be floating and equal sin dtype (Float)",
               lambda: heed.rotate(x, cos.long(), sin))
        yield ("rms_norm: the last dim of x must equal weight dim 0 (7); x [2, 4, 7, 8]",
               lambda: heed.rms_norm(x, torch.ones(7)))
        yield ("rms_norm: weight dtype (Double) must equal x dtype (Float)",
               lambda: heed.rms_norm(x, torch.ones(8).double()))
        yield ("rms_norm: eps (-1) must be finite and at least 0",
               lambda: heed.rms_norm(x, torch.ones(8), eps=-1.0))
        rows, weight, targets, _ = make_loss()
        yield ("linear_cross_entropy: weight dim 1 (5) must equal x dim 1 (6); x [9, 6], weight "
               "[11, 5]", lambda: heed.linear_cross_entropy(rows, weight[:, 1:], targets))
        yield ("linear_cross_entropy: targets dtype (Float) must be Long",
               lambda: heed.linear_cross_entropy(rows, weight, targets.float()))
        yield ("linear_cross_entropy: reduction (max) must be mean, sum or none",
               lambda: heed.linear_cross_entropy(rows, weight, targets, reduction="max"))

    def check_error(self, expected, call):
        with self.assertRaises(ValueError) as caught:
            call()
        self.assertEqual(str(caught.exception).splitlines()[0], expected)

    def test_of_calls(self):
        for text, call in self.calls():
            self.check_error(text, call)

    def test_without_gradients(self):
        with torch.no_grad():
            for text, call in self.calls():
                self.check_error(text, call)

    def test_of_fake_tensors(self):
        for text, call in self.calls():
            with FakeTensorMode(allow_non_fake_inputs=True):
                self.check_error(text, call)

    def test_in_compiled_functions(self):
        for text, call in self.calls():
            with self.assertRaises(Exception) as caught:
                compiled(call)()
            self.assertIn(text, str(caught.exception))

    def test_of_values_that_only_the_call_knows(self):
        tensors = [torch.randn(8, 4, 8)] * 3
        offsets = torch.tensor([0, 9])
        text = "attend_varlen: query_offsets [1] (9) must equal query dim 0 (8)"

        def call():
            return heed.attend_varlen(*tensors, offsets, offsets)

        with self.assertRaises(ValueError) as caught:
            call()
        eager = str(caught.exception).splitlines()[0]
        self.assertTrue(eager.startswith("attend_varlen: query_offsets"), eager)
        self.check_error(eager, compiled(call))

    def test_of_second_passes_with_tensors_of_other_calls(self):
        query, key, value = make_inputs(grad=False)
        kept = heed._attend_forward(query, key, value)
        gradient = torch.ones(2, 4, 7, 6)
        for text, changed in (
                ("output_gradient must be Float [2, 4, 7, 6]; it is Float [2, 4, 7, 5]",
                 (gradient[..., :5], None, *kept)),
                ("lse_gradient must be Float [2, 4, 7]; it is Double [2, 4, 7]",
                 (gradient, gradient[..., 0].double(), *kept)),
                ("largest must be Float [2, 4, 7]; it is Float [2, 4, 6]",
                 (gradient, None, kept[0], kept[1][..., 1:], *kept[2:])),
                ("inverse_sum must be Float [2, 4, 7]; it is Float [1, 4, 7]",
                 (gradient, None, *kept[:2], kept[2][:1], kept[3]))):
            self.check_error(f"attend_backward: {text}",
                             lambda: heed.attend_backward(*changed, query, key, value))
        half = [tensor.bfloat16() for tensor in (query, key, value)]
        kept = heed._attend_forward(*half)
        self.check_error("attend_backward: output_rest must be BFloat16 [2, 4, 7, 6]; it is "
                         "BFloat16 [0]", lambda: heed.attend_backward(
                             gradient.bfloat16(), None, *kept[:3], kept[3].new_empty(0), *half))
        self.check_error("rms_norm_backward: output_gradient must be Float [2, 4, 7, 8], as x; it "
                         "is Float [2, 4, 7, 7]", lambda: heed.rms_norm_backward(
                             query[..., :7], query, torch.ones(8)))

    def test_of_targets(self):
        rows, weight, targets, _ = make_loss()
        targets[4] = 11
        self.check_error("linear_cross_entropy: targets[4] (11) must be ignore_index (-100), or at "
                         "least 0 and below V (11)",
                         lambda: heed.linear_cross_entropy(rows, weight, targets))

    def test_the_second_pass_is_not_differentiable(self):
        query, key, value = make_inputs()
        kept = heed._attend_forward(query.detach(), key.detach(), value.detach())
        gradient = heed.attend_backward(torch.ones_like(kept[0]), None, *kept, query, key, value,
                                        wanted=[True] * 3 + [False] * (len(GRADIENTS) - 3))[0]
        with self.assertRaisesRegex(RuntimeError, "derivative for heed::attend_backward is not implemented"):
            gradient.sum().backward()


if __name__ == "__main__":
    main(__doc__.splitlines()[0])
