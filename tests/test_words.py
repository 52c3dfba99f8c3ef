"""The package is written in plain technical English: no private words in its text or its names."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING

import echoic

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(echoic.__file__).parent
FILES = sorted([*PACKAGE.rglob("*.py"), PACKAGE / "_native.pyi"])

# Words that stand for other words, or for parts of a program as if they were people.
MARKS = {
    r"\btold\b": "given, reported or configured",
    r"\btell(s|ing)?\b": "report, send or set",
    r"(?<!there )\b(is|are|was|were) none\b": "does not exist, is missing, or is not valid",
    r"\bnone of ours\b": "belongs to another",
    r"\b(any|every|no|some)body\b|\bno one\b|\bwhoever\b": "the caller, process or client",
    r"(?<!{)\b[Ww]ho\b": "which, or a verb",
    r"\bhears? (of|it)\b": "learns of",
    r"\bthe two are one\b": "both are of this module",
    r"\banew\b": "again",
    r"\bfor so (long|many)\b": "for this long",
    r"\bso (many|often)\b": "this many",
    r"\bmakes? no sense\b": "is out of range",
}

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
# Records of what was, in the words of their day.
RECORDS = ("CHANGELOG.md", "docs/design", "docs/results")
PAGE_MARKS = {**MARKS, r"\b[Dd]oors?\b": "transport or address"}
# Doors of games, persons, and rows that are copied from a running server.
NOT_MARKED = re.compile(
    r"(?:attacker|user|person|reader)s?\b[^.|]*? who\b|^\| `echoic_.*"
    r"|(?:locked|four)[ -]doors?|the door opens|`nobody`|\"not told\""
)

# Lines that have a mark and are right, by the names of their files.
EXCEPTIONS = {
    # A phrase.
    ("rllib.py", "# RLlib uses this to tell the rows of a batch apart."),
    # The name of an argument.
    ("rendezvous.py", "who: What error messages call the setting."),
}

# Private names of things that the field has names for.
WORDS = re.compile(
    "door|courier|cargo|freight|errand|outbox|desk|scribe|kiosk|lobby|guest|sheet|belt|stretch|spare"
    "|lent|keeper|graveyard|stratum|crew|mender|roster|paper|permit|fate"
)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each line of the comments and strings of a file, with its number."""
    source = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind in {"COMMENT", "STRING", "FSTRING_MIDDLE"}:
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each line of a page that is not code, with its number."""
    is_code = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield number, NOT_MARKED.sub("", line)


def words(name: str) -> set[str]:
    """Split a name at underscores and capitals; plurals count as singulars."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return {part.lower().removesuffix("s") for part in parts}


def names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the names of a module, its classes and its functions, with their lines."""
    yield 1, path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", "_")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.name


def test_docstrings_comments_and_messages_are_plain() -> None:
    found = [
        f"{path}:{number}: {line.strip()!r}: say {better!r}"
        for path in FILES
        for number, line in texts(path)
        for mark, better in MARKS.items()
        if re.search(mark, line) and (path.name, line.strip()) not in EXCEPTIONS
    ]
    assert not found, "\n".join(found)


def test_pages_of_the_documentation_are_plain() -> None:
    found = [
        f"{path}:{number}: {line.strip()!r}: say {better!r}"
        for path in PAGES
        if not path.relative_to(ROOT).as_posix().startswith(RECORDS)
        for number, line in prose(path)
        # Agents walk through doors.
        for mark, better in (MARKS if "agents" in path.parts else PAGE_MARKS).items()
        if re.search(mark, line)
    ]
    assert not found, "\n".join(found)


def test_modules_classes_and_functions_have_names_of_the_field() -> None:
    found = [
        f"{path}:{number}: {name}"
        for path in FILES
        for number, name in names(path)
        if any(WORDS.fullmatch(word) for word in words(name))
    ]
    assert not found, "\n".join(found)
