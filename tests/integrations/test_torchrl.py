"""Buffers and tables as torchrl's replay buffer, beside torchrl's own."""

from __future__ import annotations

import json
import os
import pickle
import re
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
from echoic import ReplayBuffer, Server, Table, selectors
from echoic.errors import DtypeError, PriorityError, ReplayError, SpecError

pytestmark = [
    pytest.mark.nightly,
    # What torchrl and tensordict say about themselves.
    pytest.mark.filterwarnings("default"),
]
torchrl = pytest.importorskip("torchrl", reason="no torchrl here")

import torch
from echoic.integrations.torchrl import TensorDictReplayBuffer
from gymnasium import spaces
from tensordict import TensorDict
from torchrl.data import (
    LazyTensorStorage,
    TensorDictPrioritizedReplayBuffer,
)
from torchrl.data import TensorDictReplayBuffer as Own
from torchrl.data.replay_buffers.scheduler import LinearScheduler
from torchrl.envs import RewardScaling

if TYPE_CHECKING:
    from collections.abc import Callable

CAPACITY = 100


def transitions(n: int, first: int = 0) -> TensorDict:
    """Transitions that each have their number in every entry."""
    numbers = torch.arange(first, first + n)
    column = numbers[:, None]
    return TensorDict(
        {
            "observation": column.expand(n, 4).float(),
            "action": numbers,
            "done": torch.zeros(n, 1, dtype=torch.bool),
            "next": {
                "observation": column.expand(n, 4).float() + 1,
                "reward": column.float(),
                "done": column % 2 == 1,
                "terminated": column % 2 == 1,
                "truncated": torch.zeros(n, 1, dtype=torch.bool),
            },
        },
        [n],
    )


def example() -> dict[str, Any]:
    """One of them as arrays."""

    def arrays(tree: dict[str, Any]) -> dict[str, Any]:
        return {
            key: arrays(value) if isinstance(value, dict) else value.numpy()
            for key, value in tree.items()
        }

    return arrays(transitions(1)[0].to_dict())


def table(**options: Any) -> Table:
    return Table("replay", example(), capacity=CAPACITY, **options)


OURS: dict[str, Callable[..., Any]] = {
    "number": lambda **options: TensorDictReplayBuffer(CAPACITY, **options),
    "prioritized": lambda **options: TensorDictReplayBuffer(CAPACITY, alpha=0.6, **options),
    "buffer": lambda **options: TensorDictReplayBuffer(
        ReplayBuffer(example(), CAPACITY), **options
    ),
    "table": lambda **options: TensorDictReplayBuffer(table(), **options),
}
ALL = {**OURS, "torchrl": lambda **options: Own(storage=LazyTensorStorage(CAPACITY), **options)}


@pytest.fixture(params=ALL)
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Make a replay buffer: torchrl's, which is the control, or one of ours."""
    return ALL[request.param]


