"""Language models of agents: one interface, local or at a vendor's.

A name is imported from its module when it is first used: a local model needs torch and
transformers, a hosted one httpx; the interface, names and prices need neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from echoic.agents._lazy import lazily

if TYPE_CHECKING:
    from echoic.agents.backbones.base import *
    from echoic.agents.backbones.hosted import *
    from echoic.agents.backbones.http import *
    from echoic.agents.backbones.local import *

_MODULES = {
    "base": "PRICES Backbone Completion Message Price Sampling Scores backbone_names "
    "backbone_status make_backbone register_backbone",
    "hosted": "HostedBackbone",
    "http": "HttpConfig",
    "local": "LocalBackbone",
}
__all__, __getattr__, __dir__ = lazily(__name__, _MODULES)
