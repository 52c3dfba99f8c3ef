"""WebShop: search a shop, look at items, choose options, buy what the instruction asks for.

- Commands, pages and their texts are upstream's; an item's page also lists the chosen options. Only
  buying pays, once, and ends the episode: R of :func:`reward_of`, upstream's to the number. The
  score is R, and success is R = 1, as in the papers.
- Goods are generated (reports say ``webshop-generated``), or those of the three files of
  `WebShop <https://github.com/princeton-nlp/WebShop>`_, which are not shipped here.
- A goal's upper price is one of the next steps of ten dollars above the item's. Upstream draws it
  before it seeds anything; here the same seed gives the same goals.
- Nouns of names are found by rules, and plurals are made singular for the search, where upstream
  has spaCy and Porter's stemmer: results do not compare with published ones.
- WebShop has no cart; ``max_cart_items`` limits how many items may be opened. Upstream's debugging
  searches (by query, by attribute) are ordinary words here.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import random
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from echoic.agents import _checks
from echoic.agents.environments.base import EchoRLEnvironment, EnvironmentConfig, Outcome
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

__all__ = ["WebShopConfig", "WebShopEnvironment"]

_COMMAND = re.compile(r"(search|click)\[(.+)\]", re.IGNORECASE | re.DOTALL)
BACK, NEXT, PREVIOUS, BUY = "Back to Search", "Next >", "< Prev", "Buy Now"
SUBPAGES = ("Description", "Features")
#: Separates the levels of a category.
LEVELS = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"
_PER_PAGE = 10
_FILES = {"items_shuffle*.json": list, "items_ins_v2*.json": dict, "items_human_ins.json": dict}
_LONGEST_ID, _NO_PRICE, _NO_LIMIT = 10, 100.0, 1_000_000.0
# Upstream's order of goals, by which it splits them: 0-499 test, 500-1499 evaluation, the rest
# training.
_ORDER_SEED = 233

# Generated goods: by type of shop, name, category, attributes, lowest and highest price, options.
_ALIASES = {"clothing": "fashion", "home": "garden"}
_ANY = "black, white, navy blue, red, green, silver, pink, charcoal"
_FITS = "x-small, small, medium, large, x-large, xx-large"
_GOODS = {
    "electronics": f"""
headphones | Electronics > Headphones > Over-Ear Headphones | noise cancelling, wireless bluetooth, long lasting, hands free, stereo sound, folding | 25 | 340 | color: {_ANY} | style: with case, without case
usb charger | Electronics > Power Accessories > Wall Chargers | fast charging, travel size, overheat protection, quick release, dual port, usb c | 8 | 70 | color: black, white, silver | size: 20 watt, 45 watt, 65 watt, 100 watt
bluetooth speaker | Electronics > Portable Audio > Speakers | water resistant, high power, stereo sound, easy carry, hands free, long lasting | 18 | 260 | color: {_ANY}
tablet case | Electronics > Tablet Accessories > Cases | heavy duty, non slip, shock proof, auto sleep, kickstand, slim fit | 11 | 60 | color: {_ANY} | size: 8 inch, 10 inch, 11 inch, 13 inch
security camera | Electronics > Video Surveillance > Cameras | night vision, motion detection, easy install, weather proof, plug play, two way audio | 30 | 400 | style: indoor, outdoor | item package quantity: 1, 2, 4
keyboard | Electronics > Computer Accessories > Keyboards | backlit keys, quiet typing, rechargeable battery, compact layout, spill proof | 20 | 230 | color: black, white, gray | style: linear switch, tactile switch, clicky switch
""",  # noqa: E501 - a kind of item is a line
    "fashion": f"""
