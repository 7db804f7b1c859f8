"""The SQL store: journal, stacks and logs, alike on SQLite, MariaDB and PostgreSQL."""
