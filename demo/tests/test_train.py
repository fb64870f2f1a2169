"""The training: what each step sees, and that a training in pieces is the training in one."""

import dataclasses
import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from demo import model, train  # noqa: E402


def test_documents_get_longer_and_fit_in_a_step():
    plan = train.Plan(steps=1000, tokens=16384, seed=1)
    lengths = [plan.length(step) for step in range(1000)]
    assert lengths == sorted(lengths)
    assert lengths[0] == train.CURRICULUM[0][1]
    assert lengths[-1] == 16384
    assert all(plan.tokens % length == 0 for length in lengths)
    capped = [dataclasses.replace(plan, longest=4096).length(step) for step in range(1000)]
    assert capped == [min(length, 4096) for length in lengths]


def test_the_learning_rate_rises_to_its_peak_and_falls():
    plan = train.Plan(steps=1000, tokens=1024, seed=1)
    rates = [train.learning_rate(step, plan, 1.0, warm_up=100) for step in range(1000)]
    assert max(rates) == rates[99] == rates[100] == 1.0
    assert rates[:100] == sorted(rates[:100])
    assert rates[100:] == sorted(rates[100:], reverse=True)
    assert rates[-1] < 0.02


@pytest.fixture
def piece(monkeypatch):
    """Trains a piece of a tiny network."""
    small = dataclasses.replace(
        model.CONFIGS["demo"], hidden_size=16, num_hidden_layers=1, head_dim=8, intermediate_size=16
    )
    monkeypatch.setitem(model.CONFIGS, "demo", small)
    titans = {"num_heads": 1, "head_dim": 8, "intermediate_size": 16}
    titans = dataclasses.replace(model.CONFIGS["titans"], hidden_size=16, num_hidden_layers=1, **titans)
    monkeypatch.setitem(model.CONFIGS, "titans", titans)
    rules = dataclasses.replace(model.CONFIGS["memoria"].rules, segment=32, working=2, short_term=4)
    sizes = {"head_dim": 8, "intermediate_size": 16, "positions": 32, "rules": rules}
    memoria = dataclasses.replace(model.CONFIGS["memoria"], hidden_size=16, num_hidden_layers=1, **sizes)
    monkeypatch.setitem(model.CONFIGS, "memoria", memoria)
    monkeypatch.setattr(train, "VALIDATION_LENGTHS", (256,))

    def piece(out, *more, config="demo"):
        arguments = f"--config {config} --steps 3 --tokens 256 --workers 0 --device cpu --out".split()
        train.main([*arguments, str(out), *more])

    return piece


@pytest.mark.parametrize("config", ["demo", "titans", "memoria"])
def test_pieces_give_the_weights_of_one_piece(tmp_path, piece, config):
    piece(tmp_path / "one", config=config)
    for _ in range(3):
        piece(tmp_path / "three", "--seconds", "0", config=config)
    whole, parts = (torch.load(tmp_path / name / "checkpoint.pt") for name in ("one", "three"))
    assert whole["step"] == parts["step"] == 3
    assert all(torch.equal(tensor, parts["model"][name]) for name, tensor in whole["model"].items())

    exported = model.load(tmp_path / "three" / "export")
    assert exported.config == model.CONFIGS[config]
    name = next(iter(whole["model"]))
    assert torch.equal(exported.state_dict()[name], whole["model"][name].bfloat16().float())
    last = json.loads((tmp_path / "three" / "log.jsonl").read_text().splitlines()[-1])
    assert last["finished"] and set(last["loss"]) == {"256"}


def test_a_checkpoint_of_another_plan_is_refused(tmp_path, piece):
    piece(tmp_path, "--seconds", "0")
    with pytest.raises(SystemExit, match="other --steps"):
        piece(tmp_path, "--steps", "4")
    with pytest.raises(SystemExit, match="other --steps"):
        piece(tmp_path, "--seed", "2")
    with pytest.raises(SystemExit, match="other --steps"):
        piece(tmp_path, "--longest", "128")


def test_arguments_that_do_not_fit_are_refused(tmp_path, piece, capsys):
    with pytest.raises(SystemExit):
        piece(tmp_path, "--longest", "100")
    assert "no multiple of --longest 100" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        piece(tmp_path, "--graph")
    assert "--graph takes" in capsys.readouterr().err


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_recorded_step_leaves_the_gradients_of_a_step():
    network = torch.nn.Linear(8, 4, device="cuda")
    optimizer = torch.optim.SGD(network.parameters())

    def gradients(x, y):
        loss = (network(x) - y).square().mean()
        loss.backward()
        return loss.detach().view(1)

    def clear():
        optimizer.zero_grad(set_to_none=True)

    recorded = train.RecordedGradients(gradients, clear)
    for size in (16, 16, 32):
        x, y = torch.randn(size, 8, device="cuda"), torch.randn(size, 4, device="cuda")
        loss = recorded(x, y)
        found = [p.grad.clone() for p in network.parameters()]
        expected = torch.autograd.grad((network(x) - y).square().mean(), list(network.parameters()))
        torch.testing.assert_close(found, list(expected))
        torch.testing.assert_close(loss, (network(x) - y).square().mean().view(1))


def test_a_finished_training_can_be_started_again(tmp_path, piece):
    piece(tmp_path)
    weights = (tmp_path / "export" / "model.safetensors").read_bytes()
    piece(tmp_path)
    assert (tmp_path / "export" / "model.safetensors").read_bytes() == weights
