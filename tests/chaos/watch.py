"""A plugin that writes down each iteration that is begun, in the run's folder: so it can be counted what was done
twice."""

from typing import Any

from nip_ray.runs.session import Session

BEGUN = "begun.log"
_step = Session.step


def _watched(session: Session) -> dict[str, Any]:
    with (session.folder.path / BEGUN).open("a") as file:
        file.write(f"{session.iteration + 1}\n")
    return _step(session)


setattr(Session, "step", _watched)  # noqa: B010  # a plain assignment is none that a type checker takes
