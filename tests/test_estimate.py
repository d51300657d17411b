import dataclasses

from ablate.config import ModelConfig
from ablate.data.packed import Packed
from ablate.data.subword import EOS
from ablate.estimate import Estimate, Lengths, Load, guess, memory, model_of, work

MODEL = ModelConfig(
    num_layers=2,
    d_model=2,
    d_ff=3,
    num_heads=5,
    d_k=1,
    d_v=4,
    dropout=0.1,
    activation="relu",
    positional="sinusoid",
    max_positions=64,
    sinusoid_layout="halves",
    attention_bias=False,
    fused_init=True,
    decoder_start="zeros",
)
LOAD = Load(src_tokens=4.0, tgt_tokens=6.0, src_len=2.0, tgt_len=3.0)
SCIENCE = {
    **{f"model.{name}": value for name, value in dataclasses.asdict(MODEL).items() if name != "max_positions"},
    "data.vocab_size": 7,
    "optim.batch_tokens": 6,
    "optim.batch_counting": "tokens",
    "optim.accumulate": 3,
    "optim.train_steps": 100,
}
LENGTHS = Lengths(src=2.0, tgt=3.0, longer=3.0, src_of_token=2.0, tgt_of_token=3.0)  # two pairs of these make `LOAD`


def test_lengths_are_means_over_sentences_and_over_tokens():
    packed = Packed.of([[9, EOS], [9, 9, 9, EOS]], [[9, 9, EOS], [EOS]])  # 2 and 4; 3 and 1
    assert Lengths.of(packed) == Lengths(src=3.0, tgt=2.0, longer=3.5, src_of_token=20 / 6, tgt_of_token=10 / 4)


def test_a_full_batch_counts_the_longer_side_of_each_pair_or_the_longer_side_of_all():
    lengths = Lengths(src=3.0, tgt=2.0, longer=3.5, src_of_token=4.0, tgt_of_token=2.5)
    assert lengths.load(7, "padded") == Load(6.0, 4.0, 4.0, 2.5)  # two pairs
    assert lengths.load(12, "tokens") == Load(12.0, 8.0, 4.0, 2.5)  # four


def test_the_work_of_a_micro_batch_worked_out_by_hand():
    attention = 2 * 5 * (2 * 1 + 2 * 4)  # 100 weights: d_model × h × (2 d_k + 2 d_v)
    keys_values, feed_forward = 2 * 5 * (1 + 4), 2 * 2 * 3  # 50, 12
    per_src, per_tgt = attention + feed_forward + keys_values, 2 * attention - keys_values + feed_forward
    assert work(MODEL, 7, LOAD) == {
        "micro-batch": 1,
        "layers": 2,
        "products": 2 * 3 * 2 * (4 * per_src + 6 * per_tgt),  # two operations, forward and twice back, two layers
        "output products": 2 * 3 * 6 * 7 * 2,
        "attention matrices": 2 * 5 * (2 + 2 * 2),  # two sentences: the encoder's, and the decoder's two
        "attention weights": 2 * 5 * (4 * 2 + 6 * 3 + 6 * 2),
        "elements": 2 * (2 * (2 * 4 + 3 * 6) + 3 * (4 + 6)),  # two sub-layers of the encoder, three of the decoder
        "dropped elements": 2 * 2 * (2 * 4 + 3 * 6),
        "logits": 6 * 7,
        "parameters": 2 * (3 * attention + 2 * (12 + 3 + 2) + 5 * 2 * 2) + 7 * 2,
    }
    assert work(dataclasses.replace(MODEL, dropout=0.0), 7, LOAD)["dropped elements"] == 0


def test_memory_holds_logits_of_some_rows_only():
    assert memory(MODEL, 7, LOAD)["logits"] == 6 * 7
    assert memory(MODEL, 7, dataclasses.replace(LOAD, tgt_tokens=1000.0))["logits"] == 256 * 7


def test_every_micro_batch_costs_and_adam_once_an_update():
    costs = dict.fromkeys(work(MODEL, 7, LOAD), 0.0)
    once = Estimate("here", {**costs, "parameters": 2.0}, {"process": 5.0}, {})
    assert once.update_s(SCIENCE, LENGTHS) == 2 * work(MODEL, 7, LOAD)["parameters"]
    each = Estimate("here", {**costs, "micro-batch": 1.0, "logits": 0.5}, {"process": 5.0, "logits": 0.25}, {})
    assert each.update_s(SCIENCE, LENGTHS) == 3 * (1 + 0.5 * 42)
    assert each.peak_mb(SCIENCE, LENGTHS) == 5 + 0.25 * 42  # micro-batches come one after the other


def test_a_models_configuration_is_found_in_a_runs_science():
    assert model_of(SCIENCE) == dataclasses.replace(MODEL, max_positions=1)


def test_a_stated_rate_goes_before_the_model_which_speaks_of_cpus_only():
    stated = guess(LENGTHS, "cpu", sustained_gflops=2.0)
    assert stated.train_s(SCIENCE, flops=6e9) == 3.0
    assert stated.source == "from cluster.sustained_gflops=2"
    model = guess(LENGTHS, "cpu", sustained_gflops=0.0)
    assert model.train_s(SCIENCE, flops=6e9) == 100 * model.model.update_s(SCIENCE, LENGTHS)
    assert "cost model" in model.source
    other = guess(LENGTHS, "cuda", sustained_gflops=0.0)
    assert other.train_s(SCIENCE, flops=6e9) == 6 / 40
    assert "assumption" in other.source


def test_the_coefficients_that_are_shipped_are_of_the_kinds_there_are():
    shipped = guess(LENGTHS, "cpu", 0.0).model
    assert list(shipped.seconds) == list(work(MODEL, 7, LOAD))
    assert list(shipped.memory_mb) == list(memory(MODEL, 7, LOAD))
    assert min(*shipped.seconds.values(), *shipped.memory_mb.values()) >= 0
    assert "%" in shipped.said("seconds") and shipped.machine in shipped.said("memory_mb")
