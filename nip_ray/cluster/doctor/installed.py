"""What is installed: Python, the required distributions, Ray, the extras.

Decisions that matter here:
- ranges are read from nip_ray's own metadata, so that they stand in pyproject.toml alone;
- what an extra of a requirement needs is looked up, too: `ray[default]` without aiohttp is a Ray without a job server;
- the extra `dev` is for people who work on nip_ray itself, and is left out.
"""

import platform
from collections.abc import Iterator
from importlib import metadata
from typing import TYPE_CHECKING

from nip_ray.cluster.doctor.finding import Finding, note, ok, problem
from nip_ray.cluster.ray_session import OLDEST_RAY

if TYPE_CHECKING:
    from packaging.requirements import Requirement

PROJECT = "nip_ray"


def python() -> list[Finding]:
    """Whether this Python is in the range that the project was made for."""
    from packaging.specifiers import SpecifierSet

    here = platform.python_version()
    try:
        about = metadata.metadata(PROJECT)
    except metadata.PackageNotFoundError:
        return [ok("python", f"Python {here}")]
    needed = about["Requires-Python"] or ""
    if not SpecifierSet(needed).contains(here, prereleases=True):
        return [problem("python", f"Python {here} is outside {needed}", f"make a virtual environment with a Python {needed}")]
    return [ok("python", f"Python {here} (wanted: {needed})")]


def packages() -> list[Finding]:
    """Whether every required distribution is there, and in its range."""
    requirements = _requirements("")
    if requirements is None:
        what = "nip_ray is not installed as a distribution, so that what it needs cannot be looked up"
        return [note("packages", what, "run `pip install .` in its folder")]
    wrong = [finding for requirement in requirements for finding in _as_problems(requirement)]
    return wrong or [ok("packages", f"all {len(requirements)} required distributions are there and in range")]


def ray_version() -> list[Finding]:
    """Whether Ray is new enough to be safe, and can be imported."""
    from packaging.version import Version

    version, again = version_of("ray"), f"pip install --force-reinstall '{wanted('ray')}'"
    if version is None:
        return [problem("ray", "Ray is not installed", again)]
    if Version(version).release < OLDEST_RAY:
        oldest = ".".join(map(str, OLDEST_RAY))
        what = f"Ray {version} lets web pages run programs through its dashboard (CVE-2025-62593, mended in {oldest})"
        return [problem("ray", what, again)]
    try:
        import ray as _  # noqa: F401
    except (ImportError, OSError) as error:
        return [problem("ray", f"Ray {version} cannot be imported ({first_line(error)})", again)]
    return [ok("ray", f"Ray {version}, without the known holes")]


def extras() -> list[Finding]:
    """Which extras of the project are complete, and what the others lack."""
    try:
        names = [name for name in metadata.metadata(PROJECT).get_all("Provides-Extra") or [] if name != "dev"]
    except metadata.PackageNotFoundError:
        return []  # `packages` says so
    missing = {name: [_lack(one) for text in _requirements(name) or [] for one in unmet(text)] for name in names}
    found = [
        note("extras", f"the extra {name} is not complete: {'; '.join(lacks)}", f"if you need it: pip install 'nip_ray[{name}]'")
        for name, lacks in missing.items()
        if lacks
    ]
    complete = [name for name, lacks in missing.items() if not lacks]
    return [ok("extras", f"complete: {', '.join(complete) or 'none'}"), *found]


def version_of(distribution: str) -> str | None:
    """The installed version; None where there is none, or where what was installed is damaged."""
    try:
        return metadata.version(distribution) or None
    except (metadata.PackageNotFoundError, KeyError):
        return None


def wanted(distribution: str) -> str:
    """What pip is to be asked for: the distribution with the extras and the range that the project needs."""
    return next((_plain(one) for one in _requirements("") or [] if one.name == distribution), distribution)


def first_line(error: BaseException) -> str:
    """An error's message, or its name where it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def unmet(requirement: "Requirement", seen: frozenset[tuple[str, str]] = frozenset()) -> "Iterator[Requirement]":
    """What is missing or out of range: the requirement itself, or what its extras need. seen: extras that are looked at already."""
    from packaging.requirements import Requirement

    version = version_of(requirement.name)
    if version is None or not requirement.specifier.contains(version, prereleases=True):
        yield requirement
        return
    for extra in sorted(requirement.extras):
        if (requirement.name, extra) not in seen:
            seen |= {(requirement.name, extra)}
            for text in metadata.requires(requirement.name) or []:
                nested = Requirement(text)
                if _is_of_extra(nested, extra):
                    yield from unmet(nested, seen)


def _requirements(extra: str) -> "list[Requirement] | None":
    """What the project needs; with an extra's name, what that adds. None where the project is not installed."""
    from packaging.requirements import Requirement

    try:
        found = [Requirement(text) for text in metadata.requires(PROJECT) or []]
    except metadata.PackageNotFoundError:
        return None
    if extra:
        return [requirement for requirement in found if _is_of_extra(requirement, extra)]
    return [requirement for requirement in found if requirement.marker is None or requirement.marker.evaluate({"extra": ""})]


def _is_of_extra(requirement: "Requirement", extra: str) -> bool:
    marker = requirement.marker
    return marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})


def _as_problems(requirement: "Requirement") -> list[Finding]:
    return [problem("packages", _lack(one), f"pip install '{_plain(one)}'") for one in unmet(requirement)]


def _lack(requirement: "Requirement") -> str:
    version = version_of(requirement.name)
    if version is None:
        return f"{requirement.name} is not installed (wanted: {_plain(requirement)})"
    return f"{requirement.name} {version} is outside {requirement.specifier}"


def _plain(requirement: "Requirement") -> str:
    """A requirement without its marker, as pip takes it."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"
