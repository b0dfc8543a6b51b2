# SPDX-License-Identifier: BSD-3-Clause
"""Small changes that could be made to a C++ source, such as tests should notice."""

import dataclasses
import random
import re

TOKEN = re.compile(r"""
    (?P<space>\s+|//[^\n]*|/\*.*?\*/|\#(?:\\\n|[^\n])*)
  | (?P<text>(?:u8|[uUL])?R"(?P<end>[^()\\\s]*)\(.*?\)(?P=end)"
           | (?:u8|[uUL])?"(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])+')
  | (?P<number>\.?\d(?:'?[\w.]|(?<=[eEpP])[+-])*)
  | (?P<name>[A-Za-z_]\w*)
  | (?P<symbol><<=|>>=|\.\.\.|->|\+\+|--|&&|\|\||[-+*/%&|^!=<>]=|::|<<|.)
""", re.VERBOSE | re.DOTALL)

# With spaces on both sides: brackets of templates, pointers and references have none.
OPERATORS = {
    "comparison": {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="},
    "logic": {"&&": "||", "||": "&&"},
    "sign": {"+": "-", "-": "+", "*": "/", "/": "*", "+=": "-=", "-=": "+=", "*=": "/=", "/=": "*="},
}
OPPOSITES = {"true": "false", "false": "true"}
for pair in ("min max", "floor ceil", "clamp_min clamp_max", "amin amax", "lower_bound upper_bound",
             "min_element max_element", "any_of all_of"):
    one, other = pair.split()
    OPPOSITES.update({one: other, other: one})

# What follows the name that a statement with an effect begins with.
EFFECTS = {"(", ".", "->", "[", "=", "+=", "-=", "*=", "/=", "%=", "|=", "&=", "^=", "++", "--"}
KEYWORDS = {"return", "case", "default", "goto", "throw", "delete", "using", "typedef", "static_assert",
            "if", "for", "while", "switch", "do", "else", "sizeof"}
CONDITIONS = {"if", "for", "while", "switch"}
TYPES = {"class", "struct", "union", "enum"}
UNCHANGED = {"static_assert", "alignas", "__attribute__"}


@dataclasses.dataclass(frozen=True)
class Token:
    kind: str
    text: str
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class Change:
    path: str
    kind: str
    start: int
    end: int
    new: str

    def apply(self, text):
        return text[:self.start] + self.new + text[self.end:]

    def describe(self, text):
        """file:line:column: old → new in: the line."""
        begin = text.rfind("\n", 0, self.start) + 1
        end = text.find("\n", self.end)
        old = " ".join(text[self.start:self.end].split())
        line = " ".join(text[begin:end].split())
        where = f"{self.path}:{text.count(chr(10), 0, self.start) + 1}:{self.start - begin + 1}"
        if self.kind == "statement":
            return f"{where}: {old}; → dropped"
        return f"{where}: {old} → {self.new.strip() or 'nothing'} in: {line}"


def tokens(text):
    """Comments and preprocessor lines left out, and what is checked when the source is compiled."""
    found = [Token(match.lastgroup if match.lastgroup != "end" else "text", match[0], *match.span())
             for match in TOKEN.finditer(text)]
    depth = None  # within UNCHANGED(...)
    for token in found:
        if token.kind == "space":
            continue
        if depth is None and token.text in UNCHANGED:
            depth = 0
        elif depth is None:
            yield token
        else:
            depth += {"(": 1, ")": -1}.get(token.text, 0)
            if depth == 0 and token.text == ")":
                depth = None


def numbers_beside(literal):
    """Those one above and one below an integer's literal."""
    match = re.fullmatch(r"(0[xX][\da-fA-F']+|\d[\d']*)([uUlL]*)", literal)
    if not match:
        return []
    number = int(match[1].replace("'", ""), 16 if match[1][:2] in ("0x", "0X") else 10)
    form = hex if match[1][:2] in ("0x", "0X") else str
    return [form(near) + match[2] for near in (number + 1, number - 1) if near >= 0]


def changed_tokens(text, found):
    """(kind, token, what takes its place)"""
    for i, token in enumerate(found):
        before = found[i - 1] if i > 0 else None
        after = found[i + 1] if i + 1 < len(found) else None
        spaced = text[token.start - 1:token.start].isspace() and text[token.end:token.end + 1].isspace()
        if token.kind == "number":
            for near in numbers_beside(token.text):
                yield "bound", token, near
        elif token.text in OPPOSITES:
            is_call = after is not None and after.text in ("(", "<")
            if token.text in ("true", "false") or is_call:
                yield "opposite", token, OPPOSITES[token.text]
        elif token.kind == "symbol" and spaced:
            for kind, operators in OPERATORS.items():
                if token.text in operators:
                    yield kind, token, operators[token.text]
        elif token.text == "!":
            yield "logic", token, ""
        elif token.text == "-" and before is not None and (
                before.text in ("return", "case")
                or before.kind == "symbol" and before.text not in (")", "]")):
            yield "sign", token, ""


def has_effect(statement):
    """Whether this is no declaration and no return of a value, but can be left out."""
    texts = [token.text for token in statement]
    if texts in (["break"], ["continue"], ["return"]) or texts[0] in ("*", "++", "--"):
        return True
    if statement[0].kind != "name" or texts[0] in KEYWORDS:
        return False
    i = 1
    while texts[i:i + 1] == ["::"]:
        i += 2
    if texts[i:i + 1] == ["<"]:  # function<type>(...)
        depth = 0
        for i in range(i, len(texts)):
            depth += {"<": 1, ">": -1}.get(texts[i], 0)
            if depth == 0:
                return texts[i + 1:i + 2] == ["("]
    return texts[i] in EFFECTS if i < len(texts) else False


def statements(found):
    """Those in functions that can be left out, as lists of tokens without the semicolon."""
    open_ = []  # (bracket, kind, where the statement around it begins)
    start = 0
    for i, token in enumerate(found):
        kind = open_[-1][1] if open_ else "declarations"
        head = [other.text for other in found[start:i]]
        if token.text == "{":
            outside = kind == "declarations"
            declares = "namespace" in head or "extern" in head or (
                TYPES.intersection(head) and (")" not in head if outside else head[0] in TYPES))
            open_.append(("{", "declarations" if declares else "code", start))
            start = i + 1
        elif token.text in ("(", "["):
            open_.append((token.text, "brackets", start))
        elif token.text == "}":
            if open_:
                open_.pop()
            start = i + 1
        elif token.text in (")", "]"):
            if open_:
                start = open_.pop()[2]
            if token.text == ")" and found[start].text in CONDITIONS:
                start = i + 1
        elif token.text in ("else", "do") and i == start:
            start = i + 1
        elif token.text == ":" and head and head[0] in ("case", "default", "public", "private"):
            start = i + 1
        elif token.text == ";" and kind != "brackets":
            if kind == "code" and start < i and has_effect(found[start:i]):
                yield found[start:i]
            start = i + 1


def changes(path, text):
    """All changes of a file."""
    found = list(tokens(text))
    for kind, token, new in changed_tokens(text, found):
        yield Change(path, kind, token.start, token.end, new)
    for statement in statements(found):
        start, end = statement[0].start, statement[-1].end
        if re.search(r"^\s*#", text[start:end], re.MULTILINE):
            continue  # a macro without a semicolon, and what follows it
        # Lines keep their numbers: assertions may hold them.
        yield Change(path, "statement", start, end, "\n" * text.count("\n", start, end))


def lines_of_code(text):
    return len({text.count("\n", 0, token.start) for token in tokens(text)})


def draw(files, seed):
    """Changes of the files {path: text}, in an order that the seed gives, none twice. A file comes by
    its lines of code, then a kind of change that it can have, then a place."""
    rng = random.Random(seed)
    left, weights = {}, {}
    for path, text in sorted(files.items()):
        kinds = {}
        for change in changes(path, text):
            kinds.setdefault(change.kind, []).append(change)
        if kinds:
            left[path], weights[path] = kinds, lines_of_code(text)
    while left:
        path = rng.choices(list(left), [weights[path] for path in left])[0]
        kind = rng.choice(sorted(left[path]))
        places = left[path][kind]
        yield places.pop(rng.randrange(len(places)))
        if not places:
            del left[path][kind]
        if not left[path]:
            del left[path]
