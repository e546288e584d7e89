"""What a comparison shows, in words, with its evidence and how far it can be trusted. Pure.

Ratios are formed round by round, so that what disturbed a round cancels. A difference counts only
above SMALLEST and outside its 95 % interval.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcddp.measure.scaling import Ratio, ratio_of

Row = Mapping[str, Any]
SMALLEST = 0.03  # a smaller difference is nobody's reason to change anything
_TIGHT = 0.05
_MUCH = 0.10
_UNEVEN = 1.2
_FEW_ROUNDS, _MANY_ROUNDS = 3, 5
_DP_PARTS = ("broadcast_s", "scatter_s", "gather_s", "reduce_s")
_NO_PEERS = (
    "The usual cause is GPUs without direct access to each other (no peer-to-peer): DDP's "
    "all-reduce then goes through the host's memory. `nvidia-smi topo -m` and `python -m hpcddp "
    "bench allreduce` show it."
)
_GLOO = (
    "On CPUs DDP's processes send gradients through sockets (gloo), while the threads of DP share "
    "their memory. On GPUs the usual cause is missing peer-to-peer access."
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`within_noise` where no difference can be told from chance."""

    words: str
    confidence: str  # high, medium, low
    evidence: tuple[str, ...]
    within_noise: bool


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the rows do not say: the backend of ddp, and whether devices had CPUs of their own."""

    backend: str = "nccl"
    cpus_are_shared: bool = False


def verdict_of(rows: Sequence[Row], where: Circumstances) -> Verdict:
    """The verdict on modes: DP against DDP, else several devices against one."""
    pair = _largest_pair(rows)
    if pair is not None:
        return _dp_against_ddp(*pair, rows, where)
    most = max(rows, key=lambda row: (row["devices"], row["images_per_s"]))
    one = min(rows, key=lambda row: row["devices"])
    if most["devices"] == one["devices"]:
        said = f"Only {most['mode']} on {_devices(most)} was measured: there is nothing to compare."
        return Verdict(said, "low", (_time_words(most),), within_noise=False)
    return _many_against_one(most, one, where)


def _largest_pair(rows: Sequence[Row]) -> tuple[Row, Row] | None:
    """DP and DDP on the largest number of devices that both were measured on; None below two."""
    by_place = {(row["mode"], row["devices"]): row for row in rows}
    common = [n for mode, n in by_place if mode == "dp" and ("ddp", n) in by_place and n > 1]
    return (by_place["dp", max(common)], by_place["ddp", max(common)]) if common else None


def _dp_against_ddp(dp: Row, ddp: Row, rows: Sequence[Row], where: Circumstances) -> Verdict:
    ratio = ratio_of(ddp["round_s_medians"], dp["round_s_medians"])
    place = f"on {_devices(ddp)}"
    if _is_noise(ratio):
        words = f"DP and DDP {_alike(ratio)} {place}: within noise."
    elif ratio.value > 1:
        words = f"DDP is {ratio.value:.2f} times as fast as DP {place}."
    else:
        cause = _GLOO if where.backend == "gloo" else _NO_PEERS
        words = f"DP is {1 / ratio.value:.2f} times as fast as DDP {place}. {cause}"
    evidence = [
        f"step {place}: dp {_time_words(dp)}, ddp {_time_words(ddp)}",
        _ratio_words("dp / ddp", ratio, dp),
        _communication_words(dp),
        _communication_words(ddp),
        *_more_words(rows, (dp, ddp)),
    ]
    return _judged(words, ratio, evidence, rows, where, rounds=len(dp["round_s_medians"]))


def _many_against_one(most: Row, one: Row, where: Circumstances) -> Verdict:
    ratio = _throughput_ratio(one, most)
    place = f"{most['mode']} on {_devices(most)}"
    if _is_noise(ratio):
        words = f"{place} and {_devices(one)} {_alike(ratio)}: within noise."
    elif ratio.value < 1:
        words = f"{place} is slower than {_devices(one)}: {ratio.value:.2f} times its images/s."
    else:
        n = most["devices"] / one["devices"]
        words = (
            f"{place} trains {ratio.value:.2f} times as many images/s as {_devices(one)}: "
            f"{100 * ratio.value / n:.0f} % of {n:g} times."
        )
    evidence = [
        f"step: {one['mode']} {_time_words(one)}, {most['mode']} {_time_words(most)}",
        _ratio_words("images/s", ratio, most),
        _communication_words(most),
        *_more_words((most, one), (most,)),
    ]
    return _judged(words, ratio, evidence, (most, one), where, rounds=len(most["round_s_medians"]))


def verdict_of_sweep(
    rows: Sequence[Row], index: int, where: Circumstances, *, is_own: bool
) -> Verdict:
    """The verdict on settings of ddp: the fastest of the others against the row at `index`, which
    is the run's own setting or, where that was not measured, the first.
    """
    evidence = [f"{_setting(row)}: {_time_words(row)}{_totals(row)}" for row in rows]
    base, others = rows[index], [*rows[:index], *rows[index + 1 :]]
    if not others:
        said = f"Only {_setting(base)} was measured: there is nothing to compare."
        return Verdict(said, "low", tuple(evidence), within_noise=False)
    best = min(others, key=lambda row: row["step_s_median"])
    ratio = ratio_of(best["round_s_medians"], base["round_s_medians"])
    named = f"{_setting(base)}, {'the one of this run' if is_own else 'the first'},"
    if _is_noise(ratio):
        words = f"No value is faster than {named} beyond noise."
    elif ratio.value < 1:
        words = f"{named} is the fastest."
    else:
        words = f"{_setting(best)} is {ratio.value:.2f} times as fast as {_setting(base)}."
    evidence += [_ratio_words(f"{_setting(base)} / {_setting(best)}", ratio, base)]
    evidence += _wrong_number(rows)
    rounds = len(base["round_s_medians"])
    return _judged(words, ratio, evidence, (), where, rounds=rounds)


def _totals(row: Row) -> str:
    phases = row.get("phases", {})
    if "comm_s" not in phases:
        return ""
    total, exposed = phases["comm_s"], phases["exposed_comm_s"]
    return f"; communication {_ms(total)} in all, {_ms(exposed)} of it exposed"


def _wrong_number(rows: Sequence[Row]) -> list[str]:
    """Where the least total communication does not go with the shortest step, say so."""
    if not all("comm_s" in row.get("phases", {}) for row in rows):
        return []
    least = min(rows, key=lambda row: row["phases"]["comm_s"])
    fastest = min(rows, key=lambda row: row["step_s_median"])
    if least is fastest or _is_noise(
        ratio_of(fastest["round_s_medians"], least["round_s_medians"])
    ):
        return []
    return [
        f"{_setting(least)} has the least communication in all and is not the fastest: only what "
        "is exposed costs time"
    ]


def _judged(
    words: str,
    ratio: Ratio,
    evidence: Sequence[str],
    rows: Sequence[Row],
    where: Circumstances,
    *,
    rounds: int,
) -> Verdict:
    """The verdict with its confidence, and what takes from it among the evidence."""
    doubts = []
    if where.cpus_are_shared:
        doubts.append("several devices had to share a CPU: these times do not say how modes scale")
    if rounds < _FEW_ROUNDS:
        counted = f"{rounds} round{'s' if rounds > 1 else ''}"
        doubts.append(f"only {counted}: chance cannot be told from a difference")
    control = _control(rows)
    if control is not None and abs(control.value - 1) > max(SMALLEST, abs(ratio.value - 1)):
        doubts.append("what is the same computation on one device differs by more than the modes")
    if doubts or (_is_noise(ratio) and not _is_clear(ratio)):
        confidence = "low"
    else:
        confidence = "high" if rounds >= _MANY_ROUNDS and _is_clear(ratio) else "medium"
    found = tuple(line for line in (*evidence, *doubts) if line)
    return Verdict(words, confidence, found, within_noise=_is_noise(ratio))


def _is_noise(ratio: Ratio) -> bool:
    return ratio.low <= 1 <= ratio.high or abs(ratio.value - 1) < SMALLEST


def _is_clear(ratio: Ratio) -> bool:
    """The whole interval is beyond what counts, or, where nothing counts, tight around 1."""
    if _is_noise(ratio):
        return ratio.low >= 1 - _TIGHT and ratio.high <= 1 + _TIGHT
    return ratio.low > 1 + SMALLEST or ratio.high < 1 - SMALLEST


def _alike(ratio: Ratio) -> str:
    """Two things between which no difference was found: because there is none, or for noise."""
    return "are equally fast" if _is_clear(ratio) else "cannot be told apart"


def _control(rows: Sequence[Row]) -> Ratio | None:
    """On one device all modes compute the same: slowest over fastest."""
    same = [row for row in rows if row["devices"] == 1]
    if len(same) < 2:
        return None
    ordered = sorted(same, key=lambda row: row["step_s_median"])
    return ratio_of(ordered[0]["round_s_medians"], ordered[-1]["round_s_medians"])


def _throughput_ratio(first: Row, second: Row) -> Ratio:
    """Images per second, second / first."""
    return ratio_of(
        [first["global_batch"] / seconds for seconds in first["round_s_medians"]],
        [second["global_batch"] / seconds for seconds in second["round_s_medians"]],
    )


def _more_words(rows: Sequence[Row], shown: Sequence[Row]) -> list[str]:
    """What else stands out, about the rows that the verdict is on, and the noise of all."""
    said = []
    for row in shown:
        waits = row["phases"].get("data_wait_s", 0.0) / row["step_s_median"]
        if waits > _MUCH:
            said.append(f"{row['mode']} waits for data {_percent(waits)} of its step")
        uneven = row.get("memory_imbalance")
        if uneven is not None and uneven > _UNEVEN:
            said.append(f"{row['mode']}'s first device holds {uneven:.1f} times the others' memory")
    fastest = max(rows, key=lambda row: row["images_per_s"])
    if fastest["devices"] < max(row["devices"] for row in shown):
        said.append(f"fastest of all is {fastest['mode']} on {_devices(fastest)}")
    control = _control(rows)
    if control is not None:
        by = _percent(control.value - 1)
        said.append(f"noise: on one device, where all modes compute the same, they differ by {by}")
    return said


def _communication_words(row: Row) -> str:
    """How much of the step the devices spend on each other."""
    exposed, total = row.get("exposed_comm_fraction"), row.get("comm_fraction")
    if exposed is None or total is None:
        return ""
    parts = [
        f"{name.removesuffix('_s')} {_percent(row['phases'][name] / row['step_s_median'])}"
        for name in _DP_PARTS
        if name in row["phases"]
    ]
    if parts:
        return f"{row['mode']} moves data between devices {_percent(total)} ({', '.join(parts)})"
    said = f"{row['mode']} communicates {_percent(total)} of its step, {_percent(exposed)} exposed"
    alone = row.get("no_sync_exposed_fraction")
    if alone is None:
        return said
    return f"{said}; a step that exchanges nothing is {_percent(alone)} shorter"


def _ratio_words(what: str, ratio: Ratio, row: Row) -> str:
    rounds = len(row["round_s_medians"])
    if rounds < 2:
        return f"{what}: {ratio.value:.2f} in one round"
    return (
        f"{what}: {ratio.value:.2f}, with 95 % between {ratio.low:.2f} and {ratio.high:.2f} "
        f"({rounds} rounds in turn)"
    )


def _time_words(row: Row) -> str:
    return f"{_ms(row['step_s_median'])} (n={row['n']}, middle half {_ms(row['step_s_iqr'])} wide)"


def _setting(row: Row) -> str:
    return ", ".join(f"{key}={value}" for key, value in row["setting"].items())


def _devices(row: Row) -> str:
    return f"{row['devices']} device{'s' if row['devices'] != 1 else ''}"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"
