"""`python -m essaim_lab.simulators.proxmox.condense SCHEMA.json >schema.json`.

Takes the schema that Proxmox VE publishes of its API and keeps, of the endpoints simulated here,
what a caller can get wrong: names and types of parameters, and who may call.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

#: METHODS /path, relative to what the line above it is about.
ENDPOINTS = """
GET /version
GET /access/domains
POST /access/ticket
PUT /access/password
GET /access/permissions
GET PUT /access/acl
GET POST /access/roles
GET POST /access/groups
GET POST /access/users
GET PUT DELETE /access/users/{userid}
GET /access/users/{userid}/token
GET POST PUT DELETE /access/users/{userid}/token/{tokenid}
GET /cluster/nextid
GET /cluster/resources
GET /cluster/status
GET /cluster/tasks
GET POST PUT DELETE /pools
GET PUT DELETE /pools/{poolid}
GET /storage
GET /nodes
GET /nodes/{node}/status
GET /nodes/{node}/version
GET /nodes/{node}/time
GET /nodes/{node}/network
GET /nodes/{node}/storage
GET /nodes/{node}/storage/{storage}/status
GET /nodes/{node}/storage/{storage}/content
GET /nodes/{node}/tasks
DELETE /nodes/{node}/tasks/{upid}
GET /nodes/{node}/tasks/{upid}/status
GET /nodes/{node}/tasks/{upid}/log
GET POST /nodes/{node}/GUEST
DELETE /nodes/{node}/GUEST/{vmid}
POST /nodes/{node}/GUEST/{vmid}/clone
GET PUT POST /nodes/{node}/GUEST/{vmid}/config
PUT /nodes/{node}/GUEST/{vmid}/resize
POST /nodes/{node}/GUEST/{vmid}/template
POST /nodes/{node}/GUEST/{vmid}/vncproxy
GET /nodes/{node}/GUEST/{vmid}/interfaces
GET /nodes/{node}/GUEST/{vmid}/agent/network-get-interfaces
POST /nodes/{node}/GUEST/{vmid}/agent/ping
POST /nodes/{node}/GUEST/{vmid}/agent/exec
GET /nodes/{node}/GUEST/{vmid}/agent/exec-status
GET /nodes/{node}/GUEST/{vmid}/agent/file-read
POST /nodes/{node}/GUEST/{vmid}/agent/file-write
GET /nodes/{node}/GUEST/{vmid}/status/current
POST /nodes/{node}/GUEST/{vmid}/status/start
POST /nodes/{node}/GUEST/{vmid}/status/stop
POST /nodes/{node}/GUEST/{vmid}/status/shutdown
POST /nodes/{node}/GUEST/{vmid}/status/reboot
GET POST /nodes/{node}/GUEST/{vmid}/snapshot
DELETE /nodes/{node}/GUEST/{vmid}/snapshot/{snapname}
POST /nodes/{node}/GUEST/{vmid}/snapshot/{snapname}/rollback
GET /nodes/{node}/GUEST/{vmid}/snapshot/{snapname}/config
"""
KEPT = ("type", "optional", "enum", "minimum", "maximum", "minLength", "maxLength", "pattern",
        "requires", "default_key", "alias", "keyAlias")  # fmt: skip


def wanted() -> list[str]:
    """Name every endpoint, as METHOD /path."""
    found = []
    for line in ENDPOINTS.strip().splitlines():
        *methods, path = line.split()
        kinds = ("qemu", "lxc") if "GUEST" in path else ("",)
        found += [f"{method} {path.replace('GUEST', kind)}" for kind in kinds for method in methods]
    return found


def pattern(text: str) -> str | None:
    """Write a Perl pattern as Python does; None when it cannot be."""
    text = re.sub(r"\(\?\^([a-z]*):", lambda m: f"(?{m[1]}:" if m[1] else "(?:", text)
    text = text.replace("[:alnum:]", "a-zA-Z0-9").replace("\\.\\-\\_", "._-")
    try:
        re.compile(text)
    except re.error:
        return None
    return text


def parameter(spec: dict[str, Any]) -> dict[str, Any]:
    """Keep what a value can violate."""
    kept = {key: spec[key] for key in KEPT if key in spec}
    for key in ("minimum", "maximum"):
        if key in kept:
            kept[key] = float(kept[key]) if "." in str(kept[key]) else int(kept[key])
    if "pattern" in kept:
        kept["pattern"] = pattern(kept["pattern"])
    form = spec.get("format")
    if isinstance(form, dict):
        kept["parts"] = {name: parameter(part) for name, part in form.items()}
    elif form:
        kept["format"] = form
    return {key: value for key, value in kept.items() if value is not None}


def condense(schema: dict[str, Any]) -> dict[str, Any]:
    """Give the endpoints, with parameters that several have alike written once."""
    specs: list[dict[str, Any]] = []
    numbers: dict[str, int] = {}
    endpoints: dict[str, Any] = {}

    def number(spec: dict[str, Any]) -> int:
        text = json.dumps(spec, sort_keys=True)
        if text not in numbers:
            numbers[text] = len(specs)
            specs.append(spec)
        return numbers[text]

    for name in wanted():
        if name not in schema:
            continue  # one kind of guest has it and the other has not
        found = schema[name]
        allowed = found.get("permissions", {})
        endpoints[name] = {
            "check": allowed.get("check") or allowed.get("user"),
            "token": found.get("allowtoken", 1),
            "parameters": {
                key: number(parameter(spec))
                for key, spec in found["parameters"].get("properties", {}).items()
            },
        }
    return {"endpoints": endpoints, "parameters": specs}


def main(words: list[str]) -> int:
    """Write the condensed schema to standard output, one thing a line."""
    small = condense(json.loads(Path(words[0]).read_text(encoding="utf-8")))

    def lines(items: list[str]) -> str:
        return ",\n".join(f"  {item}" for item in items)

    ends = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in small["endpoints"].items()]
    specs = [json.dumps(spec) for spec in small["parameters"]]
    sys.stdout.write(
        f'{{"endpoints": {{\n{lines(ends)}\n}},\n"parameters": [\n{lines(specs)}\n]}}\n'
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
