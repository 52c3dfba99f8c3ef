"""Puts the parts together: a server, workers that fill it, a learner that empties it."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

import echoic
from echoic.demo import ppo, rollout
from echoic.demo.crew import DOORS, SPAWN, Crew, ProcessCrew, ThreadCrew, transport_of
from echoic.demo.learner import Learner, evaluate
from echoic.demo.plot import save_plot
from echoic.demo.policy import ActorCritic
from echoic.demo.progress import EPISODES, Progress, Traffic
from echoic.demo.view import choose_view
from echoic.demo.weights import SharedWeights, Weights, WeightsBlock

ROLLOUTS_PER_BATCH = 16
# One batch to learn from while the other fills. More would let the workers run further
# ahead, with a policy that is further behind.
BATCHES = 2
EVALUATION_EPISODES = 20
INTERRUPTED = 130


@dataclass(frozen=True)
class Options:
    """What the command line can set."""

    door: str = DOORS[0]
    seed: int = 0
    workers: int = 4
    steps: int = 300_000
    target: float = 400.0
    out: Path = Path("demo-output")


@dataclass(frozen=True)
class Outcome:
    """What a run ended with."""

    progress: Progress
    address: str | None  # where workers in processes sent to
    info: echoic.StreamStats  # after all workers stopped
    sent: int  # rollouts, as the workers counted them
    lost: list[str]  # workers that were gone before the end, and why
    reached: bool
    evaluation: list[float]  # returns of greedy episodes
    plot: Path


def train(options: Options) -> Outcome:
    """Learn until the target is reached or the steps are used up, then draw the plot."""
    rng = np.random.default_rng(options.seed)
    model = ActorCritic(rollout.OBSERVATION, rollout.ACTIONS)
    params = model.initial(rng)
    weights: Weights
    crew_type: type[Crew]
    if options.door == "none":
        weights, crew_type = SharedWeights(params), ThreadCrew
    else:
        weights, crew_type = WeightsBlock(params, SPAWN), ProcessCrew
    learner = Learner(model, params, weights, ppo.Settings(), rng)

    view = choose_view(Console(), options.steps, options.target)
    progress = Progress()
    with transport_of(options.door) as transport:
        server = echoic.Server(
            rollout.EXAMPLE,
            batch_size=ROLLOUTS_PER_BATCH,
            capacity=BATCHES * ROLLOUTS_PER_BATCH,
            transport=transport,
        )
        traffic = Traffic(server.connections)
        crew = crew_type(options.workers, model, weights, server, options.seed)
        # Before the view, which draws below it.
        server.start()
        address = next(iter(server.addresses), None)
        if address:
            print(invitation(address), flush=True)
        with view, server, crew:
            for batch in server.batches():
                progress.add(learner.learn(batch.data))
                # The name would keep the batch, and its slots from the workers, until the
                # next batch is there.
                del batch
                view.update(progress, server.info, traffic.flows())
                if progress.reached(options.target) or progress.steps >= options.steps:
                    break

    plot = options.out / "cartpole.png"
    save_plot(progress, options.target, plot)
    return Outcome(
        progress=progress,
        address=address,
        info=server.info,
        sent=crew.sent,
        lost=crew.lost,
        reached=progress.reached(options.target),
        evaluation=evaluate(model, params, EVALUATION_EPISODES, options.seed),
        plot=plot,
    )


def invitation(address: str) -> str:
    """How to watch the run from another terminal, with the programs of this environment."""
    program = shlex.join([sys.executable, "-m", "echoic"])
    return (
        f"Watch it from another terminal: {program} top {address}\n"
        f"or from a browser: {program} dashboard {address}"
    )


def report(outcome: Outcome, options: Options) -> None:
    """The last lines of a run."""
    way = f"processes at {outcome.address}" if outcome.address else "threads"
    progress, info = outcome.progress, outcome.info
    learned = info.delivered_total * info.batch_size
    score = f"mean return of the last {EPISODES} training episodes"
    print(f"The workers were {options.workers} {way}.")
    for worker in outcome.lost:
        print(f"Lost {worker}.")
    print(
        f"Echoic took {info.inserted_total:,d} rollouts of {rollout.LENGTH} steps;"
        f" {learned:,d} were learned from, in {info.delivered_total:,d} batches,"
        f" at {progress.steps / progress.seconds:,.0f} steps/s."
    )
    print(
        f"{'Reached' if outcome.reached else 'Missed'} the target of {options.target:g} ({score})"
        f" after {progress.steps:,d} steps and {progress.seconds:.1f} s."
    )
    print(
        f"Greedy evaluation, {len(outcome.evaluation)} episodes of its own:"
        f" mean return {np.mean(outcome.evaluation):.1f}."
    )
    print(f"The plot is in {outcome.plot}; {score}: {progress.mean_return:.1f}")


def parse(arguments: list[str]) -> Options:
    """Options from the command line."""
    parser = argparse.ArgumentParser(
        prog="echoic demo",
        description="Learn CartPole with workers that send through Echoic. "
        f"Exits with 1 when the mean return of the last {EPISODES} training episodes "
        "does not reach the target.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    standard = Options()
    parser.add_argument(
        "--door",
        choices=DOORS,
        default=standard.door,
        help="how worker processes reach the learner: shared memory, a Unix socket, TCP; "
        "none for threads in its own process",
    )
    parser.add_argument(
        "--seed", type=int, default=standard.seed, help="of the networks and the games"
    )
    parser.add_argument("--workers", type=positive, default=standard.workers, help="how many")
    parser.add_argument(
        "--steps", type=positive, default=standard.steps, help="to learn from at most"
    )
    parser.add_argument(
        "--target", type=float, default=standard.target, help="mean return to stop at"
    )
    parser.add_argument("--out", type=Path, default=standard.out, help="folder for the plot")
    return Options(**vars(parser.parse_args(arguments)))


def positive(text: str) -> int:
    """A whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a positive number")
    return number


def main(arguments: list[str]) -> int:
    """Run the demo; the exit status says whether the target was reached."""
    options = parse(arguments)
    try:
        outcome = train(options)
    except KeyboardInterrupt:
        print("Interrupted. The server is closed and all workers have stopped.")
        return INTERRUPTED
    report(outcome, options)
    return 0 if outcome.reached else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
