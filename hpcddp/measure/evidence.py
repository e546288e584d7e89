"""What a comparison's rows show, as words of its verdict's evidence. Pure; judges nothing."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcddp.config.schema import TORCHS_BUCKET_CAP_MIB
from hpcddp.measure.scaling import Ratio, ratio_of
from hpcddp.phases import COMM_PARTS

Row = Mapping[str, Any]
SMALLEST = 0.03  # a smaller difference is nobody's reason to change anything
_MUCH = 0.10  # of a step
_BUSY = 0.8  # of a CPU
_UNEVEN_MEMORY = 1.2
_UNEVEN_USE = 0.2
_CAP = "ddp.bucket_cap_mib"


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the rows do not say: the backend of ddp, whether devices had CPUs of their own, and
    whether GPUs reach each other's memory (None: not known).
    """

    backend: str = "nccl"
    cpus_are_shared: bool = False
    have_peers: bool | None = None


def control_of(rows: Sequence[Row]) -> Ratio | None:
    """Of what is the same computation, slowest over fastest: all modes on one device, and a
    setting that was measured several times.
    """
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        several = (row["mode"], row["devices"], setting_words(row))
        groups.setdefault(1 if row["devices"] == 1 else several, []).append(row)
    ordered = [sorted(same, key=round_time) for same in groups.values() if len(same) > 1]
    ratios = [ratio_of(o[0]["round_s_medians"], o[-1]["round_s_medians"]) for o in ordered]
    return max(ratios, key=lambda ratio: ratio.value, default=None)


def round_time(row: Row) -> float:
    """By which rows are ordered as their ratios are: the logarithm of the time of its rounds."""
    return math.fsum(map(math.log, row["round_s_medians"]))


def noise_words(rows: Sequence[Row]) -> str:
    """By how much the same computation differs from itself."""
    control = control_of(rows)
    if control is None:
        return ""
    by = _percent(control.value - 1)
    if any(row["setting"] for row in rows):
        return f"noise: what was measured several times differs from itself by {by}"
    return f"noise: on one device, where all modes compute the same, they differ by {by}"


def more_words(rows: Sequence[Row], shown: Sequence[Row]) -> list[str]:
    """What else stands out, about the rows that the verdict is on, and the noise of all."""
    said = [line for row in shown for line in _row_words(row) if line]
    fastest = max(rows, key=lambda row: row["images_per_s"])
    if fastest["devices"] < max(row["devices"] for row in shown):
        said.append(f"fastest of all is {fastest['mode']} on {devices_words(fastest)}")
    return [*said, noise_words(rows)]


def _row_words(row: Row) -> tuple[str, ...]:
    return (
        _data_words(row),
        _memory_words(row),
        _use_words(row),
        late_words(row),
        hidden_cost_words(row),
    )


def _data_words(row: Row) -> str:
    waits = row["phases"].get("data_wait_s", 0.0) / row["step_s_median"]
    return f"{row['mode']} waits for data {_percent(waits)} of its step" if waits > _MUCH else ""


def _memory_words(row: Row) -> str:
    uneven = row.get("memory_imbalance")
    if uneven is None or uneven <= _UNEVEN_MEMORY:
        return ""
    return f"{row['mode']}'s first device holds {uneven:.1f} times the others' memory"


def _use_words(row: Row) -> str:
    use = (row.get("gpu_utilisation") or [])[: row["devices"]]
    if not use or max(use) - min(use) <= _UNEVEN_USE:
        return ""
    each = ", ".join(f"{100 * share:.0f}" for share in use)
    return f"{row['mode']}'s devices are busy {each} % of the time: some of them wait for others"


def late_words(row: Row) -> str:
    """Who keeps the others waiting: the process that itself waits least."""
    waits = row.get("exposed_comm_s_per_process") or [0.0]
    late = min(range(len(waits)), key=waits.__getitem__)
    if max(waits) - waits[late] <= _MUCH * row["step_s_median"]:
        return ""
    return (
        f"process {late} of {len(waits)} comes late: it waits {ms(waits[late])} of a step for the "
        f"others, which wait up to {ms(max(waits))}"
    )


