# SPDX-License-Identifier: BSD-3-Clause
"""What benchmarks/gpu_peers.py has PyTorch compute is what the rows say, and what they are named."""

import sys
import unittest
import warnings
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "support")]
import gpu_peers
from seeds import SeededTest, assert_close

# Of the largest value: what float32 makes of sums of up to 512 terms, in two orders.
TOLERANCE = 1e-5

warnings.filterwarnings("ignore", message="flex_attention called without")


def row(kind: str, sizes: str = "B1_H4_G4_L64_S64_D16_Dv16", mode: str = "inference"):
    return gpu_peers.Row(f"cuda/{kind}/Float/{mode}/{sizes}", "cpu")


def causal(length: int, keys: int) -> torch.Tensor:
    return torch.ones(length, keys, dtype=torch.bool).tril(keys - length)


def attention(call, mask=None, add=0.0, softcap=None) -> torch.Tensor:
    """By operators, of the query, key and value of a call of flex_attention."""
    query, key, value = call.args
    repeats = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(repeats, 1) for x in (key, value))
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if softcap:
        scores = (scores / softcap).tanh() * softcap
    scores = scores + add
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1) @ value


@unittest.skipUnless(gpu_peers.flex_attention, "this PyTorch has no flex_attention")
class FlexAttention(SeededTest):
    def check(self, case, **expected) -> None:
        call = gpu_peers.flex_call(case)
        assert_close(call(), attention(call, **expected), TOLERANCE)

    def test_masks(self) -> None:
        self.check(row("plain"))
        self.check(row("causal"), mask=causal(64, 64))
        self.check(row("grouped", "B1_H8_G2_L64_S64_D16_Dv16"), mask=causal(64, 64))
        self.check(row("causal_longer_keys", "B1_H4_G4_L16_S64_D16_Dv16"), mask=causal(16, 64))
        self.check(row("decoding", "B2_H4_G2_L1_S64_D16_Dv16"))

    @unittest.skipIf(torch.__version__ < (2, 7), "it takes values of the keys' dim alone")
    def test_other_value_dims(self) -> None:
        self.check(row("value_dim", "B1_H4_G4_L64_S64_D24_Dv16"), mask=causal(64, 64))

    def test_a_window_is_a_32nd_of_the_keys(self) -> None:
        self.check(row("window", "B1_H2_G2_L512_S512_D16_Dv16"), mask=causal(512, 512).triu(-15))

    def test_there_are_16_documents(self) -> None:
        ids = torch.arange(64) // 4
        self.check(row("documents"), mask=causal(64, 64) & (ids[:, None] == ids))

    def test_scores(self) -> None:
        self.check(row("softcap"), mask=causal(64, 64), softcap=30.0)
        place = torch.arange(64)
        slopes = torch.tensor([2**-2, 2**-4, 2**-6, 2**-8])
        self.check(row("alibi"), mask=causal(64, 64),
                   add=-slopes.view(4, 1, 1) * (place[:, None] - place).abs())

    def test_what_it_cannot_do(self) -> None:
        for kind in ("dropout", "sinks", "weights", "packed", "peak_plain"):
            self.assertIsNone(gpu_peers.flex_call(row(kind)))


class Packed(unittest.TestCase):
    def test_lengths(self) -> None:
        sizes = "B4_H2_G2_L64_S64_D16_Dv16"
        self.assertEqual([16, 32, 48, 64], gpu_peers.lengths(row("packed_causal", sizes)))
        self.assertEqual([64] * 4, gpu_peers.lengths(row("packed_equal", sizes)))
        self.assertEqual([4] * 16, gpu_peers.lengths(row("documents")))
        self.assertEqual([64], gpu_peers.lengths(row("window")))

    def test_varlen_attn_needs_a_gpu(self) -> None:
        self.assertIsNone(gpu_peers.varlen_call(row("packed")))


if __name__ == "__main__":
    unittest.main()
