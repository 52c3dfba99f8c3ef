"""Clients that are told nothing find servers by what the environment says."""

from __future__ import annotations

import os
import pickle
import time
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
from content import PATIENCE
from echoic import rendezvous
from echoic.cli.app import app
from echoic.rollouts import RolloutTable
from echoic.weights import WeightStore
from polling import until
from typer.testing import CliRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SECRET = "a secret of some length"
VARIABLES = ("ADDRESSES", "ADDRESSES_FILE", "TOKEN_FILE", "CA_FILE", "CERTIFICATE_FILE", "KEY_FILE")


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set `ECHOIC_…` variables, and those that are not named not."""

    def set_them(**values: object) -> None:
        for name in VARIABLES:
            monkeypatch.delenv(f"ECHOIC_{name}", raising=False)
        for name, value in values.items():
            monkeypatch.setenv(f"ECHOIC_{name.upper()}", str(value))

    set_them()
    return set_them


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serve tables; returns `host:port`."""
    servers = []

    def start(*stores: Any, port: int = 0, token: str | None = None) -> str:
        stores = stores or (echoic.Table("replay", np.int64(0), capacity=1000),)
        server = echoic.Server(*stores, listen=f"tcp://127.0.0.1:{port}", token=token)
        servers.append(server.start())
        return server.address.removeprefix("tcp://")

    start.servers = servers  # type: ignore[attr-defined]
    yield start
    for server in servers:
        server.close()


def test_one_address_is_one_server(say: Any, serve: Any) -> None:
    say(addresses=serve())
    with echoic.connect() as client:
        assert client.addresses == ["tcp://" + os.environ["ECHOIC_ADDRESSES"]]
        client.table("replay").add(np.int64(7))
        client.flush()
        assert client.table("replay").sample(1).data.tolist() == [7]


@pytest.mark.parametrize("between", [",", " , ", " ", "\n", ",\n"])
def test_several_addresses_are_shards_in_their_order(say: Any, serve: Any, between: str) -> None:
    first, second = serve(), serve()
    say(addresses=f"{first}{between}tcp://{second}{between}")
    with echoic.connect() as client:
        assert client.addresses == [f"tcp://{first}", f"tcp://{second}"]
        assert client.shards_there == [True, True]


def test_a_secret_is_taken_from_its_file(say: Any, serve: Any, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{SECRET}\n")
    address = serve(token=SECRET)
    say(addresses=address, token_file=tmp_path / "token")
    with echoic.connect(timeout=5.0) as client:
        assert client.table("replay").stats().size == 0
    with pytest.raises(echoic.errors.RefusedError):
        echoic.connect(token="another one of some length").tables
    # With an address nothing is taken from the environment.
    with pytest.raises(echoic.errors.RefusedError):
        echoic.connect(f"tcp://{address}").tables


def test_papers_of_tls_are_taken_from_their_files(say: Any) -> None:
    say(ca_file="/ca.pem", certificate_file="/me.pem", key_file="/me.key")
    found = rendezvous.secrets_for("secret", echoic.Tls(ca="/mine.pem"))
    tls = echoic.Tls(ca="/mine.pem", certificate="/me.pem", key="/me.key")
    assert found == ("secret", tls)


def test_a_stream_rollouts_and_weights_are_found(say: Any, serve: Any) -> None:
    store = WeightStore()
    table = RolloutTable("math", {"tokens": "int32"}, batch_groups=1)
    stream = echoic.Stream({"x": np.int64(0)}, batch_size=1)
    say(addresses=serve(stream, table, store))
    with echoic.connect().stream({"x": np.int64(0)}) as client:
        client.add({"x": np.int64(3)})
    assert stream.sample(timeout=PATIENCE).data["x"].tolist() == [3]
    with echoic.connect() as client:
        assert client.rollouts("math").name == "math"
    store.publish({"w": np.ones(2)}, version=4)
    with echoic.connect().weights() as client:
        assert client.subscribe().wait(timeout=PATIENCE).version == 4
    store.close()


def test_what_is_on_one_server_asks_which_of_several(say: Any) -> None:
    say(addresses="a:1,b:2")
    wanted = "needs one server, and there are 2.*tcp://a:1, tcp://b:2"
    with pytest.raises(echoic.errors.ArgumentError, match=f"a stream {wanted}"):
        echoic.connect().stream(np.int64(0))
    with pytest.raises(echoic.errors.ArgumentError, match=f"rollouts {wanted}"):
        echoic.connect().rollouts("math")
    with pytest.raises(echoic.errors.ArgumentError, match=f"weights {wanted}"):
        echoic.connect().weights()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "neither ECHOIC_ADDRESSES nor ECHOIC_ADDRESSES_FILE is set"),
        ({"addresses": ""}, "neither"),
        ({"addresses": " , "}, "ECHOIC_ADDRESSES names no server"),
        ({"addresses": "removed"}, "names no server"),
        ({"addresses": "removed draining,a:1"}, "expected an address before 'draining'"),
        ({"addresses": "a:1", "addresses_file": "/b"}, "both set"),
        ({"addresses": "a:1", "token_file": "/none"}, "ECHOIC_TOKEN_FILE: can't read /none: No"),
        ({"addresses": "a:1", "token_file": "/dev/null"}, "ECHOIC_TOKEN_FILE.*is empty"),
        ({"addresses": "a:1", "token_file": "/dev/zero"}, "at most 65536 bytes in /dev/zero"),
        ({"addresses": "a"}, "no port"),
    ],
)
def test_what_the_environment_says_wrong_is_told(say: Any, values: Any, message: str) -> None:
    say(**values)
    with pytest.raises(ValueError, match=message):
        echoic.connect().tables


