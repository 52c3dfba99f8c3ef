"""WebShop: search a shop, look at items, choose options, buy what the instruction asks for.

- Commands, pages and their texts are those of
  `WebShop <https://github.com/princeton-nlp/WebShop>`_; an item's page also lists the chosen
  options. Only buying pays, once, and ends the episode: R of :func:`reward_of`. The score is R, and
  success is R = 1, as in the papers.
- Goods are generated, and reports say ``webshop-generated``: results do not compare with published
  ones. Nouns of names and colours are lists for these goods, texts are alike by their words, and
  plurals are made singular for the search, where upstream has spaCy, thefuzz and a stemmer.
- WebShop has no cart; ``max_cart_items`` limits how many items may be opened.
"""

from __future__ import annotations

import functools
import random
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from echoic.agents import _checks
from echoic.agents.environments.base import EchoRLEnvironment, EnvironmentConfig, Outcome
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["WebShopConfig", "WebShopEnvironment"]

_COMMAND = re.compile(r"(search|click)\[(.+)\]", re.IGNORECASE | re.DOTALL)
BACK, NEXT, PREVIOUS, BUY = "Back to Search", "Next >", "< Prev", "Buy Now"
SUBPAGES = ("Description", "Features")
_PER_PAGE = 10

# Generated goods: shop, name, category, attributes, lowest and highest price, options.
_SHOPS, _ALIASES = (
    ("electronics", "fashion", "garden", "beauty", "grocery"),
    {"clothing": "fashion", "home": "garden"},
)
_ANY = "black, white, navy blue, red, green, silver, pink, charcoal"
_FITS = "x-small, small, medium, large, x-large, xx-large"
_GOODS = f"""
electronics | headphones | Electronics > Headphones > Over-Ear Headphones | noise cancelling, wireless bluetooth, long lasting, hands free, stereo sound, folding | 25 | 340 | color: {_ANY} | style: with case, without case
electronics | usb charger | Electronics > Power Accessories > Wall Chargers | fast charging, travel size, overheat protection, quick release, dual port, usb c | 8 | 70 | color: black, white, silver | size: 20 watt, 45 watt, 65 watt, 100 watt
electronics | bluetooth speaker | Electronics > Portable Audio > Speakers | water resistant, high power, stereo sound, easy carry, hands free, long lasting | 18 | 260 | color: {_ANY}
electronics | tablet case | Electronics > Tablet Accessories > Cases | heavy duty, non slip, shock proof, auto sleep, kickstand, slim fit | 11 | 60 | color: {_ANY} | size: 8 inch, 10 inch, 11 inch, 13 inch
electronics | security camera | Electronics > Video Surveillance > Cameras | night vision, motion detection, easy install, weather proof, plug play, two way audio | 30 | 400 | style: indoor, outdoor | item package quantity: 1, 2, 4
electronics | keyboard | Electronics > Computer Accessories > Keyboards | backlit keys, quiet typing, rechargeable battery, compact layout, spill proof | 20 | 230 | color: black, white, gray | style: linear switch, tactile switch, clicky switch
fashion | hiking boots | Clothing > Men > Shoes > Hiking | water proof, non slip, memory foam, rubber sole, arch support, ankle height | 45 | 260 | color: brown, black, olive, gray | size: 8, 9, 10, 11, 12
fashion | summer dress | Clothing > Women > Dresses > Casual | machine wash, short sleeve, elastic waist, button closure, tie back, quality cotton | 18 | 140 | color: {_ANY} | size: {_FITS}
fashion | rain jacket | Clothing > Men > Coats > Rain Jackets | wind proof, hooded, zip pockets, taped seams, light weight, reflective trim | 35 | 320 | color: {_ANY} | size: {_FITS}
fashion | wool socks | Clothing > Women > Socks > Casual | hand wash, moisture wicking, arch support, merino, seamless toe, cushion sole | 6 | 40 | color: gray, navy, wine, ivory | item package quantity: 1, 3, 6
garden | table lamp | Home > Lighting > Lamps > Table Lamps | touch control, energy saving, solid wood, warm light, easy assemble, dimmable | 16 | 180 | color: walnut, white, black, brass | style: round shade, square shade
garden | storage ottoman | Home > Furniture > Ottomans | faux leather, easy assemble, high density, space saving, removable lid, steel frame | 35 | 260 | color: gray, navy, brown, ivory | size: 17 inch, 30 inch, 43 inch
garden | bath towels | Home > Bath > Towels > Bath Towels | machine washable, quick drying, ring spun, extra soft, eco friendly, fade proof | 12 | 90 | color: {_ANY} | item package quantity: 2, 4, 8
garden | garden hose | Home > Outdoor > Watering > Hoses | kink proof, leak proof, brass fitting, light weight, drinking safe, spray nozzle | 15 | 120 | size: 25 ft, 50 ft, 100 ft | color: green, black, blue
beauty | face serum | Beauty > Skin Care > Face > Serums | fragrance free, cruelty free, hyaluronic acid, sensitive skin, anti aging | 9 | 110 | size: 1 fl oz, 2 fl oz | style: day, night
beauty | shampoo | Beauty > Hair Care > Shampoo | sulfate free, tea tree, color safe, damaged hair, coconut oil, dandruff control | 6 | 55 | scent: citrus, lavender, unscented, eucalyptus | size: 8 fl oz, 16 fl oz, 33 fl oz
beauty | lip balm | Beauty > Makeup > Lips > Balms | long lasting, vitamin e, cruelty free, bees wax, sun protection, easy apply | 3 | 28 | color: rose, coral, plum, nude | item package quantity: 1, 2, 4
grocery | green tea | Grocery > Beverages > Tea > Green | usda organic, caffeine free, individually wrapped, hand picked, gluten free | 5 | 48 | flavor: jasmine, mint, lemon, plain | size: 20 bags, 50 bags, 100 bags
grocery | trail mix | Grocery > Snacks > Nuts > Trail Mix | gluten free, low sodium, resealable bag, high protein, no sugar, dairy free | 6 | 42 | flavor: tropical, chocolate, cranberry, salted | size: 8 ounce, 16 ounce, 32 ounce
grocery | pasta sauce | Grocery > Pantry > Sauces > Pasta | non gmo, fat free, artificial free, kosher certified, slow cooked, glass jar | 4 | 36 | flavor: basil, garlic, arrabbiata, mushroom | item package quantity: 1, 3, 6
"""  # noqa: E501 - a kind of item is a line
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


