"""A benchmark: every cell is trained where its method trains, then evaluated, and written down.

What it does with a cell that can't be run is to say why: ``skipped`` where something is missing
that is not its own (a key, a package, a file of data), ``failed`` where it went wrong. Neither is
ever a number.

Training and evaluation do not share seeds of environments: those of evaluations begin at
:data:`~echoic.agents.evaluation.config.HELD_OUT`, and a method derives its own from the cell's
seed, below 2^30. For worlds that are generated from the seed this keeps them apart, as far as
there are enough of them; for data sets, ``evaluation_task_configs`` chooses another part.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import logging
import math
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from echoic.agents.baselines.base import Cell, method_of
from echoic.agents.environments.processes import environment_of
from echoic.agents.episodes import EnvironmentThread, run_episode
from echoic.agents.evaluation.config import NO_BACKBONE, BenchmarkConfig, CellName, cells_of
from echoic.agents.evaluation.results import BenchmarkResult, all_errors, summarize
from echoic.agents.evaluation.rows import Rows, finite, objects, read_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

    from echoic.agents.baselines.base import Method
    from echoic.agents.episodes import Episode, Policy

__all__ = ["EchoRLBenchmark"]

_log = logging.getLogger(__name__)
TURNS = "turns.jsonl"
# An episode that took too long may hang in its environment, which then can't be closed.
_PATIENCE = 5.0
# To make an environment, and for the look at it: some read large files first.
_BEGINNING = 600.0
# As many errors at the beginning of a cell, and nothing else, say that it can't be run.
_ERRORS = 3
_LONGEST_ERROR = 2000


class _Skipped(Exception):
    """Something that a cell needs is not there."""


@dataclass
class _Progress:
    """How far a benchmark is."""

    cells: int
    done: int = 0
    now: str = ""


class EchoRLBenchmark:
    """Compares methods on tasks.

    Custom names come from ``register_environment``, ``register_backbone`` and ``register_method``.
    """

    def __init__(
        self, config: BenchmarkConfig | None = None, *, tell: Callable[[str], None] | None = None
    ) -> None:
        """Prepare a benchmark.

        Args:
            config: Its settings.
            tell: Is called with a line of text whenever a cell begins or ends.
        """
        self.config = config or BenchmarkConfig()
        self._tell = tell or _log.info
        self._tasks: dict[str, str] = {}
        self._hung: dict[str, str] = {}
        self._turns: set[str] = set()

    async def run_benchmark(self) -> BenchmarkResult:
        """Do all cells that are missing, then the statistics and the report.

        Whatever ends the process, the rows so far are in the folder, and the next run with the same
        folder goes on from them.
        """
        root = Path(self.config.output_dir)
        began = time.monotonic()
        cells = list(cells_of(self.config))
        with Rows(root) as rows:
            progress = _Progress(len(cells))
            for cell in cells:
                progress.now = cell.id
                await self._do(cell, rows, root, progress)
                progress.done += 1
            found = rows.all
        result = summarize(self.config, cells, found)
        result.seconds = time.monotonic() - began
        await asyncio.to_thread(self._write, result, found, root)
        return result

    def summary(self) -> BenchmarkResult:
        """What the rows that are there say, without running anything."""
        rows = read_rows(self.config.output_dir).values()
        return summarize(self.config, list(cells_of(self.config)), rows)

    # One cell.

    async def _do(self, cell: CellName, rows: Rows, root: Path, progress: _Progress) -> None:
        missing = [
            episode
            for episode in range(self.config.num_episodes)
            if self._wants(rows, cell, episode)
        ]
        before = rows.get(cell.id)
        if not missing or (
            before is not None and before["status"] == "failed" and not self.config.retry_failed
        ):
            return
        self._tell(
            f"[{progress.done + 1}/{progress.cells}] {cell.task} · {cell.method}"
            f" · {cell.backbone} · seed {cell.seed}: {len(missing)} episodes"
        )
        try:
            await self._run(cell, missing, rows, root)
        except (_Skipped, ImportError) as error:
            said = str(error) if isinstance(error, _Skipped) else f"{type(error).__name__}: {error}"
            self._end(rows, cell, "skipped", said)
        except Exception as error:  # one bad cell must not end a benchmark
            _log.debug("a cell failed", exc_info=True)
            self._end(rows, cell, "failed", f"{type(error).__name__}: {error}")
        else:
            # What it was before is no longer so.
            if before is not None:
                self._end(rows, cell, "done", "")

    def _wants(self, rows: Rows, cell: CellName, episode: int) -> bool:
        row = rows.get(f"{cell.id}/{episode}")
        return row is None or (row["ended"] == "error" and self.config.retry_failed)

    def _end(self, rows: Rows, cell: CellName, status: str, reason: str) -> None:
        before = rows.get(cell.id)
        if before is None or (before["status"], before["reason"]) != (status, reason):
            told = {"status": status, "reason": reason[:2000]}
            rows.add({"id": cell.id, "kind": "cell", **cell.labels, **told})
        if reason:
            self._tell(f"    {status}: {reason[:500]}")

    async def _run(self, cell: CellName, missing: list[int], rows: Rows, root: Path) -> None:
        if cell.problem is not None:
            if cell.missing:
                raise _Skipped(cell.problem)
            raise LookupError(cell.problem)
        await self._check_task(cell.task)
        backbone = _backbone(cell.backbone)
        try:
            method = method_of(
                cell.method,
                Cell(
                    task=cell.task,
                    task_config=dict(self.config.task_configs.get(cell.task, {})),
                    backbone=backbone,
                    seed=cell.seed,
                    steps=self.config.training_steps,
                    folder=cell.folder(root),
                    settings=self.config.settings_of(cell.method),
                ),
            )
            try:
                if method.trains:
                    await self._train(method, cell, rows)
                await self._evaluate(method, cell, missing, rows, root)
            finally:
                await method.aclose()
        finally:
            await _close_backbone(backbone)

    async def _check_task(self, task: str) -> None:
        """Make the environment and begin once, to know whether it can be had.

        Some look for their package or data when an episode begins.
        """
        if task in self._hung:
            raise TimeoutError(self._hung[task])
        if task not in self._tasks:
            try:
                held = await self._hold(task)
                try:
                    await held.call(held.environment.reset, seed=0)
                finally:
                    await held.close()
            except TimeoutError as error:
                # The next cell must not wait as long again.
                self._hung[task] = str(error)
                raise
            except (ImportError, FileNotFoundError) as error:
                self._tasks[task] = f"{type(error).__name__}: {error}"
            else:
                self._tasks[task] = ""
        if self._tasks[task]:
            raise _Skipped(self._tasks[task])

    async def _hold(self, task: str, needed: Mapping[str, Any] = MappingProxyType({})) -> _Held:
        """Make an environment, in a thread of its own."""
        held = _Held()
        try:
            held.environment = await held.call(self._environment, task, needed)
        except BaseException:
            held.thread.close()
            raise
        return held

    def _environment(self, task: str, needed: Mapping[str, Any] = MappingProxyType({})) -> Any:
        settings = {
            **self.config.task_configs.get(task, {}),
            **self.config.evaluation_task_configs.get(task, {}),
            **needed,
        }
        return environment_of(
            task,
            settings,
            timeout=self.config.environment_timeout,
            imports=self.config.worker_imports,
        )

    async def _train(self, method: Method, cell: CellName, rows: Rows) -> None:
        """Train, or go on from what is in the cell's folder; what it measured is a row."""
        method.cell.folder.mkdir(parents=True, exist_ok=True)
        with _Spent(method.cell.folder / "training_seconds") as spent:
            measures = dict(await method.train())
        id_ = f"{cell.id}/training"
        # A second run only loads what the first one trained: its time says nothing.
        if rows.get(id_) is None:
            told = {
                "steps": self.config.training_steps,
                # Who trains knows best: also of the parts of a run that was cut off.
                "seconds": measures.get("seconds", spent.seconds),
                "measures": measures,
                "curve": _curve(method.cell.folder),
            }
            rows.add({"id": id_, "kind": "training", **cell.labels, **told})

    async def _evaluate(
        self, method: Method, cell: CellName, missing: list[int], rows: Rows, root: Path
    ) -> None:
        queue = list(reversed(missing))

        async def work() -> None:
            held, policy = None, method.policy()
            try:
                while queue:
                    number = queue.pop()
                    if held is None:
                        held = await self._hold(cell.task, method.environment_settings)
                    episode = await self._episode(held, policy, cell, number)
                    self._record(cell, number, episode, rows, root)
                    self._check_errors(cell, rows)
                    if episode.ended in {"timeout", "error"}:
                        # It may be within a step, or broken.
                        await held.close(stuck=episode.ended == "timeout")
                        held, policy = None, method.policy()
            finally:
                if held is not None:
                    await held.close()

        workers = [
            asyncio.create_task(work())
            for _ in range(min(self.config.parallel_episodes, len(missing)))
        ]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    def _check_errors(self, cell: CellName, rows: Rows) -> None:
        """End a cell of which nothing but errors is known: it says nothing of the method."""
        found = (rows.get(f"{cell.id}/{number}") for number in range(self.config.num_episodes))
        known = [row for row in found if row is not None]
        if len(known) >= min(_ERRORS, self.config.num_episodes) and all_errors(known):
            raise RuntimeError(
                f"all of the first {len(known)} episodes ended with an error, such as "
                f"{known[-1]['error']}"
            )

    async def _episode(self, held: _Held, policy: Policy, cell: CellName, number: int) -> Episode:
        return await run_episode(
            held.environment,
            policy,
            self.config.episode_seed(cell.seed, number),
            max_steps=self.config.max_steps_per_episode,
            timeout=self.config.evaluation_timeout,
            keep_turns=self.config.save_detailed_results and number < self.config.detailed_episodes,
            thread=held.thread,
        )

    def _record(
        self, cell: CellName, number: int, episode: Episode, rows: Rows, root: Path
    ) -> None:
        id_ = f"{cell.id}/{number}"
        if episode.turns:
            turns = {"id": id_, "turns": [asdict(turn) for turn in episode.turns]}
            _append(root / TURNS, json.dumps(finite(turns)))
        rows.add(
            {
                "id": id_,
                "kind": "episode",
                **cell.labels,
                "episode": number,
                "environment_seed": episode.seed,
                "reward": episode.reward,
                "score": episode.score,
                # An environment may say so on the way, and end otherwise.
                "success": episode.success and episode.ended == "terminated",
                "steps": episode.steps,
                "tokens_in": episode.usage.tokens_in,
                "tokens_cached": episode.usage.tokens_cached,
                "tokens_out": episode.usage.tokens_out,
                "requests": episode.usage.requests,
                "cost": episode.usage.cost,
                "seconds": episode.seconds,
                "ended": episode.ended,
                "error": None if episode.error is None else episode.error[:_LONGEST_ERROR],
            }
        )

    # All of them.

    def _write(self, result: BenchmarkResult, rows: tuple[dict[str, Any], ...], root: Path) -> None:
        from echoic.agents.evaluation.report import write_report

        result.files["rows"] = str(root / "rows.jsonl")
        if self.config.generate_report:
            write_report(result, rows, root)
        path = root / "benchmark_results.json"
        result.files["results"] = str(path)
        partial = path.with_suffix(".partial")
        text = json.dumps(finite(result.as_data()), indent=2, allow_nan=False)
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)  # noqa: PTH105 - as it is called everywhere


