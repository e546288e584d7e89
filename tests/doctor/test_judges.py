"""What every check says of facts drawn by hand: tests/cases/doctor_cases.yaml."""

import re
from pathlib import Path

import pytest

from hpcddp.config.yaml_text import load_yaml_mapping
from hpcddp.doctor.findings import as_document, from_document, has_failed
from hpcddp.doctor.host_checks import NODE_CHECKS, PROCESS_CHECKS, examine_hosts
from hpcddp.doctor.job_checks import JOB_CHECKS, examine_job
from hpcddp.doctor.login_checks import LOGIN_CHECKS, examine_login, settle_by_job
from hpcddp.doctor.text import report_lines

TABLE = load_yaml_mapping(Path(__file__).parents[1] / "cases" / "doctor_cases.yaml")
HEALTHY_HOST = TABLE["host"]["healthy"]
SINGLE = {"login": LOGIN_CHECKS, "host": NODE_CHECKS | PROCESS_CHECKS}


def cases(kind):
    return [
        pytest.param(case, id=f"{case['check']}-{case['status']}-{number}".replace(" ", "_"))
        for number, case in enumerate(TABLE[kind]["cases"])
    ]


def assert_said(verdicts, case):
    """One of the verdicts has the wanted words, and each bad one a way out of trouble."""
    assert any(case.get("found", "") in verdict.found for verdict in verdicts), verdicts
    assert any(case.get("fix", "") in verdict.fix for verdict in verdicts), verdicts
    for verdict in verdicts:
        is_bad = verdict.status in ("warn", "fail")
        assert bool(verdict.needed) == bool(verdict.fix) == is_bad, verdict


@pytest.mark.parametrize("kind", SINGLE)
def test_nothing_is_wrong_with_what_is_healthy(kind):
    for name, judge in SINGLE[kind].items():
        assert judge(TABLE[kind]["healthy"]).status == "ok", name


@pytest.mark.parametrize("case", cases("login"))
def test_a_login_node_is_judged(case):
    healthy = TABLE["login"]["healthy"]
    facts = {**healthy, **case["facts"]}
    verdict = LOGIN_CHECKS[case["check"]](facts)
    assert verdict.status == case["status"], verdict
    assert_said([verdict], case)


@pytest.mark.parametrize("case", cases("host"))
def test_a_node_and_its_processes_are_judged(case):
    verdict = SINGLE["host"][case["check"]]({**HEALTHY_HOST, **case["facts"]})
    assert verdict.status == case["status"], verdict
    assert_said([verdict], case)


@pytest.mark.parametrize("case", cases("job"))
def test_the_processes_of_a_job_are_judged_together(case):
    measured = {**TABLE["job"]["healthy"], **case.get("measured", {})}
    processes = [{**HEALTHY_HOST, **more} for more in case.get("processes", [{}])]
    found = list(JOB_CHECKS[case["check"]](processes, measured))
    hit = [(host, verdict) for host, verdict in found if verdict.status == case["status"]]
    assert [host for host, _ in hit] == case["where"], found
    assert_said([verdict for _, verdict in hit], case)


def test_torch_has_to_be_as_new_as_the_package_asks_for():
    asked = re.search(r"torch>=(\S+)", Path(__file__).parents[2].joinpath("setup.cfg").read_text())
    facts = {**TABLE["login"]["healthy"], "packages": {"torch": asked[1], "torchvision": "0.20"}}
    assert LOGIN_CHECKS["torch"](facts).status == "ok"
    facts["packages"]["torch"] = "2.4.1"
    assert f"'torch>={asked[1]}'" in LOGIN_CHECKS["torch"](facts).fix


DISK = {"path": "/x", "kind": "ext4", "source": "/dev/sda1", "reach": "disk"}


@pytest.mark.parametrize(("launcher", "settled"), [("slurm", True), ("local", False)])
def test_a_job_proves_the_run_directory_and_the_python_and_nothing_else(launcher, settled):
    profile = {**TABLE["login"]["healthy"]["profile"], "launcher": launcher}
    mounts = {"runs": DISK, "python": DISK}
    facts = {**TABLE["login"]["healthy"], "profile": profile, "mounts": mounts}
    login = list(examine_login(facts))
    job = list(examine_job([HEALTHY_HOST], TABLE["job"]["healthy"]))
    changed = [new.name for old, new in zip(login, settle_by_job(login, job), strict=True)
               if new != old]  # fmt: skip
    assert changed == ["run directory shared", "python shared"] * settled


@pytest.mark.parametrize("kind", ["login", "host", "job"])
def test_every_check_is_in_the_table_with_something_that_is_not_ok(kind):
    checks = SINGLE.get(kind, JOB_CHECKS)
    for name in checks:
        statuses = {case["status"] for case in TABLE[kind]["cases"] if case["check"] == name}
        assert statuses - {"ok"}, name


def test_a_report_survives_json_and_shows_equal_findings_of_several_hosts_once():
    hosts = [{**HEALTHY_HOST, "host": f"gpu-0{n}", "global_rank": n} for n in range(1, 4)]
    hosts[1]["memlock_bytes"], hosts[1]["rdma"] = 65536, ["mlx5_0:1"]
    findings = [*examine_hosts(hosts), *examine_job(hosts, TABLE["job"]["healthy"])]
    assert from_document(as_document(findings)) == findings
    lines = report_lines(findings)
    [bad] = [line for line in lines if line.startswith("fail") and "memlock" in line]
    assert "gpu-02" in bad
    assert "64.0 KiB" in bad
    [good] = [line for line in lines if line.startswith("ok") and "memlock" in line]
    assert "gpu-01, gpu-03" in good
    assert any("LimitMEMLOCK" in line for line in lines)
    assert has_failed(findings)
    assert lines[-1].startswith("2 fail")  # memlock, and three ranks that share one GPU
    assert not has_failed(examine_login(TABLE["login"]["healthy"]))


def test_healthy_hosts_share_a_line_although_their_numbers_differ():
    times = {"gpu-01": 0.0002, "gpu-02": 0.002, "gpu-03": 0.5}
    hosts = [
        {**HEALTHY_HOST, "host": host, "data": {"path": "/d", "files": 9, "open_s": seconds}}
        for host, seconds in times.items()
    ]
    lines = [line for line in report_lines(list(examine_hosts(hosts))) if "data path" in line]
    assert len(lines) == 2
    assert "gpu-01, gpu-02" in lines[0]
    assert lines[1].startswith("warn")


def test_the_hosts_of_a_bad_finding_are_named_however_many_they_are():
    hosts = [{**HEALTHY_HOST, "host": f"gpu-{n:02d}", "shm_bytes": 0} for n in range(1, 65)]
    lines = report_lines(list(examine_hosts(hosts)))
    at = next(n for n, line in enumerate(lines) if line.startswith("fail") and "shm" in line)
    assert "64 hosts" in lines[at]
    assert lines[at + 1].strip() == "hosts: gpu-[01-64]"
    assert sum("hosts: " in line for line in lines) == 1
