"""torch.nn.DataParallel's algorithm on CPU threads does what torch documents of DataParallel."""

from pathlib import Path

import pytest
import torch
import yaml
from torch import nn
from train_ranks import small_config

from hpcddp.config.batch import busy_devices
from hpcddp.errors import ConfigError
from hpcddp.train.data_parallel import ThreadedDataParallel, scatter
from hpcddp.train.forward import Forward
from hpcddp.train.replicas import DataParallelReplicas, SingleReplica, devices_per_process
from hpcddp.train.step_timer import NoTimer

CASES = yaml.safe_load(
    (Path(__file__).parents[1] / "cases" / "dp_chunks.yaml").read_text(encoding="utf-8")
)


def model(*, norm=True):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), *([nn.BatchNorm2d(4)] if norm else []), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.LazyLinear(5)).double()


@pytest.fixture
def images():
    return torch.randn(12, 3, 6, 6, generator=torch.Generator().manual_seed(1)).double()


def ready(made, images):
    """Lazy layers know their shapes after one pass."""
    with torch.no_grad():
        made.eval()(images)
    return made.train()


@pytest.mark.parametrize("case", CASES["chunks"], ids=lambda case: case["id"])
def test_chunks_are_those_that_torch_makes(case):
    sizes = [len(chunk) for chunk in scatter(torch.zeros(case["images"], 1), case["devices"])]
    assert sizes == case["sizes"]
    assert busy_devices(case["images"], case["devices"]) == len(sizes)


@pytest.mark.parametrize("case", CASES["chunks"], ids=lambda case: case["id"])
def test_a_batch_of_any_size_comes_back_whole_and_in_order(case):
    """Also where the last replica has one image, or only one replica has any."""
    images = torch.arange(2.0 * case["images"]).reshape(-1, 2)
    made = nn.Linear(2, 3)
    parallel = ThreadedDataParallel(made, case["devices"], NoTimer())
    torch.testing.assert_close(parallel(images), made(images))
    parallel(images).sum().backward()
    torch.testing.assert_close(made.bias.grad, torch.full((3,), float(case["images"])))


@pytest.mark.parametrize("replicas", [1, 2, 3, 5, 12, 20])
def test_gradients_are_those_of_the_whole_batch_in_one_process(images, replicas):
    alone, parallel = (ready(model(norm=False), images) for _ in range(2))
    labels = torch.arange(12) % 5
    nn.functional.cross_entropy(alone(images), labels).backward()
    logits = ThreadedDataParallel(parallel, replicas, NoTimer())(images)
    nn.functional.cross_entropy(logits, labels).backward()
    assert torch.allclose(logits, alone(images), atol=1e-12)
    for one, other in zip(alone.parameters(), parallel.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-12)


def test_each_chunk_counts_by_its_images_in_the_mean_loss(images):
    """Chunks of 5 and 4 of nine images; a mean of the chunks' means would be another number."""
    made = ready(model(norm=False), images)
    labels = torch.arange(9) % 5
    loss = nn.functional.cross_entropy(ThreadedDataParallel(made, 2, NoTimer())(images[:9]), labels)
    assert torch.allclose(loss, nn.functional.cross_entropy(made(images[:9]), labels))


def test_running_statistics_are_those_of_the_first_replica_alone(images):
    alone, parallel = (ready(model(), images) for _ in range(2))
    alone(images[:4])
    ThreadedDataParallel(parallel, 3, NoTimer())(images)
    for (name, one), other in zip(alone.named_buffers(), parallel.buffers(), strict=True):
        assert torch.equal(one, other), name


def test_each_replica_normalises_its_own_chunk(images):
    made = ready(model(), images)
    expected = torch.cat([made(part) for part in images.chunk(3)])
    made = ready(model(), images)
    assert torch.allclose(ThreadedDataParallel(made, 3, NoTimer())(images), expected, atol=1e-12)


