# SPDX-License-Identifier: BSD-3-Clause
"""The code of docs/operators.md.

    operators.py --library libheed_ops.so
"""

import argparse
import importlib.util
import sys
import tempfile
from pathlib import Path

try:
    import torch
except ImportError as error:
    sys.exit(f"operators.py: cannot import torch ({error})")

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--library", required=True, metavar="FILE", help="heed's libheed_ops.so")
library = parser.parse_args().library

# heed_ops.py is installed beside the library; here it is where it comes from.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "python"))
torch.manual_seed(0)
import heed_ops

heed_ops.load(library)  # the path of libheed_ops.so; without one, that beside heed_ops.py

query = torch.randn(2, 8, 50, 64, requires_grad=True)  # [B, H, L, D]
key = torch.randn(2, 2, 50, 64, requires_grad=True)    # [B, G, S, D]
value = torch.randn(2, 2, 50, 64, requires_grad=True)  # [B, G, S, Dv]
output = torch.ops.heed.attend(query, key, value, causal=True, window=16)
output.square().mean().backward()

assert query.grad.isfinite().all() and query.grad.abs().sum() > 0


class Model(torch.nn.Module):
    def forward(self, query, key, value):
        return torch.ops.heed.attend(query, key, value, causal=True)


def export(model, inputs, path):
    program = torch.export.export(model, inputs).run_decompositions(heed_ops.decompositions())
    torch.onnx.export(program, f=path)


if importlib.util.find_spec("onnxscript"):  # which torch.onnx needs
    with tempfile.TemporaryDirectory() as folder:
        export(Model(), (query.detach(), key.detach(), value.detach()), f"{folder}/model.onnx")
        assert Path(f"{folder}/model.onnx").stat().st_size > 0