hiking boots | Clothing > Men > Shoes > Hiking | water proof, non slip, memory foam, rubber sole, arch support, ankle height | 45 | 260 | color: brown, black, olive, gray | size: 8, 9, 10, 11, 12
summer dress | Clothing > Women > Dresses > Casual | machine wash, short sleeve, elastic waist, button closure, tie back, quality cotton | 18 | 140 | color: {_ANY} | size: {_FITS}
rain jacket | Clothing > Men > Coats > Rain Jackets | wind proof, hooded, zip pockets, taped seams, light weight, reflective trim | 35 | 320 | color: {_ANY} | size: {_FITS}
wool socks | Clothing > Women > Socks > Casual | hand wash, moisture wicking, arch support, merino, seamless toe, cushion sole | 6 | 40 | color: gray, navy, wine, ivory | item package quantity: 1, 3, 6
""",  # noqa: E501 - a kind of item is a line
    "garden": f"""
table lamp | Home > Lighting > Lamps > Table Lamps | touch control, energy saving, solid wood, warm light, easy assemble, dimmable | 16 | 180 | color: walnut, white, black, brass | style: round shade, square shade
storage ottoman | Home > Furniture > Ottomans | faux leather, easy assemble, high density, space saving, removable lid, steel frame | 35 | 260 | color: gray, navy, brown, ivory | size: 17 inch, 30 inch, 43 inch
bath towels | Home > Bath > Towels > Bath Towels | machine washable, quick drying, ring spun, extra soft, eco friendly, fade proof | 12 | 90 | color: {_ANY} | item package quantity: 2, 4, 8
garden hose | Home > Outdoor > Watering > Hoses | kink proof, leak proof, brass fitting, light weight, drinking safe, spray nozzle | 15 | 120 | size: 25 ft, 50 ft, 100 ft | color: green, black, blue
""",  # noqa: E501 - a kind of item is a line
    "beauty": """
face serum | Beauty > Skin Care > Face > Serums | fragrance free, cruelty free, hyaluronic acid, sensitive skin, anti aging | 9 | 110 | size: 1 fl oz, 2 fl oz | style: day, night
shampoo | Beauty > Hair Care > Shampoo | sulfate free, tea tree, color safe, damaged hair, coconut oil, dandruff control | 6 | 55 | scent: citrus, lavender, unscented, eucalyptus | size: 8 fl oz, 16 fl oz, 33 fl oz
lip balm | Beauty > Makeup > Lips > Balms | long lasting, vitamin e, cruelty free, bees wax, sun protection, easy apply | 3 | 28 | color: rose, coral, plum, nude | item package quantity: 1, 2, 4
""",  # noqa: E501 - a kind of item is a line
    "grocery": """
