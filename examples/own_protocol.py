"""A custom protocol: one question, one answer, one decision, and a second prover that is paid for rejection, in a
channel that the first cannot read.

`examples/own_protocol.yaml` trains it: nip-ray train examples/own_protocol.yaml
"""

from nip_ray.protocols import ACCEPT, AMOUNTS, REJECT, Payment, Protocol, ProtocolParams, reads, register


@reads(*AMOUNTS, "force_guess")
def criticised(params: ProtocolParams) -> Protocol:
    """The prover is paid for acceptance, the critic for rejection, and the verifier for being right."""
    ask = (("verifier", "main"),)
    answer = (("prover", "main"), ("critic", "criticism"))
    return Protocol(
        name="criticised",
        agents=("prover", "critic", "verifier"),
        channels=("main", "criticism"),
        sees={"prover": ("main",), "critic": ("main", "criticism"), "verifier": ("main", "criticism")},
        turns=((ask, answer),),  # one seed class; its rounds repeat
        max_rounds=params.max_rounds or 3,
        min_rounds=params.min_rounds or 3,  # counted from 1: the question is not a decision
        payment=Payment.from_params(params, {"prover": ACCEPT, "critic": REJECT}),
        force_guess=params.force_guess,
    )


register("criticised", criticised)  # checks it, too
