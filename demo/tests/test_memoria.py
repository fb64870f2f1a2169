"""Memoria's network and its engrams against upstream's results, and against Mneme."""

import dataclasses
import json
import os
import pathlib
import subprocess

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from demo import engrams, export, memoria, model, train  # noqa: E402

GOLDEN = pathlib.Path(__file__).parents[2] / "tests" / "golden"


def folder_of(name):
    for root in (GOLDEN, pathlib.Path(os.environ.get("MNEME_GOLDEN", GOLDEN))):
        if (root / name).exists():
            return root / name
    return pytest.skip("neither in this checkout nor in $MNEME_GOLDEN")


def read(network, ids):
    """What a text's segments saw, and the engrams behind them."""
    length = network.config.rules.segment
    cut = ids.view(1, -1, length)
    net = network.transformer
    return network.read(net.wte(cut) + net.wpe.weight[:length], net.wpe.weight.dtype)


@pytest.mark.parametrize(
    "name", ["memoria_gpt2_deaths", "memoria_gpt2", "memoria_gpt2_paper", "memoria_gpt2_v1_1"]
)
def test_logits_and_engrams_are_those_of_upstream(name):
    folder = folder_of(name)
    golden = safetensors.load_file(folder / "golden.safetensors")
    network = model.load(folder).double()
    rules = network.config.rules
    ids = golden["input_ids"].long()
    with torch.no_grad():
        logits, _ = network(ids[None], torch.float64)
    error = (logits[0] - golden["logits"]).abs().max() / golden["logits"].abs().max()
    print(f"{name}: {error:.1e}")
    assert error < 2e-5

    before = {part: torch.zeros(0) for part in ("birth", "type", "lifespan", "counts")}
    long_term = 0
    for segment in range(1, len(ids) // rules.segment):
        prefix = f"s{segment:03}."
        found = read(network, ids[: (segment + 1) * rules.segment]).engrams
        assert found.recalled[0][found.used[0]].tolist() == golden[prefix + "rem"].tolist()
        assert found.found[0].nonzero().flatten().tolist() == golden[prefix + "found"].tolist()
        assert found.columns.item() == golden[prefix + "flags"][3]
        types = found.types[0, : found.born]
        kept = (types > engrams.WORKING).nonzero().flatten()
        assert kept.tolist() == before["birth"].tolist()
        assert types[kept].tolist() == before["type"].tolist()
        lifespans = found.lifespans[0, kept].float()
        torch.testing.assert_close(lifespans, before["lifespan"], rtol=1e-5, atol=1e-5)
        fired = torch.zeros(found.born, dtype=torch.int)
        fired[found.recalled[0][found.used[0]]] = 1
        counts = found.counts[0][kept][:, kept].int() - fired[kept, None] * fired[None, kept]
        assert counts.tolist() == before["counts"].tolist()
        before = {part: golden[prefix + part] for part in before if prefix + part in golden}
        long_term += int((golden[prefix + "rem_type"] == engrams.LONG_TERM).sum())
    assert long_term > 0


def test_draws_are_those_that_are_documented():
    def number(seed, segment, birth, n):
        return engrams.draw(seed, segment, torch.tensor([birth]), torch.tensor([n])).item()

    assert number(0, 0, 0, 1000) == 883
    assert number(20260101, 9, 17, 9) == 8
    assert number(2**64 - 1, 2**31, 2**32 - 1, 2**20) == 46220


SMALL_RULES = engrams.Rules(
    segment=8,
    working=4,
    recalled_short=6,
    recalled_long=7,
    short_term=12,
    depth=3,
    lifespan=4,
    lifespan_scale=3,
)


def small_model(**fields):
    torch.manual_seed(1)
    config = memoria.MemoriaConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        head_dim=16,
        intermediate_size=32,
        positions=8,
        rules=dataclasses.replace(SMALL_RULES, **fields),
    )
    network = memoria.MemoriaLanguageModel(config)
    with torch.no_grad():
        for parameter in network.parameters():  # so that every one counts, and is what bf16 holds
            parameter.add_(0.1 * torch.randn(parameter.shape)).copy_(parameter.bfloat16())
    return network


