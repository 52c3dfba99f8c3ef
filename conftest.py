"""Runs the examples of README, guides, docstrings and stub as tests."""

from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers.markdown import PythonCodeBlockParser
from sybil.parsers.rest import DocTestParser

# The blocks of a page share their names, as a reader would expect.
pages = Sybil(
    parsers=[PythonCodeBlockParser()],
    patterns=["README.md", "docs/*.md", "docs/*/*.md", "docs/*/*/*.md"],
)
docstrings = Sybil(
    parsers=[DocTestParser()],
    patterns=["*.py", "*.pyi"],
    path="python/echoic",
    document_types={".py": PythonDocStringDocument, ".pyi": PythonDocStringDocument},
)

pytest_collect_file = (pages + docstrings).pytest()
