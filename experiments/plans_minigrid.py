"""Whether a plan helps in MiniGrid's memory rooms, at equal steps and equal parameters.

MiniGrid-MemoryS7-v0: an object is seen near the start, and at a junction one of two objects is to
be walked to, the same one. The observation is the usual partial view of 7 by 7 cells. Only what
turns and walks is offered as an action; there is nothing to pick up or open.

Both arms are the same networks with the same settings. `plan` makes plans of the last nine states,
`window 0` of the current one. Reported are the episodes of the last fifth of the steps, as they
were acted: a success is an episode that ended at the right object.
"""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING, Any

import gymnasium
import minigrid  # noqa: F401 - registers its environments
import numpy as np
import torch
from echoic.agents.plans import LatentPlanningOptimizer, PlanningConfig
from echoic.agents.training import GAECalculator, PPOConfig, PPOLearner, PPOTrainingStep

from experiments._seeds import Rows, show, spread

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

ENVIRONMENT = "MiniGrid-MemoryS7-v0"
# What is in a cell of it: not seen, nothing, a wall, a key, a ball.
KINDS = np.array([0, 1, 2, 5, 6])
STATE_DIM = 7 * 7 * len(KINDS)
ACTION_DIM = 3
ENVS = 16
LENGTH = 64
STEPS = 20_480
ARMS = {"plan": None, "window 0": 0}
PLANS = PlanningConfig(
    embedding_dim=32,
    num_layers=1,
    num_heads=4,
    feedforward_factor=2,
    hidden_dim=64,
    learning_rate=1e-3,
)
PPO = PPOConfig(learning_rate=1e-3, target_kl=0.03, batch_size=256)


class Rooms:
    """Several environments side by side, which start again by themselves."""

    def __init__(self, seed: int) -> None:
        self._envs = [gymnasium.make(ENVIRONMENT) for _ in range(ENVS)]
        first = [env.reset(seed=seed * ENVS + i)[0] for i, env in enumerate(self._envs)]
        self.states = np.stack([_encode(one) for one in first])

    def step(self, actions: NDArray[Any]) -> tuple[Any, ...]:
        """Rewards, ends, cut-offs, and the states that the steps led to; then starts again."""
        rewards = np.zeros(ENVS, np.float32)
        done, cut = np.zeros(ENVS, bool), np.zeros(ENVS, bool)
        led_to = np.zeros_like(self.states)
        for i, env in enumerate(self._envs):
            seen, rewards[i], done[i], cut[i], _ = env.step(int(actions[i]))
            cut[i] &= not done[i]
            led_to[i] = _encode(seen)
            self.states[i] = _encode(env.reset()[0]) if done[i] or cut[i] else led_to[i]
        return rewards, done, cut, led_to


def run(out: Path, quick: bool) -> None:
    """Fill the rows of both arms and all seeds, and print them."""
    torch.set_num_threads(1)
    rows = Rows(out / "plans_minigrid.jsonl", ("arm", "seed", "steps"))
    seeds = range(2 if quick else 5)
    steps = 2_048 if quick else STEPS
    for seed in seeds:
        for arm in ARMS:
            if not rows.has(arm=arm, seed=seed, steps=steps):
                rows.add(_measure(arm, seed, steps))
                last = rows.rows[-1]
                print(f"seed {seed}, {arm}: {last['success']:.3f}", flush=True)
    found = {
        arm: sorted(rows.of(arm=arm, steps=steps), key=lambda row: row["seed"])[: len(seeds)]
        for arm in ARMS
    }
    lines = [
        {
            "arm": arm,
            "success": spread([row["success"] for row in own]),
            "mean reward": spread([row["reward"] for row in own]),
            "each seed": ", ".join(f"{row['success']:.2f}" for row in own),
        }
        for arm, own in found.items()
    ]
    gap = [a["success"] - b["success"] for a, b in zip(*found.values(), strict=True)]
    lines.append(
        {"arm": "difference", "success": spread(gap, "+.3f"), "mean reward": "", "each seed": ""}
    )
    show(f"{ENVIRONMENT} after {steps} steps, {len(seeds)} seeds", lines)


