"""WebShop's reward for buying an item when a goal was asked for.

    R = r_type · (attributes met + options met + price met) / (attributes + options + 1)

and R is 1 only for what has all that was asked for. The numbers within are upstream's (its
``engine/goal.py``), its oddities included:

- a goal's attribute counts if it is 85 % alike to one of the item's, or stands in its texts;
- a goal's option counts if what was chosen is 85 % alike, or has the same first colour name;
- ``r_type`` is 1 for items of the same query, of two common levels of category, or with more than a
  fifth of the goal's nouns in the name; 0.5 for others; and 0.1 or 0 where the names have next to
  nothing or nothing in common.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from echoic.agents.environments.webshop.catalogue import LEVELS
from echoic.agents.environments.webshop.fuzzy import token_set_ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from echoic.agents.environments.webshop.catalogue import Product
    from echoic.agents.environments.webshop.goals import Goal

__all__ = ["Reward", "is_met", "reward_of", "title_score", "type_reward"]

_ALIKE = 85
# The first of these that a text contains is its colour: the order is part of the measure.
_COLOURS_SAID = (
    "alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown "
    "burgundy camel camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee "
    "cognac copper coral cranberry cream crystal dark denim eggplant elephant espresso fuchsia "
    "gold granite grape graphite grass gray green grey heather indigo ivory ivy khaki lavender "
    "lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor "
    "mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red "
    "rose royal rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan "
    "taupe teal tiger turquoise violet walnut wheat white wine yellow"
)
_COLOURS = tuple(_COLOURS_SAID.split())


@dataclass(frozen=True)
class Reward:
    """R and what it is made of."""

    total: float
    r_type: float
    attributes: int
    options: int
    price: bool


def reward_of(
    product: Product,
    goal: Goal,
    price: float,
    chosen: Mapping[str, str],
    nouns: Callable[[str], list[str]],
) -> Reward:
    """The reward for buying a product at a price with these options."""
    r_type = type_reward(
        title_score(product.name, goal.name, nouns),
        same_query=product.query == goal.query,
        levels=len(_levels(product.product_category) & _levels(goal.product_category)),
    )
    attributes = sum(_has(product, one) for one in goal.attributes)
    options = sum(is_met(one, chosen.values()) for one in goal.options)
    in_price = price <= goal.price_upper
    asked = len(goal.attributes) + len(goal.options) + 1
    total = r_type * (attributes + options + in_price) / asked
    return Reward(total, r_type, attributes, options, in_price)


def type_reward(score: float, *, same_query: bool, levels: int) -> float:
    """How much an item is of the kind that was asked for.

    >>> type_reward(0.5, same_query=False, levels=0), type_reward(0.15, same_query=False, levels=1)
    (1.0, 0.5)
    >>> type_reward(0.05, same_query=True, levels=3), type_reward(0.0, same_query=True, levels=3)
    (0.1, 0.0)
    """
    if score == 0.0:
        return 0.0
    if score < 0.1:
        return 0.1
    return 1.0 if same_query or levels >= 2 or score > 0.2 else 0.5


def title_score(bought: str, wanted: str, nouns: Callable[[str], list[str]]) -> float:
    """How many of the wanted item's nouns the bought one's name has; 0.2 if it has none.

    What is common counts once, and what is wanted as often as it is there, as upstream.
    """
    asked = nouns(wanted)
    return len(set(nouns(bought)) & set(asked)) / len(asked) if asked else 0.2


def is_met(option: str | tuple[str, str], chosen: Iterable[str]) -> bool:
    """Whether one of the chosen values is what a goal's option asks for."""
    wanted = _colour_or(option)
    return any(token_set_ratio(_colour_or(one), wanted) > _ALIKE for one in chosen)


@functools.lru_cache(maxsize=65536)
def _colour_or(option: str | tuple[str, str]) -> str:
    # Of a pair of name and value upstream looks for a member that is a colour; of a text, for a
    # part of it.
    return next((one for one in _COLOURS if one in option), str(option))


def _has(product: Product, attribute: str) -> bool:
    return (
        any(token_set_ratio(one, attribute) > _ALIKE for one in product.attributes)
        or attribute in product.name.lower()
        or attribute in " ".join(product.bullets).lower()
        or attribute in product.description.lower()
    )


def _levels(category: str) -> set[str]:
    return {one.strip() for one in category.split(LEVELS)}
