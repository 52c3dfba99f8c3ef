"""Trees of all kinds go in and come out alike; a sample of another structure names its mistake."""

from __future__ import annotations

import collections
import dataclasses
import typing
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import echoic
import numpy as np
import optree
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.timeout(60)

MakeStream = Callable[..., echoic.Stream]

F4 = np.zeros(4, np.float32)

Pair = collections.namedtuple("Pair", "first second")


class Typed(typing.NamedTuple):
    obs: Any
    reward: Any


@dataclasses.dataclass
class Step:
    obs: Any
    reward: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    obs: Any
    reward: Any


@dataclasses.dataclass
class Derived:
    obs: Any
    norm: Any = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.norm = np.float32(-1)


@dataclasses.dataclass(frozen=True)
class FrozenDerived:
    obs: Any
    norm: Any = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "norm", np.float32(-1))


@dataclasses.dataclass(kw_only=True, slots=True)
class Slotted:
    obs: Any
    reward: Any


class Box:
    """A node that only optree knows."""

    def __init__(self, left: Any, right: Any, label: str = "box") -> None:
        self.left, self.right, self.label = left, right, label

    def __repr__(self) -> str:
        return f"Box({self.left!r}, {self.right!r}, {self.label!r})"


optree.register_pytree_node(
    Box,
    lambda box: ((box.left, box.right), box.label, ("left", "right")),
    lambda label, children: Box(*children, label),
    namespace=optree.registry.__GLOBAL_NAMESPACE,
)


def round_trip(make_stream: MakeStream, example: Any, samples: list[Any]) -> Any:
    """The batch of exactly these samples."""
    stream = make_stream(example, batch_size=len(samples), capacity=2 * len(samples))
    for sample in samples:
        stream.add(sample)
    return stream.sample(timeout=0).data


def obs(step: int) -> np.ndarray:
    return np.full(4, step, np.float32)


# Containers.


def test_a_dict_comes_back_as_a_dict(make_stream: MakeStream) -> None:
    batch = round_trip(make_stream, {"a": F4}, [{"a": obs(1)}, {"a": obs(2)}])
    assert type(batch) is dict
    assert batch["a"].tolist() == [[1] * 4, [2] * 4]


def test_a_tuple_comes_back_as_a_tuple(make_stream: MakeStream) -> None:
    batch = round_trip(make_stream, (F4, 0), [(obs(1), 5), (obs(2), 6)])
    assert type(batch) is tuple
    assert (batch[0][:, 0].tolist(), batch[1].tolist()) == ([1, 2], [5, 6])


def test_a_list_comes_back_as_a_list(make_stream: MakeStream) -> None:
    batch = round_trip(make_stream, [F4, 0], [[obs(1), 5], [obs(2), 6]])
    assert type(batch) is list
    assert (batch[0][:, 0].tolist(), batch[1].tolist()) == ([1, 2], [5, 6])


@pytest.mark.parametrize("kind", [Pair, Typed])
def test_a_namedtuple_comes_back_as_its_own_class(make_stream: MakeStream, kind: Any) -> None:
    batch = round_trip(make_stream, kind(F4, 0), [kind(obs(1), 5), kind(obs(2), 6)])
    assert type(batch) is kind
    assert batch._fields == kind._fields
    assert (batch[0][:, 0].tolist(), batch[1].tolist()) == ([1, 2], [5, 6])


@pytest.mark.parametrize("kind", [Step, Frozen, Slotted])
def test_a_dataclass_comes_back_as_its_own_class(make_stream: MakeStream, kind: Any) -> None:
    samples = [kind(obs=obs(1), reward=5), kind(obs=obs(2), reward=6)]
    batch = round_trip(make_stream, kind(obs=F4, reward=0), samples)
    assert type(batch) is kind
    assert (batch.obs[:, 0].tolist(), batch.reward.tolist()) == ([1, 2], [5, 6])


