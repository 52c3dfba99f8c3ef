"""Goods of the generated shop, in the schema of WebShop's files. All of them are made up.

An item has some of the attributes of its kind. Most others of the kind have some of them too, so
that a goal needs more than its first search result. The same seed makes the same shop.
"""

# ruff: noqa: E501 - a kind of item is a line

from __future__ import annotations

import random
from typing import Any, NamedTuple

__all__ = ["ALIASES", "KINDS", "LEVELS", "rows_of"]

#: Stands between the levels of a category.
LEVELS = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"
#: Other words for a type of shop.
ALIASES = {"clothing": "fashion", "home": "garden"}

_COLOURS = "black, white, navy blue, red, green, silver, pink, charcoal"
_SIZES = "x-small, small, medium, large, x-large, xx-large"
# Of each kind: its name, category, attributes, cheapest and dearest price in dollars, and options.
_SAID = {
    "electronics": f"""
headphones | Electronics > Headphones > Over-Ear Headphones | noise cancelling, wireless bluetooth, long lasting, hands free, stereo sound, folding | 25 | 340 | color: {_COLOURS} | style: with case, without case
usb charger | Electronics > Power Accessories > Wall Chargers | fast charging, travel size, overheat protection, quick release, dual port, usb c | 8 | 70 | color: black, white, silver | size: 20 watt, 45 watt, 65 watt, 100 watt
bluetooth speaker | Electronics > Portable Audio > Speakers | water resistant, high power, stereo sound, easy carry, hands free, long lasting | 18 | 260 | color: {_COLOURS}
tablet case | Electronics > Tablet Accessories > Cases | heavy duty, non slip, shock proof, auto sleep, kickstand, slim fit | 11 | 60 | color: {_COLOURS} | size: 8 inch, 10 inch, 11 inch, 13 inch
security camera | Electronics > Video Surveillance > Cameras | night vision, motion detection, easy install, weather proof, plug play, two way audio | 30 | 400 | style: indoor, outdoor | item package quantity: 1, 2, 4
keyboard | Electronics > Computer Accessories > Keyboards | backlit keys, quiet typing, rechargeable battery, compact layout, spill proof | 20 | 230 | color: black, white, gray | style: linear switch, tactile switch, clicky switch
""",
    "fashion": f"""
hiking boots | Clothing > Men > Shoes > Hiking | water proof, non slip, memory foam, rubber sole, arch support, ankle height | 45 | 260 | color: brown, black, olive, gray | size: 8, 9, 10, 11, 12
summer dress | Clothing > Women > Dresses > Casual | machine wash, short sleeve, elastic waist, button closure, tie back, quality cotton | 18 | 140 | color: {_COLOURS} | size: {_SIZES}
rain jacket | Clothing > Men > Coats > Rain Jackets | wind proof, hooded, zip pockets, taped seams, light weight, reflective trim | 35 | 320 | color: {_COLOURS} | size: {_SIZES}
wool socks | Clothing > Women > Socks > Casual | hand wash, moisture wicking, arch support, merino, seamless toe, cushion sole | 6 | 40 | color: gray, navy, wine, ivory | item package quantity: 1, 3, 6
""",
    "garden": f"""
table lamp | Home > Lighting > Lamps > Table Lamps | touch control, energy saving, solid wood, warm light, easy assemble, dimmable | 16 | 180 | color: walnut, white, black, brass | style: round shade, square shade
storage ottoman | Home > Furniture > Ottomans | faux leather, easy assemble, high density, space saving, removable lid, steel frame | 35 | 260 | color: gray, navy, brown, ivory | size: 17 inch, 30 inch, 43 inch
bath towels | Home > Bath > Towels > Bath Towels | machine washable, quick drying, ring spun, extra soft, eco friendly, fade proof | 12 | 90 | color: {_COLOURS} | item package quantity: 2, 4, 8
garden hose | Home > Outdoor > Watering > Hoses | kink proof, leak proof, brass fitting, light weight, drinking safe, spray nozzle | 15 | 120 | size: 25 ft, 50 ft, 100 ft | color: green, black, blue
""",
    "beauty": """
face serum | Beauty > Skin Care > Face > Serums | fragrance free, cruelty free, hyaluronic acid, sensitive skin, anti aging | 9 | 110 | size: 1 fl oz, 2 fl oz | style: day, night
shampoo | Beauty > Hair Care > Shampoo | sulfate free, tea tree, color safe, damaged hair, coconut oil, dandruff control | 6 | 55 | scent: citrus, lavender, unscented, eucalyptus | size: 8 fl oz, 16 fl oz, 33 fl oz
lip balm | Beauty > Makeup > Lips > Balms | long lasting, vitamin e, cruelty free, bees wax, sun protection, easy apply | 3 | 28 | color: rose, coral, plum, nude | item package quantity: 1, 2, 4
""",
    "grocery": """
green tea | Grocery > Beverages > Tea > Green | usda organic, caffeine free, individually wrapped, hand picked, gluten free | 5 | 48 | flavor: jasmine, mint, lemon, plain | size: 20 bags, 50 bags, 100 bags
trail mix | Grocery > Snacks > Nuts > Trail Mix | gluten free, low sodium, resealable bag, high protein, no sugar, dairy free | 6 | 42 | flavor: tropical, chocolate, cranberry, salted | size: 8 ounce, 16 ounce, 32 ounce
pasta sauce | Grocery > Pantry > Sauces > Pasta | non gmo, fat free, artificial free, kosher certified, slow cooked, glass jar | 4 | 36 | flavor: basil, garlic, arrabbiata, mushroom | item package quantity: 1, 3, 6
""",
}  # fmt: skip


