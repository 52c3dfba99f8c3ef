"""CartPole, learned through Echoic: worker processes act, a learner in plain numpy trains by PPO.

A collector plays in worker processes and sends rollouts through the stream of a server. The learner
takes one, improves the policy and gives the collector its new weights. `train` puts the parts
together. Left out, to stay readable: normalised observations, schedules, saving the policy.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from echoic.collectors.gymnasium import GymnasiumCollector
from echoic.primitives import compute_gae

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Array = np.ndarray[Any, Any]
ENVIRONMENT, OBSERVATION, ACTIONS = "CartPole-v1", 4, 2
STEPS, ENVS = 64, 16  # of a batch; at least one environment for each worker
EPISODES = 100  # the score is the mean return of this many latest episodes


@dataclass(frozen=True)
class Options:
    """What the command line can set."""

    seed: int = 0
    workers: int = 4
    steps: int = 300_000
    target: float = 400.0
    out: Path = Path("demo-output")


def train(options: Options) -> tuple[Progress, Learner]:
    """Learn until the target is reached or the steps are used up; save the plot and the numbers."""
    learner, progress = Learner(options.seed), Progress(options)
    with GymnasiumCollector(
        ENVIRONMENT,
        options.workers * max(1, ENVS // options.workers),
        STEPS,
        act,
        weights=learner.params,
        num_workers=options.workers,
        seed=options.seed,
    ) as collector:
        program = f"{sys.executable} -m echoic"
        print(f"Watch it from another terminal: {program} top {collector.address}", flush=True)
        with view(progress) as show:
            while not progress.reached and progress.steps < options.steps:
                batch = collector.recv()
                learner.learn(batch)
                progress.add(batch, lag=collector.version - batch["versions"])
                collector.sync_weights(learner.params)
                show()
    save(progress)
    return progress, learner


def act(params: Array, obs: Array, rng: np.random.Generator) -> tuple[Array, dict[str, Array]]:
    """Choose an action in each environment by the weights; the policy of the workers."""
    log_probs = log_softmax(ACTOR.forward(split(params)[0], obs)[-1])
    actions = (log_probs + rng.gumbel(size=log_probs.shape)).argmax(axis=1)
    return actions, {"log_probs": log_probs[np.arange(len(actions)), actions]}


class Network:
    """A perceptron with tanh between its layers; its `params` are the caller's flat vector."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        self.shapes = list(itertools.pairwise(widths))
        self.size = sum(rows * columns + columns for rows, columns in self.shapes)

    def initial(self, rng: np.random.Generator, last_gain: float) -> Array:
        """Random weights, those of the last layer times `last_gain`, and zero biases."""
        params = np.zeros(self.size, np.float32)
        for weight, _ in self.layers(params):
            weight[...] = rng.normal(size=weight.shape) * np.sqrt(2 / len(weight))
        weight *= last_gain / np.sqrt(2)
        return params

    def layers(self, params: Array) -> list[tuple[Array, Array]]:
        """Views of `params` as (weight, bias) of each layer."""
        found = []
        for rows, columns in self.shapes:
            layer, params = np.split(params, [rows * columns + columns])
            found.append((layer[:-columns].reshape(rows, columns), layer[-columns:]))
        return found

    def forward(self, params: Array, inputs: Array) -> list[Array]:
        """The inputs `(n, widths[0])`, then the outputs of every layer."""
        outputs = [inputs]
        for weight, bias in self.layers(params):
            x = outputs[-1] @ weight + bias
            outputs.append(np.tanh(x) if len(outputs) < len(self.shapes) else x)
        return outputs

    def backward(self, params: Array, outputs: list[Array], d_output: Array) -> Array:
        """The gradient for `params`, given that for the last of `outputs`."""
        gradient = np.empty_like(params)
        pairs = list(zip(self.layers(params), self.layers(gradient), outputs[:-1], strict=True))
        for (weight, _), (d_weight, d_bias), x in reversed(pairs):
            np.matmul(x.T, d_output, out=d_weight)
            np.sum(d_output, axis=0, out=d_bias)
            d_output = (d_output @ weight.T) * (1 - x**2)  # of tanh, from its own output
        return gradient


class Adam:
    """Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2014)."""

    def __init__(self, size: int, learning_rate: float) -> None:
        self._rate, self._steps = learning_rate, 0
        self._mean, self._square = np.zeros(size, np.float32), np.zeros(size, np.float32)

    def step(self, params: Array, gradient: Array) -> None:
        """Move `params` in place, against `gradient`."""
        self._steps += 1
        self._mean += 0.1 * (gradient - self._mean)
        self._square += 0.001 * (gradient**2 - self._square)
        square = self._square / (1 - 0.999**self._steps)
        params -= self._rate / (1 - 0.9**self._steps) * self._mean / (np.sqrt(square) + 1e-5)


