"""The builder `tiny`: Debian's kernel, busybox and dropbear on a small disk that boots in seconds.

Settings: `suite`, `size` (MiB, 256), `packages` (more of Debian's, unpacked but not configured),
`modules` (more of the kernel's, loaded at boot), `kernel` (a package), `mitigations` (true; false
leaves the processor's faults open to programs, for speed), `mirror`, `components`.
The files it adds to Debian's are in `files/tiny`.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim.images import debian, disks, initrds
from essaim.images.inside import as_root, check_tools, environment, remove_tree
from essaim.images.programs import must, run, version
from essaim.model.errors import RejectedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from essaim.images.builders import Job
    from essaim.model.stacks import Image

FILES = Path(__file__).parent / "files" / "tiny"
PACKAGES = ("busybox-static", "dropbear-bin")
KERNEL = "linux-image-cloud-amd64"
#: In the order in which they are loaded; what each needs comes before it.
MODULES = (
    "virtio_net", "virtio_rng", "isofs", "nls_iso8859_1", "af_packet", "button", "evdev",
)  # fmt: skip
#: Of what packages bring: nothing that no program here reads.
_LEFT_OUT = re.compile(
    r"usr/(share/(doc|man|info|locale|lintian|bash-completion|i18n|apparmor|common-licenses)"
    r"|lib/[^/]*/(gconv|audit|perl-base)|lib/init|include)(/.*)?"
    r"|.*/(libm|libmvec|libthread_db|libanl|libnsl|libpcprofile|libmemusage|libBrokenLocale"
    r"|libnss_(compat|hesiod)|libc_malloc_debug|librt|libutil|libpthread|libdl|libnss_dns"
    r"|libnss_files)[.-].*"
    r"|etc/ld\.so\.conf.*|usr/s?bin/(ldconfig|iconvconfig)|etc/(default|init\.d)(/.*)?"
)
_URI = re.compile(r"'[^']+/[^/']+' (\S+\.deb) \d+ ")
_FOLDERS = (
    "boot", "dev", "home", "mnt", "opt", "proc", "root", "run", "srv", "sys", "tmp",
    "usr/bin", "usr/lib", "usr/lib64", "usr/local/bin", "usr/local/sbin", "usr/sbin",
    "var/cache", "var/lib/essaim", "var/log", "var/spool", "var/tmp", "etc/profile.d",
)  # fmt: skip
_MODES = {"etc/shadow": 0o600, "root": 0o700, "tmp": 0o1777, "var/tmp": 0o1777}
_MERGED = ("bin", "lib", "lib64", "sbin")
#: Nothing on the screen is read by anybody; each of the others spares the kernel a test of
#: hardware that is known to be good or not there.
COMMAND_LINE = (
    "root=/dev/vda1 console=ttyS0 quiet panic=5 random.trust_cpu=on no_timer_check "
    "cryptomgr.notests"
)


def _edition() -> str:
    """Give a word for all that decides what is made: these files and this code."""
    sources = [Path(module.__file__ or "") for module in (disks, initrds)]
    files = sorted(path for path in FILES.rglob("*") if path.is_file())
    parts = [path.read_bytes() for path in (Path(__file__), *sources, *files)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:8]


EDITION = _edition()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The settings of an image, checked."""

    suite: str
    kernel: str
    packages: tuple[str, ...]
    modules: tuple[str, ...]
    size: int
    mitigations: bool
    sources: tuple[str, ...]


