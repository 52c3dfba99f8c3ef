"""id-echo's own Python tests, run on `echoic.echo`: set ECHOIC_UPSTREAM_ECHO to its sources.

They were counted with 0.2.1, which has 78. The five that need a GPU are of `pin_host_memory`, which
has no effect here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import upstream

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.nightly

TEXT = "another message: it names the leaf, as each is compared, not their bytes in all"

EXPECTED = {
    "test_tcp.TestTcpPartialReads::test_byte_by_byte_payload_is_reassembled": "its wire's bytes",
    "test_tcp.TestTcpSpecValidation::test_wrong_payload_size_raises": TEXT,
    "test_server.TestPytreeStructure::test_client_rejects_wrong_payload_size[tcp]": TEXT,
    "test_host_pinning::test_total_resolution_failure_names_every_rung_in_order": (
        "the ring is not page-locked; asking for it is a warning"
    ),
}
UNSTEADY = {
    "test_sample_info::test_active_connections_reflects_clients": (
        "wants that twelve samples never wait for room in a ring of eight: there are no queues "
        "before the ring"
    ),
}

# Its Ray test reaches the server by the node's address.
PRELUDE = """
import os
os.environ.update(ECHOIC_ECHO_HOST="0.0.0.0", ECHOIC_ECHO_TOKEN="of these tests")
os.environ["RAY_ADDRESS"] = "local"
"""


@pytest.mark.timeout(900)
def test_upstreams_tests_pass(tmp_path: Path) -> None:
    root = upstream.checkout("ECHO")
    tests = root / "python" / "tests"
    upstream.run(
        [tests],
        tmp_path,
        drop_in="echoic.echo",
        expected=EXPECTED,
        unsteady=UNSTEADY,
        passed=67,
        path=[root, tests],
        prelude=PRELUDE,
        timeout=800,
    )
