"""Graph networks and pair attention by `kernels.cpp`, which is compiled once on each machine where a C++ compiler is found.

Decisions that matter here:
- one autograd function for an agent's graph networks and one for a layer of its pair transformer; whoever differentiates their gradients
  (`create_graph`) gets those of the same function in torch's operations;
- sums of floats are taken in another order than torch takes them, always the same one, however many threads there are;
- the library is named after its source, flags, compiler and processor, and lies in a folder that nobody else can write to.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nip_ray.errors import UserError
from nip_ray.networks.gin import Gin, run_gins
from nip_ray.networks.transformer import PairTransformerLayer

log = logging.getLogger(__name__)

_SOURCE = Path(__file__).with_name("kernels.cpp")
_FLAGS = ("-O3", "-std=c++17", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-pthread")
_KINDS = ("tanh", "relu", "sigmoid")
_WIDTH = 16
"""Widths are multiples of this."""
_FEW_ROWS = 1024
"""Fewer are not worth a second thread."""


def wanted(kernels: str) -> bool:
    """Whether `kernels` (auto, native or torch) means those of this file here. Raises UserError where native ones cannot be had."""
    if kernels == "torch":
        return False
    try:
        _library()
    except UserError as error:
        if kernels == "native":
            raise
        log.info("graph networks run by torch's kernels: %s", error)
        return False
    return True


def fits(settings: Any) -> bool:
    """Whether networks of these settings have the widths that the kernels ask for (an agent's, see `GraphAgentSettings`)."""
    widths = (settings.d_gnn, settings.d_gin_mlp, settings.d_transformer, settings.d_transformer_mlp)
    return all(width % _WIDTH == 0 for width in widths) and settings.d_transformer % settings.num_heads == 0


def can_run(*tensors: Tensor) -> bool:
    """Whether these are on the CPU and in single precision."""
    return all(x.device.type == "cpu" and x.dtype == torch.float32 for x in tensors)


# ---- graph networks -----------------------------------------------------------------------------------------------------------------


class _GinShape(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int) for name in ("streams", "count", "nodes", "inputs", "d", "mlp", "layers", "networks", "kind", "threads")
    ]


def gins(networks: Sequence[Gin], x_SMVF: Tensor, adjacency_MVV: Tensor, node_mask_MV1: Tensor) -> tuple[Tensor, ...]:
    """As `run_gins`, an output (S, M, V, d) for each network; the features are data, without a gradient."""
    parameters = [parameter for network in networks for parameter in _parameters(network)]
    arguments = (x_SMVF.contiguous(), adjacency_MVV.contiguous(), node_mask_MV1.contiguous())
    if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters):
        return _Gins.apply(networks, *arguments, *parameters)
    return _play_gins(networks, *arguments, parameters, None)


def _parameters(network: Gin) -> list[Tensor]:
    """In their order, sooner than by `parameters()`."""
    linear = [network.encode, *(one for layer in network.layers for one in layer)]  # type: ignore[union-attr]
    return [part for one in linear for part in (one.weight, one.bias)]


def _gin_shape(networks: Sequence[Gin], x_SMVF: Tensor) -> _GinShape:
    streams, count, nodes, features = x_SMVF.shape
    first = networks[0]
    mlp = first.layers[0][0].out_features if first.layers else _WIDTH  # type: ignore[index]
    sizes = (features, first.encode.out_features, mlp, len(first.layers), len(networks), _KINDS.index(first.activation))
    return _GinShape(streams, count, nodes, *sizes, _threads(streams * count * nodes))


def _play_gins(
    networks: Sequence[Gin], x: Tensor, adjacency: Tensor, mask: Tensor, parameters: Sequence[Tensor], kept: Tensor | None
) -> tuple[Tensor, ...]:
    shape = _gin_shape(networks, x)
    outputs = tuple(x.new_zeros(*x.shape[:3], shape.d) for _ in networks)
    kept_at = None if kept is None else _at(kept)
    _library().nip_gin(ctypes.byref(shape), _at(x), _at(adjacency), _at(mask), _each(parameters), _each(outputs), kept_at)
    return outputs


