"""What a leaf may be: every dtype bit for bit, what is converted, and what is refused and how."""

from __future__ import annotations

import array
import enum
import warnings
from collections.abc import Callable
from typing import Any

import echoic
import ml_dtypes
import numpy as np
import pytest

pytestmark = pytest.mark.timeout(60)

MakeStream = Callable[..., echoic.Stream]


def stored(make_stream: MakeStream, example: Any, value: Any) -> np.ndarray:
    """What comes out of a batch of one when `value` goes in."""
    stream = make_stream({"leaf": example}, batch_size=1)
    stream.add({"leaf": value})
    return stream.sample(timeout=0).data["leaf"][0:1]


def refusal(make_stream: MakeStream, example: Any, value: Any) -> str:
    """The message that `value` is refused with; also checks that the stream goes on."""
    stream = make_stream({"before": 0, "leaf": example}, batch_size=1)
    with pytest.raises(echoic.errors.SpecError) as caught:
        stream.add({"before": 1, "leaf": value})
    info = stream.stats()
    assert (info.inserted_total, info.refused, info.aborted) == (0, 1, 0)
    stream.add({"before": 2, "leaf": example})
    assert stream.sample(timeout=0).data["before"].tolist() == [2]
    return str(caught.value)


# Kinds of data.

DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "S1", "S5", "S33"),
    ml_dtypes.bfloat16,
]
SHAPES = [(), (1,), (3,), (2, 3), (0,), (2, 0, 3), (1, 1, 1, 1, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_every_dtype_and_shape_comes_back_bit_for_bit(
    make_stream: MakeStream, dtype: Any, shape: tuple[int, ...]
) -> None:
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(7)
    stream = make_stream(np.zeros(shape, dtype), batch_size=3)
    high = 2 if dtype.kind == "b" else 256
    rows = [
        np.frombuffer(
            rng.integers(0, high, int(np.prod(shape)) * dtype.itemsize, np.uint8).tobytes(), dtype
        ).reshape(shape)
        for _ in range(3)
    ]
    for row in rows:
        stream.add(row)
    batch = stream.sample(timeout=0).data
    assert (batch.dtype, batch.shape) == (dtype, (3, *shape))
    assert batch.tobytes() == b"".join(row.tobytes() for row in rows)


def test_samples_without_any_bytes_are_counted_like_others(make_stream: MakeStream) -> None:
    stream = make_stream(np.zeros((0, 2)), batch_size=2, capacity=6)
    for _ in range(5):
        stream.add(np.zeros((0, 2)))
    assert [stream.sample(timeout=0).data.shape for _ in range(2)] == [(2, 0, 2)] * 2
    with pytest.raises(echoic.errors.WaitTimeoutError):
        stream.sample(timeout=0)


@pytest.mark.parametrize(
    ("example", "value"),
    [
        (np.float32, np.int32),
        (np.float16, ml_dtypes.bfloat16),
        (ml_dtypes.bfloat16, np.float16),
        (ml_dtypes.bfloat16, np.uint16),
        (np.uint8, np.int8),
        (np.uint8, np.bool_),
        (np.bool_, np.uint8),
        (np.int64, np.uint64),
        (np.int64, "M8[s]"),
        (np.int32, "S4"),
        ("S4", np.int32),
        ("S4", "S5"),
        ("S4", "S3"),
        (np.complex64, np.float64),
        (np.float64, np.longdouble),
        (np.float32, np.float64),
        (np.float64, np.float32),
        (np.int64, np.int32),
        (np.int16, ">u2"),
        (np.float32, [("x", np.float32)]),
        (np.float32, object),
        (np.float32, "U1"),
    ],
)
def test_another_dtype_is_refused_even_of_the_same_size(
    make_stream: MakeStream, example: Any, value: Any
) -> None:
    example, value = np.zeros(3, example), np.zeros(3, value)
    message = refusal(make_stream, example, value)
    expected = example.dtype.str[1:] if example.dtype.kind == "S" else example.dtype.name
    assert message.startswith(f"leaf `leaf`: expected {expected}[3], got ")
    assert message.endswith("[3]")


def test_variable_strings_in_a_sample_are_refused_by_name(make_stream: MakeStream) -> None:
    if not hasattr(np.dtypes, "StringDType"):
        pytest.skip("numpy 2 has such strings")
    value = np.array(["a", "b"], np.dtypes.StringDType())
    message = refusal(make_stream, np.zeros(2, np.float32), value)
    assert message.startswith("leaf `leaf`: expected float32[2], got ")


@pytest.mark.parametrize(
    ("example", "value"),
    [((2, 3), (3, 2)), ((6,), (2, 3)), ((2, 3), (6,)), ((1,), ()), ((), (1,)), ((3,), (1, 3))],
)
def test_another_shape_is_refused_even_of_the_same_size(
    make_stream: MakeStream, example: tuple[int, ...], value: tuple[int, ...]
) -> None:
    message = refusal(make_stream, np.zeros(example), np.zeros(value))
    assert message == f"leaf `leaf`: expected float64{list(example)}, got float64{list(value)}"


@pytest.mark.parametrize("size", [0, 3, 5, 4096, 1_000_000])
def test_a_leaf_of_another_size_is_refused(make_stream: MakeStream, size: int) -> None:
    message = refusal(make_stream, np.zeros(4, np.float32), np.zeros(size, np.float32))
    assert message == f"leaf `leaf`: expected float32[4], got float32[{size}]"


# Arrays that need a conversion.

BASE = np.arange(24, dtype=np.float32)


@pytest.mark.parametrize(
    "value",
    [
        BASE.reshape(6, 4).T,
        BASE.reshape(4, 6).copy(order="F"),
        np.arange(48, dtype=np.float32).reshape(4, 12)[:, ::2],
        BASE.reshape(4, 6)[::-1, ::-1],
        np.broadcast_to(np.arange(6, dtype=np.float32), (4, 6)),
        np.lib.stride_tricks.as_strided(BASE, (4, 6), (4, 4)),
        BASE.reshape(4, 6).astype(">f4"),
        BASE.reshape(6, 4).astype(">f4").T,
        np.frombuffer(b"x" + BASE.tobytes(), np.float32, offset=1).reshape(4, 6),
    ],
    ids=[
        "transposed",
        "fortran",
        "strided",
        "reversed",
        "broadcast",
        "overlapping",
        "byte-swapped",
        "byte-swapped transposed",
        "unaligned",
    ],
)
def test_the_values_of_an_array_count_and_not_its_layout(
    make_stream: MakeStream, value: np.ndarray
) -> None:
    got = stored(make_stream, np.zeros((4, 6), np.float32), value)
    assert got.dtype == np.dtype("=f4")
    np.testing.assert_array_equal(got[0], value)


def test_a_byte_swapped_scalar_array_is_converted(make_stream: MakeStream) -> None:
    assert stored(make_stream, 0, np.array(258, ">i8")).tolist() == [258]


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_byte_swapped_example_gives_native_batches(make_stream: MakeStream, order: str) -> None:
    stream = make_stream(np.zeros(2, f"{order}u4"), batch_size=2)
    stream.add(np.array([1, 2], ">u4"))
    stream.add(np.array([3, 4], "<u4"))
    batch = stream.sample(timeout=0).data
    assert batch.dtype.isnative
    assert batch.tolist() == [[1, 2], [3, 4]]


def test_read_only_arrays_are_taken_and_the_batch_is_writable(make_stream: MakeStream) -> None:
    value = np.arange(3)
    value.flags.writeable = False
    got = stored(make_stream, np.zeros(3, np.int64), value)
    assert got.tolist() == [[0, 1, 2]]
    assert got.flags.writeable


def test_a_subclass_of_ndarray_is_an_array_and_comes_back_as_a_plain_one(
    make_stream: MakeStream,
) -> None:
    class Mine(np.ndarray):
        pass

    got = stored(make_stream, np.zeros(3), np.arange(3.0).view(Mine))
    assert type(got) is np.ndarray
    assert got.tolist() == [[0, 1, 2]]
    mapped = np.arange(3.0).view(np.recarray)
    assert stored(make_stream, np.zeros(3).view(Mine), mapped).tolist() == [[0, 1, 2]]


# What a mask hides is arbitrary, and a batch has no place for the mask.
@pytest.mark.parametrize("mask", [[False, True, False], False])
def test_masked_arrays_are_refused_with_advice(make_stream: MakeStream, mask: Any) -> None:
    masked = np.ma.masked_array(np.arange(3.0), mask=mask)
    assert "filled" in refusal(make_stream, np.zeros(3), masked)
    with pytest.raises(echoic.errors.SpecError, match="filled"):
        make_stream({"leaf": masked})


# Scalars.


@pytest.mark.parametrize(
    "scalar",
    [
        *(np.bool_(1), np.int8(-5), np.uint64(2**63), np.float16(0.5), np.float32(1.1)),
        *(np.float64(1.1), np.complex64(1 + 2j), np.bytes_(b"abc"), ml_dtypes.bfloat16(1.5)),
    ],
    ids=lambda scalar: type(scalar).__name__,
)
def test_numpy_scalars_are_leaves_of_their_dtype(make_stream: MakeStream, scalar: Any) -> None:
    example = np.zeros((), np.asarray(scalar).dtype)
    got = stored(make_stream, example, scalar)
    assert (got.dtype, got.shape) == (example.dtype, (1,))
    assert got.tobytes() == np.asarray(scalar).tobytes()
    assert make_stream(scalar).spec.leaves == make_stream(example).spec.leaves


@pytest.mark.parametrize(
    ("example", "scalar"),
    [
        (np.float32(0), np.float64(1)),
        (np.float64(0), np.float32(1)),
        (np.int64(0), np.int32(1)),
        (np.int64(0), np.bool_(1)),
        (np.bool_(0), np.int8(1)),
        (np.float32(0), np.int32(1)),
    ],
    ids=lambda scalar: type(scalar).__name__,
)
def test_numpy_scalars_of_another_dtype_are_refused(
    make_stream: MakeStream, example: Any, scalar: Any
) -> None:
    message = refusal(make_stream, example, scalar)
    assert message == f"leaf `leaf`: expected {example.dtype}[], got {scalar.dtype}[]"


INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_python_int_fits_any_int_dtype_that_holds_it(make_stream: MakeStream, dtype: str) -> None:
    limits = np.iinfo(dtype)
    example = np.zeros((), dtype)
    for value in (int(limits.min), 0, 1, 7, int(limits.max)):
        assert stored(make_stream, example, value).tolist() == [value]
    for value in (int(limits.min) - 1, int(limits.max) + 1, 2**64, -(2**63) - 1, 10**30):
        message = refusal(make_stream, example, value)
        assert message == f"leaf `leaf`: expected {dtype}[], got the int {value}"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ml_dtypes.bfloat16])
