"""What a comparison shows, in words, with its evidence and how far it can be trusted. Pure.

Ratios are formed round by round, so that what disturbed a round cancels. A difference counts only
above SMALLEST and outside its 95 % interval.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from hpcddp.measure.comparison import throughput_ratio
from hpcddp.measure.evidence import (
    SMALLEST,
    Circumstances,
    Row,
    cap_words,
    communication_words,
    control_of,
    devices_words,
    hidden_cost_words,
    late_words,
    launch_words,
    more_words,
    noise_words,
    ratio_words,
    round_time,
    setting_words,
    time_words,
    totals_words,
)
from hpcddp.measure.scaling import Ratio, ratio_of
from hpcddp.phases import DP_ON_CPU

_TIGHT = 0.05
_FEW_ROUNDS, _MANY_ROUNDS = 3, 5
_LOOK = "`nvidia-smi topo -m` and `python -m hpcddp bench allreduce` show it."
_CAUSES = {  # of DP being the faster, by whether GPUs reach each other's memory
    None: "The usual cause is GPUs without direct access to each other (no peer-to-peer): DDP's "
    f"all-reduce then goes through the host's memory. {_LOOK}",
    False: "These GPUs have no direct access to each other, says CUDA (no peer-to-peer): DDP's "
    f"all-reduce goes through the host's memory. {_LOOK}",
    True: "The usual cause, GPUs without peer-to-peer access, is not it: these have it, says CUDA. "
    "See whether NCCL uses it (NCCL_P2P_DISABLE, NCCL_DEBUG=INFO): `python -m hpcddp bench "
    "allreduce`.",
}
_GLOO = (
    "On CPUs DDP's processes send gradients through sockets (gloo), while the threads of DP share "
    "their memory. On GPUs the usual cause is missing peer-to-peer access."
)
_NOISE = "what is the same computation on one device differs by more than the modes"
_SWEPT_NOISE = "what was measured several times differs from itself by more than the settings"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`within_noise` where no difference can be told from chance."""

    words: str
    confidence: str  # high, medium, low
    evidence: tuple[str, ...]
    within_noise: bool


def verdict_of(rows: Sequence[Row], where: Circumstances) -> Verdict:
    """The verdict on modes: DP against DDP, else several devices against one."""
    verdict = _verdict_of(rows, where)
    if where.backend != "gloo" or all(row["mode"] != "dp" for row in rows):
        return verdict
    return dataclasses.replace(verdict, words=f"{verdict.words} DP is the {DP_ON_CPU}.")


def _verdict_of(rows: Sequence[Row], where: Circumstances) -> Verdict:
    pairs = _pairs(rows)
    if pairs:
        return _dp_against_ddp(pairs, rows, where)
    most = max(rows, key=lambda row: (row["devices"], row["images_per_s"]))
    one = min(rows, key=lambda row: row["devices"])
    if most["devices"] == one["devices"]:
        return _nothing_to_compare(rows)
    return _many_against_one(most, one, rows, where)


def _nothing_to_compare(rows: Sequence[Row]) -> Verdict:
    """One row, or several modes on one device."""
    modes = " and ".join(row["mode"] for row in rows)
    said = f"Only {modes} on {devices_words(rows[0])} was measured: there is nothing to compare."
    if len(rows) > 1:
        said += " On one device all modes compute the same."
    evidence = [f"{row['mode']}: {time_words(row)}" for row in rows]
    return Verdict(said, "low", tuple(evidence), within_noise=False)