@pytest.fixture(params=OURS)
def ours(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Make one of ours."""
    return OURS[request.param]


def assert_whole(sample: TensorDict, scale: float = 1.0) -> None:
    """Check that all entries of each row are of one transition."""
    numbers = sample["action"]
    assert torch.equal(sample["observation"], numbers[:, None].expand(-1, 4).float())
    assert torch.equal(sample["next", "observation"], sample["observation"] + 1)
    assert torch.equal(sample["next", "reward"], numbers[:, None].float() * scale)
    assert torch.equal(sample["next", "done"], numbers[:, None] % 2 == 1)


def test_a_sample_is_as_torchrls(ours: Callable[..., Any]) -> None:
    samples = []
    for buffer in (ours(), ALL["torchrl"]()):
        buffer.extend(transitions(60))
        samples.append(buffer.sample(32))
    ours_, control = samples
    skipped = {"index", "priority_weight"}
    leaves = set(control.keys(True, True)) - skipped
    assert set(ours_.keys(True, True)) - skipped == leaves
    for key in leaves:
        assert ours_[key].shape == control[key].shape, key
        assert ours_[key].dtype == control[key].dtype, key
    assert ours_.batch_size == control.batch_size
    assert ours_["next"].batch_size == control["next"].batch_size
    assert ours_.device == control.device
    assert_whole(ours_)


def test_the_last_transitions_are_kept(make: Callable[..., Any]) -> None:
    buffer = make(batch_size=256)
    assert len(buffer) == 0
    buffer.extend(transitions(90))
    buffer.add(transitions(1, first=90)[0])
    assert len(buffer) == 91
    buffer.extend(transitions(60, first=91))
    assert (len(buffer), buffer.write_count) == (100, 151)
    sample = buffer.sample()
    assert_whole(sample)
    assert 51 <= sample["action"].min() < 70
    assert 130 < sample["action"].max() <= 150


def test_the_buffer_can_be_emptied(make: Callable[..., Any]) -> None:
    buffer = make(batch_size=4)
    buffer.extend(transitions(10))
    assert buffer.can_sample()
    buffer.empty()
    assert len(buffer) == 0
    assert buffer.write_count == 0
    assert not buffer.can_sample()
    buffer.extend(transitions(10, first=50))
    assert buffer.sample()["action"].min() >= 50


def test_the_batch_size_is_the_constructors_or_the_calls(make: Callable[..., Any]) -> None:
    buffer = make(batch_size=16)
    buffer.extend(transitions(20))
    assert buffer.sample().batch_size == (16,)
    assert next(iter(buffer)).batch_size == (16,)
    buffer = make()
    buffer.extend(transitions(20))
    assert buffer.sample(8).batch_size == (8,)
    with pytest.raises(RuntimeError, match="batch_size"):
        buffer.sample()


def test_transforms_change_what_is_sampled(make: Callable[..., Any]) -> None:
    buffer = make(batch_size=16)
    buffer.append_transform(RewardScaling(loc=0.0, scale=0.5, in_keys=[("next", "reward")]))
    buffer.extend(transitions(20))
    assert_whole(buffer.sample(), scale=0.5)


def test_inverse_transforms_change_what_is_stored(make: Callable[..., Any]) -> None:
    def doubled(data: TensorDict) -> TensorDict:
        return data.set(("next", "reward"), data["next", "reward"] * 2)

    buffer = make(batch_size=16)
    buffer.append_transform(doubled, invert=True)
    buffer.extend(transitions(20))
    buffer.add(transitions(1, first=20)[0])
    assert_whole(buffer.sample(), scale=2.0)


def test_batches_are_prefetched(make: Callable[..., Any]) -> None:
    buffer = make(batch_size=16, prefetch=3)
    buffer.extend(transitions(20))
    for _ in range(10):
        assert_whole(buffer.sample())
    assert len(buffer._prefetch_queue) == 3
    buffer.shutdown()


@pytest.mark.parametrize("kind", ["number", "prioritized", "buffer", "torchrl"])
def test_a_state_has_the_transitions(kind: str, tmp_path: Path) -> None:
    buffer = ALL[kind](batch_size=16)
    buffer.extend(transitions(130))
    torch.save(buffer.state_dict(), tmp_path / "state.pt")
    # torchrl's own needs objects of tensordict.
    state = torch.load(tmp_path / "state.pt", weights_only=kind != "torchrl")
    other = ALL[kind](batch_size=16)
    other.load_state_dict(state)
    assert (len(other), other.write_count) == (100, 130)
    assert_whole(other.sample())
    buffer.dumps(tmp_path / "files")
    another = ALL[kind](batch_size=16)
    another.loads(tmp_path / "files")
    assert (len(another), another.write_count) == (100, 130)
    assert_whole(another.sample())
    if kind != "torchrl":
        expected = buffer.sample()["action"]
        assert torch.equal(another.sample()["action"], expected) is False
        again = ALL[kind](batch_size=16)
        again.load_state_dict(state)
        assert torch.equal(again.sample()["action"], expected)


def test_a_table_is_saved_by_its_server(tmp_path: Path) -> None:
    buffer = OURS["table"](batch_size=4)
    buffer.extend(transitions(10))
    buffer.load_state_dict(buffer.state_dict())
    assert len(buffer) == 10
    with pytest.raises(ReplayError, match=r"saved by its server, with checkpoint"):
        buffer.dumps(tmp_path / "files")


def test_transitions_can_be_read_and_not_changed(make: Callable[..., Any]) -> None:
    buffer = make()
    buffer.extend(transitions(10))
    assert_whole(buffer[:])
    assert buffer[:]["action"].tolist() == list(range(10))
    assert buffer[torch.tensor([3, 5])]["action"].tolist() == [3, 5]
    if not isinstance(buffer, TensorDictReplayBuffer):
        return
    numbers = torch.zeros(10, dtype=torch.int64)
    for change in (
        lambda: buffer.__setitem__(0, transitions(1)[0]),
        lambda: buffer.__setitem__("action", numbers),
        lambda: buffer.set_("action", numbers),
        lambda: buffer.set_at_("action", numbers[:1], torch.tensor([0])),
        lambda: buffer.update_({"action": numbers}),
    ):
        with pytest.raises(TypeError, match="can't be changed"):
            change()


def test_items_may_be_trajectories() -> None:
    buffer = TensorDictReplayBuffer(20)
    steps = transitions(40).reshape(8, 5)
    buffer.extend(steps)
    sample = buffer.sample(6)
    assert len(buffer) == 8
    assert (sample.batch_size, sample["next"].batch_size) == ((6, 5), (6, 5))
    assert_whole(sample.reshape(-1))


def test_a_saved_buffer_of_trajectories_gives_trajectories(tmp_path: Path) -> None:
    buffer = TensorDictReplayBuffer(20, batch_size=6)
    buffer.extend(transitions(40).reshape(8, 5))
    buffer.dumps(tmp_path)
    other = TensorDictReplayBuffer(20, batch_size=6)
    other.loads(tmp_path)
    assert other.sample().batch_size == (6, 5)
    # An empty one replaces what is there.
    TensorDictReplayBuffer(20).dumps(tmp_path)
    other.loads(tmp_path)
    assert len(other) == 0


def test_a_batch_that_is_held_never_changes(ours: Callable[..., Any]) -> None:
    buffer = ours(batch_size=16)
    buffer.extend(transitions(50))
    held = [buffer.sample() for _ in range(20)]
    rewards = [buffer.sample()["next", "reward"] for _ in range(20)]
    copies = [sample.clone() for sample in held]
    copied = [reward.clone() for reward in rewards]
    for _ in range(50):
        buffer.sample()
    assert all((one == copy).all() for one, copy in zip(held, copies, strict=True))
    assert all(map(torch.equal, rewards, copied))


def test_a_trajectory_has_one_priority() -> None:
    buffer = TensorDictReplayBuffer(20, alpha=1.0, batch_size=16)
    buffer.extend(transitions(40).reshape(8, 5))
    sample = buffer.sample()
    assert (sample["index"].shape, sample["priority_weight"].shape) == ((16, 5), (16, 5))
    sample["td_error"] = (sample["action"] == 12).float()
    buffer.update_tensordict_priority(sample)
    # Trajectories that were not in the sample have the priority of new ones.
    kept = set(range(8)) - {int(first) // 5 for first in sample["action"][:, 0]} | {2}
    found = {int(first) // 5 for first in buffer.sample()["action"][:, 0]}
    assert found <= kept


def test_the_seed_of_torch_repeats_draws() -> None:
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        buffer = TensorDictReplayBuffer(CAPACITY)
        buffer.extend(transitions(50))
        drawn.append(buffer.sample(32)["action"])
    assert torch.equal(*drawn)


def prioritized(beta: float = 0.5) -> dict[str, Any]:
    return {
        "number": TensorDictReplayBuffer(CAPACITY, alpha=0.7, beta=beta),
        "table": TensorDictReplayBuffer(table(sampler=selectors.Prioritized(0.7)), beta=beta),
        "torchrl": TensorDictPrioritizedReplayBuffer(
            alpha=0.7, beta=beta, storage=LazyTensorStorage(CAPACITY)
        ),
    }


@pytest.mark.parametrize("kind", ["number", "table", "torchrl"])
@pytest.mark.parametrize("axis", [False, True])
def test_transitions_are_drawn_by_their_priorities(kind: str, axis: bool) -> None:
    torch.manual_seed(0)
    buffer = prioritized()[kind]
    priorities = torch.arange(1.0, 21.0)
    buffer.extend(transitions(20))
    sample = buffer.sample(512)
    error = priorities[sample["action"]]
    sample["td_error"] = error[:, None] if axis else error
    buffer.update_tensordict_priority(sample)
    # All of the 20 were in the sample, but for a chance of 1e-10.
    mass = priorities**0.7
    expected = mass / mass.sum()
    counts = torch.zeros(20)
    for _ in range(20):
        counts += torch.bincount(buffer.sample(500)["action"], minlength=20)
    assert torch.allclose(counts / counts.sum(), expected, atol=0.015)
    sample = buffer.sample(256)
    # A table's largest weight is 1 in each batch, others' in the buffer.
    weights = (20 * expected[sample["action"]]) ** -0.5
    weights /= weights.max() if kind == "table" else (20 * expected.min()) ** -0.5
    assert sample["priority_weight"].dtype == torch.float32
    assert torch.allclose(sample["priority_weight"].flatten(), weights, atol=1e-4)


@pytest.mark.parametrize("kind", ["number", "table", "torchrl"])
def test_priorities_may_come_with_the_transitions(kind: str) -> None:
    buffer = prioritized()[kind]
    data = transitions(20)
    data["td_error"] = torch.where(data["action"] == 7, 1e6, 0.0)
    if kind == "table":  # which has no such field
        store = Table(
            "replay",
            {**example(), "td_error": np.float32(0)},
            capacity=CAPACITY,
            sampler=selectors.Prioritized(0.7),
        )
        buffer = TensorDictReplayBuffer(store)
    buffer.extend(data)
    assert (buffer.sample(64)["action"] == 7).float().mean() > 0.9


def test_an_index_of_a_transition_that_is_gone_changes_nothing() -> None:
    buffer = TensorDictReplayBuffer(20, alpha=1.0)
    buffer.extend(transitions(20))
    old = buffer.sample(64)
    buffer.extend(transitions(20, first=20))
    old["td_error"] = torch.full((64,), 1e6)
    buffer.update_tensordict_priority(old)
    counts = torch.bincount(buffer.sample(400)["action"], minlength=40)
    assert counts[20:].max() < 60


@pytest.mark.parametrize("kind", ["number", "table"])
def test_a_priority_that_is_no_number_changes_nothing(kind: str) -> None:
    buffer = prioritized()[kind]
    buffer.extend(transitions(20))
    sample = buffer.sample(8)
    sample["td_error"] = torch.full((8,), torch.nan)
    with pytest.raises(PriorityError):
        buffer.update_tensordict_priority(sample)
    assert_whole(buffer.sample(8))


def test_a_scheduler_changes_beta() -> None:
    buffer = TensorDictReplayBuffer(CAPACITY, alpha=1.0, beta=0.0)
    data = transitions(2)
    data["td_error"] = torch.tensor([1.0, 3.0])
    buffer.extend(data)
    scheduler = LinearScheduler(buffer, "beta", final_value=1.0, num_steps=1)
    assert buffer.sample(64)["priority_weight"].unique().tolist() == [1.0]
    scheduler.step()
    scheduler.step()
    found = buffer.sample(64)["priority_weight"].unique()
    assert torch.allclose(found, torch.tensor([1 / 3, 1.0]), atol=1e-5)


def test_a_uniform_buffer_warns_of_priorities_as_torchrls_does() -> None:
    buffer = TensorDictReplayBuffer(CAPACITY)
    buffer.extend(transitions(4))
    with pytest.warns(UserWarning, match="not prioritized"):
        buffer.update_priority(torch.tensor([0]), torch.tensor([1.0]))


def of_spaces(**options: Any) -> ReplayBuffer:
    box = spaces.Box(-1000, 1000, (4,), np.float32)
    return ReplayBuffer.from_spaces(box, spaces.Discrete(1000), CAPACITY, **options)


def test_the_form_of_all_libraries_has_torchrls_keys() -> None:
    store = of_spaces(next_obs="shared")
    buffer = TensorDictReplayBuffer(store, batch_size=32)
    buffer.extend(transitions(50))
    buffer.add(transitions(1, first=50)[0])
    batch = store.sample(16)
    assert np.array_equal(batch["rewards"], batch["actions"].astype(np.float32))
    assert np.array_equal(batch["terminated"], batch["actions"] % 2 == 1)
    assert np.array_equal(batch["next_obs"], batch["obs"] + 1)
    sample = buffer.sample()
    assert_whole(sample)
    assert sample["next", "reward"].shape == (32, 1)
    expected = {"observation", "action"} | {
        ("next", name) for name in ("observation", "reward", "done", "terminated", "truncated")
    }
    assert set(sample.keys(True, True)) == expected
    assert buffer[:]["action"].tolist() == list(range(51))


def test_dict_observations_are_entries_of_their_names() -> None:
    box = spaces.Dict({"image": spaces.Box(0, 255, (2, 2), np.uint8), "place": spaces.Discrete(9)})
    buffer = TensorDictReplayBuffer(ReplayBuffer.from_spaces(box, spaces.Discrete(2), 10))
    obs = {"image": torch.ones(3, 2, 2, dtype=torch.uint8), "place": torch.arange(3)}
    flags = torch.zeros(3, 1, dtype=torch.bool)
    ends = {"reward": torch.zeros(3, 1), "terminated": flags, "truncated": flags}
    buffer.extend(
        TensorDict({**obs, "action": torch.zeros(3, dtype=int), "next": {**obs, **ends}}, [3])
    )
    sample = buffer.sample(8)
    assert sample["image"].shape == (8, 2, 2)
    assert torch.equal(sample["next", "place"], sample["place"])


def test_what_does_not_fit_is_named() -> None:
    buffer = TensorDictReplayBuffer(of_spaces())
    with pytest.raises(SpecError, match=r"field `rewards`: expected a tensor at .*got nothing"):
        buffer.extend(transitions(4).exclude(("next", "reward")))
    one_hot = transitions(4)
    one_hot["action"] = torch.nn.functional.one_hot(torch.arange(4))
    with pytest.raises(SpecError, match="actions"):
        buffer.extend(one_hot)
    two = transitions(4)
    two["next", "reward"] = torch.zeros(4, 2)
    with pytest.raises(SpecError, match="rewards"):
        buffer.extend(two)
    assert len(buffer) == 0
    buffer = TensorDictReplayBuffer(CAPACITY)
    with pytest.raises(SpecError, match="`next/text`: expected a tensor, got a NonTensor"):
        buffer.extend(TensorDict({"next": TensorDict({"text": "a"}, [4])}, [4]))
    with pytest.raises(DtypeError, match=r"`next/a`: expected .*, got torch\.bfloat16"):
        buffer.extend(TensorDict({"next": {"a": torch.zeros(4, dtype=torch.bfloat16)}}, [4]))
    with pytest.raises(SpecError, match="expected a TensorDict, got a dict"):
        buffer._storage.extend({}, None)


def test_settings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TypeError, match=r"storage: expected .*, got a LazyTensorStorage"):
        TensorDictReplayBuffer(LazyTensorStorage(10))
    with pytest.raises(TypeError, match=r"a function that returns a table, got .* returns a int"):
        TensorDictReplayBuffer(lambda: 10)
    with pytest.raises(TypeError, match="sample_unit needs a storage with places"):
        TensorDictReplayBuffer(10, sample_unit=object())
    with pytest.raises(ReplayError, match=r"alpha=0.5: a Table has its own"):
        TensorDictReplayBuffer(table(), alpha=0.5)
    with pytest.raises(ReplayError, match=r"slice_len=4: expected a buffer with episodes=True"):
        TensorDictReplayBuffer(of_spaces(), slice_len=4)
    with pytest.raises(TypeError, match="can't be copied to another process"):
        pickle.dumps(TensorDictReplayBuffer(10))


def test_slices_are_consecutive_steps_of_one_episode() -> None:
    buffer = TensorDictReplayBuffer(of_spaces(episodes=True), slice_len=5, batch_size=20)
    data = transitions(30)
    ends = (data["action"] == 2) | (data["action"] == 19)
    data["next", "terminated"] = ends[:, None]
    buffer.extend(data)
    seen = set()
    for _ in range(50):
        sample = buffer.sample().reshape(4, 5)
        for piece in sample:
            mask = piece["collector", "mask"]
            steps = piece["action"][mask]
            assert torch.equal(steps, torch.arange(int(steps[0]), int(steps[0]) + len(steps)))
            assert (len(steps) == 5) == (int(steps[0]) > 2)
            assert piece["next", "truncated"][mask].flatten().nonzero().tolist() == [
                [len(steps) - 1]
            ]
            assert not piece["next", "terminated"][mask][:-1].any()
            seen.add(int(steps[0]))
    assert {0, 3, 15, 20, 25} <= seen
    with pytest.raises(ReplayError, match="slices of 5 steps"):
        buffer.sample(12)


@pytest.mark.timeout(600)
def test_a_process_collects_into_the_table_of_a_server() -> None:
    row = {"obs": np.zeros(4, np.float32), "actions": np.int64(0), "rewards": np.float32(0)}
    row |= {"terminated": False, "truncated": False, "next_obs": np.zeros(4, np.float32)}
    store = Table("replay", row, capacity=1000, sampler=selectors.Prioritized(0.6))
    with Server(store, listen="tcp://127.0.0.1:0") as server:
        path = os.pathsep.join([str(Path(echoic.__file__).parents[1]), *sys.path])
        worker = Path(__file__).with_name("torchrl_worker.py")
        subprocess.run(
            [sys.executable, str(worker), server.address, "200"],
            check=True,
            env={**os.environ, "PYTHONPATH": path},
            timeout=500,
        )
        with echoic.connect(server.address) as connection:
            make = partial(connection.table, "replay")
            buffer = TensorDictReplayBuffer(make, batch_size=64, beta=0.4)
            assert (len(buffer), buffer.write_count) == (200, 200)
            sample = buffer.sample()
            assert sample.batch_size == (64,)
            assert torch.equal(sample["next", "reward"], torch.ones(64, 1))
            # An action changes the velocity of the cart by 0.195.
            change = sample["next", "observation"][:, 1] - sample["observation"][:, 1]
            assert torch.equal(change > 0, sample["action"] == 1)
            sample["td_error"] = torch.full((64,), 4.0)
            buffer.update_tensordict_priority(sample)
            connection.flush()
            keys = np.unique(sample["index"].numpy()).view(np.uint64)
            assert np.allclose(store.get(keys).info.priorities, 4.0)
            copy = pickle.loads(pickle.dumps(buffer))
            assert copy.sample(8).batch_size == (8,)


def returns_of_dqn(make: Callable[[], Any], seed: int) -> float:
    """Train torchrl's DQN on CartPole, and return the mean length of its last episodes."""
    from tensordict.nn import TensorDictModule, TensorDictSequential
    from torchrl.collectors import Collector
    from torchrl.envs import StepCounter, TransformedEnv
    from torchrl.envs.libs.gym import GymEnv
    from torchrl.modules import MLP, EGreedyModule, QValueModule
    from torchrl.objectives import DQNLoss, SoftUpdate

    torch.manual_seed(seed)
    env = TransformedEnv(GymEnv("CartPole-v1", categorical_action_encoding=True), StepCounter())
    env.set_seed(seed)
    net = MLP(in_features=4, out_features=2, num_cells=[64, 64])
    value = TensorDictSequential(
        TensorDictModule(net, in_keys=["observation"], out_keys=["action_value"]),
        QValueModule(spec=env.action_spec),
    )
    greedy = EGreedyModule(env.action_spec, eps_init=1.0, eps_end=0.05, annealing_num_steps=3000)
    collector = Collector(
        env, TensorDictSequential(value, greedy), frames_per_batch=50, total_frames=8000
    )
    loss_module = DQNLoss(value, action_space=env.action_spec, delay_value=True)
    loss_module.make_value_estimator(gamma=0.99)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=1e-3)
    updater = SoftUpdate(loss_module, tau=0.01)
    buffer = make()
    lengths: list[float] = []
    for data in collector:
        buffer.extend(data)
        done = data["next", "done"].flatten()
        lengths += data["next", "step_count"].flatten()[done].tolist()
        greedy.step(data.numel())
        if len(buffer) < 500:
            continue
        for _ in range(25):
            sample = buffer.sample()
            loss = loss_module(sample)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updater.step()
            buffer.update_tensordict_priority(sample)
    collector.shutdown()
    return float(np.mean(lengths[-20:]))


