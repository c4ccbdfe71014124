"""Tokens used by a run that learns from tokens, by group of agents, and their cost.

Decisions that matter here:
- work that a model in this process repeats after a crash counts once: its counts are in the run's checkpoints;
- a hosted model is billed for repeated work. So its requests are journalled: their maximum before they are sent, and
  their actual use once answered. A resumed run counts all of them; one without an answer counts at its maximum, as
  uncertain;
- no request is made that could exceed what is left of `budget`. Several threads may call it.
"""

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.text_rules import groups, language_agents
from nip_ray.text.costs.prices import (
    Amount,
    BudgetExhausted,
    ModelSpending,
    Price,
    Spending,
    exact_usd,
    price_list,
    pusd,
    sum_of,
)
from nip_ray.text.jobs import Journal

JOURNAL = "requests.jsonl"
"""In the run folder: the requests to hosted models."""


@dataclass(frozen=True)
class Use:
    """Calls that a model answered, and tokens that it read, wrote and learned from."""

    calls: int = 0
    prompt: int = 0
    completion: int = 0
    training: int = 0

    def __add__(self, other: "Use") -> "Use":
        return Use(*(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True)))

    def __sub__(self, other: "Use") -> "Use":
        return Use(*(mine - theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True)))

    @property
    def tokens(self) -> int:
        """The sum of all tokens."""
        return self.prompt + self.completion + self.training


@dataclass(frozen=True)
class Request:
    """A request to a group's model, and its number in the journal."""

    group: str
    most: Use
    number: int


class Allowance:
    """A number of tokens for a player in another process (None: unlimited). used: of them."""

    def __init__(self, tokens: int | None) -> None:
        self.tokens, self.used = tokens, 0

    def ask(self, group: str, most: Use) -> Request:
        """See `TokenBills.ask`."""
        if self.tokens is not None and self.used + most.tokens > self.tokens:
            left = self.tokens - self.used
            raise BudgetExhausted(
                f"budget.tokens: a rollout worker has {left} tokens left, and the next {most.tokens} do not fit; raise"
                " it to continue"
            )
        return Request(group, most, 0)

    def book(self, request: Request, use: Use | None = None) -> None:
        """See `TokenBills.book`."""
        self.used += (request.most if use is None else use).tokens


class TokenBills:
    """The counts of a run, and its limits. Raises UserError for a model without a price where `budget.usd` is set."""

    def __init__(self, config: TextExperimentConfig, run_dir: Path, calls: Spending | None = None) -> None:
        """calls: those that the same budget pays for, of judges."""
        self._calls = Spending() if calls is None else calls
        agents = language_agents(config)
        first = {group: agents[members[0]] for group, members in groups(config).items()}
        providers = {group: config.providers[agent.provider] for group, agent in first.items()}
        self._budget, self._hosted = config.budget, {group for group, provider in providers.items() if provider.hosted}
        self._names = {group: f"{agent.model} ({group})" for group, agent in first.items()}
        in_usd = config.budget.usd is not None
        self._prices = {
            group: price_list(provider, in_usd).of(first[group].model) if provider.hosted else Price()
            for group, provider in providers.items()
        }
        self._used = {group: Use() for group in first}
        self._open: dict[int, Request] = {}
        self._requests, self._lock = 0, threading.RLock()
        self._journal = Journal(run_dir / JOURNAL) if self._hosted else None
        for entry in self._journal.entries() if self._journal is not None else ():
            group, found, number = entry["group"], Use(**entry["use"]), entry["number"]
            self._requests = max(self._requests, number)
            if entry["kind"] == "ask":
                self._open[number] = Request(group, found, number)
            else:
                del self._open[number]
                self._used[group] += found

    def ask(self, group: str, most: Use) -> Request:
        """Announce a request. most: its maximum. Raises BudgetExhausted if that is more than what is left."""
        with self._lock:
            self._check(group, most)
            self._requests += 1
            request = self._open[self._requests] = Request(group, most, self._requests)
            if self._journal is not None and group in self._hosted:
                self._journal.append("ask", group=group, number=request.number, use=asdict(most))
            return request

    def ask_all(self, most: Mapping[str, Use]) -> dict[str, Request]:
        """`ask` for several groups, or for none."""
        made: dict[str, Request] = {}
        try:
            for group, use in most.items():
                made[group] = self.ask(group, use)
        except BudgetExhausted:
            for request in made.values():
                self.book(request, Use())
            raise
        return made

    def book(self, request: Request, use: Use | None = None) -> None:
        """Book an answered request. use: its actual use (None: its maximum)."""
        use = request.most if use is None else use
        with self._lock:
            if self._journal is not None and request.group in self._hosted:
                self._journal.append("answer", group=request.group, number=request.number, use=asdict(use))
            del self._open[request.number]
            self._used[request.group] += use

    @property
    def left(self) -> int | None:
        """Tokens that may still be used (None: unlimited)."""
        limit = self._budget.tokens
        return None if limit is None else limit - self.spending().at_most.tokens

    def spending(self) -> Spending:
        """Spending by model, up to the present state of the run."""
        with self._lock:
            made = {
                self._names[group]: ModelSpending(
                    used.calls, used.prompt, used.completion, used.training, self._amount(group, used).pusd
                )
                for group, used in self._used.items()
                if used.calls or used.training
            }
            still = sum((self._amount(one.group, one.most) for one in self._open.values()), Amount())
            return sum_of([self._calls, Spending(made, uncertain=still)])

    def state(self, uncounted: Mapping[str, Use]) -> dict[str, dict[str, int]]:
        """The counts, for a checkpoint, without `uncounted`, which will be done again."""
        return {group: asdict(used - uncounted.get(group, Use())) for group, used in self._used.items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`; hosted models keep the counts of their journal."""
        self._used |= {group: Use(**state[group]) for group in self._used if group not in self._hosted}

    def close(self) -> None:
        """Close the journal."""
        if self._journal is not None:
            self._journal.close()

    def _amount(self, group: str, use: Use) -> Amount:
        price = self._prices[group]
        return Amount(
            price.input * use.prompt + price.output * use.completion + price.training * use.training, use.tokens
        )

    def _check(self, group: str, most: Use) -> None:
        spent, asked = self.spending().at_most, self._amount(group, replace(most, calls=0))
        limit = self._budget.tokens
        if limit is not None and spent.tokens + asked.tokens > limit:
            raise BudgetExhausted(
                f"budget.tokens: {spent.tokens} of {limit} tokens are used, and the next {asked.tokens} do not fit;"
                " raise it to continue"
            )
        if self._budget.usd is not None and spent.pusd + asked.pusd > pusd(self._budget.usd):
            raise BudgetExhausted(
                f"budget.usd: {exact_usd(spent.pusd)} of {self._budget.usd} dollars are or may be spent, and what comes"
                f" next may take {exact_usd(asked.pusd)}; raise it to continue"
            )
