#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Write what attention in TensorFlow computes, for heed's parity test.

    tensorflow_functions.py --out tests/parity/data/tensorflow.pt

Needs tensorflow (or tensorflow-cpu) and torch in one environment; the file that it wrote is kept in
the repository, so that the test needs neither TensorFlow nor this script. The file is a dict that
torch::pickle_load reads in C++:

    query, key, value     [B, H, L or S, D]
    <case>.mask           float, 1 = hidden, as TensorFlow has it; absent from the case none
    <case>.output         of scaled_dot_product_attention, and
    <case>.weights
    x_query, x_key, x_value           [B, L or S, H * D]
    multi_head.output, .weights       of multi_head_attention with num_heads heads
    multi_head.kernel, .bias          of its Dense layer; the kernel is [in, out]
    multi_head.num_heads
"""

import argparse
import math
import sys
from pathlib import Path
from typing import Dict, Optional, Tuple

try:
    import tensorflow as tf
    import torch
except ImportError as error:
    sys.exit(f"tensorflow_functions.py: {error}: install tensorflow-cpu and torch")


def scaled_dot_product_attention(q, k, v, mask=None):
    """softmax(q k^T / sqrt(d_k) - 1e9 mask) v, and the weights."""
    scores = tf.matmul(q, k, transpose_b=True) / math.sqrt(k.shape[-1])
    if mask is not None:
        scores -= 1e9 * mask
    weights = tf.nn.softmax(scores, axis=-1)
    return tf.matmul(weights, v), weights


def multi_head_attention(q, k, v, d_model, num_heads, dense):
    """Heads of the inputs as they are; `dense`, the output layer, is given to keep its weights."""

    def split(x):
        parts = tf.reshape(x, (x.shape[0], x.shape[1], num_heads, d_model // num_heads))
        return tf.transpose(parts, (0, 2, 1, 3))  # [B, H, L, D]

    output, weights = scaled_dot_product_attention(split(q), split(k), split(v))
    merged = tf.reshape(tf.transpose(output, (0, 2, 1, 3)), q.shape)  # [B, L, H * D]
    return dense(merged), weights


def masks(batch: int, length: int, keys: int) -> Dict[str, Optional[tf.Tensor]]:
    """1 = hidden; every query keeps a key, for -1e9 gives a mean without."""
    lengths = tf.constant([keys, 2, 4])
    padding = 1.0 - tf.sequence_mask(lengths, keys, dtype=tf.float32)  # [B, S]
    ahead = 1.0 - tf.linalg.band_part(tf.ones((length, keys)), -1, keys - length)
    return {"none": None, "padding": padding[:, tf.newaxis, tf.newaxis, :], "look_ahead": ahead}


def to_torch(tensor) -> torch.Tensor:
    return torch.tensor(tensor.numpy())


def fixture() -> Dict[str, torch.Tensor]:
    batch, heads, length, keys, width = 3, 2, 4, 6, 5
    query = tf.random.normal((batch, heads, length, width))
    key = tf.random.normal((batch, heads, keys, width))
    value = tf.random.normal((batch, heads, keys, width))
    result = {"query": to_torch(query), "key": to_torch(key), "value": to_torch(value)}
    for name, mask in masks(batch, length, keys).items():
        output, weights = scaled_dot_product_attention(query, key, value, mask)
        if mask is not None:
            result[f"{name}.mask"] = to_torch(mask)
        result[f"{name}.output"] = to_torch(output)
        result[f"{name}.weights"] = to_torch(weights)

    model = heads * width
    inputs: Tuple = tuple(tf.random.normal((batch, n, model)) for n in (length, keys, keys))
    dense = tf.keras.layers.Dense(model)
    output, weights = multi_head_attention(*inputs, model, heads, dense)
    for name, tensor in zip(("x_query", "x_key", "x_value"), inputs):
        result[name] = to_torch(tensor)
    result["multi_head.output"] = to_torch(output)
    result["multi_head.weights"] = to_torch(weights)
    result["multi_head.kernel"] = to_torch(dense.kernel)
    result["multi_head.bias"] = to_torch(dense.bias)
    result["multi_head.num_heads"] = torch.tensor(heads)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs (0)")
    options = parser.parse_args()
    tf.keras.utils.set_random_seed(options.seed)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    torch.save(fixture(), options.out)
    print(f"{options.out}, TensorFlow {tf.__version__}")


if __name__ == "__main__":
    main()
