#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Export PyTorch modules to files that heed::load_weights reads.

It exports your own class, or your own function that returns a module, from an importable module or
from a file; or the classes that heed is compared with, from one of the modules in
tests/parity/originals:

    export_model.py package.module:Class --args '{"emb_dim": 64}' --weights TRAINED.pt \\
        --out FILE.safetensors
    export_model.py path/to/file.py:Class --args '[64, 8]' --out FILE.pt2 \\
        --example-shape 2,10,64 --fixture
    export_model.py --originals heads --fixture --out DIR

The formats:

    safetensors    the weights alone
    pt2            the weights and the program, as torch.export.save writes them
    torchscript    the weights and the code, as torch.jit.save writes them; TorchScript is deprecated
                   since torch 2.11

heed reads the weights of each, and runs neither programs nor code. Without --format, the ending of
--out tells the format: .safetensors, .pt2, or any other for torchscript.

Modules are exported in eval mode, with the weights of --weights or, without it, random ones from
--seed. torch.export, --trace and --fixture call the module, so they need an example of its input:
give --example-shape once for each input of forward; for inputs that are not floating-point, such as
token ids, use --example. With --fixture, Python's results are written next to each file NAME.pt as
NAME.fixture.pt: a dict from string to tensor, which torch::pickle_load reads in C++.

    arg.<name>            0-d; each number that the constructor got by name: arg.emb_dim, ...
    x                     the input; if there are several, each under its name in forward
    loss_weight           a tensor with the shape of the output
    <case>.mask           the mask; the case without a mask does not have it
    <case>.output         the result of forward(x, mask)
    <case>.weights        the result of its softmax, if forward computes exactly one
    <case>.grad.x         gradients of (output * loss_weight).sum() with respect to each floating
    <case>.grad.<name>    input and each parameter: <case>.grad.fc_q.weight, ...