class Product(NamedTuple):
    """An item of the shop."""

    asin: str
    name: str
    query: str
    description: str
    bullets: list[str]
    levels: set[str]
    price: float
    attributes: list[str]
    options: dict[str, list[str]]


class Goal(NamedTuple):
    """A product to buy. ``request`` is the instruction without the price."""

    product: Product
    request: str
    instruction: str
    attributes: list[str]
    options: list[str]
    price_upper: float


def generate(website_type: str, count: int, seed: int) -> tuple[list[Product], list[Goal]]:
    """Generate items of a type of shop, or of ``"all"``, and a goal for each.

    An item has three of the attributes of its kind, and most others of the kind share some, so a
    goal needs more than its first search result. The same seed generates the same shop.
    """
    rng, limits = random.Random(f"{website_type} {seed}"), random.Random(seed)
    goods = (line.split(" | ") for line in _GOODS.strip().split("\n"))
    kinds = [one for one in goods if website_type in (one[0], "all")]
    products, goals = [], []
    for number in range(count):
        _, kind, category, possible, low, high, *said = kinds[number % len(kinds)]
        options = {name: values.split(", ") for name, values in (o.split(": ") for o in said)}
        asin = f"E{number:05d}{rng.choice(_LETTERS)}{rng.choice(_LETTERS)}"
        has = rng.sample(possible.split(", "), 3)
        asked = rng.sample(has, 2)
        chosen = {name: rng.choice(values) for name, values in options.items()}
        brand = rng.choice(_BRANDS.split())
        model = f"{rng.choice(_LETTERS)}{rng.randrange(100, 1000)}"
        bullets = zip(rng.sample(_BULLETS, 3), has, strict=True)
        price = rng.randrange(int(low) * 100, int(high) * 100) / 100
        product = Product(
            asin=asin,
            name=f"{brand} {model} {has[0].title()} {kind.title()}",
            query=kind,
            description=f"The {model} by {brand}: a complete {kind}.",
            bullets=[one.format(a.capitalize(), kind) for one, a in bullets],
            levels=set(category.split(" > ")),
            price=price,
            attributes=has,
            options=options,
        )
        request = rng.choice(_REQUESTS).format(
            kind=kind,
            attributes=" and ".join(asked),
            options="".join(f", and {name}: {value}" for name, value in chosen.items()),
        )
        # The larger of two of the next four steps of ten dollars.
        steps = [10.0 * (price // 10 + i) for i in range(1, 5)]
        products.append(product)
        upper = max(limits.sample(steps, 2))
        instruction = f"{request}, and price lower than {upper:.2f} dollars"
        goals.append(Goal(product, request, instruction, asked, list(chosen.values()), upper))
    random.Random(233).shuffle(goals)
    return products, goals


@dataclass
class WebShopConfig(EnvironmentConfig):
    """Settings of WebShop.

    Attributes:
        success_threshold: 1.0: success is having bought exactly what was asked for.
        website_type: Goods of the shop: ``"electronics"``, ``"fashion"`` (or ``"clothing"``),
            ``"garden"`` (or ``"home"``), ``"beauty"``, ``"grocery"`` or ``"all"``.
        max_search_results: Most results of a search, ten to a page. Upstream has 50.
        max_cart_items: Most different items that may be opened in an episode.
        budget_limit: Highest price in dollars; items above it can't be bought and are no goals.
        num_products: Items of the shop.
        catalogue_seed: Seed of the shop and its goals; not of episodes.
    """

    #: The name in reports.
    provenance: ClassVar[str] = "webshop-generated"
    success_threshold: float = 1.0
    action_space_size: int = 25
    website_type: str = "electronics"
    max_search_results: int = 20
    max_cart_items: int = 10
    budget_limit: float = 1000.0
    num_products: int = 1000
    catalogue_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.website_type = _ALIASES.get(self.website_type, self.website_type)
        _checks.one_of(self, "website_type", (*_SHOPS, *_ALIASES, "all"))
        _checks.whole(self, "max_search_results", "max_cart_items", "num_products")
        _checks.number(self, "budget_limit", above=0, finite=False)


_WORD = re.compile(r"[^\W_]+")
_MAX_QUERY = 256
_DROPPED_SAID = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then "
    "there these they this to was will with"
)
_DROPPED = _DROPPED_SAID.split()


def words_of(text: str) -> list[str]:
    """Split a text into the words that a search compares, in the singular."""
    return [_singular(word) for word in _WORD.findall(text.lower()) if word not in _DROPPED]


def _singular(word: str) -> str:
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-2] if word.endswith(("xes", "ches", "shes", "sses")) else word[:-1]