@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, 1.1, -3.3, float("inf"), float("nan")])
def test_a_python_float_fits_any_float_dtype(
    make_stream: MakeStream, dtype: Any, value: float
) -> None:
    got = stored(make_stream, np.zeros((), dtype), value)
    assert got.tobytes() == np.array(value, dtype).tobytes()


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("value", [1.5, 1 + 2j])
def test_a_complex_leaf_takes_python_floats_and_complex(
    make_stream: MakeStream, dtype: str, value: complex
) -> None:
    assert stored(make_stream, np.zeros((), dtype), value).tolist() == [value]


def test_a_python_bool_fits_bool(make_stream: MakeStream) -> None:
    assert stored(make_stream, np.bool_(0), True).tolist() == [True]
    assert stored(make_stream, np.bool_(1), False).tolist() == [False]


@pytest.mark.parametrize(
    ("example", "value", "message"),
    [
        (np.int32(0), True, "expected int32[], got the bool True"),
        (np.float32(0), True, "expected float32[], got the bool True"),
        (np.bool_(0), 1, "expected bool[], got the int 1"),
        (np.bool_(0), 1.0, "expected bool[], got the float 1.0"),
        (np.int32(0), 1.0, "expected int32[], got the float 1.0"),
        (np.float32(0), 1, "expected float32[], got the int 1"),
        (np.complex64(0), 1, "expected complex64[], got the int 1"),
        (np.float32(0), 1j, "expected float32[], got the complex 1j"),
        (np.bytes_(b"a"), 1, "expected S1[], got the int 1"),
        (np.zeros(1, np.float32), 1.0, "expected float32[1], got the float 1.0"),
        (np.zeros((1, 1), np.int8), 1, "expected int8[1, 1], got the int 1"),
    ],
)
def test_a_python_number_of_another_kind_or_shape_is_refused(
    make_stream: MakeStream, example: Any, value: Any, message: str
) -> None:
    assert refusal(make_stream, example, value) == f"leaf `leaf`: {message}"


