"""A model that several processes hold in parts (torch's `fully_shard`, FSDP2), and its tensors as a whole.

Each process keeps its part of every weight, and with it of gradients and of the optimizer's moments. The weights of a layer are put
together while it is computed, so all processes go forward and backward equally often.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from nip_ray.errors import UserError


def shard(model: nn.Module, device: torch.device) -> None:
    """Keep, on `device`, this process's part of all weights alone; gradients are then sums over processes.

    Layers, which go to the device one after the other, are the largest list of modules in the model. All processes of torch's default
    group take part.
    """
    if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
        raise UserError(f"algorithm.learner_sharding: torch {torch.__version__} is too old for full, install a later one")
    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    layers = max(lists, key=lambda one: sum(weight.numel() for weight in one.parameters()), default=[])
    for part in (*layers, model):
        made = fully_shard(part, mesh=mesh, reshard_after_forward=True)
        made.set_gradient_divide_factor(1.0)
        made.set_force_sum_reduction_for_comms(True)  # gloo and NCCL alike


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, which for one in parts all processes ask for."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part_of(tensor: Tensor, like: Tensor) -> Tensor:
    """What a process keeps of a whole tensor, which all have, in parts as `like` is, and where that is."""
    tensor = tensor.to(like)
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None) if isinstance(like, DTensor) else tensor


def gathered(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole copies on the CPU; of tensors in parts the first process has them, and the others nothing."""
    found = {}
    for name, tensor in tensors.items():
        full = whole(tensor.detach())
        if not isinstance(tensor, DTensor) or not distributed.get_rank():
            found[name] = full.cpu().clone()
    return found
