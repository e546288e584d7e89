"""What the facts of a login node mean: one small judge per check. Reads nothing itself."""

from collections.abc import Callable, Iterator, Sequence

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
)
from hpcddp.doctor.units import bytes_text

_OLDEST_TORCH = "2.5"  # as setup.cfg asks for; python is new enough, or nothing would run
_PYTHON_SHARED = "python shared"
# Of a finding here, the check of a job that says more, and what that has shown.
_PROOFS = {
    RUNS_SHARED: (RUNS_SHARED, "the nodes of the job share it"),
    _PYTHON_SHARED: ("versions", "the nodes of the job all have it there"),
}
_NOT_NEEDED = "not needed: jobs run on this machine"
_GIB = 1 << 30
_LITTLE_SPACE, _NO_SPACE = 20 * _GIB, _GIB
_FEW_INODES, _NO_INODES = 100_000, 1_000
_QUOTA_NEARLY_FULL = 0.9
_OTHERS_WRITE, _OWNER_ALL = 0o002, 0o700


def torch(facts: Facts) -> Verdict:
    version, beside = (facts["packages"].get(name) for name in ("torch", "torchvision"))
    needed = f"torch {_OLDEST_TORCH} or newer, and torchvision"
    fix = f"{facts['executable']} -m pip install 'torch>={_OLDEST_TORCH}' torchvision"
    where = f"python {facts['python']}, {facts['executable']}"
    if version is None or beside is None:
        missing = "torch" if version is None else "torchvision"
        return fail(f"no {missing} in {where}", needed, fix)
    if _numbers(version) < _numbers(_OLDEST_TORCH):
        return fail(f"{version} in {where}", needed, fix)
    return ok(f"{version}, torchvision {beside} in {where}")


def architecture(facts: Facts) -> Verdict:
    here, profile = facts["machine"], facts["profile"]
    if profile.get("launcher") == "local":
        return not_testable(_NOT_NEEDED)
    if not profile.get("arch"):
        return not_testable("the profile does not say what processors the nodes have")
    if there := profile["other_arch"]:
        return warn(
            f"{here} here, {there} on the nodes",
            f"a python for {there}: jobs start the one of this host",
            f"log in to an {there} login node, or resources.container=IMAGE",
        )
    return ok(f"{profile['arch']} on the nodes, {here} here")


def slurm(facts: Facts) -> Verdict:
    if facts["profile"].get("launcher") == "local":
        return not_testable(_NOT_NEEDED)
    missing = [name for name, path in facts["commands"].items() if path is None]
    if missing:
        return fail(
            f"{', '.join(missing)} not on PATH",
            "the commands of Slurm",
            "module load slurm, or log in to a login node; --cluster local needs no Slurm",
        )
    if not facts["slurm_version"]:
        return fail(
            "`scontrol show config` does not answer",
            "a controller that answers",
            "scontrol ping; if SLURM_CONF is set, check the file that it names",
        )
    return ok(f"{facts['slurm_version']}, cluster {facts['slurm_cluster'] or 'without a name'}")


def profile(facts: Facts) -> Verdict:
    chosen = facts["profile"]
    if chosen.get("error"):
        return fail(chosen["error"], "one profile", "python -m hpcddp cluster list")
    if chosen["name"] == "generic" and not chosen["asked_for"]:
        return warn(
            "generic: no profile fits this cluster",
            "a profile that knows its network and limits",
            "python -m hpcddp cluster detect --write",
        )
    return ok(f"{chosen['name']}: {chosen['why']}")


def runs_shared(facts: Facts) -> Verdict:
    if not facts["runs"]["writable"]:
        said = f"you cannot write to {facts['runs']['path']}"
        return fail(said, f"{SHARED_FOLDER}, and that is yours", SHARE_RUNS)
    return _shared(facts["mounts"].get("runs"), facts, SHARE_RUNS, "--nodes 2 proves it")


def python_shared(facts: Facts) -> Verdict:
    fix = "python3 -m venv /SHARED/FOLDER/.venv"
    return _shared(facts["mounts"].get("python"), facts, fix, "--nodes 2 compares versions")


def _shared(mount: Facts | None, facts: Facts, fix: str, proof: str) -> Verdict:
    """`proof` is what a job adds to what the kind of file system tells."""
    if facts["profile"].get("launcher") == "local":
        return not_testable(_NOT_NEEDED)
    if mount and mount.get("is_proven"):
        return ok(f"{mount['path']} on {mount['kind']}: the nodes of an earlier job share it")
    if mount is None or mount["reach"] == "unknown":
        kind = mount["kind"] if mount else "no such mount"
        return not_testable(f"kind of file system unknown ({kind}); doctor {proof}")
    where = f"{mount['path']} on {mount['kind']} ({mount['source']})"
    if mount["reach"] == "shared":
        return ok(where)
    if mount["reach"] == "memory":
        return fail(where, SHARED_FOLDER, fix)
    return warn(where, SHARED_FOLDER, f"{fix}; if it is shared, doctor {proof}")


