"""Submit PyTorch data-parallel training to Slurm clusters, and survive what happens there."""

__version__ = "0.1.0"
