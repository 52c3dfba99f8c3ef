"""Writes the documentation of the native module into its stub, `python/echoic/_native.pyi`.

A text stands once, in Rust, where PyO3 takes it from for `help()`. The stub has the types, which
are written by hand, and a copy of each text, for editors and for the reference. `make stub` brings
the copies up to date. With `--check` nothing is written, and an old copy is an error.
"""

import ast
import inspect
import sys
from pathlib import Path
from types import ModuleType

from echoic import _native

STUB = Path(__file__).resolve().parents[2] / "python" / "echoic" / "_native.pyi"
Node = ast.ClassDef | ast.FunctionDef


def docstring(text: str, indent: str) -> list[str]:
    """Quote a text as the lines of a docstring."""
    quote = 'r"""' if "\\" in text else '"""'
    lines = text.split("\n")
    if len(lines) == 1 and len(indent) + len(quote) + len(text) + 3 <= 100:
        return [f'{indent}{quote}{text}"""']
    first = f"{indent}{quote}{lines[0]}"
    rest = [f"{indent}{line}" if line else "" for line in lines[1:]]
    return [first, *rest, f'{indent}"""']


def text_of(node: Node, owner: type | ModuleType) -> str | None:
    """Return what Rust says about a class or function that users see."""
    if node.name.startswith("_"):
        return None
    if isinstance(owner, type) and node.name not in vars(owner):
        return None
    return inspect.getdoc(getattr(owner, node.name))


def is_overload(node: Node) -> bool:
    """Say whether this is one of several signatures, and not the last of them."""
    return any(isinstance(d, ast.Name) and d.id == "overload" for d in node.decorator_list)


class Writer:
    """The stub's lines while texts take their places, from the last to the first."""

    def __init__(self, source: str) -> None:
        self.lines = source.split("\n")
        self.missing: list[str] = []

    def visit(self, body: list[ast.stmt], owner: type | ModuleType, path: str) -> None:
        """Give every class and function in `body` its text."""
        nodes = [node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
        last = {node.name: node for node in nodes}
        for node in reversed(nodes):
            if isinstance(node, ast.ClassDef):
                self.visit(node.body, getattr(owner, node.name), f"{path}{node.name}.")
            text = text_of(node, owner)
            if text is None and not node.name.startswith("_"):
                self.missing.append(path + node.name)
            self.place(node, text if last[node.name] is node else None)

    def place(self, node: Node, text: str | None) -> None:
        """Replace the docstring of one class or function, or take it away."""
        indent = " " * (node.col_offset + 4)
        old = ast.get_docstring(node, clean=False) is not None
        first = node.body[0]
        if old:
            start, end = first.lineno - 1, first.end_lineno
        elif isinstance(node, ast.FunctionDef) or isinstance(first, ast.Expr):
            # `def f() -> None: ...`
            if text is None:
                return
            line = self.lines[first.lineno - 1]
            self.lines[first.lineno - 1] = line[: first.col_offset].rstrip()
            start = end = first.lineno
        else:
            start = end = first.lineno - 1
            decorators = getattr(first, "decorator_list", [])
            if decorators:
                start = end = decorators[0].lineno - 1
        if text is not None:
            self.lines[start:end] = docstring(text, indent)
        elif len(node.body) == 1:
            self.lines[start:end] = []
            self.lines[start - 1] += " ..."
        else:
            self.lines[start:end] = []


def main(arguments: list[str]) -> int:
    """Write the stub, or check it."""
    before = STUB.read_text(encoding="utf-8")
    writer = Writer(before)
    writer.visit(ast.parse(before).body, _native, "")
    if writer.missing:
        print("No documentation in Rust:", ", ".join(reversed(writer.missing)), file=sys.stderr)
        return 1
    after = "\n".join(writer.lines)
    if after == before:
        return 0
    if "--check" in arguments:
        print(f"{STUB.name} has old texts; run `make stub`.", file=sys.stderr)
        return 1
    STUB.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
