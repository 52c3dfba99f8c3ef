"""Servers that speak the update protocols of vLLM and SGLang, and accept no mistake in them."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from safetensors import safe_open


def tensors(file: Path) -> dict[str, Any]:
    with safe_open(file, framework="np") as opened:
        assert opened.metadata() == {"format": "pt"}
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


class InferenceServer:
    """What both have in common: the weights that are served, and the state of the engine."""

    def __init__(self) -> None:
        self.weights: dict[str, Any] = {}
        self.adapters: dict[str, dict[str, Any]] = {}
        self.reported = "default"
        self.is_paused = False
        self.is_stale = False
        self.calls: list[str] = []
        # Answers instead of the next calls of a path.
        self.faults: dict[str, list[int]] = {}
        self.mistakes: list[str] = []
        # How many tensors each update brought.
        self.loaded: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                stub.gate.wait(30)
                parts = urlsplit(self.path)
                text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                stub.calls.append(parts.path)
                if stub.faults.get(parts.path):
                    status, answer = stub.faults[parts.path].pop(0), {"error": "out of memory"}
                else:
                    try:
                        query = {name: one[-1] for name, one in parse_qs(parts.query).items()}
                        body = json.loads(text) if text else None
                        assert self.headers["Authorization"] == "Bearer secret"
                        found = stub.answer(self.command, parts.path, query, body)
                        status, answer = (404, {}) if found is None else (200, found)
                    except AssertionError as error:
                        stub.mistakes.append(f"{self.path} {text!r}: {error}")
                        status, answer = 400, {"success": False, "message": str(error)}
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = _answer  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.gate.set()
        self._http.shutdown()
        self._http.server_close()

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> Any:
        raise NotImplementedError

    def load(self, folder: str, *, changes: bool) -> None:
        assert self.is_paused, "weights are loaded while the engine generates"
        found = tensors(Path(folder) / "model.safetensors")
        assert sorted(one.name for one in Path(folder).iterdir()) == ["model.safetensors"]
        assert changes or not self.weights or found.keys() == self.weights.keys()
        self.weights |= found
        self.loaded.append(len(found))
        self.is_stale = True

    def resume(self) -> None:
        assert not self.is_stale, "the prefix cache is of other weights"
        self.is_paused = False

    def load_adapter(self, body: Any) -> None:
        assert body.keys() == {"lora_name", "lora_path"}
        assert body["lora_name"] not in self.adapters, "it is loaded already"
        folder = Path(body["lora_path"])
        config = json.loads((folder / "adapter_config.json").read_text())
        assert config["peft_type"] == "LORA"
        self.adapters[body["lora_name"]] = tensors(folder / "adapter_model.safetensors")

    def models(self) -> Any:
        return {"object": "list", "data": [{"id": name} for name in ["base", *self.adapters]]}


class StubVllm(InferenceServer):
    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> Any:
        match method, path:
            case "POST", "/pause":
                assert query["mode"] in ("abort", "wait", "keep")
                self.is_paused = True
                return {"status": "paused"}
            case "POST", "/resume":
                self.resume()
                return {"status": "resumed"}
            case "POST", "/collective_rpc":
                assert body["method"] == "reload_weights"
                assert body["kwargs"]["is_checkpoint_format"] is True
                self.load(body["kwargs"]["weights_path"], changes=False)
                return {"results": [None]}
            case "POST", "/reset_prefix_cache":
                assert query["reset_running_requests"] == "true"
                self.is_stale = False
                return {}
            case "POST", "/update_weight_version":
                self.reported = body["new_version"]
                return {"success": True}
            case "GET", "/weight_info":
                return {"weight_version": self.reported}
            case "POST", "/v1/load_lora_adapter":
                self.load_adapter(body)
                return {}
            case "POST", "/v1/unload_lora_adapter":
                assert self.adapters.pop(body["lora_name"], None) is not None
                return {}
            case "GET", "/v1/models":
                return self.models()
        return None


class StubSglang(InferenceServer):
    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> Any:
        match method, path:
            case "POST", "/pause_generation":
                assert body["mode"] in ("abort", "retract")
                self.is_paused = True
                return {"status": "ok"}
            case "POST", "/continue_generation":
                assert body == {}
                self.resume()
                return {"status": "ok"}
            case "POST", "/update_weights_from_disk":
                assert body.keys() == {"model_path", "weight_version"}
                self.load(body["model_path"], changes=True)
                self.reported = body["weight_version"]
                return {"success": True, "message": "Succeeded.", "num_paused_requests": 0}
            case "POST", "/flush_cache":
                self.is_stale = False
                return {}
            case "GET", "/get_model_info":
                return {"weight_version": self.reported, "model_path": "base"}
            case "POST", "/load_lora_adapter":
                self.load_adapter(body)
                return {"success": True}
            case "POST", "/unload_lora_adapter":
                assert self.adapters.pop(body["lora_name"], None) is not None
                return {"success": True}
            case "GET", "/v1/models":
                return self.models()
        return None
