"""Install what `make wheels` has made into empty environments, and use it there.

For each CPython that is found: the wheel, with no compiler within reach, and the source package,
which builds the native module. `--extras` installs and calls each extra too, with the newest of
those Pythons unless `--python` says another. `--python 3.14t` takes the wheel for free-threaded
Python; the source package is built for the stable ABI only. Exits with 1 if anything fails, or if
the first batch of a wheel comes later than `LIMIT_SECONDS` after the environment was made,
downloads included.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 60
PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]

FIRST_BATCH = """
import echoic, numpy as np
stream = echoic.Stream({"obs": np.zeros(4, np.float32)}, batch_size=2)
stream.extend({"obs": np.ones((2, 4), np.float32)})
assert stream.sample()["obs"].tolist() == [[1.0] * 4] * 2
print(echoic.__version__)
"""

BUFFER = """
import numpy as np
from echoic.buffers import ReplayBuffer
buffer = ReplayBuffer({"obs": np.zeros(4, np.float32)}, 8)
buffer.extend({"obs": np.ones((4, 4), np.float32)})
"""

# One call of what each extra is for.
EXTRAS = {
    "agents": """
import echoic.agents.training, peft, torch, transformers
from echoic.agents.llm import TinyConfig, TinyTransformer
assert list(TinyTransformer(TinyConfig()).parameters())
""",
    "cli": """
import subprocess, sys
subprocess.run([sys.executable, "-m", "echoic", "version"], check=True, stdout=subprocess.DEVNULL)
""",
    "data": """
import h5py, minari, numpy as np, pyarrow as pa, pyarrow.parquet as parquet
from echoic.buffers import OfflineDataset
steps = {"observations": [[0.0], [1.0]], "actions": [[0.0], [1.0]], "rewards": [1.0, 2.0]}
steps |= {"next_observations": [[1.0], [2.0]], "terminals": [False, True]}
parquet.write_table(pa.table(steps), "steps.parquet")
data = OfflineDataset.from_parquet("steps.parquet")
assert sorted(set(data.sample(64, seed=0)["rewards"].tolist())) == [1.0, 2.0]
""",
    "demo": """
import os, subprocess, sys
demo = [sys.executable, "-m", "echoic", "demo", "--workers", "1", "--steps", "2000", "--out", "out"]
# It exits with 1, since so few steps do not reach the target.
done = subprocess.run(demo, capture_output=True, text=True)
assert os.path.exists("out/cartpole.png"), done.stderr
""",
    "ray": """
import ray
from echoic.integrations.ray import ReplayCluster, StreamServer
""",
    "tensorflow": BUFFER
    + """
import tensorflow
from echoic import reverb
assert reverb.TFClient and reverb.TimestepDataset
assert tensorflow.convert_to_tensor(buffer.sample(2)["obs"]).shape == (2, 4)
""",
    "torch": BUFFER
    + """
assert buffer.sample(2, device="cpu")["obs"].sum().item() == 8.0
""",
}


def found(version: str) -> str | None:
    """Return the path of a CPython of this version, whose name ends with `t` without the GIL."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    # A name on the path may be a shim of pyenv, which does not run where another version is chosen.
    on_path = shutil.which(f"python{version}")
    has_gil = "import sysconfig; print(not sysconfig.get_config_var('Py_GIL_DISABLED'))"
    for path in [on_path, *map(str, pyenv.glob(f"versions/{version}.*/bin/python"))]:
        if path is None:
            continue
        done = subprocess.run([path, "-c", has_gil], capture_output=True, text=True, check=False)
        if done.stdout.strip() == str(not version.endswith("t")):
            return path
    return None


def install(python: str, package: str, folder: Path, *, compiler: bool) -> Path:
    """Make an empty environment with one package in it, and return its interpreter."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    inside = folder / "bin" / "python"
    command = [str(inside), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if compiler:
        # Whether it builds is asked here, not how fast it is: one build serves all Pythons.
        env = os.environ | {
            "CARGO_TARGET_DIR": str(ROOT / "target" / "smoke"),
            "MATURIN_PEP517_ARGS": "--profile dev",
            "PYO3_CONFIG_FILE": str(ROOT / "crates" / "python" / "stable-abi.txt"),
        }
    else:
        command += ["--no-cache-dir", "--only-binary", ":all:"]
        env = os.environ | {"PATH": str(folder / "bin")}
    subprocess.run([*command, package], check=True, env=env)
    return inside


def run(python: Path, source: str, folder: Path) -> str:
    """Run a program in a folder, and return what it printed."""
    command = [str(python), "-I", "-c", source]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout.strip()


def main() -> int:
    """Print a row for each installation, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path, nargs="?", default=ROOT / "dist")
    parser.add_argument("--extras", nargs="*", help="which extras; all, if none is named")
    parser.add_argument("--python", nargs="*", default=PYTHONS, help="which versions of Python")
    parser.add_argument("--no-sdist", action="store_true", help="leave the source package out")
    options = parser.parse_args()

    listed = re.search(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert listed is not None
    version = listed[1]
    machine = os.uname().machine
    dist = options.dist.resolve()
    sdist = dist / f"echoic-{version}.tar.gz"
    pythons = {name: path for name in options.python if (path := found(name)) is not None}
    wheels = {}
    for name in pythons:
        tag = "cp314-cp314t" if name.endswith("t") else "cp310-abi3"
        wheels[name] = next(dist.glob(f"echoic-{version}-{tag}-*{machine}.whl"))
    jobs = [(name, wheels[name], "", FIRST_BATCH) for name in pythons]
    if not options.no_sdist:
        jobs += [(name, sdist, "", FIRST_BATCH) for name in pythons]
    if options.extras is not None:
        newest = list(pythons)[-1]
        jobs += [(newest, wheels[newest], name, EXTRAS[name]) for name in options.extras or EXTRAS]

    failed = 0
    for name, package, extra, source in jobs:
        folder = Path(tempfile.mkdtemp(prefix="smoke-"))
        begun = time.monotonic()
        try:
            what = f"{package}[{extra}]" if extra else str(package)
            python = install(pythons[name], what, folder / "env", compiler=package == sdist)
            printed = run(python, source, folder)
            seconds = time.monotonic() - begun
            late = package != sdist and not extra and seconds > LIMIT_SECONDS
            wrong = source is FIRST_BATCH and printed != version
            result = "too late" if late else f"has version {printed}" if wrong else "ok"
        except (RuntimeError, subprocess.CalledProcessError) as error:
            seconds = time.monotonic() - begun
            result = f"failed: {error}"
        shutil.rmtree(folder)
        failed += result != "ok"
        kind = "sdist" if package == sdist else "wheel"
        print(f"{name:5} {kind} {extra:10} {seconds:6.1f} s  {result}", flush=True)
    return 1 if failed or not jobs else 0


if __name__ == "__main__":
    sys.exit(main())
