"""Iterate over the items that patterns make of a stream of steps, without a server."""

from __future__ import annotations

import functools
import itertools
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic import StructuredWriter, Table, limiters, selectors
from echoic.reverb import _nest, _signature, _tensorflow, replay_sample, structured_writer
from echoic.reverb._dataset import Dataset
from echoic.reverb._engine.structured import Columns, engine_config, history_length, validate
from echoic.reverb._engine.values import texts_as_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from typing_extensions import Self

__all__ = ["PatternDataset", "pattern_dataset_with_info"]


class PatternDataset(Dataset):
    """Iterate over the items that a structured writer would make, nested as the patterns.

    It is a ``tf.data.Dataset`` if the steps are one.

    Args:
        input_dataset: The steps. Their form is the dataset's ``element_spec`` if it has one, else
            that of the first step.
        configs: Patterns, all with one structure and table.
        respect_episode_boundaries: Whether items must not have steps of two episodes.
        is_end_of_episode: Returns for each step whether it is the last of an episode.

    Raises:
        ValueError: If the patterns do not make items of one form.

    Examples:
        >>> import echoic.reverb as reverb
        >>> from echoic.reverb import structured_writer as sw
        >>> steps = [{"obs": number, "last": number == 2} for number in range(6)]
        >>> pattern = sw.pattern_from_transform(steps[0], lambda step: step["obs"][-2:])
        >>> dataset = reverb.PatternDataset(
        ...     steps,
        ...     [sw.create_config(pattern, table="unused")],
        ...     respect_episode_boundaries=True,
        ...     is_end_of_episode=lambda step: step["last"],
        ... )
        >>> [item.tolist() for item in dataset]
        [[0, 1], [1, 2], [3, 4], [4, 5]]
    """

    def __new__(cls, input_dataset: Iterable[Any], *_: Any, **__: Any) -> Self:
        """Make a dataset of TensorFlow of one of TensorFlow."""
        kind: Any = cls
        theirs = "tensorflow" in sys.modules and hasattr(input_dataset, "_variant_tensor")
        made: Self = object.__new__(_tensorflow.kind_of(kind) if theirs else kind)
        return made

    def __init__(
        self,
        input_dataset: Iterable[Any],
        configs: Sequence[structured_writer.Config],
        respect_episode_boundaries: bool,
        is_end_of_episode: Callable[[Any], bool],
    ) -> None:
        super().__init__(self._items)
        self._steps: Any = input_dataset
        self._configs = list(configs)
        self._clear = respect_episode_boundaries
        self._is_end = is_end_of_episode
        structured_writer.check_alike(self._configs)
        for config in self._configs:
            validate(config)
        spec = getattr(input_dataset, "element_spec", None)
        if spec is not None:
            self._spec = structured_writer.infer_signature(self._configs, spec)

    @property
    def element_spec(self) -> Any:
        """The form of items; if the dataset has no ``element_spec``, from its first step."""
        if self._spec is None:
            for step in self._steps:
                spec = _nest.map_leaves(_spec_of, step)
                self._spec = structured_writer.infer_signature(self._configs, spec)
                break
        return self._spec

    def _items(self) -> Iterator[Any]:
        steps = iter(self._steps)
        if self._spec is None:
            first = next(steps, None)
            if first is None:
                return
            spec = _nest.map_leaves(_spec_of, first)
            self._spec = structured_writer.infer_signature(self._configs, spec)
            steps = itertools.chain([first], steps)
        stream = _Stream(self._configs, self._clear)
        for step in steps:
            ended = self._is_end(step)
            if np.ndim(ended) or np.asarray(ended).dtype != np.bool_:
                raise _no_bool(type(ended).__name__)
            for leaves in stream.add(_nest.flatten(step), ended):
                yield _nest.unflatten_as(self._spec, [leaf[()] for leaf in leaves])

    def _flat(self) -> Any:
        """Make a dataset of TensorFlow that yields flat elements."""
        tf = _tensorflow.tensorflow()
        specs = [_signature.normalize(leaf) for leaf in _nest.flatten(self._spec)]
        nothing = [_tensorflow.nothing(leaf) for leaf in specs]
        # Items of one form are one group; others are a group for each.
        alike = all(leaf.shape is not None and None not in leaf.shape for leaf in specs)
        groups = 1 if alike else len(self._configs)
        streams: dict[int, _Stream] = {}
        keys = itertools.count()

        def begin() -> Iterator[int]:
            key = next(keys)
            streams[key] = _Stream(self._configs, self._clear)
            try:
                yield key
            finally:
                del streams[key]

        def add(key: int, ended: bool, *leaves: Any) -> list[np.ndarray[Any, Any]]:
            with _tensorflow.calls:
                items = streams[int(key)].add(leaves, ended)
            parts = [items] if alike else [items[at : at + 1] for at in range(groups)]
            return [
                np.stack([item[at] for item in part]) if part else none
                for part in parts
                for at, none in enumerate(nothing)
            ]

        def made(key: Any, *step: Any) -> Any:
            ended = tf.convert_to_tensor(self._is_end(*step))
            if ended.dtype != tf.bool or ended.shape.rank != 0:
                raise _no_bool(ended)
            dtypes = groups * [tf.as_dtype(leaf.dtype) for leaf in specs]
            flat = tf.numpy_function(add, [key, ended, *tf.nest.flatten(step)], dtypes)
            for tensor, leaf in zip(flat, groups * specs, strict=True):
                tensor.set_shape(_tensorflow.spec_of(leaf, None).shape)
            return tuple(flat)

        def joined(*flat: Any) -> Any:
            slices = tf.data.Dataset.from_tensor_slices
            parts = [slices(flat[at : at + len(specs)]) for at in range(0, len(flat), len(specs))]
            return functools.reduce(lambda one, other: one.concatenate(other), parts)

        def taken(key: Any) -> Any:
            groups_of_steps = self._steps.map(lambda *step: made(key, *step))
            return groups_of_steps.unbatch() if groups == 1 else groups_of_steps.flat_map(joined)

        key = tf.TensorSpec((), tf.int64)
        return tf.data.Dataset.from_generator(begin, output_signature=key).flat_map(taken)


