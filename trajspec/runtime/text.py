"""Streaming text: what can be shown while positions are still open, stop strings, whole characters only."""

from __future__ import annotations

from collections.abc import Iterable


def cut_at_stop(text: str, stops: Iterable[str]) -> tuple[str, bool]:
    """`text` up to the stop string that is complete first, and whether there is one; of two that end together, up to
    the one that begins first. So text that grows is cut where it was cut while it grew."""
    found = [(place + len(stop), place) for stop in stops if (place := text.find(stop)) >= 0]
    return (text[: min(found)[1]], True) if found else (text, False)


class TextStream:
    """Turns growing text into pieces that never have to be taken back.

    A tail that could become a stop string, and bytes that are not yet a whole character, wait for what follows.
    """

    def __init__(self, stops: Iterable[str] = ()) -> None:
        self.stops = tuple(stop for stop in stops if stop)
        self.shown = ""
        self.ended = False

    def feed(self, text: str, final: bool = False) -> str:
        """The new piece for the whole `text` so far ('' when there is none yet); `final`: nothing follows."""
        if self.ended:
            return ""
        text, self.ended = cut_at_stop(text, self.stops)
        end = len(text)
        if not (final or self.ended):
            end -= self._held(text)
        if end <= len(self.shown):
            return ""
        piece = text[len(self.shown) : end]
        self.shown = text[:end]
        return piece

    def _held(self, text: str) -> int:
        whole = text.rstrip("\ufffd")
        broken = len(text) - len(whole)
        longest = 0
        for stop in self.stops:
            for size in range(min(len(stop) - 1, len(whole)), longest, -1):
                if whole.endswith(stop[:size]):  # the bytes behind it may become the rest of the stop string
                    longest = size
                    break
        return broken + longest
