"""A site for the tests of what sites refuse, limit and need."""

import datetime
from pathlib import Path

from hpcddp.launch.place import Place
from hpcddp.launch.render import render_script
from hpcddp.run_dir import RunDir

TODAY = datetime.date(2026, 11, 30)
PLACE = Place(RunDir(Path("/shared/runs/r")), python="/py", work_dir=Path("/home/me"))


def script_of(request):
    return render_script(request.config, request.profile, PLACE)


GPUS = "node: {gpus: 4, cpus: 32}\ndefaults: {resources: {cpus_per_process: 8, time: '60'}}\n"
LIMITS = (
    "queues: {day: {defaults: {resources: {partition: day}}, limits: {time_max: '02:00:00', "
    "time_min: '00:10:00', nodes_max: 4, nodes_min: 2, gpus_max: 12}}}\ndefault_queue: day\n"
    "verified_on: '2026-08'\n"
)
