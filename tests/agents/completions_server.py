"""A server of OpenAI's completions: a formula for a model, and the faults that servers have.

Tokens are bytes. The next one depends on all before it, so an answer that was put together from two
attempts is right only if nothing was lost or doubled. Prefixes are cached in blocks, per salt, and
counted as vLLM counts them. Faults are those that servers have: refusals with and without
``Retry-After``, connections that break, streams that fall silent, errors in the middle, nonsense.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from typing import Any

BLOCK = 16


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


class CompletionsServer:
    """Serves until it is closed, in a thread of its own.

    ``faults`` is what happens to the next requests, in their order, one each; None is no fault:
    ``{"status": 429, "headers": {...}}``, ``{"drop": k}`` (the connection breaks after k tokens),
    ``{"stall": k}`` (silence after k tokens), ``{"error": k, "code": 503}`` and ``{"nonsense":
    k}``.
    """

    def __init__(self, *, token_ids: bool = True, key: str | None = None) -> None:
        self.faults: deque[dict[str, Any] | None] = deque()
        self.requests: list[dict[str, Any]] = []
        self.resets = 0
        self.active = 0
        self.most_active = 0
        self.delay = 0.0
        self.queries = 0
        self.hits = 0
        self._cached: set[tuple[str, tuple[int, ...]]] = set()
        self._token_ids = token_ids
        self._key = key
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,))
        self._thread.start()
        started.wait()

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0)
        )
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1"
        started.set()
        self._loop.run_forever()
        self._server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split()
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:] if line)
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if self._key and headers.get("authorization") != f"Bearer {self._key}":
            await self._plain(writer, 401, '{"error": {"message": "no key"}}')
        elif (method, path) == ("GET", "/metrics"):
            await self._plain(writer, 200, self._metrics())
        elif (method, path) == ("POST", "/reset_prefix_cache"):
            self._cached.clear()
            self.resets += 1
            await self._plain(writer, 200, "")
        elif (method, path) == ("POST", "/v1/completions"):
            self.active += 1
            self.most_active = max(self.most_active, self.active)
            try:
                return await self._complete(json.loads(body), writer)
            finally:
                self.active -= 1
        else:
            await self._plain(writer, 404, '{"error": {"message": "not here"}}')
        return True

    async def _plain(
        self, writer: asyncio.StreamWriter, status: int, text: str, headers: Any = ()
    ) -> None:
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(text.encode())}"]
        lines += [f"{name}: {value}" for name, value in dict(headers).items()]
        writer.write(("\r\n".join(lines) + "\r\n\r\n" + text).encode())
        await writer.drain()

    def _metrics(self) -> str:
        return (
            "# TYPE vllm:prefix_cache_queries_total counter\n"
            f'vllm:prefix_cache_queries_total{{model="a}}b"}} {self.queries}\n'
            f'vllm:prefix_cache_hits_total{{model="a}}b"}} {self.hits}\n'
            'vllm:prefix_cache_hits_created{model="a"} 1.7e9\n'
        )

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

    async def _complete(  # noqa: C901 - one branch for each fault
        self, asked: dict[str, Any], writer: asyncio.StreamWriter
    ) -> bool:
        self.requests.append(asked)
        fault = (self.faults.popleft() if self.faults else None) or {}
        if "status" in fault:
            text = json.dumps({"error": {"message": "as told", "code": fault["status"]}})
            await self._plain(writer, fault["status"], text, fault.get("headers", ()))
            return True
        assert asked["stream"]
        prompt = asked["prompt"]
        tokens = list(prompt.encode()) if isinstance(prompt, str) else list(prompt)
        cached = self._reuse(asked.get("cache_salt", ""), tokens)
        made = continuation(tokens, asked["max_tokens"])
        head = ["HTTP/1.1 200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked"]
        writer.write(("\r\n".join(head) + "\r\n\r\n").encode())
        for count, token in enumerate(made):
            if fault.get("drop") == count:
                writer.transport.abort()
                return False
            if fault.get("stall") == count:
                await writer.drain()
                await asyncio.sleep(60)
            if fault.get("error") == count:
                self._event(writer, {"error": {"message": "as told", "code": fault["code"]}})
                self._chunk(writer, b"")
                return True
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
                    return False
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
        return True

    def _event(self, writer: asyncio.StreamWriter, said: Any) -> None:
        self._chunk(writer, f"data: {json.dumps(said)}\n\n".encode())

    def _chunk(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
