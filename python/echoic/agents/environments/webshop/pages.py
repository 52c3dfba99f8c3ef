"""Pages of the shop: what each shows, and what can be clicked there.

Texts are upstream's, joined by its ``[SEP]``. One segment is ours: an item's page says which
options were chosen, because upstream shows that by colour alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from echoic.agents.environments.webshop.catalogue import Product

__all__ = ["BACK", "BUY", "NEXT", "PREVIOUS", "SUBPAGES", "Visit"]

BACK, NEXT, PREVIOUS, BUY = "Back to Search", "Next >", "< Prev", "Buy Now"
SUBPAGES = ("Description", "Features")
PER_PAGE = 10
_BETWEEN = " [SEP] "


@dataclass
class Visit:
    """Where somebody is in the shop.

    Attributes:
        page: ``"search"``, ``"results"``, ``"item"``, or one of :data:`SUBPAGES`.
        results: What the last search found.
        number: Which page of the results, from 1.
        item: The item that is looked at.
        chosen: Its options that were chosen.
        opened: Identifiers of all items that were looked at.
    """

    page: str = "search"
    results: Sequence[Product] = ()
    number: int = 1
    item: Product | None = None
    chosen: dict[str, str] = field(default_factory=dict)
    opened: set[str] = field(default_factory=set)

    @property
    def listed(self) -> Sequence[Product]:
        """Items of this page of the results."""
        return self.results[(self.number - 1) * PER_PAGE : self.number * PER_PAGE]

    def buttons(self) -> list[str]:
        """What can be clicked, but for items and options."""
        if self.page == "search":
            return []
        if self.page == "results":
            more = self.number * PER_PAGE < len(self.results)
            return [BACK, *[NEXT] * more, *[PREVIOUS] * (self.number > 1)]
        if self.page == "item":
            return [BUY, BACK, PREVIOUS, *SUBPAGES]
        return [BACK, PREVIOUS]

    def values(self) -> Mapping[str, str]:
        """Values of options that can be clicked, and whose they are; of equal ones the first."""
        if self.page != "item" or self.item is None:
            return {}
        found: dict[str, str] = {}
        for name, values in self.item.options.items():
            for value in values:
                found.setdefault(value, name)
        return found

    def text(self, instruction: str) -> str:
        """What is shown."""
        parts = ["Instruction:", instruction]
        item = self.item
        if self.page == "search":
            parts = ["WebShop", *parts, "Search"]
        elif self.page == "results":
            parts += [BACK, f"Page {self.number} (Total results: {len(self.results)})"]
            parts += self.buttons()[1:]
            for one in self.listed:
                parts += [one.asin, one.name, one.price_tag]
        elif item is not None and self.page == "item":
            parts += [BACK, PREVIOUS]
            for name, values in item.options.items():
                parts += [name, *values]
            if self.chosen:
                said = ", ".join(f"{name}: {value}" for name, value in self.chosen.items())
                parts.append(f"Chosen: {said}")
            parts += [item.name, f"Price: {item.price_tag}", *SUBPAGES, BUY]
        elif item is not None:
            shown = [item.description] if self.page == "Description" else list(item.bullets)
            parts += [BACK, PREVIOUS, *shown]
        return _BETWEEN.join(parts)
