#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What heed_transformers.py takes of what models of transformers hand to their attention.

    transformers_keywords.py --library libheed_ops.so [unittest argument...]

Every keyword of every call of an attention interface in the installed transformers, and of the
interfaces themselves, is taken, harmless or refused: a keyword of a later transformers is found here.
Exits with 77 where Python has no transformers 5.
"""

import ast
import functools
import inspect
import sys
import unittest
from pathlib import Path

import with_transformers  # first: it skips where transformers is missing

import torch
import transformers
from transformers.modeling_flash_attention_utils import FlashAttentionKwargs
from transformers.utils import TransformersKwargs

import heed_transformers
from seeds import SeededTest, assert_close

PACKAGE = Path(transformers.__file__).parent
# Of the largest value: sums of 5 terms in float32, in two orders.
TOLERANCE = 5e-6


@functools.lru_cache(maxsize=None)
def files_of_models():
    """(file, what it defines) for those that call an attention interface."""
    files = [(file, file.read_text()) for file in sorted(PACKAGE.glob("models/*/modeling_*.py"))]
    return [(file, ast.parse(text)) for file, text in files if "ALL_ATTENTION_FUNCTIONS" in text]


def attention_calls():
    """(file, call) for each call of what ALL_ATTENTION_FUNCTIONS gives."""
    for file, tree in files_of_models():
        nodes = list(ast.walk(tree))
        interfaces = {ast.unparse(target) for node in nodes
                      if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
                      and "ALL_ATTENTION_FUNCTIONS" in ast.unparse(node.value)
                      for target in getattr(node, "targets", [getattr(node, "target", None)])}
        for node in nodes:
            if isinstance(node, ast.Call) and ast.unparse(node.func) in interfaces:
                yield file, node


def eager_functions():
    """(file, function) for each attention that is written in a model's file."""
    for file, tree in files_of_models():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and "eager_attention" in node.name:
                yield file, node


TAKEN = set(inspect.signature(heed_transformers.heed_attention).parameters) - {"others"}
KNOWN = TAKEN | heed_transformers.HARMLESS | set(heed_transformers.REFUSED)


class Keywords(unittest.TestCase):
    def check(self, keyword, where):
        self.assertIn(keyword, KNOWN, f"{where}: neither taken nor harmless nor refused")

    def test_of_calls(self):
        calls = list(attention_calls())
        self.assertGreater(len(calls), 300)
        for file, call in calls:
            self.assertLessEqual(len(call.args), 5, f"{file}:{call.lineno}")
            for keyword in call.keywords:
                if keyword.arg is not None:
                    self.check(keyword.arg, f"{file}:{call.lineno}")

    def test_of_the_attentions_in_models(self):
        functions = list(eager_functions())
        self.assertGreater(len(functions), 300)
        # Some name the three tensors otherwise, and are called by position.
        positional = {"query_states", "key_states", "value_states", "hidden_states"}
        for file, function in functions:
            names = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
            for name in names:
                if name.arg not in positional:
                    self.check(name.arg, f"{file}:{function.lineno}")

    def test_of_the_attentions_of_transformers(self):
        from transformers.integrations import flex_attention, sdpa_attention

        for function in (sdpa_attention.sdpa_attention_forward, flex_attention.flex_attention_forward):
            for name, parameter in inspect.signature(function).parameters.items():
                if parameter.kind is not parameter.VAR_KEYWORD:
                    self.check(name, function.__name__)

    def test_that_models_pass_on(self):
        for kind in (TransformersKwargs, FlashAttentionKwargs):
            for name in kind.__annotations__:
                self.check(name, kind.__name__)

    def test_each_is_one_of_these(self):
        self.assertEqual(TAKEN & heed_transformers.HARMLESS, set())
        self.assertEqual(TAKEN & set(heed_transformers.REFUSED), set())
        self.assertEqual(heed_transformers.HARMLESS & set(heed_transformers.REFUSED), set())


class Module(torch.nn.Module):
    def __init__(self, is_causal):
        super().__init__()
        self.is_causal = is_causal


def expected(query, key, value, scores_added, scale=8**-0.5):
    """[B, L, H, D] of attention with these added to its scores, by operators."""
    scores = query @ key.transpose(2, 3) * scale + scores_added
    return (scores.softmax(3) @ value).transpose(1, 2)


