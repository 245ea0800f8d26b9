"""The part of structured fields (RFC 9651) that rate limit fields use.

An error anywhere makes the whole field malformed, so each parser returns everything or
nothing. Inner lists are not used by these fields and are an error. Values of types that are
not needed (tokens, byte sequences, dates...) are parsed, so that a field with them is valid,
and returned as `None`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

Bare = str | int | None
T = TypeVar("T")

_KEY = re.compile(r"[a-z*][a-z0-9_\-.*]*")
_BLANKS = re.compile(r"[ \t]*")
_BARE = re.compile(
    r'"(?P<string>(?:[ !#-\[\]-~]|\\["\\])*)"'
    r"|(?:-?[0-9]{1,12}\.[0-9]{1,3})"
    r"|(?P<integer>-?[0-9]{1,15})"
    r"|[A-Za-z*][A-Za-z0-9!#$%&'*+\-.^_`|~:/]*"
    r"|:[A-Za-z0-9+/=]*:"
    r"|\?[01]"
    r"|@-?[0-9]{1,15}"
    r'|%"(?:[ !#$&-~]|%[0-9a-f]{2})*"'
)
_ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True)
class Item:
    """A member of a list or dictionary. A String is a `str`, an Integer an `int`, all else `None`."""

    value: Bare
    parameters: Mapping[str, Bare] = field(default_factory=dict)


def parse_list(text: str) -> list[Item]:
    """Returns the members of a List; empty if it is malformed."""
    try:
        return _Reader(text).members(_Reader.item)
    except _Malformed:
        return []


def parse_dictionary(text: str) -> dict[str, Item]:
    """Returns the members of a Dictionary; empty if it is malformed. The last of repeated names counts."""
    try:
        return dict(_Reader(text).members(_Reader.pair))
    except _Malformed:
        return {}


class _Malformed(Exception):
    pass


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text.strip(" \t")
        self.at = 0

    def members(self, member: Callable[[_Reader], T]) -> list[T]:
        found: list[T] = []
        while self.at < len(self.text):
            found.append(member(self))
            self.blanks()
            if self.at == len(self.text):
                return found
            if not self.take(","):
                raise _Malformed
            self.blanks()
            if self.at == len(self.text):
                raise _Malformed
        return found

    def pair(self) -> tuple[str, Item]:
        key = self.key()
        if self.take("="):
            return key, self.item()
        return key, Item(None, self.parameters())

    def item(self) -> Item:
        return Item(self.bare(), self.parameters())

    def parameters(self) -> dict[str, Bare]:
        found: dict[str, Bare] = {}
        while self.take(";"):
            while self.take(" "):
                pass
            key = self.key()
            found[key] = self.bare() if self.take("=") else None
        return found

    def bare(self) -> Bare:
        match = self.match(_BARE)
        if (string := match["string"]) is not None:
            return _ESCAPED.sub(r"\1", string)
        if (integer := match["integer"]) is not None:
            return int(integer)
        return None

    def key(self) -> str:
        return self.match(_KEY)[0]

    def blanks(self) -> None:
        self.match(_BLANKS)

    def match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise _Malformed
        self.at = match.end()
        return match

    def take(self, char: str) -> bool:
        taken = self.text.startswith(char, self.at)
        self.at += taken
        return taken
