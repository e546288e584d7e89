"""Random numbers of a step as a function of (seed, step, rank), never of how it was reached.

So resuming needs no generator state. Augmentation draws for itself (`hpcddp.data.draws`).
"""

import hashlib

import torch


def seed_step(seed: int, step: int, global_rank: int) -> None:
    """Start torch's generators anew for what this step draws on this rank (dropout and the like).

    Other ranks and steps draw independently.
    """
    torch.manual_seed(step_seed(seed, step, global_rank))


def step_seed(seed: int, step: int, global_rank: int) -> int:
    """64 well-mixed bits of (seed, step, rank)."""
    said = f"{seed}/{step}/{global_rank}".encode()
    return int.from_bytes(hashlib.blake2b(said, digest_size=8).digest(), "little")
