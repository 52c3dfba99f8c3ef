"""`echoic.rl`: what workers write arrives once, whatever ends them, and nothing holds up a loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import echoic.rl
import numpy as np
import pytest
from echoic.errors import ClosedError, EchoicError, RolloutError, SpecError, WaitTimeoutError
from polling import check_ctrl_c, free_port, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forks import Forks

COLUMNS = {"tokens": "int32", "logprobs": "float32"}
FIELDS = {"reward": "float32"}
_names = itertools.count()


@pytest.fixture
def make() -> Iterator[Callable[..., echoic.rl.Run]]:
    """Make runs that are closed at the end of the test."""
    with contextlib.ExitStack() as stack:

        def make(listen: str | None = None, **settings: Any) -> echoic.rl.Run:
            settings = {"group": 2, "batch": 2, "max_lag": 4, **settings}
            if listen == "shm":
                listen = f"shm://rl-{os.getpid()}-{next(_names)}"
            elif listen == "tcp":
                listen = "tcp://127.0.0.1:0"
            return stack.enter_context(echoic.rl.Run(COLUMNS, FIELDS, listen=listen, **settings))

        yield make


def at(run: echoic.rl.Run) -> Any:
    """Return where to join a run."""
    return run.address if run.server.addresses else run


def fill(group: echoic.rl.Group, base: int, length: int = 3) -> None:
    """Write all items of a group."""
    for item in group:
        tokens = np.arange(length, dtype=np.int32) + base + 100 * item.index
        item.write(tokens=tokens, logprobs=-tokens.astype(np.float32))
        item.done(reward=float(base))


@pytest.mark.parametrize("listen", [None, "shm", "tcp"])
def test_a_plain_loop_and_one_of_asyncio_deliver_each_group_once(make: Any, listen: Any) -> None:
    run = make(listen, batch=10, max_lag=None, max_running=7)
    prompts = [f"prompt {number}" for number in range(100)]
    picture = np.arange(6, dtype=np.uint8).reshape(2, 3)

    def work() -> None:
        with echoic.rl.join(at(run), name="plain") as worker:
            for group in worker.groups(prompts[:50]):
                with group:
                    first, second = group
                    first.write(tokens=[1, 2], logprobs=[0.5, 0.5], version=3)
                    first.write(tokens=[3], logprobs=[0.25], version=4)
                    first.done(reward=1.0, blobs={"image": picture})
                    second.write(tokens=np.array([7], np.int32), logprobs=np.ones(1, np.float32))
                    second.done(reward=2)
            worker.flush()
            assert group.status == "complete"
            assert [item.is_done for item in group.items] == [True, True]

    async def work_later() -> None:
        async with echoic.rl.join(at(run), name="tasks") as worker:
            async for group in worker.groups(prompts[50:]):
                async with group:
                    fill(group, int(group.prompt.split()[1]))

    thread = threading.Thread(target=lambda: (work(), asyncio.run(work_later())))
    thread.start()
    keys = []
    for batch in run.batches(timeout=20):
        for at_, key in enumerate(batch.keys):
            items = np.flatnonzero(batch.group == at_)
            tokens = [batch.item(item)["tokens"].tolist() for item in items]
            number = int(key.split()[1])
            if number < 50:
                assert tokens == [[1, 2, 3], [7]]
                assert batch.versions[batch.cells(items[0])].tolist() == [3, 3, 4]
                assert batch["reward"][items].tolist() == [1.0, 2.0]
                assert np.array_equal(batch.blobs(items[0])["image"], picture)
            else:
                expected = [
                    [number, number + 1, number + 2],
                    [number + 100 + one for one in range(3)],
                ]
                assert tokens == expected
            assert batch.sources[at_] == ("plain" if number < 50 else "tasks")
        keys += batch.keys
        run.publish()
        if len(keys) == len(prompts):
            break
    thread.join(20)
    assert sorted(keys) == sorted(prompts)
    stats = run.stats()
    # What was taken ahead and not used was given back.
    assert (stats.running, stats.acked, stats.queued) == (0, 100, 0)
    assert stats.submitted == 100 + stats.rejected


@pytest.mark.parametrize("listen", [None, "shm", "tcp"])
def test_256_tasks_that_wait_and_one_that_samples_share_a_loop(make: Any, listen: Any) -> None:
    run = make(listen, batch=8, max_lag=0, on_stale="keep")
    threads: list[int] = []

    def count() -> int:
        return sum(thread.name.startswith("echoic-rl") for thread in threading.enumerate())

    async def main() -> None:
        async with echoic.rl.join(at(run)) as worker:

            async def one(number: int) -> None:
                async with worker.group(str(number)) as group:
                    await asyncio.sleep(0)
                    fill(group, number)

            async def sample() -> list[str]:
                keys: list[str] = []
                async for batch in run.batches(timeout=20):
                    threads.append(count())
                    keys += batch.keys
                    run.publish({"w": np.full(1, run.version, np.float32)})
                    if len(keys) == 256:
                        break
                return keys

            tasks = [asyncio.create_task(one(number)) for number in range(256)]
            await asyncio.to_thread(until, lambda: sum(task.done() for task in tasks) >= 8)
            await asyncio.sleep(0.1)
            # Room for eight is used; all others wait.
            assert sum(task.done() for task in tasks) == 8
            assert count() <= 2
            keys, *_ = await asyncio.gather(sample(), *tasks)
            assert sorted(keys, key=int) == [str(number) for number in range(256)]

    asyncio.run(asyncio.wait_for(main(), 30))
    # One that reserves, one that keeps reservations, and one for a call of the task that samples.
    assert max(threads) <= 3


@pytest.mark.parametrize("listen", [None, "tcp"])
def test_a_cancelled_task_gives_back_what_it_would_have_got(make: Any, listen: Any) -> None:
    run = make(listen, batch=1, max_lag=0)

    async def main() -> None:
        async with echoic.rl.join(at(run)) as worker:
            first = worker.group("first")
            await first.__aenter__()
            waiting = asyncio.create_task(worker.group("cancelled").__aenter__())
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            first.fail()
            # Whether the cancelled one had it for a moment or not: there is room for this.
            async with worker.group("second") as group:
                fill(group, 0)

    asyncio.run(asyncio.wait_for(main(), 20))
    batch = run.sample(timeout=20)
    assert batch.keys == ["second"]
    assert until(lambda: run.stats().running == 0)


@pytest.mark.parametrize("listen", [None, "tcp"])
def test_a_group_whose_block_never_begins_is_given_back(make: Any, listen: Any) -> None:
    run = make(listen, batch=1, group=1, max_lag=None, max_running=2)

    async def wait(worker: echoic.rl.Worker) -> None:
        async for _ in worker.groups("a"):
            await asyncio.sleep(60)

    async def cancel() -> None:
        async with echoic.rl.join(at(run)) as worker:
            task = asyncio.create_task(wait(worker))
            await asyncio.to_thread(until, lambda: run.stats().running)
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(cancel())
    with echoic.rl.join(at(run)) as worker:
        for _group in worker.groups(iter("bcd")):
            pass
        del _group
        until(lambda: run.stats().running == 0)
        assert run.stats().expired == 0
        # Another process may have the handle, though.
        handles = [group.items[0].handle for group in worker.groups(iter("e"))]
        worker.item(handles[0]).write(tokens=[1], logprobs=[1.0])
        worker.item(handles[0]).done(reward=1.0)
    assert run.sample(timeout=20).keys == ["e"]


@pytest.mark.parametrize("listen", [None, "tcp"])
def test_a_close_ends_all_waits(make: Any, listen: Any, background: Any) -> None:
    run = make(listen, batch=1, max_lag=0, group=1)
    worker = echoic.rl.join(at(run))
    held = worker.group("held")
    held.__enter__()

    async def wait(worker: echoic.rl.Worker) -> list[BaseException]:
        groups = [worker.group().__aenter__() for _ in range(5)]
        return await asyncio.gather(*groups, return_exceptions=True)  # type: ignore[return-value]

    results = [
        background.start_and_let_block(lambda: asyncio.run(wait(worker))),
        background.start_and_let_block(lambda: next(worker.groups(range(3)))),
    ]
    worker.close()
    assert [type(one) for one in results[0]()] == [ClosedError] * 5
    with pytest.raises(ClosedError):
        results[1]()
    with pytest.raises(ClosedError):
        worker.groups("abc")
    # What it held was given up, so the next one has room; a closed run ends that one's waits.
    other = echoic.rl.join(at(run), timeout=5)
    with other.group("next") as group:
        fill(group, 0)
    waiting = background.start_and_let_block(lambda: asyncio.run(wait(other)))
    run.close()
    assert [type(one) for one in waiting()] == [ClosedError] * 5
    with contextlib.suppress(EchoicError):
        other.close(0.1)
    assert list(run.batches()) == []


def test_an_exception_gives_the_group_up(make: Any) -> None:
    def fail(group: echoic.rl.Group) -> None:
        with group:
            fill(group, 0)
            raise LookupError

    async def fail_later(group: echoic.rl.Group) -> None:
        async with group:
            raise LookupError

    async def refuse(group: echoic.rl.Group) -> None:
        async with group:
            group.items[0].write(tokens=[1], text=[1.0])
            group.items[0].done(reward=1.0)

    run = make(batch=2, max_lag=0)
    with echoic.rl.join(run) as worker:
        group = worker.group("bad")
        with pytest.raises(LookupError):
            fail(group)
        assert (group.status, group.reason) == ("dropped", "rejected")

        with pytest.raises(LookupError):
            asyncio.run(fail_later(worker.group("bad")))
        with pytest.raises(SpecError):
            asyncio.run(refuse(worker.group("bad")))
        until(lambda: run.stats().rejected == 3)
        with worker.group("good") as group:
            first = group.items[0]
            fill(group, 0)
            with pytest.raises(RolloutError, match="not done"):
                first.write(tokens=[1], logprobs=[1.0], blobs={"late": b"1"})
        assert group.status == "complete"
        new = worker.group("odd")
        with pytest.raises(RolloutError, match="has begun"):
            str(new.handle)
        with new:
            pass
        assert new.status == "open"
        new.fail()
        with worker.group("also good") as group:
            fill(group, 0)
    batch = run.sample(timeout=20)
    assert [batch.blobs(item) for item in range(4)] == [{}] * 4


@pytest.mark.parametrize("listen", ["shm", "tcp"])
def test_a_refused_group_is_named_by_a_later_call(make: Any, listen: Any) -> None:
    run = make(listen, max_lag=None, max_tokens=4)
    with echoic.rl.join(at(run)) as worker:
        with worker.group("long") as long:
            fill(long, 0, length=5)
        with pytest.raises(EchoicError, match="max_tokens = 4") as raised:
            worker.flush()
        if sys.version_info >= (3, 11):
            assert f"group {long._hold[0]} " in "".join(raised.value.__notes__)
        assert (long.status, long.reason) == ("dropped", "rejected")
        worker.flush()
        with worker.group("short") as group:
            fill(group, 0)
        with worker.group("long") as long:
            fill(long, 0, length=5)
        until(lambda: long.status == "dropped")
        with pytest.raises(EchoicError, match="max_tokens = 4"), worker.group("next"):
            pass
        worker.flush()
        assert group.status == "complete"
    assert run.stats().accepted == 1
    until(lambda: run.stats().running == 0)


def write_and_flush(worker: echoic.rl.Worker, handle: str) -> None:
    """Write to an item of another worker."""
    worker.item(handle).write(tokens=[1], logprobs=[0.0])
    worker.flush()


@pytest.mark.parametrize("listen", [None, "tcp"])
def test_late_values_come_by_handles(make: Any, listen: Any) -> None:
    run = make(listen, batch=1, group=1, late=("logprobs", "reward"))
    with echoic.rl.join(at(run)) as worker, echoic.rl.join(at(run)) as judge:
        for changed in (False, True):
            with worker.group("prompt") as group:
                (item,) = group
                with pytest.raises(RolloutError, match="tokens"):
                    item.update(logprobs=[0.0, 0.0])
                item.write(tokens=[1, 2])
                if changed:
                    item.update(logprobs=[9.0, 9.0])
                item.done()
            worker.flush()
            assert group.status == "open"
            judged = judge.item(item.handle)
            judged.update(logprobs=[1.0, 2.0])
            judged.update(reward=0.5)
            judge.flush()
            assert judged.group.status == "complete"
            batch = run.sample(timeout=20)
            assert (batch["logprobs"].tolist(), batch["reward"].tolist()) == ([1.0, 2.0], [0.5])
            judged.update(reward=1.0)
            judge.flush()
            assert (judged.group.status, judged.group.reason) in {
                ("complete", "delivered"),
                ("dropped", "over"),
            }


@pytest.mark.parametrize("listen", [None, "tcp"])
def test_another_process_ends_an_item_by_its_handle(make: Any, listen: Any) -> None:
    run = make(listen, batch=1)
    with echoic.rl.join(at(run)) as worker, echoic.rl.join(at(run)) as judge:
        with worker.group("judged") as group:
            for item in group:
                item.write(tokens=[1, 2], logprobs=[0.0, 0.0], version=7)
        worker.flush()
        assert group.status == "open"
        handles = [item.handle for item in group.items]
        more = judge.item(handles[1])
        more.write(tokens=[3], logprobs=[1.0], version=8)
        for reward, handle in enumerate(handles):
            judged = judge.item(handle) if reward == 0 else more
            judged.done(reward=reward)
        judge.flush()
        assert judged.group.status == "complete"
        batch = run.sample(timeout=20)
        assert batch["tokens"].tolist() == [1, 2, 1, 2, 3]
        assert (batch["reward"].tolist(), batch.versions[-1]) == ([0.0, 1.0], 8)
        with worker.group("gone") as group:
            handle = group.items[0].handle
            group.fail()
        until(lambda: run.stats().running == 0)

        async def judge_later() -> str:
            late = judge.item(handle)
            late.done(reward=1.0)
            await judge.aflush()
            return late.group.status

        assert asyncio.run(judge_later()) == "dropped"
        with worker.group("twice") as group:
            group.items[0].write(tokens=[1], logprobs=[0.0])
            group.items[0].done(reward=0.0)
        worker.flush()
        handle = group.items[0].handle
        with pytest.raises(RolloutError, match="not finished"):
            write_and_flush(judge, handle)
        if listen is not None:
            judge.item(handle).write(tokens=[1], logprobs=[0.0])
            # A judge that never calls `flush` gets errors, too.
            with pytest.raises(RolloutError, match="not finished"):
                until(lambda: not judge.item(handle).group.status)
        # An error of another process does not end the worker's group.
        judge.item(group.items[1].handle).done(reward=0.0)
        judge.flush()
        assert run.sample(timeout=20).keys == ["twice"]
        with pytest.raises(ValueError, match="handle"):
            judge.item("7")


def test_a_task_that_sends_at_once_may_give_up_and_write_in_a_thread(make: Any) -> None:
    run = make("tcp", batch=1, group=1, on_expiry="suspend")

    async def main() -> None:
        async with echoic.rl.join(run.address, partial=True) as worker:
            async with worker.group("given up") as group:
                (item,) = group
                item.write(tokens=[1], logprobs=[0.0])
                group.fail()
            await worker.aflush()
            assert (group.status, group.reason) == ("dropped", "rejected")
            async with worker.group("written") as group:
                (item,) = group
                for token in range(3):
                    await asyncio.to_thread(item.write, tokens=[token], logprobs=[0.0])
                item.done(reward=1.0)

    asyncio.run(main())
    batch = run.sample(timeout=20)
    assert (batch.keys, batch["tokens"].tolist()) == (["written"], [0, 1, 2])


def test_another_worker_goes_on_with_the_group_of_one_that_was_killed(
    make: Any, forks: Forks
) -> None:
    run = make("tcp", batch=1, on_expiry="suspend", reservation_ttl=0.4)
    dying = forks.start("rl_programs:write_a_part", run.address)
    assert dying.stdout.readline() == "written\n"
    # It is renewed for as long as its worker lives.
    time.sleep(0.8)
    assert (run.stats().running, run.stats().suspended) == (1, 0)
    dying.kill()
    dying.communicate()

    async def go_on() -> None:
        async with echoic.rl.join(run.address, partial=True) as worker:
            async for group in worker.groups(["another"]):
                if group.prompt == "another":
                    group.fail()
                    continue
                async with group:
                    (item,) = group
                    assert item.columns["tokens"].tolist() == [3]
                    assert item.columns["versions"].tolist() == [0]
                    item.write(tokens=[4], logprobs=[0], version=1)
                    item.done(reward=2.0)

    until(lambda: run.stats().suspended)
    asyncio.run(asyncio.wait_for(go_on(), 20))
    batch = run.sample(timeout=20)
    assert (batch.keys, batch["tokens"].tolist()) == (["prompt"], [1, 2, 3, 4])
    assert batch.versions.tolist() == [0, 0, 0, 1]
    with pytest.raises(RolloutError, match="on_expiry"), echoic.rl.join(make(), partial=True):
        pass


def test_a_worker_outlives_its_learner(make: Any, tmp_path: Any) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    keys: list[str] = []

    async def work() -> None:
        async with echoic.rl.join(address) as worker:

            async def one(number: int) -> None:
                async with worker.group(str(number)) as group:
                    fill(group, number)

            await asyncio.gather(*[one(number) for number in range(24)])

    def learn(run: echoic.rl.Run, until_: int) -> None:
        for batch in run.batches(timeout=20):
            keys.extend(batch.keys)
            run.publish({"w": np.zeros(1)})
            if len(keys) >= until_:
                break

    settings = {"batch": 4, "dir": tmp_path / "run"}
    run = make(address, **settings)
    assert run.publish({"w": np.zeros(1)}) == 0
    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    learn(run, 8)
    assert run.version == 2
    run.close()
    run = make(address, **settings)
    # The weights that it has are still those of its version.
    assert run.publish({"w": np.zeros(1)}) == 2
    learn(run, 24)
    thread.join(20)
    assert sorted(keys, key=int) == [str(number) for number in range(24)]


@pytest.mark.parametrize("saved", [3, 2])
def test_a_learner_that_comes_back_trains_on_each_batch_once(
    make: Any, tmp_path: Any, saved: int
) -> None:
    settings = {"batch": 1, "group": 1, "dir": tmp_path / "run"}
    run = make(**settings)
    run.publish()
    with echoic.rl.join(run) as worker:
        for group in worker.groups("abcd"):
            with group:
                fill(group, 0)
    batches = run.batches(timeout=5)
    for key in "abc":
        assert next(batches).keys == [key]
        run.publish()
    # The learner ends before it asks for the next batch, so the last one is not acknowledged.
    run.close()
    run = make(**settings)
    run.restore(saved)
    assert run.publish() == saved
    left = "cd"[saved - 2 :]
    for key, batch in zip(left, run.batches(timeout=5), strict=False):
        assert batch.keys == [key]
        run.publish()


def test_a_batch_is_acknowledged_when_it_was_learned_from(make: Any) -> None:
    run = make(batch=1, group=1, max_lag=None)
    with echoic.rl.join(run) as worker:
        for group in worker.groups(["a", "b", "c"]):
            with group:
                fill(group, 0)

    def take(learn: Callable[[], Any]) -> list[str]:
        seen = []
        for batch in run.batches(timeout=5):
            seen += batch.keys
            learn()
            break
        return seen

    def fail() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        take(fail)
    assert take(lambda: None) == ["a"]
    # Returned both times; now it is learned from.
    assert take(run.publish) == ["a"]

    async def later() -> list[str]:
        seen = []
        async for batch in run.batches(timeout=5):
            seen += batch.keys
            run.publish()
            if len(seen) == 2:
                break
        return seen

    assert asyncio.run(later()) == ["b", "c"]
    until(lambda: run.stats().acked == 3)
    batches = run.batches(timeout=0)
    for _ in range(2):
        # It has not ended.
        with pytest.raises(WaitTimeoutError):
            next(batches)
        with pytest.raises(WaitTimeoutError):
            asyncio.run(anext(batches))


def test_ranks_of_the_learner_share_each_batch(make: Any, background: Any) -> None:
    run = make("tcp", batch=4, group=1, max_lag=None)
    with echoic.rl.join(run.address) as worker:
        for group in worker.groups(map(str, range(12))):
            with group:
                fill(group, 0)

    # As an all-reduce does: no rank goes on before all have their shares.
    together = threading.Barrier(2)

    def learn() -> list[str]:
        keys: list[str] = []
        for batch in echoic.rl.join(run.address).batches(rank=1, world=2, timeout=20):
            keys += batch.keys
            together.wait(20)
        return keys

    theirs, ours = background.start(learn), []
    for batch in run.batches(rank=0, world=2, timeout=20):
        ours += batch.keys
        together.wait(20)
        run.publish()
        if len(ours) == 6:
            break
    until(lambda: run.stats().acked == 12)
    run.close()
    keys = theirs()
    assert sorted(map(int, ours + keys)) == list(range(12))


def test_versions_are_published_with_weights(make: Any) -> None:
    run = make("tcp")
    torch = pytest.importorskip("torch")
    model, copy = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2).to(torch.bfloat16)
    assert (run.publish(model), run.publish(model), run.publish(model, 7)) == (0, 1, 7)
    with pytest.raises(RolloutError, match="at least 7"):
        run.publish(model, 7)
    with echoic.rl.join(run.address) as worker:
        assert worker.version == 0
        assert worker.load(copy)
        assert not worker.load(copy)
        assert worker.version == 7
        for ours, theirs in zip(model.parameters(), copy.parameters(), strict=True):
            assert torch.equal(ours.to(torch.bfloat16), theirs)
        run.publish(torch.nn.Linear(2, 2))
        until(lambda: worker.weights.latest().version == 8)
        with pytest.raises(SpecError, match="shape"):
            worker.load(copy)
        for leaf in (np.zeros(2, np.int32), 7):
            other = {"weight": np.zeros((2, 2), np.float32), "bias": leaf}
            with pytest.raises(SpecError, match="written to"):
                worker.load(other)
            assert not other["weight"].any()
        tree = {"weight": np.zeros((2, 2), np.float32), "bias": np.zeros(2, np.float32)}
        assert worker.load(tree)
        assert tree["weight"].any()
        with worker.group() as group:
            fill(group, 0)
        with worker.group() as group:
            fill(group, 0)
    assert set(run.sample(timeout=20).versions.tolist()) == {8}


def test_a_forked_child_joins_again(make: Any) -> None:
    run = make("tcp", batch=1, group=1)
    with echoic.rl.join(run.address) as worker, worker.group("parent") as group:
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                try:
                    with group:
                        fill(group, 0)
                except ClosedError:
                    with worker.group("child") as own:
                        fill(own, 1)
                    worker.close()
                    status = 0
            os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        fill(group, 2)
    assert sorted(run.sample(timeout=20).keys + run.sample(timeout=20).keys) == ["child", "parent"]


def test_statistics_say_why_calls_wait(make: Any, background: Any) -> None:
    run = make(batch=1, max_lag=0)
    assert run.stats().why == []
    with echoic.rl.join(run) as worker:
        worker.group().__enter__()
        waiting = background.start_and_let_block(lambda: next(worker.groups([""])))
        (why,) = until(lambda: run.stats().why)
        assert why.startswith("1 call of a producer waits: enough is under way for version 0")
        run.pause()
        until(lambda: "paused" in worker.stats().why[0])
        run.close()
        with pytest.raises(ClosedError):
            waiting()


def test_ctrl_c_ends_a_loop_whose_tasks_wait() -> None:
    check_ctrl_c(
        """
import asyncio, echoic.rl
run = echoic.rl.Run({"tokens": "int32"}, batch=1, max_lag=0)
async def main():
    async with echoic.rl.join(run) as worker:
        async def one():
            async with worker.group():
                await asyncio.sleep(60)
        tasks = [asyncio.create_task(one()) for _ in range(20)]
        await asyncio.sleep(0.05)
        print("waiting", flush=True)
        await asyncio.gather(*tasks)
asyncio.run(main())
"""
    )