class _Spent:
    """Counts the seconds of training in a file, so that those of a run that was cut off count too.

    Attributes:
        seconds: In all, after the block; ``nan`` if a process was killed within it before.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.seconds = 0.0

    def __enter__(self) -> Self:
        try:
            self.seconds = float(self._path.read_text(encoding="ascii"))
        except FileNotFoundError:
            pass
        except ValueError:
            self.seconds = math.nan
        # Stays there if the process is killed.
        self._path.write_text("nan", encoding="ascii")
        self._began = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.monotonic() - self._began
        self._path.write_text(repr(self.seconds), encoding="ascii")


def _append(path: Path, line: str) -> None:
    """Add a line; a crash may have left half of the last one, which gets an end of its own."""
    with path.open("ab+") as file:
        half = False
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            half = file.read(1) != b"\n"
        file.write((b"\n" if half else b"") + line.encode() + b"\n")


def _backbone(name: str) -> Any:
    """The language model of a name."""
    if name == NO_BACKBONE:
        return None
    # Brings torch or httpx.
    backbones: Any = importlib.import_module("echoic.agents.backbones")

    status = backbones.backbone_status(name)
    if not status.startswith("ready"):
        raise _Skipped(status.removeprefix("skipped: "))
    return backbones.make_backbone(name)


async def _close_backbone(backbone: Any) -> None:
    close = getattr(backbone, "aclose", None)
    if close is not None:
        await close()


class _Held:
    """An environment, and the thread that calls it."""

    def __init__(self) -> None:
        self.environment: Any = None
        self.thread = EnvironmentThread()
        self._stuck = False

    async def call(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Call what may block, within :data:`_BEGINNING` seconds."""
        try:
            return await asyncio.wait_for(self.thread.call(function, *args, **named), _BEGINNING)
        except asyncio.TimeoutError:
            self._stuck = True
            raise TimeoutError(
                f"making the environment, or its first reset, took longer than {_BEGINNING:g} s"
            ) from None

    async def close(self, *, stuck: bool = False) -> None:
        """Close the environment; one that is stuck, from another thread than the one it is in."""
        if stuck or self._stuck:
            self.thread.close()
            self.thread = EnvironmentThread()
        try:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self.thread.call(self.environment.close), _PATIENCE)
        finally:
            self.thread.close()


def _curve(folder: Path) -> list[dict[str, Any]]:
    """What a method told of evaluations while it trained.

    These are the lines of ``evaluations.jsonl`` in its folder, or else those of the trainer's
    ``metrics.jsonl`` that are of evaluations.
    """
    own = folder / "evaluations.jsonl"
    paths = [own] if own.exists() else sorted(folder.rglob("metrics.jsonl"))
    points: dict[Any, dict[str, Any]] = {}
    for path in paths:
        for one in objects(path):
            if {"step", "success_rate"} <= set(one) and one.get(
                "kind", "evaluation"
            ) == "evaluation":
                # A run that was resumed tells some again.
                points[one["step"]] = {name: one[name] for name in ("step", "success_rate")}
    return [points[step] for step in sorted(points)]
