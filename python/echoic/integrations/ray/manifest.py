"""Record which shards of a cluster store items in a directory, and which were removed.

``cluster.json`` in the directory has the identity of the directory and the numbers of its shards.
``shard-N/shard.json`` has the same identity, the number, and how many items each table had when the
shard was closed; no counts while it runs, or after a crash. So a directory that is missing, or is
another one, is detected before a shard starts without its items.

# Invariants

1. A file of the manifest is replaced as a whole: written beside, synced and renamed.
2. A shard is in ``cluster.json`` before clients learn of it, and no longer there once its items are
   elsewhere. So the folder of an unlisted number has nothing that was acknowledged.
3. A number is used once: those of removed shards stay in ``cluster.json``.

Only one program at a time writes ``cluster.json``, the one that made the cluster. Locks on journals
and checkpoints keep two processes from one shard's items; this file has no lock.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from echoic.errors import StorageError
from echoic.integrations.ray.registry import MAX_SHARDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = [
    "Manifest",
    "add_shards",
    "check_items",
    "clear_shard",
    "open_directory",
    "open_shard",
    "record_items",
    "remove_shard",
]

_log = logging.getLogger(__name__)

_CLUSTER, _CLUSTER_FORMAT = "cluster.json", "echoic-ray-cluster"
_SHARD, _SHARD_FORMAT = "shard.json", "echoic-ray-shard"
_VERSION = 1
_IDENTITY = re.compile(r"[0-9a-f]{32}")
_FOLDER = re.compile(r"shard-[0-9]+")


@dataclass(frozen=True)
class Manifest:
    """The contents of ``cluster.json``."""

    identity: str  # Random, made with the directory.
    shards: tuple[int, ...] = ()  # The numbers of those that store items there, in order.
    removed: tuple[int, ...] = ()  # The numbers of those that were removed, in order.

    @property
    def count(self) -> int:
        """The number of shard numbers that were used."""
        return max((*self.shards, *self.removed), default=-1) + 1

    def write(self, directory: Path) -> None:
        """Write the file."""
        _write(directory / _CLUSTER, _CLUSTER_FORMAT, vars(self))


def open_directory(directory: Path) -> Manifest:
    """Read the manifest, or make one in a directory without shards; delete removed shards.

    Raises:
        StorageError: If the directory has folders of shards and no manifest, the manifest is
            damaged, the folder of a shard is missing or belongs to another cluster, or the
            operating system reported an error.
    """
    path = directory / _CLUSTER
    try:
        directory.mkdir(parents=True, exist_ok=True)
        names = sorted(entry.name for entry in directory.iterdir())
    except OSError as error:
        raise _refused(directory, "opened", error) from error
    if _CLUSTER not in names:
        if found := [name for name in names if _FOLDER.fullmatch(name)]:
            raise StorageError(
                f"expected {path}, which says which shards there are, and the directory has only "
                f"{found}: bring that file back, or give another directory"
            )
        manifest = Manifest(secrets.token_hex(16))
        manifest.write(directory)
        return manifest
    manifest = _read_manifest(directory)
    for number in manifest.shards:
        _read_items(shard_folder(directory, number), manifest.identity, number)
    for number in manifest.removed:
        clear_shard(directory, number)
    return manifest


def add_shards(directory: Path, identity: str, numbers: Iterable[int]) -> None:
    """Record shards that serve, before clients learn of them."""
    known = _read_manifest(directory, identity)
    shards = tuple(sorted({*known.shards, *numbers}))
    Manifest(identity, shards, known.removed).write(directory)


def remove_shard(directory: Path, identity: str, number: int) -> None:
    """Record that the items of a shard are elsewhere."""
    known = _read_manifest(directory, identity)
    shards = tuple(one for one in known.shards if one != number)
    Manifest(identity, shards, tuple(sorted({*known.removed, number}))).write(directory)


def clear_shard(directory: Path, number: int) -> None:
    """Delete the folder of a removed shard; if that fails, the next start tries again."""
    try:
        shutil.rmtree(shard_folder(directory, number))
    except FileNotFoundError:
        return
    except OSError as error:
        _log.warning("the folder of removed shard %d is left: %s", number, error)


def shard_folder(directory: Path, number: int) -> Path:
    """Return the folder of a shard."""
    return directory / f"shard-{number}"


def open_shard(directory: Path, identity: str, number: int) -> dict[str, int] | None:
    """Check the folder of a shard, or make that of a new one.

    Returns:
        How many items each table had when the shard was closed; ``None`` if it was not, or is new.

    Raises:
        StorageError: If the directory or the folder is missing or belongs to another cluster, the
            shard was removed, or the operating system reported an error.
    """
    manifest = _read_manifest(directory, identity)
    folder = shard_folder(directory, number)
    if number in manifest.removed:
        raise StorageError(f"shard {number} was removed from {directory}: its items are elsewhere")
    if number in manifest.shards:
        return _read_items(folder, identity, number)
    try:
        # A start that failed has left it; no client has learned of it.
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)
        folder.mkdir()
    except OSError as error:
        raise _refused(folder, "made", error) from error
    record_items(folder, identity, number, None)
    return None


def record_items(folder: Path, identity: str, number: int, items: Mapping[str, int] | None) -> None:
    """Record how many items each table of a shard has, as it is closed; ``None`` as it starts."""
    fields = {"identity": identity, "number": number, "items": items}
    _write(folder / _SHARD, _SHARD_FORMAT, fields)


def check_items(folder: Path, before: Mapping[str, int], now: Mapping[str, int]) -> None:
    """Check that a shard has come back with at least the items that it was closed with.

    Raises:
        StorageError: If a table has fewer. Tables that are no longer made are ignored.
    """
    for name, count in before.items():
        if name in now and now[name] < count:
            raise StorageError(
                f"table {name!r} had {count} items when its shard was closed, and {folder} has "
                f"{now[name]}: bring the missing files back, or accept the loss and write null for "
                f'"items" in {folder / _SHARD}'
            )


def _read_manifest(directory: Path, identity: str | None = None) -> Manifest:
    path = directory / _CLUSTER
    found = _read(path, _CLUSTER_FORMAT, identity, {"shards", "removed"})
    for name in ("shards", "removed"):
        numbers = found[name]
        is_list = isinstance(numbers, list) and all(type(one) is int for one in numbers)
        if not is_list or not {*numbers} <= {*range(MAX_SHARDS)} or len({*numbers}) < len(numbers):
            wanted = f"{name!r} must be different numbers below {MAX_SHARDS}"
            raise _damaged(path, f"{wanted}, got {numbers!r}")
        found[name] = tuple(sorted(numbers))
    if both := sorted({*found["shards"]} & {*found["removed"]}):
        raise _damaged(path, f"shards {both} are there and removed")
    return Manifest(found["identity"], found["shards"], found["removed"])


def _read_items(folder: Path, identity: str, number: int) -> dict[str, int] | None:
    path = folder / _SHARD
    found = _read(path, _SHARD_FORMAT, identity, {"number", "items"})
    items: dict[str, int] | None = found["items"]
    if found["number"] != number:
        raise StorageError(f"expected the folder of shard {number}, and {path} is of another one")
    counts = items.values() if isinstance(items, dict) else [] if items is None else [items]
    if not all(type(count) is int and count >= 0 for count in counts):
        raise _damaged(path, f"'items' must be counts by table, got {items!r}")
    return items


def _read(path: Path, form: str, identity: str | None, fields: set[str]) -> dict[str, Any]:
    """Read a file of the manifest and check what all of them have."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise StorageError(
            error.errno,
            f"expected the manifest {path}, and there is none: is the file system mounted? Bring "
            "back the directory with what it had",
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise _refused(path, "read", error) from error
    except ValueError as error:
        raise _damaged(path, f"expected JSON: {error}") from error
    if not isinstance(found, dict) or found.get("format") != form:
        raise StorageError(f'{path} is no manifest: expected an object with "format": "{form}"')
    version, own = found.get("version"), found.get("identity")
    if type(version) is not int or version != _VERSION:
        raise StorageError(f"{path} is of version {version!r}, and this release reads {_VERSION}")
    if found.keys() != {"format", "version", "identity", *fields}:
        wanted = f"expected the fields {sorted(fields)} and 'identity'"
        raise _damaged(path, f"{wanted}, got {sorted(found)}")
    if not isinstance(own, str) or not _IDENTITY.fullmatch(own):
        raise _damaged(path, f"'identity' must be 32 hex digits, got {own!r}")
    if identity not in {None, own}:
        raise StorageError(
            f"{path} belongs to another cluster: expected the identity {identity}, got {own}. Is "
            "the right file system mounted?"
        )
    return found


def _write(path: Path, form: str, fields: Mapping[str, Any]) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        try:
            with draft.open("x", encoding="utf-8") as file:
                json.dump({"format": form, "version": _VERSION, **fields}, file)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
            # The folder, too, so that the rename survives a crash of the machine.
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise _refused(path, "written", error) from error


def _damaged(path: Path, what: str) -> StorageError:
    return StorageError(f"{path} is damaged: {what}")


def _refused(path: Path, what: str, error: Exception) -> StorageError:
    number = error.errno if isinstance(error, OSError) else None
    text = f"{path} can't be {what}: {error}"
    return StorageError(text) if number is None else StorageError(number, text)
