"""Real databases for tests: private servers on free ports, and a fresh database for each test.

Fixtures: `new_database(kind)` makes one with the newest schema and nothing in it, and returns its
URL; `url` is such a URL, of each kind in turn, and `empty_url` that of one without even a schema;
`database` is one that was opened.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from essaim.model.errors import SetupError
from essaim.store.database import Database, migrate, open_database
from essaim_lab import computer
from essaim_lab.computer import free_port

KINDS = ("sqlite", "mariadb", "postgresql")

#: Generous: the machine may be busy with everything else.
PATIENCE = 120.0


class Server:
    """One database server, and the databases made in it.

    To migrate takes a second: the first database that was is what the others are copied from.
    """

    def __init__(self, url: str) -> None:
        self.url = sa.make_url(url)
        self._numbers = itertools.count(1)

    def new(self, *, empty: bool = False) -> str:
        return self._make() if empty else self._copy()

    def _make(self, like: str = "") -> str:
        name = f"essaim_{os.getpid()}_{next(self._numbers)}"
        self._execute(self.url, f"CREATE DATABASE {name} {like}")
        return self.url.set(database=name).render_as_string(hide_password=False)

    @functools.cached_property
    def _model(self) -> sa.URL:
        url = self._make()
        _migrate(url)
        model = sa.make_url(url)
        if model.get_backend_name() == "postgresql":
            self._until_left(model)
        return model

    def _until_left(self, model: sa.URL) -> None:
        """Wait until nobody uses a database: PostgreSQL gives up a copy after 5 s of that."""
        users = sa.text(
            "SELECT COUNT(*) FROM pg_stat_activity"
            " WHERE datname = :name AND backend_type = 'client backend'"
        )
        engine = sa.create_engine(self.url, isolation_level="AUTOCOMMIT")
        deadline = time.monotonic() + PATIENCE
        with engine.connect() as connection:
            while connection.execute(users, {"name": model.database}).scalar():
                assert time.monotonic() < deadline, f"{model.database} is still in use"
                time.sleep(0.01)
        engine.dispose()

    def _copy(self) -> str:
        if self.url.get_backend_name() == "postgresql":
            return self._make(f"TEMPLATE {self._model.database}")
        url = self._make()
        self._execute(sa.make_url(url), *self._script)
        return url

    @functools.cached_property
    def _script(self) -> list[str]:
        """What makes the tables of the model, with their rows, in another database."""
        script = ["SET foreign_key_checks = 0"]
        source = self._model.database
        engine = sa.create_engine(self._model)
        with engine.connect() as connection:
            for table in connection.execute(sa.text("SHOW TABLES")).scalars().all():
                shown = connection.execute(sa.text(f"SHOW CREATE TABLE {table}")).one()
                script += [shown[1], f"INSERT INTO {table} SELECT * FROM {source}.{table}"]
        engine.dispose()
        return script

    @staticmethod
    def _execute(url: sa.URL, *statements: str) -> None:
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)
        engine.dispose()


def _migrate(url: str) -> None:
    database = open_database(url)
    migrate(database)
    database.close()


def find(program: str, package: str) -> str:
    """The program's path; installs its Debian package when that is missing and may be done."""
    try:
        return computer.find(program, package)
    except SetupError as error:
        pytest.skip(f"{error.what}: {error.hint}")


def as_user(name: str) -> dict[str, str]:
    """How a server that refuses to be root is started by root."""
    return {"user": name, "group": name, "extra_groups": []} if os.geteuid() == 0 else {}


@contextlib.contextmanager
def folder_of(user: str) -> Iterator[Path]:
    """A folder that the server's user can reach: those of pytest are closed to others."""
    with tempfile.TemporaryDirectory(prefix=f"essaim-{user}-") as name:
        if os.geteuid() == 0:
            shutil.chown(name, user, user)
        yield Path(name)


@contextlib.contextmanager
def serving(
    command: list[str], url: str, folder: Path, user: str, ends_by: int
) -> Iterator[Server]:
    """Run a server until the session ends, which it need not survive; ready when it answers."""
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            cwd=folder,
            start_new_session=True,
            **as_user(user),
        )
    try:
        deadline = time.monotonic() + PATIENCE
        while not answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{command[0]} did not start:\n{log.read_text()}")
            time.sleep(0.1)
        yield Server(url)
    finally:
        process.send_signal(ends_by)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def answers(url: str) -> bool:
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            connection.execute(sa.text("SELECT 1"))
    except sa.exc.OperationalError:
        return False
    finally:
        engine.dispose()
    return True


