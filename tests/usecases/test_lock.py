"""A lock holds all that makes a stack what it is, no secret, and nothing of where it was made."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from essaim.bootstrap import App
from essaim.config.compose import Composed, compose
from essaim.images.builders import builder_of
from essaim.images.cache import Images
from essaim.model.errors import InvalidError, MovedError, SetupError
from essaim.model.machines import Form
from essaim.plan.lock import Lock, to_text
from essaim.plan.lock_compare import differences
from essaim.usecases.locking import (
    hold_to,
    lock_of,
    make_lock,
    missing_images,
    read_lock,
    write_lock,
)
from testcache import base_image

FILES = {
    "essaim.yaml": "network: {cidr: 10.8.0.0/24}\n",
    "desk/stack.yaml": """\
        defaults: [{size: tiny}, {site: local}, {flavour: plain}, _self_]
        name: desk
        image: base
        nodes: 2
        topology:
          head: {roles: [head]}
          nodes: {count: "${nodes}", roles: [node]}
        vars: {head: {token: !secret token}}
        """,
    "desk/flavour/plain.yaml": "taste: none\n",
    "desk/flavour/sweet.yaml": "taste: sugar\n",
    "roles/head/role.yaml": """\
        vars: {token: "", port: 80}
        files:
          - {template: port.j2, to: /etc/port}
          - {content: "{{ vars.token }}", to: /etc/token, owner: daemon, mode: "0600"}
          - {content: "{% for k, v in vars.items() %}{{ v }}{% endfor %}", to: /etc/all}
        provides: {key: {command: cat /etc/key, secret: true}}
        """,
    "roles/head/port.j2": "{{ vars.port }} on {{ machine.name }}\n",
    "roles/head/notes": "read by nobody, and still part of the role\n",
    "roles/node/role.yaml": """\
        needs: {key: head}
        packages: [openssh-server, sl]
        files:
          - {content: "{{ needs.key }}", to: /etc/key}
          - {content: "{{ machine.index }} of {{ stack }}", to: /etc/number}
        """,
    "secrets/token": "swordfish\n",
}


def plant(lab: Path) -> Path:
    for name, text in FILES.items():
        file = lab / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text))
    (lab / "secrets/token").chmod(0o600)
    return lab / "desk"


@pytest.fixture
def desk(tmp_path) -> Path:
    return plant(tmp_path / "lab")


def plane(place: Path) -> tuple[App, Path]:
    """A control plane with an image of a few files in its cache, and where that lies."""
    image = base_image()
    cache = Images(place / "cache" / "images")
    home = cache._home(image, Form.ROOTFS, builder_of(image, Form.ROOTFS))
    (home / "rootfs/etc").mkdir(parents=True)
    (home / "rootfs/etc/motd").write_text("welcome\n")
    manifest = {
        "name": image.name,
        "digest": image.digest,
        "builder": image.builder,
        "form": "rootfs",
        "sources": ["deb http://mirror.example.org/debian bookworm main"],
        "packages": {"bash": "5.2", "openssh-server": "1:9.2"},
        "tools": {"mmdebstrap": "mmdebstrap 1.3.5"},
        "kernel": "none",
        "built_at": "2026-01-01T00:00:00Z",
        "seconds": 1.0,
    }
    (home / "manifest.json").write_text(json.dumps(manifest))
    app = App({"ESSAIM_HOME": str(place / "home"), "ESSAIM_CACHE": str(place / "cache")})
    return app, home


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    made, _home = plane(tmp_path_factory.mktemp("plane"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def known(app, tmp_path_factory) -> Lock:
    """The lock of the lab as planted; where that lies leaves no trace in it."""
    return locked(app, plant(tmp_path_factory.mktemp("known")))


def locked(app: App, desk: Path, *overrides: str) -> Lock:
    return make_lock(app, compose(str(desk), overrides))


def said(before: Lock, after: Lock) -> list[str]:
    return [f"{found.at} {found.what}" for found in differences(before, after)]


def test_every_file_it_was_composed_from_is_in_it_and_no_other(app, known, desk):
    found = set(known.files)
    assert found == {
        "desk/flavour/plain.yaml",
        "desk/stack.yaml",
        "essaim.yaml",
        "essaim:config/builtin.yaml",
        "essaim:library/images/base.yaml",
        "essaim:library/site/local.yaml",
        "essaim:library/size/tiny.yaml",
        "roles/head/notes",
        "roles/head/port.j2",
        "roles/head/role.yaml",
        "roles/node/role.yaml",
    }
    sweet = locked(app, desk, "flavour=sweet")
    assert set(sweet.files) ^ found == {"desk/flavour/plain.yaml", "desk/flavour/sweet.yaml"}
    assert sweet.overrides == ("flavour=sweet",)


def test_two_labs_of_the_same_files_have_the_same_lock(app, known, desk, tmp_path):
    text = to_text(locked(app, desk))
    assert text == to_text(known)
    assert str(tmp_path) not in text


def test_no_secret_is_in_it_not_even_as_a_digest(app, known, desk):
    assert "swordfish" not in to_text(known)
    (desk.parent / "secrets/token").write_text("marlin\n")
    assert to_text(locked(app, desk)) == to_text(known)


def test_files_of_roles_are_pinned_where_nothing_hinders_it(known):
    head, node = known.nodes["head"].files, known.nodes["nodes-2"].files
    assert {path: file.rests_on for path, file in {**head, **node}.items()} == {
        "/etc/all": ("vars.items",),
        "/etc/key": ("needs.key",),
        "/etc/number": (),
        "/etc/port": (),
        "/etc/token": ("vars.token",),
    }
    assert {bool(file.sha256) == (not file.rests_on) for file in {**head, **node}.values()} == {
        True
    }
    assert head["/etc/port"].sha256 == hashlib.sha256(b"80 on head\n").hexdigest()
    assert node["/etc/number"].sha256 == hashlib.sha256(b"2 of desk").hexdigest()
    assert (head["/etc/token"].owner, head["/etc/token"].mode) == ("daemon", "600")


def test_an_image_is_known_by_description_content_and_packages(known):
    (image,) = known.images.values()
    assert image.description == base_image().digest
    assert (image.builder, image.form) == ("debian", "rootfs")
    assert len(image.content) == 64
    assert image.packages == {"bash": "5.2", "openssh-server": "1:9.2"}
    assert image.tools == {"mmdebstrap": "mmdebstrap 1.3.5"}
    assert image.inputs == {"kernel": "none"}, "which mirror was near is nobody's business"


def test_it_says_what_two_raises_may_differ_in(known):
    free = {may.what: may for may in known.may_differ}
    assert "/etc/ssh/ssh_host_*" in free["host keys"].paths
    assert {"boot", "times", "tools", "ports and hardware addresses"} <= set(free)
    (values,) = (what for what in free if what.startswith("values and secrets"))
    assert "head: token" in values
    assert "node: key" in values
    (fetched,) = (may for what, may in free.items() if what.startswith("versions of"))
    assert fetched.what.startswith("versions of sl "), "what the image holds is pinned there"
    assert "role node" in fetched.why


@pytest.mark.parametrize(
    ("file", "text", "wanted"),
    [
        ("roles/head/port.j2", "{{ vars.port }}\n", "roles/head/port.j2 has changed"),
        ("roles/head/notes", "x", "desk/head role head would be applied otherwise: its files"),
        ("essaim.yaml", "network: {cidr: 10.8.1.0/24}\n", "network.cidr is '10.8.1.0/24'"),
        ("images/base.yaml", "builder: debian\nsuite: sid\n", "image base is described otherwise"),
        ("size/tiny.yaml", "{cores: 2, memory: 256M}\n", "desk/head would have 2 cores"),
    ],
)
def test_what_changed_since_is_named(app, known, desk, *, file, text, wanted):
    place = desk.parent / file
    place.parent.mkdir(exist_ok=True)
    place.write_text(text)
    assert any(line.startswith(wanted) for line in said(known, locked(app, desk)))


def test_arguments_that_say_the_same_make_no_difference(app, known, desk):
    assert said(known, locked(app, desk, "nodes=2")) == []
    assert "nodes is 3; the lock has 2" in said(known, locked(app, desk, "nodes=3"))


class TestAnotherImage:
    """A cache of one's own, in which somebody changes a file."""

    @pytest.fixture
    def own(self, tmp_path):
        made, home = plane(tmp_path / "own")
        yield made, home
        made.close()

    def test_a_file_changed_in_the_cache_is_noticed(self, known, own, desk):
        mine, home = own
        assert said(known, locked(mine, desk)) == [], "a copy is the same"
        (home / "rootfs/etc/motd").write_text("changed by hand\n")
        found = said(known, locked(mine, desk))
        assert found[0].startswith("image base was built to other content")
        assert "changed by hand" in found[1]

    def test_newer_packages_are_named(self, known, own, desk):
        mine, home = own
        manifest = json.loads((home / "manifest.json").read_text())
        manifest["packages"]["openssh-server"] = "1:10.0"
        (home / "manifest.json").write_text(json.dumps(manifest))
        (home / "rootfs/etc/issue").write_text("newer")
        found = said(known, locked(mine, desk))
        assert found[1] == "image base has other versions: openssh-server 1:10.0 (not 1:9.2)"

    def test_without_the_image_nothing_is_said_of_its_content(self, known, own, desk):
        mine, home = own
        shutil.rmtree(home)
        lock = locked(mine, desk)
        assert missing_images(lock) == ["base"]
        assert said(known, lock) == []


