"""Make items from steps by patterns, which are set once and evaluated at every step.

Examples:
    >>> import echoic.reverb as reverb
    >>> from echoic.reverb import structured_writer as sw
    >>> step = {"obs": None, "reward": None}
    >>> pattern = sw.pattern_from_transform(
    ...     step, lambda s: {"obs": s["obs"][-2:], "reward": s["reward"][-1]}
    ... )
    >>> config = sw.create_config(pattern, table="q", conditions=[sw.Condition.step_index() >= 2])
    >>> server = reverb.Server(tables=[reverb.Table.queue("q", max_size=10)])
    >>> client = server.localhost_client()
    >>> writer = client.structured_writer([config])
    >>> for number in range(4):
    ...     writer.append({"obs": number, "reward": number / 10})
    >>> writer.flush()
    >>> [sample.data for sample in client.sample("q", 2, emit_timesteps=False)]
    [[array([1, 2]), array(0.2)], [array([2, 3]), array(0.3)]]
    >>> server.stop()
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from echoic.reverb import _nest, _signature, pybind
from echoic.reverb.cc import patterns_pb2
from echoic.reverb.trajectory_writer import WriterBase, with_path

if TYPE_CHECKING:
    from echoic.reverb import reverb_types

__all__ = [
    "Condition",
    "ConditionProto",
    "Config",
    "Pattern",
    "PatternTransform",
    "ReferenceStep",
    "StructuredWriter",
    "constant_priority_fn",
    "create_config",
    "create_reference_step",
    "infer_signature",
    "pattern_from_transform",
    "td_error",
    "unpack_pattern",
]

Config = patterns_pb2.StructuredWriterConfig
ConditionProto = patterns_pb2.Condition

# A nest of `PatternNode`.
Pattern: TypeAlias = Any
# A nest like the steps; index a leaf to get a `PatternNode`.
ReferenceStep: TypeAlias = Any
PatternTransform: TypeAlias = Callable[[ReferenceStep], Pattern]


class StructuredWriter(WriterBase):
    """Append steps, and make items by patterns; ``client.structured_writer`` makes one."""

    _writer: pybind.StructuredWriter

    def __init__(self, cpp_writer: pybind.StructuredWriter) -> None:
        self._writer = cpp_writer
        self._structure: Any = None
        self._length: int | None = None

    def append(self, data: Any, *, partial_step: bool = False) -> None:
        """Append a step, or a part of one, and make the items that are complete.

        Args:
            data: A nest of the same structure at each step; a leaf that is ``None`` is missing.
            partial_step: Whether the step continues: the next append adds other leaves to it.

        Raises:
            ValueError: If there are more or fewer leaves than before, or one has another dtype or
                shape.
        """
        leaves = _nest.flatten(data)
        if self._length is None:
            self._length = len(leaves)
            self._structure = _nest.map_leaves(lambda _: None, data)
        if len(leaves) != self._length:
            raise ValueError(
                f"Flattened data has an unexpected length, got {len(leaves)} but wanted "
                f"{self._length}."
            )
        try:
            append = self._writer.AppendPartial if partial_step else self._writer.Append
            append(leaves)
        except ValueError as error:
            paths = [path for path, _ in _nest.flatten_with_path(self._structure)]
            raise with_path(error, lambda at: f"{at} (path={paths[at]})") from error

    @property
    def step_is_open(self) -> bool:
        """Whether the last append was a part of a step that continues."""
        return self._writer.step_is_open


class _Column:
    """A column of patterns: index it as a list of the steps so far, from its end."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __getitem__(self, index: int | slice) -> patterns_pb2.PatternNode:
        if isinstance(index, int):
            index = slice(index)
        if not isinstance(index, slice):
            raise ValueError(f"Key must be int or slice by got {index} (type {type(index)}).")
        return patterns_pb2.PatternNode(
            flat_source_index=self._number, start=index.start, stop=index.stop, step=index.step
        )


