"""The networks against the reference implementation's logits, and training against evaluation."""

import os
import pathlib

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from demo import model as demo_model  # noqa: E402

GOLDEN = pathlib.Path(__file__).parents[2] / "tests" / "golden"


@pytest.mark.parametrize("name", ["mom", "mom_no_shared", "mom_head256", "gated_deltanet"])
def test_logits_are_those_of_the_reference(name):
    folder = GOLDEN / name
    if not folder.exists():
        folder = pathlib.Path(os.environ.get("MNEME_GOLDEN", GOLDEN)) / name
    if not folder.exists():
        pytest.skip("neither in this checkout nor in $MNEME_GOLDEN")
    golden = safetensors.load_file(folder / "golden.safetensors")
    network = demo_model.load(folder)
    with torch.no_grad():
        logits, _ = network(golden["input_ids"].long()[None], torch.float32)
    error = (logits[0] - golden["logits"]).abs().max() / golden["logits"].abs().max()
    print(f"{name}: {error:.2e}")
    assert error < 2e-5


def small(name):
    config = demo_model.CONFIGS[name]
    fields = {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "head_dim": 16,
        "intermediate_size": 32,
    }
    torch.manual_seed(1)
    return demo_model.make(demo_model.dataclasses.replace(config, **fields)).double()


@pytest.mark.parametrize("name", sorted(demo_model.CONFIGS))
def test_a_sequence_gives_the_same_alone_cut_short_or_among_others(name):
    network = small(name)
    ids = torch.randint(64, (3, 24), generator=torch.Generator().manual_seed(2))
    together, _ = network(ids, torch.float64)
    alone = torch.cat([network(row[None], torch.float64)[0] for row in ids])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)
    begun, _ = network(ids[:, :11], torch.float64)
    torch.testing.assert_close(together[:, :11], begun, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", sorted(demo_model.CONFIGS))
def test_training_mode_and_evaluation_mode_are_one_function(name):
    network = small(name)
    ids = torch.randint(64, (2, 20), generator=torch.Generator().manual_seed(3))
    trained, _ = network.train()(ids, torch.float64)
    evaluated, _ = network.eval()(ids, torch.float64)
    assert torch.equal(trained, evaluated)


def test_the_twins_have_the_sizes_that_are_claimed():
    def layer_weights(config):
        layer = demo_model.Block(config)
        return sum(p.numel() for p in layer.parameters() if p.dim() == 2 and min(p.shape) > 4)

    configs = demo_model.CONFIGS
    demo = configs["demo"]
    memories = demo.num_memories + 1 - (demo.topk + 1)  # not gone through by a token
    active = layer_weights(demo) - memories * 2 * demo.hidden_size * demo.num_heads * demo.head_dim
    assert active == layer_weights(configs["gdn_active"]) == 983_040
    assert configs["gdn_state"].state_bytes == demo.state_bytes
    assert layer_weights(configs["gdn_state"]) == layer_weights(demo)

    def parameters(config):
        return sum(p.numel() for p in demo_model.make(config).parameters())

    for name in ("titans", "memoria"):
        assert parameters(configs[name]) == pytest.approx(parameters(demo), rel=0.03)
