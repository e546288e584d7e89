import pytest
import torch
import torchvision
from torch import nn

from hpcddp.config.schema import OptimConfig
from hpcddp.train.optim import build_optimizer, set_lr

NORMS = (nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm)


@pytest.mark.parametrize("name", ["resnet18", "squeezenet1_1", "convnext_tiny", "vit_b_16"])
def test_norms_and_biases_are_not_decayed_and_every_weight_is(name):
    model = torchvision.models.get_model(name)
    optimizer = build_optimizer(model, OptimConfig(weight_decay=0.5))
    decay_of = {
        id(parameter): group["weight_decay"]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    in_norms = {id(p) for m in model.modules() if isinstance(m, NORMS) for p in m.parameters()}
    for parameter_name, parameter in model.named_parameters():
        is_exempt = id(parameter) in in_norms or parameter_name.endswith("bias")
        assert decay_of.pop(id(parameter)) == (0.0 if is_exempt else 0.5), parameter_name
    assert not decay_of


@pytest.mark.parametrize("nesterov", [False, True])
def test_updates_are_those_of_the_formula(nesterov):
    model = nn.Linear(3, 2)
    config = OptimConfig(momentum=0.9, nesterov=nesterov, weight_decay=0.1)
    optimizer = build_optimizer(model, config)
    weight, velocity = model.weight.detach().clone(), torch.zeros(2, 3)
    for lr in (0.5, 0.25):
        gradient = torch.randn(2, 3)
        model.weight.grad, model.bias.grad = gradient.clone(), torch.zeros(2)
        set_lr(optimizer, lr)
        optimizer.step()
        decayed = gradient + 0.1 * weight
        velocity = 0.9 * velocity + decayed
        weight -= lr * (decayed + 0.9 * velocity if nesterov else velocity)
        torch.testing.assert_close(model.weight.detach(), weight)


def test_momentum_begins_at_zero_also_where_the_first_update_is_left_out():
    """As after an overflow of fp16, or with a loss that is not finite."""
    model = nn.Linear(3, 2)
    optimizer = build_optimizer(model, OptimConfig(momentum=0.9, weight_decay=0.0))
    torch.use_deterministic_algorithms(True)  # memory that nobody has filled is NaN
    try:
        for is_left_out in (True, False):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.found_inf = torch.tensor(float(is_left_out))
            optimizer.step()
    finally:
        torch.use_deterministic_algorithms(False)
    for parameter in model.parameters():
        assert torch.equal(
            optimizer.state[parameter]["momentum_buffer"], torch.ones_like(parameter)
        )