#: The policy (observation to logits) and the value function; their parameters lie in one vector.
ACTOR, CRITIC = Network((OBSERVATION, 64, 64, ACTIONS)), Network((OBSERVATION, 64, 64, 1))
LEARNING_RATE, EPOCHS, MINIBATCH, MAX_GRADIENT = 1e-3, 6, 256, 0.5
DISCOUNT, TRACE, CLIP, ENTROPY_BONUS, VALUE_WEIGHT = 0.99, 0.95, 0.2, 0.01, 0.5


def split(params: Array) -> tuple[Array, Array]:
    """Views of the parameters of the policy and of the value function."""
    return params[: ACTOR.size], params[ACTOR.size :]


def log_softmax(logits: Array) -> Array:
    """The log-probabilities of actions, a row for each observation."""
    logits = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))


def ppo_loss(params: Array, data: dict[str, Array], clip: float = CLIP) -> tuple[float, Array]:
    """The loss of PPO and its gradient; Schulman et al. (2017), arXiv:1707.06347.

    The mean of ``-min(r A, clip(r, 1 - ε, 1 + ε) A) - bonus * H + weight * (value - target)² / 2``
    with the ratio r of an action's probabilities now and then, advantage A, and entropy H.
    """
    (actor, critic), n = split(params), len(data["actions"])
    chosen = np.arange(n), data["actions"]
    hidden, values = ACTOR.forward(actor, data["obs"]), CRITIC.forward(critic, data["obs"])
    log_probs = log_softmax(hidden[-1])
    probs = np.exp(log_probs)
    entropy = -(probs * log_probs).sum(axis=1)
    ratio = np.exp(log_probs[chosen] - data["log_probs"])
    plain = ratio * data["advantages"]
    clipped = np.clip(ratio, 1 - clip, 1 + clip) * data["advantages"]
    error = values[-1][:, 0] - data["targets"]
    loss = -np.minimum(plain, clipped) - ENTROPY_BONUS * entropy + VALUE_WEIGHT * error**2 / 2
    # The clipped part is constant. A logit raises the log-probability of its own action and lowers
    # that of all actions by its probability; dH/dlogit = -p (log p + H).
    d_chosen = np.where(plain <= clipped, -plain, 0)
    d_logits = -probs * d_chosen[:, None] + ENTROPY_BONUS * probs * (log_probs + entropy[:, None])
    d_logits[chosen] += d_chosen
    d_actor = ACTOR.backward(actor, hidden, d_logits / n)
    d_critic = CRITIC.backward(critic, values, VALUE_WEIGHT * error[:, None] / n)
    return float(loss.mean()), np.concatenate([d_actor, d_critic])


