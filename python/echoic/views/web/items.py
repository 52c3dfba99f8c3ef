"""Read single items of tables, and show them as text, numbers and pictures."""

from __future__ import annotations

import base64
import codecs
import struct
import threading
import zlib
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

import echoic
from echoic.ragged import Ragged

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Pixels = np.ndarray[Any, np.dtype[np.uint8]]

__all__ = ["ItemError", "Items", "first_items", "frames", "leaves_by_path", "png", "summary"]

# The most bytes of an item that is read, from tables with a spec. The size of other items is not
# known before they have come over the network.
_ITEM_BYTES = 64 << 20
# The most elements of a leaf, evenly spread, that statistics are computed from.
_ELEMENTS = 1 << 20
_FRAMES = 16
_TEXT = 10_000
# The most elements of a leaf that are all shown; of larger ones only the ends are.
_NUMBERS = 64
_LEAVES = 500


class ItemError(Exception):
    """Raised if an item can't be shown; the message says why."""


class Items:
    """Reads items of a server, without counting them as sampled.

    Each request opens a connection, so that none stays open between requests.

    Args:
        address: The server's address.
        options: Further options of ``echoic.connect``.
    """

    def __init__(self, address: str, options: Mapping[str, Any]) -> None:
        self._address = address
        self._options = {"timeout": 5.0, "reconnect": 5.0, **options}
        # At most one connection, however many browsers ask.
        self._one_at_a_time = threading.Lock()

    def keys(self, table: str, count: int) -> dict[str, Any]:
        """List the first items of a table.

        Raises:
            ItemError: If the server can't be reached, or has no such table.
        """
        with self._one_at_a_time, self._client() as client:
            found: Any = client.table(table)
            spec = found.spec
            return {
                "table": table,
                "spec": None if spec is None else str(spec),
                "total": len(found),
                # Keys as text: a browser's numbers have 53 bits.
                "items": [{**one, "key": str(one["key"])} for one in first_items(found, count)],
            }

    def item(self, table: str, key: int) -> dict[str, Any]:
        """Read an item.

        Raises:
            ItemError: If it is gone or too large, or the server can't be reached.
        """
        with self._one_at_a_time, self._client() as client:
            found: Any = client.table(table)
            if found.spec is not None and found.spec.nbytes > _ITEM_BYTES:
                raise ItemError(
                    f"items of this table have {found.spec.nbytes:,} bytes;"
                    f" more than {_ITEM_BYTES:,} are not read"
                )
            batch = found.get([key])
            if not len(batch):
                raise ItemError(f"item {key} is not in the table any more")
            return {"table": table, "key": str(key), **_tree(batch.data)}

    @contextmanager
    def _client(self) -> Iterator[echoic.Connection]:
        """Connect for one request; errors become an :class:`ItemError`."""
        try:
            client = echoic.connect(self._address, **self._options)
            try:
                yield client
            finally:
                with suppress(echoic.EchoicError):
                    client.close(timeout=1.0)
        except (echoic.EchoicError, OSError) as error:
            raise ItemError(str(error)) from error


def first_items(table: Any, count: int) -> list[dict[str, Any]]:
    """Return the first items of a table by name of column, without their data."""
    items, names = table.items(count), ("key", "priority", "times_sampled", "version")
    more = (items.info.priorities, items.info.times_sampled, items.info.versions)
    rows = zip(items.keys.tolist(), *(column.tolist() for column in more), strict=True)
    return [dict(zip(names, row, strict=True)) for row in rows]


