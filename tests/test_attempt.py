import platform
import re

import pytest
import torch

from ablate import attempt
from ablate.errors import ConfigError


def test_the_processor_is_named_by_its_model(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Fast CPU @ 3 GHz\nmodel name\t: another\n")
    assert attempt.cpu_model(tmp_path / "cpuinfo") == "Fast CPU @ 3 GHz"
    assert attempt.cpu_model(tmp_path / "nowhere")
    assert attempt.describe_device("cpu").startswith("cpu: ")


def test_a_gpu_that_is_not_on_the_node_is_said_to_be_missing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    where = re.escape(f"device='cuda' (from {platform.node()}): is not there for torch")
    with pytest.raises(ConfigError, match=where):
        attempt.describe_device("cuda")
