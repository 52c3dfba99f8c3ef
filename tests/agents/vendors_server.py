"""A server that speaks three vendors' formats: OpenAI's, Anthropic's and Gemini's.

It is true to the formats (paths, headers, shapes, counts) and has the faults that servers have.
What it answers is a function of the chat, given by the test. Tokens are bytes; the longest prefix
that an earlier prompt had too, in blocks of 16, is told as cached, in each vendor's own way.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Any

from http_server import HttpServer, send

BLOCK = 16
WRITTEN = 3  # Anthropic counts what it put into the cache, too.
KEY = "sk-secret-123"


class VendorsServer(HttpServer):
    """A server whose answers a function of the chat gives.

    ``faults`` is what happens to the next requests, one each; None is no fault: ``{"status": 429,
    "headers": {...}}``, ``{"drop": True}``, ``{"stall": seconds}``, ``{"drip": seconds}``,
    ``{"body": "text"}``, ``{"without": "usage"}``, ``{"with": {...}}``.
    """

    def __init__(self, reply: Any = lambda chat: "yes") -> None:
        self.reply = reply
        self.faults: deque[dict[str, Any] | None] = deque()
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.delay = 0.0
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
        fault = (self.faults.popleft() if self.faults else None) or {}
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
            return self._openai(chat, asked, {"message": {"role": "assistant"}})
        if path == "/v1/completions":
            return self._openai([("user", asked["prompt"])], asked, {})
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
        if path == "/v1beta/models/gemini-1.5-pro:generateContent":
            if headers.get("x-goog-api-key") != KEY:
                return None
            chat = [
                ("system", p["text"]) for p in asked.get("systemInstruction", {}).get("parts", ())
            ]
            chat += [(one["role"], one["parts"][0]["text"]) for one in asked["contents"]]
            settings = asked["generationConfig"]
            text, finish = self._say(
                chat, settings["maxOutputTokens"], settings.get("stopSequences")
            )
            total, cached = self._count(chat)
            return {
                "candidates": [
                    {
                        "content": {
                            "role": "model",
                            "parts": [{"text": "hm", "thought": True}, {"text": text}],
                        },
                        "finishReason": {"stop": "STOP", "length": "MAX_TOKENS"}[finish],
                    }
                ],
                "usageMetadata": {
                    "promptTokenCount": total,
                    "cachedContentTokenCount": cached,
                    "candidatesTokenCount": len(text),
                    "thoughtsTokenCount": 2,
                },
            }
        return None

    def _openai(self, chat: Any, asked: Any, choice: dict[str, Any]) -> dict[str, Any]:
        text, finish = self._say(chat, asked["max_tokens"], asked.get("stop"))
        if "message" in choice:
            choice["message"]["content"] = text
        else:
            choice["text"] = text
        if asked.get("logprobs") is True:
            choice["logprobs"] = {"content": [{"token": t, "logprob": -0.5} for t in text]}
        elif asked.get("logprobs"):
            choice["logprobs"] = {"token_logprobs": [-0.25] * len(text), "tokens": list(text)}
        total, cached = self._count(chat)
        return {
            "choices": [{**choice, "index": 0, "finish_reason": finish}],
            "usage": {
                "prompt_tokens": total,
                "completion_tokens": len(text),
                "prompt_tokens_details": {"cached_tokens": cached},
            },
        }

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
