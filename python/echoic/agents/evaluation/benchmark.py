"""A benchmark: each cell is trained if its method trains, then evaluated, and written down.

A cell that can't be run gets a reason and never a number: ``skipped`` if something outside it is
missing (a key, a package, a file of data), ``not applicable`` if its method can't act in its task,
``failed`` if it went wrong.

A row is a JSON object on a line, added as episodes end, never changed. Its ``kind`` is
``"episode"``, ``"training"`` (measurements of a training), or ``"cell"`` (one without a result,
with the reason). The last row of an ``id`` counts. Numbers that JSON does not have, such as the
cost of a model without a price, are null.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echoic._json import finite
from echoic.agents.backbones.base import backbone_status
from echoic.agents.baselines import Cell, maker_of, method_of
from echoic.agents.environments.base import environment_names
from echoic.agents.environments.processes import environment_of
from echoic.agents.episodes import EnvironmentThread, all_of, run_episode
from echoic.agents.evaluation.config import NO_BACKBONE, BenchmarkConfig, CellName, cells_of
from echoic.agents.evaluation.report import write_report
from echoic.agents.evaluation.results import BenchmarkResult, summarize
from echoic.errors import ArgumentError, StorageError

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Callable, Mapping

    from echoic.agents.baselines import Method
    from echoic.agents.episodes import Episode, Policy

__all__ = ["EchoRLBenchmark", "Rows", "read_rows"]

_log = logging.getLogger(__name__)
# Seconds for closing an environment, which may be within a step after a time-out.
_PATIENCE = 5.0
# Seconds for making an environment and its first reset: some read large files first.
_BEGINNING = 600.0
# Errors at the beginning of a cell, and nothing else, after which it counts as failed.
_ERRORS = 3
_LONGEST_ERROR = 2000
# Episodes of a cell whose steps may be kept.
_DETAILED = 2


def read_rows(path: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """Read the rows that count, by ``id``, from a file or a benchmark's folder.

    A partial last line, of a benchmark that was killed, is left out.

    Raises:
        StorageError: If a line is no row.
    """
    file = Path(path)
    file = file / "rows.jsonl" if file.is_dir() else file
    rows: dict[str, dict[str, Any]] = {}
    content = file.read_bytes() if file.exists() else b""
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        row: Any = None
        with contextlib.suppress(ValueError):
            row = json.loads(line)
        if not isinstance(row, dict) or not {"id", "kind"} <= set(row):
            raise StorageError(f"line {number} of {file} is no row: {line[:80]!r}")
        rows[row["id"]] = row
    return rows


class Rows(dict[str, dict[str, Any]]):
    """The rows of a folder by id, opened by one process to add more."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        path = Path(folder) / "rows.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            self._file = stack.enter_context(path.open("ab+", buffering=0))
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StorageError(f"another benchmark is writing to {path}") from None
            super().__init__(read_rows(path))
            self._file.truncate(path.read_bytes().rfind(b"\n") + 1)
            stack.pop_all()

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row, whole or not at all. A loss of power may lose it."""
        data: dict[str, Any] = finite(dict(row))
        # Answers of models may not be UTF-8, such as half of a pair of surrogates.
        line = json.dumps(data, allow_nan=False).encode("ascii") + b"\n"
        before = self._file.seek(0, 2)
        try:
            while line:
                line = line[self._file.write(line) :]
        except BaseException:
            self._file.truncate(before)
            raise
        self[data["id"]] = data

    def close(self) -> None:
        """Let another process open them."""
        self._file.close()


class _NotRun(Exception):
    """A cell can't be run, though nothing went wrong: its status, and the reason."""


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
        unknown = [] if self.config.worker_imports else set(self.config.tasks).difference(known)
        for task in unknown:
            raise ArgumentError(f"there is no environment {task!r}; there are {', '.join(known)}")
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
        root, began = Path(self.config.output_dir), time.monotonic()
        cells = list(cells_of(self.config))
        with contextlib.closing(Rows(root)) as rows:
            for number, cell in enumerate(cells, 1):
                await self._do(cell, rows, f"[{number}/{len(cells)}]")
            result = summarize(self.config, cells, rows)
        result.seconds = time.monotonic() - began
        path = root / "benchmark_results.json"
        result.files = {"rows": str(root / "rows.jsonl"), "results": str(path)}
        if self.config.generate_report:
            write_report(result, root)
        text = json.dumps(finite(asdict(result)), indent=2, allow_nan=False)
        path.write_text(text, encoding="utf-8")
        return result

    async def _do(self, cell: CellName, rows: Rows, place: str) -> None:
        missing = [
            one
            for one in range(self.config.num_episodes)
            if rows.get(f"{cell.id}/{one}", {"ended": "error"})["ended"] == "error"
        ]
        if not missing:
            return
        self._log(
            f"{place} {cell.provenance} · {cell.method} · {cell.backbone} · seed {cell.seed}: "
            f"{len(missing)} episodes"
        )
        status, reason = "done", ""
        try:
            await self._run(cell, missing, rows)
        except _NotRun as error:
            status, reason = error.args
        except Exception as error:  # one bad cell must not end a benchmark
            _log.debug("a cell failed", exc_info=True)
            is_missing = isinstance(error, (ImportError, FileNotFoundError))
            status = "skipped" if is_missing else "failed"
            reason = f"{type(error).__name__}: {error}"
        if reason:
            self._log(f"    {status}: {reason[:500]}")
        done = {"id": cell.id, "kind": "cell", **asdict(cell), "status": "done", "reason": ""}
        row = {**done, "status": status, "reason": reason[:_LONGEST_ERROR]}
        # A cell that is done gets a row only to replace an earlier one.
        if rows.get(cell.id, done) != row:
            rows.add(row)

    async def _run(self, cell: CellName, missing: list[int], rows: Rows) -> None:
        config, maker = self.config, maker_of(cell.method)
        needs_backbone = getattr(maker, "needs_backbone", False)
        # A language model that is trained acts in any text.
        reads = cell.backbone != NO_BACKBONE and not needs_backbone
        lists_commands = await self._lists_commands(cell.task)
        if getattr(maker, "needs_commands", False) and not lists_commands and not reads:
            reason = f"{cell.method} chooses among listed commands, and {cell.task} lists none"
            raise _NotRun("not applicable", reason)
        async with contextlib.AsyncExitStack() as stack:
            backbone = _backbone(cell.backbone) if needs_backbone else None
            stack.push_async_callback(_close, backbone)
            method = method_of(
                cell.method,
                Cell(
                    task=cell.task,
                    task_config=config.task_configs.get(cell.task, {}),
                    backbone=backbone,
                    seed=cell.seed,
                    steps=config.training_steps,
                    folder=cell.folder(Path(config.output_dir)),
                    settings=config.settings_of(cell.method),
                ),
            )
            stack.push_async_callback(method.aclose)
            if method.trains:
                method.cell.folder.mkdir(parents=True, exist_ok=True)
                measures = dict(await method.train())
                # A second run only loads the result of the first: its measurements say nothing.
                if (id_ := f"{cell.id}/training") not in rows:
                    row = {"id": id_, "kind": "training", **asdict(cell)}
                    more = {"steps": config.training_steps, "measures": measures}
                    rows.add({**row, **more, "curve": method.curve})
            await self._evaluate(method, cell, missing, rows)

    async def _lists_commands(self, task: str) -> bool:
        """Make the environment and reset it: some look for their data when an episode begins."""
        if task not in self._tasks:
            try:
                async with self._environment(task, {}) as (environment, thread):
                    _, info = await _begin(thread, environment.reset, seed=0)
                self._tasks[task] = bool(info["commands"])
            except Exception as error:  # the next cell must not wait as long again
                self._tasks[task] = error
        found = self._tasks[task]
        if isinstance(found, Exception):
            raise found
        return found

    @contextlib.asynccontextmanager
    async def _environment(
        self, task: str, needed: Mapping[str, Any]
    ) -> AsyncIterator[tuple[Any, EnvironmentThread]]:
        """Make an environment and the thread that calls it; close it, after a step it is in."""
        config, thread = self.config, EnvironmentThread()
        settings = {
            **config.task_configs.get(task, {}),
            **config.evaluation_task_configs.get(task, {}),
            **needed,
        }
        limits = {"timeout": config.environment_timeout, "imports": config.worker_imports}
        try:
            environment = await _begin(thread, environment_of, task, settings, **limits)
            try:
                yield environment, thread
            finally:
                closing = asyncio.gather(thread.call(environment.close), return_exceptions=True)
                await asyncio.wait({closing}, timeout=_PATIENCE)
        finally:
            thread.close()

    async def _evaluate(
        self, method: Method, cell: CellName, missing: list[int], rows: Rows
    ) -> None:
        queue, config, ends = list(reversed(missing)), self.config, list[str]()
        is_whole, few = len(missing) == config.num_episodes, min(_ERRORS, config.num_episodes)

        async def work() -> None:
            while queue:
                async with self._environment(cell.task, method.environment_settings) as made:
                    policy = method.policy()
                    try:
                        # After a time-out or an error it may be within a step, or broken.
                        while queue and await play(*made, policy) not in ("timeout", "error"):
                            pass
                    finally:
                        await _close(policy)

        async def play(environment: Any, thread: EnvironmentThread, policy: Policy) -> str:
            number = queue.pop()
            episode = await run_episode(
                environment,
                policy,
                config.episode_seed(cell.seed, number),
                max_steps=config.max_steps_per_episode,
                timeout=config.evaluation_timeout,
                keep_turns=config.save_detailed_results and number < _DETAILED,
                thread=thread,
            )
            ends.append(episode.ended)
            rows.add(_row(cell, number, episode))
            # Nothing but errors shows nothing of the method.
            if is_whole and len(ends) >= few and set(ends) == {"error"}:
                text = f"all of the first {len(ends)} episodes ended with an error"
                raise RuntimeError(f"{text}, such as {episode.error}")
            return episode.ended

        await all_of([work() for _ in range(min(config.parallel_episodes, len(missing)))])


