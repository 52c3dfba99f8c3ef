"""Plays games of ALFWorld, in an interpreter that has alfworld; run by its path.

ALFWorld needs Fast Downward and jericho, which are under the GPL: this file is never imported by
Echoic. Games are played by ALFWorld's own ``AlfredTWEnv``, in this process. The official games are
taken from where ``ALFWORLD_DATA`` points; others are generated from the tables that the package
ships: which things and receptacles each of its 120 rooms has, what holds what, and what can be
cleaned, heated and cooled. Each is solved before it is played, by ALFWorld's own expert, or where
that one gives up, by Fast Downward; a game that both fail at is thrown away.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

# A game whose solution is longer is thrown away, and the next one is tried.
_LONGEST_WALKTHROUGH = 100
_MOST_TRIES = 40
_PLACES_FOR = {
    "pick_clean_then_place_in_recep": ("SinkBasin", "Cleanable"),
    "pick_heat_then_place_in_recep": ("Microwave", "Heatable"),
    "pick_cool_then_place_in_recep": ("Fridge", "Coolable"),
}
_LAMP = "DeskLamp"
# The tables don't have the places of lamps.
_DESKS = ("Desk", "SideTable", "Dresser")
_OPENABLE = ("Fridge", "Cabinet", "Microwave", "Drawer", "Safe", "Box")
# Types that the rules name, whether a room has them or not.
_RTYPES = {"SinkBasin", "Microwave", "Fridge"}
_OTYPES = {"Knife", "ButterKnife"}


def _package(name: str) -> Any:
    return importlib.import_module(f"alfworld.{name}")


def _engine() -> Any:
    return _package("agents.environment.alfred_tw_env")


class _Games:
    def __init__(self) -> None:
        self._env: Any = None
        self._official: dict[str, list[str]] = {}
        self._path = ""
        self._said: list[str] = []

    def hello(self) -> dict[str, Any]:
        textworld: Any = importlib.import_module("textworld.gym")
        _engine()
        # One game at a time, in this process, which is a worker already.
        own = textworld.register_games
        textworld.register_games = lambda *a, **k: own(*a, **{**k, "asynchronous": False})
        return {"official": _official_folder() is not None}

    def reset(self, seed: int, settings: dict[str, Any], folder: str) -> dict[str, Any]:
        official = settings["games"] == "official"
        path = (
            self._an_official(seed, settings) if official else _made(Path(folder), seed, settings)
        )
        if self._env is not None:
            self._env.close()
        games = _games_in(str(Path(path).parent), settings["tasks"])
        self._env = games.init_env(batch_size=1)
        self._path, self._said = path, []
        texts, told = self._env.reset()
        return self._seen(texts[0], told, 0.0)

    def step(self, command: str) -> dict[str, Any]:
        texts, scores, _, told = self._env.step([command])
        self._said.append(command)
        return self._seen(texts[0], told, scores[0])

    def expert(self) -> str | None:
        """The next of the stored walkthrough, or from off its way, of Fast Downward's plan."""
        plan = json.loads(Path(self._path).read_text()).get("walkthrough") or []
        done = len(self._said)
        if self._said == plan[:done] and done < len(plan):
            return str(plan[done])
        inner = importlib.import_module("textworld.envs").PddlEnv()
        env = _engine().AlfredDemangler(inner)
        env.load(self._path)
        env.reset()
        for command in self._said:
            env.step(command)
        rest = _planned(inner)
        return rest[0] if rest else None

    def _an_official(self, seed: int, settings: dict[str, Any]) -> str:
        folder = _official_folder()
        if folder is None:
            raise ValueError(
                "ALFWORLD_DATA does not point at the official games: there is no json_2.1.1 in "
                f"{os.environ.get('ALFWORLD_DATA', 'it, as it is not set')}"
            )
        key = json.dumps([settings["split"], settings["tasks"]])
        if key not in self._official:
            found = _games_in(str(folder / settings["split"]), settings["tasks"]).game_files
            self._official[key] = sorted(found)
        paths = self._official[key]
        if not paths:
            raise ValueError(f"there are no games of {settings['tasks']} in {settings['split']}")
        return paths[seed % len(paths)]

    def _seen(self, text: str, told: dict[str, Any], score: float) -> dict[str, Any]:
        won = bool(told["won"][0])
        return {
            "text": text.strip(),
            "commands": sorted(told["admissible_commands"][0]),
            "score": float(won or score),
            "won": won,
            "details": {"game": Path(self._path).parent.parent.name},
        }


def _official_folder() -> Path | None:
    data = os.environ.get("ALFWORLD_DATA")
    folder = Path(data) / "json_2.1.1" if data else None
    return folder if folder is not None and folder.is_dir() else None