green tea | Grocery > Beverages > Tea > Green | usda organic, caffeine free, individually wrapped, hand picked, gluten free | 5 | 48 | flavor: jasmine, mint, lemon, plain | size: 20 bags, 50 bags, 100 bags
trail mix | Grocery > Snacks > Nuts > Trail Mix | gluten free, low sodium, resealable bag, high protein, no sugar, dairy free | 6 | 42 | flavor: tropical, chocolate, cranberry, salted | size: 8 ounce, 16 ounce, 32 ounce
pasta sauce | Grocery > Pantry > Sauces > Pasta | non gmo, fat free, artificial free, kosher certified, slow cooked, glass jar | 4 | 36 | flavor: basil, garlic, arrabbiata, mushroom | item package quantity: 1, 3, 6
""",  # noqa: E501 - a kind of item is a line
}
_BRANDS = "Albex Bordano Casferra Delgent Emika Fenlune Galmont Holnova Isquist Jorrion Kelsett"
_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
_REQUESTS = (
    "i am looking for {kind} with {attributes}{options}",
    "find me {kind} that has {attributes}{options}",
    "i want to buy {kind}, {attributes}{options}",
)
_BULLETS = (
    "{}: made for daily use; a {}",
    "{}, tested by critical users; a {}",
    "You asked for {}, and here it is: a {}",
)

Rows = tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]


def rows_of(website_type: str, count: int, seed: int) -> Rows:
    """Generate made-up items of a type of shop, or of ``"all"``, as WebShop's three files.

    An item has three of the attributes of its kind, and most others of the kind share some, so a
    goal needs more than its first search result. The same seed generates the same shop.
    """
    rng = random.Random(f"{website_type} {seed}")
    kinds = [
        (name, line.split(" | "))
        for name, lines in _GOODS.items()
        for line in lines.strip().split("\n")
        if website_type in (name, "all")
    ]
    items: list[dict[str, Any]] = []
    attributes, human = {}, {}
    for number in range(count):
        shop, (kind, category, possible, low, high, *said) = kinds[number % len(kinds)]
        options = {name: values.split(", ") for name, values in (o.split(": ") for o in said)}
        asin = f"E{number:05d}{rng.choice(_LETTERS)}{rng.choice(_LETTERS)}"
        has = rng.sample(possible.split(", "), 3)
        asked = rng.sample(has, 2)
        chosen = {name: rng.choice(values) for name, values in options.items()}
        brand = rng.choice(_BRANDS.split())
        model = f"{rng.choice(_LETTERS)}{rng.randrange(100, 1000)}"
        bullets = zip(rng.sample(_BULLETS, 3), has, strict=True)
        price = rng.randrange(int(low) * 100, int(high) * 100) / 100
        request = rng.choice(_REQUESTS).format(
            kind=kind,
            attributes=" and ".join(asked),
            options="".join(f", and {name}: {value}" for name, value in chosen.items()),
        )
        items.append(
            {
                "asin": asin,
                "name": f"{brand} {model} {has[0].title()} {kind.title()}",
                "query": kind,
                "category": shop,
                "product_category": category.replace(">", LEVELS),
                "full_description": f"The {model} by {brand}: a complete {kind}.",
                "small_description": [one.format(a.capitalize(), kind) for one, a in bullets],
                "pricing": f"${price:.2f}",
                "customization_options": {
                    name: [{"value": value} for value in values] for name, values in options.items()
                },
            }
        )
        attributes[asin] = {"attributes": has}
        human[asin] = [
            {
                "instruction": f"{request}.",
                "instruction_attributes": asked,
                "instruction_options": list(chosen.values()),
            }
        ]
    return items, attributes, human


@dataclass
class WebShopConfig(EnvironmentConfig):
    """Settings of WebShop.

    Attributes:
        success_threshold: 1.0 here: success is having bought exactly what was asked for.
        website_type: Goods of the shop: ``"electronics"``, ``"fashion"`` (or ``"clothing"``),
            ``"garden"`` (or ``"home"``), ``"beauty"``, ``"grocery"`` or ``"all"``.
        max_search_results: Most results of a search, ten to a page. Upstream has 50.
        max_cart_items: Most different items that may be opened in an episode.
        budget_limit: Highest price in dollars; items above it can't be bought and are no goals.
        num_products: Items of the generated shop.
        path: A folder with WebShop's three files, instead of a generated shop.
        goal_range: First and last (not included) goal, so that training and evaluation can have
            different ones. The order is upstream's: of its goals (0, 500) is for tests.
        catalogue_seed: Seed of the generated shop, of prices and of goals; not of episodes.
    """

    success_threshold: float = 1.0
    action_space_size: int = 25
    website_type: str = "electronics"
    max_search_results: int = 20
    max_cart_items: int = 10
    budget_limit: float = 1000.0
    num_products: int = 1000
    path: str | None = None
    goal_range: tuple[int, int] | None = None
    catalogue_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.website_type = _ALIASES.get(self.website_type, self.website_type)
        _checks.one_of(self, "website_type", (*_GOODS, *_ALIASES, "all"))
        _checks.whole(self, "max_search_results", "max_cart_items", "num_products")
        _checks.number(self, "budget_limit", above=0, finite=False)
        goals = self.goal_range
        if goals is not None and not (len(goals) == 2 and 0 <= goals[0] < goals[1]):
            raise ArgumentError(f"goal_range must be first and last, not {goals}")

    @property
    def provenance(self) -> str:
        """The name of the data: that of the benchmark only with its own files."""
        return "webshop-generated" if self.path is None else "webshop"


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
    options: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Goal:
    """A product to buy. ``request`` is the instruction without the price."""

    product: Product
    instruction: str
    request: str
    attributes: tuple[str, ...]
    options: tuple[str | tuple[str, str], ...]
    price_upper: float


def read_rows(folder: str | Path) -> Rows:
    """Read upstream's three files of a folder."""
    place = Path(folder)
    if not place.is_dir():
        raise ArgumentError(f"there is no folder {place}")
    found: list[Any] = []
    for pattern, kind in _FILES.items():
        files = sorted(place.glob(pattern))
        if len(files) != 1:
            had = ", ".join(one.name for one in files) or "none"
            raise ArgumentError(f"{place} must have one file {pattern}; it has {had}")
        with _shape_of(files[0].name):
            found.append(json.loads(files[0].read_text("utf-8")))
            if not isinstance(found[-1], kind):
                raise TypeError(f"expected a {kind.__name__}, got a {type(found[-1]).__name__}")
    return found[0], found[1], found[2]