class TestTheFile:
    def test_it_lies_beside_the_stack(self, desk):
        assert lock_of(str(desk)) == desk / "essaim.lock"
        (desk / "other.yaml").write_text("name: other\n")
        assert lock_of(str(desk / "other.yaml")) == desk / "other.lock"

    def test_it_is_read_back_as_written(self, known, desk):
        write_lock(known, lock_of(str(desk)))
        assert read_lock(lock_of(str(desk))) == known
        assert [path.name for path in desk.glob("*lock*")] == ["essaim.lock"], "no draft is left"

    def test_a_missing_one_says_how_to_make_it(self, desk):
        with pytest.raises(SetupError) as missing:
            read_lock(lock_of(str(desk)))
        assert "essaim lock" in missing.value.hint

    def test_a_place_that_cannot_be_written_is_named(self, known, desk):
        with pytest.raises(SetupError, match=r"nowhere/essaim\.lock cannot be written"):
            write_lock(known, desk / "nowhere" / "essaim.lock")

    def test_one_that_is_broken_is_refused(self, desk):
        lock_of(str(desk)).write_text("{")
        with pytest.raises(InvalidError, match="essaim lock STACK"):
            read_lock(lock_of(str(desk)))


class TestHolding:
    def composed(self, desk: Path, *overrides: str) -> Composed:
        return compose(str(desk), overrides)

    def test_what_was_locked_may_be_raised(self, app, known, desk):
        hold_to(app, self.composed(desk), known, lambda _note: None)

    def test_anything_else_is_refused_in_words(self, app, known, desk):
        (desk.parent / "roles/head/port.j2").write_text("x")
        with pytest.raises(MovedError) as refused:
            hold_to(app, self.composed(desk, "nodes=3"), known, lambda _note: None)
        assert refused.value.what.startswith("desk is not what was locked\n")
        assert "roles/head/port.j2 has changed since the lock" in refused.value.what
        assert "nodes is 3; the lock has 2" in refused.value.what
        assert "essaim lock" in refused.value.hint

    def test_a_lock_edited_by_hand_is_not_believed(self, app, known, desk):
        lock = replace(known, wanted="0" * 64)
        with pytest.raises(MovedError, match="stack desk is not what was locked"):
            hold_to(app, self.composed(desk), lock, lambda _note: None)


def test_what_an_image_is_made_from_is_in_it_wherever_the_lab_lies(app, desk, tmp_path):
    def with_flake(place: Path) -> Lock:
        lab = place.parent
        (lab / "nix/roles").mkdir(parents=True)
        (lab / "nix/.git").mkdir()
        (lab / "nix/.git/HEAD").write_text("x")
        (lab / "nix/flake.nix").write_text("{ }")
        (lab / "nix/roles/one.nix").write_text("{ }")
        (lab / "images").mkdir()
        (lab / "images/flaky.yaml").write_text("{builder: nix, path: nix, role: one}")
        return locked(app, place, "image=flaky")

    one, two = with_flake(desk), with_flake(plant(tmp_path / "far" / "away"))
    assert {"nix/flake.nix", "nix/roles/one.nix", "images/flaky.yaml"} <= set(one.files)
    assert not any(".git" in file for file in one.files)
    assert to_text(one) == to_text(two)
