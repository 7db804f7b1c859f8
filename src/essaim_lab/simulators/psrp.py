"""The server's side of PowerShell remoting (MS-PSRP): runspaces and pipelines of the simulator."""

from __future__ import annotations

import re
import struct
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pypsrp import messages
from pypsrp.complex_objects import PSInvocationState, RunspacePoolState
from pypsrp.messages import Destination, MessageType, SessionCapability
from pypsrp.powershell import Fragment
from pypsrp.serializer import Serializer

#: Bytes in one fragment of an answer.
_MOST = 30_000

# The library types only the messages that a client makes.
_PrivateData: Any = messages.ApplicationPrivateData
_PoolState: Any = messages.RunspacePoolStateMessage
_PipelineState: Any = messages.PipelineState

#: A sign that XML cannot hold, as it is written there instead.
_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")

#: Runs a script with its parameters; gives what it prints.
Run = Callable[[str, Mapping[str, Any]], str]


@dataclass(frozen=True, slots=True)
class _Message:
    kind: int
    pid: str
    body: bytes


class Runspace:
    """One runspace pool, and the pipelines in it, from its creation to its end."""

    def __init__(self, rpid: str, run: Run) -> None:
        self._rpid, self._run = rpid, run
        self._serializer = Serializer()
        self._parts: dict[int, bytes] = {}
        self._counter = 0
        #: What is ready to be received, by command; that of the pool is under the empty name.
        self._ready: dict[str, bytes] = {}

    def open(self, body: bytes) -> None:
        """Take the two messages that begin a pool, and make the three that answer them."""
        kinds = [message.kind for message in self._messages(body)]
        if kinds != [MessageType.SESSION_CAPABILITY, MessageType.INIT_RUNSPACEPOOL]:
            raise ValueError(kinds)
        self._ready[""] = b"".join(
            self._packed(message)
            for message in (
                SessionCapability("2.3", "2.0", "1.1.0.1"),
                _PrivateData({}),
                _PoolState(state=RunspacePoolState.OPENED),
            )
        )

    def take(self, command: str, body: bytes) -> None:
        """Take a part of a pipeline, and run it once it is whole."""
        for message in self._messages(body):
            if message.kind == MessageType.CREATE_PIPELINE:
                self._ready[command] = self._pipeline(message)

    def receive(self, command: str) -> bytes | None:
        """Give what is ready; None when nothing is."""
        return self._ready.pop(command, None)

    def _messages(self, body: bytes) -> Iterator[_Message]:
        """Put fragments together; the last one of a message brings it."""
        while body:
            part, body = Fragment.unpack(body)
            self._parts[part.object_id] = self._parts.get(part.object_id, b"") + part.data
            if part.end:
                whole = self._parts.pop(part.object_id)
                kind = struct.unpack("<I", whole[4:8])[0]
                yield _Message(kind, str(uuid.UUID(bytes_le=whole[24:40])), whole[40:])

    def _pipeline(self, message: _Message) -> bytes:
        pid, (script, given) = message.pid, _asked(message.body)
        text = self._run(script, given)
        output = self._serializer.serialize(text)
        assert output is not None  # noqa: S101 - a string always has a form
        done = _PipelineState(state=PSInvocationState.COMPLETED)
        said = self._framed(MessageType.PIPELINE_OUTPUT, pid, ET.tostring(output))
        return said + self._packed(done, pid)

    def _packed(self, message: Any, pid: str | None = None) -> bytes:
        body = self._serializer.serialize(message)
        assert body is not None  # noqa: S101 - a message always has a form
        return self._framed(message.MESSAGE_TYPE, pid, ET.tostring(body, encoding="utf-8"))

    def _framed(self, kind: int, pid: str | None, body: bytes) -> bytes:
        whole = struct.pack("<II", Destination.CLIENT, kind)
        whole += uuid.UUID(self._rpid).bytes_le + uuid.UUID(pid or "0" * 32).bytes_le + body
        self._counter += 1
        parts = [whole[start : start + _MOST] for start in range(0, len(whole), _MOST)]
        last = len(parts) - 1
        return b"".join(
            bytes(Fragment(self._counter, i, part, i == 0, i == last).pack())
            for i, part in enumerate(parts)
        )


def _asked(body: bytes) -> tuple[str, dict[str, Any]]:
    """The one script of a pipeline, and its parameters by name."""
    root = ET.fromstring(body.removeprefix(b"\xef\xbb\xbf"))  # noqa: S314 - of who started us
    (command,) = root.findall(".//Obj[@N='Cmds']/LST/Obj/MS")
    script = _plain(command.findtext("S[@N='Cmd']", ""))
    given = {}
    for argument in command.findall("Obj[@N='Args']/LST/Obj/MS"):
        name = argument.findtext("S[@N='N']", "")
        (value,) = argument.findall("*[@N='V']")
        text = _plain(value.text or "")
        given[name.lstrip("-")] = int(text) if value.tag == "I32" else text
    return script, given


def _plain(text: str) -> str:
    """Text as it was before it was put into XML."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
