"""What pages of the documentation show that is not Python: commands, files, certificates, diagrams.

Their Python is run block by block; see `conftest.py` of the repository.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import echoic
import numpy as np
import pytest
import typer
from echoic.cli.app import app

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def command_lines() -> list[Any]:
    """Every line of a page that runs `echoic`, without what a shell takes for itself."""
    found = []
    for page in PAGES:
        for block in blocks(page, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line.removeprefix("$ "), comments=True)
                if words[:1] == ["echoic"]:
                    name = f"{page.relative_to(DOCS)}: {' '.join(words)}"
                    found.append(pytest.param([word for word in words[1:] if word != "&"], id=name))
    return found


def test_the_readme_is_a_first_look() -> None:
    text = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 500


@pytest.mark.parametrize("words", command_lines())
def test_commands_and_their_options_exist(words: list[str]) -> None:
    group: Any = typer.main.get_command(app)
    command = group.commands[words[0]]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known | {"--help"}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")
def test_certificates_are_believed_when_made_as_the_guide_says(tmp_path: Path) -> None:
    [block] = [b for b in blocks(DOCS / "guides" / "security.md", "sh") if "openssl" in b]
    subprocess.run(["bash", "-euc", block], cwd=tmp_path, check=True, capture_output=True)
    example = {"obs": np.zeros(4, np.float32)}
    papers = {"certificate": tmp_path / "learner.pem", "key": tmp_path / "learner.key"}
    authority = tmp_path / "ca.pem"
    tls = echoic.Tls(**papers, ca=authority)
    stream = echoic.Stream(example, batch_size=1)
    with echoic.Server(stream, listen="tls://127.0.0.1:0", tls=tls) as server:
        names = {"ca": str(authority), "server_name": "learner"}
        tls = echoic.Tls(**names)
        with pytest.raises(echoic.errors.DisconnectedError, match="certificate"):
            echoic.connect(server.address, timeout=1.0, tls=tls).stream(example)
        shown = {name: str(path) for name, path in papers.items()}
        tls = echoic.Tls(**names, **shown)
        with echoic.connect(server.address, tls=tls).stream(example) as client:
            client.add(example)
        assert stream.sample().data["obs"].shape == (1, 4)


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.svg")), ids=lambda path: path.name)
def test_a_diagram_is_whole_and_fetches_nothing(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    root = ET.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    assert root.find(f"{space}title") is not None
    assert root.find(f"{space}desc") is not None
    assert text.count("http") == 1, "the namespace, and nothing else"
    assert not re.search(r"<script|@import|@font-face|href", text)


def test_every_page_has_its_place_in_the_navigation() -> None:
    navigation = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r": (\S+\.md)$", navigation, re.MULTILINE))
    # Reports of benchmarks lie beside their results.
    reports = {page for page in listed if page.startswith("results/")}
    assert all((DOCS / report).exists() for report in reports)
    assert {str(page.relative_to(DOCS)) for page in PAGES} == listed - reports
