"""What is sent to us.  Whatever is not described here is refused."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from essaim.model import fleet, public_keys
from essaim.usecases import api_tokens, people
from essaim.usecases import leases as renting
from essaim.usecases import nodes as joining

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJx1rKqXl7ZJcG9Vt0mC3o2y5QnC8m8m0mJ3H1g0Yy2k me@here"


def _whole(text: str) -> str:
    # Databases keep neither; a half of a character cannot even be sent to them.
    if "\x00" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("must be whole characters, without NUL")
    return text


def _all_of(pattern: re.Pattern[str]) -> str:
    return f"^({pattern.pattern})$"


# What the use cases accept, told in advance: a description that is exact can be relied on.
WORD = _all_of(joining.WORD)
MAY_BE_EMPTY = f"^({joining.WORD.pattern})?$"

Text = Annotated[str, Field(max_length=190), AfterValidator(_whole)]
Secret = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_whole)]
Word = Annotated[str, Field(pattern=WORD)]
WordOrNothing = Annotated[str, Field(pattern=MAY_BE_EMPTY)]
HostKey = Annotated[str, Field(max_length=8192, pattern=_all_of(joining.HOST_KEY))]
PublicKey = Annotated[str, Field(max_length=8192, pattern=_all_of(public_keys.PUBLIC_KEY))]
Labels = Annotated[dict[Word, WordOrNothing], Field(max_length=renting.MOST_LABELS)]
LeaseId = Annotated[str, Field(pattern=r"^l-[a-z0-9]{4,24}$", examples=["l-3k9x2m7q"])]


class Asked(BaseModel):
    """Something that is sent to us."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class NamePassword(Asked):
    """Who, and the proof."""

    name: Text = Field(examples=["ada"], description="Of the account")
    password: Secret = Field(
        examples=["a sentence that nobody guesses"], description="Of the account"
    )


class NewPerson(Asked):
    """Who somebody wants to be, and how they will prove it."""

    name: str = Field(
        pattern=_all_of(people.NAME),
        examples=["ada"],
        description="Lower-case letters, digits, dots, dashes",
    )
    password: Secret = Field(
        examples=["a sentence that nobody guesses"],
        description="At least ten characters that nobody guesses",
    )
    invite: str = Field(
        "",
        max_length=1024,
        pattern=r"^[\x21-\x7e]*$",
        examples=["invite_8fQ3kx"],
        description="The code one was given, where sign-up needs one",
    )


class RefreshToken(Asked):
    """A refresh token, which serves once."""

    refresh: Secret = Field(examples=["refresh_kq3…"], description="From the last login or refresh")


Current = Annotated[
    str | None,
    Field(
        max_length=1024,
        examples=["a sentence that nobody guesses"],
        description="The caller's own password; not needed within ten minutes of a login",
    ),
    AfterValidator(lambda text: text if text is None else _whole(text)),
]


class Change(Asked):
    """What shall be different about a person; the rest stays."""

    role: fleet.Role | None = Field(None, description="What they may do")
    project: str | None = Field(
        None,
        pattern=f"^({people.PROJECT.pattern})?$",
        examples=["compilers"],
        description="Whose limits hold for them too; empty for none",
    )
    machines: int | None = Field(
        None, ge=0, le=people.MOST_MACHINES, examples=[8], description="At the same time"
    )
    hours: float | None = Field(
        None,
        ge=0,
        le=people.MOST_HOURS,
        examples=[500],
        description="Machine-hours in any thirty days",
    )
    disabled: bool | None = Field(None, description="May not log in")
    password: Secret | None = Field(None, description="A new one; ends all their sessions")
    current: Current = None


class Limits(Asked):
    """What the people of a project may have together; the rest stays."""

    machines: int | None = Field(
        None, ge=0, le=people.MOST_MACHINES, examples=[40], description="At the same time"
    )
    hours: float | None = Field(
        None,
        ge=0,
        le=people.MOST_HOURS,
        examples=[2000],
        description="Machine-hours in any thirty days",
    )
    current: Current = None


class NewToken(Asked):
    """What a program shall be let in for."""

    name: str = Field(
        min_length=1,
        max_length=60,
        pattern=r"^[\w .@/-]+$",
        examples=["nightly tests"],
        description="What it is for, to recognise it",
    )
    scope: fleet.Scope = Field(
        examples=["rent"],
        description="What the program may do: read, rent, operate or admin; never more than you",
    )
    expires_in: int = Field(
        api_tokens.USUAL,
        ge=api_tokens.SHORTEST,
        le=api_tokens.LONGEST,
        description="Seconds until it ends",
    )
    current: Current = None


