"""`ModelPlay`: dialogues of agents whose models are in this process, every reply with its tokens.

All dialogues are played in step (`nip_ray.play.dialogues.play_in_step`): a batch of replies for each model and round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.text_rules import groups, language_agents
from nip_ray.learning.token_rows import Turn
from nip_ray.play.dialogue import Dialogue
from nip_ray.play.dialogues import Answer, Question, play_in_step, start_dialogue
from nip_ray.play.language_scenario import LanguageScenario
from nip_ray.seeding import stable_seed
from nip_ray.serving.generation import GenerationRequest
from nip_ray.serving.policies import Policy
from nip_ray.text.costs.token_bills import TokenBills, Use
from nip_ray.text.dialogues.tasks import Task

_SEED_BITS = 31


@dataclass
class Reply:
    """A reply as it was drawn: whose turn of which dialogue, and what a model learns from it."""

    place: int
    agent: str
    round: int
    turn: Turn


class ModelPlay:
    """models: by group. bills: where tokens are booked."""

    def __init__(self, config: TextExperimentConfig, models: Mapping[str, Policy], bills: TokenBills) -> None:
        self.seed, self.models, self.bills = config.seed, models, bills
        self.groups, self.agents = groups(config), language_agents(config)

    def play(self, scenario: LanguageScenario, tasks: Sequence[Task], split: str, iteration: int) -> tuple[list[Dialogue], list[Reply]]:
        """(dialogues, every reply of every agent) of these tasks."""
        replies: list[Reply] = []
        for model in self.models.values():
            model.forget()

        def answer(asked: list[Question]) -> list[Answer]:
            found: dict[int, Answer] = {}
            for group, members in self.groups.items():
                chosen = [number for number, one in enumerate(asked) if one.agent in members]
                if chosen:
                    made = self._replies(group, scenario, [asked[number] for number in chosen], tasks, split, iteration)
                    found |= {number: said for number, (said, _) in zip(chosen, made, strict=True)}
                    replies.extend(reply for _, reply in made)
            return [found[number] for number in range(len(asked))]

        dialogues = play_in_step(scenario, [start_dialogue(task.item, task.seed) for task in tasks], answer)
        return dialogues, replies

    def _replies(
        self, group: str, scenario: LanguageScenario, asked: Sequence[Question], tasks: Sequence[Task], split: str, iteration: int
    ) -> list[tuple[Answer, Reply]]:
        """What the model of `group` says to each of these."""
        model, requests = self.models[group], []
        for one in asked:
            own = self.agents[one.agent]
            place = (split, iteration, tasks[one.place].number, len(one.dialogue.rounds), one.agent, one.attempt)
            requests.append(
                GenerationRequest(
                    model.prompt_tokens(one.chat, own.reply_tokens),
                    own.reply_tokens,
                    1.0 if own.temperature is None else own.temperature,
                    1.0 if own.top_p is None else own.top_p,
                    stable_seed(self.seed, "call", *place) % 2**_SEED_BITS,
                    schema=scenario.reply_schema(one.agent),  # of frozen agents alone (`prepare` sees to it)
                )
            )
        prompts = sum(len(request.prompt) for request in requests)
        bill = self.bills.ask(group, Use(len(requests), prompts, sum(request.max_tokens for request in requests)))
        made = []
        for one, request, reply in zip(asked, requests, model.sample(requests), strict=True):
            turn = Turn(request.prompt, reply.tokens, reply.logprobs, temperature=request.temperature)
            made.append((Answer(reply.text, reply.finish_reason), Reply(one.place, one.agent, len(one.dialogue.rounds), turn)))
        self.bills.book(bill, Use(len(requests), prompts, sum(len(reply.turn.reply) for _, reply in made)))
        return made
