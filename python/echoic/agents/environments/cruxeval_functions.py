"""The functions of CRUXEval: short Python functions, each with one input and its output.

The data set's own file has 800 (`cruxeval <https://github.com/facebookresearch/cruxeval>`_, MIT);
:func:`download` gets it. 24 of our own, in the same format, come with this package.
"""

from __future__ import annotations

import ast
import hashlib
import json
import urllib.request
import warnings
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from echoic.errors import ArgumentError

__all__ = [
    "Function",
    "arguments_of",
    "download",
    "literal_of",
    "load_functions",
    "shape_of",
    "value_of",
]

OWN = Path(__file__).parent / "data" / "cruxeval_own.jsonl"
URL = "https://raw.githubusercontent.com/facebookresearch/cruxeval/main/data/cruxeval.jsonl"
SHA256 = "8368b81047dc5014e4caf5a2f97604eff7644e0ecd7415e3ceeb184bbc2e0c96"
_MAX_BYTES = 64 << 20
_KEYS = ("code", "input", "output", "id")
# What else may stand in an argument than literals: made of literals, and of bounded cost to parse.
_MAKERS = ("dict", "set", "frozenset", "range")
_UNREADABLE = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)


@dataclass(frozen=True)
class Function:
    """A function ``f``, the arguments of one call, and what it returns, all as text."""

    code: str
    input: str
    output: str
    id: str

    @property
    def call(self) -> str:
        """The call as it is written."""
        return f"f({self.input})"


@lru_cache(maxsize=4)
def load_functions(path: str | None = None) -> tuple[Function, ...]:
    """Read a file of functions, or our own if there is no path.

    Each line is a JSON object with ``code``, ``input``, ``output`` and ``id``, all texts; the
    output is a Python literal.

    >>> len(load_functions())
    24
    """
    place = OWN if path is None else Path(path)
    if not place.is_file():
        raise ArgumentError(
            f"there is no file {place}; get it by: "
            "python -m echoic.agents.environments.cruxeval download PATH"
        )
    if place.stat().st_size > _MAX_BYTES:
        raise ArgumentError(f"{place} is larger than {_MAX_BYTES} bytes: no file of CRUXEval")
    functions, ids = [], set()
    with place.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            one = _function_of(line, f"{place.name}, line {number}")
            if one.id in ids:
                raise ArgumentError(
                    f"{place.name}, line {number}: the id {one.id!r} is there twice"
                )
            ids.add(one.id)
            functions.append(one)
    if not functions:
        raise ArgumentError(f"{place} has no functions")
    return tuple(functions)


def _function_of(line: str, where: str) -> Function:
    try:
        row = json.loads(line)
    except ValueError:
        raise ArgumentError(f"{where} is no JSON") from None
    missing = [
        key for key in _KEYS if not isinstance(row, dict) or not isinstance(row.get(key), str)
    ]
    if missing:
        raise ArgumentError(f"{where} has no text {missing[0]!r}")
    one = Function(*(row[key] for key in _KEYS))
    if literal_of(one.output) is None:
        raise ArgumentError(f"{where}: the output is no literal: {one.output[:80]}")
    return one


def literal_of(answer: str) -> str | None:
    """The literal in an answer, or None. It may stand after ``==``, as in an assertion.

    >>> literal_of("[1, 2]"), literal_of("assert f('a==b') == 'b'"), literal_of("f(1)")
    ('[1, 2]', "'b'", None)
    """
    tree = _tree_of(answer)
    if isinstance(tree, ast.Compare) and [type(one) for one in tree.ops] == [ast.Eq]:
        tree = tree.comparators[0]
    if tree is None:
        return None
    try:
        ast.literal_eval(tree)
        return ast.unparse(tree)
    except _UNREADABLE:
        return None


def value_of(literal: str) -> Any:
    """What a literal of :func:`literal_of` says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.literal_eval(literal)


@lru_cache(maxsize=8192)
def shape_of(call: str) -> tuple[str, ...]:
    """The type of each argument of a call, by name where it has one.

    >>> shape_of("f([1], -2, b='x')")
    ('list', 'int', 'b=str')
    """
    tree = _tree_of(call)
    if not isinstance(tree, ast.Call):
        return ()
    named = [f"{one.arg}={_kind_of(one.value)}" for one in tree.keywords]
    return (*(_kind_of(one) for one in tree.args), *named)


def _kind_of(node: ast.expr) -> str:
    try:
        return type(ast.literal_eval(node)).__name__
    except _UNREADABLE:
        return type(node).__name__


def arguments_of(answer: str, known: str = "") -> str | None:
    """The call ``f(...)`` in an answer, or None. Its arguments are literals, or simple makers.

    ``known`` is a call that may be said as it is: some inputs of the data set are more than
    literals, for example a lambda.

    >>> arguments_of("assert f([1], b=2) == 3"), arguments_of("f(open('secrets'))")
    ('f([1], b=2)', None)
    """
    tree = _tree_of(answer)
    if isinstance(tree, ast.Compare) and [type(one) for one in tree.ops] == [ast.Eq]:
        tree = tree.left
    if not (isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "f"):
        return None
    try:
        said = ast.unparse(tree)
        by_name = all(one.arg is not None for one in tree.keywords)
        values = [*tree.args, *(one.value for one in tree.keywords)]
        plain = by_name and all(_is_plain(one) for one in values)
    except _UNREADABLE:
        return None
    known_tree = _tree_of(known) if known else None
    return said if plain or (known_tree and said == ast.unparse(known_tree)) else None


def _is_plain(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return (
            isinstance(node.func, ast.Name)
            and node.func.id in _MAKERS
            and all(_is_plain(one) for one in node.args)
            and all(one.arg is not None and _is_plain(one.value) for one in node.keywords)
        )
    try:
        ast.literal_eval(node)
    except _UNREADABLE:
        return False
    return True


def _tree_of(answer: str) -> ast.expr | None:
    text = answer.strip().removeprefix("assert ").strip()
    try:
        # A backslash in a string may be worth a warning, and is no reason to refuse an answer.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text, mode="eval").body
    except _UNREADABLE:
        return None


def download(path: str | Path, url: str = URL, sha256: str = SHA256) -> int:
    """Get the data set's file, check that it is the one that we know, and keep it; its bytes."""
    if not url.startswith("https://"):
        raise ArgumentError(f"the address must begin with https://, not {url[:40]!r}")
    with urllib.request.urlopen(url, timeout=60) as answer:
        data: bytes = answer.read(_MAX_BYTES + 1)
    return keep(data, path, sha256)


def keep(data: bytes, path: str | Path, sha256: str = SHA256) -> int:
    """Write what came to a file, if it is what was expected."""
    came = hashlib.sha256(data).hexdigest()
    if came != sha256:
        raise ArgumentError(
            f"expected a file with SHA-256 {sha256}, got {len(data)} bytes with {came}"
        )
    return Path(path).write_bytes(data)
