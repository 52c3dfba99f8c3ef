"""Has rollouts go on for long, under kills, and looks whether anything is lost or grows.

`python tests/stress/soak.py --seconds 3600` plays laps of `hunt_rollouts` with one server, prints a
line for each, and ends with 1 where something is wrong. In one lap of ten the server is killed, or
closed and started again, with its directory. `--seed S` chooses transport and order of events.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from hunt_plan import Plan
from hunt_rollouts import Rollouts

# Seconds in which all work, of a lap.
LAP = 10.0
# What happens in most laps, and in one of so many.
USUAL = ("kill producer", "kill producer", "kill learner", "pause", "checkpoint")
RARE, RARELY = ("kill server", "restart server"), 10


def soak(seed: int, seconds: float, reach: str | None) -> None:
    """Play laps for so many seconds; raises what went wrong."""
    rng = random.Random(seed)
    plan = Plan(seed, "rollouts", rng.choice(["unix", "shm", "tcp"]), durability="async")
    plan.reach = reach or plan.reach
    plan.inserters, plan.samplers = ["produce"] * 3, ["learn"] * 2
    plan.suspends = rng.random() < 0.5
    print(f"soak of {seconds:.0f} s, seed {seed}: {plan}", flush=True)
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="echoic-soak-") as folder:
        # Sockets of `shm://` addresses go with the folder.
        os.environ["XDG_RUNTIME_DIR"] = folder
        played = Rollouts(plan, Path(folder))
        try:
            while (left := end - time.monotonic()) > 0:
                events = rng.choices(USUAL, k=rng.randint(0, 5))
                if played.totals.laps % RARELY == RARELY // 2 or left < LAP:
                    events.insert(rng.randint(0, len(events)), rng.choice(RARE))
                used = played.lap(min(LAP, max(left, 1.0)), events)
                print(f"lap {played.totals.laps}: {used}; {', '.join(events)}", flush=True)
        finally:
            played.close()
    print(played.totals)
    print(f"the server used at most {played.most}")


def main() -> None:
    """Soak as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long to begin laps")
    parser.add_argument("--reach", choices=("unix", "shm", "tcp"), help="else the seed chooses")
    asked = parser.parse_args()
    faulthandler.enable()
    soak(asked.seed, asked.seconds, asked.reach)
    sys.exit(0)


if __name__ == "__main__":
    main()
