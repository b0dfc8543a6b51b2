#!/usr/bin/env python3
"""Export PyTorch modules to TorchScript archives that heed::load_weights reads.

The classes of a document, or a class of your own (from an importable module or a file):

    export_torchscript.py --document 000 --fixture --out DIR
    export_torchscript.py package.module:Class --args '{"emb_dim": 64}' --out FILE.pt
    export_torchscript.py path/to/file.py:Class --args '[64, 8]' --out FILE.pt \\
        --trace --example-shape 2,10,64 --fixture

Modules are built from --seed and exported in eval mode. With --fixture, what Python computes is
written beside each archive NAME.pt as NAME.fixture.pt: a dict that torch::pickle_load reads in C++,
from string to tensor.

    arg.<name>            0-d; each number given to the constructor by name: arg.emb_dim, ...
    x                     the input; or query, key and value, in forward's order
    loss_weight           like the output
    <case>.mask           absent from the case that has no mask
    <case>.output         what forward(x, mask) returns
    <case>.weights        what its softmax returns; absent unless forward computes just one
    <case>.grad.x         gradients of (output * loss_weight).sum() with respect to each input
    <case>.grad.<name>    and to each parameter: <case>.grad.fc_q.weight, ...

Document 000 has the cases none, causal, integer, batch, expanded, and heads for the two classes
with several heads; the others none, padding, random, and document for document 002's own mask.
Where there are several examples of one class, NAME ends in _self, _cross or _sizes. A class of your
own has the case none.
"""

import argparse
import contextlib
import importlib
import io
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NoReturn, Optional, Tuple, Union


def fail(message: str) -> NoReturn:
    sys.exit(f"export_torchscript.py: {message}")


try:
    import torch
    from torch.overrides import TorchFunctionMode
except ImportError as error:
    fail(f"cannot import torch ({error}): install it with '{sys.executable} -m pip install torch'")

Arguments = Union[Dict[str, Any], List[Any]]


class RecordSoftmax(TorchFunctionMode):
    """Keeps what every softmax of an eager module returns."""

    def __init__(self) -> None:
        super().__init__()
        self.results: List[torch.Tensor] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") == "softmax":
            self.results.append(result)
        return result


