"""``python -m benchmarks.migration [--quick]``: rates of both sides, as JSON lines.

Rounds on the two sides alternate, so that what else the machine does falls on both. A rate is the
median of its rounds. dm-reverb runs in the environment that the other benchmarks made for it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

from benchmarks.machine import machine
from benchmarks.peers import PEERS
from benchmarks.peers.environment import interpreter

PROGRAM = Path(__file__).with_name("program.py")
# Where the server is.
PLACES = ("here", "elsewhere")
TIMEOUT = 600


def run(python: str, module: str, place: str, count: int) -> dict[str, float]:
    """The rates of one run."""
    done = subprocess.run(
        [python, str(PROGRAM), module, place, str(count)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{module} with its server {place} failed:\n{done.stderr}")
    rates: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return rates


def main() -> None:
    """Run the program on both sides in turns."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.migration", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="to see that it works")
    options = parser.parse_args()
    rounds, count = (1, 100) if options.quick else (5, 2000)
    [peer] = [peer for peer in PEERS if peer.name == "dm-reverb"]
    print(f"preparing {peer.requirement}", file=sys.stderr)
    sides = {"echoic.reverb": sys.executable, "reverb": str(interpreter(peer))}
    for place in PLACES:
        measured: dict[str, list[dict[str, float]]] = {module: [] for module in sides}
        for number in range(rounds):
            for module, python in sides.items():
                print(f"{place}, round {number + 1}, {module}", file=sys.stderr)
                measured[module].append(run(python, module, place, count))
        for name in measured["reverb"][0]:
            rates = {module: median(one[name] for one in all_) for module, all_ in measured.items()}
            ratio = rates["echoic.reverb"] / rates["reverb"]
            line = {
                "workload": name,
                "server": place,
                "unit": "1/s",
                "rounds": rounds,
                **{module: round(rate) for module, rate in rates.items()},
                "ratio": round(ratio, 2),
                "peer": peer.requirement,
                "quick": options.quick,
                "machine": machine(),
            }
            print(json.dumps(line), flush=True)
            print(f"  {name}: {ratio:.1f} x", file=sys.stderr)


if __name__ == "__main__":
    main()