The classes in heads.py have the cases none, causal, integer, batch and expanded; the two with several
heads also have the case heads. The classes in other modules have the cases none, padding and random;
those in single_head.py also have lengths. If there are several examples of one class, NAME ends in
_self, _cross or _sizes. Your own class has the case none.
"""

import argparse
import contextlib
import importlib
import inspect
import io
import json
import logging
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NoReturn, Optional, Tuple, Union


def fail(message: str) -> NoReturn:
    sys.exit(f"export_model.py: {message}")


try:
    import torch
    from torch.overrides import TorchFunctionMode
except ImportError as error:
    fail(f"cannot import torch ({error}): install it with '{sys.executable} -m pip install torch'")

ENDINGS = {"torchscript": ".pt", "pt2": ".pt2", "safetensors": ".safetensors"}

Arguments = Union[Dict[str, Any], List[Any]]
Tensors = Dict[str, torch.Tensor]


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
        warnings.filterwarnings("ignore", message=".*torch.jit")
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
    module: torch.nn.Module, name: str, trace_inputs: Optional[Tensors]
) -> torch.jit.ScriptModule:
    """Scripted, or traced when there are inputs to trace with."""
    with without_deprecation_warnings():
        if trace_inputs is None:
            try:
                return torch.jit.script(module)
            except Exception as error:  # whatever the compiler finds in a user's code
                fail(f"TorchScript cannot compile {name} (--trace records a call instead): {error}")
        try:
            # strict would refuse a dict as output, whose keys might vary: only weights matter here.
            return torch.jit.trace(module, tuple(trace_inputs.values()), strict=False)
        except Exception as error:  # whatever a user's code raises
            fail(f"cannot trace {name}: {first_line(error)}")


def program_of(
    module: torch.nn.Module, name: str, inputs: Tensors
) -> "torch.export.ExportedProgram":
    logging.disable(logging.CRITICAL)  # torch logs what it raises
    try:
        return torch.export.export(module, tuple(inputs.values()))
    except Exception as error:  # whatever torch.export finds in a user's code
        fail(f"torch.export cannot export {name}: {first_line(error)}")
    finally:
        logging.disable(logging.NOTSET)


def write_safetensors(module: torch.nn.Module, path: Path) -> None:
    try:
        from safetensors.torch import save
    except ImportError:
        fail(f"--format safetensors: '{sys.executable} -m pip install safetensors' first")
    # The format has each tensor once, so those that share memory are copied.
    weights = {name: tensor.detach().clone().contiguous()
               for name, tensor in module.state_dict().items()}
    write_atomically(path, lambda buffer: buffer.write(save(weights)))


def write_module(
    module: torch.nn.Module, name: str, path: Path, options: argparse.Namespace, inputs: Tensors
) -> None:
    if options.format == "safetensors":
        write_safetensors(module, path)
    elif options.format == "pt2":
        program = program_of(module, name, inputs)
        write_atomically(path, lambda buffer: torch.export.save(program, buffer))
    else:
        archive = archive_of(module, name, inputs if options.trace else None)
        with without_deprecation_warnings():
            write_atomically(path, lambda buffer: torch.jit.save(archive, buffer))


def run(
    module: torch.nn.Module, inputs: Tensors, mask: Optional[torch.Tensor]
) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
    """The first output, and the attention weights if it is clear which they are."""
    masks = () if mask is None else (mask,)
    with RecordSoftmax() as softmax:
        output = module(*inputs.values(), *masks)
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, (tuple, list)):
        output = output[0]
    return output, softmax.results[0] if len(softmax.results) == 1 else None


def fixture_of(
    module: torch.nn.Module,
    args: Arguments,
    inputs: Tensors,
    masks: Dict[str, Optional[torch.Tensor]],
) -> Tensors:
    """See the top of this file."""
    named_args = args.items() if isinstance(args, dict) else ()
    numbers = {k: v for k, v in named_args if isinstance(v, (int, float))}
    fixture = {f"arg.{name}": torch.tensor(value) for name, value in numbers.items()}
    fixture.update(inputs)
    leaves = {k: x.clone().requires_grad_(x.is_floating_point()) for k, x in inputs.items()}
    candidates = {**leaves, **dict(module.named_parameters())}
    wanted = {name: tensor for name, tensor in candidates.items() if tensor.requires_grad}
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


def write_fixture(fixture: Tensors, module_path: Path) -> None:
    path = module_path.with_name(f"{module_path.stem}.fixture.pt")
    write_atomically(path, lambda buffer: torch.save(fixture, buffer))


def export_originals(options: argparse.Namespace) -> None:
    # What heed is compared with lives with the tests.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "parity"))
    from originals import SUBJECTS

    subject = options.originals
    if subject not in SUBJECTS:
        fail(f"there are no originals named {subject}; there are {', '.join(SUBJECTS)}")
    for example in importlib.import_module(f"originals.{subject}").examples():
        example.module.eval()
        path = options.out / f"{example.name}{ENDINGS[options.format]}"
        write_module(example.module, example.name, path, options, example.inputs)
        if options.fixture:
            fixture = fixture_of(example.module, example.args, example.inputs, example.masks)
            write_fixture(fixture, path)


def find_target(target: str) -> Callable[..., torch.nn.Module]:
    """The class or function that "module:Class" or "file.py:Class" names."""
    source, _, name = target.rpartition(":")
    if not source or not name:
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
    found = getattr(module, name, None)
    is_module = inspect.isclass(found) and issubclass(found, torch.nn.Module)
    if not is_module and not inspect.isfunction(found):
        fail(f"{source} has no torch.nn.Module, and no function that returns one, named {name}")
    return found


def build(target: str, args: Arguments) -> torch.nn.Module:
    found = find_target(target)
    name = found.__name__
    try:
        module = found(**args) if isinstance(args, dict) else found(*args)
    except Exception as error:  # whatever a user's code raises
        hint = "" if args else " (--args gives the arguments)"
        fail(f"cannot build {name} from {json.dumps(args)}: {first_line(error)}{hint}")
    if not isinstance(module, torch.nn.Module):
        fail(f"{name} must return a torch.nn.Module, not {type(module).__name__}")
    return module.eval()


def read_tensors(path: Path) -> Any:
    """What torch.save or safetensors wrote."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except ImportError:
        fail(f"{path} needs safetensors: '{sys.executable} -m pip install safetensors'")
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror or first_line(error)}")
    except Exception:  # whatever another kind of file leads to
        fail(f"{path} must be a file of tensors, as torch.save(module.state_dict(), ...) writes it")


def load_weights(module: torch.nn.Module, path: Path, key: Optional[str]) -> None:
    weights = read_tensors(path)
    if key is not None:
        if not isinstance(weights, dict) or key not in weights:
            fail(f"{path} holds nothing under {key}")
        weights = weights[key]
    if not isinstance(weights, dict):
        fail(f"{path} must hold a state_dict, not {type(weights).__name__}")
    others = [name for name, value in weights.items() if not isinstance(value, torch.Tensor)]
    if others:
        held = ", ".join(map(str, others))
        fail(f"{path} must hold a state_dict (--key names the entry that is one); it has {held}")
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        fail(f"{path} does not fit: " + " ".join(str(error).split()))


