#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
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


def zip_of(records: dict) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in records.items():
            file.writestr(name, content)
    return buffer.getvalue()


def pt2_inputs():
    """Archives without their programs, which are not read, and the configs in them."""
    exported = saved(torch.export.save, torch.export.export(Small().eval(), (torch.ones(2),)))
    with zipfile.ZipFile(io.BytesIO(exported)) as file:
        records = {name: file.read(name) for name in file.namelist()}
    config = next(name for name in records if name.endswith("weights_config.json"))
    small = {name: content for name, content in records.items()
             if "/models/" not in name and "sample_inputs" not in name}
    program = {f"{config.partition('/')[0]}/models/model.json": "{}"}
    yield "exported", zip_of({**small, **program})
    yield "weights_config", records[config]
    pickled = json.loads(records[config])
    for entry in pickled["config"].values():
        entry.update(use_pickle=True, path_name="weight_1")
    yield "pickled_config", json.dumps(pickled).encode()
    views = {"x": ["weight_1", [2, 3], [3, 1], 0], "y": ["weight_1", [2], [2], 3]}
    compiled = json.dumps(views)
    yield "compiled_config", compiled.encode()
    saved_weight = saved(torch.save, torch.arange(6.0))
    yield "compiled", zip_of({
        "m/archive_format": "pt2", "m/data/weights/weight_1": saved_weight,
        "m/data/aotinductor/model/weights_config.json": compiled})
    state = saved(torch.save, {"x": torch.arange(6.0)})
    yield "old", zip_of({"serialized_exported_program.json": "{}",
                         "serialized_state_dict.pt": state, "serialized_constants.pt": b""})


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
    legacy = {
        "state_dict": views,
        "checkpoint": {"m": state, "epoch": 3, "loss": 0.5},
        "uint16": {"x": torch.zeros(2, dtype=torch.uint16)},
    }
    for name, value in legacy.items():
        yield f"legacy/{name}", saved(torch.save, value, _use_new_zipfile_serialization=False)
    for name, content in pt2_inputs():
        yield f"pt2/{name}", content
    one = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    two = {"dtype": "BOOL", "shape": [2, 1], "data_offsets": [4, 6]}
    overlapping = {**two, "data_offsets": [3, 5]}
    yield "safetensors/empty", safetensors({}, b"")
    yield "safetensors/two", safetensors({"__metadata__": {"k": "v"}, "a": one, "b": two}, bytes(6))
    yield "safetensors/overlap", safetensors({"a": one, "b": overlapping}, bytes(5))
    index = {"metadata": {"total_size": 2}, "weight_map": {"a": "one", "b": "one"}}
    yield "weight_index/two", json.dumps(index).encode()
    yield "weight_index/path", b'{"weight_map":{"a":"../one"}}'


for name, content in inputs():
    path = Path(sys.argv[1]) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
