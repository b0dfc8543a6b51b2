# SPDX-License-Identifier: BSD-3-Clause
"""Calls of heed's operators in Python, with inputs and options of every kind."""

import argparse
import itertools
import math
import sys
import unittest
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from seeds import moved  # noqa: E402

if torch.__version__ < "2.9":
    print(f"torch {torch.__version__} is skipped: its checks of operators are older than 2.9")
    sys.exit(77)

# The tensors that may carry gradients, in the order of the operators that compute them.
GRADIENTS = ("query", "key", "value", "bias", "sinks", "relative_bias", "alibi_slopes")
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
# Of the largest value: what rounding of inputs, of sums of 20 terms and of outputs makes, which is some
# dozens of the last digit, of intermediate results that are up to 10 times as large as the final ones.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def with_heads(scores, batch, mask_batch):
    """A mask or bias as [B or 1, H or 1, L or 1, S]."""
    scores = scores if scores.dim() == 4 else scores[:, None] if scores.dim() == 3 else scores[None, None]
    count = scores.shape[0]
    places = {"each": [0] * batch if count == 1 else list(range(batch)),
              "cycled": [b % count for b in range(batch)],
              "repeated": [b // (batch // count) for b in range(batch)]}
    return torch.stack([scores[place] for place in places[mask_batch]])


def placed(batch, length, keys, *, top_left, query_lengths, key_lengths):
    """The position of every query among the keys, [B, L]."""
    rows = torch.arange(length).expand(batch, -1)
    if top_left:
        return rows
    queries = torch.full((batch,), length) if query_lengths is None else query_lengths
    others = torch.full((batch,), keys) if key_lengths is None else key_lengths
    return rows + (others - queries)[:, None]


def seen_in_windows(positions, keys, *, causal, window, left_window, right_window, global_tokens):
    """[B, 1, L, S], query by query."""
    seen = torch.zeros(*positions.shape, keys, dtype=torch.bool)
    for b, i in itertools.product(*map(range, positions.shape)):
        at = positions[b, i].item()
        for j in range(keys):
            near = window is None or abs(j - at) < window
            near = near and (left_window is None or j >= at - left_window)
            near = near and (right_window is None or j <= at + right_window)
            if global_tokens is not None:
                tokens = global_tokens if global_tokens.dim() == 1 else global_tokens[b]
                near = near or bool(tokens[j]) or (0 <= at < keys and bool(tokens[at]))
            seen[b, i, j] = near and (not causal or j <= at)
    return seen[:, None]


def relative_scores(relative_bias, relative_positions, positions, keys):
    """[B, H, L, S], key by key."""
    batch, length = positions.shape
    farthest = relative_bias.shape[1] // 2
    rows = []
    for b, i, j in itertools.product(range(batch), range(length), range(keys)):
        at = positions[b, i].item()
        places = relative_positions
        if places is not None and places.dim() == 2:
            places = places[b]
        between = j - at if places is None else (places[j] - places[min(max(at, 0), keys - 1)]).item()
        rows.append(relative_bias[:, min(max(between, -farthest), farthest) + farthest])
    return torch.stack(rows, 1).reshape(-1, batch, length, keys).transpose(0, 1)


def reference_with_weights(
        query, key, value, *, mask=None, bias=None, causal=False, window=None, scale=None,
        softcap=None, alibi_slopes=None, sinks=None, documents=None, key_documents=None,
        left_window=None, right_window=None, top_left=False, global_tokens=None,
        query_lengths=None, key_lengths=None, mask_batch="each", relative_bias=None,
        relative_positions=None):
    """The output, the weights and the lse, in float64, one operation after the other."""
    query, key, value = query.double(), key.double(), value.double()
    batch, heads, length, keys = *query.shape[:3], key.shape[2]
    key = key.repeat_interleave(heads // key.shape[1], 1)
    value = value.repeat_interleave(heads // value.shape[1], 1)
    scores = query @ key.transpose(2, 3) * (scale or 1 / math.sqrt(query.shape[3]))
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    positions = placed(batch, length, keys, top_left=top_left, query_lengths=query_lengths,
                       key_lengths=key_lengths)
    distance = torch.arange(keys) - positions[:, None, :, None]
    if bias is not None:
        scores = scores + with_heads(bias.double(), batch, mask_batch)
    if alibi_slopes is not None:
        slopes = alibi_slopes.double().expand(batch, -1)[:, :, None, None]
        scores = scores - slopes * distance.abs()
    if relative_bias is not None:
        scores = scores + relative_scores(relative_bias.double(), relative_positions, positions, keys)
    seen = seen_in_windows(positions, keys, causal=causal, window=window, left_window=left_window,
                           right_window=right_window, global_tokens=global_tokens)
    if mask is not None:
        seen = seen & (with_heads(mask, batch, mask_batch) != 0)
    if query_lengths is not None:
        seen = seen & (torch.arange(length) < query_lengths[:, None])[:, None, :, None]
    if key_lengths is not None:
        seen = seen & (torch.arange(keys) < key_lengths[:, None])[:, None, None, :]
    if documents is not None:
        of_keys = documents if key_documents is None else key_documents
        seen = seen & (documents[..., :, None] == of_keys[..., None, :]).reshape(-1, 1, length, keys)
    scores = scores.masked_fill(~seen, -math.inf)
    if sinks is not None:
        sink = sinks.double()[:, None, None].expand(batch, heads, length, 1)
        scores = torch.cat([scores, sink], 3)
    lse = scores.logsumexp(3)
    weights = torch.exp(scores - lse.masked_fill(lse.isinf(), 0)[..., None])[..., :keys]
    return weights @ value, weights, lse


def reference(*inputs, **options):
    """The output and the lse."""
    return reference_with_weights(*inputs, **options)[::2]


def make_inputs(dtype=torch.float32, device="cpu", batch=2, heads=4, groups=2, length=7, keys=9,
                dim=8, value_dim=6, grad=True):
    generator = torch.Generator().manual_seed(moved(3))
    shapes = ((batch, heads, length, dim), (batch, groups, keys, dim),
              (batch, groups, keys, value_dim))
    return [torch.randn(shape, generator=generator).to(device, dtype).requires_grad_(grad)
            for shape in shapes]


def make_options(device="cpu", length=7, keys=9, heads=4, batch=2):
    """Sets of options; tensors among them as functions that make them anew."""
    generator = torch.Generator().manual_seed(moved(5))

    def normal(*shape):
        return torch.randn(shape, generator=generator).to(device)

    hidden = torch.rand((batch, length, keys), generator=generator).gt(0.3).to(device)
    hidden[0, 2] = False  # a query that sees nothing
    documents = torch.arange(length, device=device) // 3
    return {
        "plain": {},
        "causal": {"causal": True},
        "window": {"window": 3},
        "scale": {"scale": 0.3},
        "softcap": {"softcap": 2.0},
        "mask": {"mask": hidden},
        "integer mask": {"mask": hidden.int(), "causal": True},
        "bias": {"bias": normal(length, keys).requires_grad_()},
        "bias of batches": {"bias": normal(batch, length, keys).requires_grad_()},
        "alibi": {"alibi_slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625], device=device)[:heads]},
        "sinks": {"sinks": normal(heads).requires_grad_(), "causal": True},
        "documents": {"documents": documents,
                      "key_documents": torch.arange(keys, device=device) // 3},
        "two sides": {"left_window": 3, "right_window": 1},
        "top left": {"causal": True, "top_left": True, "left_window": 2},
        "global": {"left_window": 1, "right_window": 0,
                   "global_tokens": torch.arange(keys, device=device) % 3 == 1},
        "lengths": {"query_lengths": torch.tensor([max(length - 2, 0), length], device=device),
                    "key_lengths": torch.tensor([keys, max(keys - 3, 1)], device=device),
                    "causal": True},
        "slopes of batches": {"alibi_slopes": normal(batch, heads).abs().requires_grad_()},
        "relative": {"relative_bias": normal(heads, 5).requires_grad_()},
        "relative positions": {
            "relative_bias": normal(heads, 7).requires_grad_(), "causal": True,
            "relative_positions": torch.arange(keys, device=device).flip(0) * 2},
        "all": {"mask": hidden, "bias": normal(length, keys).requires_grad_(), "causal": True,
                "window": 5, "softcap": 3.0, "sinks": normal(heads).requires_grad_()},
    }


def leaves(inputs, options):
    tensors = [*inputs, *(options.get(name) for name in GRADIENTS[3:])]
    return [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]


def compiled(function, backend="aot_eager", **options):
    """Traced as a whole, both passes. `aot_eager` runs the operators of the graph as they are."""
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend=backend, **options)


def weights_like(tensor):
    return torch.linspace(-1, 1, tensor.numel()).reshape(tensor.shape).to(tensor)


def on_cpu(options):
    return {name: value.cpu() if torch.is_tensor(value) else value for name, value in options.items()}


def are_equal(found, expected):
    """To the bit, tensor by tensor."""
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


def main(description):
    """Runs the tests of the program that calls it, with the library that --library names."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--library", required=True, help="the built libheed_ops.so")
    known, rest = parser.parse_known_args()
    torch.ops.load_library(known.library)
    unittest.main(argv=[sys.argv[0], *rest])