def _row(cell: CellName, number: int, episode: Episode) -> dict[str, Any]:
    data = asdict(episode)
    return {
        "id": f"{cell.id}/{number}",
        "kind": "episode",
        **asdict(cell),
        "episode": number,
        "environment_seed": data.pop("seed"),
        **data.pop("usage"),
        **data,
        # An environment may report success during an episode, and end otherwise.
        "success": episode.success and episode.ended == "terminated",
        "error": None if episode.error is None else episode.error[:_LONGEST_ERROR],
    }


def _backbone(name: str) -> Any:
    """Make the language model of a name."""
    from echoic.agents import backbones  # brings torch or httpx

    status = backbones.backbone_status(name)
    if not status.startswith("ready"):
        raise _NotRun("skipped", status.removeprefix("skipped: "))
    return backbones.make_backbone(name)


async def _close(used: Any) -> None:
    """Close a policy or language model that can be closed."""
    if hasattr(used, "aclose"):
        await used.aclose()


async def _begin(
    thread: EnvironmentThread, make: Callable[..., Any], *args: Any, **named: Any
) -> Any:
    try:
        return await asyncio.wait_for(thread.call(make, *args, **named), _BEGINNING)
    except asyncio.TimeoutError:
        raise TimeoutError(
            f"making the environment, or its first reset, took longer than {_BEGINNING:g} s"
        ) from None