def test_accumulated_gradients_add_up(images):
    made = ready(model(norm=False), images)
    parallel = ThreadedDataParallel(made, 2, NoTimer())
    for half in images.chunk(2):
        parallel(half).sum().backward()
    twice = [p.grad.clone() for p in made.parameters()]
    made.zero_grad()
    parallel(images).sum().backward()
    for one, other in zip(twice, made.parameters(), strict=True):
        assert torch.allclose(one, other.grad, atol=1e-10)


def test_frozen_parameters_get_no_gradient(images):
    made = ready(model(norm=False), images)
    made[0].weight.requires_grad_(False)
    ThreadedDataParallel(made, 3, NoTimer())(images).sum().backward()
    assert made[0].weight.grad is None
    assert made[0].bias.grad is not None


def test_an_updated_weight_is_seen_by_all_replicas(images):
    made = ready(model(norm=False), images)
    parallel = ThreadedDataParallel(made, 3, NoTimer())
    parallel(images)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(2)
    assert torch.allclose(parallel(images), made(images), atol=1e-12)


def test_equal_passes_have_equal_bits_with_dropout_too(images):
    made = nn.Sequential(ready(model(norm=False), images), nn.Dropout(0.5))

    def gradients():
        torch.manual_seed(3)
        made.zero_grad()
        ThreadedDataParallel(made, 4, NoTimer())(images).sum().backward()
        return [parameter.grad.clone() for parameter in made.parameters()]

    first = gradients()
    for _ in range(5):
        assert all(map(torch.equal, first, gradients()))


class Fussy(nn.Module):
    def forward(self, images_nchw):
        if images_nchw.flatten()[0] > 2:
            raise ValueError("too large")
        return images_nchw


@pytest.mark.parametrize("bad", [0, 2])
def test_an_error_names_the_replica(bad):
    images = torch.zeros(3, 1)
    images[bad] = 5
    with pytest.raises(RuntimeError, match=f"replica {bad} of 3: too large") as caught:
        ThreadedDataParallel(Fussy(), 3, NoTimer())(images)
    assert isinstance(caught.value.__cause__, ValueError)


class FussyBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, images_nchw, weight):
        ctx.is_bad = bool(images_nchw.max() > 2)
        return images_nchw * weight

    @staticmethod
    def backward(ctx, gradient):
        if ctx.is_bad:
            raise ValueError("too steep")
        return None, gradient.sum()


class Steep(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, images_nchw):
        return FussyBackward.apply(images_nchw, self.weight)


@pytest.mark.parametrize("bad", [0, 2])
def test_an_error_in_backward_names_the_replica_too(bad):
    images = torch.zeros(3, 1)
    images[bad] = 5
    logits = ThreadedDataParallel(Steep(), 3, NoTimer())(images)
    with pytest.raises(RuntimeError, match=f"replica {bad} of 3: too steep"):
        logits.sum().backward()


def test_what_the_caller_decides_holds_in_the_threads(images):
    made = ready(model(), images)
    parallel = ThreadedDataParallel(made, 2, NoTimer())
    with torch.no_grad():
        assert not parallel(images).requires_grad
    single = ThreadedDataParallel(made.float(), 2, NoTimer())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert single(images.float()).dtype == torch.bfloat16
    made.double().eval()
    parallel = ThreadedDataParallel(made, 2, NoTimer())
    before = [buffer.clone() for buffer in made.buffers()]
    assert torch.equal(parallel(images), torch.cat([made(part) for part in images.chunk(2)]))
    assert all(map(torch.equal, before, made.buffers()))


