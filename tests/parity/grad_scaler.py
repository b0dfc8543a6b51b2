#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Write what Python's torch.amp.GradScaler does in a training whose gradients overflow.

    grad_scaler.py OUT

OUT is a file that torch::pickle_load reads in C++:

    weight         [3, 2], at the start
    inputs         [steps, 4, 3]: some are so large that scaled gradients overflow
    weights        [steps, 3, 2], after each step
    scales         [steps], after each update
    skipped        bool [steps]
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from seeds import moved  # noqa: E402

STEPS = 16
# The first is large, and clipped; gradients of the others overflow.
LARGE = {3: 1e8, 4: 1e19, 9: float("nan"), 14: float("inf")}


def main() -> None:
    out = Path(sys.argv[1])
    torch.manual_seed(moved(0))
    weight = torch.randn(3, 2, requires_grad=True)
    inputs = torch.randn(STEPS, 4, 3)
    for step, factor in LARGE.items():
        inputs[step] *= factor
    optimizer = torch.optim.SGD([weight], lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    result = {"weight": weight.detach().clone(), "inputs": inputs}
    weights, scales, skipped = [], [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        scaler.scale((inputs[step] @ weight - 1.0).square().mean()).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_([weight], 0.5)
        before = weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        weights.append(weight.detach().clone())
        scales.append(scaler.get_scale())
        skipped.append(torch.equal(before, weights[-1]))
    result["weights"] = torch.stack(weights)
    result["scales"] = torch.tensor(scales)
    result["skipped"] = torch.tensor(skipped)
    out.parent.mkdir(parents=True, exist_ok=True)
    torch.save(result, out)


if __name__ == "__main__":
    main()
