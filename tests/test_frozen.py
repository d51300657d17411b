import dataclasses

import pytest
from configs import FILES, SMOKE

from ablate.errors import ConfigError
from ablate.frozen import from_dict, load, save
from ablate.scale import scaled


@pytest.mark.parametrize("cfg", [SMOKE, FILES, scaled(SMOKE)], ids=["smoke", "files", "scaled"])
def test_a_frozen_configuration_reads_back_as_it_was(cfg, tmp_path):
    save(cfg, tmp_path / "config.yaml")
    assert load(tmp_path / "config.yaml") == cfg


def test_what_an_older_version_froze_means_what_it_meant(tmp_path):
    save(SMOKE, tmp_path / "config.yaml")
    text = (tmp_path / "config.yaml").read_text()
    assert "\ncompile: false\n" in text
    (tmp_path / "config.yaml").write_text(text.replace("compile: false\n", ""))
    assert load(tmp_path / "config.yaml") == SMOKE


def test_an_unknown_corpus_is_refused_with_the_known_ones():
    tree = dataclasses.asdict(SMOKE)
    tree["data"]["name"] = "wmt"
    with pytest.raises(ConfigError, match=r"data\.name='wmt': valid: homeassistant, synthetic, files"):
        from_dict(tree)
