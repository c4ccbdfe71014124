"""`ModelPlay`: dialogues of agents whose models are in this process, every reply with its tokens.

Dialogues are played in step (`nip_ray.play.dialogues.play_in_step`): a batch of replies for each model and round. Those
against one snapshot are played to their ends before the next snapshot's weights are loaded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.text_rules import groups, language_agents
from nip_ray.learning.token_rows import Turn
from nip_ray.play.dialogue import Dialogue, LanguageScenario
from nip_ray.play.dialogues import Answer, Question, play_in_step, start_dialogue
from nip_ray.seeding import stable_seed
from nip_ray.serving.generation import GenerationRequest
from nip_ray.settings.policy_gradient import TokenTrainingSettings
from nip_ray.text.costs.token_bills import Allowance, TokenBills, Use
from nip_ray.text.dialogues.runner import Task
from nip_ray.text.training.policies import Policy

Past = Callable[[int], Mapping[str, Policy]]
_SEED_BITS = 31


@dataclass
class Reply:
    """A sampled reply: its dialogue and turn, and what a model learns from it. snapshot: the opponent's. cut: its
    prompt had lost its middle. attempt: number of earlier unusable replies of this turn."""

    place: int
    agent: str
    round: int
    turn: Turn
    snapshot: int | None = None
    cut: bool = False
    attempt: int = 0


@dataclass
class Talk:
    """Finished dialogues, all replies by the current models, and the use of tokens, by group."""

    dialogues: list[Dialogue]
    replies: list[Reply]
    used: dict[str, Use]


class ModelPlay:
    """models: by group. bills: where tokens are booked. past: a snapshot -> its models by group, for tasks with one.
    booked: see `Plays`."""

    apart = False

    def __init__(
        self,
        config: TextExperimentConfig,
        models: Mapping[str, Policy],
        bills: TokenBills | Allowance,
        past: Past | None = None,
    ) -> None:
        self.seed, self.models, self.bills, self.past = config.seed, models, bills, past
        self.booked: dict[str, Use] = {}
        self.groups, self.agents = groups(config), language_agents(config)
        assert isinstance(config.algorithm, TokenTrainingSettings)
        self._most = config.algorithm.micro_batch_tokens

    def play(self, scenario: LanguageScenario, tasks: Sequence[Task], split: str, iteration: int) -> Talk:
        """The dialogues of these tasks."""
        self.booked = {group: Use() for group in self.groups}
        dialogues: dict[int, Dialogue] = {}
        replies: list[Reply] = []
        for model in self.models.values():
            model.forget()
        for snapshot in dict.fromkeys(task.snapshot for task in tasks):
            places = [place for place, task in enumerate(tasks) if task.snapshot == snapshot]
            past = {} if snapshot is None or self.past is None else self.past(snapshot)
            played, said = self._together(scenario, [tasks[place] for place in places], past, split, iteration)
            dialogues |= dict(zip(places, played, strict=True))
            replies += [replace(reply, place=places[reply.place], snapshot=snapshot) for reply in said]
        return Talk([dialogues[place] for place in range(len(tasks))], replies, self.booked)

    def _together(
        self, scenario: LanguageScenario, tasks: Sequence[Task], past: Mapping[str, Policy], split: str, iteration: int
    ) -> tuple[list[Dialogue], list[Reply]]:
        """`play` of tasks against one snapshot, or none. past: group -> its model in that snapshot."""
        replies: list[Reply] = []

        def known(one: Question) -> str | None:
            return None if one.attempt else tasks[one.place].said.get((len(one.dialogue.rounds), one.agent))

        def answer(asked: list[Question]) -> list[Answer]:
            found = {number: Answer(said) for number, one in enumerate(asked) if (said := known(one)) is not None}
            for group, members in self.groups.items():
                for models in (self.models, past):
                    chosen = [
                        number
                        for number, one in enumerate(asked)
                        if number not in found
                        and one.agent in members
                        and (one.agent in tasks[one.place].past) == (models is past)
                    ]
                    if chosen:
                        made = self._replies(
                            group,
                            models[group],
                            scenario,
                            [asked[number] for number in chosen],
                            tasks,
                            split,
                            iteration,
                        )
                        found |= {number: said for number, (said, _) in zip(chosen, made, strict=True)}
                        replies.extend(reply for _, reply in made if models is self.models)
            return [found[number] for number in range(len(asked))]

        dialogues = play_in_step(scenario, [start_dialogue(task.item, task.seed) for task in tasks], answer)
        return dialogues, replies

    def take(self, weights: Mapping[str, Any]) -> None:
        """Set the weights of models with separate sampling weights, by group."""
        for group, own in weights.items():
            if self.models[group].samples_apart:
                self.models[group].take(own)

    def close(self) -> None:
        """Do nothing."""

    def logprobs(self, group: str, turns: Sequence[Turn]) -> list[list[float]]:
        """See `Policy.logprobs`."""
        return self.models[group].logprobs(turns, self._most)

    def _replies(
        self,
        group: str,
        model: Policy,
        scenario: LanguageScenario,
        asked: Sequence[Question],
        tasks: Sequence[Task],
        split: str,
        iteration: int,
    ) -> list[tuple[Answer, Reply]]:
        """A model's answer to each of these, for agents of `group`."""
        requests, cut = [], []
        for one in asked:
            before = model.chat.prompts_cut
            own = self.agents[one.agent]
            place = (split, iteration, tasks[one.place].number, len(one.dialogue.rounds), one.agent, one.attempt)
            requests.append(
                GenerationRequest(
                    model.chat.prompt_before(one.chat, own.reply_tokens),
                    own.reply_tokens,
                    1.0 if own.temperature is None else own.temperature,
                    1.0 if own.top_p is None else own.top_p,
                    stable_seed(self.seed, "call", *place) % 2**_SEED_BITS,
                    schema=scenario.reply_schema(one.agent),  # only for frozen agents (checked by `prepare`)
                )
            )
            cut.append(model.chat.prompts_cut > before)
        prompts = sum(len(request.prompt) for request in requests)
        bill = self.bills.ask(group, Use(len(requests), prompts, sum(request.max_tokens for request in requests)))
        made = []
        for one, request, reply, short in zip(asked, requests, model.sample(requests), cut, strict=True):
            turn = Turn(request.prompt, reply.tokens, reply.logprobs, temperature=request.temperature)
            made.append(
                (
                    Answer(reply.text, reply.finish_reason),
                    Reply(one.place, one.agent, len(one.dialogue.rounds), turn, cut=short, attempt=one.attempt),
                )
            )
        use = Use(len(requests), prompts, sum(len(reply.turn.reply) for _, reply in made))
        self.bills.book(bill, use)
        self.booked[group] += use
        return made