def drawn_ids(*shape):
    return torch.randint(64, shape, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("profile", engrams.PROFILES)
def test_both_passes_are_one_function(profile):
    network, ids = small_model(profile=profile).double(), drawn_ids(3, 8 * 20 + 3)
    trained, _ = network(ids, torch.float64)
    with torch.no_grad():
        read_once, _ = network(ids, torch.float64)
    torch.testing.assert_close(trained.detach(), read_once, rtol=0, atol=1e-12)


@pytest.mark.parametrize("profile", engrams.PROFILES)
def test_a_sequence_gives_the_same_alone_cut_short_or_among_others(profile):
    network, ids = small_model(profile=profile).double(), drawn_ids(4, 8 * 20)
    with torch.no_grad():
        together, _ = network(ids, torch.float64)
        alone = torch.cat([network(row[None], torch.float64)[0] for row in ids])
        begun, _ = network(ids[:, :93], torch.float64)
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)
    torch.testing.assert_close(together[:, :93], begun, rtol=0, atol=1e-12)


def test_gradients_stay_in_their_segment_but_for_what_encodes_it():
    network, ids = small_model().double(), drawn_ids(2, 8 * 6)
    logits, _ = network(ids, torch.float64)
    last = logits[:, -8:].square().sum()
    names = [name for name, _ in network.named_parameters()]
    gradients = torch.autograd.grad(last, list(network.parameters()), allow_unused=True)
    of = dict(zip(names, gradients, strict=True))
    assert of["transformer.abs.query_embeddings"].abs().max() > 0
    assert of["transformer.h.0.memory_attention.c_attn.weight"].abs().max() > 0
    seen_here = torch.zeros(64, dtype=torch.bool)
    seen_here[ids[:, -8:]] = True
    touched = of["transformer.wte.weight"].abs().amax(1) > 0
    assert touched.any()
    assert not (touched & ~seen_here).any()