def _numbered(structure: Any, make: Callable[[int], Any]) -> Any:
    """Build a structure whose leaves are made from their numbers."""
    numbers = range(len(_nest.flatten(structure)))
    return _nest.unflatten_as(structure, [make(number) for number in numbers])


def create_reference_step(step_structure: Any) -> ReferenceStep:
    """Return a nest like the steps, whose leaves make nodes of patterns when they are indexed.

    ``step["obs"][-2:]`` are the last two steps of a column, ``step["obs"][-1]`` is the last one,
    without an axis of time.
    """
    return _numbered(step_structure, _Column)


def pattern_from_transform(step_structure: Any, transform: PatternTransform) -> Pattern:
    """Return the pattern that a function makes from a reference step."""
    return transform(create_reference_step(step_structure))


def create_config(
    pattern: Pattern,
    table: str,
    conditions: Sequence[ConditionProto] = (),
    priority: patterns_pb2.Priority | None = None,
) -> Config:
    """Configure which items to make, and when.

    Args:
        pattern: A nest of nodes.
        table: The table of the items.
        conditions: All must hold. An item is made only if all its steps exist.
        priority: The priority of the items; 1 if ``None``.
    """
    return Config(
        flat=_nest.flatten(pattern),
        pattern_structure=patterns_pb2.Structure(nest=_nest.map_leaves(lambda _: None, pattern)),
        table=table,
        priority=constant_priority_fn(1.0) if priority is None else priority,
        conditions=conditions,
    )


def unpack_pattern(config: Config) -> Pattern:
    """Return the pattern of a config; a list if it has no structure."""
    if not config.HasField("pattern_structure"):
        return config.flat
    return _nest.unflatten_as(config.pattern_structure.nest, config.flat)


def check_alike(configs: Sequence[Config]) -> None:
    """Check that the items of configs can have one signature.

    Raises:
        ValueError: If there are no configs, or they differ in structure or table.
    """
    if not configs:
        raise ValueError("At least one config must be provided.")
    if any(config.pattern_structure != configs[0].pattern_structure for config in configs):
        raise ValueError("All configs must have exactly the same pattern_structure.")
    tables = sorted({config.table for config in configs})
    if len(tables) > 1:
        raise ValueError(
            "All configs must target the same table but provided configs included "
            f"{', '.join(tables)}."
        )


def infer_signature(
    configs: Sequence[Config], step_spec: reverb_types.SpecNest
) -> reverb_types.SpecNest:
    """Return the signature of a table that gets the items of these configs.

    Args:
        configs: All that make items for the table.
        step_spec: A nest like the steps, of anything with a shape and a dtype.

    Raises:
        ValueError: If there are no configs, they differ in structure or table, or their items can't
            have one signature.
    """
    check_alike(configs)
    columns = [_signature.normalize(leaf) for leaf in _nest.flatten(step_spec)]

    def merge(path: _nest.Path, *nodes: patterns_pb2.PatternNode) -> _signature.TensorSpec:
        dtypes = [columns[node.flat_source_index].dtype for node in nodes]
        if any(dtype != dtypes[0] for dtype in dtypes):
            raise ValueError(
                f"Configs produce trajectories with multiple dtypes at {path}. Got {dtypes}."
            )
        shapes = [_item_shape(node, columns[node.flat_source_index].shape) for node in nodes]
        first = shapes[0]
        if any(len(shape) != len(first) or shape[1:] != first[1:] for shape in shapes):
            raise ValueError(
                f"Configs produce trajectories with incompatible shapes at {path}. Got {shapes}."
            )
        same = all(shape == first for shape in shapes)
        shape = first if same else (None, *first[1:])
        name = "/".join(str(key) for key in path)
        kind: type[_signature.TensorSpec] = type(columns[nodes[0].flat_source_index])
        return kind(shape, dtypes[0], name)

    patterns = [unpack_pattern(config) for config in configs]
    paths = [path for path, _ in _nest.flatten_with_path(patterns[0])]
    merged = map(merge, paths, *(config.flat for config in configs))
    return _signature.as_given(_nest.unflatten_as(patterns[0], list(merged)))


