"""Templates become pages: self-contained, with a content security policy of the page's style and script by hash.

Decisions that matter here:
- no `unsafe-inline`: other scripts and style sheets (including style attributes) are ignored, even if a text escaped
  its quoting. So the templates use classes and presentation attributes of SVG only;
- jinja2 escapes every variable; only files of this package are inserted raw;
- in every variable, invisible characters and those that change the direction of writing are spelled out: names and
  configs are as untrusted as messages.
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
    """A part of a page of `sections`: facts, a table, a heat map, curves, files that open with a click, and a note.

    rows: cells below `head`, each a text, a pair (value, interval), or a list of (text, address or ""). figures: True
    if all columns but the first hold numbers. ranked: True if the first row is the best. code: True if the first column
    holds keys. heat: of `heat_map`. curves: of `curves.drawn`. files: (name, text).
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
    """A page of a headline and sections, without the empty ones.

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
    """The page of `template`, which may extend page.html.j2. scripts, styles: files of `TEMPLATES` to include, the
    styles after the common sheet. connect: allow requests to its own server. variables: of the template, all
    escaped."""
    from markupsafe import Markup  # not at the top: training imports this module, and this is slow to load

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
    """Cached, so that templates are compiled once."""
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
    """The content security policy of a page with only this style sheet and script."""
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
