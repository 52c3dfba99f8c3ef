"""``python -m benchmarks.migration [--quick]``: rates of both sides, as JSON lines.

Rounds on the two sides alternate, so that what else the machine does falls on both. A rate is the
median of its rounds. The other library runs in the environment that the other benchmarks made for
it. ``--only`` names one of them.
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

# Each program is `NAME_program.py`; its peer is the package that has the module of that name.
PEER_OF = {"reverb": "dm-reverb", "echo": "id-echo"}
# Where the server is, or for echo the workers.
PLACES = ("here", "elsewhere")
TIMEOUT = 600


def run(python: str, name: str, module: str, place: str, count: int) -> dict[str, float]:
    """The rates of one run."""
    program = Path(__file__).with_name(f"{name}_program.py")
    done = subprocess.run(
        [python, str(program), module, place, str(count)],
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
    """Run the programs on both sides in turns."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.migration", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="to see that it works")
    parser.add_argument("--only", choices=PEER_OF, help="the library whose program is run")
    options = parser.parse_args()
    for name in PEER_OF if options.only is None else [options.only]:
        [peer] = [peer for peer in PEERS if peer.name == PEER_OF[name]]
        print(f"preparing {peer.requirement}", file=sys.stderr)
        sides = {f"echoic.{name}": sys.executable, name: str(interpreter(peer))}
        for place in PLACES:
            compare(name, peer.requirement, place, sides, quick=options.quick)


def compare(name: str, peer: str, place: str, sides: dict[str, str], *, quick: bool) -> None:
    """Print the rates of the two modules, which interpreters have."""
    rounds, count = (1, 100) if quick else (5, 2000)
    measured: dict[str, list[dict[str, float]]] = {module: [] for module in sides}
    for number in range(rounds):
        for module, python in sides.items():
            print(f"{place}, round {number + 1}, {module}", file=sys.stderr)
            measured[module].append(run(python, name, module, place, count))
    for workload in measured[name][0]:
        rates = {module: median(one[workload] for one in all_) for module, all_ in measured.items()}
        ratio = rates[f"echoic.{name}"] / rates[name]
        line = {
            "workload": workload,
            "server": place,
            "unit": "1/s",
            "rounds": rounds,
            **{module: round(rate) for module, rate in rates.items()},
            "ratio": round(ratio, 2),
            "peer": peer,
            "quick": quick,
            "machine": machine(),
        }
        print(json.dumps(line), flush=True)
        print(f"  {workload}: {ratio:.1f} x", file=sys.stderr)


if __name__ == "__main__":
    main()
