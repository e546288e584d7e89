"""Everything that may befall a run on a shared cluster, done to it on purpose. Knows no test."""

import os
import random
import signal
import time
from contextlib import suppress

from hpcddp_user import losses, processes_of

from hpcddp.checkpoint_dir import list_checkpoints

MAIN = "main"
# Each step up to which an attempt may run on before it is interrupted takes some 0.2 s.
_MOST_STEPS_BEFORE = 6
_BLOCKS_LEFT = 64  # for events and metrics: what is not to fail here
_START_S, _REQUEUE_S = 120, 240


class Victim:
    """One run that is interrupted again and again; `draw` decides about everything random."""

    def __init__(self, hpcddp, name, draw):
        self.hpcddp, self.cluster, self.name, self.draw = hpcddp, hpcddp.cluster, name, draw
        self.run_dir = hpcddp.run_dir(name)
        self.job_id = ""

    def start(self, *words):
        self.job_id = self.hpcddp.submit(self.name, *words)

    def count(self, kind):
        return sum(event["event"] == kind for event in self.run_dir.read_events())

    def wait_until(self, is_true, what, timeout=_START_S):
        self.cluster.wait_until(lambda: "" if is_true() else f"{what}: {self.state()}", timeout)

    def state(self):
        record = self.cluster.show(self.job_id)
        newest = [event["event"] for event in self.run_dir.read_events()][-4:]
        return f"{record['JobState']}, {record['Reason']}, {record['Partition']}, {newest}"

    def wait_for_training(self, attempts):
        """Wait until that many attempts have done a step, and then some steps more."""
        self.wait_until(lambda: self.count("first_step") >= attempts, "no first step")
        reached = max(losses(self.run_dir), default=0) + self.draw.randint(1, _MOST_STEPS_BEFORE)
        self.hpcddp.wait_for_step(self.name, reached)

    def restarts(self):
        return int(self.cluster.show(self.job_id)["Restarts"])

    def wait_until_pending(self, restarts, partition, minutes=60):
        """Wait for that many restarts; choose where and for how long the next attempt will run."""

        def is_pending():
            record = self.cluster.show(self.job_id)
            assert "Held" not in record["Reason"], record["Reason"]  # Slurm's own restart limit
            return record["JobState"] == "PENDING" and int(record["Restarts"]) == restarts

        self.wait_until(is_pending, "not requeued", _REQUEUE_S)
        change = [f"jobid={self.job_id}", f"partition={partition}", f"timelimit={minutes}"]
        done = self.cluster.run(["scontrol", "update", *change])
        assert done.returncode == 0, done.stderr

    def ranks(self):
        """Process ids by global rank."""
        return dict(processes_of(self.cluster, self.job_id))


class Interruption:
    """One way to interrupt a run: `partition` and `minutes` are what it needs, `befall` does it.

    `costs_steps` is True where steps since the last checkpoint may be lost; `ends_attempt` is
    False for what a run must survive without a restart; `comes_early` for what does not wait for
    a first step; `ends` is what `status` may call the end of the attempt; `tears` where the newest
    checkpoint is lost.
    """

    partition, minutes = MAIN, 60
    costs_steps, ends_attempt, comes_early, tears = False, True, False, False
    ends = ("signalled",)

    def befall(self, victim):
        raise NotImplementedError


class SignalToAll(Interruption):
    """What Slurm's `--signal` and the begin of a grace time look like."""

    def befall(self, victim):
        name = victim.draw.choice(["TERM", "USR1", "USR2"])
        done = victim.cluster.run(["scancel", f"--signal={name}", victim.job_id])
        assert done.returncode == 0, done.stderr


class SignalToOneRank(Interruption):
    """One rank is told, and all must stop after the same step."""

    def befall(self, victim):
        pid = victim.draw.choice(sorted(victim.ranks().values()))
        os.kill(pid, victim.draw.choice([signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2]))


class EarlySignal(SignalToAll):
    """At any moment of the start: while Python loads torch, at the rendezvous, while resuming."""

    comes_early = True

    def befall(self, victim):
        victim.wait_until(victim.ranks, "no process")
        time.sleep(victim.draw.uniform(0, 6))
        super().befall(victim)


class Preemption(Interruption):
    """A job of a higher partition takes the nodes."""

    ends = ("preempted",)

    def __init__(self, partition):
        self.partition = partition

    def befall(self, victim):
        victim.cluster.preempt(victim.job_id, hold_s=1)


class KilledRank(Interruption):
    """The kernel, or a colleague, kills one process."""

    costs_steps, ends = True, ("failed",)

    def befall(self, victim):
        os.kill(victim.draw.choice(sorted(victim.ranks().values())), signal.SIGKILL)


