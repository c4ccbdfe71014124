"""What calls and jobs cost, in whole picodollars (1e-12 US dollars).

Decisions that matter here:
- a price of p dollars per million tokens is p * 10^6 picodollars per token: whole for prices with up to six decimals (finer ones are
  rounded up), so that costs are integers and sums are exact in any order;
- the worst case of a prompt is one token per byte of UTF-8: no tokenizer that falls back to bytes (those of all large providers, and
  byte models) can need more. That is about four times what English text needs. Only what is set aside depends on it, never what is
  booked: near its end a budget lets fewer calls fly at once, and leaves less than one such worst case unspent;
- of providers' discounts only that for cached prompts is modelled, where the table has its price: what is booked can be more than the
  bill, never less.
"""

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

from nip_ray.errors import UserError
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
    """Picodollars per token. input: of prompts. output: of replies. training: once per epoch. cached: of prompts that the provider had
    cached (none: as `input`).
    """

    input: int = 0
    output: int = 0
    training: int = 0
    cached: int | None = None


def price(settings: PriceSettings) -> Price:
    """Prices per token from prices per million tokens."""
    cached = None if settings.cached_input is None else _pusd_per_token(settings.cached_input)
    return Price(_pusd_per_token(settings.input), _pusd_per_token(settings.output), _pusd_per_token(settings.training), cached)


def price_of(prices: Mapping[str, PriceSettings], model: str) -> Price | None:
    """The price of `model`, None when the table has none.

    The longest entry that begins the model's name counts; for a fine-tuned model (`ft:BASE:ORGANISATION:SUFFIX:ID`) that no entry begins,
    the longest that begins its base's name; then `_default`.
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
        """The price of `model`. One that is not listed costs nothing, with a warning the first time; raises UserError where `needed`."""
        found = self._known.get(model)
        if found is None:
            found = self._known[model] = self._look_up(model)
        return found

    def require(self, models: Iterable[str]) -> None:
        """Look up all `models` now. Raises UserError like `of`: better before the first call than in the middle of a run."""
        for model in models:
            self.of(model)

    def _look_up(self, model: str) -> Price:
        found = price_of(self._prices, model)
        if found is not None:
            return found
        if self._needed:
            raise UserError(
                f"provider.prices: no price for {model!r}, and budget.usd cannot be kept without; add it (dollars per million tokens: "
                f"input, output, training), or {DEFAULT!r} for all models that are not listed, or set budget.tokens instead"
            )
        warnings.warn(f"provider.prices has no price for {model!r}: its calls are counted as free", stacklevel=4)
        return Price()


def price_list(provider: ProviderSettings, needed: bool = False) -> PriceList:
    """The prices of a provider's models; those without a price table cost nothing. needed: a budget in dollars is set."""
    return PriceList(getattr(provider, "prices", {DEFAULT: PriceSettings()}), needed)


def call_cost(price: Price, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> int:
    """Picodollars of one call. cached_tokens: of those of the prompt."""
    cached = price.input if price.cached is None else price.cached
    return price.input * (prompt_tokens - cached_tokens) + cached * cached_tokens + price.output * completion_tokens


def worst_call_cost(price: Price, prompt_tokens: int, max_tokens: int) -> int:
    """Picodollars of a call whose reply is as long as it may be. prompt_tokens: see `worst_prompt_tokens`."""
    return max(call_cost(price, prompt_tokens, max_tokens, cached) for cached in (0, prompt_tokens))


def worst_prompt_tokens(messages: Chat) -> int:
    """The most tokens that `messages` can be: a token per byte of UTF-8, and the chat template around each message and the reply."""
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
