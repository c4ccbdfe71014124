"""The doctor, on real folders, files, sockets and processes; what a machine does not have on demand (GPUs, little
memory) is numbers."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from nip_ray.cluster import doctor, doctor_access
from nip_ray.cluster.doctor import Finding
from nip_ray.sandbox import engines

ROOT = Path(__file__).resolve().parents[2]
GIB = 2**30


def check(name: str) -> list[Finding]:
    return doctor.findings(name, doctor.CHECKS[name])


def storage(path: Path) -> list[Finding]:
    return doctor.findings("storage", partial(doctor.storage, path))


def told(findings: list[Finding], status: str) -> list[str]:
    return [finding.what for finding in findings if finding.status == status]


def everything_below(*folders: Path) -> set[Path]:
    return {path for folder in folders for path in folder.rglob("*")}


def test_every_check_speaks_and_nothing_is_printed_or_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ray_tmp, home = tmp_path / "ray_tmp", tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(ray_tmp))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("RAY_AUTH_MODE")
    monkeypatch.chdir(tmp_path)
    found = doctor.examine()
    assert capfd.readouterr() == ("", "")
    assert everything_below(tmp_path) == {home}
    problems = {finding.name for finding in found if finding.status == "problem"}
    assert problems <= {"ray folder"}, "a machine that runs these tests is well, but for the long path of this folder"
    assert {finding.name for finding in found} == {*doctor.CHECKS, "storage"}
    for finding in found:
        assert "\n" not in finding.what + finding.mend
        assert finding.what
        assert bool(finding.mend) == (finding.status != "ok"), finding


def test_no_secret_is_told_whatever_variable_it_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Keys where they belong, and in every variable where one might be by mistake."""
    canary = "sk-canary-51f0c3"
    (tmp_path / "token").write_text(canary)
    environment = {
        **dict.fromkeys((*doctor_access.VARIABLES, "RAY_AUTH_MODE", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"), canary),
        "OPENAI_BASE_URL": f"https://me:{canary}@example.org/v1",
        "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token"),
        "RAY_ADDRESS": f"ray://me:{canary}@127.0.0.1:1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for more in ({}, {"RAY_AUTH_TOKEN": canary, "RAY_ADDRESS": canary}):
        for name, value in more.items():
            monkeypatch.setenv(name, value)
        found = doctor.examine(tmp_path)
        output = repr(found) + json.dumps(doctor.as_json(found)) + "".join(capfd.readouterr())
        for name in ("OPENAI_API_KEY", "RAY_ADDRESS", "RAY_AUTH_MODE"):
            assert name in output
        assert canary not in output


def distribution(folder: Path, name: str, version: str, *lines: str) -> None:
    """Metadata of an installed distribution, as pip would write it."""
    about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(
        "\n".join(["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *lines, ""])
    )


def test_a_distribution_outside_its_range_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution(tmp_path, "numpy", "1.26.4")
    monkeypatch.syspath_prepend(str(tmp_path))
    [found] = [finding for finding in check("packages") if finding.what.startswith("numpy")]
    assert found.status == "problem"
    assert "1.26.4" in found.what
    assert found.mend.startswith("pip install 'numpy")


def test_what_is_required_and_missing_is_a_problem_and_so_is_an_extra_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = [
        "Requires-Dist: no-such-thing>=2",
        "Requires-Dist: with-parts[part]>=1",
        'Requires-Dist: only-there; extra == "wings"',
    ]
    distribution(tmp_path, "nip_ray", "0.1.0", "Requires-Python: >=3.11", "Provides-Extra: wings", *needs)
    distribution(tmp_path, "with-parts", "1.5", "Provides-Extra: part", 'Requires-Dist: missing-part; extra == "part"')
    monkeypatch.syspath_prepend(str(tmp_path))
    assert told(check("packages"), "problem") == [
        "no-such-thing is not installed (wanted: no-such-thing>=2)",
        "missing-part is not installed (wanted: missing-part)",
    ]
    [wings] = [finding for finding in check("extras") if finding.status == "note"]
    assert "only-there is not installed" in wings.what
    assert "nip_ray[wings]" in wings.mend


def test_a_ray_or_torch_that_cannot_be_imported_is_a_problem(tmp_path: Path) -> None:
    for name in ("ray", "torch"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise OSError('libbroken.so: cannot open shared object file')")
    source = "from nip_ray.cluster.doctor import CHECKS, findings\n"
    source += "print([(f.status, f.what) for n in ('ray', 'torch') for f in findings(n, CHECKS[n])])"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.count("problem") == 2
    assert done.stdout.count("libbroken.so") == 2


def test_a_folder_for_runs_that_is_not_there_is_fine_and_is_not_made(tmp_path: Path) -> None:
    assert [finding.status for finding in storage(tmp_path / "deep" / "runs")] == ["ok"]
    assert not everything_below(tmp_path)


@pytest.mark.parametrize("where", ["file", "file/below"])
def test_a_file_in_the_way_of_runs_is_a_problem(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("")
    [found] = storage(tmp_path / where)
    assert found.status == "problem"
    assert str(tmp_path / where) in found.what
    assert not doctor.verdict(doctor.examine(tmp_path / where))
    assert everything_below(tmp_path) == {tmp_path / "file"}


def test_a_full_disk_is_a_problem_and_an_almost_full_one_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "EASY_DISK", 1 << 80)
    assert [finding.status for finding in storage(tmp_path)] == ["note"]
    monkeypatch.setattr(doctor, "LEAST_DISK", 1 << 80)
    assert [finding.status for finding in storage(tmp_path)] == ["problem"]


def test_a_path_too_long_for_sockets_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = f"/session_2026-11-21_13-26-38_912736_4728/{doctor.LONGEST_SOCKET}"
    assert doctor.socket_path(tmp_path, 4728) == len(str(tmp_path) + session)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    needed = doctor.socket_path(tmp_path / "ray", os.getpid())
    for most, status in ((needed, "ok"), (needed - 1, "problem")):
        monkeypatch.setattr(doctor, "SOCKET_PATH", most)
        assert [finding.status for finding in check("ray folder")] == [status]


def test_little_memory_is_a_note_and_next_to_none_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, status in ((100 << 20, "problem"), (GIB, "note"), (8 * GIB, "ok")):
        monkeypatch.setattr(psutil, "virtual_memory", lambda free=free: SimpleNamespace(available=free, total=16 * GIB))
        assert [finding.status for finding in check("memory")] == [status]


def test_whether_programs_can_be_isolated_is_tried_and_never_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (found,) = check("sandbox")
    assert found.status == "note"
    assert (
        "none works here: bwrap is not on the PATH; docker is not on the PATH; podman is not on the PATH" in found.what
    )
    assert "bubblewrap" in found.mend
    (tmp_path / "podman").write_text("#!/bin/sh\necho 42\n")
    (tmp_path / "podman").chmod(0o755)
    engines._working.cache_clear()
    (found,) = check("sandbox")
    assert (found.status, found.what) == (
        "ok",
        "programs of models and strangers run isolated, by podman; trusted ones under limits",
    )


def test_limits_of_control_groups_are_read_at_every_level(tmp_path: Path) -> None:
    group = tmp_path / "a" / "b"
    group.mkdir(parents=True)
    membership = tmp_path / "cgroup"
    membership.write_text("0::/a/b\n")
    assert doctor.limits(tmp_path, membership) == (None, None, None)
    (group / "cpu.max").write_text("max 100000\n")
    (group / "memory.max").write_text("max\n")
    (tmp_path / "a" / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "a" / "memory.max").write_text(f"{4 * GIB}\n")
    (tmp_path / "a" / "memory.current").write_text(f"{3 * GIB}\n")
    (tmp_path / "a" / "memory.stat").write_text(f"anon 5\ninactive_file {GIB}\n")
    assert doctor.limits(tmp_path, membership) == (1.5, 4 * GIB, 2 * GIB)
    # version 1: pages of groups below are in the total alone
    (tmp_path / "a" / "memory.stat").write_text(f"inactive_file 0\ntotal_inactive_file {2 * GIB}\n")
    assert doctor.limits(tmp_path, membership) == (1.5, 4 * GIB, 3 * GIB)
