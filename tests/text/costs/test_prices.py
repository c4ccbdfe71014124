"""Money: exact integers, the right row of the table, bounds that hold."""

import warnings
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_ray.errors import UserError
from nip_ray.settings.providers import PriceSettings
from nip_ray.text.costs.prices import (
    Price,
    PriceList,
    call_cost,
    exact_usd,
    price,
    price_of,
    pusd,
    worst_case,
    worst_prompt_tokens,
)

TABLE = {
    "gpt-4o": PriceSettings(2.5, 10.0, 25.0),
    "gpt-4o-mini": PriceSettings(0.15, 0.6, 3.0),
    "ft:gpt-4o-mini": PriceSettings(0.3, 1.2),
    "ft:gpt-4o:org:dear": PriceSettings(99.0, 99.0),
}


@pytest.mark.parametrize(
    ("model", "row"),
    [
        ("gpt-4o", "gpt-4o"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("gpt-4o-mini-2024-07-18", "gpt-4o-mini"),
        ("ft:gpt-4o-mini-2024-07-18:org::id", "ft:gpt-4o-mini"),
        ("ft:gpt-4o-2024-08-06:org:suffix:id", "gpt-4o"),
        ("ft:gpt-4o:org:dear:id", "ft:gpt-4o:org:dear"),
    ],
)
def test_the_longest_entry_counts(model: str, row: str) -> None:
    assert price_of(TABLE, model) == price(TABLE[row])


def test_default_and_none() -> None:
    assert price_of(TABLE, "llama") is None
    assert price_of(TABLE, "_default") is None
    assert price_of({**TABLE, "_default": PriceSettings(1.0)}, "llama") == Price(1_000_000)
    assert price_of({**TABLE, "_default": PriceSettings(1.0)}, "ft:llama:org::id") == Price(1_000_000)


def test_prices_are_the_decimal_numbers_that_were_written() -> None:
    assert price(PriceSettings(0.15, 0.6, 3)) == Price(150_000, 600_000, 3_000_000)
    assert price(PriceSettings(0.0000001)).input == 1  # finer than a picodollar per token: rounded up
    assert pusd(0.1) == 10**11
    assert pusd(1e-7) == 100_000


@given(st.decimals(0, 1000, places=6), st.integers(0, 10**9), st.integers(0, 10**9))
def test_costs_are_exact(usd: float, prompt: int, completion: int) -> None:
    per_token = price(PriceSettings(float(usd), float(usd), float(usd)))
    assert call_cost(per_token, prompt, completion) == Fraction(usd) * 10**6 * (prompt + completion)


@pytest.mark.parametrize(
    ("amount", "told"),
    [(0, "0.00"), (150_000_000, "0.00015"), (2 * 10**12 - 7, "1.999999999993"), (12 * 10**11, "1.20")],
)
def test_messages_round_no_money_away(amount: int, told: str) -> None:
    assert exact_usd(amount) == told


@given(st.lists(st.text(), min_size=1, max_size=4))
def test_no_byte_tokenizer_needs_more_than_the_worst_case(texts: list[str]) -> None:
    texts = [100 * text for text in texts]  # so that what stands around a message is small beside it
    messages = [{"role": "user", "content": text} for text in texts]
    assert worst_prompt_tokens(messages) >= sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    assert worst_case(Price(1, 10), messages, 7).pusd == worst_prompt_tokens(messages) + 70


def test_a_model_without_a_price_warns_once_or_is_refused() -> None:
    prices = PriceList(TABLE)
    with pytest.warns(UserWarning, match="no price for 'llama'"):
        assert prices.of("llama") == Price()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert prices.of("llama") == Price()
        [prices.of(model) for model in ("gpt-4o", "llama")]
    with pytest.raises(UserError, match=r"no price for 'llama', and budget\.usd"):
        PriceList(TABLE, needed=True).of("llama")
