"""Runs PowerShell on a Windows server (WinRM, PSRP), with parameters as data.

A shell stays open for the next script: starting one takes Windows longer than the script does.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import requests
from pypsrp.complex_objects import PSInvocationState
from pypsrp.exceptions import AuthenticationError, WinRMError, WSManFaultError
from pypsrp.powershell import PowerShell, RunspacePool
from pypsrp.wsman import WSMan
from spnego.exceptions import FeatureMissingError, SpnegoError
from typing_extensions import override

from essaim.model.errors import EssaimError, RejectedError, SetupError, TransientError
from essaim.model.extras import package_hint
from essaim.servers.waiting import away

#: Shells kept open: Windows lets an account have 30 of them.
_SHELLS = 4
_DENIED = 5  # ERROR_ACCESS_DENIED
_KERBEROS = (
    "negotiate takes Kerberos where this computer can and NTLM otherwise; see the documentation"
)


#: What the library raises when the server, or the way to it, is at fault; and when we are.
_KNOWN = (WinRMError, requests.RequestException, OSError)
_LACKS = (SpnegoError, FeatureMissingError, ImportError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A Windows server and the account we have there."""

    server: str
    user: str = ""  #: empty: the Kerberos ticket of this process
    secret: str = field(default="", repr=False)
    auth: str = "negotiate"
    port: int = 5986
    ca: str = ""
    within: float = 30.0  #: seconds for one question and its answer


class AgainError(TransientError):
    """The shell is gone, or somebody did the same at the same moment: ask once more."""


class Shells:
    """Shells of one server, each used by one thread at a time."""

    def __init__(self, login: Login, where: str) -> None:
        self._login = login
        self._where = f"{where} {login.server}"
        self._free: list[RunspacePool] = []
        self._lock = threading.Lock()
        self._turns = threading.BoundedSemaphore(_SHELLS)

    @override
    def __str__(self) -> str:
        return self._where

    def run(self, script: str, parameters: Mapping[str, str | int]) -> dict[str, Any]:
        """Run a script that prints an object in JSON.  It may be run twice: it must not mind."""
        with self._turns:
            try:
                return self._run(script, parameters)
            except AgainError:
                # Of a server that was started anew, all that were open are gone.
                self.close()
            return self._run(script, parameters)

    def close(self) -> None:
        """Close the shells that nobody uses just now."""
        with self._lock:
            free, self._free = self._free, []
        for shell in free:
            self._end(shell)

    def _run(self, script: str, parameters: Mapping[str, str | int]) -> dict[str, Any]:
        shell = None
        try:
            shell = self._take()
            call = PowerShell(shell)
            call.add_script(script, use_local_scope=True)
            for name, value in parameters.items():
                call.add_parameter(name, value)
            output = call.invoke()
            failed = call.state != PSInvocationState.COMPLETED
            said = [str(record) for record in call.streams.error]
            call.close()
        except (*_KNOWN, *_LACKS) as exc:
            if shell is not None:
                self._end(shell)
            raise self._meaning(exc) from exc
        except BaseException:
            if shell is not None:
                self._end(shell)
            raise
        with self._lock:
            self._free.append(shell)
        if failed or not output:
            raise RejectedError(f"{self} could not run a script: {' '.join(said) or 'no answer'}")
        return self._answer(json.loads(output[-1]))

    def _take(self) -> RunspacePool:
        with self._lock:
            if self._free:
                return self._free.pop()
        login = self._login
        wsman = WSMan(
            login.server,
            port=login.port,
            username=login.user or None,
            password=login.secret or None,
            ssl=True,
            auth=login.auth,
            cert_validation=login.ca or True,  # type: ignore[arg-type]  # a path too
            connection_timeout=int(login.within),
            # A question may be answered with "not yet" after the operation's time.
            operation_timeout=int(login.within),
            read_timeout=int(login.within) + 10,
            no_proxy=True,
        )
        shell = RunspacePool(wsman, no_profile=False)
        try:
            shell.open()
        except BaseException:
            wsman.close()
            raise
        return shell

    @staticmethod
    def _end(shell: RunspacePool) -> None:
        try:
            shell.close()
        except (*_KNOWN, *_LACKS):
            return  # it is gone already, or Windows ends it when it was idle for long
        finally:
            shell.connection.close()

    def _meaning(self, exc: Exception) -> EssaimError:
        if isinstance(exc, requests.exceptions.SSLError):
            return RejectedError(
                f"{self} shows a certificate that nobody we trust has signed",
                hint="give the certificate of whoever signed it as ca, and the server's name as "
                "its certificate has it as server",
            )
        if isinstance(exc, _LACKS):
            return SetupError(
                f"{self}: this computer cannot log in by {self._login.auth}: {exc}",
                hint=f"{package_hint('pypsrp[kerberos,credssp]')}, and see krb5.conf and klist; "
                "or choose another auth",
            )
        if isinstance(exc, AuthenticationError) or (
            isinstance(exc, WSManFaultError) and exc.code == _DENIED
        ):
            return RejectedError(
                f"{self} does not let {self._login.user or 'our ticket'} in by {self._login.auth}",
                hint=f"compare user and secret, and see that the account is in Remote Management "
                f"Users; {_KERBEROS}",
            )
        if isinstance(exc, WSManFaultError | WinRMError) and not isinstance(exc, OSError):
            return AgainError(f"{self} lost our shell: {exc}", hint="try again")
        return away(str(self), exc, hint="is WinRM on, with an HTTPS listener on that port?")

    def _answer(self, said: dict[str, Any]) -> dict[str, Any]:
        """What a script says; raises what it says went wrong."""
        if "error" not in said:
            return said
        number, text = str(said.get("id", "")), f"{self} refuses: {said['error']}"
        if "WIN32 1722" in number or said.get("category") == "ConnectionError":
            return self._raise(TransientError(text, hint="is its service running?"))
        if any(code in number for code in _CROSSED):
            return self._raise(AgainError(text, hint="try again"))
        for code, hint in _HINTS.items():
            if code in number:
                return self._raise(RejectedError(text, hint=hint))
        return self._raise(RejectedError(text))

    @staticmethod
    def _raise(error: EssaimError) -> dict[str, Any]:
        raise error


#: The record, or the reservation, was made by somebody since we looked.
_CROSSED = ("WIN32 9708", "WIN32 9709", "WIN32 9711", "DHCP 20014", "DHCP 20022")
_HINTS = {
    "WIN32 5,": "let the account be in DnsAdmins, or in DHCP Administrators",
    "WIN32 9601": "the server has no such zone: correct dns.zones",
    "CommandNotFoundException": "install the server's PowerShell module: "
    "Install-WindowsFeature RSAT-DNS-Server, RSAT-DHCP",
}
