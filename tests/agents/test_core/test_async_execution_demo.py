"""The demonstration of the engine runs, and shows what it says."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("rich")

from examples import async_execution_demo


def test_the_demonstration_reuses_tokens_only_with_the_prefix_cache() -> None:
    numbers = async_execution_demo.main(["--quick"])
    for row in numbers.values():
        assert (row["completed"], row["failed"], row["version"]) == (36, 0, 1)
    assert numbers["shared"]["cache"]["reuse_rate"] > 0.3
    assert numbers["alone"]["cache"]["reused_tokens"] == 0
