# SPDX-License-Identifier: BSD-3-Clause
"""What check_docs.py finds."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().with_name("check_docs.py")

SOURCE = """int main() {
  int a = 1;

  int b = 2;
}
"""


class CheckDocs(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()
        (self.folder / "source.cpp").write_text(SOURCE)

    def findings(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        command = [sys.executable, SCRIPT, path, "--compiled", self.folder / "source.cpp"]
        result = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(result.returncode, 1 if result.stderr else 0)
        return result.stderr.replace(f"{self.folder}/", "")

    def test_what_fits(self) -> None:
        self.assertEqual("", self.findings("a.md", """# The `first`, and more
[itself](#the-first-and-more) [source](source.cpp) [there](https://example.org/nowhere)
`[not](a-link)`
```cpp
int a = 1;

int b = 2;
```
```sh
[not](a-link)
```
"""))
        self.assertEqual("", self.findings("b.md", "[there](a.md#the-first-and-more)\n"))
        self.assertEqual("", self.findings("c.html", '<a id="x" href="#x">x</a><img src="a.md"/>'))

    def test_links(self) -> None:
        self.assertEqual("a.md: b.md leads nowhere\n", self.findings("a.md", "[b](b.md)\n"))
        self.assertEqual("a.md: #b leads to no place in that file\n",
                         self.findings("a.md", "# A\n# A\n[a](#a-1) [b](#b)\n"))
        self.assertEqual("a.html: x.png leads nowhere\n",
                         self.findings("a.html", '<img src="x.png"/>'))

    def test_code(self) -> None:
        for block in ("int c = 3;\n", "int a = 1;\nint b = 2;\n", "int a = 1;\n\n  int b = 2;\n"):
            self.assertEqual(f"a.md:3: this code is in no file that is compiled: "
                             f"{block.splitlines()[0]}\n",
                             self.findings("a.md", f"# A\n\n```cpp\n{block}```\n"))

    def test_code_in_comments(self) -> None:
        header = """/// A sum.
///
/// @code
/// int a = 1;
///
/// int b = 2;
/// @endcode
class Sum {
  /// @code
  /// int b = 2;
  /// @endcode
  void add();
};
"""
        finding = "a.h:{}: this code is in no file that is compiled: {}\n".format
        self.assertEqual("", self.findings("a.h", header))
        self.assertEqual(finding(3, "int a = 1;"),
                         self.findings("a.h", header.replace("///\n/// int b", "/// int b")))
        self.assertEqual(finding(9, "int c = 2;"),
                         self.findings("a.h", header.replace("  /// int b", "  /// int c")))


if __name__ == "__main__":
    unittest.main()
