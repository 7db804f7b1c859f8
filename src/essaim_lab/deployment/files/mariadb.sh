#!/bin/sh
# Starts MariaDB as its public image does, as far as deploy/compose.yaml asks.
set -eu
data=/var/lib/mysql
install -d -o mysql -g mysql /run/mysqld "$data"
if [ ! -d "$data/mysql" ]; then
    mariadb-install-db --user=mysql --datadir="$data" --skip-test-db \
        --auth-root-authentication-method=socket >/dev/null
fi
first=/run/mysqld/first.sql
(umask 077; cat >"$first" <<SQL
CREATE DATABASE IF NOT EXISTS \`$MARIADB_DATABASE\` CHARACTER SET utf8mb4;
CREATE OR REPLACE USER '$MARIADB_USER'@'%' IDENTIFIED BY '$MARIADB_PASSWORD';
GRANT ALL ON \`$MARIADB_DATABASE\`.* TO '$MARIADB_USER'@'%';
SQL
)
chown mysql: "$first"
exec "$@" --user=mysql --datadir="$data" --bind-address=0.0.0.0 --init-file="$first"