@pytest.mark.parametrize(
    ("value", "dtype"), [(True, "bool"), (3, "int64"), (1.5, "float64"), (1j, "complex128")]
)
def test_python_numbers_in_an_example_have_numpys_default_dtype(
    make_stream: MakeStream, value: Any, dtype: str
) -> None:
    (leaf,) = make_stream(value).spec.leaves
    assert (leaf.path, leaf.dtype, leaf.shape) == ("", dtype, ())


def test_subclasses_of_int_are_not_taken_for_another_width(make_stream: MakeStream) -> None:
    class Action(enum.IntEnum):
        LEFT = 1

    assert stored(make_stream, np.int64(0), Action.LEFT).tolist() == [1]


# Bytes.


@pytest.mark.parametrize("value", [b"", b"a", b"abcde", np.bytes_(b"abc")])
def test_bytes_up_to_the_width_are_zero_padded(make_stream: MakeStream, value: bytes) -> None:
    got = stored(make_stream, np.zeros((), "S5"), value)
    assert got.tobytes() == bytes(value).ljust(5, b"\0")


def test_bytes_past_the_width_are_refused(make_stream: MakeStream) -> None:
    message = refusal(make_stream, np.zeros((), "S3"), b"abcd")
    assert message == "leaf `leaf`: expected at most 3 bytes, got 4"