def test_gradients_are_those_of_differences_where_engrams_are_given():
    """With the engrams of the first pass held, for upstream takes what they come from as given."""
    network, ids = small_model(segment=4).double(), drawn_ids(1, 4 * 5)
    net = network.transformer
    held = read(network, ids[0])
    network.read = lambda *_: held
    parameters = [net.abs.query_embeddings, net.abs.value_transform.weight, net.h[1].ln_memory_attn.weight]

    def loss():
        return network(ids, torch.float64)[0].sin().sum()

    gradients = torch.autograd.grad(loss(), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        flat = parameter.data.flatten()
        for place in range(0, len(flat), 37):
            with torch.no_grad():
                kept, step = flat[place].clone(), 1e-6
                values = []
                for sign in (1, -1):
                    parameter.data.view(-1)[place] = kept + sign * step
                    with torch.enable_grad():
                        values.append(loss().item())
                parameter.data.view(-1)[place] = kept
            difference = (values[0] - values[1]) / (2 * step)
            assert gradient.flatten()[place].item() == pytest.approx(difference, rel=1e-5, abs=1e-7)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_recalls_what_the_cpu_recalls_and_a_recorded_step_leaves_its_gradients():
    network, ids = small_model().double(), drawn_ids(3, 8 * 20)
    expected = [read(network, row) for row in ids]
    leaves = list(network.parameters())
    gradients = torch.autograd.grad(network(ids, torch.float64)[0].square().mean(), leaves)
    on_gpu = small_model().cuda()
    for row, right in zip(ids, expected, strict=True):
        found = read(on_gpu, row.cuda()).engrams
        assert found.recalled[found.used].tolist() == right.engrams.recalled[right.engrams.used].tolist()
        assert found.types.tolist() == right.engrams.types.tolist()
        assert found.counts.tolist() == right.engrams.counts.tolist()

    def step(rows):
        loss = on_gpu(rows, torch.float32)[0].square().mean()
        loss.backward()
        return loss.detach().view(1)

    recorded = train.RecordedGradients(step, lambda: on_gpu.zero_grad(set_to_none=True))
    for _ in range(2):
        recorded(ids.cuda())
    for parameter, right in zip(on_gpu.parameters(), gradients, strict=True):
        if right.norm() > 1e-9:  # that of the keys' bias is 0
            error = ((parameter.grad.cpu().double() - right).norm() / right.norm()).item()
            print(f"{error:.1e}")
            assert error < 1e-3


def test_a_folder_is_read_back(tmp_path):
    network = small_model(profile="paper", random_ties=False)
    export.write(network, tmp_path, tmp_path / "export")
    again = model.load(tmp_path / "export")
    assert again.config == network.config
    assert all(torch.equal(x, network.state_dict()[name]) for name, x in again.state_dict().items())


@pytest.mark.parametrize(
    ("key", "value"),
    [("memoria_profile", "other"), ("memoria_num_memories", None), ("activation_function", "relu")],
)
def test_a_folder_of_another_function_is_refused(tmp_path, key, value):
    export.write(small_model(), tmp_path, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(ValueError, match=key):
        model.load(tmp_path)


@pytest.mark.skipif("MNEME_BIN_DIR" not in os.environ, reason="no MNEME_BIN_DIR with Mneme's programs")
@pytest.mark.parametrize("profile", engrams.PROFILES)
def test_logits_and_recalled_engrams_are_those_of_mneme(tmp_path, profile):
    network, ids = small_model(profile=profile).double(), drawn_ids(8 * 30)
    rules = network.config.rules
    export.write(network, tmp_path, tmp_path / "export")
    programs = pathlib.Path(os.environ["MNEME_BIN_DIR"])

    def run(program, count, *arguments):
        (tmp_path / "ids.txt").write_text(" ".join(map(str, ids[:count].tolist())))
        command = [programs / program, *arguments, "--tokens", tmp_path / "ids.txt", "--device", "reference"]
        subprocess.run(command, check=True)

    run("mneme-logits", len(ids), "--model", tmp_path / "export", "--out", tmp_path / "logits.safetensors")
    expected = safetensors.load_file(tmp_path / "logits.safetensors")["logits"].double()
    with torch.no_grad():
        found, _ = network(ids[None], torch.float64)
        in_f32, _ = network.float()(ids[None], torch.float32)
    for logits, most in ((found, 1e-6), (in_f32, 1e-4)):
        error = ((logits[0] - expected).abs().max() / expected.abs().max()).item()
        print(f"{profile}: logits {error:.1e}")
        assert error < most
    network.double()

    for segments in (2, 5, 12, 30):
        dump = tmp_path / "state.safetensors"
        run("mneme-inspect", segments * rules.segment, "state", tmp_path / "export", "--dump-state", dump)
        state = safetensors.load_file(dump)
        ours = read(network, ids[: segments * rules.segment]).engrams
        slots = state["engrams.recalled"].flatten()[: state["engrams.facts"].flatten()[0]].long()
        assert ours.recalled[0][ours.used[0]].tolist() == state["engrams.births"].flatten()[slots].tolist()
        types = state["engrams.types"].flatten()
        assert segments < 12 or (types == engrams.LONG_TERM).any()
        alive = types > 0
        births = state["engrams.births"].flatten()[alive].long()
        assert sorted(births.tolist()) == ours.types[0, : ours.born].nonzero().flatten().tolist()
        assert ours.types[0, births].tolist() == types[alive].tolist()
        lifespans = state["engrams.lifespans"].flatten()[alive]
        torch.testing.assert_close(ours.lifespans[0, births].float(), lifespans, rtol=1e-4, atol=1e-4)
        slots = alive.nonzero().flatten()
        counts = state["engrams.counts"].view(len(types), -1).int()[slots][:, slots]
        assert ours.counts[0][births][:, births].tolist() == counts.tolist()
