#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Check Markdown files, HTML files and C++ headers: their links, and the code that they show.

    check_docs.py [--compiled SOURCE ...] FILE...

A relative link must lead to a file that exists, and its #anchor to a place in it. A block of C++ or
Python in a Markdown file, or between @code and @endcode in a header, must be in one of the SOURCEs,
line by line; only the indentation may differ.
"""

import argparse
import re
import sys
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Iterator
from urllib.parse import unquote, urlsplit

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMENT_CODE = re.compile(r"^ */// @code\n(.*?)^ */// @endcode$", re.MULTILINE | re.DOTALL)
COMMENT_MARK = re.compile(r"^ */// ?", re.MULTILINE)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


class Page(HTMLParser):
    """What an HTML page links to, and the anchors in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def prose(markdown: str) -> str:
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", markdown))


def markdown_anchors(markdown: str) -> set[str]:
    """The anchors that GitHub gives headings."""
    anchors: set[str] = set()
    for heading in HEADING.findall(FENCE.sub("", markdown)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        base = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        anchor, count = base, 0
        while anchor in anchors:
            count += 1
            anchor = f"{base}-{count}"
        anchors.add(anchor)
    return anchors


@lru_cache(maxsize=None)
def links_and_anchors(path: Path) -> tuple[list[str], set[str]]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return LINK.findall(prose(text)), markdown_anchors(text)
    page = Page(text)
    return page.links, page.anchors


def broken_links(path: Path) -> Iterator[str]:
    for link in links_and_anchors(path)[0]:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = path.parent / unquote(parts.path) if parts.path else path
        if not target.exists():
            yield f"{path}: {link} leads nowhere"
        elif parts.fragment and target.suffix in (".md", ".html"):
            if unquote(parts.fragment) not in links_and_anchors(target.resolve())[1]:
                yield f"{path}: {link} leads to no place in that file"


def stands_in(block: list[str], source: list[str]) -> bool:
    for start in range(len(source) - len(block) + 1):
        indent = source[start][: len(source[start]) - len(source[start].lstrip())]
        if all(source[start + i] == (indent + line if line else "") for i, line in enumerate(block)):
            return True
    return False


def shown_code(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The blocks of code in a file, each with the number of the line where it begins."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        blocks = [(match, match.group(2)) for match in FENCE.finditer(text)
                  if match.group(1) in ("cpp", "python")]
    else:
        blocks = [(match, COMMENT_MARK.sub("", match.group(1)))
                  for match in COMMENT_CODE.finditer(text)]
    for match, code in blocks:
        yield text.count("\n", 0, match.start()) + 1, code.splitlines()


def uncompiled_code(path: Path, sources: list[list[str]]) -> Iterator[str]:
    for line, block in shown_code(path):
        if not any(stands_in(block, source) for source in sources):
            yield f"{path}:{line}: this code is in no file that is compiled: {block[0]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--compiled", nargs="+", type=Path, default=[], metavar="SOURCE")
    arguments = parser.parse_args()

    sources = [source.read_text(encoding="utf-8").splitlines() for source in arguments.compiled]
    findings = []
    for path in arguments.files:
        if path.suffix in (".md", ".html"):
            findings += broken_links(path.resolve())
        if path.suffix in (".md", ".h"):
            findings += uncompiled_code(path.resolve(), sources)
    for finding in findings:
        print(finding, file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
