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

MakeServer = Callable[..., echoic.Server]

F4 = np.zeros(4, np.float32)

Pair = collections.namedtuple("Pair", "first second")  # noqa: PYI024 - as users have them


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


optree.register_pytree_node(
    Box,
    lambda box: ((box.left, box.right), box.label, ("left", "right")),
    lambda label, children: Box(*children, label),
    namespace="",
) if False else optree.register_pytree_node(
    Box,
    lambda box: ((box.left, box.right), box.label, ("left", "right")),
    lambda label, children: Box(*children, label),
    namespace=optree.registry.__dict__["__GLOBAL_NAMESPACE"],
)
