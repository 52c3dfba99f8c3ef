"""Items of a shop, from files in WebShop's own schema or from rows that were made in it.

The three files: items (``items_shuffle*.json``), their attributes (``items_ins_v2*.json``) and
people's instructions (``items_human_ins.json``). They come with
`WebShop <https://github.com/princeton-nlp/WebShop>`_, and are not shipped here.

# Invariants

1. Identifiers are unique, and at most ten characters long.
2. Every item has a price; one without is 100 dollars, as upstream.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echoic.errors import ArgumentError

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

__all__ = ["LEVELS", "Instruction", "Product", "Rows", "products_of", "read_rows"]

#: Stands between the levels of a category.
LEVELS = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"
_FILES = ("items_shuffle*.json", "items_ins_v2*.json", "items_human_ins.json")
_TEXTS = ("asin", "name", "query", "category", "product_category", "full_description")
_LONGEST_ID = 10
_NO_PRICE = 100.0
_NOTHING = "DUMMY_ATTR"


@dataclass(frozen=True)
class Instruction:
    """What someone asked for: the text, attributes, and options as values or as pairs."""

    text: str
    attributes: tuple[str, ...]
    options: tuple[str | tuple[str, str], ...]


@dataclass(frozen=True)
class Product:
    """An item of the shop."""

    asin: str
    name: str
    description: str
    bullets: tuple[str, ...]
    category: str
    query: str
    product_category: str
    price: float
    price_tag: str
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    instructions: tuple[Instruction, ...] = ()
    #: An instruction that upstream made by a template; options of all kinds are added to it.
    template: Instruction | None = None

    @property
    def text(self) -> str:
        """What search looks at."""
        options = " ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join([self.name, self.description, *self.bullets[:1], options])


@dataclass(frozen=True)
class Rows:
    """What the three files hold."""

    items: Sequence[Mapping[str, Any]]
    attributes: Mapping[str, Mapping[str, Any]]
    human: Mapping[str, Sequence[Mapping[str, Any]]]


def read_rows(folder: str | Path) -> Rows:
    """Read the three files of a folder."""
    place = Path(folder)
    if not place.is_dir():
        raise ArgumentError(f"there is no folder {place}")
    items, attributes, human = (_read(place, pattern) for pattern in _FILES)
    for value, kind, pattern in (
        (items, list, _FILES[0]),
        (attributes, dict, _FILES[1]),
        (human, dict, _FILES[2]),
    ):
        if not isinstance(value, kind):
            raise ArgumentError(
                f"{pattern} must hold a JSON {'list' if kind is list else 'object'}, "
                f"not {type(value).__name__}"
            )
    return Rows(items, attributes, human)


def _read(place: Path, pattern: str) -> Any:
    found = sorted(place.glob(pattern))
    if len(found) != 1:
        had = ", ".join(one.name for one in found) or "none"
        raise ArgumentError(f"{place} must have one file {pattern}; it has {had}")
    try:
        return json.loads(found[0].read_text("utf-8"))
    except ValueError as error:
        raise ArgumentError(f"{found[0].name} is no JSON: {error}") from None


def products_of(rows: Rows, rng: random.Random) -> list[Product]:
    """Make items of rows. Where a row has a range of prices, the price is drawn from it."""
    products: dict[str, Product] = {}
    # A policy says identifiers without regard to case.
    known: dict[str, str] = {}
    for number, row in enumerate(rows.items):
        if not isinstance(row, dict):
            raise ArgumentError(f"item {number} must be a JSON object, not {type(row).__name__}")
        asin = row.get("asin")
        if not isinstance(asin, str):
            raise ArgumentError(f"item {number} has no text 'asin'")
        # Upstream leaves these out, too.
        if asin == "nan" or len(asin) > _LONGEST_ID or asin in products:
            continue
        for key in _TEXTS:
            if not isinstance(row.get(key), str):
                raise ArgumentError(f"item {number} has no text {key!r}")
        other = known.setdefault(asin.lower(), asin)
        if other != asin:
            raise ArgumentError(f"item {number}: asin {asin!r} differs from {other!r} by case only")
        products[asin] = _product_of(row, number, rows, rng)
    if not products:
        raise ArgumentError("there are no items")
    return list(products.values())


def _product_of(row: Mapping[str, Any], number: int, rows: Rows, rng: random.Random) -> Product:
    asin = row["asin"]
    told = rows.attributes.get(asin) or {}
    if not isinstance(told, dict):
        raise ArgumentError(f"attributes of {asin} must be a JSON object, not {told!r:.80}")
    price, tag = _price_of(row.get("pricing"), number, rng)
    bullets = row.get("small_description") or []
    bullets = _texts(
        bullets if isinstance(bullets, list) else [str(bullets)],
        f"item {number}: small_description",
    )
    attributes = _texts(told.get("attributes") or [_NOTHING], f"attributes of {asin}")
    template = None
    if told.get("instruction") and told.get("instruction_attributes"):
        wanted = _texts(told["instruction_attributes"], f"instruction_attributes of {asin}")
        template = Instruction(str(told["instruction"]), wanted, ())
    human = rows.human.get(asin) or []
    if not isinstance(human, list):
        raise ArgumentError(f"instructions for {asin} must be a JSON list, not {human!r:.80}")
    return Product(
        asin=asin,
        name=row["name"],
        description=row["full_description"],
        bullets=bullets,
        category=row["category"],
        query=row["query"].lower().strip(),
        product_category=row["product_category"],
        price=price,
        price_tag=tag,
        attributes=attributes,
        options=_options_of(row.get("customization_options"), number),
        instructions=tuple(_instruction_of(one, asin) for one in human),
        template=template,
    )


def _texts(value: Any, what: str) -> tuple[str, ...]:
    """A JSON list of texts."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) for one in value):
        raise ArgumentError(f"{what} must be a list of texts, not {value!r:.80}")
    return tuple(value)


def _instruction_of(row: Mapping[str, Any], asin: str) -> Instruction:
    try:
        options = row["instruction_options"]
        return Instruction(
            str(row["instruction"]),
            _texts(row["instruction_attributes"], f"instruction_attributes for {asin}"),
            tuple(options.items()) if isinstance(options, dict) else tuple(options),
        )
    except (KeyError, TypeError) as error:
        raise ArgumentError(f"an instruction for {asin} has no {error}") from None


def _price_of(pricing: Any, number: int, rng: random.Random) -> tuple[float, str]:
    if not pricing:
        return _NO_PRICE, f"${_NO_PRICE}"
    try:
        prices = [float(re.sub(r"[^\d.]", "", one)) for one in str(pricing).split("$")[1:]]
    except ValueError:
        prices = []
    if not prices or not all(math.isfinite(one) for one in prices):
        raise ArgumentError(f"item {number} has no price like '$12.50', but {pricing!r}")
    if len(prices) == 1:
        return prices[0], f"${prices[0]}"
    return rng.uniform(prices[0], prices[1]), f"${prices[0]} to ${prices[1]}"


def _options_of(options: Any, number: int) -> dict[str, tuple[str, ...]]:
    try:
        return {
            name.lower(): tuple(
                str(one["value"]).strip().replace("/", " | ").lower() for one in values
            )
            for name, values in (options or {}).items()
            if values is not None
        }
    except (AttributeError, KeyError, TypeError):
        raise ArgumentError(
            f"item {number}: customization_options must be {{name: [{{'value': ...}}]}}"
        ) from None
