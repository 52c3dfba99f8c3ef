"""Plays games of TextWorld, in an interpreter that has textworld; run by its path.

TextWorld needs jericho, which is under the GPL: this file is never imported by Echoic.
"""

from __future__ import annotations

import importlib
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

_BLANKS = re.compile(r"\n\s*\n+")
_PROMPT = re.compile(r"\n>.*\Z", re.DOTALL)
_END = re.compile(r"\n\s*Would you like to RESTART.*\Z", re.DOTALL)


class _Games:
    def __init__(self) -> None:
        self._env: Any = None
        self._state: Any = None

    def hello(self) -> str:
        version: str = importlib.import_module("textworld").__version__
        return version

    def reset(self, folder: str, seed: int, settings: dict[str, Any]) -> dict[str, Any]:
        textworld = importlib.import_module("textworld")
        path = _made(Path(folder), seed, settings)
        asked = textworld.EnvInfos(
            admissible_commands=True,
            policy_commands=True,
            won=True,
            lost=True,
            score=True,
            max_score=True,
            objective=True,
            description=True,
        )
        if self._env is not None:
            self._env.close()
        self._env = textworld.start(str(path), asked)
        self._state = self._env.reset()
        objective = _plain(self._state.objective or "")
        return self._seen(f"{objective}\n\n{_plain(self._state.description or '')}".strip())

    def step(self, command: str) -> dict[str, Any]:
        self._state, _, _ = self._env.step(command)
        return self._seen(_plain(self._state.feedback))

    def expert(self) -> str | None:
        plan = self._state.policy_commands
        return str(plan[0]) if plan else None

    def _seen(self, text: str) -> dict[str, Any]:
        state = self._state
        won, lost = bool(state.won), bool(state.lost)
        most = max(int(state.max_score or 0), 1)
        return {
            "text": text,
            "commands": sorted(state.admissible_commands),
            "score": 1.0 if won else min(1.0, max(0.0, (state.score or 0) / most)),
            "ended": won or lost,
            "won": won,
            "details": {"lost": lost},
        }


def _made(folder: Path, seed: int, settings: dict[str, Any]) -> Path:
    """The game of a seed, from the folder if it has been made before."""
    path = folder / f"{seed}.z8"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    # Others may make the same game at the same time: each in a place of its own, then one move for
    # each file, the game itself last.
    own = Path(tempfile.mkdtemp(prefix=".making-", dir=folder))
    try:
        made = _make(own / "game.z8", seed, settings)
        made.with_suffix(".json").replace(path.with_suffix(".json"))
        made.replace(path)
    finally:
        shutil.rmtree(own, ignore_errors=True)
    return path


def _make(path: Path, seed: int, settings: dict[str, Any]) -> Path:
    generator = importlib.import_module("textworld.generator")
    options = generator.GameOptions()
    options.seeds = seed
    options.path = str(path)
    if settings["theme"] == "cooking":
        cooking = importlib.import_module("textworld.challenges.tw_cooking.cooking")
        game = cooking.make(settings["cooking"], options)
    else:
        options.nb_rooms = settings["world_size"]
        options.nb_objects = settings["num_objects"]
        options.quest_length = settings["quest_length"]
        options.grammar.theme = settings["theme"]
        game = generator.make_game(options)
    return Path(generator.compile_game(game, options))


def _plain(text: str) -> str:
    """What a game says, without its prompt, its status line and its many blank lines."""
    text = _END.sub("", _PROMPT.sub("", text))
    lines = "\n".join(line.strip() for line in text.splitlines())
    return _BLANKS.sub("\n\n", lines).strip()


if __name__ == "__main__":
    games = _Games()
    importlib.import_module("loop").serve(
        {"hello": games.hello, "reset": games.reset, "step": games.step, "expert": games.expert}
    )
