#!/usr/bin/env python3
"""Write what document 004's TensorFlow functions compute, for heed's parity test.

    export_tensorflow.py --out tests/parity/data/tensorflow.pt

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
import sys
from pathlib import Path
from typing import Dict, Optional, Tuple

try:
    import tensorflow as tf
    import torch
except ImportError as error:
    sys.exit(f"export_tensorflow.py: {error}: install tensorflow-cpu and torch")


def scaled_dot_product_attention(q, k, v, mask=None):
    """As the document has it."""
    matmul_qk = tf.matmul(q, k, transpose_b=True)
    d_k = tf.cast(tf.shape(k)[-1], tf.float32)
    scaled_attention_logits = matmul_qk / tf.math.sqrt(d_k)
    if mask is not None:
        scaled_attention_logits += mask * -1e9
    attention_weights = tf.nn.softmax(scaled_attention_logits, axis=-1)
    output = tf.matmul(attention_weights, v)
    return output, attention_weights


def multi_head_attention(q, k, v, d_model, num_heads, dense):
    """As the document has it, with its Dense layer given so that its weights can be kept."""
    d_k = d_model // num_heads
    q = tf.reshape(q, (-1, tf.shape(q)[1], num_heads, d_k))
    k = tf.reshape(k, (-1, tf.shape(k)[1], num_heads, d_k))
    v = tf.reshape(v, (-1, tf.shape(v)[1], num_heads, d_k))
    q = tf.transpose(q, perm=(0, 2, 1, 3))
    k = tf.transpose(k, perm=(0, 2, 1, 3))
    v = tf.transpose(v, perm=(0, 2, 1, 3))
    scaled_attention, attention_weights = scaled_dot_product_attention(q, k, v)
    scaled_attention = tf.transpose(scaled_attention, perm=(0, 2, 1, 3))
    concat_attention = tf.reshape(scaled_attention, (-1, tf.shape(scaled_attention)[1], d_model))
    output = dense(concat_attention)
    return output, attention_weights


def masks(batch: int, length: int, keys: int) -> Dict[str, Optional[tf.Tensor]]:
    """1 = hidden; every query keeps a key, since the document's -1e9 gives a mean without."""
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
