"""What the facts of one node or one process mean: one small judge per check. Reads nothing."""

from collections.abc import Callable, Iterator, Sequence

from hpcddp.doctor.findings import (
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
from hpcddp.doctor.units import bytes_text, time_text

_MIB, _GIB = 1 << 20, 1 << 30
_SHM_PER_PROCESS, _SHM_LEAST = _GIB, 128 * _MIB
_MEMLOCK = _GIB  # an adapter pins its buffers
_GPU_IN_USE = 2 * _GIB  # a process that has only just opened the GPU uses less
_SLOW_OPEN_S = 0.02
_SLOW_LINK_MBIT = 1000


def memlock(facts: Facts) -> Verdict:
    limit = facts["memlock_bytes"]
    said = "unlimited" if limit is None else bytes_text(limit)
    if limit is None or limit >= _MEMLOCK:
        return ok(said)
    if not facts["rdma"]:
        return ok(f"{said}; no RDMA adapter needs more")
    return fail(
        f"{said}, with {', '.join(facts['rdma'])}",
        "unlimited: InfiniBand pins its buffers",
        "ulimit -l unlimited; or ask your admin for LimitMEMLOCK=infinity in slurmd.service",
    )


def shared_memory(facts: Facts) -> Verdict:
    free = facts["shm_bytes"]
    if free is None:
        return fail("no /dev/shm", "a tmpfs there", "data.workers=0, or --ipc=host in a container")
    needed = _SHM_PER_PROCESS * facts["local_world_size"]
    if free >= needed:
        return ok(f"{bytes_text(free)} free")
    judge = fail if free < _SHM_LEAST else warn
    return judge(
        f"{bytes_text(free)} free",
        f"{bytes_text(needed)}: loader workers pass their batches through /dev/shm",
        "data.workers=0 or fewer; in a container --ipc=host or --shm-size=8g",
    )


def interface(facts: Facts) -> Verdict:
    chosen = facts["interface"]
    if chosen is None:
        return not_testable("all processes are on one host")
    if not chosen["name"]:
        return warn(
            f"none chosen; there: {chosen['there']}",
            "one that leads to the other nodes",
            "export HPCDDP_INTERFACE=NAME, or `interface` in the profile",
        )
    speed = chosen["speed_mbit_per_s"]
    said = f"{chosen['name']}, {f'{speed} Mbit/s' if speed else 'speed unknown'}"
    if chosen["faster"]:
        return warn(
            said,
            f"the faster {chosen['faster']}",
            f"export HPCDDP_INTERFACE={chosen['faster_name']}, or `interface` in the profile",
        )
    if speed and speed < _SLOW_LINK_MBIT:
        return warn(said, f"{_SLOW_LINK_MBIT} Mbit/s", "ask for nodes with a faster network")
    return ok(said) if speed else not_testable(said)


def way_to_rank_0(facts: Facts) -> Verdict:
    if facts["way"] is None:
        return not_testable("all processes are on one host")
    if facts["way"]["is_here"]:
        return ok("rank 0 is on this host")
    ways = facts["way"]["over"]
    if not ways:
        return not_testable("no route to rank 0 is known here")
    if len(ways) > 1:
        return warn(
            f"over {' or '.join(ways)}, which are in one subnet",
            "one interface that leads there: of two, NCCL may take one and the kernel the other",
            f"export HPCDDP_INTERFACE={ways[0]}; tell your admin",
        )
    return ok(f"over {ways[0]}")


def names(facts: Facts) -> Verdict:
    known = facts["names"]
    if known is None:
        return not_testable("all processes are on one host")
    others, missing, own = known["others"], known["missing"], known["own"]
    if missing or own:
        said = [f"no address for {', '.join(missing)}"] * bool(missing)
        said += [f"{', '.join(own)} means this host itself"] * bool(own)
        more = known["num_odd"] - len(missing) - len(own)
        said += [f"and {more} more"] * bool(more)
        return fail(
            "; ".join(said),
            "an address of every node",
            f"getent hosts {(missing or own)[0]}; correct /etc/hosts or DNS, or set `host_suffix` "
            "in the cluster profile",
        )
    if known["unasked"]:
        return warn(
            f"{known['unasked']} of {others} names not answered for in time",
            "answers within milliseconds",
            "ask your admin about the name server; a local cache (nscd, sssd) helps",
        )
    return ok(f"{others} other {'node' if others == 1 else 'nodes'}")


def gpus_free(facts: Facts) -> Verdict:
    if facts["lost_gpus"]:
        return fail(", ".join(facts["lost_gpus"]), "GPUs that answer", without(facts["host"]))
    if not facts["gpus"]:
        return not_testable(facts["no_gpu"])
    used = [gpu for gpu in facts["gpus"] if (gpu["used_bytes"] or 0) > _GPU_IN_USE]
    if used:
        said = ", ".join(f"{gpu['uuid']} {bytes_text(gpu['used_bytes'])}" for gpu in used)
        return fail(f"in use: {said}", "free GPUs", without(facts["host"]))
    return ok(f"{len(facts['gpus'])} x {facts['gpus'][0]['name']}")


def gpu_clocks(facts: Facts) -> Verdict:
    if not facts["gpus"]:
        return not_testable(facts["no_gpu"])
    slowed = [gpu for gpu in facts["gpus"] if gpu["slowed_by"]]
    if slowed:
        said = ", ".join(f"{gpu['uuid']}: {' and '.join(gpu['slowed_by'])}" for gpu in slowed)
        return warn(said, "full clocks", without(facts["host"]))
    clocks = [gpu["clock_mhz"] for gpu in facts["gpus"] if gpu["clock_mhz"]]
    hottest = max((gpu["temperature_c"] or 0 for gpu in facts["gpus"]), default=0)
    return ok(f"nothing slows them; {min(clocks, default=0)} MHz now, {hottest} C at most")


def pcie_width(facts: Facts) -> Verdict:
    if not facts["gpus"]:
        return not_testable(facts["no_gpu"])
    known = [gpu for gpu in facts["gpus"] if gpu["pcie_width"] and gpu["max_pcie_width"]]
    if not known:
        return not_testable("the GPUs do not say")
    narrow = [gpu for gpu in known if gpu["pcie_width"] < gpu["max_pcie_width"]]
    if narrow:
        said = ", ".join(f"{g['uuid']} x{g['pcie_width']}" for g in narrow)
        best = max(gpu["max_pcie_width"] for gpu in narrow)
        return warn(said, f"x{best}", without(facts["host"]))
    return ok(f"x{min(gpu['pcie_width'] for gpu in known)}")


def data_path(facts: Facts) -> Verdict:
    data = facts["data"]
    if data is None:
        return not_testable("no data to look at: doctor data.root=FOLDER")
    if data.get("error"):
        fix = "data.root=FOLDER on a shared file system"
        return fail(data["error"], "the data on every node", fix)
    if data["open_s"] is None:
        return fail(f"no file in {data['path']}", "the data", "data.root=FOLDER, with the files")
    said = f"{time_text(data['open_s'])} to open a file ({data['files']} tried in {data['path']})"
    if data["open_s"] > _SLOW_OPEN_S:
        return warn(said, f"below {time_text(_SLOW_OPEN_S)}", "copy the data to a disk of the node")
    return ok(said)


def affinity(facts: Facts) -> Verdict:
    cores, asked = len(facts["cpus"]), facts["cpus_asked"]
    if asked is None:
        return not_testable("nobody asked for a number of cores (no Slurm step)")
    if cores < asked:
        return fail(
            f"{cores} of the {asked} cores asked for",
            f"{asked} (cpus-per-task)",
            f"resources.srun.cpu-bind=none; resources.cpus_per_process={cores} if nodes are small; "
            f"on your own line srun --cpus-per-task={asked}, as sbatch's is not always passed on",
        )
    return ok(f"{cores} cores, {asked} asked for")


def gpus_seen(facts: Facts) -> Verdict:
    seen, together = facts["gpus_seen"], facts["local_world_size"]
    if seen is None:
        return not_testable(facts["not_seen_because"])
    if seen == 1 < together:
        return warn(
            f"each of {together} processes sees one GPU and not its neighbours'",
            f"{together} GPUs in each process: NCCL maps the memory of its neighbours",
            "resources.srun.gpu-bind=none, or resources.srun.gres-flags=allow-task-sharing with "
            "--gpus-per-task; NCCL_P2P_DISABLE=1 is slow and the last resort",
        )
    return ok(f"{seen} in each process")


def worker_affinity(facts: Facts) -> Verdict:
    found = facts.get("worker_cpus")
    if found is None:
        return not_testable("no loader worker could be started")
    cores = len(facts["cpus"])
    if len(found) < cores:
        return fail(
            f"{len(found)} of the {cores} cores of its process",
            f"{cores}: what workers share with their process",
            "unset OMP_PROC_BIND OMP_PLACES GOMP_CPU_AFFINITY KMP_AFFINITY",
        )
    return ok(f"{len(found)} cores, as its process")


NODE_CHECKS: dict[str, Callable[[Facts], Verdict]] = {
    "memlock": memlock,
    "/dev/shm": shared_memory,
    "interface": interface,
    "way to rank 0": way_to_rank_0,
    "names of all nodes": names,
    "GPUs free": gpus_free,
    "GPU clocks": gpu_clocks,
    "PCIe width": pcie_width,
    "data path": data_path,
}
PROCESS_CHECKS: dict[str, Callable[[Facts], Verdict]] = {
    "cores": affinity,
    "cores of a loader worker": worker_affinity,
    "GPUs seen": gpus_seen,
}


def examine_hosts(processes: Sequence[Facts]) -> Iterator[Finding]:
    """All findings about single nodes and processes."""
    nodes = {facts["host"]: facts for facts in processes if facts["local_rank"] == 0}
    for name, judge in NODE_CHECKS.items():
        for host in sorted(nodes):
            yield finding(name, host, judge(nodes[host]))
    for name, judge in PROCESS_CHECKS.items():
        for facts in processes:
            yield finding(name, facts["host"], judge(facts))