class KilledInSave(Interruption):
    """All processes die while a checkpoint is being written."""

    costs_steps, ends = True, ("failed",)

    def befall(self, victim):
        ranks = victim.ranks()
        folder, deadline = victim.run_dir.checkpoints, time.monotonic() + _START_S
        while not any(entry.name.endswith(".partial") for entry in folder.iterdir()):
            assert time.monotonic() < deadline, f"nothing is saved: {victim.state()}"
            time.sleep(0.002)
        time.sleep(victim.draw.uniform(0, 0.1))
        for pid in ranks.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class TornCheckpoint(KilledRank):
    """A process dies, and of the newest checkpoint not everything has reached the disk."""

    tears = True

    def befall(self, victim):
        super().befall(victim)
        victim.wait_until(lambda: not victim.ranks(), "still alive")
        infos = list_checkpoints(victim.run_dir.checkpoints)
        if len(infos) > 1:
            state = max(infos[-1].path.iterdir(), key=lambda path: path.stat().st_size)
            os.truncate(state, victim.draw.randrange(state.stat().st_size))


class TimeLimit(Interruption):
    """Slurm warns 120 s ahead of the limit, or up to a minute earlier, and the run leaves."""

    minutes, comes_early, ends = 3, True, ("time limit",)

    def befall(self, victim):
        """Nothing is to be done but to wait."""


class DaemonRestart(Interruption):
    """The node's daemon is exchanged under a running job."""

    ends_attempt = False

    def befall(self, victim):
        node = victim.cluster.show(victim.job_id)["BatchHost"]
        kill_slurmd(victim.cluster, node)
        start_slurmd(victim.cluster, node)


class NodeFailure(Interruption):
    """A node does not answer any more, and comes back once Slurm has given it up."""

    # Slurm may requeue the job while its last act is under way, and does not say why.
    costs_steps = True
    ends = ("node failure", "daemon of its node restarted", "failed", "requeued by Slurm")

    def befall(self, victim):
        node = victim.cluster.show(victim.job_id)["BatchHost"]
        restarts = victim.restarts()
        kill_slurmd(victim.cluster, node)
        victim.wait_until(lambda: victim.restarts() > restarts, "the node is not missed")
        start_slurmd(victim.cluster, node)


class FullDisk(Interruption):
    """Nothing can be saved for a while; training goes on, and so does saving afterwards."""

    ends_attempt = False

    def befall(self, victim):
        failed, ballast = victim.count("checkpoint_failed"), victim.run_dir.path / "ballast"
        victim.wait_until(lambda: fill(ballast), "the disk cannot be filled")
        victim.wait_until(lambda: victim.count("checkpoint_failed") > failed, "no save failed")
        ballast.unlink()
        saved = victim.count("checkpoint")
        victim.wait_until(lambda: victim.count("checkpoint") > saved, "no save after the full disk")


def fill(ballast):
    """Take all but a few blocks of a disk; False if somebody else took some meanwhile."""
    free = os.statvfs(ballast.parent)
    try:
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, (free.f_bavail - _BLOCKS_LEFT) * free.f_bsize)
    except OSError:
        return False
    return True


def kill_slurmd(cluster, node):
    pid = int((cluster.state_dir / f"slurmd-{node}.pid").read_text())
    os.kill(pid, signal.SIGKILL)


def start_slurmd(cluster, node):
    slurmd = cluster.node_exec(node, ["slurmd", "-N", node, "-f", cluster.conf])
    assert slurmd.returncode == 0, slurmd.stderr


GRACE, NO_GRACE, CANCEL, CANCEL_NO_GRACE = map(
    Preemption, ("preempt-grace", "preempt-nograce", "preempt-cancel", "preempt-cancel-nograce")
)
FEW = (GRACE, SignalToOneRank(), FullDisk(), KilledInSave(), TornCheckpoint(), CANCEL)
MANY = (
    *[SignalToAll(), SignalToOneRank(), EarlySignal()] * 3,
    *[GRACE, NO_GRACE, CANCEL, CANCEL_NO_GRACE] * 3,
    *[KilledRank(), KilledInSave(), TornCheckpoint()] * 2,
    *[DaemonRestart(), NodeFailure(), TimeLimit(), FullDisk()],
)


def befall_all(victim, plan):
    """Interrupt a run in these ways, one after the other, each in an attempt of its own."""
    attempts = 1
    for number, kind in enumerate(plan):
        if not kind.comes_early:
            victim.wait_for_training(attempts)
        print(f"{number}: {type(kind).__name__}, step {max(losses(victim.run_dir), default=0)}")
        restarts = victim.restarts()
        kind.befall(victim)
        if kind.ends_attempt:
            following = next_ending(plan[number + 1 :])
            victim.wait_until_pending(restarts + 1, following.partition, following.minutes)
            attempts = victim.count("first_step") + 1


def next_ending(plan):
    """The first of the plan that ends an attempt: it decides where that attempt has to run."""
    return next((kind for kind in plan if kind.ends_attempt), Interruption())


def shuffled(plan, seed):
    """The plan in an order that depends on the seed alone."""
    order = list(plan)
    random.Random(seed).shuffle(order)
    return order
