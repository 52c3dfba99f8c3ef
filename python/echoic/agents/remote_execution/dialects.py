"""What servers that speak OpenAI's protocol offer beyond it, and what they call it.

Only what was read in a server's documentation or source is here. What a server does not offer is
None, and the engine says so instead of pretending.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DIALECTS", "Dialect", "dialect_of"]


@dataclasses.dataclass(frozen=True)
class Dialect:
    """One kind of server.

    Attributes:
        name: What the server is called.
        token_prompts: Whether a prompt may be token ids instead of text.
        token_ids: The request's field that asks for the ids of the tokens that were made.
        stop_ids: The request's field for token ids that end an answer.
        salted: Whether requests may carry a ``cache_salt``: prompts with different salts share
            nothing.
        reset: The path that empties the prefix cache, if there is one.
        queried: The counter of prompt tokens that were looked up in the prefix cache.
        reused: The counter of those that were found there.
        extra: What every request says.
    """

    name: str
    token_prompts: bool = False
    token_ids: str | None = None
    stop_ids: str | None = None
    salted: bool = False
    reset: str | None = None
    queried: str | None = None
    reused: str | None = None
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def forgets(self) -> bool:
        """Whether what was computed with old weights can be kept out of new answers."""
        return self.salted or self.reset is not None


DIALECTS = {
    dialect.name: dialect
    for dialect in (
        Dialect("openai"),
        Dialect(
            "vllm",
            token_prompts=True,
            token_ids="return_token_ids",
            stop_ids="stop_token_ids",
            salted=True,
            reset="/reset_prefix_cache",
            queried="vllm:prefix_cache_queries_total",
            reused="vllm:prefix_cache_hits_total",
            # What a model's own configuration would add to the distribution.
            extra={"top_k": -1, "repetition_penalty": 1.0},
        ),
        # `sglang:cache_hit_rate` is a gauge that falls to zero while tokens are made; counters do
        # not.
        Dialect(
            "sglang",
            token_prompts=True,
            stop_ids="stop_token_ids",
            reset="/flush_cache",
            queried="sglang:prompt_tokens_total",
            reused="sglang:cached_tokens_total",
        ),
        Dialect("llama.cpp", token_prompts=True, extra={"cache_prompt": True}),
        # The server of llama-cpp-python: text prompts, one request at a time, no numbers of its
        # cache.
        Dialect("llama-cpp-python"),
    )
}


def dialect_of(name: str | Dialect) -> Dialect:
    """The dialect of this name; a dialect is itself.

    >>> dialect_of("vllm").salted
    True
    """
    if isinstance(name, Dialect):
        return name
    if name not in DIALECTS:
        known = ", ".join(sorted(DIALECTS))
        raise ArgumentError(f"there is no dialect {name!r}; there are {known}")
    return DIALECTS[name]