@pytest.mark.parametrize("kind", [Derived, FrozenDerived])
def test_fields_that_no_constructor_takes_are_stored_too(
    make_stream: MakeStream, kind: Any
) -> None:
    samples = [kind(obs(1)), kind(obs(2))]
    object.__setattr__(samples[1], "norm", np.float32(7))
    batch = round_trip(make_stream, kind(F4), samples)
    assert type(batch) is kind
    assert batch.norm.tolist() == [-1, 7]
    assert batch.obs[:, 0].tolist() == [1, 2]


def test_an_ordered_dict_comes_back_as_one_in_its_order(make_stream: MakeStream) -> None:
    samples = [OrderedDict(b=obs(1), a=5), OrderedDict(b=obs(2), a=6)]
    batch = round_trip(make_stream, OrderedDict(b=F4, a=0), samples)
    assert type(batch) is OrderedDict
    assert list(batch) == ["b", "a"]
    assert batch["a"].tolist() == [5, 6]


def test_a_defaultdict_and_a_deque_come_back_as_such(make_stream: MakeStream) -> None:
    def sample(step: int) -> Any:
        return collections.deque([collections.defaultdict(list, a=step), step])

    batch = round_trip(make_stream, sample(0), [sample(1), sample(2)])
    assert type(batch) is collections.deque
    assert type(batch[0]) is collections.defaultdict
    assert batch[0].default_factory is list
    assert (batch[0]["a"].tolist(), batch[1].tolist()) == ([1, 2], [1, 2])


def test_a_node_registered_with_optree_comes_back_with_its_metadata(
    make_stream: MakeStream,
) -> None:
    example = Box(F4, {"x": 0}, "mine")
    samples = [Box(obs(1), {"x": 5}, "mine"), Box(obs(2), {"x": 6}, "mine")]
    stream = make_stream(example, batch_size=2)
    assert [leaf.path for leaf in stream.spec.leaves] == ["left", "right/x"]
    for sample in samples:
        stream.add(sample)
    batch = stream.sample(timeout=0).data
    assert (type(batch), batch.label) == (Box, "mine")
    assert (batch.left[:, 0].tolist(), batch.right["x"].tolist()) == ([1, 2], [5, 6])


def test_none_is_a_node_without_leaves(make_stream: MakeStream) -> None:
    batch = round_trip(make_stream, {"a": 0, "b": None}, [{"a": 1, "b": None}])
    assert batch["a"].tolist() == [1]
    assert batch["b"] is None


@pytest.mark.parametrize("empty", [{}, (), []])
def test_empty_containers_beside_leaves_come_back(make_stream: MakeStream, empty: Any) -> None:
    batch = round_trip(make_stream, (0, empty), [(1, empty)])
    assert batch[0].tolist() == [1]
    assert batch[1] == empty
    assert type(batch[1]) is type(empty)


def test_a_sample_may_be_a_single_leaf(make_stream: MakeStream) -> None:
    batch = round_trip(make_stream, F4, [obs(1), obs(2)])
    assert type(batch) is np.ndarray
    assert batch.tolist() == [[1] * 4, [2] * 4]


def test_nested_containers_of_all_kinds(make_stream: MakeStream) -> None:
    def sample(step: int) -> Any:
        return {
            "pair": Pair([step, (obs(step),)], {"deep": Step(step + 1, None)}),
            "box": Box(OrderedDict(z=step + 2), (Frozen(step + 3, [step + 4]),)),
        }

    batch = round_trip(make_stream, sample(0), [sample(10), sample(20)])
    assert batch["pair"].first[0].tolist() == [10, 20]
    assert batch["pair"].first[1][0][:, 0].tolist() == [10, 20]
    assert batch["pair"].second["deep"].obs.tolist() == [11, 21]
    assert batch["pair"].second["deep"].reward is None
    assert batch["box"].left["z"].tolist() == [12, 22]
    assert batch["box"].right[0].obs.tolist() == [13, 23]
    assert batch["box"].right[0].reward[0].tolist() == [14, 24]


