"""Language models that agents speak through: one interface, local or at a vendor's.

A name is imported from its module when it is first asked for: the interface, prices and the
registry need nothing, a local model needs torch and transformers, a hosted one httpx.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from echoic.agents._lazy import lazily

if TYPE_CHECKING:
    from echoic.agents.backbones.anthropic import (
        AnthropicBackbone,
    )
    from echoic.agents.backbones.base import (
        Backbone,
        Capabilities,
        Completion,
        Message,
        Sampling,
        Scores,
        with_plan,
    )
    from echoic.agents.backbones.gemini import (
        GeminiBackbone,
    )
    from echoic.agents.backbones.http import (
        HttpConfig,
    )
    from echoic.agents.backbones.local import (
        LocalBackbone,
    )
    from echoic.agents.backbones.openai import (
        OpenAIBackbone,
    )
    from echoic.agents.backbones.prices import (
        Price,
        price_of,
        set_price,
    )
    from echoic.agents.backbones.registry import (
        backbone_names,
        backbone_status,
        make_backbone,
        register_backbone,
    )

__all__ = [
    "AnthropicBackbone",
    "Backbone",
    "Capabilities",
    "Completion",
    "GeminiBackbone",
    "HttpConfig",
    "LocalBackbone",
    "Message",
    "OpenAIBackbone",
    "Price",
    "Sampling",
    "Scores",
    "backbone_names",
    "backbone_status",
    "make_backbone",
    "price_of",
    "register_backbone",
    "set_price",
    "with_plan",
]

_MODULES = {
    "anthropic": ("AnthropicBackbone",),
    "base": (
        "Backbone",
        "Capabilities",
        "Completion",
        "Message",
        "Sampling",
        "Scores",
        "with_plan",
    ),
    "gemini": ("GeminiBackbone",),
    "http": ("HttpConfig",),
    "local": ("LocalBackbone",),
    "openai": ("OpenAIBackbone",),
    "prices": (
        "Price",
        "price_of",
        "set_price",
    ),
    "registry": (
        "backbone_names",
        "backbone_status",
        "make_backbone",
        "register_backbone",
    ),
}
_, __getattr__, __dir__ = lazily(__name__, _MODULES)