def _games_in(folder: str, tasks: list[str]) -> Any:
    module = _engine()
    numbers = [number for number, name in module.TASK_TYPES.items() if name in tasks]
    config = {
        "dataset": {"data_path": folder, "num_train_games": 0, "num_eval_games": 0},
        "env": {
            "domain_randomization": False,
            "task_types": numbers,
            "expert_type": "handcoded",
            "goal_desc_human_anns_prob": 0,
        },
        "general": {"training_method": "dqn"},
        # Echoic's environments have a limit of their own.
        "rl": {"training": {"max_nb_steps_per_episode": 10**9}},
    }
    return module.AlfredTWEnv(config, train_eval="train")


def _made(folder: Path, seed: int, settings: dict[str, Any]) -> str:
    """The generated game of a seed, from the folder if it has been made before."""
    home = folder / str(seed)
    if not home.exists():
        folder.mkdir(parents=True, exist_ok=True)
        own = Path(tempfile.mkdtemp(prefix=".making-", dir=folder))
        try:
            _make(own, seed, settings)
            own.rename(home)
        except OSError:
            # Another may have been first, with the same.
            if not home.exists():
                raise
        finally:
            shutil.rmtree(own, ignore_errors=True)
    return str(next(home.rglob("game.tw-pddl")))


def _make(folder: Path, seed: int, settings: dict[str, Any]) -> None:
    rng = random.Random(seed)
    data = Path(_package("info").__file__).parent / "data"
    for _ in range(_MOST_TRIES):
        task = rng.choice(settings["tasks"])
        problem = _problem(rng, task, settings["max_objects"], settings["room_size"])
        if problem is None:
            continue
        name, pddl, params, scene = problem
        home = folder / name / f"trial_T{seed}"
        home.mkdir(parents=True)
        trial = {
            "task_id": home.name,
            "task_type": task,
            "pddl_params": params,
            "scene": {"floor_plan": f"FloorPlan{scene}", "scene_num": scene},
        }
        (home / "traj_data.json").write_text(json.dumps(trial))
        (home / "initial_state.pddl").write_text(pddl)
        # The package draws a template of the task's words from the global generator.
        random.seed(rng.random())
        grammar = (data / "alfred.twl2").read_text()
        game = {
            "pddl_domain": (data / "alfred.pddl").read_text(),
            "grammar": _package("agents.utils.misc").add_task_to_grammar(grammar, trial),
            "pddl_problem": pddl,
            "solvable": None,
            "walkthrough": None,
        }
        path = home / "game.tw-pddl"
        path.write_text(json.dumps(game))
        walkthrough = _solved(path)
        if walkthrough and len(walkthrough) <= _LONGEST_WALKTHROUGH:
            path.write_text(json.dumps({**game, "solvable": True, "walkthrough": walkthrough}))
            return
        shutil.rmtree(home.parent)
    raise RuntimeError(f"no solvable game came out of {_MOST_TRIES} tries of seed {seed}")


def _solved(path: Path) -> list[str] | None:
    """What ALFWorld's expert does, if it gets there, or else what Fast Downward plans."""
    module = _engine()
    textworld = importlib.import_module("textworld")
    inner = importlib.import_module("textworld.envs").PddlEnv(
        textworld.EnvInfos(admissible_commands=True, extras=["gamefile"])
    )
    env = module.AlfredExpert(module.AlfredInfos(module.AlfredDemangler(inner)), "handcoded")
    steps: list[str] = []
    try:
        env.load(str(path))
        state = env.reset()
        if state["won"]:
            return None
        while len(steps) < _LONGEST_WALKTHROUGH:
            steps.append(state["extra.expert_plan"][0])
            state, _, done = env.step(steps[-1])
            if done:
                return steps
    except Exception as error:  # the expert gives up by any of them
        print(f"{path.parent.parent.name}: {type(error).__name__}: {error}")  # noqa: T201
    inner.reset()
    return _planned(inner)


def _planned(env: Any) -> list[str] | None:
    """What Fast Downward would do from here on."""
    # Private, because the environment's own way plans again after each step, for seconds.
    plan = env._pddl_state.replan(env._entity_infos)
    return [str(step) for step in plan] if plan else None


