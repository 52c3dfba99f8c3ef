"""A shop of our own, in the schema of WebShop's files.

Everything is made up: brands, models and texts. An item is of a kind of
:mod:`~echoic.agents.environments.webshop.vocabulary` and has some of its attributes; most others of
the kind have some of them too, so that a goal needs more than its first search result. Each item
has an instruction by which somebody could ask for it. The same seed makes the same shop.
"""

from __future__ import annotations

import random

from echoic.agents.environments.webshop.catalogue import LEVELS, Rows
from echoic.agents.environments.webshop.vocabulary import KINDS, Kind

__all__ = ["rows_of"]

_STARTS = "Al Bor Cas Del Em Fen Gal Hol Is Jor Kel Lum Mar Nor Or Pel Quin Ros Sol Tam Ul Vel Wen"
_ENDS = "bex dano ferra gent ika lune mont nova quist rion sett tavi wick"
_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
_ATTRIBUTES = 3
_ASKED = 2
_REQUESTS = (
    "i am looking for {kind} with {attributes}{options}",
    "find me {kind} that has {attributes}{options}",
    "i want to buy {kind}, {attributes}{options}",
    "please get {kind} for me: {attributes}{options}",
)
_BULLETS = (
    "{Attribute}: made for those who use their {kind} every day",
    "{Attribute}, tested by people who were hard to please",
    "You asked for {attribute}, and this is how {brand} does it",
)
_DESCRIPTIONS = (
    "The {model} by {brand} is what our {kind} look like when nothing is left to chance.",
    "With the {model}, {brand} begins its second decade of {kind}.",
    "{brand} makes {kind} in small numbers. The {model} is the one that people come back for.",
)


def rows_of(website_type: str, count: int, seed: int) -> Rows:
    """Rows of the three files for a shop of so many items; ``"all"`` has items of all types."""
    rng = random.Random(f"{website_type} {seed}")
    kinds = [
        (name, kind)
        for name, those in KINDS.items()
        for kind in those
        if website_type in (name, "all")
    ]
    items, told, human = [], {}, {}
    for number in range(count):
        category, kind = kinds[number % len(kinds)]
        asin = f"E{number:05d}{rng.choice(_LETTERS)}{rng.choice(_LETTERS)}"
        has = rng.sample(kind.attributes, _ATTRIBUTES)
        items.append(_item(asin, category, kind, has, rng))
        asked = rng.sample(has, _ASKED)
        chosen = {name: rng.choice(values) for name, values in kind.options}
        request = rng.choice(_REQUESTS).format(
            kind=kind.name,
            attributes=" and ".join(asked),
            options="".join(f", and {name}: {value}" for name, value in chosen.items()),
        )
        told[asin] = {
            "attributes": has,
            "instruction": f"i am looking for {kind.name} with {' and '.join(asked)}",
            "instruction_attributes": asked,
        }
        human[asin] = [
            {
                "instruction": f"{request}.",
                "instruction_attributes": asked,
                "instruction_options": list(chosen.values()),
            }
        ]
    return Rows(items, told, human)


def _item(
    asin: str, category: str, kind: Kind, has: list[str], rng: random.Random
) -> dict[str, object]:
    brand = rng.choice(_STARTS.split()) + rng.choice(_ENDS.split())
    model = f"{rng.choice(_LETTERS)}{rng.randrange(100, 1000)}"
    words = {"brand": brand, "model": model, "kind": kind.name}
    price = rng.randrange(kind.cheapest * 100, kind.dearest * 100) / 100
    return {
        "asin": asin,
        "name": f"{brand} {model} {has[0].title()} {kind.name.title()}",
        "query": kind.name,
        "category": category,
        "product_category": kind.category.replace(">", LEVELS),
        "full_description": rng.choice(_DESCRIPTIONS).format(**words),
        "small_description": [
            bullet.format(attribute=one, Attribute=one.capitalize(), **words)
            for bullet, one in zip(rng.sample(_BULLETS, _ATTRIBUTES), has, strict=True)
        ],
        "pricing": f"${price:.2f}",
        "images": [""],
        "customization_options": {
            name: [{"value": value} for value in values] for name, values in kind.options
        },
    }
