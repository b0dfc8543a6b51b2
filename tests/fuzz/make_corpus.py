#!/usr/bin/env python3
"""Write the inputs that fuzzing begins with: make_corpus.py tests/fuzz/corpus"""

import io
import json
import sys
import warnings
import zipfile
from pathlib import Path

import torch


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x = torch.nn.Parameter(torch.arange(2.0))
        self.register_buffer("y", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.x + self.y


def saved(save, *objects, **options) -> bytes:
    buffer = io.BytesIO()
    save(*objects, buffer, **options)
    return buffer.getvalue()


def safetensors(header: dict, data: bytes) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    return len(text).to_bytes(8, "little") + text + data


def pickle_of(archive: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(archive)) as file:
        (name,) = [name for name in file.namelist() if name.endswith("/data.pkl")]
        return file.read(name)


def inputs():
    warnings.simplefilter("ignore")
    module = Small()
    state = module.state_dict()
    views = {"x": torch.arange(6.0).view(2, 3).t(), "y": module.x}
    archives = {
        "state_dict": saved(torch.save, {"x": torch.arange(6.0)}),
        "checkpoint": saved(torch.save, {"m": state, "epoch": 3, "loss": 0.5, "names": ["a", None]}),
        "protocol_4": saved(torch.save, views, pickle_protocol=4),
        "uint16": saved(torch.save, {"x": torch.zeros(2, dtype=torch.uint16)}),
        "scripted": saved(torch.jit.save, torch.jit.script(module)),
        "module": saved(torch.save, torch.nn.Identity()),
    }
    for name, archive in archives.items():
        yield f"archive/{name}", archive
        yield f"pickle/{name}", pickle_of(archive)
    one = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    two = {"dtype": "BOOL", "shape": [2, 1], "data_offsets": [4, 6]}
    overlapping = {**two, "data_offsets": [3, 5]}
    yield "safetensors/empty", safetensors({}, b"")
    yield "safetensors/two", safetensors({"__metadata__": {"k": "v"}, "a": one, "b": two}, bytes(6))
    yield "safetensors/overlap", safetensors({"a": one, "b": overlapping}, bytes(5))
    index = {"metadata": {"total_size": 2}, "weight_map": {"a": "one", "b": "one"}}
    yield "safetensors_index/two", json.dumps(index).encode()
    yield "safetensors_index/path", b'{"weight_map":{"a":"../one"}}'


for name, content in inputs():
    path = Path(sys.argv[1]) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