@contextlib.contextmanager
def _shape_of(what: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ArgumentError(f"{what} has another shape: {error}") from error


def open_shop(rows: Rows, rng: random.Random) -> tuple[list[Product], list[Goal]]:
    """Make items and goals of rows. A price is drawn where a row has a range of prices.

    Raises:
        ArgumentError: If a row has another shape; the message names it.
    """
    items, attributes, human = rows
    products: dict[str, Product] = {}
    for number, row in enumerate(items):
        with _shape_of(f"item {number}"):
            (asin,) = _texts([row["asin"]])
            # Upstream leaves these out, too.
            if asin != "nan" and len(asin) <= _LONGEST_ID and asin not in products:
                products[asin] = _product_of(row, attributes.get(asin) or {}, rng)
    # Commands name identifiers without regard to case.
    if len({asin.lower() for asin in products}) < max(len(products), 1):
        raise ArgumentError("there are no items, or two that differ by case only")
    goals = []
    for product in products.values():
        with _shape_of(f"an instruction for {product.asin}"):
            wanted = human.get(product.asin) or ()
            goals += [_goal_of(product, o, rng) for o in wanted if o["instruction_attributes"]]
    random.Random(_ORDER_SEED).shuffle(goals)
    return list(products.values()), goals


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not all(isinstance(one, str) for one in value):
        raise TypeError(f"{value!r:.80} is no list of texts")
    return tuple(value)


def _product_of(row: Mapping[str, Any], more: Mapping[str, Any], rng: random.Random) -> Product:
    bullets = row.get("small_description") or []
    pricing = row.get("pricing")
    prices = [float(re.sub(r"[^\d.]", "", one)) for one in str(pricing or "").split("$")[1:]]
    if pricing and not (prices and all(map(math.isfinite, prices))):
        raise ValueError(f"there is no price like '$12.50', but {pricing!r}")
    prices = prices or [_NO_PRICE]
    names = ("asin", "name", "full_description", "category", "product_category")
    asin, name, description, category, levels = _texts([row[one] for one in names])
    return Product(
        asin=asin,
        name=name,
        description=description,
        bullets=_texts(bullets if isinstance(bullets, list) else [str(bullets)]),
        category=category,
        query=row["query"].lower().strip(),
        product_category=levels,
        price=prices[0] if len(prices) == 1 else rng.uniform(prices[0], prices[1]),
        price_tag=" to ".join(f"${one}" for one in prices[:2]),
        attributes=_texts(more.get("attributes") or ["DUMMY_ATTR"]),
        options={
            name.lower(): tuple(
                str(one["value"]).strip().replace("/", " | ").lower() for one in values
            )
            for name, values in (row.get("customization_options") or {}).items()
            if values is not None
        },
    )


def _goal_of(product: Product, row: Mapping[str, Any], rng: random.Random) -> Goal:
    request = row["instruction"].strip(".")
    options = row["instruction_options"]
    # The larger of two of the next four prices.
    steps = [10.0 * i for i in range(1, 100) if 10.0 * i > product.price][:4]
    upper = max(rng.sample(steps, 2)) if len(steps) > 1 else _NO_LIMIT
    limit = f", and price lower than {upper:.2f} dollars" if upper < _NO_LIMIT else ""
    chosen = tuple(options.items()) if isinstance(options, dict) else tuple(options)
    wanted = _texts(row["instruction_attributes"])
    return Goal(product, request + limit, request, wanted, chosen, upper)


_WORD = re.compile(r"[^\W_]+")
_MAX_QUERY = 256
_DROPPED_SAID = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then "
    "there these they this to was will with"
)
_DROPPED = frozenset(_DROPPED_SAID.split())


