"""A benchmark: each cell is trained if its method trains, then evaluated, and written down.

A cell that can't be run gets a reason and never a number: ``skipped`` if something outside it is
missing (a key, a package, a file of data), ``not applicable`` if its method can't act in its task,
``failed`` if it went wrong.

Training and evaluation do not share seeds of environments: those of evaluations begin at
:data:`~echoic.agents.evaluation.config.HELD_OUT`, and a method derives its own from the cell's
seed, below 2^30. For data sets, ``evaluation_task_configs`` chooses another part.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echoic._json import finite
from echoic.agents.backbones.base import backbone_status
from echoic.agents.baselines.base import Cell, maker_of, method_of
from echoic.agents.environments.base import environment_names
from echoic.agents.environments.processes import environment_of
from echoic.agents.episodes import EnvironmentThread, run_episode
from echoic.agents.evaluation.config import NO_BACKBONE, BenchmarkConfig, CellName, cells_of
from echoic.agents.evaluation.results import BenchmarkResult, all_errors, summarize
from echoic.agents.evaluation.rows import Rows
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from echoic.agents.baselines.base import Method
    from echoic.agents.episodes import Episode

__all__ = ["EchoRLBenchmark"]

_log = logging.getLogger(__name__)
TURNS = "turns.jsonl"
# Seconds for closing an environment, which may hang after a time-out.
_PATIENCE = 5.0
# Seconds for making an environment and its first reset: some read large files first.
_BEGINNING = 600.0
# Errors at the beginning of a cell, and nothing else, after which it counts as failed.
_ERRORS = 3
_LONGEST_ERROR = 2000


class _Skipped(Exception):
    """A cell can't be run, though nothing went wrong."""

    def __init__(self, reason: str, status: str = "skipped") -> None:
        super().__init__(reason)
        self.status = status


class EchoRLBenchmark:
    """Compares methods on tasks.

    Custom names come from ``register_environment``, ``register_backbone`` and ``register_method``.

    Args:
        config: Its settings.
        log: Called with a line of text whenever a cell begins or ends.

    Raises:
        ArgumentError: If a task, method, language model or setting of a method has an unknown name;
            the message lists the known ones.
    """

    def __init__(
        self, config: BenchmarkConfig | None = None, *, log: Callable[[str], None] | None = None
    ) -> None:
        self.config = config or BenchmarkConfig()
        self._log = log or _log.info
        # By task: whether it lists its commands, or why it can't be made.
        self._tasks: dict[str, bool | Exception] = {}
        known = environment_names()
        for task in self.config.tasks:
            # Workers may know more.
            if task not in known and not self.config.worker_imports:
                raise ArgumentError(
                    f"there is no environment {task!r}; there are {', '.join(known)}"
                )
        for method in self.config.methods:
            with contextlib.suppress(ImportError):  # its cells are skipped
                check = getattr(maker_of(method), "check", None)
                if check is not None:
                    check(self.config.settings_of(method))
        for backbone in self.config.backbones:
            backbone_status(backbone)

    async def run_benchmark(self) -> BenchmarkResult:
        """Run all missing cells, then compute the statistics and write the report.

        If the process ends early, the folder has the rows so far, and the next run with the same
        folder continues from them.
        """
        root, config = Path(self.config.output_dir), self.config
        began = time.monotonic()
        cells = list(cells_of(config))
        with Rows(root) as rows:
            for number, cell in enumerate(cells, 1):
                await self._do(cell, rows, root, f"[{number}/{len(cells)}]")
            found = rows.all
        result = summarize(config, cells, found)
        result.seconds = time.monotonic() - began
        await asyncio.to_thread(self._write, result, found, root)
        return result

    async def _do(self, cell: CellName, rows: Rows, root: Path, place: str) -> None:
        missing = [
            one
            for one in range(self.config.num_episodes)
            if (rows.get(f"{cell.id}/{one}") or {"ended": "error"})["ended"] == "error"
        ]
        if not missing:
            return
        self._log(
            f"{place} {cell.provenance} · {cell.method} · {cell.backbone} · seed {cell.seed}: "
            f"{len(missing)} episodes"
        )
        status, reason = "done", ""
        try:
            await self._run(cell, missing, rows, root)
        except _Skipped as error:
            status, reason = error.status, str(error)
        except ImportError as error:
            status, reason = "skipped", f"{type(error).__name__}: {error}"
        except Exception as error:  # one bad cell must not end a benchmark
            _log.debug("a cell failed", exc_info=True)
            status, reason = "failed", f"{type(error).__name__}: {error}"
        if reason:
            self._log(f"    {status}: {reason[:500]}")
        more = {"status": status, "reason": reason[:_LONGEST_ERROR]}
        before = rows.get(cell.id)
        # A cell that is done gets a row only to replace an earlier one.
        if (reason or before) and (before is None or {**before, **more} != before):
            rows.add({"id": cell.id, "kind": "cell", **cell.labels, **more})

    async def _run(self, cell: CellName, missing: list[int], rows: Rows, root: Path) -> None:
        if cell.missing is not None:
            raise _Skipped(cell.missing)
        maker = maker_of(cell.method)
        needs_backbone = getattr(maker, "needs_backbone", False)
        # A language model that is trained acts in any text.
        reads = cell.backbone != NO_BACKBONE and not needs_backbone
        lists_commands = await self._check_task(cell.task)
        if getattr(maker, "needs_commands", False) and not lists_commands and not reads:
            reason = f"{cell.method} chooses among listed commands, and {cell.task} lists none"
            raise _Skipped(reason, "not applicable")
        backbone = _backbone(cell.backbone) if needs_backbone else None
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
            await _close(backbone)

    async def _check_task(self, task: str) -> bool:
        """Make the environment and reset it once; return whether it lists commands.

        Some environments look for their package or data when an episode begins.
        """
        if task not in self._tasks:
            try:
                held = await self._hold(task, {})
                try:
                    _, info = await held.call(held.environment.reset, seed=0)
                finally:
                    await held.close()
                self._tasks[task] = bool(info["commands"])
            except TimeoutError as error:  # the next cell must not wait as long again
                self._tasks[task] = error
            except (ImportError, FileNotFoundError) as error:
                self._tasks[task] = _Skipped(f"{type(error).__name__}: {error}")
        found = self._tasks[task]
        if isinstance(found, Exception):
            raise found
        return found

    async def _hold(self, task: str, needed: Mapping[str, Any]) -> _Held:
        """Make an environment, in a thread of its own."""
        config, held = self.config, _Held()
        settings = {
            **config.task_configs.get(task, {}),
            **config.evaluation_task_configs.get(task, {}),
            **needed,
        }
        limits = {"timeout": config.environment_timeout, "imports": config.worker_imports}
        try:
            held.environment = await held.call(environment_of, task, settings, **limits)
        except BaseException:
            held.thread.close()
            raise
        return held

    async def _train(self, method: Method, cell: CellName, rows: Rows) -> None:
        """Train, or resume from the cell's folder; its measurements are a row."""
        folder, began = method.cell.folder, time.monotonic()
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        measures = dict(await method.train())
        # The time of an earlier part of an interrupted run is not known here.
        seconds = time.monotonic() - began if is_new else None
        id_ = f"{cell.id}/training"
        # A second run only loads the result of the first: its time says nothing.
        if rows.get(id_) is None:
            more = {
                "steps": self.config.training_steps,
                # The method knows best: our trainers count all parts of a run.
                "seconds": measures.get("seconds", seconds),
                "measures": measures,
                "curve": list(method.curve),
            }
            rows.add({"id": id_, "kind": "training", **cell.labels, **more})

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
                    turns = self.config.save_detailed_results
                    episode = await run_episode(
                        held.environment,
                        policy,
                        self.config.episode_seed(cell.seed, number),
                        max_steps=self.config.max_steps_per_episode,
                        timeout=self.config.evaluation_timeout,
                        keep_turns=turns and number < self.config.detailed_episodes,
                        thread=held.thread,
                    )
                    _record(cell, number, episode, rows, root)
                    self._check_errors(cell, rows)
                    if episode.ended in {"timeout", "error"}:
                        # It may be within a step, or broken.
                        await held.close(stuck=episode.ended == "timeout")
                        await _close(policy)
                        held, policy = None, method.policy()
            finally:
                await _close(policy)
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
        """End a cell of nothing but errors: they show nothing of the method."""
        found = (rows.get(f"{cell.id}/{number}") for number in range(self.config.num_episodes))
        known = [row for row in found if row is not None]
        if len(known) >= min(_ERRORS, self.config.num_episodes) and all_errors(known):
            raise RuntimeError(
                f"all of the first {len(known)} episodes ended with an error, such as "
                f"{known[-1]['error']}"
            )

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


