"""A server that speaks three vendors' formats: OpenAI's, Anthropic's and Gemini's.

It is true to the formats (paths, headers, shapes, counts) and has the faults that servers have.
What it answers is a function of the chat, given by the test. Tokens are bytes; the longest prefix
that an earlier prompt had too, in blocks of 16, is told as cached, in each vendor's own way.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from typing import Any

BLOCK = 16
WRITTEN = 3  # Anthropic counts what it put into the cache, too.
KEY = "sk-secret-123"


class VendorsServer:
    """Serves until it is closed, in a thread of its own.

    ``faults`` is what happens to the next requests, one each; None is no fault: ``{"status": 429,
    "headers": {...}}``, ``{"drop": True}``, ``{"stall": seconds}``, ``{"drip": seconds}``,
    ``{"body": "text"}``, ``{"without": "usage"}``, ``{"with": {...}}``.
    """

    def __init__(self, reply: Any = lambda chat: "yes") -> None:
        self.reply = reply
        self.faults: deque[dict[str, Any] | None] = deque()
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.active = self.most_active = 0
        self.delay = 0.0
        self._prompts: list[bytes] = []
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,))
        self._thread.start()
        started.wait()

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

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {
                    name.lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in head[1:] if line)
                }
                body = await reader.readexactly(int(headers["content-length"]))
                self.active += 1
                self.most_active = max(self.most_active, self.active)
                try:
                    await self._answer(head[0].split()[1], headers, json.loads(body), writer)
                finally:
                    self.active -= 1
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

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
            await _send(writer, fault["status"], json.dumps(said), fault.get("headers", {}))
            return
        if "drip" in fault:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            for _ in range(1000):
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(fault["drip"])
        if "body" in fault:
            await _send(writer, 200, fault["body"], {})
            return
        told = self._formats(path, headers, asked)
        if told is None:
            await _send(writer, 401, '{"error": "who are you?"}', {})
            return
        told.pop(fault.get("without"), None)
        await _send(writer, 200, json.dumps(told | fault.get("with", {})), {})

    def _formats(  # noqa: PLR0911 - one for each format and for each refusal
        self, path: str, headers: dict[str, str], asked: Any
    ) -> dict[str, Any] | None:
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


async def _send(
    writer: asyncio.StreamWriter, status: int, text: str, headers: dict[str, str]
) -> None:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(text.encode())}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write(("\r\n".join(lines) + "\r\n\r\n" + text).encode())
    await writer.drain()