def test_the_same_array_may_stand_in_several_places(make_stream: MakeStream) -> None:
    shared = obs(3)
    batch = round_trip(make_stream, {"a": F4, "b": F4}, [{"a": shared, "b": shared}])
    assert batch["a"].tolist() == batch["b"].tolist() == [[3] * 4]


def test_extend_takes_the_same_trees(make_stream: MakeStream) -> None:
    stream = make_stream(Pair(Step(F4, 0), [0]), batch_size=2)
    stream.extend(Pair(Step(np.ones((2, 4), np.float32), np.arange(2)), [np.arange(2)]))
    batch = stream.sample(timeout=0).data
    assert (type(batch), type(batch.first)) == (Pair, Step)
    assert batch.first.reward.tolist() == batch.second[0].tolist() == [0, 1]


# Keys.


def test_batches_have_the_key_order_of_the_example_and_the_spec_is_sorted(
    make_stream: MakeStream,
) -> None:
    stream = make_stream({"b": 0, "c": 0, "a": 0}, batch_size=1)
    stream.add({"c": 3, "a": 1, "b": 2})
    batch = stream.sample(timeout=0).data
    assert {name: leaf.tolist() for name, leaf in batch.items()} == {"b": [2], "c": [3], "a": [1]}
    assert list(batch) == ["b", "c", "a"]
    assert [leaf.path for leaf in stream.spec.leaves] == ["a", "b", "c"]


def test_examples_that_differ_in_key_order_only_have_one_spec(make_stream: MakeStream) -> None:
    specs = [make_stream(example).spec for example in ({"a": 0, "b": 0.0}, {"b": 0.0, "a": 0})]
    assert specs[0].leaves == specs[1].leaves


def test_keys_need_not_be_strings(make_stream: MakeStream) -> None:
    example = {2: 0, "one": 0, (3, 4): 0, None: 0}
    batch = round_trip(make_stream, example, [{2: 1, "one": 2, (3, 4): 3, None: 4}])
    assert {key: leaf.tolist() for key, leaf in batch.items()} == {
        2: [1],
        "one": [2],
        (3, 4): [3],
        None: [4],
    }


def test_a_slash_in_a_key_does_not_make_two_paths_one(make_stream: MakeStream) -> None:
    stream = make_stream({"a/b": 0, "a": {"b": 0.0}, "a~b": True})
    paths = {leaf.path: leaf.dtype for leaf in stream.spec.leaves}
    assert paths == {"a~1b": "int64", "a/b": "float64", "a~0b": "bool"}


def test_any_mapping_that_is_a_dict_is_taken_for_a_dict(make_stream: MakeStream) -> None:
    batch = round_trip(make_stream, {"a": 0, "b": 0}, [OrderedDict(b=2, a=1)])
    assert (batch["a"].tolist(), batch["b"].tolist()) == ([1], [2])


# The example.


@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")
def test_changing_the_example_later_has_no_influence(make_stream: MakeStream) -> None:
    example: dict[str, Any] = {"a": np.zeros(4, np.float32), "b": [0, 0], "c": OrderedDict(x=0)}
    stream = make_stream(example, batch_size=1)
    example["a"][...] = 9
    example["a"].shape = (2, 2)
    example["b"].append(0)
    example["c"]["y"] = 0
    example["d"] = 0
    stream.add({"a": obs(1), "b": [2, 3], "c": OrderedDict(x=4)})
    batch = stream.sample(timeout=0).data
    assert list(batch) == ["a", "b", "c"]
    assert batch["a"].tolist() == [[1] * 4]
    assert [leaf.tolist() for leaf in batch["b"]] == [[2], [3]]
    assert {key: leaf.tolist() for key, leaf in batch["c"].items()} == {"x": [4]}


