#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Changes src on purpose, one place at a time, and lists the changes that no test notices.

    mutate.py TREE BUILD COUNT SEED FOLDER

TREE is a copy of the sources, which this program writes to; BUILD its configured build folder.
scripts/mutate.sh makes both. FOLDER, src or one in it, has the files that are changed.
"""

import dataclasses
import hashlib
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time

import changes

MEMORY = 12 << 30  # of addresses, of which LibTorch alone takes some
FILE_SIZE = 4 << 30
DEVICE = 64 << 30  # of addresses, and of a file: what the simulated device reserves, twice, and uses little of
SETTINGS = {"OMP_NUM_THREADS": "1"}  # beside what the user sets: tensors are small


@dataclasses.dataclass(frozen=True)
class Program:
    target: str
    path: str  # in the build folder; of a program in Python, in the sources
    arguments: tuple = ("--gtest_fail_fast", "--gtest_color=no")
    on_cuda: bool = False  # on the simulated device
    has_device: bool = False  # the program itself plays one

    def name(self):
        stem = self.path if self.path.endswith(".py") else self.target
        return f"{stem} on the simulated device" if self.on_cuda else stem

    def command(self, build):
        if self.path.endswith(".py"):
            return [sys.executable, self.path, *(argument.format(build=build) for argument in self.arguments)]
        return [build / self.path, *self.arguments]

    def environment(self, build):
        return {"LD_PRELOAD": str(build / SIMULATED_DEVICE), "HEED_TEST_DEVICES": "cuda"} if self.on_cuda else {}

    def targets(self):
        return [self.target, *(["heed_simulated_cuda"] if self.on_cuda else [])]


def unit_test(name):
    return Program(f"{name}_test", f"tests/unit/{name}_test")


def on_cuda(program, *without):
    """As heed_run_on_simulated_cuda in tests/CMakeLists.txt."""
    leave_out = (f"--gtest_filter=-{':'.join(without)}",) if without else ()
    return dataclasses.replace(program, arguments=program.arguments + leave_out, on_cuda=True)


SIMULATED_DEVICE = "tests/support/simulated_cuda/libheed_simulated_cuda.so"
NOT_ON_CUDA = re.compile("heed does not use|LibTorch's operators are used")  # a warning of what runs there
UNIT_TESTS = [unit_test(name) for name in ("attend", "modules", "weights", "models", "pretrained")]
CUDA_TESTS = [
    Program("simulated_cuda_test", "tests/cuda/simulated_cuda_test", has_device=True),
    on_cuda(UNIT_TESTS[0], "*Visible*", "*Block.*", "*Decode*", "*Kernels*", "InstructionSets.*", "*AtAnyPosition"),
    on_cuda(UNIT_TESTS[1]),
]
DISTRIBUTED_TESTS = [Program("distributed_test", "tests/distributed/distributed_test")]
OPS_TEST = Program("ops_test", "tests/ops/ops_test")
OPS_TESTS = [
    OPS_TEST, on_cuda(OPS_TEST),
    *(Program("heed_ops", f"tests/ops/{name}.py", ("--library", "{build}/libheed_ops.so"))
      for name in ("operators", "operator_transforms", "transformers_models")),
]
REPLAYS = [Program(f"{reader}_replay", f"tests/fuzz/{reader}_replay", (f"tests/fuzz/corpus/{reader}",))
           for reader in ("archive", "legacy", "pickle", "safetensors", "weight_index")]
OTHER_TESTS = [
    unit_test("limits"),
    Program("numerics_test", "tests/numerics/numerics_test"),
    Program("parity_test", "tests/parity/parity_test"),
    Program("attend_fuzz", "tests/fuzz/attend_fuzz", ("--cases", "1000")),
]


def programs_for(path):
    """The unit tests of a source's floor and of those above, which are what can notice its change. Those
    of a library of its own are all that there are."""
    attend, modules, weights, models, pretrained = UNIT_TESTS
    floor = pathlib.PurePath(path).parts[1]
    if floor == "distributed":
        return DISTRIBUTED_TESTS
    if floor == "ops":
        return OPS_TESTS
    if path.startswith("src/attend/paths/cuda/"):
        return CUDA_TESTS
    if floor == "models":
        return [pretrained, models, weights] if "/pretrained" in path else [models, pretrained, weights]
    if floor == "weights":
        return [weights, *(REPLAYS if "/formats/" in path else []), models, pretrained]
    if floor == "modules":
        return [modules, models, pretrained, weights]
    return [attend, modules, models, pretrained, weights]


def others_for(path):
    """What else may notice its change. Processes share modules and models."""
    floor = pathlib.PurePath(path).parts[1]
    if floor in ("distributed", "ops"):
        return []
    first = programs_for(path)
    others = UNIT_TESTS + OTHER_TESTS + (DISTRIBUTED_TESTS if floor in ("modules", "models") else [])
    return [program for program in others if program not in first]


def last_case(output):
    """The case of a GoogleTest program that failed, or that ran when the program ended."""
    failed = re.search(r"^\[  FAILED  \] (\S+?),? \(\d+ ms\)$", output, re.MULTILINE)
    started = re.findall(r"^\[ RUN      \] (\S+)$", output, re.MULTILINE)
    return failed[1] if failed else started[-1] if started else None


def sources(root, folder):
    """{path: text}"""
    return {
        str(path.relative_to(root)): path.read_text()
        for path in sorted((root / folder).rglob("*")) if path.suffix in (".h", ".cpp")
    }


class Tree:
    def __init__(self, root, build, folder):
        self.root, self.build = root, build
        self.files = sources(root, folder)
        self.seconds = {}  # of processor time that each program needs
        self.temporary = tempfile.TemporaryDirectory()

    def compiles(self, *targets):
        built = subprocess.run(["cmake", "--build", self.build, "--target", *targets],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.output = built.stdout
        return built.returncode == 0

    def object_targets(self, path):
        library = {"distributed": "heed_distributed", "ops": "heed_ops"}.get(pathlib.PurePath(path).parts[1])
        if library:
            return [library]
        kernels = (self.build / "CMakeFiles").glob("heed_kernels_*.dir")
        return ["heed_objects", *sorted(folder.stem for folder in kernels)]

    def all_targets(self):
        listed = subprocess.run(["cmake", "--build", self.build, "--target", "help"],
                                stdout=subprocess.PIPE, text=True).stdout
        return set(re.findall(r"^(?:\.\.\. )?([\w.-]+)(?=:|$| )", listed, re.MULTILINE))

    def objects(self):
        return {path: hashlib.sha256(path.read_bytes()).digest()
                for path in (self.build / "CMakeFiles").glob("heed_*.dir/src/**/*.o")}

    def run(self, program, limit):
        """What stopped the program, or None."""
        device = DEVICE if program.on_cuda or program.has_device else 0
        limits = ((resource.RLIMIT_CPU, limit), (resource.RLIMIT_AS, MEMORY + 2 * device),
                  (resource.RLIMIT_FSIZE, FILE_SIZE + device), (resource.RLIMIT_CORE, 0))

        def restrict():
            for kind, most in limits:
                resource.setrlimit(kind, (most, most))

        with open(f"{self.temporary.name}/output", "w+", errors="replace") as output:
            process = subprocess.Popen(
                program.command(self.build), cwd=self.root, stdout=output,
                stderr=subprocess.STDOUT, preexec_fn=restrict, start_new_session=True,
                env={**SETTINGS, **os.environ, "TMPDIR": self.temporary.name,
                     "TEST_TMPDIR": self.temporary.name, **program.environment(self.build)})
            try:
                # On a busy machine processor time comes slowly, and a deadlock needs none.
                status = process.wait(timeout=10 * limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                status = -signal.SIGXCPU
            output.seek(0)
            text = output.read()
        if status == 0 and not (program.on_cuda and NOT_ON_CUDA.search(text)):
            return None
        case = last_case(text) or program.name()
        if status in (-signal.SIGXCPU, -signal.SIGKILL):
            return f"{case} (time limit)"
        return f"{case} ({signal.Signals(-status).name})" if status < 0 else case

    def measure(self, programs):
        """Builds the programs and runs them on the unchanged sources; those that pass."""
        here = self.all_targets()
        for program in programs:
            if not here.issuperset(program.targets()):
                print(f"{program.name()} is left out: it cannot be built here", flush=True)
        programs = [program for program in programs if here.issuperset(program.targets())]
        targets = dict.fromkeys(target for program in programs for target in program.targets())
        print(f"Building {' '.join(targets)}", flush=True)
        if targets and not self.compiles(*targets):
            sys.exit(f"{self.output}\nThe build failed; its output is above.")
        passing = []
        for program in programs:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            stopped_by = self.run(program, 3600)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            if stopped_by:
                print(f"{program.name()} is left out: {stopped_by} fails without a change", flush=True)
                continue
            self.seconds[program] = used
            passing.append(program)
            print(f"{program.name()} passes in {used:.0f} s of processor time", flush=True)
        return passing

    def write(self, path, text):
        (self.root / path).write_text(text)

    def judge(self, change, programs, original):
        """What notices the change, None if nothing does; ValueError says why it is no change."""
        text = self.files[change.path]
        self.write(change.path, change.apply(text))
        try:
            if not self.compiles(*self.object_targets(change.path)):
                raise ValueError("does not compile")
            if self.objects() == original:
                raise ValueError("compiles to the same code")
            for program in programs:
                if not self.compiles(*program.targets()):
                    raise ValueError("does not compile")
                stopped_by = self.run(program, int(4 * self.seconds[program] + 30))
                if stopped_by:
                    return stopped_by
        finally:
            self.write(change.path, text)
        return None


def first_round(tree, count, seed, original):
    """The changes that the tests of their folder do not notice."""
    unnoticed, left_out, judged = [], [], 0
    for change in changes.draw(tree.files, seed):
        if judged == count:
            break
        where = change.describe(tree.files[change.path])
        started = time.monotonic()
        try:
            programs = [program for program in programs_for(change.path) if program in tree.seconds]
            noticed_by = tree.judge(change, programs, original)
        except ValueError as reason:
            left_out.append(str(reason))
            print(f"-/{count} {where}\n    {reason}", flush=True)
            continue
        judged += 1
        outcome = f"killed by {noticed_by}" if noticed_by else "SURVIVED the tests of its folder"
        print(f"{judged}/{count} {where}\n    {outcome} ({time.monotonic() - started:.0f} s)", flush=True)
        if not noticed_by:
            unnoticed.append(change)
    return unnoticed, left_out, judged


def second_round(tree, unnoticed, original):
    """Those of them that no other test notices either."""
    print("What the tests of its folder do not notice, under the other tests:", flush=True)
    others = {program: None for change in unnoticed for program in others_for(change.path)}
    if others:
        subprocess.run(["ctest", "--test-dir", tree.build, "-R", "^parity.export_fixtures$"],
                       stdout=subprocess.DEVNULL)
    tree.measure([program for program in others if program not in tree.seconds])
    survivors = []
    for change in unnoticed:
        programs = [program for program in others_for(change.path) if program in tree.seconds]
        noticed_by = tree.judge(change, programs, original) if programs else None
        print(f"{change.describe(tree.files[change.path])}\n"
              f"    {f'killed by {noticed_by}' if noticed_by else 'SURVIVED'}", flush=True)
        if not noticed_by:
            survivors.append(change)
    return survivors


def main():
    root, build = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
    count, seed = (int(argument) for argument in sys.argv[3:5])
    tree = Tree(root, build, sys.argv[5])
    programs = dict.fromkeys(program for path in tree.files for program in programs_for(path))
    if tree.measure(list(programs)) == []:
        sys.exit("No test passes without a change.")
    original = tree.objects()
    unnoticed, left_out, judged = first_round(tree, count, seed, original)
    survivors = second_round(tree, unnoticed, original) if unnoticed else []
    print(f"{judged} changes (seed {seed}), {judged - len(survivors)} noticed: {judged - len(unnoticed)} "
          f"by the tests of their folders, {len(unnoticed) - len(survivors)} by others. Besides these, "
          f"{left_out.count('does not compile')} did not compile and "
          f"{left_out.count('compiles to the same code')} compiled to the same code.")
    for change in survivors:
        print(f"SURVIVED {change.describe(tree.files[change.path])}")


if __name__ == "__main__":
    main()
