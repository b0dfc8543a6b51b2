#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The training of distributed.cpp in Python, with DistributedDataParallel over Gloo.

    distributed_peer.py THREADS STEPS      with torchrun's environment variables

Rank 0 prints one line of JSON.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from language_model import Model
from torch import nn
from turns import Sizes

# As in distributed.cpp: the default model of train_gpt.
SIZES = Sizes(width=192, heads=6, groups=3, hidden=512, batch=16)
WARM_UP_STEPS = 5


def main() -> None:
    threads, steps = (int(argument) for argument in sys.argv[1:])
    torch.set_num_threads(threads)
    processes, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Model(SIZES)
    run = model
    if processes > 1:
        run = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.1)
    torch.manual_seed(1 + rank)

    def step() -> float:
        tokens = torch.randint(SIZES.vocabulary, (SIZES.batch // processes, SIZES.context + 1))
        optimizer.zero_grad()
        scores = run(tokens[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    for _ in range(WARM_UP_STEPS):
        step()
    dist.barrier()
    start, computed = time.perf_counter(), time.process_time()
    for _ in range(steps):
        loss = step()
    dist.barrier()
    seconds = time.perf_counter() - start
    print(json.dumps({
        "tokens_per_second": steps * SIZES.batch * SIZES.context / seconds,
        "processor_seconds": (time.process_time() - computed) / steps,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "loss": loss,
        "version": torch.__version__,
    }), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