class Enrolment(Asked):
    """How many machines may join, for how long, and what is said of them."""

    uses: int = Field(1, ge=1, le=joining.MOST_USES, description="How many machines may join")
    seconds: int = Field(3600, ge=1, le=joining.LONGEST, description="For how long")
    site: WordOrNothing = Field("", examples=["room-12"], description="Where they stand")
    labels: Labels = Field(
        default_factory=dict, examples=[{"gpu": "no"}], description="Said of each of them"
    )
    approve: bool = Field(
        default=False, description="They serve nobody before an administrator approves each"
    )


class Joining(Asked):
    """Who wants to join."""

    token: Secret = Field(examples=["enrol_8fQ…"], description="The enrolment token")


class Announcement(Asked):
    """What an agent says about its machine when it joins."""

    token: Secret = Field(examples=["enrol_8fQ…"], description="The enrolment token")
    name: Word = Field(examples=["pc-12-03"], description="Its host name")
    cores: int = Field(ge=1, le=joining.MOST_CORES, examples=[8], description="Processors")
    memory: int = Field(ge=1, le=joining.MOST_MEMORY, description="MiB", examples=[16000])
    labels: Labels = Field(default_factory=dict, description="What may be asked for when renting")
    site: WordOrNothing = Field("", description="Where it stands")
    address: Text = Field("", description="Where SSH answers", examples=["192.0.2.17"])
    port: int = Field(22, ge=1, le=joining.LAST_PORT, description="Of its SSH server")
    host_key: HostKey = Field(
        examples=["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJx1rKqXl7ZJcG9V"],
        description="Of its SSH server, to pin",
    )
    tunnel: bool = Field(default=False, description="Only reachable through its own connection")
    tunnel_key: HostKey | Literal[""] = Field("", description="The key its tunnel will show")
    agent_version: Text = Field("", description="Of the agent")

    def said(self) -> fleet.Announcement:
        """The announcement, without the token."""
        return fleet.Announcement(**self.model_dump(exclude={"token"}))


class Beat(Asked):
    """One heartbeat.  `seq` grows within a boot."""

    boot_id: Text = Field(
        min_length=1,
        examples=["6b1f0d5e-6f5c-4a55-9a55-0d7f0f3e9b1c"],
        description="Differs after each boot",
    )
    seq: int = Field(
        ge=0, lt=joining.BIG, examples=[17], description="Grows with each heartbeat of a boot"
    )
    load: float = Field(
        0.0, ge=0, lt=joining.BIG, examples=[0.25], description="Load average of one minute"
    )
    accounts: tuple[Text, ...] = Field(
        (),
        max_length=1000,
        examples=[["l-3k9x2m7q"]],
        description="Accounts of leases that exist there",
    )

    def said(self) -> fleet.Beat:
        """The heartbeat."""
        return fleet.Beat(
            boot_id=self.boot_id, seq=self.seq, load=self.load, accounts=self.accounts
        )


class Drain(Asked):
    """Whether a node shall take no more leases."""

    on: bool = Field(default=True, description="False: let it serve again")


class Rent(Asked):
    """What somebody wants to rent: all of it or nothing."""

    public_key: PublicKey = Field(examples=[KEY], description="One line of ~/.ssh/*.pub")
    count: int = Field(1, ge=1, le=renting.MOST_MACHINES, description="Machines")
    cores: int = Field(1, ge=1, le=renting.MOST_CORES, description="Of each, at least")
    memory: int = Field(0, ge=0, le=renting.MOST_MEMORY, description="MiB of each, at least")
    labels: Labels = Field(
        default_factory=dict,
        examples=[{"gpu": "no"}],
        description="What each must be labelled with",
    )
    site: WordOrNothing = Field("", description="Anywhere when empty")
    seconds: int = Field(3600, ge=renting.SHORTEST, le=renting.LONGEST, description="For how long")
    priority: int = Field(
        0, ge=-renting.PRIORITIES, le=renting.PRIORITIES, description="For operators"
    )
    home: bool = Field(default=True, description="Keep copies of the home, in case a machine dies")
    hold: int = Field(
        0,
        ge=0,
        le=renting.LONGEST_HOLD,
        description="Seconds to keep the machines when they are released as failed",
    )
    patience: float = Field(2.0, ge=0, le=10, description="Seconds to wait for the access")

    def wish(self) -> fleet.Wish:
        """What is wanted."""
        return fleet.Wish(**self.model_dump(exclude={"public_key", "patience"}))


class Extend(Asked):
    """Which lease shall last longer."""

    lease: LeaseId = Field(description="Which one")
    seconds: int = Field(ge=1, le=renting.LONGEST, examples=[3600], description="How much longer")


class Release(Asked):
    """Which lease is given back, and whether what ran there failed."""

    lease: LeaseId = Field(description="Which one")
    failed: bool = Field(default=False, description="Hold the machines, if `hold` was asked for")
