"""Training that stands still until it is told to stop, for tests of what a stop does to it."""

# Lines for a sitecustomize.py: before the step after `step` the process of that rank waits, in the
# first attempt of the runs of that name, until its stop signal has come.
WAITS_FOR_A_STOP = """
from hpcddp.train import loop
train, train_step, told = loop.train, loop.train_step, []
def train_and_note(config, layout, run_dir, stop_flag, *more, **options):
    if run_dir.name == {name!r} and (layout.global_rank, layout.attempt) == ({rank}, 0):
        told.append(stop_flag)
    return train(config, layout, run_dir, stop_flag, *more, **options)
def wait_and_step(session):
    if told and session.state.step == {step}:
        told[0].comes_within(300)
    return train_step(session)
loop.train, loop.train_step = train_and_note, wait_and_step
"""
