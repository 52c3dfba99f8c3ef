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

# Parts of the package whose text is not rewritten yet. Remove a part when it is; add none.
NOT_YET = (
    "__init__.py",
    "agents",
    "buffers/__init__.py",
    "buffers/mmap.py",
    "buffers/offline.py",
    "buffers/replay.py",
    "cli/__init__.py",
    "cli/choices.py",
    "cli/config.py",
    "cli/dashboard.py",
    "cli/demo.py",
    "cli/doors.py",
    "cli/load.py",
    "cli/make_tables.py",
    "cli/options.py",
    "cli/serve.py",
    "cli/spec.py",
    "cli/table_settings.py",
    "cli/top.py",
    "client.py",
    "collectors/_gymnasium_process.py",
    "collectors/_gymnasium_worker.py",
    "demo",
    "primitives",
    "remote_table.py",
    "rollouts",
    "sampler.py",
    "server.py",
    "table.py",
    "table_client.py",
    "table_methods.py",
    "views",
)

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

# Lines that have a mark and are right, by the names of their files.
EXCEPTIONS = {
    # A phrase.
    ("rllib_agents.py", "# RLlib uses this to tell the rows of a batch apart."),
    # The name of an argument.
    ("rendezvous.py", "who: What error messages call the setting."),
}

# Private names of things that the field has names for.
WORDS = re.compile(
    "door|courier|cargo|freight|errand|outbox|desk|scribe|kiosk|lobby|guest|sheet|belt|stretch|spare"
    "|lent|keeper|graveyard|stratum|crew|mender|roster|paper|permit|fate"
)

# Modules that have such names yet, or define functions and classes with them.
NAMES_NOT_YET = (
    "agents/training/crews.py",
    "cli/doors.py",
    "collectors/_gymnasium_process.py",
    "demo/crew.py",
    "integrations/ray",
    "rollouts",
    "sharded/shards.py",
    "views",
)


def done(path: Path, parts: tuple[str, ...]) -> bool:
    """Return whether a file is in none of the parts that are left."""
    name = path.relative_to(PACKAGE).as_posix()
    return not any(name == part or name.startswith(f"{part}/") for part in parts)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each line of the comments and strings of a file, with its number."""
    source = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind in {"COMMENT", "STRING", "FSTRING_MIDDLE"}:
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line


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
        if done(path, NOT_YET)
        for number, line in texts(path)
        for mark, better in MARKS.items()
        if re.search(mark, line) and (path.name, line.strip()) not in EXCEPTIONS
    ]
    assert not found, "\n".join(found)


def test_modules_classes_and_functions_have_names_of_the_field() -> None:
    found = [
        f"{path}:{number}: {name}"
        for path in FILES
        if done(path, NAMES_NOT_YET)
        for number, name in names(path)
        if any(WORDS.fullmatch(word) for word in words(name))
    ]
    assert not found, "\n".join(found)
