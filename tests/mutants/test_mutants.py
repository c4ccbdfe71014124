"""The list of planted bugs fits the code."""

from tests.mutants.run import ROOT, mutants


def test_every_bug_can_be_planted() -> None:
    found = mutants()
    assert len(found) >= 45 + 25
    assert sum(mutant.seed is not None for mutant in found) >= 25
    assert len({mutant.name for mutant in found}) == len(found)
    faults = []
    for mutant in found:
        path = ROOT / mutant.file
        count = path.read_text(encoding="utf-8").count(mutant.old) if path.is_file() else 0
        if count != 1:
            faults.append(f"{mutant.name}: its old text stands {count} times in {mutant.file}, expected once")
        elif mutant.new == mutant.old:
            faults.append(f"{mutant.name}: changes nothing")
        for part in mutant.tests.partition(" -k ")[0].split() if mutant.seed is None else ():
            if not (ROOT / part.partition("::")[0]).exists():
                faults.append(f"{mutant.name}: there is no {part}")
    assert not faults, "mend tests/mutants/mutants.yaml:\n" + "\n".join(faults)
