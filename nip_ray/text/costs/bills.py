"""What fine-tuning jobs have cost: a function of their journal, as `nip_ray.text.dialogues.records.total` is of the records of calls.

Decisions that matter here:
- a job costs the tokens that the provider says it trained on, at the price that its intent states. A job that succeeded and whose
  provider does not say may have cost its worst case, which is booked as uncertain;
- a failed job is free unless the provider counts tokens for it; so is one that was cancelled before it ran. One that was cancelled later
  may have cost its worst case;
- a duplicate (see `nip_ray.text.jobs.exactly_once`) that was over before it could be cancelled is billed like any other job;
- a job that was asked for and is not known to be over may cost its worst case (`under_way`).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from nip_ray.serving.fine_tuning_job import FineTuneSpec
from nip_ray.text.costs.prices import NOTHING, Amount, ModelSpending, Spending
from nip_ray.text.jobs.journal import Entry


@dataclass(frozen=True)
class Bill:
    """What one job cost. key: what it was made for. id: the provider's."""

    key: str
    id: str
    spending: Spending


def bills(entries: Iterable[Entry]) -> list[Bill]:
    """Of every job that is over, by the journal."""
    intents: dict[str, Entry] = {}
    found: dict[str, Bill] = {}
    for entry in entries:
        if entry["kind"] == "intent":
            intents[entry["key"]] = entry
        elif entry["kind"] in ("final", "duplicate_over"):
            found[entry["id"]] = Bill(entry["key"], entry["id"], _spending(intents[entry["key"]], entry))
    return list(found.values())


def under_way(entries: Iterable[Entry]) -> Amount:
    """What jobs that were asked for (or made besides), and are not known to be over or refused, can cost at most."""
    intents: dict[str, Entry] = {}
    is_open: dict[str, Entry] = {}
    for entry in entries:
        kind, key = entry["kind"], entry["key"]
        if kind == "intent":
            intents[key] = entry
        elif kind in ("submit", "job", "duplicate"):
            is_open[entry["id"] if kind == "duplicate" else key] = intents[key]
        elif kind in ("refused", "final", "duplicate_over"):
            is_open.pop(entry["id"] if kind == "duplicate_over" else key, None)
    return sum(map(worst, is_open.values()), NOTHING)


def worst(intent: Entry) -> Amount:
    """What the job of this intent can cost at most."""
    return Amount(intent["worst_tokens"] * intent["token_pusd"], intent["worst_tokens"])


def worst_of(spec: FineTuneSpec) -> Amount:
    """What a job that is to be made can cost at most."""
    return Amount(spec.worst_tokens * spec.token_pusd, spec.worst_tokens)


def _spending(intent: Entry, over: Entry) -> Spending:
    model, tokens = intent["model"], over["trained_tokens"]
    if tokens:
        return Spending.of_job(model, tokens, tokens * intent["token_pusd"])
    if over["status"] == "succeeded":
        return Spending({model: ModelSpending()}, jobs=1, uncertain=worst(intent))
    free = over["status"] == "failed" or (over["status"] == "cancelled" and not over.get("ran", True))
    return Spending(uncertain=NOTHING if free else worst(intent))
