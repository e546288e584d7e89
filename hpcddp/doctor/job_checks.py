"""What the facts of all processes mean together, and what they measured. Reads nothing itself."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hpcddp.doctor.findings import (
    RUNS_SHARED,
    SHARE_RUNS,
    SHARED_FOLDER,
    Facts,
    Finding,
    Verdict,
    fail,
    finding,
    not_testable,
    ok,
    warn,
    without,
)
from hpcddp.doctor.pairs import Suspect, slow_ones
from hpcddp.doctor.units import bytes_text, rate_text, time_text

Processes = Sequence[Facts]
Places = Iterator[tuple[str, Verdict]]  # host, or "" for the whole job

_MUST_AGREE = ("python", "hpcddp", "torch", "nccl")
_SKEW_S, _GREAT_SKEW_S = 1.0, 60.0
_VISIBLE_S = 2.0
_OF_EXPECTED, _FAR_BELOW = 0.8, 0.5
_OF_NOMINAL, _ONE_STREAM_MBIT = 0.1, 10_000  # no single TCP connection uses more of a fast link
_MOVED_SHARE = 0.3  # of what a ring sends; other algorithms send less


def versions(processes: Processes, measured: Facts) -> Places:
    """Different kernels and drivers run together; different libraries hang or compute nonsense."""
    names = sorted({name for facts in processes for name in facts["versions"]})
    agreed = []
    for name in names:
        found = {facts["host"]: facts["versions"].get(name, "none") for facts in processes}
        usual = Counter(found.values()).most_common(1)[0][0]
        odd = {host: value for host, value in found.items() if value != usual}
        for host, value in odd.items():
            judge = fail if name in _MUST_AGREE else warn
            fix = f"one environment for all nodes; or resources.sbatch.exclude={host}"
            yield host, judge(f"{name} {value}", f"{usual}, as on the other nodes", fix)
        agreed += [] if odd else [f"{name} {usual}"]
    if len(agreed) == len(names):
        yield "", ok(", ".join(agreed))


def distinct_gpus(processes: Processes, measured: Facts) -> Places:
    users: dict[str, list[Facts]] = {}
    for facts in processes:
        if facts.get("device_uuid"):
            users.setdefault(facts["device_uuid"], []).append(facts)
    for uuid, together in users.items():
        if len(together) > 1:
            ranks = ", ".join(str(facts["global_rank"]) for facts in together)
            fix = "one process per GPU: --gpus-per-node N; no CUDA_VISIBLE_DEVICES of your own"
            yield together[0]["host"], fail(f"ranks {ranks} share {uuid}", "a GPU each", fix)
    if not users:
        yield "", not_testable(processes[0]["no_gpu"] or "no process uses a GPU")
    elif all(len(together) == 1 for together in users.values()):
        yield "", ok(f"{len(users)} GPUs, {len(processes)} processes")


def threads(processes: Processes, measured: Facts) -> Places:
    """Threads of torch on each node against the cores that its processes have together."""
    hosts = sorted({facts["host"] for facts in processes})
    for host in hosts:
        own = [facts for facts in processes if facts["host"] == host]
        cores = len(set().union(*(facts["cpus"] for facts in own)))
        total = sum(facts["threads"] for facts in own)
        said = f"threads of torch: {total}, processes: {len(own)}, cores: {cores}"
        if total <= cores:
            yield host, ok(said)
        else:
            fix = f"export OMP_NUM_THREADS={cores // len(own)}"
            if len(own) > cores:  # even one thread each is too many
                fix = f"processes per node: {cores}; or more cores: resources.cpus_per_process=N"
            yield host, warn(said, "no more threads than cores", fix)


def clocks(processes: Processes, measured: Facts) -> Places:
    offsets = measured["clocks"]
    if not offsets:
        yield "", not_testable("one host has one clock")
        return
    for host, (offset_s, _) in offsets.items():
        if abs(offset_s) > _SKEW_S:
            judge = fail if abs(offset_s) > _GREAT_SKEW_S else warn
            said, fix = f"{time_text(offset_s)} off rank 0", "chronyc tracking; tell your admin"
            yield host, judge(said, f"below {time_text(_SKEW_S)}", fix)
    good = [pair for pair in offsets.values() if abs(pair[0]) <= _SKEW_S]
    if good:
        most, trip_s = (max(map(abs, numbers)) for numbers in zip(*good, strict=True))
        known = f"known to {time_text(trip_s / 2)}"
        yield "", ok(f"clocks: {len(good)}, at most {time_text(most)} off rank 0, {known}")


def visibility(processes: Processes, measured: Facts) -> Places:
    """A file that one node writes, seen from the others."""
    seen = measured["visible"]
    writer, folder, after_s = seen["writer"], seen["folder"], seen["after_s"]
    if seen["error"]:
        yield writer, fail(f"cannot write to {folder}: {seen['error']}", SHARED_FOLDER, SHARE_RUNS)
    elif not after_s:
        yield "", not_testable("one node sees what it writes")
    elif len(after_s) > 1 and set(after_s.values()) == {None}:
        yield (
            writer,
            fail(f"no other node sees what it writes to {folder}", SHARED_FOLDER, SHARE_RUNS),
        )
        return
    what = f"a file of {writer} in {folder}"
    for host, seconds in after_s.items():
        if seconds is None:
            yield host, fail(f"never saw {what}", SHARED_FOLDER, SHARE_RUNS)
        elif seconds > _VISIBLE_S:
            late, least = f"{what} came after {time_text(seconds)}", f"{time_text(_VISIBLE_S)}"
            yield host, warn(late, least, f"{SHARE_RUNS}; on NFS the mount option lookupcache=none")
    quick = [seconds for seconds in after_s.values() if seconds is not None]
    if quick and max(quick) <= _VISIBLE_S and len(quick) == len(after_s):
        yield "", ok(f"{what} was there after {time_text(max(quick))} at most")


def correctness(processes: Processes, measured: Facts) -> Places:
    reduced = measured["allreduce"]
    if reduced is None:
        yield "", not_testable("one process reduces nothing")
    elif reduced["correct"]:
        yield "", ok(f"{len(reduced['rows'])} sizes, every sum exact ({reduced['backend']})")
    else:
        fix = "a node or link damages data: find it with doctor on fewer nodes, tell your admin"
        yield "", fail(f"wrong sums ({reduced['backend']})", "exact sums", fix)


def latency(processes: Processes, measured: Facts) -> Places:
    reduced = measured["allreduce"]
    if not reduced or not reduced["rows"]:
        yield "", not_testable("nothing was reduced")
        return
    least = min(reduced["rows"], key=lambda row: row["bytes"])
    best = max(reduced["rows"], key=lambda row: row["busbw_gb_per_s"])
    yield (
        "",
        ok(
            f"{time_text(least['seconds'])} at {bytes_text(least['bytes'])}, bus bandwidth "
            f"{rate_text(best['busbw_gb_per_s'])} at {bytes_text(best['bytes'])}"
        ),
    )


def expected_bandwidth(processes: Processes, measured: Facts) -> Places:
    reduced, expected = measured["allreduce"], measured["expected_busbw_gb_per_s"]
    if not reduced or not reduced["rows"] or expected is None:
        unknown = "no expected_busbw_gb_per_s in the profile (--cluster NAME)"
        yield "", not_testable("nothing was reduced" if expected else unknown)
        return
    if reduced["backend"] != "nccl":
        yield "", not_testable(f"the profile expects it of NCCL, and this was {reduced['backend']}")
        return
    best = max(row["busbw_gb_per_s"] for row in reduced["rows"])
    said = f"{rate_text(best)}, {best / expected:.0%} of the expected {rate_text(expected)}"
    if best >= _OF_EXPECTED * expected:
        yield "", ok(said)
    else:
        judge = fail if best < _FAR_BELOW * expected else warn
        needed = f"{rate_text(_OF_EXPECTED * expected)}"
        yield "", judge(said, needed, "export NCCL_DEBUG=INFO: look for the line with `via NET`")


def sockets(processes: Processes, measured: Facts) -> Places:
    """Did the all-reduces go over InfiniBand or Slingshot, or fall back to sockets?"""
    reduced, moved = measured["allreduce"], measured["moved"]
    if reduced is None or not moved:
        yield "", not_testable("nothing crossed a network")
        return
    for host, sent in moved.items():
        yield host, _transport(sent, reduced["backend"])


def _transport(sent: Mapping[str, Any], backend: str) -> Verdict:
    by_socket = {**sent["interfaces"], **sent["over_infiniband"]}
    slingshot = ", ".join(sent["slingshot"])
    rdma = max(0, sum(sent["adapters"].values()) - sum(sent["over_infiniband"].values()))
    enough = _MOVED_SHARE * sent["payload_bytes"]
    if rdma >= enough and sent["adapters"]:
        return ok("RDMA adapters carried the all-reduces")
    if sum(by_socket.values()) < enough:
        idle = f"{slingshot}: no counter; but interfaces carried little, as they should"
        unknown = "neither adapters nor interfaces have counted the all-reduces"
        return not_testable(idle if slingshot else unknown)
    if not sent["adapters"] and not slingshot:
        return not_testable("no RDMA adapter; interfaces carried the all-reduces")
    if backend != "nccl":
        return not_testable(f"interfaces carried the all-reduces, as always with {backend}")
    busiest = max(by_socket, key=lambda name: by_socket[name])
    said = f"sockets: {busiest} sent {bytes_text(by_socket[busiest])}"
    if slingshot:
        return fail(
            said,
            f"Slingshot ({slingshot}) through NCCL's plugin for libfabric",
            "load the site's module with aws-ofi-nccl or aws-ofi-rccl (`modules` in the profile); "
            "export NCCL_DEBUG=INFO and look for `NET/OFI`",
        )
    return fail(
        f"{said}, RDMA {bytes_text(rdma)}",
        "RDMA over the adapters, which lay idle or carried IP",
        "unset NCCL_IB_DISABLE NCCL_NET; export NCCL_DEBUG=INFO and look for `NET/IB`",
    )


def pairs(processes: Processes, measured: Facts) -> Places:
    """Nodes and links that are slow beside the others."""
    results = measured["pairs"]
    if not results:
        yield "", not_testable("one host has no link to test")
        return
    speeds = [speed for _, _, speed in results]
    reduced = measured["allreduce"]
    way = "; the first GPU's adapter only" if reduced and reduced["backend"] == "nccl" else ""
    said = f"{rate_text(min(speeds))} to {rate_text(max(speeds))} (pairs: {len(results)}{way})"
    nodes, links = slow_ones(results)
    for suspect in nodes:
        yield suspect.hosts[0], _slow(suspect, "node")
    for suspect in links:
        yield " - ".join(suspect.hosts), _slow(suspect, "link")
    if not nodes and not links:
        yield from _against_nominal(results, processes, said)


def _slow(suspect: Suspect, what: str) -> Verdict:
    best = "at best " if what == "node" else ""
    speed = rate_text(suspect.gb_per_s)
    judge = fail if suspect.is_very_slow else warn
    return judge(
        f"slow {what}: {best}{speed} with another node, where others reach "
        f"{rate_text(suspect.usual_gb_per_s)}",
        f"{rate_text(suspect.usual_gb_per_s)}",
        without(suspect.hosts[0]),
    )


def _against_nominal(
    results: Sequence[tuple[str, str, float]], processes: Processes, said: str
) -> Places:
    """With nothing to compare with, the speed that the interfaces claim."""
    chosen = [facts["interface"] for facts in processes if facts["interface"]]
    known = [each["speed_mbit_per_s"] for each in chosen if each["speed_mbit_per_s"]]
    nominal = min(*known, _ONE_STREAM_MBIT) / 8e3 if known else 0.0
    slow = [result for result in results if result[2] < _OF_NOMINAL * nominal]
    for first, second, speed in slow:
        needed = f"more than {rate_text(_OF_NOMINAL * nominal)}, a tenth of what the link claims"
        fix = "compare with other nodes: doctor --nodes 4; tell your admin"
        yield f"{first} - {second}", warn(f"slow link: {rate_text(speed)}", needed, fix)
    if not slow:
        yield "", ok(said)


JOB_CHECKS: dict[str, Callable[[Processes, Facts], Places]] = {
    "versions": versions,
    "GPUs distinct": distinct_gpus,
    "threads": threads,
    "clocks": clocks,
    RUNS_SHARED: visibility,
    "all-reduce exact": correctness,
    "all-reduce speed": latency,
    "expected bandwidth": expected_bandwidth,
    "transport": sockets,
    "pairs of nodes": pairs,
}


def examine_job(processes: Processes, measured: Facts) -> Iterator[Finding]:
    """All findings about what the processes are and do together."""
    for name, judge in JOB_CHECKS.items():
        for host, verdict in judge(processes, measured):
            yield finding(name, host, verdict)
