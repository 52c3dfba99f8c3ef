"""Where a stand-alone server's batches go: counted and dropped, or into files.

A `Consumer` is the thread that takes batches until the server is closed, and then the samples that
do not fill one. It keeps none, so the ring is free for the next.
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
    """Takes batches, and has done with each when `take` returns."""

    def take(self, batch: Any) -> None:
        """Take one batch."""
        ...


class Counter:
    """Drops batches; the consumer has counted them."""

    def take(self, batch: Any) -> None:
        """Do nothing."""


class Folder:
    """Writes each batch into a file of its own.

    The files are uncompressed `.npz`, with one array for each leaf, named by its path (`sample` for
    a sample that is a single array). Numbers go on after those of the files that are there already.
    A file appears under its name when it is complete: who watches the folder sees no half ones.

    Args:
        folder: Where to write; made if it is not there.
        paths: Those of the leaves, in the order in which a batch has them.
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
    """Takes batches in a thread, until the server is closed and empty.

    Args:
        server: Where they come from.
        sink: Where they go.
        failed: Called, from the thread, when the sink raised and the thread therefore ends.

    Attributes:
        batches: Complete batches taken.
        samples: Samples taken, those of the incomplete batch at the end included.
        error: What the sink raised.
    """

    def __init__(self, server: echoic.Server, sink: Sink, failed: Callable[[], None]) -> None:
        self.batches = 0
        self.samples = 0
        self.error: Exception | None = None
        self._server = server
        self._sink = sink
        self._failed = failed
        # Not waited for when the interpreter ends: a second Ctrl-C leaves a slow disk behind.
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
        except Exception as error:  # noqa: BLE001 - told by whoever waits for the thread
            self.error = error
            self._failed()

    def _take_all(self) -> None:
        while True:
            try:
                sample = self._server.sample()
            except echoic.ClosedError:
                break
            self._sink.take(sample.data)
            self.batches += 1
            self.samples += len(sample)
            # Or the batch would be held while the next one is awaited.
            del sample
        rest = self._server.rest()
        if rest is not None:
            self._sink.take(rest.data)
            self.samples += len(rest)
