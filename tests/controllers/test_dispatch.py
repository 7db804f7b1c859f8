from __future__ import annotations

from types import SimpleNamespace

from essaim.controllers.dispatch import EVERY, Dispatch
from essaim.controllers.table import controllers
from essaim.couriers.celery import CeleryCourier


def test_due_runs_are_sent_with_each_look():
    sent = []
    courier = SimpleNamespace(dispatch=lambda: sent.append(1))
    assert Dispatch(courier).reconcile() == EVERY
    assert sent == [1]


def test_it_is_there_only_when_there_are_messages(sqlite, tmp_path):
    from controllers.plane import Services

    services = Services(sqlite, tmp_path)
    assert "dispatch" not in {each.name for each in controllers(services)}
    services.courier = CeleryCourier(services.journal, "redis://127.0.0.1:1/0")
    assert "dispatch" in {each.name for each in controllers(services)}
    assert services.courier.stop()
