"""The code of docs/operators.md.

    operators.py --library libheed_ops.so
"""

import argparse
import sys

try:
    import torch
except ImportError as error:
    sys.exit(f"operators.py: cannot import torch ({error})")

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--library", required=True, metavar="FILE", help="heed's libheed_ops.so")
library = parser.parse_args().library

torch.manual_seed(0)
torch.ops.load_library(library)  # the path of libheed_ops.so

query = torch.randn(2, 8, 50, 64, requires_grad=True)  # [B, H, L, D]
key = torch.randn(2, 2, 50, 64, requires_grad=True)    # [B, G, S, D]
value = torch.randn(2, 2, 50, 64, requires_grad=True)  # [B, G, S, Dv]
output = torch.ops.heed.attend(query, key, value, causal=True, window=16)
output.square().mean().backward()

assert query.grad.isfinite().all() and query.grad.abs().sum() > 0
