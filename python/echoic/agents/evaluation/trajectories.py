"""A page to read episodes: what was seen, thought and done, step by step. It needs no server.

All text is from environments and models, and may say anything: it is escaped, cut to a length,
and the page forbids scripts.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from echoic.agents.evaluation.rows import objects

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["write_viewer"]

_MOST_EPISODES = 200
_MOST_TURNS = 200
_MOST_TEXT = 4000
_HEAD = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Trajectories</title><style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
pre { white-space: pre-wrap; overflow-wrap: anywhere; padding: .5rem; margin: .3rem 0 }
pre { background: #8881 }
pre.thought { font-style: italic } pre.action { border-left: 3px solid #38c }
summary { cursor: pointer } .won { color: #2a7 } .lost { color: #c43 } small { opacity: .7 }
</style><h1>Trajectories</h1>
"""


def write_viewer(rows: Sequence[dict[str, Any]], root: Path) -> Path | None:
    """Write ``trajectories.html`` from the steps that were kept; None if there are none."""
    source = root / "turns.jsonl"
    if not source.exists():
        return None
    known = {row["id"]: row for row in rows if row["kind"] == "episode"}
    kept: dict[str, list[dict[str, Any]]] = {}
    for told in objects(source):
        if told.get("id") in known and "turns" in told:
            kept[told["id"]] = told["turns"]
    path = root / "trajectories.html"
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(_HEAD)
        for id_ in sorted(kept)[:_MOST_EPISODES]:
            file.writelines(_episode(known[id_], kept[id_]))
        if len(kept) > _MOST_EPISODES:
            file.write(f"<p>… and {len(kept) - _MOST_EPISODES} more, in turns.jsonl.</p>")
    return path


def _episode(row: dict[str, Any], turns: list[dict[str, Any]]) -> Iterator[str]:
    mark = "won" if row["success"] else "lost"
    yield (
        f'<details><summary><span class="{mark}">{"✓" if row["success"] else "✗"}</span>'
        f" {_text(row['id'])} <small>{row['steps']} steps, reward {row['reward']:g},"
        f" {_text(row['ended'])}</small></summary>"
    )
    for number, turn in enumerate(turns[:_MOST_TURNS], 1):
        yield f"<p><small>step {number}, reward {turn['reward']:g}</small></p>"
        for kind in ("observation", "thought", "action"):
            if turn[kind]:
                yield f'<pre class="{kind}">{_text(turn[kind])}</pre>'
    if len(turns) > _MOST_TURNS:
        yield f"<p>… and {len(turns) - _MOST_TURNS} more steps.</p>"
    if row["error"]:
        yield f"<pre>{_text(row['error'])}</pre>"
    yield "</details>\n"


def _text(text: str) -> str:
    more = "" if len(text) <= _MOST_TEXT else f" … and {len(text) - _MOST_TEXT} more characters"
    return html.escape(text[:_MOST_TEXT] + more)
