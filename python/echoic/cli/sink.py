"""Consume the batches of a stand-alone server: count and drop them, or write them to files.

A `Consumer` is the thread that takes batches until the server is closed, and then the samples that
do not fill one. It holds none, so the ring stays free for new ones.
"""

import re
import threading
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import optree

import echoic

__all__ = ["Consumer", "Counter", "Folder", "Sink"]


class Sink(Protocol):
    """Something that consumes batches, and needs none after `take` returns."""

    def take(self, batch: Any) -> None:
        """Consume one batch."""
        ...


class Counter:
    """Drop batches; the consumer has counted them."""

    def take(self, batch: Any) -> None:
        """Do nothing."""


class Folder:
    """Write each batch to a file of its own.

    The files are uncompressed `.npz`, with one array for each leaf, named by its path (`sample` for
    a sample that is a single array). Numbers continue after those of existing files. A file appears
    under its name when it is complete, so readers of the folder see no half ones.

    Args:
        folder: Where to write; created if it does not exist.
        paths: The paths of the leaves, in the order in which a batch has them.
    """

    NAME = re.compile(r"batch-(\d+)\.npz")

    def __init__(self, folder: Path, paths: Iterable[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._names = [f"{path or 'sample'}.npy" for path in paths]
        found = (self.NAME.fullmatch(path.name) for path in folder.iterdir())
        self._next = max((int(match[1]) + 1 for match in found if match), default=0)

    def take(self, batch: Any) -> None:
        """Write one batch."""
        path = self._folder / f"batch-{self._next:08}.npz"
        partial = path.with_name(f".{path.name}.partial")
        try:
            self._write(partial, optree.tree_leaves(batch))
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        self._next += 1

    def _write(self, path: Path, leaves: list[Any]) -> None:
        # Not `np.savez`: its own arguments' names are lost as names of arrays, and it may pickle.
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for name, leaf in zip(self._names, leaves, strict=True):
                with archive.open(name, "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, np.asarray(leaf), allow_pickle=False)


class Consumer:
    """Take batches in a thread, until the server is closed and empty.

    Args:
        stream: The stream to take batches from.
        sink: Where they go.
        failed: Called in the thread when the sink has raised an exception, which ends the thread.
    """

    def __init__(self, stream: echoic.Stream, sink: Sink, failed: Callable[[], None]) -> None:
        self.batch_size = stream.batch_size
        self.batches = 0  # Complete ones.
        self.samples = 0  # Those of the incomplete batch at the end included.
        self.error: Exception | None = None  # That of the sink.
        self._stream = stream
        self._sink = sink
        self._failed = failed
        # A daemon, so that a second Ctrl-C ends the process even with a slow disk.
        self._thread = threading.Thread(target=self._run, name="echoic-consumer", daemon=True)

    def start(self) -> None:
        """Begin to take batches."""
        self._thread.start()

    def join(self) -> None:
        """Wait until the server is empty, or the sink has failed."""
        self._thread.join()

    def _run(self) -> None:
        try:
            self._take_all()
        except Exception as error:  # reported by the caller of `join`
            self.error = error
            self._failed()

    def _take_all(self) -> None:
        while True:
            try:
                sample = self._stream.sample()
            except echoic.errors.ClosedError:
                break
            self._sink.take(sample.data)
            self.batches += 1
            self.samples += len(sample)
            # Or the batch would be held while waiting for the next one.
            del sample
        rest = self._stream.rest()
        if rest is not None:
            self._sink.take(rest.data)
            self.samples += len(rest)
