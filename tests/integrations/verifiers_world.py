"""An environment of `verifiers` that adds numbers, at once or with a tool, and a model's server.

It is found by its name, as plugins of that library are. The server returns tokens with
log-probabilities from which a test reads the version of the weights that drew them.
"""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import httpx
import verifiers.v1 as vf
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Loop", "Sums"]

SPECIAL = [
    "<unk>",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        },
    },
}
PIXEL = "data:image/png;base64,iVBORw0KGgo="


class SumData(vf.TaskData):
    a: int
    b: int
    tool: bool


class Sum(vf.Task[SumData]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.messages[-1].content == str(self.data.a + self.data.b))

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return float(sum(node.sampled for node in trace.nodes))


class SumsConfig(vf.TasksetConfig):
    tool: bool = False


class Sums(vf.Taskset[Sum, SumsConfig]):
    def load(self) -> Iterator[Sum]:
        for a in range(4):
            asked = f"{'tool ' if self.config.tool else ''}{a}+5"
            yield Sum(SumData(prompt=asked, a=a, b=5, tool=self.config.tool))


class Loop(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: Any,
        data: SumData,
    ) -> vf.ProgramResult:
        headers = {"Authorization": f"Bearer {secret}"}
        messages: list[Any] = [{"role": "user", "content": data.prompt}]
        body: dict[str, Any] = {"model": ctx.model, "messages": messages}
        if data.tool:
            body["tools"] = [ADD]
        async with httpx.AsyncClient(timeout=60, headers=headers) as client:
            while True:
                answer = await client.post(f"{endpoint}/chat/completions", json=body)
                answer.raise_for_status()
                said = answer.json()["choices"][0]["message"]
                messages.append(said)
                calls = said.get("tool_calls") or []
                if not calls:
                    return vf.ProgramResult(exit_code=0, stdout="", stderr="")
                # In this time the server gets new weights.
                await asyncio.sleep(0.3)
                for call in calls:
                    given = json.loads(call["function"]["arguments"])
                    messages.append(
                        {
                            "role": "tool",
                            "tool_call_id": call["id"],
                            "content": str(given["a"] + given["b"]),
                        }
                    )


def save_tokenizer(folder: Path) -> Any:
    """Save a tokenizer with a token for each letter, and return it."""
    letters = [chr(code) for code in range(32, 127)]
    words = {word: number for number, word in enumerate([*SPECIAL, *letters, "\n"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        additional_special_tokens=SPECIAL[1:],
    )
    made.save_pretrained(folder)
    return made


class Model:
    """A server that speaks vLLM's `/inference/v1/generate`; log-probabilities are −version."""

    def __init__(self, tokenizer: Any) -> None:
        self.version = 0
        self.is_broken = False
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.path == "/inference/v1/generate", self.path
                version = model.version
                text = "?" if model.is_broken else model.answer(tokenizer.decode(body["token_ids"]))
                ids = tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False)
                content = [{"token": f"token_id:{one}", "logprob": -float(version)} for one in ids]
                choice = {
                    "token_ids": ids,
                    "logprobs": {"content": content},
                    "finish_reason": "stop",
                }
                self._send({"request_id": "1", "choices": [choice]})

            def do_GET(self) -> None:
                self._send({"data": [{"id": "toy", "max_model_len": 4096}]})

            def _send(self, answer: Any) -> None:
                found = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(found)))
                self.end_headers()
                self.wfile.write(found)

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, text: str) -> str:
        asked = text.rsplit("<|im_start|>user\n", 1)[1]
        if "<tool_response>" in asked:
            return asked.split("<tool_response>\n", 1)[1].split("\n", 1)[0]
        a, b = asked.split("<|im_end|>", 1)[0].removeprefix("tool ").split("+")
        if not asked.startswith("tool "):
            # Every other answer is wrong.
            return str(int(a) + int(b))
        # After this turn there are new weights.
        self.version += 1
        call = json.dumps({"name": "add", "arguments": {"a": int(a), "b": int(b)}})
        return f"<tool_call>\n{call}\n</tool_call>"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
