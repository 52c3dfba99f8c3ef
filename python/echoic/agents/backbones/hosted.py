"""What backbones at vendors have in common: a client, a price, and how an answer is counted."""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from echoic.agents.backbones import prices
from echoic.agents.backbones.base import Backbone, Completion
from echoic.agents.backbones.http import JsonClient, guess_tokens
from echoic.agents.episodes import Usage
from echoic.errors import BackboneError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from echoic.agents.backbones.base import Message, Sampling
    from echoic.agents.backbones.http import HttpConfig
    from echoic.agents.backbones.prices import Price

__all__ = ["Counted", "HostedBackbone", "Settings"]


class Settings(TypedDict, total=False):
    """Arguments that every wire format hands on to :class:`HostedBackbone`, described there."""

    name: str | None
    price: Price | str | None
    http: HttpConfig | None


@dataclass(frozen=True)
class Counted:
    """Tokens as a vendor told them; ``tokens_in`` includes those cached and written.

    ``tokens_cached`` is None where the vendor says nothing of a cache.
    """

    tokens_in: int
    tokens_cached: int | None
    tokens_out: int
    tokens_written: int = 0

    def check(self, url: str) -> None:
        """Refuse parts that are more than the whole."""
        cached = self.tokens_cached or 0
        if cached + self.tokens_written > self.tokens_in:
            raise BackboneError(
                f"{url} told {cached} tokens from its cache and {self.tokens_written} "
                f"put into it, of {self.tokens_in} in all"
            )


class HostedBackbone(Backbone):
    """A model behind a vendor's API. A wire format is what a subclass knows.

    Args:
        model: Its name at the vendor's.
        url: Where the API is.
        headers: Of every request.
        key: What is kept out of errors.
        name: For reports; by default the model's.
        price: By default that of ``echoic.agents.backbones.prices``; None says that it is not
            known, and costs are ``nan``.
        http: Bounds.
    """

    def __init__(
        self,
        model: str,
        *,
        url: str,
        headers: Mapping[str, str],
        key: str | None,
        name: str | None = None,
        price: Price | str | None = "listed",
        http: HttpConfig | None = None,
    ) -> None:
        self.model = model
        self.name = name or model
        self.price = prices.price_of(model) if isinstance(price, str) else price
        self.client = JsonClient(url, headers, http, secret=key)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, url={self.client.url!r})"

    async def answer(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """Answer a chat."""
        path, body = self._request(messages, sampling)
        characters = sum(len(message.text) for message in messages)
        return await self._ask(path, body, guess_tokens(characters, sampling.max_tokens))

    async def aclose(self) -> None:
        """Close the connections."""
        await self.client.aclose()

    # What a wire format is made of.

    @abstractmethod
    def _request(
        self, messages: Sequence[Message], sampling: Sampling
    ) -> tuple[str, dict[str, Any]]:
        """The path and the body of a chat."""

    @abstractmethod
    def _counted(self, answer: Mapping[str, Any]) -> Counted:
        """What the vendor counted."""

    @abstractmethod
    def _read(self, answer: Mapping[str, Any], usage: Usage) -> Completion:
        """What was said."""

    async def _ask(self, path: str, body: Mapping[str, Any], reserve: int) -> Completion:
        answer = await self.client.post(path, body, reserve=reserve, used=self._total)
        usage: Usage | None = None
        try:
            counted = self._counted(answer)
            counted.check(self.client.url)
            usage = Usage(
                counted.tokens_in,
                counted.tokens_cached,
                counted.tokens_out,
                prices.cost(
                    self.price,
                    tokens_in=counted.tokens_in,
                    # Untold, all are paid as new ones: a bill can only be lower.
                    tokens_cached=counted.tokens_cached or 0,
                    tokens_out=counted.tokens_out,
                    tokens_written=counted.tokens_written,
                ),
                requests=1,
            )
            completion = self._read(answer, usage)
        except BackboneError as error:
            raise _failed(self.client.hide(str(error)), usage) from None
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            # The cause may show the key too.
            shown = self.client.hide(json.dumps(answer))[:300]
            why = self.client.hide(f"{type(error).__name__}: {error}")[:300]
            raise _failed(
                f"an answer of {self.client.url} can't be read ({why}): {shown}", usage
            ) from None
        if not completion.text and completion.finish == "length":
            raise _failed(
                f"{self.name} said nothing: all {usage.tokens_out} tokens went into thinking, or "
                "none were left for an answer; raise max_tokens",
                usage,
            )
        return completion

    def _total(self, answer: Any) -> int:
        """For the allowance of tokens; an answer that can't be read is told about later."""
        try:
            counted = self._counted(answer)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError, BackboneError):
            return 0
        return counted.tokens_in + counted.tokens_out


def _failed(why: str, usage: Usage | None) -> BackboneError:
    """An error that says what was used all the same."""
    error = BackboneError(why)
    error.usage = usage
    return error
