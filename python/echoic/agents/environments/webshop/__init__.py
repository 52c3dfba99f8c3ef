"""WebShop: search a shop, look at items, choose options, buy what the instruction asks for.

``catalogue`` (items and how files become them), ``generator`` (an own catalogue in the same
schema), ``goals``, ``search`` (BM25), ``pages`` (what is shown and can be clicked), ``fuzzy``,
``nouns`` and ``reward`` (upstream's), ``environment``.
"""

from echoic.agents.environments.webshop.environment import WebShopConfig, WebShopEnvironment

__all__ = ["WebShopConfig", "WebShopEnvironment"]