@pytest.mark.timeout(1800)
def test_dqn_learns_cartpole_as_with_torchrls_buffer() -> None:
    makers: dict[str, Callable[[], Any]] = {
        "torchrl": lambda: Own(storage=LazyTensorStorage(10_000), batch_size=64),
        "ours": lambda: TensorDictReplayBuffer(10_000, batch_size=64),
    }
    found = {
        name: [returns_of_dqn(make, seed) for seed in range(3)] for name, make in makers.items()
    }
    sys.stdout.write(f"{json.dumps(found)}\n")
    control, ours_ = (np.array(found[name]) for name in ("torchrl", "ours"))
    # A random policy keeps the pole up for about 22 steps.
    assert min(control.mean(), ours_.mean()) > 80
    noise = np.hypot(control.std(), ours_.std()) + 20
    assert abs(control.mean() - ours_.mean()) < 2 * noise


def test_the_page_runs() -> None:
    page = Path(__file__).parents[2] / "docs" / "guides" / "torchrl.md"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    names: dict[str, Any] = {}
    for block in re.findall(r"```py\n(.*?)```", page.read_text(), re.DOTALL):
        exec(block.replace(":5555", f":{port}"), names)
    try:
        assert len(names["table"]) == 500
        assert names["buffer"].sample()["next", "reward"].eq(1).all()
    finally:
        names["connection"].close()
        names["server"].close()