def test_changing_a_batch_has_no_influence_on_the_next(make_stream: MakeStream) -> None:
    stream = make_stream({"a": 0, "b": [0]}, batch_size=1)
    stream.add({"a": 1, "b": [2]})
    first = stream.sample(timeout=0).data
    first.clear()
    stream.add({"a": 3, "b": [4]})
    second = stream.sample(timeout=0).data
    assert (second["a"].tolist(), second["b"][0].tolist()) == ([3], [4])


def nested(depth: int) -> Any:
    tree: Any = 0
    for _ in range(depth):
        tree = [tree]
    return tree


def test_examples_are_nested_up_to_a_limit(make_stream: MakeStream) -> None:
    batch = round_trip(make_stream, nested(64), [nested(64)])
    for _ in range(64):
        (batch,) = batch
    assert batch.tolist() == [0]
    for depth in (65, 5000):
        with pytest.raises(echoic.errors.SpecError, match="nested deeper than 64 levels"):
            make_stream(nested(depth))


@pytest.mark.parametrize("kind", ["list", "dict", "dataclass"])
def test_an_example_that_contains_itself_is_refused(make_stream: MakeStream, kind: str) -> None:
    cycle: Any = {"list": [], "dict": {}, "dataclass": Step(0, 0)}[kind]
    if kind == "list":
        cycle += [cycle, cycle]
    elif kind == "dict":
        cycle["self"] = cycle
    else:
        cycle.obs = cycle
    with pytest.raises(echoic.errors.SpecError, match="nested deeper than 64 levels"):
        make_stream(cycle)


@pytest.mark.parametrize("example", [{}, [], None, {"a": None, "b": ((), {})}])
def test_an_example_without_leaves_is_refused(make_stream: MakeStream, example: Any) -> None:
    with pytest.raises(echoic.errors.SpecError) as caught:
        make_stream(example)
    assert str(caught.value) == "the example has no leaves: there is nothing to store"


def test_two_leaves_with_one_path_are_refused(make_stream: MakeStream) -> None:
    with pytest.raises(echoic.errors.SpecError) as caught:
        make_stream({1: 0, "1": 0})
    assert str(caught.value) == "two leaves of the example have the path `1`"


# Samples of another structure.

