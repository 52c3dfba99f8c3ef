"""Provide the names of Reverb's C++ module, implemented with Echoic's tables."""

from echoic import Steps
from echoic.reverb._engine.client import *  # noqa: F403 - each module names what it provides
from echoic.reverb._engine.errors import absent
from echoic.reverb._engine.sampler import *  # noqa: F403
from echoic.reverb._engine.selectors import *  # noqa: F403
from echoic.reverb._engine.server import *  # noqa: F403
from echoic.reverb._engine.structured import *  # noqa: F403
from echoic.reverb._engine.table import *  # noqa: F403
from echoic.reverb._engine.trajectory import *  # noqa: F403
from echoic.reverb._engine.writer import *  # noqa: F403

WeakCellRef = Steps
__getattr__ = absent(__name__, "TableExtension", "extensions are C++ objects of its own process")
