#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A peer of training.py: trains what heed_language_model trains, by another library.

    training_peers.py PEER THREADS DTYPE VOCABULARY LAYERS WIDTH HEADS GROUPS HIDDEN CONTEXT BATCH

Answers each line "train" with tokens a second; see turns.py. bfloat16 is autocast.
"""

import os
import sys
from collections.abc import Callable

from turns import Sizes, throughput

Step = Callable[[], int]  # trains one step, and returns its number of tokens


def transformers(sizes: Sizes, threads: int, dtype: str, compiled: bool = False) -> Step:
    """LlamaForCausalLM with its own loss. Of L tokens it predicts L - 1, but computes the scores of all."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=sizes.vocabulary, hidden_size=sizes.width, intermediate_size=sizes.hidden,
        num_hidden_layers=sizes.layers, num_attention_heads=sizes.heads, num_key_value_heads=sizes.groups,
        max_position_embeddings=sizes.context, rms_norm_eps=1e-5, tie_word_embeddings=True, use_cache=False,
        attn_implementation="sdpa"))
    model.train()
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    tokens = torch.randint(sizes.vocabulary, (sizes.batch, sizes.context))

    def step() -> int:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = run(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()  # now, for the others' turns need memory too
        return tokens.numel()

    return step


def compiled(sizes: Sizes, threads: int, dtype: str) -> Step:
    """LlamaForCausalLM through torch.compile."""
    return transformers(sizes, threads, dtype, compiled=True)


def jax(sizes: Sizes, threads: int, dtype: str) -> Step:
    assert dtype == "float32", dtype
    os.environ["NPROC"] = str(threads)  # which XLA reads
    from jax_llama import Training

    return Training(sizes).step


PEERS = {"transformers": transformers, "compiled": compiled, "JAX": jax}


def main() -> None:
    peer, threads, dtype, *sizes = sys.argv[1:]
    step = PEERS[peer](Sizes(*map(int, sizes)), int(threads), dtype)
    for _ in sys.stdin:
        print(throughput(step), flush=True)


if __name__ == "__main__":
    main()
