"""TLS: certificates of servers and clients, tokens on top, and errors that say why.

Whoever is not believed is told why, and the server goes on serving others.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import echoic
import pytest
import trustme
from content import SMALL, Intake, assert_exactly, example, rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.timeout(40)


@dataclass
class Papers:
    """An authority, and certificates of it as files."""

    folder: Path
    authority: trustme.CA = field(default_factory=trustme.CA)

    def __post_init__(self) -> None:
        """Make the folder."""
        self.folder.mkdir()

    @property
    def ca(self) -> str:
        """The authority's own certificate."""
        path = self.folder / "ca.pem"
        self.authority.cert_pem.write_to_path(path)
        return str(path)

    def issue(self, name: str) -> dict[str, str]:
        """A certificate for a name, and its key, as arguments."""
        issued = self.authority.issue_cert(name)
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        for number, part in enumerate(issued.cert_chain_pems):
            part.write_to_path(certificate, append=number > 0)
        issued.private_key_pem.write_to_path(key)
        return {"certificate": str(certificate), "key": str(key)}


@pytest.fixture
def ours(tmp_path: Path) -> Papers:
    """The authority that both sides believe."""
    return Papers(tmp_path / "ours")


@pytest.fixture
def other(tmp_path: Path) -> Papers:
    """An authority that nobody believes."""
    return Papers(tmp_path / "other")


@pytest.fixture
def serve(ours: Papers, make_server: Any) -> Callable[..., tuple[echoic.Server, Intake]]:
    """Start servers with a certificate for localhost, and take what they get."""

    def start(**options: Any) -> tuple[echoic.Server, Intake]:
        host = options.pop("host", "localhost")
        tls = options.pop("tls", ours.issue("localhost"))
        tls = echoic.Tls(**tls, ca=options.pop("ca", None))
        address = f"tls://{host}:0"
        server = make_server(example(SMALL), 32, 128, listen=address, tls=tls, **options).start()
        return server, Intake(server)

    return start


def with_tls(**options: Any) -> dict[str, Any]:
    """Return options of a connection, with those of TLS as one object."""
    names = ("ca", "certificate", "key", "server_name")
    files = {name: options.pop(name) for name in names if name in options}
    return {**options, "tls": echoic.Tls(**files)}


def deliver(connect: Any, server: echoic.Server, intake: Intake, **options: Any) -> None:
    """Somebody who is believed sends 100 samples, which are all that the server ever got."""
    client = connect(server, **with_tls(**options))
    client.extend(rows(0, 0, 100, SMALL))
    client.close(timeout=10)
    steps = intake.finish()
    assert list(steps) == [0]
    assert_exactly(steps[0], 100)


def refuse(server: echoic.Server | str, kind: type[Exception], match: str, **options: Any) -> None:
    """Somebody who is not believed is told why."""
    address = server if isinstance(server, str) else server.address
    with pytest.raises(kind, match=match):
        echoic.connect(address, timeout=1.0, **with_tls(**options)).stream(example(SMALL))


def test_samples_arrive_over_an_encrypted_connection(ours: Any, serve: Any, connect: Any) -> None:
    server, intake = serve()
    assert server.address.startswith("tls://localhost:")
    assert not server.address.endswith(":0")
    deliver(connect, server, intake, ca=ours.ca)


def test_a_stranger_without_encryption_hears_an_alert_and_no_word_of_the_protocol(
    ours: Any, serve: Any, connect: Any
) -> None:
    server, intake = serve()
    with socket.create_connection(("localhost", port_of(server))) as stranger:
        stranger.settimeout(10)
        stranger.sendall(b"\x89ECHOIC\n\x01\x00\x00\x00")
        heard = b"".join(iter(lambda: stranger.recv(100), b""))
    assert heard.startswith(b"\x15\x03")
    assert b"ECHOIC" not in heard
    deliver(connect, server, intake, ca=ours.ca)


def test_a_frame_that_is_larger_than_a_record_arrives(
    ours: Any, make_server: Any, connect: Any
) -> None:
    words = 1 << 16
    tls = echoic.Tls(**ours.issue("localhost"))
    server = make_server(example(words), 2, 8, listen="tls://localhost:0", tls=tls).start()
    intake = Intake(server)
    client = connect(server, words, tls=echoic.Tls(ca=ours.ca))
    client.extend(rows(0, 0, 20, words))
    client.close(timeout=20)
    assert_exactly(intake.finish()[0], 20)


def test_a_server_of_another_authority_is_not_believed(
    ours: Any, other: Any, serve: Any, connect: Any
) -> None:
    server, intake = serve()
    refuse(server, echoic.errors.DisconnectedError, "authority", ca=other.ca)
    deliver(connect, server, intake, ca=ours.ca)


def test_a_server_of_another_name_is_not_believed(ours: Any, serve: Any, connect: Any) -> None:
    server, intake = serve()
    reason = "learner.example"
    refuse(
        server, echoic.errors.DisconnectedError, reason, ca=ours.ca, server_name="learner.example"
    )
    deliver(connect, server, intake, ca=ours.ca, server_name="localhost")


def test_a_server_may_have_another_name_than_its_host(ours: Any, serve: Any, connect: Any) -> None:
    server, intake = serve(tls=ours.issue("learner.example"))
    refuse(server, echoic.errors.DisconnectedError, "localhost", ca=ours.ca)
    deliver(connect, server, intake, ca=ours.ca, server_name="learner.example")


