#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A peer of encoders.py: runs what heed_encoders runs, by another engine.

    encoders_peers.py ENGINE PATH THREADS FORMAT      PATH: what encoders_files.py wrote

Answers the same lines as heed_encoders with the same numbers; see encoders.cpp.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import encoders_files
from turns import answer_lines, throughput

Run = Callable  # takes a tensor of PyTorch, and returns the vectors as an array or a tensor


def openvino(path: Path, threads: int, kind: str) -> Run:
    import openvino as library

    request = library.Core().compile_model(path / "model.xml", "CPU", {
        "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32" if kind == "float32" else "bf16"}).create_infer_request()
    return lambda x: request.infer({0: x.numpy()}, share_inputs=True, share_outputs=True)[0]


def onnxruntime(path: Path, threads: int, kind: str) -> Run:
    import onnxruntime as library

    options = library.SessionOptions()
    options.intra_op_num_threads = threads
    session = library.InferenceSession(path / "model.onnx", options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x.numpy()})[0]


def transformers(path: Path, threads: int, kind: str) -> Run:
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    model = encoders_files.load_model(path, kind)
    dtype = next(model.parameters()).dtype
    return lambda x: model(x.to(dtype) if x.is_floating_point() else x).last_hidden_state


ENGINES = {"OpenVINO": openvino, "ONNX Runtime": onnxruntime, "transformers": transformers}


def main() -> None:
    engine, path, threads, kind = sys.argv[1:]
    os.environ["OMP_NUM_THREADS"] = threads
    path = Path(path)
    folder = path.with_name(path.name.partition(".")[0])

    def load() -> Callable[[str, int, int], float]:
        run = ENGINES[engine](path, int(threads), kind)

        def answer(work: str, count: int, size: int) -> float:
            batch = encoders_files.inputs(folder, count, size)
            if work == "value":
                return float(run(batch).reshape(-1)[0])

            def step() -> int:
                run(batch)
                return count

            return throughput(step)

        answer("value", 1, encoders_files.example_size(folder))
        return answer

    answer_lines(ENGINES[engine].__name__, load)


if __name__ == "__main__":
    main()
