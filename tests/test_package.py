"""What importing the package gives and leaves alone, and that its stub tells the truth."""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
from pathlib import Path
from typing import Any

import echoic
import pytest
from echoic import _native

STUB = ast.parse(Path(_native.__file__).with_name("_native.pyi").read_text(encoding="utf-8"))
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}


def test_importing_loads_no_framework(run_script: Any) -> None:
    done = run_script(
        "import sys, echoic\n"
        "heavy = {'torch', 'jax', 'tensorflow', 'ray', 'gymnasium', 'rich', 'matplotlib',"
        " 'ml_dtypes', 'typing_extensions', 'multiprocessing.shared_memory'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_using_it_loads_no_framework(run_script: Any) -> None:
    done = run_script(
        "import sys, numpy as np, echoic\n"
        "with echoic.Stream({'a': (np.zeros(3), 1)}, batch_size=1) as stream:\n"
        "    stream.add({'a': (np.zeros(3), 1)})\n"
        "    stream.sample().info.as_dict()\n"
        "echoic.Server(echoic.Stream(0, batch_size=1)).close()\n"
        "heavy = {'torch', 'jax', 'tensorflow', 'ray', 'gymnasium', 'rich', 'matplotlib'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_importing_starts_no_thread(run_script: Any) -> None:
    # The pool of numpy's BLAS is not ours.
    source = "import echoic, os; print(len(os.listdir('/proc/self/task')))"
    done = run_script(source, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_importing_warns_about_nothing(run_script: Any) -> None:
    done = run_script("import echoic", "-W", "error", "-X", "dev")
    assert (done.returncode, done.stderr) == (0, "")


def test_it_tells_its_version() -> None:
    manifest = Path(__file__).parent.parent / "Cargo.toml"
    assert f'\nversion = "{echoic.__version__}"\n' in manifest.read_text(encoding="utf-8")
    changes = (manifest.parent / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## (\S+) . \d{4}-\d\d-\d\d$", changes, re.MULTILINE)
    assert released[0] == echoic.__version__


def test_links_of_the_readme_are_absolute_and_lead_to_files_that_are_there() -> None:
    root = Path(__file__).parent.parent
    links = re.findall(r"\]\(([^)]+)\)", (root / "README.md").read_text(encoding="utf-8"))
    place = re.compile(r"https://github\.com/echoic-rl/echoic/(?:blob|raw)/main/([^#]+)")
    files = [place.match(link) for link in links]
    assert [link for link, file in zip(links, files, strict=True) if file is None] == []
    assert [file[1] for file in files if file is not None and not (root / file[1]).is_file()] == []


def test_the_parts_that_read_pickles_are_those_that_the_security_policy_names() -> None:
    package = Path(echoic.__file__).parent
    words = re.compile(r"\b(pickle|cloudpickle|marshal|shelve|multiprocessing|torch\.load)\b")
    parts = set()
    for file in package.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom, ast.Attribute)) and words.search(
                ast.unparse(node)
            ):
                parts.add(file.relative_to(package).parts[0])
    named = {
        "collectors": "GymnasiumCollector",
        "workers.py": "echoic.workers",
        "integrations": "echoic.integrations.ray",
        "_dropin.py": "python -m echoic.NAME",
    }
    assert parts == set(named)
    policy = (package.parents[1] / "SECURITY.md").read_text(encoding="utf-8")
    assert [name for name in named.values() if f"`{name}`" not in policy] == []


@pytest.mark.parametrize("name", echoic.__all__)
def test_every_public_name_exists_and_is_documented(name: str) -> None:
    value = getattr(echoic, name)
    assert inspect.getdoc(value), name
    assert value.__name__.removeprefix("echoic.") == name


def test_the_roots_text_and_the_first_page_of_the_reference_have_all_public_names() -> None:
    page = Path(__file__).parent.parent / "docs/reference/index.md"
    listed = set(re.findall(r"`(?:echoic\.)?(\w+)`", page.read_text(encoding="utf-8")))
    named = set(re.findall(r":\w+:`(\w+)`", echoic.__doc__ or ""))
    assert set(echoic.__all__) - listed == set()
    assert set(echoic.__all__) - named == set()


def test_public_names_are_sorted_and_nothing_else_is_public() -> None:
    assert echoic.__all__ == sorted(echoic.__all__)
    public = {name for name in vars(echoic) if not name.startswith("_")}
    modules = {path.stem for path in Path(echoic.__file__).parent.iterdir()}
    assert public - set(echoic.__all__) <= modules


def test_the_stub_has_the_names_of_the_native_module() -> None:
    written = {
        node.name
        for node in STUB.body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_")
    }
    assert written == {name for name in vars(_native) if not name.startswith("_")}


@pytest.mark.parametrize("name", CLASSES)
def test_the_stub_has_the_members_of_each_native_class(name: str) -> None:
    written = {node.name for node in CLASSES[name].body if isinstance(node, ast.FunctionDef)}
    runtime = vars(getattr(_native, name))
    public = {member for member in runtime if not member.startswith("_")}
    assert {member for member in written if not member.startswith("_")} == public
    # What every object has in some form needs no line in the stub; what it writes must be there.
    assert {member for member in written if member.startswith("_")} <= set(runtime)


@pytest.mark.parametrize("name", CLASSES)
def test_the_stub_documents_every_member(name: str) -> None:
    assert ast.get_docstring(CLASSES[name])
    # Of several signatures of one method the last has its text.
    last = {node.name: node for node in CLASSES[name].body if isinstance(node, ast.FunctionDef)}
    for node in last.values():
        if not node.name.startswith("_"):
            assert ast.get_docstring(node), node.name


@pytest.mark.parametrize("method", ["add", "extend", "sample", "rest"])
def test_signatures_of_the_stub_are_those_at_runtime(method: str) -> None:
    (node,) = [
        node
        for node in CLASSES["Stream"].body
        if isinstance(node, ast.FunctionDef) and node.name == method
    ]
    signature = inspect.signature(getattr(_native.Stream, method))
    named = [*node.args.args, *node.args.kwonlyargs]
    assert [argument.arg for argument in named] == list(signature.parameters)
    defaults = [
        parameter.default
        for parameter in signature.parameters.values()
        if parameter.default is not inspect.Parameter.empty
    ]
    written = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
    assert [ast.literal_eval(default) for default in written] == defaults