def _item_shape(
    node: patterns_pb2.PatternNode, step_shape: tuple[int | None, ...] | None
) -> tuple[int | None, ...]:
    if step_shape is None:
        raise ValueError("a step of any shape makes no signature")
    if not node.HasField("start"):
        return step_shape
    # A part of a stride at the end counts as a step.
    length = math.ceil((node.stop - node.start) / (node.step or 1))
    return (length, *step_shape)


class _ConditionBuilder:
    """A number that changes from step to step; compare it to make a condition."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, incomplete: ConditionProto) -> None:
        self._incomplete = incomplete

    def __mod__(self, modulo: int) -> _ConditionBuilder:
        condition = copy.deepcopy(self._incomplete)
        condition.mod_eq.mod = modulo
        return _ConditionBuilder(condition)

    def __eq__(self, value: int) -> ConditionProto:  # type: ignore[override]
        condition = copy.deepcopy(self._incomplete)
        compared = condition.mod_eq if condition.mod_eq.mod else condition
        compared.eq = value
        return condition

    def __ne__(self, value: int) -> ConditionProto:  # type: ignore[override]
        return _inverse(self == value)

    def __ge__(self, value: int) -> ConditionProto:
        condition = copy.deepcopy(self._incomplete)
        condition.ge = value
        return condition

    def __gt__(self, value: int) -> ConditionProto:
        return self >= value + 1

    def __le__(self, value: int) -> ConditionProto:
        return _inverse(self > value)

    def __lt__(self, value: int) -> ConditionProto:
        return self <= value - 1


def _inverse(condition: ConditionProto) -> ConditionProto:
    condition.inverse = True
    return condition


class Condition:
    """Numbers that can be compared to make conditions."""

    @staticmethod
    def step_index() -> _ConditionBuilder:
        """Return the newest step's index in its episode, from 0."""
        return _ConditionBuilder(ConditionProto(step_index=True))

    @staticmethod
    def steps_since_applied() -> _ConditionBuilder:
        """Return how many steps were appended since the pattern was last applied."""
        return _ConditionBuilder(ConditionProto(steps_since_applied=True))

    @staticmethod
    def is_end_episode() -> ConditionProto:
        """Hold at the end of an episode only."""
        return ConditionProto(is_end_episode=True, eq=1)

    @staticmethod
    def data(step_structure: Any) -> Any:
        """Return a nest like the steps, of each column's newest value, which is one number."""
        return _numbered(
            step_structure,
            lambda number: _ConditionBuilder(ConditionProto(flat_source_index=number)),
        )


def constant_priority_fn(value: float) -> patterns_pb2.Priority:
    """Give all items one priority."""
    constant = patterns_pb2.Priority.ConstantPriorityFn(value=value)
    return patterns_pb2.Priority(constant_fn=constant)


def td_error(
    max_priority_weight: float,
    step_structure: Any,
    get_field_from_step_fn: Callable[[Any], Any],
) -> patterns_pb2.Priority:
    """Give items ``weight * max + (1 - weight) * mean`` of the absolute errors of their steps.

    This is the priority of Kapturowski et al., "Recurrent Experience Replay in Distributed
    Reinforcement Learning" (2019).

    Args:
        max_priority_weight: The weight of the maximum.
        step_structure: A nest like the steps.
        get_field_from_step_fn: Returns the column of errors of such a nest. The pattern must have
            steps of it.
    """
    column = get_field_from_step_fn(_numbered(step_structure, int))
    error = patterns_pb2.Priority.TDError(
        max_priority_weight=max_priority_weight, flat_source_index=column
    )
    return patterns_pb2.Priority(td_error=error)
