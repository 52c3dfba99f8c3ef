"""WebShop as an environment.

Decisions:

- Commands are upstream's: ``search[words]`` on the first page, ``click[what]`` elsewhere. What
  can't be clicked here changes nothing.
- Only buying pays, once, and ends the episode: R of
  :mod:`~echoic.agents.environments.webshop.reward`. Looking around pays nothing.
- The score is R, and success is R = 1, as in the papers.
- WebShop has no cart. ``max_cart_items`` bounds how many items somebody may look at, which is what
  a cart is for there: to compare.
- Searches that upstream has for debugging (by query, by attribute) are words like all others here:
  they would tell what the goal is.
"""

from __future__ import annotations

import functools
import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.agents.environments.base import EchoRLEnvironment, EnvironmentConfig, Outcome
from echoic.agents.environments.webshop.catalogue import Product, products_of, read_rows
from echoic.agents.environments.webshop.generator import rows_of
from echoic.agents.environments.webshop.goals import Goal, goals_of
from echoic.agents.environments.webshop.nouns import TAGGERS, tagger
from echoic.agents.environments.webshop.pages import BACK, BUY, NEXT, PREVIOUS, SUBPAGES, Visit
from echoic.agents.environments.webshop.reward import is_met, reward_of
from echoic.agents.environments.webshop.search import BM25
from echoic.agents.environments.webshop.vocabulary import ALIASES, KINDS
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["WebShopConfig", "WebShopEnvironment"]

_COMMAND = re.compile(r"(search|click)\[(.+)\]", re.IGNORECASE | re.DOTALL)


