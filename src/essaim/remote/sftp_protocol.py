"""The SFTP protocol (version 3) on the pipes of an OpenSSH client."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import threading
from typing import TYPE_CHECKING

from essaim.model.errors import RejectedError, SetupError, TransientError
from essaim.remote.files import FileInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: No answer is longer; OpenSSH's limit.
LONGEST = 256 * 1024
#: Seconds for ssh to end once its pipes are closed.
END_WITHIN = 5.0

INIT, VERSION = 1, 2
STATUS, HANDLE, DATA, NAME, ATTRS, EXTENDED, EXTENDED_REPLY = 101, 102, 103, 104, 105, 200, 201
OK, EOF, NO_SUCH_FILE, DENIED, FAILURE, UNSUPPORTED = 0, 1, 2, 3, 4, 8
HAS_SIZE, HAS_IDS, HAS_MODE, HAS_TIMES, HAS_MORE = 1, 2, 4, 8, 0x80000000


class StatusError(Exception):
    """The server refused a request."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Packet:
    """Reads the fields of one answer."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def number(self) -> int:
        """Read a number."""
        return int(self._take(">I")[0])

    def text(self) -> bytes:
        """Read a text."""
        size = self.number()
        self._at += size
        return self._body[self._at - size : self._at]

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Read pairs of texts to the end."""
        while self._at < len(self._body):
            yield self.text(), self.text()

    def info(self) -> FileInfo:
        """Read the attributes of a file."""
        flags = self.number()
        size = self._take(">Q")[0] if flags & HAS_SIZE else 0
        uid = self._take(">II")[0] if flags & HAS_IDS else -1
        mode = self.number() if flags & HAS_MODE else 0
        modified = self._take(">II")[1] if flags & HAS_TIMES else 0
        if flags & HAS_MORE:
            for _ in range(self.number()):
                self.text(), self.text()
        return FileInfo(mode=mode, size=size, modified=float(modified), uid=uid)

    def longs(self, count: int) -> tuple[int, ...]:
        """Read so many numbers of eight bytes."""
        return self._take(f">{count}Q")

    def _take(self, form: str) -> tuple[int, ...]:
        size = struct.calcsize(form)
        self._at += size
        return struct.unpack(form, self._body[self._at - size : self._at])


def pack(value: str | bytes) -> bytes:
    """Give a text as the protocol has it."""
    body = os.fsencode(value)
    return struct.pack(">I", len(body)) + body


class Connection:
    """One SFTP session.  Used by one thread.

    `command` is the ssh command that opens a shell there, without a remote command: options, then
    the destination.  `name` is what messages call the machine.
    """

    def __init__(self, command: Sequence[str], *, name: str) -> None:
        self.name = name
        self._process = _start(command)
        self._said: list[bytes] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._number = 0
        self._answers: dict[int, tuple[int, Packet]] = {}
        self.unwanted: set[int] = set()  #: requests whose answers nobody waits for
        try:
            self.extensions = self._greet()
        except BaseException:
            self.close()
            raise

    def _greet(self) -> dict[bytes, bytes]:
        """Agree on the version; gives what the server can besides."""
        self._write(INIT, struct.pack(">I", 3))
        kind, body = self._receive()
        if kind != VERSION:
            raise RejectedError(f"{self.name}: no SFTP server answers there")
        body.number()
        return dict(body.pairs())

    def close(self) -> None:
        """End the connection."""
        process = self._process
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        try:
            process.wait(END_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._listener.join(END_WITHIN)

    def ask(self, kind: int, body: bytes, *, expect: int) -> Packet:
        """Send a request and wait for its answer; StatusError when it is refused."""
        return self.answer(self.send(kind, body), expect=expect)

    def send(self, kind: int, body: bytes) -> int:
        """Send a request; its number is what `answer` wants."""
        self._number = (self._number + 1) % 2**32
        self._write(kind, struct.pack(">I", self._number) + body)
        return self._number

    def _write(self, kind: int, body: bytes) -> None:
        pipe = self._process.stdin
        try:
            if pipe is not None:
                pipe.write(struct.pack(">IB", len(body) + 1, kind) + body)
        except (OSError, ValueError) as error:
            raise self._lost() from error

    def answer(self, number: int, *, expect: int = STATUS) -> Packet:
        """Wait for the answer to a request; StatusError when it is refused."""
        while number not in self._answers:
            kind, body = self._receive()
            got = body.number()
            if got in self.unwanted:
                self.unwanted.discard(got)
            else:
                self._answers[got] = (kind, body)
        kind, body = self._answers.pop(number)
        if kind == STATUS:
            code = body.number()
            if code != OK or expect != STATUS:
                raise StatusError(code, body.text().decode(errors="replace"))
        elif kind != expect:
            raise RejectedError(f"{self.name}: the SFTP server gave an answer of kind {kind}")
        return body

    def _receive(self) -> tuple[int, Packet]:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise self._lost()
        try:
            stdin.flush()
            head = stdout.read(5)
            if len(head) < 5:  # noqa: PLR2004 - a length and a kind
                raise self._lost()
            size, kind = struct.unpack(">IB", head)
            if not 1 <= size <= LONGEST:
                raise RejectedError(
                    f"{self.name}: what answers there is no SFTP server",
                    hint="a login script that prints something even without a terminal?",
                )
            body = stdout.read(size - 1)
        except (OSError, ValueError) as error:
            raise self._lost() from error
        if len(body) < size - 1:
            raise self._lost()
        return kind, Packet(body)

    def _listen(self) -> None:
        """Keep what ssh says, and what the machine says beside the protocol."""
        pipe = self._process.stderr
        if pipe is not None:
            with pipe:
                for line in pipe:
                    self._said = [*self._said[-9:], line]

    def _lost(self) -> RejectedError | TransientError:
        """Say why the connection ended, in ssh's words where it had any."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._listener.join(END_WITHIN)
        lines = [line.decode(errors="replace").strip() for line in self._said]
        lines = [line.removeprefix("essaim: ") for line in lines if line]
        if any("subsystem request failed" in line for line in lines):
            return RejectedError(
                f"{self.name}: there is no SFTP server",
                hint="install openssh-sftp-server there",
            )
        said = "; ".join(lines)
        return TransientError(f"{self.name}: {said or 'the connection was lost'}")


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    program, *rest = command
    options = ["ConnectTimeout=30", "ServerAliveInterval=15", "ServerAliveCountMax=4"]
    words = [program, "-s", *(word for each in options for word in ("-o", each)), *rest, "sftp"]
    try:
        return subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=LONGEST,
        )
    except FileNotFoundError as error:
        raise SetupError("there is no ssh here", hint="apt-get install openssh-client") from error