def index_of(texts: Sequence[str]) -> dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """For each word, list the texts that have it and its scores there: BM25, as Lucene has it."""
    counts = [Counter(words_of(text)) for text in texts]
    lengths = np.array([one.total() for one in counts], float)
    norm = 0.9 * (0.6 + 0.4 * lengths / max(lengths.mean(), 1.0))
    places: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for i, one in enumerate(counts):
        for word, count in one.items():
            places[word].append((i, count))
    index = {}
    for word, found in places.items():
        where, tf = np.array(found).T
        idf = np.log1p((len(texts) - len(where) + 0.5) / (len(where) + 0.5))
        index[word] = (where, idf * tf / (tf + norm[where]))
    return index


class Shop:
    """The goods, and the goals; items of equal scores are found in their order."""

    def __init__(self, website_type: str, count: int, seed: int) -> None:
        self.products, self.goals = generate(website_type, count, seed)
        self.queries = list(dict.fromkeys(one.query for one in self.products))
        texts = []
        for one in self.products:
            options = " ".join(f"{name}: {', '.join(own)}" for name, own in one.options.items())
            texts.append(" ".join([one.name, one.description, one.bullets[0], options]))
        self._index = index_of(texts)

    def search(self, query: str, most: int) -> list[Product]:
        """Return at most ``most`` items that match, the best first."""
        scores = np.zeros(len(self.products))
        for word in words_of(query)[:_MAX_QUERY]:
            if word in self._index:
                found, parts = self._index[word]
                scores[found] += parts
        order = np.argsort(-scores, kind="stable")[:most]
        return [self.products[i] for i in order if scores[i] > 0]


