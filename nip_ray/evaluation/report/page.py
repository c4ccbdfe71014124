"""Templates become pages: self-contained, with a content security policy that knows the page's own style and script by their hashes.

Decisions that matter here:
- no `unsafe-inline`: what is not our script does not run, and what is not our style sheet (a style attribute, for one) is not obeyed,
  even if a text should ever get out of its escaping. So the templates use classes and presentation attributes of SVG only;
- jinja2 escapes every variable; the only texts put in raw are the files of this package;
- in every variable, characters that would turn the direction of writing, or cannot be seen, are spelled out: names and configs are of
  strangers as much as messages are.
"""

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nip_ray.play.transcripts import visible

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"


def rendered(
    template: str,
    *,
    scripts: tuple[str, ...] = (),
    styles: tuple[str, ...] = (),
    connect: bool = False,
    folder: Path = TEMPLATES,
    **variables: Any,
) -> str:
    """The page of `template`, which includes head.html.j2. scripts, styles: files of `TEMPLATES` that it carries, the styles behind the
    sheet that all pages have. connect: may ask its own server.

    folder: where the template lies, if not here. variables: of the template, all escaped.
    """
    from markupsafe import Markup  # here, not above: training imports this room, and must not wait for it

    style = "".join(_file(name) for name in ("style.css", *styles))
    script = "".join(_file(name) for name in scripts)
    own = {"style": Markup(style), "script": Markup(script), "policy": Markup(policy(style, script, connect)), "connect": connect}
    return _environment(folder).get_template(template).render(**variables, **own)


@cache
def _environment(folder: Path) -> "Environment":
    """Kept, so that templates are compiled once."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def spelled_out(value: Any) -> Any:
        return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    loader = FileSystemLoader([folder, TEMPLATES])
    return Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=spelled_out
    )


def policy(style: str, script: str, connect: bool = False) -> str:
    """The content security policy of a page with this style sheet and script, and nothing else."""
    parts = ["default-src 'none'", "img-src data:", f"style-src '{_hash(style)}'"]
    if script:
        parts.append(f"script-src '{_hash(script)}'")
    if connect:
        parts.append("connect-src 'self'")
    return "; ".join([*parts, "base-uri 'none'", "form-action 'none'"])


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"


def _file(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")
