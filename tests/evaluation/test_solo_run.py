"""The verifier trained alone as the baseline of a proof: the larger of two figures counts, and it is said which."""

import json
from pathlib import Path

import pytest

from nip_ray.errors import UserError
from nip_ray.evaluation.verbs.evaluate import evaluate_run
from nip_ray.runs.experiment import run_experiment
from tests.runs.small import small

ALONE = ("protocol={name: solo_verifier}", "iterations=1", "algorithm.minibatch_size=16", "evaluation.num_transcripts=0")


@pytest.mark.slow
def test_the_stronger_of_the_classifier_and_the_verifier_alone_counts(tmp_path: Path) -> None:
    alone = run_experiment(small(*ALONE), tmp_path / "alone", quiet=True).run_dir
    named = f"evaluation.solo_run={alone}"
    document = json.loads((alone / "evaluation.json").read_text())
    record = document["greedy"]["verifier/accuracy"]
    for share, by in ((1.0, "verifier trained alone"), (0.0, "fitted classifier")):
        document["greedy"]["verifier/accuracy"] = {**record, "estimate": share}
        (alone / "evaluation.json").write_text(json.dumps(document))
        if share:
            result = run_experiment(small("iterations=1", named), tmp_path / "proof", quiet=True)
            assert result.metrics["eval/verifier/solo_baseline"] == 1.0
        found = evaluate_run(result.run_dir)
        assert found["solo_baseline_by"] == by
        assert (found["eval/verifier/solo_baseline"] == 1.0) == (by == "verifier trained alone")
        assert found["eval/verifier/solo_baseline/n"] == record["n"]
    page = (result.run_dir / "report.html").read_text()
    assert "measured without a prover (verifier trained alone)" in page

    for settings, reason in (
        ([f"evaluation.solo_run={tmp_path / 'nowhere'}"], r"evaluation.solo_run: .*nowhere: no run here.*--set evaluation\.solo_run=null"),
        ([f"evaluation.solo_run={result.run_dir}"], "its verifier does not play alone"),
        ([named, "scenario.data.seed=9"], "has other scenario.data"),
    ):
        with pytest.raises(UserError, match=reason):
            run_experiment(small("iterations=1", *settings), tmp_path / "refused", quiet=True)
        assert not (tmp_path / "refused").exists()
