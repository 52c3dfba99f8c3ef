"""Iterate over the items that patterns make of a stream of steps, without a server."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic import StructuredWriter, Table, limiters, selectors
from echoic.reverb import _nest, _signature, replay_sample, structured_writer
from echoic.reverb._dataset import Dataset
from echoic.reverb._engine.structured import Columns, engine_config, history_length, validate
from echoic.reverb._engine.values import texts_as_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = ["PatternDataset", "pattern_dataset_with_info"]


class PatternDataset(Dataset):
    """Iterate over the items that a structured writer would make, nested as the patterns.

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

    def __init__(
        self,
        input_dataset: Iterable[Any],
        configs: Sequence[structured_writer.Config],
        respect_episode_boundaries: bool,
        is_end_of_episode: Callable[[Any], bool],
    ) -> None:
        super().__init__(self._items)
        self._steps = input_dataset
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
        # Items pass through a table of this process, which removes each as it is read.
        table = Table(
            "items",
            capacity=max(1, len(self._configs)),
            sampler=selectors.Fifo(),
            limiter=limiters.MinSize(1),
            max_times_sampled=1,
        )
        kept = max(history_length(config) for config in self._configs)
        settings = [engine_config(config, "items", kept) for config in self._configs]
        useful = [setting for setting in settings if setting is not None]
        if not useful:
            return
        writer = StructuredWriter([table], useful)
        columns = Columns(self._configs)
        for step in steps:
            values, _ = columns.of_step(_nest.flatten(step))
            writer.append(values)
            yield from self._made(writer, table)
            ended = self._is_end(step)
            if np.ndim(ended) or np.asarray(ended).dtype != np.bool_:
                raise ValueError(
                    "Invalid `is_end_of_episode`. `is_end_of_episode` must return `bool`, but its "
                    f"return type is {type(ended).__name__}."
                )
            if ended:
                writer.end_episode(self._clear)
                yield from self._made(writer, table)

    def _made(self, writer: StructuredWriter, table: Table) -> Iterator[Any]:
        """Yield the items of a step, each of which was made by another pattern."""
        if writer.pending:
            writer.flush()
        for _ in range(len(table)):
            leaves = _nest.flatten(table.sample(1).data)
            yield _nest.unflatten_as(self._spec, [texts_as_objects(leaf[0]) for leaf in leaves])


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
    return _WithInfo(items)


class _WithInfo(Dataset):
    """Items as samples without metadata."""

    def __init__(self, items: PatternDataset) -> None:
        # Arrays of TensorFlow's default dtypes for Python numbers.
        numbers = [np.asarray(zero) for zero in replay_sample.SampleInfo.zeros()]
        small = [
            zero.astype(np.float32 if zero.dtype.kind == "f" else np.int32) for zero in numbers
        ]
        self._info = replay_sample.SampleInfo(*(zero[()] for zero in small))
        super().__init__(self._samples)
        self._items = items

    @property
    def element_spec(self) -> Any:
        """The form of samples."""
        info = replay_sample.SampleInfo(*map(_spec_of, self._info))
        return replay_sample.ReplaySample(info, self._items.element_spec)

    def _samples(self) -> Iterator[Any]:
        return (replay_sample.ReplaySample(self._info, data) for data in self._items)
