"""What a check has found: a verdict, on which host, and what to type. Knows no check."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["ok", "warn", "fail", "not testable"]
Facts = Mapping[str, Any]
RUNS_SHARED = "run directory shared"
SHARED_FOLDER = "a folder that all nodes share"
SHARE_RUNS = "export HPCDDP_RUNS_DIR=/SHARED/FOLDER/runs"
SEVERITY: tuple[Status, ...] = ("not testable", "ok", "warn", "fail")


@dataclass(frozen=True, slots=True)
class Verdict:
    """`found` is what is there, `needed` what should be, `fix` what to type or whom to ask."""

    status: Status
    found: str
    needed: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict with the name of its check and the host it is about (empty: the whole job)."""

    name: str
    host: str
    status: Status
    found: str
    needed: str = ""
    fix: str = ""


def ok(found: str) -> Verdict:
    return Verdict("ok", found)


def warn(found: str, needed: str, fix: str) -> Verdict:
    return Verdict("warn", found, needed, fix)


def fail(found: str, needed: str, fix: str) -> Verdict:
    return Verdict("fail", found, needed, fix)


def not_testable(why: str) -> Verdict:
    return Verdict("not testable", why)


def without(host: str) -> str:
    """What to do about a node that is to blame."""
    return f"resources.sbatch.exclude={host}; tell your admin"


def finding(name: str, host: str, verdict: Verdict) -> Finding:
    return Finding(name, host, verdict.status, verdict.found, verdict.needed, verdict.fix)


def has_failed(findings: Iterable[Finding]) -> bool:
    return any(each.status == "fail" for each in findings)


def as_document(findings: Sequence[Finding], **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """The report as JSON can say it."""
    return {"checks": [asdict(each) for each in findings], **more}


def from_document(document: Mapping[str, Any]) -> list[Finding]:
    """The findings of a report that another process wrote."""
    return [Finding(**each) for each in document["checks"]]
