import pytest
import torch

from hpcddp.errors import ConfigError
from hpcddp.train.models import build_model, check_model, count_parameters


def test_the_demo_network_is_torchvisions_resnet50():
    model = build_model("resnet50", 10, {}, seed=0)
    assert count_parameters(model) == 23_528_522
    assert model.conv1.weight.shape == (64, 3, 7, 7)


def test_weights_depend_on_the_seed_alone():
    models = [build_model("shufflenet_v2_x0_5", 10, {}, seed=seed) for seed in (3, 3, 4)]
    torch.manual_seed(99)
    first, second, other = (model.fc.weight for model in models)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_options_reach_torchvisions_builder():
    plain = build_model("resnet18", 10, {}, seed=0)
    zeroed = build_model("resnet18", 10, {"zero_init_residual": True}, seed=0)
    assert plain.layer1[0].bn2.weight.sum() == 64
    assert zeroed.layer1[0].bn2.weight.sum() == 0


def test_an_unknown_model_is_refused_with_the_nearest_names():
    with pytest.raises(ConfigError, match=r"resnet51: torchvision has no such model.*resnet50"):
        check_model("resnet51")


def test_detection_models_are_no_classification_models():
    with pytest.raises(ConfigError, match="no such model"):
        check_model("fasterrcnn_resnet50_fpn")


def test_options_that_a_model_does_not_take_are_refused_with_the_way_out():
    with pytest.raises(ConfigError, match=r"\{'drop': 1\}.*resnet18.*model_options\.drop=null"):
        build_model("resnet18", 10, {"drop": 1}, seed=0)
    build_model("resnet18", 10, {"drop": None}, seed=0)
