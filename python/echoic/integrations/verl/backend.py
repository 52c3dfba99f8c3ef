"""A storage backend of TransferQueue, ``Echoic``, whose rows survive a crash of all processes.

Importing this module registers the backend. The process that calls ``tq.init`` first has to import
it, in verl by ``VERL_USE_EXTERNAL_MODULES=echoic.integrations.verl.backend``; others import it when
they get the configuration, which has an object of this module.

The controller of TransferQueue keeps keys, tags and which fields a row has in the memory of a Ray
actor. With each row the backend stores its key and tags as well, so :meth:`EchoicStorage.recover`
fills a new controller.

What is *marked* is no longer in the queue, and is kept because an older checkpoint needs it. Marks
are the numbers of checkpoints: rows that go while checkpoint m is the next one get the mark m. A
run that goes on from checkpoint m gets back what has no mark or one above m.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
import torch
import transfer_queue as tq
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tensordict import NonTensorStack, TensorDict
from transfer_queue.metadata import extract_field_schema
from transfer_queue.storage.bootstrap import StorageBootstrapProvider
from transfer_queue.storage.managers.base import StorageManager, StorageManagerFactory
from transfer_queue.utils.zmq_utils import ZMQMessage, ZMQRequestType

from echoic.connection import connect
from echoic.errors import EchoicError
from echoic.integrations.verl.records import Record
from echoic.integrations.verl.rows import Rows, merge, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from transfer_queue import BatchMeta

__all__ = ["EchoicStorage"]

_log = logging.getLogger(__name__)

_NAMESPACE = "transfer_queue"
#: The file of a checkpoint of TransferQueue that says which rows belong to it.
_FILE = "echoic.json"
#: Where the numbers of checkpoints are kept: the row of a partition that nothing else can have.
_CHECKPOINTS = ("", "checkpoints")
_PATIENCE = 60.0
_SETTINGS = ("directory", "capacity", "durability", "checkpoint_every")


class _Store:
    """Serves the rows of a directory, at the same port when Ray has restarted it."""

    def __init__(self, settings: dict[str, Any], token: str, host: str) -> None:
        place = Path(settings["directory"])
        place.mkdir(parents=True, exist_ok=True)
        port_file = place / "port"
        known = port_file.read_text() if port_file.exists() else ""
        # What was killed while it wrote the file left it empty.
        port = int(known) if known.isdecimal() else 0
        if port and not _is_free(host, port):
            port = 0
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                server = serve(**settings, listen=f"tcp://{host}:{port}", token=token)
                break
            except OSError:
                # The process before may be about to end.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        self._server, self._token = server.start(), token
        port_file.write_text(self._server.address.rpartition(":")[2])

    def address(self) -> tuple[str, str]:
        """Return the address and the token, which no configuration has: it is logged."""
        return self._server.address, self._token


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
        except OSError:
            return False
    return True


class _Registered:
    """Is in the configuration, so that a process that reads it imports this module first."""


@StorageBootstrapProvider.register_provider("Echoic")
def _start_store(conf: Any) -> dict[str, Any]:
    """Start the server as an actor on this node; its name goes to the other processes."""
    config = conf.backend.Echoic
    if not config.get("directory"):
        raise ValueError(
            "expected the directory of the rows in transfer_queue.backend.Echoic.directory, got "
            f"{config.get('directory')!r}"
        )
    settings = {name: config[name] for name in _SETTINGS if config.get(name) is not None}
    settings["directory"] = str(Path(settings["directory"]).resolve())
    name = f"EchoicStore-{secrets.token_hex(4)}"
    node = ray.get_runtime_context().get_node_id()
    actor = (
        ray.remote(_Store)
        .options(
            num_cpus=0,
            max_restarts=-1,
            name=name,
            namespace=_NAMESPACE,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        .remote(settings, secrets.token_hex(16), ray.util.get_node_ip_address())
    )
    ray.get(actor.address.remote())
    config.server, config.registered = name, _Registered()
    return {"server": actor}


@StorageManagerFactory.register("Echoic")
class EchoicStorage(StorageManager):
    """Stores rows in the server that ``tq.init`` has started.

    Settings, in ``backend.Echoic`` of TransferQueue's configuration: ``directory`` (required),
    ``capacity`` (1,000,000 records), ``durability`` (``"async"``), ``checkpoint_every`` (600:
    seconds between two checkpoints of the journal), ``checkpoints`` (2: from how many of the
    newest checkpoints of the trainer a run can go on) and ``timeout`` (60: seconds that a call
    waits for room in the table).
    """

    def __init__(
        self, controller_info: Any, config: Mapping[str, Any], zmq_context: Any = None
    ) -> None:
        # The notifications are all that this manager needs a context for, so it has one of its own.
        super().__init__(controller_info, config)
        actor = ray.get_actor(config["server"], namespace=_NAMESPACE)
        address, token = ray.get(actor.address.remote())
        self._connection = connect(address, token=token)
        timeout = float(config.get("timeout") or _PATIENCE)
        self._rows = Rows(self._connection.table("rows"), self._connection.flush, timeout)
        self._keep = int(config.get("checkpoints", 2))
        if self._keep < 2:
            # While the newest is being written, the trainer may have to go on from the one before.
            raise ValueError(f"checkpoints must be at least 2, got {self._keep}")
        # What follows is used in the trainer's process only: prompts whose rows are marked when
        # they are cleared, the checkpoint that was loaded, and the number of the next one.
        self._stores = True
        self._leased: dict[tuple[str, str], int] = {}
        self._loaded: tuple[int, int] | None = None
        self._mark = 1
        #: How many prompts the trainer has taken from its dataset.
        self._fetched = 0

    def close(self) -> None:
        """Close the connections."""
        super().close()
        if hasattr(self, "_connection"):
            self._connection.close()

    # Rows.

    async def put_data(
        self,
        data: TensorDict,
        metadata: BatchMeta,
        data_parser: Callable[[Any], Any] | None = None,
    ) -> None:
        """Store the values of rows, and notify the controller when they are in the journal.

        Raises:
            TypeError: If a value can't be stored; the message names key, field and type.
            NotImplementedError: If there is a ``data_parser``.
        """
        if data_parser is not None:
            raise NotImplementedError("the backend Echoic takes no data_parser")
        count = len(metadata.global_indexes)
        if data.batch_size[0] != count:
            raise ValueError(f"expected {count} rows, got {data.batch_size[0]}")
        if count and self._stores:
            names = await self._names(metadata)
            records = self._records(names, data, metadata.custom_meta)
            await self._run(self._rows.put, records)
            # Rows that had some of these fields already.
            if any(metadata.production_status) and set(metadata.field_names) & set(data.keys()):
                await self._run(self._rows.replace, names)
        if count:
            await self.notify_data_update(
                metadata.partition_ids[0], metadata.global_indexes, extract_field_schema(data)
            )

    def _records(
        self, names: Sequence[tuple[str, str]], data: TensorDict, tags: Sequence[dict[str, Any]]
    ) -> list[Record]:
        columns: dict[str, list[Any]] = {}
        for field in sorted(data.keys()):
            column = data[field]
            nested = isinstance(column, torch.Tensor) and column.is_nested
            columns[field] = list(column.unbind() if nested else column)
        records = []
        for i, (partition, key) in enumerate(names):
            fields = {field: column[i] for field, column in columns.items()}
            records.append(Record(partition, key, fields, dict(tags[i])))
        if any(record.tags and record.tags.get("is_prompt") for record in records):
            self._fetched += len(records)
            for record in records:
                record.extra.update(fetched=self._fetched, of=len(records))
        return records

    async def get_data(self, metadata: BatchMeta) -> TensorDict:
        """Read fields of rows.

        Raises:
            StorageKeyNotFoundError: If a row has gone, or lacks a field.
        """
        count = len(metadata.global_indexes)
        fields = list(metadata.field_names)
        if not fields or not count:
            return TensorDict({}, batch_size=count)
        names = await self._names(metadata)
        rows = await self._run(self._rows.read, names, set(fields))
        for name in names:
            if name not in rows or not rows[name].fields.keys() >= set(fields):
                missing = set(fields) - (rows[name].fields.keys() if name in rows else set())
                raise tq.StorageKeyNotFoundError(
                    f"key {name[1]!r} of partition {name[0]!r} has no {sorted(missing)}"
                )
        return _join([rows[name].fields for name in names], fields)

    async def clear_data(self, metadata: BatchMeta) -> None:
        """Remove rows; those of leased prompts are marked instead, until checkpoints have them."""
        if not len(metadata.global_indexes) or not self._stores:
            return
        names = await self._names(metadata)
        leased = [name for name in names if (name[0], _prompt(name[1])) in self._leased]
        if leased:
            await self._run(self._rows.mark, leased, self._mark)
        others = list(set(names) - set(leased))
        if others:
            await self._run(self._rows.remove, others)

    async def _names(self, metadata: BatchMeta) -> list[tuple[str, str]]:
        """Return partitions and keys; a row that has no key is named by its index."""
        partitions, indexes = metadata.partition_ids, metadata.global_indexes
        keys: dict[tuple[str, int], str] = {}
        for partition in dict.fromkeys(partitions):
            own = [i for p, i in zip(partitions, indexes, strict=True) if p == partition]
            body = {"global_indexes": own, "partition_id": partition}
            future = asyncio.run_coroutine_threadsafe(self._ask(body), self._notify_loop)
            answer = (await asyncio.wrap_future(future)) or [None] * len(own)
            keys.update({(partition, i): key for i, key in zip(own, answer, strict=True)})
        return [
            (p, keys[p, i] if keys[p, i] is not None else f"#{i}")
            for p, i in zip(partitions, indexes, strict=True)
        ]

    async def _ask(self, body: dict[str, Any]) -> list[str | None]:
        """Ask the controller for the keys of rows."""
        request = ZMQMessage.create(
            request_type=ZMQRequestType.KV_RETRIEVE_KEYS,
            sender_id=self.storage_manager_id,
            receiver_id=self.controller_info.id,
            body=body,
        )
        async with self.notify_pool.alease(self.controller_info) as one:
            try:
                await one.send_multipart(request.serialize())
                parts = await asyncio.wait_for(one.recv_multipart(copy=False), _PATIENCE)
            except BaseException:
                # An answer that comes late would be read as that to the next request.
                one.close(linger=0)
                raise
        answer = ZMQMessage.deserialize(parts)
        if answer.request_type != ZMQRequestType.KV_RETRIEVE_KEYS_RESPONSE:
            raise RuntimeError(f"expected keys from the controller, got {answer.request_type}")
        keys: list[str | None] = answer.body["keys"]
        return keys

    @staticmethod
    async def _run(call: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, call, *arguments)

    # Leases and checkpoints, in the trainer's process.

    def lease(self, partition: str, prompts: Iterable[str]) -> None:
        """Keep what is cleared of these prompts until the checkpoints that need it are old."""
        self._leased.update({(partition, prompt): self._mark for prompt in prompts})

    def write_tags(self, partition: str, tags: Mapping[str, dict[str, Any]]) -> None:
        """Store tags of rows, which TransferQueue gives to its controller only."""
        self._rows.put([Record(partition, key, {}, dict(one)) for key, one in tags.items()])

    async def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write which rows belong to the checkpoint; no value is copied."""
        await self._run(self._save, Path(checkpoint_dir))

    def _save(self, directory: Path) -> None:
        marks = self._checkpoints()
        one = secrets.token_hex(8)
        marks = [*marks, [self._mark, one]][-self._keep :]
        content = {"mark": self._mark, "id": one, "fetched": self._fetched}
        with (directory / _FILE).open("w") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        self._keep_checkpoints(marks)
        self._rows.remove_marked(marks[0][0])
        self._mark += 1
        self._leased = {name: mark for name, mark in self._leased.items() if mark >= marks[0][0]}

    def _checkpoints(self) -> list[list[Any]]:
        """Return number and id of the checkpoints from which a run can go on."""
        row = self._rows.read([_CHECKPOINTS]).get(_CHECKPOINTS)
        marks: list[list[Any]] = row.tags["marks"] if row is not None and row.tags else []
        return marks

    def _keep_checkpoints(self, marks: list[list[Any]]) -> None:
        self._rows.put([Record(*_CHECKPOINTS, {}, {"marks": marks})])
        self._rows.replace([_CHECKPOINTS])

    async def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Choose the checkpoint from which :meth:`recover` goes on.

        Raises:
            FileNotFoundError: If another backend has written the checkpoint.
            EchoicError: If the rows that it needs have gone.
        """
        content = json.loads((Path(checkpoint_dir) / _FILE).read_text())
        marks = await self._run(self._checkpoints)
        if [content["mark"], content["id"]] not in marks:
            raise EchoicError(
                f"the rows of checkpoint {checkpoint_dir} have gone: they are kept for the "
                f"{self._keep} newest checkpoints (backend.Echoic.checkpoints), and not for those "
                "after one from which a run went on"
            )
        self._loaded = int(content["mark"]), int(content["fetched"])

    def recover(self, skip: Callable[[int], None] | None = None) -> dict[str, int]:
        """Fill the controller with the prompts and trajectories that this run goes on with.

        Without a loaded checkpoint there are no such rows, and the directory is emptied. Otherwise
        they are all prompts that are not in the checkpoint's weights, with their trajectories.

        Args:
            skip: Called with how many prompts of the dataset, after the checkpoint's, are here
                already. Without it these prompts are left out, as the dataset gives them again.

        Returns:
            How many ``prompts`` there are, how many of them are ``finished``, how many were taken
            from the dataset after the checkpoint (``ahead``), and how many are ``skipped`` there.
        """
        mark, fetched = self._loaded or (0, 0)
        self._loaded = None
        items = self._rows.items()
        checkpoints = [one for one in self._checkpoints() if one[0] <= mark]
        self._keep_checkpoints(checkpoints)
        marks: dict[tuple[str, str], int] = {}
        for _, one, record in items:
            name = record.partition, record.key
            marks[name] = max(one, marks.get(name, 0))
        rows = merge(record for _, _, record in items)
        rows.pop(_CHECKPOINTS, None)
        prompts = {
            name: row for name, row in rows.items() if row.tags and row.tags.get("is_prompt")
        }
        trained = {name for name in prompts if 0 < marks[name] <= mark}
        live = {name: row for name, row in prompts.items() if mark and name not in trained}

        # Only the last call that added prompts may have been cut off.
        later = {row.extra.get("fetched", 0) for row in live.values()}
        later = {number for number in later if number > fetched}
        if later:
            last = [name for name, row in live.items() if row.extra.get("fetched") == max(later)]
            if len(last) < live[last[0]].extra["of"]:
                later.discard(max(later))
        if skip is None:
            later.clear()
        live = {
            name: row
            for name, row in live.items()
            if row.extra.get("fetched", 0) <= fetched or row.extra["fetched"] in later
        }
        skipped = max(later, default=fetched) - fetched

        kept = [name for name in rows if (name[0], _prompt(name[1])) in live]
        done = [
            name for name in rows if (name[0], _prompt(name[1])) in trained and name not in trained
        ]
        gone = set(rows) - set(kept) - set(done) - trained
        self._rows.remove(list(gone))
        self._rows.mark([name for name in kept if marks[name]], 0)
        for one in {marks[name[0], _prompt(name[1])] for name in done}:
            self._rows.mark([n for n in done if marks[n[0], _prompt(n[1])] == one], one)
        self._mark = max([mark, *marks.values()], default=0) + 1
        self._fetched = fetched + skipped
        if skip is not None and skipped:
            skip(skipped)
        self._register(kept, rows)
        finished = sum(
            row.tags["status"] in ("finished", "failure") for row in live.values() if row.tags
        )
        ahead = sum(row.extra.get("fetched", 0) in later for row in live.values())
        found = {"prompts": len(live), "finished": finished, "skipped": skipped, "ahead": ahead}
        _log.info("recovered from checkpoint %d: %s", mark, found)
        return found

    def _register(
        self, names: Sequence[tuple[str, str]], rows: Mapping[tuple[str, str], Record]
    ) -> None:
        """Replace what the controller knows by these rows, whose values stay where they are."""
        self._stores = False
        try:
            for partition, keys in (tq.kv_list() or {}).items():
                if keys:
                    tq.kv_clear(list(keys), partition)
            for start in range(0, len(names), 256):
                alike: dict[tuple[str, tuple[str, ...]], list[Record]] = {}
                for row in self._rows.read(names[start : start + 256]).values():
                    alike.setdefault((row.partition, tuple(sorted(row.fields))), []).append(row)
                for (partition, fields), some in alike.items():
                    tq.kv_batch_put(
                        keys=[row.key for row in some],
                        partition_id=partition,
                        fields=_join([row.fields for row in some], fields) if fields else None,
                        tags=[row.tags or {} for row in some],
                    )
        finally:
            self._stores = True


def _prompt(key: str) -> str:
    """Return the key of the prompt that a trajectory answers: ``{prompt}_{session}_{index}``."""
    return key.partition("_")[0]


def _join(rows: Sequence[Mapping[str, Any]], fields: Iterable[str]) -> TensorDict:
    """Return rows as TransferQueue's other backends do: tensors of any lengths are nested."""
    columns: dict[str, Any] = {}
    for field in fields:
        values = [row[field] for row in rows]
        if not all(isinstance(value, torch.Tensor) and not value.is_nested for value in values):
            columns[field] = NonTensorStack(*values)
        elif all(value.dim() == 0 for value in values):
            columns[field] = torch.stack(values)
        else:
            try:
                columns[field] = torch.nested.as_nested_tensor(values, layout=torch.jagged)
            except (RuntimeError, TypeError):
                columns[field] = NonTensorStack(*values)
    return TensorDict(columns, batch_size=len(rows))
