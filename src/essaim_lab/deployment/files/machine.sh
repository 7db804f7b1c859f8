#!/bin/sh
# A machine of a lab: an SSH server, and the agent once the machine has joined.
set -eu
mkdir -p /run/sshd
ssh-keygen -A >/dev/null
(
    while :; do
        if [ -e /var/lib/essaim/node.json ]; then
            runuser -u essaim -- python3 -I /usr/local/lib/essaim/agent.py run || true
        fi
        sleep 0.5
    done
) &
exec /usr/sbin/sshd -D -e
