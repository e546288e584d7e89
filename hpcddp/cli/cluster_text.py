"""What `cluster` prints: profiles and explanations as lines and as records for --json."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcddp.cluster.drift import Finding
from hpcddp.cluster.profile import ClusterProfile
from hpcddp.cluster.profile_file import Merged
from hpcddp.cluster.profile_schema import Preemption, resources_in
from hpcddp.launch.explain import Explanation, Row, preemption_text


def profile_list(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line per profile, with what is wrong with one that cannot be read."""
    rows = [("NAME", "STATUS", "VERIFIED", "WHAT")]
    for record in records:
        what = record["error"] or record["description"]
        rows.append((record["name"], record["status"], record["verified_on"] or "-", what))
    return _table(rows)


def profile_record(profile: ClusterProfile, values: Mapping[str, Any]) -> dict[str, Any]:
    """The profile for one node of its default queue, and all queues, nodes and variants."""
    record = dataclasses.asdict(profile)
    record["origins"] = {".".join(path): origin for path, origin in profile.origins.items()}
    record["files"] = [str(path) for path in profile.files]
    return {**record, **{key: values.get(key, {}) for key in ("nodes", "queues", "variants")}}


def profile_lines(profile: ClusterProfile, merged: Merged) -> list[str]:
    """What a person wants to know before the first job."""
    values, busbw = merged.values, profile.expected_busbw_gb_per_s
    facts = [
        ("site", profile.site),
        ("status", f"{profile.status}{f', verified {v}' if (v := profile.verified_on) else ''}"),
        ("successor", profile.successor),
        ("also called", ", ".join(profile.aliases)),
        ("files", ", ".join(path.stem for path in profile.files)),
        ("account", _account(profile)),
        ("internet", profile.internet),
        ("scratch", _scratch(profile)),
        ("local disk", f"{d.path} ({d.kind})" if (d := profile.local) else ""),
        ("node", "" if values.get("nodes") else _node_text(values.get("node", {}))),
        ("all-reduce", f"{busbw:g} GB/s bus bandwidth" if busbw else ""),
        ("limits", _limits_text(values)),
        ("queue of tests", profile.test_queue),
        ("launch", " ".join((profile.launch, *profile.launch_program))),
        ("torchrun", " ".join(profile.torchrun_args)),
        ("discouraged", _discouraged(profile)),
        ("asks for GPUs by", profile.gpu_request),
    ]
    return [
        f"{profile.name}: {profile.description}",
        *_table([(f"  {name}", text) for name, text in facts if text]),
        *_section("nodes", _table(list(_node_rows(values)))),
        *_section("queues", _table(list(_queue_rows(values, profile)))),
        *_section("variants", _table(list(_variant_rows(values)))),
        *_section("left open", _table([(key, text) for key, text in profile.unset.items()])),
        *_section("notes", profile.notes),
        *_section("sources", profile.sources),
    ]


def explanation_record(answer: Explanation) -> dict[str, Any]:
    """What --json prints."""
    return dataclasses.asdict(answer)


def explanation_lines(answer: Explanation) -> list[str]:
    """Flags and variables in columns: value, layer, reason."""
    head = f"{answer.cluster}{f', queue {answer.queue}' if answer.queue else ''}"
    more = [f"nodes of kind {answer.node_type}"] if answer.node_type else []
    more += [f"variants {', '.join(answer.variants)}"] if answer.variants else []
    size = f"{answer.nodes} x {answer.processes_per_node} processes"
    return [
        "; ".join([f"{head}: {size}", *more]),
        *_section("sbatch", _rows(answer.sbatch)),
        *_section("srun", _rows(answer.srun)),
        *_section("launch", _rows(answer.launch)),
        *_section("environment", _rows(answer.env)),
        *_section("also run", _rows(answer.setup, joined=False)),
        *_section("preemption", [answer.preemption]),
        *_section("documents", _table(list(_document_rows(answer)))),
        *_section("warnings", answer.warnings),
    ]


def _document_rows(answer: Explanation) -> Iterator[tuple[str, str]]:
    for name, texts in answer.documents.items():
        yield from ((f"[{name}]", text) for text in texts)


def drift_lines(name: str, findings: Sequence[Finding]) -> list[str]:
    """One line per fact, what differs first, then the count."""
    order = ("drift", "untested", "ok")
    found = sorted(findings, key=lambda finding: order.index(finding.level))
    rows = [("", "FACT", f"PROFILE {name}", "SLURM")]
    rows += [(part.level, part.what, part.profile, part.live) for part in found]
    count = sum(part.level == "drift" for part in findings)
    return [*_table(rows), f"{len(findings)} facts, {count} differ"]


def _account(profile: ClusterProfile) -> str:
    if not profile.account_required:
        return profile.account
    return f"required: {profile.account or 'give --account'}"


def _scratch(profile: ClusterProfile) -> str:
    days, why = profile.scratch_purge_days, profile.runs_on_scratch
    emptied, wanted = f"emptied after {days} days", f"runs belong there: {why}"
    return ", ".join(filter(None, [profile.scratch, days and emptied, why and wanted]))


def _discouraged(profile: ClusterProfile) -> str:
    reasons = dataclasses.asdict(profile.discouraged).items()
    return "; ".join(f"{launch}: {why}" for launch, why in reasons if why)


def _limits_text(block: Mapping[str, Any]) -> str:
    known = (block.get("limits") or {}).items()  # null takes away what is inherited
    return " ".join(f"{key}={text}" for key, text in known if text is not None)


def _node_rows(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, block in values.get("nodes", {}).items():
        yield name, _node_text({**values.get("node", {}), **(block.get("node") or {})})


def _node_text(node: Mapping[str, Any]) -> str:
    """`4 x A100 40 GB, 64 cores, 512 GB, x86_64`, as far as it is known."""
    memory = f" {node['gpu_memory_gb']} GB" if node.get("gpu_memory_gb") else ""
    gpus = f"{node['gpus']} x " if node.get("gpus") else ""
    parts = [
        f"{gpus}{node.get('gpu') or 'GPU'}{memory}" if gpus or node.get("gpu") else "",
        f"{node['cpus']} cores" if node.get("cpus") else "",
        f"{node['memory_gb']} GB" if node.get("memory_gb") else "",
        node.get("arch") or "",
    ]
    return ", ".join(part for part in parts if part)


def _queue_rows(values: Mapping[str, Any], profile: ClusterProfile) -> Iterator[tuple[str, ...]]:
    for name, queue in values.get("queues", {}).items():
        asked = resources_in(queue)
        route = [
            f"{key}={asked[key]}" for key in ("partition", "qos", "constraint") if asked.get(key)
        ]
        preempt = queue.get("preempt")
        taken = preemption_text(Preemption(**preempt)) if preempt else ""
        mark = "*" if name == profile.queue else ""
        yield (
            f"{name}{mark}",
            queue.get("node_type", ""),
            " ".join(route),
            _limits_text(queue),
            taken,
        )


def _variant_rows(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, variant in values.get("variants", {}).items():
        when = [f"{key}={text}" for key, text in variant.get("when", {}).items()]
        yield name, " ".join(when) or f"only with resources.variant={name}"


def _rows(rows: Sequence[Row], *, joined: bool = True) -> list[str]:
    def first(row: Row) -> str:
        return f"{row.name}={row.value}" if joined and row.value else row.name

    return _table([(first(row), f"[{row.layer}]", row.why) for row in rows])


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return ["", title, *(f"  {line}" for line in lines)] if lines else []


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width; a cell that is much wider than others does not widen its column."""
    if not rows:
        return []
    widths = [min(max(map(len, column)), 44) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
