"""Prices of tokens of hosted models, in US dollars a million.

Prices are the vendors' list prices, each with its month; some of these models have been withdrawn
since. Set other prices with :func:`set_price`, or pass a :class:`Price` to a backbone. A model
without a price is an error, never free: with ``price=None`` every cost is ``nan``, which stays
``nan`` in any sum.

Not modelled: batches, prices that depend on the length of the prompt (Gemini 1.5 Pro doubles above
128,000 tokens), storage of caches by the hour, taxes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from echoic.errors import ArgumentError

__all__ = ["FREE", "Price", "cost", "price_of", "set_price"]

MILLION = 1_000_000


@dataclass(frozen=True)
class Price:
    """US dollars for a million tokens.

    >>> Price(2.5, cached=1.25, out=10.0).of(tokens_in=1_000_000, tokens_cached=400_000)
    2.0

    Attributes:
        input: Tokens of a prompt, not from a cache.
        cached: Tokens of a prompt, from a cache; by default ``input``.
        out: Tokens of an answer.
        written: Tokens of a prompt, written to a cache, where the vendor charges that; by default
            ``input``.
        date: Month of the price, such as ``"2025-08"``.
    """

    input: float
    cached: float | None = None
    out: float = 0.0
    written: float | None = None
    date: str = ""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "date" or value is None:
                continue
            if not 0 <= value < math.inf:
                raise ArgumentError(
                    f"{field.name} of a price must be finite and not below 0, not {value}"
                )

    def of(
        self,
        *,
        tokens_in: int = 0,
        tokens_cached: int = 0,
        tokens_out: int = 0,
        tokens_written: int = 0,
    ) -> float:
        """Return dollars for these tokens; ``tokens_in`` includes those cached and written."""
        cached = self.input if self.cached is None else self.cached
        written = self.input if self.written is None else self.written
        rest = tokens_in - tokens_cached - tokens_written
        dollars = (
            rest * self.input
            + tokens_cached * cached
            + tokens_written * written
            + tokens_out * self.out
        )
        return dollars / MILLION


FREE = Price(0.0, out=0.0)

_PRICES: dict[str, Price] = {
    "gpt-4o": Price(2.50, 1.25, 10.00, date="2025-08"),
    "gpt-4o-mini": Price(0.15, 0.075, 0.60, date="2025-08"),
    "claude-3-5-sonnet-20241022": Price(3.00, 0.30, 15.00, written=3.75, date="2025-08"),
    "gemini-1.5-pro": Price(1.25, 0.3125, 5.00, date="2025-08"),
    "deepseek-reasoner": Price(0.55, 0.14, 2.19, date="2025-08"),
}


def price_of(model: str) -> Price:
    """Return the price of a model, by its name at the vendor's.

    Raises:
        ArgumentError: If it is not known.
    """
    if model not in _PRICES:
        raise ArgumentError(
            f"no price of {model!r} is known: set one with set_price or price=Price(...), or use "
            "price=None, and its cost is nan"
        )
    return _PRICES[model]


def set_price(model: str, price: Price) -> None:
    """Set the price of a model, for backbones that are made later."""
    if not model or not isinstance(price, Price):
        raise ArgumentError("a price needs a model's name and a Price")
    _PRICES[model] = price


def cost(price: Price | None, **tokens: int) -> float:
    """Return dollars for the arguments of :meth:`Price.of`, or ``nan`` without a price."""
    return math.nan if price is None else price.of(**tokens)