@contextlib.contextmanager
def without_deprecation_warnings() -> Iterator[None]:
    """torch.jit works and is what C++ loads; newer releases of torch advise against it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
        yield


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def write_atomically(path: Path, save: Callable[[io.BytesIO], None]) -> None:
    """A run that is interrupted leaves the old file or the new one, never part of one."""
    buffer = io.BytesIO()
    save(buffer)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(buffer.getbuffer())
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)  # mkstemp's files are private
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}")
    print(path)


def archive_of(
    module: torch.nn.Module, name: str, trace_input: Optional[torch.Tensor]
) -> torch.jit.ScriptModule:
    """Scripted, or traced when there is an input to trace with."""
    with without_deprecation_warnings():
        if trace_input is None:
            try:
                return torch.jit.script(module)
            except Exception as error:  # whatever the compiler finds in a user's code
                fail(f"TorchScript cannot compile {name} (--trace records a call instead): {error}")
        try:
            return torch.jit.trace(module, trace_input)
        except Exception as error:  # whatever a user's code raises
            fail(f"cannot trace {name}: {first_line(error)}")


def write_archive(archive: torch.jit.ScriptModule, path: Path) -> None:
    with without_deprecation_warnings():
        write_atomically(path, lambda buffer: torch.jit.save(archive, buffer))


def run(
    module: torch.nn.Module, inputs: Dict[str, torch.Tensor], mask: Optional[torch.Tensor]
) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
    """The first output, and the attention weights if it is clear which they are."""
    masks = () if mask is None else (mask,)
    with RecordSoftmax() as softmax:
        output = module(*inputs.values(), *masks)
    if isinstance(output, (tuple, list)):
        output = output[0]
    return output, softmax.results[0] if len(softmax.results) == 1 else None


def fixture_of(
    module: torch.nn.Module,
    args: Arguments,
    inputs: Dict[str, torch.Tensor],
    masks: Dict[str, Optional[torch.Tensor]],
) -> Dict[str, torch.Tensor]:
    """See the top of this file."""
    named_args = args.items() if isinstance(args, dict) else ()
    numbers = {k: v for k, v in named_args if isinstance(v, (int, float))}
    fixture = {f"arg.{name}": torch.tensor(value) for name, value in numbers.items()}
    fixture.update(inputs)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in inputs.items()}
    wanted = {**leaves, **{k: p for k, p in module.named_parameters() if p.requires_grad}}
    for case, mask in masks.items():
        output, weights = run(module, leaves, mask)
        loss_weight = fixture.setdefault("loss_weight", torch.randn_like(output))
        gradients = torch.autograd.grad(
            (output * loss_weight).sum(), list(wanted.values()), allow_unused=True
        )
        if mask is not None:
            fixture[f"{case}.mask"] = mask
        fixture[f"{case}.output"] = output.detach()
        if weights is not None:
            fixture[f"{case}.weights"] = weights.detach()
        for name, gradient in zip(wanted, gradients):
            if gradient is not None:
                fixture[f"{case}.grad.{name}"] = gradient
    return fixture


def write_fixture(fixture: Dict[str, torch.Tensor], archive_path: Path) -> None:
    path = archive_path.with_name(f"{archive_path.stem}.fixture.pt")
    write_atomically(path, lambda buffer: torch.save(fixture, buffer))


def export_document(number: str, out: Path, with_fixture: bool) -> None:
    directory = Path(__file__).resolve().parent / "documents"
    known = sorted(path.stem[len("document_") :] for path in directory.glob("document_*.py"))
    if number not in known:
        fail(f"there are no classes of document {number}; there are of {', '.join(known)}")
    document = importlib.import_module(f"documents.document_{number}")
    for example in document.examples():
        example.module.eval()
        path = out / f"{example.name}.pt"
        write_archive(archive_of(example.module, example.name, None), path)
        if with_fixture:
            fixture = fixture_of(example.module, example.args, example.inputs, example.masks)
            write_fixture(fixture, path)


def find_class(target: str) -> Callable[..., torch.nn.Module]:
    """The class that "module:Class" or "file.py:Class" names."""
    source, _, class_name = target.rpartition(":")
    if not source or not class_name:
        fail(f"{target} must be module:Class or file.py:Class")
    try:
        if source.endswith(".py"):
            path = Path(source)
            if not path.is_file():
                fail(f"{source} is not a file")
            sys.path.insert(0, str(path.resolve().parent))
            source = path.stem
        else:
            sys.path.insert(0, os.getcwd())
        module = importlib.import_module(source)
    except Exception as error:  # whatever a user's code raises
        fail(f"cannot import {source}: {first_line(error)}")
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, torch.nn.Module)):
        fail(f"{source} has no torch.nn.Module named {class_name}")
    return found


def export_class(options: argparse.Namespace) -> None:
    name = options.target.rpartition(":")[2]
    found = find_class(options.target)
    args = options.args
    try:
        module = found(**args) if isinstance(args, dict) else found(*args)
    except Exception as error:  # whatever a user's code raises
        fail(f"cannot build {name} from {json.dumps(args)}: {first_line(error)}")
    module.eval()
    shape = options.example_shape
    x = torch.randn(shape) if shape else None
    write_archive(archive_of(module, name, x if options.trace else None), options.out)
    if options.fixture:
        try:
            fixture = fixture_of(module, args, {"x": x}, {"none": None})
        except Exception as error:  # whatever a user's code raises
            fail(f"cannot run {name} on an input of shape {shape}: {first_line(error)}")
        write_fixture(fixture, options.out)


def json_arguments(text: str) -> Arguments:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text} is not JSON: {error}") from None
    if not isinstance(value, (dict, list)):
        raise argparse.ArgumentTypeError(f"{text} must be a JSON object or array")
    return value


def shape(text: str) -> List[int]:
    try:
        sizes = [int(size) for size in text.split(",")]
    except ValueError:
        sizes = [-1]
    if any(size < 0 for size in sizes):
        raise argparse.ArgumentTypeError(f"{text} must be sizes such as 2,10,64")
    return sizes


def parse() -> argparse.Namespace:
    summary, _, details = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", nargs="?", metavar="MODULE:CLASS", help="a class of your own")
    parser.add_argument("--document", metavar="NNN", help="every class of a document, such as 000")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="PATH",
        help="a directory for --document, else a file",
    )
    parser.add_argument(
        "--args",
        type=json_arguments,
        default={},
        metavar="JSON",
        help="the constructor's arguments: an object or an array",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--script", action="store_true", help="compile the class (the default)")
    how.add_argument("--trace", action="store_true", help="record one call on random input")
    parser.add_argument(
        "--example-shape",
        type=shape,
        metavar="B,L,E",
        help="of the random input that --trace and --fixture need",
    )
    parser.add_argument("--fixture", action="store_true", help="also write what Python computes")
    parser.add_argument("--seed", type=int, default=0, help="of weights and inputs (0)")
    options = parser.parse_args()
    if (options.target is None) == (options.document is None):
        parser.error("give either MODULE:CLASS or --document")
    if options.document is not None and (options.trace or options.args or options.example_shape):
        parser.error("--document takes --out, --fixture and --seed only")
    if options.target and (options.trace or options.fixture) and options.example_shape is None:
        parser.error("--trace and --fixture need --example-shape")
    return options


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    if options.document is not None:
        export_document(options.document, options.out, options.fixture)
    else:
        export_class(options)


if __name__ == "__main__":
    main()