# Environments of one process share shops.
_shop_of = functools.lru_cache(maxsize=4)(Shop)


class WebShopEnvironment(EchoRLEnvironment):
    """A shop in which to find and buy what an instruction asks for.

    ``reset(options={"goal": 3})`` chooses a goal; otherwise the seed does. ``info`` of the step
    that buys has ``asin`` and the parts of the reward.
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
        self._shop = _shop_of(config.website_type, config.num_products, config.catalogue_seed)
        self.goals = tuple(
            one for one in self._shop.goals if one.product.price <= config.budget_limit
        )
        if not self.goals:
            raise ArgumentError(f"no goal costs {config.budget_limit} (budget_limit) or less")

    def _start(self, options: dict[str, Any]) -> str:
        self._goal = self.goals[self._index_of(options, "goal", len(self.goals))]
        self._tried = 0
        self._opened: set[str] = set()
        self._results: list[Product] = []
        self._go(0)
        return self._look()

    def _go(self, number: int) -> None:
        """Show a page: 0 is the search, others are results from 1 on."""
        self._number, self._subpage = number, ""
        self._item: Product | None = None
        at = number * _PER_PAGE
        self._shelf = self._results[max(0, at - _PER_PAGE) : at]

    def _open(self, item: Product) -> Outcome | None:
        count = len(self._opened)
        if item.asin not in self._opened and count >= self.config.max_cart_items:
            full = f"You have looked at {count} items, which is as many as you may."
            return Outcome(f"{full} [SEP] {self._look()}")
        self._opened.add(item.asin)
        self._item = item
        self._chosen: dict[str, str] = {}
        return None

    def _buy(self, item: Product) -> Outcome:
        if item.price > self.config.budget_limit:
            return Outcome(f"That is more than your budget. [SEP] {self._look()}")
        reward = reward_of(item, self._goal, self._chosen)
        text = f"Thank you for shopping with us! [SEP] Your score: {reward.total:.2f}"
        details = {"asin": item.asin, "parts": reward._asdict(), "chosen": dict(self._chosen)}
        return Outcome(text, reward.total, True, reward.total, details)

    def _clicks(self) -> dict[str, Callable[[], Any]]:
        """Map what can be clicked to what it does, in the order in which it is listed."""
        number, item, home = self._number, self._item, partial(self._go, 0)
        clicks: dict[str, Callable[[], Any]]
        read = partial(setattr, self, "_subpage")
        if not number:
            return {}
        if item is None:
            clicks = {one.asin: partial(self._open, one) for one in self._shelf}
            clicks[BACK] = home
            if number * _PER_PAGE < len(self._results):
                clicks[NEXT] = partial(self._go, number + 1)
            if number > 1:
                clicks[PREVIOUS] = partial(self._go, number - 1)
        elif self._subpage:
            clicks = {BACK: home, PREVIOUS: partial(read, "")}
        else:
            clicks = {
                BUY: partial(self._buy, item),
                BACK: home,
                PREVIOUS: partial(self._go, number),
            }
            clicks |= {one: partial(read, one) for one in SUBPAGES}
        clicks = {text.lower(): do for text, do in clicks.items()}
        if item is not None and not self._subpage:
            for name, values in item.options.items():
                for value in values:
                    clicks.setdefault(value, partial(self._chosen.__setitem__, name, value))
        return clicks

    def _look(self) -> str:
        """Return the page's text."""
        parts, item = ["Instruction:", self._goal.instruction], self._item
        if not self._number:
            parts = ["WebShop", *parts, "Search"]
        elif item is None:
            parts += [BACK, f"Page {self._number} (Total results: {len(self._results)})"]
            parts += [one for one in (NEXT, PREVIOUS) if one.lower() in self._clicks()]
            parts += [part for one in self._shelf for part in (one.asin, one.name, f"${one.price}")]
        elif self._subpage:
            shown = [item.description] if self._subpage == SUBPAGES[0] else item.bullets
            parts += [BACK, PREVIOUS, *shown]
        else:
            parts += [BACK, PREVIOUS]
            parts += [part for name, own in item.options.items() for part in (name, *own)]
            chosen = ", ".join(f"{name}: {value}" for name, value in self._chosen.items())
            parts += [f"Chosen: {chosen}"] * bool(chosen)
            parts += [item.name, f"Price: ${item.price}", *SUBPAGES, BUY]
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
        self._results = self._shop.search(what, self.config.max_search_results)
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
                if fits:
                    return f"click[{option if option in fits else fits[0]}]"
        return f"click[{BUY.lower()}]"


