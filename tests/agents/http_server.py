"""Servers of tests: models behind vendors' chats, and a formula behind OpenAI's completions.

They are true to the formats (paths, headers, shapes, counts) and have the faults that servers have:
refusals with and without ``Retry-After``, connections that break, silence, nonsense.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = 16
WRITTEN = 3  # Anthropic counts what it put into the cache, too.
KEY = "sk-secret-123"


class HttpServer(ABC):
    """Serves until it is closed, in a thread of its own; a subclass answers.

    A subclass sets its own attributes before it calls this constructor: requests come at once.
    ``faults`` is what happens to the next requests, in their order, one each; None is no fault.
    """

    def __init__(self) -> None:
        self.faults: deque[dict[str, Any] | None] = deque()
        self.requests: list[Any] = []
        self.delay = 0.0
        self.active = self.most_active = 0
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,))
        self._thread.start()
        started.wait()

    @abstractmethod
    async def answer(
        self, target: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        """Answer a request for a target, such as ``POST /v1/completions``.

        A ConnectionError ends the connection. Names of headers are in small letters.
        """

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Count a request while it is answered."""
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            yield
        finally:
            self.active -= 1

    def fault(self) -> dict[str, Any]:
        """Return what happens to this request."""
        return (self.faults.popleft() if self.faults else None) or {}

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {
                    name.lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in head[1:] if line)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                await self.answer(head[0].rpartition(" ")[0], headers, body, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


async def send(writer: asyncio.StreamWriter, status: int, text: str, headers: Any = ()) -> None:
    """Answer with a text."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(text.encode())}"]
    lines += [f"{name}: {value}" for name, value in dict(headers).items()]
    writer.write(("\r\n".join(lines) + "\r\n\r\n" + text).encode())
    await writer.drain()


class VendorsServer(HttpServer):
    """A server whose answers a function of the chat gives.

    Tokens are bytes; the longest prefix that an earlier prompt had too, in blocks of 16, is told as
    cached, in each vendor's own way. Faults are ``{"status": 429, "headers": {...}}``, ``{"drop":
    True}``, ``{"stall": seconds}``, ``{"drip": seconds}``, ``{"body": "text"}``, ``{"without":
    "usage"}`` and ``{"with": {...}}``.
    """

    def __init__(self, reply: Any = lambda chat: "yes") -> None:
        self.reply = reply
        self._prompts: list[bytes] = []
        super().__init__()

    async def answer(
        self, target: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        with self.busy():
            await self._answer(target.split()[1], headers, json.loads(body), writer)

    async def _answer(
        self, path: str, headers: dict[str, str], asked: Any, writer: asyncio.StreamWriter
    ) -> None:
        self.requests.append((path, headers, asked))
        fault = self.fault()
        await asyncio.sleep(self.delay + fault.get("stall", 0))
        if "drop" in fault:
            writer.transport.abort()
            raise ConnectionError
        if "status" in fault:
            # Vendors like to repeat the key that they were shown.
            said = {"error": {"message": f"no, {headers.get('authorization')} {KEY}"}}
            await send(writer, fault["status"], json.dumps(said), fault.get("headers", ()))
            return
        if "drip" in fault:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            for _ in range(1000):
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(fault["drip"])
        if "body" in fault:
            await send(writer, 200, fault["body"])
            return
        told = self._formats(path, headers, asked)
        if told is None:
            await send(writer, 401, '{"error": "who are you?"}')
            return
        told.pop(fault.get("without"), None)
        await send(writer, 200, json.dumps(told | fault.get("with", {})))

    def _formats(self, path: str, headers: dict[str, str], asked: Any) -> dict[str, Any] | None:
        if path == "/v1/chat/completions":
            if headers.get("authorization") != f"Bearer {KEY}":
                return None
            chat = [(one["role"], one["content"]) for one in asked["messages"]]
            text, finish = self._say(chat, asked["max_tokens"], asked.get("stop"))
            total, cached = self._count(chat)
            message = {"role": "assistant", "content": text}
            return {
                "choices": [{"message": message, "index": 0, "finish_reason": finish}],
                "usage": {
                    "prompt_tokens": total,
                    "completion_tokens": len(text),
                    "prompt_tokens_details": {"cached_tokens": cached},
                },
            }
        if path == "/v1/messages":
            if headers.get("x-api-key") != KEY or "anthropic-version" not in headers:
                return None
            chat = [("system", block["text"]) for block in asked.get("system", ())]
            chat += [(one["role"], one["content"][0]["text"]) for one in asked["messages"]]
            text, finish = self._say(chat, asked["max_tokens"], asked.get("stop_sequences"))
            total, cached = self._count(chat)
            return {
                "type": "message",
                "content": [{"type": "text", "text": text}],
                "stop_reason": {"stop": "end_turn", "length": "max_tokens"}[finish],
                "usage": {
                    "input_tokens": total - cached - WRITTEN,
                    "cache_read_input_tokens": cached,
                    "cache_creation_input_tokens": WRITTEN,
                    "output_tokens": len(text),
                },
            }
        return None

    def _say(self, chat: Any, most: int, stop: Any) -> tuple[str, str]:
        text = self.reply(chat)
        for one in stop or ():
            text = text.partition(one)[0]
        return (text, "stop") if len(text) <= most else (text[:most], "length")

    def _count(self, chat: Any) -> tuple[int, int]:
        prompt = "\n".join(text for _, text in chat).encode()
        common = max((_common(prompt, one) for one in self._prompts), default=0)
        self._prompts.append(prompt)
        return len(prompt), common // BLOCK * BLOCK


def _common(one: bytes, other: bytes) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def next_token(tokens: list[int]) -> int:
    """The model: a letter that depends on every token and its place."""
    state = 7
    for token in tokens:
        state = (state * 31 + token + 1) % 1_000_003
    return 97 + state % 26


def continuation(prompt: list[int], length: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(length):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class CompletionsServer(HttpServer):
    """A server whose model is a formula.

    Tokens are bytes. The next one depends on all before it, so an answer that was put together from
    two attempts is right only if nothing was lost or doubled. Prefixes are cached in blocks, per
    salt, and counted as vLLM counts them. Faults are ``{"status": 429, "headers": {...}}``,
    ``{"drop": k}`` (the connection breaks after k tokens), ``{"stall": k}`` (silence after k
    tokens), ``{"error": k, "code": 503}``, ``{"nonsense": k}`` and ``{"events": [...]}`` (these
    instead of an answer).
    """

    def __init__(self, *, token_ids: bool = True, key: str | None = None) -> None:
        self.resets = 0
        self.queries = 0
        self.hits = 0
        self._cached: set[tuple[str, tuple[int, ...]]] = set()
        self._token_ids = token_ids
        self._key = key
        super().__init__()
        self.url += "/v1"

    async def answer(
        self, target: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        if self._key and headers.get("authorization") != f"Bearer {self._key}":
            await send(writer, 401, '{"error": {"message": "no key"}}')
        elif target == "POST /reset_prefix_cache":
            self._cached.clear()
            self.resets += 1
            await send(writer, 200, "")
        elif target == "POST /v1/completions":
            with self.busy():
                await self._complete(json.loads(body), writer)
        else:
            await send(writer, 404, '{"error": {"message": "not here"}}')

    def _reuse(self, salt: str, prompt: list[int]) -> int:
        """Tokens of whole blocks that were there; all whole blocks are, from now on."""
        reused = 0
        whole = True
        for end in range(BLOCK, len(prompt) + 1, BLOCK):
            key = (salt, tuple(prompt[:end]))
            whole = whole and key in self._cached
            # The last token is always computed: its logits are wanted.
            reused = end if whole and end < len(prompt) else reused
            self._cached.add(key)
        self.queries += len(prompt)
        self.hits += reused
        return reused

    async def _complete(self, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.requests.append(asked)
        fault = self.fault()
        if "status" in fault:
            text = json.dumps({"error": {"message": "as told", "code": fault["status"]}})
            await send(writer, fault["status"], text, fault.get("headers", ()))
            return
        assert asked["stream"]
        prompt = asked["prompt"]
        tokens = list(prompt.encode()) if isinstance(prompt, str) else list(prompt)
        cached = self._reuse(asked.get("cache_salt", ""), tokens)
        made = continuation(tokens, asked["max_tokens"])
        head = ["HTTP/1.1 200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked"]
        writer.write(("\r\n".join(head) + "\r\n\r\n").encode())
        if "events" in fault:
            for event in fault["events"]:
                self._chunk(writer, f"data: {event}\n\n".encode())
            self._chunk(writer, b"")
            await writer.drain()
            return
        for count, token in enumerate(made):
            if fault.get("drop") == count:
                writer.transport.abort()
                raise ConnectionError
            if fault.get("stall") == count:
                await writer.drain()
                await asyncio.sleep(60)
            if fault.get("error") == count:
                self._event(writer, {"error": {"message": "as told", "code": fault["code"]}})
                self._chunk(writer, b"")
                return
            if fault.get("nonsense") == count:
                self._chunk(writer, b"data: {not json\n\n")
            if self.delay:
                await writer.drain()
                await asyncio.sleep(self.delay)
            stops = token in asked.get("stop_token_ids", ())
            last = count + 1 == len(made) or stops
            choice = {
                "index": 0,
                "text": chr(token),
                "logprobs": {"token_logprobs": [-0.5], "tokens": [chr(token)]},
                "finish_reason": "stop" if stops else "length" if last else None,
            }
            if self._token_ids and asked.get("return_token_ids"):
                choice["token_ids"] = [token]
            self._event(writer, {"choices": [choice]})
            if stops:
                made = made[: count + 1]
                if "unfinished" in fault:
                    writer.transport.abort()
                    raise ConnectionError
                break
        usage = {
            "prompt_tokens": len(tokens),
            "completion_tokens": len(made),
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        self._event(writer, {"choices": [], "usage": usage})
        self._chunk(writer, b"data: [DONE]\n\n")
        self._chunk(writer, b"")
        await writer.drain()

    def _event(self, writer: asyncio.StreamWriter, said: Any) -> None:
        self._chunk(writer, f"data: {json.dumps(said)}\n\n".encode())

    def _chunk(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