def leaves_by_path(tree: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of a batch by path; the path of a single array is empty."""
    children: Mapping[Any, Any]
    if isinstance(tree, dict):
        children = tree
    elif hasattr(tree, "_fields"):
        children = tree._asdict()
    elif isinstance(tree, (list, tuple)):
        children = dict(enumerate(tree))
    elif isinstance(tree, Ragged) or hasattr(tree, "dtype") or not hasattr(tree, "__dict__"):
        return {} if tree is None else {path: tree}
    else:
        children = vars(tree)
    found: dict[str, Any] = {}
    for name, child in children.items():
        found |= leaves_by_path(child, f"{path}/{name}" if path else str(name))
    return found


def _tree(data: Any) -> dict[str, Any]:
    """Describe the leaves of a batch of one item."""
    leaves = leaves_by_path(data)
    return {
        "leaves": [
            # Not each[0]: numpy would strip the padding of text.
            {"path": path, **leaf(each[:1].reshape(each.shape[1:]))}
            for path, each in islice(leaves.items(), _LEAVES)
        ],
        "more_leaves": max(len(leaves) - _LEAVES, 0),
    }


def leaf(value: Any) -> dict[str, Any]:
    """Describe a leaf: dtype, shape, and its values as text, pictures or numbers.

    Examples:
        >>> import numpy as np
        >>> leaf(np.float32(0.5))
        {'dtype': 'float32', 'shape': [], 'nbytes': 4, 'values': '0.5'}
    """
    array = np.asarray(value)
    found: dict[str, Any] = {
        "dtype": str(array.dtype).lstrip("|<>"),
        "shape": list(array.shape),
        "nbytes": array.nbytes,
    }
    words = text(array)
    if words is not None:
        found["text"] = words[:_TEXT] + ("\n…" if len(words) > _TEXT else "")
    pictures = frames(array)
    if pictures is not None:
        chosen = np.linspace(0, len(pictures) - 1, min(len(pictures), _FRAMES)).astype(int)
        found["frames"] = len(pictures)
        found["images"] = [
            {
                "frame": int(at),
                "png": "data:image/png;base64," + base64.b64encode(png(pictures[at])).decode(),
            }
            for at in chosen
        ]
    elif array.dtype.kind not in "SU":
        found["values"] = (
            np.array2string(array, threshold=_NUMBERS, edgeitems=3, precision=6, max_line_width=100)
            if array.ndim
            else str(array)
        )
    if array.size > _NUMBERS:
        found |= summary(array)
    return found


def text(array: np.ndarray[Any, Any]) -> str | None:
    r"""Return the text of a leaf of bytes or str, or of a row of bytes in UTF-8; else None.

    Examples:
        >>> import numpy as np
        >>> text(np.frombuffer(b"Hello!", np.uint8)), text(np.array([b"a", b"b"]))
        ('Hello!', 'a\nb')
        >>> text(np.arange(6, dtype=np.uint8)) is None
        True
    """
    if array.dtype.kind == "S":
        return "\n".join(each.decode(errors="replace") for each in array.reshape(-1)[:_TEXT])
    if array.dtype.kind == "U":
        return "\n".join(map(str, array.reshape(-1)[:_TEXT]))
    if array.dtype != np.uint8 or array.ndim != 1 or array.size < 4:
        return None
    cut = array[: 4 * _TEXT].tobytes()
    try:
        # The cut may be in the middle of a letter.
        words = codecs.getincrementaldecoder("utf-8")().decode(cut, final=array.nbytes == len(cut))
        words = words.rstrip("\0")
    except UnicodeDecodeError:
        return None
    return (
        words if words and all(each.isprintable() or each in "\n\t\r" for each in words) else None
    )


def summary(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return extremes and mean of a leaf, as text; of a large leaf, those of a part.

    Examples:
        >>> import numpy as np
        >>> summary(np.arange(101))
        {'min': '0', 'max': '100', 'mean': '50'}
    """
    if array.dtype.kind not in "biufV":
        return {}
    flat = array.reshape(-1)
    step = -(-flat.size // _ELEMENTS)
    try:
        # bfloat16 and similar dtypes, of kind V, are numbers, too.
        numbers = flat[::step].astype(np.float64)
    except (TypeError, ValueError):
        return {}
    found: dict[str, Any] = {}
    known = numbers[np.isfinite(numbers)]
    if known.size:
        extremes = {"min": known.min(), "max": known.max(), "mean": known.mean()}
        found |= {name: f"{number:.6g}" for name, number in extremes.items()}
    if known.size < numbers.size:
        found["not_finite"] = int(numbers.size - known.size)
    if step > 1:
        found["of_elements"] = int(numbers.size)
    return found


# The least height and width of a picture; smaller leaves are shown as numbers.
_SMALLEST = 8
# The largest height or width; of larger pictures pixels are left out.
_LARGEST = 512
# PNG's names for kinds of pixels, by their channels.
_KINDS = {1: 0, 3: 2, 4: 6}
_OPAQUE = 255


def frames(leaf: np.ndarray[Any, Any]) -> Pixels | None:
    """Return a leaf of uint8 as pictures, ``(N, H, W, channels)``, or None if it has none.

    The last axis is one of channels if it has length 1, 3 or 4 and the two before it are not short:
    ``(…, H, W, C)``, otherwise ``(…, H, W)``. Four channels of which the last is not all opaque are
    four grey pictures: stacked frames.
    """
    if leaf.dtype != np.uint8 or leaf.size == 0:
        return None
    shape = leaf.shape
    if len(shape) > 2 and shape[-1] in _KINDS and min(shape[-3:-1]) >= _SMALLEST:
        channels = shape[-1]
        if channels != 4 or (leaf[..., 3] == _OPAQUE).all():
            return leaf.reshape(-1, *shape[-3:])
        grey: Pixels = np.moveaxis(leaf, -1, -3)
        return grey.reshape(-1, *shape[-3:-1], 1)
    if len(shape) >= 2 and min(shape[-2:]) >= _SMALLEST:
        return leaf.reshape(-1, *shape[-2:], 1)
    return None


def png(picture: Pixels) -> bytes:
    """Encode a picture ``(H, W, channels)`` of 1, 3 or 4 channels as PNG."""
    step = -(-max(picture.shape[:2]) // _LARGEST)
    picture = picture[::step, ::step]
    height, width, channels = picture.shape
    # Each row begins with the number of its filter; 0 does not filter.
    rows = np.zeros((height, 1 + width * channels), np.uint8)
    rows[:, 1:] = picture.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, _KINDS[channels], 0, 0, 0)
    body = zlib.compress(rows.tobytes(), 1)
    chunks = (_chunk(b"IHDR", head), _chunk(b"IDAT", body), _chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
