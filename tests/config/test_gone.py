"""Keys that were removed: an error that says what replaces them where they said something, nothing where they did not, nor in old runs."""

import pytest

from nip_ray.config.gone import GONE
from nip_ray.config.load import config_from_dict
from nip_ray.errors import UserError


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"strict": True}, "strict: was removed; .*--dry-run"),
        ({"runtime": {"spot_notices": "aws", "spot_interval_s": 2.0}}, r"runtime\.spot_notices: was removed; .*SIGTERM"),
    ],
)
def test_a_removed_key_that_said_something_is_refused_and_dropped_in_what_a_run_stored(data: dict, named: str) -> None:
    with pytest.raises(UserError, match=named):
        config_from_dict(data)
    assert config_from_dict(data, stored=True) == config_from_dict({})


def test_a_full_config_of_an_earlier_version_says_the_same() -> None:
    runtime = {"spot_notices": None, "spot_interval_s": 5.0, "spot_address": None, "num_threads": 2}
    assert config_from_dict({"strict": False, "runtime": runtime}) == config_from_dict({"runtime": {"num_threads": 2}})
    assert all("." not in path.partition(".")[2] for path in GONE), "one level of sections is looked into"