class Learner:
    """Parameters that improve with every batch."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        # The first policy is nearly uniform.
        initial = ACTOR.initial(self._rng, 0.01), CRITIC.initial(self._rng, 1.0)
        self.params = np.concatenate(initial)
        self._adam = Adam(len(self.params), LEARNING_RATE)

    def values(self, obs: Array) -> Array:
        """The expected discounted return after `obs`; any leading axes."""
        outputs = CRITIC.forward(split(self.params)[1], obs.reshape(-1, OBSERVATION))
        return outputs[-1].reshape(obs.shape[:-1])

    def learn(self, batch: dict[str, Array]) -> None:
        """Train on a rollout, its leaves `(steps, environments, ...)`."""
        following = self.values(batch["next_observations"])
        steps = batch["rewards"], self.values(batch["observations"]), batch["terminated"]
        cut: dict[str, Any] = {
            "truncated": batch["truncated"],
            "final_values": following,
            "time_axis": 0,
        }
        advantages, targets = compute_gae(*steps, following[-1], DISCOUNT, TRACE, **cut)
        data = {
            "obs": batch["observations"].reshape(-1, OBSERVATION),
            "actions": batch["actions"].ravel(),
            "log_probs": batch["log_probs"].ravel(),
            "advantages": (advantages.ravel() - advantages.mean()) / (advantages.std() + 1e-8),
            "targets": targets.ravel(),
        }
        for _ in range(EPOCHS):
            order, parts = self._rng.permutation(targets.size), max(1, targets.size // MINIBATCH)
            for part in np.array_split(order, parts):
                _, gradient = ppo_loss(self.params, {name: x[part] for name, x in data.items()})
                gradient *= min(1.0, MAX_GRADIENT / float(np.linalg.norm(gradient)))
                self._adam.step(self.params, gradient)

    def evaluate(self, episodes: int, seed: int) -> list[float]:
        """The returns of whole episodes played greedily, apart from all training."""
        env, returns = gymnasium.make(ENVIRONMENT), [0.0] * episodes
        for episode in range(episodes):
            (obs, _), over = env.reset(seed=seed + episode), False
            while not over:
                logits = ACTOR.forward(split(self.params)[0], obs[None])[-1]
                obs, reward, terminated, truncated, _ = env.step(int(logits.argmax()))
                returns[episode], over = returns[episode] + float(reward), terminated or truncated
        return returns


class Progress:
    """The numbers behind the view, the plot and the verdict: a row for each batch."""

    def __init__(self, options: Options) -> None:
        self.options, self._began = options, time.monotonic()
        self.rows: list[dict[str, float]] = []
        self.returns: list[float] = []  # of training episodes
        self.seconds, self.steps, self.mean_return = 0.0, 0, 0.0

    def add(self, batch: dict[str, Array], lag: Array) -> None:
        """Record a batch; `lag` is how many versions behind its policy was."""
        returns = batch["episode_returns"]
        self.returns += returns[~np.isnan(returns)].tolist()
        self.seconds, self.steps = time.monotonic() - self._began, self.steps + returns.size
        self.mean_return = float(np.mean(self.returns[-EPISODES:])) if self.returns else 0.0
        row = {"seconds": self.seconds, "steps": self.steps, "episodes": len(self.returns)}
        self.rows.append(row | {"mean_return": self.mean_return, "lag": float(lag.mean())})

    @property
    def reached(self) -> bool:
        """Whether the score is at the target: fewer than `EPISODES` episodes do not count."""
        return len(self.returns) >= EPISODES and self.mean_return >= self.options.target


@contextlib.contextmanager
def view(progress: Progress) -> Iterator[Callable[[], None]]:
    """Show how far it is: bars in a terminal, else a line every two seconds."""
    from rich.progress import Progress as Bars

    latest = 0.0
    bars = Bars(*Bars.get_default_columns(), "{task.completed:,.0f} of {task.total:,.0f}")
    mean = bars.add_task("mean return", total=progress.options.target)
    steps = bars.add_task("steps", total=progress.options.steps)

    def show() -> None:
        nonlocal latest
        bars.update(mean, completed=progress.mean_return)
        bars.update(steps, completed=progress.steps)
        if not bars.console.is_terminal and progress.seconds >= latest:
            latest, rate = progress.seconds + 2, progress.steps / progress.seconds
            at = f"{progress.seconds:6.1f} s  {progress.steps:9,d} steps  {rate:8,.0f} steps/s"
            print(f"{at}  mean return {progress.mean_return:6.1f}", flush=True)

    with bars if bars.console.is_terminal else contextlib.nullcontext():
        yield show


def save(progress: Progress) -> None:
    """Write the numbers to ``cartpole.json`` and draw them into ``cartpole.png``."""
    from matplotlib.figure import Figure

    out, steps = progress.options.out, [row["steps"] for row in progress.rows]
    out.mkdir(parents=True, exist_ok=True)
    (out / "cartpole.json").write_text(json.dumps(progress.rows, indent=1))
    axes = (figure := Figure(figsize=(9, 6), layout="constrained")).subplots()
    ended = np.diff([0, *(int(row["episodes"]) for row in progress.rows)])
    axes.plot(np.repeat(steps, ended), progress.returns, ".", alpha=0.25, label="an episode")
    axes.plot(steps, [row["mean_return"] for row in progress.rows], label="mean of the latest")
    axes.axhline(progress.options.target, color="tab:green", linestyle="--", label="target")
    axes.set(title=f"{ENVIRONMENT}, learned through Echoic", xlabel="steps", ylabel="return")
    axes.legend(loc="lower right")
    figure.savefig(out / "cartpole.png", dpi=120)


def report(progress: Progress, evaluation: list[float]) -> None:
    """Print the last lines of a run."""
    options, said = progress.options, "Reached" if progress.reached else "Missed"
    steps, mean = f"{progress.steps:,d} steps", f"{progress.mean_return:.1f}"
    print(f"{said} the target of {options.target:g} after {steps} and {progress.seconds:.1f} s.")
    print(f"Greedy evaluation, {len(evaluation)} episodes: mean return {np.mean(evaluation):.1f}.")
    print(f"The plot is in {options.out}/cartpole.png; mean return of training: {mean}")
