"""A training run with its files: a log, metrics line by line, and a report.

``echoic train`` and ``examples/train_echo_rl.py`` wrap an
:class:`~echoic.agents.training.EchoRLTrainer` in these.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from echoic.agents.monitoring import MetricsLogger, PerformanceMonitor
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["LOG_LEVELS", "log_to", "watch_training"]

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
# Names of the trainer's numbers, and of the monitor's.
_NUMBERS = {
    "policy_losses": "policy_loss",
    "value_losses": "value_loss",
    "kl_divergences": "kl_divergence",
    "entropy_losses": "entropy_loss",
    "episode_rewards": "total_reward",
    "episode_lengths": "episode_length",
    "success_rates": "success_rate",
    "kv_cache_hit_rates": "kv_cache_hit_rate",
    "tokens_per_second": "tokens_per_second",
    "bandwidth_efficiency": "bandwidth_efficiency",
}


@contextmanager
def log_to(path: Path, level: str) -> Iterator[None]:
    """Append log records of Echoic, from a level on, to a file."""
    if level not in LOG_LEVELS:
        raise ArgumentError(f"a log level must be one of {', '.join(LOG_LEVELS)}, not {level!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    logger, handler = logging.getLogger("echoic"), logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
        handler.close()


async def watch_training(
    trainer: Any,
    folder: Path,
    *,
    report: Callable[[str], None] = lambda _: None,
    interval: float = 1.0,
) -> Any:
    """Train, and write ``training_metrics.log`` and ``performance_report.json`` to a folder.

    Args:
        trainer: An :class:`~echoic.agents.training.EchoRLTrainer`.
        folder: Folder of the files.
        report: Called with a line of text for every evaluation.
        interval: Seconds between two lines of metrics.

    Returns:
        The trainer's metrics.
    """
    with PerformanceMonitor() as monitor:
        log = MetricsLogger(folder / "training_metrics.log")
        monitor.add_performance_callback(log.log_metrics)
        reported = 0

        def log_metrics() -> None:
            nonlocal reported
            metrics = trainer.get_training_metrics()
            lists = {short: getattr(metrics, name) for name, short in _NUMBERS.items()}
            latest = {short: values[-1] for short, values in lists.items() if values}
            monitor.log_metrics(metrics.total_timesteps, metrics.total_episodes, latest)
            shown = (metrics.history[name] for name in ("step", "success_rate", "avg_reward"))
            for step, rate, reward in list(zip(*shown, strict=False))[reported:]:
                reported += 1
                report(f"step {step:,d}: success {rate:.3f}, reward {reward:.3f}")

        async def watch() -> None:
            while True:
                await asyncio.sleep(interval)
                log_metrics()

        watching = asyncio.create_task(watch())
        try:
            return await trainer.train()
        finally:
            watching.cancel()
            log_metrics()
            monitor.export_performance_data(folder / "performance_report.json")
