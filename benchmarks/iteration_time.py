"""The expected time of an iteration by number of nodes, from parts that were measured on one machine.

    python benchmarks/iteration_time.py
    python benchmarks/iteration_time.py --experiment message_game --copies 16384 --runners-per-node 8 --nodes 1 2 4 8
    python benchmarks/iteration_time.py --learners 4 --gpus 1 --gpu-speedup 20 --bandwidth-gbit 25
    python benchmarks/iteration_time.py --nodes 8 --runners-per-node 8 --learners 8 --ahead

The parts come from benchmarks/scaling.json; `benchmarks/scaling.py --out FILE` measures them on your machine.
docs/scaling.md explains the model, `benchmarks/_scaling.py` is it.
"""

import argparse
import sys
from dataclasses import fields, replace
from pathlib import Path

import _scaling as scaling

from nip_ray.errors import UserError

MEASURED = Path(__file__).with_name("scaling.json")


def main() -> None:
    """Print the table."""
    arguments = _arguments()
    try:
        parts, _ = scaling.load_parts(arguments.measured, arguments.experiment)
        copies = parts.copies if arguments.copies is None else arguments.copies
        minibatch = parts.minibatch_copies if arguments.minibatch_copies is None else arguments.minibatch_copies
        if not 1 <= minibatch <= copies:
            raise UserError(
                f"--minibatch-copies: got {minibatch}, must be from 1 to the {copies} copies of an iteration"
            )
        show(replace(parts, copies=copies, minibatch_copies=minibatch), arguments)
    except UserError as error:
        sys.exit(f"error: {error}")


def show(parts: scaling.Parts, arguments: argparse.Namespace) -> None:
    """One line for everything in one process, then one for each number of nodes; milliseconds."""
    cases = [scaling.Machines(cpus=arguments.cpus)] + [_machines(nodes, arguments) for nodes in arguments.nodes]
    # all before printing: one may be refused
    found = [scaling.iteration_time(parts, machines) for machines in cases]
    size = f"{parts.copies} copies, {parts.epochs} epochs in minibatches of {parts.minibatch_copies} copies"
    names = [field.name for field in fields(scaling.IterationTime)]
    print(f"{arguments.experiment}: {size}; milliseconds")
    print("".join(f"{name:>10}" for name in ("nodes", "runners", "learners", *names, "total", "speed", "longest")))
    for machines, times in zip(cases, found, strict=True):
        counts = "".join(f"{count:>10}" for count in (machines.nodes, machines.runners, machines.learners))
        seconds = "".join(f"{value * 1e3:>10.1f}" for value in (*(getattr(times, name) for name in names), times.total))
        print(f"{counts}{seconds}{found[0].total / times.total:>9.2f}x{times.bottleneck:>10}")


def _machines(nodes: int, arguments: argparse.Namespace) -> scaling.Machines:
    return scaling.Machines(
        nodes=nodes,
        runners=nodes * arguments.runners_per_node,
        learners=arguments.learners,
        cpus=arguments.cpus,
        gpus=arguments.gpus,
        gpu_speedup=arguments.gpu_speedup,
        bandwidth=arguments.bandwidth_gbit * 1e9 / 8,
        latency_s=arguments.latency_ms / 1e3,
        ahead=arguments.ahead,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, default=MEASURED, help="a file that benchmarks/scaling.py wrote")
    parser.add_argument("--experiment", default="gi_published", help="one that the file knows")
    parser.add_argument("--copies", type=int, help="copies of an iteration, all runners together (none: as measured)")
    parser.add_argument("--minibatch-copies", type=int, help="copies of a joint minibatch (none: as measured)")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4, 8], help="numbers of nodes to compare")
    parser.add_argument("--runners-per-node", type=int, default=4, help="remote env runners on every node")
    parser.add_argument("--learners", type=int, default=0, help="remote learners in all (0: in the main process)")
    parser.add_argument(
        "--ahead", action="store_true", help="env runners play while learners learn (play.max_staleness 1)"
    )
    parser.add_argument("--cpus", type=int, default=8, help="CPUs of a node")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of a node, for learners")
    parser.add_argument(
        "--gpu-speedup", type=float, help="a GPU against a CPU thread, per copy in learning; not measured here"
    )
    parser.add_argument("--bandwidth-gbit", type=float, default=10.0, help="between nodes, gigabits per second")
    parser.add_argument("--latency-ms", type=float, default=0.2, help="between nodes, milliseconds a message")
    return parser.parse_args()


if __name__ == "__main__":
    main()
