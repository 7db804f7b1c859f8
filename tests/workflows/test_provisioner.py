"""Who makes accounts is a setting; a playbook reaches machines that let nobody in, too."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from essaim.bootstrap import App
from essaim.model.errors import SetupError
from essaim.model.fleet import LeaseState
from essaim.remote.accounts import PLAYBOOK, AnsibleAccounts, NativeAccounts
from workflows import fleet


def test_the_helper_makes_accounts_unless_a_playbook_is_asked_for(tmp_path):
    home = {"ESSAIM_HOME": str(tmp_path)}
    plain = App(home)
    assert isinstance(plain.lending.accounts, NativeAccounts)
    plain.close()
    own = tmp_path / "own.yml"
    own.write_text(PLAYBOOK.read_text())
    app = App({**home, "ESSAIM_PROVISIONER": "ansible", "ESSAIM_PLAYBOOK": str(own)})
    assert isinstance(app.lending.accounts, AnsibleAccounts)
    assert isinstance(app.lending.helper, NativeAccounts)
    app.close()


def test_a_setting_that_cannot_be_meant_is_refused(tmp_path):
    home = {"ESSAIM_HOME": str(tmp_path)}
    with pytest.raises(SetupError, match="puppet") as refused:
        App({**home, "ESSAIM_PROVISIONER": "puppet"})
    assert "native" in refused.value.hint
    app = App({**home, "ESSAIM_PROVISIONER": "ansible", "ESSAIM_PLAYBOOK": "/nowhere.yml"})
    with pytest.raises(SetupError, match=r"nowhere\.yml"):
        _ = app.lending
    app.close()


def test_gateways_come_from_where_the_setting_says_and_through_tunnels(tmp_path):
    home = {"ESSAIM_HOME": str(tmp_path), "ESSAIM_FORWARDING": "none"}
    app = App({**home, "ESSAIM_GATEWAY_SOURCES": "192.0.2.7 10.1.0.0/24"})
    direct = app.lending.entry(SimpleNamespace(tunnel=False))
    assert direct.options() == 'restrict,pty,from="192.0.2.7,10.1.0.0/24"'
    tunnelled = app.lending.entry(SimpleNamespace(tunnel=True))
    assert tunnelled.options() == 'restrict,pty,from="127.0.0.1,::1"'
    app.close()
    app = App({**home, "ESSAIM_GATEWAY_SOURCES": "gateway.example.org"})
    with pytest.raises(SetupError, match="ESSAIM_GATEWAY_SOURCES"):
        _ = app.lending
    app.close()


@pytest.mark.root
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["sqlite"])
def test_a_playbook_rents_and_releases_through_a_nodes_own_connection(rig, tmp_path):  # R-D4
    with fleet.world(tmp_path / "world") as world:
        workers = world.workers
        install = f"python3 -I /root/agent.py install --key '{workers.keyring.user_public_key()}'"
        workers.sh("one", f"{install} --playbooks")
        world.lending.accounts = AnsibleAccounts(
            workers.remote, workers.keyring, record=lambda **_entry: None, note=lambda _text: None
        )
        world.ready("one")
        world.rent()
        world.carry()
        assert world.its_lease().state is LeaseState.ACTIVE, world.journal.list()
        assert f"account {world.lease_id}" in workers.seen()["one"]
        world.leases.release(world.lease_id)
        world.carry()
        assert world.its_lease().state is LeaseState.ENDED
        assert workers.seen()["one"] == []
        workers.sh("one", install)
