import pytest
from train_ranks import small_config

from hpcddp.config.batch import MicroBatch
from hpcddp.config.identity import identity_of
from hpcddp.config.layout import ProcessLayout
from hpcddp.errors import ConfigError
from hpcddp.train.setup import check_early
from hpcddp.train.task import build_task, with_micro_batch


def task_of(*overrides, world_size=1):
    """100 training images in global batches of 10: an epoch is 10 steps."""
    base = ("data.synthetic_samples=100", "train.global_batch=10", "train.max_steps=1000")
    return build_task(small_config(*base, *overrides), ProcessLayout(world_size=world_size))


@pytest.mark.parametrize(
    ("overrides", "total_steps"),
    [
        ((), 1000),
        (("train.max_epochs=3",), 30),
        (("train.max_epochs=0.25",), 3),
        (("train.max_epochs=3", "train.max_steps=null"), 30),
        (("train.max_epochs=200",), 1000),
    ],
)
def test_training_ends_at_the_nearer_limit(overrides, total_steps):
    assert task_of(*overrides).total_steps == total_steps


@pytest.mark.parametrize(
    ("every", "evaluated"),
    [
        ("1", [10, 20, 30, 35]),
        ("0.5", [5, 10, 15, 20, 25, 30, 35]),
        ("1.25", [13, 25, 35]),  # 12.5 is in the middle of a step
        ("null", [35]),
    ],
)
def test_evaluations_come_when_an_epoch_is_through_and_at_the_end(every, evaluated):
    task = task_of("train.max_steps=35", f"train.eval_every_epochs={every}")
    assert [step for step in range(36) if task.evaluates_at(step)] == evaluated


def test_an_epoch_that_is_no_whole_number_of_steps_is_evaluated_once_each():
    task = task_of("train.global_batch=30", "train.max_steps=20", "train.eval_every_epochs=1")
    assert [step for step in range(21) if task.evaluates_at(step)] == [4, 7, 10, 14, 17, 20]


def test_records_come_at_their_cadence_and_at_the_end():
    task = task_of("train.max_steps=7", "log.every_steps=2")
    assert [step for step in range(1, 8) if task.logs_at(step)] == [2, 4, 6, 7]


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(ConfigError, match=r"train\.global_batch to 9 or 12"):
        task_of(world_size=3)


@pytest.mark.parametrize("replicas", ["single", "dp"])
def test_one_process_cannot_fill_a_job_of_many(replicas):
    config = small_config(f"train.replicas={replicas}")
    check_early(config, ProcessLayout())
    with pytest.raises(ConfigError, match=rf"{replicas} trains in one process.* 4 were asked for"):
        check_early(config, ProcessLayout(world_size=4))


def test_the_identity_of_a_run_ignores_what_may_change():
    one = identity_of(small_config(), "a")
    assert one == identity_of(
        small_config("data.workers=3", "optim.lr=1", "log.every_steps=9"), "a"
    )
    assert one != identity_of(small_config("train.global_batch=24"), "a")
    assert one != identity_of(small_config(), "b")


@pytest.mark.parametrize(
    ("first", "world_size", "devices", "expected"),
    [
        (MicroBatch(64, 1), 1, 4, (256, 1)),  # four processes of ddp go on as dp on four devices
        (MicroBatch(256, 4), 4, 1, (64, 1)),  # and the other way round
        (MicroBatch(256, 4), 1, 1, (64, 4)),  # on one device alone
        (MicroBatch(256, 4), 1, 2, (128, 2)),
        (MicroBatch(256, 4), 1, 4, (256, 1)),
        (MicroBatch(64, 1), 1, 1, (64, 4)),
        (MicroBatch(64, 1), 1, 8, (256, 1)),  # 64 on each of eight are more than there are
        (
            MicroBatch(10, 8),
            1,
            1,
            (256, 1),
        ),  # they had unequal numbers
        (None, 1, 4, (256, 1)),  # it was not recorded
    ],
)
def test_a_resumed_run_has_as_many_images_on_each_device_as_at_its_first_start(
    first, world_size, devices, expected
):
    task = task_of("train.global_batch=256", "data.synthetic_samples=512", world_size=world_size)
    plan = with_micro_batch(task, first, devices).plan
    assert (plan.micro_batch, plan.accumulation_steps) == expected


def test_a_configured_micro_batch_stays_that_of_the_process():
    task = task_of("train.global_batch=256", "data.synthetic_samples=512", "train.micro_batch=32")
    assert with_micro_batch(task, MicroBatch(64, 1), 4) is task
