#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""includes.py finds what it looks for."""

import pathlib
import tempfile
import unittest

from includes import Tree


class Includes(unittest.TestCase):
    def faults(self, **files):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in files.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return list(Tree(root).faults())

    def test_down_and_across(self):
        self.assertEqual(self.faults(**{
            "src/attend/a.cpp": '#include "core/c.h"\n#include "attend/a.h"\n#include <vector>\n',
            "src/attend/a.h": "",
            "src/core/c.h": "",
        }), [])

    def test_missing(self):
        files = {
            "src/core/c.h": "namespace heed::detail {\nint own_of(int x);\nstruct Part {};\n}\n",
            "src/core/d.h": '#include "core/c.h"\n',
        }
        text = "int a = detail::own_of(1);  // detail::Part\ndetail::Unknown b;\n"
        self.assertEqual(self.faults(**files, **{"src/core/a.cpp": '#include "core/d.h"\n' + text}), [])
        self.assertEqual(self.faults(**files, **{"src/core/a.cpp": text}),
                         ["src/core/a.cpp names detail::own_of, but does not include src/core/c.h"])

    def test_up(self):
        self.assertEqual(self.faults(**{
            "src/core/c.cpp": '#include "models/m.h"\n',
            "src/models/m.h": "",
        }), ["src/core/c.cpp includes models/m.h: core is below models"])

    def test_rooms(self):
        files = {"src/modules/layers/l.h": "", "src/modules/caches/c.h": '#include "modules/layers/l.h"\n'}
        self.assertEqual(self.faults(**files), [])
        self.assertEqual(
            self.faults(**files, **{"src/modules/layers/m.cpp": '#include "modules/caches/c.h"\n'}),
            ["src/modules/layers/m.cpp includes modules/caches/c.h: modules/layers is below modules/caches"])

    def test_public_header(self):
        files = {
            "include/heed/norm.h": "",
            "include/heed/options.h": "#include <heed/norm.h>\n",
            "src/modules/layers/norm.cpp": "#include <heed/norm.h>\n",
        }
        self.assertEqual(self.faults(**files), [])
        self.assertEqual(
            self.faults(**files, **{"src/cpu/k.cpp": "#include <heed/norm.h>\n"}),
            ["src/cpu/k.cpp includes heed/norm.h: cpu is below modules/layers"])
        self.assertEqual(
            self.faults(**files, **{"src/attend/k.cpp": "#include <heed/options.h>\n"}),
            ["src/attend/k.cpp includes heed/options.h: attend is below modules/layers"])

    def test_instruction_sets(self):
        self.assertEqual(self.faults(**{
            "src/cpu/isa/k.cpp": '#include <stdint.h>\n#include <vector>\n#include "cpu/d.h"\n',
            "src/cpu/d.h": "",
        }), ["src/cpu/isa/k.cpp includes vector: cpu/isa shares no inline function",
             "src/cpu/isa/k.cpp includes cpu/d.h: cpu/isa shares no inline function"])

    def test_missing(self):
        self.assertEqual(self.faults(**{"src/core/c.cpp": '#include "c.h"\n', "src/core/c.h": ""}),
                         ["src/core/c.cpp includes c.h, which src does not hold"])


if __name__ == "__main__":
    unittest.main()
