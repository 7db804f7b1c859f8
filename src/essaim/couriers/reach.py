"""Whether a broker answers."""

from __future__ import annotations

from essaim.couriers.celery import celery_app
from essaim.model.errors import TransientError


def reach(broker_url: str, within: float = 5.0) -> str:
    """Give a broker's address without its password; TransientError when it does not answer."""
    app = celery_app(broker_url)
    connection = app.connection_for_write(connect_timeout=within)
    where = str(connection.as_uri())
    try:
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=within)
    except Exception as error:
        raise TransientError(
            f"broker {where} does not answer: {error}",
            hint="see that it runs, and that ESSAIM_BROKER names it; until it is back, runs wait",
        ) from error
    finally:
        connection.release()
        app.close()
    return where