def recipe(name: str, settings: Mapping[str, Any]) -> Recipe:
    """Check an image's settings; RejectedError names the one that is wrong."""
    unknown = settings.keys() - {
        "summary", "suite", "size", "packages", "modules", "kernel", "mirror", "components",
        "mitigations",
    }  # fmt: skip
    if unknown:
        raise RejectedError(f"image {name}: builder tiny knows no setting {min(unknown)}")
    plain = debian.recipe(name, settings)
    size = settings.get("size", 256)
    least = 64
    if not isinstance(size, int) or size < least:
        raise RejectedError(f"image {name}: size {size!r} is not a number of MiB from {least} on")
    modules = settings.get("modules", ())
    if not all(isinstance(module, str) and re.fullmatch(r"\w+", module) for module in modules):
        raise RejectedError(f"image {name}: modules must be names of the kernel's modules")
    kernel = settings.get("kernel", KERNEL)
    if not (isinstance(kernel, str) and re.fullmatch(r"linux-image-[a-z0-9.+-]+", kernel)):
        raise RejectedError(f"image {name}: kernel {kernel!r} is not the name of a package")
    return Recipe(
        suite=plain.suite,
        kernel=kernel,
        packages=(*PACKAGES, *plain.packages),
        modules=(*MODULES, *modules),
        size=size,
        mitigations=bool(settings.get("mitigations", True)),
        sources=plain.sources,
    )


def check(image: Image) -> None:
    """See that the settings make sense and that there is all a disk is made with."""
    recipe(image.name, image.settings)
    check_tools(**disks.TOOLS)
    disks.check_grub()


def build(job: Job) -> dict[str, Any]:
    """Make the disk: the same packages give the same disk, bit by bit."""
    wanted = recipe(job.image.name, job.image.settings)
    packages = _download(job, wanted)
    unpacked, root = job.home / "unpacked", job.home / "root"
    for folder in (unpacked, *(root / name for name in _FOLDERS)):
        folder.mkdir(parents=True, exist_ok=True)
    for name in _MERGED:
        (root / name).symlink_to(f"usr/{name}")
    for file in packages:
        job.say(f"unpacking {file.partition('_')[0]}")
        must(job, "dpkg-deb", "-x", str(job.archives / file), str(unpacked))
    kernel = _kernel(unpacked, root, wanted)
    _programs(unpacked, root)
    _own_files(root)
    _set_modes(root)
    layout = disks.Layout(
        size=wanted.size, commands=_boot_commands(kernel, wanted), compress=False, journal=4
    )
    disks.make_disk(job, root, layout, still=True)
    for folder in (unpacked, root):
        remove_tree(folder)
    return {
        "sources": list(wanted.sources),
        "kernel": kernel.version,
        "packages": {_split(name)[0]: _split(name)[1] for name in packages},
        "files": packages,
        "edition": EDITION,
        "tools": {
            "mmdebstrap": version("mmdebstrap"),
            "mkfs.ext4": version("mkfs.ext4", option="-V"),
            "grub-mkimage": version("grub-mkimage"),
            "qemu-img": version("qemu-img"),
        },
    }


def _download(job: Job, wanted: Recipe) -> dict[str, str]:
    """Fetch what is missing of the packages; gives files in `archives` with their sha256."""
    job.say("reading package lists")
    own = job.home / "debs"  # apt locks where it works, and builds must not wait for one another
    (own / "partial").mkdir(parents=True)
    here, kept = shlex.quote(str(own)), shlex.quote(str(job.archives))
    kernel, packages = shlex.quote(wanted.kernel), shlex.join(wanted.packages)
    # The package of that name is empty and needs the one of the newest version.
    script = f"""set -e
cd {here}
cp -al {kept}/*.deb . || true
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
kernel=$(apt-cache depends --no-recommends --no-suggests {kernel} |
  sed -n 's/^ *Depends: \\(linux-image-[0-9].*\\)/\\1/p' | head -n 1)
kernel=${{kernel:-{kernel}}}
install="apt-get -q -y --no-install-recommends"
$install --print-uris install {packages}
(cd partial && apt-get --print-uris download "$kernel")  # it is silent about what is there
$install --download-only -o Dir::Cache::archives="$PWD" install {packages}
apt-get -q download "$kernel"
cp -aln ./*.deb {kept}/
"""
    command = as_root(
        "mmdebstrap", "--mode=root", "--variant=custom", "--format=null",
        f"--customize-hook={script}", wanted.suite, "-", *wanted.sources,
    )  # fmt: skip
    code, lines = run(command, log=job.log, lock=job.lock)
    if code:
        raise debian.explain(job.image.name, wanted.suite, lines, job.log)
    remove_tree(own)
    names = [found[1] for line in lines if (found := _URI.match(line))]
    return {name: _sha256(job.archives / name) for name in names}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _split(file: str) -> list[str]:
    """Read a package's name and version from the name of its file."""
    return file.replace("%3a", ":").split("_")


