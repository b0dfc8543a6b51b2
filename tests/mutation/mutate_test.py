#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""mutate.py chooses the tests of each folder, and scripts/mutate.sh refuses what is no folder."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap
import unittest

import mutate

ROOT = pathlib.Path(__file__).resolve().parents[2]


def names(programs):
    return [program.name() for program in programs]


# In place of CMake: a library is its source, and the only programs are those that are there.
CMAKE = """\
    #!/usr/bin/env python3
    import pathlib, shutil, sys
    build, targets = pathlib.Path(sys.argv[2]), sys.argv[4:]
    if targets == ["help"]:
        print(*(f"... {path.name}" for path in build.rglob("*") if path.suffix in ("", ".target")), sep="\\n")
        print("... heed_objects\\n... heed_distributed\\n... heed_ops\\n... heed_simulated_cuda")
    for target in targets:
        for source in (build / "../src").rglob("*.cpp"):
            made = build / f"CMakeFiles/{target}.dir/src/{source.name}.o"
            made.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, made)
    """

# Fails if the source is not as it was, or if it is not on the device where it must be.
PROGRAM = """\
    #!/bin/sh
    echo "[ RUN      ] Case.$(basename "$0")"
    [ "$HEED_TEST_DEVICES" = "{devices}" ] && grep --quiet "1 < 2" src/*/a.cpp src/*/*/*/a.cpp 2>/dev/null
    """


class Mutate(unittest.TestCase):
    def test_tests_of_a_folder(self):
        for path, first in (
                ("src/cpu/isa/simd.h", ["attend_test", "modules_test", "models_test", "pretrained_test",
                                          "weights_test"]),
                ("src/models/decoder.cpp", ["models_test", "pretrained_test", "weights_test"]),
                ("src/models/pretrained/rope.cpp", ["pretrained_test", "models_test", "weights_test"]),
                ("src/weights/formats/zip.cpp", [
                    "weights_test", *names(mutate.REPLAYS), "models_test", "pretrained_test"]),
                ("src/distributed/mesh.cpp", ["distributed_test"]),
                ("src/ops/boxed.h", ["ops_test", "ops_test on the simulated device", "tests/ops/operators.py",
                                     "tests/ops/operator_transforms.py", "tests/ops/transformers_models.py"]),
                ("src/attend/paths/cuda/trust.cpp", [
                    "simulated_cuda_test", "attend_test on the simulated device",
                    "modules_test on the simulated device"])):
            self.assertEqual(names(mutate.programs_for(path)), first, path)

    def test_others(self):
        self.assertEqual(mutate.others_for("src/distributed/mesh.cpp"), [])
        self.assertEqual(mutate.others_for("src/ops/boxed.h"), [])
        self.assertEqual(names(mutate.others_for("src/attend/paths/cuda/trust.cpp")),
                         names(mutate.UNIT_TESTS + mutate.OTHER_TESTS))
        self.assertEqual(names(mutate.others_for("src/models/decoder.cpp")),
                         ["attend_test", "modules_test", *names(mutate.OTHER_TESTS), "distributed_test"])

    def test_every_folder_is_tested(self):
        """By programs that the build has: their targets stand in a CMakeLists.txt."""
        lists = "".join(path.read_text() for folder in ("tests", "cmake")
                        for path in (ROOT / folder).rglob("*") if path.name == "CMakeLists.txt"
                        or path.suffix == ".cmake")
        known = set(re.findall(r"(?:NAME|heed_add_reader|add_executable\(|add_library\()\s*([\w]+)", lists))
        for path in mutate.sources(ROOT, "src"):
            for program in mutate.programs_for(path):
                for target in program.targets():
                    self.assertTrue(target in known or target.endswith("_replay"), target)
                if program.path.endswith(".py"):
                    self.assertTrue((ROOT / program.path).exists(), program.path)

    def test_sources(self):
        self.assertLess(set(mutate.sources(ROOT, "src/ops")), set(mutate.sources(ROOT, "src")))
        self.assertTrue(all(path.startswith("src/ops/") for path in mutate.sources(ROOT, "src/ops")))

    def test_commands(self):
        build = pathlib.Path("/b")
        test, _, script, *_ = mutate.OPS_TESTS
        self.assertEqual(test.command(build)[0], build / "tests/ops/ops_test")
        self.assertEqual(script.command(build)[1:], [script.path, "--library", "/b/libheed_ops.so"])
        self.assertEqual(test.environment(build), {})
        device = mutate.CUDA_TESTS[1]
        self.assertEqual(device.environment(build)["LD_PRELOAD"], f"/b/{mutate.SIMULATED_DEVICE}")
        self.assertIn("InstructionSets.*", device.command(build)[-1])

    def run_in(self, source, program, devices=""):
        """Both changes of a source, in a tree that has one program."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for path, text in ((source, "bool f() { return 1 < 2; }"), ("bin/cmake", CMAKE),
                               (f"build/{program}", PROGRAM.format(devices=devices))):
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(textwrap.dedent(text))
                (root / path).chmod(0o755)
            ran = subprocess.run(
                [sys.executable, ROOT / "tests/mutation/mutate.py", root, root / "build", "1", "1",
                 str(pathlib.PurePath(source).parent)], capture_output=True, text=True,
                env={**os.environ, "HEED_TEST_DEVICES": "", "PATH": f"{root}/bin:{os.environ['PATH']}"})
            self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
            self.assertEqual((root / source).read_text(), "bool f() { return 1 < 2; }")
            return ran.stdout

    def test_runs_what_tests_the_folder(self):
        for source, program in (("src/ops/a.cpp", "tests/ops/ops_test"),
                                ("src/distributed/a.cpp", "tests/distributed/distributed_test"),
                                ("src/attend/paths/cuda/a.cpp", "tests/cuda/simulated_cuda_test"),
                                ("src/models/a.cpp", "tests/unit/models_test")):
            output = self.run_in(source, program)
            name = pathlib.PurePath(program).name
            self.assertIn(f"{name} passes in ", output)
            self.assertIn(f"killed by Case.{name}", output)
            self.assertIn("1 changes (seed 1), 1 noticed: 1 by the tests of their folders, 0 by others.", output)
        self.assertIn("ops_test on the simulated device is left out: Case.ops_test fails without a change",
                      self.run_in("src/ops/a.cpp", "tests/ops/ops_test"))

    def test_runs_on_the_simulated_device(self):
        output = self.run_in("src/attend/paths/cuda/a.cpp", "tests/unit/modules_test", devices="cuda")
        self.assertIn("modules_test on the simulated device passes in ", output)
        self.assertIn("killed by Case.modules_test", output)
        self.assertIn("simulated_cuda_test is left out: it cannot be built here", output)

    def test_refusals(self):
        for arguments, text in ((["--under"], "--under must name a folder of src"),
                                (["--under", "src/missing"], "--under must name a folder of src"),
                                (["--under", "tests"], "--under (tests) must name a folder of src"),
                                (["--under", "src/ops", "many"], "must be whole numbers, not many")):
            refused = subprocess.run([ROOT / "scripts/mutate.sh", *arguments], capture_output=True, text=True)
            self.assertEqual(refused.returncode, 1)
            self.assertIn(text, refused.stderr)


if __name__ == "__main__":
    unittest.main()
