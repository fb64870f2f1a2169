"""The memory of Titans: windows against one token after another, and what is exported against Mneme."""

import dataclasses
import json
import os
import pathlib
import subprocess

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from demo import export, model, titans  # noqa: E402


def draw(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def drawn_inputs(sequences, tokens, heads, dim, hidden):
    """q, k, v; theta, eta and alpha; W1, W2 and gain."""
    q, k, v = (draw(sequences, tokens, heads, dim, seed=s) for s in range(3))
    q, k = (x / x.norm(dim=-1, keepdim=True) for x in (q, k))
    theta, eta, alpha = (draw(sequences, tokens, heads, seed=s).sigmoid() for s in (3, 4, 5))
    w1, w2, gain = (
        draw(heads, *shape, seed=s) for s, shape in ((6, (dim, hidden)), (7, (hidden, dim)), (8, (dim,)))
    )
    return (q, k, v), (0.3 * theta, eta, 0.1 * alpha), (w1, 0.5 * w2, 1 + 0.1 * gain)


def network(x, w1, w2, gain):
    y = torch.nn.functional.gelu(x @ w1) @ w2
    return x + gain * y / (y.square().mean() + 1e-6).sqrt()


def token_by_token(qkv, gates, initial, window):
    """The state machine as it is defined, its gradients by automatic differentiation."""
    reads = torch.zeros_like(qkv[0])
    for sequence, head in torch.cartesian_prod(*map(torch.arange, reads.shape[0:3:2])).tolist():
        weights = anchor = tuple(w[head] for w in initial)
        momenta = tuple(torch.zeros_like(w) for w in weights)
        for t in range(reads.shape[1]):
            q, k, v = (x[sequence, t, head] for x in qkv)
            theta, eta, alpha = (x[sequence, t, head] for x in gates)
            leaves = [a.detach().requires_grad_() for a in anchor]
            loss = (network(k, *leaves) - v).square().mean()
            gradients = torch.autograd.grad(loss, leaves)
            momenta = tuple(eta * s - theta * g for s, g in zip(momenta, gradients, strict=True))
            weights = tuple((1 - alpha) * w + s for w, s in zip(weights, momenta, strict=True))
            reads[sequence, t, head] = network(q, *weights)
            if (t + 1) % window == 0:
                anchor = weights
    return reads


def by_windows(qkv, gates, initial, window):
    theta, eta, alpha = gates
    rate = theta * 2 / qkv[0].shape[-1]
    return titans.neural_memory(qkv, (rate, eta.log(), torch.log1p(-alpha)), initial, window)


@pytest.mark.parametrize("window", [1, 4, 16])
def test_windows_read_what_one_token_after_another_reads(window):
    inputs = drawn_inputs(sequences=2, tokens=23, heads=2, dim=6, hidden=10)
    expected = token_by_token(*inputs, window)
    error = (by_windows(*inputs, window) - expected).abs().max() / expected.abs().max()
    print(f"{window}: {error.item():.1e}")
    assert error < 1e-12


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_memory_and_its_gradients_on_a_gpu_are_those_in_float64():
    inputs = drawn_inputs(sequences=2, tokens=150, heads=2, dim=64, hidden=128)
    inputs = (inputs[0], inputs[1], (0.1 * inputs[2][0], 0.1 * inputs[2][1], inputs[2][2]))
    weights = draw(*inputs[0][0].shape, seed=9)

    def run(device, dtype):
        leaves = [x.to(device, dtype).requires_grad_() for part in inputs for x in part]
        out = by_windows(leaves[:3], leaves[3:6], leaves[6:], 64)
        return [out, *torch.autograd.grad((out * weights.to(device, dtype)).sum(), leaves)]

    for ours, right in zip(run("cuda", torch.float32), run("cpu", torch.float64), strict=True):
        error = ((ours.cpu().double() - right).norm() / right.norm()).item()
        print(f"{error:.1e}")
        assert error < 1e-3


def test_gradients_through_the_training_at_test_time_are_those_of_differences():
    inputs = drawn_inputs(sequences=1, tokens=7, heads=1, dim=3, hidden=4)
    leaves = [x.requires_grad_() for part in inputs for x in part]

    def read(*leaves):
        return by_windows(leaves[:3], leaves[3:6], leaves[6:], 3)

    assert torch.autograd.gradcheck(read, leaves, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("alike", [0, 1])
def test_a_memory_stays_finite_at_full_rate(alike):
    """2,048 random tokens, their keys around one direction or none, at the highest theta."""
    config = titans.TitansConfig()
    heads, dim = 1, config.head_dim
    torch.manual_seed(1)
    memory = titans.NeuralMemory(dataclasses.replace(config, num_heads=heads))
    memory.initialize()
    k = torch.nn.functional.normalize(torch.randn(1, 2048, heads, dim) + alike * torch.randn(dim), dim=-1)
    v = torch.nn.functional.silu(torch.randn(k.shape))
    rate = torch.full(k.shape[:3], config.theta_max)
    with torch.no_grad():
        initial = (*memory.mem_weights, memory.mem_norm_weight)
        reads = by_windows((k, k, v), (rate, rate * 0 + 0.3, rate * 0), initial, config.window)
    print(f"{alike}: {reads.abs().max():.1f}")
    assert reads.abs().max() < 10


def test_gradients_do_not_grow_with_the_length_of_a_text_at_first():
    torch.manual_seed(1)
    config = titans.TitansConfig(hidden_size=64, num_heads=1)
    network = model.LanguageModel(dataclasses.replace(config, num_hidden_layers=1, vocab_size=64))
    memory = network.model.layers[0].attn
    words = torch.distributions.Categorical(1 / torch.arange(1.0, 65))  # some much more often than others
    x = torch.nn.functional.rms_norm(network.model.embeddings(words.sample((1024,))), (64,)).detach()

    def norm(tokens):
        out, _ = memory(x[:tokens], 1)
        gradients = torch.autograd.grad((out * out.detach().sign()).sum() / tokens, [*memory.mem_weights])
        return sum(g.square().sum() for g in gradients).sqrt().item()

    short, long = norm(128), norm(1024)
    print(f"{short:.2e} {long:.2e}")
    assert long < 2 * short


def small_model(**fields):
    torch.manual_seed(1)
    small = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2, "head_dim": 16}
    config = titans.TitansConfig(**{**small, "intermediate_size": 32, "window": 8, **fields})
    network = model.LanguageModel(config)
    with torch.no_grad():
        for parameter in network.parameters():  # so that every one counts, and is what bf16 holds
            parameter.add_(0.1 * torch.randn(parameter.shape)).copy_(parameter.bfloat16())
    return network


def test_a_folder_is_read_back(tmp_path):
    network = small_model()
    export.write(network, tmp_path, tmp_path / "export")
    read = model.load(tmp_path / "export")
    assert read.config == network.config
    assert all(torch.equal(x, network.state_dict()[name]) for name, x in read.state_dict().items())


def test_a_folder_of_another_function_is_refused(tmp_path):
    export.write(small_model(), tmp_path, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"memory_read": "anchor"}))
    with pytest.raises(ValueError, match="memory_read"):
        model.load(tmp_path)


@pytest.mark.skipif("MNEME_BIN_DIR" not in os.environ, reason="no MNEME_BIN_DIR with Mneme's programs")
def test_logits_are_those_of_mneme(tmp_path):
    network = small_model()
    export.write(network, tmp_path, tmp_path / "export")
    ids = torch.randint(64, (1, 45), generator=torch.Generator().manual_seed(2))
    (tmp_path / "ids.txt").write_text(" ".join(map(str, ids[0].tolist())))
    command = [pathlib.Path(os.environ["MNEME_BIN_DIR"], "mneme-logits"), "--device", "reference"]
    command += ["--model", tmp_path / "export", "--tokens", tmp_path / "ids.txt"]
    subprocess.run([*command, "--out", tmp_path / "logits.safetensors"], check=True)
    expected = safetensors.load_file(tmp_path / "logits.safetensors")["logits"].double()
    with torch.no_grad():
        found, _ = network.double()(ids, torch.float64)
    error = ((found[0] - expected).abs().max() / expected.abs().max()).item()
    print(f"against Mneme: {error:.1e}")
    assert error < 1e-5