def _problem(
    rng: random.Random, task: str, most_objects: int, size: int
) -> tuple[str, str, dict[str, Any], int] | None:
    """One problem: its name, its PDDL, what its goal is about, and its room; None for bad luck."""
    constants = _package("gen.constants")
    holds: dict[str, set[str]] = constants.VAL_RECEPTACLE_OBJECTS
    room = rng.choice(sorted(constants.GOALS_VALID[task]))
    scene = rng.choice(list(constants.SCENE_TYPE[room]))
    layouts = Path(_package("gen").__file__).parent / "layouts"
    try:
        names = json.loads((layouts / f"FloorPlan{scene}-openable.json").read_text())
        kinds = json.loads((layouts / f"FloorPlan{scene}-objects.json").read_text())
    except FileNotFoundError:
        return None
    places = {name: _type_of(name) for name in sorted(names) if _type_of(name) in holds}
    has = set(places.values())
    things = sorted(set(kinds) & set().union(*(holds[one] for one in has)) - has - {_LAMP})
    tool, can = _PLACES_FOR.get(task, ("", ""))
    possible = [kind for kind in things if not can or kind in constants.VAL_ACTION_OBJECTS[can]]
    lit = task == "look_at_obj_in_light"
    if not possible or (tool and tool not in has) or (lit and _LAMP not in kinds):
        return None
    target = rng.choice(possible)
    fits = [name for name, where in places.items() if target in holds[where]]
    goals = sorted({places[name] for name in fits} - {tool})
    if not goals:
        return None
    goal = "" if lit else rng.choice(goals)
    starts = [name for name in fits if places[name] not in (goal, tool)]
    desks = [name for name, where in places.items() if where in _DESKS]
    if not starts or (lit and not desks):
        return None
    put = [(target, rng.choice(starts)) for _ in range(1 + (task == "pick_two_obj_and_place"))]
    # What the task can't do without comes first, then others by lot.
    needed = [name for _, name in put]
    for kind in filter(None, (goal, tool)):
        needed.append(rng.choice([name for name, where in places.items() if where == kind]))
    if lit:
        needed.append(rng.choice(desks))
        put.append((_LAMP, needed[-1]))
    chosen = list(dict.fromkeys(needed))
    others = [name for name in places if name not in chosen]
    chosen += rng.sample(others, min(len(others), max(0, size - len(chosen))))
    for _ in range(most_objects - len(put)):
        kind = rng.choice(things)
        free = [name for name in chosen if kind in holds[places[name]]]
        if kind != target and free:
            put.append((kind, rng.choice(free)))
    params = {
        "object_target": target,
        "parent_target": goal,
        "toggle_target": _LAMP if lit else "",
        "mrecep_target": "",
        "object_sliced": False,
    }
    pddl = _pddl(rng, task, params, {name: places[name] for name in sorted(chosen)}, put)
    return f"{task}-{target}-None-{goal or _LAMP}-{scene}", pddl, params, scene


def _pddl(
    rng: random.Random,
    task: str,
    params: dict[str, Any],
    places: dict[str, str],
    put: list[tuple[str, str]],
) -> str:
    constants = _package("gen.constants")
    objects, init = ["agent1 - agent", "loc_bar_0 - location"], ["(atLocation agent1 loc_bar_0)"]
    at = {name: f"loc_bar_{i}" for i, name in enumerate(places, 1)}
    for name, kind in places.items():
        id_ = _mangled(name)
        objects += [f"{id_} - receptacle", f"{at[name]} - location"]
        init += [f"(receptacleType {id_} {kind}Type)", f"(receptacleAtLocation {id_} {at[name]})"]
        init += [f"(openable {id_})"] * (kind in _OPENABLE)
    for kind, name in put:
        spot = "|".join(f"{rng.uniform(-9, 9):+06.2f}" for _ in range(3))
        id_ = _mangled(f"{kind}|{spot}")
        objects.append(f"{id_} - object")
        init += [
            f"(objectType {id_} {kind}Type)",
            f"(inReceptacle {id_} {_mangled(name)})",
            f"(objectAtLocation {id_} {at[name]})",
            f"({'toggleable' if kind == _LAMP else 'pickupable'} {id_})",
        ]
        for word in ("Cleanable", "Heatable", "Coolable", "Sliceable"):
            if kind != _LAMP and kind in constants.VAL_ACTION_OBJECTS[word]:
                init.append(f"({word.lower()} {id_})")
    rtypes = sorted({*places.values(), *_RTYPES, *filter(None, [params["parent_target"]])})
    otypes = sorted({*(kind for kind, _ in put), *_OTYPES})
    objects += [f"{kind}Type - rtype" for kind in rtypes]
    objects += [f"{kind}Type - otype" for kind in otypes]
    init += [
        f"(canContain {outer}Type {inner}Type)"
        for outer in rtypes
        for inner in otypes
        if inner in constants.VAL_RECEPTACLE_OBJECTS.get(outer, ())
    ]
    obj, recep, toggle = (params[f"{one}_target"] for one in ("object", "parent", "toggle"))
    goal = _package("gen.goal_library").gdict[task]["pddl"]
    goal = goal.format(obj=obj, recep=recep, toggle=toggle)
    lines = "\n        "
    return (
        "(define (problem generated)\n    (:domain alfred)\n"
        f"    (:objects\n        {lines.join(objects)}\n    )\n"
        f"    (:init\n        {lines.join(init)}\n    )\n{goal.replace('#', '-')}"
    )


def _type_of(receptacle: str) -> str:
    first, *_, last = receptacle.split("|")
    return last if "Basin" in last else first


def _mangled(name: str) -> str:
    for plain, word in (("|", "_bar_"), ("+", "_plus_"), ("-", "_minus_"), (".", "_dot_")):
        name = name.replace(plain, word)
    return name


if __name__ == "__main__":
    games = _Games()
    importlib.import_module("loop").serve(
        {name: getattr(games, name) for name in ("hello", "reset", "step", "expert")}
    )
