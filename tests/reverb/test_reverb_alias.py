"""Programs that say `import reverb`, and are not changed at all."""

import subprocess
import sys

import pytest
from reverb_under_test import UPSTREAM, reverb

pytestmark = pytest.mark.skipif(UPSTREAM, reason="upstream has the name anyway")

PROGRAM = """
import sys
import reverb
from reverb import item_selectors, rate_limiters
from reverb.cc import schema_pb2
from reverb.platform.default import checkpointers

server = reverb.Server([reverb.Table.queue("q", 10)])
client = reverb.Client(f"localhost:{server.port}")
client.insert(7, {"q": 1.0})
print(sys.argv[1:], next(client.sample("q"))[0].data[0], reverb.__name__)
"""


def run(*arguments, cwd):
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def test_a_program_runs_unchanged(tmp_path):
    # What is beside it is imported from another folder too.
    (tmp_path / "beside.py").write_text(PROGRAM)
    (tmp_path / "program.py").write_text("import beside")
    (tmp_path / "elsewhere").mkdir()
    arguments = ("-m", "echoic.reverb", "../program.py", "--flag", "value")
    ran = run(*arguments, cwd=tmp_path / "elsewhere")
    assert (ran.stdout, ran.stderr) == ("['--flag', 'value'] 7 echoic.reverb\n", "")


def test_a_module_runs_unchanged(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    ran = run("-m", "echoic.reverb", "-m", "program", "x", cwd=tmp_path)
    assert (ran.stdout, ran.stderr) == ("['x'] 7 echoic.reverb\n", "")


def test_without_a_program_it_says_how_to_call_it(tmp_path):
    ran = run("-m", "echoic.reverb", cwd=tmp_path)
    assert ran.returncode == 1
    assert ran.stderr.startswith("usage: python -m echoic.reverb")


def test_installing_gives_the_same_modules():
    code = """
import echoic.reverb
spec = echoic.reverb.__spec__
echoic.reverb.install()
echoic.reverb.install()
import reverb, reverb.client
from reverb import structured_writer
assert reverb is echoic.reverb and reverb.__spec__ is spec
assert reverb.client is echoic.reverb.client
assert structured_writer is echoic.reverb.structured
"""
    ran = run("-c", code, cwd=".")
    assert (ran.returncode, ran.stderr) == (0, "")


def test_what_is_not_there_is_named_as_it_was_asked_for():
    code = "import echoic.reverb; echoic.reverb.install(); import reverb.cc.grpc"
    ran = run("-c", code, cwd=".")
    assert "ModuleNotFoundError: echoic.reverb has nothing for 'reverb.cc.grpc'" in ran.stderr


def test_a_program_may_name_what_has_no_counterpart_but_not_call_it(tmp_path):
    (tmp_path / "program.py").write_text(
        """
import reverb.pip_package
from reverb import libpybind, pybind
from reverb.cc import schema_pb2
from reverb.cc.checkpointing import checkpoint_pb2
from reverb.cc.ops import gen_reverb_ops
from reverb.platform.default import ensure_tf_install, load_op_library
from reverb.platform.default import server_main_command_line_args
from reverb.server_executable import reverb_config_pb2, server_from_proto, server_main

def keep(chunk: schema_pb2.ChunkData, extension: pybind.TableExtension): ...

ensure_tf_install.ensure_tf_version()
assert libpybind.Client is pybind.Client and libpybind.WeakCellRef is pybind.WeakCellRef
assert not hasattr(schema_pb2, "Nothing")
for call in (
    schema_pb2.ChunkData,
    libpybind.TableExtension,
    gen_reverb_ops.reverb_client,
    server_main.app_run_main,
    server_main_command_line_args.get_server_config_proto,
):
    try:
        call()
    except NotImplementedError as error:
        print(error)
"""
    )
    ran = run("-m", "echoic.reverb", "program.py", cwd=tmp_path)
    assert ran.stderr == ""
    chunk, extension, operation, *mains = ran.stdout.splitlines()
    assert chunk.startswith("echoic.reverb.cc.schema_pb2 has no ChunkData: ")
    assert extension.startswith("echoic.reverb.pybind has no TableExtension: ")
    assert operation.endswith("call reverb.TFClient, or make one of the datasets")
    assert len(mains) == 2
    assert all("echoic serve --config" in main for main in mains)


def test_another_reverb_is_not_replaced(tmp_path):
    (tmp_path / "reverb.py").write_text("")
    code = "import reverb, echoic.reverb; echoic.reverb.install()"
    ran = run("-c", code, cwd=tmp_path)
    assert "ImportError: another reverb was imported before, from" in ran.stderr


def test_what_needs_tensorflow_says_so(monkeypatch):
    monkeypatch.setattr("echoic.reverb._tensorflow.tensorflow", lambda: None)
    with pytest.raises(ImportError, match=r"pip install 'echoic\[tensorflow\]'"):
        reverb.TFClient("localhost:1")
