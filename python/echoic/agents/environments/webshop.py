"""WebShop, under the name of its own module; see :mod:`echoic.agents.environments.web`."""

from echoic.agents.environments.web import WebShopConfig, WebShopEnvironment

__all__ = ["WebShopConfig", "WebShopEnvironment"]
