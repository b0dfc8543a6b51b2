"""Calls of heed's operators in Python, with inputs and options of every kind."""

import argparse
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

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
# Of the largest value: what rounding of inputs, of sums of 20 terms and of outputs makes, which is some
# dozens of the last digit, of intermediate results that are up to 10 times as large as the final ones.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def reference(query, key, value, *, mask=None, bias=None, causal=False, window=None, scale=None,
              softcap=None, alibi_slopes=None, sinks=None, documents=None, key_documents=None):
    """The output and the lse, in float64, one operation after the other."""
    query, key, value = query.double(), key.double(), value.double()
    heads, length, keys = query.shape[1], query.shape[2], key.shape[2]
    key = key.repeat_interleave(heads // key.shape[1], 1)
    value = value.repeat_interleave(heads // value.shape[1], 1)
    scores = query @ key.transpose(2, 3) * (scale or 1 / math.sqrt(query.shape[3]))
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    distance = torch.arange(keys) - (torch.arange(length)[:, None] + keys - length)
    if bias is not None:
        scores = scores + (bias[:, None] if bias.dim() == 3 else bias).double()
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.double()[:, None, None] * distance.abs()
    seen = torch.ones(length, keys, dtype=torch.bool).expand(query.shape[0], 1, length, keys)
    if mask is not None:
        seen = seen & ((mask[:, None] if mask.dim() == 3 else mask) != 0)
    if causal:
        seen = seen & (distance <= 0)
    if window is not None:
        seen = seen & (distance.abs() < window)
    if documents is not None:
        of_keys = documents if key_documents is None else key_documents
        seen = seen & (documents[..., :, None] == of_keys[..., None, :]).reshape(-1, 1, length, keys)
    scores = scores.masked_fill(~seen, -math.inf)
    if sinks is not None:
        sink = sinks.double()[:, None, None].expand(query.shape[0], heads, length, 1)
        scores = torch.cat([scores, sink], 3)
    lse = scores.logsumexp(3)
    weights = torch.exp(scores - lse.masked_fill(lse.isinf(), 0)[..., None])[..., :keys]
    return weights @ value, lse


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
        "all": {"mask": hidden, "bias": normal(length, keys).requires_grad_(), "causal": True,
                "window": 5, "softcap": 3.0, "sinks": normal(heads).requires_grad_()},
    }


def leaves(inputs, options):
    tensors = [*inputs, *(options.get(name) for name in ("bias", "sinks"))]
    return [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]


def compiled(function, backend="aot_eager", **options):
    """Traced as a whole, both passes. `aot_eager` runs the operators of the graph as they are."""
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend=backend, **options)


def weights_like(tensor):
    return torch.linspace(-1, 1, tensor.numel()).reshape(tensor.shape).to(tensor)


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