def _no_bool(ended: Any) -> ValueError:
    return ValueError(
        "Invalid `is_end_of_episode`. `is_end_of_episode` must return `bool`, but its return type "
        f"is {ended}."
    )


class _Stream:
    """A writer by patterns whose items pass through a table, which removes each as it is read."""

    def __init__(self, configs: list[structured_writer.Config], clear: bool) -> None:
        self._clear = clear
        self._table = Table(
            "items",
            capacity=max(1, len(configs)),
            sampler=selectors.Fifo(),
            limiter=limiters.MinSize(1),
            max_times_sampled=1,
        )
        kept = max(history_length(config) for config in configs)
        settings = [engine_config(config, "items", kept) for config in configs]
        useful = [setting for setting in settings if setting is not None]
        self._writer = StructuredWriter([self._table], useful) if useful else None
        self._columns = Columns(configs)

    def add(self, leaves: Sequence[Any], ended: bool) -> list[list[np.ndarray[Any, Any]]]:
        """Add a step; return the columns of the items of which it is the last step."""
        if self._writer is None:
            return []
        values, _ = self._columns.of_step(leaves)
        self._writer.append(values)
        made = self._take(self._writer)
        if ended:
            self._writer.end_episode(self._clear)
            made += self._take(self._writer)
        return made

    def _take(self, writer: StructuredWriter) -> list[list[np.ndarray[Any, Any]]]:
        """Return items, each of which was made by another pattern."""
        if writer.pending:
            writer.flush()
        samples = (self._table.sample(1).data for _ in range(len(self._table)))
        return [
            [texts_as_objects(leaf[0, ...]) for leaf in _nest.flatten(data)] for data in samples
        ]


def _spec_of(leaf: Any) -> _signature.TensorSpec:
    value = np.asarray(leaf)
    return _signature.TensorSpec(value.shape, value.dtype)


def pattern_dataset_with_info(
    input_dataset: Iterable[Any],
    configs: Sequence[structured_writer.Config],
    respect_episode_boundaries: bool,
    is_end_of_episode: Callable[[Any], bool],
) -> Dataset:
    """Return the items of a :class:`PatternDataset` as samples, whose info is all zero."""
    items = PatternDataset(input_dataset, configs, respect_episode_boundaries, is_end_of_episode)
    if type(items) is PatternDataset:
        return _WithInfo(items)
    return items.map(
        lambda *data: replay_sample.ReplaySample(
            _INFO, _nest.unflatten_as(items.element_spec, _nest.flatten(data))
        )
    )


# Nothing is known, in TensorFlow's default dtypes for Python numbers.
_INFO = replay_sample.SampleInfo(
    np.int32(0), np.float32(0), np.int32(0), np.float32(0), np.int32(0)
)


class _WithInfo(Dataset):
    """Items as samples without metadata."""

    def __init__(self, items: PatternDataset) -> None:
        super().__init__(lambda: (replay_sample.ReplaySample(_INFO, data) for data in items))
        self._items = items

    @property
    def element_spec(self) -> Any:
        """The form of samples."""
        info = replay_sample.SampleInfo(*map(_spec_of, _INFO))
        return replay_sample.ReplaySample(info, self._items.element_spec)
