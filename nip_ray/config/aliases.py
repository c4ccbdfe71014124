"""Alternative names of learning-rule settings, from stock RLlib and earlier runner files: one table for all configs."""

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from nip_ray.config.keys import branches, keys_of, tag_of
from nip_ray.errors import UserError
from nip_ray.progress import say

ALIASES = {
    "learning_rate": "lr",
    "anneal_learning_rate": "anneal_lr",
    "learning_epochs": "num_epochs",
    "discount_factor": "gamma",
    "gae_lambda": "lam",
    "lambda": "lam",
    "lambda_": "lam",
    "ratio_clip": "clip_epsilon",
    "clip_param": "clip_epsilon",
    "value_clip": "clip_value",
    "value_loss_scale": "critic_coefficient",
    "vf_loss_coeff": "critic_coefficient",
    "entropy_loss_scale": "entropy_coefficient",
    "entropy_coeff": "entropy_coefficient",
    "grad_norm_clip": "max_grad_norm",
    "grad_clip": "max_grad_norm",
    "rehearsal": "format_warmup",
    "rehearsal_tuning": "format_warmup_tuning",
}
"""Alias -> the actual name, in settings that have this one and not the alias."""
_ALTERNATIVES = ("minibatch_size", "minibatch_copies")  # two names for one thing, of which a config gives one


def other_words(name: str) -> set[str]:
    """The other names under which a config may give a learning rule's setting `name`."""
    word = ALIASES.get(name, name)
    words = _ALTERNATIVES if word in _ALTERNATIVES else (word,)
    return {*words, *(alias for alias, meant in ALIASES.items() if meant in words)} - {name}


def word_for(name: str, names: Collection[str], where: str = "") -> str:
    """The name among `names` that `name` means: itself, or the target of an alias, which is reported once. where:
    prefix of the message."""
    word = ALIASES.get(name, name)
    if name in names or word not in names:
        return name
    if word != name:
        _say_once(f"{where}{name}", word)
    return word


def in_own_words(data: Mapping[str, Any], kind: type, where: str = "") -> dict[str, Any]:
    """`data`, a mapping with a learning rule under `algorithm`, with that rule's aliases replaced. kind: the settings
    class of `data`.

    Raises UserError if a setting is given under both its names.
    """
    rule = data.get("algorithm")
    if not isinstance(rule, Mapping):
        return dict(data)
    key = keys_of(kind)["algorithm"]
    tag = rule.get("name", tag_of(type(key.default)))
    names = next((keys_of(member) for member in branches(key.annotation) if tag_of(member) == tag), {})
    made: dict[str, Any] = {}
    for name, value in rule.items():
        word = word_for(name, names, f"{where}algorithm.")
        if word != name and word in rule:
            raise UserError(
                f"{where}algorithm.{name}: is another word for {word}, which is given too; leave one of them out"
            )
        made[word] = value
    return {**data, "algorithm": made}


@cache
def _say_once(path: str, word: str) -> None:
    say(f"warning: {path} is another word for {word}; write {word}")
