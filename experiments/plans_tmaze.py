"""What the weight of a plan's changes does to the plan: the T-maze of `examples.tmaze`, swept.

Three costs are compared. `guarded` is the package's: a mean over dimensions with free bits, divided
by a running scale, its weight grown from 0. `literal` is the plain formula: the divergence summed
over dimensions, at full weight from the first update on. `fixed` is that with a standard deviation
that can't be learned, as it was published. `none` has a plan of the current state alone.

Each row is a run: the share of right turns of the likeliest actions in fresh mazes, and how often a
linear classifier reads the cue from plans at the junction.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from echoic.agents.plans import PlanDivergence
from torch.distributions import kl_divergence

from examples import tmaze
from experiments._seeds import Rows, show, spread

if TYPE_CHECKING:
    from pathlib import Path

ITERATIONS = 40
ARMS = [
    ("fixed", 0.1),
    ("none", 0.1),
    ("guarded", 0.1),
    ("literal", 0.1),
    ("fixed", 1e-3),
    ("guarded", 0.0),
    ("guarded", 1.0),
]


class LiteralDivergence(PlanDivergence):
    """The sum over dimensions, with no guard."""

    @property
    def weight(self) -> float:
        """All of it, from the start."""
        return self.config.kl_weight

    def forward(self, current: Any, previous: Any, pairs: Any) -> tuple[Any, Any]:
        """The sum, and the mean per dimension that is reported."""
        each = kl_divergence(current, previous.detach())
        weight = pairs.to(each.dtype)
        count = weight.sum().clamp(min=1.0)
        cost = (each.sum(dim=-1) * weight).sum() / count
        return cost, (each.detach().mean(dim=-1) * weight).sum() / count


def run(out: Path, quick: bool) -> None:
    """Fill the rows of all arms and seeds, and print their means."""
    torch.set_num_threads(1)
    rows = Rows(out / "plans_tmaze.jsonl", ("form", "kl_weight", "seed", "iterations"))
    seeds = range(1 if quick else 3)
    iterations = 5 if quick else ITERATIONS
    for seed in seeds:
        for form, weight in ARMS:
            if not rows.has(form=form, kl_weight=weight, seed=seed, iterations=iterations):
                rows.add(_measure(form, weight, seed, iterations))
    lines = []
    for form, weight in ARMS:
        found = rows.of(form=form, kl_weight=weight, iterations=iterations)
        success = [row["success"] for row in found]
        lines.append(
            {
                "cost": form,
                "kl_weight": weight,
                "right turns": spread(success),
                "worst": min(success),
                "cue read from plan": float(np.mean([row["probe"] for row in found])),
            }
        )
    show(f"T-maze after {iterations * 64} episodes, means over {len(seeds)} seeds", lines)


def _measure(form: str, weight: float, seed: int, iterations: int) -> dict[str, Any]:
    began = time.process_time()
    history = 0 if form == "none" else None
    trained = tmaze.train(
        seed,
        history=history,
        iterations=iterations,
        planning=tmaze.small_plans(kl_weight=weight, std_range=1.0 if form == "fixed" else 10.0),
        divergence=LiteralDivergence if form in {"literal", "fixed"} else None,
    )
    return {
        "form": form,
        "kl_weight": weight,
        "seed": seed,
        "iterations": iterations,
        "success": tmaze.evaluate(trained, seed=1000 + seed, history=history),
        "acted": float(np.mean(trained.success[-5:])),
        "probe": tmaze.probe(trained, seed=2000 + seed, history=history),
        "plan_divergence": trained.metrics["plan_divergence"],
        "kl_scale": float(trained.planner.divergence.scale),
        "cpu_seconds": round(time.process_time() - began, 2),
    }
