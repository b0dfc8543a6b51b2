#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Models of transformers on heed's operators, beside their own attention.

    transformers_models.py --library libheed_ops.so [TEST...]

Tiny models with random weights: logits, gradients of every parameter and generated tokens must be
those of attn_implementation="eager". Exits with 77 where Python has no transformers 5.
"""

import collections
import sys
import unittest

import with_transformers  # first: it skips where transformers is missing

import torch
import transformers
from torch.export import Dim
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

import heed_transformers
from seeds import SeededTest, assert_close, seed_all
from use_heed_attention import use_heed_attention

VOCAB = 99
LENGTH = 20
SHAPE = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 48, "max_position_embeddings": 64, "initializer_range": 0.2,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
GROUPED = {**SHAPE, "num_key_value_heads": 2, "head_dim": 8}
# Of the largest value: of float32 through two blocks, some dozens of the last digit.
TOLERANCE = 5e-6


def window_attention(module, query, key, value, attention_mask, sliding_window=None, scaling=None,
                     softcap=None, s_aux=None, **others):
    """For batches without padding: no mask at all."""
    output = torch.ops.heed.attend(query, key, value, causal=True, window=sliding_window,
                                   scale=scaling, softcap=softcap, sinks=s_aux)
    return output.transpose(1, 2), None


def no_mask(**arguments):
    return None


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED))


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_head=4, n_layer=2, n_positions=64, initializer_range=0.2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, pad_token_id=0, bos_token_id=1,
        eos_token_id=None))


def bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(
        **SHAPE, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))


def mistral():
    return transformers.MistralForCausalLM(transformers.MistralConfig(**GROUPED, sliding_window=7))


def gemma2():
    return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
        **GROUPED, sliding_window=7, attn_logit_softcapping=2.0, query_pre_attn_scalar=5))


def gpt_oss():
    return transformers.GptOssForCausalLM(transformers.GptOssConfig(
        **GROUPED, sliding_window=7, num_local_experts=4, num_experts_per_tok=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}))


DECODERS = {"llama": llama, "gpt2": gpt2, "mistral": mistral, "gemma2": gemma2, "gpt_oss": gpt_oss}
MODELS = {**DECODERS, "bert": bert}


def randomize(model):
    """Norms, biases and sinks too, which transformers sets to 1 and 0."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))


def padding(side):
    """attention_mask [3, LENGTH] of lengths 20, 13 and 1"""
    positions = torch.arange(LENGTH)
    lengths = torch.tensor([[LENGTH], [13], [1]])
    return (positions < lengths if side == "right" else positions >= LENGTH - lengths).long()


class Operators(TorchDispatchMode):
    """Counts the operators that are called."""

    def __init__(self):
        super().__init__()
        self.counts = collections.Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[function.name().partition(".")[0]] += 1
        return function(*args, **(kwargs or {}))


class Logits(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, mask):
        return self.model(tokens, attention_mask=mask, use_cache=False).logits


class TransformersModels(SeededTest):
    def model(self, make):
        seed_all()
        model = make().eval()
        randomize(model)
        return model

    def results(self, model, attention, tokens, mask):
        """The logits of real tokens, and gradients of all parameters."""
        model.set_attn_implementation(attention)
        model.zero_grad()
        logits = model(tokens, attention_mask=mask, use_cache=False).logits
        if mask is not None:
            logits = logits[mask.bool()]
        weights = torch.linspace(-1, 1, logits.numel()).view_as(logits)
        (logits * weights).mean().backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        return logits.detach(), gradients

    def compare(self, make, attention, mask):
        model = self.model(make)
        tokens = torch.randint(2, VOCAB, (3, LENGTH))
        expected, expected_gradients = self.results(model, "eager", tokens, mask)
        logits, gradients = self.results(model, attention, tokens, mask)
        assert_close(logits, expected, TOLERANCE)
        largest = max(gradient.abs().max() for gradient in expected_gradients.values()
                      if gradient is not None)
        for name, gradient in expected_gradients.items():
            if gradient is None:  # an expert that no token chose
                self.assertIsNone(gradients[name], name)
                continue
            # Gradients of keys' biases are 0 but for rounding.
            difference = (gradients[name] - gradient).abs().max()
            self.assertLessEqual(difference, TOLERANCE * largest, name)

    def test_logits_and_gradients(self):
        for name, make in MODELS.items():
            with self.subTest(name):
                self.compare(make, "heed", None)

    def test_padding(self):
        for name, make in MODELS.items():
            for side in ("left", "right"):
                with self.subTest(name, side=side):
                    self.compare(make, "heed", padding(side))

    def test_windows_instead_of_masks(self):
        for name in ("mistral", "gemma2", "gpt_oss"):
            with self.subTest(name):
                self.compare(DECODERS[name], "heed_window", None)

    def test_generation_with_a_cache(self):
        for name, make in DECODERS.items():
            with self.subTest(name):
                model = self.model(make)
                tokens = torch.randint(2, VOCAB, (3, LENGTH))
                tokens, mask = tokens * padding("left"), padding("left")
                generated = {}
                for attention in ("eager", "heed"):
                    model.set_attn_implementation(attention)
                    generated[attention] = model.generate(
                        tokens, attention_mask=mask, max_new_tokens=12, do_sample=False,
                        output_logits=True, return_dict_in_generate=True)
                self.assertTrue(
                    generated["heed"].sequences.equal(generated["eager"].sequences))
                assert_close(torch.stack(generated["heed"].logits),
                             torch.stack(generated["eager"].logits), TOLERANCE)

    def test_a_cache_of_fixed_size(self):
        """Its keys are more than the queries while the prompt is read."""
        model = self.model(llama)
        tokens = torch.randint(2, VOCAB, (2, LENGTH))
        generated = {}
        for attention in ("eager", "heed"):
            model.set_attn_implementation(attention)
            cache = transformers.StaticCache(config=model.config, max_cache_len=40)
            generated[attention] = model.generate(
                tokens, max_new_tokens=6, do_sample=False, past_key_values=cache)
        self.assertTrue(generated["heed"].equal(generated["eager"]))

    def test_exported_programs(self):
        """Of models that know nothing of heed, for any number and length of sequences."""
        sizes = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}
        for name in ("llama", "gpt2", "mistral", "bert"):
            with self.subTest(name):
                model = Logits(self.model(MODELS[name]))
                model.model.set_attn_implementation("sdpa")
                program = torch.export.export(
                    model, (torch.randint(2, VOCAB, (3, LENGTH)), padding("right")),
                    dynamic_shapes={"tokens": sizes, "mask": sizes})
                report = use_heed_attention(program)
                self.assertEqual((len(report.changed), report.left), (2, []))
                tokens, mask = torch.randint(2, VOCAB, (2, 13)), torch.ones(2, 13).long()
                mask[1, 9:] = 0
                assert_close(program.module()(tokens, mask), model(tokens, mask), TOLERANCE)

    def test_every_attention_is_heeds(self):
        """That of each layer, and no other."""
        for name, make in MODELS.items():
            with self.subTest(name):
                model = self.model(make)
                model.set_attn_implementation("heed")
                with torch.no_grad(), Operators() as operators:
                    model(torch.randint(2, VOCAB, (1, LENGTH)))
                self.assertEqual(operators.counts["heed::attend"], 2)
                self.assertNotIn("aten::bmm", operators.counts)


def main():
    parser = with_transformers.parser_for(__doc__)
    options, rest = parser.parse_known_args()
    with_transformers.load(options)
    heed_transformers.register()
    AttentionInterface.register("heed_window", window_attention)
    AttentionMaskInterface.register("heed_window", no_mask)
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