class Drawing(nn.Module):
    """Draws by a function, as densenet's and convnext's layers do, not by a Dropout layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, images_nchw):
        return nn.functional.dropout(self.layer(images_nchw), training=self.training)


def test_what_draws_without_a_dropout_layer_takes_turns_too():
    made, batch = Drawing(), torch.randn(8, 3)
    parallel = ThreadedDataParallel(made, 4, NoTimer())

    def gradient():
        torch.manual_seed(3)
        made.zero_grad()
        parallel(batch).sum().backward()
        return made.layer.weight.grad.clone()

    gradient()  # shows that it draws
    first = gradient()
    assert parallel._draws
    assert all(torch.equal(first, gradient()) for _ in range(20))


def test_what_does_not_draw_does_not_wait_for_its_turn(images):
    parallel = ThreadedDataParallel(ready(model(), images), 2, NoTimer())
    parallel(images).sum().backward()
    assert parallel._draws is False


class Noting(nn.Module):
    """Notes what holds where it runs."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, images_nchw):
        self.seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        return images_nchw


@pytest.mark.parametrize(
    ("mode", "expected"),
    [(torch.enable_grad, (True, False)), (torch.no_grad, (False, False)),
     (torch.inference_mode, (False, True))],
)  # fmt: skip
def test_the_threads_compute_gradients_as_the_caller_does(mode, expected):
    noting = Noting()
    with mode():
        ThreadedDataParallel(noting, 2, NoTimer())(torch.zeros(4, 3))
    assert noting.seen[0] == expected


def test_a_part_that_was_frozen_in_eval_stays_so(images):
    made = ready(model(), images)
    made[1].eval()
    before = [buffer.clone() for buffer in made.buffers()]
    parallel = ThreadedDataParallel(made, 3, NoTimer())
    expected = made(images)
    assert torch.allclose(parallel(images), expected, atol=1e-12)
    assert not made[1].training
    assert all(map(torch.equal, before, made.buffers()))


@pytest.mark.parametrize(
    ("words", "device", "there", "expected"),
    [
        ((), "cpu", 0, 1),
        (("train.replicas=ddp", "train.dp_devices=3"), "cuda", 4, 1),
        (("train.replicas=dp",), "cpu", 0, 2),
        (("train.replicas=dp", "train.dp_devices=3"), "cpu", 0, 3),
        (("train.replicas=dp",), "cuda", 4, 4),
        (("train.replicas=dp", "train.dp_devices=3"), "cuda", 4, 3),
    ],
)
def test_the_devices_of_one_process(monkeypatch, words, device, there, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    assert devices_per_process(small_config(*words), torch.device(device)) == expected


def test_more_gpus_than_there_are_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    config = small_config("train.replicas=dp", "train.dp_devices=4")
    with pytest.raises(ConfigError, match=r"sees 2 GPUs.*--gpus-per-node 4"):
        devices_per_process(config, torch.device("cuda"))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_on_gpus_it_is_torchs_own():
    replicas = DataParallelReplicas(nn.Linear(3, 2).cuda(), 2, NoTimer())
    assert replicas._parallel.device_ids == [0, 1]
    replicas(torch.ones(4, 3).cuda()).sum().backward()
    assert replicas.module.bias.grad.tolist() == [4.0, 4.0]
    assert replicas.module.weight.grad.tolist() == [[4.0] * 3] * 2


def gradients_of(replicas, precision, images, labels):
    """Of the scaled loss, scaled back, as a step has them."""
    device = images.device
    forward = Forward(replicas, device, precision)
    scaler = torch.amp.GradScaler(device.type, init_scale=128.0, enabled=precision == "fp16")
    scaler.scale(forward.loss(images, labels)).backward()
    scale = scaler.get_scale()
    return [parameter.grad / scale for parameter in replicas.module.parameters()]


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_on_two_gpus_gradients_are_those_of_one_in_every_number_format(precision):
    device = torch.device("cuda", 0)
    torch.manual_seed(1)
    images, labels = torch.randn(16, 3, 8, 8, device=device), torch.arange(16, device=device) % 5
    alone, parallel = (
        ready(model(norm=False).float(), torch.zeros(2, 3, 8, 8)).to(device) for _ in range(2)
    )
    expected = gradients_of(SingleReplica(alone), precision, images, labels)
    replicas = DataParallelReplicas(parallel, 2, NoTimer())
    found = gradients_of(replicas, precision, images, labels)
    tolerance = 1e-4 if precision == "fp32" else 2e-2
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