class Attention(SeededTest):
    def setUp(self):
        super().setUp()
        self.query, self.key, self.value = torch.randn(3, 2, 4, 5, 8).unbind()
        self.tensors = (self.query, self.key, self.value)

    def attend(self, mask=None, causal=False, **options):
        return heed_transformers.heed_attention(
            Module(causal), *self.tensors, mask, **options)[0]

    def says(self, *arguments, **options):
        with self.assertRaises(ValueError) as caught:
            self.attend(*arguments, **options)
        return str(caught.exception)

    def check(self, found, added):
        assert_close(found, expected(*self.tensors, added), TOLERANCE)

    def test_floating_masks_are_added(self):
        seen = torch.ones(5, 5).tril().bool()
        least = torch.finfo(torch.float32).min
        for hidden in (least, -torch.inf):
            added = torch.zeros(5, 5).masked_fill(~seen, hidden)
            for mask in (added, added[None, None], added.expand(2, 1, 5, 5), added.expand(4, 5, 5)):
                self.check(self.attend(mask), added)
        self.check(self.attend(seen[None, None]), torch.zeros(5, 5).masked_fill(~seen, least))
        random = torch.randn(2, 4, 5, 5)
        self.check(self.attend(random, causal=True), random)  # a mask says all
        self.check(self.attend(random[..., :1]), random[..., :1])

    def test_position_bias_is_added(self):
        bias = torch.randn(1, 4, 5, 5)
        hidden = torch.ones(5, 5).triu(1).bool()
        causal = bias.masked_fill(hidden, -torch.inf)
        self.check(self.attend(position_bias=bias), bias)
        self.check(self.attend(position_bias=bias, causal=True), causal)
        self.check(self.attend(~hidden[None, None], position_bias=bias), causal)
        self.check(self.attend(torch.zeros(5, 5).masked_fill(hidden, -torch.inf), position_bias=bias),
                   causal)

    def test_causal_is_top_left(self):
        self.tensors = (self.query[:, :, :3], self.key, self.value)
        hidden = torch.ones(3, 5).triu(1).bool()
        self.check(self.attend(causal=True), torch.zeros(3, 5).masked_fill(hidden, -torch.inf))
        self.tensors = (self.query[:, :, :1], self.key, self.value)
        self.check(self.attend(causal=True), torch.zeros(1, 5))  # the newest token
        self.check(self.attend(causal=True, is_causal=False), torch.zeros(1, 5))

    def test_queries_without_a_batch(self):
        self.tensors = (self.query[:1], self.key, self.value)
        self.check(self.attend(), torch.zeros(5, 5))

    def test_refuses_what_it_does_not_take_by_name(self):
        other = "use another attn_implementation, such as 'sdpa' or 'eager', for this model"
        for name, reason in heed_transformers.REFUSED.items():
            self.assertEqual(
                self.says(**{name: torch.ones(1)}),
                f"heed_attention: {name} must be None: heed's attention does not take it ({reason}); {other}")
        self.assertEqual(
            self.says(from_the_future=1.5),
            f"heed_attention: from_the_future must be None: heed's attention does not take it; {other}")
        self.check(self.attend(from_the_future=None, indices=None, output_attentions=False,
                               **dict.fromkeys(heed_transformers.HARMLESS, 3)), torch.zeros(5, 5))

    def test_refuses_masks_that_say_nothing_clear(self):
        self.assertEqual(self.says(torch.ones(2, 5, dtype=torch.long)),
                         "heed_attention: attention_mask dtype (torch.int64) must be bool or floating")
        self.assertEqual(self.says(torch.ones(1, 2, 4, 5, 5)),
                         "heed_attention: attention_mask must have at most 4 dimensions; [1, 2, 4, 5, 5]")
        with self.assertRaisesRegex(ValueError, "attention_mask must be given, or is_causal: Linear does"):
            heed_transformers.heed_attention(torch.nn.Linear(1, 1), *self.tensors)


def main():
    parser = with_transformers.parser_for(__doc__)
    options, rest = parser.parse_known_args()
    with_transformers.load(options)
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