def words_of(text: str) -> list[str]:
    """Split a text into the words that a search compares, in the singular.

    >>> words_of("The boxes for 2 Batteries and a glass")
    ['box', '2', 'battery', 'glass']
    """
    return [_singular(word) for word in _WORD.findall(text.lower()) if word not in _DROPPED]


def _singular(word: str) -> str:
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-2] if word.endswith(("xes", "ches", "shes", "sses")) else word[:-1]


class BM25:
    """An index of texts, with Lucene's scores; items of equal scores keep their order."""

    def __init__(self, texts: Sequence[str], k1: float = 0.9, b: float = 0.4) -> None:
        if not texts:
            raise ArgumentError("an index needs texts")
        counts = [Counter(words_of(text)) for text in texts]
        lengths = np.array([one.total() for one in counts], float)
        norm = k1 * (1 - b + b * lengths / max(lengths.mean(), 1.0))
        self._size = len(texts)
        places: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for i, one in enumerate(counts):
            for word, count in one.items():
                places[word].append((i, count))
        self._index = {}
        for word, found in places.items():
            where, tf = np.array(found).T
            idf = np.log1p((self._size - len(where) + 0.5) / (len(where) + 0.5))
            self._index[word] = (where, idf * tf / (tf + norm[where]))

    def search(self, query: str, most: int) -> list[int]:
        """Return the numbers of at most ``most`` texts that match, the best first."""
        scores = np.zeros(self._size)
        for word in words_of(query)[:_MAX_QUERY]:
            if word in self._index:
                found, parts = self._index[word]
                scores[found] += parts
        order = np.argsort(-scores, kind="stable")[:most]
        return [int(i) for i in order if scores[i] > 0]


@dataclass(frozen=True)
class _Shop:
    """The constant part, which environments of one process share."""

    products: list[Product]
    goals: list[Goal]
    index: BM25
    queries: list[str]


@functools.lru_cache(maxsize=4)
def _open(path: str | None, website_type: str, count: int, seed: int) -> _Shop:
    rows = rows_of(website_type, count, seed) if path is None else read_rows(path)
    found, goals = open_shop(rows, random.Random(seed))
    products = [one for one in found if website_type in (one.category, "all")]
    if not products:
        raise ArgumentError(f"the shop has nothing of type {website_type!r}")
    texts = []
    for one in products:
        options = " ".join(f"{name}: {', '.join(values)}" for name, values in one.options.items())
        texts.append(" ".join([one.name, one.description, *one.bullets[:1], options]))
    return _Shop(
        products,
        [one for one in goals if website_type in (one.product.category, "all")],
        BM25(texts),
        list(dict.fromkeys(one.query for one in products)),
    )


