"""The learner's version, where several rollout tables are one learner's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from echoic.errors import RolloutError

if TYPE_CHECKING:
    from collections.abc import Collection

    from echoic.rollouts.table import RolloutTable

__all__ = ["common_version", "publish_everywhere"]


def _some(tables: Collection[RolloutTable]) -> Collection[RolloutTable]:
    if not tables:
        raise RolloutError("the server has no rollout tables, so there is no version of them")
    return tables


def publish_everywhere(tables: Collection[RolloutTable], version: int) -> None:
    """Publish a version in all tables; in none, if one of them has a later one."""
    for table in _some(tables):
        if table.version > version:
            raise RolloutError(
                f"version must be at least that of every table, got {version}: "
                f"{table.name!r} has {table.version}"
            )
    for table in tables:
        table.publish_version(version)


def common_version(tables: Collection[RolloutTable]) -> int:
    """Return the version that all tables have reached."""
    return min(table.version for table in _some(tables))
