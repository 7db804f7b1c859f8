"""Lengths of time and of memory as people write them."""

from __future__ import annotations

import pytest
import typer

from essaim.cli.renting import mebibytes
from essaim.cli.times import clock, left, length, seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90m", 5400), ("2h", 7200), ("1d", 86400), ("1h30m", 5400), ("1.5h", 5400), ("45 s", 45),
     ("1j", 86400), ("2w", 1209600), ("10min", 600), ("1D", 86400)],
)  # fmt: skip
def test_lengths_of_time(text, expected):
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "2", "h", "-1h", "1h-", "2 hours", "1e9h", "0s", "nan", "∞"])
def test_what_is_no_length_of_time_is_refused(text):
    with pytest.raises(typer.BadParameter):
        seconds(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("512", 512), ("512M", 512), ("16G", 16384), ("16GiB", 16384), ("1.5gb", 1536),
     ("1T", 1048576)],
)  # fmt: skip
def test_sizes(text, expected):
    assert mebibytes(text) == expected


@pytest.mark.parametrize("text", ["", "G", "lots", "inf", "16X", "nanG"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(typer.BadParameter):
        mebibytes(text)


def test_times_that_are_not_there_yet_are_a_dash():
    assert clock(None) == "-"
    assert left(None) == "-"
    assert left("2000-01-01T00:00:00Z") == "0.0 s"


def test_long_times_are_read_in_two_units():
    assert length(5400) == "1 h 30 min"
    assert length(90000) == "1 d 1 h"
