"""Graph networks and pair attention by `kernels/*.cpp`, compiled once on each machine with a C++ compiler.

Decisions that matter here:
- one autograd function for an agent's graph networks and one for the rest up to its representations; differentiating
  their gradients (`create_graph`) uses torch's operations for the same function;
- sums of floats are in another order than torch's, but always the same one, for any number of threads;
- the library is named after its source, flags, compiler and processor, in a folder that no other user can write to.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nip_ray.errors import UserError
from nip_ray.networks.gin import Gin, run_gins
from nip_ray.networks.transformer import PairTransformerLayer

log = logging.getLogger(__name__)

_SOURCES = Path(__file__).with_name("kernels")
_FLAGS = ("-O3", "-std=c++17", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-pthread")
_KINDS = ("tanh", "relu", "sigmoid")
_WIDTH = 16
_WIDTHS = ("d_gnn", "d_gin_mlp", "d_transformer", "d_transformer_mlp", "d_representation")
"""These are multiples of that."""
_FEW_ROWS = 1024
"""Fewer do not justify a second thread."""


def wanted(kernels: str, agents: Mapping[str, Any]) -> bool:
    """Return True if `kernels` (auto, native or torch) selects those of this file. agents: their settings, see `fits`.

    Raises UserError if native kernels are requested but unavailable.
    """
    if kernels == "torch":
        return False
    misfits = [name for name, settings in agents.items() if settings.kind == "learned" and not fits(settings)]
    if kernels == "native" and misfits:
        raise UserError(
            f"scenario.kernels: got native, which needs widths that are multiples of {_WIDTH} ({', '.join(_WIDTHS)})"
            f" and a width that num_heads divides; the networks of {', '.join(misfits)} have others, set it to auto"
        )
    try:
        _library()
    except UserError as error:
        if kernels == "native":
            raise
        log.info("graph networks run by torch's kernels: %s", error)
        return False
    return True


def fits(settings: Any) -> bool:
    """Return True if networks of these settings have the kernels' widths (an agent's, see `GraphAgentSettings`)."""
    return (
        all(getattr(settings, width) % _WIDTH == 0 for width in _WIDTHS)
        and settings.d_transformer % settings.num_heads == 0
    )


def can_run(*tensors: Tensor) -> bool:
    """Return True if these tensors are on the CPU and in single precision."""
    return all(x.device.type == "cpu" and x.dtype == torch.float32 for x in tensors)


# ------------------------------------------------------------------------------------------------------- graph networks


class _GinShape(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int)
        for name in ("streams", "count", "nodes", "inputs", "d", "mlp", "layers", "networks", "kind", "threads")
    ]


def gins(networks: Sequence[Gin], x_SMVF: Tensor, adjacency_MVV: Tensor, node_mask_MV1: Tensor) -> tuple[Tensor, ...]:
    """Like `run_gins`, with an output (S, M, V, d) for each network; the features have no gradient."""
    parameters = [parameter for network in networks for parameter in _parameters(network)]
    arguments = (x_SMVF.contiguous(), adjacency_MVV.contiguous(), node_mask_MV1.contiguous())
    if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters):
        return _Gins.apply(networks, *arguments, *parameters)
    return _play_gins(networks, *arguments, parameters, None)


def _parameters(network: Gin) -> list[Tensor]:
    """In their order; faster than `parameters()`."""
    linear = [network.encode, *(one for layer in network.layers for one in layer)]  # type: ignore[union-attr]
    return [part for one in linear for part in (one.weight, one.bias)]


def _gin_shape(networks: Sequence[Gin], x_SMVF: Tensor) -> _GinShape:
    streams, count, nodes, features = x_SMVF.shape
    first = networks[0]
    mlp = first.layers[0][0].out_features if first.layers else _WIDTH  # type: ignore[index]
    sizes = (features, first.encode.out_features, mlp, len(first.layers), len(networks), _KINDS.index(first.activation))
    return _GinShape(streams, count, nodes, *sizes, _threads(streams * count * nodes))


def _play_gins(
    networks: Sequence[Gin],
    x: Tensor,
    adjacency: Tensor,
    mask: Tensor,
    parameters: Sequence[Tensor],
    kept: Tensor | None,
) -> tuple[Tensor, ...]:
    shape = _gin_shape(networks, x)
    outputs = tuple(x.new_zeros(*x.shape[:3], shape.d) for _ in networks)
    _library().nip_gin(
        ctypes.byref(shape), _at(x), _at(adjacency), _at(mask), _each(parameters), _each(outputs), _at(kept)
    )
    return outputs


class _Gins(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, networks: Sequence[Gin], x: Tensor, adjacency: Tensor, mask: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        shape = _gin_shape(networks, x)
        kept = x.new_empty(shape.networks * shape.layers * x[..., 0].numel() * (shape.d + shape.mlp))
        ctx.networks = networks
        ctx.save_for_backward(x, adjacency, mask, kept, *parameters)
        return _play_gins(networks, x, adjacency, mask, [parameter.contiguous() for parameter in parameters], kept)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, adjacency, mask, kept, *parameters = ctx.saved_tensors
        needed = ctx.needs_input_grad[4:]
        if torch.is_grad_enabled():
            outputs = _in_torch(ctx.networks, parameters, x, adjacency, mask)
            return (None, None, None, None, *_differentiated(outputs, parameters, needed, gradients))
        shape = _gin_shape(ctx.networks, x)
        found = x.new_empty(sum(parameter.numel() for parameter in parameters))
        dense = [gradient.contiguous() for gradient in gradients]
        arguments = (_at(x), _at(adjacency), _at(mask), _each(parameters), _each(dense), _at(kept), _at(found))
        _library().nip_gin_back(ctypes.byref(shape), *arguments)
        return (None, None, None, None, *_parted(found, parameters, needed))


class _SideBySide(nn.Module):
    """Networks as one module, to expose their parameters."""

    def __init__(self, networks: Sequence[Gin]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        return tuple(run_gins(list(self.networks), *arguments))  # type: ignore[arg-type]


def _in_torch(networks: Sequence[Gin], parameters: Sequence[Tensor], *arguments: Tensor) -> tuple[Tensor, ...]:
    module = _SideBySide(networks)
    return functional_call(module, dict(zip((name for name, _ in module.named_parameters()), parameters)), arguments)


# ---------------------------------------------------------------------------------------- from nodes to representations


class _PairShape(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int)
        for name in ("count nodes inputs latest d mlp heads layers outputs graphs sides invariant threads".split())  # noqa: SIM905
    ]


@dataclass(frozen=True)
class Wanted:
    """The requested outputs of `represent`: representations of graphs, of nodes (of all, or of one graph a pair if
    `one_side`), and True if pooling ignores the order of the pair."""

    graphs: bool
    nodes: bool
    one_side: bool
    invariant: bool


def represent(
    body: Any,
    h_NGVD: Tensor,
    latest_NGVL: Tensor,
    node_mask_NGV1: Tensor,
    wanted: Wanted,
    side_N: Tensor | None,
    *in_torch: Any,
) -> tuple[Tensor, Tensor]:
    """Pooling, tokens, pair transformer (of one layer or more) and output of `body`: (N, G, R) of graphs and (N, G or
    1, V, R) of nodes.

    body: a module with `token`, `layers` and `output`, whose forward does the same by torch's operations, given h and
    `in_torch`. Padded nodes are zeros. side_N: the graph requested in each row, or None.
    """
    side = None if side_N is None else side_N.contiguous()
    inputs = (latest_NGVL.contiguous(), node_mask_NGV1.contiguous(), side)
    h, parameters = h_NGVD.contiguous(), _body_parameters(body)
    if torch.is_grad_enabled() and (h.requires_grad or any(parameter.requires_grad for parameter in parameters)):
        return _Represent.apply(body, wanted, in_torch, *inputs, h, *parameters)
    return _play_pairs(_pair_shape(body, h, inputs[0], wanted), h, *inputs, _joined(parameters))


def _body_parameters(body: Any) -> list[Tensor]:
    """In the order of the kernels; faster than `parameters()`."""
    found = [body.token.weight, body.token.bias]
    for layer in body.layers:
        found += [layer.in_proj_weight, layer.in_proj_bias]
        for part in (layer.out_proj, layer.linear1, layer.linear2, layer.norm1, layer.norm2):
            found += [part.weight, part.bias]
    return [*found, body.output.weight, body.output.bias]


def _pair_shape(body: Any, h: Tensor, latest: Tensor, wanted: Wanted) -> _PairShape:
    count, _, nodes, width = h.shape
    layer: PairTransformerLayer = body.layers[0]
    sizes = (
        layer.out_proj.out_features,
        layer.linear1.out_features,
        layer.num_heads,
        len(body.layers),
        body.output.out_features,
    )
    sides = 0 if not wanted.nodes else 1 if wanted.one_side else 2
    wants = (wanted.graphs, sides, wanted.invariant)
    return _PairShape(count, nodes, width, latest.shape[-1], *sizes, *wants, _threads(count * 2 * nodes))


def _play_pairs(
    shape: _PairShape, h: Tensor, latest: Tensor, mask: Tensor, side: Tensor | None, weights: Tensor
) -> tuple[Tensor, Tensor]:
    graphs = h.new_zeros(shape.count if shape.graphs else 0, 2, shape.outputs)
    nodes = h.new_zeros(shape.count if shape.sides else 0, shape.sides or 2, shape.nodes, shape.outputs)
    arguments = (_at(h), _at(latest), _at(mask), _at(side), _at(weights), _at(graphs), _at(nodes))
    _library().nip_pair(ctypes.byref(shape), *arguments)
    return graphs, nodes


class _Represent(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        body: Any,
        wanted: Wanted,
        in_torch: tuple[Any, ...],
        latest: Tensor,
        mask: Tensor,
        side: Tensor | None,
        h: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.body, ctx.wanted, ctx.in_torch = body, wanted, in_torch
        weights = _joined(parameters)
        ctx.save_for_backward(latest, mask, side, h, weights, *parameters)
        return _play_pairs(_pair_shape(body, h, latest, wanted), h, latest, mask, side, weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        latest, mask, side, h, weights, *parameters = ctx.saved_tensors
        needed = ctx.needs_input_grad[6:]
        nothing = (None,) * 6
        if torch.is_grad_enabled():
            names = ["token.weight", "token.bias"]
            names += [
                f"layers.{i}.{name}" for i, layer in enumerate(ctx.body.layers) for name, _ in layer.named_parameters()
            ]
            named = dict(zip([*names, "output.weight", "output.bias"], parameters))
            outputs = functional_call(ctx.body, named, (h, *ctx.in_torch))
            kept = [
                (out, given)
                for out, given, want in zip(outputs, gradients, (ctx.wanted.graphs, ctx.wanted.nodes))
                if want
            ]
            found = _differentiated([out for out, _ in kept], [h, *parameters], needed, [given for _, given in kept])
            return (*nothing, *found)
        shape = _pair_shape(ctx.body, h, latest, ctx.wanted)
        d_h, d_weights = torch.zeros_like(h), torch.empty_like(weights)
        given = [gradient.contiguous() for gradient in gradients]
        arguments = (
            _at(h),
            _at(latest),
            _at(mask),
            _at(side),
            _at(weights),
            *map(_at, given),
            _at(d_h),
            _at(d_weights),
        )
        _library().nip_pair_back(ctypes.byref(shape), *arguments)
        return (*nothing, d_h, *_parted(d_weights, parameters, needed[1:]))


# ------------------------------------------------------------------------------------------------------- what both need


def _at(x: Tensor | None) -> ctypes.c_void_p | None:
    return None if x is None else ctypes.c_void_p(x.data_ptr())


def _each(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(x.data_ptr() for x in tensors))


def _joined(parameters: Iterable[Tensor]) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


def _parted(found: Tensor, parameters: Sequence[Tensor], needed: Sequence[bool]) -> tuple[Tensor | None, ...]:
    parts = found.split([parameter.numel() for parameter in parameters])
    return tuple(part.view_as(like) if need else None for part, like, need in zip(parts, parameters, needed))


def _differentiated(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], needed: Sequence[bool], gradients: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """The gradients by the inputs that need one; differentiable again."""
    asked = [x for x, need in zip(inputs, needed) if need]
    found = iter(torch.autograd.grad(outputs, asked, gradients, create_graph=True, allow_unused=True))
    return tuple(next(found) if need else None for need in needed)


def _threads(rows: int) -> int:
    return torch.get_num_threads() if rows >= _FEW_ROWS else 1


@functools.cache
def _library() -> ctypes.CDLL:
    """The library, compiled if needed. Raises UserError without a compiler, or if it fails."""
    found = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    compiler = shlex.split(os.environ.get("CXX", "")) or ([found] if found else [])
    if not compiler:
        raise UserError(
            "scenario.kernels: no C++ compiler was found (c++, g++, clang++ or $CXX); install one, or set it to torch"
        )
    try:
        return _made(compiler)
    except OSError as error:  # a compiler that cannot be run, or a library that cannot be loaded
        raise UserError(
            f"scenario.kernels: {shlex.join(compiler)} gave no library ({error}); set it to torch"
        ) from None


def _made(compiler: Sequence[str]) -> ctypes.CDLL:
    tune = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
    command, threads = [*compiler, *_FLAGS, tune], _torch_threads()
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True).stdout
    given = [*(path.read_text() for path in sorted(_SOURCES.iterdir())), *command, str(threads), version, _processor()]
    path = _folder() / f"kernels-{hashlib.sha256(chr(10).join(given).encode()).hexdigest()[:16]}.so"
    if not path.exists() and not (threads and _compile(compiler, [*command, "-fopenmp"], path, threads)):
        _compile(compiler, command, path)
    return ctypes.CDLL(str(path))


def _compile(compiler: Sequence[str], command: Sequence[str], path: Path, threads: Path | None = None) -> bool:
    """Return True on success; without `threads`, torch's OpenMP library, failure raises UserError."""
    with tempfile.TemporaryDirectory(dir=path.parent) as aside:
        made, parts = (
            Path(aside) / path.name,
            {source: Path(aside) / f"{source.stem}.o" for source in sorted(_SOURCES.glob("*.cpp"))},
        )
        steps = [[*command, "-c", str(source), "-o", str(part)] for source, part in parts.items()]
        objects = [*map(str, parts.values()), *([str(threads)] if threads else [])]
        for step in (*steps, [*compiler, "-shared", "-pthread", *objects, "-Wl,-z,defs", "-o", str(made)]):
            done = subprocess.run(step, capture_output=True, text=True)
            if done.returncode and threads:
                return False
            if done.returncode:
                said = (done.stderr.strip() or "no message").splitlines()[0]
                raise UserError(
                    f"scenario.kernels: {shlex.join(compiler)} could not compile {_SOURCES.name}/*.cpp ({said}); set it"
                    " to torch"
                )
        os.replace(made, path)
    return True


def _torch_threads() -> Path | None:
    """The OpenMP library that torch has loaded: a second one's threads would wait for a core where the first's spin."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    loaded = {line.split(maxsplit=5)[5] for line in lines if line.count("/")}
    names = (path for path in map(Path, sorted(loaded)) if path.name.startswith(("libgomp", "libiomp5", "libomp")))
    return next(names, None)


def _folder() -> Path:
    """For compiled libraries: in the user's cache, or a new one if that is not writable, or is writable by others."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nip_ray"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid == os.getuid() and not status.st_mode & 0o022 and os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError) as error:  # no such folder, or no home
        log.info("compiled kernels are not kept: %s", error)
    return Path(tempfile.mkdtemp(prefix="nip-ray-kernels-"))


def _processor() -> str:
    """The processor's features: a home folder may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
