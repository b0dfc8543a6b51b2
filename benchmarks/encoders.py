#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Time encoders of texts and images in heed and in other engines, in turns.

    encoders.py PROGRAM FOLDER [--filter REGEX] [--doc FILE]      PROGRAM: heed_encoders, as it was built

As models.py; batch/32x128 is 32 sentences of 128 tokens at once, and batch/8x224 8 images of 224 by 224 pixels.
"""

from pathlib import Path

from encoders_files import ENGINES, example_size, path_of
from models import BENCHMARKS, LANGUAGE_MODELS, Suite, measure

FORMATS = ("float32", "bfloat16", "int8")
WORKS = {"MiniLM": ("batch/1x32", "batch/32x32", "batch/32x128"), "ViT-base": ("batch/1x224", "batch/8x224"),
         "tiny": ("batch/2x32",)}

ENCODERS = Suite(
    name="encoders",
    unit="sentences or images",
    rows=[(model, kind, work) for model, works in WORKS.items() for kind in FORMATS for work in works],
    optional=("tiny",),
    heed={engine: {kind: formats[kind] for kind in FORMATS if kind in formats}
          for engine, formats in LANGUAGE_MODELS.heed.items()},
    engines=ENGINES,
    files=BENCHMARKS / "encoders_files.py",
    path_of=path_of,
    peers=BENCHMARKS / "encoders_peers.py",
    question=lambda model: f"value 2 {example_size(Path(model))}",
    packages=("openvino", "onnxruntime", "transformers"),
    pythons={},
)

if __name__ == "__main__":
    measure(ENCODERS, __doc__)