def example_inputs(module: torch.nn.Module, options: argparse.Namespace) -> Tensors:
    """By their names in forward; "x" if there is one."""
    if options.example is not None:
        tensors = read_tensors(options.example)
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        if not isinstance(tensors, (list, tuple)) or not all(
            isinstance(tensor, torch.Tensor) for tensor in tensors
        ):
            fail(f"{options.example} must hold a tensor, or a list of them in forward's order")
    else:
        tensors = [torch.randn(sizes) for sizes in options.example_shape or []]
    if len(tensors) == 1:
        return {"x": tensors[0]}
    names = list(inspect.signature(module.forward).parameters)
    if len(tensors) > len(names):
        fail(f"{len(tensors)} inputs are too many: forward takes {', '.join(names)}")
    return dict(zip(names, tensors))


def export_class(options: argparse.Namespace) -> None:
    if options.out.is_dir():
        fail(f"--out must name a file; {options.out} is a directory")
    name = options.target.rpartition(":")[2]
    module = build(options.target, options.args)
    if options.weights is not None:
        load_weights(module, options.weights, options.key)
    inputs = example_inputs(module, options)
    write_module(module, name, options.out, options, inputs)
    if options.fixture:
        try:
            fixture = fixture_of(module, options.args, inputs, {"none": None})
        except Exception as error:  # whatever a user's code raises
            shapes = " and ".join(str(list(tensor.shape)) for tensor in inputs.values())
            fail(f"cannot run {name} on inputs of shape {shapes}: {first_line(error)}")
        write_fixture(fixture, options.out)


def json_arguments(text: str) -> Arguments:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(
            f"{text} is not JSON such as '{{\"emb_dim\": 64}}': {error}"
        ) from None
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
    parser.add_argument(
        "target", nargs="?", metavar="MODULE:CLASS", help="your own class or function"
    )
    parser.add_argument(
        "--originals", metavar="NAME", help="every class of a module in originals/, such as heads"
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="PATH",
        help="the output: a directory with --originals, else a file",
    )
    parser.add_argument(
        "--args",
        type=json_arguments,
        default={},
        metavar="JSON",
        help="arguments of the constructor: an object or an array, as JSON",
    )
    parser.add_argument(
        "--weights", type=Path, metavar="FILE", help="a state_dict that torch.save wrote"
    )
    parser.add_argument("--key", help="the entry of the checkpoint --weights that is the state_dict")
    parser.add_argument(
        "--format", choices=ENDINGS, help="the format of the output (by the ending of --out)"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--script", action="store_true", help="torchscript: compile the class (the default)"
    )
    how.add_argument(
        "--trace", action="store_true", help="torchscript: record one call on example input"
    )
    example = parser.add_mutually_exclusive_group()
    example.add_argument(
        "--example-shape",
        type=shape,
        action="append",
        metavar="B,L,E",
        help="shape of a random input of forward; once for each input",
    )
    example.add_argument(
        "--example",
        type=Path,
        metavar="FILE",
        help="the input, a tensor or a list of tensors that torch.save wrote",
    )
    parser.add_argument("--fixture", action="store_true", help="also write the results of Python")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and inputs (0)")
    options = parser.parse_args()
    check(parser, options)
    return options


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Options that do not go together; chooses the format where none is given."""
    if (options.target is None) == (options.originals is None):
        parser.error("give either MODULE:CLASS or --originals")
    has_example = options.example_shape is not None or options.example is not None
    for_class = options.trace or options.args or has_example or options.weights
    if options.originals is not None and for_class:
        parser.error("--originals takes --out, --format, --fixture and --seed only")
    by_ending = {ending: name for name, ending in ENDINGS.items()}.get(options.out.suffix)
    if options.format is None:
        options.format = by_ending or "torchscript"
    elif options.target and by_ending not in (None, options.format):
        parser.error(f"--out {options.out} has the ending of {by_ending}, not of {options.format}")
    if options.format != "torchscript" and (options.script or options.trace):
        parser.error(f"--script and --trace are for torchscript, not for {options.format}")
    if options.target and (options.trace or options.fixture) and not has_example:
        parser.error("--trace and --fixture need --example-shape or --example")
    if options.target and options.format == "pt2" and not has_example:
        parser.error("pt2 needs --example-shape or --example: torch.export calls the module")
    if options.key is not None and options.weights is None:
        parser.error("--key needs --weights")


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    if options.originals is not None:
        export_originals(options)
    else:
        export_class(options)


if __name__ == "__main__":
    main()
