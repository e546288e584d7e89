"""The test cluster as jobs see it: names, network, devices, arrays, preemption."""

from __future__ import annotations

import os
import time
from pathlib import Path

# Leaves with 75 on SIGTERM, as a training process does once its checkpoint is written.
YIELDS_ON_SIGTERM = """#!/bin/bash
srun bash -c 'trap "echo got SIGTERM; exit 75" TERM; echo attempt ${SLURM_RESTART_COUNT:-0}
              [ -n "$SLURM_RESTART_COUNT" ] || while true; do sleep 0.1; done'
"""
REQUEUES_ITSELF = YIELDS_ON_SIGTERM + "[ $? != 75 ] || scontrol requeue $SLURM_JOB_ID\n"

SERVE_OR_CONNECT = """
import os, socket, time
first, second = "gpu-01", "gpu-02"
if os.environ["SLURM_PROCID"] == "0":
    listener = socket.create_server((first, 20000))
    connection, (peer, _) = listener.accept()
    received = 0
    while chunk := connection.recv(1 << 20):
        started = time.monotonic() if not received else started
        received += len(chunk)
    print(peer == socket.gethostbyname(second), received, time.monotonic() - started)
else:
    while True:
        try:
            connection = socket.create_connection((first, 20000))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    connection.sendall(bytes(4_000_000))
"""


# What jobs see


def test_every_node_has_its_own_name_and_address(cluster):
    show = "echo $(hostname) $(ip -4 -oneline address show eth0)"
    names, addresses = set(), set()
    for line in cluster.srun("-N4", "bash", "-c", show):
        name, _, _, _, address, *_ = line.split()
        assert address == f"{cluster.addresses[name]}/24"
        names.add(name)
        addresses.add(address)
    assert names == set(cluster.nodes)
    assert len(addresses) == 4


def test_nodes_and_the_login_host_resolve_each_other_by_name(cluster):
    ask = "import socket, sys; print(*map(socket.gethostbyname, sys.argv[1:]))"
    names = ["login", *cluster.nodes]
    expected = " ".join(cluster.addresses[name] for name in names)
    assert cluster.srun("-N2", "python3", "-c", ask, *names) == [expected] * 2
    assert cluster.node_exec("login", ["python3", "-c", ask, *names]).stdout.split() == (
        expected.split()
    )


def test_the_decoy_interface_is_up_and_has_the_same_address_everywhere(cluster):
    lines = cluster.srun("-N2", "ip", "-brief", "-4", "address", "show", "docker0")
    assert [line.split() for line in lines] == [["docker0", "UP", "172.17.0.1/16"]] * 2


def test_sys_shows_the_interfaces_of_the_node_and_keeps_the_control_groups(cluster):
    interfaces, groups = (
        cluster.node_exec("gpu-01", ["ls", path]).stdout.split()
        for path in ("/sys/class/net", "/sys/fs/cgroup")
    )
    assert {"lo", "eth0", "docker0"} <= set(interfaces)
    assert cluster.record["link"] not in interfaces
    assert sorted(groups) == sorted(os.listdir("/sys/fs/cgroup"))


def test_processes_on_two_nodes_reach_each_other(cluster):
    (line,) = cluster.srun("-N2", "python3", "-c", SERVE_OR_CONNECT)
    assert line.startswith("True 4000000 ")


def test_a_link_speed_slows_the_nodes_down(new_cluster):
    cluster = new_cluster("slow", "--nodes=2", "--rate=50mbit")
    (line,) = cluster.srun("-N2", "python3", "-c", SERVE_OR_CONNECT)
    elapsed_s = float(line.split()[-1])
    assert elapsed_s > 0.5 * 4_000_000 * 8 / 50e6
    cluster.stop()


def test_jobs_get_the_gpus_they_ask_for_and_no_more(cluster):
    show = "echo $CUDA_VISIBLE_DEVICES $SLURM_GPUS_ON_NODE"
    one = cluster.srun("-N1", "--gpus-per-node=a100:1", "bash", "-c", show)
    assert one == ["0 1"]
    both = cluster.srun("-N2", "--gpus-per-node=2", "bash", "-c", show)
    assert both == ["0,1 2"] * 2
    refused = cluster.run(["srun", "-N1", "--gpus-per-node=3", "true"])
    assert refused.returncode != 0
    assert "Requested node configuration is not available" in refused.stderr


