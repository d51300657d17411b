import dataclasses

import numpy as np
import pytest
import torch
from test_beam import EOS, A, B, Table, model_of, trained

from ablate.config import DecodeConfig
from ablate.decode import translate_all
from ablate.model import inference
from ablate.model.inference import Decoder
from ablate.stop import Stopped


@pytest.fixture(autouse=True)
def threads():
    """Begin with one thread; gives what sets their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch.set_num_threads
    torch.set_num_threads(before)


def copies_exactly(source, prefix):
    probabilities = [0.0, 0.0, 0.0, 0.0]
    probabilities[source[len(prefix)]] = 1.0
    return probabilities


def decode_config(**changes) -> DecodeConfig:
    default = DecodeConfig(beam_size=2, length_penalty=0.6, max_extra=3, batch_sentences=2, average_checkpoints=1)
    return dataclasses.replace(default, **changes)


def test_translations_come_in_the_order_of_the_sentences():  # D3
    texts = [[A], [B, B, A, B], [], [A, B], [B, A, A], [B]]
    sentences = [np.array([*text, EOS], dtype=np.int32) for text in texts]
    for sentence in sentences:
        sentence.flags.writeable = False  # as in a memory-mapped corpus
    progress: list[tuple[int, int]] = []
    found = translate_all(
        Table(copies_exactly),
        sentences,
        decode_config(batch_sentences=4),
        "cpu",
        on_progress=lambda done, total: progress.append((done, total)),
    )
    assert [hypothesis.ids for hypothesis in found] == texts
    assert progress == [(4, 6), (6, 6)]


def test_threads_share_the_sentences_and_leave_torchs_number_as_it_was(threads):
    sentences = [np.array([2 + i % 9] * (1 + i % 5) + [EOS]) for i in range(11)]
    one = translate_all(Decoder(trained()), sentences, decode_config(), "cpu")
    threads(3)
    progress: list[int] = []
    decode = decode_config(batch_sentences=64)
    three = translate_all(Decoder(trained()), sentences, decode, "cpu", lambda done, total: progress.append(done))
    assert torch.get_num_threads() == 3
    assert progress == [4, 8, 11]
    assert [found.ids for found in three] == [found.ids for found in one]


@pytest.mark.parametrize(("num_threads", "batches"), [(1, [11]), (2, [11]), (3, [4, 4, 3]), (4, [6, 5])])
def test_two_threads_share_each_batch_of_a_large_model(threads, num_threads: int, batches: list[int]):
    class Large(Decoder):
        def start(self, src):
            seen.append((len(src), torch.get_num_threads()))
            return super().start(src)

    sentences = [np.array([2 + i % 9] * (1 + i % 5) + [EOS]) for i in range(11)]
    plain = translate_all(Decoder(trained()), sentences, decode_config(), "cpu")
    threads(num_threads)
    seen: list[tuple[int, int]] = []
    model = Large(trained())
    model.large = True
    found = translate_all(model, sentences, decode_config(batch_sentences=64), "cpu")
    assert sorted(size for size, _ in seen) == sorted(batches)
    assert {number for _, number in seen} == {num_threads // len(batches)}
    assert torch.get_num_threads() == num_threads
    assert [hypothesis.ids for hypothesis in found] == [hypothesis.ids for hypothesis in plain]


def test_a_model_is_large_from_so_many_weights(monkeypatch):
    assert not Decoder(trained()).large
    num_weights = sum(parameter.numel() for parameter in trained().parameters())
    for bound, large in ((num_weights, True), (num_weights + 1, False)):
        monkeypatch.setattr(inference, "LARGE", bound)
        assert Decoder(trained()).large is large


def test_what_goes_wrong_in_a_thread_is_raised(threads):
    threads(2)
    sentences = [np.array([A, B, EOS])] * 9
    with pytest.raises(Stopped):
        translate_all(Decoder(trained()), sentences, decode_config(), "cpu", should_stop=lambda: True)
    assert torch.get_num_threads() == 2


def test_no_sentences_give_no_translations():
    assert translate_all(Table(copies_exactly), [], decode_config(), "cpu") == []


def test_decoding_stops_between_steps():
    table, answers = Table(copies_exactly), iter([False, False, True])
    sentences = [np.array([A, B, A, B, EOS], dtype=np.int32)]
    with pytest.raises(Stopped):
        translate_all(table, sentences, decode_config(), "cpu", should_stop=lambda: next(answers))
    assert len(table.num_rows) == 2


def test_a_sentence_of_5000_subwords_is_translated_by_itself():  # T7
    model = model_of()
    with torch.no_grad():  # so that the end symbol is always likeliest
        model.decoder[-1].feed_forward_norm.norm.bias.copy_(100 * model.embedding.weight[EOS])
    sentences = [np.array([*[3] * (n - 1), EOS]) for n in (4, 5000, 7)]
    progress: list[tuple[int, int]] = []
    decode = decode_config(batch_sentences=64, max_extra=0)
    found = translate_all(Decoder(model), sentences, decode, "cpu", lambda done, total: progress.append((done, total)))
    assert [hypothesis.ids for hypothesis in found] == [[], [], []]
    assert progress == [(1, 3), (3, 3)]
