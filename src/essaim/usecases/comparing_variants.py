"""What is compared: a sweep's variants, their names, and what is to be known about each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from essaim.config.compose import Composed, compose, sweep
from essaim.config.serial import fingerprint
from essaim.config.workloads import (
    Scheduler,
    Workload,
    digest,
    read_workload,
    scheduler_of,
    split,
)
from essaim.model.machines import Form
from essaim.usecases.comparing_jobs import check

if TYPE_CHECKING:
    from essaim.model.stacks import Image
    from essaim.usecases.services import Services

#: Letters of a variant's label that its stack's name has room for.
LABEL = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One of the things that are compared."""

    key: str  #: such as 1-slurm
    label: str  #: what people call it
    overrides: tuple[str, ...]  #: of the stack
    composed: Composed  #: as the user would have it, under its own name
    workload: Workload
    scheduler: Scheduler
    digest: str  #: of all that decides about the outcome


def variants_of(where: str, overrides: Sequence[str], workload: str) -> list[Variant]:
    """Compose everything a sweep stands for; InvalidError before anything is raised."""
    combinations = sweep(where, overrides)
    labels = label(combinations)
    found = []
    for number, combination in enumerate(combinations, start=1):
        about_stack, about_workload = split(combination)
        composed = compose(where, about_stack)
        its = read_workload(workload, about_workload)
        scheduler = scheduler_of(composed)
        check(composed.stack, scheduler, its)
        name = labels[number - 1] or composed.stack.name
        found.append(
            Variant(
                key=f"{number}-{slug(name)}".rstrip("-"),
                label=name,
                overrides=about_stack,
                composed=composed,
                workload=its,
                scheduler=scheduler,
                digest=digest(its, scheduler, fingerprint(composed.stack)),
            )
        )
    return found


def label(combinations: Sequence[Sequence[str]]) -> list[str]:
    """Name each combination by the values it alone has: words bare, numbers with their key."""
    swept = [len(set(column)) > 1 for column in zip(*combinations, strict=True)]
    return [
        " ".join(_short(each) for each, differs in zip(overrides, swept, strict=True) if differs)
        for overrides in combinations
    ]


def slug(text: str) -> str:
    """The text as part of a stack's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:LABEL].strip("-")


def _short(override: str) -> str:
    key, _, value = override.lstrip("+").partition("=")
    is_word = bool(re.fullmatch(r"[A-Za-z][\w.-]*", value)) and value not in ("true", "false")
    return value if is_word else f"{key.removeprefix('workload.')}={value}"


def about(services: Services, variant: Variant, version: str) -> dict[str, Any]:
    """What a report has to say about a variant, but its figures."""
    stack = variant.composed.stack
    form = services.driver(stack.site).form
    nodes = [m for m in stack.machines if variant.scheduler.node in m.roles]
    return {
        "overrides": list(variant.overrides),
        "configuration": fingerprint(stack),
        "digest": variant.digest,
        "scheduler": variant.scheduler.summary or variant.scheduler.name,
        "version": version,
        "images": [_image(services, image, form) for image in stack.images.values()],
        "site": stack.site.name,
        "driver": stack.site.driver,
        "machines": len(stack.machines),
        "nodes": len(nodes),
        "cores": sum(m.size.cores for m in nodes),
        "memory": sum(m.size.memory for m in nodes),
        "workload": asdict(variant.workload),
    }


def _image(services: Services, image: Image, form: str) -> dict[str, Any]:
    """An image, and what is known of it when it was built here."""
    said = [built.manifest for built in services.images.list()]
    own: dict[str, Any] = next(
        (m for m in said if (m["digest"], m.get("form", Form.ROOTFS)) == (image.digest, form)), {}
    )
    told = ("built_at", "tools", "form", "sha256")
    known = {key: value for key, value in own.items() if key in told}
    return {"name": image.name, "builder": image.builder, "digest": image.digest, **known}
