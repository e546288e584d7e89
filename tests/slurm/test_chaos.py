"""A run that everything happens to ends with the bits of one that nothing happened to."""

import json
import random
import shutil
import subprocess

import pytest
from hpcddp_user import Hpcddp, losses
from interruptions import FEW, MANY, Victim, befall_all, next_ending, shuffled

SAVE_EVERY = 5
FEW_STEPS, MANY_STEPS = 72, 250
# For as long a run trains that waits for its time limit, or whose node Slurm does not miss yet.
WAITED_S = 150
GLOBAL_BATCH = 16
RUN = (
    "train.model=resnet18", f"train.global_batch={GLOBAL_BATCH}", "train.seed=7",
    "train.max_epochs=null", "train.ema_decay=0.9", "train.eval_every_epochs=null",
    "data.augment=shift", "data.image_size=16", "data.workers=1", "log.every_steps=1",
    f"checkpoint.every_steps={SAVE_EVERY}", "requeue.max_failures=1000",
    "requeue.max_without_progress=0",
)  # fmt: skip


@pytest.fixture
def small_disk_cluster(new_cluster, tmp_path):
    """A user of a cluster of his own, whose runs lie on a small disk that all nodes can see."""
    runs = tmp_path / "runs"
    runs.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", runs]
    subprocess.run(mount, check=True)
    try:
        yield Hpcddp(new_cluster("chaos"), runs)
    finally:  # what a failure is understood by stays
        shutil.copytree(runs, tmp_path / "kept", ignore=shutil.ignore_patterns("checkpoints"))
        subprocess.run(["umount", "--lazy", runs], check=True)


def survive(hpcddp, plan, steps, seed):
    """Interrupt a run as planned and compare it with one that nobody interrupted; its figures."""
    words = [*RUN, f"train.max_steps={steps}"]
    hpcddp.submit("calm", *words)
    calm = hpcddp.wait_for("calm", "finished", timeout=1200)
    victim = Victim(hpcddp, "chaos", random.Random(seed))
    victim.start("--partition", next_ending(plan).partition, *words)
    befall_all(victim, plan)
    status = hpcddp.wait_for("chaos", "finished", timeout=1200)
    compared = hpcddp("checkpoint", "diff", "chaos", "calm", "--json")
    assert compared.returncode == 0, compared.stdout
    assert losses(victim.run_dir) == losses(hpcddp.run_dir("calm"))
    return figures(plan, calm, status, json.loads(compared.stdout), victim)


def figures(plan, calm, status, compared, victim):
    attempts = status["attempts"]
    return {
        "interruptions": len(plan),
        "attempts": len(attempts),
        "ends": [attempt["end"] for attempt in attempts],
        "steps": status["step"],
        "steps_lost": [attempt["steps_lost"] for attempt in attempts],
        "first_steps": [attempt["restart_to_first_step_s"] for attempt in attempts],
        "differing_tensors": compared["num_differing"],
        "tensors": compared["num_tensors"],
        "kept": kept_by_attempt(victim.run_dir.read_events()),
        "restarts": victim.cluster.show(victim.job_id)["Restarts"],
        "calm_s": calm["ended_time"] - calm["started_time"],
        "chaos_s": status["ended_time"] - attempts[0]["began_time"],
    }


def kept_by_attempt(events):
    """For each attempt whether its successor went on from the newest checkpoint that there was."""
    newest, kept = 0, {}
    for event in events:
        if event["event"] == "checkpoint":
            newest = event["step"]
        if event["event"] == "resumed":
            kept[event["attempt"] - 1] = event["step"] >= newest
            newest = event["step"]
    return kept


def assert_little_was_lost(plan, found):
    """Nothing after a signal; else the steps since the last checkpoint, or the one before where
    that is torn.
    """
    ends = [kind for kind in plan if kind.ends_attempt]
    assert found["attempts"] == len(ends) + 1
    told = zip(ends, found["ends"], found["steps_lost"], strict=False)
    for number, (kind, end, steps) in enumerate(told):
        assert end in kind.ends, (number, type(kind).__name__, found)
        assert steps is not None, (number, found)
        assert found["kept"].get(number, True) or kind.tears, (number, found)
        # A save takes longer than a few steps, and saves wait for each other.
        assert steps <= (3 * SAVE_EVERY if kind.costs_steps else 0), (number, found)


def test_a_handful_of_interruptions_changes_no_bit(small_disk_cluster):
    found = survive(small_disk_cluster, FEW, FEW_STEPS, seed=1)
    assert found["differing_tensors"] == 0
    assert_little_was_lost(FEW, found)


def steps_in(seconds, hpcddp):
    """What this machine does in that time, by a short run: so the long one is not over too early,
    and does not last too long.
    """
    hpcddp.submit("probe", *RUN, "train.max_steps=40")
    probe = hpcddp.wait_for("probe", "finished", timeout=300)
    return int(seconds * probe["images_per_s"] / GLOBAL_BATCH)


@pytest.mark.slow
def test_many_interruptions_in_any_order_change_no_bit(small_disk_cluster):
    plan = shuffled(MANY, seed=20261129)
    assert len(plan) >= 25
    steps = MANY_STEPS + steps_in(WAITED_S, small_disk_cluster)
    found = survive(small_disk_cluster, plan, steps, seed=20261129)
    print(json.dumps(found, indent=2))
    assert found["differing_tensors"] == 0
    assert_little_was_lost(plan, found)
