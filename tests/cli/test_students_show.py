"""What is said while a roster is worked on, and the table at its end."""

from __future__ import annotations

import csv
import io

from essaim.cli import students_show as show
from essaim.usecases.students import Progress, Row


def row(**changes) -> Row:
    values = {
        "login": "zoe", "name": "Zoé", "group": "", "machine": "promo/zoe", "address": "10.60.0.10",
        "state": "ready", "power": "on", "since": 1_700_000_000_000, "until": 0, "doing": "",
        "failed": "", "todo": "",
    }  # fmt: skip
    return Row(**{**values, **changes})


def test_what_is_waited_for_is_counted_whichever_machine_waits():
    waits = [
        ("promo/zoe: template gui is on pve1, which does not answer", 1),
        ("starts 50001 soon", 1),
        ("promo/bob: template gui is on pve1, which does not answer", 1),
        ("starts 50002 soon", 2),
    ]
    said = show.sentence("promo", Progress(10, 4, 1, waits), 0.5)
    assert said == (
        "promo: 5 of 10, 1 failed, 30 a minute, about 10 s left · starts soon (3); "
        "template gui is on pve1, which does not answer (2)"
    )
    assert show.sentence("promo", Progress(10, 4, 0, []), 0.0) == "promo: 4 of 10"
    away = "https://127.0.0.1:8006 cannot be reached"
    waits = [
        (f"create: try 3 of 14 failed: pve: promo/zoe: removing 50001: {away}", 1),
        (f"create: try 4 of 14 failed: pve: promo/bob: {away}", 2),
    ]
    said = show.sentence("promo", Progress(10, 0, 0, waits), 0.0)
    assert said == f"promo: 0 of 10 · tries again: pve: {away} (3)"


def test_the_rate_is_that_of_the_last_half_minute():
    pace = show.Pace()
    assert pace.rate(0, 100.0) == 0
    assert pace.rate(100, 110.0) == 10
    for second in range(111, 171):
        now = pace.rate(100 + second - 110, float(second))
    assert now == 1


def test_a_spreadsheet_gets_times_it_reads_and_no_formulas(capsys):
    show.print_csv([row(), row(login="bob", name="=1+1", since=0)])
    zoe, bob = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert zoe["since"].startswith("2023-11-1")
    assert (zoe["failed"], zoe["todo"], zoe["until"]) == ("", "", "")
    assert (bob["name"], bob["since"]) == ("'=1+1", "")


def test_what_to_do_stands_below_a_long_table(capsys):
    again = "essaim students retry promo zoe"
    show.print_table([row(state="failed", failed="no room", todo=again), row(login="bob")])
    said = capsys.readouterr().err.splitlines()
    assert said == ["1 failed, 1 ready", "  → essaim students retry promo tries 1 again"]
    show.print_table([])
    empty = capsys.readouterr()
    assert (empty.out, empty.err) == ("", "nobody has a machine\n")