class WebShopEnvironment(EchoRLEnvironment):
    """A shop in which to find and buy what an instruction asks for.

    ``reset(options={"goal": 3})`` chooses a goal; otherwise the seed does. ``info`` of the step
    that buys has ``asin`` and the parts of the reward.

    >>> shop = WebShopEnvironment(WebShopConfig(num_products=60))
    >>> seen, info = shop.reset(seed=1)
    >>> ended = False
    >>> while not ended:
    ...     _, reward, ended, _, info = shop.step(shop.expert())
    >>> reward, info["success"]
    (1.0, True)
    """

    config: WebShopConfig
    instructions = (
        "You are in a web shop. Find the item that the instruction asks for, choose the options "
        "that it asks for, and buy it. You may buy once. Say one command at a time: "
        "search[some words] on the search page, click[what is to be clicked] elsewhere, for "
        "example click[E00017AB], click[Next >], click[large] or click[Buy Now]."
    )

    def __init__(self, config: WebShopConfig | None = None) -> None:
        config = config or WebShopConfig()
        super().__init__(config)
        self._shop = _open(
            config.path, config.website_type, config.num_products, config.catalogue_seed
        )
        in_range = self._shop.goals[slice(*(config.goal_range or (None,)))]
        self.goals = tuple(one for one in in_range if one.product.price <= config.budget_limit)
        if not self.goals:
            raise ArgumentError("no goal is left: look at goal_range, budget_limit and the files")

    def _start(self, options: dict[str, Any]) -> str:
        self._goal = self.goals[self._index_of(options, "goal", len(self.goals))]
        self._tried = 0
        self._opened: set[str] = set()
        self._results: list[Product] = []
        self._go(0)
        return self._look()

    # The page: 0 is the search, others are results from 1 on, unless an item is open.

    def _go(self, number: int) -> None:
        self._number, self._subpage = number, ""
        self._item: Product | None = None
        at = number * _PER_PAGE
        self._shelf = self._results[max(0, at - _PER_PAGE) : at]

    def _read(self, subpage: str) -> None:
        self._subpage = subpage

    def _choose(self, name: str, value: str) -> None:
        self._chosen[name] = value

    def _open(self, item: Product) -> Outcome | None:
        count = len(self._opened)
        if item.asin not in self._opened and count >= self.config.max_cart_items:
            full = f"You have looked at {count} items, which is as many as you may."
            return Outcome(f"{full} [SEP] {self._look()}")
        self._opened.add(item.asin)
        self._item = item
        self._chosen: dict[str, str] = {}
        return None

    def _buy(self) -> Outcome:
        item = self._item
        if item is None or item.price > self.config.budget_limit:
            return Outcome(f"That is more than your budget. [SEP] {self._look()}")
        reward = reward_of(item, self._goal, item.price, self._chosen)
        text = f"Thank you for shopping with us! [SEP] Your score: {reward.total:.2f}"
        details = {"asin": item.asin, "parts": reward._asdict(), "chosen": dict(self._chosen)}
        return Outcome(text, reward.total, True, reward.total, details)

    def _clicks(self) -> dict[str, Callable[[], Any]]:
        """Map what can be clicked to what it does, in the order in which it is listed."""
        number, item, home = self._number, self._item, partial(self._go, 0)
        clicks: dict[str, Callable[[], Any]] = {}
        if not number:
            return clicks
        if item is None:
            clicks = {one.asin: partial(self._open, one) for one in self._shelf}
            clicks[BACK] = home
            if number * _PER_PAGE < len(self._results):
                clicks[NEXT] = partial(self._go, number + 1)
            if number > 1:
                clicks[PREVIOUS] = partial(self._go, number - 1)
        elif self._subpage:
            clicks = {BACK: home, PREVIOUS: partial(self._read, "")}
        else:
            clicks = {BUY: self._buy, BACK: home, PREVIOUS: partial(self._go, number)}
            clicks |= {one: partial(self._read, one) for one in SUBPAGES}
        clicks = {text.lower(): do for text, do in clicks.items()}
        if item is not None and not self._subpage:
            for name, values in item.options.items():
                for value in values:
                    clicks.setdefault(value, partial(self._choose, name, value))
        return clicks

    def _look(self) -> str:
        """Return the page's text."""
        parts, item = ["Instruction:", self._goal.instruction], self._item
        if not self._number:
            parts = ["WebShop", *parts, "Search"]
        elif item is None:
            parts += [BACK, f"Page {self._number} (Total results: {len(self._results)})"]
            parts += [one for one in (NEXT, PREVIOUS) if one.lower() in self._clicks()]
            parts += [part for one in self._shelf for part in (one.asin, one.name, one.price_tag)]
        elif self._subpage:
            shown = [item.description] if self._subpage == SUBPAGES[0] else item.bullets
            parts += [BACK, PREVIOUS, *shown]
        else:
            parts += [BACK, PREVIOUS]
            parts += [part for name, own in item.options.items() for part in (name, *own)]
            chosen = ", ".join(f"{name}: {value}" for name, value in self._chosen.items())
            parts += [f"Chosen: {chosen}"] * bool(chosen)
            parts += [item.name, f"Price: {item.price_tag}", *SUBPAGES, BUY]
        return " [SEP] ".join(parts)

    def _apply(self, command: str) -> Outcome | None:
        match = _COMMAND.fullmatch(command)
        if match is None:
            return None
        verb, what = match[1].lower(), match[2].strip()
        clicks = self._clicks()
        if verb == "click" and what.lower() in clicks:
            return clicks[what.lower()]() or Outcome(self._look())
        if verb == "click" or self._number:
            return None
        found = self._shop.index.search(what, self.config.max_search_results)
        self._results = [self._shop.products[i] for i in found]
        self._go(1)
        return Outcome(self._look())

    def _commands(self) -> Sequence[str]:
        if self._number:
            return [f"click[{one}]" for one in self._clicks()]
        words = dict.fromkeys([self._goal.request, *self._shop.queries])
        return [f"search[{one}]" for one in words]

    def _expert(self) -> str | None:
        """Search for the goal's item by its name, choose what is asked for, buy it."""
        goal, item, clicks = self._goal, self._goal.product, self._clicks()
        if not self._number:
            self._tried += 1
            return f"search[{(item.query, item.name, goal.request)[self._tried % 3]}]"
        if self._item is None:
            ways = (item.asin, NEXT, BACK)
            return f"click[{next(one.lower() for one in ways if one.lower() in clicks)}]"
        if self._subpage or self._item is not item:
            return f"click[{PREVIOUS.lower()}]"
        for option in goal.options:
            if not is_met(option, self._chosen.values()):
                free = [own for name, own in item.options.items() if name not in self._chosen]
                fits = [one for own in free for one in own if is_met(option, [one])]
                wanted = option[1] if isinstance(option, tuple) else option
                if fits:
                    return f"click[{wanted if wanted in fits else fits[0]}]"
        return f"click[{BUY.lower()}]"


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