@dataclass
class WebShopConfig(EnvironmentConfig):
    """Settings of WebShop.

    Attributes:
        success_threshold: 1.0 here, other than elsewhere: success is having bought exactly what was
            asked for.
        website_type: What the shop sells: ``"electronics"``, ``"fashion"`` (or ``"clothing"``),
            ``"garden"`` (or ``"home"``), ``"beauty"``, ``"grocery"`` or ``"all"``.
        max_search_results: What a search finds at most, ten to a page. Upstream has 50.
        max_cart_items: How many different items may be looked at in an episode.
        budget_limit: Goals whose item costs more are left out, and what costs more can't be bought.
        num_products: Items of the generated shop.
        path: A folder with WebShop's three files, instead of a generated shop.
        human_goals: Goals from instructions of people, rather than of templates.
        goal_range: First and last (not included) goal, so that training and evaluation can have
            different ones. The order is upstream's: of its goals (0, 500) is for tests.
        catalogue_seed: Of the generated shop, of prices and of goals; not of episodes.
        noun_tagger: ``"spacy"``, ``"plain"``, or ``"auto"``: spaCy where it is installed.
    """

    success_threshold: float = 1.0
    action_space_size: int = 25
    website_type: str = "electronics"
    max_search_results: int = 20
    max_cart_items: int = 10
    budget_limit: float = 1000.0
    num_products: int = 1000
    path: str | None = None
    human_goals: bool = True
    goal_range: tuple[int, int] | None = None
    catalogue_seed: int = 0
    noun_tagger: str = "plain"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.website_type = ALIASES.get(self.website_type, self.website_type)
        if self.website_type not in (*KINDS, "all"):
            known = ", ".join([*KINDS, *ALIASES, "all"])
            raise ArgumentError(f"website_type must be one of {known}, not {self.website_type!r}")
        for name in ("max_search_results", "max_cart_items", "num_products"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.budget_limit > 0:
            raise ArgumentError(f"budget_limit must be above 0, not {self.budget_limit}")
        goals = self.goal_range
        if goals is not None and not (len(goals) == 2 and 0 <= goals[0] < goals[1]):
            raise ArgumentError(f"goal_range must be first and last, not {goals}")
        if self.noun_tagger not in TAGGERS:
            raise ArgumentError(
                f"noun_tagger must be one of {', '.join(TAGGERS)}, not {self.noun_tagger!r}"
            )


@dataclass(frozen=True)
class _Shop:
    """What does not change between episodes, and what environments of one process share."""

    products: tuple[Product, ...]
    by_id: dict[str, Product]
    goals: tuple[Goal, ...]
    index: BM25
    queries: tuple[str, ...]


@functools.lru_cache(maxsize=4)
def _open(path: str | None, website_type: str, count: int, human: bool, seed: int) -> _Shop:
    rng = random.Random(seed)
    rows = rows_of(website_type, count, seed) if path is None else read_rows(path)
    products = [one for one in products_of(rows, rng) if website_type in (one.category, "all")]
    if not products:
        raise ArgumentError(f"the shop has nothing of type {website_type!r}")
    return _Shop(
        tuple(products),
        {one.asin.lower(): one for one in products},
        tuple(goals_of(products, rng, human=human)),
        BM25([one.text for one in products]),
        tuple(dict.fromkeys(one.query for one in products)),
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
            config.path,
            config.website_type,
            config.num_products,
            config.human_goals,
            config.catalogue_seed,
        )
        in_range = self._shop.goals[slice(*(config.goal_range or (None,)))]
        prices = {one.asin: one.price for one in self._shop.products}
        self.goals = tuple(one for one in in_range if prices[one.asin] <= config.budget_limit)
        if not self.goals:
            raise ArgumentError("no goal is left: look at goal_range, budget_limit and the files")
        weights = np.cumsum([one.weight for one in self.goals])
        self._shares = weights / weights[-1]
        self._nouns = functools.lru_cache(maxsize=65536)(tagger(config.noun_tagger))
        self._goal = self.goals[0]
        self._visit = Visit()
        self._tried = 0

    def _start(self, options: dict[str, Any]) -> str:
        index = options.get("goal")
        drawn = int(np.searchsorted(self._shares, self.np_random.random(), side="right"))
        if index is None:
            index = min(drawn, len(self.goals) - 1)
        elif not isinstance(index, int) or not 0 <= index < len(self.goals):
            raise ArgumentError(f"goal must be from 0 to {len(self.goals) - 1}, not {index!r}")
        self._goal = self.goals[index]
        self._visit = Visit()
        self._tried = 0
        return self._look()

    def _look(self) -> str:
        return self._visit.text(self._goal.instruction)

    def _apply(self, command: str) -> Outcome | None:
        match = _COMMAND.fullmatch(command)
        if match is None:
            return None
        verb, what = match[1].lower(), match[2].strip()
        visit = self._visit
        if verb == "search":
            if visit.page != "search":
                return None
            found = self._shop.index.search(what, self.config.max_search_results)
            results = tuple(self._shop.products[i] for i in found)
            self._visit = Visit("results", results, opened=visit.opened)
            return Outcome(self._look())
        buttons = {one.lower(): one for one in visit.buttons()}
        if what.lower() in buttons:
            return self._press(buttons[what.lower()])
        return self._choose(what.lower())

    def _choose(self, what: str) -> Outcome | None:
        """Click on an item, or on a value of an option."""
        visit = self._visit
        values = visit.values()
        if what in values:
            visit.chosen[values[what]] = what
            return Outcome(self._look())
        if visit.page != "results" or what not in {one.asin.lower() for one in visit.listed}:
            return None
        if what not in visit.opened and len(visit.opened) >= self.config.max_cart_items:
            full = f"You have looked at {len(visit.opened)} items, which is as many as you may."
            return Outcome(f"{full} [SEP] {self._look()}")
        visit.opened.add(what)
        visit.page, visit.item, visit.chosen = "item", self._shop.by_id[what], {}
        return Outcome(self._look())

    def _press(self, button: str) -> Outcome:
        visit = self._visit
        if button == BUY:
            return self._buy()
        if button == BACK:
            self._visit = Visit(opened=visit.opened)
        elif button == NEXT:
            visit.number += 1
        elif button in SUBPAGES:
            visit.page = button
        elif visit.page == "results":
            visit.number -= 1
        else:
            visit.page = "results" if visit.page == "item" else "item"
        return Outcome(self._look())

    def _buy(self) -> Outcome:
        visit, item = self._visit, self._visit.item
        if item is None or item.price > self.config.budget_limit:
            return Outcome(f"That is more than your budget. [SEP] {self._look()}")
        reward = reward_of(item, self._goal, item.price, visit.chosen, self._nouns)
        return Outcome(
            f"Thank you for shopping with us! [SEP] Your score: {reward.total:.2f}",
            reward.total,
            True,
            reward.total,
            {"asin": item.asin, "parts": vars(reward), "chosen": dict(visit.chosen)},
        )

    def _commands(self) -> Sequence[str]:
        visit = self._visit
        if visit.page == "search":
            words = dict.fromkeys([self._goal.request, *self._shop.queries])
            return [f"search[{one}]" for one in words]
        clicks = [*visit.buttons(), *visit.values()]
        if visit.page == "results":
            clicks = [*(one.asin for one in visit.listed), *clicks]
        return [f"click[{one.lower()}]" for one in clicks]

    def _expert(self) -> str | None:
        """Search for the goal's item by its name, choose what is asked for, buy it."""
        visit, goal = self._visit, self._goal
        if visit.page == "search":
            searches = (goal.name, goal.request, goal.query)
            self._tried += 1
            return f"search[{searches[(self._tried - 1) % len(searches)]}]"
        if visit.page == "results":
            if any(one.asin == goal.asin for one in visit.listed):
                return f"click[{goal.asin.lower()}]"
            return f"click[{(NEXT if NEXT in visit.buttons() else BACK).lower()}]"
        if visit.page != "item" or visit.item is None or visit.item.asin != goal.asin:
            return f"click[{PREVIOUS.lower()}]"
        for option in goal.options:
            if not is_met(option, visit.chosen.values()):
                free = [v for v, name in visit.values().items() if name not in visit.chosen]
                fits = [one for one in free if is_met(option, [one])]
                wanted = option[1] if isinstance(option, tuple) else option
                if fits:
                    return f"click[{wanted if wanted in fits else fits[0]}]"
        return f"click[{BUY.lower()}]"
