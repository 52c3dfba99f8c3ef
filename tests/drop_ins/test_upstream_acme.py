"""Acme's own tests that use Reverb, run on `echoic.reverb`.

Set ECHOIC_UPSTREAM_ACME to its unpacked sources. They were counted with dm-acme 0.4.0 in an
environment of Python 3.11, TensorFlow 2.15 and JAX 0.4.30, which `make drop-ins` makes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import echoic
import pytest
import upstream

pytestmark = pytest.mark.nightly

# What this Acme imports and newer libraries lack, with dm-launchpad, which has no wheel for Python
# 3.11; and a folder for the checkpoints of each agent, which others would read.
PRELUDE = """
import os, sys, types, uuid
from unittest import mock
os.environ.update(HOME={home!r}, TF_CPP_MIN_LOG_LEVEL="3")
for name in ("launchpad", "launchpad.nodes", "launchpad.nodes.dereference"):
    module = types.ModuleType(name)
    module.__path__ = []
    module.__getattr__ = lambda attribute: mock.MagicMock(name=attribute)
    sys.modules[name] = module
import jax, jax.test_util
from jax._src import test_util
from jax.interpreters import pxla
jax.config.update("jax_legacy_prng_key", "allow")
jax.tree_multimap = jax.tree_util.tree_map
jax.xla = types.SimpleNamespace(Device=jax.Device, DeviceArray=jax.Array)
jax.numpy.DeviceArray = pxla.ShardedDeviceArray = jax.Array
jax.pxla = pxla
jax.test_util.JaxTestCase = test_util.JaxTestCase
from absl import flags
from absl.testing import absltest
flags.FLAGS.is_parsed() or flags.FLAGS(["test"])
from acme.utils import paths
paths.get_unique_id = lambda: (uuid.uuid4().hex,)
os.makedirs(absltest.get_default_test_tmpdir(), exist_ok=True)
"""

JAX = (
    "ail/agent",
    "ail/builder",
    "d4pg/agent",
    "dqn/agent",
    "r2d2/agent_local",
    "sac/agent",
    "td3/agent",
    "value_dice/agent",
)
# Acme skips its test of IMPALA.
TENSORFLOW = (
    "d4pg/agent",
    "ddpg/agent",
    "dmpo/agent",
    "dqfd/agent",
    "dqn/agent",
    "mcts/agent",
    "mompo/agent",
    "mpo/agent",
    "r2d2/agent",
    "r2d3/agent",
    "svg0_prior/agent",
)

EXPECTED = {
    "agent_test.AILTest::test_ail_flax": "Flax 0.8 makes the state of a network otherwise",
    "agent_test.AILTest::test_ail_ppo": (
        "its learner has no extras; with dm-reverb the dataset takes the items before the agent "
        "looks for them, so that the learner makes no step and this is not noticed"
    ),
}

# Prints the mean return of the first and of the last episodes, which are between -1 and 1.
LEARNING = """
import acme, bsuite, haiku as hk, numpy as np, reverb
from acme import specs, wrappers
from acme.agents.jax import dqn
from acme.jax import networks, utils
from acme.utils import loggers

environment = wrappers.SinglePrecisionWrapper(bsuite.load("catch", {"seed": 1}))
spec = specs.make_environment_spec(environment)
model = hk.without_apply_rng(
    hk.transform(
        lambda x: hk.Sequential([hk.Flatten(), hk.nets.MLP([50, 50, spec.actions.num_values])])(x)
    )
)
example = utils.add_batch_dim(utils.zeros_like(spec.observations))
agent = dqn.DQN(
    environment_spec=spec,
    network=networks.FeedForwardNetwork(lambda rng: model.init(rng, example), model.apply),
    batch_size=32,
    samples_per_insert=2.0,
    min_replay_size=32,
    learning_rate=2e-3,
    n_step=1,
    target_update_period=50,
)
loop = acme.EnvironmentLoop(environment, agent, logger=loggers.NoOpLogger())
returns = [float(loop.run_episode()["episode_return"]) for _ in range(1500)]
print(reverb.__name__, np.mean(returns[:50]), np.mean(returns[-50:]))
"""


@pytest.mark.timeout(900)
def test_the_adders_pass_all_of_their_tests(tmp_path: Path) -> None:
    root = upstream.checkout("ACME")
    upstream.run(
        [root / "acme" / "adders" / "reverb", root / "acme" / "utils" / "reverb_utils_test.py"],
        tmp_path,
        drop_in="echoic.reverb",
        expected={},
        passed=45,
        path=[root],
        prelude=PRELUDE.format(home=str(tmp_path)),
    )


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("folder", "names", "expected", "passed"),
    [("jax", JAX, EXPECTED, 12), ("tf", TENSORFLOW, {}, 13)],
)
def test_the_agents_run(
    tmp_path: Path, folder: str, names: tuple[str, ...], expected: dict[str, str], passed: int
) -> None:
    root = upstream.checkout("ACME")
    upstream.run(
        [root / "acme" / "agents" / folder / f"{name}_test.py" for name in names],
        tmp_path,
        drop_in="echoic.reverb",
        expected=expected,
        passed=passed,
        path=[root],
        prelude=PRELUDE.format(home=str(tmp_path)),
        timeout=3500,
    )


@pytest.mark.timeout(900)
def test_its_dqn_learns(tmp_path: Path) -> None:
    root = upstream.checkout("ACME")
    source = PRELUDE.format(home=str(tmp_path)) + LEARNING
    (tmp_path / "program.py").write_text(source)
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "echoic.reverb", "program.py"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(echoic.__file__).parents[1]), str(root)]),
        },
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-8000:]
    name, before, after = ran.stdout.split()[-3:]
    assert name == "echoic.reverb"
    assert float(before) < 0 < 0.5 < float(after)