class Reward(NamedTuple):
    """R and its parts."""

    total: float
    r_type: float
    attributes: int
    options: int
    price: bool


def reward_of(product: Product, goal: Goal, price: float, chosen: Mapping[str, str]) -> Reward:
    """Compute upstream's reward for buying a product at a price with these options.

    R = r_type · (attributes met + options met + price met) / (attributes + options + 1)

    - A goal's attribute counts if it is 85 % alike to one of the item's, or is part of its texts.
    - A goal's option counts if a chosen one is 85 % alike, or has the same first colour name.
    - ``r_type``: see :func:`type_reward`.
    """
    wanted = goal.product
    levels = [{one.strip() for one in a.product_category.split(LEVELS)} for a in (product, wanted)]
    r_type = type_reward(
        title_score(product.name, wanted.name),
        same_query=product.query == wanted.query,
        levels=len(levels[0] & levels[1]),
    )
    texts = [product.name, " ".join(product.bullets), product.description]
    attributes = sum(
        any(token_set_ratio(own, one) > _ALIKE for own in product.attributes)
        or any(one in text.lower() for text in texts)
        for one in goal.attributes
    )
    options = sum(is_met(one, chosen.values()) for one in goal.options)
    in_price = price <= goal.price_upper
    asked = len(goal.attributes) + len(goal.options) + 1
    total = r_type * (attributes + options + in_price) / asked
    return Reward(total, r_type, attributes, options, in_price)


def type_reward(score: float, *, same_query: bool, levels: int) -> float:
    """Rate whether an item is of the kind that was asked for.

    1 for the same query, two common levels of category, or more than a fifth of the wanted nouns in
    the name; 0.5 for others; 0.1 or 0 where names have next to nothing or nothing in common.
    """
    if score < 0.1:
        return 0.1 if score else 0.0
    return 1.0 if same_query or levels >= 2 or score > 0.2 else 0.5