# The first of these that a text contains is its colour: the order is part of the measure.
_COLOURS_SAID = (
    "ash black blue brown charcoal chocolate coral cranberry gray green ivory lavender lemon light "
    "mint mushroom navy nude olive pink plum red rose silver steel tan walnut white wine"
)
_COLOURS = _COLOURS_SAID.split()


class Reward(NamedTuple):
    """R and its parts."""

    total: float
    r_type: float
    attributes: int
    options: int
    price: bool


def reward_of(product: Product, goal: Goal, chosen: Mapping[str, str]) -> Reward:
    """Compute the reward for buying a product with these options, by upstream's formula.

    R = r_type · (attributes met + options met + price met) / (attributes + options + 1)

    - A goal's attribute counts if it is alike to one of the item's, or is part of its texts.
    - A goal's option counts if a chosen one is alike, or has the same first colour name.
    - ``r_type``: see :func:`type_reward`.
    """
    r_type = type_reward(product, goal.product)
    texts = [product.name, " ".join(product.bullets), product.description]
    attributes = sum(
        any(alike(own, one) for own in product.attributes)
        or any(one in text.lower() for text in texts)
        for one in goal.attributes
    )
    options = sum(is_met(one, chosen.values()) for one in goal.options)
    in_price = product.price <= goal.price_upper
    asked = len(goal.attributes) + len(goal.options) + 1
    total = r_type * (attributes + options + in_price) / asked
    return Reward(total, r_type, attributes, options, in_price)


def type_reward(product: Product, wanted: Product) -> float:
    """Rate whether an item is of the kind that was asked for, by the wanted nouns in its name.

    1 for more than a fifth of them, the same query or two common levels of category; 0.5 for
    others; 0.1 or 0 where names have next to nothing or nothing in common.
    """
    asked = nouns_of(wanted.name)
    score = len({*nouns_of(product.name)} & {*asked}) / len(asked)
    if score < 0.1:
        return 0.1 if score else 0.0
    levels = len(product.levels & wanted.levels)
    return 1.0 if product.query == wanted.query or levels >= 2 or score > 0.2 else 0.5


def is_met(option: str, chosen: Iterable[str]) -> bool:
    """Return whether one of the chosen values is what a goal's option asks for."""
    wanted = _colour_or(option)
    return any(alike(_colour_or(one), wanted) for one in chosen)


def _colour_or(option: str) -> str:
    return next((one for one in _COLOURS if one in option), option)


_NOUN = re.compile(r"[^\W\d_]{2,}")
_NO_NOUNS_SAID = (
    "apply certified cooked damaged dimmable easy extra free friendly green heavy high hooded "
    "individually light long low no organic picked rechargeable reflective removable resealable "
    "safe seamless sensitive short slim soft taped warm washable wireless wrapped"
)
_NO_NOUNS = _NO_NOUNS_SAID.split()


def nouns_of(text: str) -> list[str]:
    """List a name's words that are no adjectives, lower-cased, in order, with repetitions."""
    return [word for word in _NOUN.findall(text.lower()) if word not in _NO_NOUNS]


def alike(one: str, other: str) -> bool:
    """Return whether all words of one text are among the other's."""
    a, b = (set(_WORD.findall(text.lower())) for text in (one, other))
    return a <= b or b <= a
