"""Rates and waiting times of the steps between two records. Reads nothing from the device."""

from dataclasses import dataclass

from hpcddp.config.batch import BatchPlan


@dataclass(slots=True)
class StepClock:
    """Host seconds of the steps since the last record; evaluation and saving are not in it.

    A record is made after its step's loss was read from the device, so what the device still had
    to do by then is counted.
    """

    steps: int = 0
    elapsed_s: float = 0.0
    data_wait_s: float = 0.0

    def add(self, elapsed_s: float, data_wait_s: float) -> None:
        """Count one step and what of it was waiting for the loader."""
        self.steps += 1
        self.elapsed_s += elapsed_s
        self.data_wait_s += data_wait_s

    def take_rates(self, plan: BatchPlan, devices_per_process: int = 1) -> dict[str, float]:
        """Throughput of the whole job and mean seconds per step; the clock starts again."""
        devices = plan.world_size * devices_per_process
        images_per_s = plan.global_batch * self.steps / self.elapsed_s
        rates = {
            "images_per_s": images_per_s,
            "images_per_s_per_gpu": images_per_s / devices,
            "data_wait_s": self.data_wait_s / self.steps,
            "step_s": self.elapsed_s / self.steps,
        }
        self.steps, self.elapsed_s, self.data_wait_s = 0, 0.0, 0.0
        return {name: round(rate, 6) for name, rate in rates.items()}