def _pairs(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """DP and DDP on each number of devices above one that both were measured on, most first."""
    by_place = {(row["mode"], row["devices"]): row for row in rows}
    common = [n for mode, n in by_place if mode == "dp" and ("ddp", n) in by_place and n > 1]
    return [(by_place["dp", n], by_place["ddp", n]) for n in sorted(common, reverse=True)]


def _dp_against_ddp(
    pairs: Sequence[tuple[Row, Row]], rows: Sequence[Row], where: Circumstances
) -> Verdict:
    """On the most devices; what the others say is evidence."""
    (dp, ddp), *smaller = pairs
    ratio = ratio_of(ddp["round_s_medians"], dp["round_s_medians"])
    place = f"on {devices_words(ddp)}"
    if _is_noise(ratio):
        words = f"DP and DDP {_alike(ratio)} {place}: within noise."
    elif ratio.value > 1:
        words = f"DDP is {ratio.value:.2f} times as fast as DP {place}."
    else:
        cause = _GLOO if where.backend == "gloo" else _CAUSES[where.have_peers]
        words = f"DP is {1 / ratio.value:.2f} times as fast as DDP {place}. {cause}"
    evidence = [
        f"step {place}: dp {time_words(dp)}, ddp {time_words(ddp)}",
        ratio_words("dp / ddp", ratio, dp),
        *(_smaller_words(*pair, ratio) for pair in smaller),
        communication_words(dp, where),
        communication_words(ddp, where),
        launch_words(dp, where) if ratio.value > 1 and not _is_noise(ratio) else "",
        *more_words(rows, (dp, ddp)),
    ]
    return _judged(words, ratio, evidence, rows, where, rounds=len(dp["round_s_medians"]))


def _smaller_words(dp: Row, ddp: Row, most: Ratio) -> str:
    """The ratio on fewer devices, and whether another mode is the faster there."""
    ratio = ratio_of(ddp["round_s_medians"], dp["round_s_medians"])
    said = ratio_words(f"dp / ddp on {devices_words(dp)}", ratio, dp)
    if _is_noise(ratio):
        return f"{said}: within noise"
    turns = not _is_noise(most) and (ratio.value > 1) != (most.value > 1)
    return f"{said}: there {'ddp' if ratio.value > 1 else 'dp'} is the faster" if turns else said


def _many_against_one(most: Row, one: Row, rows: Sequence[Row], where: Circumstances) -> Verdict:
    ratio = throughput_ratio(one, most)
    place = f"{most['mode']} on {devices_words(most)}"
    if _is_noise(ratio):
        words = f"{place} and {devices_words(one)} {_alike(ratio)}: within noise."
    elif ratio.value < 1:
        words = (
            f"{place} is slower than {devices_words(one)}: {ratio.value:.2f} times its images/s."
        )
    else:
        n = most["devices"] / one["devices"]
        words = (
            f"{place} trains {ratio.value:.2f} times as many images/s as {devices_words(one)}: "
            f"{100 * ratio.value / n:.0f} % of {n:g} times."
        )
    evidence = [
        f"step: {one['mode']} {time_words(one)}, {most['mode']} {time_words(most)}",
        ratio_words("images/s", ratio, most),
        communication_words(most, where),
        *more_words(rows, (most,)),
    ]
    return _judged(words, ratio, evidence, rows, where, rounds=len(most["round_s_medians"]))


def verdict_of_sweep(
    rows: Sequence[Row], index: int, where: Circumstances, *, is_own: bool
) -> Verdict:
    """The verdict on settings of ddp: the fastest of the others against the row at `index`, which
    is the run's own setting or, where that was not measured, the first.
    """
    evidence = [f"{setting_words(row)}: {time_words(row)}{totals_words(row)}" for row in rows]
    evidence += [noise_words(rows)]
    base = rows[index]
    others = [row for row in rows if row["setting"] != base["setting"]]
    if not others:
        said = f"Only {setting_words(base)} was measured: there is nothing to compare."
        return Verdict(said, "low", tuple(filter(None, evidence)), within_noise=False)
    best = min(others, key=round_time)
    ratio = ratio_of(best["round_s_medians"], base["round_s_medians"], comparisons=len(others))
    own, fastest = setting_words(base), setting_words(best)
    named = f"{own}, {'the one of this run' if is_own else 'the first'},"
    if _is_noise(ratio):
        words = f"No value is faster than {named} beyond noise."
    elif ratio.value < 1:
        words = f"{named} is the fastest."
    else:
        words = f"{fastest} is {ratio.value:.2f} times as fast as {own}."
    evidence += [ratio_words(f"{own} / {fastest}", ratio, base)]
    evidence += [*_wrong_number(rows), cap_words(rows), *_setting_by_setting(rows)]
    rounds = len(base["round_s_medians"])
    return _judged(words, ratio, evidence, rows, where, rounds=rounds)


def _setting_by_setting(rows: Sequence[Row]) -> list[str]:
    """Who keeps the others waiting, and what hidden communication costs."""
    said = [(row, words) for row in rows for words in (late_words(row), hidden_cost_words(row))]
    return [f"{setting_words(row)}: {words}" for row, words in said if words]


def _wrong_number(rows: Sequence[Row]) -> list[str]:
    """Where the least total communication does not go with the shortest step, say so."""
    if not all("comm_s" in row.get("phases", {}) for row in rows):
        return []
    least = min(rows, key=lambda row: row["phases"]["comm_s"])
    fastest = min(rows, key=round_time)
    # Only one of the two was picked for its time: there are as many comparisons as others.
    if least["setting"] == fastest["setting"] or _is_noise(
        ratio_of(fastest["round_s_medians"], least["round_s_medians"], comparisons=len(rows) - 1)
    ):
        return []
    return [
        f"{setting_words(least)} has the least communication in all and is not the fastest: only "
        "what is exposed is waited for"
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
    control = control_of(rows)
    if control is not None and control.value > max(1 + SMALLEST, ratio.value, 1 / ratio.value):
        doubts.append(_SWEPT_NOISE if any(row["setting"] for row in rows) else _NOISE)
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