def space(facts: Facts) -> Verdict:
    free = facts["space"].get("bytes")
    if free is None:
        return not_testable("the run directory cannot be asked")
    if free < _LITTLE_SPACE:
        judge = fail if free < _NO_SPACE else warn
        return judge(
            f"{bytes_text(free)} free",
            f"{bytes_text(_LITTLE_SPACE)}: a checkpoint has three times the size of its model",
            "remove old runs, checkpoint.keep_last=1, or HPCDDP_RUNS_DIR elsewhere",
        )
    return ok(f"{bytes_text(free)} free")


def inodes(facts: Facts) -> Verdict:
    free = facts["space"].get("inodes")
    if free is None:
        return not_testable("this file system does not count them")
    if free < _FEW_INODES:
        judge = fail if free < _NO_INODES else warn
        return judge(f"{free} free", f"{_FEW_INODES}", "remove or pack small files")
    return ok(f"{free} free")


def quota(facts: Facts) -> Verdict:
    if facts["quota"] is None:
        return not_testable("no `quota` or `lfs` command that answers for this file system")
    limited = [each for each in facts["quota"] if each["limit"]]
    if not limited:
        return ok("no limit")
    said = ", ".join(f"{_share(each):.0%} of the {each['what']} used" for each in limited)
    needed, fix = f"below {_QUOTA_NEARLY_FULL:.0%}", "remove old runs, or ask for more"
    if any(each["used"] >= each["hard_limit"] for each in limited):
        return fail(said, needed, fix)
    if any(each["is_marked"] or _share(each) >= _QUOTA_NEARLY_FULL for each in limited):
        return warn(said, needed, fix)
    return ok(said)


def _share(quota: Facts) -> float:
    return quota["used"] / quota["limit"]


def umask(facts: Facts) -> Verdict:
    mask = facts["umask"]
    if mask & _OWNER_ALL:
        return fail(f"{mask:03o}: takes your own rights away", "022 or 077", "umask 022")
    if not mask & _OTHERS_WRITE:
        return warn(f"{mask:03o}: everybody may change your runs", "022 or 077", "umask 022")
    return ok(f"{mask:03o}")


def credentials(facts: Facts) -> Verdict:
    names = facts["secrets"]
    if names:
        return warn(
            f"exported, and every job inherits them: {', '.join(names)}",
            "none that training does not need",
            f"unset {' '.join(names)}",
        )
    return ok("none exported")


def variables(facts: Facts) -> Verdict:
    if facts["variables"]:
        names = [sentence.partition("=")[0] for sentence in facts["variables"]]
        return warn(" ".join(facts["variables"]), "none that does harm", f"unset {' '.join(names)}")
    return ok("none that does harm")


def caches(facts: Facts) -> Verdict:
    closed = {name: each for name, each in facts["caches"].items() if not each["writable"]}
    if closed:
        said = ", ".join(f"{name} ({each['path']})" for name, each in closed.items())
        fixes = "; ".join(f"export {name}=FOLDER" for name in closed)
        return warn(f"not writable: {said}", "folders you can write to", fixes)
    return ok(", ".join(sorted(facts["caches"])) or "none set")


LOGIN_CHECKS: dict[str, Callable[[Facts], Verdict]] = {
    "torch": torch,
    "architecture": architecture,
    "slurm": slurm,
    "profile": profile,
    RUNS_SHARED: runs_shared,
    _PYTHON_SHARED: python_shared,
    "free space": space,
    "free inodes": inodes,
    "quota": quota,
    "umask": umask,
    "credentials": credentials,
    "network variables": variables,
    "caches": caches,
}


def examine_login(facts: Facts) -> Iterator[Finding]:
    """All findings about this login node."""
    for name, judge in LOGIN_CHECKS.items():
        yield finding(name, facts["host"], judge(facts))


def settle_by_job(login: Sequence[Finding], job: Sequence[Finding]) -> list[Finding]:
    """The findings of the login node, where the job has proven what the login node only guesses:
    that its nodes share the run directory, and have this python or one like it. Where jobs run on
    this machine nothing was guessed.
    """

    def settled(each: Finding) -> Finding:
        check, said = _PROOFS.get(each.name, ("", ""))
        if not _is_ok(check, job) or each.found == _NOT_NEEDED:
            return each
        return finding(each.name, each.host, ok(f"{each.found}: {said}"))

    return [settled(each) for each in login]


def all_nodes_see_runs(job: Sequence[Finding]) -> bool:
    """True where the findings of a job of several nodes prove it."""
    return _is_ok(RUNS_SHARED, job)


def _is_ok(check: str, findings: Sequence[Finding]) -> bool:
    return {each.status for each in findings if each.name == check} == {"ok"}


def _numbers(version: str) -> tuple[int, ...]:
    """(2, 14) of `2.14.1+cpu`."""
    parts = version.split("+")[0].split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit())
