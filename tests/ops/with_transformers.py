# SPDX-License-Identifier: BSD-3-Clause
"""Import this first: it ends a test with 77, skipped, where Python has no transformers 5.

Then `heed_transformers`, `use_heed_attention` and `seeds` can be imported.
"""

import argparse
import sys
from pathlib import Path

SKIPPED = 77

try:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel  # noqa: F401
    from transformers.masking_utils import AttentionMaskInterface  # noqa: F401
    from transformers.modeling_flash_attention_utils import FlashAttentionKwargs  # noqa: F401
    from transformers.modeling_utils import AttentionInterface  # noqa: F401
    from transformers.utils import TransformersKwargs  # noqa: F401
except ImportError as error:
    print(f"skipped: {sys.executable} cannot import {error.name}, or an older one than is needed")
    sys.exit(SKIPPED)

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts" / "python"), str(ROOT / "tests" / "support")]


def parser_for(description):
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--library", type=Path, required=True, metavar="FILE", help="libheed_ops.so")
    return parser


def load(options):
    torch.ops.load_library(options.library)
