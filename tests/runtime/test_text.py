"""Stop strings and pieces of text that never have to be taken back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajspec.runtime.text import TextStream, cut_at_stop


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("abSTOPcd", ["STOP"], ("ab", True)),
        ("abSTOPcd", ["d", "TO"], ("abS", True)),
        ("abSTOPcd", ["OPS"], ("abSTOPcd", False)),
        ("", ["a"], ("", False)),
        ("abc", [], ("abc", False)),
        ("STOP", ["STOP"], ("", True)),
    ],
)
def test_the_earliest_stop_string_cuts(text, stops, expected):
    assert cut_at_stop(text, stops) == expected


def pieces(texts: list[str], stops: list[str]) -> list[str]:
    """What a stream shows while its text grows to each of `texts`, the last one final."""
    stream = TextStream(stops)
    return [stream.feed(text, final=number == len(texts) - 1) for number, text in enumerate(texts)]


def test_what_could_become_a_stop_string_waits():
    assert pieces(["ab", "abST", "abSTOPcd"], ["STOP"]) == ["ab", "", ""]
    assert pieces(["ab", "abST", "abSTay"], ["STOP"]) == ["ab", "", "STay"]
    assert pieces(["ab", "abST"], ["STOP"]) == ["ab", "ST"]
    assert pieces(["aSa", "aSaS", "aSaSa"], ["SaSb", "aSc"]) == ["a", "", "SaSa"]


def test_bytes_without_a_character_yet_wait():
    assert pieces(["a\ufffd", "a\ufffd\ufffd", "aé", "aéb"], []) == ["a", "", "é", "b"]
    assert pieces(["a\ufffd"], []) == ["a\ufffd"]


def test_nothing_comes_after_the_stop():
    stream = TextStream(["X"])
    assert stream.feed("aX") == "a"
    assert stream.ended
    assert stream.feed("aXbcd", final=True) == ""


def test_an_empty_stop_string_stops_nothing():
    assert pieces(["ab", "abc"], [""]) == ["ab", "c"]


@settings(max_examples=150, deadline=None)
@given(
    text=st.text("ab", max_size=14),
    cuts=st.lists(st.integers(0, 14), max_size=6),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
)
def test_pieces_join_to_the_cut_text(text, cuts, stops):
    shown = pieces([*(text[:cut] for cut in sorted(cuts)), text], stops)
    assert "".join(shown) == cut_at_stop(text, stops)[0]
