"""The bill of materials is whole, and a check that did not happen says so."""

from __future__ import annotations

import http.server
import json
import re
import threading
import zipfile
from pathlib import Path

import pytest

from essaim_lab import audit

ROOT = Path(__file__).parents[2]


def advisory(name: str, version: str, **more: object) -> dict[str, object]:
    affected = [{"package": {"ecosystem": "PyPI", "name": name}, "versions": ["0.0.1", version]}]
    return {"id": f"PYSEC-{name}", "affected": affected, **more}


@pytest.fixture
def run(tmp_path, capsys):
    def run(*words: object) -> tuple[int, str]:
        code = audit.main(["--bill", str(tmp_path / "sbom.json"), *map(str, words)])
        return code, capsys.readouterr().out

    return run


def export(path: Path, *advisories: dict[str, object]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for each in advisories:
            archive.writestr(f"{each['id']}.json", json.dumps(each))
    return path


def test_the_bill_holds_every_package_with_its_hashes(run, tmp_path):
    run("--database", export(tmp_path / "all.zip"))
    bill = json.loads((tmp_path / "sbom.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    lines = [line for name in audit.LOCKS for line in (ROOT / name).read_text().splitlines()]
    pinned = {re.split(r"[ ;\\]", line)[0] for line in lines if "==" in line[:60]}
    there = {f"{each['name']}=={each['version']}" for each in bill["components"]}
    assert there == {re.sub(r"\[.*\]", "", pin) for pin in pinned if not pin.startswith("#")}
    hashes = {line.strip(" \\").rpartition(":")[2] for line in lines if "--hash" in line}
    assert {h["content"] for each in bill["components"] for h in each["hashes"]} == hashes
    assert len({each["bom-ref"] for each in bill["components"]}) == len(bill["components"])
    ansible = [each for each in bill["components"] if each["name"] == "ansible-core"]
    assert all("python_full_version" in each["properties"][0]["value"] for each in ansible)


def test_a_known_vulnerability_is_named(run, tmp_path):
    package = audit.read_locks(ROOT)[0]
    fine = advisory(package.name, "0.0.2")
    assert run("--database", export(tmp_path / "fine.zip", fine))[0] == audit.FINE
    bad = advisory(package.name.upper().replace("-", "_"), package.version)
    code, said = run("--database", export(tmp_path / "bad.zip", bad))
    assert code == audit.VULNERABLE
    assert f"VULNERABLE {package.purl}: {bad['id']}" in said
    taken_back = advisory(package.name, package.version, withdrawn="2026-01-01T00:00:00Z")
    assert run("--database", export(tmp_path / "none.zip", taken_back))[0] == audit.FINE


def test_where_no_database_can_be_asked_nothing_is_pretended(run, tmp_path):
    (tmp_path / "all.zip").write_text("<html>please log in</html>")
    for words in (
        ("--database", tmp_path / "all.zip"),
        ("--database", tmp_path / "nowhere.zip"),
        ("--address", "http://127.0.0.1:9/"),
    ):
        code, said = run(*words)
        assert code == audit.NOT_CHECKED
        assert "NOT CHECKED" in said
        assert "no known vulnerability" not in said


def test_osv_is_asked_about_every_package(run):
    packages = audit.read_locks(ROOT)
    asked: list[str] = []

    class Fake(http.server.BaseHTTPRequestHandler):
        """Answers as OSV does: the second package has a vulnerability."""

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.extend(query["package"]["purl"] for query in body["queries"])
            results = [{} for _ in asked]
            results[1] = {"vulns": [{"id": "GHSA-x"}]}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"results": results}).encode())

        def log_message(self, *_words: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Fake) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        code, said = run("--address", f"http://127.0.0.1:{server.server_port}/")
        server.shutdown()
    assert asked == [package.purl for package in packages]
    assert code == audit.VULNERABLE
    assert f"{packages[1].purl}: GHSA-x" in said
