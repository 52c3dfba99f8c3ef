"""Structures are walked and rebuilt as dm-tree does it."""

import collections
from typing import NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
import tree
from echoic.reverb import _nest
from hypothesis import given, settings


class Pair(NamedTuple):
    second: object
    first: object


LEAVES = st.one_of(
    st.none(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.booleans(),
)
KEYS = st.text(alphabet="abcxyz", max_size=2)


def ordered(items):
    return collections.OrderedDict(items)


def with_default(items):
    return collections.defaultdict(list, items)


NESTS = st.recursive(
    LEAVES,
    lambda children: st.one_of(
        st.lists(children, max_size=4),
        st.lists(children, max_size=4).map(tuple),
        st.dictionaries(KEYS, children, max_size=4),
        st.dictionaries(st.integers(), children, max_size=3),
        st.lists(st.tuples(KEYS, children), max_size=3, unique_by=lambda pair: pair[0]).map(
            ordered
        ),
        st.dictionaries(KEYS, children, max_size=3).map(with_default),
        st.tuples(children, children).map(lambda pair: Pair(*pair)),
    ),
    max_leaves=12,
)


@given(NESTS)
@settings(deadline=None)
def test_leaves_and_paths_come_in_its_order(nest):
    assert _nest.flatten(nest) == tree.flatten(nest)
    assert _nest.flatten_with_path(nest) == tree.flatten_with_path(nest)
    assert _nest.is_nested(nest) == tree.is_nested(nest)


@given(NESTS)
@settings(deadline=None)
def test_a_rebuilt_structure_is_the_same(nest):
    numbers = list(range(len(tree.flatten(nest))))
    ours, theirs = _nest.unflatten_as(nest, numbers), tree.unflatten_as(nest, numbers)
    assert ours == theirs
    assert type(ours) is type(theirs)
    # The order of keys is kept.
    assert repr(ours) == repr(theirs)


@given(NESTS)
@settings(deadline=None)
def test_functions_are_mapped_over_leaves(nest):
    assert _nest.map_leaves(repr, nest) == tree.map_structure(repr, nest)


def test_other_objects_are_leaves():
    for leaf in (np.zeros(3), np.float32(1), {1, 2}, object(), len, bytearray(b"x")):
        assert len(_nest.flatten(leaf)) == 1
        assert _nest.is_nested(leaf) is False


def test_keys_that_cannot_be_sorted_are_named():
    with pytest.raises(TypeError, match=r"must be sortable, got \['a', 1\]"):
        _nest.flatten({"a": 1, 1: 2})


def test_too_few_or_many_leaves_are_an_error():
    with pytest.raises(ValueError, match="Structure had 2 elements, but flat_sequence had 3"):
        _nest.unflatten_as([1, 2], [1, 2, 3])
