"""Configs of image classification that cannot be, refused with the key, what was wrong and what would be right, before torch is loaded."""

from pathlib import Path
from typing import Any

import pytest

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.rules import check
from nip_ray.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


def faults(protocol: str = "nip", algorithm: dict[str, Any] | None = None, **scenario: Any) -> str:
    task = {"name": "image_classification", **scenario}
    config = ExperimentConfig.model_validate({"protocol": {"name": protocol}, "scenario": task, "algorithm": algorithm or {"name": "ppo"}})
    try:
        check(config)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("protocol", ["nip", "adp", "debate", "mnip", "merlin_arthur", "solo_verifier", "multi_channel_test"])
def test_images_are_played_under_every_protocol_for_proofs(protocol: str) -> None:
    assert faults(protocol) == ""


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "files without a file": (dict(data=dict(source="files")), "scenario.data.train: missing, the source files needs a parquet file"),
    "no such file": (dict(data=dict(source="mnist", train="/no/train.parquet")), "scenario.data.train: /no/train.parquet: no such file"),
    "same class twice": (dict(data=dict(binarisation="select_two", selected_classes=(3, 3))), "data.selected_classes: got [3, 3]"),
    "no such class": (dict(data=dict(source="cifar10", binarisation="select_two", selected_classes=(3, 10))), "selected_classes: got 10"),
    "a share beside held-out images": (
        dict(data=dict(source="files", train=__file__, test=str(ROOT / "README.md"), test_share=0.3)),
        "scenario.data.test_share: counts where no held-out images are named only (test is), leave one of the two out",
    ),
    "a share of a source with held-out images": (dict(data=dict(source="mnist", test_share=0.3)), "scenario.data.test_share: counts"),
    "a coarse sight with another eye": (dict(agents=dict(verifier=dict(sight="coarse", pretrained_weights=__file__))), "verifier.sight:"),
    "nothing left": (dict(num_block_groups=4), "scenario.num_block_groups: got 4, but nothing would be left of 8 x 8, use at most 3"),
    "no weights": (dict(agents=dict(prover=dict(pretrained_weights="/no/weights"))), "scenario.agents.prover.pretrained_weights:"),
    "critic without a body": (dict(central_critic=True), "scenario.central_critic: a value that sees more than the policy needs a body"),
    "two rates for one body": (dict(agents=dict(prover=dict(body_lr_factor=dict(actor=0.0, critic=1.0)))), "prover.body_lr_factor: got"),
}


@pytest.mark.parametrize(("scenario", "message"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_is_refused(scenario: dict[str, Any], message: str) -> None:
    found = faults(**scenario)
    assert message in found
    assert "\n" not in found


def test_training_and_held_out_images_never_come_from_one_file(tmp_path: Path) -> None:
    (tmp_path / "images.parquet").write_bytes(b"")
    path = str(tmp_path / "images.parquet")
    assert "scenario.data.test: " in faults(data=dict(source="files", train=path, test=path))
    assert faults(data=dict(source="files", train=str(tmp_path), test=str(tmp_path))) == ""  # a folder has a part for each