def launch_words(dp: Row, where: Circumstances) -> str:
    """That dp's one process may be what its GPUs wait for. On CPUs it is busy computing."""
    busy = sum(dp.get("cpu_s_per_step_per_process") or ()) / dp["step_s_median"]
    if where.backend == "gloo" or busy < _BUSY:
        return ""
    return (
        f"dp's one process has a CPU for {_percent(busy)} of the step, the wait for its GPUs "
        "included: what its threads do in Python, launching kernels too, they do in turns"
    )


def hidden_cost_words(row: Row) -> str:
    """That communication takes cores, or SMs and memory, from the backward pass that hides it."""
    exposed, between = row.get("exposed_comm_fraction"), row.get("no_sync_exposed_interval")
    if exposed is None or between is None or between[0] <= exposed + SMALLEST:
        return ""
    return (
        f"{row['mode']}'s exchange costs at least {_percent(between[0])} of the step, of which "
        f"{_percent(exposed)} are exposed: what is hidden slows the backward pass beside it"
    )


def communication_words(row: Row, where: Circumstances) -> str:
    """How much of the step the devices spend on each other."""
    exposed, total = row.get("exposed_comm_fraction"), row.get("comm_fraction")
    if exposed is None or total is None:
        return ""
    parts = [
        f"{name.removesuffix('_s')} {_percent(row['phases'][name] / row['step_s_median'])}"
        for name in COMM_PARTS
        if name in row["phases"]
    ]
    if parts and row["mode"] == "dp":
        # On GPUs the parts are those of the first device, which waits for the others in them.
        waits = "" if where.backend == "gloo" else " and waits for slower ones"
        return f"dp moves data between devices{waits} {_percent(total)} ({', '.join(parts)})"
    said = f"{row['mode']} communicates {_percent(total)} of its step, {_percent(exposed)} exposed"
    return said + _without_words(row)


def _without_words(row: Row) -> str:
    """The other measurement of what is exposed, with its interval."""
    alone = row.get("no_sync_exposed_fraction")
    if alone is None:
        return ""
    between = row.get("no_sync_exposed_interval")
    low, high = between or (alone, alone)
    way, least, most = ("longer", -high, -low) if high < 0 else ("shorter", low, high)
    bounds = f"95 %: {_percent(least)} to {_percent(most)}"
    if least <= 0:
        details, said = f"{bounds} {way}", "as long, within noise"
    else:
        details, said = bounds, f"{_percent(abs(alone))} {way}"
    return f"; a step that exchanges nothing is {said}{f' ({details})' if between else ''}"


def totals_words(row: Row) -> str:
    """Communication of a setting, in all and what is exposed of it."""
    phases = row.get("phases", {})
    if "comm_s" not in phases:
        return ""
    total, exposed = phases["comm_s"], phases["exposed_comm_s"]
    return f"; communication {ms(total)} in all, {ms(exposed)} of it exposed"


def cap_words(rows: Sequence[Row]) -> str:
    """Torch's own size of buckets is another kind of setting than the sizes beside it."""
    caps = {row["setting"].get(_CAP) for row in rows}
    if TORCHS_BUCKET_CAP_MIB not in caps or len(caps) < 2:
        return ""
    return (
        f"{_CAP}={TORCHS_BUCKET_CAP_MIB} is torch's own choice, with a first bucket of 1 MiB; the "
        "other values hold for the first bucket too"
    )


def ratio_words(what: str, ratio: Ratio, row: Row) -> str:
    """A ratio with its interval."""
    rounds = len(row["round_s_medians"])
    if rounds < 2:
        return f"{what}: {ratio.value:.2f} in one round"
    others = f", for all of {ratio.comparisons} comparisons" if ratio.comparisons > 1 else ""
    return (
        f"{what}: {ratio.value:.2f}, with 95 % between {ratio.low:.2f} and {ratio.high:.2f}"
        f"{others} ({rounds} rounds in turn)"
    )


def time_words(row: Row) -> str:
    """A step with its number and spread."""
    return f"{ms(row['step_s_median'])} (n={row['n']}, middle half {ms(row['step_s_iqr'])} wide)"


def setting_words(row: Row) -> str:
    """`ddp.bucket_cap_mib=25`."""
    return ", ".join(f"{key}={value}" for key, value in row["setting"].items())


def devices_words(row: Row) -> str:
    """`4 devices`."""
    return f"{row['devices']} device{'s' if row['devices'] != 1 else ''}"


def ms(seconds: float) -> str:
    """`4.2 ms`."""
    return f"{1000 * seconds:.1f} ms"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"