def test_two_jobs_share_a_node_and_get_different_gpus(cluster):
    script = "#!/bin/bash\nsrun sleep 600\n"
    place = ["--nodelist=gpu-01", "--gpus-per-node=1"]
    jobs = [cluster.sbatch(script, *place) for _ in range(2)]
    for job in jobs:
        cluster.wait(job, "RUNNING")
    details = [cluster.run(["scontrol", "show", "job", "-d", job]).stdout for job in jobs]
    assert sorted("IDX:1" in text for text in details) == [False, True]


def test_a_job_without_the_users_environment_finds_slurm(cluster):
    job = cluster.sbatch("#!/bin/bash\nsrun -N2 /usr/bin/hostname\n", "-N2", "--export=NONE")
    cluster.wait(job, "COMPLETED")
    assert sorted(cluster.output(job).split()) == ["gpu-01", "gpu-02"]


def test_array_elements_run_with_their_own_index(cluster):
    job = cluster.sbatch("#!/bin/bash\necho element $SLURM_ARRAY_TASK_ID\n", "--array=3,5,9")
    cluster.wait(job, "COMPLETED")
    outputs = [Path(record["StdOut"]).read_text() for record in cluster.show_all(job)]
    assert sorted(outputs) == ["element 3\n", "element 5\n", "element 9\n"]


# Preemption


def started(cluster, partition: str, script: str) -> str:
    job = cluster.sbatch(script, "-N2", f"--partition={partition}", "--open-mode=append")
    cluster.wait_for_output(job, "attempt 0", count=2)
    return job


def test_a_preempted_step_gets_sigterm_and_its_job_comes_back_when_told(cluster):
    job = started(cluster, "preempt-grace", REQUEUES_ITSELF)
    urgent = cluster.preempt(job)
    cluster.wait_for_restart(job)
    # Slurm itself would end it after the grace period, and requeue it: the job left by itself.
    assert cluster.output(job).count("got SIGTERM") == 2
    assert cluster.show(job)["Reason"] in ("BeginTime", "None")
    cluster.wait(urgent, "COMPLETED")
    pending_since = time.monotonic()
    cluster.wait(job, "COMPLETED", timeout=200)
    assert time.monotonic() - pending_since < 110  # 120 s without cred_expire
    assert cluster.show(job)["Restarts"] == "1"
    assert cluster.output(job).count("attempt 1") == 2


def test_slurm_itself_requeues_where_there_is_no_grace(cluster):
    job = started(cluster, "preempt-nograce", YIELDS_ON_SIGTERM)
    cluster.preempt(job)
    cluster.wait(job, "COMPLETED", timeout=120)
    assert cluster.show(job)["Restarts"] == "1"
    assert cluster.output(job).count("got SIGTERM") == 2


def test_a_job_that_leaves_in_the_grace_period_is_gone_unless_it_requeues_itself(cluster):
    job = started(cluster, "preempt-grace", YIELDS_ON_SIGTERM)
    urgent = cluster.preempt(job)
    cluster.wait(urgent, {"RUNNING", "COMPLETED"})
    assert cluster.show(job)["Restarts"] == "0"
    cluster.wait(job, {"FAILED", "COMPLETED"})


def test_a_cancelling_partition_ends_the_job_after_its_grace_period(cluster):
    job = cluster.sbatch("#!/bin/bash\nsleep 600\n", "-N2", "--partition=preempt-cancel")
    cluster.wait(job, "RUNNING")
    asked_at = time.monotonic()
    cluster.preempt(job)
    cluster.wait(job, "PREEMPTED", timeout=120)
    assert time.monotonic() - asked_at > 15  # the batch script itself got no signal until then
    assert cluster.show(job)["Restarts"] == "0"


def test_urgent_jobs_wait_for_the_main_partition(cluster):
    job = cluster.sbatch("#!/bin/bash\nsleep 600\n", "-N4", "--exclusive")
    cluster.wait(job, "RUNNING")
    urgent = cluster.preempt(job)
    time.sleep(3)
    assert cluster.show(urgent)["JobState"] == "PENDING"
    assert cluster.show(job)["JobState"] == "RUNNING"