@contextlib.contextmanager
def mariadb() -> Iterator[Server]:
    server = find("mariadbd", "mariadb-server")
    install = find("mariadb-install-db", "mariadb-server")
    with folder_of("mysql") as folder, _mariadb(server, install, folder) as running:
        yield running


@contextlib.contextmanager
def _mariadb(server: str, install: str, folder: Path) -> Iterator[Server]:
    data = folder / "data"
    # A starting server removes every temporary table it finds, also those of its neighbours.
    temporary = f"--tmpdir={folder}"
    subprocess.run(
        [
            install,
            "--no-defaults",
            f"--datadir={data}",
            temporary,
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=folder,
        **as_user("mysql"),
    )
    port = free_port()  # only now: the longer ago, the likelier that somebody else has taken it
    command = [
        server,
        "--no-defaults",
        f"--datadir={data}",
        temporary,
        f"--socket={folder}/s",
        f"--pid-file={folder}/pid",
        f"--port={port}",
        "--bind-address=127.0.0.1",
        "--innodb-flush-log-at-trx-commit=0",  # nobody pulls the plug of a test
        "--innodb-flush-method=nosync",
        "--innodb-doublewrite=0",
        "--sync-frm=0",
        "--innodb-buffer-pool-size=32M",
        "--max-connections=300",
        "--skip-name-resolve",
    ]
    url = f"mariadb+pymysql://root@127.0.0.1:{port}/mysql"
    with serving(command, url, folder, "mysql", signal.SIGKILL) as running:
        yield running


@contextlib.contextmanager
def postgresql() -> Iterator[Server]:
    server = find("postgres", "postgresql")
    initdb = find("initdb", "postgresql")
    with folder_of("postgres") as folder, _postgresql(server, initdb, folder) as running:
        yield running


@contextlib.contextmanager
def _postgresql(server: str, initdb: str, folder: Path) -> Iterator[Server]:
    data = folder / "data"
    subprocess.run(
        [
            initdb,
            "-A",
            "trust",
            "-N",
            "-U",
            "postgres",
            "-E",
            "UTF8",
            "--locale=C.UTF-8",
            "-D",
            data,
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=folder,
        **as_user("postgres"),
    )
    options = {
        "fsync": "off",
        "synchronous_commit": "off",
        "full_page_writes": "off",
        "max_connections": "300",
        "shared_buffers": "32MB",
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
    }
    port = free_port()
    command = [server, "-D", str(data), "-p", str(port)]
    command += [part for key, value in options.items() for part in ("-c", f"{key}={value}")]
    url = f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
    with serving(command, url, folder, "postgres", signal.SIGQUIT) as running:
        yield running


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[str], Server]]:
    """The servers, each started when first asked for."""
    running: dict[str, Server] = {}
    makers = {"mariadb": mariadb, "postgresql": postgresql}
    with contextlib.ExitStack() as stack:

        def get(kind: str) -> Server:
            if kind not in running:
                running[kind] = stack.enter_context(makers[kind]())
            return running[kind]

        yield get


@pytest.fixture(scope="session")
def model_file(tmp_path_factory) -> Path:
    """A migrated SQLite database that others are copied from."""
    path = tmp_path_factory.mktemp("model") / "essaim.db"
    _migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def new_database(servers, tmp_path, model_file) -> Callable[..., str]:
    """Make a database of a kind, with the newest schema unless it is to be empty; its URL."""
    numbers = itertools.count(1)

    def make(kind: str, *, empty: bool = False) -> str:
        if kind != "sqlite":
            return servers(kind).new(empty=empty)
        path = tmp_path / f"database-{next(numbers)}" / "essaim.db"
        if not empty:
            path.parent.mkdir()
            shutil.copy(model_file, path)
        return f"sqlite:///{path}"

    return make


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return request.param


@pytest.fixture
def url(kind, new_database) -> str:
    """A database with the newest schema, of each kind in turn."""
    return new_database(kind)


@pytest.fixture
def empty_url(kind, new_database) -> str:
    """A database without any table, of each kind in turn."""
    return new_database(kind, empty=True)


@pytest.fixture
def database(url) -> Iterator[Database]:
    """An open database with the newest schema, of each kind in turn."""
    opened = open_database(url)
    yield opened
    opened.close()


@pytest.fixture
def sqlite(new_database) -> Iterator[Database]:
    """An open SQLite database with the newest schema."""
    opened = open_database(new_database("sqlite"))
    yield opened
    opened.close()
