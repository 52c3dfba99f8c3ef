"""What there is to buy: goals, from the instructions of items.

A goal has an upper price, one of the next steps of ten dollars above the item's. Upstream draws it
before it seeds anything, so that its goals ask for other prices in every process. Here the same
seed gives the same goals.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from echoic.agents.environments.webshop.catalogue import Product

__all__ = ["Goal", "goals_of"]

_STEPS = tuple(10.0 * i for i in range(1, 100))
_NEAREST = 4
_NO_LIMIT = 1_000_000.0
# Upstream's order of goals, by which it splits them: 0-499 test, 500-1499 evaluation, the rest
# training.
_ORDER_SEED = 233


@dataclass(frozen=True)
class Goal:
    """Something to buy. ``request`` is the instruction without the price."""

    asin: str
    instruction: str
    request: str
    name: str
    query: str
    product_category: str
    attributes: tuple[str, ...]
    options: tuple[str | tuple[str, str], ...]
    price_upper: float
    weight: float = 1.0


def goals_of(products: Sequence[Product], rng: random.Random, *, human: bool) -> list[Goal]:
    """All goals, in upstream's order."""
    goals = list(_human(products, rng) if human else _templated(products, rng))
    random.Random(_ORDER_SEED).shuffle(goals)
    return goals


def _human(products: Sequence[Product], rng: random.Random) -> Iterator[Goal]:
    for product in products:
        for one in product.instructions:
            if one.attributes:
                upper, text = _upper(product.price, rng)
                request = one.text.strip(".")
                yield _goal(product, request, text, one.attributes, one.options, upper)


def _templated(products: Sequence[Product], rng: random.Random) -> Iterator[Goal]:
    """One goal for each combination of options; rare attributes make a goal more likely."""
    made: list[Goal] = []
    for product in products:
        if product.template is None:
            continue
        upper, text = _upper(product.price, rng)
        names = sorted(product.options)
        for values in itertools.product(*(product.options[name] for name in names)):
            options = tuple(zip(names, values, strict=True))
            said = ", and ".join(f"{name}: {value}" for name, value in options)
            request = product.template.text + (f" with {said}" if said else "")
            made.append(_goal(product, request, text, product.template.attributes, options, upper))
    often = Counter(one for goal in made for one in goal.attributes)
    for goal in made:
        weight = sum(1.0 / often[one] for one in goal.attributes) / len(goal.attributes)
        yield Goal(**{**vars(goal), "weight": weight})


def _goal(
    product: Product,
    request: str,
    price_text: str,
    attributes: tuple[str, ...],
    options: tuple[str | tuple[str, str], ...],
    upper: float,
) -> Goal:
    return Goal(
        asin=product.asin,
        instruction=request + price_text,
        request=request,
        name=product.name,
        query=product.query,
        product_category=product.product_category,
        attributes=attributes,
        options=options,
        price_upper=upper,
    )


def _upper(price: float, rng: random.Random) -> tuple[float, str]:
    steps = [one for one in _STEPS if one > price][:_NEAREST]
    if len(steps) < 2:
        return _NO_LIMIT, ""
    upper = max(rng.sample(steps, 2))
    return upper, f", and price lower than {upper:.2f} dollars"
