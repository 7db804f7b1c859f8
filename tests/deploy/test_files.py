"""The files of deploy/ are what the programs that read them understand."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import redis
import yaml

from databases import find
from deploy.api import wait
from deploy.files import DEPLOY, REPO, SETTINGS
from testcache import CACHE

OURS = ("api", "controller", "worker", "gateway", "autoscale")
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
VALIDATOR = "kubernetes-validate==1.37.0"


def run(*words: str, **more) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def composed() -> dict:
    """What docker-compose makes of compose.yaml."""
    program = find("docker-compose", "docker-compose")
    environ = {**os.environ, **SETTINGS, "COMPOSE_PROFILES": "autoscale,lab"}
    file = str(DEPLOY / "compose.yaml")
    said = run(program, "--project-directory", str(REPO), "-f", file, "config", env=environ)
    return yaml.safe_load(said)


def test_compose_has_every_process_and_as_many_as_promised(composed):
    services = composed["services"]
    assert {"caddy", "database", "broker", "pc-1", "pc-2", "pc-3", *OURS} == set(services)
    for name in ("api", "controller", "worker"):
        assert services[name]["scale"] == 2


def test_the_autoscaler_scales_api_and_controllers_each_within_its_limits(composed):
    command = composed["services"]["autoscale"]["command"]
    assert {"--service=api", "--min=2", "--max=4", "--controllers=2-4"} <= set(command)


def test_the_autoscaler_and_the_machines_are_there_only_when_asked_for(composed):
    asked = {
        name: its["profiles"] for name, its in composed["services"].items() if "profiles" in its
    }
    machines = {name: ["lab"] for name in ("pc-1", "pc-2", "pc-3")}
    assert asked == {"autoscale": ["autoscale"], **machines}


@pytest.mark.parametrize("name", OURS)
def test_our_containers_may_do_nothing_but_their_work(composed, name):
    service = composed["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert "user" not in service  # the image says who, and it is not root


def test_only_the_front_door_and_the_gateway_are_published(composed):
    published = {name for name, its in composed["services"].items() if its.get("ports")}
    assert published == {"caddy", "gateway"}
    assert composed["networks"]["back"]["internal"] is True
    for name in ("database", "broker", "api"):
        assert set(composed["services"][name]["networks"]) == {"back"}


def test_the_docker_socket_is_given_to_the_autoscaler_alone(composed):
    given = {
        name
        for name, its in composed["services"].items()
        if any("docker.sock" in str(volume) for volume in its.get("volumes", ()))
    }
    assert given == {"autoscale"}


def test_each_container_sees_the_keys_it_needs_and_no_others(composed):
    seen = {
        name: {str(volume).split(":")[0] for volume in its.get("volumes", ())}
        for name, its in composed["services"].items()
        if name in OURS
    }
    assert seen == {
        "api": {"api"},
        "controller": {"state", "inner"},
        "worker": {"state", "inner"},
        "gateway": {"gateway", "inner"},
        "autoscale": {"/var/run/docker.sock"},
    }
    # What a process without a volume writes is gone with it.
    assert "/var/lib/essaim" in composed["services"]["autoscale"]["tmpfs"]


def test_no_password_is_an_argument(composed):
    for name, its in composed["services"].items():
        said = json.dumps([its.get("command"), its.get("entrypoint"), its.get("healthcheck")])
        assert SETTINGS["BROKER_PASSWORD"] not in said, name
        assert SETTINGS["DATABASE_PASSWORD"] not in said, name


def test_the_broker_asks_for_its_password_and_shows_it_to_nobody(composed, tmp_path):
    broker = composed["services"]["broker"]
    find("redis-server", "redis-server")
    at = tmp_path / "redis.sock"
    shell, flag, script = broker["command"]
    # In its own container it has a port and a folder /tmp of its own.
    script = script.replace("$$", "$").replace("/tmp", str(tmp_path))
    words = [shell, flag, f"{script.rstrip()} --port 0 --unixsocket {at}"]
    environ = {**os.environ, **broker["environment"]}
    process = subprocess.Popen(words, env=environ, stdout=subprocess.DEVNULL)
    try:
        wait(at.exists, "the broker listens")
        password = SETTINGS["BROKER_PASSWORD"]
        for file in ("cmdline", "environ"):
            assert password.encode() not in Path(f"/proc/{process.pid}/{file}").read_bytes()
        with (
            redis.Redis(unix_socket_path=str(at)) as stranger,
            pytest.raises(redis.AuthenticationError),
        ):
            stranger.ping()
        with redis.Redis(unix_socket_path=str(at), password=password) as known:
            assert known.ping()
            assert known.config_get("save") == {"save": ""}
        assert (tmp_path / "redis.conf").stat().st_mode & 0o077 == 0
    finally:
        process.terminate()
        process.wait()


def test_images_of_others_are_named_by_digest_or_not_at_all(composed):
    text = (DEPLOY / "compose.yaml").read_text()
    named = re.findall(r"(?m)^ *image: (\S+)$", text)
    assert sorted(named) == sorted([
        "${ESSAIM_IMAGE:-essaim:latest}", "${MACHINE_IMAGE:-essaim-machine:latest}",  # made here
        "${CADDY_IMAGE:?}", "${MARIADB_IMAGE:?}", "${REDIS_IMAGE:?}",
    ])  # fmt: skip
    assert "ARG BASE" in instructions()
    for path in (DEPLOY / "kubernetes").glob("*.yaml"):
        for image in re.findall(r"(?m)^ *image: (\S+)$", path.read_text()):
            assert re.fullmatch(r"\S+@sha256:[0-9a-f]{64}", image), path


def test_images_are_pinned_by_what_the_registry_says(tmp_path):
    """With a `docker` that plays the registry's answers."""
    digest = f"sha256:{'ab' * 32}"
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\n[ "$1" = pull ] || echo "example/any@{digest}"\n')
    docker.chmod(0o755)
    said = run(str(DEPLOY / "pin-images"), env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    pinned = dict(line.split("=", 1) for line in said.splitlines())
    assert set(pinned) == {"BASE", "CADDY_IMAGE", "MARIADB_IMAGE", "REDIS_IMAGE"}
    assert pinned["REDIS_IMAGE"] == f"redis:7@{digest}"


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_is_missing_is_asked_for(name):
    program = find("docker-compose", "docker-compose")
    environ = {**os.environ, **SETTINGS}
    del environ[name]
    file = str(DEPLOY / "compose.yaml")
    words = [program, "--project-directory", str(REPO), "-f", file, "config", "-q"]
    done = subprocess.run(words, capture_output=True, text=True, env=environ, check=False)
    assert done.returncode != 0
    assert name in done.stderr


def test_the_example_of_settings_names_those_that_are_needed():
    text = (DEPLOY / "env.example").read_text()
    assert set(SETTINGS) <= set(re.findall(r"(?m)^([A-Z_]+)=", text))


def instructions() -> list[str]:
    text = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text())
    return [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]


