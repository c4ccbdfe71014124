"""How a verifier states its verdict: accept or reject, a number from 1 to 7, or from 0 to 100.

Decisions that matter here:
- a scale is a table from what may stand after "Decision:" to a confidence, the probability in [0, 1] that the verifier gives to
  acceptance: (k - 1) / 6 on the scale of seven, k / 100 in per cent;
- above one half is acceptance, below is rejection. Exactly the middle (4, and 50) ends the dialogue without a verdict: calling it a
  rejection would make soundness look better and completeness worse by definition. It is paid halfway between both, and counts as
  undecided (`nip_ray.play.dialogue.verdict_of`);
- by default payments are linear in the confidence, so on a scale a verifier that wants the most says 7 or 1 (100 or 0) where it leans at
  all; under `protocol.verifier_scoring` brier or log it says what it believes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

MARK = "Decision:"
"""What every decision starts with."""


@dataclass(frozen=True)
class Scale:
    """name: of the setting `verdict_scale`. confidences: what may be stated (lower case) -> probability of acceptance. unit: may
    follow what is stated.
    """

    name: str
    confidences: Mapping[str, float]
    unit: str = ""

    def confidence(self, stated: str) -> float | None:
        """The probability of acceptance that `stated` (in any case) means, None where it is not on the scale."""
        stated = stated.strip().lower()
        if self.unit and stated.endswith(self.unit):
            stated = stated[: -len(self.unit)].rstrip()
        return self.confidences.get(stated)

    def nearest(self, confidence: float) -> str:
        """The entry nearest to `confidence` (the lower of two)."""
        return min(self.confidences, key=lambda stated: abs(self.confidences[stated] - confidence))

    def decision(self, confidence: float) -> str:
        """The decision text of the entry nearest to `confidence`."""
        return f"{MARK} {self.nearest(confidence)}"


SCALES = {
    scale.name: scale
    for scale in (
        Scale("accept_reject", {"reject": 0.0, "accept": 1.0}),
        Scale("one_to_seven", {str(k): (k - 1) / 6 for k in range(1, 8)}),
        Scale("percent", {str(k): k / 100 for k in range(101)}, unit="%"),
    )
}
"""By name."""