def test_a_file_is_waited_for_until_it_says_something(
    say: Any, serve: Any, background: Any, tmp_path: Path
) -> None:
    file = tmp_path / "servers"
    say(addresses_file=file)
    with pytest.raises(echoic.errors.DisconnectedError, match=r"can't read .*servers.*for 0\.1 s"):
        echoic.connect(timeout=0.1)
    file.write_text("\n")
    connected = background.start_and_let_block(echoic.connect)
    write(file, serve())
    client = connected()
    assert client.shards_there == [True]
    client.close()


def write(file: Path, *addresses: str) -> None:
    """Write a file as the module asks for."""
    aside = file.with_suffix(".new")
    aside.write_text("\n".join(addresses) + "\n")
    aside.rename(file)


def test_a_server_that_moved_is_found_in_the_file(say: Any, serve: Any, tmp_path: Path) -> None:
    file = tmp_path / "servers"
    write(file, serve(), serve())
    say(addresses_file=file)
    with echoic.connect(refresh=600.0) as first:
        client = pickle.loads(pickle.dumps(first))
    with client, pytest.warns(echoic.errors.ShardWarning) as told:  # noqa: PT031 - from its end to the next
        serve.servers[0].close()
        while all(client.shards_there):
            time.sleep(0.01)
        write(file, serve(), client.addresses[1])
        until(lambda: all(client.shards_there))
        assert client.addresses[0] == serve.servers[2].addresses[0]
        client.table("replay").extend(np.arange(600))
        client.flush()
    assert echoic.connect(serve.servers[2]).table("replay").stats().size == 300
    assert "shard 0" in str(told[0].message)


def test_servers_join_are_emptied_and_go_as_the_file_says(
    say: Any, serve: Any, tmp_path: Path
) -> None:
    file = tmp_path / "servers"
    first, second, third = serve(), serve(), serve()
    write(file, first)
    say(addresses_file=file)
    with echoic.connect(refresh=None) as client:
        client.tables
        write(file, f"{first} draining", second)
        client.refresh()
        client.table("replay").extend(np.arange(200))
        client.flush()
        assert [shard.size for shard in client.table("replay").stats().shards] == [0, 200]
        write(file, "removed", second, third)
        client.refresh()
        assert client.addresses == ["", f"tcp://{second}", f"tcp://{third}"]
        assert client.table("replay").stats().size == 200


def invoke(*words: str) -> Any:
    return CliRunner().invoke(
        app, list(words), env={"COLUMNS": "200", "TERM": "dumb", **os.environ}
    )


def test_commands_without_an_address_ask_the_environment(
    say: Any, serve: Any, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(SECRET)
    address = serve(token=SECRET)
    say(addresses=address, token_file=tmp_path / "token")
    done = invoke("inspect")
    assert (done.exit_code, "replay" in done.stdout) == (0, True), done.output
    done = invoke("ping", "--count", "1")
    assert done.stdout.startswith(f"tcp://{address} answers")
    say(addresses=f"{address},b:2")
    done = invoke("ping")
    assert done.exit_code == 2
    assert "there are 2: give the address of one of" in done.output
    say()
    assert "neither ECHOIC_ADDRESSES" in invoke("top", "--once").output
