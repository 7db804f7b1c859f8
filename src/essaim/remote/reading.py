"""What a template reads of the values that are not known before, or must not be shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from essaim.remote.render import environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    import jinja2
    from jinja2.nodes import Template

    from essaim.model.roles import Role, RoleFile

_LIVE = ("needs", "vars")


def reads(role: Role, file: RoleFile) -> frozenset[str]:
    """Name what a file takes from `needs` and `vars`, such as `needs.key` and `vars.port`.

    The bare word `vars` stands for all of them, wherever that cannot be told.  Templates that it
    includes count as part of it.
    """
    if file.copy is not None:
        return frozenset()
    jinja = environment(role.path, role.digest)
    found: set[str] = set()
    if file.template is None:
        found.update(_reads(jinja, jinja.parse(file.content or ""), set()))
    else:
        found.update(_of_file(jinja, file.template, set()))
    return frozenset(found)


def _of_file(jinja: jinja2.Environment, name: str, seen: set[str]) -> Iterator[str]:
    import jinja2  # noqa: PLC0415 - heavy

    if name in seen or jinja.loader is None:
        return
    seen.add(name)
    try:
        text = jinja.loader.get_source(jinja, name)[0]
    except jinja2.TemplateNotFound:
        return  # it may be one that need not be there; if not, rendering says which and where
    yield from _reads(jinja, jinja.parse(text), seen)


def _reads(jinja: jinja2.Environment, tree: Template, seen: set[str]) -> Iterator[str]:
    from jinja2 import meta, nodes  # noqa: PLC0415 - heavy

    named = set()  # names that stand before a known key
    for node in tree.find_all((nodes.Getattr, nodes.Getitem)):
        assert isinstance(node, nodes.Getattr | nodes.Getitem)  # noqa: S101 - for the type checker
        key = _key(node)
        if key and isinstance(node.node, nodes.Name) and node.node.name in _LIVE:
            named.add(id(node.node))
            yield f"{node.node.name}.{key}"
    for name in tree.find_all(nodes.Name):
        if name.name in _LIVE and name.ctx == "load" and id(name) not in named:
            yield name.name
    for other in meta.find_referenced_templates(tree):
        if other is None:
            yield from _LIVE  # which one it is, only rendering would tell
        else:
            yield from _of_file(jinja, other, seen)


def _key(node: object) -> str:
    from jinja2 import nodes  # noqa: PLC0415 - heavy

    if isinstance(node, nodes.Getattr):
        return node.attr
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        return str(node.arg.value)
    return ""
