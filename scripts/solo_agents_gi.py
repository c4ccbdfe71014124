#!/usr/bin/env python3
"""Each agent of the published graph isomorphism setting alone, supervised by the labels: what its network can see
without a proof.

python scripts/solo_agents_gi.py --seeds 8144 820 4173 3992
python scripts/solo_agents_gi.py --agents prover --iterations 20
"""

from _common import parser, run, train


def main() -> None:
    """Train each agent once for each seed and print the held-out metrics and the upper bound for its network."""
    flags = parser(__doc__)
    flags.add_argument(
        "--agents", nargs="+", choices=("verifier", "prover"), default=["verifier", "prover"], help="(default: both)"
    )
    arguments = flags.parse_args()
    for agent in arguments.agents:
        train(arguments, "solo_gi", [f"name=solo-gi-{agent}", f"algorithm.agent={agent}"])


if __name__ == "__main__":
    run(main)
