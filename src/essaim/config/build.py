"""Composed values become a frozen stack, or a list of everything that is wrong with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from essaim.config.autonomy import check_autonomy
from essaim.config.drivers import DRIVERS, read_site
from essaim.config.images import image_names, read_image
from essaim.config.overrides import on_command_line
from essaim.config.problems import Problems
from essaim.config.relations import check_needs, check_secrets, gather
from essaim.config.roles import ReadRole, role_exists, role_names
from essaim.config.schema import SizeSchema, StackSchema
from essaim.config.secrets import references, resolve_secret
from essaim.config.topology import Layout, check_groups, machines, network_of, places
from essaim.model.errors import InvalidError, Place, Problem, UnknownError
from essaim.model.names import NAME
from essaim.model.spelling import meant, near
from essaim.model.stacks import Image, Network, Site, Size, Stack

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from essaim.config.composition import Composition
    from essaim.config.documents import Keys
    from essaim.config.tree import Tree

#: The role of every machine whose driver does not tell machines each other's names.
NAMES = "names"

#: Keys of a stack below which a secret may stand; everywhere else it would be shown or stored.
_SECRET_PLACES = ("vars", "site")


def blaming(composition: Composition) -> Problems:
    """Problems that name the line, or the argument, that set the value in question."""
    top = Place(composition.tree.read(composition.tree.stack).name, 1)

    def report(path: Keys, what: str, hint: str) -> Problem:
        origin = composition.provenance.culprit(path)
        if origin is not None and origin.argument:
            return on_command_line(origin.argument, what, hint)
        return Problem(what, (origin and origin.place) or top, hint)

    return Problems(report)


def build(
    composition: Composition, values: dict[str, Any], overrides: Sequence[str], problems: Problems
) -> Stack:
    """Check the values and make the stack; InvalidError lists every problem found."""
    tree = composition.tree
    known = {key: value for key, value in values.items() if key in StackSchema.model_fields}
    _check_keys(composition, values, problems)
    schema = problems.validate(StackSchema, known)
    for path, secret in references(known):
        if path[0] not in _SECRET_PLACES:
            what = f"the secret {secret.name} may stand only below vars and site"
            problems.add(path, what)
    if schema is None:
        raise InvalidError(problems.found)
    _check_names(schema, problems)
    check_groups(schema.topology, problems)
    sizes = _sizes(tree, schema, problems)
    images = _images(tree, schema, problems)
    site = read_site(known["site"], problems)
    every = (NAMES,) if site and not DRIVERS[site.driver].names else ()
    roles = _roles(tree, schema, every, problems)
    given = {name: values for name, values in schema.vars.items() if name in roles}
    _check_vars(tree, schema, roles, problems)
    problems.found += check_secrets(roles, given)
    if schema.bootstrap == "cloud-init":
        check_autonomy(schema, site, roles, problems)
    network = network_of(schema.network.cidr, problems)
    _check_resolvable(tree, roles, known, problems)
    if network is None or site is None or problems.found:
        raise InvalidError(problems.found)
    layout = Layout(
        stack=schema.name,
        image=schema.image,
        groups=schema.topology,
        sizes=sizes,
        network=network,
        every=every,
        shared=schema.shared if DRIVERS[site.driver].shares else (),
    )
    where = places(layout, problems)
    problems.check()
    made = tuple(machines(layout, where, problems))
    problems.check()
    return Stack(
        name=schema.name,
        site=site,
        network=Network(
            cidr=str(network), internet=schema.network.internet and DRIVERS[site.driver].enclosed
        ),
        machines=made,
        images=images,
        roles={name: read.role for name, read in roles.items()},
        vars=given,
        bootstrap=schema.bootstrap,
        hints=tuple(schema.hints),
        source=tree.where,
        overrides=tuple(overrides),
        notes=tuple(_notes(schema, site)),
    )


def _notes(schema: StackSchema, site: Site) -> Iterator[str]:
    """Say what the site does not give."""
    if schema.shared and not DRIVERS[site.driver].shares:
        folders = ", ".join(schema.shared)
        yield f"site {site.name} shares no folders: every machine has {folders} for itself"


def _check_keys(composition: Composition, values: dict[str, Any], problems: Problems) -> None:
    """Refuse top-level keys that nothing uses.

    A key is a stack's own when a group fills it or an interpolation names it.  The levels above a
    stack may hold values that only other stacks use, unless they look like a misspelling.
    """
    named = composition.provenance.named()
    for key in values:
        if key in StackSchema.model_fields or key in composition.groups or key in named:
            continue
        inherited = composition.provenance.levels(key).isdisjoint(("feature", "command line"))
        if inherited and not near(key, StackSchema.model_fields):
            continue
        hint = meant(key, StackSchema.model_fields) or f"nothing here uses ${{{key}}}"
        problems.add((key,), f"unknown key {key}", hint)


def _check_names(schema: StackSchema, problems: Problems) -> None:
    for path, name in ((("name",), schema.name), (("site", "name"), schema.site.name)):
        if not NAME.fullmatch(name):
            hint = "at most 40 small letters, digits and dashes, a letter first"
            problems.add(path, f"{'.'.join(path)} cannot be {name!r}", hint)


def _sizes(tree: Tree, schema: StackSchema, problems: Problems) -> dict[str, Size]:
    """Find the size of each group: its own, or the stack's."""
    result: dict[str, Size] = {}
    default: Size | None = None
    for name, group in schema.topology.items():
        if group.size is not None:
            size = _size(tree, group.size, ("topology", name, "size"), problems)
        else:
            size = default = default or _size(tree, schema.size, ("size",), problems)
        if size is None:
            break
        result[name] = size
    return result