class _Gins(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, networks: Sequence[Gin], x: Tensor, adjacency: Tensor, mask: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
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
    """Networks as one module, so that their parameters can be given."""

    def __init__(self, networks: Sequence[Gin]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        return tuple(run_gins(list(self.networks), *arguments))  # type: ignore[arg-type]


def _in_torch(networks: Sequence[Gin], parameters: Sequence[Tensor], *arguments: Tensor) -> tuple[Tensor, ...]:
    module = _SideBySide(networks)
    return functional_call(module, dict(zip((name for name, _ in module.named_parameters()), parameters)), arguments)


# ---- pair attention -----------------------------------------------------------------------------------------------------------------


class _PairShape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("count", "nodes", "d", "mlp", "heads", "pooled", "sides", "threads")]


def pair_layer(
    layer: PairTransformerLayer,
    pooled_NGD: Tensor,
    nodes_NGVD: Tensor,
    bias_NGK: Tensor,
    bias_NK: Tensor,
    node_mask_NGV1: Tensor,
    want_pooled: bool,
    want_nodes: bool,
    side_N: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As `PairTransformerLayer.forward` without dropout; padded nodes come back as zeros. node_mask_NGV1: 1 at real nodes."""
    wants = (want_pooled, want_nodes)
    side = side_N if side_N is None else side_N.contiguous()
    arguments = (pooled_NGD.contiguous(), nodes_NGVD.contiguous(), bias_NGK, bias_NK, node_mask_NGV1.contiguous(), side)
    parameters = list(layer.parameters())
    differentiable = any(x.requires_grad for x in (pooled_NGD, nodes_NGVD, *parameters))
    if torch.is_grad_enabled() and differentiable:
        return _PairLayer.apply(layer, wants, *arguments, *parameters)
    pooled, nodes, _, _, mask, _ = arguments
    return _play_pair(_pair_shape(layer, nodes, wants, side), pooled, nodes, mask, side, _joined(parameters))


def _pair_shape(layer: PairTransformerLayer, nodes: Tensor, wants: tuple[bool, bool], side: Tensor | None) -> _PairShape:
    count, _, num_nodes, d = nodes.shape
    sides = 0 if not wants[1] else 2 if side is None else 1
    return _PairShape(count, num_nodes, d, layer.linear1.out_features, layer.num_heads, wants[0], sides, _threads(count * 2 * num_nodes))


def _play_pair(
    shape: _PairShape, pooled: Tensor, nodes: Tensor, mask: Tensor, side: Tensor | None, weights: Tensor
) -> tuple[Tensor, Tensor]:
    new_pooled = pooled.new_zeros(pooled.shape if shape.pooled else (0, *pooled.shape[1:]))
    wanted_nodes = (shape.count, shape.sides, *nodes.shape[2:])
    new_nodes = nodes.new_zeros(wanted_nodes if shape.sides else (0, *nodes.shape[1:]))
    side_at = None if side is None else _at(side)
    arguments = (_at(pooled), _at(nodes), _at(mask), side_at, _at(weights), _at(new_pooled), _at(new_nodes))
    _library().nip_pair(ctypes.byref(shape), *arguments)
    return new_pooled, new_nodes


class _PairLayer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        layer: PairTransformerLayer,
        wants: tuple[bool, bool],
        pooled: Tensor,
        nodes: Tensor,
        bias_NGK: Tensor,
        bias_NK: Tensor,
        mask: Tensor,
        side: Tensor | None,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.layer, ctx.wants = layer, wants
        ctx.save_for_backward(pooled, nodes, bias_NGK, bias_NK, mask, side, *parameters)
        return _play_pair(_pair_shape(layer, nodes, wants, side), pooled, nodes, mask, side, _joined(parameters))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        pooled, nodes, bias_NGK, bias_NK, mask, side, *parameters = ctx.saved_tensors
        needed = [*ctx.needs_input_grad[2:4], *ctx.needs_input_grad[8:]]
        if torch.is_grad_enabled():
            named = dict(zip((name for name, _ in ctx.layer.named_parameters()), parameters))
            outputs = functional_call(ctx.layer, named, (pooled, nodes, bias_NGK, bias_NK, *ctx.wants, side))
            both = [pair for pair, want in zip(zip(outputs, gradients), ctx.wants) if want]
            found = _differentiated([out for out, _ in both], [pooled, nodes, *parameters], needed, [given for _, given in both])
        else:
            shape, weights = _pair_shape(ctx.layer, nodes, ctx.wants, side), _joined(parameters)
            d_pooled, d_nodes, d_weights = torch.zeros_like(pooled), torch.zeros_like(nodes), torch.empty_like(weights)
            given = [gradient.contiguous() for gradient in gradients]
            side_at = None if side is None else _at(side)
            inputs = (_at(pooled), _at(nodes), _at(mask), side_at, _at(weights), _at(given[0]), _at(given[1]))
            _library().nip_pair_back(ctypes.byref(shape), *inputs, _at(d_pooled), _at(d_nodes), _at(d_weights))
            found = (d_pooled, d_nodes, *_parted(d_weights, parameters, needed[2:]))
        return (None, None, found[0], found[1], None, None, None, None, *found[2:])


# ---- what both need -----------------------------------------------------------------------------------------------------------------


def _at(x: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.data_ptr())


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
    """The gradients by the inputs that need one, which can be differentiated again."""
    asked = [x for x, need in zip(inputs, needed) if need]
    found = iter(torch.autograd.grad(outputs, asked, gradients, create_graph=True, allow_unused=True))
    return tuple(next(found) if need else None for need in needed)


def _threads(rows: int) -> int:
    return torch.get_num_threads() if rows >= _FEW_ROWS else 1


@functools.cache
def _library() -> ctypes.CDLL:
    """Compiled where that has not been done yet. Raises UserError without a compiler, or where it fails."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise UserError("scenario.kernels: no C++ compiler was found (c++, g++, clang++ or $CXX); install one, or set it to torch")
    tune = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
    command = [compiler, *_FLAGS, tune]
    threads = _torch_threads()
    given = [_SOURCE.read_text(), *command, str(threads), _asked(compiler), _processor()]
    path = _folder() / f"kernels-{hashlib.sha256(chr(10).join(given).encode()).hexdigest()[:16]}.so"
    if not path.exists() and not (threads and _compile([*command, "-fopenmp"], path, threads)):
        _compile(command, path)
    return ctypes.CDLL(str(path))


def _compile(command: Sequence[str], path: Path, threads: Path | None = None) -> bool:
    """Whether it could be done; without `threads`, torch's OpenMP library, UserError says why not."""
    with tempfile.TemporaryDirectory(dir=path.parent) as aside:
        made, parts = Path(aside) / path.name, Path(aside) / "kernels.o"
        linked = [command[0], "-shared", "-pthread", str(parts), *([str(threads)] if threads else []), "-Wl,-z,defs", "-o", str(made)]
        for step in ([*command, "-c", str(_SOURCE), "-o", str(parts)], linked):
            done = subprocess.run(step, capture_output=True, text=True)
            if done.returncode and threads:
                return False
            if done.returncode:
                said = (done.stderr.strip() or "no message").splitlines()[0]
                raise UserError(f"scenario.kernels: {command[0]} could not compile {_SOURCE.name} ({said}); set it to torch")
        os.replace(made, path)
    return True


def _torch_threads() -> Path | None:
    """The OpenMP library that torch has loaded: a second one's threads would wait for a core on which the first one's are spinning."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    loaded = {line.split(maxsplit=5)[5] for line in lines if line.count("/")}
    names = (path for path in map(Path, sorted(loaded)) if path.name.startswith(("libgomp", "libiomp5", "libomp")))
    return next(names, None)


def _folder() -> Path:
    """Of compiled libraries: in the user's cache, or in a new folder where that cannot be written to, or others can."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nip_ray"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid == os.getuid() and not status.st_mode & 0o022 and os.access(folder, os.W_OK):
            return folder
    except OSError as error:
        log.info("compiled kernels are not kept: %s", error)
    return Path(tempfile.mkdtemp(prefix="nip-ray-kernels-"))


def _asked(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout


def _processor() -> str:
    """What the processor can do: a home folder may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
