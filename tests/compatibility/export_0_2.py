#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes programs that call the operators of version 0.2, and what 0.2 computes by them: files/0.2/operators.

    export_0_2.py --library libheed_ops.so --out DIR

write.sh calls it with 0.2's library. DIR then holds program.pt2, of torch.export, traced.pt, of torch.jit.trace,
expected.pt: the version of torch, the inputs and the outputs, and schemas.txt: the operators of 0.2.
"""

import argparse
import re
from pathlib import Path

import torch


class Program(torch.nn.Module):
    """Calls each operator of 0.2, with all kinds of arguments that its schema has."""

    def forward(self, query, key, value, mask, bias, slopes, sinks, documents, offsets, cos, sin, weight):
        heed = torch.ops.heed
        turned = heed.rotate(query, cos, sin)
        normed = heed.rms_norm(value, weight, eps=1e-6)
        plain = heed.attend(turned, key, normed, mask=mask, bias=bias, softcap=2.0, sinks=sinks)
        local, lse = heed.attend_with_lse(turned, key, value, causal=True, window=3, scale=0.5,
                                          alibi_slopes=slopes, documents=documents)
        packed = heed.attend_varlen(turned[0].transpose(0, 1), key[0].transpose(0, 1),
                                    value[0].transpose(0, 1), offsets, offsets, causal=True,
                                    longest_query=4, longest_key=4)
        return plain, local, lse, packed


def inputs():
    torch.manual_seed(2)
    batch, heads, groups, length, size = 2, 4, 2, 6, 4
    angles = torch.rand(length, size // 2)
    mask = torch.rand(length, length) > 0.3
    return (torch.randn(batch, heads, length, size), torch.randn(batch, groups, length, size),
            torch.randn(batch, groups, length, size), mask | torch.eye(length, dtype=torch.bool),
            torch.randn(1, heads, length, length), torch.tensor([0.5, 0.25, 0.125, 0.0625]),
            torch.randn(heads), torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 4, length]),
            angles.cos(), angles.sin(), torch.rand(size))


def public_schemas():
    """The operators that people call; the others are parts of these, for what traces them."""
    schemas = [str(schema) for schema in torch._C._jit_get_all_schemas()]
    return sorted(schema for schema in schemas
                  if re.match(r"heed::[a-z]", schema) and not re.match(r"heed::\w+_backward\(", schema))


def remove_source_lines(path):
    """Copies an archive of TorchScript without what says from which lines of which files it was traced."""
    reader = torch._C.PyTorchFileReader(str(path))
    records = {name: reader.get_record(name) for name in reader.get_all_records()
               if not name.endswith(".debug_pkl") and name not in ("version", "byteorder", ".data/serialization_id")}
    writer = torch._C.PyTorchFileWriter(str(path))
    for name, data in records.items():
        writer.write_record(name, data, len(data))
    writer.write_end_of_file()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.ops.load_library(arguments.library)
    arguments.out.mkdir(parents=True, exist_ok=True)
    program, given = Program().eval(), inputs()
    with torch.no_grad():
        expected = {"torch": str(torch.__version__), "inputs": given, "outputs": program(*given)}
        torch.save(expected, arguments.out / "expected.pt")
        exported = torch.export.export(program, given)
        for node in exported.graph.nodes:
            node.meta.pop("stack_trace", None)  # which has the paths of this machine
        torch.export.save(exported, arguments.out / "program.pt2")
        torch.jit.trace(program, given).save(arguments.out / "traced.pt")
    remove_source_lines(arguments.out / "traced.pt")
    (arguments.out / "schemas.txt").write_text("".join(f"{schema}\n" for schema in public_schemas()))


if __name__ == "__main__":
    main()
