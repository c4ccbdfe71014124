"""Costs of calls and jobs, in whole picodollars (1e-12 US dollars), and what was spent.

Decisions that matter here:
- a price of p dollars per million tokens is p * 10^6 picodollars per token: whole for prices with up to six decimals
  (finer ones are rounded up), so that costs are integers and sums are exact in any order;
- the worst case of a prompt is one token per byte of UTF-8: no tokenizer that falls back to bytes (those of all large
  providers, and byte models) can need more. That is about four times what English text needs. Only what is set aside
  depends on it, never what is booked: near its end a budget lets fewer calls fly at once, and leaves less than one such
  worst case unspent;
- of providers' discounts only that for cached prompts is modelled, where the table has its price: what is booked can be
  more than the bill, never less.
"""

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal
from typing import Any, TypeVar

from nip_ray.errors import TrainingError, UserError
from nip_ray.play.dialogue import Chat
from nip_ray.settings.providers import PriceSettings, ProviderSettings

PUSD_PER_USD = 10**12
DEFAULT = "_default"
BYTES_PER_TOKEN = 4
"""Of English text, about. For estimates only."""
OVERHEAD_TOKENS = 32
"""Around each message and around the reply, at most: what chat templates put there."""


@dataclass(frozen=True)
class Price:
    """Picodollars per token. input: of prompts. output: of replies. training: once per epoch. cached: of prompts that
    the provider had cached (none: as `input`)."""

    input: int = 0
    output: int = 0
    training: int = 0
    cached: int | None = None


def price(settings: PriceSettings) -> Price:
    """Prices per token from prices per million tokens."""
    cached = None if settings.cached_input is None else _pusd_per_token(settings.cached_input)
    return Price(
        _pusd_per_token(settings.input), _pusd_per_token(settings.output), _pusd_per_token(settings.training), cached
    )


def price_of(prices: Mapping[str, PriceSettings], model: str) -> Price | None:
    """The price of `model`, None when the table has none.

    The longest entry that begins the model's name counts; for a fine-tuned model (`ft:BASE:ORGANISATION:SUFFIX:ID`)
    that no entry begins, the longest that begins its base's name; then `_default`.
    """
    names = [model, *([model.split(":")[1]] if model.startswith("ft:") else [])]
    for name in names:
        matching = [start for start in prices if start != DEFAULT and name.startswith(start)]
        if matching:
            return price(prices[max(matching, key=len)])
    return price(prices[DEFAULT]) if DEFAULT in prices else None


class PriceList:
    """The prices of one provider, looked up once per model.

    needed: a budget in dollars is set, which cannot be kept without prices.
    """

    def __init__(self, prices: Mapping[str, PriceSettings], needed: bool = False) -> None:
        self._prices, self._needed = dict(prices), needed
        self._known: dict[str, Price] = {}

    def of(self, model: str) -> Price:
        """The price of `model`. One that is not listed costs nothing, with a warning the first time; raises UserError
        where `needed`."""
        if model not in self._known:
            found = price_of(self._prices, model)
            if found is None and self._needed:
                raise UserError(
                    f"provider.prices: no price for {model!r}, and budget.usd cannot be kept without; add it (dollars"
                    f" per million tokens: input, output, training), or {DEFAULT!r} for all models that are not listed,"
                    " or set budget.tokens instead"
                )
            if found is None:
                warnings.warn(
                    f"provider.prices has no price for {model!r}: its calls are counted as free", stacklevel=3
                )
            self._known[model] = found or Price()
        return self._known[model]


def price_list(provider: ProviderSettings, needed: bool = False) -> PriceList:
    """The prices of a provider's models; those without a price table cost nothing. needed: a budget in dollars is
    set."""
    return PriceList(getattr(provider, "prices", {DEFAULT: PriceSettings()}), needed)


