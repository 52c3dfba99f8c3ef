"""Language models that agents speak through: one interface, local or at a vendor's.

A name is imported from its module when it is first asked for: the interface, prices and the
registry need nothing, a local model needs torch and transformers, a hosted one httpx.
"""

from __future__ import annotations

from echoic.agents._lazy import lazily

_MODULES = {
    "anthropic": ("AnthropicBackbone",),
    "base": ("Backbone", "Capabilities", "Completion", "Message", "with_plan"),
    "gemini": ("GeminiBackbone",),
    "http": ("HttpConfig",),
    "local": ("LocalBackbone",),
    "openai": ("OpenAIBackbone",),
    "prices": ("Price", "price_of", "set_price"),
    "registry": (
        "backbone_names",
        "backbone_status",
        "make_backbone",
        "register_backbone",
    ),
}
__all__, __getattr__, __dir__ = lazily(__name__, _MODULES)
