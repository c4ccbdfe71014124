"""cluster.yaml and cluster-gcp.yaml: what Ray's own checks say offline, and that no node stands open."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray.autoscaler
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from nip_ray.cluster.resources import missing, trial_bundles
from nip_ray.config.load import load_config
from tests.docs.blocks import Block, blocks_of, commands, pages, parsed
from tests.jobs.pinned import ROOT, agrees, dependency, looks_secret

FILES = ["cluster.yaml", "cluster-gcp.yaml"]
RAYJOB = next(
    one for one in yaml.safe_load_all((ROOT / "kubernetes" / "rayjob.yaml").read_text()) if one["kind"] == "RayJob"
)["spec"]
SUBMITTED = [
    (str(block), words)
    for block in [
        *(block for page in pages() for block in blocks_of(page)),
        Block(ROOT / "kubernetes", 0, "sh", f"ray job -- {RAYJOB['entrypoint']}"),
    ]
    if "ray job" in block.text
    for words in commands(block.text)
    if words[0] == "train"
]


@pytest.fixture(params=FILES)
def text(request: pytest.FixtureRequest) -> str:
    return (ROOT / request.param).read_text()


@pytest.fixture
def cluster(text: str) -> dict[str, Any]:
    return yaml.safe_load(text)


def starts(cluster: dict[str, Any]) -> list[str]:
    commands = cluster["head_start_ray_commands"] + cluster["worker_start_ray_commands"]
    return [command for command in commands if "ray start" in command]


def test_rays_own_schema_and_checks_take_the_file(cluster: dict[str, Any]) -> None:
    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    jsonschema.validate(cluster, schema)
    validate_config(prepare_config(cluster))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(cluster | {"worker_type": "cpu"}, schema)  # it does refuse what it does not know


def workers(name: str) -> list[list[dict[str, float]]]:
    """The resources of the worker nodes of each kind when a cluster has grown as far as it may."""
    if name == "rayjob":
        groups = [
            (g["maxReplicas"], g["template"]["spec"]["containers"][0]["resources"]["limits"])
            for g in RAYJOB["rayClusterSpec"]["workerGroupSpecs"]
        ]
        return [[{"CPU": float(has["cpu"]), "GPU": float(has.get("nvidia.com/gpu", 0))}] * most for most, has in groups]
    found = yaml.safe_load((ROOT / name).read_text())
    kinds = (kind for kind in found["available_node_types"].values() if "max_workers" in kind)
    return [[kind["resources"]] * kind["max_workers"] for kind in kinds]


@pytest.mark.parametrize("name", [*FILES, "rayjob"])
@pytest.mark.parametrize(("where", "words"), SUBMITTED, ids=[where for where, _ in SUBMITTED])
def test_what_is_submitted_fits_when_the_cluster_has_grown(name: str, where: str, words: list[str]) -> None:
    """And where it needs more than the node that the driver came with, it waits for the others."""
    given = parsed(words)[1]
    config = load_config(ROOT / str(given["config"]).removeprefix("/home/ray/nip_ray/"), given["settings"])
    bundles, kinds = trial_bundles(config), workers(name)
    assert missing(bundles, [node for nodes in kinds for node in nodes]) == ""
    assert config.runtime.autoscaling or not missing(bundles, kinds[0][:1])
    assert given["or_resume"]


def test_every_node_shows_and_asks_for_the_token(cluster: dict[str, Any]) -> None:
    commands = starts(cluster)
    assert len(commands) == 2
    [inside] = [path for path, source in cluster["file_mounts"].items() if source == "~/.ray/auth_token"]
    for command in commands:
        assert re.search(
            rf"export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=\$HOME/{re.escape(inside.removeprefix('~/'))};.*ray"
            r" start",
            command,
        )
    options = cluster["docker"]["run_options"]  # of every container: what is executed in one later has the token, too
    assert "-e RAY_AUTH_MODE=token" in options
    assert f"-e RAY_AUTH_TOKEN_PATH=/home/ray/{inside.removeprefix('~/')}" in options


def test_every_node_keeps_the_token_to_its_owner(cluster: dict[str, Any]) -> None:
    setups = [cluster["setup_commands"]]
    setups += [
        kind["worker_setup_commands"]
        for kind in cluster["available_node_types"].values()
        if "worker_setup_commands" in kind
    ]
    assert len(setups) == 2
    for setup in setups:
        assert setup[0].endswith("chmod 600 ~/.ray_auth_token")


def test_nothing_listens_for_the_world(text: str, cluster: dict[str, Any]) -> None:
    assert not re.search(r"0\.0\.0\.0|::/0|IpPermissions", text)
    assert re.findall(r"--dashboard-host=(\S+)", "\n".join(starts(cluster))) == ["127.0.0.1"]
    assert "--dashboard-host=127.0.0.1" in cluster["head_start_ray_commands"][-1]


def test_versions_are_those_of_the_project(cluster: dict[str, Any]) -> None:
    images = [cluster["docker"]["image"], cluster["available_node_types"]["gpu"]["docker"]["worker_image"]]
    assert [agrees(image) for image in images] == [True, True]
    assert [image.endswith("-gpu") for image in images] == [False, True]
    assert any(f"'torch{dependency('torch')}'" in command for command in cluster["setup_commands"])


def test_there_are_no_credentials(text: str, cluster: dict[str, Any]) -> None:
    assert not looks_secret(text)
    assert "gcp_credentials" not in cluster["provider"]
    assert "ssh_private_key" not in cluster["auth"]
    assert looks_secret("key: 0123456789abcdef0123456789abcdef")  # the search finds what it looks for