class Kind(NamedTuple):
    """A kind of item."""

    name: str
    category: str
    attributes: list[str]
    cheapest: int
    dearest: int
    options: list[tuple[str, list[str]]]


def _kind(line: str) -> Kind:
    name, category, attributes, cheapest, dearest, *options = line.split(" | ")
    return Kind(
        name,
        category.replace(">", LEVELS),
        attributes.split(", "),
        int(cheapest),
        int(dearest),
        [(key, values.split(", ")) for key, _, values in (one.partition(": ") for one in options)],
    )


#: By type of shop.
KINDS = {name: [_kind(line) for line in said.split("\n") if line] for name, said in _SAID.items()}

_BRANDS = "Albex Bordano Casferra Delgent Emika Fenlune Galmont Holnova Isquist Jorrion Kelsett"
_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
_ATTRIBUTES = 3
_ASKED = 2
_REQUESTS = (
    "i am looking for {kind} with {attributes}{options}",
    "find me {kind} that has {attributes}{options}",
    "i want to buy {kind}, {attributes}{options}",
)
_BULLETS = (
    "{}: made for those who use their {} every day",
    "{}, tested by people who were hard to please; a {}",
    "You asked for {}, and here it is: a {}",
)

Rows = tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]


def rows_of(website_type: str, count: int, seed: int) -> Rows:
    """Make the rows of WebShop's three files for a shop of so many items.

    They are items, their attributes, and people's instructions. ``"all"`` has items of all types.
    """
    rng = random.Random(f"{website_type} {seed}")
    kinds = [
        (name, kind)
        for name, those in KINDS.items()
        for kind in those
        if website_type in (name, "all")
    ]
    items, attributes, human = [], {}, {}
    for number in range(count):
        category, kind = kinds[number % len(kinds)]
        asin = f"E{number:05d}{rng.choice(_LETTERS)}{rng.choice(_LETTERS)}"
        has = rng.sample(kind.attributes, _ATTRIBUTES)
        asked = rng.sample(has, _ASKED)
        chosen = {name: rng.choice(values) for name, values in kind.options}
        items.append(_item(asin, category, kind, has, rng))
        attributes[asin] = {"attributes": has}
        request = rng.choice(_REQUESTS).format(
            kind=kind.name,
            attributes=" and ".join(asked),
            options="".join(f", and {name}: {value}" for name, value in chosen.items()),
        )
        human[asin] = [
            {
                "instruction": f"{request}.",
                "instruction_attributes": asked,
                "instruction_options": list(chosen.values()),
            }
        ]
    return items, attributes, human


def _item(
    asin: str, category: str, kind: Kind, has: list[str], rng: random.Random
) -> dict[str, Any]:
    brand = rng.choice(_BRANDS.split())
    model = f"{rng.choice(_LETTERS)}{rng.randrange(100, 1000)}"
    return {
        "asin": asin,
        "name": f"{brand} {model} {has[0].title()} {kind.name.title()}",
        "query": kind.name,
        "category": category,
        "product_category": kind.category,
        "full_description": f"The {model} by {brand}: {kind.name} that nothing was left out of.",
        "small_description": [
            bullet.format(one.capitalize(), kind.name)
            for bullet, one in zip(rng.sample(_BULLETS, _ATTRIBUTES), has, strict=True)
        ],
        "pricing": f"${rng.randrange(kind.cheapest * 100, kind.dearest * 100) / 100:.2f}",
        "customization_options": {
            name: [{"value": value} for value in values] for name, values in kind.options
        },
    }
