"""What tests of agents share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from http_server import CompletionsServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def serve() -> Iterator[Callable[..., CompletionsServer]]:
    """Starts servers of completions, and closes them."""
    servers: list[CompletionsServer] = []

    def start(**options: object) -> CompletionsServer:
        servers.append(CompletionsServer(**options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