def _measure(arm: str, seed: int, steps: int) -> dict[str, Any]:
    began = time.process_time()
    torch.manual_seed(seed)
    planner = LatentPlanningOptimizer(STATE_DIM, ACTION_DIM, PLANS, "cpu", seed=seed)
    learner = PPOLearner(
        STATE_DIM, ACTION_DIM, PLANS.embedding_dim, PPO, "cpu", planner=planner, seed=seed
    )
    rooms = Rooms(seed)
    windows = planner.windows(ENVS, history=ARMS[arm])
    starts = np.ones(ENVS, bool)
    # The step at which each episode ended, and what it earned.
    episodes: list[tuple[int, float]] = []
    taken = 0
    while taken < steps:
        columns: dict[str, list[Any]] = {}
        for _ in range(LENGTH):
            window, mask = windows.push(rooms.states, starts)
            planned = planner.act(window, mask)
            rewards, done, cut, led_to = rooms.step(planned.action.numpy())
            taken += ENVS
            ended = done | cut
            episodes += [(taken, float(reward)) for reward in rewards[ended]]
            row = {
                "states": window[:, -1],
                "latent_plans": planned.prior.latent_plan,
                "actions": planned.action,
                "rewards": torch.as_tensor(rewards),
                "values": learner.get_value_estimate(window[:, -1], planned.prior.latent_plan),
                "log_probs": planned.log_prob,
                "dones": torch.as_tensor(done),
                "truncated": torch.as_tensor(cut),
                "final_values": _worth(planner, learner, windows, led_to, cut.any()),
                "starts": torch.as_tensor(starts),
                "windows": window,
                "masks": mask,
                "plan_noise": planned.prior.noise,
            }
            for name, value in row.items():
                columns.setdefault(name, []).append(value)
            starts = ended
        rollout = {name: torch.stack(values) for name, values in columns.items()}
        # Where an episode ended with the last step, what follows does not count.
        following = _worth(planner, learner, windows, rooms.states, True)
        learner.update(
            PPOTrainingStep.from_rollout(GAECalculator(PPO), next_values=following, **rollout)
        )
    last = [reward for step, reward in episodes if step > 0.8 * steps]
    parameters = sum(one.numel() for one in learner.parameters())
    return {
        "arm": arm,
        "seed": seed,
        "steps": steps,
        "success": float(np.mean([reward > 0 for reward in last])) if last else 0.0,
        "reward": float(np.mean(last)) if last else 0.0,
        "episodes": len(episodes),
        "curve": _curve(episodes, steps),
        "parameters": parameters,
        "cpu_seconds": round(time.process_time() - began, 1),
    }


@torch.no_grad()
def _worth(planner: Any, learner: Any, windows: Any, states: Any, needed: bool) -> Any:
    """The values of states that follow the last ones; zeros where nobody will look."""
    if not needed:
        return torch.zeros(ENVS)
    # In a copy: the next push is of the step that is taken.
    window, mask = copy.deepcopy(windows).push(states, torch.zeros(ENVS, dtype=torch.bool))
    return learner.get_value_estimate(window[:, -1], planner.encoder(window, mask))


def _curve(episodes: list[tuple[int, float]], steps: int) -> list[float | None]:
    """The share of successes in each tenth of the steps."""
    tenths: list[list[bool]] = [[] for _ in range(10)]
    for step, reward in episodes:
        tenths[min(9, int(10 * (step - 1) / steps))].append(reward > 0)
    return [round(float(np.mean(one)), 3) if one else None for one in tenths]


def _encode(seen: dict[str, Any]) -> NDArray[np.float32]:
    """What kind of thing each cell holds, one out of five."""
    return (seen["image"][..., :1] == KINDS).astype(np.float32).reshape(-1)
