"""Jobs on disk: made once, run to an end, found again after a death."""

from dataclasses import replace
from pathlib import Path

import pytest

from nip_ray.errors import UserError
from nip_ray.serving.fine_tuning_job import FineTuneSpec
from nip_ray.serving.jobs import MAX_STARTS, JobStore, job_id_of, model_name_of, run_job
from nip_ray.settings.providers import LocalProvider

from .data import chats, supervised

SPEC = FineTuneSpec("a" * 64, "supervised", "default", "verifier-1", 16, 500, num_epochs=1, learning_rate=1e-3)
FULL = LocalProvider(method="full")


@pytest.fixture
def store(tmp_path: Path) -> JobStore:
    return JobStore(tmp_path)


def test_a_job_from_start_to_end(store: JobStore, default_dir: Path) -> None:
    file_id = store.put_file(supervised(chats(0, 16)))
    job = store.create(SPEC, file_id)
    assert (job.status, store.find(SPEC.key), store.open_jobs()) == ("pending", [job], [job])
    begun = store.begin(job)
    done = run_job(store, begun, FULL, lambda name: default_dir)
    assert (done.status, done.model, done.error, done.starts) == ("succeeded", "verifier-1-aaaaaaaaaaaa", None, 1)
    assert done.trained_tokens
    assert (store.models / (done.model or "") / "config.json").is_file()
    assert [event["step"] for event in store.events(job.id)] == [1, 2]
    assert len(list((store.jobs / job.id / "checkpoints").iterdir())) == 1
    assert (store.get(job.id), store.open_jobs(), store.cancel(job.id)) == (done, [], done)
    assert store.begin(done) is None


def test_an_interrupted_job_starts_anew_and_ends_the_same(store: JobStore, default_dir: Path) -> None:
    """What a death in the middle leaves (a running job, some events, half a checkpoint) does not show in the result."""
    job = store.create(SPEC, store.put_file(supervised(chats(0, 16))))
    begun = store.begin(job)
    undisturbed = run_job(store, begun, FULL, lambda name: default_dir)
    weights = (store.models / (undisturbed.model or "") / "model.safetensors").read_bytes()
    store.save(replace(begun, status="running"))
    (store.jobs / job.id / "checkpoints" / "half").mkdir()
    (store.models / (undisturbed.model or "") / "model.safetensors").write_bytes(b"something else")
    again = store.begin(JobStore(store.folder).open_jobs()[0])
    assert not (store.jobs / job.id / "events.jsonl").exists()
    assert run_job(store, again, FULL, lambda name: default_dir).status == "succeeded"
    assert (store.models / (undisturbed.model or "") / "model.safetensors").read_bytes() == weights
    assert not (store.jobs / job.id / "checkpoints" / "half").exists()


def test_a_job_that_kills_its_process_is_given_up(store: JobStore) -> None:
    job = store.create(SPEC, store.put_file(b"x"))
    for _ in range(MAX_STARTS):
        job = store.begin(job) or pytest.fail("begins")
    assert store.begin(job) is None
    assert store.get(job.id).status == "failed"


def test_what_goes_wrong_becomes_the_jobs_error(store: JobStore, default_dir: Path, tmp_path: Path) -> None:
    bad = store.begin(store.create(SPEC, store.put_file(b"{}"))) or pytest.fail("begins")
    done = run_job(store, bad, FULL, lambda name: default_dir)
    assert (done.status, "line 1" in (done.error or "")) == ("failed", True)
    lost = store.begin(store.create(replace(SPEC, key="b"), store.put_file(supervised(chats(0, 4))))) or pytest.fail(
        "begins"
    )
    assert "config.json is missing" in (run_job(store, lost, FULL, lambda name: tmp_path).error or "")


@pytest.mark.parametrize("name", ["ftjob-../../x", "", "x", job_id_of("none")])
def test_unknown_jobs(store: JobStore, name: str) -> None:
    with pytest.raises(UserError, match="no fine-tuning job"):
        store.get(name)


def test_refusals(store: JobStore) -> None:
    with pytest.raises(UserError, match="training data"):
        store.create(SPEC, "../../etc/passwd")
    with pytest.raises(UserError, match="suffix"):
        store.create(replace(SPEC, suffix="a/b"), store.put_file(b"x"))
    job = store.create(SPEC, store.put_file(b"x"))
    (store.jobs / job.id / "job.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        store.get(job.id)


def test_names_of_models_are_safe() -> None:
    assert model_name_of(replace(SPEC, key="a/b", suffix="")).startswith("tuned-")
    assert "/" not in model_name_of(replace(SPEC, key="../../../../x"))
