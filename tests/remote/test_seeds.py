"""A seed says who a machine is: to cloud-init, and to whoever reads plain files."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import yaml

from essaim.model.errors import SetupError
from essaim.model.machines import Seed
from essaim.model.names import MachineName
from essaim.model.roles import Provide, Ready, Retry, RoleFile, RoleStep
from essaim.model.stacks import Network
from essaim.remote import seeds, seeds_roles
from essaim.remote.render import Given
from essaim.remote.seeds import seed_files, seed_iso
from essaim.remote.seeds_roles import DONE, HOME, Wanted, role_data
from remote.conftest import machine
from remote.rig import until

NETWORK = Network(cidr="10.77.0.0/24")
MACS = {"mac": "52:54:00:AA:00:01", "access_mac": "52:54:00:aa:00:02"}


@pytest.fixture
def seed(keyring):
    return Seed(
        hostname="n1",
        host_key=keyring.host_key(MachineName("lab", "n1")),
        authorized_keys=(keyring.user_public_key(), "ssh-ed25519 AAAA other"),
    )


@pytest.fixture
def files(seed):
    return seed_files(machine(MachineName("lab", "n1")), NETWORK, seed, **MACS)


class TestFiles:
    def test_root_enters_by_key_and_nobody_else_does(self, files, seed):
        assert files["user-data"].startswith(b"#cloud-config\n")
        data = yaml.safe_load(files["user-data"])
        assert data["ssh_authorized_keys"] == list(seed.authorized_keys)
        assert data["users"] == [{"name": "root", "lock_passwd": False}]
        assert (data["disable_root"], data["ssh_pwauth"]) == (False, False)

    def test_the_host_key_is_the_pinned_one(self, files, seed, keyring):
        keys = yaml.safe_load(files["user-data"])["ssh_keys"]
        public = keyring.host_public_key(MachineName("lab", "n1"))
        assert keys == {"ed25519_private": seed.host_key, "ed25519_public": public}

    def test_interfaces_are_found_by_their_addresses(self, files):
        config = yaml.safe_load(files["network-config"])
        assert config["version"] == 2
        access, cluster = config["ethernets"]["access"], config["ethernets"]["cluster"]
        assert access["match"] == {"macaddress": "52:54:00:aa:00:02"}
        assert (access["dhcp4"], access["optional"]) == (True, True)
        assert cluster["match"] == {"macaddress": "52:54:00:aa:00:01"}
        assert (cluster["addresses"], cluster["dhcp4"]) == (["10.77.0.2/24"], False)
        assert not {"gateway4", "routes", "nameservers"} & set(cluster)

    def test_images_without_cloud_init_find_plain_files(self, files, seed):
        plain = {name: body.decode() for name, body in files.items() if name[:7] == "essaim/"}
        assert plain == {
            "essaim/hostname": "n1\n",
            "essaim/address": "10.77.0.2/24\n",
            "essaim/mac": "52:54:00:AA:00:01\n",
            "essaim/host_key": seed.host_key,
            "essaim/authorized_keys": "".join(f"{key}\n" for key in seed.authorized_keys),
        }

    def test_a_machine_with_another_key_is_another_instance(self, files, seed, keyring):
        one = machine(MachineName("lab", "n1"))
        instance = yaml.safe_load(files["meta-data"])["instance-id"]
        assert seed_files(one, NETWORK, seed, **MACS) == files
        other = replace(seed, host_key=keyring.host_key(MachineName("lab", "n2")))
        made = seed_files(one, NETWORK, other, **MACS)
        assert yaml.safe_load(made["meta-data"])["instance-id"] != instance

    def test_what_it_is_to_do_by_itself_comes_along(self, seed):
        own = replace(seed, user_data={"runcmd": [["true"]]})
        made = seed_files(machine(MachineName("lab", "n1")), NETWORK, own, **MACS)
        data = yaml.safe_load(made["user-data"])
        assert (data["runcmd"], data["hostname"]) == ([["true"]], "n1")

    def test_it_keeps_its_secrets_from_whoever_prints_it(self, seed):
        own = replace(seed, user_data={"write_files": ["hush"]})
        assert "PRIVATE" not in repr(own)
        assert "hush" not in repr(own)


class TestIso:
    def test_every_file_is_read_back(self, files):
        import pycdlib

        iso = pycdlib.PyCdlib()
        iso.open_fp(io.BytesIO(seed_iso(files)))
        assert iso.pvd.volume_identifier.rstrip() == b"cidata"
        for kind in ("rr_path", "joliet_path"):
            for name, body in files.items():
                found = io.BytesIO()
                iso.get_file_from_iso_fp(found, **{kind: f"/{name}"})
                assert found.getvalue() == body
        iso.close()

    def test_linux_knows_it_by_its_label(self, files, tmp_path):
        (tmp_path / "seed").write_bytes(seed_iso(files))
        told = subprocess.run(
            ["blkid", "-p", "-o", "export", tmp_path / "seed"],
            capture_output=True, text=True, check=True,
            env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
        ).stdout.splitlines()  # fmt: skip
        assert {"LABEL=cidata", "TYPE=iso9660"} <= set(told)

    def test_the_same_files_give_the_same_bytes_elsewhere_and_later(self, files, tmp_path):
        body = {name: base64.b64encode(content).decode() for name, content in files.items()}
        (tmp_path / "files").write_text(json.dumps(body))
        script = """if True:
            import base64, hashlib, json, sys
            from essaim.remote.seeds import seed_iso
            files = json.load(open(sys.argv[1]))
            made = seed_iso({name: base64.b64decode(body) for name, body in files.items()})
            sys.stdout.buffer.write(made)
        """
        made = {
            subprocess.run(
                [sys.executable, "-c", script, tmp_path / "files"],
                env={**os.environ, "TZ": zone}, capture_output=True, check=True,
            ).stdout
            for zone in ("UTC", "Asia/Kathmandu")
        }  # fmt: skip
        assert made == {seed_iso(files)}

    def test_without_the_library_it_says_how_to_get_it(self, files, monkeypatch):
        seeds._library.cache_clear()
        monkeypatch.setitem(sys.modules, "pycdlib", None)
        with pytest.raises(SetupError) as caught:
            seed_iso(files)
        assert "--prepare libvirt" in caught.value.hint

    def test_the_library_is_imported_only_when_it_is_used(self):
        code = "import sys, essaim.remote.seeds; sys.exit('pycdlib' in sys.modules)"
        subprocess.run([sys.executable, "-c", code], check=True)


class TestRoles:
    """What a machine applies to itself is carried out here on a machine, file by file."""

    @pytest.fixture(autouse=True)
    def clean(self, request, box):
        yield
        box.enter("rm", "-rf", "/var/lib/essaim", "/run/essaim-boot", "/root/seen", "/root/made")

    def boot(self, box, data, *, first=True):
        """Do what cloud-init does with it."""
        for file in data["write_files"] if first else ():
            path = box.path(file["path"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(base64.b64decode(file["content"]))
            path.chmod(int(file["permissions"], 8))
        box.enter("rm", "-rf", "/run/essaim-boot")
        return box.enter(*data["runcmd"][0])

    def test_roles_are_applied_in_order_and_again_at_the_next_boot(self, box, facts, make_role):
        first = make_role(
            name="first",
            sources={"note.j2": "{{ machine.name }} {{ needs.word }}\n"},
            needs={"word": "other"},
            files=(RoleFile(to="/root/made/note", template="note.j2", mode=0o640),),
            run=(
                RoleStep(
                    name="say", do='echo "$WORD" >>/root/seen', env={"WORD": "{{ vars.word }}"}
                ),
            ),
        )
        second = make_role(
            name="second",
            run=(
                RoleStep(name="again", unless="false", do="umask >>/root/seen; cat"),
                RoleStep(name="after", watch=("/root/made/note",), do="echo note >>/root/seen"),
            ),
            ready=Ready(command="grep -q note /root/seen", every=0.1, within=5),
        )
        given = replace(
            facts, needs={"word": Given("it's $(secret)", secret=True)}, vars={"word": "a 'b' $c"}
        )
        data = role_data(
            [
                Wanted(role=first, facts=given, digest="d1"),
                Wanted(role=second, facts=facts, digest="d2"),
            ]
        )
        done = self.boot(box, data)
        assert done.returncode == 0, done.stdout
        assert done.stdout == "essaim: role first is applied\nessaim: role second is applied\n"
        note = box.path("/root/made/note")
        assert note.read_text() == "box-1 it's $(secret)\n"
        assert note.stat().st_mode & 0o7777 == 0o640
        assert box.path("/root/seen").read_text() == "a 'b' $c\n0022\nnote\n"
        assert box.path(DONE).read_text() == "first d1\nsecond d2\n"
        again = self.boot(box, data, first=False)
        assert again.returncode == 0
        assert box.path("/root/seen").read_text() == "a 'b' $c\n0022\nnote\n0022\n"
        assert box.enter(*data["runcmd"][0]).stdout == ""  # once in each boot
        for file in data["write_files"]:
            assert file["permissions"] in {"0600", "0700"}

    def test_what_fails_stops_the_rest_and_says_so_without_what_it_printed(
        self, box, facts, make_role
    ):
        bad = make_role(name="bad", run=(RoleStep(name="break", do="echo hush; exit 3"),))
        rest = make_role(name="rest", run=(RoleStep(name="go", do="echo rest >/root/seen"),))
        data = role_data([Wanted(role=r, facts=facts, digest="d") for r in (bad, rest)])
        done = self.boot(box, data)
        assert done.returncode == 1
        assert done.stdout == f"essaim: role bad: break exited 3: see {HOME}/log\n"
        assert not box.path("/root/seen").exists()
        assert "hush" in box.path(f"{HOME}/log").read_text()
        assert box.path(f"{HOME}/log").stat().st_mode & 0o777 == 0o600
        assert box.path(DONE).read_text() == ""
        assert box.enter(*data["runcmd"][0]).returncode == 1  # asked again, it says the same

    def test_a_role_that_needs_others_tries_until_they_are_there(
        self, box, facts, make_role, monkeypatch
    ):
        monkeypatch.setattr(seeds_roles, "_TRY_EVERY", 0.1)
        patient = make_role(
            name="patient",
            needs={"word": "other"},
            run=(RoleStep(name="join", do="echo x >>/root/seen; test $(wc -l </root/seen) = 3"),),
        )
        given = replace(facts, needs={"word": Given("x")})
        data = role_data([Wanted(role=patient, facts=given, digest="d")])
        assert self.boot(box, data).returncode == 0
        assert box.path("/root/seen").read_text() == "x\n" * 3

    def test_a_step_is_tried_as_often_as_it_says(self, box, facts, make_role):
        step = RoleStep(
            name="join",
            do="echo x >>/root/seen; test $(wc -l </root/seen) = 2",
            retry=Retry(times=3, wait=0.1),
        )
        data = role_data([Wanted(role=make_role(run=(step,)), facts=facts, digest="d")])
        assert self.boot(box, data).returncode == 0

    def test_a_step_that_hangs_is_ended(self, box, facts, make_role):
        step = RoleStep(name="hang", do="sleep 4713", within=0.5)
        data = role_data([Wanted(role=make_role(run=(step,)), facts=facts, digest="d")])
        assert "hang exited 124" in self.boot(box, data).stdout
        until(lambda: not box.processes("sleep 4713"))

    def test_random_text_is_where_the_role_would_have_put_its_own(self, box, facts, make_role):
        role = make_role(
            provides={"key": Provide(command="cat /root/made/key", random="/root/made/key")},
            run=(RoleStep(name="use", do="cp /root/made/key /root/seen"),),
        )
        drawn = {"/root/made/key": "c0ffee"}
        data = role_data([Wanted(role=role, facts=facts, digest="d", drawn=drawn)])
        assert self.boot(box, data).returncode == 0
        assert box.path("/root/seen").read_text() == "c0ffee"
        assert box.path("/root/made/key").stat().st_mode & 0o777 == 0o600
        box.path("/root/made/key").write_text("changed since")
        assert self.boot(box, data, first=False).returncode == 0
        assert box.path("/root/made/key").read_text() == "changed since"
