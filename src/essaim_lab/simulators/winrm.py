"""A simulator of a Windows server's WinRM: WS-Management, PowerShell remoting, two ways to log in.

The protocol is spoken in full (Create, Command, Send, Receive, Signal, Delete; basic and NTLM
over TLS); behind it there is no Windows, see `windows_rules`.

    python -m essaim_lab.simulators.winrm --port 5986
"""

from __future__ import annotations

import argparse
import base64
import binascii
import collections
import contextlib
import json
import os
import secrets
import threading
import uuid
import xml.etree.ElementTree as ET
from typing import Any, Self

import spnego
from pypsrp.wsman import NAMESPACES, WSManAction
from spnego.exceptions import SpnegoError

from essaim_lab.simulators.loopback import Handler, serving, until_told
from essaim_lab.simulators.psrp import Runspace
from essaim_lab.simulators.windows_rules import Windows

_DONE = "http://schemas.microsoft.com/wbem/wsman/1/windows/shell/CommandState/Done"
_SHELL_GONE = 2150858843
_TIMED_OUT = 2150858793


class _FaultError(Exception):
    """A fault of WS-Management."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


def _tag(name: str) -> str:
    space, _, plain = name.partition(":")
    return f"{{{NAMESPACES[space]}}}{plain}"


def _element(name: str, text: str | None = None, **attributes: str) -> ET.Element:
    made = ET.Element(_tag(name), attributes)
    made.text = text
    return made


class Simulator:
    """A Windows server on the loopback, from `with` to its end.

    `server`, `port`, `ca`, `user` and `secret` are what a client needs; `windows` is its state;
    `calls` counts what was asked, such as "Command".
    """

    def __init__(self, *, port: int = 0) -> None:
        self.server, self.user, self.secret = "127.0.0.1", "essaim", secrets.token_urlsafe(12)
        self.windows = Windows()
        self.calls: collections.Counter[str] = collections.Counter()
        #: The scripts that were run, with their parameters.
        self.scripts: list[tuple[str, dict[str, Any]]] = []
        self._wanted = port
        self._shells: dict[str, Runspace] = {}
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        served = self._stack.enter_context(serving(_Handler, self, self._wanted))
        self.port, self.ca = served.port, served.ca
        self.ntlm_users = self.ca.with_name("ntlm")
        self.ntlm_users.write_text(f"DC1:{self.user}:{self.secret}\n")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def restart(self) -> None:
        """Forget every shell, as a server that was started anew does."""
        with self._lock:
            self._shells.clear()

    @property
    def shells(self) -> int:
        """How many are open."""
        return len(self._shells)

    def answer(self, raw: bytes) -> tuple[int, bytes]:
        """Answer one envelope."""
        envelope = ET.fromstring(raw)  # noqa: S314 - it comes from whoever started us
        header = envelope.find("s:Header", NAMESPACES)
        body = envelope.find("s:Body", NAMESPACES)
        assert header is not None  # noqa: S101 - every envelope has one
        assert body is not None  # noqa: S101 - likewise
        action = header.findtext("wsa:Action", "", NAMESPACES)
        related = header.findtext("wsa:MessageID", "", NAMESPACES)
        try:
            with self._lock:
                made = self._do(action, header, body)
            return 200, _enveloped(f"{action}Response", related, made)
        except _FaultError as exc:
            return 500, _enveloped(
                "http://schemas.dmtf.org/wbem/wsman/1/wsman/fault", related, _fault(exc)
            )

    def _do(self, action: str, header: ET.Element, body: ET.Element) -> list[ET.Element]:
        verb = action.rpartition("/")[2]
        self.calls[verb] += 1
        if action == WSManAction.CREATE:
            return self._create(body)
        selector = header.find("wsman:SelectorSet/wsman:Selector", NAMESPACES)
        shell = (selector.text or "") if selector is not None else ""
        if shell not in self._shells:
            raise _FaultError(
                _SHELL_GONE,
                f"The request for the Windows Remote Shell with ShellId {shell} failed because the "
                "shell was not found on the server.",
            )
        if action == WSManAction.DELETE:
            del self._shells[shell]
            return []
        work = getattr(self, f"_{verb.lower()}", None)
        if work is None:
            raise _FaultError(2150858817, f"The action {action} is not supported.")
        return [work(self._shells[shell], body)]

    def _create(self, body: ET.Element) -> list[ET.Element]:
        asked = body.find("rsp:Shell", NAMESPACES)
        assert asked is not None  # noqa: S101 - what else would be created
        shell = asked.attrib.get("ShellId") or str(uuid.uuid4()).upper()
        runspace = Runspace(shell, self._run)
        runspace.open(base64.b64decode(asked.findtext("pwsh:creationXml", "", NAMESPACES)))
        self._shells[shell] = runspace
        created = _element("wst:ResourceCreated")
        parameters = ET.SubElement(created, _tag("wsa:ReferenceParameters"))
        selectors = ET.SubElement(parameters, _tag("wsman:SelectorSet"))
        ET.SubElement(selectors, _tag("wsman:Selector"), Name="ShellId").text = shell
        described = _element("rsp:Shell")
        described.append(_element("rsp:ShellId", shell))
        described.append(_element("rsp:Owner", f"DC1\\{self.user}"))
        return [created, described]

    def _command(self, shell: Runspace, body: ET.Element) -> ET.Element:
        line = body.find("rsp:CommandLine", NAMESPACES)
        assert line is not None  # noqa: S101 - a command has one
        command = line.attrib.get("CommandId") or str(uuid.uuid4()).upper()
        for part in line.findall("rsp:Arguments", NAMESPACES):
            shell.take(command, base64.b64decode(part.text or ""))
        answer = _element("rsp:CommandResponse")
        answer.append(_element("rsp:CommandId", command))
        return answer

    def _send(self, shell: Runspace, body: ET.Element) -> ET.Element:
        for stream in body.findall("rsp:Send/rsp:Stream", NAMESPACES):
            shell.take(stream.attrib.get("CommandId", ""), base64.b64decode(stream.text or ""))
        return _element("rsp:SendResponse")

    def _receive(self, shell: Runspace, body: ET.Element) -> ET.Element:
        desired = body.find("rsp:Receive/rsp:DesiredStream", NAMESPACES)
        assert desired is not None  # noqa: S101 - what else would be received
        command = desired.attrib.get("CommandId", "")
        ready = shell.receive(command)
        if ready is None:
            raise _FaultError(
                _TIMED_OUT,
                "The WS-Management service cannot complete the operation within the time specified "
                "in OperationTimeout.",
            )
        named = {"CommandId": command} if command else {}
        answer = _element("rsp:ReceiveResponse")
        text = base64.b64encode(ready).decode()
        answer.append(_element("rsp:Stream", text, Name="stdout", **named))
        if command:
            answer.append(_element("rsp:CommandState", State=_DONE, **named))
        return answer

    def _signal(self, _: Runspace, __: ET.Element) -> ET.Element:
        return _element("rsp:SignalResponse")

    def _run(self, text: str, given: Any) -> str:
        self.scripts.append((text, dict(given)))
        return self.windows.run(text, given)


def _enveloped(action: str, related: str, body: list[ET.Element]) -> bytes:
    envelope = _element("s:Envelope")
    header = ET.SubElement(envelope, _tag("s:Header"))
    header.append(_element("wsa:Action", action))
    header.append(_element("wsa:MessageID", f"uuid:{uuid.uuid4()}".upper()))
    header.append(_element("wsa:RelatesTo", related))
    ET.SubElement(envelope, _tag("s:Body")).extend(body)
    return bytes(ET.tostring(envelope, encoding="utf-8"))


def _fault(exc: _FaultError) -> list[ET.Element]:
    fault = _element("s:Fault")
    code = ET.SubElement(fault, _tag("s:Code"))
    code.append(_element("s:Value", "s:Receiver"))
    reason = ET.SubElement(fault, _tag("s:Reason"))
    reason.append(_element("s:Text", exc.reason))
    detail = ET.SubElement(fault, _tag("s:Detail"))
    told = _element("wsmanfault:WSManFault", Code=str(exc.code), Machine="DC1")
    told.append(_element("wsmanfault:Message", exc.reason))
    detail.append(told)
    return [fault]


class _Handler(Handler):
    simulator: Simulator
    _context: Any = None  #: of NTLM, which belongs to the connection
    _known = False

    def do_POST(self) -> None:  # noqa: N802 - what http.server looks for
        """Answer an envelope, from whoever has logged in."""
        raw = self.read()
        if not self._known and not self._logged_in():
            return
        status, body = self.simulator.answer(raw)
        self.give(status, body, "application/soap+xml;charset=UTF-8")

    def _logged_in(self) -> bool:
        """Look at who asks; a login that is not over is answered here."""
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        if scheme == "Basic":
            with contextlib.suppress(binascii.Error, UnicodeDecodeError):
                given = base64.b64decode(token).decode()
                if given == f"{self.simulator.user}:{self.simulator.secret}":
                    return True
        if scheme == "Negotiate" and token:
            return self._negotiated(base64.b64decode(token))
        self._refuse()
        return False

    def _negotiated(self, token: bytes) -> bool:
        os.environ.setdefault("NTLM_USER_FILE", str(self.simulator.ntlm_users))
        self._context = self._context or spnego.server(protocol="negotiate")
        try:
            back = self._context.step(token)
        except SpnegoError:
            self._context = None
            self._refuse()
            return False
        if self._context.complete:
            self._known = True
            return True
        self._refuse(back)
        return False

    def _refuse(self, token: bytes | None = None) -> None:
        self.send_response(401)
        self.send_header("Content-Length", "0")
        if token:
            text = base64.b64encode(token).decode()
            self.send_header("WWW-Authenticate", f"Negotiate {text}")
        else:
            self.send_header("WWW-Authenticate", "Negotiate")
            self.send_header("WWW-Authenticate", 'Basic realm="WSMAN"')
        self.end_headers()


def main() -> None:
    """Serve until a signal; prints where, and the account's password, on one line."""
    parser = argparse.ArgumentParser(description="a simulator of a Windows server's WinRM")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--zone", action="append", default=[], help="a zone of its DNS server")
    parser.add_argument("--scope", action="append", default=[], help="a network of its DHCP server")
    words = parser.parse_args()
    with Simulator(port=words.port) as simulator:
        simulator.windows.zones = {zone: [] for zone in words.zone}
        simulator.windows.scopes = words.scope
        told = ("server", "port", "ca", "user", "secret")
        said = {key: getattr(simulator, key) for key in told}
        print(json.dumps(said, default=str), flush=True)  # noqa: T201 - what starts it reads it
        until_told()


if __name__ == "__main__":
    main()