def test_the_image_is_built_in_stages_and_is_not_roots():
    lines = instructions()
    stages = [line for line in lines if line.startswith("FROM")]
    assert stages == ["FROM ${BASE} AS build", "FROM ${BASE}"]
    last = lines[lines.index("FROM ${BASE}") :]
    assert "USER 10001:10001" in last
    assert not any(line.startswith("RUN") for line in last)  # nothing is downloaded into it
    assert 'ENTRYPOINT ["essaim"]' in last


def test_the_image_installs_what_the_lock_says_by_hash():
    (install,) = [line for line in instructions() if "pip " in line and " install" in line]
    assert "--require-hashes -r /build/requirements.lock" in install


def test_no_file_names_a_registry_or_an_index():
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            text = path.read_text()
            assert not re.search(r"(index-url|INDEX_URL)\s*=\s*\S*http", text), path
            assert not re.search(r"image:.*\.[a-z]+/", text), path


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_a_unit_is_understood_and_closed(unit, tmp_path):
    program = find("systemd-analyze", "systemd")
    # The program it starts is not installed here.
    here = tmp_path / unit.name
    here.write_text(unit.read_text().replace("/opt/essaim/bin/essaim", shutil.which("true")))
    done = subprocess.run([program, "verify", here], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    text = unit.read_text()
    for line in ("NoNewPrivileges=yes", "ProtectSystem=strict", "PrivateTmp=yes",
                 "CapabilityBoundingSet=", "RestrictSUIDSGID=yes"):  # fmt: skip
        assert line in text.splitlines()
    # Of 100; systemd calls what is above 40 exposed.
    run(program, "security", "--offline=true", "--threshold=20", str(here))


def test_units_see_the_keys_of_their_kind_alone():
    """Who they are, and the one folder that is theirs: nobody else can read it."""
    users = (DEPLOY / "systemd" / "essaim.sysusers").read_text()
    for unit in UNITS:
        kind = unit.stem.removeprefix("essaim-")
        name = f"essaim-{kind}" if kind in ("api", "gateway") else "essaim"
        lines = unit.read_text().splitlines()
        assert {f"User={name}", f"StateDirectory={name}", "StateDirectoryMode=0700"} <= set(lines)
        assert f"Environment=ESSAIM_HOME=/var/lib/{name} HOME=/var/lib/{name}" in lines
        assert f"\nu {name} - " in users
        shares = "Environment=ESSAIM_INNER_KEYS=/var/lib/essaim-inner" in lines
        assert shares == ("ReadWritePaths=/var/lib/essaim-inner" in lines) == (kind != "api")
        if shares:
            assert f"\nm {name} essaim-inner" in users


def test_there_is_a_unit_for_each_kind_of_process():
    kinds = {path.stem.removeprefix("essaim-") for path in UNITS}
    assert kinds == {"api", "controller", "worker", "gateway"}


def validator() -> str:
    """A program that carries the schemas of Kubernetes, in an environment of its own."""
    place = CACHE / VALIDATOR.replace("==", "-")
    program = place / "bin" / "kubernetes-validate"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        pip = [place / "bin" / "python", "-m", "pip", "install", "--quiet", VALIDATOR]
        try:
            subprocess.run(pip, capture_output=True, timeout=240, check=True)
        except subprocess.SubprocessError:  # nor when it takes too long: half of it is nothing
            shutil.rmtree(place)
            pytest.skip(f"{VALIDATOR} cannot be installed")
    return str(program)


def test_manifests_are_valid_by_the_schemas_of_kubernetes():
    files = sorted(str(path) for path in (DEPLOY / "kubernetes").glob("*.yaml"))
    assert files
    run(validator(), "--strict", *files)


def test_the_schemas_find_what_is_wrong(tmp_path):
    wrong = (DEPLOY / "kubernetes" / "api.yaml").read_text().replace("replicas: 2", "replica: 2")
    (tmp_path / "api.yaml").write_text(wrong)
    words = [validator(), "--strict", str(tmp_path / "api.yaml")]
    assert subprocess.run(words, capture_output=True, check=False).returncode != 0


def manifests(kind: str) -> list[dict]:
    return [
        each
        for path in (DEPLOY / "kubernetes").glob("*.yaml")
        for each in yaml.safe_load_all(path.read_text())
        if each["kind"] == kind
    ]


def test_each_pod_sees_the_keys_it_needs_and_no_others():
    claims = {}
    for each in manifests("Deployment"):
        volumes = each["spec"]["template"]["spec"]["volumes"]
        claims[each["metadata"]["name"]] = [
            volume["persistentVolumeClaim"]["claimName"]
            for volume in volumes
            if "persistentVolumeClaim" in volume
        ]
    assert claims == {
        "api": ["api"], "gateway": ["gateway", "inner"],
        "controller": ["state", "inner"], "worker": ["state", "inner"],
    }  # fmt: skip


def test_nobody_speaks_to_anybody_but_who_must():
    policies = {each["metadata"]["name"]: each["spec"] for each in manifests("NetworkPolicy")}
    assert policies["nobody"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    ours = manifests("Deployment")
    inward = {}
    for each in ours:
        labels = each["spec"]["template"]["metadata"]["labels"]
        name = each["metadata"]["name"]
        inward[name] = [rule for spec in policies.values() if selects(spec, labels)
                        for rule in spec.get("ingress", ())]  # fmt: skip
    assert inward["controller"] == inward["worker"] == []
    (api,) = inward["api"]
    assert api["ports"] == [{"port": "http"}]
    assert api["from"]
    assert all("from" in rule or rule["ports"] == [{"port": "ssh"}] for rule in inward["gateway"])
    (database,) = policies["essaim-alone"]["ingress"]
    (who,) = database["from"][0]["podSelector"]["matchExpressions"]
    assert set(who["values"]) == {each["metadata"]["name"] for each in ours}
    # An API has no way to the machines.
    labels = next(
        each["spec"]["template"]["metadata"]["labels"]
        for each in ours
        if each["metadata"]["name"] == "api"
    )
    assert not selects(policies["machines"], labels)


def selects(spec: dict, labels: dict[str, str]) -> bool:
    """Whether a policy of the namespace is about pods of these labels."""
    chosen = spec["podSelector"]
    if not chosen or "ports" in chosen:
        return False
    same = all(labels.get(key) == value for key, value in chosen.get("matchLabels", {}).items())
    return same and all(
        labels.get(each["key"]) in each["values"] for each in chosen.get("matchExpressions", ())
    )


def test_pods_may_do_nothing_but_their_work():
    documents = manifests("Deployment")
    assert {each["metadata"]["name"] for each in documents} == {*OURS} - {"autoscale"}
    for each in documents:
        pod = each["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        (container,) = pod["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_caddy_understands_its_file_and_likes_its_shape():
    caddy = find("caddy", "caddy")
    file = str(DEPLOY / "Caddyfile")
    environ = {**os.environ, "ESSAIM_UPSTREAMS": "127.0.0.1:1 127.0.0.1:2"}
    words = ["--config", file, "--adapter", "caddyfile"]
    run(caddy, "validate", *words, env=environ)
    proxy = json.dumps(json.loads(run(caddy, "adapt", *words, env=environ)))
    assert proxy.count('"dial": "127.0.0.1:') == 2
    assert '"uri": "/readyz"' in proxy
    assert "flush_interval" not in proxy  # it would cut requests off when Caddy is reloaded
    assert run(caddy, "fmt", file) == (DEPLOY / "Caddyfile").read_text()
