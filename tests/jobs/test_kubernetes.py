"""kubernetes/rayjob.yaml, by structure: there is no Kubernetes here to ask."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.load import load_config
from tests.docs.blocks import commands, parsed
from tests.jobs.pinned import RAY, ROOT, VERSION, looks_secret, placeholders

TEXT = (ROOT / "kubernetes" / "rayjob.yaml").read_text()
DOCUMENTS: dict[str, dict[str, Any]] = {one["kind"]: one for one in yaml.safe_load_all(TEXT)}
JOB: dict[str, Any] = DOCUMENTS["RayJob"]["spec"]
CLUSTER: dict[str, Any] = JOB["rayClusterSpec"]
WORKERS: dict[str, dict[str, Any]] = {group["groupName"]: group for group in CLUSTER["workerGroupSpecs"]}
PODS: dict[str, dict[str, Any]] = {
    "head": CLUSTER["headGroupSpec"]["template"]["spec"],
    **{name: group["template"]["spec"] for name, group in WORKERS.items()},
}

each_pod = pytest.mark.parametrize("pod", PODS.values(), ids=list(PODS))


def test_the_job_ends_and_takes_its_cluster_along() -> None:
    assert JOB["shutdownAfterJobFinishes"] is True
    assert 0 < JOB["ttlSecondsAfterFinished"] < JOB["activeDeadlineSeconds"]
    assert JOB["backoffLimit"] > 0  # which needs an entrypoint that may be repeated
    assert isinstance(yaml.safe_load(JOB["runtimeEnvYAML"])["env_vars"], dict)


def test_the_cluster_asks_for_a_token() -> None:
    assert CLUSTER["authOptions"] == {"mode": "token"}


def test_the_entrypoint_is_one_that_the_command_line_takes() -> None:
    [words] = commands(JOB["entrypoint"])
    _, given = parsed(words)
    assert given["or_resume"]
    config = ROOT / Path(given["config"]).relative_to("/home/ray/nip_ray")
    checked = load_config(config, given["settings"])
    assert isinstance(checked, ExperimentConfig)
    assert checked.play.num_env_runners == 4
    mounted = {mount["mountPath"] for pod in PODS.values() for mount in pod["containers"][0]["volumeMounts"]}
    assert any(given["run_dir"].is_relative_to(path) for path in mounted)


@each_pod
def test_a_pod_is_nobody_special(pod: dict[str, Any]) -> None:
    context = pod["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] == 1000  # `ray` of Ray's images
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)


def test_workers_hold_no_key_of_kubernetes() -> None:
    assert all(PODS[name]["automountServiceAccountToken"] is False for name in WORKERS)


def test_images_and_versions_agree() -> None:
    images = {name: pod["containers"][0]["image"] for name, pod in PODS.items()}
    plain = f"FILL_IN_REGISTRY/nip-ray:{VERSION}"
    assert images == {"head": plain, "cpu": plain, "gpu": f"{plain}-gpu"}
    assert CLUSTER["rayVersion"] == RAY


def test_the_network_policy_keeps_other_namespaces_out() -> None:
    policy = DOCUMENTS["NetworkPolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["podSelector"] == {"matchLabels": {"ray.io/is-ray-node": "yes"}}
    inside, operator = policy["ingress"]
    assert inside == {"from": [{"podSelector": {}}]}  # without a namespaceSelector: of this namespace
    [peer] = operator["from"]
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "kuberay-system"}
    assert peer["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "kuberay-operator"}
    assert operator["ports"] == [{"protocol": "TCP", "port": 8265}]
    assert "ipBlock" not in TEXT


def test_no_secret_and_few_placeholders() -> None:
    assert not looks_secret(TEXT)
    listed, used = placeholders(TEXT)
    assert listed == used == {"FILL_IN_REGISTRY", "FILL_IN_STORAGE_CLASS"}