# Buffers and protocols.


@pytest.mark.parametrize(
    ("example", "value"),
    [
        (np.zeros(3, np.uint8), bytearray(b"\1\2\3")),
        (np.zeros(3, np.uint8), memoryview(b"\1\2\3")),
        (np.zeros(3, np.float32), array.array("f", [1, 2, 3])),
        (np.zeros(3, np.int16), array.array("h", [1, 2, 3])),
        (np.zeros(3), memoryview(np.arange(1.0, 7.0))[::2]),
        (np.zeros((1, 3), np.uint8), memoryview(b"\1\2\3").cast("B", (1, 3))),
    ],
    ids=["bytearray", "memoryview", "array of floats", "array of shorts", "strided", "2-d"],
)
def test_buffers_are_leaves(make_stream: MakeStream, example: Any, value: Any) -> None:
    got = stored(make_stream, example, value)
    np.testing.assert_array_equal(got[0], np.asarray(value))


def test_a_buffer_is_free_again_after_submit(make_stream: MakeStream) -> None:
    stream = make_stream(np.zeros(3, np.uint8), batch_size=1)
    value = bytearray(b"\1\2\3")
    stream.add(value)
    # Raises BufferError while anybody exports it.
    value.append(4)
    assert stream.sample(timeout=0).data.tolist() == [[1, 2, 3]]


class WithArray:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value


class WithDlpack:
    """Has nothing but DLPack."""

    def __init__(self, value: np.ndarray) -> None:
        self.value = value

    def __dlpack__(self, **options: Any) -> Any:
        return self.value.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.value.__dlpack_device__()


@pytest.mark.parametrize("wrap", [WithArray, WithDlpack])
def test_objects_that_can_be_arrays_are_leaves(
    make_stream: MakeStream, wrap: Callable[[np.ndarray], Any]
) -> None:
    example = np.zeros(3, np.float32)
    got = stored(make_stream, example, wrap(np.arange(3, dtype=np.float32)))
    assert got.tolist() == [[0, 1, 2]]
    assert stored(make_stream, wrap(example), example).shape == (1, 3)
    message = refusal(make_stream, example, wrap(np.arange(3, dtype=np.int32)))
    assert message == "leaf `leaf`: expected float32[3], got int32[3]"


