from __future__ import annotations

import pytest

from couriers.crew import Crew


@pytest.fixture
def make_crew(tmp_path):
    """Make a crew; all its processes end with the test."""
    made = []

    def make(database_url: str, broker_url: str) -> Crew:
        place = tmp_path / f"crew-{len(made)}"
        place.mkdir()
        made.append(Crew(database_url, broker_url, place))
        return made[-1]

    yield make
    for crew in made:
        crew.close()


@pytest.fixture
def crew(make_crew, new_database, broker) -> Crew:
    """A crew on SQLite, with each broker in turn."""
    return make_crew(new_database("sqlite"), broker.url)
