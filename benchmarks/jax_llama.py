# SPDX-License-Identifier: BSD-3-Clause
"""Training of a language model in plain JAX, for training_peers.py: the model of support/language_model.h, with
AdamW. A step is one function that XLA compiles."""

from functools import partial

import jax
import jax.numpy as jnp
from turns import Sizes

RATE, BETAS, EPS, WEIGHT_DECAY = 1e-3, (0.9, 0.999), 1e-8, 1e-2
Weights = dict


def make_weights(sizes: Sizes) -> Weights:
    width, kv_width = sizes.width, sizes.groups * sizes.head_dim
    shapes = {"q": (width, width), "k": (width, kv_width), "v": (width, kv_width), "o": (width, width),
              "gate": (width, sizes.hidden), "up": (width, sizes.hidden), "down": (sizes.hidden, width)}
    keys = iter(jax.random.split(jax.random.key(0), 1 + sizes.layers * len(shapes)))

    def normal(shape: tuple[int, int]) -> jax.Array:
        return 0.02 * jax.random.normal(next(keys), shape)

    def layer() -> Weights:
        return {"attention_norm": jnp.ones(width), "feed_forward_norm": jnp.ones(width),
                **{name: normal(shape) for name, shape in shapes.items()}}

    return {"embedding": normal((sizes.vocabulary, width)), "norm": jnp.ones(width),
            "layers": [layer() for _ in range(sizes.layers)]}


def rms_norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * weight


def rotate(x: jax.Array, head_dim: int) -> jax.Array:
    """x [B, L, H, D]"""
    frequencies = 10000.0 ** (-jnp.arange(0, head_dim, 2) / head_dim)
    angles = jnp.tile(jnp.outer(jnp.arange(x.shape[1]), frequencies), 2)[:, None]
    first, second = jnp.split(x, 2, -1)
    return x * jnp.cos(angles) + jnp.concatenate((-second, first), -1) * jnp.sin(angles)


def block(layer: Weights, x: jax.Array, sizes: Sizes) -> jax.Array:
    y = rms_norm(x, layer["attention_norm"])
    query, key, value = ((y @ layer[name]).reshape(*x.shape[:2], -1, sizes.head_dim) for name in "qkv")
    query, key = rotate(query, sizes.head_dim), rotate(key, sizes.head_dim)
    heads = jax.nn.dot_product_attention(query, key, value, is_causal=True)
    x = x + heads.reshape(x.shape) @ layer["o"]
    y = rms_norm(x, layer["feed_forward_norm"])
    return x + (jax.nn.silu(y @ layer["gate"]) * (y @ layer["up"])) @ layer["down"]


def loss(weights: Weights, tokens: jax.Array, sizes: Sizes) -> jax.Array:
    """The cross entropy of tokens [B, L + 1], each given those before it."""
    x = weights["embedding"][tokens[:, :-1]]
    for layer in weights["layers"]:
        x = block(layer, x, sizes)
    scores = rms_norm(x, weights["norm"]) @ weights["embedding"].T
    of_next = jnp.take_along_axis(scores, tokens[:, 1:, None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(scores, -1) - of_next)


@partial(jax.jit, static_argnames="sizes", donate_argnames=("weights", "means", "squares"))
def train_step(weights, means, squares, count, tokens, sizes: Sizes):
    """Returns the next weights, means and squares of gradients, and count of steps."""
    gradients = jax.grad(loss)(weights, tokens, sizes)
    count = count + 1

    def mean(decay, old, new):
        return decay * old + (1 - decay) * new

    means = jax.tree.map(partial(mean, BETAS[0]), means, gradients)
    squares = jax.tree.map(lambda old, g: mean(BETAS[1], old, g * g), squares, gradients)

    def update(weight, m, square):
        deviation = jnp.sqrt(square / (1 - BETAS[1] ** count)) + EPS
        return weight * (1 - RATE * WEIGHT_DECAY) - RATE * m / (1 - BETAS[0] ** count) / deviation

    return jax.tree.map(update, weights, means, squares), means, squares, count


class Training:
    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        weights = make_weights(sizes)
        means, squares = (jax.tree.map(jnp.zeros_like, weights) for _ in range(2))
        self.state = weights, means, squares, jnp.zeros(())
        shape = (sizes.batch, sizes.context + 1)
        self.tokens = jax.random.randint(jax.random.key(1), shape, 0, sizes.vocabulary)

    def step(self) -> int:
        self.state = jax.block_until_ready(train_step(*self.state, self.tokens, self.sizes))
        return self.sizes.batch * self.sizes.context
