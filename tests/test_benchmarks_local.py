"""The suite of local buffers measures plain numpy, and refuses what is wrong in any way.

No test here looks at a speed. Peers that need a package index are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from benchmarks.content import ContentError
from benchmarks.local import cartpole, oracles, probes
from benchmarks.local.draws import Draws, PrioritizedDraws
from benchmarks.local.engine import ALPHA, BETA, Engine, Plan
from benchmarks.local.items import NAMES, Rows
from benchmarks.local.suite import workloads
from benchmarks.peers import PEERS, Peer, environment, rlox
from benchmarks.peers.numpy_ring import Collector, Environments, Numpy, Prioritized, Ring
from benchmarks.timing import UnavailableError, interleave

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WORKLOADS = {workload.name: workload for workload in workloads(quick=True)}
STORES = [name for name in WORKLOADS if name.startswith(("push", "extend", "sample", "prior"))]
# The same sessions without those of a million rows, which only take longer to fill.
SMALLER = [name for name in STORES if not name.endswith("_1m")]
DRAWS = [name for name in STORES if name.startswith(("sample", "prior"))]
CALLS = [name for name in WORKLOADS if name.startswith(("gae", "vtrace", "token", "group"))]


def measured(name: str, engine: Engine) -> list[float]:
    rounds = interleave({"it": lambda: WORKLOADS[name].session(engine)}, repeats=1)
    return rounds.values("it")


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_measures_plain_numpy(name: str) -> None:
    (value,) = measured(name, Numpy())
    assert value > 0


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_an_engine_has_not_is_told_and_no_error(name: str) -> None:
    class Empty(Engine):
        name = "empty"

    rounds = interleave({"it": lambda: WORKLOADS[name].session(Empty())}, repeats=1)
    assert rounds.unavailable["it"].startswith("empty has no ")


# What is wrong with a buffer.


class Faulty(Numpy):
    """Plain numpy whose buffers have a fault, which is a function of a class of theirs."""

    def __init__(self, fault: Callable[[type[Ring]], type[Ring]]) -> None:
        self.fault = fault

    def store(self, plan: Plan) -> Ring:
        return self.fault(Prioritized if plan.prioritized else Ring)(plan)


def flips_a_bit(base: type[Ring]) -> type[Ring]:
    class Flipping(base):  # type: ignore[misc, valid-type]
        def sample(self, size: int) -> Any:
            drawn = super().sample(size)
            drawn["next_obs"][-1:].reshape(-1).view(np.uint8)[-1] ^= 1
            return drawn

    return Flipping


def loses_a_row(base: type[Ring]) -> type[Ring]:
    class Losing(base):  # type: ignore[misc, valid-type]
        def __len__(self) -> int:
            return super().__len__() - 1

    return Losing


def gives_a_short_batch(base: type[Ring]) -> type[Ring]:
    class Short(base):  # type: ignore[misc, valid-type]
        def sample(self, size: int) -> Any:
            return super().sample(size - 1)

    return Short


def repeats_itself(base: type[Ring]) -> type[Ring]:
    class Repeating(base):  # type: ignore[misc, valid-type]
        def sample(self, size: int) -> Any:
            self._rng = np.random.default_rng(1)
            return super().sample(size)

    return Repeating


def prefers_new_rows(base: type[Ring]) -> type[Ring]:
    class Preferring(base):  # type: ignore[misc, valid-type]
        def sample(self, size: int) -> Any:
            drawn: Any = self._rows(self._rng.integers(self._size // 10, self._size, size))
            return drawn

    return Preferring


def forgets_updates(base: type[Ring]) -> type[Ring]:
    class Forgetting(base):  # type: ignore[misc, valid-type]
        def update(self, indices: Any, priorities: Any) -> None:
            super().update(indices, np.ones(len(indices)))

    return Forgetting


def draws_evenly(base: type[Ring]) -> type[Ring]:
    class Even(base):  # type: ignore[misc, valid-type]
        def sample(self, size: int) -> Any:
            index = self._rng.integers(0, self._size, size)
            weights = self._sums[index + self._leaves] ** -BETA
            return {**self._rows(index), "indices": index, "weights": weights}

    return Even


def gives_other_weights(base: type[Ring]) -> type[Ring]:
    class Other(base):  # type: ignore[misc, valid-type]
        def sample(self, size: int) -> Any:
            drawn = super().sample(size)
            return {**drawn, "weights": drawn["weights"] ** 1.1}

    return Other


@pytest.mark.parametrize(
    ("fault", "spoils"),
    [
        (flips_a_bit, SMALLER),
        (loses_a_row, SMALLER),
        (gives_a_short_batch, SMALLER),
        (repeats_itself, ["push_small", "extend_small", "sample_small_100k", "sample_images"]),
        (prefers_new_rows, ["sample_small_100k", "sample_small_1m"]),
        (forgets_updates, ["prioritized_100k"]),
        (draws_evenly, ["prioritized_100k"]),
        (gives_other_weights, ["prioritized_1m"]),
    ],
)
def test_a_buffer_that_is_wrong_gives_no_number(fault: Any, spoils: list[str]) -> None:
    for name in spoils:
        with pytest.raises(ContentError):
            measured(name, Faulty(fault))


def test_distribution_of_priorities_is_checked_in_itself() -> None:
    items, priorities = Rows("small"), np.linspace(0.5, 1.5, 1000)
    rng = np.random.default_rng(3)
    chances = priorities**ALPHA / (priorities**ALPHA).sum()

    def draw(p: Any) -> PrioritizedDraws:
        draws = PrioritizedDraws(items, priorities)
        for _ in range(16):
            numbers = rng.choice(1000, 256, p=p)
            weights = priorities[numbers] ** (-ALPHA * BETA)
            draws.check({**items.columns(numbers), "weights": weights}, 256)
        return draws

    draw(chances).check_distribution()
    with pytest.raises(ContentError, match="not drawn by priority"):
        draw(None).check_distribution()


def test_row_that_is_not_in_the_buffer_is_refused() -> None:
    items = Rows("small")
    with pytest.raises(ContentError, match="has no row 0 or 100"):
        Draws(items, 100).check(items.columns(np.array([0, 100])), 2)


@pytest.mark.parametrize(("kind", "nbytes"), [("small", 42), ("image", 56_462)])
def test_rows_tell_their_numbers(kind: Any, nbytes: int) -> None:
    items = Rows(kind)
    numbers = np.array([0, 5, 999_999, 62, 61])
    columns = items.columns(numbers)
    assert items.nbytes == nbytes
    assert tuple(columns) == NAMES
    assert np.array_equal(items.check(columns, 5), numbers)
    (obs, action, reward, terminated, truncated, following) = items.pushes(9)[8]
    assert action.shape == (1,)
    assert (reward, terminated, truncated) == (8.0, False, False)
    assert not np.array_equal(obs, following)


# What is wrong with a primitive.


class Spoiled(Numpy):
    """Plain numpy with one number of a result changed."""

    def outputs(self, case: Any, result: Any) -> Any:
        results = [each.copy() for each in super().outputs(case, result)]
        last = results[-1].reshape(-1)
        last[-1] += 0.1
        return tuple(results)


@pytest.mark.parametrize("name", CALLS)
def test_primitive_with_one_wrong_number_gives_none(name: str) -> None:
    with pytest.raises(ContentError, match=r"off by 0\.1"):
        measured(name, Spoiled())


@pytest.mark.parametrize("name", CALLS)
def test_primitive_of_another_dtype_gives_no_number(name: str) -> None:
    class Other(Numpy):
        def outputs(self, case: Any, result: Any) -> Any:
            return tuple(each.astype(np.longdouble) for each in super().outputs(case, result))

    with pytest.raises(ContentError, match=r"got .* (float128|longdouble)"):
        measured(name, Other())


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda tokens, positions: (tokens[1:], positions[1:]), "missing, cut or there twice"),
        (
            lambda tokens, positions: (
                [*tokens[:-1], tokens[-1][:-1]],
                [*positions[:-1], positions[-1][:-1]],
            ),
            "not whole",
        ),
        (
            lambda tokens, positions: (
                [np.concatenate(tokens[:2]), *tokens[2:]],
                [np.concatenate(positions[:2]), *positions[2:]],
            ),
            "a bin of .* tokens",
        ),
        (lambda tokens, positions: ([t[:1] for t in tokens] * 99, positions), "are enough"),
    ],
)
def test_packing_that_is_wrong_gives_no_number(spoil: Any, message: str) -> None:
    class Wrong(Numpy):
        def outputs(self, case: Any, result: Any) -> Any:
            return spoil(*super().outputs(case, result))

    with pytest.raises(ContentError, match=message):
        measured("pack_sequences", Wrong())


def test_estimators_of_the_peer_are_not_the_divergence_that_they_are_named_for() -> None:
    # Tokens that are drawn from p: the mean over many is to be the divergence from q.
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    due = float((p * np.log(p / q)).sum())
    tokens = np.random.default_rng(1).choice(3, 300_000, p=p)
    arguments = np.log(p)[tokens], np.log(q)[tokens], 1
    for name in ("compute_batch_token_kl", "compute_batch_token_kl_schulman"):
        (ours,), (theirs,) = oracles.ORACLES[name](*arguments), rlox.ENGINE.oracle(name)(*arguments)
        assert ours.mean() == pytest.approx(due, rel=0.02)
        assert abs(theirs.mean() - due) > 0.1 * due


# What is wrong with a collector.


def spoiled_collector(name: str, change: Callable[[Any], None]) -> Numpy:
    class Wrong(Collector):
        def columns(self, batch: Any) -> Any:
            change(batch[name])
            return super().columns(batch)

    class Spoiling(Numpy):
        def collector(self, *, envs: int, steps: int, hidden: int) -> Collector:
            return Wrong(envs, steps, hidden)

    return Spoiling()


def changed(at: Any, by: float) -> Callable[[Any], None]:
    def change(column: Any) -> None:
        column[at] += by

    return change


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("observations", changed((5, 3, 1), 0.01), "observations: off by|does not begin"),
        ("advantages", changed((7, 2), 0.01), "advantages: off by"),
        ("returns", changed((-1, -1), 0.1), "returns: off by"),
        ("log_probs", changed((0, 0), 9.0), "probabilities above 1"),
        ("actions", changed(slice(None), 1), "observations: off by"),
    ],
)
def test_rollout_that_is_wrong_gives_no_number(name: str, change: Any, message: str) -> None:
    with pytest.raises(ContentError, match=message):
        measured("collect_cartpole", spoiled_collector(name, change))


def test_environment_that_never_ends_an_episode_gives_no_number() -> None:
    class Endless(Environments):
        def outcome(self, result: Any) -> Any:
            obs, over = super().outcome(result)
            return obs, np.zeros_like(over)

    class Wrong(Numpy):
        def environments(self, count: int) -> Environments:
            return Endless(count)

    with pytest.raises(ContentError):
        measured("step_cartpole", Wrong())


def test_numpy_cartpole_steps_as_gymnasium_does() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset(seed=4)
    rng = np.random.default_rng(4)
    for _ in range(500):
        before = np.array(env.state, np.float64)
        action = int(rng.integers(2))
        after, _, terminated, *_ = env.step(action)
        due = cartpole.advance(before[None], np.array([action]))
        np.testing.assert_allclose(after, due[0], rtol=1e-5, atol=1e-6)
        assert bool(cartpole.fell(due)[0]) == terminated
        if terminated:
            env.reset()


# What it is measured with.


def test_copies_are_checked_and_scaled() -> None:
    with probes.copies(1000, sources=3, targets=5, seconds=0.001) as measure:
        assert measure().value > 0
    with probes.copies(1000, sources=3, targets=5, seconds=0.001, scale=10) as measure:
        assert measure().value > 1000


def test_every_peer_of_the_targets_is_one_of_the_suite() -> None:
    peers = {peer.name for peer in PEERS if "local" in peer.kinds}
    asked = {target.peer for work in WORKLOADS.values() for target in work.targets}
    assert asked - {None} <= peers


def test_peer_that_stands_alone_is_installed_without_what_it_asks_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(environment, "ENVIRONMENTS", tmp_path)

    def run(command: list[str]) -> None:
        commands.append(command)
        (tmp_path / command[-1]).mkdir(exist_ok=True) if "venv" in command else None

    monkeypatch.setattr(environment, "_run", run)
    environment.interpreter(Peer("lonely", "1.0", "module", ("local",), alone=True))
    environment.interpreter(Peer("social", "1.0", "module", ("local",)))
    installs = [command for command in commands if "install" in command]
    assert ["--no-deps" in command for command in installs] == [True, False]


def test_peer_that_is_not_installed_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rlox.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UnavailableError, match="rlox is not installed"):
        rlox.ENGINE.store(Plan("small", 10))