def _size(tree: Tree, value: Any, at: Keys, problems: Problems) -> Size | None:
    if not isinstance(value, str):
        schema = problems.validate(SizeSchema, value, at)
    else:
        file = tree.find(f"size/{value}.yaml")
        if file is None:
            hint = meant(value, tree.options("size"), kind="sizes")
            problems.add(at, f"there is no size {value}", hint)
            return None
        document = tree.read(file)
        inner = Problems.of_file(document)
        schema = inner.validate(SizeSchema, document.data)
        problems.found += inner.found
    return Size(**dict(schema)) if schema else None


def _images(tree: Tree, schema: StackSchema, problems: Problems) -> dict[str, Image]:
    result: dict[str, Image] = {}
    missing: set[str] = set()
    for group, settings in schema.topology.items():
        name = settings.image or schema.image
        if name in result or name in missing:
            continue
        at = ("topology", group, "image") if settings.image else ("image",)
        try:
            image = read_image(tree, name)
        except InvalidError as exc:
            problems.found += exc.problems
            missing.add(name)
            continue
        if image is None:
            hint = meant(name, image_names(tree), kind="images")
            problems.add(at, f"there is no image {name}", hint)
            missing.add(name)
        else:
            result[name] = image
    return result


def _roles(
    tree: Tree, schema: StackSchema, every: Sequence[str], problems: Problems
) -> dict[str, ReadRole]:
    """Read the roles machines carry, those that every machine does included."""
    wanted: list[str] = list(every)
    carried: set[str] = set(every)
    for group, settings in schema.topology.items():
        for index, role in enumerate(settings.roles):
            at = ("topology", group, "roles", str(index))
            if not role_exists(tree, role):
                hint = meant(role, role_names(tree), kind="roles")
                problems.add(at, f"there is no role {role}", hint)
            elif role in settings.roles[:index]:
                problems.add(at, f"the role {role} is given to {group} twice")
            wanted.append(role)
            if settings.count != 0:
                carried.add(role)
    roles = gather(tree, wanted, problems.found)
    problems.found += check_needs(roles, carried)
    return roles


def _check_vars(
    tree: Tree, schema: StackSchema, roles: Mapping[str, ReadRole], problems: Problems
) -> None:
    """Variables are those their role declares; roles that are not used may have some too."""
    for role, variables in schema.vars.items():
        if role not in roles:
            if not role_exists(tree, role):
                hint = meant(role, role_names(tree), kind="roles")
                problems.add(("vars", role), f"there is no role {role}", hint)
            continue
        declared = roles[role].role.vars
        for name in variables if roles[role].role.ansible is None else ():
            if name not in declared:
                hint = meant(name, declared, kind="it has")
                problems.add(("vars", role, name), f"the role {role} has no variable {name}", hint)


def _check_resolvable(
    tree: Tree, roles: Mapping[str, ReadRole], known: dict[str, Any], problems: Problems
) -> None:
    """Look for every secret the stack uses, so that none turns out to be missing half-way."""
    given = known.get("vars") or {}
    for path, secret in references({key: known.get(key) for key in _SECRET_PLACES}):
        if path[0] == "site" or path[1] in roles:
            _resolvable(tree, secret.name, path, problems)
    for name, read in roles.items():
        inner = Problems.of_file(read.document)
        own = {k: v for k, v in read.role.vars.items() if k not in (given.get(name) or {})}
        for path, secret in references(own, ("vars",)):
            _resolvable(tree, secret.name, path, inner)
        problems.found += inner.found


def _resolvable(tree: Tree, name: str, path: Keys, problems: Problems) -> None:
    try:
        resolve_secret(name, tree.lab)
    except UnknownError as exc:
        problems.add(path, exc.what, exc.hint)