@pytest.mark.parametrize("error", [OSError("no signal"), ValueError("bad")])
def test_an_object_that_fails_to_be_an_array_is_named_with_the_cause(
    make_stream: MakeStream, error: Exception
) -> None:
    stream = make_stream({"a": 0, "b": {"c": np.zeros(2)}}, batch_size=1)
    with pytest.raises(
        echoic.errors.SpecError, match="leaf `b/c`: a WithArray can't be read"
    ) as caught:
        stream.add({"a": 1, "b": {"c": WithArray(error)}})
    assert caught.value.__cause__ is error
    assert (stream.stats().inserted_total, stream.stats().refused) == (0, 1)
    stream.add({"a": 2, "b": {"c": np.ones(2)}})
    batch = stream.sample(timeout=0).data
    assert (batch["a"].tolist(), batch["b"]["c"].tolist()) == ([2], [[1, 1]])


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_a_program_is_not_taken_for_a_bad_leaf(
    make_stream: MakeStream, error: type[BaseException]
) -> None:
    stream = make_stream({"a": np.zeros(2)})
    with pytest.raises(error):
        stream.add({"a": WithArray(error())})
    with pytest.raises(error):
        make_stream({"a": WithArray(error())})
    assert stream.stats().inserted_total == 0


def test_a_leaf_may_submit_by_itself_while_it_is_read(make_stream: MakeStream) -> None:
    stream = make_stream({"a": 0, "b": 0}, batch_size=2)

    class Nested:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            stream.add({"a": 1, "b": 2})
            return np.array(4)

    stream.add({"a": 3, "b": Nested()})
    batch = stream.sample(timeout=0).data
    assert (batch["a"].tolist(), batch["b"].tolist()) == ([1, 3], [2, 4])


def test_a_leaf_may_change_the_tree_while_it_is_read(make_stream: MakeStream) -> None:
    tree: dict[str, Any] = {}
    stream = make_stream({"a": [0, 0], "b": 0}, batch_size=1)

    class Clearing:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            tree["a"].clear()
            tree.clear()
            return np.array(1)

    tree |= {"a": [Clearing(), 2], "b": 3}
    with pytest.raises(echoic.errors.SpecError):
        stream.add(tree)
    assert stream.stats().inserted_total == 0
    stream.add({"a": [4, 5], "b": 6})
    assert stream.sample(timeout=0).data["b"].tolist() == [6]


# What is refused with advice.


@pytest.mark.parametrize(
    "value",
    [
        np.array([object()]),
        np.array(["a", 1], object),
        object(),
        {1, 2},
        2**70,
        np.array(["abc"]),
        np.str_("abc"),
        "abc",
        *([np.array(["a"], np.dtypes.StringDType())] if hasattr(np.dtypes, "StringDType") else []),
    ],
    # Not their text, in which an address is: every run has the same names.
    ids=lambda value: type(value).__name__,
)
def test_objects_and_text_in_an_example_are_refused_with_advice(
    make_stream: MakeStream, value: Any
) -> None:
    with pytest.raises(echoic.errors.SpecError, match=r"leaf `x/1` of the example: .*'S32'"):
        make_stream({"x": [0, value]})


@pytest.mark.parametrize(
    "dtype", ["M8[s]", "m8[s]", "V4", [("a", "f4")], np.longdouble, ml_dtypes.float8_e4m3fn]
)
def test_dtypes_that_are_not_supported_say_what_is(make_stream: MakeStream, dtype: Any) -> None:
    with pytest.raises(
        echoic.errors.SpecError, match=r"leaf `x` of the example: .*not supported; use"
    ):
        make_stream({"x": np.zeros(2, dtype)})


# A list is a node in an example, so in a sample it must not pass for an array.
@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_a_list_of_numbers_is_no_leaf(make_stream: MakeStream, dtype: type) -> None:
    message = refusal(make_stream, np.zeros(3, dtype), np.arange(3, dtype=dtype).tolist())
    assert message.endswith("got a list")


@pytest.mark.parametrize("value", ["abc", object(), {1, 2}, Ellipsis, np.array([None])])
def test_nonsense_is_refused_and_named(make_stream: MakeStream, value: Any) -> None:
    assert refusal(make_stream, np.zeros(3), value).startswith(
        "leaf `leaf`: expected float64[3], got "
    )


def test_nothing_warns_while_leaves_are_converted(make_stream: MakeStream) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stored(make_stream, np.zeros(3), WithDlpack(np.arange(3.0)))
        stored(make_stream, np.zeros(3), WithArray(np.arange(3.0)))
        stored(make_stream, np.zeros(3), np.arange(3.0).astype(">f8"))