def test_clients_without_a_certificate_are_told_to_give_one(
    ours: Any, serve: Any, connect: Any
) -> None:
    server, intake = serve(ca=ours.ca)
    refuse(server, echoic.errors.DisconnectedError, "certificate and key", ca=ours.ca)
    deliver(connect, server, intake, ca=ours.ca, **ours.issue("worker"))


def test_clients_with_a_certificate_of_another_authority_are_told(
    ours: Any, other: Any, serve: Any, connect: Any
) -> None:
    server, intake = serve(ca=ours.ca)
    reason = "does not accept our certificate"
    refuse(server, echoic.errors.DisconnectedError, reason, ca=ours.ca, **other.issue("worker"))
    deliver(connect, server, intake, ca=ours.ca, **ours.issue("worker"))


@pytest.mark.parametrize("wrong", [None, "wrong"])
def test_a_token_is_needed_on_top_of_certificates(
    ours: Any, serve: Any, connect: Any, wrong: str | None
) -> None:
    server, intake = serve(ca=ours.ca, token="right")
    own = ours.issue("worker")
    refuse(server, echoic.errors.RefusedError, "AUTH", ca=ours.ca, token=wrong, **own)
    deliver(connect, server, intake, ca=ours.ca, token="right", **own)


def test_a_token_does_not_replace_a_certificate(ours: Any, serve: Any) -> None:
    server, intake = serve(ca=ours.ca, token="right")
    refuse(server, echoic.errors.DisconnectedError, "certificate", ca=ours.ca, token="right")
    assert intake.finish() == {}


def test_one_client_too_many_is_told_so(ours: Any, serve: Any, connect: Any) -> None:
    server, intake = serve(max_connections=1)
    first = connect(server, tls=echoic.Tls(ca=ours.ca))
    refuse(server, echoic.errors.RefusedError, "LIMIT", ca=ours.ca)
    first.extend(rows(0, 0, 10, SMALL))
    first.close(timeout=10)
    assert_exactly(intake.finish()[0], 10)


def test_a_client_without_encryption_is_told_what_speaks_there(
    ours: Any, serve: Any, connect: Any
) -> None:
    server, intake = serve()
    refuse(f"tcp://localhost:{port_of(server)}", echoic.EchoicError, "TLS")
    deliver(connect, server, intake, ca=ours.ca)


def test_a_server_without_encryption_is_recognised(
    ours: Any, make_server: Any, connect: Any
) -> None:
    way = "tcp://localhost:0"
    server = make_server(example(SMALL), 32, 128, listen=way).start()
    intake = Intake(server)
    reason = "does the server speak TLS"
    refuse(
        f"tls://localhost:{port_of(server)}", echoic.errors.DisconnectedError, reason, ca=ours.ca
    )
    deliver(connect, server, intake)


@pytest.mark.parametrize("abruptly", [False, True])
def test_connections_that_break_anywhere_are_made_anew_and_nothing_is_lost(
    ours: Any, serve: Any, connect: Any, make_proxy: Any, abruptly: bool
) -> None:
    server, intake = serve(host="127.0.0.1")
    proxy = make_proxy(server)
    # The first ends in the handshake, the others in encrypted samples.
    proxy.limits = iter(range(1_000, 30_000, 3_000))
    proxy.abruptly = abruptly
    address = proxy.address.replace("tcp://", "tls://")
    client = connect(address, tls=echoic.Tls(ca=ours.ca, server_name="localhost"))
    client.extend(rows(0, 0, 5_000, SMALL))
    client.close(timeout=30)
    assert client.stats().reconnects >= 3
    assert_exactly(intake.finish()[0], 5_000)


@pytest.mark.parametrize("missing", ["ca", "certificate", "key"])
def test_what_is_missing_is_named(ours: Any, missing: str) -> None:
    files = {"ca": ours.ca, **ours.issue("worker")}
    del files[missing]
    with pytest.raises(ValueError, match=missing):
        echoic.connect("tls://localhost:1", tls=echoic.Tls(**files)).stream(example(SMALL))


@pytest.mark.parametrize("file", ["certificate", "key", "ca"])
def test_a_file_that_is_no_pem_is_named(
    ours: Any, make_server: Any, tmp_path: Path, file: str
) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing\n")
    tls = echoic.Tls(**{**ours.issue("localhost"), file: str(empty)})
    server = make_server(example(SMALL), 4, 8, listen="tls://localhost:0", tls=tls)
    with pytest.raises(ValueError, match=r"empty\.pem"):
        server.start()


def test_certificates_have_no_use_without_encryption(ours: Any) -> None:
    with pytest.raises(ValueError, match="use tls://"):
        echoic.connect("tcp://localhost:1", tls=echoic.Tls(ca=ours.ca)).stream(example(SMALL))


def test_a_server_with_certificates_needs_an_encrypted_address(ours: Any, make_server: Any) -> None:
    tls = echoic.Tls(**ours.issue("localhost"))
    with pytest.raises(ValueError, match="tls= needs a tls:// address in listen, got 'tcp://"):
        make_server(example(SMALL), listen="tcp://127.0.0.1:0", tls=tls)


def port_of(server: echoic.Server) -> int:
    """The port of a server's only address."""
    return int(server.address.rpartition(":")[2])
