"""Decode images and videos, as arrays of bytes: height, width, channels."""

from __future__ import annotations

import io
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.buffers._packages import package
from echoic.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["Video", "decoded"]

_FORMATS = {1: "gray", 3: "rgb24", 4: "rgba"}


def decoded(
    name: str, images: Sequence[bytes | None], shape: tuple[int, ...] | None = None
) -> np.ndarray[Any, Any]:
    """Return PNG or JPEG images of one size as an array.

    Args:
        name: What an error says they are.
        images: The contents of each file.
        shape: Height, width and channels; those of the first image when ``None``. They are checked
            before an image is decoded.
    """
    image_of = package("PIL.Image", "reading images")
    rows: np.ndarray[Any, Any] | None = None
    for row, content in enumerate(images):
        if content is None:
            text = "expected the image itself, got only the path of one; embed it in the data"
            raise SpecError(f"{name}: {text}")
        try:
            with image_of.open(io.BytesIO(content), formats=["PNG", "JPEG"]) as image:
                got = (image.height, image.width, len(image.getbands()))
                shape = shape or got
                if got != shape:
                    raise SpecError(f"{name}: expected images of {shape}, got {got} in row {row}")
                pixels = np.asarray(image).reshape(shape)
        except (OSError, ValueError, SyntaxError, image_of.DecompressionBombError) as error:
            if isinstance(error, SpecError):
                raise
            raise SpecError(
                f"{name}: expected a PNG or JPEG image in row {row}: {error}"
            ) from error
        if rows is None:
            rows = np.empty((len(images), *shape), pixels.dtype)
        rows[row] = pixels
    return np.empty((0, *(shape or ())), np.uint8) if rows is None else rows


class Video:
    """Frames of an MP4 file by time, decoded in one pass if times only grow.

    Only this file is read: it is opened as MP4 and nothing else, so that it can't name others.

    Args:
        path: The file.
        shape: Height, width and channels of frames.
        tolerance: Seconds by which a frame's time may differ.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], tolerance: float) -> None:
        self._av = package("av", "reading videos")
        if not path.is_file():
            raise SpecError(f"{path}: expected this video, but there is no such file")
        self.path, self._shape, self._tolerance = path, shape, tolerance
        self._asked = -np.inf
        self._container: Any = None

    def close(self) -> None:
        """Close the file."""
        if self._container is not None:
            self._container.close()
            self._container = None

    def read(self, seconds: float, out: np.ndarray[Any, Any]) -> None:
        """Write the frame that is shown at this time to an array.

        Raises:
            SpecError: If no frame has this time, or the file is damaged.
        """
        if self._container is None or seconds < self._asked:
            self.close()
            self._frames = self._decoded()
            self._frame, self._next = None, next(self._frames, None)
        self._asked = seconds
        while self._next is not None and (
            self._frame is None or abs(self._next.time - seconds) <= abs(self._frame.time - seconds)
        ):
            self._frame, self._next = self._next, next(self._frames, None)
        frame = self._frame
        if frame is None or not abs(frame.time - seconds) <= self._tolerance:
            there = "none" if frame is None else f"one at {frame.time:.4f} s"
            raise SpecError(f"{self.path}: expected a frame at {seconds:.4f} s, got {there}")
        with self._intact():
            pixels = frame.to_ndarray(format=_FORMATS[self._shape[2]])
        out[...] = pixels.reshape(self._shape)

    def _decoded(self) -> Iterator[Any]:
        with self._intact():
            self._container = self._av.open(str(self.path), format="mp4")
            if not self._container.streams.video:
                raise SpecError(f"{self.path}: expected a video, got a file without one")
            stream = self._container.streams.video[0]
            stream.thread_type = "AUTO"
            # Before a frame of any size is decoded, and again, since frames may differ.
            self._check((stream.height, stream.width))
            for frame in self._container.decode(stream):
                self._check((frame.height, frame.width))
                if frame.time is None:
                    raise SpecError(f"{self.path}: expected frames with times")
                yield frame

    @contextmanager
    def _intact(self) -> Iterator[None]:
        try:
            yield
        except (self._av.error.FFmpegError, UnicodeDecodeError) as error:
            raise SpecError(f"{self.path}: expected an intact MP4 video: {error}") from error

    def _check(self, size: tuple[int, int]) -> None:
        if size != self._shape[:2]:
            text = f"expected frames of {self._shape[:2]}, got {size}"
            raise SpecError(f"{self.path}: {text}")
