"""Environments of the verifiers library as tasks, unchanged.

The library's programs ask a server for answers. Here that is an endpoint of this process, on
127.0.0.1, that speaks vLLM's ``/inference/v1/generate``: a :class:`Conversation` draws the answers,
and what is learned from are its ids, not the library's record of them. The library and the endpoint
run on an event loop in a thread of their own.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from echoic.agents.llm.tasks import Outcome, Task, is_held_out
from echoic.errors import ArgumentError, CollectorError, EchoicError, RolloutError
from echoic.integrations.verifiers import scored, trained_trace

if TYPE_CHECKING:
    from echoic.agents.llm.conversation import Conversation

__all__ = ["VerifiersTask"]

_MOST_TASKS = 10_000
_SECRET = "X-Echoic-Secret"


class VerifiersTask(Task):
    """An environment of verifiers 0.4 with one agent that is trained.

    One of five tasks of its taskset is held out, by a hash of its key. A reward of 1 and more is a
    success. An episode whose next turn does not fit the
    conversation has a reward of 0. One fails if a prompt does not continue what was drawn before,
    as with agents that shorten their history.

    Args:
        environment: An ``Env``, such as ``verifiers.v1.load_environment`` returns.
        renderer: A ``RendererConfig`` of the renderers library for the model's family. The default
            shows no tools, and does not keep the ids of earlier turns for all answers.
        tokenizer: Name or folder of the tokenizer; by default the conversation's.
    """

    def __init__(self, environment: Any, *, renderer: Any = None, tokenizer: str = "") -> None:
        self.name = str(getattr(environment.config.taskset, "id", "verifiers"))
        self._environment, self._renderer, self._tokenizer = environment, renderer, tokenizer
        self._tasks: list[Any] = []
        self._held_out: list[Any] = []
        for one in itertools.islice(environment.taskset, _MOST_TASKS):
            (self._held_out if is_held_out(str(one.key)) else self._tasks).append(one)
        if not self._tasks:
            raise ArgumentError(f"the environment {self.name!r} has no tasks to train on")
        # Conversations by the id of their episode's trace.
        self._talks: dict[str, tuple[Conversation, asyncio.AbstractEventLoop]] = {}
        self._secret = secrets.token_hex(16)
        self._port = 0
        self._ready: Future[asyncio.AbstractEventLoop] | None = None
        self._thread: threading.Thread | None = None

    def prompt(self, index: int) -> Any:
        """Return a task; after the last one they begin again."""
        return self._tasks[index % len(self._tasks)]

    def held_out(self, index: int) -> Any:
        """Return a held-out task; after the last one they begin again."""
        if not self._held_out:
            raise ArgumentError(f"the environment {self.name!r} has no held-out tasks")
        return self._held_out[index % len(self._held_out)]

    async def run(self, prompt: Any, talk: Conversation) -> Outcome:
        """Run an episode, and add its reward to the last turn."""
        if self._ready is None:
            self._ready = Future()
            self._thread = threading.Thread(
                target=self._run, args=(self._ready,), name="verifiers", daemon=True
            )
            self._thread.start()
        loop = await asyncio.shield(asyncio.wrap_future(self._ready))
        episode = self._episode(prompt, talk, asyncio.get_running_loop())
        trace = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(episode, loop))
        if trace is None:
            return Outcome(0.0, False)
        reward = scored(trace)
        if not talk.turns:
            raise CollectorError(f"an episode of {self.name!r} asked the model for nothing")
        talk.reward(reward)
        return Outcome(reward, reward >= 1)

    def close(self) -> None:
        """End what the environment serves; waits up to 30 s."""
        if self._ready is not None and self._thread is not None:
            if self._ready.exception(30) is None:
                self._ready.result().call_soon_threadsafe(self._stop.set)
            self._thread.join(30)
            self._ready = None

    def _run(self, ready: Future[asyncio.AbstractEventLoop]) -> None:
        try:
            asyncio.run(self._serve(ready))
        except Exception as error:  # raised by the episodes that wait for it
            if not ready.done():
                ready.set_exception(CollectorError(f"the environment did not start: {error}"))

    async def _serve(self, ready: Future[asyncio.AbstractEventLoop]) -> None:
        from aiohttp import web

        self._stop = asyncio.Event()
        endpoint = web.Application(client_max_size=1 << 26)
        endpoint.router.add_post("/inference/v1/generate", self._generate)
        runner = web.AppRunner(endpoint, access_log=None, handler_cancellation=True)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self._port = runner.addresses[0][1]
            async with self._environment.serving():
                ready.set_result(asyncio.get_running_loop())
                await self._stop.wait()
        finally:
            await runner.cleanup()

    async def _episode(self, task: Any, talk: Conversation, loop: asyncio.AbstractEventLoop) -> Any:
        import verifiers.v1 as vf

        client = vf.TrainClientConfig(
            base_url=f"http://127.0.0.1:{self._port}/v1",
            api_key_var="ECHOIC_NO_KEY",
            headers={_SECRET: self._secret},
            renderer=self._renderer,
            renderer_model_name=self._tokenizer or str(talk.tokenizer.name_or_path),
        )
        minted: list[str] = []

        def mint(trace: Any) -> None:
            minted.append(trace.id)
            self._talks[trace.id] = (talk, loop)

        try:
            slot = self._environment.slots(task, 1)[0]
            context = vf.ModelContext(model="echoic", client=client)
            episode = await self._environment.run_slot(slot, context, on_trace=mint)
            return trained_trace(episode)
        except RolloutError as error:
            if talk.turns and talk.full:
                return None
            raise CollectorError(f"an episode of {self.name!r}: {error}") from error
        finally:
            for name in minted:
                self._talks.pop(name, None)

    async def _generate(self, request: Any) -> Any:
        """Answer a request of the library."""
        from aiohttp import web

        if not secrets.compare_digest(request.headers.get(_SECRET, ""), self._secret):
            raise web.HTTPUnauthorized
        try:
            talk, loop = self._talks[request.headers["X-Session-ID"]]
            body = await request.json()
            given, params = body["token_ids"], body.get("sampling_params", {})
            answering = asyncio.run_coroutine_threadsafe(_answer(talk, given, params), loop)
            choice = await asyncio.wrap_future(answering)
        except (EchoicError, KeyError, TypeError, ValueError) as error:
            # 400 is not repeated by the library.
            return web.json_response({"error": {"message": str(error)}}, status=400)
        return web.json_response({"request_id": secrets.token_hex(8), "choices": [choice]})


async def _answer(talk: Conversation, given: list[int], params: dict[str, Any]) -> dict[str, Any]:
    """Draw a turn after these ids."""
    # A request that was cancelled, and is repeated, has extended the conversation before.
    known = [*talk.tokens, *talk.ahead()]
    if given[: len(known)] != known:
        raise ArgumentError("a prompt does not continue the ids that were drawn before it")
    talk.extend(given[len(known) :])
    most = talk.sampling.max_new_tokens
    most = min(params.get("max_tokens") or most, most)
    stop = talk.sampling.stop or params.get("stop_token_ids")
    answer = await talk.answer(max_new_tokens=most, stop=stop)
    logprobs = talk.columns()["logprobs"][-len(answer.tokens) :].tolist()
    content = [
        {"token": f"token_id:{token}", "logprob": one}
        for token, one in zip(answer.tokens, logprobs, strict=True)
    ]
    reason = "stop" if answer.ended else "length"
    return {"token_ids": answer.tokens, "logprobs": {"content": content}, "finish_reason": reason}