def title_score(bought: str, wanted: str) -> float:
    """Return the share of the wanted name's nouns that the bought one has; 0.2 without nouns.

    As upstream, common nouns count once, and wanted ones as often as they occur.
    """
    asked = nouns_of(wanted)
    return len(set(nouns_of(bought)) & set(asked)) / len(asked) if asked else 0.2


def is_met(option: str | tuple[str, str], chosen: Iterable[str]) -> bool:
    """Return whether one of the chosen values is what a goal's option asks for."""
    wanted = _colour_or(option)
    return any(token_set_ratio(_colour_or(one), wanted) > _ALIKE for one in chosen)


@functools.lru_cache(maxsize=65536)
def _colour_or(option: str | tuple[str, str]) -> str:
    # Upstream looks for a member that is a colour in a pair of name and value, and for a part that
    # is one in a text.
    return next((one for one in _COLOURS if one in option), str(option))


_NOUN = re.compile(r"[^\W\d_]{2,}")
_ENDINGS = ("ful", "less", "ous", "ive", "ish", "est", "ly", "ed")
# Only of words of seven letters or more: a table and a cable are things.
_LONG, _LONG_ENDINGS = 7, ("able", "ible")
_NO_NOUNS_SAID = (
    "a an the and or but nor of for with without in on at by from to into onto over under up down "
    "off out as is are be it its this that these those your our their my all any each no not per "
    "plus via x new big small large long short high low wide slim thin thick heavy light deep soft "
    "hard warm cool cold hot dry wet fresh clean clear easy safe free full extra super ultra mini "
    "great good best more most less very double single natural organic classic modern portable "
    "wireless digital manual round square flat black white red blue green grey gray brown yellow "
    "orange pink purple"
)
_NO_NOUNS = frozenset(_NO_NOUNS_SAID.split())


@functools.lru_cache(maxsize=65536)
def nouns_of(text: str) -> tuple[str, ...]:
    """List words that are likely nouns, lower-cased, in order, with repetitions.

    >>> nouns_of("Velmo Wireless Noise Cancelling Headphones with 2 Microphones")
    ('velmo', 'noise', 'cancelling', 'headphones', 'microphones')
    """
    return tuple(
        word
        for word in map(str.lower, _NOUN.findall(text))
        if word not in _NO_NOUNS
        and not word.endswith(_ENDINGS)
        and not (len(word) >= _LONG and word.endswith(_LONG_ENDINGS))
    )


# The rest of Latin-1 is dropped, as upstream does; characters beyond it are kept.
_NOT_ASCII = dict.fromkeys(range(128, 256))


def token_set_ratio(one: object, other: object) -> int:
    """Compare two texts as sets of words, from 0 to 100: thefuzz's measure of this name."""
    a, b = (
        set(re.sub(r"[\W_]", " ", str(text).translate(_NOT_ASCII)).lower().split())
        for text in (one, other)
    )
    if not a or not b:
        return 0
    both = a & b
    only_a, only_b = " ".join(sorted(a - b)), " ".join(sorted(b - a))
    if both and not (only_a and only_b):
        return 100
    shared = len(" ".join(both))
    gap = bool(shared)
    long_a, long_b = shared + gap + len(only_a), shared + gap + len(only_b)
    changes = len(only_a) + len(only_b) - 2 * _common(only_a, only_b)
    ratios = [100 * changes / (long_a + long_b)]
    if shared:
        ratios += [100 * (gap + len(only_a)) / (shared + long_a)]
        ratios += [100 * (gap + len(only_b)) / (shared + long_b)]
    return round(100 - min(ratios))


def _common(a: str, b: str) -> int:
    """Return the length of the longest common subsequence; a row of its table is one integer."""
    places: dict[str, int] = {}
    for i, letter in enumerate(a):
        places[letter] = places.get(letter, 0) | 1 << i
    everything = (1 << len(a)) - 1
    row = everything
    for letter in b:
        match = row & places.get(letter, 0)
        row = (row + match | row - match) & everything
    return len(a) - row.bit_count()
