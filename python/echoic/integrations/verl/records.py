"""Rows of TransferQueue as bytes, and back, without pickle.

A record is a header in JSON, whose length is in its first eight bytes, and the bytes of the arrays
that the header names. Records come from other processes, so :func:`decode` checks every number in
the header against the bytes that are there.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Record", "decode", "encode"]

#: What a record of the server's journal may have.
MAX_BYTES = 64 * 1024 * 1024 - 4096

_TORCH = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
    "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
# As numpy writes them: it evaluates parts of longer ones.
_NUMPY = re.compile(r"[<>|][biufcSU]\d{1,9}")


@dataclass
class Record:
    """What one call has put into a row.

    Args:
        partition: The partition of the row.
        key: The key of the row in its partition.
        fields: Values by the names of their fields.
        tags: The row's tags, or ``None`` when the call gave none.
        extra: What the adapter keeps with the record: values that JSON has.
    """

    partition: str
    key: str
    fields: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


class _Writer:
    """Collects the bytes of arrays while values become JSON."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._size = 0
        self.buffers: list[np.ndarray[Any, Any]] = []

    def _bytes(self, buffer: np.ndarray[Any, Any]) -> list[int]:
        place = [self._size, buffer.nbytes]
        self._size += -(-buffer.nbytes // 8) * 8
        self.buffers.append(buffer)
        return place

    def value(self, value: Any, path: str) -> Any:
        if value is None or isinstance(value, (bool, str)):
            return value
        if type(value) in (int, float):
            return value
        if isinstance(value, (bytes, bytearray)):
            return {"b": self._bytes(np.frombuffer(value, np.uint8))}
        if isinstance(value, np.generic):
            return {"s": self.value(np.asarray(value), path)}
        if isinstance(value, np.ndarray):
            return self._array(value, path)
        if isinstance(value, dict):
            pairs = []
            for key, one in value.items():
                if not isinstance(key, (str, int, float, bool, type(None))):
                    raise self._error(key, f"{path}, a key")
                pairs.append([key, self.value(one, f"{path}[{key!r}]")])
            return {"d": pairs}
        if type(value) in (list, tuple):
            kind = "l" if type(value) is list else "u"
            return {kind: [self.value(one, f"{path}[{i}]") for i, one in enumerate(value)]}
        if type(value).__module__.partition(".")[0] in ("torch", "tensordict"):
            return self._tensor(value, path)
        raise self._error(value, path)

    def _array(self, array: np.ndarray[Any, Any], path: str) -> Any:
        if array.dtype == object:
            values = [self.value(one, f"{path}[{i}]") for i, one in enumerate(array.ravel())]
            return {"o": [list(array.shape), values]}
        if not _NUMPY.fullmatch(array.dtype.str):
            raise self._error(array, f"{path}, of dtype {array.dtype}")
        flat = np.ascontiguousarray(array).reshape(-1)
        place = self._bytes(flat.view(np.uint8) if flat.size else np.empty(0, np.uint8))
        return {"a": [array.dtype.str, list(array.shape), *place]}

    def _tensor(self, tensor: Any, path: str) -> Any:
        import torch

        if not isinstance(tensor, torch.Tensor):
            # What tensordict wraps.
            if type(tensor).__name__ in ("NonTensorData", "NonTensorStack"):
                return self.value(tensor.tolist(), path)
            if isinstance(tensor, torch.Size):
                return {"u": list(tensor)}
            raise self._error(tensor, path)
        if tensor.is_nested:
            rows = [self._tensor(row, path) for row in tensor.detach().unbind()]
            return {"n": [tensor.layout is torch.jagged, rows]}
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in _TORCH or tensor.layout is not torch.strided:
            raise self._error(tensor, f"{path}, of {tensor.dtype} and {tensor.layout}")
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        place = self._bytes(flat.view(torch.uint8).numpy() if len(flat) else np.empty(0, np.uint8))
        return {"t": [dtype, list(tensor.shape), *place]}

    def _error(self, value: object, path: str) -> TypeError:
        return TypeError(
            "expected tensors, arrays, text, bytes, numbers, None, and lists, tuples and dicts of "
            f"these, got a {type(value).__module__}.{type(value).__qualname__} at {path} of "
            f"{self._where}"
        )


def encode(record: Record, pad: bool = False) -> np.ndarray[Any, Any]:
    """Return a record as bytes.

    Args:
        record: What to encode.
        pad: Whether to lengthen it to the next size of which there are eight to a power of two, so
            that records of about the same size have the same.

    Raises:
        TypeError: If a value has a type that is not stored; the message names key, field and type.
        ValueError: If the record has more than 64 MiB.
    """
    where = f"key {record.key!r} of partition {record.partition!r}"
    writer = _Writer(where)
    header = {
        "p": record.partition,
        "k": record.key,
        "t": None if record.tags is None else writer.value(record.tags, "tags"),
        "x": record.extra,
        "f": {name: writer.value(one, f"field {name!r}") for name, one in record.fields.items()},
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    begin = -(-(8 + len(text)) // 8) * 8
    size = begin + sum(-(-buffer.nbytes // 8) * 8 for buffer in writer.buffers)
    if pad:
        step = 1 << max(3, size.bit_length() - 4)
        size = -(-size // step) * step
    if size > MAX_BYTES:
        raise ValueError(f"expected at most {MAX_BYTES} bytes, got {size} for {where}")
    out = np.zeros(size, np.uint8)
    out[:8] = np.frombuffer(len(text).to_bytes(8, "little"), np.uint8)
    out[8 : 8 + len(text)] = np.frombuffer(text, np.uint8)
    for buffer in writer.buffers:
        out[begin : begin + buffer.nbytes] = buffer.reshape(-1)
        begin += -(-buffer.nbytes // 8) * 8
    return out


class _Reader:
    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self._data = data
        # Bytes that no value has yet.
        self._left = len(data)

    def _bytes(self, start: object, size: object) -> np.ndarray[Any, Any]:
        if type(start) is not int or type(size) is not int or start < 0 or size < 0:
            raise ValueError(f"expected a range of bytes, got {start!r} and {size!r}")
        if start + size > len(self._data):
            raise ValueError(
                f"expected at most {len(self._data)} bytes, got a range that ends at {start + size}"
            )
        self._left -= size
        if self._left < 0:
            raise ValueError(f"expected values of {len(self._data)} bytes, got some of them twice")
        # Readers own their memory: a view would hold the whole batch.
        return self._data[start : start + size].copy()

    @staticmethod
    def _shape(shape: object, items: int) -> list[int]:
        if not isinstance(shape, list) or any(type(n) is not int or n < 0 for n in shape):
            raise ValueError(f"expected a shape, got {shape!r}")
        if math.prod(shape) != items:
            raise ValueError(f"expected {items} values, got shape {shape}")
        return shape

    def value(self, node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        if len(node) != 1:
            raise ValueError(f"expected one kind of value, got {sorted(node)}")
        ((kind, content),) = node.items()
        if kind == "b":
            return self._bytes(*content).tobytes()
        if kind == "s":
            return self.value(content)[()]
        if kind == "a":
            return self._array(*content)
        if kind == "o":
            array = np.empty(len(content[1]), object)
            for i, one in enumerate(content[1]):
                array[i] = self.value(one)
            return array.reshape(self._shape(content[0], len(array)))
        if kind == "d":
            return {key: self.value(one) for key, one in content}
        if kind == "l":
            return [self.value(one) for one in content]
        if kind == "u":
            return tuple(self.value(one) for one in content)
        if kind == "t":
            return self._tensor(*content)
        if kind == "n":
            import torch

            rows = [self.value(row) for row in content[1]]
            layout = torch.jagged if content[0] else torch.strided
            return torch.nested.as_nested_tensor(rows, layout=layout)
        raise ValueError(f"expected a kind of value, got {kind!r}")

    def _array(self, name: str, shape: Any, start: Any, size: Any) -> np.ndarray[Any, Any]:
        if not _NUMPY.fullmatch(name):
            raise ValueError(f"expected a dtype of numbers or text, got {name!r}")
        dtype = np.dtype(name)
        flat = self._bytes(start, size).view(dtype) if size else np.empty(0, dtype)
        return flat.reshape(self._shape(shape, len(flat)))

    def _tensor(self, name: str, shape: Any, start: Any, size: Any) -> Any:
        import torch

        if name not in _TORCH:
            raise ValueError(f"expected a dtype of torch, got {name!r}")
        flat = torch.from_numpy(self._bytes(start, size))
        dtype = getattr(torch, name)
        flat = flat.view(dtype) if size else torch.empty(0, dtype=dtype)
        return flat.reshape(self._shape(shape, len(flat)))


def decode(data: np.ndarray[Any, Any], fields: set[str] | None = None) -> Record:
    """Read a record; values own their memory.

    Args:
        data: Its bytes, and any padding behind them.
        fields: The fields to read; all when ``None``.

    Raises:
        ValueError: If the bytes are not a record.
    """
    try:
        size = int.from_bytes(data[:8].tobytes(), "little")
        if len(data) < 8 or size > len(data) - 8:
            raise ValueError(f"expected a header of at most {len(data) - 8} bytes, got {size}")
        header = json.loads(data[8 : 8 + size].tobytes())
        reader = _Reader(data[-(-(8 + size) // 8) * 8 :])
        wanted = {
            name: reader.value(node)
            for name, node in header["f"].items()
            if fields is None or name in fields
        }
        tags = None if header["t"] is None else reader.value(header["t"])
        return Record(str(header["p"]), str(header["k"]), wanted, tags, dict(header["x"]))
    except (LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"expected a record of a row, got other bytes: {error}") from error
