"""What the generated shop sells: kinds of items, by type of shop.

Each kind: what it is called, its category, what may be true of it, its options, and a range of
prices in dollars.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ALIASES", "KINDS", "Kind"]

#: Other words for a type.
ALIASES = {"clothing": "fashion", "home": "garden"}

_COLOURS = "black, white, navy blue, red, green, silver, pink, charcoal"
_SIZES = "x-small, small, medium, large, x-large, xx-large"


@dataclass(frozen=True)
class Kind:
    """A kind of item."""

    name: str
    category: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    cheapest: int
    dearest: int


def _kind(
    name: str, category: str, attributes: str, cheapest: int, dearest: int, **options: str
) -> Kind:
    return Kind(
        name,
        category,
        tuple(attributes.split(", ")),
        tuple((key.replace("_", " "), tuple(one.split(", "))) for key, one in options.items()),
        cheapest,
        dearest,
    )


KINDS: dict[str, tuple[Kind, ...]] = {
    "electronics": (
        _kind(
            "headphones",
            "Electronics > Headphones > Over-Ear Headphones",
            "noise cancelling, wireless bluetooth, long lasting, hands free, stereo sound, folding",
            25,
            340,
            color=_COLOURS,
            style="with case, without case",
        ),
        _kind(
            "usb charger",
            "Electronics > Power Accessories > Wall Chargers",
            "fast charging, travel size, overheat protection, quick release, dual port, usb c",
            8,
            70,
            color="black, white, silver",
            size="20 watt, 45 watt, 65 watt, 100 watt",
        ),
        _kind(
            "bluetooth speaker",
            "Electronics > Portable Audio > Speakers",
            "water resistant, high power, stereo sound, easy carry, hands free, long lasting",
            18,
            260,
            color=_COLOURS,
        ),
        _kind(
            "tablet case",
            "Electronics > Tablet Accessories > Cases",
            "heavy duty, non slip, shock proof, auto sleep, kickstand, slim fit",
            11,
            60,
            color=_COLOURS,
            size="8 inch, 10 inch, 11 inch, 13 inch",
        ),
        _kind(
            "security camera",
            "Electronics > Video Surveillance > Cameras",
            "night vision, motion detection, easy install, weather proof, plug play, two way audio",
            30,
            400,
            style="indoor, outdoor",
            item_package_quantity="1, 2, 4",
        ),
        _kind(
            "keyboard",
            "Electronics > Computer Accessories > Keyboards",
            "backlit keys, quiet typing, rechargeable battery, compact layout, spill proof",
            20,
            230,
            color="black, white, gray",
            style="linear switch, tactile switch, clicky switch",
        ),
    ),
    "fashion": (
        _kind(
            "hiking boots",
            "Clothing > Men > Shoes > Hiking",
            "water proof, non slip, memory foam, rubber sole, arch support, ankle height",
            45,
            260,
            color="brown, black, olive, gray",
            size="8, 9, 10, 11, 12",
        ),
        _kind(
            "summer dress",
            "Clothing > Women > Dresses > Casual",
            "machine wash, short sleeve, elastic waist, button closure, tie back, quality cotton",
            18,
            140,
            color=_COLOURS,
            size=_SIZES,
        ),
        _kind(
            "rain jacket",
            "Clothing > Men > Coats > Rain Jackets",
            "wind proof, hooded, zip pockets, taped seams, light weight, reflective trim",
            35,
            320,
            color=_COLOURS,
            size=_SIZES,
        ),
        _kind(
            "wool socks",
            "Clothing > Women > Socks > Casual",
            "hand wash, moisture wicking, arch support, merino, seamless toe, cushion sole",
            6,
            40,
            color="gray, navy, wine, ivory",
            item_package_quantity="1, 3, 6",
        ),
        _kind(
            "backpack",
            "Clothing > Luggage > Backpacks > Daypacks",
            "laptop sleeve, water resistant, padded straps, bottle pocket, light weight",
            22,
            210,
            color=_COLOURS,
            size="18 litres, 24 litres, 32 litres",
        ),
        _kind(
            "sunglasses",
            "Clothing > Accessories > Eyewear > Sunglasses",
            "polarized lens, scratch proof, uv protection, light weight, spring hinge, oversized",
            12,
            190,
            color="black, tortoise, gold, rose",
        ),
    ),
    "garden": (
        _kind(
            "table lamp",
            "Home > Lighting > Lamps > Table Lamps",
            "touch control, energy saving, solid wood, warm light, easy assemble, dimmable",
            16,
            180,
            color="walnut, white, black, brass",
            style="round shade, square shade",
        ),
        _kind(
            "storage ottoman",
            "Home > Furniture > Ottomans",
            "faux leather, easy assemble, high density, space saving, removable lid, steel frame",
            35,
            260,
            color="gray, navy, brown, ivory",
            size="17 inch, 30 inch, 43 inch",
        ),
        _kind(
            "bath towels",
            "Home > Bath > Towels > Bath Towels",
            "machine washable, quick drying, ring spun, extra soft, eco friendly, fade proof",
            12,
            90,
            color=_COLOURS,
            item_package_quantity="2, 4, 8",
        ),
        _kind(
            "desk organizer",
            "Home > Office > Desk Accessories > Organizers",
            "space saving, easy clean, non slip, metal mesh, stackable, pen holder",
            9,
            65,
            color="black, white, rose gold",
        ),
        _kind(
            "wall shelf",
            "Home > Furniture > Shelves > Floating Shelves",
            "solid wood, wall mounted, easy install, hidden bracket, weight rated, rustic finish",
            14,
            150,
            color="walnut, white, gray, natural",
            size="16 inch, 24 inch, 36 inch",
        ),
        _kind(
            "garden hose",
            "Home > Outdoor > Watering > Hoses",
            "kink proof, leak proof, brass fitting, light weight, drinking safe, spray nozzle",
            15,
            120,
            size="25 ft, 50 ft, 100 ft",
            color="green, black, blue",
        ),
    ),
    "beauty": (
        _kind(
            "face serum",
            "Beauty > Skin Care > Face > Serums",
            "fragrance free, cruelty free, hyaluronic acid, sensitive skin, anti aging",
            9,
            110,
            size="1 fl oz, 2 fl oz",
            style="day, night",
        ),
        _kind(
            "shampoo",
            "Beauty > Hair Care > Shampoo",
            "sulfate free, tea tree, color safe, damaged hair, coconut oil, dandruff control",
            6,
            55,
            scent="citrus, lavender, unscented, eucalyptus",
            size="8 fl oz, 16 fl oz, 33 fl oz",
        ),
        _kind(
            "lip balm",
            "Beauty > Makeup > Lips > Balms",
            "long lasting, vitamin e, cruelty free, bees wax, sun protection, easy apply",
            3,
            28,
            color="rose, coral, plum, nude",
            item_package_quantity="1, 2, 4",
        ),
        _kind(
            "makeup brush",
            "Beauty > Tools > Brushes",
            "synthetic hair, easy clean, travel size, bamboo handle, dense bristles, angled tip",
            5,
            60,
            color="black, pink, rose gold",
        ),
    ),
    "grocery": (
        _kind(
            "green tea",
            "Grocery > Beverages > Tea > Green",
            "usda organic, caffeine free, individually wrapped, hand picked, gluten free",
            5,
            48,
            flavor="jasmine, mint, lemon, plain",
            size="20 bags, 50 bags, 100 bags",
        ),
        _kind(
            "trail mix",
            "Grocery > Snacks > Nuts > Trail Mix",
            "gluten free, low sodium, resealable bag, high protein, no sugar, dairy free",
            6,
            42,
            flavor="tropical, chocolate, cranberry, salted",
            size="8 ounce, 16 ounce, 32 ounce",
        ),
        _kind(
            "coffee beans",
            "Grocery > Beverages > Coffee > Whole Bean",
            "fair trade, dark roast, single origin, small batch, low acid, shade grown",
            9,
            75,
            flavor="hazelnut, vanilla, original",
            size="12 ounce, 32 ounce, 80 ounce",
        ),
        _kind(
            "pasta sauce",
            "Grocery > Pantry > Sauces > Pasta",
            "non gmo, fat free, artificial free, kosher certified, slow cooked, glass jar",
            4,
            36,
            flavor="basil, garlic, arrabbiata, mushroom",
            item_package_quantity="1, 3, 6",
        ),
    ),
}
