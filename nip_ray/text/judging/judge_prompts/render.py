"""Fill the judges' templates, with the judged texts fenced off as data.

Decisions that matter here:
- judged texts are values, never templates: nothing in them is evaluated;
- a fence is a code of 64 bits from the seed and the place of the question. The authors of the texts cannot know it; if
  it occurs in them by chance the next one is taken;
- the code is also beside every sender's name, so that no agent can fake another's message by imitating our lines.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from nip_ray.play.dialogue import Chat
from nip_ray.seeding import stable_seed

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER = Path(__file__).parent


def messages(
    name: str,
    data: Mapping[str, str],
    said: Sequence[tuple[str, str]],
    words: Mapping[str, str],
    seed: int,
    place: tuple[str | int, ...],
) -> Chat:
    """The chat with judge `name`'s question.

    data: what is judged, by name. said: the transcript, (sender, message). words: trusted words (agent, stance). place:
    of the question.
    """
    code = fence([*data.values(), *(text for _, text in said)], seed, place)
    transcript = "\n\n".join(f"[{sender} {code}]\n{text}" for sender, text in said)
    values = {**data, **words, "transcript": transcript, "fence": code}
    return [
        {"role": "system", "content": _environment().get_template("system.jinja").render(values)},
        {"role": "user", "content": _environment().get_template(f"{name}.jinja").render(values)},
    ]


def fence(texts: Sequence[str], seed: int, place: tuple[str | int, ...]) -> str:
    """16 hexadecimal digits that occur in none of the texts."""
    codes = (f"{stable_seed(seed, 'judge fence', *place, number):016x}" for number in count())
    return next(code for code in codes if not any(code in text for text in texts))


def call_key(run: str, place: tuple[str | int, ...], model: str, chat: Chat) -> str:
    """The key of a call: a function of the run, the place, the model and the prompt."""
    words = [model, *(part for message in chat for part in (message["role"], message["content"]))]
    digest = hashlib.blake2b("\x1f".join([run, *map(str, place), *words]).encode(), digest_size=16)
    return f"judge/{place[0]}/{place[1]}/{digest.hexdigest()}"


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    # plain text for a model, not a page: escaping would change the programs
    return Environment(loader=FileSystemLoader(FOLDER), undefined=StrictUndefined, autoescape=False, trim_blocks=True)
