"""State of buffers: what one held, another holds after loading it, and goes on the same way."""

from __future__ import annotations

import numpy as np
import pytest
from echoic.buffers import PrioritizedReplayBuffer, ReplayBuffer
from echoic.errors import ReplayError
from numbered import transition, vectors

OPTIONS = [{}, {"episodes": True}, {"n_step": 3}, {"next_obs": "shared"}]


def filled(kind, options, count=70) -> ReplayBuffer:
    buffer = kind(vectors(3, 1), 50, seed=1, **options)
    obs = np.random.default_rng(0).random((count + 1, 3), np.float32)
    for step in range(count):
        buffer.add(
            transition(obs[step], step, step, step % 8 == 7, False, obs[step + 1]), env=step % 2
        )
        if step % 20 == 13 and (options.get("episodes") or "n_step" in options):
            buffer.end_episode(1)
    if kind is PrioritizedReplayBuffer:
        buffer.update_priorities(np.arange(30, 60), np.linspace(0, 5, 30))
    buffer.sample(5)
    return buffer


def same(one, other) -> None:
    assert one.data.keys() == other.data.keys()
    np.testing.assert_array_equal(one.weights, other.weights)
    for name in one.data:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize("way", ["dict", "file"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
def test_a_loaded_buffer_goes_on_as_the_other(kind, options, way, tmp_path) -> None:
    buffer, other = filled(kind, options), kind(vectors(3, 1), 50, seed=99, **options)
    other.add(transition(np.ones(3), 1, 1, False, False, np.ones(3)))
    if way == "dict":
        other.load_state_dict(buffer.state_dict())
    else:
        buffer.save(tmp_path / "buffer.npz")
        other.load(tmp_path / "buffer.npz")
        assert [path.name for path in tmp_path.iterdir()] == ["buffer.npz"]
    assert len(other) == len(buffer) == 50
    assert other.num_episodes == buffer.num_episodes
    for _ in range(3):
        same(buffer.sample(40), other.sample(40))
    if options.get("episodes"):
        same(buffer.sample_sequences(20, 6), other.sample_sequences(20, 6))
    for some in (buffer, other):
        some.add(transition(np.zeros(3), 7, 7, True, False, np.zeros(3)), env=1)
    same(buffer.sample(40), other.sample(40))


def test_a_smaller_buffer_keeps_the_last() -> None:
    small = ReplayBuffer(vectors(3, 1), 10)
    small.load_state_dict(filled(ReplayBuffer, {}).state_dict())
    assert set(small.sample(500)["rewards"]) == set(range(60, 70))


def test_a_state_is_a_copy() -> None:
    buffer = filled(ReplayBuffer, {})
    state = buffer.state_dict()
    before = state["rows"]["obs"].copy()
    buffer.extend(
        transition(*[np.zeros((200, *shape)) for shape in ((3,), (1,), (), (), (), (3,))])
    )
    np.testing.assert_array_equal(state["rows"]["obs"], before)
    empty = ReplayBuffer(vectors(3, 1), 5)
    buffer.load_state_dict(empty.state_dict())
    assert len(buffer) == 0


def broken(change):
    state = filled(PrioritizedReplayBuffer, {"episodes": True}).state_dict()
    change(state)
    return state


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s: s.pop("rng"), "without rng"),
        (lambda s: s.update(format=7), "of format 1, got format 7"),
        (lambda s: s["rows"].pop("obs"), "expected rows of `obs`"),
        (lambda s: s["rows"].update(obs=np.zeros((50, 3))), "obs"),
        (lambda s: s["rows"].update(obs=np.zeros((49, 3), np.float32)), "49"),
        (lambda s: s.update(leaves=s["leaves"][1:]), "other transitions"),
        (lambda s: s.update(rng=np.zeros(3, np.uint64)), "4 numbers"),
        (lambda s: s.update(weights=np.full(50, np.nan)), "finite"),
        (lambda s: s.update(weights=np.zeros(3)), "weights"),
        (lambda s: s.pop("weights"), "weights"),
        (lambda s: s.update(envs=np.full(50, -1)), "environment"),
        (lambda s: s.update(envs=np.zeros(3, int)), "environments"),
        (lambda s: s.update(ends=np.zeros(3, bool)), "mask"),
    ],
)
def test_a_broken_state_changes_nothing(change, text) -> None:
    buffer = PrioritizedReplayBuffer(vectors(3, 1), 50, seed=1, episodes=True)
    buffer.add(transition(np.ones(3), 1, 1, False, False, np.ones(3)))
    with pytest.raises(ValueError, match=text):
        buffer.load_state_dict(broken(change))
    assert len(buffer) == 1
    assert buffer.sample(1)["rewards"] == [1]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nothing", b"\x80\x04N."])
def test_a_file_of_something_else_is_named(content, tmp_path) -> None:
    path = tmp_path / "other.npz"
    path.write_bytes(content)
    with pytest.raises(ReplayError, match=r"other\.npz is not a saved buffer"):
        ReplayBuffer(vectors(3, 1), 5).load(path)
    with pytest.raises(FileNotFoundError):
        ReplayBuffer(vectors(3, 1), 5).load(tmp_path / "missing.npz")


def test_a_damaged_file_is_refused(tmp_path) -> None:
    path = tmp_path / "buffer.npz"
    buffer = filled(ReplayBuffer, {})
    buffer.save(path)
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(ReplayError, match="not a saved buffer"):
        buffer.load(path)
    assert len(buffer) == 50
