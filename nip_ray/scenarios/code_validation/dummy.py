"""Replies of the right form from nobody: for dry runs and tests of everything but the language models.

As in the published dummy API a verifier rejects, accepts or, three times out of five, asks; a prover answers; what is asked and answered
are random letters. Unlike there, every draw is seeded.
"""

from random import Random
from string import ascii_lowercase

from nip_ray.play.dialogue import Dialogue
from nip_ray.play.dialogue_rules import rulebook
from nip_ray.scenarios.code_validation.scales import MARK
from nip_ray.scenarios.code_validation.scenario import CodeValidation
from nip_ray.scenarios.code_validation.structured import write_reply
from nip_ray.seeding import stable_seed

NUM_LETTERS = 20


def dummy_reply(scenario: CodeValidation, dialogue: Dialogue, agent: str, seed: int) -> str:
    """A valid reply of `agent` in the round about to be played. It depends on the arguments alone; give each branch its own seed."""
    r = len(dialogue.rounds)
    random = Random(stable_seed(seed, "dummy reply", dialogue.item.id, dialogue.seed, r, agent))
    fields = scenario.reply_fields(agent)
    if agent in scenario.protocol.deciders and random.randrange(5) < 2:
        stated = random.choice(list(scenario.scale.confidences))
        return write_reply(fields, {}, scenario.scale, scenario.scale.confidences[stated]) if fields else f"{MARK} {stated}"
    channels = rulebook(scenario.protocol).speakers(r, dialogue.seed)[agent]
    if fields:
        return write_reply(fields, {channel: _letters(random) for channel in channels}, scenario.scale)
    headers = scenario.roles[agent].headers
    return "\n".join(f"{headers.get(channel, 'Answer:')} {_letters(random)}" for channel in channels)


def _letters(random: Random) -> str:
    return "".join(random.choice(ascii_lowercase) for _ in range(NUM_LETTERS))
