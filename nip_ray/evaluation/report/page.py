"""Templates become pages: self-contained, with a content security policy that knows the page's own style and script by
their hashes.

Decisions that matter here:
- no `unsafe-inline`: what is not our script does not run, and what is not our style sheet (a style attribute, for one)
  is not obeyed, even if a text should ever get out of its escaping. So the templates use classes and presentation
  attributes of SVG only;
- jinja2 escapes every variable; the only texts put in raw are the files of this package;
- in every variable, characters that would turn the direction of writing, or cannot be seen, are spelled out: names and
  configs are of strangers as much as messages are.
"""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nip_ray.play.transcripts import visible

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Section:
    """A part of a page of `sections`: facts, a table, a heat map, curves, files that open with a click, and a note on
    these.

    rows: cells below `head`, each a text, a pair (figure, interval), or a list of (text, address or ""). figures:
    whether all columns but the first hold figures. ranked: whether the first row is the best. code: whether the first
    column holds keys. heat: of `heat_map`. curves: of `curves.drawn`. files: (name, text).
    """

    title: str
    facts: Sequence[tuple[str, str]] = ()
    head: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    figures: bool = False
    ranked: bool = False
    code: bool = False
    heat: Any = None
    curves: Sequence[Any] = ()
    files: Sequence[tuple[str, str]] = ()
    note: str = ""

    @property
    def empty(self) -> bool:
        """True if there is nothing to show."""
        return not (self.facts or self.rows or self.heat or self.curves or self.files)


def sections(
    kind: str,
    title: str,
    sentence: str,
    about: Sequence[Any] = (),
    made: Sequence[Section] = (),
    *,
    tone: str = "",
    notes: Sequence[str] = (),
    footer: str = "",
    live: str = "",
) -> str:
    """A page of a headline and sections, of which those that are empty are left out.

    about: further paragraphs of the headline, each a text or a list of (text, address or ""). notes: what is missing.
    live: see `nip_ray.evaluation.report.report_page`.
    """
    told = {
        "title": title,
        "sentence": sentence,
        "about": about,
        "tone": tone,
        "notes": notes,
        "footer": footer,
        "live": live,
    }
    shown = [section for section in made if not section.empty]
    scripts = ("watch.js",) if live else ()
    return rendered("sections.html.j2", scripts=scripts, connect=bool(live), kind=kind, sections=shown, **told)


def rendered(
    template: str,
    *,
    scripts: tuple[str, ...] = (),
    styles: tuple[str, ...] = (),
    connect: bool = False,
    **variables: Any,
) -> str:
    """The page of `template`, which may extend page.html.j2. scripts, styles: files of `TEMPLATES` that it carries, the
    styles behind the sheet that all pages have. connect: may ask its own server. variables: of the template, all
    escaped."""
    from markupsafe import Markup  # here, not above: training imports this room, and must not wait for it

    style = "".join(_file(name) for name in ("style.css", *styles))
    script = "".join(_file(name) for name in scripts)
    own = {
        "style": Markup(style),
        "script": Markup(script),
        "policy": Markup(policy(style, script, connect)),
        "connect": connect,
    }
    return _environment().get_template(template).render(**variables, **own)


@cache
def _environment() -> "Environment":
    """Kept, so that templates are compiled once."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def spelled_out(value: Any) -> Any:
        return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    loader = FileSystemLoader(TEMPLATES)
    return Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=spelled_out,
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
