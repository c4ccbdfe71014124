"""Joining a cluster by `nip_ray.cluster.ray_session`: in, or one clear line that says how to get in."""

import subprocess
import sys
import time

import pytest

from tests.jobs.head import ROOT, Head

JOIN = """
import sys
from nip_ray.errors import UserError
from nip_ray.cluster.ray_session import start_ray
from nip_ray.settings.experiment import RuntimeSettings
try:
    start_ray(RuntimeSettings(ray_address=sys.argv[1] or None), 1)
except UserError as error:
    print("refused:", error)
else:
    import ray
    print("joined", ray.get_runtime_context().gcs_address.rpartition(":")[2], ray.get_runtime_context().namespace)
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def join(address: str, env: dict[str, str]) -> str:
    """What a process prints that joins `address`; fails unless that is one line."""
    done = subprocess.run(
        [sys.executable, "-c", JOIN, address],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "InvalidAuthToken" not in done.stderr  # Ray's own complaints, twenty of them
    [line] = done.stdout.splitlines()
    return line


def test_who_has_the_token_joins(head: Head) -> None:
    port = head.gcs.rpartition(":")[2]
    assert join(head.gcs, head.environment()) == f"joined {port} nip_ray"


def test_the_address_may_come_from_the_environment_as_in_a_job(head: Head) -> None:
    port = head.gcs.rpartition(":")[2]
    assert join("", head.environment(RAY_ADDRESS=head.gcs)) == f"joined {port} nip_ray"


@pytest.mark.parametrize(
    "changes",
    [
        {"RAY_AUTH_MODE": None, "RAY_AUTH_TOKEN_PATH": None},
        {"RAY_AUTH_MODE": "disabled"},
        {"RAY_AUTH_TOKEN": "not-the-token-5e1f"},
    ],
    ids=["no mode", "disabled", "wrong token"],
)
def test_a_refused_token_is_one_line_that_says_how_to_give_the_right_one(
    head: Head, changes: dict[str, str | None]
) -> None:
    start = time.monotonic()
    line = join(head.gcs, head.environment(**changes))
    assert line.startswith(f"refused: runtime.ray_address: the Ray cluster at '{head.gcs}' refuses our token")
    assert "set RAY_AUTH_MODE=token and give the cluster's token by RAY_AUTH_TOKEN_PATH (a file)" in line
    assert not [secret for secret in ("not-the-token-5e1f", head.token) if secret in line]
    assert time.monotonic() - start < 15  # Ray alone tries for twenty seconds


def test_no_token_at_all_is_said_before_anything_is_sent(head: Head) -> None:
    line = join(head.gcs, head.environment(RAY_AUTH_TOKEN_PATH=None))
    assert line.startswith("refused: runtime.ray_address: no token to show to the Ray cluster")


def test_a_dashboard_is_not_a_cluster(head: Head) -> None:
    line = join("", head.environment(RAY_ADDRESS=head.dashboard))
    assert line.startswith(f"refused: RAY_ADDRESS: {head.dashboard} is a dashboard")
    line = join(f"127.0.0.1:{head.dashboard_port}", head.environment())
    assert line.startswith("refused: runtime.ray_address: no Ray cluster answers")