MISTAKES = [
    ({"a": F4}, F4, "node `(root)`: expected a dict, got a ndarray"),
    ({"a": F4}, None, "node `(root)`: expected a dict, got a NoneType"),
    ({"a": F4}, [("a", F4)], "node `(root)`: expected a dict, got a list"),
    (
        {"a": F4, "b": F4},
        {"a": F4},
        "node `(root)`: the keys differ from the example's: missing 'b'",
    ),
    (
        {"a": F4},
        {"a": F4, "b": F4, 3: F4},
        "node `(root)`: the keys differ from the example's: unexpected 'b', 3",
    ),
    (
        {"n": [{"a": F4, "b": F4}]},
        {"n": [{"a": F4, "c": F4}]},
        "node `n/0`: the keys differ from the example's: missing 'b'; unexpected 'c'",
    ),
    ({"n": (F4, F4)}, {"n": (F4,)}, "node `n`: expected 2 children, got a tuple of 1"),
    ({"n": (F4, F4)}, {"n": (F4, F4, F4)}, "node `n`: expected 2 children, got a tuple of 3"),
    ({"n": [F4, F4]}, {"n": []}, "node `n`: expected 2 children, got a list of 0"),
    ({"n": [], "a": F4}, {"n": [F4], "a": F4}, "node `n`: expected 0 children, got a list of 1"),
    ({"n": (F4, F4)}, {"n": [F4, F4]}, "node `n`: expected a tuple, got a list"),
    ({"n": [F4, F4]}, {"n": (F4, F4)}, "node `n`: expected a list, got a tuple"),
    ({"n": (F4, F4)}, {"n": Pair(F4, F4)}, "node `n`: expected a tuple, got a Pair"),
    ({"n": Pair(F4, F4)}, {"n": (F4, F4)}, "node `n`: expected a Pair, got a tuple"),
    ({"n": Pair(F4, F4)}, {"n": Typed(F4, F4)}, "node `n`: expected a Pair, got a Typed"),
    ({"n": Step(F4, F4)}, {"n": Frozen(F4, F4)}, "node `n`: expected a Step, got a Frozen"),
    ({"n": Step(F4, F4)}, {"n": {"obs": F4}}, "node `n`: expected a Step, got a dict"),
    ({"n": Box(F4, F4)}, {"n": Pair(F4, F4)}, "node `n`: expected a Box, got a Pair"),
    ([F4, None], [F4, F4], "node `1`: expected None, got a ndarray"),
    # Paths name fields and entries as the spec does.
    (
        {"n": Pair(F4, (F4, F4))},
        {"n": Pair(F4, (F4,))},
        "node `n/second`: expected 2 children, got a tuple of 1",
    ),
    (
        {"n": Step(F4, (F4, F4))},
        {"n": Step(F4, (F4,))},
        "node `n/reward`: expected 2 children, got a tuple of 1",
    ),
    (
        {"n": Box(F4, (F4, F4))},
        {"n": Box(F4, (F4,))},
        "node `n/right`: expected 2 children, got a tuple of 1",
    ),
    (
        OrderedDict(b=F4, a=(F4, F4)),
        OrderedDict(b=F4, a=(F4,)),
        "node `a`: expected 2 children, got a tuple of 1",
    ),
    (
        {"x/y": {"z": [F4]}},
        {"x/y": {"z": [F4, F4]}},
        "node `x~1y/z`: expected 1 children, got a list of 2",
    ),
    # Another structure where a leaf should be.
    ({"a": F4}, {"a": None}, "leaf `a`: expected float32[4], got a NoneType"),
    ({"a": F4}, {"a": {"b": F4}}, "leaf `a`: expected float32[4], got a dict"),
    ({"a": F4}, {"a": (F4,)}, "leaf `a`: expected float32[4], got a tuple"),
    # Equal sizes in all, other shapes of each.
    (
        {"a": np.zeros(2), "b": np.zeros(3)},
        {"a": np.zeros(3), "b": np.zeros(2)},
        "leaf `a`: expected float64[2], got float64[3]",
    ),
]


@pytest.mark.parametrize(("example", "sample", "message"), MISTAKES)
def test_a_structural_mistake_is_named_and_nothing_is_stored(
    make_stream: MakeStream, example: Any, sample: Any, message: str
) -> None:
    stream = make_stream(example, batch_size=1)
    with pytest.raises(echoic.errors.SpecError) as caught:
        stream.add(sample)
    assert str(caught.value) == message
    assert (stream.stats().inserted_total, stream.stats().refused) == (0, 1)
    stream.add(example)
    assert stream.sample(timeout=0).info.sequence == 0


def test_other_metadata_of_a_registered_node_is_refused(make_stream: MakeStream) -> None:
    stream = make_stream({"n": Box(F4, F4, "mine")})
    with pytest.raises(
        echoic.errors.SpecError, match="node `n`: expected a Box like the example's"
    ):
        stream.add({"n": Box(F4, F4, "yours")})


def test_a_dataclass_without_one_of_its_attributes_is_refused(make_stream: MakeStream) -> None:
    stream = make_stream({"n": Step(F4, F4)})
    broken = Step(F4, F4)
    del broken.reward
    with pytest.raises(echoic.errors.SpecError, match=r"`n`.*reward") as caught:
        stream.add({"n": broken})
    assert isinstance(caught.value.__cause__, AttributeError)