def _record(cell: CellName, number: int, episode: Episode, rows: Rows, root: Path) -> None:
    id_ = f"{cell.id}/{number}"
    if episode.turns:
        turns = {"id": id_, "turns": [asdict(turn) for turn in episode.turns]}
        with (root / TURNS).open("ab+") as file:
            file.seek(-min(1, file.seek(0, os.SEEK_END)), os.SEEK_END)
            # A partial last line of a crash gets an end of its own.
            half = b"" if file.read() in (b"", b"\n") else b"\n"
            file.write(half + json.dumps(finite(turns)).encode() + b"\n")
    rows.add(
        {
            "id": id_,
            "kind": "episode",
            **cell.labels,
            "episode": number,
            "environment_seed": episode.seed,
            "reward": episode.reward,
            "score": episode.score,
            # An environment may report success during an episode, and end otherwise.
            "success": episode.success and episode.ended == "terminated",
            "steps": episode.steps,
            **asdict(episode.usage),
            "seconds": episode.seconds,
            "ended": episode.ended,
            "error": None if episode.error is None else episode.error[:_LONGEST_ERROR],
        }
    )


def _backbone(name: str) -> Any:
    """Make the language model of a name."""
    from echoic.agents import backbones  # brings torch or httpx

    status = backbones.backbone_status(name)
    if not status.startswith("ready"):
        raise _Skipped(status.removeprefix("skipped: "))
    return backbones.make_backbone(name)


async def _close(used: Any) -> None:
    """Close a policy or language model that can be closed."""
    if hasattr(used, "aclose"):
        await used.aclose()


class _Held:
    """An environment, and the thread that calls it."""

    def __init__(self) -> None:
        self.environment: Any = None
        self.thread = EnvironmentThread()
        self._stuck = False

    async def call(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Call a function that may block, for at most :data:`_BEGINNING` seconds."""
        try:
            return await asyncio.wait_for(self.thread.call(function, *args, **named), _BEGINNING)
        except asyncio.TimeoutError:
            self._stuck = True
            raise TimeoutError(
                f"making the environment, or its first reset, took longer than {_BEGINNING:g} s"
            ) from None

    async def close(self, *, stuck: bool = False) -> None:
        """Close the environment, from another thread if it is stuck in its own."""
        if stuck or self._stuck:
            self.thread.close()
            self.thread = EnvironmentThread()
        try:
            await asyncio.wait_for(self.thread.call(self.environment.close), _PATIENCE)
        except Exception:  # it is not used again
            _log.debug("closing an environment failed", exc_info=True)
        finally:
            self.thread.close()
