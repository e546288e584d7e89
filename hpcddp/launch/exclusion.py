"""Which nodes are kept from the next attempt of a run. Asks Slurm, and tells it nothing."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from hpcddp.config.schema import RunConfig
from hpcddp.launch.decision import Ending, Event
from hpcddp.launch.sbatch import ask_sbatch
from hpcddp.launch.scheduler import lost_nodes
from hpcddp.run_dir import RunDir


def excluded_nodes(
    run_dir: RunDir,
    config: RunConfig,
    ending: Ending,
    events: Sequence[Event],
    environ: Mapping[str, str],
    may_be_lost: bool,
) -> str:
    """The nodes that srun has not reached, if some `may_be_lost` also those that Slurm has lost,
    which may answer again by then, and what the user wanted to keep from all. Empty if there is no
    news, or where the job would wait for ever: without them too few nodes of its kind are left.
    """
    own = [event for event in events if event.get("attempt") == ending.attempt]
    hosts = next((event["hosts"] for event in own if event.get("hosts")), ())
    lost = sorted({*(lost_nodes(hosts) if may_be_lost else ()), *ending.unreached})
    users = config.resources.sbatch.get("exclude") or ""
    excluded = ",".join([*filter(None, [users]), *lost])
    return excluded if lost and _leaves_enough(run_dir, excluded, environ) else ""


def _leaves_enough(run_dir: RunDir, excluded: str, environ: Mapping[str, str]) -> bool:
    with suppress(OSError):
        script = run_dir.script.read_text(encoding="utf-8")
        opinion = ask_sbatch(script, environ, f"--exclude={excluded}")
        return opinion is not None and opinion[0]
    return False
