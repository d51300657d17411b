import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ablate.data.packed import Packed, Side, Writer, dtype_of
from ablate.data.source import CorpusError
from ablate.data.subword import EOS, PAD, UNK, Subwords

SENTENCES = [
    "the old man sees a small table </s> and <pad> and <unk>",
    "der alte Mann sieht einen kleinen Tisch </s> <pad> <unk> <0x41>",
    "a line with ▁ and ▅ and <s> and ▅eos",
    "a zero \0 and a tab\tand  two spaces ",
] * 5
NASTY = [
    "</s>",
    "<pad>",
    "<unk>",
    "<s>",
    "<0x41>",
    "▁",
    "▅pad",
    "▅eos",
    "▅unk",
    " ",
    "  ",
    "\0",
    "\u2028",
    "\x85",
    "\r",
    "the",
]


@pytest.fixture(scope="module")
def subwords(tmp_path_factory) -> Subwords:
    return Subwords.train(SENTENCES, 310, tmp_path_factory.mktemp("subwords") / "model")


LINES = st.lists(st.sampled_from(NASTY) | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n")))


@settings(max_examples=300)
@given(LINES.map("".join))
@example("")
@example("▁")
@example(" ▁ </s>▁<pad> ")
def test_every_line_comes_back_and_holds_no_control_id(subwords, line):  # T6
    ids = subwords.encode(line)
    assert subwords.decode(ids) == line
    assert not {PAD, EOS, UNK} & set(ids)


def test_many_are_encoded_as_one_by_one(subwords):
    assert subwords.encode_many(NASTY) == [subwords.encode(text) for text in NASTY]


def test_decoding_stops_at_eos_and_skips_pad(subwords):
    ids = subwords.encode("the man")
    assert subwords.decode([PAD, *ids, EOS, *ids]) == "the man"
    assert subwords.decode(np.array([*ids, EOS, PAD, PAD], dtype=np.uint16)) == "the man"


def test_the_same_text_gives_the_same_bytes_and_no_noise(tmp_path, capfd):
    for name in ("one", "two"):
        Subwords.train(iter(SENTENCES), 300, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert capfd.readouterr() == ("", "")


def test_the_vocabulary_has_the_size_asked_for(subwords):
    assert subwords.vocab_size == 310


def test_a_vocabulary_too_large_names_the_largest_and_that_one_works(tmp_path):  # T5
    with pytest.raises(CorpusError, match=r"data.vocab_size=5000: the training text allows at most (\d+)") as refused:
        Subwords.train(SENTENCES, 5000, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    most = int(str(refused.value).split()[-1])
    assert Subwords.train(SENTENCES, most, tmp_path / "model").vocab_size == most


def test_a_vocabulary_too_small_names_the_smallest_and_that_one_works(tmp_path):  # T5
    # Three control ids, 256 bytes, and the characters a, b and the space.
    with pytest.raises(CorpusError, match=r"data.vocab_size=261: must be at least 262"):
        Subwords.train(["ab ab"], 261, tmp_path / "model")
    assert Subwords.train(["ab ab"], 262, tmp_path / "model").vocab_size == 262


def test_no_sentence_is_too_long_to_learn_from(tmp_path):
    # SentencePiece's default skips lines above 4,192 bytes. Two merges make ▁xy, which only the long line holds.
    subwords = Subwords.train(["xy " * 30_000, "ab ab"], 266, tmp_path / "model")
    assert [len(subwords.encode(text)) for text in ("xy xy", "ab ab")] == [2, 6]


def test_a_word_longer_than_the_trainer_takes_is_learned_from_and_comes_back(tmp_path):
    word = "z" * 70_000  # the trainer's limit is 65,535
    subwords = Subwords.train([word, "ab ab"], 266, tmp_path / "model")
    assert subwords.decode(subwords.encode(word)) == word


def test_packed_files_give_back_what_was_written(tmp_path):
    writer = Writer(tmp_path, "dev", dtype_of(1 << 16))
    writer.add(Side.of([[3, 65535]], "uint16"), Side.of([[]], "uint16"))
    writer.add(Side.of([[]], "uint16"), Side.of([[4, 5, 6]], "uint16"))
    assert writer.close() == (2, {"src": 4, "tgt": 5})
    packed = Packed.open(tmp_path, "dev", "uint16")
    assert len(packed) == 2
    assert [packed.src(i).tolist() for i in range(2)] == [[3, 65535, EOS], [EOS]]
    assert [packed.tgt(i).tolist() for i in range(2)] == [[EOS], [4, 5, 6, EOS]]
    assert (packed.src_lengths.tolist(), packed.tgt_lengths.tolist()) == ([3, 1], [1, 4])


def test_ids_take_two_bytes_up_to_65536_of_them():
    assert (dtype_of(65_536), dtype_of(65_537)) == ("uint16", "uint32")
