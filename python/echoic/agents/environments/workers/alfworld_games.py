"""Plays the official games of ALFWorld, in an interpreter that has alfworld; run by its path.

ALFWorld needs Fast Downward and jericho, which are under the GPL: this file is never imported by
Echoic. Games are played by ALFWorld's own ``AlfredTWEnv``, in this process.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any


class _Games:
    _env: Any = None

    def hello(self, folder: str, tasks: list[str]) -> None:
        textworld: Any = importlib.import_module("textworld.gym")
        module: Any = importlib.import_module("alfworld.agents.environment.alfred_tw_env")
        if not Path(folder).is_dir():
            raise FileNotFoundError(
                f"ALFWorld's games are not installed: there is no folder {folder!r}. Run "
                "alfworld-download, and set ALFWORLD_DATA to where it put them"
            )
        # One game at a time, in this process, which is a worker already.
        own = textworld.register_games
        textworld.register_games = lambda *a, **k: own(*a, **{**k, "asynchronous": False})
        config = {
            "dataset": {"data_path": folder, "num_train_games": 0, "num_eval_games": 0},
            "env": {
                "domain_randomization": False,
                "task_types": [n for n, name in module.TASK_TYPES.items() if name in tasks],
                "expert_type": "handcoded",
                "goal_desc_human_anns_prob": 0,
            },
            "general": {"training_method": "dqn"},
            # Echoic's environments have a limit of their own.
            "rl": {"training": {"max_nb_steps_per_episode": 10**9}},
        }
        self._games = module.AlfredTWEnv(config, train_eval="train")
        self._paths = sorted(self._games.game_files)
        if not self._paths:
            raise FileNotFoundError(f"there are no games of {tasks} in {folder}")

    def reset(self, seed: int) -> dict[str, Any]:
        self._path = self._paths[seed % len(self._paths)]
        if self._env is not None:
            self._env.close()
        self._games.game_files = [self._path]
        self._env = self._games.init_env(batch_size=1)
        self._said: list[str] = []
        texts, told = self._env.reset()
        return self._seen(texts[0], told, 0.0)

    def step(self, command: str) -> dict[str, Any]:
        texts, scores, _, told = self._env.step([command])
        self._said.append(command)
        return self._seen(texts[0], told, scores[0])

    def expert(self) -> str | None:
        """Return the next command of the game's own walkthrough; None off its way."""
        plan = json.loads(Path(self._path).read_text()).get("walkthrough") or []
        done = len(self._said)
        return str(plan[done]) if self._said == plan[:done] and done < len(plan) else None

    def _seen(self, text: str, told: dict[str, Any], score: float) -> dict[str, Any]:
        won = bool(told["won"][0])
        return {
            "text": text.strip(),
            "commands": sorted(told["admissible_commands"][0]),
            "score": float(won or score),
            "won": won,
            "details": {"game": Path(self._path).parent.parent.name},
        }


if __name__ == "__main__":
    importlib.import_module("loop").serve(_Games())
