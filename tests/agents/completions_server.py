"""A server of OpenAI's completions: a formula for a model, and the faults that servers have.

Tokens are bytes. The next one depends on all before it, so an answer that was put together from two
attempts is right only if nothing was lost or doubled. Prefixes are cached in blocks, per salt, and
counted as vLLM counts them. Faults are those that servers have: refusals with and without
``Retry-After``, connections that break, streams that fall silent, errors in the middle, nonsense.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Any

from http_server import HttpServer, send

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


class CompletionsServer(HttpServer):
    """A server whose model is a formula.

    ``faults`` is what happens to the next requests, in their order, one each; None is no fault:
    ``{"status": 429, "headers": {...}}``, ``{"drop": k}`` (the connection breaks after k tokens),
    ``{"stall": k}`` (silence after k tokens), ``{"error": k, "code": 503}``, ``{"nonsense": k}``
    and ``{"events": [...]}`` (these instead of an answer).
    """

    def __init__(self, *, token_ids: bool = True, key: str | None = None) -> None:
        self.faults: deque[dict[str, Any] | None] = deque()
        self.requests: list[dict[str, Any]] = []
        self.resets = 0
        self.delay = 0.0
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
        fault = (self.faults.popleft() if self.faults else None) or {}
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