def call_cost(price: Price, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> int:
    """Picodollars of one call. cached_tokens: of those of the prompt."""
    cached = price.input if price.cached is None else price.cached
    return price.input * (prompt_tokens - cached_tokens) + cached * cached_tokens + price.output * completion_tokens


def worst_prompt_tokens(messages: Chat) -> int:
    """The most tokens that `messages` can be: a token per byte of UTF-8, and the chat template around each message and
    the reply."""
    return _bytes(messages) + OVERHEAD_TOKENS * (len(messages) + 1)


def estimated_prompt_tokens(messages: Chat) -> int:
    """About how many tokens `messages` are, for rate limits."""
    return math.ceil(_bytes(messages) / BYTES_PER_TOKEN) + 4 * len(messages)


def utf8_length(text: str) -> int:
    """Bytes of `text` in UTF-8; lone surrogates, which have no such form, count as three."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def usd(pusd: int) -> float:
    """Picodollars as dollars, for reports."""
    return pusd / PUSD_PER_USD


def exact_usd(pusd: int) -> str:
    """The same for messages, with all its digits, but at least two decimals: 0.00015 dollars are told as such."""
    whole, rest = divmod(pusd, PUSD_PER_USD)
    return f"{whole}.{f'{rest:012d}'.rstrip('0'):<02}"


def pusd(usd: float) -> int:
    """Dollars as picodollars, of the decimal number that was written: 0.1 is exactly 10^11."""
    return int(Decimal(repr(usd)) * PUSD_PER_USD)


def _pusd_per_token(usd_per_million: float) -> int:
    return int((Decimal(repr(float(usd_per_million))) * 10**6).to_integral_value(ROUND_CEILING))


def _bytes(messages: Chat) -> int:
    return sum(utf8_length(value) for message in messages for value in message.values())


# ----------------------------------------------------------------------------------------------------------------------
# What was spent: exact sums of calls, tokens and picodollars by model, and what of it is not certain.


@dataclass(frozen=True)
class Amount:
    """Money and tokens. pusd: picodollars."""

    pusd: int = 0
    tokens: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.pusd + other.pusd, self.tokens + other.tokens)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.pusd - other.pusd, self.tokens - other.tokens)


NOTHING = Amount()


def worst_case(price: Price, messages: Chat, max_tokens: int) -> Amount:
    """The most that one attempt at a call with these messages and so many tokens of reply can cost."""
    prompt = worst_prompt_tokens(messages)
    return Amount(max(call_cost(price, prompt, max_tokens, cached) for cached in (0, prompt)), prompt + max_tokens)


@dataclass
class ModelSpending:
    """Spending on one model. prompt, completion, training: tokens; cached and reasoning are parts of the first two.
    pusd: picodollars of all of them. answered_by: how many calls each model (with its fingerprint) answered, as the
    provider names them."""

    calls: int = 0
    prompt: int = 0
    completion: int = 0
    training: int = 0
    pusd: int = 0
    cached: int = 0
    reasoning: int = 0
    answered_by: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: "ModelSpending") -> "ModelSpending":
        return ModelSpending(
            *(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True))
        )


@dataclass
class Spending:
    """Exact sums of spending. models: by name. uncertain: of attempts that got no answer and may have been billed; at
    most."""

    models: dict[str, ModelSpending] = field(default_factory=dict)
    jobs: int = 0
    uncertain: Amount = NOTHING

    @classmethod
    def of_call(cls, model: str, prompt_tokens: int, completion_tokens: int, cost_pusd: int) -> "Spending":
        """One call."""
        return cls({model: ModelSpending(1, prompt_tokens, completion_tokens, 0, cost_pusd)})

    @classmethod
    def of_job(cls, model: str, tokens: int, cost_pusd: int) -> "Spending":
        """One fine-tuning job. model: what it started from. tokens: trained on, over all epochs."""
        return cls({model: ModelSpending(training=tokens, pusd=cost_pusd)}, jobs=1)

    @property
    def amount(self) -> Amount:
        """The certain part, over all models."""
        rows = self.models.values()
        return Amount(sum(row.pusd for row in rows), sum(row.prompt + row.completion + row.training for row in rows))

    @property
    def at_most(self) -> Amount:
        """The certain and the uncertain part."""
        return self.amount + self.uncertain

    def add(self, other: "Spending") -> None:
        """Book `other` too."""
        for model, row in other.models.items():
            self.models[model] = self.models.get(model, ModelSpending()) + row
        self.jobs += other.jobs
        self.uncertain += other.uncertain

    def summary(self) -> dict[str, Any]:
        """For `cost.json`: jobs, tokens, usd, uncertain_usd, and `detail` by model."""
        amount = self.amount
        detail = {
            model: {
                "calls": row.calls,
                "prompt_tokens": row.prompt,
                "cached_prompt_tokens": row.cached,
                "completion_tokens": row.completion,
                "reasoning_tokens": row.reasoning,
                "training_tokens": row.training,
                "usd": usd(row.pusd),
                "answered_by": dict(sorted(row.answered_by.items())),
            }
            for model, row in sorted(self.models.items())
        }
        uncertain = usd(self.uncertain.pusd)
        return {
            "jobs": self.jobs,
            "tokens": amount.tokens,
            "usd": usd(amount.pusd),
            "uncertain_usd": uncertain,
            "detail": detail,
        }


def sum_of(parts: Iterable[Spending]) -> Spending:
    """All of these together."""
    found = Spending()
    for part in parts:
        found.add(part)
    return found


# ----------------------------------------------------------------------------------------------------------------------
# What can go wrong between us and a provider, beyond the two exceptions of `nip_ray.errors`.
#
# - an exception that ends a call may carry what its lost attempts can have cost, so that the records of calls need not
#   guess: a call that was refused is known to be free, one that got no answer is not;
# - exceptions have one argument, their message, so that they survive being sent between Ray workers.

Error = TypeVar("Error", bound=Exception)
_UNCERTAIN = "uncertain_amount"


class BudgetExhausted(TrainingError):
    """The next call or job could cost more than is left of `budget`. Nothing was sent for it."""


def with_uncertain(error: Error, uncertain: Amount) -> Error:
    """`error`, noting what attempts of its call that got no answer may have cost (nothing: the call is known to be
    free)."""
    setattr(error, _UNCERTAIN, uncertain)
    return error


def uncertain_of(error: BaseException) -> Amount | None:
    """The amount noted by `with_uncertain`, None where nothing is known."""
    return getattr(error, _UNCERTAIN, None)