def test_mistakes_are_found_before_anything_of_a_sample_is_stored(
    make_stream: MakeStream,
) -> None:
    stream = make_stream({"a": 0, "b": 0, "c": 0}, batch_size=2)
    for position in range(30):
        with pytest.raises(echoic.errors.SpecError):
            stream.add({"a": position, "b": position, "c": "wrong"})
        stream.add({"a": position, "b": position, "c": position})
        if position % 2:
            batch = stream.sample(timeout=0).data
            for leaf in batch.values():
                assert leaf.tolist() == [position - 1, position]
    assert (stream.stats().refused, stream.stats().aborted) == (30, 0)


# Any tree at all.

SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
DTYPES = st.sampled_from(
    "bool i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16 S1 S5".split()  # noqa: SIM905 - reads better
).map(np.dtype)


@st.composite
def leaves(draw: Any) -> np.ndarray:
    dtype, shape = draw(DTYPES), draw(SHAPES)
    return np.zeros(shape, dtype)


def containers(children: st.SearchStrategy) -> st.SearchStrategy:
    keys = st.one_of(st.text(max_size=3), st.integers(0, 5))
    # Keys that print alike would be one path.
    dicts = st.lists(st.tuples(keys, children), max_size=4, unique_by=lambda item: str(item[0]))
    return st.one_of(
        dicts.map(dict),
        dicts.map(OrderedDict),
        st.lists(children, max_size=3),
        st.lists(children, max_size=3).map(tuple),
        st.builds(Pair, children, children),
        st.builds(Step, children, children),
        st.builds(Frozen, children, children),
        st.builds(Box, children, children),
        st.none(),
    )


TREES = st.recursive(leaves(), containers, max_leaves=8)


def map_leaves(tree: Any, function: Callable[[Any], Any]) -> Any:
    """`tree` with its leaves replaced; by hand, so that it is another opinion than the code's."""
    match tree:
        case None:
            return None
        case Pair() | Box() | Step() | Frozen():
            names = {Pair: Pair._fields, Box: ("left", "right")}.get(type(tree), ("obs", "reward"))
            return type(tree)(*(map_leaves(getattr(tree, name), function) for name in names))
        case dict():
            return type(tree)((key, map_leaves(value, function)) for key, value in tree.items())
        case list() | tuple():
            return type(tree)(map_leaves(value, function) for value in tree)
    return function(tree)


def collect_leaves(tree: Any) -> list[Any]:
    found: list[Any] = []
    map_leaves(tree, found.append)
    return found


def random_like(leaf: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    high = 2 if leaf.dtype == bool else 256
    raw = rng.integers(0, high, leaf.nbytes, np.uint8)
    return np.frombuffer(raw.tobytes(), leaf.dtype, leaf.size).reshape(leaf.shape)


@settings(
    max_examples=150,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(tree=TREES, batch_size=st.integers(1, 3), seed=st.integers(0, 2**32 - 1))
def test_any_tree_of_any_leaves_comes_back_bit_for_bit(
    tree: Any, batch_size: int, seed: int
) -> None:
    if not collect_leaves(tree):
        with pytest.raises(echoic.errors.SpecError, match="no leaves"):
            echoic.Stream(tree, batch_size=batch_size)
        return
    rng = np.random.default_rng(seed)
    stream = echoic.Stream(tree, batch_size=batch_size, capacity=2 * batch_size)
    for _ in range(3):
        samples = [map_leaves(tree, lambda leaf: random_like(leaf, rng)) for _ in range(batch_size)]
        for sample in samples:
            stream.add(sample)
        batch = stream.sample(timeout=0).data
        got = collect_leaves(batch)
        expected = [collect_leaves(sample) for sample in samples]
        assert len(got) == len(expected[0])
        for index, leaf in enumerate(got):
            rows = [sample[index] for sample in expected]
            assert leaf.dtype == rows[0].dtype
            assert leaf.shape == (batch_size, *rows[0].shape)
            assert leaf.tobytes() == b"".join(row.tobytes() for row in rows)
        # The same containers around them.
        assert repr(map_leaves(batch, lambda _: 0)) == repr(map_leaves(tree, lambda _: 0))