def _kernel(unpacked: Path, root: Path, wanted: Recipe) -> initrds.Kernel:
    """Put kernel, initrd and the modules that are loaded later into the root."""
    kernel = initrds.Kernel.of(unpacked)
    busybox = next(path for path in _busyboxes(unpacked) if path.exists())
    shutil.copy(unpacked / "boot" / f"vmlinuz-{kernel.version}", root / "boot/vmlinuz")
    (root / "boot/initrd").write_bytes(initrds.initrd(kernel, busybox))
    early = kernel.closure(initrds.DISK_MODULES)
    later = [path for path in kernel.closure(wanted.modules) if path not in early]
    folder = root / "usr/lib/modules"
    folder.mkdir()
    for path in later:
        (folder / initrds.module_name(path)).write_bytes(initrds.read_module(path))
    (folder / "order").write_text("".join(f"{initrds.module_name(path)}\n" for path in later))
    return kernel


def _busyboxes(root: Path) -> Iterator[Path]:
    yield from (root / "bin/busybox", root / "usr/bin/busybox")


def _programs(unpacked: Path, root: Path) -> None:
    """Copy what the packages brought, and link busybox's names to it."""
    for source in sorted(unpacked.rglob("*")):
        name = str(source.relative_to(unpacked))
        place = name if name.partition("/")[0] not in _MERGED else f"usr/{name}"
        skip = place.startswith(("boot/", "usr/lib/modules")) or _LEFT_OUT.fullmatch(place)
        if skip or place == "boot" or place.removeprefix("usr/") in _MERGED:
            continue
        target = root / place
        if source.is_symlink():
            target.symlink_to(source.readlink())
        elif source.is_dir():
            target.mkdir(exist_ok=True)
        else:
            shutil.copy(source, target)
    busybox = next(path for path in _busyboxes(root) if path.exists())
    names = subprocess.run(
        [busybox, "--list-full"], capture_output=True, text=True, env=environment(), check=True
    ).stdout.split()
    for name in names:
        place = name if name.startswith("usr/") else f"usr/{name}"
        if not (link := root / place).exists() and link.parent.is_dir():
            link.symlink_to("/usr/bin/busybox")


def _own_files(root: Path) -> None:
    for source in sorted(FILES.rglob("*")):
        target = root / source.relative_to(FILES)
        if source.is_dir():
            target.mkdir(exist_ok=True)
            continue
        target.unlink(missing_ok=True)
        body = source.read_bytes()
        target.write_bytes(body)
        target.chmod(0o755 if body.startswith(b"#!") else 0o644)


def _set_modes(root: Path) -> None:
    """Give every file a mode that does not depend on who builds."""
    for path in root.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)
    for name, mode in _MODES.items():
        (root / name).chmod(mode)


def kernel_options(wanted: Recipe) -> str:
    """Give what the kernel is told."""
    return COMMAND_LINE if wanted.mitigations else COMMAND_LINE + disks.UNPROTECTED


def _boot_commands(kernel: initrds.Kernel, wanted: Recipe) -> tuple[str, ...]:
    return (
        f"echo Linux {kernel.version}",
        f"linux (hd0,msdos1)/boot/vmlinuz {kernel_options(wanted)}",
        "initrd (hd0,msdos1)/boot/initrd",
        "boot",
    )
