"""Read data sets of Hugging Face's ``datasets`` package: in memory, mapped, or streamed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echoic._progress import each
from echoic.buffers._packages import package
from echoic.buffers._sources import arrow
from echoic.buffers._sources import names as usual
from echoic.buffers._sources.arrays import collect
from echoic.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["read_huggingface"]


def read_huggingface(
    dataset: Any,
    cache_dir: str | os.PathLike[str] | None,
    names: Mapping[str, str] | None,
    extras: Sequence[str],
) -> dict[str, Any]:
    """Return the arrays of a data set, or of the folder that one was saved to."""
    if isinstance(dataset, (str, os.PathLike)):
        dataset = _saved(Path(dataset))
    if isinstance(dataset, dict):
        text = f"expected one split, got {', '.join(map(repr, dataset))}; give one of them"
        raise SpecError(f"the data set: {text}")
    if not hasattr(dataset, "with_format"):
        text = f"expected a data set of the datasets package, got {type(dataset).__name__}"
        raise SpecError(f"the data set: {text}")
    schema = _schema(dataset)
    needed = usual.wanted(arrow.names_of(schema), names, extras, "the data set")
    columns = [name for name in schema.names if arrow.is_wanted(name, needed)]
    total = len(dataset) if hasattr(dataset, "__len__") else None

    def blocks() -> Iterator[dict[str, Any]]:
        rows = arrow.rows_of_block(schema, columns)
        tables = dataset.select_columns(columns).with_format("arrow").iter(rows)
        with arrow.intact("the data set", "intact columns of Arrow"):
            for table in each(tables, None if total is None else -(-total // rows)):
                for batch in table.to_batches():
                    # Arrow trusts its own files: without this, wrong offsets crash the program.
                    batch.validate(full=True)
                    yield arrow.arrays_of(batch, needed, "the data set")

    mark = getattr(dataset, "_fingerprint", None) or type(dataset).__name__
    source = f"Hugging Face's {mark} of {'?' if total is None else total} rows: {needed}"
    return collect(lambda: usual.with_last(blocks(), needed), cache_dir, source)


def _schema(dataset: Any) -> Any:
    """Return the schema of a data set, from its first row if a stream does not know it."""
    if dataset.features is not None:
        return dataset.features.arrow_schema
    first = next(iter(dataset.with_format("arrow").iter(1)), None)
    if first is None:
        raise SpecError("the data set: expected rows, got none")
    return first.schema


def _saved(folder: Path) -> Any:
    """Load what was saved to a folder, after checking that it names no file elsewhere."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: expected a folder that a data set was saved to")
    if (folder / "dataset_dict.json").exists():
        text = "expected one split, got several; give the folder of one"
        raise SpecError(f"{folder}: {text}")
    state = folder / "state.json"
    try:
        files = [file["filename"] for file in json.loads(state.read_text("utf-8"))["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        text = "expected the list of files that `save_to_disk` writes"
        raise SpecError(f"{state}: {text}: {error}") from error
    for file in files:
        if not isinstance(file, str) or Path(file).name != file:
            raise SpecError(f"{state}: expected names of files in the folder, got {file!r}")
    datasets = package("datasets", "reading a saved data set")
    try:
        return datasets.load_from_disk(str(folder))
    except Exception as error:  # each part of a damaged folder can fail in its own way
        raise SpecError(f"{folder}: expected an intact saved data set: {error}") from error
