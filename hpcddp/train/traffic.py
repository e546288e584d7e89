"""How many bytes a step moves between copies of a model, before any was moved. Knows no step."""

from dataclasses import dataclass

from torch import nn

from hpcddp.config.batch import BatchPlan, busy_devices


@dataclass(frozen=True, slots=True)
class Traffic:
    """Payload of one step: the size of the tensors, whatever a collective makes of it on the wire.

    An all-reduce over n processes sends 2(n-1)/n of it per process (ring; nccl-tests).
    """

    comm_bytes: int = 0  # gradients; with DataParallel parameters too, which it copies every pass
    buffer_bytes: int = 0  # running means and the like


def ddp_traffic(model: nn.Module) -> Traffic:
    """DDP reduces each gradient once per step, and sends buffers out before the first pass."""
    return Traffic(_gradient_bytes(model), _size(list(model.buffers())))


def dp_traffic(model: nn.Module, plan: BatchPlan, num_replicas: int) -> Traffic:
    """DataParallel copies the model to all replicas but the first, and brings their gradients back.

    It does so in every pass, for as many replicas as get a part of the micro-batch.
    """
    copies = (busy_devices(plan.micro_batch, num_replicas) - 1) * plan.accumulation_steps
    parameter_bytes = _size(list(model.parameters())) + _gradient_bytes(model)
    return Traffic(copies * parameter_bytes, copies * _size(list(model.buffers())))


def _gradient_bytes(model: nn.Module) -> int:
    return _size([parameter for parameter in model.parameters() if parameter.requires_grad])


def _size(tensors: list) -> int:
    return sum(tensor.nbytes for tensor in tensors)
