"""Push published weights into inference servers: vLLM and SGLang.

A :class:`WeightPusher` follows a store of weights. It writes each new version as safetensors into a
folder that the inference servers can read, and has them load it by their own HTTP API. Needs the
package ``safetensors``, which is imported when weights are written.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import http.client
import importlib.util
import json
import logging
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import optree

from echoic.errors import (
    ClosedError,
    DisconnectedError,
    ServingError,
    SpecError,
    WaitTimeoutError,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping

    import numpy as np
    from typing_extensions import Self

    from echoic.weights import Publication, RemoteWeightStore, WeightStore

    Arrays = dict[str, np.ndarray[Any, Any]]

__all__ = ["SglangServer", "VllmServer", "WeightPusher"]

_log = logging.getLogger("echoic.serving")

# An answer of a server has a few lines.
_MAX_ANSWER = 1 << 22
# Answers of servers and proxies that are starting or busy.
_BUSY = (429, 502, 503, 504)
# Seconds between attempts to reach a server.
_PAUSE = 1.0

InFlight = Literal["keep", "wait", "abort"]


class _HttpServer:
    """An inference server's HTTP API: what vLLM and SGLang have in common."""

    #: Whether it takes a file with some of the tensors, and keeps the others as they are.
    takes_changes = False

    # What a path that is missing may mean.
    _hint = ""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float = 600.0,
        in_flight: InFlight = "keep",
    ) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise SpecError(f"url: expected one like 'http://host:8000', got {url!r}")
        self.url = url.rstrip("/")
        self.in_flight = in_flight
        self._is_tls = parts.scheme == "https"
        self._host, self._port = parts.hostname, port or (443 if self._is_tls else 80)
        self._prefix = parts.path.rstrip("/")
        self._timeout = timeout
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def _call(
        self, method: str, path: str, body: Any = None, *, missing_ok: bool = False
    ) -> dict[str, Any]:
        """Return the object of an answer, an empty one if it has none or the path is missing."""
        kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._timeout)
        what = f"{method} {self.url}{path}"
        content = None if body is None else json.dumps(body).encode()
        try:
            connection.request(method, self._prefix + path, content, self._headers)
            response = connection.getresponse()
            found = response.read(_MAX_ANSWER)
        except (OSError, http.client.HTTPException) as error:
            raise DisconnectedError(f"{what}: {error or type(error).__name__}") from error
        finally:
            connection.close()
        if response.status == 404 and missing_ok:
            return {}
        text = found[:500].decode(errors="replace")
        if response.status in _BUSY:
            raise DisconnectedError(f"{what}: answered {response.status}: {text}")
        if response.status != 200:
            hint = self._hint if response.status == 404 else ""
            raise ServingError(f"{what}: expected status 200, got {response.status}: {text}{hint}")
        try:
            answer = json.loads(found)
        except (ValueError, RecursionError):
            return {}
        if not isinstance(answer, dict):
            return {}
        if answer.get("success") is False:
            raise ServingError(f"{what}: expected success, got {text}")
        return answer

    # What differs.

    def pause(self) -> None:
        """Stop generating."""
        raise NotImplementedError

    def resume(self) -> None:
        """Generate again."""
        raise NotImplementedError

    def load(self, folder: Path, version: int) -> None:
        """Load the weights of a folder, and forget what was computed with others."""
        raise NotImplementedError

    def load_adapter(self, name: str, folder: Path) -> None:
        """Load a LoRA adapter under a name, by which requests choose it as their ``model``."""
        raise NotImplementedError

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter; one that is not there is no error."""
        raise NotImplementedError

    def _weight_version(self) -> Any:
        raise NotImplementedError

    def version(self, adapter: str | None = None) -> int | None:
        """Return the version that the server has, or ``None`` if it does not report one.

        Ask before a request: its tokens are of this version or of later ones.

        Args:
            adapter: The name of a :class:`WeightPusher` that pushes adapters.

        Raises:
            DisconnectedError: If the server can't be reached.
            ServingError: If it answers with an error.
        """
        if adapter is None:
            return _number(self._weight_version())
        models = self._call("GET", "/v1/models").get("data")
        start = f"{adapter}-v"
        listed = models if isinstance(models, list) else []
        names = [str(model.get("id")) for model in listed if isinstance(model, dict)]
        found = [_number(name.removeprefix(start)) for name in names if name.startswith(start)]
        return max((one for one in found if one is not None), default=None)


def _number(text: Any) -> int | None:
    try:
        return int(text)
    except (TypeError, ValueError, OverflowError):
        return None


class VllmServer(_HttpServer):
    """A server of vLLM (0.28 and later), as the target of a :class:`WeightPusher`.

    Start it with ``VLLM_SERVER_DEV_MODE=1``; for adapters, with ``--enable-lora`` and
    ``VLLM_ALLOW_RUNTIME_LORA_UPDATING=1`` instead.

    Args:
        url: Such as ``"http://gpu-0:8000"``.
        token: The server's API key.
        timeout: Seconds for one request, loading the weights included.
        in_flight: What becomes of requests that are being answered: ``"keep"`` continues them with
            the new weights, ``"wait"`` lets them finish first, ``"abort"`` ends them.

    Raises:
        SpecError: If the URL is not one of HTTP.
    """

    _hint = (
        "; start vLLM with VLLM_SERVER_DEV_MODE=1, and for adapters with "
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
    )

    def pause(self) -> None:
        self._call("POST", f"/pause?mode={self.in_flight}")

    def resume(self) -> None:
        self._call("POST", "/resume")

    def load(self, folder: Path, version: int) -> None:
        arguments = {"weights_path": str(folder), "is_checkpoint_format": True}
        call = {"method": "reload_weights", "kwargs": arguments, "timeout": self._timeout}
        self._call("POST", "/collective_rpc", call)
        # Requests that go on have cached keys and values of the old weights.
        self._call("POST", "/reset_prefix_cache?reset_running_requests=true")
        self._call("POST", "/update_weight_version", {"new_version": str(version)}, missing_ok=True)

    def load_adapter(self, name: str, folder: Path) -> None:
        self._call("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})

    def unload_adapter(self, name: str) -> None:
        self._call("POST", "/v1/unload_lora_adapter", {"lora_name": name}, missing_ok=True)

    def _weight_version(self) -> Any:
        return self._call("GET", "/weight_info", missing_ok=True).get("weight_version")


class SglangServer(_HttpServer):
    """A server of SGLang (0.5.21 and later), as the target of a :class:`WeightPusher`.

    Args:
        url: Such as ``"http://gpu-0:30000"``.
        token: The server's admin key, or its API key.
        timeout: Seconds for one request, loading the weights included.
        in_flight: What becomes of requests that are being answered: ``"keep"`` continues them with
            the new weights, ``"abort"`` ends them.

    Raises:
        SpecError: If the URL is not one of HTTP, or with ``in_flight="wait"``, which SGLang lacks.
    """

    takes_changes = True

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float = 600.0,
        in_flight: Literal["keep", "abort"] = "keep",
    ) -> None:
        if in_flight not in ("keep", "abort"):
            raise SpecError(f"in_flight: expected 'keep' or 'abort', got {in_flight!r}")
        super().__init__(url, token=token, timeout=timeout, in_flight=in_flight)

    def pause(self) -> None:
        mode = "retract" if self.in_flight == "keep" else "abort"
        self._call("POST", "/pause_generation", {"mode": mode})

    def resume(self) -> None:
        self._call("POST", "/continue_generation", {})

    def load(self, folder: Path, version: int) -> None:
        arguments = {"model_path": str(folder), "weight_version": str(version)}
        self._call("POST", "/update_weights_from_disk", arguments)
        self._call("POST", "/flush_cache?timeout=30")

    def load_adapter(self, name: str, folder: Path) -> None:
        self._call("POST", "/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})

    def unload_adapter(self, name: str) -> None:
        with contextlib.suppress(ServingError):
            self._call("POST", "/unload_lora_adapter", {"lora_name": name})

    def _weight_version(self) -> Any:
        info = self._call("GET", "/model_info", missing_ok=True) or self._call(
            "GET", "/get_model_info"
        )
        return info.get("weight_version")


class _Folder:
    """A version on disk; it is removed when no server holds it and a newer one is there."""

    def __init__(self, path: Path, version: int, digests: dict[str, bytes]) -> None:
        self.path = path
        self.version = version
        # Of all its tensors, those that are not in the file too.
        self.digests = digests
        self.holders = 0


class WeightPusher:
    """Pushes each new version of a store's weights into inference servers, until it is closed.

    A server is updated by pause, load, reset of its prefix cache, and resume; it is resumed after a
    failure too. Each server goes its own pace, and skips versions when a newer one is there. A
    server that can't be reached is tried again for ``patience`` seconds. One that was started again
    has the weights that it was started with until the next version.

    Use it as a context manager, or call :meth:`start` and :meth:`close`.

    Args:
        weights: A ``WeightStore``, or a connection's ``weights()``. Trees are flat dicts such as a
            ``state_dict()``; names of nested ones are joined by dots.
        servers: One server or several.
        directory: Where versions are written: a folder that the servers see under the same path.
            Two versions have to fit. By default ``/dev/shm``, for servers on this machine.
        rename: Returns the name that a tensor has in the checkpoint of the served model, or
            ``None`` to leave it out.
        adapter: The configuration of a LoRA adapter (``peft_config.to_dict()``): then the weights
            are those of the adapter alone, and version 7 is served as the model ``NAME-v7``.
        name: Of the adapter.
        keep: How many versions of an adapter stay loaded, for requests that began with them.
        changes: Whether to write only the tensors that have changed since the version that a server
            has. SGLang only. Comparing them costs about a second a GB.
        patience: Seconds.
        on_version: Called, in a thread of the pusher, with a version that all servers have.

    Raises:
        SpecError: If there is no server, or ``changes`` is for one that takes none, or an adapter.
        ModuleNotFoundError: If safetensors is not installed.
    """

    def __init__(
        self,
        weights: WeightStore | RemoteWeightStore,
        servers: VllmServer | SglangServer | Iterable[VllmServer | SglangServer],
        *,
        directory: str | os.PathLike[str] | None = None,
        rename: Callable[[str], str | None] | None = None,
        adapter: Mapping[str, Any] | None = None,
        name: str = "policy",
        keep: int = 2,
        changes: bool = False,
        patience: float = 600.0,
        on_version: Callable[[int], None] | None = None,
    ) -> None:
        if importlib.util.find_spec("safetensors") is None:
            raise ModuleNotFoundError(
                "weights are pushed as safetensors: pip install safetensors", name="safetensors"
            )
        self.servers = [servers] if isinstance(servers, _HttpServer) else list(servers)
        if not self.servers:
            raise SpecError("servers: expected at least one, got none")
        if changes and (adapter or not all(server.takes_changes for server in self.servers)):
            raise SpecError(
                "changes: expected servers of SGLang and no adapter: vLLM loads all tensors of a "
                "version, and an adapter is loaded as a whole"
            )
        self._weights = weights
        self._rename = rename
        self._adapter = None if adapter is None else {"peft_type": "LORA", **adapter}
        self.name = name
        self._keep = max(1, keep) if adapter is not None else 1
        self._changes = changes
        self._patience = patience
        self._on_version = on_version
        if directory is None and Path("/dev/shm").is_dir():
            directory = "/dev/shm"
        self._directory = directory
        # Guards all that follows.
        self._changed = threading.Condition()
        # The number of publications that came, and the last of them.
        self._latest: tuple[int, Publication] | None = None
        self._versions: list[int | None] = [None] * len(self.servers)
        self._done = [0] * len(self.servers)
        self._errors: list[BaseException] = []
        self._folders: dict[tuple[int, int | None], _Folder] = {}
        self._is_over = False
        self._writing = threading.Lock()
        self._is_closed = False
        self._subscription: Any = None
        self._threads: list[threading.Thread] = []

    @property
    def versions(self) -> list[int | None]:
        """The version that each server has from this pusher; ``None`` before the first."""
        with self._changed:
            return list(self._versions)

    @property
    def version(self) -> int | None:
        """The oldest of them: what every server has, or something newer."""
        found = self.versions
        return None if None in found else min(version for version in found if version is not None)

    @property
    def model(self) -> str | None:
        """The adapter's name in requests, ``NAME-v7``; ``None`` without an adapter or version."""
        version = self.version
        return None if self._adapter is None or version is None else f"{self.name}-v{version}"

    def start(self) -> Self:
        """Begin to follow the store."""
        with self._changed:
            if self._is_closed:
                raise ClosedError("the pusher is closed")
            if self._threads:
                return self
            self._subscription = self._weights.subscribe()
            self._root = Path(tempfile.mkdtemp("", "echoic-weights-", self._directory))
            targets: list[tuple[Callable[..., None], tuple[Any, ...]]] = [(self._follow, ())]
            targets += [(self._serve, (index,)) for index in range(len(self.servers))]
            self._threads = [
                threading.Thread(target=target, args=args, name="echoic-weights", daemon=True)
                for target, args in targets
            ]
        for thread in self._threads:
            thread.start()
        return self

    def wait(self, version: int, timeout: float | None = None) -> None:
        """Wait until all servers have this version or a later one.

        Raises:
            WaitTimeoutError: If they have not in time.
            ServingError: If a server refused an update.
            DisconnectedError: If a server, or the store's, could not be reached.
            ClosedError: If the pusher is closed.
        """

        def is_done() -> bool:
            at_least = all(one is not None and one >= version for one in self._versions)
            return at_least or bool(self._errors) or self._is_closed

        with self._changed:
            if not self._changed.wait_for(is_done, timeout):
                raise WaitTimeoutError(
                    f"waited {timeout} s for version {version}; servers have {self._versions}"
                )
            if self._errors:
                raise self._errors[0]
            if not all(one is not None and one >= version for one in self._versions):
                raise ClosedError(f"the pusher is closed; servers have {self._versions}")

    def run(self) -> None:
        """Follow the store until it or the pusher is closed; see :meth:`wait` for the errors."""
        self.start()
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._errors or self._is_closed or self._is_over)
                if self._is_over and not self._errors:
                    latest = self._latest
                    self._changed.wait_for(lambda: self._errors or self._have(latest))
        finally:
            self.close()
        if self._errors:
            raise self._errors[0]

    def _have(self, latest: tuple[int, Publication] | None) -> bool:
        return self._is_closed or latest is None or set(self._done) == {latest[0]}

    def close(self) -> None:
        """Stop. What servers have stays; an update that has begun is finished first."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._subscription is not None:
            self._subscription.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        if self._threads:
            shutil.rmtree(self._root, ignore_errors=True)

    def __enter__(self) -> Self:
        """Start, and return the pusher."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Close the pusher."""
        self.close()

    def __repr__(self) -> str:
        return f"WeightPusher({self.servers}, versions={self.versions})"

    def _fail(self, error: BaseException) -> None:
        _log.error("%s", error)
        with self._changed:
            self._errors.append(error)
            self._changed.notify_all()

    def _follow(self) -> None:
        count = 0
        try:
            for publication in self._subscription:
                count += 1
                with self._changed:
                    self._latest = (count, publication)
                    self._changed.notify_all()
        except ClosedError:
            pass
        except Exception as error:
            self._fail(error)
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _serve(self, index: int) -> None:
        """Keep one server at the latest version."""
        server = self.servers[index]
        # What the server has loaded, the last one last. A server may read it again, for example
        # after it was asleep.
        held: list[tuple[str, _Folder]] = []
        base: int | None = None
        since: float | None = None
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._is_closed or self._is_new(self._done[index]) or self._is_over
                )
                if self._is_closed or not self._is_new(self._done[index]) or self._latest is None:
                    return
                count, publication = self._latest
            version = publication.version
            try:
                if base is not None and server.version() != held[-1][1].version:
                    # It was started again, with other weights.
                    base = None
                folder = self._hold(count, publication, base)
                # The store needs its memory for what comes next.
                del publication
                self._load(server, folder, held)
            except DisconnectedError as error:
                base, since = None, since or time.monotonic()
                if time.monotonic() - since > self._patience:
                    self._fail(error)
                    return
                _log.warning("%s; tried again in %g s", error, _PAUSE)
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed, _PAUSE)
                continue
            except Exception as error:
                self._fail(error)
                return
            base, since = (count if self._changes else None), None
            while len(held) > self._keep:
                name, old = held.pop(0)
                self._release(old)
                if self._adapter is not None:
                    try:
                        server.unload_adapter(name)
                    except (DisconnectedError, ServingError) as error:
                        _log.warning("%s", error)
            try:
                self._note(index, count, version)
            except Exception as error:
                self._fail(error)
                return

    def _is_new(self, done: int) -> bool:
        return self._latest is not None and self._latest[0] != done

    def _note(self, index: int, count: int, version: int) -> None:
        with self._changed:
            self._versions[index], self._done[index] = version, count
            self._changed.notify_all()
            everywhere = len(set(self._done)) == 1
        _log.info("%s has version %d", self.servers[index], version)
        if self._on_version is not None and everywhere:
            self._on_version(version)

    def _load(self, server: _HttpServer, folder: _Folder, held: list[tuple[str, _Folder]]) -> None:
        """Have a server load a folder, and note that it holds it."""
        name = f"{self.name}-v{folder.version}"
        try:
            if self._adapter is not None:
                # It has a name of its own, so that requests under way go on with the old one.
                for one in [one for one in held if one[0] == name]:
                    # A learner that went back publishes the version again.
                    server.unload_adapter(name)
                    held.remove(one)
                    self._release(one[1])
                server.load_adapter(name, folder.path)
            else:
                try:
                    server.pause()
                    server.load(folder.path, folder.version)
                except BaseException:
                    with contextlib.suppress(DisconnectedError, ServingError):
                        server.resume()
                    raise
                server.resume()
        except BaseException:
            self._release(folder)
            raise
        held.append((name, folder))

    def _hold(self, count: int, publication: Publication, base: int | None) -> _Folder:
        """Return a folder with the weights, or with those that differ from publication ``base``."""
        with self._writing:
            found = self._folders.get((count, base))
            if found is None:
                found = self._folders[count, base] = self._write(count, publication, base)
            found.holders += 1
            return found

    def _release(self, folder: _Folder) -> None:
        with self._writing:
            folder.holders -= 1
            for key, one in list(self._folders.items()):
                if not one.holders and self._is_new(key[0]):
                    del self._folders[key]
                    shutil.rmtree(one.path, ignore_errors=True)

    def _write(self, count: int, publication: Publication, base: int | None) -> _Folder:
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        if publication.tree is None:
            raise SpecError(
                f"version {publication.version} was published without weights: there is nothing to "
                "push"
            )
        arrays = self._arrays(publication.tree)
        digests: dict[str, bytes] = {}
        if self._changes:
            digests = {name: _digest(array) for name, array in arrays.items()}
            before = [one.digests for (of, _), one in self._folders.items() if of == base]
            same = [n for n in arrays if before and before[0].get(n) == digests[n]]
            # A file has at least one tensor.
            for name in same[: len(arrays) - 1]:
                del arrays[name]
        path = self._root / f"{count}-v{publication.version}{'' if base is None else '-changes'}"
        # What a failed attempt has left.
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        file = "model" if self._adapter is None else "adapter_model"
        try:
            save_file(arrays, path / f"{file}.safetensors", metadata={"format": "pt"})
        except SafetensorError as error:
            raise SpecError(f"weights can't be written as safetensors: {error}") from error
        if self._adapter is not None:
            text = json.dumps(self._adapter, default=_plain)
            (path / "adapter_config.json").write_text(text, encoding="utf-8")
        return _Folder(path, publication.version, digests)

    def _arrays(self, tree: Any) -> Arrays:
        found: Arrays = {}
        paths, leaves, _ = optree.tree_flatten_with_path(tree)
        for path, leaf in zip(paths, leaves, strict=True):
            name: str | None = ".".join(str(part) for part in path)
            if self._rename is not None and name is not None:
                name = self._rename(name)
            if not name:
                continue
            if name in found:
                raise SpecError(f"weights: two tensors have the name {name!r}")
            found[name] = leaf if leaf.flags.c_contiguous else leaf.copy()
        if not found:
            raise SpecError("weights: expected at least one tensor with a name, got none")
        return found


def _digest(array: np.ndarray[Any, Any]) -> bytes:
    hashed = hashlib.blake2b(f"{array.dtype} {array.shape}".encode(), digest_size=16)
    hashed.update(array.reshape(-1).view("u1").data)
    return hashed.digest()


def _plain(value: Any) -> Any:
    """Convert what configurations of adapters have to JSON."""
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return value.value if isinstance(value, enum.Enum) else str(value)
