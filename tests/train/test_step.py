"""One step, looked at closely: in this process, and the collectives between two."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from train_ranks import layouts, losses_of, small_config, start, train_on

from hpcddp.config.layout import ProcessLayout
from hpcddp.run_dir import RunDir
from hpcddp.train.loop import step_and_report, train_step
from hpcddp.train.metrics import StepClock
from hpcddp.train.process_group import LoneProcess, open_ranks
from hpcddp.train.resume import Found
from hpcddp.train.setup import build_session, build_undisturbed
from hpcddp.train.task import build_task

CPU = torch.device("cpu")


def session_of(run_dir, *overrides, layout=None, ranks=None, device=CPU):
    layout, ranks = layout or ProcessLayout(), ranks or LoneProcess()
    task = build_task(small_config(*overrides), layout)
    process = build_undisturbed(layout, device, ranks, RunDir(run_dir))
    return build_session(task, process, Found(None))


def close_vote(session):
    assert session.vote.close() is False


@pytest.mark.parametrize("micro_batch", [12, 4])
def test_steps_are_those_of_textbook_sgd(micro_batch, tmp_path):
    session = session_of(
        tmp_path,
        f"train.micro_batch={micro_batch}",
        "train.model=squeezenet1_1",  # without batch norm, which would amplify rounding
        "train.model_options={dropout: 0.0}",
        "train.label_smoothing=0.1",
        "optim.lr=0.002",
        "optim.lr_warmup_epochs=0.4",  # two steps
        "optim.schedule=constant",
        "optim.weight_decay=0",
    )
    reference = copy.deepcopy(session.state.model)
    plain_sgd = torch.optim.SGD(reference.parameters(), lr=0.0, momentum=0.9, fused=False)
    for lr in (0.001, 0.002, 0.002):
        batches = [session.feed.next() for _ in range(12 // micro_batch)]
        session.feed.next = iter(batches).__next__
        loss = train_step(session)
        close_vote(session)
        del session.feed.next
        losses = [
            F.cross_entropy(reference(images), labels, label_smoothing=0.1)
            for images, labels in batches
        ]
        torch.stack(losses).mean().backward()
        plain_sgd.param_groups[0]["lr"] = lr
        plain_sgd.step()
        plain_sgd.zero_grad()
        assert loss.item() == pytest.approx(torch.stack(losses).mean().item(), rel=1e-5)
        pairs = zip(session.state.model.parameters(), reference.parameters(), strict=True)
        for ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs)
    assert session.state.step == 3
    assert session.state.samples_seen == 36


class FloatReads(TorchDispatchMode):
    """Counts how often a number leaves a tensor for Python; votes and counts are whole numbers."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        is_read = function is torch.ops.aten._local_scalar_dense.default
        self.count += is_read and args[0].is_floating_point()
        return function(*args, **kwargs or {})


def test_the_loss_is_read_from_the_device_only_where_it_is_logged(tmp_path):
    words = ("log.every_steps=2", "train.max_steps=9", "train.global_batch=2")
    session, clock = session_of(tmp_path, *words), StepClock()
    reads = []
    for _ in range(4):
        with FloatReads() as seen:
            step_and_report(session, clock)
        reads.append(seen.count)
    assert reads == [0, 1, 0, 1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("words", [(), ("train.time_steps=true", "train.micro_batch=4")])
def test_on_a_gpu_nothing_in_a_step_waits_for_it(precision, words, tmp_path):
    device = torch.device("cuda", 0)
    session = session_of(tmp_path, f"train.precision={precision}", *words, device=device)
    for _ in range(2):  # whatever is made at the first use
        train_step(session)
        close_vote(session)
    torch.cuda.set_sync_debug_mode("error")
    try:
        train_step(session)
        close_vote(session)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_gradients_are_clipped_to_their_norm(tmp_path):
    session = session_of(
        tmp_path, "train.max_grad_norm=0.001", "optim.momentum=0", "optim.weight_decay=0"
    )
    before = [parameter.detach().clone() for parameter in session.state.model.parameters()]
    train_step(session)
    close_vote(session)
    moved = torch.cat(
        [
            (parameter.detach() - old).flatten()
            for parameter, old in zip(session.state.model.parameters(), before, strict=True)
        ]
    )
    assert moved.norm().item() == pytest.approx(0.05 * 0.001, rel=1e-3)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_stays_near_the_curve_of_full_precision(precision, tmp_path):
    for chosen in ("fp32", precision):
        settings = (f"train.precision={chosen}", "train.max_steps=2", "data.image_size=64")
        assert train_on(1, tmp_path / chosen, small_config(*settings, "optim.lr=0.001")) == [0]
    exact, rough = losses_of(tmp_path / "fp32"), losses_of(tmp_path / precision)
    assert exact == pytest.approx(rough, rel=0.03)
    assert exact != rough


def count_reductions(run_dir, layout, micro_batch):
    """In a child: buckets that were reduced in each of three steps."""
    ranks = open_ranks(layout, CPU, 60)
    session = session_of(
        run_dir,
        f"train.micro_batch={micro_batch}",
        "ddp.bucket_cap_mib=1",
        layout=layout,
        ranks=ranks,
    )
    reduced = []

    def count_and_reduce(state, bucket):
        reduced[-1] += 1
        work = torch.distributed.all_reduce(bucket.buffer().div_(2), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    ddp = session.forward.replicas._ddp
    assert (ddp.gradient_as_bucket_view, ddp.static_graph) == (True, True)
    assert ddp.find_unused_parameters is False
    ddp.register_comm_hook(None, count_and_reduce)
    for _ in range(3):
        reduced.append(0)
        train_step(session)
        close_vote(session)
    ranks.close()
    return reduced


def test_passes_that_are_only_accumulated_reduce_nothing(tmp_path):
    counts = {
        micro_batch: start(
            count_reductions, [(tmp_path, layout, micro_batch) for layout in layouts(2)]
        ).results()
        for micro_batch in (6, 2)
    }
    assert counts[6] == counts[2]
    assert counts[6][0][0] > 1
    assert len(set(counts[6][0])) == 1


def test_two_ranks_hold_equal_weights_and_buffers_of_the_main_process(tmp_path):
    calls = [(tmp_path, layout) for layout in layouts(2)]
    (first, first_means), (second, second_means) = start(weights_after_two_steps, calls).results()
    assert first == second
    assert first_means[0] != second_means[0]  # each saw its own images
    assert first_means[1] == second_means[1] == first_means[0]


def weights_after_two_steps(run_dir, layout):
    """In a child: all weights in one row, and running means before and after an evaluation."""
    from hpcddp.train.evaluate import evaluate

    ranks = open_ranks(layout, CPU, 60)
    session = session_of(run_dir, layout=layout, ranks=ranks)
    model = session.state.model
    for _ in range(2):
        train_step(session)
        close_vote(session)
    before = model.conv1[1].running_mean.tolist()
    evaluate(model, session.eval_task, ranks, lambda: False)
    after = model.conv1[1].running_mean.tolist()
    ranks.close()
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return weights.tolist(), (before, after)
