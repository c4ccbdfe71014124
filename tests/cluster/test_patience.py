"""How long an answer is waited for, and which settings of that are refused."""

from typing import Any

import pytest

from nip_ray.cluster.patience import hang_limit_s
from nip_ray.config.load import config_from_dict
from nip_ray.errors import UserError


@pytest.mark.parametrize(
    ("durations", "limit"),
    [([], 1200.0), ([1.0, 2.0, 3.0], 120.0), ([24.0], 120.0), ([30.0, 40.0, 50.0], 200.0), ([1.0, 1.0, 9999.0], 120.0)],
    ids=["none known", "short ones", "just as long", "long ones", "one that hung"],
)
def test_five_times_the_median_where_that_is_longer(durations: list[float], limit: float) -> None:
    assert hang_limit_s(120.0, durations) == limit


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), "soon"])
def test_what_is_no_time_to_wait_is_refused_by_name(value: Any) -> None:
    with pytest.raises(UserError, match=r"fault_tolerance\.hang_timeout_s"):
        config_from_dict({"fault_tolerance": {"hang_timeout_s": value}})
